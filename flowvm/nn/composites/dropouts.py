"""Dropout of whole channels, and dropout that keeps the mean and variance of SELU's outputs."""

from __future__ import annotations

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError

# public: F

SELU_LIMIT = -1.7580993408473766  # SELU as x goes to minus infinity: -scale * alpha


def _into(input: Tensor, out: Tensor, inplace: bool) -> Tensor:
    return input.copy_(out) if inplace else out


def _probability(name: str, p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"{name}: p is a probability, between 0 and 1, got {p}")


def _noise(input: Tensor, p: float, channels: bool) -> Tensor:
    """1 where an element, or a channel of (N, C, ...), is kept, 0 elsewhere."""
    shape = tuple(input.shape)
    if channels:
        if len(shape) < 2:
            raise ShapeError(f"dropout of channels needs 2 dimensions or more, got shape {shape}")
        shape = (*shape[:2], *(1,) * (len(shape) - 2))
    noise = ops.empty(shape, dtype=input.dtype, device=input.device)
    out: Tensor = noise.bernoulli_(1.0 - p)
    return out


def _channels(input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    if not training or p == 0.0 or input.numel() == 0:
        return input
    noise = _noise(input, p, True)
    return _into(input, input * (noise * 0 if p == 1.0 else noise / (1.0 - p)), inplace)


def _unbatched(name: str, n: int, input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    """Dropout of channels where a tensor without batch has n dimensions."""
    _probability(name, p)
    if input.ndim not in (n, n + 1):
        raise ShapeError(
            f"{name}: input has {n} or {n + 1} dimensions, got shape {tuple(input.shape)}"
        )
    if input.ndim == n + 1:
        return _channels(input, p, training, inplace)
    return _into(input, _channels(input.unsqueeze(0), p, training, False).squeeze(0), inplace)


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Channels of (N, C, L) or (C, L) become 0 with probability p, the others are scaled by
    1 / (1 - p); the input itself where it is not training.

    >>> F.dropout1d(flow.ones(1, 3, 2), training=False).equal(flow.ones(1, 3, 2))
    True
    """
    return _unbatched("dropout1d", 2, input, p, training, inplace)


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """As dropout1d, for (N, C, H, W); three dimensions are (N, C, L), as in PyTorch.

    >>> x = F.dropout2d(flow.ones(1, 8, 2, 2), p=0.5)
    >>> bool((x.amax((2, 3)) == x.amin((2, 3))).all())  # whole channels
    True
    """
    _probability("dropout2d", p)
    return _channels(input, p, training, inplace)


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """As dropout1d, for (N, C, D, H, W) or (C, D, H, W).

    >>> x = F.dropout3d(flow.ones(1, 8, 2, 2, 2), p=0.5)
    >>> bool((x.amax((2, 3, 4)) == x.amin((2, 3, 4))).all())  # whole channels
    True
    """
    _probability("dropout3d", p)
    if input.ndim == 4:
        return _unbatched("dropout3d", 4, input, p, training, inplace)
    return _channels(input, p, training, inplace)


def _alpha(input: Tensor, p: float, inplace: bool, channels: bool) -> Tensor:
    if p == 1.0:
        return _into(input, input * 0, inplace)
    a = ((SELU_LIMIT * SELU_LIMIT * p + 1) * (1 - p)) ** -0.5
    noise = _noise(input, p, channels)
    shift = (1 - noise) * (SELU_LIMIT * a) - SELU_LIMIT * a * p
    return _into(input, input * (noise * a) + shift, inplace)


def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Elements become SELU's negative limit with probability p; then all are moved and scaled so
    that the mean 0 and variance 1 of the input are kept (Klambauer et al., 2017).

    >>> F.alpha_dropout(flow.ones(4), p=0.5, training=False)
    tensor([1., 1., 1., 1.])
    """
    _probability("alpha_dropout", p)
    if not training or p == 0.0 or input.numel() == 0:
        return input
    return _alpha(input, p, inplace, False)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """alpha_dropout of whole channels of (N, C, ...).

    >>> F.feature_alpha_dropout(flow.ones(1, 2, 3), training=False).shape
    flow.Size([1, 2, 3])
    """
    _probability("feature_alpha_dropout", p)
    if not training or p == 0.0 or input.numel() == 0:
        return input
    return _alpha(input, p, inplace, True)
