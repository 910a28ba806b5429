"""The rule of every matrix product: cuBLAS for floats, a kernel of our own for integers.

out = act(alpha A B + beta addend).  The addend is written to `out` first, broadcast, and cuBLAS
adds to it; an activation is one more kernel over the result.

Operands are read where they lie, transposed or not.  What cuBLAS cannot read (neither rows nor
columns contiguous) is copied to scratch memory first.  Batch dimensions merge where the strides
allow it; of several that are left, one is cuBLAS's batch and the others are calls, or are copied
together where these would be many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.cuda import options
from flowvm.cuda.launch import CudaLaunch, KernelStep, Step, blocks_for
from flowvm.launch import Launch
from flowvm.meta.meta import Attrs, TensorMeta, dense_stride
from flowvm.ops.declare.cuda.steps import consts, flat_step, most_blocks, threads
from flowvm.ops.declare.registry import broadcast_shapes
from flowvm.ops.products.cpu.gemm import ProductPlan, _dims, _folded, _side
from flowvm.ops.products.cpu.gemm_epilogue import unchanged
from flowvm.ops.products.cuda.gemm import Matrices, Place, Size, multiply, readable, zeros
from flowvm.ops.products.cuda.product_kernels import (
    TILE,
    Spread,
    Whole,
    activated_by,
    copied,
    joined_by,
    scaled,
    whole_product,
)

if TYPE_CHECKING:
    from flowvm.meta.dtype import DType


CALLS = 32  # of cuBLAS in one instruction; where there would be more, operands are copied together
DIMS = 5  # of what is copied: three of a batch, rows and columns


# --- operands -----------------------------------------------------------------------------------


class _Dim(NamedTuple):
    """A batch dimension: its size, and the strides of A and B in it."""

    size: int
    a: int
    b: int


class _Work:
    """The steps of a product so far, with the scratch memory that they need."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.steps: list[Step] = []
        self.scratch = 0

    def room(self, elements: int) -> Place:
        """New scratch memory."""
        place = Place(self.dtype, None, self.scratch)
        self.scratch += -(-elements * self.dtype.itemsize // 256) * 256
        return place

    def copy(self, source: Place, span: int, sizes: Sequence[int], strides: Sequence[int]) -> Place:
        """A dense copy of these sizes."""
        total = math.prod(sizes)
        to = self.room(total)
        self.steps.append(_spread(copied, to, source, span, sizes, strides))
        return to


def _spread(
    kernel: Callable[..., object], to: Place, source: Place, span: int, sizes: Sequence[int],
    strides: Sequence[int], *more: float,
) -> KernelStep:  # fmt: skip
    """A step of one of the kernels that read five dimensions of any strides."""
    total = math.prod(sizes)
    sizes = (*(1,) * (DIMS - len(sizes)), *sizes)
    strides = (*(0,) * (DIMS - len(strides)), *strides)
    arrays = to.array(total), source.array(span)
    return flat_step(kernel, total, *arrays, *consts(Spread(*sizes[1:], *strides), *more))


def _span(meta: TensorMeta) -> int:
    return meta.span // meta.dtype.itemsize


# --- the rule -----------------------------------------------------------------------------------


def product(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """The steps of one of the products that `flowvm.ops.products.cpu.gemm.product` describes."""
    plan: ProductPlan = launch.plan
    (out,) = launch.outputs
    a, b = metas[:2]
    left, right = _side(a, plan.ta, True), _side(b, plan.tb, False)
    batch = broadcast_shapes(left.batch, right.batch)
    if math.prod(right.batch) == 1:
        folded = _folded(left, right)
        if not folded.batch:
            left, right, batch = folded, right._replace(batch=(), batch_stride=()), ()
    dims = [_Dim(d[0], d[1], d[2]) for d in _dims(left, right, batch, (0,) * len(batch))]
    work = _Work(out.dtype)
    if out.numel:
        if out.dtype.is_floating_point:
            _floats(work, plan, out, metas, left, right, dims)
        else:
            _integers(work, out, metas, left, right, dims)
    return CudaLaunch(launch.outputs, tuple(work.steps), work.scratch)


def _floats(
    work: _Work, plan: ProductPlan, out: TensorMeta, metas: tuple[TensorMeta, ...], left: Any,
    right: Any, dims: list[_Dim],
) -> None:  # fmt: skip
    m, n, k, ends = left.rows, right.columns, left.columns, plan.epilogue
    to = Place(out.dtype, 0)
    begins = plan.added and not ends.joins
    if begins:
        work.steps.append(_addend(scaled, out, metas[2], 1.0 if k else float(ends.beta)))
    elif not k:
        work.steps.append(zeros(to, out.numel))
    if k:
        dims, a, b = _sides(work, metas, left, right, dims)
        beta = float(ends.beta) if begins else 0.0
        _calls(work, to, a, b, (m, n, k), dims, float(ends.alpha), beta)
    if ends.joins:
        work.steps.append(_addend(joined_by(ends.act), out, metas[2]))
    elif ends.act is not unchanged:
        work.steps.append(flat_step(activated_by(ends.act), out.numel, to.array(out.numel)))


def _addend(
    kernel: Callable[..., object], out: TensorMeta, addend: TensorMeta, *more: float
) -> KernelStep:
    """A step from the addend, broadcast, to `out`."""
    sizes = [1] * (out.ndim - addend.ndim) + list(addend.shape)
    own = [0] * (out.ndim - addend.ndim) + list(addend.stride)
    strides = [0 if d == 1 else s for d, s in zip(sizes, own, strict=True)]
    merged = _merge(list(out.shape), strides)
    places = Place(out.dtype, 0), Place(addend.dtype, 3)
    return _spread(kernel, *places, _span(addend), *merged, *more)


def _merge(sizes: list[int], strides: list[int]) -> tuple[list[int], list[int]]:
    """Merge dimensions: return sizes and strides of the same elements in the fewest dimensions."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if dims and dims[-1][1] == stride * size:
            dims[-1] = dims[-1][0] * size, stride
        elif size != 1:
            dims.append((size, stride))
    return [d for d, _ in dims], [s for _, s in dims]


def _sides(
    work: _Work, metas: tuple[TensorMeta, ...], left: Any, right: Any, dims: list[_Dim]
) -> tuple[list[_Dim], Matrices, Matrices]:
    """Return the operands as cuBLAS reads them, and the batch dimensions with their strides."""
    total = math.prod(d.size for d in dims)
    many = len(dims) > 1 and total // max(d.size for d in dims) > CALLS
    sides = []
    for index, (side, meta) in enumerate(((left, metas[0]), (right, metas[1]))):
        steps = [d[1 + index] for d in dims]
        place = Place(meta.dtype, 1 + index)
        lies = readable(side.rows, side.columns, side.row_stride, side.column_stride)
        if many or lies is None:
            sizes = [d.size if s or many else 1 for d, s in zip(dims, steps, strict=True)]
            matrix = (side.rows, side.columns)
            strides = (*steps, side.row_stride, side.column_stride)
            place = work.copy(place, _span(meta), (*sizes, *matrix), strides)
            dense = dense_stride((*sizes, *matrix))
            steps = [0 if d == 1 else s for d, s in zip(sizes, dense, strict=False)]
            sides.append((Matrices(place, side.columns, 1), steps))
        else:
            sides.append((Matrices(place, side.row_stride, side.column_stride), steps))
    (a, a_steps), (b, b_steps) = sides
    if many:
        return [_Dim(total, left.rows * left.columns, right.rows * right.columns)], a, b
    stepped = zip(dims, a_steps, b_steps, strict=True)
    return [_Dim(d.size, x, y) for d, x, y in stepped], a, b


def _calls(
    work: _Work, out: Place, a: Matrices, b: Matrices, size: tuple[int, int, int],
    dims: list[_Dim], alpha: float, beta: float,
) -> None:  # fmt: skip
    """A call of cuBLAS for the largest batch dimension, at each place of the others."""
    m, n, k = size
    apart = [math.prod(d.size for d in dims[i + 1 :]) * m * n for i in range(len(dims))]
    inner = max(range(len(dims)), key=lambda i: dims[i].size) if dims else -1
    others = [i for i in range(len(dims)) if i != inner]
    for place in itertools.product(*(range(dims[i].size) for i in others)):
        at = list(zip(others, place, strict=True))
        to = out.moved(sum(apart[i] * p for i, p in at))
        x = a.place.moved(sum(dims[i].a * p for i, p in at))
        y = b.place.moved(sum(dims[i].b * p for i, p in at))
        count, to_step, x_step, y_step = 1, 0, 0, 0
        if dims:
            (count, x_step, y_step), to_step = dims[inner], apart[inner]
        sides = a._replace(place=x, step=x_step), b._replace(place=y, step=y_step)
        to_rows, tf32 = Matrices(to, n, 1, to_step), options.matmul.allow_tf32
        product = Size(m, n, k, count)
        work.steps.append(multiply(to_rows, *sides, product, alpha, beta, tf32=tf32))


def _integers(
    work: _Work, out: TensorMeta, metas: tuple[TensorMeta, ...], left: Any, right: Any,
    dims: list[_Dim],
) -> None:  # fmt: skip
    m, n, k = left.rows, right.columns, left.columns
    padded = [_Dim(1, 0, 0)] * (3 - len(dims)) + dims
    items = math.prod(d.size for d in dims)
    tiles = items * -(-m // TILE) * -(-n // TILE)
    block = threads(TILE * TILE)
    plan = Whole._make((
        m, n, k, left.row_stride, left.column_stride, right.row_stride, right.column_stride,
        padded[1].size, padded[2].size, *(d.a for d in padded), *(d.b for d in padded), tiles,
    ))  # fmt: skip
    arrays = [Place(p.dtype, i).array(_span(p)) for i, p in enumerate((out, *metas[:2]))]
    kernel, grid = whole_product(out.dtype.name), blocks_for(tiles, 1, most_blocks())
    work.steps.append(KernelStep(kernel, (*arrays, *consts(plan)), grid, (block, 1, 1)))
