"""Convolution layers, and the transposed ones.

Zeros are padded by the op itself; any other padding is a copy with a border, which the op is then
given.  A subclass that changes the weight of a call (weight standardization and the like) does so
in `forward` and hands it to `_conv_forward`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.nn import functional as F
from flowvm.nn import init
from flowvm.nn.modules._check import Ints, channels, choice, integer, sizes
from flowvm.nn.modules.layer import Dimensional
from flowvm.nn.parameter import Parameter

# public: nn

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Dimensional):
    """Base of all convolutions: their sizes, a weight and an optional bias."""

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...] | str,
        dilation: tuple[int, ...],
        transposed: bool,
        output_padding: tuple[int, ...],
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.groups = integer(self, "groups", groups, 1)
        self.in_channels = integer(self, "in_channels", in_channels)
        self.out_channels = integer(self, "out_channels", out_channels)
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if value % groups:
                raise ArgumentError(
                    f"{type(self).__name__}: {name}={value} must be divisible by groups={groups}"
                )
        n = len(kernel_size)
        self.kernel_size = sizes(self, "kernel_size", kernel_size, n, 1)
        self.stride = sizes(self, "stride", stride, n, 1)
        self.dilation = sizes(self, "dilation", dilation, n, 1)
        self.padding: Any = self._checked_padding(padding)
        self.padding_mode = choice(self, "padding_mode", padding_mode, _PADDING_MODES)
        self.transposed = transposed
        self.output_padding = output_padding
        self._reversed_padding_repeated_twice = self._border()
        self.weight = Parameter(ops.empty(self._weight_shape(), device=device, dtype=dtype))
        self.register_parameter(
            "bias",
            Parameter(ops.empty(self.out_channels, device=device, dtype=dtype)) if bias else None,
        )
        self.reset_parameters()

    def _weight_shape(self) -> tuple[int, ...]:
        if self.transposed:
            return (self.in_channels, self.out_channels // self.groups, *self.kernel_size)
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    def reset_parameters(self) -> None:
        """Draw new weights: uniform within 1 / sqrt(fan_in)."""
        fan_in = self.weight.shape[1] * math.prod(self.kernel_size)
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def _checked_padding(self, padding: tuple[int, ...] | str) -> tuple[int, ...] | str:
        if not isinstance(padding, str):
            return sizes(self, "padding", padding, len(self.kernel_size))
        choice(self, "padding", padding, ("valid", "same"))
        if padding == "same" and any(s != 1 for s in self.stride):
            raise ArgumentError(
                f"{type(self).__name__}: padding='same' is not supported for strided convolutions "
                f"(stride={self.stride})"
            )
        return padding

    def _border(self) -> list[int]:
        """The padding as `F.pad` takes it: before and after, the last dimension first."""
        if not isinstance(self.padding, str):
            return [side for p in reversed(self.padding) for side in (p, p)]
        if self.padding == "valid":
            return [0, 0] * len(self.kernel_size)
        totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return [side for t in reversed(totals) for side in (t // 2, t - t // 2)]

    def _convolved(
        self, function: Any, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        channels(self, input, -1 - len(self.kernel_size), self.in_channels, "in_channels")
        padding: tuple[int, ...] | str = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, self.padding_mode)
            padding = (0,) * len(self.kernel_size)
        out: Tensor = function(
            input, weight, bias, self.stride, padding, self.dilation, self.groups
        )
        return out

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}",
            f"kernel_size={self.kernel_size}, stride={self.stride}",
        ]
        if isinstance(self.padding, str) or any(self.padding):
            parts.append(f"padding={self.padding}")
        if any(d != 1 for d in self.dilation):
            parts.append(f"dilation={self.dilation}")
        if any(self.output_padding):
            parts.append(f"output_padding={self.output_padding}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


class _Forward(_ConvNd):
    """A convolution over `_ndim` dimensions by `_function`."""

    _named = "conv{n}d"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints | str = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        n = self._ndim
        super().__init__(
            in_channels,
            out_channels,
            sizes(self, "kernel_size", kernel_size, n, 1),
            sizes(self, "stride", stride, n, 1),
            padding if isinstance(padding, str) else sizes(self, "padding", padding, n),
            sizes(self, "dilation", dilation, n, 1),
            False,
            (0,) * n,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._convolved(type(self)._function, input, weight, bias)

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)


class Conv1d(_Forward):
    """Cross-correlation over (N, C, L) or (C, L); weight is (out, in / groups, k).

    padding  zeros at both ends, or "same" or "valid"; padding_mode "reflect", "replicate" or
             "circular" has elements of the input there instead
    """


class Conv2d(_Forward):
    """Cross-correlation over (N, C, H, W) or (C, H, W); weight is (out, in / groups, kh, kw).

    padding and padding_mode as for Conv1d.
    """


class Conv3d(_Forward):
    """Cross-correlation over (N, C, D, H, W) or (C, D, H, W); weight is (out, in / groups, kd, kh,
    kw).

    padding and padding_mode as for Conv1d.
    """


class _ConvTransposeNd(_ConvNd):
    """The gradient of a convolution by its input, as a layer."""


class _Transposed(_ConvTransposeNd):
    """A transposed convolution over `_ndim` dimensions by `_function`."""

    _named = "conv_transpose{n}d"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Ints = 1,
        padding_mode: str = "zeros",
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        n = self._ndim
        super().__init__(
            in_channels,
            out_channels,
            sizes(self, "kernel_size", kernel_size, n, 1),
            sizes(self, "stride", stride, n, 1),
            sizes(self, "padding", padding, n),
            sizes(self, "dilation", dilation, n, 1),
            True,
            sizes(self, "output_padding", output_padding, n),
            groups,
            bias,
            choice(self, "padding_mode", padding_mode, ("zeros",)),
            device,
            dtype,
        )

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        channels(self, input, -1 - self._ndim, self.in_channels, "in_channels")
        extra = self.output_padding
        if output_size is not None:
            extra = self._extra_padding(input, tuple(output_size))
        out: Tensor = type(self)._function(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            extra,
            self.groups,
            self.dilation,
        )
        return out

    def _extra_padding(self, input: Tensor, size: tuple[int, ...]) -> tuple[int, ...]:
        """The output_padding that makes outputs of this size."""
        n = self._ndim
        space = size[-n:] if len(size) == input.ndim else size
        reach = (d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True))
        last = ((i - 1) * s for i, s in zip(input.shape[-n:], self.stride, strict=True))
        least = [r + e + 1 - 2 * p for r, e, p in zip(reach, last, self.padding, strict=True)]
        extra = tuple(o - low for o, low in zip(space, least, strict=False))
        if len(space) != n or any(not 0 <= e < s for e, s in zip(extra, self.stride, strict=True)):
            most = [low + s - 1 for low, s in zip(least, self.stride, strict=True)]
            raise ArgumentError(
                f"{type(self).__name__}: output_size {size} cannot be had of input of shape "
                f"{tuple(input.shape)}; its last {n} sizes can be from {least} to {most}"
            )
        return extra


class ConvTranspose1d(_Transposed):
    """The gradient of Conv1d by its input: (N, C, L) to (N, O, L'); weight is (in, out / groups,
    k).

    forward(input, output_size=None): of the sizes that convolve to the input's, the one wanted.
    """


class ConvTranspose2d(_Transposed):
    """The gradient of Conv2d by its input; weight is (in, out / groups, kh, kw).

    forward takes output_size as ConvTranspose1d's does.
    """


class ConvTranspose3d(_Transposed):
    """The gradient of Conv3d by its input; weight is (in, out / groups, kd, kh, kw).

    forward takes output_size as ConvTranspose1d's does.
    """
