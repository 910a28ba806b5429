"""The actor runtime: a Plan on several streams, run by their workers with no thread in between.

A Plan's tasks are chains, each on one stream: an *actor* owns a chain.  Launches are numbered; an
actor acts once for each, in order, when its inputs are readable (their producers have acted for
that launch) and its outputs writable (each consumer has acted for the launch `regst_num` before it:
that is the credit it has returned).  So messages are counters: an actor stores how many launches it
has acted for, and tells its consumers (data is ready) and its producers (a credit is back) to look,
by a message in the mailbox of the stream that they live on.  An actor has one message waiting at
most, since all that one says is "look".

LaunchPlan instructions of such Plans have a stream to themselves, so that opening and closing them
waits for no kernel.  Its worker, their *home*, opens launches in the order of its queue, as many as
may be in flight at one time (the source: a number goes to the actors that wait for nobody), and
closes them in order when all actors have acted (callback notify: the instruction is done, whatever
waits for it goes on).  Each launch in flight has a chunk of its own, so `regst_num` launches are
`regst_num` copies of every register.

Eord, the end of register data, goes from the sources to whoever they tell, once no launch will
come.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import (
    Words,
    address_in,
    compare_exchange,
    fetch_add,
    futex_wake,
    load_acquire,
    load_word,
    sched_yield,
    store_release,
    words_at,
)
from flowvm.vm.machine.layout import (
    AC_ACTED,
    AC_CREDIT,
    AC_CREDITS,
    AC_ENDED,
    AC_IN,
    AC_INS,
    AC_PLAN,
    AC_QUEUED,
    AC_STREAM,
    AC_TASK,
    AC_TASKS,
    AC_TELL,
    AC_TELLS,
    AC_WORDS,
    AC_WORDS_AT,
    ARG,
    ARG_WORDS,
    CONST,
    DETAILS,
    E_KIND,
    E_LAYOUT,
    E_SCRATCH,
    ERR,
    ERR_WORDS,
    ERRORS,
    I_STATUS,
    INS,
    INS_WORDS,
    L_ALONE,
    L_CAUSE,
    L_CHUNK,
    L_DETAILS,
    L_ENTRY,
    L_LEFT,
    L_SCALARS,
    L_SLOT,
    L_STATUS,
    L_TASK,
    L_WORDS,
    LAUNCH,
    MAILBOX,
    MBX,
    MBX_FIRST,
    MBX_HEAD,
    MBX_TAIL,
    MBX_WORDS,
    N_POISONED,
    NO_STATUS_POISONED,
    P_ACTORS,
    P_INPUTS,
    P_MADE,
    R_POISONED,
    RT_ACTORS,
    RT_CLOSED,
    RT_DEPTH,
    RT_FAILED,
    RT_FINISHED,
    RT_FIRST,
    RT_HEAD,
    RT_HOME,
    RT_STARTED,
    STORAGE_MASK,
    STR,
    STR_WORDS,
    T_SLEEPS,
    T_TASK,
)
from flowvm.vm.machine.machine import access_of, count_of, operand_of
from flowvm.vm.machine.stamps import stamp_tasks
from flowvm.vm.workers.allocator import class_of, release
from flowvm.vm.workers.execute import fail, poison, poison_of, seq_of
from flowvm.vm.workers.launch import poison_task, run_tasks, scalars_of, take_chunk
from flowvm.vm.workers.owning import OUT_OF_MEMORY

MOST = 1 << 40  # words_at wants a length; the runtime's lists know their own
EVERYBODY = 1 << 30


# --- messages -----------------------------------------------------------------------------------


def nudge(m: Words, stream: int) -> None:
    """Wake the stream's worker, if it sleeps, after something was published for it."""
    word = STR + stream * STR_WORDS + T_SLEEPS
    if fetch_add(m, word, 0) != 0:
        store_release(m, word, 0)
        futex_wake(m, word, EVERYBODY)


def post(m: Words, actor: Words) -> None:
    """Tell an actor to look whether it may act.

    A mailbox has room for every actor of its stream, so nobody waits here for long.
    """
    if not compare_exchange(actor, AC_QUEUED, 0, 1):
        return
    stream = actor[AC_STREAM]
    box = MBX + stream * MBX_WORDS
    place = box + MBX_FIRST + fetch_add(m, box + MBX_TAIL, 1) % MAILBOX
    while load_acquire(m, place) != 0:
        sched_yield()
    store_release(m, place, address_in(actor, 0))
    nudge(m, stream)


def has_mail(m: Words, stream: int) -> bool:
    """Whether a message waits for one of the stream's actors."""
    box = MBX + stream * MBX_WORDS
    return load_acquire(m, box + MBX_FIRST + m[box + MBX_HEAD] % MAILBOX) != 0


