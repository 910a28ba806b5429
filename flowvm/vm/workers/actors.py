"""The actor runtime: a Plan on several streams, run by their workers with no thread in between.

A Plan's tasks are chains, each on one stream: an *actor* owns a chain.  Launches are numbered; an
actor acts once for each, in order, when its inputs are readable (their producers have acted for
that launch) and its outputs writable (each consumer has acted for the launch `regst_num` before it:
that is the credit it has returned).  So messages are counters: an actor stores how often it has
acted, and tells its consumers (data is ready) and its producers (a credit is back) to look,
by a message in the mailbox of the stream that they live on.  An actor has one message waiting at
most, since all that one says is "look".

Actors of repeated tasks act for each repetition.  Among each other they count repetitions: a
producer has acted for the same one, a consumer for the one that many before it, whose copy of the
register is free then.  With all others they count launches: an actor behind them waits for the
last repetition of its launch, they wait once for one in front.

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
from flowvm.vm.machine.machine import access_of, count_of, operand_of
from flowvm.vm.machine.plan_words import ACTOR, LAUNCH, PLAN, RUNTIME
from flowvm.vm.machine.stamps import stamp_tasks
from flowvm.vm.machine.words import ARG, ENT, INS, MBX, OPERAND, STO, STR
from flowvm.vm.workers.allocation import OUT_OF_MEMORY
from flowvm.vm.workers.allocator import class_of, release
from flowvm.vm.workers.execute import needs_value, report_failure, seq_of, skip, will_run
from flowvm.vm.workers.launch import (
    MOST,
    poison_outputs,
    poison_rest,
    run_once,
    scalars_of,
    take_chunk,
    tear_begun,
)
from flowvm.vm.workers.zones import CHECKED, begin_check

EVERYBODY = 1 << 30


# --- messages -----------------------------------------------------------------------------------


def nudge(m: Words, stream: int) -> None:
    """Wake the stream's worker, if it sleeps, after something was published for it."""
    word = STR.AT + stream * STR.WORDS + STR.SLEEPS
    if fetch_add(m, word, 0) != 0:
        store_release(m, word, 0)
        futex_wake(m, word, EVERYBODY)


def post(m: Words, actor: Words) -> None:
    """Tell an actor to check if it may act.

    A mailbox has room for every actor of its stream, so nobody waits here for long.
    """
    if not compare_exchange(actor, ACTOR.QUEUED, 0, 1):
        return
    stream = actor[ACTOR.STREAM]
    box = MBX.AT + stream * MBX.WORDS
    place = box + MBX.FIRST + fetch_add(m, box + MBX.TAIL, 1) % MBX.MESSAGES
    while load_acquire(m, place) != 0:
        sched_yield()
    store_release(m, place, address_in(actor, 0))
    nudge(m, stream)


def has_mail(m: Words, stream: int) -> bool:
    """Return True if a message waits for one of the stream's actors."""
    box = MBX.AT + stream * MBX.WORDS
    return load_acquire(m, box + MBX.FIRST + m[box + MBX.HEAD] % MBX.MESSAGES) != 0


def serve(m: Words, stream: int) -> bool:
    """Take one message, and let its actor act while it may.  Return True if there was a message.

    An actor of repeated tasks acts once, and posts itself again behind the actors that it has
    told.  If a forward and a backward actor may both act they take turns, which is 1F1B.
    """
    address = take(m, stream)
    if address == 0:
        return False
    actor = words_at(address, ACTOR.WORDS)
    while look(m, stream, actor):
        if actor[ACTOR.TIMES] > 1:
            post(m, actor)
            break
    leave(actor)
    return True


def take(m: Words, stream: int) -> int:
    """Take a message out of the mailbox.  Return the address of its actor, or 0.  The actor must
    act now, and `leave` afterwards.
    """
    box = MBX.AT + stream * MBX.WORDS
    place = box + MBX.FIRST + m[box + MBX.HEAD] % MBX.MESSAGES
    address = load_acquire(m, place)
    if address != 0:
        store_release(m, place, 0)
        m[box + MBX.HEAD] += 1
        actor = words_at(address, ACTOR.WORDS)
        # the thread that frees the words reads these two in the other order
        store_release(actor, ACTOR.LOOKING, 1)
        # before the look: an event after it posts again
        fetch_add(actor, ACTOR.QUEUED, -1)
    return address


