"""Layers that rearrange or resize images: patches, shuffles, upsampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules._check import Ints, integer, sizes
from flowvm.nn.modules.layer import layer

# public: nn


def _two(minimum: int) -> Callable[[object, str, Any], tuple[int, ...]]:
    return lambda owner, name, value: sizes(owner, name, value, 2, minimum)


def _count(owner: object, name: str, value: int) -> int:
    return integer(owner, name, value, 1)


_WINDOW: Any = {"kernel_size": _two(1), "dilation": _two(1), "padding": _two(0), "stride": _two(1)}


@layer(F.unfold, **_WINDOW)
class Unfold(Module):
    """The patches of (N, C, H, W) or (C, H, W) as columns of a matrix.

    >>> nn.Unfold(2)(flow.ones(1, 3, 4, 4)).shape
    flow.Size([1, 12, 9])
    """

    kernel_size: Ints
    dilation: Ints = 1
    padding: Ints = 0
    stride: Ints = 1


@layer(F.fold, output_size=_two(1), **_WINDOW)
class Fold(Module):
    """Columns of patches added up to images of `output_size`.

    >>> columns = nn.Unfold(2)(flow.ones(1, 1, 3, 3))
    >>> nn.Fold((3, 3), 2)(columns)  # in how many patches each pixel is
    tensor([[[[1., 2., 1.],
              [2., 4., 2.],
              [1., 2., 1.]]]])
    """

    output_size: Ints
    kernel_size: Ints
    dilation: Ints = 1
    padding: Ints = 0
    stride: Ints = 1


class PixelShuffle(Module):
    """(..., C * r * r, H, W) to (..., C, H * r, W * r).

    OneFlow's `h_upscale_factor` and `w_upscale_factor`, both instead of `upscale_factor`, are the
    factors of H and W; ArgumentError for one of them alone, and for all three.

    >>> nn.PixelShuffle(2)(flow.arange(4).view(1, 4, 1, 1))
    tensor([[[[0, 1],
              [2, 3]]]])
    """

    upscale_factor: int | tuple[int, int]

    def __init__(
        self,
        upscale_factor: int | None = None,
        h_upscale_factor: int | None = None,
        w_upscale_factor: int | None = None,
    ) -> None:
        super().__init__()
        has_factor = [f is not None for f in (upscale_factor, h_upscale_factor, w_upscale_factor)]
        if has_factor not in ([True, False, False], [False, True, True]):
            raise ArgumentError(
                "PixelShuffle: give upscale_factor, or h_upscale_factor and w_upscale_factor"
            )
        if upscale_factor is not None:
            self.upscale_factor = integer(self, "upscale_factor", upscale_factor, 1)
        elif h_upscale_factor is not None and w_upscale_factor is not None:
            self.upscale_factor = (
                integer(self, "h_upscale_factor", h_upscale_factor, 1),
                integer(self, "w_upscale_factor", w_upscale_factor, 1),
            )

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


@layer(F.pixel_unshuffle, downscale_factor=_count)
class PixelUnshuffle(Module):
    """(..., C, H * r, W * r) to (..., C * r * r, H, W).

    >>> nn.PixelUnshuffle(2)(flow.arange(4).view(1, 1, 2, 2)).shape
    flow.Size([1, 4, 1, 1])
    """

    downscale_factor: int


@layer(F.channel_shuffle, groups=_count)
class ChannelShuffle(Module):
    """(N, C, *) with the channels of `groups` groups dealt in turn.

    >>> nn.ChannelShuffle(2)(flow.arange(4).view(1, 4, 1, 1)).flatten()
    tensor([0, 2, 1, 3])
    """

    groups: int


class Upsample(Module):
    """Images of `size`, or `scale_factor` times as large; see `functional.interpolate`.

    >>> nn.Upsample(scale_factor=2)(flow.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 1., 2., 2.]]])
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.scale_factor: float | tuple[float, ...] | None = None
        if isinstance(scale_factor, Sequence):
            self.scale_factor = tuple(map(float, scale_factor))
        elif scale_factor is not None:
            self.scale_factor = float(scale_factor)
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        name = "size" if self.scale_factor is None else "scale_factor"
        return f"{name}={getattr(self, name)}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """(N, C, H, W) resized by taking the nearest pixel.

    >>> nn.UpsamplingNearest2d(scale_factor=2)(flow.ones(1, 3, 4, 4)).shape
    flow.Size([1, 3, 8, 8])
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """(N, C, H, W) resized bilinearly, the corners keeping their places.

    >>> nn.UpsamplingBilinear2d(size=(1, 3))(flow.tensor([[[[0.0, 2.0]]]]))
    tensor([[[[0., 1., 2.]]]])
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(size, scale_factor, "bilinear", True)
