"""Losses of nn.functional that are a line or two over ops.

`size_average` and `reduce` are older than `reduction`, which they override.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.meta.dtype import int64
from flowvm.nn.composites.distances import pairwise_distance
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.rows.parts.class_loss_ops import legacy_reduction


def _reduced(
    loss: Tensor, size_average: bool | None, reduce: bool | None, reduction: str
) -> Tensor:
    """A loss per element as its "mean", its "sum" or, with "none", itself."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if reduction == "mean":
        return ops.mean(loss)
    if reduction == "sum":
        return ops.sum(loss)
    if reduction != "none":
        raise ArgumentError(f'reduction must be "none", "mean" or "sum", got {reduction!r}')
    return loss


# public: flow (late, unlisted), F
@in_float32
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos(x1, x2) where target is 1, max(0, cos(x1, x2) - margin) where it is -1.

    >>> x, y = flow.tensor([[1.0, 0.0]]), flow.tensor([[3.0, 4.0]])
    >>> F.cosine_embedding_loss(x, y, flow.tensor([1]))
    tensor(0.4000)
    >>> F.cosine_embedding_loss(x, y, flow.tensor([-1]))
    tensor(0.6000)
    """
    x1, x2 = (x if x.dtype.inexact else x.float() for x in (input1, input2))
    cosine = ops.cosine_similarity(x1, x2, -1)
    loss = ops.where(target > 0, 1 - cosine, (cosine - margin).clamp(min=0.0))
    return _reduced(loss, size_average, reduce, reduction)


# public: F
@in_float32
def sparse_softmax_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """OneFlow's: -log softmax(logits) at the label, for logits (..., classes) and labels of classes
    (...), integers; the loss has the shape of the labels.

    ShapeError where that of the labels is not that of the logits without the last dimension,
    DTypeError where they are no integers.

    >>> F.sparse_softmax_cross_entropy(flow.tensor([0]), flow.zeros(1, 2))  # log 2
    tensor([0.6931])
    """
    if tuple(labels.shape) != tuple(logits.shape[:-1]):
        raise ShapeError(
            f"sparse_softmax_cross_entropy: logits {tuple(logits.shape)} want labels "
            f"{tuple(logits.shape[:-1])}, got {tuple(labels.shape)}"
        )
    if labels.dtype.inexact or labels.dtype.is_bool:
        raise DTypeError(
            f"sparse_softmax_cross_entropy: labels are integers, got {labels.dtype.name}"
        )
    rows = logits.reshape((-1, logits.shape[-1]))
    loss = ops.cross_entropy(rows, labels.reshape(-1).to(int64), reduction="none")
    return ops.reshape(loss, labels.shape)


# public: flow (late, unlisted), F
@in_float32
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, -target * (x1 - x2) + margin).

    >>> x1, x2 = flow.tensor([1.0, 1.0]), flow.tensor([0.0, 3.0])
    >>> F.margin_ranking_loss(x1, x2, flow.tensor([1, 1]), reduction="none")
    tensor([0., 2.])
    """
    if not input1.ndim == input2.ndim == target.ndim:
        raise ShapeError(
            f"margin_ranking_loss: input1, input2 and target have as many dimensions each, got "
            f"shapes {tuple(input1.shape)}, {tuple(input2.shape)} and {tuple(target.shape)}"
        )
    return _reduced(
        (-target * (input1 - input2) + margin).clamp(min=0.0), size_average, reduce, reduction
    )


# public: flow (late, unlisted), F
@in_float32
def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """x where target is 1, max(0, margin - x) where it is -1, their sum where it is neither.

    >>> F.hinge_embedding_loss(flow.tensor([0.5, 0.25]), flow.tensor([1, -1]), reduction="none")
    tensor([0.5000, 0.7500])
    """
    own = ops.where(ops.ne(target, -1), input, 0.0)
    other = ops.where(ops.ne(target, 1), (margin - input).clamp(min=0.0), 0.0)
    return _reduced(own + other, size_average, reduce, reduction)


# public: F
@in_float32
def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-target * x)).

    >>> F.soft_margin_loss(flow.zeros(2), flow.tensor([1.0, -1.0]))  # log 2
    tensor(0.6931)
    """
    return _reduced(ops.softplus(-target * input), size_average, reduce, reduction)


# public: flow (late, unlisted), F
@in_float32
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin).

    >>> a, near, far = flow.zeros(1, 2), flow.tensor([[0.0, 2.0]]), flow.tensor([[2.5, 0.0]])
    >>> F.triplet_margin_loss(a, near, far)  # 2 - 2.5 + 1
    tensor(0.5000)
    """
    if margin <= 0:
        raise ArgumentError(f"triplet_margin_loss: margin must be positive, got {margin}")
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = ops.minimum(far, pairwise_distance(positive, negative, p, eps))
    return _reduced((near - far + margin).clamp(min=0.0), size_average, reduce, reduction)


# public: flow (late, unlisted), F
@in_float32
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """exp(x) - target * x, or x - target * log(x + eps); full adds Stirling's term.

    >>> F.poisson_nll_loss(flow.tensor([0.0]), flow.tensor([3.0]))  # exp(0) - 3 * 0
    tensor(1.)
    """
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        safe = target.clamp(min=1.0)
        stirling = safe * safe.log() - safe + 0.5 * (2 * math.pi * safe).log()
        loss = loss + ops.where(target > 1, stirling, 0.0)
    return _reduced(loss, size_average, reduce, reduction)


