"""Tensors whose elements follow from their place: triangles, diagonals, one-hot rows."""

from __future__ import annotations

from numba import cuda

from flowvm.cuda.launch import STATUS_AT, CudaLaunch, Details, Operand, Param
from flowvm.errors import Status
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import consts, flat_step, operands

Metas = tuple[TensorMeta, ...]
OUT_OF_RANGE = int(Status.INDEX_OUT_OF_RANGE)


def _triangle(out: Array, x: Array, columns: int, rows: int, k: int, lower: int) -> None:
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        edge = i // columns % rows + k  # the diagonal's column in this row
        keep = i % columns <= edge if lower != 0 else i % columns >= edge
        out[i] = x[i] if keep else 0


def triangle(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """`tril` and `triu`."""
    params: tuple[Param, ...] = (*operands(*launch.views), *consts(*launch.consts))
    return CudaLaunch(launch.outputs, (flat_step(_triangle, metas[0].numel, *params),))


def _embed(out: Array, x: Array, n: int, size: int, k: int) -> None:
    """Rows of a size x size matrix; its diagonal has n elements."""
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        row, column = i // size % size, i % size
        on = column - row == k
        matrix = i // (size * size)
        out[i] = x[matrix * n + (row if k >= 0 else column)] if on else 0


def diag_embed(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """Matrices with the elements on a diagonal."""
    params: tuple[Param, ...] = (*operands(*launch.views), *consts(*launch.consts))
    return CudaLaunch(launch.outputs, (flat_step(_embed, launch.outputs[0].numel, *params),))


def _one_hot(out: Array, index: Array, details: Array) -> None:
    n = out.shape[1]
    for i in range(cuda.grid(1), len(index) * n, cuda.gridsize(1)):
        row, k = i // n, i % n
        out[row, k] = 1 if index[row] == k else 0
    for row in range(cuda.grid(1), len(index), cuda.gridsize(1)):
        j = index[row]
        if j < 0 or j >= n:
            details[0], details[1], details[2] = j, n, -1
            cuda.threadfence_system()
            details[STATUS_AT] = OUT_OF_RANGE


def one_hot(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """1 at the index, 0 elsewhere."""
    out, index = (Operand(k, view) for k, view in enumerate(launch.views))
    m, n = out.view.shape
    return CudaLaunch(launch.outputs, (flat_step(_one_hot, m * max(n, 1), out, index, Details()),))
