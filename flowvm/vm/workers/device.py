"""A device's stream: its worker hands instructions over, and counts them done when they are.

The worker never waits where it could go on: it *opens* an instruction (takes memory, launches its
kernels) as soon as it is in the queue, and *closes* it when an event behind it has passed.  Both go
in the order of the queue.  Every thread issues far ahead of the device, this one too.

    open     the operands' addresses are known: whoever allocates them was opened before (notes in
             WAI say which places of other streams; for these the device waits, by an event that
             has nothing behind it which waits for a further stream: that may hold a graph with
             exchanges, which wait for another rank, which waits for us)
    close    the event behind it has passed, and those that its notes name are closed: what its
             kernels wrote to its line is its status; now it may be poisoned, and poison others

A ReleaseTensor gives its memory back when it is opened: later instructions of the stream may write
to it, for the device runs them later.  What poison it clears, it clears when it is closed.

An instruction that is opened while the one it reads from fails runs with what is there: its kernels
check what they index with.  It is poisoned when it is closed, and what it writes in place has no
whole value any more.

Where one of the driver's calls fails for good (an illegal address, a lost device), everything that
is open fails with that code, and so does all that follows; the host's streams go on.
"""

from __future__ import annotations

from flowvm.vm.machine.device_words import DEV, EVENT, LINES
from flowvm.vm.machine.lang import (
    Words,
    address_in,
    load_acquire,
    sched_yield,
    store_release,
    store_word,
    words_at,
)
from flowvm.vm.machine.machine import count_of, entry_of, operand_of
from flowvm.vm.machine.stamps import stamp_end, stamp_open, stamp_tasks
from flowvm.vm.machine.words import ARG, CTL, EDG, ENT, INS, KIND, OPERAND, QUE, RING, STO, STR, WAI
from flowvm.vm.workers.device_graph import RELAXED, run_plan
from flowvm.vm.workers.device_tasks import failed_task, poison_behind
from flowvm.vm.workers.device_times import begin_time, events_of, note_time
from flowvm.vm.workers.execute import (
    fail,
    poison_of,
    release_storages,
    run_kernel,
    seq_of,
    skip,
    tear,
)
from flowvm.vm.workers.steps import DEVICE_FAILED, call_driver, result_of

BATCH = 16  # instructions that share an event while the queue has more; from level 2 on, one
NOT_READY = 600  # CUDA_ERROR_NOT_READY


def enter(m: Words, stream: int) -> Words:
    """Make the device's context this thread's.  Return the stream's block."""
    block = words_at(m[STR.AT + stream * STR.WORDS + STR.BLOCK], DEV.WORDS)
    call_driver(block, DEV.F_SET_CONTEXT, block[DEV.CONTEXT], 0, 0, 0)
    m[ARG.AT + stream * ARG.WORDS + ARG.BLOCK] = address_in(block, 0)
    return block


def ignore_captures(block: Words) -> None:
    """Let this thread call the driver while another library captures a graph.  Its calls do not
    join that capture, and would spoil it otherwise.
    """
    mode = result_of(block)
    store_word(mode, RELAXED)
    call_driver(block, DEV.F_CAPTURE_MODE, mode, 0, 0, 0)


# --- opening --------------------------------------------------------------------------------------


def open_next(m: Words, stream: int, block: Words) -> bool:
    """Hand the next instruction of the queue to the device.  Return True if that was possible."""
    at = STR.AT + stream * STR.WORDS
    opened = m[at + STR.LAUNCHED]
    if opened == load_acquire(m, at + STR.TAIL):
        return False
    if block[DEV.RECORDED] - block[DEV.PASSED] >= EVENT.LENGTH - 1:
        return False
    slot = m[QUE.AT + stream * RING.SLOTS + (opened & RING.SLOT_MASK)]
    if not launched_before(m, slot):
        return False
    kind = m[entry_of(m, slot) + ENT.KIND]
    if block[DEV.SINCE] > 0 and (m[WAI.AT + slot] != 0 or kind == KIND.LAUNCH):
        record(block, opened)
    wait_on_device(m, slot, block)
    note_failure(block, begin_time(m, block, kind))
    open_instruction(m, stream, slot, block, opened)
    block[DEV.SINCE] += 1
    most = BATCH if m[CTL.LEVEL] < 2 and block[DEV.EACH] == 0 else 1
    if block[DEV.SINCE] >= most or opened + 1 == load_acquire(m, at + STR.TAIL):
        record(block, opened + 1)
    # at last: else an event that tells when it ended could be behind its waiters
    store_release(m, at + STR.LAUNCHED, opened + 1)
    return True


