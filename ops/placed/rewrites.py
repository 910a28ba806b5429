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
from flowvm.ops.declare.core import cast
from flowvm.ops.declare.recording import filled_of
from flowvm.ops.placed.boxing import boxed, global_of
from flowvm.ops.places.gather import gather
from flowvm.ops.pointwise.compare import ne, where
from flowvm.ops.rows.parts.norm_ops import _update
from flowvm.ops.rows.softmax import log_softmax
from flowvm.ops.shapes.join import cat

Attrs = tuple[Any, ...]


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


def _class_loss(op: Operator, tensors: Any, attrs: Attrs, scalars: Any) -> Any:
    """Logarithms picked by class, so that samples are apart."""
    input, target, *rest = tensors
    reduction, ignore = attrs[0], attrs[1]
    smoothing = attrs[2] if op.name == "cross_entropy" else 0.0
    if input._meta.ndim < 2 or rest or smoothing:
        return None
    likely = log_softmax(input, 1) if op.name == "cross_entropy" else input
    counts = ne(target, ignore)
    safe = where(counts, target, 0)
    picked = gather(likely, 1, safe.unsqueeze(1)).squeeze(1)
    loss = where(counts, -picked, 0.0)
    if reduction == "sum":
        loss = loss.sum()
    elif reduction == "mean":
        loss = loss.sum() / cast(counts, loss._meta.dtype).sum()
    return loss, counts


def _batch_norm(op: Operator, tensors: Any, attrs: Attrs, scalars: Any) -> Any:
    """Compute batch norm by sums over samples; ranks exchange one number for each channel."""
    x, *rest = tensors
    if (op.name == "normalize" and attrs[0] != "batch") or x._meta.has_partial or not x.numel():
        return None
    dims = [0, *range(2, x.ndim)]
    count = x.numel() // x.shape[1]
    whole = (broadcast,) * len(x._meta.sbp)
    mean = (x.sum(dims, keepdim=True) / count).to_global(sbp=whole)
    centered = x - mean
    var = ((centered * centered).sum(dims, keepdim=True) / count).to_global(sbp=whole)
    eps = attrs[0 if op.name == "batch_norm" else 2]
    out = centered * (var + eps).rsqrt()
    shape = mean.shape
    if rest:
        out = out * rest[0].reshape(shape) + rest[1].reshape(shape)
    with recording(False):
        stats = cat([mean.reshape(1, -1), var.reshape(1, -1)])
        if op.name == "batch_norm":
            _update(*rest[2:4], stats[0], stats[1], count, *scalars)
    return out, stats


REWRITES: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "cross_entropy": _class_loss,
    "nll_loss": _class_loss,
    "batch_norm": _batch_norm,
    "normalize": _batch_norm,
}
