"""Reductions, norms and losses of all examples at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flowvm.eager.interpreter import Operator
from flowvm.meta.batched_meta import example_of
from flowvm.meta.dtype import float64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.batched.physical import (
    ahead_of,
    batched_axes,
    behind,
    in_front,
    is_shared,
    unfolded_meta,
)
from flowvm.ops.batched.plans import COMPOSED, RULE, STEPS, Plan, moved_attrs
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.pointwise.arithmetic import add, mul
from flowvm.ops.pointwise.compare import ne
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
from flowvm.ops.shapes.join import stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.eager.tensor import Tensor
    from flowvm.meta.batched_meta import Axis
    from flowvm.meta.meta import Attrs


FOLDS = (
    add_up, count_up, every, largest, magnitude_up, multiply_up, smallest, some, square_up,
)  # fmt: skip


@STEPS(_sum_whole)
def _sum(op: Operator, tensors: tuple[Tensor, ...], attrs: object, scalars: object) -> Tensor:
    """The sum of all elements of an example is one over some of the dimensions."""
    (x,) = tensors
    return x.sum(list(range(x.ndim))) if x.ndim else x


def _folded_up(
    op: Operator,
    metas: Sequence[TensorMeta],
    attrs: Attrs,
    outs: object,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    """A reduction goes over whatever dimensions are left; its fallback takes several steps."""
    (x,) = metas
    if x.ndim:
        moved = moved_attrs(op, attrs, axes, x.ndim)
        return Plan((in_front(x, axes),), moved, behind(axes, shared))
    one = ((len(axes),), False, *attrs[2:])
    return Plan((in_front(x, axes, 1),), one, behind(axes, shared))


RULE.say(_folded_up, *(fold.call for fold in FOLDS))


# --- norms ----------------------------------------------------------------------------------------


def _channels(x: Tensor, of: Tensor, kind: str) -> Tensor:
    """Return a weight or bias so that it stands along its dimensions of `x`."""
    return of.reshape(norms._weight_shape(x._meta, kind, of._meta))


@STEPS(norms._weighted, norms._affine)
def _normalized(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[Tensor, Tensor] | None:
    """A norm, times weights of one example each."""
    x, *of = tensors
    axes = batched_axes([t._meta for t in tensors])
    if all(is_shared(t._meta, axes) for t in of):
        return None
    out, stats = norms._plain(x, *attrs)
    out = mul(out, _channels(x, of[0], attrs[0]))
    return (add(out, _channels(x, of[1], attrs[0])) if len(of) > 1 else out), stats


def _rows_apart(
    op: Operator,
    metas: Sequence[TensorMeta],
    attrs: Attrs,
    outs: Sequence[TensorMeta],
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    """All examples' rows, whose statistics are all in dimension 1 of (2, rows)."""
    kind = attrs[0]
    if kind == "batch":
        return None
    stats = {2} if op is BACK else set()
    per_row = {0, 1} if op is BACK else {0}
    whole, physical = [], []
    for k, m in enumerate(metas):
        if k not in stats | per_row:
            whole.append(example_of(m))
            physical.append(whole[-1])
            continue
        at = 1 if k in stats else 0
        whole.append(ahead_of(m, axes, at))
        shape = [*m.shape]
        if k in stats or kind != "layer":
            shape[at] *= math.prod(a.size for a in axes)
        else:
            shape = [*whole[-1].shape]
        physical.append(TensorMeta.of(tuple(shape), m.dtype, whole[-1].device))
    dense = tuple((k, m) for k, m in enumerate(whole) if not m.contiguous)
    front = behind(axes, shared)
    samples = outs[0].shape[0] if outs[0].ndim else 1

    def wrap(place: int, out: TensorMeta) -> TensorMeta:
        if place == 1 and outs[1].ndim != 2:  # statistics that nobody keeps
            return behind((), (*(a._replace(stride=0) for a in axes), *shared))(0, out)
        if place == 1:
            return unfolded_meta(out, axes, 1, outs[1].shape[1], shared)
        return front(0, out) if kind == "layer" else unfolded_meta(out, axes, 0, samples, shared)

    return Plan(tuple(physical), attrs, wrap, dense)


BACK = operator_of(norms._back)
RULE.say(_rows_apart, norms._plain, norms._weighted, norms._affine, norms._back)


@STEPS(norms._fixed)
def _by_statistics(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[Tensor, Tensor]:
    """A norm by given means and variances."""
    x, *of = tensors
    weight, bias, mean, var = (_channels(x, t, "batch") for t in of)
    out = (x - mean) * ((var + attrs[0]).rsqrt() * weight) + bias
    return out, stack([of[2], of[3]]).to(float64)


@STEPS(norms._fixed_back)
def _by_statistics_back(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    g, x, stats, weight = tensors
    mean = _channels(x, stats[0].to(x.dtype), "batch")
    rstd = _channels(x, (stats[1] + attrs[0]).rsqrt().to(x.dtype), "batch")
    rest = [d for d in range(x.ndim) if d != 1]
    return (
        g * (rstd * _channels(x, weight, "batch")),
        (g * ((x - mean) * rstd)).sum(rest),
        g.sum(rest),
    )


@STEPS(norms._full_back)
def _normalized_back(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[Tensor, Tensor, Tensor]:
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


# --- losses of classes ----------------------------------------------------------------------------


@COMPOSED(losses._entropy, losses._weighted_entropy)
def _entropy(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: object
) -> tuple[object, Tensor]:
    x, target, *weight = tensors
    reduction, ignore, smoothing = attrs
    likely = log_softmax(x, 0 if x.ndim == 1 else 1)
    return _class_loss(likely, target, weight, reduction, ignore, smoothing), target


@COMPOSED(losses._nll, losses._weighted_nll)
def _likelihood(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: object
) -> tuple[object, Tensor]:
    x, target, *weight = tensors
    reduction, ignore = attrs
    return _class_loss(x, target, weight, reduction, ignore, 0.0), target


def _class_loss(
    likely: Tensor,
    target: Tensor,
    weight: Sequence[Tensor],
    reduction: str,
    ignore: int,
    smoothing: float,
) -> object:
    axis = 0 if likely.ndim == 1 else 1
    valid = ne(target, ignore)
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
def _entropy_back(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: object
) -> object:
    """The gradient is linear in the first operand, which is one number where a sum was made."""
    g, x, *rest = tensors
    axes = batched_axes([t._meta for t in tensors])
    if not all(is_shared(t._meta, axes) for t in (x, *rest)):
        return None
    once = op.call(filled_of(example_of(g._meta), 1), x, *rest, *attrs)
    return once * (g.unsqueeze(0 if x.ndim == 1 else 1) if g.ndim else g)


@STEPS(losses._nll_backward, losses._weighted_nll_backward)
def _likelihood_back(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> object:
    g, *rest = tensors
    axes = batched_axes([t._meta for t in tensors])
    if not all(is_shared(t._meta, axes) for t in rest):
        return None
    once = op.call(filled_of(example_of(g._meta), 1), *rest, *attrs)
    return once * (g.unsqueeze(0 if once.ndim == 1 else 1) if g.ndim else g)
