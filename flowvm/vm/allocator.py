"""The caching allocator: one for each stream, in native code, used by that stream's worker alone.

A stream runs in order, so a block that one instruction freed may be handed to any later instruction
of the same stream without further thought; that is why ReleaseTensor runs on the stream that
allocated.

Sizes are rounded up to classes: 64 bytes, then four steps to each doubling, so at most a fifth of a
block is unused. Classes up to 1 MiB are cut from slabs; larger blocks come from the system one by
one and are cached when freed.  A freed block is pushed on its class's list (the link is in its
first word), so both ways cost a few loads and stores.

The streams of a device take device memory (T_MEMORY), or pinned host memory where they copy to the
host.  A block freed on such a stream may be in use by what was launched before; what is launched
later on the stream comes after that, and the driver gives nothing back to the system before it is
over.  So there a list's links are not in the blocks, which the device may still write to, but in
nodes of their own.

Live bytes are what instructions have allocated and not released, peak bytes their maximum, reserved
bytes what the VM holds from the system; all in rounded sizes, and for each device on its own.
"""

from __future__ import annotations

from flowvm.vm.lang import (
    Words,
    address_in,
    advise_huge,
    aligned_alloc,
    call_address,
    compare_exchange,
    fetch_add,
    free,
    load_word,
    store_word,
    words_at,
)
from flowvm.vm.layout import (
    B_CALL,
    B_WORDS,
    BF_ALLOCATE,
    BF_ALLOCATE_HOST,
    BF_FREE,
    BF_FREE_HOST,
    CTL_WORDS,
    DEVICE_MEMORY,
    HOST_MEMORY,
    LIVE_BYTES,
    N_CLASSES,
    N_TRIMMED,
    PEAK_BYTES,
    RESERVED_BYTES,
    STR,
    STR_WORDS,
    T_BLOCK,
    T_CACHED,
    T_CLASSES,
    T_COUNTERS,
    T_MEMORY,
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


def counters(m: Words, at: int) -> Words:
    """Where LIVE_BYTES, PEAK_BYTES and RESERVED_BYTES of the stream's memory are counted."""
    if m[at + T_COUNTERS] == 0:
        return m
    return words_at(m[at + T_COUNTERS], CTL_WORDS)


# --- the system's memory ------------------------------------------------------------------------


def from_system(m: Words, at: int, size: int) -> int:
    """Memory of a class above LARGE_CLASS or of a slab, in huge pages where the system has them.

    With pages of 4 KiB a walk over large tensors waits for the tables: a copy of 16 MiB takes 1.15
    to 1.4 times as long.  C asks that `size` be a multiple of the alignment.
    """
    if m[at + T_MEMORY] != HOST_MEMORY:
        return from_device(m, at, size)
    alignment = min(size & -size, HUGE_PAGE)
    block = aligned_alloc(alignment, size)
    if block != 0:
        advise_huge(block, size)
    return block


def from_device(m: Words, at: int, size: int) -> int:
    """`size` bytes of a device's memory, or of pinned memory; 0 if there are none."""
    block = words_at(m[at + T_BLOCK], B_WORDS)
    call = words_at(block[B_CALL], 4)
    call[0], call[1], call[2], call[3] = address_in(call, 3), size, 3, 0  # portable and mapped
    on_device = m[at + T_MEMORY] == DEVICE_MEMORY
    function = block[BF_ALLOCATE] if on_device else block[BF_ALLOCATE_HOST]
    return call[3] if call_address(function, address_in(call, 0)) == 0 else 0


def to_system(m: Words, at: int, memory: int) -> None:
    """Give back what `from_system` gave."""
    if m[at + T_MEMORY] == HOST_MEMORY:
        free(memory)
        return
    block = words_at(m[at + T_BLOCK], B_WORDS)
    call = words_at(block[B_CALL], 1)
    call[0] = memory
    on_device = m[at + T_MEMORY] == DEVICE_MEMORY
    call_address(block[BF_FREE] if on_device else block[BF_FREE_HOST], address_in(call, 0))


# --- free lists ---------------------------------------------------------------------------------


def push(m: Words, at: int, size_class: int, block: int) -> None:
    """Put a free block on the list of its class."""
    node = block
    if m[at + T_MEMORY] != HOST_MEMORY:
        node = aligned_alloc(16, 16)
        store_word(node + 8, block)
    store_word(node, m[at + T_CLASSES + size_class])
    m[at + T_CLASSES + size_class] = node


def pop(m: Words, at: int, size_class: int) -> int:
    """Take a free block off the list of a class, which must not be empty."""
    node = m[at + T_CLASSES + size_class]
    m[at + T_CLASSES + size_class] = load_word(node)
    if m[at + T_MEMORY] == HOST_MEMORY:
        return node
    block = load_word(node + 8)
    free(node)
    return block


# --- allocating ---------------------------------------------------------------------------------


def allocate(m: Words, stream: int, size: int) -> int:
    """A block of at least `size` bytes, aligned to 64, or 0 when the system has none."""
    size_class = class_of(size)
    if size_class >= N_CLASSES:
        return 0
    at = STR + stream * STR_WORDS
    count = counters(m, at)
    rounded = size_of(size_class)
    if m[at + T_CLASSES + size_class] != 0:
        block = pop(m, at, size_class)
        if size_class > LARGE_CLASS:
            m[at + T_CACHED] -= rounded
    elif size_class > LARGE_CLASS:
        if m[at + T_CACHED] > KEEP + count[LIVE_BYTES]:
            trim(m, stream)
        block = from_system(m, at, rounded)
        if block == 0 and m[at + T_CACHED] > 0:
            trim(m, stream)
            block = from_system(m, at, rounded)
        if block == 0:
            return 0
        fetch_add(count, RESERVED_BYTES, rounded)
    else:
        if m[at + T_SLAB_LEFT] < rounded:
            slab = from_system(m, at, SLAB)
            if slab == 0 and m[at + T_CACHED] > 0:
                trim(m, stream)
                slab = from_system(m, at, SLAB)
            if slab == 0:
                return 0
            fetch_add(count, RESERVED_BYTES, SLAB)
            m[at + T_SLAB], m[at + T_SLAB_LEFT] = slab, SLAB
        block = m[at + T_SLAB]
        m[at + T_SLAB] += rounded
        m[at + T_SLAB_LEFT] -= rounded
    live = fetch_add(count, LIVE_BYTES, rounded) + rounded
    peak = count[PEAK_BYTES]
    while live > peak and not compare_exchange(count, PEAK_BYTES, peak, live):
        peak = count[PEAK_BYTES]
    return block


def release(m: Words, stream: int, block: int, size_class: int) -> None:
    """Give back a block that `allocate` of the same stream gave."""
    at = STR + stream * STR_WORDS
    push(m, at, size_class, block)
    rounded = size_of(size_class)
    if size_class > LARGE_CLASS:
        m[at + T_CACHED] += rounded
    fetch_add(counters(m, at), LIVE_BYTES, -rounded)


def trim(m: Words, stream: int) -> None:
    """Give the stream's cached large blocks back to the system."""
    at = STR + stream * STR_WORDS
    for size_class in range(LARGE_CLASS + 1, N_CLASSES):
        while m[at + T_CLASSES + size_class] != 0:
            to_system(m, at, pop(m, at, size_class))
            fetch_add(counters(m, at), RESERVED_BYTES, -size_of(size_class))
    m[at + T_CACHED] = 0
    fetch_add(m, N_TRIMMED, 1)
