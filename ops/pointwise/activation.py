"""Activation functions under PyTorch's names, from a table of expressions.

Each has its value, first and second derivative as an expression of x and its parameters.  That
makes three ops: the function, its backward (g times the first derivative), and that one's backward.
 So a gradient is one instruction and can itself be differentiated; a third derivative raises.
 Parameters such as a slope are dynamic scalars: another value is not another kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import lowered
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, AutogradError, DTypeError, ShapeError
from flowvm.meta.dtype import bool_
from flowvm.ops.declare.composite import need_tensor, wrap_dim
from flowvm.ops.declare.elementwise import Elementwise, elementwise, fronts_over
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.parts.unary import back
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow, F

Number = float


def _differentiable(
    name: str, value: str, first: str, second: str = "0", params: str = "", types: str = "float",
    complex: Callable[[str], str] | None = None, amp: str = "", c_order: bool = False,
) -> Elementwise:  # fmt: skip
    """An op for `value` of x and `params`, with its derivatives; `second` "0" where the function is
    made of lines.  `complex` makes of each expression that for complex numbers.
    """
    names = [n for n in params.replace(" ", "").split(",") if n]
    rest = (None,) * len(names)

    def variant(suffix: str, expr: str, gradients: str, grad: Callable[..., Any]) -> Elementwise:
        args = ", ".join([*gradients, "x", *names])
        theirs = complex(expr) if complex else False
        return elementwise(
            name + suffix, expr, args=args, types=types, saves=args, grad=grad, complex=theirs,
            several=False, amp="" if suffix else amp, c_order=c_order and not suffix,
        )  # fmt: skip

    def forward_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
        return (backward(g, *c.saved), *rest)

    def backward_grad(c: Node, v: Tensor) -> tuple[Tensor | None, ...]:
        g, *saved = c.saved
        curved = c.needs[1] and second != "0"
        return (
            backward(v, *saved) if c.needs[0] else None,
            twice(v, g, *saved) if curved else None,
            *rest,
        )

    def twice_grad(c: Node, w: Tensor) -> tuple[Tensor | None, ...]:
        v, g, *saved = c.saved
        if c.needs[2]:
            raise AutogradError(f"{name} has first and second derivatives only; this is the third")
        return (
            twice(w, g, *saved) if c.needs[0] else None,
            twice(w, v, *saved) if c.needs[1] else None,
            None,
            *rest,
        )

    twice = variant("_backward_backward", f"v * g * ({second})", "vg", twice_grad)
    backward = variant("_backward", f"g * ({first})", "g", backward_grad)
    return variant("", value, "", forward_grad)


def _with(op: Elementwise, x: Tensor, inplace: bool, *params: Number) -> Tensor:
    out: Tensor = op.into(x, x, *params) if inplace else op(x, *params)
    return out


# --- made of lines ---------------------------------------------------------------------------

# relu keeps its output, which the next op keeps anyway, and not its input.
_relu_backward: Elementwise = elementwise(
    "relu_backward",
    "0 if y <= 0 else x",
    args="x, y",
    saves="y",
    grad=lambda c, g: (_relu_backward.call(g, c.saved[0]), None),
)
_relu = elementwise(
    "relu",
    "maximum(x, 0)",
    saves="out",
    grad=lambda c, g: (_relu_backward.call(g, c.saved[0]),),
    doc="""The larger of x and 0.

    >>> flow.tensor([-1, 0, 2]).relu()
    tensor([0, 0, 2])
    """,
)
_hardtanh = _differentiable(
    "hardtanh",
    "minimum(maximum(x, a), b)",
    "0 if (x <= a or x >= b) else 1",
    params="a, b",
    types="promote",
)
_leaky_relu = _differentiable(
    "leaky_relu", "x if x > 0 else x * a", "1 if x > 0 else a", params="a"
)
_threshold = _differentiable(
    "threshold", "b if x <= a else x", "0 if x <= a else 1", params="a, b", types="promote"
)
_hardshrink = _differentiable(
    "hardshrink", "0 if (x >= -a and x <= a) else x", "0 if (x >= -a and x <= a) else 1", params="a"
)
_softshrink = _differentiable(
    "softshrink",
    "x - a if x > a else (x + a if x < -a else x * 0)",
    "0 if (x >= -a and x <= a) else 1",
    params="a",
)
_hardsigmoid = _differentiable(
    "hardsigmoid",
    "minimum(maximum(x + 3, 0), 6) / 6",
    "0.16666666666666666 if (x > -3 and x < 3) else 0",
)
_hardswish = _differentiable(
    "hardswish",
    "x * minimum(maximum(x + 3, 0), 6) / 6",
    "0 if x <= -3 else (1 if x >= 3 else x / 3 + 0.5)",
    "0.3333333333333333 if (x > -3 and x < 3) else 0",
)


@steady
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0); integers stay integers.

    >>> F.relu(flow.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """
    out: Tensor = _relu.into(input, input) if inplace else _relu.call(input)
    return out


