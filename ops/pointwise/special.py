"""Special functions: Bessel functions, incomplete gamma and zeta functions, the normal
distribution, orthogonal polynomials.  `flowvm.special` has them under PyTorch's names.

Gradients: DLMF 10.6, 10.29 (Bessel), 8.8 (incomplete gamma, by x alone, as in PyTorch).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError
from flowvm.meta.dtype import float64
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.elementwise import Elementwise, elementwise
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import replaced, with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.compare import lt, where
from flowvm.ops.pointwise.math import abs as abs_of
from flowvm.ops.pointwise.math import exp, log, log1p
from flowvm.ops.pointwise.numeric import sinc_slope
from flowvm.ops.pointwise.parts.unary import attach, back, in_place, special, unary, within
from flowvm.ops.pointwise.trigonometry import erfc, lgamma
from flowvm.ops.shapes.ranges import arange

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# public: flow, special

# --- Bessel functions ---------------------------------------------------------------------------


def _order_one(f: Elementwise, x: Tensor) -> Tensor:
    """f(x) / x for I1 and J1, 1/2 near 0, where f(x) has too few digits."""
    at_zero = lt.call(abs_of.call(x), 1e-30)
    safe = where(at_zero, 1.0, x)
    ratio: Tensor = where(at_zero, 0.5, f(safe) / safe)
    return ratio


i0: Elementwise = unary(
    "i0",
    "bessel_i0(x)",
    lambda c, g: (g * i1(c.saved[0]),),
    """I0, the modified Bessel function.

    >>> flow.i0(flow.tensor([0.0, 1.0]))
    tensor([1.0000, 1.2661])
    """,
)
i0e: Elementwise = unary(
    "i0e",
    "bessel_i0e(x)",
    lambda c, g: (g * (i1e(c.saved[0]) - c.saved[0].sign() * i0e(c.saved[0])),),
    """I0(x) times exp(-|x|).

    >>> flow.special.i0e(flow.tensor([0.0, 1.0]))
    tensor([1.0000, 0.4658])
    """,
)
i1: Elementwise = unary(
    "i1",
    "bessel_i1(x)",
    lambda c, g: (g * (i0(c.saved[0]) - _order_one(i1, c.saved[0])),),
    """I1, the modified Bessel function.

    >>> flow.special.i1(flow.tensor([0.0, 1.0]))
    tensor([0.0000, 0.5652])
    """,
)
i1e: Elementwise = unary(
    "i1e",
    "bessel_i1e(x)",
    lambda c, g: (
        g * (i0e(c.saved[0]) - _order_one(i1e, c.saved[0]) - c.saved[0].sign() * i1e(c.saved[0])),
    ),
    """I1(x) times exp(-|x|).

    >>> flow.special.i1e(flow.tensor([0.0, 1.0]))
    tensor([0.0000, 0.2079])
    """,
)
bessel_j0: Elementwise = unary(
    "bessel_j0",
    "bessel_j0(x)",
    lambda c, g: (-g * bessel_j1(c.saved[0]),),
    """J0, the Bessel function of the first kind.

    >>> flow.special.bessel_j0(flow.tensor([0.0, 1.0]))
    tensor([1.0000, 0.7652])
    """,
)
bessel_j1: Elementwise = unary(
    "bessel_j1",
    "bessel_j1(x)",
    lambda c, g: (g * (bessel_j0(c.saved[0]) - _order_one(bessel_j1, c.saved[0])),),
    """J1, the Bessel function of the first kind.

    >>> flow.special.bessel_j1(flow.tensor([0.0, 1.0]))
    tensor([0.0000, 0.4401])
    """,
)
bessel_y0: Elementwise = unary(
    "bessel_y0",
    "bessel_y0(x)",
    lambda c, g: (-g * bessel_y1(c.saved[0]),),
    """Y0, the Bessel function of the second kind.

    >>> flow.special.bessel_y0(flow.tensor([0.0, 1.0]))
    tensor([  -inf, 0.0883])
    """,
)
bessel_y1: Elementwise = unary(
    "bessel_y1",
    "bessel_y1(x)",
    lambda c, g: (g * (bessel_y0(c.saved[0]) - bessel_y1(c.saved[0]) / c.saved[0]),),
    """Y1, the Bessel function of the second kind.

    >>> flow.special.bessel_y1(flow.tensor([0.0, 1.0]))
    tensor([   -inf, -0.7812])
    """,
)
modified_bessel_k0: Elementwise = unary(
    "modified_bessel_k0",
    "bessel_k0(x)",
    lambda c, g: (-g * modified_bessel_k1(c.saved[0]),),
    """K0, the modified Bessel function.

    >>> flow.special.modified_bessel_k0(flow.tensor([0.0, 1.0]))
    tensor([   inf, 0.4210])
    """,
)
modified_bessel_k1: Elementwise = unary(
    "modified_bessel_k1",
    "bessel_k1(x)",
    lambda c, g: (
        -g * (modified_bessel_k0(c.saved[0]) + modified_bessel_k1(c.saved[0]) / c.saved[0]),
    ),
    """K1, the modified Bessel function.

    >>> flow.special.modified_bessel_k1(flow.tensor([0.0, 1.0]))
    tensor([   inf, 0.6019])
    """,
)
scaled_modified_bessel_k0: Elementwise = unary(
    "scaled_modified_bessel_k0",
    "bessel_k0e(x)",
    lambda c, g: (
        g * (scaled_modified_bessel_k0(c.saved[0]) - scaled_modified_bessel_k1(c.saved[0])),
    ),
    """K0(x) times exp(x).

    >>> flow.special.scaled_modified_bessel_k0(flow.tensor([0.0, 1.0]))
    tensor([   inf, 1.1445])
    """,
)
scaled_modified_bessel_k1: Elementwise = unary(
    "scaled_modified_bessel_k1",
    "bessel_k1e(x)",
    lambda c, g: (
        g
        * (
            scaled_modified_bessel_k1(c.saved[0]) * (1 - 1 / c.saved[0])
            - scaled_modified_bessel_k0(c.saved[0])
        ),
    ),
    """K1(x) times exp(x).

    >>> flow.special.scaled_modified_bessel_k1(flow.tensor([0.0, 1.0]))
    tensor([   inf, 1.6362])
    """,
)


def _sphere_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (x,) = c.saved
    return (g * sinc_slope(x * (1 / math.pi)) * (1 / math.pi),)


spherical_bessel_j0: Elementwise = unary(
    "spherical_bessel_j0",
    "1 - x * x / 6 if abs(x) < 1e-3 else (sin(x) / x if x - x == 0 else 1 / x)",
    _sphere_grad,
    """sin(x) / x, and 1 at 0: j0, the spherical Bessel function.

    >>> flow.special.spherical_bessel_j0(flow.tensor([0.0, 1.0]))
    tensor([1.0000, 0.8415])
    """,
)

# --- gamma and zeta functions -------------------------------------------------------------------


def _igamma_slope(a: Tensor, x: Tensor) -> Tensor:
    return exp((a - 1) * log(x) - x - lgamma(a))  # type: ignore[no-any-return]


def _no_slope(name: str) -> Callable[[], Tensor]:
    def refuse() -> Tensor:
        raise ArgumentError(f"{name} has no gradient by its first argument here")

    return refuse


# public: flow
igamma = elementwise(
    "igamma",
    "igamma(x, y)",
    types="float",
    saves="x, y",
    grad=lambda c, g: back(
        c, _no_slope("igamma"), lambda: g * _igamma_slope(c.saved[0], c.saved[1])
    ),
    doc="""The lower incomplete gamma function of a and x over gamma(a).

    >>> flow.igamma(flow.tensor([1.0]), flow.tensor([1.0]))  # 1 - exp(-1)
    tensor([0.6321])
    """,
)
# public: flow
igammac = elementwise(
    "igammac",
    "igammac(x, y)",
    types="float",
    saves="x, y",
    grad=lambda c, g: back(
        c, _no_slope("igammac"), lambda: -g * _igamma_slope(c.saved[0], c.saved[1])
    ),
    doc="""The upper incomplete gamma function of a and x over gamma(a): 1 - igamma(a, x).

    >>> flow.igammac(flow.tensor([1.0]), flow.tensor([1.0]))  # exp(-1)
    tensor([0.3679])
    """,
)
zeta: Elementwise = elementwise(
    "zeta",
    "zeta(x, y)",
    types="float",
    saves="x, y",
    grad=lambda c, g: back(
        c, _no_slope("zeta"), lambda: g * -c.saved[0] * zeta(c.saved[0] + 1, c.saved[1])
    ),
    doc="""Hurwitz' zeta function: the sum of (q + k) ** -x over k from 0 on.

    >>> flow.special.zeta(flow.tensor(2.0), flow.tensor(1.0))  # pi ** 2 / 6
    tensor(1.6449)
    """,
)


# public: flow
@method()
@with_out
@in_float32
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension `p`: of each element, which
    should be over (p - 1) / 2.

    >>> flow.mvlgamma(flow.tensor([3.0]), 1)  # log 2!
    tensor([0.6931])
    """
    x: Any = need_tensor("mvlgamma", "input", input)
    if x.dtype.is_bool:
        raise DTypeError("mvlgamma of a bool tensor is not defined")
    dimension = whole("mvlgamma", "p", p)
    if dimension < 1:
        raise ArgumentError(f"mvlgamma: p is positive, got {dimension}")
    if not x.dtype.is_floating_point:
        x = x * 1.0
    steps = arange(0, dimension, dtype=x.dtype, device=x.device) * 0.5
    constant = dimension * (dimension - 1) / 4 * math.log(math.pi)
    total: Tensor = lgamma(x.unsqueeze(-1) - steps).sum(-1) + constant
    return total


