"""Pooling layers: thin shells that keep the arguments of the functions of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.nn import functional as F
from flowvm.nn.modules._check import Ints, integer, sizes
from flowvm.nn.modules.layer import Dimensional

# public: nn


class _Pool(Dimensional):
    """A window that slides: kernel_size, stride (kernel_size by default) and padding."""

    def __init__(self, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0) -> None:
        super().__init__()
        self.kernel_size = self._checked("kernel_size", kernel_size, 1)
        self.stride = kernel_size if stride is None else self._checked("stride", stride, 1)
        self.padding = self._checked("padding", padding, 0)

    def _checked(self, name: str, value: Ints, least: int) -> Ints:
        """`value` as it was given: what PyTorch shows, and programs read."""
        sizes(self, name, value, self._ndim, least)
        return value

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _MaxPool(_Pool):
    _named = "max_pool{n}d"
    _text = """The largest element of each window over {shape}.

    >>> nn.{name}(2)(flow.arange(4.0).expand(1, {fours})).flatten()[:2]
    tensor([1., 3.])
    """

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.dilation = self._checked("dilation", dilation, 1)
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(
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


class MaxPool1d(_MaxPool): ...


class MaxPool2d(_MaxPool): ...


class MaxPool3d(_MaxPool): ...


_MEAN = """The mean of each window over {shape}.

    >>> nn.{name}(2)(flow.arange(4.0).expand(1, {fours})).flatten()[:2]
    tensor([0.5000, 2.5000])
    """


class AvgPool1d(_Pool):
    _text = _MEAN

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.kernel_size = sizes(self, "kernel_size", self.kernel_size, 1)
        self.stride = sizes(self, "stride", self.stride, 1)
        self.padding = sizes(self, "padding", self.padding, 1)
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


class _AvgPool(_Pool):
    _named = "avg_pool{n}d"
    _text = _MEAN

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = type(self)._function(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )
        return out


class AvgPool2d(_AvgPool): ...


class AvgPool3d(_AvgPool): ...


class _Adaptive(Dimensional):
    """As many windows as it takes for the output to have `output_size`."""

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        super().__init__()
        sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size,)
        for size in sizes:
            if size is not None:
                integer(self, "output_size", size)
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveAvg(_Adaptive):
    _named = "adaptive_avg_pool{n}d"
    _text = """The means of `output_size` windows over {shape}; None keeps a size.

    >>> nn.{name}(2)(flow.arange(4.0).expand(1, {fours})).flatten()[:2]
    tensor([0.5000, 2.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = type(self)._function(input, self.output_size)
        return out


class _AdaptiveMax(_Adaptive):
    _named = "adaptive_max_pool{n}d"
    _text = """The largest elements of `output_size` windows over {shape}; None keeps a size.

    >>> nn.{name}(2)(flow.arange(4.0).expand(1, {fours})).flatten()[:2]
    tensor([1., 3.])
    """

    def __init__(
        self, output_size: int | Sequence[int | None] | None, return_indices: bool = False
    ) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(input, self.output_size, self.return_indices)


class AdaptiveAvgPool1d(_AdaptiveAvg): ...


class AdaptiveAvgPool2d(_AdaptiveAvg): ...


class AdaptiveAvgPool3d(_AdaptiveAvg): ...


class AdaptiveMaxPool1d(_AdaptiveMax): ...


class AdaptiveMaxPool2d(_AdaptiveMax): ...


class AdaptiveMaxPool3d(_AdaptiveMax): ...


class _MaxUnpool(Dimensional):
    """Maxima back to where they were found; the rest is 0."""

    _named = "max_unpool{n}d"
    _text = """The inverse of MaxPool{n}d, as far as there is one: it needs its indices.

    >>> pool, unpool = nn.MaxPool{n}d(2, return_indices=True), nn.{name}(2)
    >>> bool(unpool(*pool(flow.ones(1, {fours}))).sum() == 2**{n})
    True
    """

    def __init__(self, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0) -> None:
        super().__init__()
        n = self._ndim
        self.kernel_size = sizes(self, "kernel_size", kernel_size, n, 1)
        self.stride = self.kernel_size if stride is None else sizes(self, "stride", stride, n, 1)
        self.padding = sizes(self, "padding", padding, n)

    def forward(
        self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        out: Tensor = type(self)._function(
            input, indices, self.kernel_size, self.stride, self.padding, output_size
        )
        return out

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool): ...


class MaxUnpool2d(_MaxUnpool): ...


class MaxUnpool3d(_MaxUnpool): ...


class _LPPool(Dimensional):
    """(sum of x ** norm_type) ** (1 / norm_type) of each window."""

    _named = "lp_pool{n}d"
    _text = """The p-norm of each window over {shape}.

    >>> bool(nn.{name}(1, 2)(flow.ones(1, {fours})).max() == 2**{n})
    True
    """

    def __init__(
        self,
        norm_type: float,
        kernel_size: Ints,
        stride: Ints | None = None,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        sizes(self, "kernel_size", kernel_size, self._ndim, 1)
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = type(self)._function(
            input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode
        )
        return out

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool): ...


class LPPool2d(_LPPool): ...


class LPPool3d(_LPPool): ...


class _FractionalMaxPool(Dimensional):
    """The largest element of each of windows that are drawn."""

    _named = "fractional_max_pool{n}d"
    _text = """The largest elements of windows at drawn places (Graham, 2014), over {shape}.

    >>> bool(nn.{name}(2, output_size=2)(flow.ones(1, {fours})).sum() == 2**{n})
    True
    """
    _random_samples: Tensor | None

    def __init__(
        self,
        kernel_size: Ints,
        output_size: Ints | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        super().__init__()
        n = self._ndim
        self.kernel_size = sizes(self, "kernel_size", kernel_size, n, 1)
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = (
            None if output_size is None else sizes(self, "output_size", output_size, n, 1)
        )
        ratios = (output_ratio,) * n if isinstance(output_ratio, (int, float)) else output_ratio
        self.output_ratio = ratios
        if (output_size is None) == (output_ratio is None):
            raise ArgumentError(
                f"{type(self).__name__}: either output_size or output_ratio is given, and not both"
            )
        if ratios is not None and not all(0 < ratio < 1 for ratio in ratios):
            raise ArgumentError(
                f"{type(self).__name__}: output_ratio is between 0 and 1, got {output_ratio}"
            )

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            self._random_samples,
        )


class FractionalMaxPool2d(_FractionalMaxPool): ...


class FractionalMaxPool3d(_FractionalMaxPool): ...
