"""Execution of one instruction: a worker's work for a slot.

Turns operands into addresses (allocating what the instruction is to allocate), calls the kernel,
and says how it went.  An instruction with a poisoned operand is skipped and poisons what it writes;
one in front of a cancel is dropped, if it has not started; ReleaseTensor and Restore always run.
The sequential engine calls the same functions on the issuing thread.

Poison says that a storage does not have the value that the program gives it.  STO.TORN says that it
has no whole value at all.  A skipped or dropped instruction writes nothing.  So its outputs in
place are poisoned and whole, and a Restore lifts that.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, address_in, call_kernel, fetch_add, load_acquire
from flowvm.vm.machine.machine import access_of, count_of, entry_of, operand_of
from flowvm.vm.machine.stamps import stamp_end, stamp_start
from flowvm.vm.machine.words import ARG, CTL, ENT, ERR, INS, KIND, OPERAND, RING, STO, STR
from flowvm.vm.workers.allocation import MOST_BYTES, OWNED, out_of_memory, own
from flowvm.vm.workers.allocator import allocate, class_of, hand_back, release
from flowvm.vm.workers.error_report import report
from flowvm.vm.workers.launch import poison_launch, run_launch
from flowvm.vm.workers.ranges import run_phases
from flowvm.vm.workers.zones import (
    CHECKED,
    begin_check,
    check_operands,
    check_own_arena,
    check_scratch,
    compare_copies,
    on_host,
    take_copies,
)

CAPTURED = 12  # flowvm.errors.Status.CAPTURED; a test pins that they agree


def seq_of(m: Words, slot: int) -> int:
    """Return the sequence number of the record in `slot`."""
    return m[RING.AT + slot * RING.WORDS + RING.MARK] - 1


def execute(m: Words, stream: int, slot: int) -> int:
    """Run the instruction in `slot` on `stream`.  Return 0, a kernel's status, or INS.POISONED."""
    if m[CTL.LEVEL] != 0:
        stamp_start(m, stream, slot)
    entry = entry_of(m, slot)
    if CHECKED:
        begin_check(m, stream, slot)
    if m[entry + ENT.KIND] == KIND.RELEASE:
        status = release_storages(m, stream, slot, entry, True)
    elif m[entry + ENT.KIND] == KIND.RESTORE:
        status = restore_storages(m, slot, entry)
    else:
        by, cause = cancelled_by(m, slot, entry), poison_of(m, slot, entry)
        if by != 0:
            status = drop(m, slot, entry, by)
        elif cause != 0:
            status = skip(m, slot, entry, cause)
        else:
            if m[entry + ENT.KIND] == KIND.LAUNCH:
                status = run_launch(m, stream, slot, entry)
            else:
                stoppable = STR.AT + stream * STR.WORDS + STR.STOPPABLE
                m[stoppable] = may_stop(m, slot, entry)
                status = run_kernel(m, stream, slot, entry)
                m[stoppable] = 0
            if status == STR.STOPPED:
                status = drop(m, slot, entry, m[CTL.CANCEL])
            elif status != 0:
                fail(m, stream, slot, entry, status)
    m[INS.AT + slot * INS.WORDS + INS.STATUS] = status
    if m[CTL.LEVEL] != 0:
        stamp_end(m, stream, slot)
    return status


def will_run(m: Words, slot: int, entry: int) -> bool:
    """Return True if the instruction is neither dropped nor skipped."""
    return cancelled_by(m, slot, entry) == 0 and poison_of(m, slot, entry) == 0


def poison_of(m: Words, slot: int, entry: int) -> int:
    """Return the sequence number + 1 of the failed instruction that poisons an operand of this one,
    or 0.
    """
    for k in range(count_of(m, slot, entry)):
        storage = operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK
        if needs_value(m, slot, entry, k):
            cause = m[STO.AT + storage * STO.WORDS + STO.POISON]
            if cause != 0:
                return cause
    return 0


def needs_value(m: Words, slot: int, entry: int, k: int) -> bool:
    """Return True if an instruction cannot run when its operand `k` is poisoned."""
    access = access_of(m, slot, entry, k)
    return access & OPERAND.ALLOCATE == 0 and access != OPERAND.CONST + OPERAND.UNREAD


def poison(m: Words, slot: int, entry: int, cause: int) -> None:
    """Poison all outputs of the instruction.  Outputs that were still to be allocated have no
    value.
    """
    for k in range(count_of(m, slot, entry)):
        access = access_of(m, slot, entry, k)
        if access & 3 != OPERAND.CONST:
            storage = STO.AT + (operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK) * STO.WORDS
            m[storage + STO.POISON] = cause
            if access & OPERAND.ALLOCATE != 0:
                m[storage + STO.TORN] = -cause