def launched_before(m: Words, slot: int) -> bool:
    """Return True if all instructions that an instruction's notes name were handed to their
    devices.
    """
    index = m[WAI.AT + slot] - 1
    while index >= 0:
        node = EDG.AT + index * EDG.WORDS
        stream, place = (
            m[node + EDG.TARGET] >> WAI.PLACE_BITS,
            m[node + EDG.TARGET] & WAI.PLACE_MASK,
        )
        if load_acquire(m, STR.AT + stream * STR.WORDS + STR.LAUNCHED) < place:
            return False
        index = m[node + EDG.NEXT]
    return True


def wait_on_device(m: Words, slot: int, block: Words) -> None:
    """Let the device's stream wait for the streams that the instruction's notes name."""
    index = m[WAI.AT + slot] - 1
    while index >= 0:
        node = EDG.AT + index * EDG.WORDS
        stream, place = (
            m[node + EDG.TARGET] >> WAI.PLACE_BITS,
            m[node + EDG.TARGET] & WAI.PLACE_MASK,
        )
        event = event_for(m, stream, place, block)
        if event != 0:
            note_failure(
                block, call_driver(block, DEV.F_WAIT_EVENT, block[DEV.STREAM], event, 0, 0)
            )
        index = m[node + EDG.NEXT]


def event_for(m: Words, stream: int, place: int, block: Words) -> int:
    """Return an event behind the queue of another stream up to `place`, for `block`'s stream to
    wait for; 0 if that is done.

    The stream's worker records one before whatever waits for others.  Where it has recorded none
    there is nothing of that kind yet, so one is recorded now; if it was faster, its own counts.
    """
    finished = STR.AT + stream * STR.WORDS + STR.DONE
    if load_acquire(m, finished) >= place:
        return 0
    other = words_at(m[STR.AT + stream * STR.WORDS + STR.BLOCK], DEV.WORDS)
    event = event_behind(other, place)
    if event == 0:
        event = block[DEV.WAIT_EVENT]  # a wait takes an event's last record: it serves all of ours
        if block[DEV.CONTEXT] != other[DEV.CONTEXT]:
            event = other[DEV.WAIT_EVENT]
        note_failure(block, call_driver(block, DEV.F_RECORD, event, other[DEV.STREAM], 0, 0))
        recorded = event_behind(other, place)
        event = recorded if recorded != 0 else event
    # last: the event that we look for may have passed meanwhile, and a later one was found
    return event if load_acquire(m, finished) < place else 0


def event_behind(other: Words, place: int) -> int:
    """The first event that a stream's worker has recorded behind the queue up to `place`, and not
    seen to have passed; 0: none.
    """
    for k in range(load_acquire(other, DEV.PASSED), load_acquire(other, DEV.RECORDED)):
        events = events_of(other, k)
        if events[EVENT.PLACE] >= place:
            return events[EVENT.END] if events[EVENT.TIMED] else events[EVENT.EVENT]
    return 0


def open_instruction(m: Words, stream: int, slot: int, block: Words, place: int) -> None:
    """Take memory and launch.  INS.STATUS is the status known so far."""
    if m[CTL.LEVEL] != 0:
        stamp_open(m, stream, slot)
    block[DEV.LINE] = block[DEV.LINES] + 8 * LINES.WORDS * (place & RING.SLOT_MASK)
    words_at(block[DEV.LINE], LINES.WORDS)[LINES.STATUS] = 0
    entry = entry_of(m, slot)
    status = 0
    if m[entry + ENT.KIND] == KIND.RELEASE:
        release_storages(m, stream, slot, entry, False)
    elif poison_of(m, slot, entry) != 0:
        status = skip(m, slot, entry, poison_of(m, slot, entry))
    else:
        if block[DEV.FAILED] != 0:
            m[ARG.AT + stream * ARG.WORDS], m[ARG.AT + stream * ARG.WORDS + 1] = (
                block[DEV.FAILED],
                -1,
            )
            status = DEVICE_FAILED
        elif m[entry + ENT.KIND] == KIND.LAUNCH:
            stamp_tasks(m, stream, slot)
            status = run_plan(m, stream, slot, entry, block)
        else:
            status = run_kernel(m, stream, slot, entry)
        if status != 0:
            fail(m, stream, slot, entry, status)
    m[INS.AT + slot * INS.WORDS + INS.STATUS] = status


def record(block: Words, place: int) -> None:
    """Record an event behind all launches so far: the queue up to `place`."""
    events = events_of(block, block[DEV.RECORDED])
    event = events[EVENT.END] if events[EVENT.TIMED] else events[EVENT.EVENT]
    note_failure(block, call_driver(block, DEV.F_RECORD, event, block[DEV.STREAM], 0, 0))
    events[EVENT.PLACE] = place
    store_release(block, DEV.RECORDED, block[DEV.RECORDED] + 1)
    block[DEV.SINCE] = 0


def note_failure(block: Words, code: int) -> None:
    """Note a failed call; the first one's result is the error of all later ones."""
    if code != 0 and block[DEV.FAILED] == 0:
        block[DEV.FAILED] = code


