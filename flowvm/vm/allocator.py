"""The caching allocator: one for each stream, in native code, used by that stream's worker alone.

A stream runs in order, so a block that one instruction freed may be handed to any later instruction
of the same stream without further thought; that is why ReleaseTensor runs on the stream that
allocated.

Sizes are rounded up to classes: 64 bytes, then four steps to each doubling, so at most a fifth of a
block is unused. Classes up to 1 MiB are cut from slabs; larger blocks come from the system one by
one and are cached when freed.  A freed block is pushed on its class's list (the link is in its
first word), so both ways cost a few loads and stores.

Live bytes are what instructions have allocated and not released, peak bytes their maximum, reserved
bytes what the VM holds from the system; all in rounded sizes.
"""

from __future__ import annotations

from flowvm.vm.lang import (
    Words,
    advise_huge,
    aligned_alloc,
    compare_exchange,
    fetch_add,
    free,
    load_word,
    store_word,
)
from flowvm.vm.layout import (
    LIVE_BYTES,
    N_CLASSES,
    N_TRIMMED,
    PEAK_BYTES,
    RESERVED_BYTES,
    STR,
    STR_WORDS,
    T_CACHED,
    T_CLASSES,
    T_SLAB,
    T_SLAB_LEFT,
)

SMALLEST = 64
SLAB = 2 << 20
HUGE_PAGE = 2 << 20  # of x86-64, and of aarch64 with its usual page of 4 KiB
LARGE_CLASS = 56  # the class of 1 MiB: larger classes come straight from the system
KEEP = 256 << 20  # cached bytes that are never given back without being asked for


def class_of(size: int) -> int:
    """The smallest class that holds `size` bytes."""
    if size <= SMALLEST:
        return 0
    power = 0
    while (SMALLEST << (power + 1)) < size:
        power += 1
    quarter = (SMALLEST << power) // 4
    return power * 4 + (size - (SMALLEST << power) + quarter - 1) // quarter


def size_of(size_class: int) -> int:
    """Bytes of a block of `size_class`, a multiple of 64; inverse of `class_of` on its values."""
    base = SMALLEST << (size_class // 4)
    return (base + base // 4 * (size_class % 4) + 63) // 64 * 64


def from_system(size: int) -> int:
    """Memory of a class above LARGE_CLASS or of a slab, in huge pages where the system has them.

    With pages of 4 KiB a walk over large tensors waits for the tables: a copy of 16 MiB takes 1.15
    to 1.4 times as long.  C asks that `size` be a multiple of the alignment.
    """
    alignment = min(size & -size, HUGE_PAGE)
    block = aligned_alloc(alignment, size)
    if block != 0:
        advise_huge(block, size)
    return block


def allocate(m: Words, stream: int, size: int) -> int:
    """A block of at least `size` bytes, aligned to 64, or 0 when the system has none."""
    size_class = class_of(size)
    if size_class >= N_CLASSES:
        return 0
    at = STR + stream * STR_WORDS
    block = m[at + T_CLASSES + size_class]
    rounded = size_of(size_class)
    if block != 0:
        m[at + T_CLASSES + size_class] = load_word(block)
        if size_class > LARGE_CLASS:
            m[at + T_CACHED] -= rounded
    elif size_class > LARGE_CLASS:
        if m[at + T_CACHED] > KEEP + m[LIVE_BYTES]:
            trim(m, stream)
        block = from_system(rounded)
        if block == 0 and m[at + T_CACHED] > 0:
            trim(m, stream)
            block = from_system(rounded)
        if block == 0:
            return 0
        fetch_add(m, RESERVED_BYTES, rounded)
    else:
        if m[at + T_SLAB_LEFT] < rounded:
            slab = from_system(SLAB)
            if slab == 0:
                return 0
            fetch_add(m, RESERVED_BYTES, SLAB)
            m[at + T_SLAB], m[at + T_SLAB_LEFT] = slab, SLAB
        block = m[at + T_SLAB]
        m[at + T_SLAB] += rounded
        m[at + T_SLAB_LEFT] -= rounded
    live = fetch_add(m, LIVE_BYTES, rounded) + rounded
    peak = m[PEAK_BYTES]
    while live > peak and not compare_exchange(m, PEAK_BYTES, peak, live):
        peak = m[PEAK_BYTES]
    return block


def release(m: Words, stream: int, block: int, size_class: int) -> None:
    """Give back a block that `allocate` of the same stream gave."""
    at = STR + stream * STR_WORDS
    store_word(block, m[at + T_CLASSES + size_class])
    m[at + T_CLASSES + size_class] = block
    rounded = size_of(size_class)
    if size_class > LARGE_CLASS:
        m[at + T_CACHED] += rounded
    fetch_add(m, LIVE_BYTES, -rounded)


def trim(m: Words, stream: int) -> None:
    """Give the stream's cached large blocks back to the system."""
    at = STR + stream * STR_WORDS
    for size_class in range(LARGE_CLASS + 1, N_CLASSES):
        block = m[at + T_CLASSES + size_class]
        while block != 0:
            following = load_word(block)
            free(block)
            fetch_add(m, RESERVED_BYTES, -size_of(size_class))
            block = following
        m[at + T_CLASSES + size_class] = 0
    m[at + T_CACHED] = 0
    fetch_add(m, N_TRIMMED, 1)