replaced(mvlgamma)

# --- entropies and the normal distribution ------------------------------------------------------

entr: Elementwise = unary(
    "entr",
    "-x * log(x) if x > 0 else (0 * x if x == 0 else "
    "(x if x != x else -1 / (0 * minimum(abs(x), 1))))",
    lambda c, g: (g * (-log(c.saved[0]) - 1),),
    """-x log(x), 0 at 0, -inf below.

    >>> flow.special.entr(flow.tensor([0.0, 0.5, -1.0]))
    tensor([0.0000, 0.3466,   -inf])
    """,
)
_FAR = 12.0  # from where on the slope of erfcx is its asymptotic series


def _erfcx_slope(x: Tensor) -> Tensor:
    """Return 2 x erfcx(x) - 2 / sqrt(pi); far out, where it is small, by a series."""
    far = lt.call(_FAR if x._meta.dtype is not float64 else 4 * _FAR, x)
    near = where(far, 0.0, x)
    inverse = 1 / where(far, x, 1.0)
    z = inverse * inverse
    series = 1 - z * (1.5 - z * (3.75 - z * (13.125 - z * (59.0625 - z * 324.84375))))
    slope: Tensor = where(
        far, series * z * (-1 / math.sqrt(math.pi)), 2 * near * erfcx(near) - 2 / math.sqrt(math.pi)
    )
    return slope