def serve(m: Words, stream: int) -> bool:
    """Take one message, and let its actor act while it may; whether there was one."""
    box = MBX + stream * MBX_WORDS
    place = box + MBX_FIRST + m[box + MBX_HEAD] % MAILBOX
    address = load_acquire(m, place)
    if address == 0:
        return False
    store_release(m, place, 0)
    m[box + MBX_HEAD] += 1
    actor = words_at(address, AC_WORDS)
    fetch_add(actor, AC_QUEUED, -1)  # before the look: what comes after it posts again
    plan = words_at(actor[AC_PLAN], MOST)
    while may_act(plan, actor):
        act(m, stream, plan, actor)
    if load_acquire(plan, RT_CLOSED) != 0 and actor[AC_ENDED] == 0 and may_end(plan, actor):
        store_release(actor, AC_ENDED, 1)
        tell(m, plan, actor)
    return True


def actor_of(plan: Words, number: int) -> Words:
    """The words of an actor."""
    return words_at(address_in(plan, plan[RT_FIRST] + number * AC_WORDS), AC_WORDS)


def tell(m: Words, plan: Words, actor: Words) -> None:
    """A message to every consumer and producer."""
    for k in range(actor[AC_TELLS]):
        post(m, actor_of(plan, plan[actor[AC_TELL] + k]))


def tell_sources(m: Words, plan: Words) -> None:
    """A message to every actor that waits for no other."""
    for k in range(plan[RT_ACTORS]):
        actor = actor_of(plan, k)
        if actor[AC_INS] == 0:
            post(m, actor)


# --- acting -------------------------------------------------------------------------------------


def may_act(plan: Words, actor: Words) -> bool:
    """Whether the actor's inputs are readable and its outputs writable for its next launch."""
    number = actor[AC_ACTED]
    if number >= load_acquire(plan, RT_STARTED):
        return False
    for k in range(actor[AC_INS]):
        producer = actor_of(plan, plan[actor[AC_IN] + k])
        if load_acquire(producer, AC_ACTED) <= number:
            return False
    for k in range(actor[AC_CREDITS]):
        at = actor[AC_CREDIT] + 2 * k
        if load_acquire(actor_of(plan, plan[at]), AC_ACTED) <= number - plan[at + 1]:
            return False
    return True


def act(m: Words, stream: int, plan: Words, actor: Words) -> None:
    """Run the actor's chain for its next launch, and pass the news on."""
    number = actor[AC_ACTED]
    at = RT_HEAD + number % plan[RT_DEPTH] * L_WORDS
    slot, entry = plan[at + L_SLOT], plan[at + L_ENTRY]
    if load_acquire(plan, RT_FAILED) != 0 and load_acquire(plan, at + L_STATUS) == 0:
        cause = poison_of(m, slot, entry)  # by a launch in front of it that is in flight too
        if cause != 0 and compare_exchange(plan, at + L_STATUS, 0, NO_STATUS_POISONED):
            plan[at + L_CAUSE] = cause
    if load_acquire(plan, at + L_STATUS) == 0:
        stamp_tasks(m, stream, slot)
        status = run_tasks(
            m, stream, actor[AC_WORDS_AT], actor[AC_TASK], actor[AC_TASKS],
            plan[at + L_CHUNK], plan[at + L_SCALARS],
        )  # fmt: skip
        if status != 0 and compare_exchange(plan, at + L_STATUS, 0, status):
            plan[at + L_TASK] = m[STR + stream * STR_WORDS + T_TASK]
            for i in range(DETAILS):
                plan[at + L_DETAILS + i] = m[ARG + stream * ARG_WORDS + i]
            poison_task(m, slot, entry, plan[at + L_TASK], seq_of(m, slot) + 1)
            store_release(plan, RT_FAILED, 1)
    store_release(actor, AC_ACTED, number + 1)
    tell(m, plan, actor)
    if fetch_add(plan, at + L_LEFT, -1) == 1:
        nudge(m, plan[RT_HOME])


def may_end(plan: Words, actor: Words) -> bool:
    """Whether no more data will come: all launches are acted for, all producers have ended."""
    if actor[AC_ACTED] != plan[RT_STARTED]:
        return False
    for k in range(actor[AC_INS]):
        if load_acquire(actor_of(plan, plan[actor[AC_IN] + k]), AC_ENDED) == 0:
            return False
    return True


# --- home ---------------------------------------------------------------------------------------


def runtime_of(m: Words, entry: int) -> int:
    """The address of a LaunchPlan's actors; 0 if it has none, or is none."""
    if m[entry + E_KIND] != LAUNCH:
        return 0
    return load_word(m[entry + E_LAYOUT] + 8 * P_ACTORS)


