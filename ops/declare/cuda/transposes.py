"""Copies whose source is dense along another dimension than the output: by tiles in shared memory.

A block reads a tile of 64 by 64 elements, or 32 by 32 of thin matrices, along the source's dense
dimension and writes it along the output's, so that neighbouring threads touch neighbouring elements
both times.  Rows of a tile are one element further apart than they are long: what is written
together, and what is read together, lies in different banks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numba import cuda, types

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import KernelStep, Operand
from flowvm.launch import View
from flowvm.meta.dtype import dtype_named
from flowvm.ops.declare.cpu.tile_plan import Dim

TILES = 64, 32
LEAST = 16  # rows and columns for which a tile is worth it
THREADS = 256
MOST_BLOCKS = 65535  # of a grid's second and third dimension


class Turn(NamedTuple):
    """A copy as batches of matrices, the output dense along columns, the source along rows."""

    shape: tuple[int, int, int]  # batches, rows, columns
    to: tuple[int, int, int]
    source: tuple[int, int, int]


def turned(dims: Sequence[Dim]) -> Turn | None:
    """Return the Turn of a copy over merged dimensions (output, source); None if there is none."""
    if not 2 <= len(dims) <= 3 or dims[-1][1][0] != 1:
        return None
    dense = [k for k, (_, steps) in enumerate(dims[:-1]) if steps[1] == 1]
    if len(dense) != 1 or min(dims[dense[0]][0], dims[-1][0]) < LEAST:
        return None
    batch: list[Dim] = [dim for k, dim in enumerate(dims[:-1]) if k != dense[0]]
    chosen = [*(batch or [(1, (0, 0))]), dims[dense[0]], dims[-1]]
    shape, steps = zip(*chosen, strict=True)
    if shape[0] > MOST_BLOCKS or shape[1] > MOST_BLOCKS * TILES[-1]:
        return None
    to, source = zip(*steps, strict=True)
    return Turn(shape, to, source)


def transpose_step(
    dtype: str, turn: Turn, to: tuple[int, int], source: tuple[int, int]
) -> KernelStep:
    """The step; `to` and `source` are operands and their offsets in bytes."""
    batches, rows, columns = turn.shape
    kind = dtype_named(dtype)
    params = (
        Operand(to[0], View(kind, turn.shape, turn.to), to[1]),
        Operand(source[0], View(kind, turn.shape, turn.source), source[1]),
    )
    tile = TILES[0] if min(rows, columns) >= TILES[0] else TILES[1]
    grid = (-(-columns // tile), -(-rows // tile), batches)
    return KernelStep(transpose_kernel(dtype, tile), params, grid, (tile, _down(tile), 1))


def _down(tile: int) -> int:
    """Rows of threads in a block."""
    return max(1, threads(THREADS * tile // TILES[0]) // tile)


@functools.cache
def transpose_kernel(dtype: str, size: int) -> Callable[..., None]:
    """kernel(out, x) for elements of `dtype`; blocks lie as tiles of `size` squared do."""
    kind = getattr(types, dtype)
    pitch, apart = size + 1, _down(size)

    def transpose(out: Any, x: Any) -> None:
        tile = cuda.shared.array((size, pitch), kind)
        _, rows, columns = x.shape
        batch, near, far = cuda.blockIdx.z, cuda.threadIdx.x, cuda.threadIdx.y
        row, column = cuda.blockIdx.y * size, cuda.blockIdx.x * size
        if row + size <= rows and column + size <= columns:
            for k in range(0, size, apart):
                tile[far + k, near] = x[batch, row + near, column + far + k]
            cuda.syncthreads()
            for k in range(0, size, apart):
                out[batch, row + far + k, column + near] = tile[near, far + k]
        else:
            if row + near < rows:
                for k in range(far, min(size, columns - column), apart):
                    tile[k, near] = x[batch, row + near, column + k]
            cuda.syncthreads()
            if column + near < columns:
                for k in range(far, min(size, rows - row), apart):
                    out[batch, row + k, column + near] = tile[near, k]

    kernel: Any = transpose
    kernel.recipe = (f"{__name__}:transpose_kernel", (dtype, size))
    return kernel  # type: ignore[no-any-return]
