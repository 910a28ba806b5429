"""exp and functions of it: exp2, expm1, sinh, cosh, tanh, sigmoid, softplus, mish.

All of them write x as n * ln 2 + r with |r| <= ln(2) / 2.  n comes out of adding a number so large
that its last bit is a one: t = x / ln 2 + MAGIC, whose low bits are then n plus what was put into
MAGIC, ready to be shifted into an exponent.  What follows differs in how e**r and 2**n are put
together without overflow, underflow or cancellation on the way.

Coefficients are minimax (`tools/minimax.py`) for the function named beside them, lowest power
first.  The largest errors that were found are in `flowvm.ops.scalar.functions`.
"""

from __future__ import annotations

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.intrinsics import bits, copysign, fabs, fma, from_bits

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32 = np.float32


def _f32(*values: float) -> tuple[np.float32, ...]:
    return tuple(F32(v) for v in values)


_ZERO, _HALF, _ONE, _TWO = _f32(0, 0.5, 1, 2)
_LOG2E32, _HIGH32, _LOW32 = _f32(1.44269504, 0.693359375, -2.12194440e-4)  # _HIGH * n is exact
_LOG2E, _HIGH, _LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_MAGIC32, _MAGIC64 = 12582912.0, 6755399441055744.0  # 1.5 * 2**(bits of the mantissa)
# Exponent fields that MAGIC brings along: one power, or two whose product is wanted.
_ONE_POWER32, _TWO_POWERS32 = F32(_MAGIC32 + 127), F32(_MAGIC32 + 254)
_ONE_POWER, _TWO_POWERS = _MAGIC64 + 1023, _MAGIC64 + 2046

# --- exp, exp2 ----------------------------------------------------------------------------------

# (exp(r) - 1 - r) / r**2
_E32 = _f32(0.4999999404, 0.1666652113, 0.04166838899, 0.00836871285, 0.00138144847)
_E64 = (
    0.5000000000000011102, 0.1666666666666641317, 0.0416666666665302457, 0.008333333333494763115,
    0.001388888894360728937, 0.0001984126950583311728, 0.00002480149312282419936,
    2.755758709335657534e-6, 2.763023972696965798e-7, 2.499982180273022373e-8,
)  # fmt: skip


def times_power32(y: Number, t: Number) -> Number:
    """y * 2**n in two steps, so that a subnormal result is rounded once; t has _TWO_POWERS."""
    w = bits(t)
    half = w >> 1
    return y * from_bits(half << 23, y) * from_bits((w - half) << 23, y)


def times_power64(y: Number, t: Number) -> Number:
    w = bits(t)
    half = w >> 1
    return y * from_bits(half << 52, y) * from_bits((w - half) << 52, y)


def _polynomial32(r: Number) -> Number:
    """exp(r) - 1"""
    p = (((_E32[4] * r + _E32[3]) * r + _E32[2]) * r + _E32[1]) * r + _E32[0]
    return (p * r + _ONE) * r


def _polynomial64(r: Number) -> Number:
    s = r * r
    p = (_E64[9] * r + _E64[8]) * s + (_E64[7] * r + _E64[6])
    p = (p * s + (_E64[5] * r + _E64[4])) * s + (_E64[3] * r + _E64[2])
    p = p * s + (_E64[1] * r + _E64[0])
    return (p * r + 1.0) * r


def exp_of_product32(a: Number, b: Number) -> tuple[Number, Number]:
    """p, t with exp(-a * b) = times_power32(1 + p, t) for 0 <= a * b <= 104.1.

    The product is never rounded: n * _HIGH32 is exact, and the sum of both is small.
    """
    t = _TWO_POWERS32 - a * b * _LOG2E32
    n = t - _TWO_POWERS32
    return _polynomial32(-fma(a, b, n * _HIGH32) - n * _LOW32), t


def exp_of_product64(a: Number, b: Number) -> tuple[Number, Number]:
    """Return p, t as `exp_of_product32` does, for 0 <= a * b <= 752."""
    t = _TWO_POWERS - a * b * _LOG2E
    n = t - _TWO_POWERS
    return _polynomial64(-fma(a, b, n * _HIGH) - n * _LOW), t


_LEAST32, _MOST32 = _f32(-104.0, 89.0)


def _exp32(x: Number) -> Number:
    v = _MOST32 if x > _MOST32 else x
    v = _LEAST32 if v < _LEAST32 else v
    t = v * _LOG2E32 + _TWO_POWERS32
    n = t - _TWO_POWERS32
    return times_power32(_polynomial32((v - n * _HIGH32) - n * _LOW32) + _ONE, t)