def leave(actor: Words) -> None:
    """End a message: the worker reads and writes nothing of the actor or its Plan until it takes
    another.
    """
    store_release(actor, ACTOR.LOOKING, 0)


def look(m: Words, stream: int, actor: Words) -> bool:
    """Let the actor act once if it may, or else end if no data will come.  Return True if it has
    acted.
    """
    plan = words_at(actor[ACTOR.PLAN], MOST)
    if may_act(plan, actor):
        act(m, stream, plan, actor)
        return True
    if load_acquire(plan, RUNTIME.CLOSED) != 0 and actor[ACTOR.ENDED] == 0 and may_end(plan, actor):
        store_release(actor, ACTOR.ENDED, 1)
        tell(m, plan, actor)
    return False


def actor_of(plan: Words, number: int) -> Words:
    """Return the words of an actor."""
    return words_at(address_in(plan, plan[RUNTIME.FIRST] + number * ACTOR.WORDS), ACTOR.WORDS)


def tell(m: Words, plan: Words, actor: Words) -> None:
    """Send a message to every consumer and producer."""
    for k in range(actor[ACTOR.TELLS]):
        post(m, actor_of(plan, plan[actor[ACTOR.TELL] + k]))


def tell_sources(m: Words, plan: Words) -> None:
    """Send a message to every actor that waits for no other."""
    for k in range(plan[RUNTIME.ACTORS]):
        actor = actor_of(plan, k)
        if actor[ACTOR.INS] == 0:
            post(m, actor)


# --- acting -------------------------------------------------------------------------------------


def may_act(plan: Words, actor: Words) -> bool:
    """Return True if the actor's inputs are readable and its outputs writable for its next
    launch.
    """
    acted, times = actor[ACTOR.ACTED], actor[ACTOR.TIMES]
    if acted // times >= load_acquire(plan, RUNTIME.STARTED):
        return False
    for k in range(actor[ACTOR.INS]):
        if not has_acted(actor_of(plan, plan[actor[ACTOR.IN] + k]), acted, times, 0):
            return False
    for k in range(actor[ACTOR.CREDITS]):
        at = actor[ACTOR.CREDIT] + 2 * k
        if not has_acted(actor_of(plan, plan[at]), acted, times, plan[at + 1]):
            return False
    return True