# public: F
@in_float32
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """0.5 * (log(var) + (x - target)^2 / var), var at least eps; full adds 0.5 * log(2 pi).

    >>> F.gaussian_nll_loss(flow.tensor([1.0]), flow.tensor([3.0]), flow.tensor([1.0]))  # 4 / 2
    tensor(2.)
    """
    variance = ops.full_like(input.detach(), var) if isinstance(var, (int, float)) else var
    if variance.ndim == input.ndim - 1:
        variance = variance.unsqueeze(-1)
    # As in PyTorch, the clamp itself passes the gradient on unchanged.
    raised = ops.where(ops.lt(variance, eps), eps - variance, 0.0)
    variance = variance + raised.detach()
    loss = 0.5 * (variance.log() + (input - target) ** 2 / variance)
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, None, None, reduction)


# public: F
@in_float32
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """weight[y] * sum over the classes but y of max(0, margin - x_y + x_j) ** p, divided by their
    number.

    input   scores, (N, C) or (C); target: class indices, (N) or (); p: 1 or 2

    >>> F.multi_margin_loss(flow.tensor([[1.0, 0.5, 0.0]]), flow.tensor([0]))  # (0.5 + 0) / 3
    tensor(0.1667)
    """
    input = input.reshape(1) if input.ndim == 0 else input
    if p not in (1, 2):
        raise ArgumentError(f"multi_margin_loss: p is 1 or 2, got {p}")
    if input.ndim not in (1, 2) or input.shape[-1] == 0:
        raise ShapeError(
            f"multi_margin_loss: input is (N, C) or (C), got shape {tuple(input.shape)}"
        )
    if target.numel() != (input.shape[0] if input.ndim == 2 else 1):
        raise ShapeError(
            f"multi_margin_loss: target of shape {tuple(target.shape)} does not fit input of shape "
            f"{tuple(input.shape)}"
        )
    classes = target.reshape((*input.shape[:-1], 1))
    own = ops.gather(input, -1, classes)
    over = ops.relu(margin - own + input)
    over = over * over if p == 2 else over
    if weight is not None:
        over = over * ops.index_select(weight, 0, classes.reshape(-1)).reshape(classes.shape)
    loss = ops.scatter(over, -1, classes, 0.0).sum(-1) / input.shape[-1]
    return _reduced(loss.reshape(target.shape), size_average, reduce, reduction)


# public: F
@in_float32
def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Sum of max(0, 1 - x_y + x_i) over the classes y of a sample and the others i, divided by C.

    input   scores, (N, C) or (C)
    target  of its shape, int64: a sample's classes, then -1; what follows counts for nothing

    >>> F.multilabel_margin_loss(flow.tensor([[1.0, 0.5]]), flow.tensor([[0, -1]]))  # 0.5 / 2
    tensor(0.2500)
    """
    if input.ndim == 0 and target.ndim == 0:
        input, target = input.reshape(1), target.reshape(1)
    if input.ndim not in (1, 2) or tuple(input.shape) != tuple(target.shape):
        raise ShapeError(
            f"multilabel_margin_loss: input is (N, C) or (C) and target of its shape, got "
            f"{tuple(input.shape)} and {tuple(target.shape)}"
        )
    if target.dtype is not int64:
        raise DTypeError(f"multilabel_margin_loss: target is int64, got {target.dtype.name}")
    named = ops.eq(ops.cumsum(ops.lt(target, 0).to(int64), -1), 0)
    classes = target.masked_fill(ops.logical_not(named), 0)
    counted = named.to(input.dtype)
    has = ops.zeros_like(input.detach()).scatter_add_(-1, classes, counted)
    others = ops.eq(has, 0)
    own = ops.gather(input, -1, classes)
    over = ops.relu(1 - own.unsqueeze(-1) + input.unsqueeze(-2))
    pairs = ops.logical_and(named.unsqueeze(-1), others.unsqueeze(-2))
    loss = ops.where(pairs, over, 0.0).sum((-2, -1)) / input.shape[-1]  # 0 * inf is no 0
    return _reduced(loss, size_average, reduce, reduction)


# public: F
@in_float32
def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over the last dimension of -(y log(sigmoid(x)) + (1 - y) log(sigmoid(-x))).

    >>> F.multilabel_soft_margin_loss(flow.zeros(1, 2), flow.tensor([[0.0, 1.0]]))  # log 2
    tensor(0.6931)
    """
    loss = -(target * ops.logsigmoid(input) + (1 - target) * ops.logsigmoid(-input))
    loss = loss if weight is None else loss * weight
    return _reduced(loss.sum(-1) / input.shape[-1], size_average, reduce, reduction)


# public: F
@in_float32
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """triplet_margin_loss with a distance of one's own, pairwise_distance without one.

    >>> def distance(x, y):
    ...     return (x - y).abs().sum(-1)
    >>> a, near, far = flow.zeros(1, 2), flow.tensor([[1.0, 1.0]]), flow.tensor([[2.5, 0.0]])
    >>> F.triplet_margin_with_distance_loss(a, near, far, distance_function=distance)
    tensor(0.5000)
    """
    if margin <= 0:
        raise ArgumentError(
            f"triplet_margin_with_distance_loss: margin must be positive, got {margin}"
        )
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    return _reduced((near - far + margin).clamp(min=0.0), None, None, reduction)
