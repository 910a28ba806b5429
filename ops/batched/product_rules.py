"""Products and convolutions of all examples at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flowvm.eager.interpreter import Operator
from flowvm.eager.tensor import Tensor
from flowvm.meta.batched_meta import Axis, axes_of, example_of, with_axes
from flowvm.meta.meta import TensorMeta
from flowvm.ops.batched.levels import entered, level_as_dim
from flowvm.ops.batched.loop import Same
from flowvm.ops.batched.physical import (
    batched_axes,
    behind,
    folded_meta,
    in_front,
    is_shared,
    unfolded_meta,
)
from flowvm.ops.batched.plans import RULE, STEPS, Plan
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.planes.parts import conv_ops
from flowvm.ops.products.matmul import _affine, _matmul, _matmul_nt, _matmul_tn
from flowvm.ops.products.products import _added_product

if TYPE_CHECKING:
    from flowvm.meta.meta import Attrs
    from flowvm.ops.batched.levels import Level


def _product(ta: bool, tb: bool) -> Callable[..., Plan | None]:
    def rule(
        op: Operator,
        metas: Sequence[TensorMeta],
        attrs: Attrs,
        outs: object,
        axes: Sequence[Axis],
        shared: Sequence[Axis],
    ) -> Plan | None:
        a, b = metas
        alone_a, alone_b = is_shared(a, axes), is_shared(b, axes)
        if alone_b and a.ndim == 1 and b.ndim <= 2:  # rows of one product
            return Plan((in_front(a, axes), example_of(b)), attrs, behind(axes, shared))
        if alone_b and b.ndim == 2 and a.ndim == 2 and not ta:
            rows = folded_meta(a, axes, 0)
            if rows is not None:
                return Plan((rows, example_of(b)), attrs, _rows_of(axes, shared, a.shape[0]))
        if alone_a and a.ndim <= 2 and b.ndim <= 2:  # columns of one product
            at = 0 if tb else 1
            columns = folded_meta(_widened(b, 1), axes, at)
            if columns is not None:
                last = b.shape[at] if b.ndim == 2 else None
                return _columns_plan(example_of(a), columns, attrs, axes, shared, last)
        wide_a = a if alone_a and b.ndim >= 2 else _widened(a, 0)
        wide_b = b if alone_b and a.ndim >= 2 else _widened(b, 1)
        rank = max(wide_a.ndim, wide_b.ndim)
        physical = tuple(
            example_of(m) if alone else in_front(m, axes, rank)
            for m, alone in ((wide_a, alone_a), (wide_b, alone_b))
        )
        row, column = wide_a is not a, wide_b is not b
        return Plan(physical, attrs, _without(axes, shared, row, column))

    return rule


def _rows_of(axes: Sequence[Axis], shared: Sequence[Axis], size: int) -> Callable[..., TensorMeta]:
    return lambda place, out: unfolded_meta(out, axes, 0, size, shared)


def _as_row(first: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor | None]:
    """Make the steps of one matrix times a vector, or a column, of each example: all of these are
    the rows of a product, `first` of the row and the matrix.
    """

    def steps(
        op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
    ) -> Tensor | None:
        a, b = tensors
        column = b.ndim == 1 or (b.ndim == 2 and b.shape[0 if op is NT else 1] == 1)
        if a.ndim != 2 or not column:
            return None
        axes = batched_axes([a._meta, b._meta])
        if not is_shared(a._meta, axes) or is_shared(b._meta, axes):
            return None
        if a.shape[op is TN] * math.prod(axis.size for axis in axes) < SMALL:
            return None
        row = first(b.reshape((1, b.numel())), a)
        return row.reshape((row.shape[1],) if b.ndim == 1 else (row.shape[1], 1))

    return steps


def _widened(meta: TensorMeta, at: int) -> TensorMeta:
    """Return a vector's meta as a matrix of one row (`at` 0) or column (1); a matrix's as it is."""
    if meta.ndim != 1:
        return meta
    (n,), (s,) = meta.shape, meta.stride
    shape, stride = ((1, n), (0, s)) if at == 0 else ((n, 1), (s, 0))
    return TensorMeta.of(shape, meta.dtype, meta.device, stride)


def _columns_plan(
    a: TensorMeta,
    columns: TensorMeta,
    attrs: Attrs,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
    size: int | None,
) -> Plan:
    """Return the plan of a product with all examples' columns, `size` each; None: vectors."""
    at = a.ndim - 1

    def wrap(place: int, out: TensorMeta) -> TensorMeta:
        wide = unfolded_meta(out, axes, at, size or 1, shared)
        if size is not None:
            return wide
        local = TensorMeta.of(wide.shape[:at], out.dtype, out.device, wide.stride[:at])
        return with_axes(local, axes_of(wide))

    return Plan((a, columns), attrs, wrap)


