"""Sine to arc tangent.

Each function is written once, as a maker that takes a dtype and its constants.  sin, cos and tan
are `Guarded`: `near` is right up to a limit, where three constants make up a multiple of pi, and
`far` multiplies by as many digits of 2/pi as any number needs.  All the others have one form.

The largest errors measured, in units in the last place, over every seventh float32 and on
samples of all exponents in float64, subnormals included:

               sin   cos   tan   asin  acos  atan  atan2
    float32    1.5   1.6   3.2   1.9   1.2   2.1   2.1
    float64    1.6   1.6   3.7   2.1   1.2   1.4   1.8

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
    Guarded,
    exponent,
    mantissa,
    negated_if_odd,
    odd,
    polynomial,
)
from flowvm.ops.scalar.intrinsics import copysign, fabs, fma, sqrt

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32, F64 = np.float32, np.float64
Unary = Callable[[Number], Number]
Binary = Callable[[Number, Number], Number]

# pi in three numbers of the dtype, each the nearest; pi / 2 is half of each
_PI: dict[Float, tuple[float, float, float]] = {
    F32: (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15),
    F64: (3.141592653589793, 1.2246467991473532e-16, -2.9947698097183397e-33),
}

# the same, each rounded towards 0: all are positive, so -0 less 0 times each of them is -0
_PI_BELOW: dict[Float, tuple[float, float, float]] = {
    F32: (3.141592502593994, 1.5099578831723193e-07, 1.078060505991553e-14),
    F64: (3.141592653589793, 1.224646799147353e-16, 2.1657133478438278e-32),
}

# --- reduction of any angle --------------------------------------------------------------------

_LIMB = 27  # bits of a limb: three products of limbs fit an int64
_TWO_OVER_PI = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7AEF1586DC91B8E909374B801924BBA827464873F877AC72C4A69CFBA208D7D4BAED1213A671C09AD17DF904E64758E60D4CE7D272117E2EF7E4A0EC7FE25FFF7816603FBCBC462D6829B47DB4D9FB3C9F2C26DD3D18FD9A797FA8B5D49EEB1FAF97C5ECF41CE7DE294A4BA9AFED7EC47E357421580CC11BF1EDAEAFC33EF0826BD0D876A78E45857B986C219  # noqa: E501
_COUNT = 50
_LEAST = 2.0 ** (-7 * _LIMB)  # the weight of the last column
_LIMBS = np.array(
    [_TWO_OVER_PI >> _LIMB * (_COUNT - 1 - i) & (1 << _LIMB) - 1 for i in range(_COUNT)], np.int64
)


def _far_angle(x: float) -> tuple[int, float]:
    """(n, r) with x = n * pi/2 + r modulo 2 pi, |r| <= pi/4, for |x| >= 2**27 (after Payne and
    Hanek).

    x is an integer times 2**(27 q); of its product with 2/pi only the columns count whose weight is
    1 or less, and seven of those, 189 bits, are more than any float64 can cancel.
    """
    a = fabs(x)
    shift = int(exponent(a)) - 53
    q = shift // _LIMB
    whole = int(mantissa(a) * 9007199254740992.0)  # of 54 bits; then whole << (shift % 27) in limbs
    shift -= q * _LIMB
    mask = (1 << _LIMB) - 1
    low = (whole & mask) << shift
    high = ((whole >> _LIMB) << shift) + (low >> _LIMB)
    a0, a1, a2 = low & mask, high & mask, high >> _LIMB
    carry, n = 0, 0
    r, weight, sign = 0.0, 0.0, 1.0
    for pass_ in range(2):  # the second, if the fraction is above a half, sums what it lacks to 1
        carry, r, weight = 0, 0.0, _LEAST
        for c in range(7, -1, -1):
            i = c + q
            total = carry + a0 * _limb(i - 1) + a1 * _limb(i) + a2 * _limb(i + 1)
            carry = total >> _LIMB
            digit = total & mask
            if c == 0:
                n = digit
            else:
                r += (mask - digit if pass_ else digit) * weight
                weight *= 134217728.0
        if r <= 0.5:
            break
        sign = -1.0
    n += 1 if sign < 0.0 else 0
    r *= sign * 1.5707963267948966
    return (n, r) if x > 0.0 else (-n, -r)


def _limb(i: int) -> int:
    return _LIMBS[i] if 0 <= i < _COUNT else 0


# --- sine, cosine, tangent ----------------------------------------------------------------------

# (sin(r) - r) / r**3 in r**2 for |r| < 1.01 pi/4, of the relative error
_SIN: dict[Float, tuple[float, ...]] = {
    F32: (-1.6666654e-01, 8.332051e-03, -1.9497238e-04),
    F64: (
        -0.16666666666666638, 0.008333333333322663, -0.00019841269829234034,
        2.7557313313449753e-06, -2.5050679543604852e-08, 1.5891457192684146e-10,
    ),
}  # fmt: skip
# (cos(r) - 1 + r**2 / 2) / r**4 in r**2 for |r| < 1.01 pi/4
_COS: dict[Float, tuple[float, ...]] = {
    F32: (4.1666653e-02, -1.3887604e-03, 2.4457095e-05),
    F64: (
        0.04166666666666665, -0.0013888888888882213, 2.4801587294058422e-05,
        -2.755731552688276e-07, 2.087586330913624e-09, -1.1365946290669654e-11,
    ),
}  # fmt: skip
# (sin(r) - r) / r**3 in r**2 for |r| < 1.01 pi/2, of the relative error
_HALF_TURN: dict[Float, tuple[float, ...]] = {
    F32: (-1.66666582e-01, 8.33303016e-03, -1.98068505e-04, 2.59951912e-06),
    F64: (
        -0.16666666666666666, 0.008333333333333174, -0.0001984126984120145, 2.7557319209782294e-06,
        -2.505210674677419e-08, 1.6058933281682386e-10, -7.64282221307991e-13,
        2.7193727110100857e-15,
    ),
}  # fmt: skip
# up to where n * pi is exact enough in three parts, and n itself in a float
_NEAR: dict[Float, float] = {F32: 2.0**17, F64: 2.0**30}


def _fits(dtype: Float) -> Unary:
    limit, infinite = dtype(_NEAR[dtype]), dtype(math.inf)

    def fits(x: Number) -> bool:
        a = fabs(x)
        return not limit < a < infinite

    return fits


def _quarter(dtype: Float) -> tuple[Binary, Binary]:
    """Sine and cosine of r + low for |r| <= pi/4 and a `low` below the digits of r."""
    p, q = polynomial(dtype, *_SIN[dtype]), polynomial(dtype, *_COS[dtype])
    half, one = dtype(0.5), dtype(1)

    def sine(r: Number, low: Number) -> Number:
        s = r * r
        return r + fma(r * s, p(s), low)

    def cosine(r: Number, low: Number) -> Number:
        s = r * r
        w = fma(-half, s, one)
        rest = fma(-half, s, one - w)
        return w + fma(s * s, q(s), fma(-r, low, rest))

    return sine, cosine


def _reduction(dtype: Float) -> Callable[[Number], tuple[Number, Number, Number]]:
    """(n + MAGIC, r, low) with x = n * pi/2 + r + low, |r| <= pi/4, up to _NEAR."""
    high, middle, rest = (dtype(part / 2) for part in _PI[dtype])
    inverse, magic = dtype(2 / math.pi), dtype(MAGIC[BITS[dtype]])

    def reduced(x: Number) -> tuple[Number, Number, Number]:
        t = fma(x, inverse, magic)
        n = t - magic
        r = fma(n, -middle, fma(n, -high, x))  # the inner one is exact
        return t, r, n * -rest

    return reduced


def _half_turn(dtype: Float) -> Callable[[Number, Number], Number]:
    """Return sin(x - n * pi) for |x - n * pi| <= pi/2, up to _NEAR.

    Most of the error would be that of the first term of the polynomial: it is added unrounded.
    """
    high, middle, rest = map(dtype, _PI_BELOW[dtype])
    first, *others = _HALF_TURN[dtype]
    third, p = dtype(first), polynomial(dtype, *others)

    def sine(x: Number, n: Number) -> Number:
        r = fma(n, -rest, fma(n, -middle, fma(n, -high, x)))
        s = r * r
        return fma(r, fma(s, third, s * s * p(s)), r)

    return sine


def _near_sine(dtype: Float) -> Unary:
    sine, inverse, magic = _half_turn(dtype), dtype(1 / math.pi), dtype(MAGIC[BITS[dtype]])

    def near(x: Number) -> Number:
        t = fma(x, inverse, magic)
        return negated_if_odd(sine(x, t - magic), t)

    return near


def _near_cosine(dtype: Float) -> Unary:
    """cos(x) = -sin(x - pi/2): n is between two integers."""
    sine, inverse, magic = _half_turn(dtype), dtype(1 / math.pi), dtype(MAGIC[BITS[dtype]])
    half, one = dtype(0.5), dtype(1)

    def near(x: Number) -> Number:
        t = fma(x, inverse, -half) + magic
        return negated_if_odd(sine(x, (t - magic) + half), t + one)

    return near


def _near_tangent(dtype: Float) -> Unary:
    reduced, (sine, cosine), zero = _reduction(dtype), _quarter(dtype), dtype(0)

    def near(x: Number) -> Number:
        t, r, low = reduced(x)
        u, v = sine(r, low), cosine(r, low)
        turned = odd(t)
        y = (v if turned else u) / (u if turned else v)
        return x if x == zero else negated_if_odd(y, t)

    return near


_sine, _cosine = _quarter(F64)


def _far_sine(x: Number) -> Number:
    n, r = _far_angle(x)
    y = _cosine(r, 0.0) if n & 1 else _sine(r, 0.0)
    return -y if n & 2 else y


def _far_cosine(x: Number) -> Number:
    n, r = _far_angle(x)
    y = _sine(r, 0.0) if n & 1 else _cosine(r, 0.0)
    return -y if (n + 1) & 2 else y


def _far_tangent(x: Number) -> Number:
    n, r = _far_angle(x)
    return -_cosine(r, 0.0) / _sine(r, 0.0) if n & 1 else _sine(r, 0.0) / _cosine(r, 0.0)


def _angle_function(name: str, near: Callable[[Float], Unary], far: Unary) -> Guarded:
    fits, near64 = _fits(F64), near(F64)

    def far32(x: Number) -> Number:
        wide = F64(x)
        return F32(near64(wide) if fits(wide) else far(wide))

    return Guarded(
        name, {"float32": (_fits(F32), near(F32), far32), "float64": (fits, near64, far)}
    )


sin = _angle_function("sin", _near_sine, _far_sine)
cos = _angle_function("cos", _near_cosine, _far_cosine)
tan = _angle_function("tan", _near_tangent, _far_tangent)

# --- their inverses -----------------------------------------------------------------------------

# (asin(w) - w) / w**3 in w**2 <= 1/4
_ASIN: dict[Float, tuple[float, ...]] = {
    F32: (1.6666731e-01, 7.4956685e-02, 4.54657e-02, 2.4057046e-02, 4.25536e-02),
    F64: (
        0.16666666666666174, 0.07500000000189315, 0.044642856926737, 0.030381955906336952,
        0.02237181855296253, 0.01735901156080128, 0.013890221549164397, 0.012147011441570104,
        0.0065845488433678495, 0.019467189799062267, -0.016256638896848724, 0.032011340143417125,
    ),
}  # fmt: skip
# (atan(z) - z) / z**3 in z**2 <= tan(pi/8)**2
_ATAN: dict[Float, tuple[float, ...]] = {
    F32: (-3.333332e-01, 1.9998533e-01, -1.4242968e-01, 1.0581458e-01, -6.033169e-02),
    F64: (
        -0.3333333333333327, 0.199999999999693, -0.14285714281382564, 0.11111110826495207,
        -0.09090898610366904, 0.07692069719657069, -0.06663158587367556, 0.058479608940105184,
        -0.050383972690161684, 0.038015167366073334, -0.01782871842395551,
    ),
}  # fmt: skip


def _arc_sine(dtype: Float) -> tuple[Unary, Unary]:
    """Return arc sine and arc cosine; from 1/2 on asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2))."""
    p = polynomial(dtype, *_ASIN[dtype])
    half_pi, half_low = (dtype(part / 2) for part in _PI[dtype][:2])
    zero, half, two = dtype(0), dtype(0.5), dtype(2)

    def parts(a: Number) -> Number:
        z = fma(-half, a, half) if a > half else a * a
        root = sqrt(z)
        w = root if a > half else a
        return fma(w * z, p(z), w)

    def arc_sine(x: Number) -> Number:
        a = fabs(x)
        y = parts(a)
        return copysign(fma(-two, y, half_pi) + half_low if a > half else y, x)

    def arc_cosine(x: Number) -> Number:
        a = fabs(x)
        y = copysign(parts(a), x)
        turns = two if x < zero else zero
        turns = turns if a > half else two * half
        slope = two if a > half else -two * half
        return fma(turns, half_pi, fma(turns, half_low, slope * y))

    return arc_sine, arc_cosine


def _arc_tangents(dtype: Float) -> tuple[Unary, Binary]:
    """z is at most tan(pi/8), by atan(t) = pi/4 + atan((t - 1) / (t + 1)) and pi/2 - atan(1/t)."""
    p = polynomial(dtype, *_ATAN[dtype])
    quarter, quarter_low = (dtype(part / 4) for part in _PI[dtype][:2])
    zero, one, two, four, half = map(dtype, (0, 1, 2, 4, 0.5))
    edge, infinite = dtype(0.41421356), dtype(math.inf)
    huge, tiny = np.finfo(dtype).max / dtype(4), np.finfo(dtype).tiny * dtype(2.0**30)
    up = dtype(2.0**60)

    def octant(small: Number, big: Number, turned: bool, start: Number) -> Number:
        """atan(small / big), or `start` quarters of pi plus that, or minus if `turned`."""
        steep = small > edge * big or small == infinite
        above = small - big if steep else small
        below = small + big if steep else big
        z = (zero if small == infinite else above) / below
        s = z * z
        y = fma(z * s, p(s), z)
        count = one if steep else zero
        count = start - count if turned else start + count
        y = -y if turned else y
        return fma(count, quarter, fma(count, quarter_low, y))

    def arc_tangent(x: Number) -> Number:
        a = fabs(x)
        turned = a > one
        y = octant(one if turned else a, a if turned else one, turned, two if turned else zero)
        return copysign(y, x)

    def arc_tangent_2(y: Number, x: Number) -> Number:
        a, b = fabs(y), fabs(x)
        steep = a > b
        big = a if steep else b
        small = b if steep else a
        # or the sum of the two would be infinite, or a part of one subnormal
        factor = half if big > huge else (up if big < tiny else one)
        back = copysign(one, x) < zero
        start = two if steep else (four if back else zero)
        safe = one if big == zero else big * factor
        return copysign(octant(small * factor, safe, steep != back, start), y)

    return arc_tangent, arc_tangent_2


(_asin32, _acos32), (_asin64, _acos64) = _arc_sine(F32), _arc_sine(F64)
(_atan32, _atan2_32), (_atan64, _atan2_64) = _arc_tangents(F32), _arc_tangents(F64)
asin = Overloaded("asin", {"float32": _asin32, "float64": _asin64})
acos = Overloaded("acos", {"float32": _acos32, "float64": _acos64})
atan = Overloaded("atan", {"float32": _atan32, "float64": _atan64})
atan2 = Overloaded("atan2", {"float32": _atan2_32, "float64": _atan2_64})
