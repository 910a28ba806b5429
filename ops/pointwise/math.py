"""Exponentials, powers, signs and rounding, element by element, with their gradients.

Each is one declaration: the scalar expression, and the gradient in terms of the other ops.
Integers go through the default dtype where the function's values are not integers.  `METHODS` at
the end makes the methods: `x.exp()` and `x.exp_()`.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError
from flowvm.meta.dtype import int64
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.elementwise import Elementwise
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import replaced
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.parts.unary import attach, flat, in_place, into, unary, within

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow

_full = functools.partial(unary, amp="full")  # autocast computes them in float32

# --- exponentials and logarithms --------------------------------------------------------------

exp = _full(
    "exp",
    "exp(x)",
    lambda c, g: (g * c.saved[0],),
    """e to the power of x.

    >>> flow.exp(flow.tensor([0.0, 1.0]))
    tensor([1.0000, 2.7183])
    """,
    saves="out",
    complex="cexp(x)",
)
# public: flow, special
exp2 = unary(
    "exp2",
    "exp2(x)",
    lambda c, g: (g * c.saved[0] * math.log(2),),
    """2 to the power of x.

    >>> flow.exp2(flow.tensor([0, 3, -1]))
    tensor([1.0000, 8.0000, 0.5000])
    """,
    saves="out",
    complex="cexp(x * 0.6931471805599453)",
)
# public: flow, special
expm1 = _full(
    "expm1",
    "expm1(x)",
    lambda c, g: (g * (c.saved[0] + 1),),
    """exp(x) - 1, exact for small x.

    >>> flow.expm1(flow.tensor([0.0, 1.0]))
    tensor([0.0000, 1.7183])
    """,
    saves="out",
    complex="cexpm1(x)",
)
log = _full(
    "log",
    "log(x)",
    lambda c, g: (g / c.saved[0],),
    """The natural logarithm.

    >>> flow.log(flow.tensor([1.0, flow.e, 0.0]))
    tensor([0., 1., -inf])
    """,
    complex="clog(x)",
)
log2 = _full(
    "log2",
    "log2(x)",
    lambda c, g: (g / (c.saved[0] * math.log(2)),),
    """The logarithm to base 2.

    >>> flow.log2(flow.tensor([1.0, 8.0]))
    tensor([0., 3.])
    """,
    complex="clog2(x)",
)
log10 = _full(
    "log10",
    "log10(x)",
    lambda c, g: (g / (c.saved[0] * math.log(10)),),
    """The logarithm to base 10.

    >>> flow.log10(flow.tensor([1.0, 1000.0]))
    tensor([0., 3.])
    """,
    complex="clog10(x)",
)
# public: flow, special
log1p = _full(
    "log1p",
    "log1p(x)",
    lambda c, g: (g / (c.saved[0] + 1),),
    """log(1 + x), exact for small x.

    >>> flow.log1p(flow.tensor([0.0, 1.0]))
    tensor([0.0000, 0.6931])
    """,
    complex="clog1p(x)",
)

# --- powers -----------------------------------------------------------------------------------

sqrt = unary(
    "sqrt",
    "sqrt(x)",
    lambda c, g: (g / (c.saved[0] * 2),),
    """The square root.

    >>> flow.sqrt(flow.tensor([4.0, -1.0]))
    tensor([2., nan])
    """,
    saves="out",
    complex="csqrt(x)",
)
rsqrt = _full(
    "rsqrt",
    "rsqrt(x)",
    lambda c, g: (g * -0.5 * c.saved[0] * c.saved[0] * c.saved[0],),
    """The reciprocal of the square root.

    >>> flow.rsqrt(flow.tensor([4.0, 0.0]))
    tensor([0.5000,    inf])
    """,
    saves="out",
    complex="crecip(csqrt(x))",
)
reciprocal = _full(
    "reciprocal",
    "1 / x",
    lambda c, g: (-g * c.saved[0] * c.saved[0],),
    """The reciprocal, 1 / x.

    >>> flow.reciprocal(flow.tensor([2.0, 0.0]))
    tensor([0.5000,    inf])
    """,
    saves="out",
    complex="crecip(x)",
)
_square = _full(
    "square", "x * x", lambda c, g: (g * (c.saved[0] * 2),), "x * x.", types="promote", complex=True
)

# --- signs, rounding --------------------------------------------------------------------------

abs = unary(
    "abs",
    "abs(x)",
    lambda c, g: (g * sign.call(c.saved[0]),),
    """The absolute value.

    >>> flow.abs(flow.tensor([-2, 0, 3]))
    tensor([2, 0, 3])
    """,
    types="number",
    complex="cabs(x)",
    real=True,
    complex_grad=lambda c, g: (g * sgn.call(c.saved[0]),),
)
neg: Elementwise = unary(
    "neg",
    "-x",
    lambda c, g: (neg.call(g),),
    """-x.

    >>> flow.neg(flow.tensor([1, -2]))
    tensor([-1,  2])
    """,
    saves="",
    types="number",
    complex=True,
)
sign: Elementwise = unary(
    "sign",
    "sign(x)",
    flat,
    """-1, 0 or 1 by the sign of x.

    >>> flow.sign(flow.tensor([-2, 0, 3]))
    tensor([-1,  0,  1])
    """,
    saves="",
    types="promote",
)


def _sgn_grad(c: Node, g: Tensor) -> tuple[object]:
    """Return the part of g across x, divided by |x|: this part turns x / |x|."""
    x, way = c.saved
    along: object = (g * way.conj()).real
    size = abs.call(x)
    zero = size == 0
    turned = (g - way * along) / size.masked_fill(zero, 1)
    return (turned.masked_fill(zero, 0),)


sgn: Elementwise = unary(
    "sgn",
    "sign(x)",
    flat,
    """x / |x|, and 0 for 0: of real numbers their sign.

    >>> flow.sgn(flow.tensor([-2.0, 0.0, 3.0])), flow.sgn(flow.tensor([2j]))
    (tensor([-1.,  0.,  1.]), tensor([0.+1.j]))
    """,
    saves="x, out",
    types="promote",
    complex="csgn(x)",
    complex_grad=_sgn_grad,
)
floor = unary(
    "floor",
    "floor(x)",
    flat,
    """The next integer below or equal.

    >>> flow.floor(flow.tensor([-1.5, 0.5]))
    tensor([-2.,  0.])
    """,
    saves="",
    types="number",
)
ceil = unary(
    "ceil",
    "ceil(x)",
    flat,
    """The next integer above or equal.

    >>> flow.ceil(flow.tensor([-1.5, 0.5]))
    tensor([-1.,  1.])
    """,
    saves="",
    types="number",
)
trunc = unary(
    "trunc",
    "trunc(x)",
    flat,
    """The integer part.

    >>> flow.fix(flow.tensor([-1.5, 1.5]))
    tensor([-1.,  1.])
    """,
    saves="",
    types="number",
)
_round = unary(
    "round", "round(x)", flat, "The nearest integer, halves to even.", saves="", types="number"
)
_frac = unary("frac", "x - trunc(x)", lambda c, g: (g,), "x - trunc(x).", saves="", types="number")

absolute, negative, fix = abs, neg, trunc  # public: flow


@method()
def positive(input: Tensor) -> Tensor:
    """`input` itself.  DTypeError for bools.

    >>> flow.positive(flow.tensor([-1, 2]))
    tensor([-1,  2])
    """
    if need_tensor("positive", "input", input)._meta.dtype.is_bool:
        raise DTypeError("positive of a bool tensor is not defined")
    return input


def square(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x * x; bools count as int64.

    >>> flow.square(flow.tensor([-3, 2]))
    tensor([9, 4])
    """
    if need_tensor("square", "input", input)._meta.dtype.is_bool:
        input = input.to(int64)
    squared: Tensor = _square(input, out=out)
    return squared


