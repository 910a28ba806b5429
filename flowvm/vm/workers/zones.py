"""The memory check: writes of kernels outside of their memory, found where they happen.

With FLOWVM_CHECK=memory (`flow.config.check`), which is taken when flowvm is imported:

    each block       has a *zone* of the pattern in front of its first byte and behind its last
    a fresh block    is filled with the pattern, and so is a released one, which then waits in a
                     quarantine before the system has it back
    memory that an instruction has no business to write is compared with what it was: operands that
                     it only reads, and between the elements of a view that it writes
    a chunk          has zones between its blocks, put there when a block's life begins

The pattern is NaN as float64, float32, float16 and bfloat16, and far out of range as an index.  So
a read of it shows in the results.

Zones and copies are checked when an instruction, or a task of a launch, is done: it then fails with
a BoundsError.  Zones are checked again when a block is released, and a block itself when it leaves
the quarantine.  An error found then is reported for the instruction that made the block, since the
writer is unknown.

Without the setting CHECKED is a constant that is False, and compiled code has nothing of this.

A block of the check:  HEAD words, LEFT bytes of pattern, its bytes, pattern up to its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.config import config
from flowvm.meta.arrays import Array
from flowvm.vm.machine.lang import Words, aligned_alloc, copy_bytes, free, load_word, store_word
from flowvm.vm.machine.machine import access_of, count_of, operand_of
from flowvm.vm.machine.words import ARG, CHK, ENT, OPERAND, RING, STO, STR, VEW
from flowvm.vm.workers.error_report import report

CHECKED = config.check == "memory"

PATTERN = int.from_bytes(b"\xfb\xff" * 4, "little", signed=True)
ZONED = 1  # STO.CLASS of adopted memory that has zones; below OWNED
LEFT = 256  # bytes of a zone in front of a block
RIGHT = 256  # at least, behind it
HEAD = 64  # bytes: SIZE, TOTAL, MAKER and ENTRY of it, and the next in quarantine
SIZE, TOTAL, MAKER, MADE_BY, NEXT = 0, 8, 16, 24, 32
BEFORE = HEAD + LEFT
CHUNK_ZONE = 64 if CHECKED else 0  # bytes behind each block of a chunk, and in front of the first
QUARANTINE = 32 << 20  # bytes of a stream's released blocks
MOST_BLOCKS = 4096  # of them
MOST_COMPARED = 4 << 20  # bytes: larger memory is not compared with its copy
ARENA_ZONE = 4096 if CHECKED else 0  # bytes on both sides of an arena
ARENA_LOOK = 256  # bytes of it that are looked at each time

# flowvm.errors.Status; a test pins that they agree
OUTSIDE_OPERAND, BETWEEN_ELEMENTS, WROTE_INPUT = 14, 15, 16
OUTSIDE_SCRATCH, OUTSIDE_ARENA, OUTSIDE_REGISTER = 17, 18, 19
ZONE_BROKEN, WRITTEN_RELEASED = 20, 21


# --- the pattern --------------------------------------------------------------------------------


def fill(address: int, nbytes: int) -> None:
    """Fill memory with the pattern; both arguments are multiples of 8."""
    for at in range(address, address + nbytes, 8):
        store_word(at, PATTERN)


def fill_from(address: int, end: int) -> None:
    """Fill memory with the pattern from any byte to `end`, a multiple of 8."""
    within = address & 7
    if within != 0:
        mask = (1 << (8 * within)) - 1
        word = load_word(address - within)
        store_word(address - within, (word & mask) | (PATTERN & ~mask))
        address += 8 - within
    fill(address, end - address)


def first_change(address: int, end: int) -> int:
    """Return the address of the first changed byte from `address` to `end`, a multiple of 8; -1 if
    there is none.
    """
    within = address & 7
    at = address - within
    bits = 8 * within
    while at < end:
        word = load_word(at) ^ PATTERN
        if bits != 0:
            word = (word >> bits) << bits
            bits = 0
        if word != 0:
            return at + first_byte(word)
        at += 8
    return -1


def last_change(begin: int, end: int) -> int:
    """Return the address of the last changed byte from `begin` to `end`, both multiples of 8; -1 if
    there is none.
    """
    at = end - 8
    while at >= begin:
        word = load_word(at) ^ PATTERN
        if word != 0:
            byte = 7
            while (word >> (8 * byte)) & 255 == 0:
                byte -= 1
            return at + byte
        at -= 8
    return -1


def first_byte(word: int) -> int:
    """Return the index of the first byte of a non-zero word that is not 0."""
    byte = 0
    while (word >> (8 * byte)) & 255 == 0:
        byte += 1
    return byte


# --- blocks -------------------------------------------------------------------------------------


def total_of(size: int) -> int:
    """Return the bytes of the system that a block of `size` bytes takes."""
    return (BEFORE + size + RIGHT + 63) // 64 * 64


def new_block(m: Words, stream: int, size: int) -> int:
    """Return a block with zones, full of the pattern; 0 if the system has none."""
    total = total_of(size)
    base = aligned_alloc(64, total)
    if base == 0:
        return 0
    slot = m[CHK.AT + stream * CHK.WORDS + CHK.SLOT]
    fill(base + HEAD, total - HEAD)
    store_word(base + SIZE, size)
    store_word(base + TOTAL, total)
    store_word(base + MAKER, m[RING.AT + slot * RING.WORDS + RING.MARK] - 1)
    store_word(base + MADE_BY, entry_in(m, slot))
    return base + BEFORE


def entry_in(m: Words, slot: int) -> int:
    """Return the index of the entry of the record in a slot."""
    return ENT.AT + (m[RING.AT + slot * RING.WORDS + RING.ENTRY] & ENT.MASK) * ENT.WORDS


def outside(block: int) -> int:
    """Return the offset, from a block's first byte, of the nearest changed byte of its zones; 0 if
    there is none.  Restore the zones.
    """
    base, size = block - BEFORE, load_word(block - BEFORE + SIZE)
    end = base + load_word(base + TOTAL)
    behind = first_change(block + size, end)
    before = last_change(block - LEFT, block)
    if behind >= 0:
        fill_from(block + size, end)
    if before >= 0:
        fill(block - LEFT, LEFT)
    if behind >= 0:
        # a block of no bytes has its zone from byte 0 on, which must not look like none
        return max(1, behind - block)
    return 0 if before < 0 else before - block


def put_away(m: Words, stream: int, block: int) -> int:
    """Move a block into the stream's quarantine.  Return the bytes given back to the system."""
    base = block - BEFORE
    at = outside(block)
    if at != 0:
        tell_maker(m, stream, base, ZONE_BROKEN, at)
    total = load_word(base + TOTAL)
    fill(block, total - BEFORE)
    store_word(base + NEXT, 0)
    check = CHK.AT + stream * CHK.WORDS
    if m[check + CHK.LAST] != 0:
        store_word(m[check + CHK.LAST] + NEXT, base)
    else:
        m[check + CHK.FIRST] = base
    m[check + CHK.LAST] = base
    m[check + CHK.BLOCKS] += 1
    m[check + CHK.BYTES] += total
    return let_go(m, stream, QUARANTINE, MOST_BLOCKS)


