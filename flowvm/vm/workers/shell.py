"""The thin shell around the machine: the loops of threads, and their sleep and wake-up.

Each loop is one C function entered through ctypes, so it holds no GIL.  A thread that finds nothing
to do polls SPINS times, yielding its core each time, and then sleeps on a futex word; with more
threads than cores, yielding is what makes a round trip take 3 us where sleeping takes 45 (measured
on two cores).  One that wakes and still finds nothing sleeps again at once: the threads of idle
streams take nothing from those that work.

Going to sleep is: set the word, fence, look again, wait.  Waking is: publish, fence, look at the
word, clear it, wake.  Python issues records without that fence, so a wake-up can be missed there;
the scheduler therefore sleeps at most SLICE at a time, and everything that *waits* goes through
`wait_cell`, which fences.
"""

from __future__ import annotations

from flowvm.vm.machine.device_words import DEV
from flowvm.vm.machine.lang import (
    Words,
    address_in,
    call_kernel,
    clock,
    compare_exchange,
    fetch_add,
    futex_wait,
    futex_wake,
    load_acquire,
    sched_yield,
    store_release,
    ticks,
    words_at,
)
from flowvm.vm.machine.machine import (
    complete,
    count_of,
    dispatch,
    entry_of,
    is_settled,
    may_receive,
    next_ready,
    ready_barrier,
    receive,
    recycle_storages,
    set_limit,
)
from flowvm.vm.machine.plan_words import RUNTIME
from flowvm.vm.machine.policy import has_room, is_room, is_shared, lane_of, news, take
from flowvm.vm.machine.recorder import begin, end
from flowvm.vm.machine.stamps import see, stamp_end, stamp_open, stamp_task
from flowvm.vm.machine.wait_words import WAIT
from flowvm.vm.machine.words import ARRAY, CTL, ENT, INS, KIND, POL, QUE, RING, STATE, STR
from flowvm.vm.workers.actors import (
    close_launch,
    has_mail,
    may_close,
    may_open,
    open_launch,
    serve,
    tell_sources,
)
from flowvm.vm.workers.allocator import trim
from flowvm.vm.workers.device import (
    close_passed,
    enter,
    ignore_captures,
    open_next,
    record,
    run_to_end,
)
from flowvm.vm.workers.execute import execute, fail, poison_of, tear, will_run
from flowvm.vm.workers.launch import MOST, runtime_of
from flowvm.vm.workers.native_policy import choose_compiled, ended
from flowvm.vm.workers.ranges import help_with

WORDS_ONLY = True
WINDOW = 64  # records taken before the workers' news are looked at again
STAMPED = 8  # records received that have one time of `recorder`'s level 1
SLICE = 2000  # microseconds the scheduler sleeps at most
PATIENCE = 50  # such sleeps until a policy lets go what it has held
ANSWER_US = 200  # between two looks for a policy's answer
EVERYBODY = 1 << 30
NAP = 50_000  # microseconds other threads sleep at most
GLANCE = 50  # microseconds between two looks at a busy device
HASTY = 50  # polls of a waiting thread before it yields its core
LOOK_NS = 50_000  # of a wait behind which the system's counts are read, for 6 us
BRIEFLY = 32  # instructions that a waiting thread runs before it looks for its value again


def wake(m: Words, word: int) -> None:
    """Wake the threads that sleep on `word`, after something was published."""
    if fetch_add(m, word, 0) != 0:
        store_release(m, word, 0)
        futex_wake(m, word, EVERYBODY)


def rouse(m: Words) -> None:
    """Wake the scheduler if it is ASLEEP; ABSENT, for which issuing threads call `after`, stays."""
    if fetch_add(m, CTL.SCHEDULER_SLEEPS, 0) == CTL.ASLEEP and compare_exchange(
        m, CTL.SCHEDULER_SLEEPS, CTL.ASLEEP, 0
    ):
        futex_wake(m, CTL.SCHEDULER_SLEEPS, EVERYBODY)


def keep_polling(m: Words, polls: int) -> bool:
    """Let another thread have the core, and poll again; False when that was often enough."""
    if polls >= m[CTL.SPINS]:
        return False
    sched_yield()
    return True


def claim(m: Words, word: int) -> bool:
    """Become the scheduler, or a stream's worker.  Return False while another thread is."""
    return load_acquire(m, word) == 0 and compare_exchange(m, word, 0, 1)


