"""Numbers taken apart and put together: divisors, exponents, neighbours, logits.

Each is one declaration or a composition of others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm import return_types
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentTypeError, DTypeError
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import bool_, complex128, float64, int32
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.core import laid_as
from flowvm.ops.declare.elementwise import Elementwise, elementwise
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.outputs import replaced, with_out
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.pointwise.clamp import clamp
from flowvm.ops.pointwise.compare import eq, where
from flowvm.ops.pointwise.math import exp2, log
from flowvm.ops.pointwise.parts.unary import attach, back, in_place, unary, within
from flowvm.ops.pointwise.power import _fill, filling, pow
from flowvm.ops.pointwise.trigonometry import cos, sigmoid, sin
from flowvm.ops.scalar.bits import exponent as exponent_of
from flowvm.ops.scalar.bits import mantissa as mantissa_of
from flowvm.ops.scalar.intrinsics import copysign, fabs
from flowvm.ops.shapes.fill import ones_like, zeros_like

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow


# --- integers -----------------------------------------------------------------------------------


def _divisors(f: Elementwise, doc: str) -> Any:
    """`f` for integers alone: bools have no divisors."""

    def call(input: Tensor, other: Any, *, out: Tensor | None = None) -> Tensor:
        for argument in (input, other):
            kind = argument._meta.dtype if isinstance(argument, Tensor) else None
            if kind is not None and (kind.is_bool or kind.is_floating_point):
                raise DTypeError(f"{f.name} is for integers, got {kind.name}")
        result: Tensor = f(input, other, out=out)
        return result

    call.__name__ = call.__qualname__ = f.name
    call.__doc__ = doc
    setattr(Tensor, f.name, call)
    replaced(call)
    return call


gcd = _divisors(
    elementwise("gcd", "gcd(x, y)", types="int"),
    """The greatest common divisor of integers, not negative; gcd(0, 0) is 0.

    >>> flow.gcd(flow.tensor([12, -9, 0]), flow.tensor([8, 6, 0]))
    tensor([4, 3, 0])
    """,
)
lcm = _divisors(
    elementwise("lcm", "lcm(x, y)", types="int"),
    """The least common multiple of integers, not negative.

    >>> flow.lcm(flow.tensor([4, 6]), flow.tensor([6, -9]))
    tensor([12, 18])
    """,
)


# --- exponents ------------------------------------------------------------------------------------


@method()
@with_out
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """`input * 2 ** other`, broadcast; integers give floats.

    >>> flow.ldexp(flow.tensor([1.0, 3.0]), flow.tensor([2, 1]))
    tensor([4., 6.])
    """
    x, power = need_tensor("ldexp", "input", input), need_tensor("ldexp", "other", other)
    kind = x._meta.dtype
    if kind.is_floating_point and not power._meta.dtype.is_floating_point:
        scale = pow(2.0, power.to(kind)).to(kind)  # of x's dtype, also where autocast widens
    else:
        scale = pow(2.0, power)
    scaled: Tensor = x * scale
    return scaled


_SMALLEST, _LIFT, _LIFTED = 2.2250738585072014e-308, 18014398509481984.0, 54.0


def _frexp_body(mantissa: Array, exponent: Array, x: Array, lo: int, hi: int) -> None:
    for i in range(lo, hi):
        value = x[i] * 1.0  # as float64
        size = fabs(value)
        part, power = value, 0.0
        if 0.0 < size < math.inf:
            small = size < _SMALLEST
            normal = size * _LIFT if small else size
            half = mantissa_of(normal)  # from the root of 1/2 on
            power = exponent_of(normal) - (_LIFTED if small else 0.0)
            if half >= 1.0:
                half *= 0.5
                power += 1.0
            part = copysign(half, value)
        mantissa[i] = part
        exponent[i] = int(power)


def _frexp_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (exponent,) = c.saved
    return (g * exp2(-exponent.to(g._meta.dtype)),)


@op("x -> mantissa, exponent", name="frexp", saves="exponent", constants="exponent",
    grad=_frexp_grad, letters=unsplit)  # fmt: skip
def _frexp(x: TensorMeta) -> Launch:
    outputs = (x.dense(), x.dense(int32))
    views = tuple(View(m.dtype, (x.numel,)) for m in (*outputs, x))
    return Launch(outputs, _frexp_body, views, units=x.numel, grain=GRAIN)


# --- neighbours, logarithms, powers ---------------------------------------------------------------


def _nextafter_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    x, y = c.saved
    none = zeros_like(g)
    return back(c, lambda: where(eq(x, y), none, g), lambda: none)


_nextafter = elementwise("nextafter", "nextafter(x, y)", saves="x, y", grad=_nextafter_grad)


def nextafter(input: Tensor, other: object, *, out: Tensor | None = None) -> Tensor:
    """The next number after `input`, of its dtype, on the way to `other`, broadcast.

    DTypeError for integers, and for floats of 16 bits, whose neighbours are not float32's.

    >>> flow.nextafter(flow.tensor(1.0), flow.tensor(2.0)) - 1
    tensor(1.1921e-07)
    """
    for argument in (input, other):
        if isinstance(argument, Tensor):
            kind = argument._meta.dtype
            if kind.reduced or not kind.is_floating_point:
                raise DTypeError(f"nextafter is for float32 and float64, got {kind.name}")
    after: Tensor = _nextafter(input, other, out=out)
    return after


def _logaddexp2_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    x, y = c.saved
    over = (x - y) * math.log(2)
    return back(c, lambda: g * sigmoid.call(over), lambda: g * sigmoid.call(-over))


_logaddexp2 = elementwise(
    "logaddexp2",
    "x + 1 if x == y else maximum(x, y) + log1p(exp2(-abs(x - y))) * 1.4426950408889634",
    saves="x, y",
    grad=_logaddexp2_grad,
    several=True,
)


def logaddexp2(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """log2(2 ** input + 2 ** other), broadcast.  DTypeError for integers.

    >>> flow.logaddexp2(flow.tensor(3.0), flow.tensor(3.0))
    tensor(4.)
    """
    for argument in (input, other):
        if not need_tensor("logaddexp2", "input", argument)._meta.dtype.is_floating_point:
            raise DTypeError(f"logaddexp2 is for floats, got {argument.dtype.name}")
    total: Tensor = _logaddexp2(input, other, out=out)
    return total


def _wide(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.to(complex128 if x._meta.dtype.is_complex else float64)
    if isinstance(x, complex):
        return x
    try:
        if isinstance(x, str):
            raise TypeError
        return float(x)
    except TypeError:
        kind = type(x).__name__
        raise ArgumentTypeError(
            f"float_power: a Tensor or a number is needed, got {kind} ({x!r})"
        ) from None


@with_out
def float_power(input: object, exponent: object) -> Tensor:
    """`input` to the power of `exponent`, both as float64 or complex128; either may be a number.

    >>> flow.float_power(flow.tensor([2, 3]), 2)
    tensor([4., 9.], dtype=float64)
    """
    power: Tensor = pow(_wide(input), _wide(exponent))
    return power


Tensor.float_power = float_power  # type: ignore[method-assign]
replaced(float_power)


def _odds_grad(x: Any, g: Tensor) -> Tensor:
    slope: Tensor = where((x >= 0) & (x <= 1), g / (x * (1 - x)), math.nan)
    return slope


_logit = unary(
    "logit",
    "log(x / (1 - x))",
    lambda c, g: (_odds_grad(c.saved[0], g),),
    "The inverse of sigmoid.",
)


# public: flow, special
@method()
@with_out
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of sigmoid; with `eps`, x is first clamped to eps and 1 - eps.
    Without, NaN outside of 0 to 1.

    >>> flow.logit(flow.tensor([0.0, 0.5, 1.0]))
    tensor([-inf, 0., inf])
    """
    x = need_tensor("logit", "input", input)
    if eps is not None:
        if not x._meta.dtype.is_floating_point:
            x = x.to(log(x)._meta.dtype)
        x = clamp(x, eps, 1 - eps)
    odds: Tensor = _logit(x)
    return odds


