"""Radix sort of rows of integer keys, each with its place in the row, in scratch memory.

From the lowest digit up: blocks count the digits of their tile, the counts become the places where
each tile's elements of each digit go, and blocks write there.  A tile is put in the order of the
digit in shared memory first, so that neighbours are written together.  Every pass is stable, so the
whole is, and nothing depends on which block was first.

Keys are signed; the highest digit's sign bit counts the other way round.  Digits in which no two
keys differ are passed over: `varying` has the bits in which keys differ from the first one, and a
kernel works out from it which half of the memory the keys are in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from flowvm.cuda.launch import Const, KernelStep, Scratch
from flowvm.meta.arrays import Array
from flowvm.ops.places.cuda.prefix import (
    BLOCK,
    EACH,
    MOST_WARPS,
    before_in_block,
    prefix_room,
    prefix_steps,
    tile_size,
    tile_step,
    tiles_of,
)

Word = int | np.int64  # an integer of 64 bits, Python's or NumPy's
DIGIT = 4
VALUES = 1 << DIGIT
TILE = BLOCK * EACH
COPIES = 32  # of a block's counts: one for each lane, so that lanes do not wait for each other
SEEN, CELLS = VALUES * COPIES, VALUES * BLOCK


class Sorting(NamedTuple):
    """The memory of a sort, in bytes of the instruction's scratch.

    keys, places   [2, rows * n], of which `current_half` says which half is the one to read
    varying        two words: the bits in which keys differ, and the first key
    """

    rows: int
    n: int
    bits: int  # of a key
    signed: bool
    key_kind: str
    place_kind: str
    varying_at: int
    counts_at: int
    sums_at: int
    keys_at: int
    places_at: int
    end: int

    @property
    def keys(self) -> Scratch:
        return Scratch(self.keys_at, self.key_kind, (2, self.rows * self.n))

    @property
    def places(self) -> Scratch:
        return Scratch(self.places_at, self.place_kind, (2, self.rows * self.n))

    @property
    def varying(self) -> Scratch:
        return Scratch(self.varying_at, "int64", (2,))


def sorting(rows: int, n: int, bits: int, signed: bool, at: int = 0) -> Sorting:
    """Return the memory, from `at` on, to sort `rows` rows of n keys of `bits` bits."""
    wide, far = bits > 32, n > 1 << 31
    cells, total = rows * tiles_of(n) * VALUES, rows * n
    varying, counts = at, at + 16
    sums = counts + 8 * (cells + 1)
    keys = sums + prefix_room(cells)
    places = keys + 2 * total * (8 if wide else 4)
    places += -places % 8
    end = places + 2 * total * (8 if far else 4)
    kinds = "int64" if wide else "int32", "int64" if far else "int32"
    return Sorting(
        rows, n, bits, signed, *kinds, varying, counts, sums, keys, places, end + -end % 8
    )


def digit_count(bits: int) -> int:
    """Return the number of digits of a key of `bits` bits."""
    return -(-bits // DIGIT)


# --- kernels --------------------------------------------------------------------------------------


def _active(varying: Array, digit: int) -> bool:
    return bool((varying[0] >> (digit * DIGIT)) & (VALUES - 1) != 0)


def current_half(varying: Array, digits: int) -> int:
    """The half that has the keys in the order of their lowest `digits` digits."""
    half = 0
    for d in range(digits):
        half ^= 1 if _active(varying, d) else 0
    return half


def note_varying(varying: Array, shared_bits: Array, bits: Word) -> None:
    """Add the bits in which this thread's keys differ from the first key to those of all.

    All threads of the block call it; `shared_bits` is a shared int64 array of one.
    """
    if cuda.threadIdx.x == 0:
        shared_bits[0] = 0
    cuda.syncthreads()
    if bits != 0:
        cuda.atomic.or_(shared_bits, 0, bits)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0 and shared_bits[0] != 0:
        cuda.atomic.or_(varying, 0, shared_bits[0])


def _digit_of(key: Word, shift: int, top: int) -> Any:
    return ((np.int64(key) >> shift) & (VALUES - 1)) ^ top


def _count(
    counts: Array, keys: Array, varying: Array, n: int, tiles: int, digit: int, top: int
) -> None:
    digit_counts = cuda.shared.array(SEEN, np.int32)
    row, tile, t = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles, cuda.threadIdx.x
    for k in range(t, SEEN, cuda.blockDim.x):
        digit_counts[k] = 0
    cuda.syncthreads()
    if _active(varying, digit):
        near, size = keys[current_half(varying, digit)], cuda.blockDim.x * EACH
        start, end = row * n + tile * size, row * n + min(n, (tile + 1) * size)
        for k in range(start + t, end, cuda.blockDim.x):
            d = _digit_of(near[k], digit * DIGIT, top)
            cuda.atomic.add(digit_counts, d * COPIES + t % COPIES, 1)
    cuda.syncthreads()
    if t < VALUES:
        total = np.int64(0)
        for k in range(COPIES):
            total += digit_counts[t * COPIES + k]
        counts[(row * VALUES + t) * tiles + tile] = total


def _spread(
    keys: Array,
    places: Array,
    starts: Array,
    varying: Array,
    n: int,
    tiles: int,
    digit: int,
    top: int,
) -> None:
    """`cells` has, for each digit and thread, how many elements of the digit the thread has; then
    where the next of them goes in the tile, whose elements `order` lists digit by digit.
    """
    held = cuda.shared.array(TILE, keys.dtype)
    order = cuda.shared.array(TILE, np.int16)
    cells = cuda.shared.array(CELLS, np.int16)
    room = cuda.shared.array(MOST_WARPS, np.int64)
    if not _active(varying, digit):
        return
    half = current_half(varying, digit)
    near, far, near_places, far_places = keys[half], keys[1 - half], places[half], places[1 - half]
    threads, t, shift = cuda.blockDim.x, cuda.threadIdx.x, digit * DIGIT
    row, tile = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles
    start = tile * threads * EACH
    size, start = min(n - start, threads * EACH), row * n + start
    for k in range(t, size, threads):
        held[k] = near[start + k]
    for d in range(VALUES):
        cells[d * threads + t] = 0
    cuda.syncthreads()
    first = t * EACH
    for k in range(first, min(size, first + EACH)):
        cells[_digit_of(held[k], shift, top) * threads + t] += 1
    cuda.syncthreads()
    total = 0
    for c in range(t * VALUES, (t + 1) * VALUES):
        total += cells[c]
    before, _ = before_in_block(room, total)
    for c in range(t * VALUES, (t + 1) * VALUES):
        count = cells[c]
        cells[c] = before
        before += count
    cuda.syncthreads()
    for k in range(first, min(size, first + EACH)):
        cell = _digit_of(held[k], shift, top) * threads + t
        order[cells[cell]] = k
        cells[cell] += 1
    cuda.syncthreads()
    for s in range(t, size, threads):
        k = order[s]
        d = _digit_of(held[k], shift, top)
        begin = cells[d * threads - 1] if d > 0 else 0  # where the digit below ends
        to = starts[(row * VALUES + d) * tiles + tile] + s - begin
        far[to] = held[k]
        far_places[to] = near_places[start + k]


# --- steps ----------------------------------------------------------------------------------------


def sorting_steps(s: Sorting, *, counts: bool = False) -> tuple[KernelStep, ...]:
    """The passes.  Half 0 has keys and places, and `varying` is complete."""
    tiles = tiles_of(s.n)
    cells = s.rows * tiles * VALUES
    starts, digits = Scratch(s.counts_at, "int64", (cells + 1,)), digit_count(s.bits)
    steps: tuple[KernelStep, ...] = ()
    for digit in range(digits):
        top = VALUES >> 1 if s.signed and digit == digits - 1 else 0
        numbers = Const(s.n), Const(tiles), Const(digit), Const(top)
        blocks = s.rows * tiles
        steps += (
            tile_step(_count, blocks, starts, s.keys, s.varying, *numbers, counts=counts),
            *prefix_steps(s.counts_at, cells, s.sums_at, counts=counts),
            tile_step(
                _spread, blocks, s.keys, s.places, starts, s.varying, *numbers, counts=counts
            ),
        )
    return steps


assert tile_size() <= TILE