def leave(m: Words, word: int) -> None:
    """Cease to be the scheduler, or a stream's worker."""
    store_release(m, word, 0)


def sleep(m: Words, at: int, quiet: bool, microseconds: int) -> None:
    """Sleep, if all was `quiet`: the worker at `at` has set its futex word and looked again."""
    if quiet:
        futex_wait(m, at + STR.SLEEPS, 1, microseconds)
    store_release(m, at + STR.SLEEPS, 0)


def wait_while(m: Words, words: Words, word: int, most: int, sleepers: int, most_us: int) -> int:
    """Wait at most `most_us` microseconds while word `word` is from 0 to `most`.  Return its value
    then.

    Word `sleepers` counts the sleeping threads; a thread that changes `word` wakes them.
    """
    polls = 0
    while 0 <= load_acquire(words, word) <= most:
        polls += 1
        if keep_polling(m, polls):
            continue
        # read before the second look, or a wake between is missed
        asleep = fetch_add(words, sleepers, 1) + 1
        if 0 <= load_acquire(words, word) <= most:
            futex_wait(words, sleepers, asleep, most_us)
        break
    return load_acquire(words, word)


def outcome_of(m: Words, slot: int) -> int:
    """Return the value for a waiter's cell, 1 or -cause.  The waiter's instruction is over now."""
    entry, ins = entry_of(m, slot), INS.AT + slot * INS.WORDS
    m[ins + INS.T_START] = m[ins + INS.T_END] = m[CTL.NOW]
    cause = poison_of(m, slot, entry) if m[ins + INS.COUNT] > 0 else 0
    return 1 if cause == 0 else -cause


def cell_of(m: Words, slot: int) -> int:
    """Return the address of a waiter's cell; 0 if nobody waits."""
    return m[RING.AT + slot * RING.WORDS + RING.OPERANDS - m[entry_of(m, slot) + ENT.COUNT]]


def notify(cell: int, outcome: int) -> None:
    """Write the outcome into a waiter's cell, and wake the waiter."""
    if cell != 0:
        word = words_at(cell, WAIT.WORDS)
        store_release(word, WAIT.OUTCOME, outcome)
        wake(word, WAIT.SLEEPERS)


def finish_wait(m: Words, slot: int) -> None:
    """Complete a waiter's instruction, in the scheduler, and then notify the waiter.  By then the
    instruction and the ones before it are recorded and released.
    """
    cell, outcome = cell_of(m, slot), outcome_of(m, slot)
    if m[POL.KIND] != 0:
        m[POL.WAITERS] -= 1
    complete(m, slot)  # the slot may be another instruction's from here on
    notify(cell, outcome)


def step(m: Words) -> int:
    """Run one pass of the scheduler over all its work.  Return the amount of work done."""
    did = 0
    level = m[CTL.LEVEL]
    for stream in range(m[CTL.USED_STREAMS]):
        at = STR.AT + stream * STR.WORDS
        if m[at + STR.COLLECTED] != m[at + STR.TAIL]:
            finished = load_acquire(m, at + STR.DONE)
            if level != 0 and m[at + STR.COLLECTED] < finished:
                m[CTL.NOW] = ticks()
            while m[at + STR.COLLECTED] < finished:
                collected = m[at + STR.COLLECTED]
                m[at + STR.COLLECTED] = collected + 1
                slot = m[QUE.AT + stream * RING.SLOTS + (collected & RING.SLOT_MASK)]
                if m[POL.KIND] == POL.ASKED:
                    ended(m, slot, stream)
                complete(m, slot)
                did += 1
    if level != 0:
        see(m)
    for k in range(WINDOW):
        if level > 1 or (level != 0 and k % STAMPED == STAMPED - 1):
            m[CTL.NOW] = ticks()
        if not receive(m):
            break
        did += 1
        if k == WINDOW - 1 and m[POL.GATHERED] != 0:
            return did  # more may be there, which belongs to the same choice
    if m[POL.GATHERED] != 0 and is_full(m):
        m[POL.STALLED] = 1
    slot = next_one(m)
    while slot >= 0:
        if level > 1:
            m[CTL.NOW] = ticks()
        dispatch(m, slot)
        if m[INS.AT + slot * INS.WORDS + INS.KIND] == KIND.TOUCH:
            m[INS.AT + slot * INS.WORDS + INS.STATUS] = 0
            finish_wait(m, slot)
        did += 1
        slot = next_one(m)
    slot = ready_barrier(m)
    while slot >= 0:
        finish_wait(m, slot)
        did += 1
        slot = ready_barrier(m)
    return did


