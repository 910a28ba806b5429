"""Older names of ways to resize images and to convolve sequences."""

from __future__ import annotations

from collections.abc import Sequence

from flowvm import ops
from flowvm.eager.tensor import Tensor


def upsample_nearest(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate with mode "nearest"."""
    return ops.interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate with mode "bilinear", the corners keeping their places."""
    return ops.interpolate(input, size, scale_factor, "bilinear", True)


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """conv1d of (T, N, C) by weight (k, C, O): (T', N, O)."""
    out = ops.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, 1, pad)
    sequence: Tensor = out.permute(2, 0, 1)
    return sequence


def native_channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """channel_shuffle."""
    return ops.channel_shuffle(input, groups)