def tear(m: Words, slot: int, entry: int) -> None:
    """Mark the storages that the instruction writes in place as half written."""
    for k in range(count_of(m, slot, entry)):
        access = access_of(m, slot, entry, k)
        if access & 3 != OPERAND.CONST and access & OPERAND.ALLOCATE == 0:
            storage = STO.AT + (operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK) * STO.WORDS
            m[storage + STO.TORN] = seq_of(m, slot) + 1


def restore_storages(m: Words, slot: int, entry: int) -> int:
    """Lift the poison of storages whose bytes are whole.  With a scalar, lift only the poison by
    instruction number scalar - 1.
    """
    count = count_of(m, slot, entry)
    cause = m[RING.AT + slot * RING.WORDS + RING.OPERANDS - count]
    for k in range(count):
        storage = STO.AT + (operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK) * STO.WORDS
        if m[storage + STO.TORN] == 0 and (cause == 0 or m[storage + STO.POISON] == cause):
            m[storage + STO.POISON] = 0
    return 0


def skip(m: Words, slot: int, entry: int, cause: int) -> int:
    """Skip an instruction with a poisoned operand: poison its outputs."""
    poison(m, slot, entry, cause)
    fetch_add(m, CTL.N_POISONED, 1)
    fetch_add(m, ERR.AT + (cause - 1) % ERR.LENGTH * ERR.WORDS + ERR.POISONED, 1)
    return INS.POISONED


def cancelled_by(m: Words, slot: int, entry: int) -> int:
    """Return the number + 1 of the cancel that follows the instruction in `slot` and drops it, or
    0.
    """
    by = load_acquire(m, CTL.CANCEL)
    kind = m[entry + ENT.KIND]
    if by > seq_of(m, slot) + 1 and (kind == KIND.OP_CALL or kind == KIND.LAUNCH):
        return by
    return 0


def drop(m: Words, slot: int, entry: int, by: int) -> int:
    """Drop an instruction because of a cancel: poison its outputs.  A persistent storage (a
    parameter, an optimizer's state) that it would only have updated keeps its value.
    """
    for k in range(count_of(m, slot, entry)):
        access = access_of(m, slot, entry, k)
        if access & 3 != OPERAND.CONST:
            storage = STO.AT + (operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK) * STO.WORDS
            keep = m[storage + STO.KEEP]
            if m[entry + ENT.KIND] == KIND.LAUNCH:
                keep = abs(keep)
            if keep == by and is_update(m, slot, entry, k):
                fetch_add(m, CTL.N_KEPT, 1)
            else:
                m[storage + STO.POISON] = by
                if access & OPERAND.ALLOCATE != 0:
                    m[storage + STO.TORN] = -by
    fetch_add(m, CTL.N_CANCELLED, 1)
    return INS.POISONED


def is_update(m: Words, slot: int, entry: int, k: int) -> bool:
    """Return True if the new value of operand `k` depends on its old one."""
    access = access_of(m, slot, entry, k)
    if m[entry + ENT.KIND] == KIND.LAUNCH:
        return access & (OPERAND.ALLOCATE | OPERAND.RETURNED) == 0
    return access & OPERAND.UPDATED != 0


def may_stop(m: Words, slot: int, entry: int) -> int:
    """Return the number + 1 of an instruction whose kernel a cancel may end between two chunks,
    else 0.  It leaves nothing half changed.
    """
    if m[entry + ENT.KIND] != KIND.OP_CALL:
        return 0
    for k in range(count_of(m, slot, entry)):
        access = access_of(m, slot, entry, k)
        if access & 3 != OPERAND.CONST and access & OPERAND.ALLOCATE == 0:
            return 0
    return seq_of(m, slot) + 1


def fail(m: Words, stream: int, slot: int, entry: int, status: int) -> None:
    """Report an error and poison the outputs that the instruction leaves without a value."""
    if m[entry + ENT.KIND] == KIND.LAUNCH:
        poison_launch(m, stream, slot, entry, seq_of(m, slot) + 1)
    else:
        poison(m, slot, entry, seq_of(m, slot) + 1)
    report_failure(m, stream, slot, entry, status)


def report_failure(m: Words, stream: int, slot: int, entry: int, status: int) -> None:
    """Report an instruction's error to Python.  Its outputs are already poisoned."""
    seq = seq_of(m, slot)
    if status != CAPTURED:  # CAPTURED is no error of the instruction
        fetch_add(m, CTL.N_FAILED, 1)
    report(m, stream, seq, entry, status, m[STR.AT + stream * STR.WORDS + STR.TASK])


def release_storages(m: Words, stream: int, slot: int, entry: int, over: bool) -> int:
    """Run a ReleaseTensor: give the memory back, and make the storages as new.

    Clear the poison only if it is `over`: all users of the storages are done.  Until then they can
    still be poisoned.
    """
    for k in range(count_of(m, slot, entry)):
        storage = STO.AT + (operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK) * STO.WORDS
        if m[storage + STO.POINTER] != 0 and m[storage + STO.CLASS] >= OWNED:
            owner, size_class = m[storage + STO.STREAM], m[storage + STO.CLASS] - OWNED
            if owner == stream or CHECKED:
                release(m, stream, m[storage + STO.POINTER], size_class)
            else:
                hand_back(m, owner, m[storage + STO.POINTER], size_class)
        m[storage + STO.POINTER] = 0
        m[storage + STO.ROWS] = 0
        if over:
            m[storage + STO.POISON] = m[storage + STO.TORN] = 0
    return 0