replaced(logit)


def _sinc_bend(x: object) -> Any:
    """The second derivative of sinc."""
    none = eq(x, 0)
    ratio = where(none, -(math.pi**2) / 3, sinc_slope(x) / where(none, 1.0, x))
    return -(math.pi**2) * sinc(x) - 2 * ratio


# near 0 the derivative's series, whose terms do not cancel
_ANGLE = "(3.141592653589793 * x)"
_SERIES = "0"
for _k in range(9, 0, -1):
    _factor = (-1) ** _k * 2 * _k / math.factorial(2 * _k + 1)
    _SERIES = f"({_factor!r} + {_ANGLE} * {_ANGLE} * {_SERIES})"
# not public
sinc_slope = elementwise(
    "sinc_slope",
    f"3.141592653589793 * {_ANGLE} * {_SERIES} if abs(x) < 0.35 else "
    f"({_ANGLE} * cos({_ANGLE}) - sin({_ANGLE})) / ({_ANGLE} * x)",
    types="float",
    saves="x",
    grad=lambda c, g: (g * _sinc_bend(c.saved[0]),),
)


def _sinc_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (x,) = c.saved
    if not x._meta.dtype.is_complex:
        return (g * sinc_slope(x),)
    angle = x * math.pi
    slope = (angle * cos(angle) - sin(angle)) / (angle * x)
    return (g * where(x == 0, zeros_like(slope), slope),)


