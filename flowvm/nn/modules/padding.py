"""Padding as modules: a border of a number, or of the tensor's own elements.

`padding` is one width for all sides, or (before, after) of the last dimension, then of the one
before it, and so on.  Negative widths take elements away.
"""

from __future__ import annotations

from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules._check import Ints, sizes

# public: nn

_ANY = -(1 << 31)  # widths may be negative


class _Pad(Module):
    """`_ndim` dimensions padded by `_mode`; tensors may or may not have a batch."""

    _ndim: int
    _mode: str

    def __init__(self, padding: Ints) -> None:
        super().__init__()
        self.padding = sizes(self, "padding", padding, 2 * self._ndim, _ANY)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (self._ndim + 1, self._ndim + 2):
            raise ShapeError(
                f"{type(self).__name__}: input has {self._ndim + 1} or {self._ndim + 2} "
                f"dimensions, got shape {tuple(input.shape)}"
            )
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    _mode = "constant"

    def __init__(self, padding: Ints, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    def __init__(self, padding: Ints) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ConstantPad1d(_ConstantPad):
    """A border of one number, around (N, C, L) or (C, L)."""

    _ndim = 1


class ConstantPad2d(_ConstantPad):
    """A border of one number, around (N, C, H, W) or (C, H, W)."""

    _ndim = 2


class ConstantPad3d(_ConstantPad):
    """A border of one number, around (N, C, D, H, W) or (C, D, H, W)."""

    _ndim = 3


class ReflectionPad1d(_Pad):
    """A border that mirrors the inside without its edge, around (N, C, L) or (C, L)."""

    _ndim = 1
    _mode = "reflect"


class ReflectionPad2d(_Pad):
    """A border that mirrors the inside without its edge, around (N, C, H, W) or (C, H, W)."""

    _ndim = 2
    _mode = "reflect"


class ReflectionPad3d(_Pad):
    """A border that mirrors the inside without its edge, around (N, C, D, H, W) or (C, D, H, W)."""

    _ndim = 3
    _mode = "reflect"


class ReplicationPad1d(_Pad):
    """A border that repeats the edge, around (N, C, L) or (C, L)."""

    _ndim = 1
    _mode = "replicate"


class ReplicationPad2d(_Pad):
    """A border that repeats the edge, around (N, C, H, W) or (C, H, W)."""

    _ndim = 2
    _mode = "replicate"


class ReplicationPad3d(_Pad):
    """A border that repeats the edge, around (N, C, D, H, W) or (C, D, H, W)."""

    _ndim = 3
    _mode = "replicate"


class CircularPad1d(_Pad):
    """A border that wraps around, around (N, C, L) or (C, L)."""

    _ndim = 1
    _mode = "circular"


class CircularPad2d(_Pad):
    """A border that wraps around, around (N, C, H, W) or (C, H, W)."""

    _ndim = 2
    _mode = "circular"


class CircularPad3d(_Pad):
    """A border that wraps around, around (N, C, D, H, W) or (C, D, H, W)."""

    _ndim = 3
    _mode = "circular"


class ZeroPad1d(_ZeroPad):
    """A border of zeros, around (N, C, L) or (C, L)."""

    _ndim = 1


class ZeroPad2d(_ZeroPad):
    """A border of zeros, around (N, C, H, W) or (C, H, W)."""

    _ndim = 2


class ZeroPad3d(_ZeroPad):
    """A border of zeros, around (N, C, D, H, W) or (C, D, H, W)."""

    _ndim = 3
