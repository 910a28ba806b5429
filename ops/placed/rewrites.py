"""Calls that are made of others where their operands are split, because the op itself keeps notes
or random numbers of the tensor as a whole.

A rewrite gets the call's global tensors, attributes and scalars; what it answers is differentiated
as what it is made of, None lets the call go its ordinary way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.eager.interpreter import Operator
from flowvm.eager.modes import grad_enabled, recording
from flowvm.eager.tensor import Tensor
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import Attrs
from flowvm.meta.placements import Sbps, broadcast, partial_sum, split
from flowvm.ops.declare.composite import Recorded, filled_of, record
from flowvm.ops.declare.core import cast
from flowvm.ops.declare.facts import Fact
from flowvm.ops.placed.boxing import boxed, global_of, hollow, part_of, transport
from flowvm.ops.places.gather import gather
from flowvm.ops.pointwise.compare import eq, ne, where
from flowvm.ops.random.parts import philox
from flowvm.ops.rows import softmax as softmax_ops
from flowvm.ops.rows.parts import class_loss_ops, norm_ops
from flowvm.ops.rows.reduce import amax
from flowvm.ops.rows.softmax import log_softmax
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.ranges import arange

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


Rewrite = Callable[[Operator, tuple[Tensor, ...], Attrs, tuple[object, ...]], object]
REWRITE: Fact[Rewrite] = Fact()


@REWRITE(philox.dropout_words)
def _dropout(op: Operator, tensors: Any, attrs: Attrs, scalars: tuple[object, ...]) -> Tensor:
    """The whole tensor's mask is drawn, and its part kept: no rank needs another one's elements."""
    (x,) = tensors
    with recording(False):
        ones = filled_of(x._meta.whole, 1)
        drawn = global_of(op.call(ones, *attrs, *scalars), x._meta.with_shape(x._meta.shape))
        held = x._meta.dense().sbp if not x._meta.has_partial else drawn._meta.sbp  # type: ignore[attr-defined]
        mask = boxed(drawn, held)
    out: Tensor = x * mask
    return out


# --- softmax of rows that are cut -----------------------------------------------------------------


def _is_cut(x: Any, dim: int) -> bool:
    """Return True if a dimension is cut among ranks, and no summands are pending."""
    return not x._meta.has_partial and any(s.dim == dim for s in x._meta.sbp)


def _shifted(x: Any, dim: int) -> tuple[Any, Any]:
    """`x` less its largest element along a dimension that is cut, and the sum of its exponentials:
    ranks exchange two numbers a row.
    """
    meta = x._meta
    held = tuple(broadcast if s.dim == dim else s for s in meta.sbp)
    shape = (*meta.shape[:dim], 1, *meta.shape[dim + 1 :])
    target = GlobalMeta.make(shape, meta.dtype, meta.device, held)
    top = hollow(target)
    if target.inside:
        with recording(False):
            own = part_of(x)
            empty = own._meta.shape[dim] == 0
            local = filled_of(target.local, -math.inf) if empty else amax(own, dim, True)
            rank, use = meta.device.rank, transport[-1]()
            for axis, s in enumerate(meta.sbp):
                if s.dim == dim:
                    group = use.group(meta.placement.group(axis, rank))
                    local = use.all_reduce(local, "max", group)
            # a row of -inf alone stays one, and its softmax is not a number
            top = global_of(local, target)
    rest = x - top
    return rest, rest.exp().sum(dim, keepdim=True).to_global(sbp=held)


def _at(attrs: Attrs, x: Tensor) -> int:
    return int(attrs[0]) % max(x._meta.ndim, 1)


@REWRITE(softmax_ops._softmax)
def _softmax(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> Tensor | None:
    (x,), dim = tensors, _at(attrs, tensors[0])
    if not _is_cut(x, dim) or not x._meta.dtype.is_floating_point:
        return None
    rest, total = _shifted(cast(x, x._meta.dtype.compute), dim)
    return cast(rest.exp() / total, x._meta.dtype)


@REWRITE(softmax_ops._log_softmax)
def _log_softmax(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> Tensor | None:
    (x,), dim = tensors, _at(attrs, tensors[0])
    if not _is_cut(x, dim) or not x._meta.dtype.is_floating_point:
        return None
    rest, total = _shifted(cast(x, x._meta.dtype.compute), dim)
    return cast(rest - total.log(), x._meta.dtype)


# --- losses of classes ----------------------------------------------------------------------------


def _picked(likely: Any, classes: Any) -> Any:
    """Element `classes` of dimension 1 for each sample.  Where that dimension is cut, each rank
    looks among its own, and the sum is pending.
    """
    if not _is_cut(likely, 1):
        return gather(likely, 1, classes.unsqueeze(1)).squeeze(1)
    meta = likely._meta
    axes = tuple(split(0) if s.dim == 1 else broadcast for s in meta.sbp)
    numbers = arange(meta.shape[1], dtype=classes._meta.dtype, placement=meta.placement, sbp=axes)
    numbers = numbers.reshape((1, -1, *(1,) * (meta.ndim - 2)))
    return where(eq(numbers, classes.unsqueeze(1)), likely, 0.0).sum(1)


def _class_loss(
    tensors: tuple[Tensor, ...], likely: Tensor, reduction: str, ignore: int, smoothing: float = 0.0
) -> tuple[Tensor, Tensor] | None:
    """Logarithms picked by class, so that samples are apart."""
    target = tensors[1]
    counts = ne(target, ignore)
    safe = where(counts, target, 0)
    each = -_picked(likely, safe)
    if smoothing:
        each = each * (1 - smoothing) - likely.sum(1) * (smoothing / likely._meta.shape[1])
    loss = where(counts, each, 0.0)
    if reduction == "sum":
        loss = loss.sum()
    elif reduction == "mean":
        loss = loss.sum() / cast(counts, loss._meta.dtype).sum()
    return loss, counts


def _by_parts(x: Any, target: Any) -> tuple[Sbps, Sbps] | None:
    """Return how input and target are held where each rank has some samples with all their classes;
    None where classes are cut, or a rank would have no sample.
    """
    input_sbp, result_sbp = [], []
    for held, classes in zip(x._meta.sbp, target._meta.sbp, strict=True):
        if held.dim == 1:
            return None
        dim = held.dim if held.is_split else classes.dim + (classes.dim > 0)
        cut = held.is_split or classes.is_split
        input_sbp.append(split(dim) if cut else broadcast)
        result_sbp.append(split(dim - (dim > 0)) if cut else broadcast)
    counts = [n for s, n in zip(input_sbp, x._meta.placement.shape, strict=True) if s.is_split]
    if len(counts) != 1 or x._meta.shape[max(s.dim for s in input_sbp)] < counts[0]:
        return None
    return tuple(input_sbp), tuple(result_sbp)


def _all(meta: GlobalMeta) -> Sbps:
    return (broadcast,) * len(meta.sbp)


def _summed(held: Sbps) -> Sbps:
    return tuple(partial_sum if s.is_split else s for s in held)


def _entropy_of_parts(tensors: Any, attrs: Attrs, held: tuple[Sbps, Sbps]) -> tuple[Tensor, Tensor]:
    """The loss of each rank's samples, by the op itself, and this rank's notes."""
    (reduction, ignored, smoothing), (x, target) = attrs, tensors
    each, saved = reduction == "none", [x, target]
    sbp = held[1] if each else _summed(held[0])
    shape = target._meta.shape if each else ()
    out = GlobalMeta.make(shape, x._meta.dtype, x._meta.device, sbp)
    loss = hollow(out)
    if out.inside:
        with recording(False):
            parts = (part_of(boxed(t, s)) for t, s in zip(tensors, held, strict=True))
            loss, notes = _parts_loss(*parts, "none" if each else "sum", ignored, smoothing)
            saved.append(notes)
            if reduction == "mean":
                classes = part_of(boxed(target, held[1]))
                count = cast(ne(classes, ignored), out.dtype).sum()
                saved.append(part_of(boxed(global_of(count, out), _all(out))))
                loss = loss / saved[-1]
        loss = global_of(loss, out)
    return record(_parts_node, (x, target), loss, (*attrs, held), saved), saved[-1]


def _parts_loss(x: Tensor, *args: object) -> Any:
    return class_loss_ops._entropy(x.contiguous(), *args)


def _entropy_parts_grad(c: Any, g: Tensor) -> tuple[object, None]:
    """The gradient by each rank's samples."""
    if grad_enabled():  # the gradient's own graph is wanted, which consists of global ops
        return _entropy_grad_of_ops(c, g), None
    x, target, *rest = c.saved
    reduction, ignored, smoothing, held = c.attrs
    meta = x._meta.with_sbp(held[0])
    if not meta.inside:
        return hollow(meta), None
    kind = "none" if reduction == "none" else "sum"
    local, classes = (part_of(boxed(t, s)) for t, s in zip((x, target), held, strict=True))
    gradient = part_of(boxed(g, held[1] if kind == "none" else _all(meta)))
    if reduction == "mean":
        gradient = gradient / rest[1]
    dx = class_loss_ops._entropy_backward(
        gradient.contiguous(), local.contiguous(), classes, rest[0], kind, ignored, smoothing
    )
    return global_of(dx, meta), None