# public: flow, special
sinc = unary(
    "sinc",
    "1 if x == 0 else sin(3.141592653589793 * x) / (3.141592653589793 * x)",
    _sinc_grad,
    """sin(pi x) / (pi x), and 1 at 0.

    >>> flow.sinc(flow.tensor([0.0, 0.5]))  # 1, 2 / pi
    tensor([1.0000, 0.6366])
    """,
    complex="csinc(x)",
)
attach(sinc, "sinc")


@method()
@steady
def isreal(input: Tensor) -> Tensor:
    """Test whether each element has no imaginary part.

    >>> flow.isreal(flow.tensor([1 + 0j, 1j]))
    tensor([ True, False])
    """
    x = need_tensor("isreal", "input", input)
    if x._meta.dtype.is_complex:
        return x.imag == 0
    return ones_like(x, dtype=bool_)


def fill(input: Tensor, value: object) -> Tensor:
    """A tensor like `input` with every element `value`, a number or a 0-d tensor.

    >>> flow.fill(flow.zeros(2), 7)
    tensor([7., 7.])
    """
    x = need_tensor("fill", "input", input)
    out: Tensor = _fill.call(x, filling("fill", x, value))
    return out


for _f in (_nextafter, _logaddexp2):
    setattr(Tensor, _f.name, nextafter if _f is _nextafter else logaddexp2)
Tensor.nextafter_ = in_place(_nextafter, "nextafter_")  # type: ignore[assignment, method-assign]
replaced(ldexp)


@method()
@with_out
def frexp(input: Tensor) -> return_types.frexp:
    """Each element as a mantissa of absolute value in [1/2, 1), 0 for 0, and an exponent of 2, as
    int32.  DTypeError for integers.

    >>> flow.frexp(flow.tensor([3.0, 8.0]))
    flow.return_types.frexp(
    mantissa=tensor([0.7500, 0.5000]),
    exponent=tensor([2, 4], dtype=int32))
    """
    x = need_tensor("frexp", "input", input)
    if not x._meta.dtype.is_floating_point:
        raise DTypeError(f"frexp is for floats, got {x.dtype.name}")
    mantissa, exponent = _frexp(x)
    return return_types.frexp((laid_as(mantissa, x), laid_as(exponent, x)))


# --- samples --------------------------------------------------------------------------------------


def _integers(rng: np.random.Generator) -> list[Sample]:
    a, b = rng.integers(-30, 30, (3, 4)), rng.integers(-30, 30, 4)
    return [Sample((a, b)), Sample((np.array([0, 0, 6]), np.array([0, 5, 0])))]


samples(
    gcd,
    _integers,
    np.gcd,
    grad=False,
    errors=((lambda flow: flow.gcd(flow.ones(2), flow.ones(2)), RuntimeError),),
)
samples(lcm, _integers, np.lcm, grad=False)
samples(
    ldexp,
    lambda rng: [Sample((rng.standard_normal((2, 3)), np.array([-1, 0, 3])))],
    lambda x, e: x * 2.0**e,
)
samples(
    frexp,
    lambda rng: [Sample((rng.uniform(0.3, 40, (2, 3)),)), Sample((np.array([-3.0, 1.5]),))],
    np.frexp,
    errors=((lambda flow: flow.frexp(flow.arange(2)), RuntimeError),),
)
samples(
    nextafter,
    lambda rng: [Sample((rng.standard_normal(4), rng.standard_normal(4)))],
    np.nextafter,
    grad=False,
    floats=("float64",),
    errors=((lambda flow: flow.nextafter(flow.arange(2), flow.arange(2)), RuntimeError),),
)
samples(
    logaddexp2,
    lambda rng: [Sample((rng.standard_normal((2, 3)), rng.standard_normal(3)))],
    np.logaddexp2,
    errors=((lambda flow: flow.logaddexp2(flow.arange(2), flow.arange(2)), RuntimeError),),
)
samples(
    float_power,
    lambda rng: [Sample((rng.uniform(0.5, 2, 3), rng.uniform(-1, 1, 3))), Sample((2, np.ones(2)))],
    np.float_power,
    floats=("float64", "float32"),
)
samples(
    logit,
    lambda rng: [
        Sample((rng.uniform(0.2, 0.8, (2, 3)),)),
        Sample((np.array([0.05, 0.5, 0.99]),), {"eps": 0.1}),
    ],
    lambda x, eps=0.0: np.log(np.clip(x, eps, 1 - eps) / (1 - np.clip(x, eps, 1 - eps))),
    floats=("float64", "float32"),
)
samples(sinc, within(0.1, 2), np.sinc)
samples(fill, lambda rng: [Sample((rng.standard_normal(3), 2.0))], lambda x, v: np.full_like(x, v))
samples(isreal, lambda rng: [Sample((rng.standard_normal(3),))], np.isreal, grad=False)
