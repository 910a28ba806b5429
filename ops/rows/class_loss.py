"""Losses against class indices: cross_entropy and nll_loss.

One instruction forward and one backward, the reduction in it; only weights that are learned, and
probabilities for targets, are put together from other ops.  Targets are data: one that names no
class is found by the kernel and raises at the next sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import widened
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.meta.dtype import float32, int64
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.compare import ne
from flowvm.ops.rows.parts.class_loss_ops import (
    _entropy,
    _nll,
    _weighted_entropy,
    _weighted_nll,
    check_reduction,
    legacy_reduction,
)
from flowvm.ops.rows.softmax import log_softmax
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


def _indices(name: str, target: Tensor) -> Tensor:
    dtype = target._meta.dtype
    if dtype is int64:
        return target
    if dtype.is_floating_point or dtype.is_bool:
        raise DTypeError(
            f"{name}: class indices are integers, got {dtype.name}; use target.to(flow.int64)"
        )
    out: Tensor = target.to(int64)
    return out


# public: flow, F
@steady
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-input[n, target[n]]: the negative log likelihood, of log-probabilities.

    input   (N, C), (C) or (N, C, d1, ...)
    target  class indices, (N), () or (N, d1, ...); `ignore_index` counts as nothing
    weight  (C): what a sample of each class counts; the mean is divided by their sum
    size_average, reduce   older than `reduction`, which they override

    >>> F.nll_loss(flow.tensor([[-1.0, -2.0], [-3.0, -4.0]]), flow.tensor([0, 1]))
    tensor(2.5000)
    """
    if hot["autocast"]:
        input, weight = widened(input, weight)
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_reduction("nll_loss", reduction)
    ignore_index = whole("nll_loss", "ignore_index", ignore_index)
    need_tensor("nll_loss", "input", input)
    need_tensor("nll_loss", "target", target)
    if input._meta.dtype.reduced:  # sums and counts are beyond its range or its digits
        wide = None if weight is None else weight.to(float32)
        options: Any = {"ignore_index": ignore_index, "reduction": reduction}
        wide_loss: Tensor = nll_loss(input.to(float32), target, wide, **options)
        narrow: Tensor = wide_loss.to(input._meta.dtype)
        return narrow
    target = _indices("nll_loss", target)
    if weight is None:
        loss: Tensor = _nll(input, target, reduction, ignore_index)[0]
        return loss
    if weight._node is None:
        weighted: Tensor = _weighted_nll(input, target, weight, reduction, ignore_index)[0]
        return weighted
    # rare: weights that are learned
    weights = _weights(input, target, weight, ignore_index)
    loss = _nll(input, target, "none", ignore_index)[0] * weights
    if reduction == "none":
        return loss
    total: Tensor = loss.sum() if reduction == "sum" else loss.sum() / weights.sum()
    return total


def _weights(input: Tensor, target: Tensor, weight: Tensor, ignore_index: int) -> Tensor:
    """The weight of each target, differentiable."""
    wide = _by_class(weight, input._meta.ndim).expand(input._meta.shape)
    out: Tensor = -_nll(wide, target, "none", ignore_index)[0]
    return out


# public: flow, F
@steady
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log(softmax(input)[target]): the cross entropy between logits and classes.

    input   logits, (N, C), (C) or (N, C, d1, ...)
    target  class indices, (N), () or (N, d1, ...), of which `ignore_index` counts as nothing; or,
            of the input's shape and floating point, the probability of each class
    weight  (C): what a sample of each class counts
    label_smoothing   how much of each target is spread evenly over the classes, 0 to 1
    size_average, reduce   older than `reduction`, which they override

    >>> logits = flow.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> F.cross_entropy(logits, flow.tensor([0, 1]))  # log 2
    tensor(0.6931)
    """
    if hot["autocast"]:
        input, target, weight = widened(input, target, weight)
    reduction = legacy_reduction(size_average, reduce, reduction)
    need_tensor("cross_entropy", "input", input)
    need_tensor("cross_entropy", "target", target)
    meta = input._meta
    if meta.dtype.reduced:
        soft = target.to(float32) if target._meta.dtype.is_floating_point else target
        wide = None if weight is None else weight.to(float32)
        options: Any = {"ignore_index": ignore_index, "reduction": reduction}
        options["label_smoothing"] = label_smoothing
        out: Tensor = cross_entropy(input.to(float32), soft, wide, **options).to(meta.dtype)
        return out
    if target._meta.dtype.is_floating_point:
        if ignore_index >= 0:
            raise ArgumentError(
                f"cross_entropy: ignore_index={ignore_index} is for class indices, and the target "
                f"has probabilities"
            )
        return _with_probabilities(input, target, weight, reduction, label_smoothing)
    ignore_index = whole("cross_entropy", "ignore_index", ignore_index)
    target = _indices("cross_entropy", target)
    if weight is None:
        loss: Tensor = _entropy(input, target, reduction, ignore_index, label_smoothing)[0]
        return loss
    if weight._node is None:
        options = reduction, ignore_index, label_smoothing
        weighted: Tensor = _weighted_entropy(input, target, weight, *options)[0]
        return weighted
    likely = log_softmax(input, 0 if meta.ndim == 1 else 1)  # rare: weights that are learned
    chosen: Any = {"ignore_index": ignore_index, "reduction": reduction}
    hard = nll_loss(likely, target, weight, **chosen)
    if label_smoothing == 0:
        return hard
    return hard * (1 - label_smoothing) + label_smoothing * _spread(
        likely, target, weight, **chosen
    )


def _by_class(weight: Tensor, ndim: int) -> Tensor:
    """`weight` shaped to broadcast along the classes of an input with `ndim` dimensions."""
    return weight if ndim == 1 else weight.reshape((-1,) + (1,) * (ndim - 2))


def _spread(
    likely: Tensor, target: Tensor, weight: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    """The loss against all classes alike, divided by their number: label smoothing's part."""
    axis = 0 if likely.ndim == 1 else 1
    each = likely * _by_class(weight, likely.ndim)
    valid = ne(target, ignore_index).to(likely.dtype)
    out: Tensor = -(each.sum(axis) * valid) / likely.shape[axis]
    if reduction != "none":
        out = out.sum()
    if reduction == "mean":
        out = out / _weights(likely, target, weight, ignore_index).sum()
    return out


