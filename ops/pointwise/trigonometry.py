"""Angles, hyperbolic functions, and the special functions of probability, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.elementwise import Elementwise, elementwise
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.math import exp, rsqrt
from flowvm.ops.pointwise.parts.unary import attach, special, unary, within

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


# --- trigonometry -----------------------------------------------------------------------------

# public: flow
sin = unary(
    "sin",
    "sin(x)",
    lambda c, g: (g * cos.call(c.saved[0]),),
    """The sine, x in radians.

    >>> flow.sin(flow.tensor([0.0, flow.pi / 2]))
    tensor([0., 1.])
    """,
    complex="csin(x)",
)
# public: flow
cos: Elementwise = unary(
    "cos",
    "cos(x)",
    lambda c, g: (-g * sin.call(c.saved[0]),),
    """The cosine, x in radians.

    >>> flow.cos(flow.tensor([0.0, flow.pi]))
    tensor([ 1., -1.])
    """,
    complex="ccos(x)",
)
# public: flow
tan = unary(
    "tan",
    "tan(x)",
    lambda c, g: (g * (c.saved[0] * c.saved[0] + 1),),
    """The tangent, x in radians.

    >>> flow.tan(flow.tensor([0.0, flow.pi / 4]))
    tensor([0.0000, 1.0000])
    """,
    saves="out",
    complex="ctan(x)",
    amp="full",
)
# public: flow
asin = unary(
    "asin",
    "asin(x)",
    lambda c, g: (g * rsqrt.call(1 - c.saved[0] * c.saved[0]),),
    """The angle in radians whose sine is x; NaN outside [-1, 1].

    >>> flow.arcsin(flow.tensor([0.0, 1.0, 2.0]))
    tensor([0.0000, 1.5708,    nan])
    """,
    complex="casin(x)",
    amp="full",
)
# public: flow
acos: Elementwise = unary(
    "acos",
    "acos(x)",
    lambda c, g: (-g * rsqrt.call(1 - c.saved[0] * c.saved[0]),),
    """The angle in radians whose cosine is x; NaN outside [-1, 1].

    >>> flow.acos(flow.tensor([1.0, 0.0, 2.0]))
    tensor([0.0000, 1.5708,    nan])
    """,
    complex="cacos(x)",
    amp="full",
)
# public: flow
atan = unary(
    "atan",
    "atan(x)",
    lambda c, g: (g / (c.saved[0] * c.saved[0] + 1),),
    """The angle in radians whose tangent is x.

    >>> flow.arctan(flow.tensor([0.0, 1.0]))
    tensor([0.0000, 0.7854])
    """,
    complex="catan(x)",
)
# public: flow
sinh = unary(
    "sinh",
    "sinh(x)",
    lambda c, g: (g * cosh.call(c.saved[0]),),
    """The hyperbolic sine.

    >>> flow.sinh(flow.tensor([0.0, 1.0]))
    tensor([0.0000, 1.1752])
    """,
    complex="csinh(x)",
    amp="full",
)
# public: flow
cosh: Elementwise = unary(
    "cosh",
    "cosh(x)",
    lambda c, g: (g * sinh.call(c.saved[0]),),
    """The hyperbolic cosine.

    >>> flow.cosh(flow.tensor([0.0, 1.0]))
    tensor([1.0000, 1.5431])
    """,
    complex="ccosh(x)",
    amp="full",
)
# public: flow, F
tanh = unary(
    "tanh",
    "tanh(x)",
    lambda c, g: (g * (1 - c.saved[0] * c.saved[0]),),
    """The hyperbolic tangent.

    >>> flow.tanh(flow.tensor([0.0, flow.inf]))
    tensor([0., 1.])
    """,
    saves="out",
    complex="ctanh(x)",
)
# public: flow
asinh = unary(
    "asinh",
    "asinh(x)",
    lambda c, g: (g * rsqrt.call(c.saved[0] * c.saved[0] + 1),),
    """The inverse of sinh.

    >>> flow.arcsinh(flow.tensor([0.0, 1.0]))
    tensor([0.0000, 0.8814])
    """,
    complex="casinh(x)",
)
# public: flow
acosh: Elementwise = unary(
    "acosh",
    "acosh(x)",
    lambda c, g: (g * rsqrt.call(c.saved[0] * c.saved[0] - 1),),
    """The inverse of cosh; NaN below 1.

    >>> flow.acosh(flow.tensor([1.0, 0.0]))
    tensor([0., nan])
    """,
    complex="cacosh(x)",
    complex_grad=lambda c, g: (
        # the roots apart: their product has the branch that acosh has
        g * (rsqrt.call(c.saved[0] - 1) * rsqrt.call(c.saved[0] + 1)).conj(),
    ),
)
# public: flow
atanh = unary(
    "atanh",
    "atanh(x)",
    lambda c, g: (g / (1 - c.saved[0] * c.saved[0]),),
    """The inverse of tanh; NaN outside [-1, 1].

    >>> flow.arctanh(flow.tensor([0.0, 0.5, 2.0]))
    tensor([0.0000, 0.5493,    nan])
    """,
    complex="catanh(x)",
)
# public: flow
deg2rad = unary(
    "deg2rad",
    f"x * {math.pi / 180!r}",
    lambda c, g: (g * (math.pi / 180),),
    """Degrees to radians.

    >>> flow.deg2rad(flow.tensor([0.0, 180.0]))
    tensor([0.0000, 3.1416])
    """,
    saves="",
)
# public: flow
rad2deg = unary(
    "rad2deg",
    f"x * {180 / math.pi!r}",
    lambda c, g: (g * (180 / math.pi),),
    """Radians to degrees.

    >>> flow.rad2deg(flow.tensor([0.0, flow.pi]))
    tensor([  0., 180.])
    """,
    saves="",
)

# --- special functions ------------------------------------------------------------------------

# public: flow, F
sigmoid = unary(
    "sigmoid",
    "sigmoid(x)",
    lambda c, g: (g * (c.saved[0] * (1 - c.saved[0])),),
    """1 / (1 + exp(-x)).

    >>> flow.sigmoid(flow.tensor([-flow.inf, 0.0, flow.inf]))
    tensor([0.0000, 0.5000, 1.0000])
    """,
    saves="out",
    complex="csigmoid(x)",
)
# public: flow, special
erf = unary(
    "erf",
    "erf(x)",
    lambda c, g: (g * (exp.call(-(c.saved[0] * c.saved[0])) * (2 / math.sqrt(math.pi))),),
    """The error function.

    >>> flow.erf(flow.tensor([0.0, 1.0, flow.inf]))
    tensor([0.0000, 0.8427, 1.0000])
    """,
)
# public: flow, special
erfc = unary(
    "erfc",
    "erfc(x)",
    lambda c, g: (g * (exp.call(-(c.saved[0] * c.saved[0])) * (-2 / math.sqrt(math.pi))),),
    """1 - erf(x), exact for large x.

    >>> flow.erfc(flow.tensor([0.0, 1.0, flow.inf]))
    tensor([1.0000, 0.1573, 0.0000])
    """,
)
# public: flow, special
erfinv = unary(
    "erfinv",
    "erfinv(x)",
    lambda c, g: (g * (exp.call(c.saved[0] * c.saved[0]) * (math.sqrt(math.pi) / 2)),),
    """The inverse of erf; NaN outside [-1, 1].

    >>> flow.erfinv(flow.tensor([0.0, 1.0, 2.0]))
    tensor([0., inf, nan])
    """,
    saves="out",
    amp="full",
)
# public: flow
lgamma = unary(
    "lgamma",
    "lgamma(x)",
    lambda c, g: (g * digamma.call(c.saved[0]),),
    """The logarithm of the absolute value of the gamma function.

    >>> flow.lgamma(flow.tensor([1.0, 2.0, 3.0]))  # log of 0!, 1!, 2!
    tensor([0.0000, 0.0000, 0.6931])
    """,
)
# public: flow, special
digamma: Elementwise = unary(
    "digamma",
    "digamma(x)",
    lambda c, g: (g * _polygamma.call(1, c.saved[0]),),
    """The derivative of lgamma.

    >>> flow.digamma(flow.tensor([1.0, 2.0]))
    tensor([-0.5772,  0.4228])
    """,
)
_polygamma: Elementwise = elementwise(
    "polygamma",
    "polygamma(n, x)",
    args="n, x",
    types="float",
    saves="n, x",
    grad=lambda c, g: (None, g * _polygamma.call(c.saved[0] + 1, c.saved[1])),
)


arcsin, arccos, arctan = asin, acos, atan  # public: flow
arcsinh, arccosh, arctanh = asinh, acosh, atanh  # public: flow


# public: flow, special
def polygamma(n: int, input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The derivative number `n` of digamma.

    >>> flow.polygamma(1, flow.tensor([1.0]))  # pi ** 2 / 6
    tensor([1.6449])
    """
    if not isinstance(n, int) or n < 0:
        raise ArgumentError(f"polygamma: n is a non-negative int, got {n!r}")
    value: Tensor = _polygamma(n, need_tensor("polygamma", "input", input), out=out)
    return value