def _entropy_grad_of_ops(c: Node, g: Tensor) -> object:
    x, target = c.saved[:2]
    reduction, ignored, smoothing, _ = c.attrs
    counts = ne(target, ignored)
    index = where(counts, target, 0).unsqueeze(1)
    n = x.shape[1]
    shares = zeros_like(x).scatter(1, index, 1.0) * (1.0 - smoothing) + smoothing / n
    valid = cast(counts, x._meta.dtype)
    if reduction == "mean":
        g = g / valid.sum()
    scale = (g * valid).unsqueeze(1)
    return (log_softmax(x, 1).exp() - shares) * scale


_parts_node = Recorded(
    "cross_entropy", _entropy_parts_grad, ("input", "target"), "input, target, notes, total"
)


@REWRITE(class_loss_ops._entropy)
def _entropy(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[Tensor, Tensor] | None:
    reduction, ignore, smoothing = attrs
    x, target = tensors
    if x._meta.ndim < 2:
        return None
    held = _by_parts(x, target)
    if held is not None:
        return _entropy_of_parts(tensors, attrs, held)
    return _class_loss(tensors, log_softmax(x, 1), reduction, ignore, smoothing)


@REWRITE(class_loss_ops._nll)
def _likelihood(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[Tensor, Tensor] | None:
    reduction, ignore = attrs
    if tensors[0]._meta.ndim < 2:
        return None
    return _class_loss(tensors, tensors[0], reduction, ignore)


def _by_samples(
    x: Tensor, weights: Sequence[Tensor], eps: float
) -> tuple[Tensor, Tensor, int] | None:
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
def _tracking(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[Tensor, Tensor] | None:
    x, weight, bias, *running = tensors
    normalized = _by_samples(x, (weight, bias), attrs[0])
    if normalized is None:
        return None
    out, stats, count = normalized
    with recording(False):
        norm_ops._update(*running, stats[0], stats[1], count, *scalars)
    return out, stats


@REWRITE(norm_ops._plain, norm_ops._weighted, norm_ops._affine)
def _batch_norm(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[Tensor, Tensor] | None:
    x, *weights = tensors
    if attrs[0] != "batch":
        return None
    normalized = _by_samples(x, weights, attrs[2])
    return None if normalized is None else normalized[:2]
