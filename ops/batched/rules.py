"""What families of ops say of calls on all examples by themselves: `RULE`, `LEADING`, `STEPS`.

A rule of `RULE` answers a plan.  `STEPS` are functions of a call on tensors with levels, which they
compute by other calls on such tensors: (op, tensors, attrs, scalars) -> results, None where the
forms of `planning` will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flowvm.eager.batched import maps
from flowvm.eager.interpreter import Operator
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.meta.batched_meta import Axis, axes_of, example_of, with_axes
from flowvm.meta.meta import TensorMeta, dense_stride
from flowvm.ops.batched.levels import entered, left
from flowvm.ops.batched.looping import Same
from flowvm.ops.batched.planning import (
    LEADING,
    RULE,
    SAMPLES,
    Plan,
    behind,
    folded_meta,
    in_front,
    is_shared,
    laid,
    moved_attrs,
    told,
    unfolded_meta,
)
from flowvm.ops.declare import core
from flowvm.ops.declare.facts import Fact
from flowvm.ops.declare.recording import filled_of
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.linalg import systems
from flowvm.ops.linalg.parts import factors, spectra
from flowvm.ops.places import gather, search, sort
from flowvm.ops.places.cpu import order
from flowvm.ops.places.cpu.index_kernels import ADD, NONE
from flowvm.ops.places.parts import nth
from flowvm.ops.planes import patches
from flowvm.ops.planes.parts import conv_ops
from flowvm.ops.pointwise.arithmetic import add, mul
from flowvm.ops.pointwise.compare import ne, where
from flowvm.ops.products.matmul import _affine, _matmul, _matmul_nt, _matmul_tn
from flowvm.ops.products.products import _added_product
from flowvm.ops.random import choices
from flowvm.ops.random.parts import philox
from flowvm.ops.rows.parts import class_loss_ops as losses
from flowvm.ops.rows.parts import norm_ops as norms
from flowvm.ops.rows.parts.folds import (
    add_up,
    count_up,
    every,
    largest,
    magnitude_up,
    multiply_up,
    smallest,
    some,
    square_up,
)
from flowvm.ops.rows.reduce import _sum_whole
from flowvm.ops.rows.softmax import log_softmax
from flowvm.ops.shapes import matrices, padding

FOLDS = (
    add_up, count_up, every, largest, magnitude_up, multiply_up, smallest, some, square_up,
)  # fmt: skip
STEPS: Fact[Callable[..., Any]] = Fact()
# the same, with graphs of their own: the call itself has no node then
COMPOSED: Fact[Callable[..., Any]] = Fact()


# --- products -------------------------------------------------------------------------------------


def _product(ta: bool, tb: bool) -> Callable[..., Plan | None]:
    def rule(
        op: Operator, metas: Any, attrs: Any, outs: Any, axes: Any, shared: Any
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


def _rows_of(axes: Any, shared: Any, size: int) -> Callable[..., TensorMeta]:
    return lambda place, out: unfolded_meta(out, axes, 0, size, shared)


def _as_row(first: Any) -> Callable[..., Any]:
    """Make the steps of one matrix times a vector, or a column, of each example: all of these are
    the rows of a product, `first` of the row and the matrix.
    """

    def steps(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
        a, b = tensors
        column = b.ndim == 1 or (b.ndim == 2 and b.shape[0 if op is NT else 1] == 1)
        if a.ndim != 2 or not column:
            return None
        axes = told([a._meta, b._meta])
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
    a: TensorMeta, columns: TensorMeta, attrs: Any, axes: Any, shared: Any, size: int | None
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


def _without(axes: Any, shared: Any, row: bool, column: bool) -> Callable[..., TensorMeta]:
    """Make the wrap of a product without the row or the column that a vector was."""
    whole = behind(axes, shared)

    def wrap(place: int, out: TensorMeta) -> TensorMeta:
        wide = whole(place, out)
        shape, stride = [*wide.shape], [*wide.stride]
        for at, gone in ((-1, column), (-2, row)):
            if gone:
                del shape[at + (column if at == -2 else 0)], stride[at + (column if at == -2 else 0)]
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
def _linear(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """A product and a sum, where the weights are of one example each."""
    x, w, b = tensors
    axes = told([t._meta for t in tensors])
    if is_shared(w._meta, axes) and is_shared(b._meta, axes):
        return None
    rows = x.unsqueeze(0) if x.ndim == 1 else x
    out = _matmul_nt(rows, w) + b
    return out.squeeze(0) if x.ndim == 1 else out


@STEPS(_added_product)
def _added(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    a, b, input = tensors
    beta, alpha = attrs
    product = _matmul(a, b)
    product = product if alpha == 1 else product * alpha
    return product + (input if beta == 1 else input * beta)


# --- sums -----------------------------------------------------------------------------------------


@STEPS(_sum_whole)
def _sum(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """The sum of all elements of an example is one over some of the dimensions."""
    (x,) = tensors
    return x.sum(list(range(x.ndim))) if x.ndim else x


def _folded_up(
    op: Operator, metas: Any, attrs: Any, outs: Any, axes: Any, shared: Any
) -> Plan | None:
    """A reduction goes over whatever dimensions are left; its fallback takes several steps."""
    (x,) = metas
    if x.ndim:
        moved = moved_attrs(op, attrs, axes, x.ndim)
        return Plan((in_front(x, axes),), moved, behind(axes, shared))
    one = ((len(axes),), False, *attrs[2:])
    return Plan((in_front(x, axes, 1),), one, behind(axes, shared))


RULE.say(_folded_up, *(fold.call for fold in FOLDS))


# --- elements at places ---------------------------------------------------------------------------


def _cut(x: Any, shape: Any, dim: int, along: int | None = None) -> Any:
    """Return the part of `x` that an index of `shape` can reach beside dimension `dim`."""
    for d, size in enumerate(shape):
        wanted = size if d != dim else along
        if wanted is not None and x.shape[d] != wanted:
            x = x.narrow(d, 0, wanted)
    return x


@STEPS(gather.gather_elements)
def _gathered(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    x, index = tensors
    part = _cut(x, index.shape, attrs[0])
    return None if part is x else op.call(part, index, *attrs)


@STEPS(gather.scatter_elements, gather.combine_elements)
def _scattered(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    x, index, source = tensors
    part = _cut(x, index.shape, attrs[0])
    if source.ndim == index.ndim:
        values = _cut(source, index.shape, attrs[0], index.shape[attrs[0]] if index.ndim else None)
    else:
        values = source.expand(index.shape)
    if part is x and values is source:
        return None
    op.call(part, index, values, *attrs)
    return ()


def _taken(
    op: Operator, metas: Any, attrs: Any, outs: Any, axes: Any, shared: Any
) -> Plan | None:
    """Slices of one tensor for the indices of all examples."""
    x, index = metas
    if not is_shared(x, axes) or index.ndim != 1:
        return None
    places = folded_meta(index, axes, 0)
    if places is None or not places.contiguous or not x.contiguous:
        return None
    dim, size = attrs[0], index.shape[0]

    def wrap(place: int, out: TensorMeta) -> TensorMeta:
        return unfolded_meta(out, axes, dim, size, shared)

    return Plan((example_of(x), places), attrs, wrap)


RULE.say(_taken, gather.take_slices)


@STEPS(gather.take_slices)
def _taken_apart(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """Slices at the indices of each example, of its own tensor: elements at repeated indices."""
    x, index = tensors
    dim, _, _, zero, _ = attrs
    axes = told([x._meta, index._meta])
    if is_shared(index._meta, axes) or is_shared(x._meta, axes) or index.ndim != 1 or not x.ndim:
        return None
    places = _repeated(index, x.shape, dim)
    out = gather.gather_elements(x, places, dim)
    return out if zero == NONE else out.masked_fill(_along(index, x.ndim, dim) == zero, 0)


def _along(index: Any, ndim: int, dim: int) -> Any:
    return index.reshape((-1,) + (1,) * (ndim - dim - 1))


def _repeated(index: Any, shape: Any, dim: int) -> Any:
    """Return an index of slices as one of elements, from the front."""
    wide = (*shape[:dim], index.shape[0], *shape[dim + 1 :])
    front = where(index < 0, index + shape[dim], index)
    return _along(front, len(shape), dim).expand(wide)


def _put(
    op: Operator, metas: Any, attrs: Any, outs: Any, axes: Any, shared: Any
) -> Plan | None:
    """Slices at places that are the same for all examples."""
    x, index, source = metas
    if not is_shared(index, axes) or not x.ndim:
        return None
    dim = attrs[0]
    shape = (*x.shape[:dim], index.numel, *x.shape[dim + 1 :])
    if source.numel == 1 and tuple(source.shape) != shape:
        source = TensorMeta.of(shape, source.dtype, source.device, (0,) * len(shape))
    whole = in_front(x, axes), example_of(index), in_front(source, axes)
    dense, physical = laid(whole)
    return Plan(physical, (dim + len(axes), *attrs[1:]), behind(axes, shared), dense)


RULE.say(_put, gather.put_slices, gather.combine_slices)


@STEPS(gather.put_slices, gather.combine_slices)
def _put_apart(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """Slices at the indices of each example."""
    x, index, source = tensors
    dim, _, _, *more = attrs
    if is_shared(index._meta, told([t._meta for t in tensors])) or not x.ndim or index.ndim != 1:
        return None
    skip, mode = more or (NONE, 0)
    shape = (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :])
    source = source.expand(shape) if source.numel() == 1 else source.reshape(shape)
    if skip != NONE:
        if mode != ADD:
            return None
        source = source.masked_fill(_along(index, x.ndim, dim) == skip, 0)
    places = _repeated(index, x.shape, dim)
    if mode:
        gather.combine_elements(x, places, source, dim, mode)
    else:
        gather.scatter_elements(x, places, source, dim)
    return ()


@STEPS(search._search)
def _searched(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """Places of all elements in one row of boundaries: as one row as well."""
    boundaries, x = tensors
    if boundaries.ndim != 1 or x.ndim == 1:
        return None
    return op.call(boundaries, x.reshape(-1), *attrs).reshape(x.shape)


# --- norms ----------------------------------------------------------------------------------------


def _channels(x: Any, of: Any, kind: str) -> Any:
    """Return a weight or bias so that it stands along its dimensions of `x`."""
    return of.reshape(norms._weight_shape(x._meta, kind, of._meta))


@STEPS(norms._weighted, norms._affine)
def _normalized(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """A norm, times weights of one example each."""
    x, *of = tensors
    axes = told([t._meta for t in tensors])
    if all(is_shared(t._meta, axes) for t in of):
        return None
    out, stats = norms._plain(x, *attrs)
    for operate, t in zip((mul, add), of, strict=False):
        out = operate(out, _channels(x, t, attrs[0]))
    return out, stats


@STEPS(norms._full_back)
def _normalized_back(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """The gradients of each example's own weights: sums over the other dimensions."""
    g, x, stats, weight = tensors
    kind, size, *_ = attrs
    dx = norms._back(g * _channels(x, weight, kind), x, stats, *attrs)
    out, _ = norms._plain(x, *attrs)
    ahead = list(range(x.ndim - len(size))) if kind == "layer" else [
        d for d in range(x.ndim) if d != 1
    ]  # fmt: skip
    by_weight, by_bias = g * out, g
    if ahead:
        by_weight, by_bias = by_weight.sum(ahead), by_bias.sum(ahead)
    return dx, by_weight.reshape(weight.shape), by_bias.reshape(weight.shape)


