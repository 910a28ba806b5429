"""The caching allocator: one for each stream, in native code, used by that stream's worker alone.

A stream runs in order, so a block that one instruction freed may be handed to any later instruction
of the same stream without further thought; that is why ReleaseTensor runs on the stream that
allocated.  Under a policy another stream may have run the instruction: then the block goes back to
that stream's allocator (STR.RETURNED), or one stream's lists would grow without end and the other's
be empty.

Sizes are rounded up to classes: 64 bytes, then four steps to each doubling, so at most a fifth of a
block is unused. Classes up to 1 MiB are cut from slabs; larger blocks come from the system one by
one and are cached when freed.  A freed block is pushed on its class's list (the link is in its
first word), so both ways cost a few loads and stores.  What a slab has left when the next one
begins is cut into blocks of the classes that fit.

A storage of the host whose class has no free block takes one of the next NEAR classes, up to half
as large again, before memory comes from the system: a step whose activations have another shape
than its gradients needs no memory of its own for each.  With more classes, steps of a GPT would
need more and not less: their large blocks would be gone when something large comes.

The streams of a device take device memory (STR.MEMORY), or pinned host memory where they copy to
the host.  A block freed on such a stream may be in use by what was launched before; what is
launched later on the stream comes after that, and the driver gives nothing back to the system
before it is over.  So there a list's links are not in the blocks, which the device may still write
to, but in nodes of their own.

A device that is full is full for all of its streams: one that gets no memory gives back what the
others keep for reuse, too, and asks again.  So what a device's stream keeps is behind a lock, which
nobody holds while he waits for another; the CPU's streams know none.  On devices slabs of which
every block is free go back as well.

Live bytes are what instructions have allocated and not released, peak bytes their maximum, reserved
bytes what the VM holds from the system; all in rounded sizes, and for each device on its own.

Under the memory check (`zones`) a block of the host's memory is the system's, with zones of its
own, and a released one goes into quarantine; the rest is as it is without.
"""

from __future__ import annotations

from flowvm.vm.machine.device_words import DEV
from flowvm.vm.machine.lang import (
    Words,
    address_in,
    advise_huge,
    aligned_alloc,
    call_address,
    compare_exchange,
    fetch_add,
    free,
    futex_wait,
    load_acquire,
    load_word,
    sched_yield,
    store_release,
    store_word,
    words_at,
)
from flowvm.vm.machine.words import CTL, STR
from flowvm.vm.workers.zones import CHECKED, let_go, new_block, put_away, total_of

SMALLEST = 64
SLAB = 2 << 20
HUGE_PAGE = 2 << 20  # of x86-64, and of aarch64 with its usual page of 4 KiB
LARGE_CLASS = 56  # the class of 1 MiB: larger classes come straight from the system
PATIENCE, LOOK = 2000, 50  # looks at another worker that has memory to release; us between two
NEAR = 2  # larger classes of which a storage may have a free block
NEAR_FROM = 40  # the class of 64 KiB: what smaller ones would save is not worth a look
KEEP = 256 << 20  # cached bytes that are given back only on request


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
    """The control words in which the stream's memory is counted: LIVE_BYTES and so on."""
    if m[at + STR.COUNTERS] == 0:
        return m
    return words_at(m[at + STR.COUNTERS], CTL.WORDS)


def count_more(count: Words, now: int, peak: int, size: int) -> None:
    """Add `size` to the counter `now`; word `peak` has its maximum."""
    total = fetch_add(count, now, size) + size
    most = count[peak]
    while total > most and not compare_exchange(count, peak, most, total):
        most = count[peak]


# --- the system's memory ------------------------------------------------------------------------


def from_system(m: Words, at: int, size: int) -> int:
    """Memory of a class above LARGE_CLASS or of a slab, in huge pages where the system has them.

    With pages of 4 KiB a walk over large tensors waits for the tables: a copy of 16 MiB takes 1.15
    to 1.4 times as long.  C asks that `size` be a multiple of the alignment.
    """
    if m[at + STR.MEMORY] != STR.HOST_MEMORY:
        return from_device(m, at, size)
    if is_beyond(m, size):
        return 0
    alignment = min(size & -size, HUGE_PAGE)
    block = aligned_alloc(alignment, size)
    if block != 0:
        advise_huge(block, size)
    return block


def is_beyond(count: Words, size: int) -> bool:
    """Return True if `size` more bytes exceed the bound of the memory counted in `count`."""
    most = count[CTL.MOST_BYTES]
    return most != 0 and count[CTL.RESERVED_BYTES] + size > most


