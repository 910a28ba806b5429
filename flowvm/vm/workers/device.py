"""A device's stream: its worker hands instructions over, and counts them done when they are.

The worker never waits where it could go on: it *opens* an instruction (takes memory, launches its
kernels) as soon as it is in the queue, and *closes* it when an event behind it has passed.  Both go
in the order of the queue.  Every thread issues far ahead of the device, this one too.

    open     the operands' addresses are known: whoever allocates them was opened before (notes in
             WAI say which places of other streams; for these the device waits, by an event)
    close    the event behind it has passed, and those that its notes name are closed: what its
             kernels wrote to its line is its status; now it may be poisoned, and poison others

A ReleaseTensor gives its memory back when it is opened: later instructions of the stream may write
to it, for the device runs them later.  What poison it clears, it clears when it is closed.

An instruction that is opened while the one it reads from fails runs with what is there: its kernels
check what they index with.  It is poisoned when it is closed.

Where one of the driver's calls fails for good (an illegal address, a lost device), everything that
is open fails with that code, and so does all that follows; the host's streams go on.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import (
    Words,
    address_in,
    fetch_add,
    load_acquire,
    sched_yield,
    store_release,
    store_word,
    words_at,
)
from flowvm.vm.machine.layout import (
    A_BLOCK,
    ARG,
    ARG_WORDS,
    B_CONTEXT,
    B_FAILED,
    B_LINE,
    B_LINES,
    B_PASSED,
    B_RECORDED,
    B_SINCE,
    B_STREAM,
    B_WAIT_EVENT,
    B_WORDS,
    BF_CAPTURE_MODE,
    BF_QUERY,
    BF_RECORD,
    BF_SET_CONTEXT,
    BF_SYNCHRONIZE,
    BF_WAIT_EVENT,
    CAPACITY,
    DETAILS,
    DEVICE_EVENTS,
    E_KIND,
    EDG,
    EDG_WORDS,
    ERR,
    ERR_WORDS,
    ERRORS,
    G_NEXT,
    G_TARGET,
    I_SEQ,
    I_STATUS,
    INS,
    INS_WORDS,
    LAUNCH,
    LEVEL,
    LINE_STATUS,
    LINE_WORDS,
    N_POISONED,
    NO_STATUS_POISONED,
    PLACE_BITS,
    PLACE_MASK,
    QUE,
    R_POISONED,
    RELEASE,
    S_POISON,
    SLOT_MASK,
    STO,
    STO_WORDS,
    STORAGE_MASK,
    STR,
    STR_WORDS,
    T_BLOCK,
    T_DONE,
    T_LAUNCHED,
    T_TAIL,
    T_TASK,
    V_END,
    V_EVENT,
    V_PLACE,
    V_TIMED,
    WAI,
)
from flowvm.vm.machine.machine import count_of, entry_of, operand_of
from flowvm.vm.machine.stamps import stamp_end, stamp_open, stamp_tasks
from flowvm.vm.workers.device_graph import RELAXED, run_plan
from flowvm.vm.workers.device_tasks import failed_task, poison_behind
from flowvm.vm.workers.device_times import begin_time, events_of, note_time
from flowvm.vm.workers.execute import fail, poison, poison_of, release_storages, run_kernel, seq_of
from flowvm.vm.workers.steps import DEVICE_FAILED, call_driver, result_of

BATCH = 16  # instructions that share an event while the queue has more; from level 2 on, one
NOT_READY = 600  # CUDA_ERROR_NOT_READY


def enter(m: Words, stream: int) -> Words:
    """Make the device's context this thread's; the stream's block."""
    block = words_at(m[STR + stream * STR_WORDS + T_BLOCK], B_WORDS)
    call_driver(block, BF_SET_CONTEXT, block[B_CONTEXT], 0, 0, 0)
    m[ARG + stream * ARG_WORDS + A_BLOCK] = address_in(block, 0)
    return block


def ignore_captures(block: Words) -> None:
    """Let this thread call the driver while another library captures a graph: what it calls is no
    part of that, and would else spoil it.
    """
    mode = result_of(block)
    store_word(mode, RELAXED)
    call_driver(block, BF_CAPTURE_MODE, mode, 0, 0, 0)


# --- opening --------------------------------------------------------------------------------------


