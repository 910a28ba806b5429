"""Other names, older ones and OneFlow's, of ways to resize images and to convolve sequences."""

from __future__ import annotations

from collections.abc import Sequence

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.halves import in_float32

# public: F


def upsample_nearest(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate with mode "nearest".

    >>> F.upsample_nearest(flow.tensor([[[[1.0, 2.0]]]]), scale_factor=2)
    tensor([[[[1., 1., 2., 2.],
              [1., 1., 2., 2.]]]])
    """
    return ops.interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate with mode "bilinear", the corners keeping their places.

    >>> F.upsample_bilinear(flow.tensor([[[[0.0, 2.0]]]]), size=(1, 3))
    tensor([[[[0., 1., 2.]]]])
    """
    return ops.interpolate(input, size, scale_factor, "bilinear", True)


def interpolate_like(
    input: Tensor, like: Tensor, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """OneFlow's: interpolate to the size that `like` has behind its batch and channels.

    input, like  (N, C, ...) of as many dimensions; nothing else of `like` counts

    >>> F.interpolate_like(flow.tensor([[[1.0, 2.0]]]), flow.ones(5, 3, 4))
    tensor([[[1., 1., 2., 2.]]])
    """
    x = need_tensor("interpolate_like", "input", input)._meta
    target = need_tensor("interpolate_like", "like", like)._meta
    if x.ndim != target.ndim:
        raise ShapeError(
            f"interpolate_like: input and like have as many dimensions, got {tuple(x.shape)} and "
            f"{tuple(target.shape)}"
        )
    return ops.interpolate(input, tuple(target.shape[2:]), None, mode, align_corners)


# public: flow (late, unlisted), F
@in_float32
def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """conv1d of (T, N, C) by weight (k, C, O): (T', N, O).

    >>> F.conv_tbc(flow.ones(5, 2, 3), flow.ones(2, 3, 4), flow.zeros(4)).shape
    flow.Size([4, 2, 4])
    """
    out = ops.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, 1, pad)
    sequence: Tensor = out.permute(2, 0, 1)
    return sequence


def native_channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """channel_shuffle.

    >>> F.native_channel_shuffle(flow.arange(4).view(1, 4, 1), 2).flatten()
    tensor([0, 2, 1, 3])
    """
    return ops.channel_shuffle(input, groups)