def _with_probabilities(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, label_smoothing: float
) -> Tensor:
    check_reduction("cross_entropy", reduction)
    if input._meta.shape != target._meta.shape or input._meta.ndim == 0:
        raise ShapeError(
            f"cross_entropy: a floating point target holds probabilities and has the input's shape "
            f"{tuple(input.shape)}, got {tuple(target.shape)}; class indices are integers"
        )
    axis = 0 if input._meta.ndim == 1 else 1
    classes = input._meta.shape[axis]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    terms = log_softmax(input, axis) * target
    if weight is not None:
        terms = terms * _by_class(weight, input._meta.ndim)
    if reduction == "none":
        result: Tensor = -terms.sum(axis)
        return result
    total = -terms.sum()
    out: Tensor = total if reduction == "sum" else total / max(1, input._meta.numel // classes)
    return out


# --- samples
# -----------------------------------------------------------------------------------------


def _log_softmax_reference(x: Array) -> Any:
    axis = 0 if x.ndim == 1 else 1
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def _nll_reference(
    likely: Any,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    axis = 0 if likely.ndim == 1 else 1
    counted = target != ignore_index
    places = np.expand_dims(np.where(counted, target, 0), axis)
    weight = np.ones(likely.shape[axis]) if weight is None else weight
    weights = np.where(counted, weight[np.where(counted, target, 0)], 0.0)
    loss = -np.take_along_axis(likely, places, axis).squeeze(axis) * weights
    if reduction == "none":
        return loss
    return loss.sum() / (weights.sum() if reduction == "mean" else 1)


def _entropy_reference(
    x: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> object:
    likely = _log_softmax_reference(x)
    axis = 0 if x.ndim == 1 else 1
    shape = tuple(-1 if d == axis else 1 for d in range(x.ndim))
    per_class = (np.ones(x.shape[axis]) if weight is None else weight).reshape(shape)
    if np.issubdtype(np.asarray(target).dtype, np.floating):
        target = target * (1 - label_smoothing) + label_smoothing / x.shape[axis]
        loss = -(likely * target * per_class).sum(axis)
        return {"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]
    options = {"ignore_index": ignore_index}
    hard = _nll_reference(likely, target, weight, reduction="none", **options)
    counted = target != ignore_index
    spread = np.where(counted, -(likely * per_class).sum(axis) / x.shape[axis], 0.0)
    loss = hard * (1 - label_smoothing) + label_smoothing * spread
    total = _nll_reference(-np.ones_like(x), target, weight, reduction="sum", **options)
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / total}[reduction]


def _class_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.standard_normal
    target = np.array([2, 0, 3])
    some = np.array([2, 1, 0])
    return [
        Sample((x((3, 4)), target)),
        Sample((x((3, 4)), target), {"reduction": "sum"}),
        Sample((x((3, 4)), some), {"reduction": "none", "ignore_index": 1}),
        Sample((x((3, 4)), some), {"ignore_index": 1}),
        Sample((x((3, 4)), target, rng.uniform(1, 2, 4))),
        Sample((x(4), np.asarray(2))),
        Sample(
            (x((2, 3, 2)), np.array([[0, 2], [1, 1]]), rng.uniform(1, 2, 3)), {"reduction": "none"}
        ),
    ]


samples(
    nll_loss,
    _class_samples,
    _nll_reference,
    errors=(
        (lambda flow: flow.nll_loss(flow.ones(2, 3), flow.ones(3, dtype=flow.int64)), RuntimeError),
        (lambda flow: flow.nll_loss(flow.ones(2, 3), flow.full((2,), 3)).item(), IndexError),
        (lambda flow: flow.nll_loss(flow.ones(2, 3), flow.zeros(2)), RuntimeError),
    ),
)
samples(
    cross_entropy,
    lambda rng: [
        *_class_samples(rng),
        Sample((rng.standard_normal((3, 4)), np.array([2, 0, 3])), {"label_smoothing": 0.2}),
        Sample(
            (rng.standard_normal((3, 4)), np.array([2, 1, 0]), rng.uniform(1, 2, 4)),
            {"label_smoothing": 0.2, "ignore_index": 1},
        ),
        Sample((rng.standard_normal((3, 4)), rng.uniform(0, 1, (3, 4))), {"label_smoothing": 0.1}),
    ],
    _entropy_reference,
    errors=(
        (
            lambda flow: flow.cross_entropy(flow.ones(2, 3), flow.zeros(3, dtype=flow.int64)),
            RuntimeError,
        ),
        (lambda flow: flow.cross_entropy(flow.ones(2, 3), flow.full((2,), 3)).item(), IndexError),
        (
            lambda flow: flow.cross_entropy(
                flow.ones(2, 3), flow.zeros(2, dtype=flow.int64), reduction="all"
            ),
            ValueError,
        ),
    ),
)