def has_acted(other: Words, acted: int, times: int, before: int) -> bool:
    """Return True if another actor has acted for the turn of one that has `acted`, with `times`
    turns a launch.  `before` moves the turn back by repetitions, or launches; a negative one moves
    it forward.
    """
    if other[ACTOR.TIMES] == times:  # of one far behind, it may be over for this launch
        last = (acted // times + 1) * times
        return load_acquire(other, ACTOR.ACTED) >= min(acted - before + 1, last)
    return load_acquire(other, ACTOR.ACTED) >= (acted // times - before + 1) * other[ACTOR.TIMES]


def act(m: Words, stream: int, plan: Words, actor: Words) -> None:
    """Run the actor's chain for its next launch, or repetition, and pass the news on."""
    times = actor[ACTOR.TIMES]
    number, repetition = actor[ACTOR.ACTED] // times, actor[ACTOR.ACTED] % times
    at = RUNTIME.WORDS + number % plan[RUNTIME.DEPTH] * LAUNCH.WORDS
    slot, entry = plan[at + LAUNCH.SLOT], plan[at + LAUNCH.ENTRY]
    if load_acquire(plan, RUNTIME.FAILED) != 0 and load_acquire(plan, at + LAUNCH.STATUS) == 0:
        cause = poison_in_front(m, slot, entry)
        if cause != 0 and compare_exchange(plan, at + LAUNCH.STATUS, 0, INS.POISONED):
            plan[at + LAUNCH.CAUSE] = cause
    known, ran = load_acquire(plan, at + LAUNCH.STATUS), 0
    own = ran_at(plan, actor, number)
    before = plan[own] if repetition > 0 else 0
    if known == 0:
        stamp_tasks(m, stream, slot)
        if CHECKED:
            begin_check(m, stream, slot)
        status = run_once(
            m, stream, actor[ACTOR.WORDS_AT], actor[ACTOR.TASK], actor[ACTOR.TASKS],
            plan[at + LAUNCH.CHUNK], plan[at + LAUNCH.SCALARS], repetition,
        )  # fmt: skip
        ran = actor[ACTOR.TASKS]
        if status != 0:
            task = m[STR.AT + stream * STR.WORDS + STR.TASK]
            ran = task - actor[ACTOR.TASK]
            if compare_exchange(plan, at + LAUNCH.STATUS, 0, status):
                plan[at + LAUNCH.TASK] = task
                for i in range(ARG.N_DETAILS):
                    plan[at + LAUNCH.DETAILS + i] = m[ARG.AT + stream * ARG.WORDS + i]
        plan[own] = max(before, ran)  # in front of `leave_undone`, which reads it
        if status != 0:
            leave_undone(m, slot, entry, plan, actor, ran, True)
    else:
        plan[own] = before
        if known != INS.POISONED:  # such a launch poisons all that it writes
            leave_undone(m, slot, entry, plan, actor, 0, before > 0)
    store_release(actor, ACTOR.ACTED, actor[ACTOR.ACTED] + 1)
    tell(m, plan, actor)
    if repetition == times - 1 and fetch_add(plan, at + LAUNCH.LEFT, -1) == 1:
        nudge(m, plan[RUNTIME.HOME])


def poison_in_front(m: Words, slot: int, entry: int) -> int:
    """Return the poison of an operand, as `poison_of`, but only from launches in front of this
    one.  One behind may have failed already, after this one gave it its turn.
    """
    for k in range(count_of(m, slot, entry)):
        storage = operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK
        if needs_value(m, slot, entry, k):
            cause = m[STO.AT + storage * STO.WORDS + STO.POISON]
            if 0 < cause <= seq_of(m, slot):
                return cause
    return 0


def leave_undone(
    m: Words, slot: int, entry: int, plan: Words, actor: Words, ran: int, failed: bool
) -> None:
    """Stop an actor in a failed launch: poison its half written outputs, before others may look at
    them.  `failed`: True at its failed task `ran`; False in the place of repetitions that would
    have followed others.
    """
    poison_rest(
        m, slot, entry, actor[ACTOR.ACTED] // actor[ACTOR.TIMES], actor[ACTOR.TASK] + ran,
        actor[ACTOR.TASK] + actor[ACTOR.TASKS], failed, seq_of(m, slot) + 1,
    )  # fmt: skip
    store_release(plan, RUNTIME.FAILED, 1)


def ran_at(plan: Words, actor: Words, number: int) -> int:
    """Return the index of the word that counts the tasks that an actor has run for a launch."""
    first = address_in(plan, plan[RUNTIME.FIRST])
    k = (address_in(actor, 0) - first) // (8 * ACTOR.WORDS)
    return plan[RUNTIME.RAN] + number % plan[RUNTIME.DEPTH] * plan[RUNTIME.ACTORS] + k


def may_end(plan: Words, actor: Words) -> bool:
    """Return True if no more data will come: all launches are acted for, all producers have
    ended.
    """
    if actor[ACTOR.ACTED] != plan[RUNTIME.STARTED] * actor[ACTOR.TIMES]:
        return False
    for k in range(actor[ACTOR.INS]):
        if load_acquire(actor_of(plan, plan[actor[ACTOR.IN] + k]), ACTOR.ENDED) == 0:
            return False
    return True


# --- home ---------------------------------------------------------------------------------------


def may_open(m: Words, slot: int, entry: int, plan: Words) -> bool:
    """Return True if a launch may run beside the launches in flight, which come before it.

    Same-stream order does not hold it back here.  So memory shared with them must be ordered by the
    actors' own edges: variables.  An input that one of them makes, or that a launch writes as a
    variable, is not.
    """
    if not will_run(m, slot, entry):
        return False  # it never runs: `worker_loop` skips it when nothing is in flight
    if plan[RUNTIME.STARTED] == plan[RUNTIME.FINISHED]:
        return True
    if plan[RUNTIME.STARTED] - plan[RUNTIME.FINISHED] >= plan[RUNTIME.DEPTH]:
        return False
    if writes_an_input(m, slot, entry):
        return False
    words = m[entry + ENT.LAYOUT]
    outputs, inputs = load_word(words + 8 * PLAN.MADE), load_word(words + 8 * PLAN.INPUTS)
    for number in range(plan[RUNTIME.FINISHED], plan[RUNTIME.STARTED]):
        at = RUNTIME.WORDS + number % plan[RUNTIME.DEPTH] * LAUNCH.WORDS
        if plan[at + LAUNCH.ALONE] != 0:
            return False
        for j in range(outputs):
            output = (
                operand_of(m, plan[at + LAUNCH.SLOT], plan[at + LAUNCH.ENTRY], j)
                & OPERAND.STORAGE_MASK
            )
            for k in range(outputs, outputs + inputs):
                if operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK == output:
                    return False
    return True


def writes_an_input(m: Words, slot: int, entry: int) -> bool:
    """Return True if a launch writes, as a variable, the memory of one of its inputs."""
    words = m[entry + ENT.LAYOUT]
    outputs, inputs = load_word(words + 8 * PLAN.MADE), load_word(words + 8 * PLAN.INPUTS)
    for j in range(outputs, outputs + inputs):
        storage = operand_of(m, slot, entry, j) & OPERAND.STORAGE_MASK
        for k in range(outputs + inputs, count_of(m, slot, entry)):
            written = access_of(m, slot, entry, k) & 3 != OPERAND.CONST
            if written and operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK == storage:
                return True
    return False


def open_launch(m: Words, stream: int, slot: int, entry: int, plan: Words) -> None:
    """Take memory for a launch, and send its number to the sources."""
    number = plan[RUNTIME.STARTED]
    at = RUNTIME.WORDS + number % plan[RUNTIME.DEPTH] * LAUNCH.WORDS
    for k in range(LAUNCH.WORDS):
        plan[at + k] = 0
    plan[at + LAUNCH.SLOT], plan[at + LAUNCH.ENTRY] = slot, entry
    plan[at + LAUNCH.LEFT] = plan[RUNTIME.ACTORS]
    plan[at + LAUNCH.ALONE] = 1 if writes_an_input(m, slot, entry) else 0
    plan[at + LAUNCH.SCALARS] = scalars_of(m, slot, entry)
    if CHECKED:
        begin_check(m, stream, slot)  # its memory
    plan[at + LAUNCH.CHUNK] = take_chunk(m, stream, slot, entry)
    if plan[at + LAUNCH.CHUNK] == 0:
        plan[at + LAUNCH.STATUS], plan[at + LAUNCH.TASK] = OUT_OF_MEMORY, -1
        for i in range(ARG.N_DETAILS):
            plan[at + LAUNCH.DETAILS + i] = m[ARG.AT + stream * ARG.WORDS + i]
    store_release(plan, RUNTIME.STARTED, number + 1)
    tell_sources(m, plan)


def may_close(plan: Words) -> bool:
    """Return True if all actors have acted for the first launch in flight."""
    at = RUNTIME.WORDS + plan[RUNTIME.FINISHED] % plan[RUNTIME.DEPTH] * LAUNCH.WORDS
    return load_acquire(plan, at + LAUNCH.LEFT) == 0


def close_launch(m: Words, stream: int, slot: int, entry: int, plan: Words) -> int:
    """Give a launch's chunk back and report the launch.  Return its status."""
    at = RUNTIME.WORDS + plan[RUNTIME.FINISHED] % plan[RUNTIME.DEPTH] * LAUNCH.WORDS
    status = load_acquire(plan, at + LAUNCH.STATUS)
    if plan[at + LAUNCH.CHUNK] != 0:
        release(m, stream, plan[at + LAUNCH.CHUNK], class_of(m[entry + ENT.SCRATCH]))
    if status == INS.POISONED:
        tear_begun(m, slot, entry, plan[RUNTIME.FINISHED], plan[at + LAUNCH.CAUSE])
        skip(m, slot, entry, plan[at + LAUNCH.CAUSE])
    elif status != 0:
        m[STR.AT + stream * STR.WORDS + STR.TASK] = plan[at + LAUNCH.TASK]
        for i in range(ARG.N_DETAILS):
            m[ARG.AT + stream * ARG.WORDS + i] = plan[at + LAUNCH.DETAILS + i]
        poison_outputs(m, slot, entry, seq_of(m, slot) + 1)
        report_failure(m, stream, slot, entry, status)
    plan[RUNTIME.FINISHED] += 1
    if plan[RUNTIME.FINISHED] == plan[RUNTIME.STARTED]:
        store_release(plan, RUNTIME.FAILED, 0)
    m[INS.AT + slot * INS.WORDS + INS.STATUS] = status
    return status
