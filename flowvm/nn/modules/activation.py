"""Activations as modules: they keep the arguments of the functions of the same name.

Long because each activation is a class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules._check import choice, integer
from flowvm.nn.parameter import Parameter

# public: nn

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


class _Plain(Module):
    """An activation with nothing to set; `_function` names it in nn.functional."""

    _function: Callable[[Tensor], Tensor]

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(input)


class _InPlace(Module):
    """An activation whose only argument is inplace."""

    _function: Callable[[Tensor, bool], Tensor]

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(input, self.inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class _Shaped(Module):
    """An activation with numbers to set, whose names are `_numbers`."""

    _function: Callable[..., Tensor]
    _numbers: tuple[str, ...]

    def __init__(self, *values: float, inplace: bool | None = None) -> None:
        super().__init__()
        for name, value in zip(self._numbers, values, strict=True):
            setattr(self, name, value)
        self.inplace = bool(inplace)
        self._arguments = self._numbers if inplace is None else (*self._numbers, "inplace")

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(input, *[getattr(self, name) for name in self._arguments])

    def extra_repr(self) -> str:
        shown = [f"{name}={getattr(self, name)}" for name in self._numbers]
        return ", ".join(shown + (["inplace=True"] if self.inplace else []))


class _Shrink(_Shaped):
    """An activation whose only number is lambd."""

    _numbers = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__(lambd)
        self.lambd = lambd

    def extra_repr(self) -> str:
        return str(self.lambd)


class Sigmoid(_Plain):
    """1 / (1 + exp(-x))."""

    _function = staticmethod(F.sigmoid)


class Tanh(_Plain):
    """tanh(x)."""

    _function = staticmethod(F.tanh)


class LogSigmoid(_Plain):
    """log(sigmoid(x))."""

    _function = staticmethod(F.logsigmoid)


class Softsign(_Plain):
    """x / (1 + |x|)."""

    _function = staticmethod(F.softsign)


class Tanhshrink(_Plain):
    """x - tanh(x)."""

    _function = staticmethod(F.tanhshrink)


class QuickGELU(_Plain):
    """x * sigmoid(1.702 x).

    >>> nn.QuickGELU()(flow.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1542,  0.0000,  0.8458])
    """

    _function = staticmethod(F.quick_gelu)


class SquareReLU(_Plain):
    """relu(x) squared.

    >>> nn.SquareReLU()(flow.tensor([-2.0, 3.0]))
    tensor([0., 9.])
    """

    _function = staticmethod(F.square_relu)


class ReLU(_InPlace):
    """max(x, 0)."""

    _function = staticmethod(F.relu)


class ReLU6(_InPlace):
    """min(max(x, 0), 6)."""

    _function = staticmethod(F.relu6)


# public: nn
class SELU(_InPlace):
    """ELU scaled so that activations keep zero mean and unit variance."""

    _function = staticmethod(F.selu)


class SiLU(_InPlace):
    """x * sigmoid(x)."""

    _function = staticmethod(F.silu)


class Mish(_InPlace):
    """x * tanh(softplus(x))."""

    _function = staticmethod(F.mish)


class Hardsigmoid(_InPlace):
    """relu6(x + 3) / 6."""

    _function = staticmethod(F.hardsigmoid)


class Hardswish(_InPlace):
    """x * relu6(x + 3) / 6."""

    _function = staticmethod(F.hardswish)


# public: nn
class ELU(_Shaped):
    """x where positive, alpha * (exp(x) - 1) elsewhere."""

    _function = staticmethod(F.elu)
    _numbers = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha, inplace=inplace)


# public: nn
class CELU(_Shaped):
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""

    _function = staticmethod(F.celu)
    _numbers = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha, inplace=inplace)


class LeakyReLU(_Shaped):
    """x where positive, negative_slope * x elsewhere."""

    _function = staticmethod(F.leaky_relu)
    _numbers = ("negative_slope",)

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False) -> None:
        super().__init__(negative_slope, inplace=inplace)


class Hardtanh(_Shaped):
    """x clamped to [min_val, max_val]."""

    _function = staticmethod(F.hardtanh)
    _numbers = ("min_val", "max_val")

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        # min_value and max_value are older names
        low = min_val if min_value is None else min_value
        super().__init__(low, max_val if max_value is None else max_value, inplace=inplace)


class Threshold(_Shaped):
    """x where above threshold, value elsewhere."""

    _function = staticmethod(F.threshold)
    _numbers = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(threshold, value, inplace=inplace)


class Softplus(_Shaped):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x exceeds threshold."""

    _function = staticmethod(F.softplus)
    _numbers = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__(beta, threshold)


class Hardshrink(_Shrink):
    """x where |x| exceeds lambd, 0 elsewhere."""

    _function = staticmethod(F.hardshrink)


class Softshrink(_Shrink):
    """x moved towards 0 by lambd."""

    _function = staticmethod(F.softshrink)


# public: nn
class GELU(Module):
    """x * Phi(x), or with approximate="tanh" the tanh form of it.

    >>> nn.GELU()(flow.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = choice(self, "approximate", approximate, ("none", "tanh"))

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class PReLU(Module):
    """x where positive, weight * x elsewhere; one learnt slope, or one a channel.

    >>> nn.PReLU()(flow.tensor([-2.0, 2.0])).detach()
    tensor([-0.5000,  2.0000])
    """

    weight: Parameter

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.num_parameters = integer(self, "num_parameters", num_parameters, 1)
        self.weight = Parameter(ops.full((num_parameters,), init, device=device, dtype=dtype))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(Module):
    """x where positive, a * x elsewhere; in training `a` is drawn for each element, from `lower` to
    `upper`.

    >>> nn.RReLU(0.25, 0.75).eval()(flow.tensor([-2.0, 1.0]))  # the mean slope, 0.5
    tensor([-1.,  1.])
    """

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}" + (", inplace=True" * self.inplace)


class _AlongDim(Module):
    """An activation along one dimension; None is what the function makes of the input's shape."""

    _function: Callable[..., Tensor]

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax(_AlongDim):
    """exp(x) / sum(exp(x)) along dim.

    >>> nn.Softmax(dim=0)(flow.zeros(2))
    tensor([0.5000, 0.5000])
    """

    _function = staticmethod(F.softmax)


class LogSoftmax(_AlongDim):
    """log(softmax(x)) along dim.

    >>> nn.LogSoftmax(dim=0)(flow.zeros(2))  # -log 2
    tensor([-0.6931, -0.6931])
    """

    _function = staticmethod(F.log_softmax)


class Softmin(_AlongDim):
    """softmax(-x) along dim.

    >>> nn.Softmin(dim=0)(flow.tensor([0.0, flow.inf]))
    tensor([1., 0.])
    """

    _function = staticmethod(F.softmin)


class Softmax2d(Module):
    """Softmax over the channels of (N, C, H, W) or (C, H, W).

    >>> nn.Softmax2d()(flow.zeros(1, 2, 1, 1)).flatten()
    tensor([0.5000, 0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(
                f"Softmax2d: input has 3 or 4 dimensions, got shape {tuple(input.shape)}"
            )
        return F.softmax(input, -3)


# public: nn
class GLU(Module):
    """a * sigmoid(b), where a and b are the halves of x along dim.

    >>> nn.GLU()(flow.tensor([1.0, 2.0, 0.0, 0.0]))  # half of 1 and 2
    tensor([0.5000, 1.0000])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
