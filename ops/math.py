"""Functions of one tensor, element by element, with their gradients.

Each is one declaration: the scalar expression, and the gradient in terms of the other ops.
Integers go through the default dtype where the function's values are not integers.  `METHODS` at
the end makes the methods: `x.exp()` and `x.exp_()`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.dtype import int64
from flowvm.errors import ArgumentError, DTypeError
from flowvm.ops.core import cast, sum_to
from flowvm.ops.create import zeros_like
from flowvm.ops.elementwise import Elementwise, elementwise
from flowvm.ops.recording import need_tensor
from flowvm.ops.registry import Sample, samples
from flowvm.tensor import Tensor, method

__all__ = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "fix",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "neg",
    "negative",
    "polygamma",
    "positive",
    "rad2deg",
    "reciprocal",
    "round",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]

Grad = Callable[[Any, Tensor], tuple[Any, ...]]


def back(c: Any, *makers: Callable[[], Tensor] | None) -> tuple[Tensor | None, ...]:
    """The gradients of the arguments that need one: made, summed back to the argument's shape, in
    its dtype.
    """
    return tuple(
        _fit(make(), c.metas[i]) if make is not None and c.needs[i] else None
        for i, make in enumerate(makers)
    )


def _fit(g: Tensor, meta: Any) -> Tensor:
    g = sum_to(g, meta.shape)
    return g if g._meta.dtype is meta.dtype else cast(g, meta.dtype)


def _flat(c: Any, g: Tensor) -> tuple[Tensor]:
    """The gradient of a step function: 0."""
    return (zeros_like(g),)


def _unary(
    name: str,
    expr: str,
    grad: Grad | None,
    doc: str,
    *,
    saves: str = "x",
    types: str = "float",
) -> Elementwise:
    return elementwise(name, expr, types=types, saves=saves, grad=grad, doc=doc)


# --- exponentials and logarithms --------------------------------------------------------------

exp = _unary("exp", "exp(x)", lambda c, g: (g * c.saved[0],), "e to the power of x.", saves="out")
exp2 = _unary(
    "exp2",
    "exp2(x)",
    lambda c, g: (g * c.saved[0] * math.log(2),),
    "2 to the power of x.",
    saves="out",
)
expm1 = _unary(
    "expm1",
    "expm1(x)",
    lambda c, g: (g * (c.saved[0] + 1),),
    "exp(x) - 1, exact for small x.",
    saves="out",
)
log = _unary("log", "log(x)", lambda c, g: (g / c.saved[0],), "The natural logarithm.")
log2 = _unary(
    "log2", "log2(x)", lambda c, g: (g / (c.saved[0] * math.log(2)),), "The logarithm to base 2."
)
log10 = _unary(
    "log10",
    "log10(x)",
    lambda c, g: (g / (c.saved[0] * math.log(10)),),
    "The logarithm to base 10.",
)
log1p = _unary(
    "log1p", "log1p(x)", lambda c, g: (g / (c.saved[0] + 1),), "log(1 + x), exact for small x."
)

# --- powers -----------------------------------------------------------------------------------

sqrt = _unary(
    "sqrt", "sqrt(x)", lambda c, g: (g / (c.saved[0] * 2),), "The square root.", saves="out"
)
rsqrt = _unary(
    "rsqrt",
    "rsqrt(x)",
    lambda c, g: (g * -0.5 * c.saved[0] * c.saved[0] * c.saved[0],),
    "The reciprocal of the square root."
,
    saves="out",
)
reciprocal = _unary(
    "reciprocal",
    "1 / x",
    lambda c, g: (-g * c.saved[0] * c.saved[0],),
    "The reciprocal, 1 / x.",
    saves="out",
)
_square = _unary("square", "x * x", lambda c, g: (g * (c.saved[0] * 2),), "x * x.", types="promote")

# --- trigonometry -----------------------------------------------------------------------------

sin = _unary("sin", "sin(x)", lambda c, g: (g * cos.call(c.saved[0]),), "The sine, x in radians.")
cos: Elementwise = _unary(
    "cos", "cos(x)", lambda c, g: (-g * sin.call(c.saved[0]),), "The cosine, x in radians."
)
tan = _unary(
    "tan",
    "tan(x)",
    lambda c, g: (g * (c.saved[0] * c.saved[0] + 1),),
    "The tangent, x in radians.",
    saves="out",
)
asin = _unary(
    "asin",
    "asin(x)",
    lambda c, g: (g * rsqrt.call(1 - c.saved[0] * c.saved[0]),),
    "The angle in radians whose sine is x; NaN outside [-1, 1].",
)
acos: Elementwise = _unary(
    "acos",
    "acos(x)",
    lambda c, g: (-g * rsqrt.call(1 - c.saved[0] * c.saved[0]),),
    "The angle in radians whose cosine is x; NaN outside [-1, 1].",
)
atan = _unary(
    "atan",
    "atan(x)",
    lambda c, g: (g / (c.saved[0] * c.saved[0] + 1),),
    "The angle in radians whose tangent is x.",
)
sinh = _unary("sinh", "sinh(x)", lambda c, g: (g * cosh.call(c.saved[0]),), "The hyperbolic sine.")
cosh: Elementwise = _unary(
    "cosh", "cosh(x)", lambda c, g: (g * sinh.call(c.saved[0]),), "The hyperbolic cosine."
)
tanh = _unary(
    "tanh",
    "tanh(x)",
    lambda c, g: (g * (1 - c.saved[0] * c.saved[0]),),
    "The hyperbolic tangent.",
    saves="out",
)
asinh = _unary(
    "asinh",
    "asinh(x)",
    lambda c, g: (g * rsqrt.call(c.saved[0] * c.saved[0] + 1),),
    "The inverse of sinh.",
)
acosh: Elementwise = _unary(
    "acosh",
    "acosh(x)",
    lambda c, g: (g * rsqrt.call(c.saved[0] * c.saved[0] - 1),),
    "The inverse of cosh; NaN below 1.",
)
atanh = _unary(
    "atanh",
    "atanh(x)",
    lambda c, g: (g / (1 - c.saved[0] * c.saved[0]),),
    "The inverse of tanh; NaN outside [-1, 1].",
)
deg2rad = _unary(
    "deg2rad",
    f"x * {math.pi / 180!r}",
    lambda c, g: (g * (math.pi / 180),),
    "Degrees to radians.",
    saves="",
)
rad2deg = _unary(
    "rad2deg",
    f"x * {180 / math.pi!r}",
    lambda c, g: (g * (180 / math.pi),),
    "Radians to degrees.",
    saves="",
)

# --- special functions ------------------------------------------------------------------------

sigmoid = _unary(
    "sigmoid",
    "sigmoid(x)",
    lambda c, g: (g * (c.saved[0] * (1 - c.saved[0])),),
    "1 / (1 + exp(-x)).",
    saves="out",
)
erf = _unary(
    "erf",
    "erf(x)",
    lambda c, g: (g * (exp.call(-(c.saved[0] * c.saved[0])) * (2 / math.sqrt(math.pi))),),
    "The error function.",
)
erfc = _unary(
    "erfc",
    "erfc(x)",
    lambda c, g: (g * (exp.call(-(c.saved[0] * c.saved[0])) * (-2 / math.sqrt(math.pi))),),
    "1 - erf(x), exact for large x.",
)
erfinv = _unary(
    "erfinv",
    "erfinv(x)",
    lambda c, g: (g * (exp.call(c.saved[0] * c.saved[0]) * (math.sqrt(math.pi) / 2)),),
    "The inverse of erf; NaN outside [-1, 1].",
    saves="out",
)
lgamma = _unary(
    "lgamma",
    "lgamma(x)",
    lambda c, g: (g * digamma.call(c.saved[0]),),
    "The logarithm of the absolute value of the gamma function.",
)
digamma: Elementwise = _unary(
    "digamma",
    "digamma(x)",
    lambda c, g: (g * _polygamma.call(1, c.saved[0]),),
    "The derivative of lgamma.",
)
_polygamma: Elementwise = elementwise(
    "polygamma",
    "polygamma(n, x)",
    args="n, x",
    types="float",
    saves="n, x",
    grad=lambda c, g: (None, g * _polygamma.call(c.saved[0] + 1, c.saved[1])),
)

# --- signs, rounding --------------------------------------------------------------------------

abs = _unary(
    "abs",
    "abs(x)",
    lambda c, g: (g * sign.call(c.saved[0]),),
    "The absolute value.",
    types="number",
)
neg: Elementwise = _unary(
    "neg", "-x", lambda c, g: (neg.call(g),), "-x.  DTypeError for bools.", saves="", types="number"
)
sign: Elementwise = _unary("sign", "sign(x)", _flat, "-1, 0 or 1 by the sign of x.", saves="", types="promote")
sgn = sign
floor = _unary(
    "floor", "floor(x)", _flat, "The next integer below or equal.", saves="", types="number"
)
ceil = _unary(
    "ceil", "ceil(x)", _flat, "The next integer above or equal.", saves="", types="number"
)
trunc = _unary("trunc", "trunc(x)", _flat, "The integer part.", saves="", types="number")
_round = _unary(
    "round", "round(x)", _flat, "The nearest integer, halves to even.", saves="", types="number"
)
_frac = _unary("frac", "x - trunc(x)", lambda c, g: (g,), "x - trunc(x).", saves="", types="number")

absolute, negative, fix = abs, neg, trunc
arcsin, arccos, arctan = asin, acos, atan
arcsinh, arccosh, arctanh = asinh, acosh, atanh


@method()
def positive(input: Tensor) -> Tensor:
    """`input` itself.  DTypeError for bools."""
    if need_tensor("positive", "input", input)._meta.dtype.is_bool:
        raise DTypeError("positive of a bool tensor is not defined")
    return input


def polygamma(n: int, input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The derivative number `n` of digamma."""
    if not isinstance(n, int) or n < 0:
        raise ArgumentError(f"polygamma: n is a non-negative int, got {n!r}")
    value: Tensor = _polygamma(n, need_tensor("polygamma", "input", input), out=out)
    return value


