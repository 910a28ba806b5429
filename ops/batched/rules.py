"""What families of ops say of calls on all examples by themselves: `RULE`, `LEADING`, `STEPS`.

A rule of `RULE` answers a plan.  `STEPS` are functions of a call on tensors with levels, which they
compute by other calls on such tensors: (op, tensors, attrs, scalars) -> results, None where the
forms of `planning` will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm.eager.interpreter import Operator
from flowvm.eager.tensor import Tensor
from flowvm.meta.batched_meta import Axis, axes_of, example_of, with_axes
from flowvm.meta.meta import TensorMeta, dense_stride
from flowvm.ops.batched.levels import entered, left
from flowvm.ops.batched.looping import _Same
from flowvm.ops.batched.planning import (
    LEADING,
    RULE,
    Plan,
    behind,
    folded_meta,
    in_front,
    is_shared,
    steps,
    told,
    unfolded_meta,
)
from flowvm.ops.declare import core
from flowvm.ops.declare.facts import Fact
from flowvm.ops.linalg import systems
from flowvm.ops.linalg.parts import factors, spectra
from flowvm.ops.places import sort
from flowvm.ops.planes.parts import conv_ops
from flowvm.ops.pointwise.compare import ne
from flowvm.ops.products.matmul import _affine, _matmul, _matmul_nt, _matmul_tn
from flowvm.ops.products.products import _added_product
from flowvm.ops.rows.reduce import _sum_whole
from flowvm.ops.rows.parts import class_loss_ops as losses
from flowvm.ops.rows.softmax import log_softmax
from flowvm.ops.shapes import matrices, padding

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
        if alone_a and b.ndim == 1 and a.ndim <= 2:  # columns of one product
            columns = folded_meta(_widened(b, 1), axes, 1)
            if columns is not None:
                return _columns_plan(example_of(a), columns, attrs, axes, shared)
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


def _widened(meta: TensorMeta, at: int) -> TensorMeta:
    """Return a vector's meta as a matrix of one row (`at` 0) or column (1); a matrix's as it is."""
    if meta.ndim != 1:
        return meta
    (n,), (s,) = meta.shape, meta.stride
    shape, stride = ((1, n), (0, s)) if at == 0 else ((n, 1), (s, 0))
    return TensorMeta.of(shape, meta.dtype, meta.device, stride)


def _columns_plan(a: TensorMeta, columns: TensorMeta, attrs: Any, axes: Any, shared: Any) -> Plan:
    at = a.ndim - 1

    def wrap(place: int, out: TensorMeta) -> TensorMeta:
        wide = unfolded_meta(out, axes, at, 1, shared)
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
    matrices._embed, sort._topk_rows, sort._mode_rows, sort._row_order,
    systems._solve, systems._slogdet, systems._complex_slogdet,
    factors.right_triangular, factors.right_solve, factors.permutation_of, factors.lu_op,
    factors.cholesky_info, factors.qr_op, factors.geqrf_op, factors.orgqr_op, factors.ldl_op,
    factors.ldl_solve_op,
    spectra.svd_op, spectra.svdvals_op, spectra.eigh_op, spectra.eigvalsh_op, spectra.complex_eig,
    spectra.real_eig, spectra.lstsq_op,
)  # fmt: skip


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
    return _Same(axis.level, axis.size)


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
    once = op.call(g.new_ones(g.shape), x, *rest, *attrs)
    return once * (g.unsqueeze(0 if x.ndim == 1 else 1) if g.ndim else g)


@STEPS(losses._nll_backward, losses._weighted_nll_backward)
def _likelihood_back(op: Operator, tensors: Any, attrs: Any, scalars: Any) -> Any:
    g, *rest = tensors
    axes = told([t._meta for t in tensors])
    if not all(is_shared(t._meta, axes) for t in rest):
        return None
    once = op.call(g.new_ones(g.shape), *rest, *attrs)
    return once * (g.unsqueeze(0 if once.ndim == 1 else 1) if g.ndim else g)
