"""Copies whose source is dense along another dimension than the output: by tiles in shared memory.

A block reads a tile of 32 by 32 elements along the source's dense dimension and writes it along the
output's, so that neighbouring threads touch neighbouring elements both times.  Rows of a tile are
33 elements apart: a column of it lies in 32 banks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numba import cuda, types

from flowvm.cuda.compiling import simulated, threads
from flowvm.dtype import dtype_named
from flowvm.ops.cuda.launch import Const, KernelStep, Operand
from flowvm.ops.plan import Dim
from flowvm.ops.registry import View

__all__ = ["Turn", "transpose_kernel", "transpose_step", "turned"]

TILE = 32
LEAST = 16  # rows and columns for which a tile is worth it
THREADS = 256


class Turn(NamedTuple):
    """A copy as batches of matrices, the output dense along columns, the source along rows."""

    shape: tuple[int, int, int]  # batches, rows, columns
    to: tuple[int, int, int]
    source: tuple[int, int, int]


def turned(dims: Sequence[Dim]) -> Turn | None:
    """How a copy over merged dimensions (output, source) is one; None if it is none."""
    if not 2 <= len(dims) <= 3 or dims[-1][1][0] != 1:
        return None
    dense = [k for k, (_, steps) in enumerate(dims[:-1]) if steps[1] == 1]
    if len(dense) != 1 or min(dims[dense[0]][0], dims[-1][0]) < LEAST:
        return None
    batch: list[Dim] = [dim for k, dim in enumerate(dims[:-1]) if k != dense[0]]
    chosen = [*(batch or [(1, (0, 0))]), dims[dense[0]], dims[-1]]
    shape, steps = zip(*chosen, strict=True)
    to, source = zip(*steps, strict=True)
    return Turn(shape, to, source)


def transpose_step(
    dtype: str, turn: Turn, to: tuple[int, int], source: tuple[int, int]
) -> KernelStep:
    """The step; `to` and `source` are operands and their offsets in bytes."""
    batches, rows, columns = turn.shape
    down, across = -(-rows // TILE), -(-columns // TILE)
    kind = dtype_named(dtype)
    params = (
        Operand(to[0], View(kind, turn.shape, turn.to), to[1]),
        Operand(source[0], View(kind, turn.shape, turn.source), source[1]),
        Const(down),
        Const(across),
    )
    blocks = min(math.prod((batches, down, across)), 3 if simulated() else 1 << 30)
    block = (TILE, threads(THREADS) // TILE, 1)
    return KernelStep(transpose_kernel(dtype), params, (blocks, 1, 1), block)


@functools.cache
def transpose_kernel(dtype: str) -> Callable[..., None]:
    """kernel(out, x, tiles down, tiles across) for elements of `dtype`."""
    kind = getattr(types, dtype)

    def transpose(out: Any, x: Any, down: int, across: int) -> None:
        tile = cuda.shared.array((32, 33), kind)
        batches, rows, columns = x.shape
        near, far = cuda.threadIdx.x, cuda.threadIdx.y
        for number in range(cuda.blockIdx.x, batches * down * across, cuda.gridDim.x):
            batch, place = number // (down * across), number % (down * across)
            row, column = place // across * 32, place % across * 32
            for k in range(far, 32, cuda.blockDim.y):
                if row + near < rows and column + k < columns:
                    tile[k, near] = x[batch, row + near, column + k]
            cuda.syncthreads()
            for k in range(far, 32, cuda.blockDim.y):
                if row + k < rows and column + near < columns:
                    out[batch, row + k, column + near] = tile[near, k]
            cuda.syncthreads()

    made: Any = transpose
    made.recipe = (f"{__name__}:transpose_kernel", (dtype,))
    return made  # type: ignore[no-any-return]