def run_kernel(m: Words, stream: int, slot: int, entry: int) -> int:
    """Allocate outputs, turn operands into addresses, call the kernel over its ranges."""
    args = ARG.AT + stream * ARG.WORDS
    count = count_of(m, slot, entry)
    prepare = m[entry + ENT.PREPARE]
    for k in range(count):
        word = operand_of(m, slot, entry, k)
        access = access_of(m, slot, entry, k)
        storage = word & OPERAND.STORAGE_MASK
        fresh = access & OPERAND.ALLOCATE != 0 and not (prepare != 0 and access & 3 == OPERAND.MUT2)
        if fresh and not own(m, stream, storage, m[entry + ENT.SIZES + k]):
            return out_of_memory(m, stream, m[entry + ENT.SIZES + k])
        m[args + ARG.HEADER + k] = m[STO.AT + storage * STO.WORDS + STO.POINTER] + (
            word >> OPERAND.STORAGE_BITS
        )
    record = RING.AT + slot * RING.WORDS + RING.OPERANDS - count
    for k in range(m[entry + ENT.SCALARS]):
        m[args + ARG.HEADER + count + k] = m[record - k]
    for i in range(ARG.N_DETAILS):
        m[args + i] = 0
    scratch_bytes = m[entry + ENT.SCRATCH]
    scratch = 0
    if scratch_bytes > 0:
        scratch = allocate(m, stream, scratch_bytes)
        if scratch == 0:
            return out_of_memory(m, stream, scratch_bytes)
    m[args + ARG.SCRATCH] = scratch
    status = 0
    if prepare != 0:
        status = size_outputs(m, stream, slot, entry, args)
    if CHECKED:
        take_copies(m, stream, slot, entry)
    if status == 0:
        status = run_ranges(m, stream, entry, args)
    if CHECKED:
        status = checked(m, stream, slot, entry, scratch, status)
    if status != 0:
        tear(m, slot, entry)
    if prepare != 0 and status == 0:
        # the kernel leaves each mut2 output's rows in the details
        for k in range(m[entry + ENT.COUNT]):
            if access_of(m, slot, entry, k) & 3 == OPERAND.MUT2:
                storage = operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK
                m[STO.AT + storage * STO.WORDS + STO.ROWS] = m[args + k]
    if scratch != 0:
        release(m, stream, scratch, class_of(scratch_bytes))
    return status


def checked(m: Words, stream: int, slot: int, entry: int, scratch: int, status: int) -> int:
    """Check the memory behind a kernel that ended with `status`.  Return the status after the
    check.
    """
    changed = compare_copies(m, stream, slot, entry)
    if status == 0:
        status = changed
    if status == 0:
        status = check_operands(m, stream, slot, entry)
    if status == 0 and scratch != 0 and on_host(m, stream):
        status = check_scratch(m, stream, scratch)
    return check_own_arena(m, stream, status)


def size_outputs(m: Words, stream: int, slot: int, entry: int, args: int) -> int:
    """Make the first call of a mut2 kernel, on [-1, -1): it leaves the rows of output k in detail
    k.
    """
    kernel, layout = m[entry + ENT.KERNEL], m[entry + ENT.LAYOUT]
    status = call_kernel(
        kernel, address_in(m, args), layout, -1, -1, m[STR.AT + stream * STR.WORDS + STR.ARENA]
    )
    if status != 0:
        return status
    for k in range(m[entry + ENT.COUNT]):
        if access_of(m, slot, entry, k) & 3 == OPERAND.MUT2:
            storage = operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK
            rows, size = m[args + k], m[entry + ENT.SIZES + k]  # and bytes of a row
            if rows < 0 or (size > 0 and rows > MOST_BYTES // size):  # as many as values say
                return out_of_memory(m, stream, MOST_BYTES)
            size *= rows
            if not own(m, stream, storage, size):
                return out_of_memory(m, stream, size)
            m[args + ARG.HEADER + k] = m[STO.AT + storage * STO.WORDS + STO.POINTER]
    return 0


def run_ranges(m: Words, stream: int, entry: int, args: int) -> int:
    """Call the kernel phase after phase, each on its whole range or in chunks with the stream's
    helpers.

    The chunks depend on the entry alone, never on how many threads there are, so that results do
    not either.
    """
    kernel, layout = m[entry + ENT.KERNEL], m[entry + ENT.LAYOUT]
    return run_phases(
        m, stream, args, kernel, layout, m[entry + ENT.UNITS], m[entry + ENT.GRAIN],
        m[entry + ENT.PHASES], m[entry + ENT.MORE],
    )  # fmt: skip