def from_device(m: Words, at: int, size: int) -> int:
    """`size` bytes of a device's memory, or of pinned memory; 0 if there are none, or if the device
    may not be used so far.
    """
    block, count = words_at(m[at + STR.BLOCK], DEV.WORDS), counters(m, at)
    block[DEV.REFUSED] = 0
    if is_beyond(count, size):
        return 0
    call = words_at(block[DEV.CALL], 4)
    call[0], call[1], call[2], call[3] = address_in(call, 3), size, 3, 0  # portable and mapped
    on_device = m[at + STR.MEMORY] == STR.DEVICE_MEMORY
    function = block[DEV.F_ALLOCATE] if on_device else block[DEV.F_ALLOCATE_HOST]
    block[DEV.REFUSED] = call_address(function, address_in(call, 0))
    return call[3] if block[DEV.REFUSED] == 0 else 0


def to_system(m: Words, at: int, by: int, memory: int) -> None:
    """Give memory of `from_system` back, for the stream at `at`.  The calling worker is the one at
    `by`, of the same device.
    """
    if m[at + STR.MEMORY] == STR.HOST_MEMORY:
        free(memory)
        return
    block = words_at(m[by + STR.BLOCK], DEV.WORDS)
    call = words_at(block[DEV.CALL], 1)
    call[0] = memory
    on_device = m[at + STR.MEMORY] == STR.DEVICE_MEMORY
    call_address(block[DEV.F_FREE] if on_device else block[DEV.F_FREE_HOST], address_in(call, 0))


# --- free lists ---------------------------------------------------------------------------------


def push(m: Words, at: int, size_class: int, block: int) -> None:
    """Put a free block on the list of its class."""
    node = block
    if m[at + STR.MEMORY] != STR.HOST_MEMORY:
        node = aligned_alloc(16, 16)
        store_word(node + 8, block)
    store_word(node, m[at + STR.CLASSES + size_class])
    m[at + STR.CLASSES + size_class] = node


def pop(m: Words, at: int, size_class: int) -> int:
    """Take a free block off the list of a class, which must not be empty."""
    node = m[at + STR.CLASSES + size_class]
    m[at + STR.CLASSES + size_class] = load_word(node)
    if m[at + STR.MEMORY] == STR.HOST_MEMORY:
        return node
    block = load_word(node + 8)
    free(node)
    return block


def lock(m: Words, at: int) -> None:
    """Lock the free blocks and the slabs of a device's stream for this thread."""
    while not compare_exchange(m, at + STR.LOCK, 0, 1):
        sched_yield()


def unlock(m: Words, at: int) -> None:
    """Unlock the free blocks and the slabs of a device's stream."""
    store_release(m, at + STR.LOCK, 0)


# --- allocating ---------------------------------------------------------------------------------


def allocate(m: Words, stream: int, size: int) -> int:
    """A block of at least `size` bytes, aligned to 64, or 0 when the system has none."""
    return allocate_class(m, stream, class_of(size), size)


def class_near(m: Words, stream: int, size: int) -> int:
    """The class to allocate for `size` bytes that may be in a larger block."""
    size_class = class_of(size)
    at = STR.AT + stream * STR.WORDS
    near = NEAR_FROM <= size_class and size_class + NEAR < STR.N_CLASSES
    if CHECKED or not near or m[at + STR.MEMORY] != STR.HOST_MEMORY:
        return size_class
    if m[at + STR.CLASSES + size_class] == 0 and load_acquire(m, at + STR.RETURNED) != 0:
        take_back(m, at)
    for larger in range(size_class, size_class + NEAR + 1):
        if m[at + STR.CLASSES + larger] != 0:
            return larger
    return size_class


def allocate_class(m: Words, stream: int, size_class: int, size: int) -> int:
    """A block of this class for `size` bytes, or 0 when the system has none."""
    if size_class >= STR.N_CLASSES:
        return 0
    at = STR.AT + stream * STR.WORDS
    if CHECKED and m[at + STR.MEMORY] == STR.HOST_MEMORY:
        block = take_zoned(m, stream, size)
    elif m[at + STR.MEMORY] == STR.HOST_MEMORY:
        block = take(m, at, size_class)
    else:
        block = take_locked(m, at, size_class)
        if block == 0 and trim_device(m, at):
            block = take_locked(m, at, size_class)
    if block != 0:
        count_more(counters(m, at), CTL.LIVE_BYTES, CTL.PEAK_BYTES, size_of(size_class))
    return block


def take_zoned(m: Words, stream: int, size: int) -> int:
    """Return a block with zones.  If there is none, free the quarantine and try again."""
    at = STR.AT + stream * STR.WORDS
    block = 0 if is_beyond(m, total_of(size)) else new_block(m, stream, size)
    if block == 0 and give_back(m, at, at) > 0 and not is_beyond(m, total_of(size)):
        block = new_block(m, stream, size)
    if block != 0:
        count_more(counters(m, at), CTL.RESERVED_BYTES, CTL.PEAK_RESERVED, total_of(size))
    return block