def relu_(input: Tensor) -> Tensor:
    """relu in place.

    >>> x = flow.tensor([-1.0, 2.0])
    >>> _ = flow.relu_(x)
    >>> x
    tensor([0., 2.])
    """
    return _relu.into(input, input)


relu_ = fronts_over(_relu)(relu_)
method("relu")(_relu.call)
method()(relu_)


@steady
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6).

    >>> F.relu6(flow.tensor([-1.0, 3.0, 8.0]))
    tensor([0., 3., 6.])
    """
    return _with(_hardtanh, input, inplace, 0, 6)


@steady
def hardtanh(
    input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False
) -> Tensor:
    """x kept between min_val and max_val, which lose their fractions where x is of integers.

    >>> F.hardtanh(flow.tensor([-3.0, 0.5, 3.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """
    need_tensor("hardtanh", "input", input)
    dtype = input._meta.dtype
    if dtype is bool_:
        raise DTypeError("hardtanh is not for bools")
    if not dtype.is_floating_point:
        min_val, max_val = int(min_val), int(max_val)
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: min_val {min_val} is greater than max_val {max_val}")
    return _with(_hardtanh, input, inplace, min_val, max_val)


@steady
def leaky_relu(input: Tensor, negative_slope: Number = 0.01, inplace: bool = False) -> Tensor:
    """x where it is positive, negative_slope * x elsewhere.

    >>> F.leaky_relu(flow.tensor([-2.0, 0.0, 2.0]), 0.5)
    tensor([-1.,  0.,  2.])
    """
    return _with(_leaky_relu, input, inplace, float(negative_slope))


@with_out
def threshold(input: Tensor, threshold: Number, value: Number, inplace: bool = False) -> Tensor:
    """x where it is greater than `threshold`, `value` elsewhere; both lose their fractions where x
    is of integers.  DTypeError for bools.

    >>> F.threshold(flow.tensor([1.0, 5.0]), 3.0, -1.0)
    tensor([-1.,  5.])
    """
    need_tensor("threshold", "input", input)
    dtype = input._meta.dtype
    if dtype is bool_:
        raise DTypeError("threshold is not for bools")
    if not dtype.is_floating_point:
        threshold, value = int(threshold), int(value)
    return _with(_threshold, input, inplace, threshold, value)


@with_out
def hardshrink(input: Tensor, lambd: Number = 0.5) -> Tensor:
    """x outside [-lambd, lambd], 0 inside.

    >>> F.hardshrink(flow.tensor([-1.0, 0.25, 2.0]))
    tensor([-1.,  0.,  2.])
    """
    return _with(_hardshrink, input, False, float(lambd))


@with_out
def softshrink(input: Tensor, lambd: Number = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 where that would pass it.

    >>> F.softshrink(flow.tensor([-2.0, 0.25, 2.0]))
    tensor([-1.5000,  0.0000,  1.5000])
    """
    if lambd < 0:
        raise ArgumentError(f"softshrink: lambd must not be negative, got {lambd}")
    return _with(_softshrink, input, False, float(lambd))


@steady
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """relu6(x + 3) / 6.

    >>> F.hardsigmoid(flow.tensor([-3.0, 0.0, 3.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    return _with(_hardsigmoid, input, inplace)


@steady
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * relu6(x + 3) / 6.

    >>> F.hardswish(flow.tensor([0.0, 1.5, 3.0]))
    tensor([0.0000, 1.1250, 3.0000])
    """
    return _with(_hardswish, input, inplace)


# g where x is not positive, and the gradients of prelu by x and by w: each is linear in g
_below: Elementwise = elementwise(
    "prelu_below",
    "g * 0 if x > 0 else g",
    args="x, g",
    saves="x",
    grad=lambda c, z: back(c, None, lambda: _below.call(c.saved[0], z)),
)
_prelu_x: Elementwise = elementwise(
    "prelu_backward_x",
    "g if x > 0 else w * g",
    args="x, w, g",
    saves="x, w, g",
    grad=lambda c, z: back(
        c,
        None,
        lambda: _below.call(c.saved[0], c.saved[2]) * z,
        lambda: _prelu_x.call(*c.saved[:2], z),
    ),
)
_prelu_w: Elementwise = elementwise(
    "prelu_backward_w",
    "g * 0 if x > 0 else g * x",
    args="x, g",
    saves="x, g",
    grad=lambda c, z: back(
        c, lambda: _below.call(*c.saved) * z, lambda: _prelu_w.call(c.saved[0], z)
    ),
)
_prelu = elementwise(
    "prelu",
    "x if x > 0 else w * x",
    args="x, w",
    saves="x, w",
    grad=lambda c, g: back(
        c, lambda: _prelu_x.call(*c.saved, g), lambda: _prelu_w.call(c.saved[0], g)
    ),
)


@steady
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, weight * x elsewhere; `weight` has one number, or one for each
    channel (dimension 1).

    >>> F.prelu(flow.tensor([-2.0, 0.0, 2.0]), flow.tensor([0.25]))
    tensor([-0.5000,  0.0000,  2.0000])
    """
    if hot["autocast"]:
        input, weight = lowered(input, weight)
    need_tensor("prelu", "input", input)
    need_tensor("prelu", "weight", weight)
    if input._meta.dtype is not weight._meta.dtype:
        raise DTypeError(
            f"prelu: input and weight have one dtype, got {input.dtype.name} and "
            f"{weight.dtype.name}"
        )
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or weight.numel() not in (1, channels):
        raise ShapeError(
            f"prelu: weight has 1 number or one for each of {channels} channels, got shape "
            f"{tuple(weight.shape)}"
        )
    if weight.ndim == 1 and weight.numel() == 1 and input.ndim <= 1:
        weight = weight.reshape(() if input.ndim == 0 else (1,))
    elif weight.ndim == 1:
        weight = weight.reshape((-1,) + (1,) * (input.ndim - 2))
    out: Tensor = _prelu.call(input, weight)
    return out


# --- curved ----------------------------------------------------------------------------------

_ELU = "x if x > 0 else a * expm1(x)"
_elu = _differentiable("elu", _ELU, "1 if x > 0 else a * exp(x)", "0 if x > 0 else a * exp(x)", "a")
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
_SELU_SLOPE = _SELU_ALPHA * _SELU_SCALE
_selu = _differentiable(
    "selu",
    f"{_SELU_SCALE} * x if x > 0 else {_SELU_SLOPE} * expm1(x)",
    f"{_SELU_SCALE} if x > 0 else {_SELU_SLOPE} * exp(x)",
    f"0 if x > 0 else {_SELU_SLOPE} * exp(x)",
)
_celu = _differentiable(
    "celu",
    "x if x > 0 else a * expm1(x / a)",
    "1 if x > 0 else exp(x / a)",
    "0 if x > 0 else exp(x / a) / a",
    "a",
)
_PHI = "0.3989422804014327 * exp(-0.5 * x * x)"  # the density of the normal distribution
_BELOW = "normal_cdf(x)"  # and its integral
_gelu = _differentiable("gelu", f"x * {_BELOW}", f"{_BELOW} + x * {_PHI}", f"{_PHI} * (2 - x * x)")
# (1 + tanh(u)) / 2 is sigmoid(2 u), here of u = 0.797 * (x + 0.0447 * x**3)
_G = "sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * x * x))"
_U = "(1.5957691216057308 + 0.21406444881780073 * x * x)"  # the derivative of its argument
_gelu_tanh = _differentiable(
    "gelu_tanh",
    f"x * {_G}",
    f"{_G} * (1 + x * (1 - {_G}) * {_U})",
    f"{_G} * (1 - {_G}) * (2 * {_U} + x * ((1 - 2 * {_G}) * {_U} * {_U} "
    "+ 0.42812889763560147 * x))",
)
_S = "sigmoid(x)"
_silu = _differentiable(
    "silu",
    f"x * {_S}",
    f"{_S} * (1 + x * (1 - {_S}))",
    f"{_S} * (1 - {_S}) * (2 + x * (1 - 2 * {_S}))",
    complex=lambda expr: expr.replace(_S, f"c{_S}"),
)
_M = "tanh_softplus(x)"
_mish = _differentiable(
    "mish",
    f"x * {_M}",
    f"{_M} + x * {_S} * (1 - {_M} * {_M})",
    f"{_S} * (1 - {_M} * {_M}) * (2 + x * (1 - {_S} - 2 * {_M} * {_S}))",
)
_softplus = _differentiable(
    "softplus",
    "x if x * a > b else softplus(x * a) / a",
    "1 if x * a > b else sigmoid(x * a)",
    "0 if x * a > b else a * sigmoid(x * a) * (1 - sigmoid(x * a))",
    "a, b",
    amp="full",
)
_softsign = _differentiable(
    "softsign",
    "x / (1 + abs(x))",
    "1 / ((1 + abs(x)) * (1 + abs(x)))",
    "-2 * sign(x) / ((1 + abs(x)) * (1 + abs(x)) * (1 + abs(x)))",
)
_logsigmoid = _differentiable(
    "logsigmoid", "-softplus(-x)", "sigmoid(-x)", f"-{_S} * sigmoid(-x)", c_order=True
)
_tanhshrink = _differentiable(
    "tanhshrink", "x - tanh(x)", "tanh(x) * tanh(x)", "2 * tanh(x) * (1 - tanh(x) * tanh(x))",
    complex=lambda expr: expr.replace("tanh(", "ctanh("),
)  # fmt: skip


@steady
def elu(input: Tensor, alpha: Number = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere.

    >>> F.elu(flow.tensor([-1.0, 0.0, 2.0]))
    tensor([-0.6321,  0.0000,  2.0000])
    """
    return _with(_elu, input, inplace, float(alpha))


@steady
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """elu, scaled so that activations keep mean 0 and variance 1 from layer to layer.

    >>> F.selu(flow.tensor([-1.0, 0.0, 1.0]))
    tensor([-1.1113,  0.0000,  1.0507])
    """
    return _with(_selu, input, inplace)


@steady
def celu(input: Tensor, alpha: Number = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere.

    >>> F.celu(flow.tensor([-1.0, 0.0, 2.0]))
    tensor([-0.6321,  0.0000,  2.0000])
    """
    if alpha == 0:
        raise ArgumentError("celu: alpha must not be 0")
    return _with(_celu, input, inplace, float(alpha))


# public: flow
def celu_(input: Tensor, alpha: Number = 1.0) -> Tensor:
    """`celu` in place."""
    return celu(input, alpha, True)


# public: flow
def selu_(input: Tensor) -> Tensor:
    """`selu` in place."""
    return selu(input, True)


# public: flow
def threshold_(input: Tensor, threshold: Number, value: Number) -> Tensor:
    """`threshold` in place."""
    return _in_place_threshold(input, threshold, value, True)


_in_place_threshold = threshold
for _method in (hardshrink, prelu):
    setattr(Tensor, _method.__name__, _method)


@with_out
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution below x; "tanh" approximates it.

    >>> F.gelu(flow.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f'gelu: approximate is "none" or "tanh", got {approximate!r}')
    out: Tensor = (_gelu_tanh if approximate == "tanh" else _gelu).call(input)
    return out


@steady
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x), also called swish.

    >>> F.silu(flow.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.2689,  0.0000,  0.7311])
    """
    return _with(_silu, input, inplace)


@steady
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x)).

    >>> F.mish(flow.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.3034,  0.0000,  0.8651])
    """
    return _with(_mish, input, inplace)


# OneFlow's methods
Tensor.silu, Tensor.selu, Tensor.mish = silu, selu, mish  # type: ignore[assignment, method-assign]


@with_out
def softplus(input: Tensor, beta: Number = 1.0, threshold: Number = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above the threshold.

    >>> F.softplus(flow.tensor([0.0, 100.0]))  # log 2, 100
    tensor([  0.6931, 100.0000])
    """
    return _with(_softplus, input, False, float(beta), float(threshold))


@steady
def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|), between -1 and 1.

    >>> F.softsign(flow.tensor([-1.0, 0.0, 3.0]))
    tensor([-0.5000,  0.0000,  0.7500])
    """
    if isinstance(input, Tensor) and input._meta.dtype.is_complex:
        quotient: Tensor = input / (1 + input.abs())
        return quotient
    out: Tensor = _softsign.call(input)
    return out


@steady
def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)) without overflow.

    >>> F.logsigmoid(flow.tensor([0.0, -100.0]))
    tensor([  -0.6931, -100.0000])
    """
    out: Tensor = _logsigmoid.call(input)
    return out


