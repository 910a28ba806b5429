"""Padding as modules: a border of a number, or of the tensor's own elements.

`padding` is one width for all sides, or (before, after) of the last dimension, then of the one
before it, and so on.  Negative widths take elements away.
"""

from __future__ import annotations

from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.nn import functional as F
from flowvm.nn.modules._check import Ints, sizes
from flowvm.nn.modules.layer import Dimensional

# public: nn

_ANY = -(1 << 31)  # widths may be negative


class _Pad(Dimensional):
    """`_ndim` dimensions padded by `_mode`; tensors may or may not have a batch."""

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
    _text = """A border of one number, around {shape}.

    >>> nn.{name}(1, 2.0)(flow.zeros(1, {twos}))[0].flatten()[0]
    tensor(2.)
    """

    def __init__(self, padding: Ints, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    _text = """A border of zeros, around {shape}.

    >>> bool(nn.{name}(1)(flow.ones(1, {twos})).sum() == 2**{n})
    True
    """

    def __init__(self, padding: Ints) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ReflectionPad(_Pad):
    _mode = "reflect"
    _text = """A border that mirrors the inside without its edge, around {shape}.

    >>> nn.{name}(1)(flow.arange(3.0).expand(1, {threes})).flatten()[:5]
    tensor([1., 0., 1., 2., 1.])
    """


class _ReplicationPad(_Pad):
    _mode = "replicate"
    _text = """A border that repeats the edge, around {shape}.

    >>> nn.{name}(1)(flow.arange(3.0).expand(1, {threes})).flatten()[:5]
    tensor([0., 0., 1., 2., 2.])
    """


class _CircularPad(_Pad):
    _mode = "circular"
    _text = """A border that wraps around, around {shape}.

    >>> nn.{name}(1)(flow.arange(3.0).expand(1, {threes})).flatten()[:5]
    tensor([2., 0., 1., 2., 0.])
    """


class ConstantPad1d(_ConstantPad): ...


class ConstantPad2d(_ConstantPad): ...


class ConstantPad3d(_ConstantPad): ...


class ReflectionPad1d(_ReflectionPad): ...


class ReflectionPad2d(_ReflectionPad): ...


class ReflectionPad3d(_ReflectionPad): ...


class ReplicationPad1d(_ReplicationPad): ...


class ReplicationPad2d(_ReplicationPad): ...


class ReplicationPad3d(_ReplicationPad): ...


class CircularPad1d(_CircularPad): ...


class CircularPad2d(_CircularPad): ...


class CircularPad3d(_CircularPad): ...


class ZeroPad1d(_ZeroPad): ...


class ZeroPad2d(_ZeroPad): ...


class ZeroPad3d(_ZeroPad): ...
