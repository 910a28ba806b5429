"""The planning of matrix products: the role of operands, the packing, the cut into blocks.

`product` makes the Launch of out = act(alpha * A B + beta * addend) for every floating point dtype
that has a tile and for integers; `matmul`, `linear`, `addmm` and `baddbmm` are infer functions
around it, and a graph's epilogues are its arguments.

A batch that is more rows becomes them; what is left are at most three batch dimensions.  The rest
is `ops/products/cpu/gemm_plan.py`.  On other devices only what comes out is inferred here: their
rules plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowvm.errors import DTypeError, ShapeError
from flowvm.launch import Launch, View, bits, elsewhere
from flowvm.meta.device import cpu
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cpu.body_kernel import kind_of
from flowvm.ops.declare.registry import broadcast_shapes
from flowvm.ops.products.cpu.gemm_epilogue import (
    ACTIVATED,
    ADDED,
    FINAL,
    SCALED,
    finisher,
    unchanged,
)
from flowvm.ops.products.cpu.gemm_in_place import is_in_place, walk_in_place
from flowvm.ops.products.cpu.gemm_kernels import (
    DOTS,
    IN_PLACE,
    PANELS,
    STREAM,
    TILES,
    Plan,
    arena_elements,
    product_body,
    walk_blocks,
    walker,
)
from flowvm.ops.products.cpu.gemm_plan import CHUNK, Cut, Product, best_way, cut_up, functions_of
from flowvm.ops.products.cpu.gemm_whole import whole_body
from flowvm.ops.products.cpu.tile import START_COLUMN, START_NONE, START_ROWS, tile_functions
from flowvm.ops.products.cpu.tile_shape import tile_shape

BATCH_DIMS = 3  # that the kernel walks; more are copied together first


class Epilogue(NamedTuple):
    """The step between a product and its storage: act(alpha * product + beta * addend).

    `act` is a scalar function, such as those of `ops/scalar/functions.py`; there is a kernel for
    each. With `joins`, `act` takes the product and the addend as two arguments; alpha and beta are
    1.
    """

    alpha: float = 1.0
    beta: float = 1.0
    act: Callable[..., object] = unchanged
    joins: bool = False


class ProductPlan(NamedTuple):
    """The properties of a product for the rule of another device."""

    ta: bool
    tb: bool
    added: bool
    epilogue: Epilogue


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


def _spread(shape: Sequence[int], stride: Sequence[int], batch: Sequence[int]) -> tuple[int, ...]:
    """The strides of dimensions that are broadcast to `batch`."""
    own = [0 if d == 1 else s for d, s in zip(shape, stride, strict=True)]
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


def _of_sides(left: _Side, right: _Side) -> Product:
    """The product of one item; strides of dimensions of size 1 do not matter, so they are 1."""
    m, n, k = left.rows, right.columns, left.columns
    return Product(
        m, n, k,
        1 if m == 1 else left.row_stride, 1 if k == 1 else left.column_stride,
        1 if k == 1 else right.row_stride, 1 if n == 1 else right.column_stride,
    )  # fmt: skip


class _Addend(NamedTuple):
    """The addend's strides over (batch, rows, columns)."""

    batch: tuple[int, ...]
    row: int
    column: int