# --- memory ---------------------------------------------------------------------------------------


def _arranged(
    op: Operator, metas: Any, attrs: Any, outs: Any, axes: Any, shared: Any
) -> Plan | None:
    (x,) = metas
    dtype, stride = attrs
    ahead = dense_stride([*(a.size for a in axes), x.numel])[:-1]
    return Plan((in_front(x, axes),), (dtype, (*ahead, *stride)), behind(axes, shared))


RULE.say(_arranged, core._arrange, core._arrange_away)


def _padded(nothing: Any) -> Callable[..., Plan | None]:
    """Make the rule of an op whose first attribute says something of each dimension."""

    def rule(
        op: Operator, metas: Any, attrs: Any, outs: Any, axes: Any, shared: Any
    ) -> Plan | None:
        of_each = (*(nothing for _ in axes), *attrs[0])
        return Plan((in_front(metas[0], axes),), (of_each, *attrs[1:]), behind(axes, shared))

    return rule


RULE.say(_padded((0, 0)), padding._constant, padding._border)
RULE.say(_padded(0), padding._roll)

LEADING.say(
    True,
    order.ordered_rows, nth.nth_of_rows, search._search,
    matrices._embed, sort._topk_rows, sort._mode_rows, sort._row_order,
    systems._solve, systems._slogdet, systems._complex_slogdet,
    factors.right_triangular, factors.right_solve, factors.permutation_of, factors.lu_op,
    factors.cholesky_info, factors.qr_op, factors.geqrf_op, factors.orgqr_op, factors.ldl_op,
    factors.ldl_solve_op,
    spectra.svd_op, spectra.svdvals_op, spectra.eigh_op, spectra.eigvalsh_op, spectra.complex_eig,
    spectra.real_eig, spectra.lstsq_op,
)  # fmt: skip