def let_go(m: Words, stream: int, most_bytes: int, most_blocks: int) -> int:
    """Free the oldest blocks in quarantine until it is within its bounds.  Return the bytes
    freed.
    """
    check, freed = CHK.AT + stream * CHK.WORDS, 0
    while m[check + CHK.FIRST] != 0 and (
        m[check + CHK.BYTES] > most_bytes or m[check + CHK.BLOCKS] > most_blocks
    ):
        base = m[check + CHK.FIRST]
        m[check + CHK.FIRST] = load_word(base + NEXT)
        if m[check + CHK.FIRST] == 0:
            m[check + CHK.LAST] = 0
        total = load_word(base + TOTAL)
        changed = first_change(base + HEAD, base + total)
        if changed >= 0:
            tell_maker(m, stream, base, WRITTEN_RELEASED, changed - base - BEFORE)
        free(base)
        m[check + CHK.BLOCKS] -= 1
        m[check + CHK.BYTES] -= total
        freed += total
    return freed


def tell_maker(m: Words, stream: int, base: int, status: int, offset: int) -> None:
    """Report a change by an unknown writer, for the instruction that made the block."""
    args = ARG.AT + stream * ARG.WORDS
    m[args], m[args + 1] = 0, offset
    m[args + 2], m[args + 3] = load_word(base + SIZE), load_word(base + MAKER)
    report(m, stream, load_word(base + MAKER), load_word(base + MADE_BY), status, -1)