def is_full(m: Words) -> bool:
    """Return True if no thread may issue more, or the next record waits for room.  Then a held
    instruction must go although no thread waits.
    """
    seq = m[CTL.RECEIVED]
    mark = RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK
    return m[CTL.LIMIT] <= seq or load_acquire(m, mark) == seq + 1


def next_one(m: Words) -> int:
    """Take the next ready instruction off the list.  Return its slot, or -1."""
    slot = next_ready(m)
    if slot < 0 and m[POL.KIND] == POL.ASKED and m[POL.TOLD] != news(m):
        return ask(m)
    return slot


def ask(m: Words) -> int:
    """Let the policy choose: its function, or its thread in Python, for whose answer this one
    waits.  Return a slot, or -1.
    """
    if m[POL.GATHERED] != 0 and m[POL.WAITERS] == 0 and m[POL.STALLED] == 0:
        return -1
    slot = m[CTL.READY_FIRST]
    while slot >= 0 and lane_of(m, slot) < 0:
        slot = m[INS.AT + slot * INS.WORDS + INS.NEXT]
    if slot < 0:
        return -1
    if m[POL.NATIVE] != 0:
        m[POL.STALLED] = 0
        return choose_compiled(m)
    event = news(m)
    question = m[POL.ASK] + 1
    store_release(m, POL.ASK, question)
    polls = 0
    while load_acquire(m, POL.ANSWER) != question:
        if load_acquire(m, CTL.STOP) != 0:
            return -1
        polls += 1
        if not keep_polling(m, polls):
            futex_wait(m, POL.ANSWER, question - 1, ANSWER_US)
    m[POL.STALLED] = 0
    if m[POL.CHOICE] < 0:
        m[POL.TOLD] = event
        return -1
    return take(m, m[POL.CHOICE], m[POL.LANE])


def scheduler_loop(base: int, mine: int) -> int:
    """Run the scheduler thread until STOP; `mine` is -1.

    A waiting thread, which runs stream `mine` itself, makes one pass and gets the amount of work.
    """
    m = words_at(base, ARRAY.WORDS)
    idle = naps = 0
    while True:
        did = 0
        # looked at first: one that polls and loses its core must not keep others from the work
        if has_work(m) and claim(m, CTL.TAKEN):
            if m[POL.KIND] != 0:
                m[POL.PASSER] = mine
            if mine < 0 or is_running(m):
                did = step(m)
            leave(m, CTL.TAKEN)
        if did > 0:
            idle = naps = 0
            for stream in range(m[CTL.USED_STREAMS]):
                at = STR.AT + stream * STR.WORDS
                if stream != mine and m[at + STR.SLEEPS] != 0 and has_task(m, stream):
                    wake(m, at + STR.SLEEPS)
            if m[CTL.ROOM_SLEEPS] != 0:
                wake(m, CTL.ROOM_SLEEPS)
        if mine >= 0:
            return did
        if did > 0:
            continue
        if load_acquire(m, CTL.STOP) != 0:
            return 0
        idle += 1
        if keep_polling(m, idle):
            continue
        compare_exchange(m, CTL.SCHEDULER_SLEEPS, 0, CTL.ASLEEP)
        for stream in range(
            m[CTL.USED_STREAMS]
        ):  # a worker may have gone to sleep since we published
            at = STR.AT + stream * STR.WORDS
            if has_task(m, stream):
                wake(m, at + STR.SLEEPS)
        if not has_news(m):
            futex_wait(m, CTL.SCHEDULER_SLEEPS, CTL.ASLEEP, SLICE)
            naps += 1
            if m[POL.KIND] != 0 and naps > PATIENCE:  # whoever waits does so in a way of its own
                m[POL.STALLED] = 1
        compare_exchange(m, CTL.SCHEDULER_SLEEPS, CTL.ASLEEP, 0)
        if m[CTL.ROOM_SLEEPS] != 0:
            wake(m, CTL.ROOM_SLEEPS)
        idle = m[CTL.SPINS]  # the waking thread has left something, or this one sleeps on


def has_task(m: Words, stream: int) -> bool:
    """Return True if a stream's queue has an instruction, or its worker may take a ready one."""
    at = STR.AT + stream * STR.WORDS
    return m[at + STR.TAIL] != load_acquire(m, at + STR.DONE) or may_pull(m, stream)