def open_next(m: Words, stream: int, block: Words) -> bool:
    """Hand the next instruction of the queue to the device; whether there was one that could be."""
    at = STR + stream * STR_WORDS
    opened = m[at + T_LAUNCHED]
    if opened == load_acquire(m, at + T_TAIL):
        return False
    if block[B_RECORDED] - block[B_PASSED] == DEVICE_EVENTS:
        return False
    slot = m[QUE + stream * CAPACITY + (opened & SLOT_MASK)]
    if not launched_before(m, slot):
        return False
    wait_on_device(m, slot, block)
    note_failure(block, begin_time(m, block, m[entry_of(m, slot) + E_KIND]))
    open_instruction(m, stream, slot, block, opened)
    block[B_SINCE] += 1
    most = BATCH if m[LEVEL] < 2 else 1
    if block[B_SINCE] >= most or opened + 1 == load_acquire(m, at + T_TAIL):
        record(block, opened + 1)
    # at last: else an event that tells when it ended could be behind what waits for it
    store_release(m, at + T_LAUNCHED, opened + 1)
    return True


def launched_before(m: Words, slot: int) -> bool:
    """Whether all that the instruction's notes name was handed to its device."""
    index = m[WAI + slot] - 1
    while index >= 0:
        node = EDG + index * EDG_WORDS
        stream, place = m[node + G_TARGET] >> PLACE_BITS, m[node + G_TARGET] & PLACE_MASK
        if load_acquire(m, STR + stream * STR_WORDS + T_LAUNCHED) < place:
            return False
        index = m[node + G_NEXT]
    return True


def wait_on_device(m: Words, slot: int, block: Words) -> None:
    """Let the device's stream wait for the streams that the instruction's notes name."""
    index = m[WAI + slot] - 1
    while index >= 0:
        node = EDG + index * EDG_WORDS
        stream, place = m[node + G_TARGET] >> PLACE_BITS, m[node + G_TARGET] & PLACE_MASK
        if load_acquire(m, STR + stream * STR_WORDS + T_DONE) < place:
            other = words_at(m[STR + stream * STR_WORDS + T_BLOCK], B_WORDS)
            # of its context; a wait takes an event's last record, so one event serves them all
            event = other[B_WAIT_EVENT]
            note_failure(block, call_driver(block, BF_RECORD, event, other[B_STREAM], 0, 0))
            note_failure(block, call_driver(block, BF_WAIT_EVENT, block[B_STREAM], event, 0, 0))
        index = m[node + G_NEXT]


def open_instruction(m: Words, stream: int, slot: int, block: Words, place: int) -> None:
    """Take memory and launch; I_STATUS is what is known of its end."""
    if m[LEVEL] != 0:
        stamp_open(m, stream, slot)
    block[B_LINE] = block[B_LINES] + 8 * LINE_WORDS * (place & SLOT_MASK)
    words_at(block[B_LINE], LINE_WORDS)[LINE_STATUS] = 0
    entry = entry_of(m, slot)
    status = 0
    if m[entry + E_KIND] == RELEASE:
        release_storages(m, stream, slot, entry, False)
    elif poison_of(m, slot, entry) != 0:
        status = poisoned(m, slot, entry)
    else:
        if block[B_FAILED] != 0:
            m[ARG + stream * ARG_WORDS], m[ARG + stream * ARG_WORDS + 1] = block[B_FAILED], -1
            status = DEVICE_FAILED
        elif m[entry + E_KIND] == LAUNCH:
            stamp_tasks(m, stream, slot)
            status = run_plan(m, stream, slot, entry, block)
        else:
            status = run_kernel(m, stream, slot, entry)
        if status != 0:
            fail(m, stream, slot, entry, status)
    m[INS + slot * INS_WORDS + I_STATUS] = status


def poisoned(m: Words, slot: int, entry: int) -> int:
    """An operand is poisoned: so is what the instruction writes."""
    cause = poison_of(m, slot, entry)
    poison(m, slot, entry, cause)
    fetch_add(m, N_POISONED, 1)
    fetch_add(m, ERR + (cause - 1) % ERRORS * ERR_WORDS + R_POISONED, 1)
    return NO_STATUS_POISONED


def record(block: Words, place: int) -> None:
    """An event behind all that was launched so far: the queue up to `place`."""
    events = events_of(block, block[B_RECORDED])
    event = events[V_END] if events[V_TIMED] else events[V_EVENT]
    note_failure(block, call_driver(block, BF_RECORD, event, block[B_STREAM], 0, 0))
    events[V_PLACE] = place
    block[B_RECORDED] += 1
    block[B_SINCE] = 0


