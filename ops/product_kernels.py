"""The kernels of matrix products, and the plan by which they are cut into blocks.

There is one kernel for each dtype.  It sees flat memory; sizes, strides and batch dimensions are
numbers in the layout, so a transposed operand is read where it lies and a new shape compiles
nothing.  Floats go to SciPy's BLAS, integers and very small products to loops.

Invariant: a product is cut into blocks of rows and columns by its shape alone, one BLAS call a
block: results do not depend on threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowvm.errors import DTypeError, ShapeError
from flowvm.meta import TensorMeta
from flowvm.ops.blas import blas, gemm
from flowvm.ops.registry import Launch, View, broadcast_shapes, operator_of
from flowvm.tensor import Tensor

Array = Any
SMALL = 640  # multiplications up to which a loop beats the call of a BLAS routine
BLOCK = 1 << 21  # multiplications from which a product is cut into blocks
ROWS = 256  # rows of a block
BATCH_DIMS = 3  # that the kernel walks; more are copied together first
ROUTINES = {"float32": "sgemm", "float64": "dgemm"}


class _Side(NamedTuple):
    """An operand as a stack of matrices: sizes and strides of the batch, then of rows and
    columns.
    """

    batch: tuple[int, ...]
    batch_stride: tuple[int, ...]
    rows: int
    columns: int
    row_stride: int
    column_stride: int


def _side(meta: TensorMeta, transposed: bool, first: bool) -> _Side:
    """`meta` as matrices; a vector is a row on the left and a column on the right."""
    shape, stride = tuple(meta.shape), meta.stride
    if meta.ndim == 1:
        row = (1, shape[0], 0, stride[0]) if first else (shape[0], 1, stride[0], 0)
        return _Side((), (), *row)
    (rows, columns), (down, across) = shape[-2:], stride[-2:]
    if transposed:
        rows, columns, down, across = columns, rows, across, down
    return _Side(shape[:-2], stride[:-2], rows, columns, down, across)


def _leading(side: _Side) -> tuple[int, int] | None:
    """(transposed?, distance between rows) for BLAS, or None where neither dimension has unit
    stride.
    """
    across, down = side.column_stride, side.row_stride
    if (across == 1 or side.columns == 1) and (down >= side.columns or side.rows == 1):
        return 0, max(down, side.columns, 1)
    if (down == 1 or side.rows == 1) and (across >= side.rows or side.columns == 1):
        return 1, max(across, side.rows, 1)
    return None


def _merged(sizes: Sequence[int], *strides: Sequence[int]) -> list[tuple[int, ...]]:
    """Batch dimensions as (size, stride in each operand), merged where all of them allow it."""
    dims: list[tuple[int, ...]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if dims and all(
            outer == inner * size for outer, inner in zip(dims[-1][1:], steps, strict=True)
        ):
            dims[-1] = (dims[-1][0] * size, *steps)
        else:
            dims.append((size, *steps))
    return dims


def _spread(side: _Side, batch: Sequence[int]) -> tuple[int, ...]:
    """The batch strides of a side when it is broadcast to `batch`."""
    own = [0 if d == 1 else s for d, s in zip(side.batch, side.batch_stride, strict=True)]
    return (0,) * (len(batch) - len(own)) + tuple(own)


def _folded(left: _Side, right: _Side) -> _Side:
    """`left` with its batch as more rows, where `right` has no batch and the strides allow it."""
    if math.prod(right.batch) != 1 or len(left.batch) < len(right.batch):
        return left
    dims = _merged((*left.batch, left.rows), (*left.batch_stride, left.row_stride))
    if len(dims) > 1:
        return left
    rows, stride = dims[0] if dims else (1, 0)
    return _Side((), (), rows, left.columns, stride, left.column_stride)


class _Plan(NamedTuple):
    """What the kernel does: `numbers` are its consts after the address of the routine."""

    numbers: tuple[int, ...]
    units: int
    grain: int


def _plan(left: _Side, right: _Side, batch: tuple[int, ...], real: bool) -> _Plan | None:
    """The plan for left @ right, None if an operand has strides that the kernel does not take."""
    left = _folded(left, right)
    if not left.batch and math.prod(right.batch) == 1:
        batch = ()
        right = right._replace(batch=(), batch_stride=())
    dims = _merged(batch, _spread(left, batch), _spread(right, batch))
    m, n, k = left.rows, right.columns, left.columns
    work = m * n * k
    loops = not real or work <= SMALL
    a, b = (0, 1), (0, 1)
    if not loops:
        of_left, of_right = _leading(left), _leading(right)
        if of_left is None or of_right is None:
            return None
        a, b = of_left, of_right
    if len(dims) > BATCH_DIMS:
        return None
    dims = [(1, 0, 0)] * (BATCH_DIMS - len(dims)) + dims
    tall, wide = m, n
    if work >= BLOCK:
        tall = min(m, ROWS)
        parts = -(-8 // -(-m // tall))
        wide = min(n, max(64, -(-n // parts) + 63 & ~63))
    down, across = -(-m // max(tall, 1)), -(-n // max(wide, 1))
    numbers = (
        int(loops), m, n, k, left.row_stride, left.column_stride, right.row_stride,
        right.column_stride,
        *a, *b, tall, wide, down, across,
        dims[1][0], dims[2][0], *(d[1] for d in dims), *(d[2] for d in dims),
    )  # fmt: skip
    count = math.prod(batch)
    return _Plan(numbers, count * down * across, max(1, (1 << 16) // max(1, work)))


def _multiply(
    out: Array, a: Array, b: Array, beta: int, address: int, loops: int, m: int, n: int, k: int,
    ars: int, acs: int, brs: int, bcs: int, ta: int, lda: int, tb: int, ldb: int,
    tall: int, wide: int, down: int, across: int, d1: int, d2: int,
    a0: int, a1: int, a2: int, b0: int, b1: int, b2: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """Blocks [lo, hi) of out = a @ b (beta 0) or out += a @ b (beta 1)."""
    for unit in range(lo, hi):
        block, item = unit % (down * across), unit // (down * across)
        row, column = block // across * tall, block % across * wide
        rows, columns = min(tall, m - row), min(wide, n - column)
        i2, rest = item % d2, item // d2
        i1, i0 = rest % d1, rest // d1
        a_at = i0 * a0 + i1 * a1 + i2 * a2 + row * ars
        b_at = i0 * b0 + i1 * b1 + i2 * b2 + column * bcs
        at = item * m * n + row * n + column
        if loops or k == 0:
            _loops(out, a, b, beta, at, a_at, b_at, rows, columns, k, n, ars, acs, brs, bcs)
        else:
            one, zero = out.dtype.type(1), out.dtype.type(beta)
            gemm(
                address, ta, tb, rows, columns, k, one, a, a_at, lda, b, b_at, ldb, zero, out, at, n
            )  # fmt: skip


def _loops(
    out: Array, a: Array, b: Array, beta: int, at: int, a_at: int, b_at: int,
    rows: int, columns: int, k: int, ldo: int, ars: int, acs: int, brs: int, bcs: int,
) -> None:  # fmt: skip
    for i in range(rows):
        line = out[at + i * ldo : at + i * ldo + columns]
        if beta == 0:
            for j in range(columns):
                line[j] = 0
        for p in range(k):
            x, start = a[a_at + i * ars + p * acs], b_at + p * brs
            if bcs == 1:
                row = b[start : start + columns]
                for j in range(columns):
                    line[j] += x * row[j]
            else:
                for j in range(columns):
                    line[j] += x * b[start + j * bcs]


def _whole_loops(
    out: Array, a: Array, b: Array, address: int, loops: int, m: int, n: int, k: int,
    ars: int, acs: int, brs: int, bcs: int, ta: int, lda: int, tb: int, ldb: int,
    tall: int, wide: int, down: int, across: int, d1: int, d2: int,
    a0: int, a1: int, a2: int, b0: int, b1: int, b2: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """The same on integers, which BLAS does not know."""
    for unit in range(lo, hi):
        block, item = unit % (down * across), unit // (down * across)
        row, column = block // across * tall, block % across * wide
        i2, rest = item % d2, item // d2
        i1, i0 = rest % d1, rest // d1
        _loops(
            out, a, b, 0, item * m * n + row * n + column,
            i0 * a0 + i1 * a1 + i2 * a2 + row * ars, i0 * b0 + i1 * b1 + i2 * b2 + column * bcs,
            min(tall, m - row), min(wide, n - column), k, n, ars, acs, brs, bcs,
        )  # fmt: skip


def _product_body(
    out: Array, a: Array, b: Array, address: int, loops: int, m: int, n: int, k: int,
    ars: int, acs: int, brs: int, bcs: int, ta: int, lda: int, tb: int, ldb: int,
    tall: int, wide: int, down: int, across: int, d1: int, d2: int,
    a0: int, a1: int, a2: int, b0: int, b1: int, b2: int, lo: int, hi: int,
) -> None:  # fmt: skip
    _multiply(
        out, a, b, 0, address, loops, m, n, k, ars, acs, brs, bcs, ta, lda, tb, ldb,
        tall, wide, down, across, d1, d2, a0, a1, a2, b0, b1, b2, lo, hi,
    )  # fmt: skip


def _linear_body(
    out: Array, a: Array, b: Array, bias: Array, address: int, loops: int, m: int, n: int, k: int,
    ars: int, acs: int, brs: int, bcs: int, ta: int, lda: int, tb: int, ldb: int,
    tall: int, wide: int, down: int, across: int, d1: int, d2: int,
    a0: int, a1: int, a2: int, b0: int, b1: int, b2: int, lo: int, hi: int,
) -> None:  # fmt: skip
    for unit in range(lo, hi):  # there is no batch: the rows are all of them
        row, column = unit // across * tall, unit % across * wide
        for i in range(row, min(row + tall, m)):
            for j in range(column, min(column + wide, n)):
                out[i * n + j] = bias[j]
    _multiply(
        out, a, b, 1, address, loops, m, n, k, ars, acs, brs, bcs, ta, lda, tb, ldb,
        tall, wide, down, across, d1, d2, a0, a1, a2, b0, b1, b2, lo, hi,
    )  # fmt: skip


def _flat(meta: TensorMeta) -> View:
    return View(meta.dtype, (meta.span // meta.dtype.itemsize,))


def _check_pair(name: str, a: TensorMeta, b: TensorMeta, ta: bool, tb: bool) -> None:
    if a.dtype is not b.dtype:
        raise DTypeError(
            f"{name}: both tensors must have one dtype, got {a.dtype.name} and {b.dtype.name}; "
            f"convert one with .to()"
        )
    if a.dtype.is_bool:
        raise DTypeError(f"{name} is not defined for bool tensors; convert them with .to() first")
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(
            f"{name}: both tensors need a dimension, got shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}; "
            f"use * for a product with a number"
        )
    inner_a = a.shape[-2 if ta and a.ndim > 1 else -1]
    inner_b = b.shape[-1 if tb or b.ndim == 1 else -2]
    if inner_a != inner_b:
        raise ShapeError(
            f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit: {inner_a} columns "
            f"meet {inner_b} rows"
        )


def _product(name: str, a: TensorMeta, b: TensorMeta, ta: bool, tb: bool) -> Launch:
    _check_pair(name, a, b, ta, tb)
    left, right = _side(a, ta, True), _side(b, tb, False)
    batch = broadcast_shapes(left.batch, right.batch)
    shape = (*batch, *([left.rows] if a.ndim > 1 else []), *([right.columns] if b.ndim > 1 else []))
    real = a.dtype.is_floating_point
    plan = _plan(left, right, batch, real)
    if plan is None:
        raise ShapeError(f"{name}: strides {a.stride} and {b.stride} are not for this kernel")
    out = a.with_shape(shape)
    address = blas(ROUTINES[a.dtype.name]) if real else 0
    body = _product_body if real else _whole_loops
    views = (_flat(out), _flat(a), _flat(b))
    return Launch((out,), body, views, (address, *plan.numbers), plan.units, plan.grain)


def _with_copies(function: Callable[..., Any], ta: bool, tb: bool) -> None:
    """Make `function` copy operands first which the kernel cannot walk, and refuse mixed dtypes
    before anything else.
    """
    made = operator_of(function)
    upcast = made.fallback

    def fallback(*args: Any) -> Any:
        a, b = args[0], args[1]
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return None
        _check_pair(made.name, a._meta, b._meta, ta, tb)
        if a._meta.dtype.name in ROUTINES:
            ready = _walkable(a, b, ta, tb)
            return None if ready is None else function(*ready)
        return upcast(*args)

    made.fallback = fallback


def _walkable(a: Tensor, b: Tensor, ta: bool, tb: bool) -> tuple[Tensor, Tensor] | None:
    """None if the kernel can walk `a` and `b`, else dense copies of what it cannot."""
    left, right = _side(a._meta, ta, True), _side(b._meta, tb, False)
    batch = broadcast_shapes(left.batch, right.batch)
    if _plan(left, right, batch, True) is not None:
        return None
    dense = a.contiguous(), b.contiguous()
    left, right = _side(dense[0]._meta, ta, True), _side(dense[1]._meta, tb, False)
    if _plan(left, right, batch, True) is not None:
        return dense
    return (
        a.expand((*batch, *a.shape[-2:])).contiguous(),
        b.expand((*batch, *b.shape[-2:])).contiguous(),
    )