# --- an instruction ------------------------------------------------------------------------------


def begin_check(m: Words, stream: int, slot: int) -> None:
    """Begin the check of the instruction, or the launch, in `slot`."""
    m[CHK.AT + stream * CHK.WORDS + CHK.SLOT] = slot


def fault(m: Words, stream: int, status: int, operand: int, offset: int, size: int) -> int:
    """Write the details of a fault, as a kernel does.  Return the status."""
    args = ARG.AT + stream * ARG.WORDS
    m[args], m[args + 1], m[args + 2] = operand, offset, size
    return status


def check_operands(m: Words, stream: int, slot: int, entry: int) -> int:
    """Check the zones of an instruction's operands.  Return a status."""
    for k in range(count_of(m, slot, entry)):
        at = storage_at(m, slot, entry, k)
        if m[at + STO.POINTER] != 0 and has_zones(m, at):
            offset = outside(m[at + STO.POINTER])
            if offset != 0:
                return fault(m, stream, OUTSIDE_OPERAND, k, offset, m[at + STO.BYTES])
    return 0


def has_zones(m: Words, at: int) -> bool:
    """Return True if the storage at `at` has zones: from the allocator of host memory, or
    `zoned`.
    """
    if m[at + STO.CLASS] <= ZONED:
        return m[at + STO.CLASS] == ZONED
    return on_host(m, m[at + STO.STREAM])


def on_host(m: Words, stream: int) -> bool:
    """Return True if a stream's allocator gives the host's memory."""
    return m[STR.AT + stream * STR.WORDS + STR.MEMORY] == STR.HOST_MEMORY


def check_scratch(m: Words, stream: int, scratch: int) -> int:
    """Check the zones of the memory that a kernel had for its call."""
    offset = outside(scratch)
    if offset == 0:
        return 0
    return fault(m, stream, OUTSIDE_SCRATCH, -1, offset, load_word(scratch - BEFORE + SIZE))


def check_arena(m: Words, stream: int, arena: int) -> int:
    """Check the zones of a thread's arena, if it has one."""
    if arena == 0:
        return 0
    end = arena + ARG.ARENA_BYTES
    changed = first_change(end, end + ARENA_LOOK)
    if changed < 0:
        changed = last_change(arena - ARENA_LOOK, arena)
    if changed < 0:
        return 0
    fill(end, ARENA_LOOK)
    fill(arena - ARENA_LOOK, ARENA_LOOK)
    return fault(m, stream, OUTSIDE_ARENA, -1, changed - arena, ARG.ARENA_BYTES)


def check_own_arena(m: Words, stream: int, status: int) -> int:
    """Check the arena of the stream's worker behind a kernel that ended with `status`.  Return the
    status.  The check also covers writes over a helper's zones, for which the next instruction
    would be blamed.
    """
    if status != 0 and status != OUTSIDE_ARENA:
        return status
    fault = check_arena(m, stream, m[STR.AT + stream * STR.WORDS + STR.ARENA])
    return fault if fault != 0 else status


def storage_at(m: Words, slot: int, entry: int, k: int) -> int:
    """Return the index of the storage of an instruction's operand k."""
    return STO.AT + (operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK) * STO.WORDS


# --- memory compared with what it was ------------------------------------------------------------


