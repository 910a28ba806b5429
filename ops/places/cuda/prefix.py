"""Prefix sums: inside a block, and over an array of counts in scratch memory.

Ops that keep some elements (masks, distinct values, digits of keys) count them *tile* by tile, a
tile being what a block goes through at once; the sums of the counts before a tile say where its
elements go.  So a place depends on the data alone and never on which block was first.

A tile is `blockDim.x * EACH` elements.  Threads own EACH neighbours of it (`own_range`), so one sum
over the block is enough to number all that the tile keeps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import cuda

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import Const, KernelStep, Param, Scratch
from flowvm.meta.arrays import Array

Word = int | np.int64  # an integer of 64 bits, Python's or NumPy's
WARP, EVERY_LANE = 32, 0xFFFFFFFF
BLOCK = 256  # threads of a block
EACH = 8  # elements of a thread
MOST_WARPS = BLOCK // WARP
ALONE = 16  # tiles of counts that one block sums by itself


def tile_size() -> int:
    """Elements of a tile."""
    return threads(BLOCK) * EACH


def tiles_of(n: int) -> int:
    """Return the number of tiles of `n` elements."""
    return -(-n // tile_size())


def tile_step(
    kernel: Callable[..., object], tiles: int, *params: Param, counts: bool = False
) -> KernelStep:
    """A launch with one block for each tile."""
    return KernelStep(kernel, params, (tiles, 1, 1), (threads(BLOCK), 1, 1), counts=counts)


# --- in a block ---------------------------------------------------------------------------------


def own_range(n: int, tile: int) -> tuple[int, int]:
    """The elements of this thread in a tile of an array of `n`."""
    first = (tile * cuda.blockDim.x + cuda.threadIdx.x) * EACH
    return first, min(n, first + EACH)


def before_in_block(room: Array, value: Word) -> tuple[Word, Word]:
    """Return the sum of the values of the threads before this one, and the sum of all.

    All threads of the block call it; `room` is a shared int64 array of MOST_WARPS.
    """
    t = cuda.threadIdx.x
    lane, warp = t % WARP, t // WARP
    total, offset = np.int64(value), 1
    while offset < WARP:
        other = cuda.shfl_up_sync(EVERY_LANE, total, offset)
        if lane >= offset:
            total += other
        offset *= 2
    cuda.syncthreads()  # the room may still be read
    if lane == WARP - 1:
        room[warp] = total
    cuda.syncthreads()
    before, whole = total - np.int64(value), np.int64(0)
    for w in range(cuda.blockDim.x // WARP):
        before += room[w] if w < warp else 0
        whole += room[w]
    return before, whole


# --- over an array ------------------------------------------------------------------------------


def _sum_tiles(sums: Array, counts: Array, n: int) -> None:
    room = cuda.shared.array(MOST_WARPS, np.int64)
    first, end = own_range(n, cuda.blockIdx.x)
    total = np.int64(0)
    for i in range(first, end):
        total += counts[i]
    _, whole = before_in_block(room, total)
    if cuda.threadIdx.x == 0:
        sums[cuda.blockIdx.x] = whole


def _replace(room: Array, counts: Array, n: int, tile: int, start: Word) -> Word:
    """Replace a tile's counts by the sums of all before, from `start` on; return the total."""
    first, end = own_range(n, tile)
    total = np.int64(0)
    for i in range(first, end):
        total += counts[i]
    before, whole = before_in_block(room, total)
    before += start
    for i in range(first, end):
        count = counts[i]
        counts[i] = before
        before += count
    return start + whole


def _scan_tiles(counts: Array, sums: Array, n: int) -> None:
    room = cuda.shared.array(MOST_WARPS, np.int64)
    tile = cuda.blockIdx.x
    total = _replace(room, counts, n, tile, sums[tile])
    if tile == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
        counts[n] = total


def _scan_alone(counts: Array, n: int) -> None:
    room = cuda.shared.array(MOST_WARPS, np.int64)
    tile = cuda.blockDim.x * EACH
    total: Word = np.int64(0)
    for k in range((n + tile - 1) // tile):
        total = _replace(room, counts, n, k, total)
    if cuda.threadIdx.x == 0:
        counts[n] = total


def prefix_room(n: int) -> int:
    """The bytes of scratch memory that `prefix_steps` needs behind its counts."""
    tiles = tiles_of(n)
    return 8 * (tiles + 1) if tiles > ALONE else 0


def prefix_steps(at: int, n: int, spare: int, *, counts: bool = False) -> tuple[KernelStep, ...]:
    """Return the steps that replace n int64 counts in scratch memory at `at` by their prefix sums.

    The sum of all follows the counts. `prefix_room(n)` bytes are free at `spare`.
    """
    whole, tiles = Scratch(at, "int64", (n + 1,)), tiles_of(n)
    if tiles <= ALONE:
        return (tile_step(_scan_alone, 1, whole, Const(n), counts=counts),)
    sums = Scratch(spare, "int64", (tiles + 1,))
    return (
        tile_step(_sum_tiles, tiles, sums, whole, Const(n), counts=counts),
        tile_step(_scan_alone, 1, sums, Const(tiles), counts=counts),
        tile_step(_scan_tiles, tiles, whole, sums, Const(n), counts=counts),
    )