def note_failure(block: Words, code: int) -> None:
    """The first call that failed decides what all others fail with."""
    if code != 0 and block[B_FAILED] == 0:
        block[B_FAILED] = code


# --- closing --------------------------------------------------------------------------------------


def close_passed(m: Words, stream: int, block: Words) -> bool:
    """Close all instructions before events that have passed; whether there were any."""
    did = False
    while block[B_PASSED] < block[B_RECORDED]:
        events = events_of(block, block[B_PASSED])
        code = block[B_FAILED]
        if code == 0:
            event = events[V_END] if events[V_TIMED] else events[V_EVENT]
            code = call_driver(block, BF_QUERY, event, 0, 0, 0)
            if code == NOT_READY:
                return did
            note_failure(block, code)
        if code == 0 and events[V_TIMED]:
            slot = m[QUE + stream * CAPACITY + ((events[V_PLACE] - 1) & SLOT_MASK)]
            note_time(block, events, m[INS + slot * INS_WORDS + I_SEQ])
        close_until(m, stream, block, events[V_PLACE])
        block[B_PASSED] += 1
        did = True
    return did


def close_until(m: Words, stream: int, block: Words, place: int) -> None:
    """Close the queue's instructions up to `place`."""
    done = STR + stream * STR_WORDS + T_DONE
    while m[done] < place:
        slot = m[QUE + stream * CAPACITY + (m[done] & SLOT_MASK)]
        wait_for_closed(m, slot)
        close_instruction(m, stream, slot, block, m[done])
        store_release(m, done, m[done] + 1)


def wait_for_closed(m: Words, slot: int) -> None:
    """Let the workers close what the instruction's notes name: the device has passed it, or none of
    it will ever pass.
    """
    index = m[WAI + slot] - 1
    while index >= 0:
        node = EDG + index * EDG_WORDS
        stream, place = m[node + G_TARGET] >> PLACE_BITS, m[node + G_TARGET] & PLACE_MASK
        while load_acquire(m, STR + stream * STR_WORDS + T_DONE) < place:
            sched_yield()
        index = m[node + G_NEXT]


def close_instruction(m: Words, stream: int, slot: int, block: Words, place: int) -> None:
    """The device has passed the instruction: look at its line, and at what it read."""
    entry = entry_of(m, slot)
    ins = INS + slot * INS_WORDS
    if m[entry + E_KIND] == RELEASE:
        forget_poison(m, slot, entry)
    elif m[ins + I_STATUS] == 0:
        line = words_at(block[B_LINES] + 8 * LINE_WORDS * (place & SLOT_MASK), LINE_WORDS)
        args = ARG + stream * ARG_WORDS
        status = line[LINE_STATUS]
        for i in range(DETAILS):
            m[args + i] = line[i]
        if block[B_FAILED] != 0:
            m[args], m[args + 1], status = block[B_FAILED], -1, DEVICE_FAILED
        if status != 0:
            said = m[entry + E_KIND] == LAUNCH and status != DEVICE_FAILED
            m[STR + stream * STR_WORDS + T_TASK] = failed_task(m, entry, line) if said else -1
            fail(m, stream, slot, entry, status)
            if said:
                poison_behind(m, slot, entry, line, seq_of(m, slot) + 1)
        elif poison_of(m, slot, entry) != 0:
            status = poisoned(m, slot, entry)
        m[ins + I_STATUS] = status
    if m[LEVEL] != 0:
        stamp_end(m, stream, slot)


def forget_poison(m: Words, slot: int, entry: int) -> None:
    """The storages of a ReleaseTensor are as new."""
    for k in range(count_of(m, slot, entry)):
        storage = operand_of(m, slot, entry, k) & STORAGE_MASK
        m[STO + storage * STO_WORDS + S_POISON] = 0


def run_to_end(m: Words, stream: int, slot: int) -> int:
    """Open, wait and close: what the sequential engine does.  The instruction's status."""
    block = enter(m, stream)
    open_instruction(m, stream, slot, block, 0)
    note_failure(block, call_driver(block, BF_SYNCHRONIZE, block[B_STREAM], 0, 0, 0))
    close_instruction(m, stream, slot, block, 0)
    return m[INS + slot * INS_WORDS + I_STATUS]
