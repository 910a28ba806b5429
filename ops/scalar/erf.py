"""The error function and its kin: erf, erfc, erfinv and the normal distribution.

erf is x times a fraction in x**2 up to where it is 1.  erfc is exp(-x**2) times a fraction in |x|;
what x**2 loses by rounding goes into the exponential, which would make much of it.  erfinv is a
fraction in w = -log(1 - y**2) and, for a float64 near 1 or -1, in sqrt(-log(1 - |y|)).

All coefficients of the fractions but the last few are positive, so evaluating them loses nothing by
cancellation.  They are minimax (`tools/minimax.py`) for the function named beside them, lowest
power first, numerator and denominator.  The largest errors that were found are in
`flowvm.ops.scalar.functions`.
"""

from __future__ import annotations

import math

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.exp import exp_of_product32, exp_of_product64, times_power32, times_power64
from flowvm.ops.scalar.intrinsics import copysign, fabs, fma, sqrt
from flowvm.ops.scalar.log import log_finite32, log_finite64

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32 = np.float32


def _f32(*values: float) -> tuple[np.float32, ...]:
    return tuple(F32(v) for v in values)


_ZERO, _HALF, _ONE, _TWO = _f32(0, 0.5, 1, 2)

# --- erf ----------------------------------------------------------------------------------------

# erf(sqrt(s)) / sqrt(s) of s - 2 for s <= 4, and erfc(a) of a - 2.975 for 2 <= a <= 3.95
_EN32 = _f32(
    0.6749332547, -0.1305559278, 0.02986972407, -0.006082859822, 0.001070644939, -0.0001635838707,
    2.186727397e-5, -2.616628308e-6, 3.054000786e-7, -2.865883353e-8,
)  # fmt: skip
_EF32 = _f32(
    2.580997898e-5, -0.0001615358779, 0.000482905336, -0.0009028679342, 0.001162811881,
    -0.0011182382, 0.0008545921883, -0.0004489690764, 8.45817558e-5, 2.110024252e-5,
)  # fmt: skip
_ERF_FLAT32, _MIDDLE32 = _f32(3.905, 2.975)  # where the polynomial is so near 0 that erf is 1


def _erf32(x: Number) -> Number:
    """One polynomial with one set of coefficients or the other."""
    a = fabs(x)
    a = _ERF_FLAT32 if a > _ERF_FLAT32 else a
    near = a < _TWO
    u = a * a - _TWO if near else a - _MIDDLE32
    p = (_EN32[9] if near else _EF32[9]) * u + (_EN32[8] if near else _EF32[8])
    p = p * u + (_EN32[7] if near else _EF32[7])
    p = p * u + (_EN32[6] if near else _EF32[6])
    p = p * u + (_EN32[5] if near else _EF32[5])
    p = p * u + (_EN32[4] if near else _EF32[4])
    p = p * u + (_EN32[3] if near else _EF32[3])
    p = p * u + (_EN32[2] if near else _EF32[2])
    p = p * u + (_EN32[1] if near else _EF32[1])
    p = p * u + (_EN32[0] if near else _EF32[0])
    return copysign(p * a if near else _ONE - p, x)


# --- erfc ---------------------------------------------------------------------------------------

# (1 + 2 a) * exp(a**2) * erfc(a) * scale of t = (a - k) / (a + k), where k is 2 for float32 and 4
# for float64.  With scales of 1.5 and _SCALE it stays below 2, where an ulp is least of a number.
_C32 = _f32(
    1.91546762, -0.1391459703, -0.24904719, 0.2460831255, -0.08130590618, -0.0120901959,
    0.0129454257, 0.00197005691, -0.001842306461, -0.0005993708037,
)  # fmt: skip
_C = (
    1.825410742027673505, -0.2067047003225525592, 0.02276909432378086684, 0.1008155607912369911,
    -0.1495851797948694883, 0.1387685330606116818, -0.09820003378411698569, 0.05502534531317440636,
    -0.02398023883486715205, 0.007449673995079587711, -0.001121861372188115869,
    -0.0002949921766447785002, 0.0002229976326622110918, -0.00003612419789279830743,
    -0.00001663193489038128689, 8.452690180220132784e-6, 4.645129574594181782e-7,
    -1.214524100744106528e-6, 8.171886749415620175e-8, 1.504009579459509908e-7,
    -1.187071942639126273e-8, -1.240576001919767582e-8,
)  # fmt: skip
_SCALE = 1.48046875
_ERFC_FLAT32, _THREE, _ONE_AND_HALF = _f32(10.2, 3, 1.5)


def _scaled32(a: Number) -> Number:
    """exp(a**2) * erfc(a)"""
    t = (a + a) / (a + _TWO) - _ONE  # which is good where a is small, as (a - 2) / (a + 2) is not
    s = t * t
    p = (_C32[9] * t + _C32[8]) * s + (_C32[7] * t + _C32[6])
    p = (p * s + (_C32[5] * t + _C32[4])) * s + (_C32[3] * t + _C32[2])
    return ((p * t + _C32[1]) * t + _C32[0]) / (_THREE * a + _ONE_AND_HALF)


