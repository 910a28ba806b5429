"""Running one instruction: what a stream's worker does with a slot it was handed.

Turns operands into addresses (allocating what the instruction is to allocate), calls the kernel,
and says how it went. An instruction with a poisoned operand is skipped and poisons what it writes;
ReleaseTensor always runs.  The sequential engine calls the same functions on the issuing thread.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, address_in, call_kernel, fetch_add, store_release
from flowvm.vm.machine.layout import (
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
    I_STATUS,
    INS,
    INS_WORDS,
    LAUNCH,
    LEVEL,
    MARK,
    MUT2,
    N_FAILED,
    N_POISONED,
    NO_STATUS_POISONED,
    OPERANDS,
    R_DETAILS,
    R_ENTRY,
    R_MARK,
    R_POISONED,
    R_SEQ,
    R_STATUS,
    R_TASK,
    RECORD_WORDS,
    RELEASE,
    RING,
    S_CLASS,
    S_POINTER,
    S_POISON,
    S_ROWS,
    STO,
    STO_WORDS,
    STORAGE_BITS,
    STORAGE_MASK,
    STR,
    STR_WORDS,
    T_ARENA,
    T_TASK,
)
from flowvm.vm.machine.machine import access_of, count_of, entry_of, operand_of
from flowvm.vm.machine.stamps import stamp_end, stamp_start
from flowvm.vm.workers.allocator import allocate, class_of, release
from flowvm.vm.workers.launch import poison_launch, run_launch
from flowvm.vm.workers.owning import OWNED, out_of_memory, own
from flowvm.vm.workers.ranges import run_phases

CAPTURED = 12  # flowvm.errors.Status.CAPTURED; a test pins that they agree


def seq_of(m: Words, slot: int) -> int:
    """Sequence number of the record in `slot`."""
    return m[RING + slot * RECORD_WORDS + MARK] - 1


def execute(m: Words, stream: int, slot: int) -> int:
    """Run the instruction in `slot` on `stream`: 0, a kernel's status, or NO_STATUS_POISONED."""
    if m[LEVEL] != 0:
        stamp_start(m, stream, slot)
    entry = entry_of(m, slot)
    if m[entry + E_KIND] == RELEASE:
        status = release_storages(m, stream, slot, entry, True)
    else:
        cause = poison_of(m, slot, entry)
        if cause != 0:
            poison(m, slot, entry, cause)
            fetch_add(m, N_POISONED, 1)
            fetch_add(m, ERR + (cause - 1) % ERRORS * ERR_WORDS + R_POISONED, 1)
            status = NO_STATUS_POISONED
        else:
            if m[entry + E_KIND] == LAUNCH:
                status = run_launch(m, stream, slot, entry)
            else:
                status = run_kernel(m, stream, slot, entry)
            if status != 0:
                fail(m, stream, slot, entry, status)
    m[INS + slot * INS_WORDS + I_STATUS] = status
    if m[LEVEL] != 0:
        stamp_end(m, stream, slot)
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
    if m[entry + E_KIND] == LAUNCH:
        poison_launch(m, stream, slot, entry, seq + 1)
    else:
        poison(m, slot, entry, seq + 1)
    if status != CAPTURED:  # which nobody did anything wrong for
        fetch_add(m, N_FAILED, 1)
    m[ERR + seq % ERRORS * ERR_WORDS + R_POISONED] = 0
    number = fetch_add(m, ERROR_COUNT, 1)
    at = ERR + number % ERRORS * ERR_WORDS
    m[at + R_SEQ], m[at + R_STATUS] = seq, status
    for i in range(DETAILS):
        m[at + R_DETAILS + i] = m[ARG + stream * ARG_WORDS + i]
    m[at + R_ENTRY] = entry
    m[at + R_TASK] = m[STR + stream * STR_WORDS + T_TASK]
    store_release(m, at + R_MARK, number + 1)


def release_storages(m: Words, stream: int, slot: int, entry: int, over: bool) -> int:
    """ReleaseTensor: give the memory back, and make the storages as new.

    Unless it is `over` with what uses them, and they can still be poisoned.
    """
    for k in range(count_of(m, slot, entry)):
        storage = STO + (operand_of(m, slot, entry, k) & STORAGE_MASK) * STO_WORDS
        if m[storage + S_POINTER] != 0 and m[storage + S_CLASS] >= OWNED:
            release(m, stream, m[storage + S_POINTER], m[storage + S_CLASS] - OWNED)
        m[storage + S_POINTER] = 0
        m[storage + S_ROWS] = 0
        if over:
            m[storage + S_POISON] = 0
    return 0


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
            return out_of_memory(m, stream, m[entry + E_SIZES + k])
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
            return out_of_memory(m, stream, scratch_bytes)
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
                return out_of_memory(m, stream, size)
            m[args + ARG_HEADER + k] = m[STO + storage * STO_WORDS + S_POINTER]
    return 0


def run_ranges(m: Words, stream: int, entry: int, args: int) -> int:
    """Call the kernel phase after phase, each on its whole range or in chunks with the stream's
    helpers.

    The chunks depend on the entry alone, never on how many threads there are, so that results do
    not either.
    """
    kernel, layout = m[entry + E_KERNEL], m[entry + E_LAYOUT]
    return run_phases(
        m, stream, args, kernel, layout, m[entry + E_UNITS], m[entry + E_GRAIN],
        m[entry + E_PHASES], m[entry + E_MORE],
    )  # fmt: skip