@method("polygamma")
def _polygamma_method(x: Tensor, n: int) -> Tensor:
    """The derivative number `n` of digamma.

    >>> flow.tensor([1.0]).polygamma(1)  # pi ** 2 / 6
    tensor([1.6449])
    """
    return polygamma(n, x)


@method("polygamma_")
def _polygamma_in_place(x: Tensor, n: int) -> Tensor:
    """In-place `polygamma`."""
    return x.copy_(polygamma(n, x.clone()))


METHODS = (
    sin, cos, tan, asin, acos, atan, sinh, cosh, tanh, asinh, acosh, atanh, deg2rad, rad2deg,
    sigmoid, erf, erfc, erfinv, lgamma, digamma,
)  # fmt: skip
ALIASES = {
    "arcsin": asin, "arccos": acos, "arctan": atan, "arcsinh": asinh, "arccosh": acosh,
    "arctanh": atanh,
}  # fmt: skip
for _f in METHODS:
    attach(_f, _f.name)
for _name, _f in ALIASES.items():
    attach(_f, _name)


# --- samples ----------------------------------------------------------------------------------

_REFERENCES: tuple[tuple[Any, Callable[..., Any], float, float], ...] = (
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
    (sigmoid, special("expit"), -3, 3),
    (erf, special("erf"), -2, 2),
    (erfc, special("erfc"), -2, 2),
    (erfinv, special("erfinv"), -0.8, 0.8),
    (lgamma, special("gammaln"), 0.5, 3),
    (digamma, special("psi"), 0.5, 3),
)
for _g, _reference, _low, _high in _REFERENCES:
    samples(_g, within(_low, _high), _reference)


def _polygamma_reference(n: int, x: Array) -> object:
    import scipy.special

    return scipy.special.polygamma(n, x)


samples(
    polygamma,
    lambda rng: [Sample((n, rng.uniform(0.5, 3, (2, 2)))) for n in (1, 2)],
    _polygamma_reference,
    errors=((lambda flow: flow.polygamma(-1, flow.ones(2)), ValueError),),
)
