"""Incomplete gamma functions, Hurwitz' zeta function, and the error function's tails.

float32 arguments are computed in float64.  Loops, and so not vectorized.  Sources: the incomplete
gamma functions are the series and the continued fraction of DLMF 8.7.1 and 8.9.2, the latter by
Lentz' algorithm, 1 minus DLMF 8.7.3 where both are small, and the uniform expansion of DLMF 8.12
where a is large; the inverse of the normal distribution starts from Abramowitz and Stegun 26.2.23
and is refined by Halley's method.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.erf import _scaled64, erfc
from flowvm.ops.scalar.exp import exp, expm1
from flowvm.ops.scalar.intrinsics import fabs, floor, sqrt
from flowvm.ops.scalar.log import log
from flowvm.ops.scalar.special import _zeta_anywhere, lgamma

F32, F64 = np.float32, np.float64
_INF, _NAN = math.inf, math.nan
_ROOT_HALF, _ROOT_TAU = 0.7071067811865476, 2.5066282746310002


def _factor(a: Number, x: Number) -> Number:
    """x**a exp(-x) / gamma(a + 1)"""
    return exp(a * log(x) - x - lgamma(a + 1.0))


def _lower(a: Number, x: Number) -> Number:
    term, total, n = 1.0, 1.0, a
    for _ in range(10000):
        n += 1.0
        term *= x / n
        total += term
        if term < total * 1e-17:
            break
    return total * _factor(a, x)


def _upper(a: Number, x: Number) -> Number:
    b = x + 1.0 - a
    c, d = 1e300, 1.0 / b
    h = d
    for i in range(1, 10000):
        n = -i * (i - a)
        b += 2.0
        d = n * d + b
        d = 1e-300 if fabs(d) < 1e-300 else d
        c = b + n / c
        c = 1e-300 if fabs(c) < 1e-300 else c
        d = 1.0 / d
        step = d * c
        h *= step
        if fabs(step - 1.0) < 1e-16:
            break
    return h * _factor(a, x) * a


_GAMMA = 0.5772156649015329  # Euler's constant
# zeta(k) / k, for the logarithm of the gamma function around 1: DLMF 5.7.3
_AROUND_ONE = (
    0.8224670334241132, 0.40068563438653143, 0.27058080842778454, 0.20738555102867398,
    0.1695571769974082, 0.14404989676884612, 0.12550966947474304,
)  # fmt: skip


def _lgamma_above_one(a: Number) -> Number:
    """Return lgamma(1 + a) for a >= 0, with all digits where a is small."""
    if a > 0.004:
        return lgamma(1.0 + a)
    total, power = -_GAMMA * a, -a
    for number in _AROUND_ONE:
        power *= -a
        total += number * power
    return total


def _upper_small(a: Number, x: Number) -> Number:
    """The upper function for x <= 1.1: DLMF 8.7.3, without a difference of 1 and almost 1."""
    term, total = 1.0, 0.0
    for n in range(1, 40):
        term *= -x / n
        total += term / (a + n)
    lowered = a * log(x) - _lgamma_above_one(a)
    return -expm1(lowered) - a * exp(lowered) * total


LARGE = 1e4  # from there on _uniform has 13 digits; the series and the fraction lose theirs
# Taylor coefficients of c_0, c_1 and c_2 in eta: DLMF 8.12.11 to 8.12.13 and Temme (1979)
_C0 = (
    -1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600, 1 / 25515, -571 / 261273600,
    -281 / 151559100,
)  # fmt: skip
_C1 = (-1 / 540, -1 / 288, 1 / 378, -77 / 77760, 1 / 4860, -4667 / 522547200)
_C2 = (25 / 6048, -139 / 51840, 101 / 16200)


def _uniform(a: Number, x: Number, side: Number) -> Number:
    """Return the upper function (`side` 1) or the lower one (-1) for large a, uniformly in x.

    As far as it is above 0: x / a lies near 1 then.
    """
    mu = (x - a) / a
    if mu > 0.4:
        return 0.0 if side > 0.0 else 1.0
    if mu < -0.4:
        return 1.0 if side > 0.0 else 0.0
    power, excess = -mu, 0.0  # mu - log(1 + mu)
    for k in range(2, 60):
        power *= -mu
        excess += power / k
    eta = sqrt(2.0 * excess) if mu > 0.0 else -sqrt(2.0 * excess)
    if fabs(eta) < 0.1:
        c0, c1 = _polynomial(_C0, eta), _polynomial(_C1, eta)
    else:
        c0 = 1.0 / mu - 1.0 / eta
        c1 = 1.0 / (eta * eta * eta) - 1.0 / (mu * mu * mu) - 1.0 / (mu * mu) - 1.0 / (12.0 * mu)
    series = c0 + (c1 + _polynomial(_C2, eta) / a) / a
    rest = exp(-a * excess) / (_ROOT_TAU * sqrt(a)) * series
    return 0.5 * erfc(side * eta * sqrt(0.5 * a)) + side * rest


def _polynomial(coefficients: tuple[float, ...], x: Number) -> Number:
    total = 0.0
    for k in range(len(coefficients)):
        total = total * x + coefficients[len(coefficients) - 1 - k]
    return total


def _igamma(a: Number, x: Number) -> Number:
    if not (a >= 0.0 and x >= 0.0) or (a == 0.0 and x == 0.0):
        return _NAN
    if a == 0.0:
        return 1.0
    if x == 0.0 or a == _INF:
        return _NAN if x == _INF else 0.0
    if x == _INF:
        return 1.0
    if a > LARGE:
        return _uniform(a, x, -1.0)
    if x < a + 1.0:
        return _lower(a, x)
    return 1.0 - (_upper_small(a, x) if x <= 1.1 else _upper(a, x))


def _igammac(a: Number, x: Number) -> Number:
    if not (a >= 0.0 and x >= 0.0) or (a == 0.0 and x == 0.0):
        return _NAN
    if a == 0.0:
        return 0.0
    if x == 0.0 or a == _INF:
        return _NAN if x == _INF else 1.0
    if x == _INF:
        return 0.0
    if a > LARGE:
        return _uniform(a, x, 1.0)
    if x <= 1.1 and a < 1.0:
        return _upper_small(a, x)
    return 1.0 - _lower(a, x) if x < a + 1.0 else _upper(a, x)


def _zeta(x: Number, q: Number) -> Number:
    if x == 1.0:
        return _INF
    if x != x or x < 1.0 or (q <= 0.0 and q != floor(q) and x != floor(x)):
        return _NAN
    return _zeta_anywhere(x, q)


def _far_erfcx(x: Number) -> Number:
    """erfcx for x > 40, by its asymptotic series."""
    z = 0.5 / (x * x) if x < 1e150 else 0.0
    series = 1.0 - z * (1.0 - 3.0 * z * (1.0 - 5.0 * z * (1.0 - 7.0 * z)))
    return 0.5641895835477563 / x * series


def _erfcx(x: Number) -> Number:
    if x >= 0.0:
        return _scaled64(x) if x < 40.0 else _far_erfcx(x)
    if x < -27.0:
        return _INF
    return x if x != x else 2.0 * exp(x * x) - _scaled64(-x)


def _ndtri(p: Number) -> Number:
    if not 0.0 < p < 1.0:
        return -_INF if p == 0.0 else _INF if p == 1.0 else _NAN
    q = p if p < 0.5 else 1.0 - p
    t = sqrt(-2.0 * log(q))
    x = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (
        1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    )
    for _ in range(3):  # x > 0 where the upper tail is q
        if x < 37.0:
            error = (0.5 * erfc(x * _ROOT_HALF) - q) * _ROOT_TAU * exp(0.5 * x * x)
        else:  # erfc(x) has lost bits there, and the exponential may have no value
            error = (0.5 * _erfcx(x * _ROOT_HALF) - exp(0.5 * x * x + log(q))) * _ROOT_TAU
        x += error / (1.0 + 0.5 * x * error)
    return -x if p < 0.5 else x


def _both(name: str, function: Callable[..., Number], operands: int) -> Overloaded:
    if operands == 1:

        def wide(x: Number) -> Number:
            return F32(function(F64(x)))

    else:

        def wide(x: Number, y: Number) -> Number:  # type: ignore[misc]
            return F32(function(F64(x), F64(y)))

    return Overloaded(name, {"float32": wide, "float64": function})


igamma, igammac = _both("igamma", _igamma, 2), _both("igammac", _igammac, 2)
zeta = _both("zeta", _zeta, 2)
erfcx, ndtri = _both("erfcx", _erfcx, 1), _both("ndtri", _ndtri, 1)
