"""Running one instruction: what a stream's worker does with a slot it was handed.

Turns operands into addresses (allocating what the instruction is to allocate), calls the kernel,
and says how it went. An instruction with a poisoned operand is skipped and poisons what it writes;
ReleaseTensor always runs.  The sequential engine calls the same functions on the issuing thread.
"""

from __future__ import annotations

from flowvm.vm.allocator import allocate, class_of, release
from flowvm.vm.lang import (
    Words,
    address_in,
    call_kernel,
    clock,
    compare_exchange,
    fetch_add,
    futex_wake,
    load_acquire,
    load_word,
    sched_yield,
    store_release,
)
from flowvm.vm.layout import (
    A_SCRATCH,
    ALLOCATE,
    ARG,
    ARG_HEADER,
    ARG_WORDS,
    CONST,
    DETAILS,
    E_COUNT,
    E_GRAIN,
    E_KERNEL,
    E_KIND,
    E_LAYOUT,
    E_MORE,
    E_PHASES,
    E_PREPARE,
    E_SCALARS,
    E_SCRATCH,
    E_SIZES,
    E_UNITS,
    ERR,
    ERR_WORDS,
    ERROR_COUNT,
    ERRORS,
    I_ENDED,
    I_STARTED,
    I_STATUS,
    I_T_END,
    I_T_START,
    INS,
    INS_WORDS,
    LIVE_BYTES,
    MARK,
    MUT2,
    N_FAILED,
    N_POISONED,
    NO_STATUS_POISONED,
    OPERANDS,
    PHASE_BITS,
    R_DETAILS,
    R_ENTRY,
    R_MARK,
    R_POISONED,
    R_SEQ,
    R_STATUS,
    RECORD_WORDS,
    RECORDING,
    RELEASE,
    RESERVED_BYTES,
    RING,
    S_BYTES,
    S_CLASS,
    S_POINTER,
    S_POISON,
    S_ROWS,
    S_STREAM,
    SIGNED_OFF,
    STO,
    STO_WORDS,
    STORAGE_BITS,
    STORAGE_MASK,
    STR,
    STR_WORDS,
    T_ARENA,
    T_CHUNKS,
    T_FIRST,
    T_GRAIN,
    T_JOB,
    T_KERNEL,
    T_LAYOUT,
    T_LEFT,
    T_NEWS,
    T_STATUS,
    T_TEAM,
    T_TEAM_SLEEPS,
    T_UNITS,
    TICKET,
)
from flowvm.vm.machine import access_of, count_of, entry_of, operand_of
from flowvm.vm.sharing import chunks_of, helpers_for, run_length

OUT_OF_MEMORY = 3  # flowvm.errors.Status.OUT_OF_MEMORY; a test pins that they agree
OWNED = 1 << 40  # S_CLASS of memory that came from the allocator; adopted memory has no class


def seq_of(m: Words, slot: int) -> int:
    """Sequence number of the record in `slot`."""
    return m[RING + slot * RECORD_WORDS + MARK] - 1


def execute(m: Words, stream: int, slot: int) -> int:
    """Run the instruction in `slot` on `stream`: 0, a kernel's status, or NO_STATUS_POISONED."""
    recording = m[RECORDING]
    ins = INS + slot * INS_WORDS
    if recording != 0:
        m[ins + I_STARTED] = fetch_add(m, TICKET, 1)
        m[ins + I_T_START] = clock()
    entry = entry_of(m, slot)
    if m[entry + E_KIND] == RELEASE:
        status = release_storages(m, stream, slot, entry)
    else:
        cause = poison_of(m, slot, entry)
        if cause != 0:
            poison(m, slot, entry, cause)
            fetch_add(m, N_POISONED, 1)
            fetch_add(m, ERR + (cause - 1) % ERRORS * ERR_WORDS + R_POISONED, 1)
            status = NO_STATUS_POISONED
        else:
            status = run_kernel(m, stream, slot, entry)
            if status != 0:
                fail(m, stream, slot, entry, status)
    m[ins + I_STATUS] = status
    if recording != 0:
        m[ins + I_T_END] = clock()
        m[ins + I_ENDED] = fetch_add(m, TICKET, 1)
    return status


def poison_of(m: Words, slot: int, entry: int) -> int:
    """Sequence number + 1 of the failed instruction that poisons an operand of this one, or 0."""
    for k in range(count_of(m, slot, entry)):
        storage = operand_of(m, slot, entry, k) & STORAGE_MASK
        if access_of(m, slot, entry, k) & ALLOCATE == 0:
            cause = m[STO + storage * STO_WORDS + S_POISON]
            if cause != 0:
                return cause
    return 0