def _dims(
    left: _Side, right: _Side, batch: tuple[int, ...], addend: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Batch dimensions: sizes, and strides of A, B and the addend."""
    return _merged(
        batch,
        _spread(left.batch, left.batch_stride, batch),
        _spread(right.batch, right.batch_stride, batch),
        addend,
    )


def product(
    name: str,
    a: TensorMeta,
    b: TensorMeta,
    ta: bool = False,
    tb: bool = False,
    addend: TensorMeta | None = None,
    epilogue: Epilogue = Epilogue(),  # noqa: B008
) -> Launch:
    """The launch of act(alpha * A B + beta * addend), A and B transposed if `ta` and `tb` say so.

    `addend` broadcasts to the product.  ShapeError if the strides are not `walkable`.  Reduced
    floats have no epilogue: with one, the operands are converted first.
    """
    check_pair(name, a, b, ta, tb)
    left, right = _side(a, ta, True), _side(b, tb, False)
    batch = broadcast_shapes(left.batch, right.batch)
    shape = (*batch, *([left.rows] if a.ndim > 1 else []), *([right.columns] if b.ndim > 1 else []))
    out = a.with_shape(shape)
    extra = _addend_strides(name, addend, batch, out, left, right)
    if out.device is not cpu:
        plan = ProductPlan(ta, tb, addend is not None, epilogue)
        _need_walk(name, a, b, _dims(left, right, batch, (0,) * len(batch)))
        return elsewhere((out,), plan)
    folded = _folded(left, right)
    if addend is None and not folded.batch and math.prod(right.batch) == 1:
        left, batch = folded, ()
        right = right._replace(batch=(), batch_stride=())
        extra = _Addend((), 0, 0)
    elif addend is not None and not folded.batch and math.prod(right.batch) == 1:
        rows = _merged((*batch, left.rows), (*extra.batch, extra.row))
        if len(rows) <= 1:
            left, batch = folded, ()
            right = right._replace(batch=(), batch_stride=())
            extra = _Addend((), rows[0][1] if rows else 0, extra.column)
    dims = _dims(left, right, batch, extra.batch)
    _need_walk(name, a, b, dims)
    views = [_flat(m) for m in (out, a, b, *([] if addend is None else [addend]))]
    whole = _of_sides(left, right)
    items = math.prod(batch)
    if not a.dtype.is_floating_point:
        return _whole_launch(out, views, whole, items, dims)
    return _float_launch(out, views, whole, items, dims, extra, addend is not None, epilogue)


def _need_walk(name: str, a: TensorMeta, b: TensorMeta, dims: list[tuple[int, ...]]) -> None:
    if len(dims) > BATCH_DIMS:
        raise ShapeError(f"{name}: strides {a.stride} and {b.stride} are not for this kernel")


def _whole_launch(
    out: TensorMeta, views: list[View], p: Product, items: int, dims: list[tuple[int, ...]]
) -> Launch:
    dots = p.a_step == 1 and p.b_step == 1
    way, cut = DOTS if dots else STREAM, Cut(IN_PLACE, IN_PLACE, 0, p.k, 1, p.n)
    ends = START_NONE, FINAL
    plan = _numbers(p, (way, 0), cut, out, dims, _Addend((), 0, 0), ends, (*(0,) * 9, 1.0, 1.0))
    grain = max(1, CHUNK // 8 // max(1, p.n * p.k))
    return Launch((out,), whole_body, tuple(views), (plan,), items * p.m, grain)


def _float_launch(
    out: TensorMeta,
    views: list[View],
    whole: Product,
    items: int,
    dims: list[tuple[int, ...]],
    extra: _Addend,
    added: bool,
    epilogue: Epilogue,
) -> Launch:
    dtype, size = out.dtype.name, max(out.dtype.itemsize, 4)
    reduced = out.dtype.reduced
    tile = tile_shape(dtype)
    way, swap = best_way(whole, tile, reduced)
    p = whole.other if swap else whole
    if swap:
        dims = [(d, b, a, s) for d, a, b, s in dims]
        extra = extra._replace(row=extra.column, column=extra.row)
    cut = cut_up(p, way, items, tile, size, reduced)
    ends = _epilogue(p, way, extra, added, epilogue)
    functions = tile_functions(dtype, functions_of(way, swap, cut, reduced))
    last = *functions, 0, 0, float(epilogue.alpha), float(epilogue.beta)
    plan = _numbers(p, (way, swap), cut, out, dims, extra, ends, last)
    kind = kind_of(plan)
    walk = walk_in_place if is_in_place(plan) else walk_blocks
    plan = plan._replace(walk=walker(kind, walk))
    if plan.finish != FINAL:
        plan = plan._replace(finisher=finisher(dtype, kind, epilogue.act, epilogue.joins))
    views = [*views[:3], View.optional(views[3] if added else None, views[0].dtype)]
    units = items * plan.down * plan.across
    grain = max(1, CHUNK // max(1, min(cut.tall, p.m) * min(cut.wide, p.n) * p.k))
    arena = max(64, arena_elements(plan) * size)
    if not cut.shared:
        return Launch((out,), product_body, tuple(views), (plan,), units, grain, arena=arena)
    panels, elements = -(-p.n // tile.columns), tile.columns * p.k
    return Launch(
        (out,), product_body, tuple(views), (plan,), items * -(-panels // PANELS),
        max(1, (CHUNK >> 4) // (PANELS * elements)), scratch=items * panels * elements * size,
        arena=arena, phases=((units, grain),),
    )  # fmt: skip


def _epilogue(
    p: Product, way: int, extra: _Addend, added: bool, epilogue: Epilogue
) -> tuple[int, int]:
    """Return the part of the epilogue with which sums begin, and the part left for the end."""
    plain = epilogue.alpha == 1 and epilogue.beta == 1 and not epilogue.joins
    act = FINAL if epilogue.act is unchanged else ACTIVATED
    if not added:
        return START_NONE, act if epilogue.alpha == 1 else SCALED
    if plain and way == TILES and (extra.column == 1 or p.n == 1):
        return START_ROWS, act
    if plain and way == TILES and extra.column == 0:
        return START_COLUMN, act
    return START_NONE, ADDED


def stacked(
    out: TensorMeta, views: list[View], p: Product, stack: Sequence[tuple[int, ...]], added: bool
) -> Launch:
    """The launch of products A B of one dtype of floats, one behind the other in `out`.

    `stack` has (products, and how far A, B and the addend of the next one are) for each of up to
    three dimensions.  `views` are of flat arrays: out, A, B and, if one is `added`, an addend that
    has a number for each row.
    """
    items = math.prod(sizes[0] for sizes in stack)
    dims = _merged([d[0] for d in stack], *([d[i] for d in stack] for i in (1, 2, 3)))
    return _float_launch(out, views, p, items, dims, _Addend((), 1, 0), added, Epilogue())


def _numbers(
    p: Product, way: tuple[int, int], cut: Cut, out: TensorMeta, dims: list[tuple[int, ...]],
    extra: _Addend, ends: tuple[int, int], last: tuple[float, ...],
) -> Plan:  # fmt: skip
    dims = [(1, 0, 0, 0)] * (BATCH_DIMS - len(dims)) + dims
    blocks = -(-p.m // max(cut.tall, 1)), -(-p.n // max(cut.wide, 1))
    strides = [d[i] for i in (1, 2, 3) for d in dims]
    tile, stored = tile_shape(out.dtype.name), out.dtype.itemsize
    numbers = (
        *way, *p, *cut, *blocks, tile.rows, tile.columns, tile.lanes, dims[1][0], dims[2][0],
        *strides, *ends, extra.row, extra.column, int(way[1] or stored < 4), stored,
        max(stored, 4), *last,
    )  # fmt: skip
    return Plan._make(numbers)


def _addend_strides(
    name: str, addend: TensorMeta | None, batch: tuple[int, ...], out: TensorMeta, left: _Side,
    right: _Side,
) -> _Addend:  # fmt: skip
    """The strides of the addend broadcast to the product."""
    if addend is None:
        return _Addend((0,) * len(batch), 0, 0)
    shape = (*batch, left.rows, right.columns)
    if addend.dtype is not out.dtype:
        raise DTypeError(
            f"{name}: input must have the matrices' dtype, {out.dtype.name}, got "
            f"{addend.dtype.name}"
        )
    if broadcast_shapes(addend.shape, out.shape) != tuple(out.shape):
        raise ShapeError(
            f"{name}: input of shape {tuple(addend.shape)} does not broadcast to the product's "
            f"{tuple(out.shape)}"
        )
    steps = _spread(tuple(addend.shape), addend.stride, tuple(out.shape))
    if out.ndim != len(shape):  # only `linear` has an addend and takes a vector
        steps = (*steps[:-1], 0, steps[-1])
    return _Addend(steps[:-2], steps[-2], steps[-1])


def _flat(meta: TensorMeta) -> View:
    flat = (meta.span // meta.dtype.itemsize,)
    return bits(meta, flat) if meta.dtype.reduced else View(meta.dtype, flat)


def check_pair(name: str, a: TensorMeta, b: TensorMeta, ta: bool, tb: bool) -> None:
    """Raise where two tensors have no product."""
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
            f"{tuple(b.shape)}; use * for a product with a number"
        )
    inner_a = a.shape[-2 if ta and a.ndim > 1 else -1]
    inner_b = b.shape[-1 if tb or b.ndim == 1 else -2]
    if inner_a != inner_b:
        raise ShapeError(
            f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit: {inner_a} columns "
            f"meet {inner_b} rows"
        )


def walkable(a: TensorMeta, b: TensorMeta, ta: bool = False, tb: bool = False) -> bool:
    """Return True if the kernel can walk the batch of `a` and `b`.

    It cannot only if the batch has many broadcast dimensions of different orders.
    """
    left, right = _side(a, ta, True), _side(b, tb, False)
    batch = broadcast_shapes(left.batch, right.batch)
    if math.prod(right.batch) == 1 and not _folded(left, right).batch:
        return True
    return len(_dims(left, right, batch, (0,) * len(batch))) <= BATCH_DIMS