erfcx: Elementwise = unary(
    "erfcx",
    "erfcx(x)",
    lambda c, g: (g * _erfcx_slope(c.saved[0]),),
    """exp(x ** 2) erfc(x).

    >>> flow.special.erfcx(flow.tensor([0.0, 100.0]))
    tensor([1.0000, 0.0056])
    """,
)
ndtri: Elementwise = unary(
    "ndtri",
    "ndtri(x)",
    lambda c, g: (g * math.sqrt(2 * math.pi) * exp(c.saved[0] * c.saved[0] / 2),),
    """The inverse of the normal distribution function.

    >>> flow.special.ndtri(flow.tensor([0.0, 0.975, 1.0]))
    tensor([  -inf, 1.9600,    inf])
    """,
    saves="out",
)


def _xlog1py_grad(c: Node, g: Tensor) -> tuple[Any, ...]:
    x, y = c.saved

    def by_x() -> Tensor:
        slope: Tensor = where((x == 0) & (y <= -1), 0, g * log1p(y * 1.0))
        return slope

    return back(c, by_x, lambda: g * x / (y + 1))


xlog1py: Elementwise = elementwise(
    "xlog1py",
    "y if y != y else (0 if x == 0 else x * log1p(y))",
    args="x, y",
    types="float",
    saves="x, y",
    grad=lambda c, g: _xlog1py_grad(c, g),
    doc="""x log(1 + y), 0 where x is 0.

    >>> flow.special.xlog1py(flow.tensor([0.0, 2.0]), flow.tensor([-1.0, 0.0]))
    tensor([0., 0.])
    """,
)


