"""The logarithm of the gamma function and its derivatives.

float32 arguments are computed in float64.  All are `Guarded`: `near` is for positive arguments,
`far` reflects the others, and polygamma's `near` is the trigamma function, the gradient of digamma.

The largest errors measured, in units in the last place, over samples of all exponents of x > 0;
for x < 0 the error is below 2e-15, or 1e-7, of the larger of 1 and the value:

               lgamma  digamma  polygamma(1)
    float32    0.6     0.6      0.6
    float64    4.5     5.6      3.4

Coefficients: Remez' exchange, stopped near the best error; `tools/minimax.py` finds others as good,
not the same digits, for the f and the interval that stand beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.meta.arrays import Number
from flowvm.ops.scalar.bits import Guarded, log_of_sum, polynomial
from flowvm.ops.scalar.intrinsics import copysign, fabs, floor, fma, rint, trunc
from flowvm.ops.scalar.power import pow_
from flowvm.ops.scalar.trig import sin, tan

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32, F64 = np.float32, np.float64
Unary = Callable[[Number], Number]

_INF, _PI = math.inf, math.pi
_log_of_sum = log_of_sum(F64)
_sin, _tan = sin.near.implementations["float64"], tan.near.implementations["float64"]
_pow = pow_.implementations["float64"]


def _log(x: Number) -> Number:
    """The logarithm of a positive number."""
    small = x < 2.2250738585072014e-308
    y = _log_of_sum(x * 18014398509481984.0 if small else x, 0.0, -54.0 if small else 0.0)
    return y if x < _INF else x


# --- the logarithm of gamma ---------------------------------------------------------------------

# lgamma(2 + d) / d - _SLOPE_AT_2 for |d| <= 1/2, of the relative error of lgamma
_LGAMMA = {
    F32: polynomial(
        F64, -5.871030894e-10, 0.3224670188183113, -0.06735221880816267, 0.020581600981029895,
        -0.007387426948777153, 0.0028790627843508845, -0.0011778451253306916,
        0.0005698102035168395, -0.00026984222540986483,
    ),
    F64: polynomial(
        F64, 4.942915152430645e-18, 0.3224670334241133, -0.06735230105319576, 0.020580808427765915,
        -0.007385551028925196, 0.0028905103318431907, -0.0011927539013297617,
        0.0005096694950877747, -0.00022315497225362853, 9.94579444196126e-05,
        -4.492377200416015e-05, 2.0503542703543068e-05, -9.456078542678787e-06,
        4.393524677053114e-06, -1.9748272246481354e-06, 8.998960290928348e-07,
        -5.806115845920402e-07, 2.9770884368898017e-07,
    ),
}  # fmt: skip
# (lgamma(x) - (x - 1/2) log x + x - log(2 pi) / 2) * x in 1 / x**2 for x > 6.5
_STIRLING = {
    F32: polynomial(F64, 0.08333333194570303, -0.0027774045817284773, 0.000766719738505228),
    F64: polynomial(
        F64, 0.0833333333333332, -0.002777777777600659, 0.0007936507204144068,
        -0.000595224481819501, 0.0008404239060915775, -0.0018461414820366456,
        0.004332487775563212,
    ),
}  # fmt: skip
_SLOPE_AT_2 = 0.42278433509846713  # 1 - Euler's constant: 5e-18 of it is in the polynomial
_STIRLING_CONSTANT = 0.41893853320467274  # log(2 pi) / 2 - 1/2


def _near_lgamma(dtype: Any) -> Unary:
    """Stirling's series from 6.5 on; below, the argument is moved by whole steps to 2 + d.

    Near 1 and 2, where the result is 0, all is relative to the distance from there, which is exact.
    """
    p, stirling = _LGAMMA[dtype], _STIRLING[dtype]

    def near(x: Number) -> Number:
        n = rint(x)
        d = x - n
        down = x - 1.0 if n > 2.0 else 1.0
        down *= x - 2.0 if n > 3.0 else 1.0
        down *= x - 3.0 if n > 4.0 else 1.0
        down *= x - 4.0 if n > 5.0 else 1.0
        up = x * (x + 1.0 if n < 1.0 else 1.0)
        raised = n < 2.0
        large = x > 6.5
        log = _log(x if large else (up if raised else down))
        low = fma(d, p(d), fma(d, _SLOPE_AT_2, -log if raised else log))
        inverse = 1.0 / x
        high = fma(
            x - 0.5, log - 1.0, fma(inverse, stirling(inverse * inverse), _STIRLING_CONSTANT)
        )
        y = high if large else low
        return y if x < _INF else x

    return near


_lgamma64 = _near_lgamma(F64)


def _positive(x: Number) -> bool:
    return not x <= 0


def _far_lgamma(x: Number) -> Number:
    a = -x
    if a == floor(a):
        return _INF
    if a < 1e-17:
        return -_log(a)
    sine = fabs(_sin(_PI * (a - rint(a))))
    return _log(_PI / (a * sine)) - _lgamma64(a)


# --- digamma ------------------------------------------------------------------------------------

_ZERO, _ZERO_LOW = 1.4616321449683622, 9.549995429965697e-17  # of digamma, in two numbers
# digamma(x) / (x - _ZERO) in x - 3/2 for 1 <= x <= 2, of the relative error
_BETWEEN = {
    F32: polynomial(
        F64, 0.9510558756366134, -0.4236274990806996, 0.24054261522998568,
        -0.148398774874517, 0.09498209262138596, -0.062057234942329634, 0.04087926967625441,
        -0.02578015877533647, 0.01698058926306215, -0.016385621313731412,
        0.011118526985985472,
    ),
    F64: polynomial(
        F64, 0.951055876031833, -0.4236274212814606, 0.24054248424077396,
        -0.1484049230538902, 0.09498872445497712, -0.06192213327468643,
        0.040760833810574486, -0.02697579669157231, 0.017907252487632214,
        -0.011908219413456746, 0.007926943924593697, -0.0052799463243541275,
        0.003519012981748978, -0.002345420304763709, 0.0015565946335028905,
        -0.0010368442373108622, 0.0007234530905454016, -0.00048472473235410175,
        0.00022699465487947788, -0.00014698589765910832, 0.00025987596475699826,
        -0.00017655795434845086,
    ),
}  # fmt: skip
# (log x - 1 / (2 x) - digamma(x)) * x**2 in 1 / x**2 for x > 6
_DIGAMMA = {
    F32: polynomial(F64, 0.08333331811710899, -0.008329837679367652, 0.0037518267359857543),
    F64: polynomial(
        F64, 0.08333333333332832, -0.008333333327340224, 0.003968251850948847,
        -0.004166329674780704, 0.0075475339526375924, -0.01977922947406191, 0.04970652913576065,
    ),
}  # fmt: skip


def _added(above: Number, below: Number, term: Number, on: bool) -> tuple[Number, Number]:
    """above / below + 1 / term, as a fraction again; as it was where it is not `on`."""
    return fma(above, term, below) if on else above, below * term if on else below


def _near_digamma(dtype: Any) -> Unary:
    """The asymptotic series from 6 on; below, the argument is moved by whole steps to [1, 2)."""
    series, between = _DIGAMMA[dtype], _BETWEEN[dtype]

    def near(x: Number) -> Number:
        n = floor(x)
        low = x < 1.0
        large = x >= 6.0
        above, below = -1.0 if low else 0.0, x if low else 1.0
        above, below = _added(above, below, x - 1.0, n > 1.0)
        above, below = _added(above, below, x - 2.0, n > 2.0)
        above, below = _added(above, below, x - 3.0, n > 3.0)
        above, below = _added(above, below, x - 4.0, n > 4.0)
        y = x + 1.0 if low else x - (n - 1.0)
        small = fma((y - _ZERO) - _ZERO_LOW, between(y - 1.5), above / below)
        inverse = 1.0 / x
        z = inverse * inverse
        big = _log(x) - fma(z, series(z), 0.5 * inverse)
        return big if large else small

    return near


_digamma64 = _near_digamma(F64)


def _far_digamma(x: Number) -> Number:
    if x == 0.0:
        return copysign(_INF, -x)
    if x == trunc(x):
        return math.nan
    return _digamma64(1.0 - x) - _PI / _tan(_PI * (x - rint(x)))


# --- polygamma ----------------------------------------------------------------------------------

# (trigamma(x) - 1 / x - 1 / (2 x**2)) * x**3 in 1 / x**2 for x > 6
_TRIGAMMA = {
    F32: polynomial(F64, 0.16666654770540687, -0.033305953744438906, 0.022105733714071377),
    F64: polynomial(
        F64, 0.16666666666659208, -0.03333333324423438, 0.02380949228728927,
        -0.033328303615437455, 0.07533450968112358, -0.23326885832353142, 0.6503650710352831,
    ),
}  # fmt: skip
# P(x) = (x + 1) ... (x + 5), and the sum of the inverse squares of these factors times P(x)**2
_PRODUCT = polynomial(F64, 120.0, 274.0, 225.0, 85.0, 15.0, 1.0)
_SQUARES = polynomial(F64, 21076.0, 62100.0, 79650.0, 57660.0, 25685.0, 7200.0, 1240.0, 120.0, 5.0)


def _near_polygamma(dtype: Any) -> Callable[[Number, Number], Number]:
    """The trigamma function, like digamma."""
    p = _TRIGAMMA[dtype]

    def near(n: Number, x: Number) -> Number:
        small = x < 6.0
        v = x if small else 1.0
        first, product = 1.0 / v, _PRODUCT(v)
        steps = fma(first, first, _SQUARES(v) / (product * product))
        y = x + 6.0 if small else x
        inverse = 1.0 / y
        z = inverse * inverse
        tail = fma(z * inverse, p(z), fma(0.5, z, inverse))
        return tail + steps if small else tail

    return near


def _trigamma(n: Number, x: Number) -> Number:
    return n == 1 and x > 0


_EULER_MACLAURIN = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9,
    7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14,
    -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip


def _zeta(s: Number, q: Number) -> Number:
    """The sum of (q + k)**-s over k >= 0 for q > 0 and s > 1, by Euler-Maclaurin (after Cephes)."""
    total, a, b = _pow(q, -s), q, 0.0
    if s > 1100.0:  # the second term is below 2**-645 of the first, or both are 0
        return total
    for i in range(20):
        if i >= 9 and a > 9.0:
            break
        a += 1.0
        b = _pow(a, -s)
        total += b
    total += b * a / (s - 1.0) - 0.5 * b
    factor, k = 1.0, 0.0
    for divisor in _EULER_MACLAURIN:
        factor *= s + k
        b /= a
        term = factor * b / divisor
        total += term
        if fabs(term) < 1e-17 * fabs(total):
            break
        factor *= s + k + 1.0
        b /= a
        k += 2.0
    return total


def _zeta_anywhere(s: Number, q: Number) -> Number:
    """Return `_zeta` for any q and whole s: the terms below 0 are those of two sums above it."""
    if q > 0.0:
        return _zeta(s, q) if q < _INF else 0.0
    if q == floor(q):
        return _INF
    if q != q:
        return q
    part = q - floor(q)
    rest = (floor(q) + 1.0) - q  # 1 - part, with all digits
    below = _zeta(s, rest) - _zeta(s, 1.0 - q)
    return _zeta(s, part) + (below if trunc(s * 0.5) * 2.0 == s else -below)


def _far_polygamma(n: Number, x: Number) -> Number:
    if n == 0.0:
        return _far_digamma(x) if x <= 0.0 else _digamma64(x)
    factor = -1.0
    # from 171 on it is infinite, and changes its sign
    steps = n if n < 200.0 else 200.0 + (n - 2.0 * floor(n * 0.5))
    for k in range(1, int(steps) + 1):
        factor *= -k
    return factor * _zeta_anywhere(n + 1.0, x)


def _widened(function: Unary) -> Unary:
    """A function of float64 on a float32."""

    def wide(x: Number) -> Number:
        return F32(function(F64(x)))

    return wide


def _widened_pair(function: Callable[[Number, Number], Number]) -> Callable[..., Number]:
    def wide(n: Number, x: Number) -> Number:
        return F32(function(F64(n), F64(x)))

    return wide


lgamma = Guarded(
    "lgamma",
    {
        "float32": (_positive, _widened(_near_lgamma(F32)), _widened(_far_lgamma)),
        "float64": (_positive, _lgamma64, _far_lgamma),
    },
)
digamma = Guarded(
    "digamma",
    {
        "float32": (_positive, _widened(_near_digamma(F32)), _widened(_far_digamma)),
        "float64": (_positive, _digamma64, _far_digamma),
    },
)
polygamma = Guarded(
    "polygamma",
    {
        "float32": (_trigamma, _widened_pair(_near_polygamma(F32)), _widened_pair(_far_polygamma)),
        "float64": (_trigamma, _near_polygamma(F64), _far_polygamma),
    },
)