def _exp64(x: Number) -> Number:
    v = 710.0 if x > 710.0 else x
    v = -746.0 if v < -746.0 else v
    t = v * _LOG2E + _TWO_POWERS
    n = t - _TWO_POWERS
    return times_power64(_polynomial64((v - n * _HIGH) - n * _LOW) + 1.0, t)


exp = Overloaded("exp", {"float32": _exp32, "float64": _exp64})

# (2**r - 1) / r for |r| <= 1/2
_P32 = _f32(
    0.6931471825, 0.2402264774, 0.05550332367, 0.009618437849, 0.001339889714, 0.0001535337942
)
_P64 = (
    0.6931471805599452862, 0.2402265069591013047, 0.05550410866482008432, 0.009618129107594072108,
    0.001333355814677465072, 0.0001540353045717945003, 0.00001525273349316773618,
    1.321543524545245364e-6, 1.017819952532053451e-7, 7.073790070868044094e-9,
    4.434783174410219749e-10,
)  # fmt: skip
_LEAST2_32, _MOST2_32 = _f32(-151.0, 129.0)


def _exp2_32(x: Number) -> Number:
    v = _MOST2_32 if x > _MOST2_32 else x
    v = _LEAST2_32 if v < _LEAST2_32 else v
    t = v + _TWO_POWERS32
    r = v - (t - _TWO_POWERS32)
    p = (((_P32[5] * r + _P32[4]) * r + _P32[3]) * r + _P32[2]) * r + _P32[1]
    return times_power32((p * r + _P32[0]) * r + _ONE, t)


def _exp2_64(x: Number) -> Number:
    v = 1025.0 if x > 1025.0 else x
    v = -1076.0 if v < -1076.0 else v
    t = v + _TWO_POWERS
    r = v - (t - _TWO_POWERS)
    s = r * r
    p = _P64[10] * s + (_P64[9] * r + _P64[8])
    p = (p * s + (_P64[7] * r + _P64[6])) * s + (_P64[5] * r + _P64[4])
    p = (p * s + (_P64[3] * r + _P64[2])) * s + (_P64[1] * r + _P64[0])
    return times_power64(p * r + 1.0, t)


exp2 = Overloaded("exp2", {"float32": _exp2_32, "float64": _exp2_64})

# --- expm1, sinh, cosh, tanh --------------------------------------------------------------------

# 2 * (exp(r) - 1 - r) / r**2, the error relative to exp(r) - 1
_M32 = _f32(0.9999999404, 0.3333308696, 0.08333440124, 0.01673303731, 0.00277651148)
_M64 = (
    1.000000000000001110, 0.3333333333333317606, 0.0833333333331535836, 0.01666666666677917019,
    0.002777777786310503626, 0.0003968253943781285256, 0.00004960301057686807204,
    5.511481528730959358e-6, 5.525206407146893622e-7, 5.01074822435204782e-8,
)  # fmt: skip
_HALF_POWER32, _HALF_POWER = F32(_MAGIC32 + 126), _MAGIC64 + 1022
_FLAT32 = F32(-20.0)


def _expm1_parts32(x: Number) -> tuple[Number, Number]:
    """Return p = 2 * (e**r - 1) and s = 2**(n - 1), which is finite if 2**n * e**r is."""
    t = x * _LOG2E32 + _HALF_POWER32
    n = t - _HALF_POWER32
    r = (x - n * _HIGH32) - n * _LOW32
    p = (((_M32[4] * r + _M32[3]) * r + _M32[2]) * r + _M32[1]) * r + _M32[0]
    return p * (r * r) + (r + r), from_bits(bits(t) << 23, x)


def _expm1_parts64(x: Number) -> tuple[Number, Number]:
    t = x * _LOG2E + _HALF_POWER
    n = t - _HALF_POWER
    r = (x - n * _HIGH) - n * _LOW
    s = r * r
    p = (_M64[9] * r + _M64[8]) * s + (_M64[7] * r + _M64[6])
    p = (p * s + (_M64[5] * r + _M64[4])) * s + (_M64[3] * r + _M64[2])
    p = p * s + (_M64[1] * r + _M64[0])
    return p * s + (r + r), from_bits(bits(t) << 52, x)


def _expm1_32(x: Number) -> Number:
    v = _MOST32 if x > _MOST32 else x
    p, s = _expm1_parts32(_FLAT32 if v < _FLAT32 else v)
    return copysign(fma(s - _HALF, _TWO, s * p), x)