@with_out
def ndtr(input: Tensor) -> Tensor:
    """The normal distribution function: erfc(-x / sqrt(2)) / 2.

    >>> flow.special.ndtr(flow.tensor([-flow.inf, 0.0, flow.inf]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    x = need_tensor("ndtr", "input", input)
    area: Tensor = erfc(x * -math.sqrt(0.5)) * 0.5
    return area


@with_out
def log_ndtr(input: Tensor) -> Tensor:
    """The logarithm of the normal distribution function, good in its tail too.

    >>> flow.special.log_ndtr(flow.tensor([0.0]))  # log 0.5
    tensor([-0.6931])
    """
    x: Tensor = need_tensor("log_ndtr", "input", input)
    t = x * math.sqrt(0.5)
    low = lt(x, -1.0)
    under = where(low, t, -1.0)
    tail = log(erfcx(-under) / 2) - under * under
    body = log1p(erfc(where(low, 1.0, t)) * -0.5)
    out: Tensor = where(low, tail, body)
    return out


attach(i0, "i0")
for _two in (igamma, igammac):
    setattr(Tensor, _two.name, _two.call)
    setattr(Tensor, _two.name + "_", in_place(_two, _two.name + "_"))

# --- samples ------------------------------------------------------------------------------------

_REFERENCES: tuple[tuple[Any, str, float, float], ...] = (
    (i0, "i0", -3, 3),
    (i0e, "i0e", 0.2, 12),
    (i1, "i1", -3, 3),
    (i1e, "i1e", 0.2, 12),
    (bessel_j0, "j0", -12, 12),
    (bessel_j1, "j1", -12, 12),
    (bessel_y0, "y0", 0.5, 12),
    (bessel_y1, "y1", 0.5, 12),
    (modified_bessel_k0, "k0", 0.5, 5),
    (modified_bessel_k1, "k1", 0.5, 5),
    (scaled_modified_bessel_k0, "k0e", 0.5, 5),
    (scaled_modified_bessel_k1, "k1e", 0.5, 5),
    (entr, "entr", 0.2, 3),
    (erfcx, "erfcx", -1.5, 3),
    (ndtri, "ndtri", 0.1, 0.9),
    (ndtr, "ndtr", -2, 2),
    (log_ndtr, "log_ndtr", -4, 2),
)
for _f, _name, _low, _high in _REFERENCES:
    samples(_f, within(_low, _high), special(_name), floats=("float64", "float32"))
samples(spherical_bessel_j0, within(0.2, 5), lambda x: np.sin(x) / x, floats=("float64", "float32"))


def _of_two(name: str) -> Callable[..., Any]:
    def reference(x: Array, y: Array) -> object:
        import scipy.special

        return getattr(scipy.special, name)(x, y)

    return reference


for _f, _name in ((igamma, "gammainc"), (igammac, "gammaincc"), (zeta, "zeta")):
    samples(
        _f,
        lambda rng: [Sample((rng.uniform(1.5, 4, (3, 4)), rng.uniform(0.5, 6, 4)))],
        _of_two(_name),
        floats=("float64", "float32"),
        grad=False,
    )
samples(
    xlog1py,
    lambda rng: [Sample((rng.uniform(-1, 2, (2, 3)), rng.uniform(-0.5, 3, 3)))],
    _of_two("xlog1py"),
)
samples(
    mvlgamma,
    lambda rng: [Sample((rng.uniform(1.5, 4, (2, 3)), 3))],
    lambda x, p: np.vectorize(lambda v: _multigammaln(v, p))(x),
    errors=((lambda flow: flow.mvlgamma(flow.ones(2), 0), ValueError),),
)


def _multigammaln(x: float, p: int) -> Any:
    import scipy.special

    return scipy.special.multigammaln(x, p)