def frac(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x - trunc(x).  DTypeError for integers and bools.

    >>> flow.frac(flow.tensor([-1.5, 2.25]))
    tensor([-0.5000,  0.2500])
    """
    if not need_tensor("frac", "input", input)._meta.dtype.is_floating_point:
        raise DTypeError(f"frac is for floats, got {input.dtype.name}")
    part: Tensor = _frac(input, out=out)
    return part


# public: flow, special
@steady
def round(input: Tensor, *, decimals: int = 0, out: Tensor | None = None) -> Tensor:
    """x rounded to `decimals` digits after the point (before it, if negative), halves to even.

    >>> flow.round(flow.tensor([0.5, 1.5, -2.6]))
    tensor([ 0.,  2., -3.])
    >>> flow.round(flow.tensor([1234.0]), decimals=-2)
    tensor([1200.])
    """
    decimals = whole("round", "decimals", decimals)
    if decimals == 0:
        rounded: Tensor = _round(input, out=out)
        return rounded
    if builtins.abs(decimals) > 308:
        raise ArgumentError(f"round: decimals is between -308 and 308, got {decimals}")
    if not need_tensor("round", "input", input)._meta.dtype.is_floating_point:
        raise DTypeError(f"round with decimals is for floats, got {input.dtype.name}")
    return into(out, _rounded(input, decimals))


@in_float32
def _rounded(input: Tensor, decimals: int) -> Tensor:
    scale = 10.0 ** builtins.abs(decimals)
    number: Tensor = (
        _round.call(input * scale) / scale if decimals > 0 else _round.call(input / scale) * scale
    )
    return number


METHODS = (
    exp, exp2, expm1, log, log2, log10, log1p, sqrt, rsqrt, reciprocal, abs, neg, sgn, sign, floor,
    ceil, trunc,
)  # fmt: skip
ALIASES = {"absolute": abs, "negative": neg, "fix": trunc}


for _f in METHODS:
    attach(_f, _f.name)
for _name, _f in ALIASES.items():
    attach(_f, _name)
Tensor.__neg__ = neg.call  # type: ignore[method-assign]
setattr(Tensor, "__pos__", positive)  # noqa: B010 - mypy wants it declared
Tensor.__abs__ = abs.call  # type: ignore[method-assign]
for _name, _public, _h in (
    ("square", square, _square),
    ("frac", frac, _frac),
    ("round", round, _round),
):
    setattr(Tensor, _name, _public)
    setattr(Tensor, _name + "_", in_place(_h, _name + "_"))
replaced(round)  # with decimals


# --- samples ----------------------------------------------------------------------------------


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
    (abs, np.abs, 0.2, 2),
    (neg, np.negative, -2, 2),
    (positive, np.positive, -2, 2),
)
for _g, _reference, _low, _high in _REFERENCES:
    samples(_g, within(_low, _high), _reference)
_STEPS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (sgn, np.sign),
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
        (lambda flow: flow.exp(flow.ones(2), out=flow.ones(2, dtype=flow.int64)), RuntimeError),
    ),
)