def _expm1_64(x: Number) -> Number:
    v = 710.0 if x > 710.0 else x
    p, s = _expm1_parts64(-40.0 if v < -40.0 else v)
    return copysign(fma(s - 0.5, 2.0, s * p), x)


expm1 = Overloaded("expm1", {"float32": _expm1_32, "float64": _expm1_64})

# (cosh(r) - 1) / r**2 and (sinh(r) / r - 1) / r**2 as functions of r**2, doubled
_C32 = _f32(1.0, 0.0833325386, 0.002789204708)
_S32 = _f32(0.3333333432, 0.01666657813, 0.0003980991896)
_C64 = (
    1.0, 0.08333333333333342586, 0.00277777777777284303, 0.00004960317472586386288,
    5.511448435365309338e-7, 4.184865200248183926e-9,
)  # fmt: skip
_S64 = (
    0.3333333333333335368, 0.01666666666664323379, 0.0003968253977230471602,
    5.511448837909566312e-6, 5.021808360023225934e-8,
)  # fmt: skip
_QUARTER_POWER32, _QUARTER_POWER = F32(_MAGIC32 + 125), _MAGIC64 + 1021
_STEEP32, _SIXTEENTH = _f32(89.5, 0.0625)


def _hyperbolic32(a: Number) -> tuple[Number, Number, Number, Number]:
    """2 cosh(r), 2 sinh(r), 2**(n - 2), 2**(-n - 2): both functions are sums of two products."""
    a = _STEEP32 if a > _STEEP32 else a
    t = a * _LOG2E32 + _QUARTER_POWER32
    n = t - _QUARTER_POWER32
    r = (a - n * _HIGH32) - n * _LOW32
    q = r * r
    even = ((_C32[2] * q + _C32[1]) * q + _C32[0]) * q + _TWO
    odd = ((_S32[2] * q + _S32[1]) * q + _S32[0]) * (q * r) + (r + r)
    up = from_bits(bits(t) << 23, a)
    return even, odd, up, _SIXTEENTH / up


def _hyperbolic64(a: Number) -> tuple[Number, Number, Number, Number]:
    a = 710.6 if a > 710.6 else a  # 2**1024 would be infinite
    t = a * _LOG2E + _QUARTER_POWER
    n = t - _QUARTER_POWER
    r = (a - n * _HIGH) - n * _LOW
    q = r * r
    even = ((_C64[5] * q + _C64[4]) * q + _C64[3]) * q + _C64[2]
    even = ((even * q + _C64[1]) * q + _C64[0]) * q + 2.0
    odd = ((_S64[4] * q + _S64[3]) * q + _S64[2]) * q + _S64[1]
    odd = (odd * q + _S64[0]) * (q * r) + (r + r)
    up = from_bits(bits(t) << 52, a)
    return even, odd, up, 0.0625 / up


def _sinh32(x: Number) -> Number:
    even, odd, up, down = _hyperbolic32(fabs(x))
    return copysign(fma(up - down, even, (up + down) * odd), x)


def _sinh64(x: Number) -> Number:
    even, odd, up, down = _hyperbolic64(fabs(x))
    return copysign(fma(up - down, even, (up + down) * odd), x)


def _cosh32(x: Number) -> Number:
    even, odd, up, down = _hyperbolic32(fabs(x))
    return fma(up + down, even, (up - down) * odd)


def _cosh64(x: Number) -> Number:
    even, odd, up, down = _hyperbolic64(fabs(x))
    return fma(up + down, even, (up - down) * odd)


sinh = Overloaded("sinh", {"float32": _sinh32, "float64": _sinh64})
cosh = Overloaded("cosh", {"float32": _cosh32, "float64": _cosh64})


_SATURATED32 = F32(20.0)


def _tanh32(x: Number) -> Number:
    """expm1(2 x) / (expm1(2 x) + 2)"""
    v = x + x
    v = _SATURATED32 if v > _SATURATED32 else v
    v = -_SATURATED32 if v < -_SATURATED32 else v
    p, s = _expm1_parts32(v)
    e, twice = s * p, s + s
    return copysign((twice - _ONE + e) / (twice + _ONE + e), x)


def _tanh64(x: Number) -> Number:
    v = x + x
    v = 40.0 if v > 40.0 else v
    v = -40.0 if v < -40.0 else v
    p, s = _expm1_parts64(v)
    e, twice = s * p, s + s
    return copysign((twice - 1.0 + e) / (twice + 1.0 + e), x)


tanh = Overloaded("tanh", {"float32": _tanh32, "float64": _tanh64})

# --- sigmoid, softplus --------------------------------------------------------------------------