def poison(m: Words, slot: int, entry: int, cause: int) -> None:
    """Poison everything the instruction writes."""
    for k in range(count_of(m, slot, entry)):
        if access_of(m, slot, entry, k) & 3 != CONST:
            storage = operand_of(m, slot, entry, k) & STORAGE_MASK
            m[STO + storage * STO_WORDS + S_POISON] = cause


def fail(m: Words, stream: int, slot: int, entry: int, status: int) -> None:
    """Report an error and poison what the instruction writes."""
    seq = seq_of(m, slot)
    poison(m, slot, entry, seq + 1)
    fetch_add(m, N_FAILED, 1)
    m[ERR + seq % ERRORS * ERR_WORDS + R_POISONED] = 0
    number = fetch_add(m, ERROR_COUNT, 1)
    at = ERR + number % ERRORS * ERR_WORDS
    m[at + R_SEQ], m[at + R_STATUS] = seq, status
    for i in range(DETAILS):
        m[at + R_DETAILS + i] = m[ARG + stream * ARG_WORDS + i]
    m[at + R_ENTRY] = entry
    store_release(m, at + R_MARK, number + 1)


def release_storages(m: Words, stream: int, slot: int, entry: int) -> int:
    """ReleaseTensor: give the memory back, and make the storages as new."""
    for k in range(count_of(m, slot, entry)):
        storage = STO + (operand_of(m, slot, entry, k) & STORAGE_MASK) * STO_WORDS
        if m[storage + S_POINTER] != 0 and m[storage + S_CLASS] >= OWNED:
            release(m, stream, m[storage + S_POINTER], m[storage + S_CLASS] - OWNED)
        m[storage + S_POINTER] = 0
        m[storage + S_POISON] = 0
        m[storage + S_ROWS] = 0
    return 0


def own(m: Words, stream: int, storage: int, size: int) -> bool:
    """Give a storage memory of its own; whether there was any."""
    at = STO + storage * STO_WORDS
    pointer = allocate(m, stream, size)
    if pointer == 0:
        return False
    m[at + S_POINTER] = pointer
    m[at + S_BYTES] = size
    m[at + S_CLASS] = OWNED + class_of(size)
    m[at + S_STREAM] = stream
    return True


def out_of_memory(m: Words, args: int, size: int) -> int:
    """The status, with the details that its message gives: bytes asked for, live and reserved."""
    m[args], m[args + 1], m[args + 2] = size, m[LIVE_BYTES], m[RESERVED_BYTES]
    return OUT_OF_MEMORY


def run_kernel(m: Words, stream: int, slot: int, entry: int) -> int:
    """Allocate outputs, turn operands into addresses, call the kernel over its ranges."""
    args = ARG + stream * ARG_WORDS
    count = count_of(m, slot, entry)
    prepare = m[entry + E_PREPARE]
    for k in range(count):
        word = operand_of(m, slot, entry, k)
        access = access_of(m, slot, entry, k)
        storage = word & STORAGE_MASK
        fresh = access & ALLOCATE != 0 and not (prepare != 0 and access & 3 == MUT2)
        if fresh and not own(m, stream, storage, m[entry + E_SIZES + k]):
            return out_of_memory(m, args, m[entry + E_SIZES + k])
        m[args + ARG_HEADER + k] = m[STO + storage * STO_WORDS + S_POINTER] + (word >> STORAGE_BITS)
    record = RING + slot * RECORD_WORDS + OPERANDS - count
    for k in range(m[entry + E_SCALARS]):
        m[args + ARG_HEADER + count + k] = m[record - k]
    for i in range(DETAILS):
        m[args + i] = 0
    scratch_bytes = m[entry + E_SCRATCH]
    scratch = 0
    if scratch_bytes > 0:
        scratch = allocate(m, stream, scratch_bytes)
        if scratch == 0:
            return out_of_memory(m, args, scratch_bytes)
    m[args + A_SCRATCH] = scratch
    status = 0
    if prepare != 0:
        status = size_outputs(m, stream, slot, entry, args)
    if status == 0:
        status = run_ranges(m, stream, entry, args)
    if prepare != 0 and status == 0:
        # the kernel leaves each mut2 output's rows in the details
        for k in range(m[entry + E_COUNT]):
            if access_of(m, slot, entry, k) & 3 == MUT2:
                storage = operand_of(m, slot, entry, k) & STORAGE_MASK
                m[STO + storage * STO_WORDS + S_ROWS] = m[args + k]
    if scratch != 0:
        release(m, stream, scratch, class_of(scratch_bytes))
    return status