def _scaled64(a: Number) -> Number:
    t = (a + a) / (a + 4.0) - 1.0
    s = t * t
    p = _C[21] * t + _C[20]
    p = p * s + (_C[19] * t + _C[18])
    p = p * s + (_C[17] * t + _C[16])
    p = p * s + (_C[15] * t + _C[14])
    p = p * s + (_C[13] * t + _C[12])
    p = p * s + (_C[11] * t + _C[10])
    p = p * s + (_C[9] * t + _C[8])
    p = p * s + (_C[7] * t + _C[6])
    p = p * s + (_C[5] * t + _C[4])
    p = p * s + (_C[3] * t + _C[2])
    return ((p * t + _C[1]) * t + _C[0]) / (2.0 * _SCALE * a + _SCALE)


def _erfc32(x: Number) -> Number:
    a = fabs(x)
    a = _ERFC_FLAT32 if a > _ERFC_FLAT32 else a
    p, t = exp_of_product32(a, a)
    y = _scaled32(a)
    y = times_power32(p * y + y, t)
    return _TWO - y if x < _ZERO else y


def _erfc64(x: Number) -> Number:
    a = fabs(x)
    a = 27.4 if a > 27.4 else a
    p, t = exp_of_product64(a, a)
    y = _scaled64(a)
    y = times_power64(p * y + y, t)
    return 2.0 - y if x < 0.0 else y


erfc = Overloaded("erfc", {"float32": _erfc32, "float64": _erfc64})

# erf(sqrt(s)) / sqrt(s) of s - 1/2 for s <= 1
_E = (
    0.9654687386698672658, -0.2810721780454342178, 0.07940998675593483047, -0.01828388448915290246,
    0.003480274496665397826, -0.0005611894221160588191, 0.00007829649525829320835,
    -9.614808686247843745e-6, 1.053644924149095876e-6, -1.042036967675513396e-7,
    9.387731918726545188e-9, -7.79850804016881489e-10, 5.945246061777915275e-11,
)  # fmt: skip


def _erf64(x: Number) -> Number:
    """Return erf(x), by _scaled64's polynomial, with other coefficients near 0."""
    a = fabs(x)
    a = 5.95 if a > 5.95 else a
    near = a < 1.0
    t = a * a - 0.5 if near else (a + a) / (a + 4.0) - 1.0
    s = t * t
    p = (0.0 if near else _C[21]) * t + (0.0 if near else _C[20])
    p = p * s + ((0.0 if near else _C[19]) * t + (0.0 if near else _C[18]))
    p = p * s + ((0.0 if near else _C[17]) * t + (0.0 if near else _C[16]))
    p = p * s + ((0.0 if near else _C[15]) * t + (0.0 if near else _C[14]))
    p = p * s + ((0.0 if near else _C[13]) * t + (_E[12] if near else _C[12]))
    p = p * s + ((_E[11] if near else _C[11]) * t + (_E[10] if near else _C[10]))
    p = p * s + ((_E[9] if near else _C[9]) * t + (_E[8] if near else _C[8]))
    p = p * s + ((_E[7] if near else _C[7]) * t + (_E[6] if near else _C[6]))
    p = p * s + ((_E[5] if near else _C[5]) * t + (_E[4] if near else _C[4]))
    p = p * s + ((_E[3] if near else _C[3]) * t + (_E[2] if near else _C[2]))
    p = (p * t + (_E[1] if near else _C[1])) * t + (_E[0] if near else _C[0])
    q, n = exp_of_product64(a, a)
    y = p / (2.0 * _SCALE * a + _SCALE)
    return copysign(p * a if near else 1.0 - times_power64(q * y + y, n), x)


erf = Overloaded("erf", {"float32": _erf32, "float64": _erf64})

# --- the normal distribution --------------------------------------------------------------------

# erf(sqrt(s / 2)) / 2 / sqrt(s)
_NA32 = _f32(
    0.5675673485, 0.04787074029, 0.006630944554, 0.0002364641987, 8.941456144e-6, 3.215503952e-8
)  # fmt: skip
_NB32 = _f32(
    1.422680378, 0.3571071625, 0.04057319835, 0.002660349943, 0.0001032122673, 1.690439944e-6
)  # fmt: skip
_SURE32, _SQRT_HALF = F32(5.9), 0.7071067811865476  # the fraction is above 1/2 at 5.9


def _normal_cdf32(x: Number) -> Number:
    """Return the normal distribution, fast, and good to 1.5e-7 below 0: gelu needs no more."""
    v = _SURE32 if x > _SURE32 else x
    v = -_SURE32 if v < -_SURE32 else v
    s = v * v
    above = ((((_NA32[5] * s + _NA32[4]) * s + _NA32[3]) * s + _NA32[2]) * s + _NA32[1]) * s
    below = ((((_NB32[5] * s + _NB32[4]) * s + _NB32[3]) * s + _NB32[2]) * s + _NB32[1]) * s
    y = v * (above + _NA32[0]) / (below + _NB32[0]) + _HALF
    y = _ZERO if y < _ZERO else y
    return _ONE if y > _ONE else y


