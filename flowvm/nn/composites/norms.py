"""Normalization across neighbouring channels."""

from __future__ import annotations

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import float64
from flowvm.ops.declare.halves import in_float32


def _across(x: Tensor, before: int, after: int) -> Tensor:
    """The sums over a window of channels around each, of (N, C, ...)."""
    n, c = x.shape[:2]
    rest = x.numel() // max(1, n * c)
    planes = ops.pad(x.reshape((n, 1, c, rest)), (0, 0, before, after))
    sums = ops.avg_pool2d(planes, (before + after + 1, 1), 1, divisor_override=1)
    return ops.reshape(sums, x.shape)


# public: F
@in_float32
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x / (k + alpha * mean of x² over `size` channels around) ** beta, for (N, C, ...)
    (Krizhevsky et al., 2012).

    Channels that are not there count as 0.

    >>> F.local_response_norm(flow.ones(1, 2, 1), 1, alpha=1.0, beta=1.0).flatten()
    tensor([0.5000, 0.5000])
    """
    if input.ndim < 3:
        raise ShapeError(
            f"local_response_norm: input has 3 dimensions or more, got shape {tuple(input.shape)}"
        )
    if size < 1:
        raise ArgumentError(f"local_response_norm: size is at least 1, got {size}")
    if input.numel() == 0:
        return input
    wide = input.to(float64)  # the square of 1e30 is no float32
    sums = _across(wide * wide, size // 2, (size - 1) // 2)
    out: Tensor = (wide / (sums * (alpha / size) + k) ** beta).to(input.dtype)
    return out


@in_float32
def cross_map_norm(input: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """local_response_norm whose window is as wide on both sides, also where `size` is even.

    As in PyTorch the first channel stays in the sums of all from the first that is beyond its
    reach.
    """
    half = (size - 1) // 2
    wide = input.to(float64)
    squares = wide * wide
    sums = _across(squares, half, half)
    beyond = ops.ge(ops.arange(input.shape[1], device=input.device), half + 1).to(float64)
    sums = sums + squares[:, :1] * beyond.reshape((-1, *(1,) * (input.ndim - 2)))
    out: Tensor = (wide / (sums * (alpha / size) + k) ** beta).to(input.dtype)
    return out
