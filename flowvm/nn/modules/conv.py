"""Convolution layers.

padding="same" pads by dilation * (kernel - 1) in total; when that is odd the extra element goes to
the end, which the convolution op cannot do by itself, so such a layer pads first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.nn import functional as F
from flowvm.nn import init
from flowvm.nn.module import Module
from flowvm.nn.modules._check import IntOrPair, channels, choice, integer, sizes
from flowvm.nn.parameter import Parameter

if TYPE_CHECKING:
    from flowvm.device import Device
    from flowvm.dtype import DType


class _ConvNd(Module):
    """What Conv1d and Conv2d share; `_ndim` is the number of spatial dimensions."""

    _ndim: int
    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrPair,
        stride: IntOrPair = 1,
        padding: IntOrPair | str = 0,
        dilation: IntOrPair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        n = self._ndim
        self.groups = integer(self, "groups", groups, 1)
        self.in_channels = integer(self, "in_channels", in_channels)
        self.out_channels = integer(self, "out_channels", out_channels)
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if value % groups:
                raise ArgumentError(
                    f"{type(self).__name__}: {name}={value} must be divisible by groups={groups}"
                )
        self.kernel_size = sizes(self, "kernel_size", kernel_size, n, 1)
        self.stride = sizes(self, "stride", stride, n, 1)
        self.dilation = sizes(self, "dilation", dilation, n, 1)
        self.padding = self._checked_padding(padding)
        self.padding_mode = choice(self, "padding_mode", padding_mode, ("zeros",))
        self._conv_padding, self._pad_first = self._plan_padding()
        shape = (self.out_channels, self.in_channels // groups, *self.kernel_size)
        self.weight = Parameter(ops.empty(shape, device=device, dtype=dtype))
        self.register_parameter(
            "bias",
            Parameter(ops.empty(self.out_channels, device=device, dtype=dtype)) if bias else None,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights: uniform within 1 / sqrt(fan_in)."""
        fan_in = self.in_channels // self.groups * math.prod(self.kernel_size)
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def _checked_padding(self, padding: IntOrPair | str) -> tuple[int, ...] | str:
        if not isinstance(padding, str):
            return sizes(self, "padding", padding, self._ndim)
        choice(self, "padding", padding, ("valid", "same"))
        if padding == "same" and any(s != 1 for s in self.stride):
            raise ArgumentError(
                f"{type(self).__name__}: padding='same' is not supported for strided convolutions "
                f"(stride={self.stride})"
            )
        return padding

    def _plan_padding(self) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """(padding for the op, padding to do before it or None)."""
        if isinstance(self.padding, tuple):
            return self.padding, None
        if self.padding == "valid":
            return (0,) * self._ndim, None
        totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        if all(total % 2 == 0 for total in totals):
            return tuple(total // 2 for total in totals), None
        pairs = [(total // 2, total - total // 2) for total in reversed(totals)]
        return (0,) * self._ndim, tuple(side for pair in pairs for side in pair)

    def _prepared(self, x: Tensor) -> Tensor:
        channels(self, x, -1 - self._ndim, self.in_channels, "in_channels")
        return x if self._pad_first is None else F.pad(x, self._pad_first)

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}",
            f"kernel_size={self.kernel_size}, stride={self.stride}",
        ]
        if isinstance(self.padding, str) or any(self.padding):
            parts.append(f"padding={self.padding!r}")
        if any(d != 1 for d in self.dilation):
            parts.append(f"dilation={self.dilation}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        return ", ".join(parts)


class Conv1d(_ConvNd):
    """Cross-correlation over (N, C, L) or (C, L); weight is (out, in / groups, k)."""

    _ndim = 1

    def forward(self, input: Tensor) -> Tensor:
        return F.conv1d(
            self._prepared(input),
            self.weight,
            self.bias,
            self.stride,
            self._conv_padding,
            self.dilation,
            self.groups,
        )


class Conv2d(_ConvNd):
    """Cross-correlation over (N, C, H, W) or (C, H, W); weight is (out, in / groups, kh, kw)."""

    _ndim = 2

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(
            self._prepared(input),
            self.weight,
            self.bias,
            self.stride,
            self._conv_padding,
            self.dilation,
            self.groups,
        )