def may_open(m: Words, slot: int, entry: int, plan: Words) -> bool:
    """Whether a launch may run beside those in flight, which come before it.

    Same-stream order does not hold it back here, so what it shares with them must be what the
    actors' own edges order: variables.  An input that one of them makes, or that a launch writes
    as a variable, is not.
    """
    if plan[RT_STARTED] == plan[RT_FINISHED]:
        return True
    if plan[RT_STARTED] - plan[RT_FINISHED] >= plan[RT_DEPTH]:
        return False
    if writes_an_input(m, slot, entry) or poison_of(m, slot, entry) != 0:
        return False
    words = m[entry + E_LAYOUT]
    made, inputs = load_word(words + 8 * P_MADE), load_word(words + 8 * P_INPUTS)
    for number in range(plan[RT_FINISHED], plan[RT_STARTED]):
        at = RT_HEAD + number % plan[RT_DEPTH] * L_WORDS
        if plan[at + L_ALONE] != 0:
            return False
        for j in range(made):
            output = operand_of(m, plan[at + L_SLOT], plan[at + L_ENTRY], j) & STORAGE_MASK
            for k in range(made, made + inputs):
                if operand_of(m, slot, entry, k) & STORAGE_MASK == output:
                    return False
    return True


def writes_an_input(m: Words, slot: int, entry: int) -> bool:
    """Whether a launch writes, as a variable, the memory of one of its inputs."""
    words = m[entry + E_LAYOUT]
    made, inputs = load_word(words + 8 * P_MADE), load_word(words + 8 * P_INPUTS)
    for j in range(made, made + inputs):
        storage = operand_of(m, slot, entry, j) & STORAGE_MASK
        for k in range(made + inputs, count_of(m, slot, entry)):
            written = access_of(m, slot, entry, k) & 3 != CONST
            if written and operand_of(m, slot, entry, k) & STORAGE_MASK == storage:
                return True
    return False


def open_launch(m: Words, stream: int, slot: int, entry: int, plan: Words) -> None:
    """Take memory for a launch, and send its number to the sources."""
    number = plan[RT_STARTED]
    at = RT_HEAD + number % plan[RT_DEPTH] * L_WORDS
    for k in range(L_WORDS):
        plan[at + k] = 0
    plan[at + L_SLOT], plan[at + L_ENTRY] = slot, entry
    plan[at + L_LEFT] = plan[RT_ACTORS]
    plan[at + L_ALONE] = 1 if writes_an_input(m, slot, entry) else 0
    plan[at + L_SCALARS] = scalars_of(m, slot, entry)
    plan[at + L_CHUNK] = take_chunk(m, stream, slot, entry)
    if plan[at + L_CHUNK] == 0:
        plan[at + L_STATUS], plan[at + L_TASK] = OUT_OF_MEMORY, -1
        for i in range(DETAILS):
            plan[at + L_DETAILS + i] = m[ARG + stream * ARG_WORDS + i]
    store_release(plan, RT_STARTED, number + 1)
    tell_sources(m, plan)


def may_close(plan: Words) -> bool:
    """Whether all actors have acted for the first launch in flight."""
    at = RT_HEAD + plan[RT_FINISHED] % plan[RT_DEPTH] * L_WORDS
    return load_acquire(plan, at + L_LEFT) == 0


def close_launch(m: Words, stream: int, slot: int, entry: int, plan: Words) -> int:
    """Give a launch's chunk back and report what came of it: its status."""
    at = RT_HEAD + plan[RT_FINISHED] % plan[RT_DEPTH] * L_WORDS
    status = load_acquire(plan, at + L_STATUS)
    if plan[at + L_CHUNK] != 0:
        release(m, stream, plan[at + L_CHUNK], class_of(m[entry + E_SCRATCH]))
    if status == NO_STATUS_POISONED:
        cause = plan[at + L_CAUSE]
        poison(m, slot, entry, cause)
        fetch_add(m, N_POISONED, 1)
        fetch_add(m, ERR + (cause - 1) % ERRORS * ERR_WORDS + R_POISONED, 1)
    elif status != 0:
        m[STR + stream * STR_WORDS + T_TASK] = plan[at + L_TASK]
        for i in range(DETAILS):
            m[ARG + stream * ARG_WORDS + i] = plan[at + L_DETAILS + i]
        fail(m, stream, slot, entry, status)
    plan[RT_FINISHED] += 1
    if plan[RT_FINISHED] == plan[RT_STARTED]:
        store_release(plan, RT_FAILED, 0)
    m[INS + slot * INS_WORDS + I_STATUS] = status
    return status