def may_pull(m: Words, stream: int) -> bool:
    """Return True if a ready instruction waits that the stream's worker may take in its pass."""
    if m[POL.PULLED] == 0 or load_acquire(m, CTL.READY_FIRST) < 0:
        return False
    return is_shared(m, stream) and has_room(m, stream) and is_room(m)


def is_running(m: Words) -> bool:
    """Return True if the VM's threads run and are not about to leave.  Then a waiting thread may
    help.
    """
    return load_acquire(m, CTL.STOP) == 0 and load_acquire(m, CTL.SCHEDULER_SLEEPS) != CTL.ABSENT


def has_work(m: Words) -> bool:
    """Return True if a record is marked, a worker has finished an instruction, one is ready, or a
    policy chooses: it may let an instruction go that it has held.
    """
    if m[POL.KIND] != 0 or m[CTL.READY_FIRST] >= 0:
        return True
    seq = m[CTL.RECEIVED]
    mark = RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK
    return load_acquire(m, mark) == seq + 1 or has_finished(m)


def has_finished(m: Words) -> bool:
    """Return True if a worker has finished an instruction that the scheduler has not completed."""
    for stream in range(m[CTL.USED_STREAMS]):
        at = STR.AT + stream * STR.WORDS
        if m[at + STR.COLLECTED] != load_acquire(m, at + STR.DONE):
            return True
    return False


def has_news(m: Words) -> bool:
    """Return True if a record may be taken, a worker has finished an instruction, or the VM is to
    stop.
    """
    return may_receive(m) or has_finished(m) or load_acquire(m, CTL.STOP) != 0


def next_of(m: Words, stream: int, wait: int, idle: int) -> int:
    """Return the next slot in the stream's queue, after waiting at most `wait` microseconds; else
    -1.  `idle` counts earlier polls: after a vain sleep, sleep again at once.
    """
    at = STR.AT + stream * STR.WORDS
    finished = load_acquire(m, at + STR.DONE)
    while load_acquire(m, at + STR.TAIL) == finished:
        if load_acquire(m, CTL.STOP) != 0 or wait == 0 or has_mail(m, stream):
            return -1
        if m[POL.KIND] != 0 and may_schedule(m) and make_pass(m, stream) > 0:
            continue
        idle += 1
        if keep_polling(m, idle):
            continue
        fetch_add(m, at + STR.SLEEPS, 1)
        rouse(m)
        quiet = load_acquire(m, at + STR.TAIL) == finished and not has_mail(m, stream)
        sleep(m, at, quiet and not may_pull(m, stream), wait)
        if load_acquire(m, at + STR.TAIL) == finished:
            return -1
    return m[QUE.AT + stream * RING.SLOTS + (finished & RING.SLOT_MASK)]


def may_schedule(m: Words) -> bool:
    """Return True if a worker that has nothing to do makes the scheduler's pass, under a policy.

    A stream then has few instructions at once (POL.DEPTH), so each waits for a pass.  The thread of
    the scheduler may be on a core that another worker's task has for milliseconds.  A policy in
    Python is left to that thread, which waits for its answers.
    """
    return m[CTL.SCHEDULE] != 0 and (m[POL.KIND] != POL.ASKED or m[POL.NATIVE] != 0)


def make_pass(m: Words, stream: int) -> int:
    """Make one pass of the scheduler, unless another thread does.  Return the amount of work."""
    return call_kernel(m[CTL.SCHEDULE], address_in(m, 0), stream, 0, 0, 0)


def finish(m: Words, stream: int) -> None:
    """Count the stream's current instruction as done, and tell the scheduler."""
    at = STR.AT + stream * STR.WORDS
    count = m[at + STR.DONE] + 1
    store_release(m, at + STR.DONE, count)
    if m[CTL.SCHEDULER_SLEEPS] == CTL.ASLEEP:
        # a worker that makes the pass itself leaves the core to the stream that it wakes
        if m[POL.KIND] != 0 and may_schedule(m) and m[at + STR.TAIL] == count:
            return
        rouse(m)


