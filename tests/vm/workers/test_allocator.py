"""The caching allocator, run uncompiled on memory that a fake system hands out."""

from __future__ import annotations

import ctypes
import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowvm.vm.machine.device_words import CALL, DEV
from flowvm.vm.machine.words import CTL, STR
from flowvm.vm.workers import allocator
from flowvm.vm.workers.allocator import (
    KEEP,
    LARGE_CLASS,
    NEAR,
    SLAB,
    SMALLEST,
    allocate,
    allocate_class,
    class_near,
    class_of,
    hand_back,
    release,
    size_of,
    trim,
)

LARGE = size_of(LARGE_CLASS)
STREAMS = 3


class System:
    """`aligned_alloc` and `free` over one reserved range, that fails beyond `most` bytes."""

    def __init__(self, most=1 << 40):
        self.most = most
        self.blocks: dict[int, tuple[int, object]] = {}

    @property
    def held(self):
        return sum(size for size, _ in self.blocks.values())

    def aligned_alloc(self, alignment, size):
        assert size % alignment == 0, "C asks for a multiple"
        if self.held + size > self.most:
            return 0
        # as much as the allocator touches: links in all blocks of a slab, or that of a large block
        keep = np.empty(min(size, SLAB) // 8 + 64, np.int64)
        address = (keep.ctypes.data + 63) // 64 * 64
        self.blocks[address] = (size, keep)
        return address

    def free(self, address):
        assert address in self.blocks, "freed twice, or never allocated"
        del self.blocks[address]


class RealSystem(System):
    """A system of real memory, for tests that write to it."""

    def aligned_alloc(self, alignment, size):
        keep = np.empty(size + alignment, np.uint8)
        address = -(-keep.ctypes.data // alignment) * alignment
        self.blocks[address] = (size, keep)
        return address


@pytest.fixture
def system(monkeypatch):
    return installed(monkeypatch, System())


def installed(monkeypatch, system):
    monkeypatch.setattr(allocator, "aligned_alloc", system.aligned_alloc)
    monkeypatch.setattr(allocator, "free", system.free)
    monkeypatch.setattr(allocator, "advise_huge", lambda address, size: 0)
    return system


def memory():
    return memoryview(np.zeros(STR.AT + STREAMS * STR.WORDS, np.int64))


# --- size classes -------------------------------------------------------------------------------

sizes = st.one_of(
    st.integers(0, 4096), st.integers(0, 1 << 44), st.integers(0, 42).map(lambda p: 1 << p)
)


@settings(max_examples=500)
@given(sizes)
def test_the_smallest_class_that_holds_a_size(size):
    c = class_of(size)
    assert size_of(c) >= size
    assert c == 0 or size_of(c - 1) < size or size_of(c - 1) == size_of(c)


@settings(max_examples=500)
@given(sizes.filter(lambda s: s > 4 * SMALLEST))
def test_at_most_a_quarter_is_wasted(size):
    assert size_of(class_of(size)) <= size * 1.25


def test_sizes_are_aligned_and_grow():
    every = [size_of(c) for c in range(STR.N_CLASSES)]
    assert all(size % 64 == 0 for size in every)
    assert every == sorted(every)
    assert LARGE == 1 << 20
    for size in every:
        # asking for exactly that much gives that much
        assert every[class_of(size)] == size


# --- allocating ---------------------------------------------------------------------------------


def test_blocks_are_aligned_and_do_not_overlap(monkeypatch, seed):
    installed(monkeypatch, RealSystem())
    m, rng, blocks = memory(), random.Random(seed), []
    for _ in range(300):
        size = rng.choice(
            (1, 63, 64, 65, 1000, 40_000, 200_000, 3 << 20 if rng.random() < 0.05 else 8)
        )
        block = allocate(m, 0, size)
        assert block % 64 == 0
        blocks.append((block, size_of(class_of(size))))
        ctypes.memset(block, 0xFF, size)
    blocks.sort()
    for (a, size), (b, _) in itertools.pairwise(blocks):
        assert a + size <= b


def test_a_freed_block_is_used_again_last_in_first_out(system):
    m = memory()
    for size in (100, LARGE + 1):
        first, second = allocate(m, 0, size), allocate(m, 0, size)
        held = system.held
        release(m, 0, first, class_of(size))
        release(m, 0, second, class_of(size))
        assert [allocate(m, 0, size), allocate(m, 0, size)] == [second, first]
        assert system.held == held


def test_a_freed_block_is_used_for_its_class_and_its_stream_only(system):
    m = memory()
    block = allocate(m, 0, 100)
    release(m, 0, block, class_of(100))
    assert allocate(m, 0, 1000) != block
    assert allocate(m, 1, 100) != block
    assert allocate(m, 0, class_of(100) and 112) == block  # another size of that class


def test_what_a_slab_has_left_is_cut_into_smaller_blocks(system):
    m = memory()
    first = allocate(m, 0, 1 << 20)
    rest = first + (1 << 20)
    middle = allocate(m, 0, 640 << 10)
    assert middle == rest
    second = allocate(m, 0, 1 << 20)  # the next slab; the first one has 384 KiB left
    assert m[CTL.RESERVED_BYTES] == system.held == 2 * SLAB
    assert allocate(m, 0, 384 << 10) == middle + (640 << 10)
    allocate(m, 0, 896 << 10)
    third = allocate(m, 0, 200 << 10)  # of the third slab; 128 KiB of the second are left
    assert allocate(m, 0, 128 << 10) == second + (1 << 20) + (896 << 10)
    assert third
    assert m[CTL.RESERVED_BYTES] == system.held == 3 * SLAB


def near(m, stream, size):
    """A block for a storage of this size, with its class."""
    size_class = class_near(m, stream, size)
    return allocate_class(m, stream, size_class, size), size_class


@pytest.mark.parametrize("unit", [64 << 10, 256 << 10, 1 << 20, 4 << 20])
def test_a_storage_takes_a_larger_block_that_is_free(system, unit):
    m, larger = memory(), 3 * unit // 2
    block = allocate(m, 0, larger)
    release(m, 0, block, class_of(larger))
    held, live = system.held, m[CTL.LIVE_BYTES]
    taken, size_class = near(m, 0, unit)
    assert (taken, size_class) == (block, class_of(larger))
    assert m[CTL.LIVE_BYTES] == live + larger  # in the sizes of blocks
    assert system.held == held
    other, size_class = near(m, 0, unit)  # there is none any more
    assert other != block
    assert size_class == class_of(unit)
    release(m, 0, taken, class_of(larger))
    assert near(m, 0, larger) == (block, class_of(larger))


def test_a_storage_takes_its_own_class_first_and_none_that_is_much_larger(system):
    m = memory()
    large, own = allocate(m, 0, 4 << 20), allocate(m, 0, 3 << 20)
    release(m, 0, large, class_of(4 << 20))
    release(m, 0, own, class_of(3 << 20))
    assert near(m, 0, 3 << 20) == (own, class_of(3 << 20))
    assert class_near(m, 0, 3 << 20) == class_of(4 << 20) == class_of(3 << 20) + NEAR
    assert class_near(m, 0, 5 << 19) == class_of(5 << 19)  # 4 MiB is one class too far
    assert class_near(m, 1, 3 << 20) == class_of(3 << 20)  # another stream has none


def test_a_storage_takes_a_larger_block_that_another_stream_freed(system):
    m = memory()
    block = allocate(m, 0, 4 << 20)
    hand_back(m, 0, block, class_of(4 << 20))
    assert near(m, 0, 3 << 20) == (block, class_of(4 << 20))


def test_small_storages_have_the_least_class(system):
    m = memory()
    release(m, 0, allocate(m, 0, 200), class_of(200))
    assert near(m, 0, 150)[1] == class_of(150) < class_of(200)


def test_blocks_that_another_stream_frees_come_back_to_their_own(system):
    m = memory()
    for size in (100, LARGE + 1):
        blocks = {allocate(m, 0, size) for _ in range(3)}
        held, live = system.held, m[CTL.LIVE_BYTES]
        for block in blocks:
            hand_back(m, 0, block, class_of(size))
        assert m[CTL.LIVE_BYTES] == live - 3 * size_of(class_of(size))
        assert allocate(m, 1, size) not in blocks
        before = system.held
        assert {allocate(m, 0, size) for _ in range(3)} == blocks
        assert system.held == before >= held
    large = min(blocks)
    hand_back(m, 0, large, class_of(size))
    trim(m, 0)  # of what came back, too
    assert large not in system.blocks
    assert m[STR.AT + STR.CACHED] == 0


def test_no_memory_is_no_block(monkeypatch):
    m, system = memory(), installed(monkeypatch, System(most=8 << 20))
    assert allocate(m, 0, 16 << 20) == 0
    assert allocate(m, 0, 1 << 62) == 0  # larger than any class
    assert m[CTL.LIVE_BYTES] == m[CTL.RESERVED_BYTES] == m[CTL.PEAK_BYTES] == 0
    small = [allocate(m, 0, 1 << 20) for _ in range(20)]
    assert small.count(0) == 20 - 2 * (system.most // SLAB)
    assert m[CTL.RESERVED_BYTES] == system.held == system.most


def test_cached_blocks_are_given_up_before_there_is_no_memory(monkeypatch):
    m, system = memory(), installed(monkeypatch, System(most=8 << 20))
    block = allocate(m, 0, 5 << 20)
    release(m, 0, block, class_of(5 << 20))
    assert allocate(m, 0, 6 << 20) != 0
    assert m[CTL.RESERVED_BYTES] == system.held == 6 << 20
    assert m[CTL.N_TRIMMED] == 1


def test_the_cache_is_bounded(system):
    m = memory()
    for size in range(2 << 20, 400 << 20, 8 << 20):  # each of another class, none ever used again
        block = allocate(m, 0, size)
        release(m, 0, block, class_of(size))
        assert m[STR.AT + STR.CACHED] <= KEEP + 2 * size_of(class_of(size))
    assert m[CTL.N_TRIMMED] > 0


def test_trim_gives_back_what_no_tensor_occupies(system):
    m = memory()
    own_block, other = allocate(m, 0, 2 << 20), allocate(m, 1, 2 << 20)
    for block in [allocate(m, 0, 4 << 20) for _ in range(3)]:
        release(m, 0, block, class_of(4 << 20))
    release(m, 1, other, class_of(2 << 20))
    trim(m, 0)
    assert own_block in system.blocks
    assert m[STR.AT + STR.CACHED] == 0
    assert m[CTL.RESERVED_BYTES] == system.held == 4 << 20  # stream 1 keeps its own
    trim(m, 0)
    assert allocate(m, 0, 4 << 20) in system.blocks


# --- the streams of a device ----------------------------------------------------------------------


class Device(System):
    """Streams 0 and 1 are a device's, which has `most` bytes; stream 2 is the CPU's."""

    ALLOCATE, FREE = 1, 2  # stand for addresses

    def __init__(self, monkeypatch, most):
        super().__init__(most)
        self.m = memory()
        self.m[CTL.USED_STREAMS] = STREAMS
        self.count = np.zeros(CTL.WORDS, np.int64)
        self.stream_blocks = [np.zeros(DEV.WORDS, np.int64) for _ in range(2)]
        self.calls = [np.zeros(CALL.WORDS, np.int64) for _ in range(2)]
        for stream, (block, call) in enumerate(zip(self.stream_blocks, self.calls, strict=True)):
            block[DEV.F_ALLOCATE], block[DEV.F_FREE] = self.ALLOCATE, self.FREE
            block[DEV.CALL] = call.ctypes.data
            at = STR.AT + stream * STR.WORDS
            self.m[at + STR.BLOCK], self.m[at + STR.MEMORY] = block.ctypes.data, STR.DEVICE_MEMORY
            self.m[at + STR.COUNTERS] = self.count.ctypes.data
        monkeypatch.setattr(allocator, "call_address", self.call)

    def call(self, function, arguments):
        call = allocator.words_at(arguments, 2)
        if function == self.FREE:
            self.free(int(call[0]))
            return 0
        if self.refuses:
            return self.refuses
        address = self.aligned_alloc(64, int(call[1]))
        allocator.store_word(int(call[0]), address)
        return 0 if address else 2

    refuses = 0

    def take(self, stream, size):
        return allocate(self.m, stream, size), stream, size

    def give(self, *blocks):
        for block, stream, size in blocks:
            release(self.m, stream, block, class_of(size))


def test_a_full_device_takes_back_what_its_other_streams_keep(monkeypatch):
    system = Device(monkeypatch, 9 << 20)
    small = [system.take(1, 1 << 18) for _ in range(12)]  # two slabs
    large = system.take(1, 3 << 20)
    block, _, _ = system.take(0, 1000)
    assert system.take(0, 4 << 20)[0] == 0
    system.give(*small[:8], large)
    assert system.take(0, 3 << 20)[0] != 0  # for the other stream's large block and first slab
    assert system.count[CTL.RESERVED_BYTES] == system.held == 7 << 20
    assert system.take(0, 4 << 20)[0] == 0
    system.give(*small[8:])
    assert system.take(0, 4 << 20)[0] != 0
    assert block in system.blocks
    assert system.count[CTL.RESERVED_BYTES] == system.count[CTL.PEAK_RESERVED] == system.most


def test_slabs_go_back_when_all_that_was_cut_of_them_is_free(monkeypatch, seed):
    system, rng = Device(monkeypatch, 1 << 40), random.Random(seed)
    live = []
    for _ in range(600):
        if rng.random() < 0.6:
            live.append(system.take(rng.randrange(2), rng.randrange(1, LARGE)))
        elif live:
            system.give(live.pop(rng.randrange(len(live))))
        if rng.random() < 0.05:
            trim(system.m, rng.randrange(2))
            ends = [(at, at + size) for at, (size, _) in system.blocks.items()]
            assert all(any(a <= block < b for a, b in ends) for block, _, _ in live)
    assert len({block for block, _, _ in live}) == len(live)
    system.give(*live)
    for stream in range(2):
        trim(system.m, stream)
    assert system.held == system.count[CTL.RESERVED_BYTES] == system.count[CTL.LIVE_BYTES] == 0


def test_a_device_is_used_only_so_far(monkeypatch):
    system = Device(monkeypatch, 1 << 40)
    system.count[CTL.MOST_BYTES] = 10 << 20
    first = system.take(0, 6 << 20)
    assert system.take(1, 6 << 20)[0] == 0
    system.give(first)
    assert system.take(1, 6 << 20)[0] != 0
    assert system.held == 6 << 20


def test_what_the_driver_answers_is_kept(monkeypatch):
    system = Device(monkeypatch, 1 << 20)
    for answer in (700, 0):
        system.refuses = answer
        assert system.take(1, 2 << 20)[0] == 0
        assert system.stream_blocks[1][DEV.REFUSED] == (answer or 2)


# --- against a model ----------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(("allocate", "allocate", "release", "trim")),
        st.integers(0, STREAMS - 1),
        st.one_of(st.integers(0, 5000), st.integers(1, 64).map(lambda k: k << 18)),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(steps, st.sampled_from((20 << 20, 1 << 40)))
def test_accounting_is_that_of_a_model(steps, most):
    with pytest.MonkeyPatch.context() as patch:
        play(patch, steps, most)


def play(patch, steps, most):
    """Live, peak and reserved bytes; no two live blocks overlap; what is live is never freed."""
    m, system = memory(), installed(patch, System(most))
    live: dict[int, tuple[int, int]] = {}  # block -> stream, class
    peak = 0
    for what, stream, size in steps:
        if what == "allocate":
            block = allocator.allocate(m, stream, size)
            if block:
                end = block + min(SLAB, size_of(class_of(size)))  # as much as the System has
                assert not any(
                    block < other + min(SLAB, size_of(c)) and other < end
                    for other, (_, c) in live.items()
                ), "two live blocks overlap"
                live[block] = stream, class_of(size)
        elif what == "trim":
            allocator.trim(m, stream)
            assert m[STR.AT + stream * STR.WORDS + STR.CACHED] == 0
        elif live:
            block = list(live)[size % len(live)]
            allocator.release(m, live[block][0], block, live.pop(block)[1])
        now = sum(size_of(c) for _, c in live.values())
        peak = max(peak, now)
        assert m[CTL.LIVE_BYTES] == now
        assert m[CTL.PEAK_BYTES] == peak
        assert m[CTL.RESERVED_BYTES] == system.held >= now
        large = {b for b, (_, c) in live.items() if c > LARGE_CLASS}
        assert large <= set(system.blocks), "what is live was freed"


def _cut_too_little(m, at, size_class):
    """The slab goes on where the block in front of it has not ended."""
    block = allocator_take(m, at, size_class)
    if 0 < size_class <= LARGE_CLASS and m[at + STR.SLAB] == block + size_of(size_class):
        m[at + STR.SLAB] -= 64
    return block


def _leave_on_the_list(m, at, size_class):
    return m[at + STR.CLASSES + size_class]


def _free_at_once(m, stream, size):
    block = allocator_allocate(m, stream, size)
    if class_of(size) > LARGE_CLASS and block:
        allocator.free(block)
    return block


def _count_nothing(count, now, peak, size):
    pass


def _on_the_next_list(m, at, size_class, block):
    allocator_push(m, at, size_class + (0 < size_class < LARGE_CLASS), block)


allocator_take, allocator_allocate, allocator_push = (
    allocator.take, allocator.allocate, allocator.push,
)  # fmt: skip
PLANTED = {
    "overlapping blocks": ("take", _cut_too_little),
    "a block that stays on its list": ("pop", _leave_on_the_list),
    "memory freed while it lives": ("allocate", _free_at_once),
    "bytes not counted": ("count_more", _count_nothing),
    "a block on the list of a larger class": ("push", _on_the_next_list),
}


@pytest.mark.parametrize("what", PLANTED)
def test_the_model_finds_what_is_planted(what, seed, monkeypatch):
    name, function = PLANTED[what]
    assert hasattr(allocator, name)
    rng = random.Random(seed)
    for _ in range(5):  # a program in some does not come by the fault
        program = []
        for _ in range(400):
            kind = rng.choice(("allocate", "allocate", "release", "release", "trim"))
            size = rng.choice((rng.randrange(5000), rng.randrange(1, 64) << 18))
            program.append((kind, rng.randrange(STREAMS), size))
        play(monkeypatch, program, 1 << 40)
        with monkeypatch.context() as planted:
            planted.setattr(allocator, name, function)
            try:
                play(monkeypatch, program, 1 << 40)
            except (AssertionError, KeyError):
                return
    pytest.fail(f"{what}: not found")