SAMPLES.say(True, patches._unfold, patches._fold)


# --- convolution ----------------------------------------------------------------------------------


def _as_channels(x: Tensor, level: Any, dim: int) -> Any:
    """Return `x` with the level multiplying dimension `dim`."""
    seen: Any = left(x, level, dim)
    shape = seen.shape
    return seen.reshape((*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]))


def _of_channels(x: Any, level: Any, dim: int) -> Tensor:
    shape = x.shape
    wide = x.reshape((*shape[:dim], level.size, shape[dim] // level.size, *shape[dim + 1 :]))
    return entered(wide, level, dim)


def _level_of(*tensors: Any) -> Any:
    axis: Axis = max(a for t in tensors for a in axes_of(t._meta) if a.stride)
    return Same(axis.level, axis.size)


@STEPS(conv_ops._conv, conv_ops._conv_bias, conv_ops._conv_input, conv_ops._conv_input_bias)
def _convolution(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """A convolution with more groups, where the weights are of one example each."""
    x, w, *bias = tensors
    axes = told([t._meta for t in tensors])
    if all(is_shared(t._meta, axes) for t in (w, *bias)):
        return None
    level = _level_of(w, *bias)
    how, shape = attrs
    if op.shaped:
        shape = (shape[0], shape[1] * level.size, *shape[2:])
    out = op.call(
        _as_channels(x, level, 1), _as_channels(w, level, 0),
        *(_as_channels(b, level, 0) for b in bias),
        how._replace(groups=how.groups * level.size), shape,
    )  # fmt: skip
    return _of_channels(out, level, 1)


@STEPS(conv_ops._conv_weight)
def _convolution_weight(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    level = _level_of(*tensors)
    how, shape = attrs
    out = op.call(
        *(_as_channels(t, level, 1) for t in tensors),
        how._replace(groups=how.groups * level.size), (shape[0] * level.size, *shape[1:]),
    )  # fmt: skip
    return _of_channels(out, level, 0)


# --- losses of classes ----------------------------------------------------------------------------


@COMPOSED(losses._entropy, losses._weighted_entropy)
def _entropy(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    x, target, *weight = tensors
    reduction, ignore, smoothing = attrs
    likely: Any = log_softmax(x, 0 if x.ndim == 1 else 1)
    return _class_loss(likely, target, weight, reduction, ignore, smoothing), target


@COMPOSED(losses._nll, losses._weighted_nll)
def _likelihood(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    x, target, *weight = tensors
    return _class_loss(x, target, weight, *attrs, 0.0), target


def _class_loss(
    likely: Any, target: Any, weight: Any, reduction: str, ignore: int, smoothing: float
) -> Any:
    axis = 0 if likely.ndim == 1 else 1
    valid: Any = ne(target, ignore)
    counted = valid.to(likely.dtype)
    place = target * valid
    loss = -likely.gather(axis, place.unsqueeze(axis)).squeeze(axis) * counted
    if weight:
        (w,) = weight
        of_each = w[place] * counted
        loss = loss * w[place]
    else:
        of_each = counted
    if smoothing:
        classes = likely.shape[axis]
        by_class = weight[0].reshape((-1,) + (1,) * (likely.ndim - axis - 1)) if weight else 1.0
        spread = -(likely * by_class).sum(axis) * counted / classes
        loss = loss * (1 - smoothing) + spread * smoothing
    if reduction == "none":
        return loss
    return loss.sum() / of_each.sum() if reduction == "mean" else loss.sum()


@STEPS(losses._entropy_backward, losses._weighted_entropy_backward)
def _entropy_back(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """The gradient is linear in the first operand, which is one number where a sum was made."""
    g, x, *rest = tensors
    axes = told([t._meta for t in tensors])
    if not all(is_shared(t._meta, axes) for t in (x, *rest)):
        return None
    once = op.call(filled_of(example_of(g._meta), 1), x, *rest, *attrs)
    return once * (g.unsqueeze(0 if x.ndim == 1 else 1) if g.ndim else g)


@STEPS(losses._nll_backward, losses._weighted_nll_backward)
def _likelihood_back(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    g, *rest = tensors
    axes = told([t._meta for t in tensors])
    if not all(is_shared(t._meta, axes) for t in rest):
        return None
    once = op.call(filled_of(example_of(g._meta), 1), *rest, *attrs)
    return once * (g.unsqueeze(0 if once.ndim == 1 else 1) if g.ndim else g)


# --- random numbers -------------------------------------------------------------------------------

DROPOUT = operator_of(philox.dropout_words)


def own_numbers() -> tuple[Axis, ...]:
    """Return the levels of the maps around whose examples have random numbers of their own."""
    return tuple(
        Axis(m.level.number, m.level.size, 0) for m in maps.now() if m.randomness == "different"
    )


@COMPOSED(philox.dropout_words)
def _dropped(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    """A product with what dropout makes of ones: of those levels that draw for themselves.

    In backward the numbers are drawn again, and are the same at levels that came later.
    """
    (x,) = tensors
    axes = [a for a in own_numbers() if a.level in {b.level for b in axes_of(x._meta)}]
    meta: Any = with_axes(example_of(x._meta).dense(), axes).dense()
    with recording(False):
        ones = filled_of(in_front(meta, axes_of(meta)), 1)
        factors = op.call(ones, *scalars)
        factors._meta = meta
    return x * factors


LEADING.say(
    True,
    philox.uniform_into, philox.normal_into, philox.exponential_into, philox.integers_into,
    philox.bernoulli_into, philox.chosen_words, choices.poisson_counts,
)  # fmt: skip
