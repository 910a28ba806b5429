"""Powers and roots.

pow has every special case of C99.  Its logarithm carries more digits than the dtype: for float32
the whole of it is done in float64, for float64 the logarithm is a sum of two numbers.

The largest errors measured, in units in the last place, over samples of all exponents, subnormals
included:

               pow   cbrt  hypot
    float32    0.7   0.6   1.2
    float64    1.4   0.6   1.2

Coefficients: Remez' exchange, stopped near the best error; `tools/minimax.py` finds others as good,
not the same digits, for the f and the interval that stand beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.bits import (
    BITS,
    MAGIC,
    Float,
    exponent,
    mantissa,
    polynomial,
    scale,
    scale_once,
)
from flowvm.ops.scalar.intrinsics import copysign, fabs, fma, sqrt, trunc

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32, F64 = np.float32, np.float64
Unary = Callable[[Number], Number]
Binary = Callable[[Number, Number], Number]

# --- powers -------------------------------------------------------------------------------------

_MAGIC = MAGIC[64]
# log2(1 + f) / f for 1 + f between sqrt(1/2) and sqrt(2), of the relative error
_LOG2 = polynomial(
    F64, 1.4426950409397412, -0.7213475252333668, 0.4808983205810336, -0.36067279770293675,
    0.2885406511691939, -0.2405042862505383, 0.20609616797775512, -0.17904524349619674,
    0.15900101315063947, -0.15699172734674538, 0.15486581773968033, -0.08633899547672268,
)  # fmt: skip
# 2**r for |r| <= 1/2
_EXP2 = polynomial(
    F64, 1.0000000005550538, 0.69314720573442, 0.24022646887437651, 0.05550328777679551,
    0.009618489140879719, 0.0013399930882748727, 0.0001534578217668144,
)  # fmt: skip
_INF, _ONE_32, _HALF_32, _NAN_32 = math.inf, F32(1), F32(0.5), F32(math.nan)
_ZERO_32, _INF_32 = F32(0), F32(math.inf)


def _pow32(x: Number, y: Number) -> Number:
    a: Number = F64(fabs(x))
    b: Number = F64(y)
    f = mantissa(a) - 1.0
    g = fma(f, _LOG2(f), exponent(a))
    g = 1e300 if a == _INF else g  # not infinite, as its product with 0 must be 0
    g = -1e300 if a == 0.0 else g
    b = 1e39 if b > 1e39 else b
    b = -1e39 if b < -1e39 else b
    t = b * g
    t = 200.0 if t > 200.0 else t
    t = -200.0 if t < -200.0 else t
    n = t + _MAGIC
    power = F32(scale_once(_EXP2(t - (n - _MAGIC)), n))
    whole = trunc(y) == y
    half = y * _HALF_32
    odd = whole and trunc(half) != half
    power = -power if odd and copysign(_ONE_32, x) < _ZERO_32 else power
    power = _NAN_32 if -_INF_32 < x < _ZERO_32 and not whole else power
    power = x + y if x != x or y != y else power
    return _ONE_32 if x == _ONE_32 or y == _ZERO_32 else power


_LN2, _LN2_LOW, _LOG2E = 0.6931471805598903, 5.497923018708371e-14, 1.4426950408889634
_THIRD, _THIRD_LOW = 0.6666666666666666, 3.700743415417188e-17  # of 2
# (2 atanh(s) - 2 s - 2/3 s**3) / s**5 in s**2, (1 + s) / (1 - s) between sqrt(1/2) and sqrt(2)
_ATANH = polynomial(
    F64, 0.40000000000000385, 0.28571428570998686, 0.22222222363555932, 0.18181797470352445,
    0.15386185374033903, 0.13269355548534295, 0.13087220074826517,
)  # fmt: skip
# (exp(r) - 1 - r) / r**2 for |r| <= ln(2) / 2, of the relative error of exp
_EXP = polynomial(
    F64, 0.500000000000001, 0.16666666666666677, 0.041666666666521815, 0.008333333333320966,
    0.0013888888947875342, 0.00019841269889754373, 2.4801487264434393e-05,
    2.755723915273255e-06, 2.763267896281514e-07, 2.511115526239826e-08,
)  # fmt: skip


def _log_pair(x: Number) -> tuple[Number, Number]:
    """log(x) of a positive x as a sum of two, to 2**-63 of it (after fdlibm's pow).

    With s = f / (2 + f), log(1 + f) = 2 s + 2/3 s**3 + ...: these two carry a second number each.
    """
    small = x < 2.2250738585072014e-308
    v = x * 18014398509481984.0 if small else x
    k = exponent(v) - (54.0 if small else 0.0)
    m = mantissa(v)
    f, g = m - 1.0, m + 1.0
    inverse = 1.0 / g
    s = f * inverse
    s_low = fma(-s, m - (g - 1.0), fma(-s, g, f)) * inverse
    z = s * s
    z_low = fma(s, s, -z) + 2.0 * s * s_low
    c = s * z
    c_low = fma(s, z, -c) + (s * z_low + s_low * z)
    d = c * _THIRD
    d_low = fma(c, _THIRD, -d) + (c * _THIRD_LOW + c_low * _THIRD)
    whole, twice = k * _LN2, 2.0 * s  # both exact
    a = whole + twice
    b = a + d
    rest = (twice - (a - whole)) + (d - (b - a))
    rest += (d_low + 2.0 * s_low) + fma(c * z, _ATANH(z), k * _LN2_LOW)
    high = b + rest
    return high, rest - (high - b)


def _pow64(x: Number, y: Number) -> Number:
    a = fabs(x)
    g, g_low = _log_pair(a)
    b = 1e308 if y > 1e308 else y
    b = -1e308 if b < -1e308 else b
    t = b * g
    far = fabs(t) > 800.0
    low = 0.0 if far else fma(b, g, -t) + b * g_low
    t = copysign(800.0, t) if far else t
    u = fma(t, _LOG2E, _MAGIC)
    n = u - _MAGIC
    r = fma(-n, _LN2, t) + fma(-n, _LN2_LOW, low)
    power = scale(1.0 + fma(r * r, _EXP(r), r), u)
    extreme = _INF if (y > 0.0) == (a > 1.0) else 0.0
    power = extreme if a == 0.0 or a == _INF else power
    whole = trunc(y) == y
    half = y * 0.5
    odd = whole and trunc(half) != half
    power = -power if odd and copysign(1.0, x) < 0.0 else power
    power = math.nan if -_INF < x < 0.0 and not whole else power
    power = x + y if x != x or y != y else power
    return 1.0 if x == 1.0 or y == 0.0 else power


def _pow_int(x: int, n: int) -> int:
    """Wraps around as PyTorch's does; a negative exponent leaves only 1 and -1 different from 0."""
    if n < 0:
        return 1 if x == 1 else ((-1 if n & 1 else 1) if x == -1 else 0)
    result = 1
    while n > 0:
        if n & 1:
            result *= x
        x *= x
        n >>= 1
    return result


def _pow_uint(x: int, n: int) -> int:
    one = np.uint64(1)
    result, base, exponent = one, np.uint64(x), np.uint64(n)
    while exponent != 0:
        if exponent & one:
            result *= base
        base *= base
        exponent >>= one
    return int(result)


pow_ = Overloaded(
    "pow", {"float32": _pow32, "float64": _pow64, "int64": _pow_int, "uint64": _pow_uint}
)

# --- roots ----------------------------------------------------------------------------------------

# m**(-1/3) for m between sqrt(1/2) and sqrt(2), of the relative error
_ROOT: dict[Float, tuple[float, ...]] = {
    F32: (1.7307276, -1.2857472, 0.7133192, -0.15852264),
    F64: (
        1.9991842752447944, -2.485955195321386, 2.7922162960511017, -1.8980769883189101,
        0.7006843340893815, -0.10804884470429017,
    ),
}  # fmt: skip


def _cube_root(dtype: Float) -> Unary:
    """c = v**(-1/3) by a polynomial and a step of Householder's, v * c * c, a step of Newton's."""
    start = polynomial(dtype, *_ROOT[dtype])
    step = polynomial(dtype, 1 / 3, 2 / 9, *((14 / 81,) if dtype is F64 else ()))
    magic, tiny = dtype(MAGIC[BITS[dtype]]), np.finfo(dtype).tiny
    up, down = (dtype(2.0**e) for e in ((24, -8) if dtype is F32 else (54, -18)))
    zero, half, one, two, third = map(dtype, (0, 0.5, 1, 2, 1 / 3))
    root, inverse = dtype(2 ** (1 / 3)), dtype(2 ** (-1 / 3))
    infinite = dtype(math.inf)

    def cube_root(x: Number) -> Number:
        a = fabs(x)
        small = a < tiny
        a = a * up if small else a
        k, m = exponent(a), mantissa(a)
        t = fma(k, third, magic)
        rest = k - two * (t - magic) - (t - magic)  # -1, 0 or 1
        v = m * (two if rest > zero else (half if rest < zero else one))
        c = start(m) * (inverse if rest > zero else (root if rest < zero else one))
        h = fma(-v * c, c * c, one)
        c = fma(c * h, step(h), c)
        s = v * c * c
        square = s * s
        lost = fma(-square, s, v) - fma(s, s, -square) * s
        s = scale_once(fma(lost * third, c * c, s), t)
        s = copysign(s * down if small else s, x)
        return s if zero < fabs(x) < infinite else x

    return cube_root


def _hypotenuse(dtype: Float) -> Binary:
    large, small, down, up = (60, -40, -70, 90) if dtype is F32 else (500, -450, -600, 600)
    above, below, infinite, one = map(dtype, (2.0**large, 2.0**small, math.inf, 1))
    shrink, unshrink, grow, ungrow = map(dtype, (2.0**down, 2.0**-down, 2.0**up, 2.0**-up))

    def hypotenuse(x: Number, y: Number) -> Number:
        a, b = fabs(x), fabs(y)
        size = a if a > b else b
        factor = shrink if size > above else (grow if size < below else one)
        back = unshrink if size > above else (ungrow if size < below else one)
        c, d = a * factor, b * factor
        h = sqrt(fma(c, c, d * d)) * back
        return infinite if a == infinite or b == infinite else h

    return hypotenuse


cbrt = Overloaded("cbrt", {"float32": _cube_root(F32), "float64": _cube_root(F64)})
hypot = Overloaded("hypot", {"float32": _hypotenuse(F32), "float64": _hypotenuse(F64)})