def run_brief(m: Words, stream: int) -> int:
    """Run the next instructions of a stream on a waiting thread: brief ones, while no other thread
    is the stream's worker.  Return their number.
    """
    at, ran = STR.AT + stream * STR.WORDS, 0
    if not claim(m, at + STR.TAKEN):
        return 0
    while ran < BRIEFLY and is_running(m) and load_acquire(m, at + STR.TAIL) != m[at + STR.DONE]:
        slot = m[QUE.AT + stream * RING.SLOTS + (m[at + STR.DONE] & RING.SLOT_MASK)]
        entry = entry_of(m, slot)
        if m[entry + ENT.BRIEF] == 0:
            break
        execute(m, stream, slot)
        store_release(m, at + STR.DONE, m[at + STR.DONE] + 1)
        ran += 1
    leave(m, at + STR.TAKEN)
    return ran


def worker_loop(base: int, stream: int, waits: int) -> int:
    """Run a stream's worker thread until STOP.  With `waits`, `run_brief` on a waiting thread."""
    m = words_at(base, ARRAY.WORDS)
    if waits != 0:
        return run_brief(m, stream)
    at = STR.AT + stream * STR.WORDS
    answered = at + STR.TRIMMED
    idle = 0
    while load_acquire(m, CTL.STOP) == 0:
        slot = next_of(m, stream, NAP, idle)
        if not claim(m, at + STR.TAKEN):  # a thread that waits runs what there is
            sched_yield()
            idle = 0
            continue
        idle = m[CTL.SPINS]
        if slot >= 0:
            idle = 0
        if load_acquire(m, at + STR.TAIL) != m[at + STR.DONE]:
            slot = m[QUE.AT + stream * RING.SLOTS + (m[at + STR.DONE] & RING.SLOT_MASK)]
            entry = entry_of(m, slot)
            runtime = runtime_of(m, entry)
            if runtime != 0 and will_run(m, slot, entry):
                run_window(m, stream, runtime)
            else:
                execute(m, stream, slot)
                finish(m, stream)
        while serve(m, stream):
            idle = 0
            m[at + STR.STAMP] = 0  # the next instruction starts later
        request = load_acquire(m, CTL.TRIM)
        if m[answered] != request:
            trim(m, stream)
            store_release(m, answered, request)
        leave(m, at + STR.TAKEN)
    return 0


def run_window(m: Words, stream: int, runtime: int) -> None:
    """Run launches of a Plan on several streams, from the head of the queue on.  Open as many as
    may be in flight, act, and close them in order, until none is left.

    Tensors that Python drops between two launches make a ReleaseTensor.  It waits for its turn
    without keeping the launch behind it, because no later instruction names the released storages.
    """
    plan = words_at(runtime, MOST)
    at = STR.AT + stream * STR.WORDS
    opened = m[at + STR.DONE]
    idle = 0
    while load_acquire(m, CTL.STOP) == 0:
        tail = load_acquire(m, at + STR.TAIL)
        if open_next_launch(m, stream, plan, opened):
            opened += 1
            idle = 0
        elif m[at + STR.DONE] == opened:
            return
        elif close_next(m, stream, plan) or serve(m, stream):
            idle = 0
        elif keep_polling(m, idle):
            idle += 1
        else:
            fetch_add(m, at + STR.SLEEPS, 1)
            news = has_mail(m, stream) or may_close(plan)
            sleep(m, at, not news and load_acquire(m, at + STR.TAIL) == tail, NAP)


def open_next_launch(m: Words, stream: int, plan: Words, opened: int) -> bool:
    """Open the launch at place `opened` of the queue, if it is the Plan's and allowed, or pass a
    ReleaseTensor by.  Return True if so.
    """
    if opened >= load_acquire(m, STR.AT + stream * STR.WORDS + STR.TAIL):
        return False
    slot = m[QUE.AT + stream * RING.SLOTS + (opened & RING.SLOT_MASK)]
    entry = entry_of(m, slot)
    if m[entry + ENT.KIND] == KIND.RELEASE:
        return True
    if runtime_of(m, entry) != address_in(plan, 0) or not may_open(m, slot, entry, plan):
        return False
    if m[CTL.LEVEL] != 0:
        stamp_open(m, stream, slot)
    open_launch(m, stream, slot, entry, plan)
    return True


def close_next(m: Words, stream: int, plan: Words) -> bool:
    """Close the first launch in flight if all actors have acted for it, or run the ReleaseTensor
    whose turn it is.  Return True if so.
    """
    at = STR.AT + stream * STR.WORDS
    slot = m[QUE.AT + stream * RING.SLOTS + (m[at + STR.DONE] & RING.SLOT_MASK)]
    entry = entry_of(m, slot)
    if m[entry + ENT.KIND] == KIND.RELEASE:
        execute(m, stream, slot)
        m[at + STR.STAMP] = 0  # the next record may have been received since
    elif may_close(plan):
        close_launch(m, stream, slot, entry, plan)
        if m[CTL.LEVEL] != 0:
            stamp_end(m, stream, slot)
    else:
        return False
    finish(m, stream)
    return True


