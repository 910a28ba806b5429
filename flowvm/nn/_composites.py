"""Functions of nn.functional that are a line or two over ops."""

from __future__ import annotations

import math

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """A loss per element as its "mean", its "sum" or, with "none", itself."""
    if reduction == "mean":
        return ops.mean(loss)
    if reduction == "sum":
        return ops.sum(loss)
    if reduction != "none":
        raise ArgumentError(f'reduction must be "none", "mean" or "sum", got {reduction!r}')
    return loss


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y_k = x1 @ weight_k @ x2 + bias_k over the last dimensions of x1 and x2."""
    if tuple(input1.shape[:-1]) != tuple(input2.shape[:-1]):
        raise ShapeError(
            f"bilinear: all dimensions but the last must agree, got {tuple(input1.shape)} and "
            f"{tuple(input2.shape)}"
        )
    rows = math.prod(input1.shape[:-1])
    x1 = input1.reshape((rows, input1.shape[-1]))
    x2 = input2.reshape((rows, input2.shape[-1]))
    out = ops.sum((x1 @ weight) * x2, -1).t()  # (k, rows, in2) -> (k, rows) -> (rows, k)
    out = out if bias is None else out + bias
    return ops.reshape(out, (*input1.shape[:-1], weight.shape[0]))


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps over the last dimension."""
    difference = ops.abs(x1 - x2 + eps)
    if p == math.inf:
        largest: Tensor = ops.amax(difference, -1, keepdim)
        return largest
    return ops.sum(difference**p, -1, keepdim) ** (1.0 / p)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cos(x1, x2) where target is 1, max(0, cos(x1, x2) - margin) where it is -1."""
    cosine = ops.cosine_similarity(input1, input2, -1)
    loss = ops.where(target > 0, 1 - cosine, (cosine - margin).clamp(min=0.0))
    return reduced(loss, reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, -target * (x1 - x2) + margin)."""
    return reduced((-target * (input1 - input2) + margin).clamp(min=0.0), reduction)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """x where target is 1, max(0, margin - x) where it is -1."""
    return reduced(ops.where(target > 0, input, (margin - input).clamp(min=0.0)), reduction)


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * x))."""
    return reduced(ops.softplus(-target * input), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin)."""
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = ops.minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced((near - far + margin).clamp(min=0.0), reduction)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """exp(x) - target * x, or x - target * log(x + eps); full adds Stirling's term."""
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        safe = target.clamp(min=1.0)
        stirling = safe * safe.log() - safe + 0.5 * (2 * math.pi * safe).log()
        loss = loss + ops.where(target > 1, stirling, 0.0)
    return reduced(loss, reduction)


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """0.5 * (log(var) + (x - target)^2 / var), var at least eps; full adds 0.5 * log(2 pi)."""
    variance = ops.full_like(input.detach(), var) if isinstance(var, (int, float)) else var
    if variance.ndim == input.ndim - 1:
        variance = variance.unsqueeze(-1)
    # As in PyTorch, the clamp itself passes the gradient on unchanged.
    variance = variance + (variance.clamp(min=eps) - variance).detach()
    loss = 0.5 * (variance.log() + (input - target) ** 2 / variance)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)