def _normal_cdf64(x: Number) -> Number:
    a = fabs(x)
    a = 38.6 if a > 38.6 else a
    p, t = exp_of_product64(0.5 * a, a)
    y = 0.5 * _scaled64(a * _SQRT_HALF)
    y = times_power64(p * y + y, t)
    return y if x < 0.0 else 1.0 - y


normal_cdf = Overloaded("normal_cdf", {"float32": _normal_cdf32, "float64": _normal_cdf64})

# --- erfinv -------------------------------------------------------------------------------------

# erfinv(y) / y of w = -log(1 - y**2), w <= 16.7
_IA32 = _f32(1.571453929, 0.545206964, 0.1060886756, 0.01382675022, 0.00114533084, 4.228837861e-5)
_IB32 = _f32(
    1.773195863, 0.1509794444, 0.05706985295, 0.003371592145, 0.0003151800192, 2.227084678e-6
)
# the same, w <= 4.3
_IA = (
    1.498363049219096022, 0.5773793048589868082, 0.1525813206069181471, 0.02895829942911735955,
    0.004060439628699804779, 0.0004302764417355231042, 0.00003348807991353865864,
    1.74067683315238445e-6, 4.653447087609277751e-8,
)  # fmt: skip
_IB = (
    1.690721649484536071, 0.2088728863411500603, 0.09545324268116220368, 0.009419150857040731184,
    0.001666470179620182634, 0.0001192453223236855111, 8.621514055663329513e-6,
    3.401089523713831339e-7, 2.908029667932945872e-9,
)  # fmt: skip
# erfinv(y) / r - 1 of 1 / r - 0.1875, where r = sqrt(-log(1 - y)) is 2.2 to 6.07
_JA = (
    -0.07483951877064630442, -1.487430817152308293, -11.59558512858792412, -44.81564438701984443,
    -90.16927774535012929, -94.88184880137983157, -58.3832479580312409, -22.4951655759441671,
)  # fmt: skip
_JB = (
    1.876288659793814428, 21.58345623324087015, 90.8667956476430021, 181.7594518111241655,
    206.8245977756893694, 162.245925274384831, 77.79678861934525003, 22.57253381309022089,
)  # fmt: skip
_INF32, _NAN32 = _f32(np.inf, np.nan)
_INF, _NAN = math.inf, math.nan
_NEAR = 0.9925  # where w is 4.2 and r is 2.21


def _erfinv32(y: Number) -> Number:
    w = -log_finite32(fma(-y, y, _ONE))
    above = ((((_IA32[5] * w + _IA32[4]) * w + _IA32[3]) * w + _IA32[2]) * w + _IA32[1]) * w
    below = ((((_IB32[5] * w + _IB32[4]) * w + _IB32[3]) * w + _IB32[2]) * w + _IB32[1]) * w
    above, below = above + _IA32[0], below + _IB32[0]
    ratio = above / below
    # what the division left over goes into the product
    inside = copysign(ratio * y + fma(-ratio, below, above) / below * y, y)
    a = fabs(y)
    return inside if a < _ONE else (y * _INF32 if a == _ONE else _NAN32)


def _erfinv64(y: Number) -> Number:
    a = fabs(y)
    near = a < _NEAR
    w = -log_finite64(fma(-a, a, 1.0) if near else 1.0 - a)
    root = sqrt(w)
    v = w if near else 1.0 / root - 0.1875
    above = (_IA[8] if near else 0.0) * v + (_IA[7] if near else _JA[7])
    above = above * v + (_IA[6] if near else _JA[6])
    above = above * v + (_IA[5] if near else _JA[5])
    above = above * v + (_IA[4] if near else _JA[4])
    above = above * v + (_IA[3] if near else _JA[3])
    above = above * v + (_IA[2] if near else _JA[2])
    above = above * v + (_IA[1] if near else _JA[1])
    above = above * v + (_IA[0] if near else _JA[0])
    below = (_IB[8] if near else 0.0) * v + (_IB[7] if near else _JB[7])
    below = below * v + (_IB[6] if near else _JB[6])
    below = below * v + (_IB[5] if near else _JB[5])
    below = below * v + (_IB[4] if near else _JB[4])
    below = below * v + (_IB[3] if near else _JB[3])
    below = below * v + (_IB[2] if near else _JB[2])
    below = below * v + (_IB[1] if near else _JB[1])
    below = below * v + (_IB[0] if near else _JB[0])
    ratio = above / below
    inside = copysign(ratio * a if near else ratio * root + root, y)
    return inside if a < 1.0 else (y * _INF if a == 1.0 else _NAN)


erfinv = Overloaded("erfinv", {"float32": _erfinv32, "float64": _erfinv64})
