"""The kernels of matrix products beside cuBLAS.

They are copies of matrices that it cannot read, addends, activations, and products of integers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import cuda

from flowvm.meta.arrays import Array
from flowvm.ops.declare.cuda.steps import remade_by, wide

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

TILE, PITCH = 16, 17  # a column of a tile is in as many banks as it has elements


class Spread(NamedTuple):
    """The position of a dense array of five dimensions in another: its inner sizes, the strides."""

    d1: int
    d2: int
    d3: int
    d4: int
    s0: int
    s1: int
    s2: int
    s3: int
    s4: int


def _place(i: int, t: Spread) -> int:
    """Return the position in the other array of the dense array's element i."""
    rest, at = i // t.d4, i % t.d4 * t.s4
    at += rest % t.d3 * t.s3
    rest //= t.d3
    at += rest % t.d2 * t.s2
    rest //= t.d2
    return at + rest % t.d1 * t.s1 + rest // t.d1 * t.s0


def copied(out: Array, x: Array, t: Spread) -> None:
    """The dense `out` from x."""
    i = cuda.grid(1)
    while i < len(out):
        out[i] = x[_place(i, t)]
        i += cuda.gridsize(1)


def scaled(out: Array, x: Array, t: Spread, factor: float) -> None:
    """Copy as `copied` does, times a factor."""
    i = cuda.grid(1)
    while i < len(out):
        out[i] = wide(x[_place(i, t)]) * wide(x.dtype.type(factor))
        i += cuda.gridsize(1)


@functools.cache
def activated_by(act: Callable[[Number], Number]) -> Callable[..., None]:
    def activated(out: Array) -> None:
        i = cuda.grid(1)
        while i < len(out):
            out[i] = act(out[i])
            i += cuda.gridsize(1)

    return activated


@functools.cache
def joined_by(act: Callable[[Number, Number], Number]) -> Callable[..., None]:
    def joined(out: Array, x: Array, t: Spread) -> None:
        i = cuda.grid(1)
        while i < len(out):
            out[i] = act(out[i], x[_place(i, t)])
            i += cuda.gridsize(1)

    return joined


class Whole(NamedTuple):
    """A product of integers: sizes, strides, and two of three batch dimensions."""

    m: int
    n: int
    k: int
    a_row: int
    a_step: int
    b_step: int
    b_column: int
    d1: int
    d2: int
    a0: int
    a1: int
    a2: int
    b0: int
    b1: int
    b2: int
    tiles: int  # of all results


@functools.cache
def whole_product(dtype: str) -> Callable[..., None]:
    """The kernel of a product of integers: tiles of both operands in shared memory.

    Sums wrap around as integers do, so it does not matter in which order they are taken.
    """
    kind = np.dtype(dtype).type

    def whole(out: Array, a: Array, b: Array, t: Whole) -> None:
        m, n, k, d1, d2 = t.m, t.n, t.k, t.d1, t.d2
        left = cuda.shared.array((TILE, TILE), kind)
        right = cuda.shared.array((TILE, PITCH), kind)
        sums = cuda.local.array(8, np.int64)  # TILE * TILE / 32 at most
        thread, count = cuda.threadIdx.x, cuda.blockDim.x
        across = (n + TILE - 1) // TILE
        down = (m + TILE - 1) // TILE
        tile = cuda.blockIdx.x
        while tile < t.tiles:  # the same for all threads of a block
            item, place = tile // (down * across), tile % (down * across)
            i0, j0 = place // across * TILE, place % across * TILE
            i2, i1, first = item % d2, item // d2 % d1, item // (d1 * d2)
            a_at = first * t.a0 + i1 * t.a1 + i2 * t.a2
            b_at = first * t.b0 + i1 * t.b1 + i2 * t.b2
            for q in range(TILE * TILE // count):
                sums[q] = 0
            for k0 in range(0, k, TILE):
                for e in range(thread, TILE * TILE, count):
                    y, x = e // TILE, e % TILE
                    i, kk, j = i0 + y, k0 + x, j0 + x
                    left[y, x] = 0
                    if i < m and kk < k:
                        left[y, x] = a[a_at + i * t.a_row + kk * t.a_step]
                    right[y, x] = 0
                    if k0 + y < k and j < n:
                        right[y, x] = b[b_at + (k0 + y) * t.b_step + j * t.b_column]
                cuda.syncthreads()
                for q in range(TILE * TILE // count):
                    e = thread + q * count
                    y, x = e // TILE, e % TILE
                    total = sums[q]
                    for kk in range(TILE):
                        total += np.int64(left[y, kk]) * np.int64(right[kk, x])
                    sums[q] = total
                cuda.syncthreads()
            for q in range(TILE * TILE // count):
                e = thread + q * count
                i, j = i0 + e // TILE, j0 + e % TILE
                if i < m and j < n:
                    out[(item * m + i) * n + j] = kind(np.int64(sums[q]))
            tile += cuda.gridDim.x

    return remade_by(whole, f"{__name__}:whole_product", dtype)