# --- closing --------------------------------------------------------------------------------------


def close_passed(m: Words, stream: int, block: Words) -> bool:
    """Close all instructions before events that have passed.  Return True if there were any."""
    did = False
    while block[DEV.PASSED] < block[DEV.RECORDED]:
        events = events_of(block, block[DEV.PASSED])
        code = block[DEV.FAILED]
        if code == 0:
            event = events[EVENT.END] if events[EVENT.TIMED] else events[EVENT.EVENT]
            code = call_driver(block, DEV.F_QUERY, event, 0, 0, 0)
            if code == NOT_READY:
                return did
            note_failure(block, code)
        if code == 0 and events[EVENT.TIMED]:
            slot = m[QUE.AT + stream * RING.SLOTS + ((events[EVENT.PLACE] - 1) & RING.SLOT_MASK)]
            note_time(block, events, m[INS.AT + slot * INS.WORDS + INS.SEQ])
        close_until(m, stream, block, events[EVENT.PLACE])
        store_release(block, DEV.PASSED, block[DEV.PASSED] + 1)
        did = True
    return did


def close_until(m: Words, stream: int, block: Words, place: int) -> None:
    """Close the queue's instructions up to `place`."""
    finished = STR.AT + stream * STR.WORDS + STR.DONE
    while m[finished] < place:
        slot = m[QUE.AT + stream * RING.SLOTS + (m[finished] & RING.SLOT_MASK)]
        wait_for_closed(m, slot)
        close_instruction(m, stream, slot, block, m[finished])
        store_release(m, finished, m[finished] + 1)


def wait_for_closed(m: Words, slot: int) -> None:
    """Wait until the workers have closed the instructions that the notes name.  The device has
    passed them, or none of them will ever pass.
    """
    index = m[WAI.AT + slot] - 1
    while index >= 0:
        node = EDG.AT + index * EDG.WORDS
        stream, place = (
            m[node + EDG.TARGET] >> WAI.PLACE_BITS,
            m[node + EDG.TARGET] & WAI.PLACE_MASK,
        )
        while load_acquire(m, STR.AT + stream * STR.WORDS + STR.DONE) < place:
            sched_yield()
        index = m[node + EDG.NEXT]


def close_instruction(m: Words, stream: int, slot: int, block: Words, place: int) -> None:
    """Finish an instruction that the device has passed: check its line and its operands."""
    entry = entry_of(m, slot)
    ins = INS.AT + slot * INS.WORDS
    if m[entry + ENT.KIND] == KIND.RELEASE:
        forget_poison(m, slot, entry)
    elif m[ins + INS.STATUS] == 0:
        line = words_at(block[DEV.LINES] + 8 * LINES.WORDS * (place & RING.SLOT_MASK), LINES.WORDS)
        args = ARG.AT + stream * ARG.WORDS
        status = line[LINES.STATUS]
        for i in range(ARG.N_DETAILS):
            m[args + i] = line[i]
        if block[DEV.FAILED] != 0:
            m[args], m[args + 1], status = block[DEV.FAILED], -1, DEVICE_FAILED
        if status != 0:
            has_task = m[entry + ENT.KIND] == KIND.LAUNCH and status != DEVICE_FAILED
            m[STR.AT + stream * STR.WORDS + STR.TASK] = (
                failed_task(m, entry, line) if has_task else -1
            )
            fail(m, stream, slot, entry, status)
            if has_task:
                poison_behind(m, slot, entry, line, seq_of(m, slot) + 1)
            else:
                tear(m, slot, entry)
        elif poison_of(m, slot, entry) != 0:
            tear(m, slot, entry)  # it ran on the failed one's outputs
            status = skip(m, slot, entry, poison_of(m, slot, entry))
        m[ins + INS.STATUS] = status
    if m[CTL.LEVEL] != 0:
        stamp_end(m, stream, slot)


def forget_poison(m: Words, slot: int, entry: int) -> None:
    """Clear the poison of a ReleaseTensor's storages: they are as new."""
    for k in range(count_of(m, slot, entry)):
        storage = operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK
        m[STO.AT + storage * STO.WORDS + STO.POISON] = 0
        m[STO.AT + storage * STO.WORDS + STO.TORN] = 0


def run_to_end(m: Words, stream: int, slot: int) -> int:
    """Open, wait for and close an instruction, for the sequential engine.  Return its status."""
    block = enter(m, stream)
    open_instruction(m, stream, slot, block, 0)
    note_failure(block, call_driver(block, DEV.F_SYNCHRONIZE, block[DEV.STREAM], 0, 0, 0))
    close_instruction(m, stream, slot, block, 0)
    return m[INS.AT + slot * INS.WORDS + INS.STATUS]