def device_loop(base: int, stream: int) -> int:
    """Run the worker thread of a device's stream until STOP."""
    m = words_at(base, ARRAY.WORDS)
    at = STR.AT + stream * STR.WORDS
    block = enter(m, stream)
    ignore_captures(block)
    idle = 0
    while load_acquire(m, CTL.STOP) == 0:
        opened = open_next(m, stream, block)
        if not opened and block[DEV.SINCE] > 0:
            record(block, m[at + STR.LAUNCHED])
        if close_passed(m, stream, block):
            idle = 0
            if m[CTL.SCHEDULER_SLEEPS] == CTL.ASLEEP:
                rouse(m)
        if opened:
            idle = 0
            continue
        request = load_acquire(m, CTL.TRIM)
        if m[at + STR.TRIMMED] != request:
            trim(m, stream)
            store_release(m, at + STR.TRIMMED, request)
        idle += 1
        if keep_polling(m, idle):
            continue
        busy = block[DEV.PASSED] < block[DEV.RECORDED] or m[at + STR.LAUNCHED] < m[at + STR.TAIL]
        fetch_add(m, at + STR.SLEEPS, 1)
        if not busy:
            rouse(m)
        quiet = busy or load_acquire(m, at + STR.TAIL) == m[at + STR.LAUNCHED]
        sleep(m, at, quiet, GLANCE if busy else NAP)
    return 0


def helper_loop(base: int, stream: int, number: int, arena: int) -> int:
    """Run helper `number` of a stream's worker.  It takes chunks of large kernels, until STOP or
    until the team is smaller.
    """
    m = words_at(base, ARRAY.WORDS)
    at = STR.AT + stream * STR.WORDS
    idle = 0
    while load_acquire(m, CTL.STOP) == 0 and number < load_acquire(m, at + STR.TEAM):
        news = load_acquire(m, at + STR.NEWS)
        if help_with(m, stream, number, arena):
            idle = 0
            continue
        idle += 1
        if keep_polling(m, 4 * idle):
            continue
        fetch_add(m, at + STR.TEAM_SLEEPS, 1)  # before the look at STR.NEWS that futex_wait takes
        futex_wait(m, at + STR.NEWS, news, NAP)
        fetch_add(m, at + STR.TEAM_SLEEPS, -1)
        idle = 0 if load_acquire(m, at + STR.NEWS) != news else m[CTL.SPINS]
    return 0


def close_plan(base: int, runtime: int) -> int:
    """End a Plan: no launch will follow, and Eord starts at the sources."""
    m = words_at(base, ARRAY.WORDS)
    plan = words_at(runtime, MOST)
    store_release(plan, RUNTIME.CLOSED, 1)
    tell_sources(m, plan)
    return 0


def wake_stream(base: int, stream: int) -> int:
    """Let a stream's worker and its helpers check if they are still wanted."""
    m = words_at(base, ARRAY.WORDS)
    at = STR.AT + stream * STR.WORDS
    wake(m, at + STR.SLEEPS)
    fetch_add(m, at + STR.NEWS, 1)
    futex_wake(m, at + STR.NEWS, EVERYBODY)
    return 0


def wake_scheduler(base: int) -> int:
    """Wake the scheduler; called by an issuing thread that saw it asleep."""
    m = words_at(base, ARRAY.WORDS)
    rouse(m)
    return 0


def wait_cell(base: int, cell: int, microseconds: int, stream: int) -> int:
    """Wait at most `microseconds` for a waiter's cell to be filled.  Return its value, or 0.

    From level 2 on, the cell says when the wait was over, and after one that is worth the look, how
    long this thread had had no core by then: Python may get the GIL later.
    """
    m = words_at(base, ARRAY.WORDS)
    word = words_at(cell, WAIT.WORDS)
    begun = clock() if m[CTL.LEVEL] > 1 else 0
    if may_help(m) and m[CTL.LEVEL] <= 1:  # a profiler that sees each wait sees threads as they are
        polls, end = 0, clock() + 1000 * microseconds
        while polls >= 0 and load_acquire(word, WAIT.OUTCOME) == 0:
            polls = -1 if clock() > end else help_once(m, base, stream, polls)
        leave_rest(m, stream)
    if load_acquire(word, WAIT.OUTCOME) == 0:  # else: the sequential engine must go on looking
        rouse(m)  # asleep
    outcome = wait_while(m, word, WAIT.OUTCOME, 0, WAIT.SLEEPERS, microseconds)
    if m[CTL.LEVEL] > 1:
        if clock() - begun >= LOOK_NS:
            read_schedule(word)
        word[WAIT.OVER] = clock()
    return outcome