_SURE32, _UP32, _DOWN32 = F32(44.0), F32(_MAGIC32 + 127 + 24), F32(2.0**-24)
_UP, _DOWN = _MAGIC64 + 1023 + 64, 2.0**-64


def _sigmoid32(x: Number) -> Number:
    """2**n / (2**n + e**-r); 2**n is 1 to it where it is large, and may be subnormal."""
    v = _SURE32 if x > _SURE32 else x
    v = _LEAST32 if v < _LEAST32 else v
    t = v * _LOG2E32 + _UP32
    n = t - _UP32
    p = _polynomial32((n * _HIGH32 - v) + n * _LOW32) + _ONE
    s = from_bits(bits(t) << 23, x) * _DOWN32
    return s / (s + p)


def _sigmoid64(x: Number) -> Number:
    v = 44.0 if x > 44.0 else x
    v = -746.0 if v < -746.0 else v
    t = v * _LOG2E + _UP
    n = t - _UP
    p = _polynomial64((n * _HIGH - v) + n * _LOW) + 1.0
    s = from_bits(bits(t) << 52, x) * _DOWN
    return s / (s + p)


sigmoid = Overloaded("sigmoid", {"float32": _sigmoid32, "float64": _sigmoid64})

# (z - log(1 + z)) / z**2 for 0 <= z <= 1, a fraction
_LA32 = _f32(0.4999999106, 0.4501329064, 0.07200644165)
_LB32 = _f32(1.0, 1.566927195, 0.6886792779, 0.07543428987)
_LA = (
    0.4999999999999978351, 1.142794958471706313, 0.9224760157783158387, 0.3145009693727260913,
    0.0421229068210392521, 0.001550252560627557842,
)  # fmt: skip
_LB = (
    1.0, 2.952256583609677243, 3.313123087309539638, 1.761622371596167635, 0.4496684866590487939,
    0.0489462889322683295, 0.001573149836621296144,
)  # fmt: skip


def _log_one_plus32(z: Number) -> Number:
    above = (_LA32[2] * z + _LA32[1]) * z + _LA32[0]
    below = ((_LB32[3] * z + _LB32[2]) * z + _LB32[1]) * z + _LB32[0]
    return z - (z * z) * (above / below)


def _log_one_plus64(z: Number) -> Number:
    above = (_LA[5] * z + _LA[4]) * z + _LA[3]
    above = ((above * z + _LA[2]) * z + _LA[1]) * z + _LA[0]
    below = ((_LB[6] * z + _LB[5]) * z + _LB[4]) * z + _LB[3]
    below = ((below * z + _LB[2]) * z + _LB[1]) * z + _LB[0]
    return z - (z * z) * (above / below)


def _softplus32(x: Number) -> Number:
    """log(1 + exp(x))"""
    return _log_one_plus32(_exp32(-fabs(x))) + (x if x > _ZERO else _ZERO)


def _softplus64(x: Number) -> Number:
    return _log_one_plus64(_exp64(-fabs(x))) + (x if x > 0.0 else 0.0)


softplus = Overloaded("softplus", {"float32": _softplus32, "float64": _softplus64})


def _logaddexp32(x: Number, y: Number) -> Number:
    high = x if x > y else y
    distance = _ZERO if x == y else -fabs(x - y)  # equal infinities have distance 0
    total = high + _log_one_plus32(_exp32(distance))
    return x + y if (x != x or y != y) else total


def _logaddexp64(x: Number, y: Number) -> Number:
    high = x if x > y else y
    distance = 0.0 if x == y else -fabs(x - y)
    total = high + _log_one_plus64(_exp64(distance))
    return x + y if (x != x or y != y) else total


logaddexp = Overloaded("logaddexp", {"float32": _logaddexp32, "float64": _logaddexp64})


def _tanh_softplus32(x: Number) -> Number:
    """tanh(log(1 + exp(x))), which is ((1 + e)**2 - 1) / ((1 + e)**2 + 1) of e = exp(x)."""
    z = _exp32(-fabs(x))
    up = x > _ZERO
    above = (_ONE if up else z * z) + (z + z)
    return above / (above + _TWO * (z * z if up else _ONE))


def _tanh_softplus64(x: Number) -> Number:
    z = _exp64(-fabs(x))
    up = x > 0.0
    above = (1.0 if up else z * z) + (z + z)
    return above / (above + 2.0 * (z * z if up else 1.0))


tanh_softplus = Overloaded(
    "tanh_softplus", {"float32": _tanh_softplus32, "float64": _tanh_softplus64}
)