def take_copies(m: Words, stream: int, slot: int, entry: int) -> None:
    """Copy the memory that a kernel must leave alone: storages that it only reads, and ones that it
    writes through views.  The copies are a list: the next copy, the operand's number, the bytes.
    """
    check = CHK.AT + stream * CHK.WORDS
    m[check + CHK.COPIES] = 0
    if not on_host(m, stream):
        return
    for k in range(count_of(m, slot, entry)):
        access = access_of(m, slot, entry, k)
        at = storage_at(m, slot, entry, k)
        nbytes = m[at + STO.BYTES]
        if (
            access & OPERAND.ALLOCATE != 0
            or m[at + STO.POINTER] == 0
            or nbytes == 0
            or nbytes > MOST_COMPARED
            or not describes_writes(m, slot, entry, m[at + STO.POINTER], nbytes)
        ):
            continue
        copy = aligned_alloc(64, 64 + (nbytes + 63) // 64 * 64)
        if copy != 0:
            store_word(copy, m[check + CHK.COPIES])
            store_word(copy + 8, k)
            copy_bytes(copy + 64, m[at + STO.POINTER], nbytes)
            m[check + CHK.COPIES] = copy


def describes_writes(m: Words, slot: int, entry: int, pointer: int, nbytes: int) -> bool:
    """Return True if a view is known for each operand that the instruction writes into `nbytes`
    bytes at `pointer`.
    """
    for k in range(count_of(m, slot, entry)):
        access = access_of(m, slot, entry, k)
        if access & OPERAND.ALLOCATE == 0 and access & 3 != OPERAND.CONST:
            at = storage_at(m, slot, entry, k)
            address = m[at + STO.POINTER]
            meets = address < pointer + nbytes and pointer < address + m[at + STO.BYTES]
            if meets and view_of(m, entry, k) == 0:
                return False
    return True


def compare_copies(m: Words, stream: int, slot: int, entry: int) -> int:
    """Compare memory with the copies of `take_copies`.  Return a status."""
    check, status = CHK.AT + stream * CHK.WORDS, 0
    copy = m[check + CHK.COPIES]
    while copy != 0:
        k = load_word(copy + 8)
        at = storage_at(m, slot, entry, k)
        pointer, nbytes = m[at + STO.POINTER], m[at + STO.BYTES]
        for j in range(count_of(m, slot, entry)):
            access = access_of(m, slot, entry, j)
            if access & OPERAND.ALLOCATE == 0 and access & 3 != OPERAND.CONST:
                renew(m, slot, entry, j, copy + 64, pointer, nbytes)
        offset = difference(copy + 64, pointer, nbytes)
        if offset >= 0 and status == 0:
            writes = access_of(m, slot, entry, k) & 3 != OPERAND.CONST
            kind = BETWEEN_ELEMENTS if writes else WROTE_INPUT
            status = fault(m, stream, kind, k, offset, nbytes)
        after = load_word(copy)
        free(copy)
        copy = after
    m[check + CHK.COPIES] = 0
    return status


def view_of(m: Words, entry: int, k: int) -> int:
    """Return the address of the view of an entry's operand k, as `views_of` writes it; 0 for
    none.
    """
    table = m[VEW.AT + (entry - ENT.AT) // ENT.WORDS]
    return 0 if table == 0 else load_word(table + 8 * k)


def renew(m: Words, slot: int, entry: int, j: int, copy: int, pointer: int, nbytes: int) -> None:
    """Copy the elements of operand j into the copy of the bytes at `pointer`."""
    view = view_of(m, entry, j)
    if view == 0:
        return
    begin = m[storage_at(m, slot, entry, j) + STO.POINTER] + (
        operand_of(m, slot, entry, j) >> OPERAND.STORAGE_BITS
    )
    ndim, itemsize, numel = load_word(view), load_word(view + 8), load_word(view + 16)
    for number in range(numel):
        rest, address = number, begin
        for d in range(ndim - 1, -1, -1):
            length = load_word(view + 24 + 16 * d)
            address += rest % length * load_word(view + 32 + 16 * d)
            rest //= length
        if pointer <= address and address + itemsize <= pointer + nbytes:
            copy_bytes(copy + address - pointer, address, itemsize)


def difference(copy: int, pointer: int, nbytes: int) -> int:
    """Return the first of `nbytes` bytes in which the copy differs, -1 for none."""
    rounded = (nbytes + 63) // 64 * 64
    now = aligned_alloc(64, rounded)
    if now == 0:
        return -1
    copy_bytes(now, pointer, nbytes)
    offset = -1
    for at in range(0, nbytes, 8):
        word = load_word(now + at) ^ load_word(copy + at)
        if nbytes - at < 8:
            word &= (1 << (8 * (nbytes - at))) - 1
        if word != 0:
            offset = at + first_byte(word)
            break
    free(now)
    return offset


# --- a launch ------------------------------------------------------------------------------------


def begin_task(table: int, chunk: int, repetition: int) -> None:
    """Put zones around the blocks of the chunk whose lives begin with this task.

    Between two blocks that live at one time there are CHUNK_ZONE bytes at least that belong to
    neither, and what lies there is the pattern, whoever put it down.
    """
    for k in range(load_word(table)):
        row = table + 8 + 24 * k
        begin, nbytes = chunk + load_word(row), load_word(row + 8)
        if load_word(row + 16) != 0:
            fill(begin - CHUNK_ZONE, CHUNK_ZONE)
            end = begin + (nbytes + 63) // 64 * 64 + CHUNK_ZONE
            fill_from(begin if repetition == 0 else begin + nbytes, end)


def check_task(m: Words, stream: int, table: int, chunk: int) -> int:
    """Check the zones of the blocks that a task used, and its launch's operands.  Return a
    status.
    """
    for k in range(load_word(table)):
        row = table + 8 + 24 * k
        begin, nbytes = chunk + load_word(row), load_word(row + 8)
        end = begin + (nbytes + 63) // 64 * 64 + CHUNK_ZONE
        changed = first_change(begin + nbytes, end)
        if changed < 0:
            changed = last_change(begin - CHUNK_ZONE, begin)
        if changed >= 0:
            return fault(m, stream, OUTSIDE_REGISTER, k, changed - begin, nbytes)
    slot = m[CHK.AT + stream * CHK.WORDS + CHK.SLOT]
    return check_operands(m, stream, slot, entry_in(m, slot))


# --- what Python puts down ------------------------------------------------------------------------


def views_of(info: object, writes: Any) -> Array | None:
    """Return the views that an entry's instructions write, if its `info` knows the metas.

    For each operand the address of its view, 0 for those that are not written; then the views:
    dimensions, bytes of an element, elements, then for each dimension its length and step in bytes.
    """
    table: list[int] = []
    views: list[int] = []
    metas = getattr(info, "metas", ())
    if len(metas) != len(writes) or any(m.device.type == "meta" for m in metas):
        return None  # or there is no memory
    for meta, written in zip(metas, writes, strict=True):
        table.append(len(views) if written else -1)
        if written:
            size = meta.dtype.itemsize
            views += [len(meta.shape), size, meta.numel]
            for length, step in zip(meta.shape, meta.stride, strict=True):
                views += [length, step * size]
    words = np.array([0] * len(table) + views, np.int64)
    begin = words.ctypes.data + 8 * len(table)
    words[: len(table)] = [0 if at < 0 else begin + 8 * at for at in table]
    return words


def zoned(array: Array) -> Array:
    """Return a copy of `array` in memory with zones, for memory that the allocator does not
    know.
    """
    words = np.full(total_of(array.nbytes) // 8 + 8, PATTERN, np.int64)
    base = -words.ctypes.data % 64
    head = words[base // 8 :]
    head[SIZE // 8], head[TOTAL // 8] = array.nbytes, total_of(array.nbytes)
    data = words.view(np.uint8)[base + BEFORE : base + BEFORE + array.nbytes]
    copy: Array = data.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