@steady
def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x), flat around 0.

    >>> F.tanhshrink(flow.tensor([0.0, 100.0]))
    tensor([ 0., 99.])
    """
    out: Tensor = _tanhshrink.call(input)
    return out


@steady
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b), where a and b are the two halves of x along `dim`.

    >>> F.glu(flow.tensor([1.0, 2.0, 0.0, 0.0]))  # half of 1 and 2
    tensor([0.5000, 1.0000])
    """
    dim = wrap_dim("glu", dim, need_tensor("glu", "input", input).ndim)
    size = input.shape[dim] if input.ndim else 0
    if input.ndim == 0 or size % 2:
        raise ShapeError(
            f"glu: dimension {dim} of shape {tuple(input.shape)} must have an even size to be "
            f"halved"
        )
    half = size // 2
    out: Tensor = input.narrow(dim, 0, half) * input.narrow(dim, half, half).sigmoid()
    return out


# --- samples -----------------------------------------------------------------------------------


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _erf(x: object) -> Any:
    from scipy import special

    return special.erf(x)


def _each(*params: float) -> Callable[[np.random.Generator], list[Sample]]:
    def generate(rng: np.random.Generator) -> list[Sample]:
        x = rng.standard_normal
        return [
            Sample((x((3, 4)) * 3, *params)),
            Sample((np.asarray(0.7), *params)),
            Sample((x((0, 3)), *params)),
        ]

    return generate


