"""Incomplete gamma functions, Hurwitz' zeta function, and the error function's tails.

float32 arguments are computed in float64.  Loops, and so not vectorized.  Sources: the incomplete
gamma functions are the series and the continued fraction of DLMF 8.7.1 and 8.9.2, the latter by
Lentz' algorithm; the inverse of the normal distribution starts from Abramowitz and Stegun 26.2.23
and is refined by Halley's method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.ops.scalar.erf import _scaled64, erfc
from flowvm.ops.scalar.exp import exp
from flowvm.ops.scalar.intrinsics import Number, fabs, floor, sqrt
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


def _igamma(a: Number, x: Number) -> Number:
    if not (a >= 0.0 and x >= 0.0) or (a == 0.0 and x == 0.0):
        return _NAN
    if a == 0.0:
        return 1.0
    if x == 0.0 or a == _INF:
        return _NAN if x == _INF else 0.0
    if x == _INF:
        return 1.0
    return _lower(a, x) if x < a + 1.0 else 1.0 - _upper(a, x)


def _igammac(a: Number, x: Number) -> Number:
    if not (a >= 0.0 and x >= 0.0) or (a == 0.0 and x == 0.0):
        return _NAN
    if a == 0.0:
        return 0.0
    if x == 0.0 or a == _INF:
        return _NAN if x == _INF else 1.0
    if x == _INF:
        return 0.0
    return 1.0 - _lower(a, x) if x < a + 1.0 else _upper(a, x)


def _zeta(x: Number, q: Number) -> Number:
    if x == 1.0:
        return _INF
    if x < 1.0 or (q <= 0.0 and q != floor(q) and x != floor(x)):
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
        error = (0.5 * erfc(x * _ROOT_HALF) - q) * _ROOT_TAU * exp(0.5 * x * x)
        x += error / (1.0 + 0.5 * x * error)
    return -x if p < 0.5 else x


def _both(name: str, function: Callable[..., Number], operands: int) -> Overloaded:
    if operands == 1:

        def wide(x: Number) -> Any:
            return F32(function(F64(x)))

    else:

        def wide(x: Number, y: Number) -> Any:  # type: ignore[misc]
            return F32(function(F64(x), F64(y)))

    return Overloaded(name, {"float32": wide, "float64": function})


igamma, igammac = _both("igamma", _igamma, 2), _both("igammac", _igammac, 2)
zeta = _both("zeta", _zeta, 2)
erfcx, ndtri = _both("erfcx", _erfcx, 1), _both("ndtri", _ndtri, 1)
