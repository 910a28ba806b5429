"""Functions of one tensor, element by element, with their gradients.

Each is one declaration: the scalar expression, and the gradient in terms of the other ops.  Integers go through the
default dtype where the function's values are not integers.  `METHODS` at the end makes the methods: `x.exp()` and `x.exp_()`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.dtype import int64
from flowvm.errors import DTypeError
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
    """The gradients of the arguments that need one: made, summed back to the argument's shape, in its dtype."""
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
    "log10", "log10(x)", lambda c, g: (g / (c.saved[0] * math.log(10)),), "The logarithm to base 10."
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
    "1 / sqrt(x).",
    saves="out",
)
reciprocal = _unary(
    "reciprocal",
    "1 / x",
    lambda c, g: (-g * c.saved[0] * c.saved[0],),
    "1 / x.",
    saves="out",
)
_square = _unary(
    "square", "x * x", lambda c, g: (g * (c.saved[0] * 2),), "x * x.", types="promote"
)

# --- trigonometry -----------------------------------------------------------------------------

sin = _unary("sin", "sin(x)", lambda c, g: (g * cos.call(c.saved[0]),), "The sine, x in radians.")
cos = _unary("cos", "cos(x)", lambda c, g: (-g * sin.call(c.saved[0]),), "The cosine, x in radians.")
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
acos = _unary(
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
cosh = _unary("cosh", "cosh(x)", lambda c, g: (g * sinh.call(c.saved[0]),), "The hyperbolic cosine.")
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
acosh = _unary(
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
digamma = _unary(
    "digamma",
    "digamma(x)",
    None,
    "The derivative of lgamma.",
)

# --- signs, rounding --------------------------------------------------------------------------

abs = _unary(
    "abs", "abs(x)", lambda c, g: (g * sign.call(c.saved[0]),), "The absolute value.", types="number"
)
neg = _unary(
    "neg", "-x", lambda c, g: (neg.call(g),), "-x.  DTypeError for bools.", saves="", types="number"
)
sign = _unary("sign", "sign(x)", _flat, "-1, 0 or 1 by the sign of x.", saves="", types="promote")
sgn = sign
floor = _unary(
    "floor", "floor(x)", _flat, "The next integer below or equal.", saves="", types="number"
)
ceil = _unary("ceil", "ceil(x)", _flat, "The next integer above or equal.", saves="", types="number")
trunc = _unary("trunc", "trunc(x)", _flat, "The integer part.", saves="", types="number")
_round = _unary(
    "round", "round(x)", _flat, "The nearest integer, halves to even.", saves="", types="number"
)
_frac = _unary(
    "frac", "x - trunc(x)", lambda c, g: (g,), "x - trunc(x).", saves="", types="number"
)

absolute, negative, fix = abs, neg, trunc
arcsin, arccos, arctan = asin, acos, atan
arcsinh, arccosh, arctanh = asinh, acosh, atanh


@method()
def positive(input: Tensor) -> Tensor:
    """`input` itself.  DTypeError for bools."""
    if need_tensor("positive", "input", input)._meta.dtype.is_bool:
        raise DTypeError("positive of a bool tensor is not defined")
    return input


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
    exp, exp2, expm1, log, log2, log10, log1p, sqrt, rsqrt, reciprocal, sin, cos, tan, asin, acos, atan, sinh, cosh,
    tanh, asinh, acosh, atanh, deg2rad, rad2deg, sigmoid, erf, erfc, erfinv, lgamma, digamma, abs, neg, sign, floor,
    ceil, trunc,
)  # fmt: skip
ALIASES = {
    "absolute": abs, "negative": neg, "sgn": sign, "fix": trunc, "arcsin": asin, "arccos": acos, "arctan": atan,
    "arcsinh": asinh, "arccosh": acosh, "arctanh": atanh,
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
Tensor.__pos__ = positive  # type: ignore[attr-defined]
Tensor.__abs__ = abs.call  # type: ignore[attr-defined]
for _name, _g, _h in (("square", square, _square), ("frac", frac, _frac), ("round", round, _round)):
    setattr(Tensor, _name, _g)
    setattr(Tensor, _name + "_", in_place(_h, _name + "_"))