def _register() -> None:
    clip = np.clip

    def gate(x: Any) -> object:
        return np.clip(x + 3, 0, 6) / 6

    expm1, log1p, tanh = np.expm1, np.log1p, np.tanh
    table = (
        (relu, (), lambda x: np.maximum(x, 0)),
        (relu6, (), lambda x: clip(x, 0, 6)),
        (hardtanh, (-1.5, 0.5), lambda x, a, b: clip(x, a, b)),
        (leaky_relu, (0.2,), lambda x, a: np.where(x > 0, x, a * x)),
        (threshold, (0.3, -2.0), lambda x, a, b: np.where(x > a, x, b)),
        (hardshrink, (0.5,), lambda x, a: np.where(abs(x) > a, x, 0)),
        (softshrink, (0.5,), lambda x, a: np.sign(x) * np.maximum(abs(x) - a, 0)),
        (hardsigmoid, (), gate),
        (hardswish, (), lambda x: x * gate(x)),
        (elu, (1.3,), lambda x, a: np.where(x > 0, x, a * expm1(x))),
        (selu, (), lambda x: _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * expm1(x))),
        (celu, (1.3,), lambda x, a: np.where(x > 0, x, a * expm1(x / a))),
        (silu, (), lambda x: x * _sigmoid(x)),
        (mish, (), lambda x: x * tanh(log1p(np.exp(x)))),
        (softplus, (1.5, 3.0), lambda x, b, t: np.where(x * b > t, x, log1p(np.exp(b * x)) / b)),
        (softsign, (), lambda x: x / (1 + abs(x))),
        (logsigmoid, (), lambda x: np.log(_sigmoid(x))),
        (tanhshrink, (), lambda x: x - tanh(x)),
    )
    for function, params, reference in table:
        samples(function, _each(*params), reference)