def size_outputs(m: Words, stream: int, slot: int, entry: int, args: int) -> int:
    """First call of a mut2 kernel, on [-1, -1): it leaves the rows of output k in detail k."""
    kernel, layout = m[entry + E_KERNEL], m[entry + E_LAYOUT]
    status = call_kernel(
        kernel, address_in(m, args), layout, -1, -1, m[STR + stream * STR_WORDS + T_ARENA]
    )
    if status != 0:
        return status
    for k in range(m[entry + E_COUNT]):
        if access_of(m, slot, entry, k) & 3 == MUT2:
            storage = operand_of(m, slot, entry, k) & STORAGE_MASK
            size = m[args + k] * m[entry + E_SIZES + k]  # rows times bytes of a row
            if not own(m, stream, storage, size):
                return out_of_memory(m, args, size)
            m[args + ARG_HEADER + k] = m[STO + storage * STO_WORDS + S_POINTER]
    return 0


def run_ranges(m: Words, stream: int, entry: int, args: int) -> int:
    """Call the kernel phase after phase, each on its whole range or in chunks with the stream's
    helpers.

    The chunks depend on the entry alone, never on how many threads there are, so that results do
    not either.
    """
    status = run_phase(m, stream, entry, args, 0, m[entry + E_UNITS], m[entry + E_GRAIN])
    for k in range(m[entry + E_MORE]):
        if status == 0:
            at = m[entry + E_PHASES] + 16 * k
            first = (k + 1) << PHASE_BITS
            status = run_phase(m, stream, entry, args, first, load_word(at), load_word(at + 8))
    return status


def run_phase(
    m: Words, stream: int, entry: int, args: int, first: int, units: int, grain: int
) -> int:
    """One phase: the units [first, first + units) in chunks of `grain`."""
    kernel, layout = m[entry + E_KERNEL], m[entry + E_LAYOUT]
    chunks = chunks_of(units, grain)
    at = STR + stream * STR_WORDS
    if chunks == 1 or m[at + T_TEAM] == 0:
        arena = m[at + T_ARENA]
        for chunk in range(chunks):
            lo, hi = chunk * grain, min((chunk + 1) * grain, units)
            status = call_kernel(kernel, address_in(m, args), layout, first + lo, first + hi, arena)
            if status != 0:
                return status
        return 0
    job = (m[at + T_JOB] >> 32) + 1
    store_release(m, at + T_JOB, (job << 32) + SIGNED_OFF)
    fetch_add(m, at + T_LEFT, 0)  # fence: no helper may take the old job for the new fields
    m[at + T_KERNEL], m[at + T_LAYOUT] = kernel, layout
    m[at + T_FIRST], m[at + T_UNITS] = first, units
    m[at + T_GRAIN], m[at + T_CHUNKS] = grain, chunks
    m[at + T_STATUS] = 0
    m[at + T_LEFT] = chunks
    store_release(m, at + T_JOB, job << 32)
    fetch_add(m, at + T_NEWS, 1)
    if load_acquire(m, at + T_TEAM_SLEEPS) > 0:
        futex_wake(m, at + T_NEWS, helpers_for(chunks, m[at + T_TEAM]))
    while help_with(m, stream, m[at + T_ARENA]):
        pass
    while load_acquire(m, at + T_LEFT) > 0:
        sched_yield()
    return m[at + T_STATUS]


def help_with(m: Words, stream: int, arena: int) -> bool:
    """Take a run of chunks of the stream's job, if there is one, and run them.  Leader and helpers
    alike, each with an arena of its own.

    The job's fields are read before the chunks are claimed and belong to that job if the claim
    succeeds: a leader makes T_JOB name its new job (chunk SIGNED_OFF, never claimed) before it
    touches them.
    """
    at = STR + stream * STR_WORDS
    word = load_acquire(m, at + T_JOB)
    chunk = word & 0xFFFFFFFF
    if chunk == SIGNED_OFF:
        return False
    kernel, layout = load_acquire(m, at + T_KERNEL), load_acquire(m, at + T_LAYOUT)
    units, grain = load_acquire(m, at + T_UNITS), load_acquire(m, at + T_GRAIN)
    first, left = load_acquire(m, at + T_FIRST), load_acquire(m, at + T_CHUNKS) - chunk
    if left <= 0:
        return False
    taken = run_length(left, load_acquire(m, at + T_TEAM) + 1)
    if not compare_exchange(m, at + T_JOB, word, word + taken):
        return True
    args = address_in(m, ARG + stream * ARG_WORDS)
    for k in range(chunk, chunk + taken):
        lo, hi = k * grain, min((k + 1) * grain, units)
        status = call_kernel(kernel, args, layout, first + lo, first + hi, arena)
        if status != 0:
            store_release(m, at + T_STATUS, status)
    fetch_add(m, at + T_LEFT, -taken)
    return True
