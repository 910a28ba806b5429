"""Pooling layers: thin shells that keep the arguments of the functions of the same name."""

from __future__ import annotations

from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules._check import IntOrPair, integer, sizes


class _Pool(Module):
    """A window that slides: kernel_size, stride (kernel_size by default) and padding."""

    _ndim: int

    def __init__(
        self, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0
    ) -> None:
        super().__init__()
        n = self._ndim
        self.kernel_size = sizes(self, "kernel_size", kernel_size, n, 1)
        self.stride = self.kernel_size if stride is None else sizes(self, "stride", stride, n, 1)
        self.padding = sizes(self, "padding", padding, n)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _MaxPool(_Pool):
    def __init__(
        self,
        kernel_size: IntOrPair,
        stride: IntOrPair | None = None,
        padding: IntOrPair = 0,
        dilation: IntOrPair = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.dilation = sizes(self, "dilation", dilation, self._ndim, 1)
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def _pool(self, function: Any, input: Tensor) -> Any:
        return function(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dilation={self.dilation}, ceil_mode={self.ceil_mode}"


class MaxPool1d(_MaxPool):
    """The largest element of each window over (N, C, L) or (C, L)."""

    _ndim = 1

    def forward(self, input: Tensor) -> Any:
        return self._pool(F.max_pool1d, input)


class MaxPool2d(_MaxPool):
    """The largest element of each window over (N, C, H, W) or (C, H, W)."""

    _ndim = 2

    def forward(self, input: Tensor) -> Any:
        return self._pool(F.max_pool2d, input)


class AvgPool1d(_Pool):
    """The mean of each window over (N, C, L) or (C, L)."""

    _ndim = 1

    def __init__(
        self,
        kernel_size: IntOrPair,
        stride: IntOrPair | None = None,
        padding: IntOrPair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )


class AvgPool2d(_Pool):
    """The mean of each window over (N, C, H, W) or (C, H, W)."""

    _ndim = 2

    def __init__(
        self,
        kernel_size: IntOrPair,
        stride: IntOrPair | None = None,
        padding: IntOrPair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class _Adaptive(Module):
    """As many windows as it takes for the output to have `output_size`."""

    def __init__(self, output_size: int | tuple[int | None, ...] | None) -> None:
        super().__init__()
        wanted = output_size if isinstance(output_size, tuple) else (output_size,)
        for size in wanted:
            if size is not None:
                integer(self, "output_size", size)
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """The means of `output_size` windows over (N, C, L) or (C, L)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(input, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """The means of `output_size` windows over (N, C, H, W) or (C, H, W); None keeps a size."""

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(input, self.output_size)


class AdaptiveMaxPool1d(_Adaptive):
    """The largest elements of `output_size` windows over (N, C, L) or (C, L)."""

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = F.adaptive_max_pool1d(input, self.output_size)
        return out


class AdaptiveMaxPool2d(_Adaptive):
    """The largest elements of `output_size` windows over (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = F.adaptive_max_pool2d(input, self.output_size)
        return out