_register()
samples(
    gelu,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)) * 2,)),
        Sample((rng.standard_normal((3, 4)) * 2,), {"approximate": "tanh"}),
        Sample((np.asarray(0.3),)),
    ],
    lambda x, approximate="none": (
        0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        if approximate == "tanh"
        else 0.5 * x * (1 + _erf(x / np.sqrt(2)))
    ),
    errors=((lambda flow: flow.gelu(flow.ones(2), approximate="erf"), ValueError),),
)
samples(
    prelu,
    lambda rng: [
        Sample((rng.standard_normal((2, 3, 4)), rng.standard_normal(3))),
        Sample((rng.standard_normal((2, 3)), rng.standard_normal(1))),
        Sample((rng.standard_normal(4), rng.standard_normal(1))),
    ],
    lambda x, w: np.where(x > 0, x, x * w.reshape((-1,) + (1,) * max(0, x.ndim - 2))),
    errors=((lambda flow: flow.prelu(flow.ones(2, 3), flow.ones(2)), RuntimeError),),
)
samples(
    glu,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)),)),
        Sample((rng.standard_normal((4, 3)), 0)),
        Sample((rng.standard_normal((2, 0)),)),
    ],
    lambda x, dim=-1: np.split(x, 2, dim)[0] * _sigmoid(np.split(x, 2, dim)[1]),
    errors=((lambda flow: flow.glu(flow.ones(3)), RuntimeError),),
)