def read_schedule(word: Words) -> None:
    """Copy what the system counts of this thread into its cell, as text, if that is to be had."""
    text = WAIT.TEXT_BYTES
    file = call_kernel(word[WAIT.OPEN], word[WAIT.FILE], word[WAIT.FLAGS], 0, 0, 0)
    if file >= 0:
        call_kernel(word[WAIT.READ], file, address_in(word, WAIT.TEXT), text, 0, 0)
        call_kernel(word[WAIT.CLOSE], file, 0, 0, 0, 0)


def settle_soon(base: int, storage: int, before: int, alone: int, stream: int) -> int:
    """Wait a moment until `is_settled`.  Return 1 if it is.

    Meanwhile this thread does the scheduler's work, and runs brief instructions of `stream`, so
    that nothing goes from thread to thread.  The VM's threads do the rest when it gives up.  Under
    a policy it neither helps nor waits: the policy must hear of a waiter, and may need the GIL.
    """
    m = words_at(base, ARRAY.WORDS)
    if m[POL.KIND] != 0:
        return 1 if is_settled(m, storage, before, alone != 0) else 0
    polls = 0
    end = clock() + 1000 * NAP
    while polls >= 0 and not is_settled(m, storage, before, alone != 0):
        polls = -1 if clock() > end else help_once(m, base, stream, polls)
    leave_rest(m, stream)
    return 0 if polls < 0 else 1


def may_help(m: Words) -> bool:
    """Return True if a waiting thread may do the scheduler's and the worker's work."""
    return m[CTL.SCHEDULE] != 0 and m[CTL.WORK] != 0 and m[POL.KIND] == 0


def help_once(m: Words, base: int, stream: int, polls: int) -> int:
    """Do what there is of the scheduler's work, and brief instructions of `stream`, on a waiting
    thread, where it may help.  Return `polls`, the looks since there was something, with this one;
    -1 if these were enough.
    """
    if may_help(m):
        did = call_kernel(m[CTL.SCHEDULE], base, stream, 0, 0, 0)
        did += call_kernel(m[CTL.WORK], base, stream, 1, 0, 0)
        if did > 0:
            return 0
        if polls == 0:  # what is left at the head is the worker's
            leave_rest(m, stream)
    # on a busy machine, who yields is away for milliseconds
    if polls < HASTY or keep_polling(m, 2 * (polls + 1 - HASTY)):
        return polls + 1
    return -1


def leave_rest(m: Words, stream: int) -> None:
    """Wake the threads whose work a helping thread leaves."""
    at = STR.AT + stream * STR.WORDS
    if load_acquire(m, at + STR.TAIL) != load_acquire(m, at + STR.DONE):
        wake(m, at + STR.SLEEPS)
    if has_news(m):
        rouse(m)


def wait_room(base: int, seq: int, microseconds: int) -> int:
    """Wait at most `microseconds` until records below `seq` + 1 may be issued.  Return the limit
    then.
    """
    m = words_at(base, ARRAY.WORDS)
    rouse(m)
    return wait_while(m, m, CTL.LIMIT, seq, CTL.ROOM_SLEEPS, microseconds)


def nap(base: int, microseconds: int) -> int:
    """Sleep for a moment, without the GIL."""
    m = words_at(base, ARRAY.WORDS)
    futex_wait(m, CTL.ROOM_SLEEPS, m[CTL.ROOM_SLEEPS], microseconds)
    return 0


def publish_mark(base: int, seq: int) -> int:
    """Publish a record that was written with an empty MARK."""
    m = words_at(base, ARRAY.WORDS)
    store_release(m, RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK, seq + 1)
    return 0


def host_next(base: int, stream: int, microseconds: int) -> int:
    """Return the next slot of a host stream, or -1.  A skipped (poisoned) instruction is finished
    here.
    """
    m = words_at(base, ARRAY.WORDS)
    return next_of(m, stream, microseconds, m[CTL.SPINS])