def take_locked(m: Words, at: int, size_class: int) -> int:
    """Call `take` for a device's stream, with its lock."""
    lock(m, at)
    block = take(m, at, size_class)
    unlock(m, at)
    return block


def take(m: Words, at: int, size_class: int) -> int:
    """A block of the class, cached or new; 0 when the system has none."""
    rounded = size_of(size_class)
    if m[at + STR.CLASSES + size_class] == 0 and load_acquire(m, at + STR.RETURNED) != 0:
        take_back(m, at)
    if m[at + STR.CLASSES + size_class] != 0:
        if size_class > LARGE_CLASS:
            m[at + STR.CACHED] -= rounded
        return pop(m, at, size_class)
    if size_class > LARGE_CLASS:
        if m[at + STR.CACHED] > KEEP + counters(m, at)[CTL.LIVE_BYTES]:
            give_back(m, at, at)
        return reserve(m, at, rounded)
    if m[at + STR.SLAB_LEFT] < rounded and not next_slab(m, at):
        return 0
    block = m[at + STR.SLAB]
    m[at + STR.SLAB] += rounded
    m[at + STR.SLAB_LEFT] -= rounded
    return block


def reserve(m: Words, at: int, size: int) -> int:
    """Return memory from the system.  If there is none, free the cache and try again."""
    block = from_system(m, at, size)
    if block == 0 and m[at + STR.CACHED] > 0:
        give_back(m, at, at)
        block = from_system(m, at, size)
    if block != 0:
        count_more(counters(m, at), CTL.RESERVED_BYTES, CTL.PEAK_RESERVED, size)
    return block


def next_slab(m: Words, at: int) -> bool:
    """Begin a slab.  Return True if there was one.  A device's stream remembers the slabs that it
    has cut.
    """
    slab = reserve(m, at, SLAB)
    if slab == 0:
        return False
    cut_rest(m, at)
    if m[at + STR.MEMORY] != STR.HOST_MEMORY and m[at + STR.SLAB] != 0:
        node = aligned_alloc(16, 32)
        store_word(node, m[at + STR.SLABS])
        store_word(node + 8, m[at + STR.SLAB])
        store_word(node + 16, SLAB - m[at + STR.SLAB_LEFT])
        m[at + STR.SLABS] = node
    m[at + STR.SLAB], m[at + STR.SLAB_LEFT] = slab, SLAB
    return True


def cut_rest(m: Words, at: int) -> None:
    """Free what the slab has left as blocks, the largest first."""
    while m[at + STR.SLAB_LEFT] >= SMALLEST:
        size_class = class_of(m[at + STR.SLAB_LEFT])
        if size_of(size_class) > m[at + STR.SLAB_LEFT]:
            size_class -= 1
        rounded = size_of(size_class)
        push(m, at, size_class, m[at + STR.SLAB])
        m[at + STR.SLAB] += rounded
        m[at + STR.SLAB_LEFT] -= rounded


def release(m: Words, stream: int, block: int, size_class: int) -> None:
    """Free a block that `allocate` of the same stream returned."""
    at = STR.AT + stream * STR.WORDS
    rounded = size_of(size_class)
    if CHECKED and m[at + STR.MEMORY] == STR.HOST_MEMORY:
        fetch_add(counters(m, at), CTL.RESERVED_BYTES, -put_away(m, stream, block))
        fetch_add(counters(m, at), CTL.LIVE_BYTES, -rounded)
        return
    if m[at + STR.MEMORY] != STR.HOST_MEMORY:
        lock(m, at)
    push(m, at, size_class, block)
    if size_class > LARGE_CLASS:
        m[at + STR.CACHED] += rounded
    if m[at + STR.MEMORY] != STR.HOST_MEMORY:
        unlock(m, at)
    fetch_add(counters(m, at), CTL.LIVE_BYTES, -rounded)


def hand_back(m: Words, owner: int, block: int, size_class: int) -> None:
    """Free a block of the host's memory that `allocate` of another stream, `owner`, returned.  Its
    worker puts it on its list when it needs one.
    """
    at = STR.AT + owner * STR.WORDS
    store_word(block + 8, size_class)
    first = load_acquire(m, at + STR.RETURNED)
    store_word(block, first)
    while not compare_exchange(m, at + STR.RETURNED, first, block):
        first = load_acquire(m, at + STR.RETURNED)
        store_word(block, first)
    fetch_add(counters(m, at), CTL.LIVE_BYTES, -size_of(size_class))


def take_back(m: Words, at: int) -> None:
    """Put the blocks that other workers released on the stream's lists."""
    block = load_acquire(m, at + STR.RETURNED)
    while not compare_exchange(m, at + STR.RETURNED, block, 0):
        block = load_acquire(m, at + STR.RETURNED)
    while block != 0:
        after, size_class = load_word(block), load_word(block + 8)
        push(m, at, size_class, block)
        if size_class > LARGE_CLASS:
            m[at + STR.CACHED] += size_of(size_class)
        block = after


