"""Calls that are made of others where their operands are split, because the op itself keeps notes
or random numbers of the tensor as a whole.

A rewrite gets the call's global tensors, attributes and scalars; what it answers is differentiated
as what it is made of, None lets the call go its ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm.eager.interpreter import Operator
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.meta.placements import broadcast
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.declare.core import cast
from flowvm.ops.declare.facts import Fact
from flowvm.ops.placed.boxing import boxed, global_of
from flowvm.ops.places.gather import gather
from flowvm.ops.pointwise.compare import ne, where
from flowvm.ops.random.parts import philox
from flowvm.ops.rows.parts import class_loss_ops, norm_ops
from flowvm.ops.rows.softmax import log_softmax
from flowvm.ops.shapes.join import cat

Attrs = tuple[Any, ...]


Rewrite = Callable[[Operator, Any, Attrs, Any], Any]
REWRITE: Fact[Rewrite] = Fact()


@REWRITE(philox.dropout_words)
def _dropout(op: Operator, tensors: Any, attrs: Attrs, scalars: Any) -> Tensor:
    """The whole tensor's mask is drawn, and its part kept: no rank needs another one's elements."""
    (x,) = tensors
    with recording(False):
        ones = filled_of(x._meta.whole, 1)
        drawn = global_of(op.call(ones, *attrs, *scalars), x._meta.with_shape(x._meta.shape))
        held = x._meta.dense().sbp if not x._meta.has_partial else drawn._meta.sbp  # type: ignore[attr-defined]
        mask = boxed(drawn, held)
    out: Tensor = x * mask
    return out


def _class_loss(
    tensors: Any, likely: Tensor, reduction: str, ignore: int
) -> tuple[Tensor, Tensor] | None:
    """Logarithms picked by class, so that samples are apart."""
    target = tensors[1]
    counts = ne(target, ignore)
    safe = where(counts, target, 0)
    picked = gather(likely, 1, safe.unsqueeze(1)).squeeze(1)
    loss = where(counts, -picked, 0.0)
    if reduction == "sum":
        loss = loss.sum()
    elif reduction == "mean":
        loss = loss.sum() / cast(counts, loss._meta.dtype).sum()
    return loss, counts


@REWRITE(class_loss_ops._entropy)
def _entropy(op: Operator, tensors: Any, attrs: Attrs, scalars: Any) -> Any:
    reduction, ignore, smoothing = attrs
    if tensors[0]._meta.ndim < 2 or smoothing:
        return None
    return _class_loss(tensors, log_softmax(tensors[0], 1), reduction, ignore)


@REWRITE(class_loss_ops._nll)
def _likelihood(op: Operator, tensors: Any, attrs: Attrs, scalars: Any) -> Any:
    reduction, ignore = attrs
    if tensors[0]._meta.ndim < 2:
        return None
    return _class_loss(tensors, tensors[0], reduction, ignore)


def _by_samples(x: Tensor, weights: Any, eps: float) -> tuple[Tensor, Tensor, int] | None:
    """The batch norm of `x`, its statistics, and how many elements each is of, by sums over
    samples, of which ranks exchange one number a channel; None where there is nothing to split.
    """
    if x._meta.has_partial or not x.numel():  # type: ignore[attr-defined]
        return None
    dims = [0, *range(2, x.ndim)]
    count = x.numel() // x.shape[1]
    whole = (broadcast,) * len(x._meta.sbp)  # type: ignore[attr-defined]
    mean = (x.sum(dims, keepdim=True) / count).to_global(sbp=whole)
    centered = x - mean
    var = ((centered * centered).sum(dims, keepdim=True) / count).to_global(sbp=whole)
    out = centered * (var + eps).rsqrt()
    shape = mean.shape
    if weights:
        out = out * weights[0].reshape(shape) + weights[1].reshape(shape)
    with recording(False):
        stats = cat([mean.reshape(1, -1), var.reshape(1, -1)])
    return out, stats, count


@REWRITE(norm_ops._tracking)
def _tracking(op: Operator, tensors: Any, attrs: Attrs, scalars: Any) -> Any:
    x, weight, bias, *running = tensors
    normalized = _by_samples(x, (weight, bias), attrs[0])
    if normalized is None:
        return None
    out, stats, count = normalized
    with recording(False):
        norm_ops._update(*running, stats[0], stats[1], count, *scalars)
    return out, stats


@REWRITE(norm_ops._plain, norm_ops._weighted, norm_ops._affine)
def _batch_norm(op: Operator, tensors: Any, attrs: Attrs, scalars: Any) -> Any:
    x, *weights = tensors
    if attrs[0] != "batch":
        return None
    normalized = _by_samples(x, weights, attrs[2])
    return None if normalized is None else normalized[:2]
