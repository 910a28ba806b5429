"""Activations as modules: they keep the arguments of the functions of the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules._check import choice, integer
from flowvm.nn.modules.layer import layer
from flowvm.nn.parameter import Parameter

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType

# public: nn

# --- with nothing to set, or with inplace alone --------------------------------------------------


@layer(F.sigmoid)
class Sigmoid(Module):
    """1 / (1 + exp(-x))."""


@layer(F.tanh)
class Tanh(Module):
    """tanh(x)."""


@layer(F.logsigmoid)
class LogSigmoid(Module):
    """log(sigmoid(x))."""


@layer(F.softsign)
class Softsign(Module):
    """x / (1 + |x|)."""


@layer(F.tanhshrink)
class Tanhshrink(Module):
    """x - tanh(x)."""


@layer(F.quick_gelu)
class QuickGELU(Module):
    """x * sigmoid(1.702 x).

    >>> nn.QuickGELU()(flow.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1542,  0.0000,  0.8458])
    """


@layer(F.square_relu)
class SquareReLU(Module):
    """relu(x) squared.

    >>> nn.SquareReLU()(flow.tensor([-2.0, 3.0]))
    tensor([0., 9.])
    """


@layer(F.relu)
class ReLU(Module):
    """max(x, 0)."""

    inplace: bool = False


@layer(F.relu6)
class ReLU6(Module):
    """min(max(x, 0), 6)."""

    inplace: bool = False


@layer(F.selu)
class SELU(Module):
    """ELU scaled so that activations keep zero mean and unit variance."""

    inplace: bool = False


@layer(F.silu)
class SiLU(Module):
    """x * sigmoid(x)."""

    inplace: bool = False


@layer(F.mish)
class Mish(Module):
    """x * tanh(softplus(x))."""

    inplace: bool = False


@layer(F.hardsigmoid)
class Hardsigmoid(Module):
    """relu6(x + 3) / 6."""

    inplace: bool = False


@layer(F.hardswish)
class Hardswish(Module):
    """x * relu6(x + 3) / 6."""

    inplace: bool = False


# --- with numbers to set --------------------------------------------------------------------------


@layer(F.elu)
class ELU(Module):
    """x where positive, alpha * (exp(x) - 1) elsewhere."""

    alpha: float = 1.0
    inplace: bool = False


@layer(F.celu)
class CELU(Module):
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""

    alpha: float = 1.0
    inplace: bool = False


@layer(F.leaky_relu)
class LeakyReLU(Module):
    """x where positive, negative_slope * x elsewhere."""

    negative_slope: float = 1e-2
    inplace: bool = False


@layer(F.threshold)
class Threshold(Module):
    """x where above threshold, value elsewhere."""

    threshold: float
    value: float
    inplace: bool = False


@layer(F.softplus)
class Softplus(Module):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x exceeds threshold."""

    beta: float = 1.0
    threshold: float = 20.0


@layer(F.hardshrink, shown="{self.lambd}")
class Hardshrink(Module):
    """x where |x| exceeds lambd, 0 elsewhere."""

    lambd: float = 0.5


@layer(F.softshrink, shown="{self.lambd}")
class Softshrink(Module):
    """x moved towards 0 by lambd."""

    lambd: float = 0.5


@layer(
    F.gelu,
    shown="approximate={self.approximate!r}",
    approximate=lambda self, name, value: choice(self, name, value, ("none", "tanh")),
)
class GELU(Module):
    """x * Phi(x), or with approximate="tanh" the tanh form of it.

    >>> nn.GELU()(flow.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """

    approximate: str = "none"


@layer(F.rrelu)
class RReLU(Module):
    """x where positive, a * x elsewhere; in training `a` is drawn for each element, from `lower` to
    `upper`.

    >>> nn.RReLU(0.25, 0.75).eval()(flow.tensor([-2.0, 1.0]))  # the mean slope, 0.5
    tensor([-1.,  1.])
    """

    lower: float = 1.0 / 8
    upper: float = 1.0 / 3
    inplace: bool = False


@layer(F.softmax)
class Softmax(Module):
    """exp(x) / sum(exp(x)) along dim; None is what the function makes of the input's shape.

    >>> nn.Softmax(dim=0)(flow.zeros(2))
    tensor([0.5000, 0.5000])
    """

    dim: int | None = None


@layer(F.log_softmax)
class LogSoftmax(Module):
    """log(softmax(x)) along dim; None is what the function makes of the input's shape.

    >>> nn.LogSoftmax(dim=0)(flow.zeros(2))  # -log 2
    tensor([-0.6931, -0.6931])
    """

    dim: int | None = None


@layer(F.softmin)
class Softmin(Module):
    """softmax(-x) along dim; None is what the function makes of the input's shape.

    >>> nn.Softmin(dim=0)(flow.tensor([0.0, flow.inf]))
    tensor([1., 0.])
    """

    dim: int | None = None


@layer(F.glu)
class GLU(Module):
    """a * sigmoid(b), where a and b are the halves of x along dim.

    >>> nn.GLU()(flow.tensor([1.0, 2.0, 0.0, 0.0]))  # half of 1 and 2
    tensor([0.5000, 1.0000])
    """

    dim: int = -1


# --- with more to say -----------------------------------------------------------------------------


class Hardtanh(Module):
    """x clamped to [min_val, max_val]; min_value and max_value are older names.

    >>> nn.Hardtanh(0.0, 2.0)(flow.tensor([-1.0, 1.0, 3.0]))
    tensor([0., 1., 2.])
    """

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__()
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}" + ", inplace=True" * self.inplace


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
