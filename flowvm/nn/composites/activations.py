"""Activations that draw random numbers, and softmax over a dimension that is not named."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.random.generator import Generator

# public: F

if TYPE_CHECKING:
    from flowvm.meta.dtype import DType


def _dim(name: str, dim: int | None, input: Tensor) -> int:
    """`dim`, or what PyTorch takes where it is None: 0 for 0, 1 and 3 dimensions, else 1."""
    if dim is not None:
        return dim
    warnings.warn(f"{name}: give dim; without it, it is chosen by the input's shape", stacklevel=3)
    return 0 if input.ndim in (0, 1, 3) else 1


@steady
def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`, computed as `dtype`; see flow.softmax.

    Without `dim`, dimension 0 where there are 0, 1 or 3, else 1, with a warning.  _stacklevel is
    taken and means nothing.

    >>> F.softmax(flow.tensor([0.0, 0.0]), dim=0)
    tensor([0.5000, 0.5000])
    """
    return ops.softmax(input, _dim("softmax", dim, input), dtype)


@steady
def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """log(softmax(x)) along `dim`, which is as in `softmax`.

    >>> F.log_softmax(flow.tensor([0.0, 0.0]), dim=0)  # -log 2
    tensor([-0.6931, -0.6931])
    """
    return ops.log_softmax(input, _dim("log_softmax", dim, input), dtype)


@steady
@in_float32
def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """softmax(-x) along `dim`, which is as in `softmax`.

    >>> F.softmin(flow.tensor([0.0, flow.inf]), dim=0)
    tensor([1., 0.])
    """
    return ops.softmin(input, _dim("softmin", dim, input), dtype)


# public: flow (late, unlisted), F
@in_float32
def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x), which is near to gelu (Hendrycks and Gimpel, 2016).

    >>> F.quick_gelu(flow.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1542,  0.0000,  0.8458])
    """
    out: Tensor = x * ops.sigmoid(1.702 * x)
    return out


# public: flow (late, unlisted), F
@in_float32
def square_relu(input: Tensor) -> Tensor:
    """relu(x) squared (So et al., 2021).

    >>> F.square_relu(flow.tensor([-2.0, 3.0]))
    tensor([0., 9.])
    """
    return ops.square(ops.relu(input))


@in_float32
def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A sample of the Gumbel-softmax distribution (Jang et al., 2017; Maddison et al., 2017): the
    softmax along `dim` of (logits + Gumbel noise) / tau.

    hard  one-hot vectors, with the gradients of the soft ones
    eps   is taken and means nothing, as in PyTorch

    >>> sample = F.gumbel_softmax(flow.zeros(4, 3), hard=True)
    >>> sample.sum(-1)
    tensor([1., 1., 1., 1.])
    """
    noise = -ops.log(ops.empty_like(logits.detach()).exponential_())
    soft = ops.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    top = ops.argmax(soft.detach(), dim, keepdim=True)
    one = ops.zeros_like(soft.detach()).scatter_(dim, top, 1.0)
    out: Tensor = one - soft.detach() + soft
    return out


@in_float32
def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """x where positive, a * x elsewhere: in training `a` is drawn for each element, uniformly from
    `lower` to `upper`, else it is their mean (Xu et al., 2015).

    >>> F.rrelu(flow.tensor([-2.0, 1.0]), 0.25, 0.75)  # outside of training by the mean, 0.5
    tensor([-1.,  1.])
    """
    if lower > upper:
        raise ArgumentError(f"rrelu: lower {lower} is greater than upper {upper}")
    if not training:
        out: Tensor = ops.leaky_relu(input, (lower + upper) / 2, inplace)
        return out
    input = input if inplace else input.contiguous()
    slopes = ops.empty_like(input.detach()).uniform_(lower, upper, generator=generator)
    factor = ops.where(ops.gt(input.detach(), 0), 1.0, slopes)
    scaled: Tensor = input.mul_(factor) if inplace else input * factor
    return scaled


def rrelu_(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """In-place `rrelu`."""
    return rrelu(input, lower, upper, training, True, generator=generator)


def elu_(input: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """In-place `elu` with PyTorch's further numbers: scale * x where x is positive, else
    scale * alpha * (exp(input_scale * x) - 1).
    """
    if scale == 1 and input_scale == 1:
        same: Tensor = ops.elu(input, alpha, True)
        return same
    low = ops.expm1(input * input_scale) * alpha
    changed: Tensor = input.copy_(ops.where(input > 0, input, low) * scale)
    return changed


def _in_place(function: Any, name: str) -> Any:
    def changed(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = function(input, *args, inplace=True, **kwargs)
        return out

    changed.__name__ = changed.__qualname__ = name
    changed.__doc__ = f"In-place `{function.__name__}`."
    return changed


celu_ = _in_place(ops.celu, "celu_")
hardtanh_ = _in_place(ops.hardtanh, "hardtanh_")
leaky_relu_ = _in_place(ops.leaky_relu, "leaky_relu_")
selu_ = _in_place(ops.selu, "selu_")
threshold_ = _in_place(ops.threshold, "threshold_")