def host_begin(base: int, stream: int, slot: int) -> int:
    """Run the native part of a host instruction, whose kernel is a no-op.  Return its status."""
    m = words_at(base, ARRAY.WORDS)
    return execute(m, stream, slot)


def host_fail(base: int, stream: int, slot: int, status: int) -> int:
    """Fail a host instruction whose Python part raised: poison its outputs and report it."""
    m = words_at(base, ARRAY.WORDS)
    tear(m, slot, entry_of(m, slot))
    fail(m, stream, slot, entry_of(m, slot), status)
    m[INS.AT + slot * INS.WORDS + INS.STATUS] = status
    return 0


def host_end(base: int, slot: int) -> int:
    """End the Python part of a host instruction: only now is it recorded as ended."""
    m = words_at(base, ARRAY.WORDS)
    ins = INS.AT + slot * INS.WORDS
    if m[CTL.LEVEL] != 0:
        m[ins + INS.T_END] = ticks()
        m[STR.AT + m[ins + INS.STREAM] * STR.WORDS + STR.STAMP] = 0  # the next one starts later
    return 0


def read_clocks(pair: int) -> int:
    """Write `ticks()` and the `clock()` of the same moment into the two words at `pair`."""
    words = words_at(pair, 2)
    words[0] = ticks()
    words[1] = clock()
    return 0


def stamp_some(base: int, count: int) -> int:
    """Stamp `count` tasks, to measure the cost of stamps."""
    m = words_at(base, ARRAY.WORDS)
    for k in range(count):
        stamp_task(m, 0, k)
    return 0


def host_finish(base: int, stream: int) -> int:
    """Count a host stream's current instruction as done."""
    m = words_at(base, ARRAY.WORDS)
    finish(m, stream)
    return 0


def drain(base: int) -> int:
    """Run every marked record on this thread, in the order issued: the sequential engine.

    The oracle: it builds no edges.
    Stops at a failed instruction and answers -2, and at a host instruction, whose slot it answers
    for the caller to run and then `settle`; otherwise -1.  The scheduler thread must not be
    running.
    """
    m = words_at(base, ARRAY.WORDS)
    while True:
        seq = m[CTL.RECEIVED]
        slot = seq & RING.SLOT_MASK
        if load_acquire(m, RING.AT + slot * RING.WORDS + RING.MARK) != seq + 1:
            return -1
        entry = entry_of(m, slot)
        kind = m[entry + ENT.KIND]
        ins = INS.AT + slot * INS.WORDS
        m[ins + INS.SEQ] = seq
        m[ins + INS.STREAM] = m[RING.AT + slot * RING.WORDS + RING.ENTRY] >> ENT.BITS
        m[ins + INS.KIND] = kind
        m[ins + INS.COUNT] = count_of(m, slot, entry)
        m[ins + INS.STATUS] = 0
        if m[CTL.LEVEL] != 0:
            m[CTL.NOW] = m[ins + INS.T_READY] = m[ins + INS.T_DISPATCHED] = ticks()
            begin(m, slot, seq, entry, m[ins + INS.COUNT])
        if kind == KIND.CALLBACK:
            return slot
        if kind in (KIND.TOUCH, KIND.BARRIER):
            notify(cell_of(m, slot), outcome_of(m, slot))
        elif (m[CTL.DEVICES] >> m[ins + INS.STREAM]) & 1 != 0:
            run_to_end(m, m[ins + INS.STREAM], slot)
        else:
            execute(m, m[ins + INS.STREAM], slot)
        settle(base, slot)
        if m[ins + INS.STATUS] != 0:
            return -2


def settle(base: int, slot: int) -> int:
    """Finish the instruction in `slot`, which the sequential engine has run, and go on to the
    next.
    """
    m = words_at(base, ARRAY.WORDS)
    ins = INS.AT + slot * INS.WORDS
    entry = entry_of(m, slot)
    if m[CTL.LEVEL] != 0:
        m[CTL.NOW] = max(m[CTL.NOW], m[ins + INS.T_END])
        end(m, slot)
    if m[ins + INS.KIND] == KIND.RELEASE:
        recycle_storages(m, slot, entry)
    m[ins + INS.STATE] = STATE.RELEASED
    m[CTL.N_DISPATCHED] += 1
    m[CTL.N_DONE] += 1
    m[CTL.RECEIVED] = m[CTL.HEAD] = m[ins + INS.SEQ] + 1
    set_limit(m)
    return 0