def square(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x * x; bools count as int64."""
    if need_tensor("square", "input", input)._meta.dtype.is_bool:
        input = input.to(int64)
    squared: Tensor = _square(input, out=out)
    return squared


def frac(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x - trunc(x).  DTypeError for integers and bools."""
    if not need_tensor("frac", "input", input)._meta.dtype.is_floating_point:
        raise DTypeError(f"frac is for floats, got {input.dtype.name}")
    part: Tensor = _frac(input, out=out)
    return part


def round(input: Tensor, *, decimals: int = 0, out: Tensor | None = None) -> Tensor:
    """x rounded to `decimals` digits after the point (before it, if negative), halves to even."""
    if decimals == 0:
        whole: Tensor = _round(input, out=out)
        return whole
    if not need_tensor("round", "input", input)._meta.dtype.is_floating_point:
        raise DTypeError(f"round with decimals is for floats, got {input.dtype.name}")
    scale = 10.0 ** builtins.abs(decimals)
    if decimals > 0:
        return _into(out, _round.call(input * scale) / scale)
    return _into(out, _round.call(input / scale) * scale)


def _into(out: Tensor | None, result: Tensor) -> Tensor:
    if out is None:
        return result
    copied: Tensor = out.copy_(result)
    return copied


METHODS = (
    exp, exp2, expm1, log, log2, log10, log1p, sqrt, rsqrt, reciprocal, sin, cos, tan, asin, acos,
    atan, sinh, cosh, tanh, asinh, acosh, atanh, deg2rad, rad2deg, sigmoid, erf, erfc, erfinv,
    lgamma, digamma, abs, neg, sign, floor, ceil, trunc,
)  # fmt: skip
ALIASES = {
    "absolute": abs, "negative": neg, "sgn": sign, "fix": trunc, "arcsin": asin, "arccos": acos,
    "arctan": atan, "arcsinh": asinh, "arccosh": acosh, "arctanh": atanh,
}  # fmt: skip


def in_place(f: Elementwise, name: str) -> Callable[..., Tensor]:
    """The method that writes `f(x, ...)` into `x`."""

    def method_(x: Tensor, *args: Any) -> Tensor:
        return f.into(x, x, *args)

    method_.__name__ = method_.__qualname__ = name
    method_.__doc__ = f"In-place `{f.name}`: the result replaces the values of `x`; `x`."
    return method_


def attach(f: Elementwise, name: str) -> None:
    """`Tensor.<name>` and `Tensor.<name>_`."""
    setattr(Tensor, name, f.call)
    setattr(Tensor, name + "_", in_place(f, name + "_"))


for _f in METHODS:
    attach(_f, _f.name)
for _name, _f in ALIASES.items():
    attach(_f, _name)
Tensor.__neg__ = neg.call  # type: ignore[method-assign]
setattr(Tensor, "__pos__", positive)  # noqa: B010 - mypy wants it declared
Tensor.__abs__ = abs.call  # type: ignore[attr-defined]
for _name, _public, _h in (("square", square, _square), ("frac", frac, _frac), ("round", round, _round)):
    setattr(Tensor, _name, _public)
    setattr(Tensor, _name + "_", in_place(_h, _name + "_"))


@method("polygamma")
def _polygamma_method(x: Tensor, n: int) -> Tensor:
    """The derivative number `n` of digamma."""
    return polygamma(n, x)


# --- samples ----------------------------------------------------------------------------------


def _special(name: str) -> Callable[..., Any]:
    """SciPy's function, imported when it is called."""

    def reference(x: Any) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(x)

    return reference


def _within(low: float, high: float) -> Callable[[np.random.Generator], list[Sample]]:
    return lambda rng: [
        Sample((rng.uniform(low, high, (3, 4)),)),
        Sample((rng.uniform(low, high, ()),)),
        Sample((np.zeros((2, 0)),)),
    ]


def _between_integers(rng: np.random.Generator) -> list[Sample]:
    x = rng.integers(-3, 3, (3, 4)) + rng.uniform(0.1, 0.4, (3, 4))
    return [Sample((x,)), Sample((x[0, 0, ...],)), Sample((np.zeros((2, 0)),))]


_REFERENCES: tuple[tuple[Any, Callable[..., Any], float, float], ...] = (
    (exp, np.exp, -2, 2),
    (exp2, np.exp2, -2, 2),
    (expm1, np.expm1, -1, 1),
    (log, np.log, 0.2, 3),
    (log2, np.log2, 0.2, 3),
    (log10, np.log10, 0.2, 3),
    (log1p, np.log1p, -0.7, 2),
    (sqrt, np.sqrt, 0.2, 3),
    (rsqrt, lambda x: 1 / np.sqrt(x), 0.2, 3),
    (reciprocal, lambda x: 1 / x, 0.3, 3),
    (square, np.square, -2, 2),
    (sin, np.sin, -3, 3),
    (cos, np.cos, -3, 3),
    (tan, np.tan, -1, 1),
    (asin, np.arcsin, -0.8, 0.8),
    (acos, np.arccos, -0.8, 0.8),
    (atan, np.arctan, -2, 2),
    (sinh, np.sinh, -2, 2),
    (cosh, np.cosh, -2, 2),
    (tanh, np.tanh, -2, 2),
    (asinh, np.arcsinh, -2, 2),
    (acosh, np.arccosh, 1.3, 3),
    (atanh, np.arctanh, -0.7, 0.7),
    (deg2rad, np.deg2rad, -180, 180),
    (rad2deg, np.rad2deg, -3, 3),
    (sigmoid, _special("expit"), -3, 3),
    (erf, _special("erf"), -2, 2),
    (erfc, _special("erfc"), -2, 2),
    (erfinv, _special("erfinv"), -0.8, 0.8),
    (lgamma, _special("gammaln"), 0.5, 3),
    (digamma, _special("psi"), 0.5, 3),
    (abs, np.abs, 0.2, 2),
    (neg, np.negative, -2, 2),
    (positive, np.positive, -2, 2),
)
for _g, _reference, _low, _high in _REFERENCES:
    samples(_g, _within(_low, _high), _reference)
_STEPS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (sign, np.sign),
    (floor, np.floor),
    (ceil, np.ceil),
    (trunc, np.trunc),
    (frac, lambda x: x - np.trunc(x)),
)
for _g, _reference in _STEPS:
    samples(_g, _between_integers, _reference, grad2=_g is frac)
samples(
    round,
    lambda rng: [*_between_integers(rng), Sample((rng.uniform(-1, 1, 4),), {"decimals": 1})],
    lambda x, decimals=0: np.round(x, decimals),
    floats=("float64", "float32"),
    grad2=False,
    errors=(
        (lambda flow: flow.exp([1.0]), TypeError),
        (lambda flow: flow.neg(flow.tensor([True])), RuntimeError),
        (lambda flow: flow.frac(flow.tensor([1])), RuntimeError),
        (lambda flow: flow.tensor([1, 2]).exp_(), RuntimeError),
        (lambda flow: flow.exp(flow.ones(2), out=flow.ones(3)), RuntimeError),
        (lambda flow: flow.polygamma(-1, flow.ones(2)), ValueError),
    ),
)


def _polygamma_reference(n: int, x: Any) -> Any:
    import scipy.special

    return scipy.special.polygamma(n, x)


samples(
    polygamma,
    lambda rng: [Sample((n, rng.uniform(0.5, 3, (2, 2)))) for n in (1, 2)],
    _polygamma_reference,
)