def _without(
    axes: Sequence[Axis], shared: Sequence[Axis], row: bool, column: bool
) -> Callable[..., TensorMeta]:
    """Make the wrap of a product without the row or the column that a vector was."""
    whole = behind(axes, shared)

    def wrap(place: int, out: TensorMeta) -> TensorMeta:
        wide = whole(place, out)
        shape, stride = [*wide.shape], [*wide.stride]
        for at, gone in ((-1, column), (-2, row)):
            if gone:
                del (
                    shape[at + (column if at == -2 else 0)],
                    stride[at + (column if at == -2 else 0)],
                )
        local = TensorMeta.of(tuple(shape), out.dtype, out.device, tuple(stride))
        return with_axes(local, axes_of(wide))

    return wrap


RULE.say(_product(False, False), _matmul)
RULE.say(_product(False, True), _matmul_nt)
RULE.say(_product(True, False), _matmul_tn)
NT, TN = operator_of(_matmul_nt), operator_of(_matmul_tn)
SMALL = 1 << 14  # elements of a product that need not lie in C order
STEPS.say(_as_row(_matmul_nt), _matmul, _matmul_nt)
STEPS.say(_as_row(_matmul), _matmul_tn)


@STEPS(_affine)
def _linear(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> object:
    """A product and a sum, where the weights are of one example each."""
    x, w, b = tensors
    axes = batched_axes([t._meta for t in tensors])
    if is_shared(w._meta, axes) and is_shared(b._meta, axes):
        return None
    rows = x.unsqueeze(0) if x.ndim == 1 else x
    out = _matmul_nt(rows, w) + b
    return out.squeeze(0) if x.ndim == 1 else out


@STEPS(_added_product)
def _added(op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: object) -> object:
    a, b, input = tensors
    beta, alpha = attrs
    product = _matmul(a, b)
    product = product if alpha == 1 else product * alpha
    return product + (input if beta == 1 else input * beta)


# --- convolution ----------------------------------------------------------------------------------


def _as_channels(x: Tensor, level: Level, dim: int) -> Tensor:
    """Return `x` with the level multiplying dimension `dim`."""
    channels: Tensor = level_as_dim(x, level, dim)
    shape = channels.shape
    return channels.reshape((*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]))


def _of_channels(x: Tensor, level: Level, dim: int) -> Tensor:
    shape = x.shape
    wide = x.reshape((*shape[:dim], level.size, shape[dim] // level.size, *shape[dim + 1 :]))
    return entered(wide, level, dim)


def _level_of(*tensors: Tensor) -> Same:
    axis: Axis = max(a for t in tensors for a in axes_of(t._meta) if a.stride)
    return Same(axis.level, axis.size)


@STEPS(conv_ops._conv, conv_ops._conv_bias, conv_ops._conv_input, conv_ops._conv_input_bias)
def _convolution(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> Tensor | None:
    """A convolution with more groups, where the weights are of one example each."""
    x, w, *bias = tensors
    axes = batched_axes([t._meta for t in tensors])
    if all(is_shared(t._meta, axes) for t in (w, *bias)):
        return None
    level = _level_of(w, *bias)
    how, shape = attrs
    if op.signature.shaped:
        shape = (shape[0], shape[1] * level.size, *shape[2:])
    out = op.call(
        _as_channels(x, level, 1), _as_channels(w, level, 0),
        *(_as_channels(b, level, 0) for b in bias),
        how._replace(groups=how.groups * level.size), shape,
    )  # fmt: skip
    return _of_channels(out, level, 1)


@STEPS(conv_ops._conv_weight)
def _convolution_weight(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: object
) -> Tensor:
    level = _level_of(*tensors)
    how, shape = attrs
    out = op.call(
        *(_as_channels(t, level, 1) for t in tensors),
        how._replace(groups=how.groups * level.size), (shape[0] * level.size, *shape[1:]),
    )  # fmt: skip
    return _of_channels(out, level, 0)