# --- giving back --------------------------------------------------------------------------------


def trim(m: Words, stream: int) -> None:
    """Give the stream's cached memory back to the system: large blocks, and a device's free
    slabs.
    """
    at = STR.AT + stream * STR.WORDS
    trim_for(m, at, at)


def trim_device(m: Words, by: int) -> bool:
    """Give back the cached memory of all streams that count into one place with the stream at `by`,
    whose worker calls.  The memory is a device's, or page-locked.  Return True if there was any.
    """
    freed = 0
    for stream in range(load_acquire(m, CTL.USED_STREAMS)):
        at = STR.AT + stream * STR.WORDS
        if m[at + STR.COUNTERS] == m[by + STR.COUNTERS]:
            if at != by:
                await_releases(m, at)
            freed += trim_for(m, at, by)
    return freed > 0


def await_releases(m: Words, at: int) -> None:
    """Wait for the worker of the stream at `at` to reach the end of its queue.  In program order,
    the memory to allocate now may have been released.

    Not for long: that worker may itself wait for the one that calls.
    """
    tail = load_acquire(m, at + STR.TAIL)
    for _ in range(PATIENCE):
        if load_acquire(m, at + STR.LAUNCHED) >= tail:
            return
        futex_wait(m, at + STR.MEMORY, m[at + STR.MEMORY], LOOK)  # a sleep: no thread wakes it


def trim_for(m: Words, at: int, by: int) -> int:
    """Do `trim` for the stream at `at`, by the worker of the one at `by`.  Return the number of
    bytes.
    """
    if m[at + STR.MEMORY] == STR.HOST_MEMORY:
        return give_back(m, at, by)
    lock(m, at)
    freed = give_back(m, at, by)
    freed += give_slabs_back(m, at, by)
    unlock(m, at)
    return freed


def give_back(m: Words, at: int, by: int) -> int:
    """Give the stream's cached large blocks back.  Return the number of bytes."""
    freed = 0
    if load_acquire(m, at + STR.RETURNED) != 0:
        take_back(m, at)
    for size_class in range(LARGE_CLASS + 1, STR.N_CLASSES):
        while m[at + STR.CLASSES + size_class] != 0:
            to_system(m, at, by, pop(m, at, size_class))
            freed += size_of(size_class)
    if CHECKED and m[at + STR.MEMORY] == STR.HOST_MEMORY:
        freed += let_go(m, (at - STR.AT) // STR.WORDS, 0, 0)
    m[at + STR.CACHED] = 0
    fetch_add(counters(m, at), CTL.RESERVED_BYTES, -freed)
    fetch_add(m, CTL.N_TRIMMED, 1)
    return freed


def give_slabs_back(m: Words, at: int, by: int) -> int:
    """Give back slabs whose blocks are all free.  Return the number of bytes."""
    freed = 0
    end, cut = m[at + STR.SLAB], SLAB - m[at + STR.SLAB_LEFT]
    if end != 0 and free_of(m, at, end - cut, end) == cut:
        m[at + STR.SLAB] = m[at + STR.SLAB_LEFT] = 0
        freed += give_slab_back(m, at, by, end - cut, end)
    previous, node = 0, m[at + STR.SLABS]
    while node != 0:
        after, end, cut = load_word(node), load_word(node + 8), load_word(node + 16)
        if free_of(m, at, end - cut, end) == cut:
            freed += give_slab_back(m, at, by, end - cut, end)
            free(node)
        else:
            store_word(node, previous)
            previous = node
        node = after
    m[at + STR.SLABS] = previous
    return freed


def free_of(m: Words, at: int, begin: int, end: int) -> int:
    """Bytes of the free blocks from `begin` to `end`."""
    total = 0
    for size_class in range(LARGE_CLASS + 1):
        node = m[at + STR.CLASSES + size_class]
        while node != 0:
            if begin <= load_word(node + 8) < end:
                total += size_of(size_class)
            node = load_word(node)
    return total


def give_slab_back(m: Words, at: int, by: int, begin: int, end: int) -> int:
    """Take the blocks from `begin` to `end`, all of a slab, off their lists, and give it back."""
    for size_class in range(LARGE_CLASS + 1):
        previous, node = 0, m[at + STR.CLASSES + size_class]
        while node != 0:
            after = load_word(node)
            if begin <= load_word(node + 8) < end:
                free(node)
            else:
                store_word(node, previous)
                previous = node
            node = after
        m[at + STR.CLASSES + size_class] = previous
    to_system(m, at, by, begin)
    fetch_add(counters(m, at), CTL.RESERVED_BYTES, -SLAB)
    return SLAB
