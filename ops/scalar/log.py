"""log, log2, log10 and log1p.

x is written as 2**k * (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); what is left is log(1 + f), which
for float32 is f times a polynomial, and for float64 the series of atanh(f / (2 + f)), twice, with
fdlibm's coefficients.  k * log(2) comes in two parts where one is not exact enough.

log1p has to save what 1 + x loses: it goes into f, which has room for it.

Coefficients are minimax (`tools/minimax.py`) unless said otherwise, lowest power first.  The
largest errors that were found are in `flowvm.ops.scalar.functions`.
"""

from __future__ import annotations

import math

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.intrinsics import bits, from_bits

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32 = np.float32


def _f32(*values: float) -> tuple[np.float32, ...]:
    return tuple(F32(v) for v in values)


_ZERO, _HALF, _ONE = _f32(0, 0.5, 1)
_INF32, _NAN32 = _f32(np.inf, np.nan)
_INF, _NAN = math.inf, math.nan
# What moves sqrt(1/2) to 1, so that the exponent field is k + bias and the fraction that of 1 + f.
_ROOT32, _ROOT = 0x3F3504F3, 0x3FE6A09E667F3BCD
_SHIFT32, _SHIFT = (127 << 23) - _ROOT32, (1023 << 52) - _ROOT
_BIAS32 = F32(127)
_LARGE, _LARGE_BITS = 6755399441055744.0, 0x4338000000000000
_FRACTION32, _FRACTION = (1 << 23) - 1, (1 << 52) - 1
_TINY32, _UP32, _UP_EXPONENT32 = _f32(1.17549435e-38, 2.0**23, 23)
_TINY, _UP = 2.2250738585072014e-308, 4503599627370496.0


def _shifted32(x: Number) -> int:
    """Return bits(x) + _SHIFT32 in 32 bits; later steps then stay in 32 bits."""
    word: int = bits(from_bits(bits(x) + _SHIFT32, x))
    return word


def _whole64(exponent: int) -> Number:
    """exponent - 1023 as a float, by way of the last bits of a large one: AVX2 cannot convert."""
    return from_bits(exponent + _LARGE_BITS, _LARGE) - (_LARGE + 1023.0)


def _split32(x: Number) -> tuple[Number, Number]:
    """k and f of a positive x that is not subnormal."""
    w = _shifted32(x)
    return F32(w >> 23) - _BIAS32, from_bits((w & _FRACTION32) + _ROOT32, x) - _ONE


def _split64(x: Number) -> tuple[Number, Number]:
    w = bits(x) + _SHIFT
    return _whole64(w >> 52), from_bits((w & _FRACTION) + _ROOT, x) - 1.0


def _special32(x: Number, y: Number) -> Number:
    """y, the logarithm of x, where x has one that is finite."""
    y = y if x < _INF32 else x
    y = y if x != _ZERO else -_INF32
    return y if x >= _ZERO else _NAN32


def _special64(x: Number, y: Number) -> Number:
    y = y if x < _INF else x
    y = y if x != 0.0 else -_INF
    return y if x >= 0.0 else _NAN


# log(1 + f) / f
_L32 = _f32(
    1.0, -0.4999998808, 0.3333332539, -0.2500158548, 0.2000196427, -0.1660901755, 0.1418191344,
    -0.1324350238, 0.1290420443, -0.07620468736,
)  # fmt: skip
_LN2_32 = F32(0.6931471805599453)  # that is to 2**-28 of itself
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def _near_one32(f: Number) -> Number:
    """log(1 + f) / f"""
    s = f * f
    p = (_L32[9] * f + _L32[8]) * s + (_L32[7] * f + _L32[6])
    p = (p * s + (_L32[5] * f + _L32[4])) * s + (_L32[3] * f + _L32[2])
    return (p * f + _L32[1]) * f + _L32[0]


def _near_one64(f: Number) -> tuple[Number, Number]:
    """h and y of log(1 + f) = f - (h - y); y is small."""
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (
        3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01)
    )
    odd = 1.818357216161805012e-01 + w * 1.479819860510658591e-01
    odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * odd))
    h = 0.5 * f * f
    return h, s * (h + (even + odd))


def log_finite32(x: Number) -> Number:
    """log(x) for an x that is positive, finite and not subnormal."""
    k, f = _split32(x)
    return k * _LN2_32 + f * _near_one32(f)


def log_finite64(x: Number) -> Number:
    k, f = _split64(x)
    h, y = _near_one64(f)
    return k * _LN2_HIGH + (f - (h - (y + k * _LN2_LOW)))


def _log32(x: Number) -> Number:
    small = x < _TINY32
    k, f = _split32(x * _UP32 if small else x)
    k = k - _UP_EXPONENT32 if small else k
    return _special32(x, k * _LN2_32 + f * _near_one32(f))


def _log64(x: Number) -> Number:
    small = x < _TINY
    k, f = _split64(x * _UP if small else x)
    k = k - 52.0 if small else k
    h, y = _near_one64(f)
    return _special64(x, k * _LN2_HIGH + (f - (h - (y + k * _LN2_LOW))))


log = Overloaded("log", {"float32": _log32, "float64": _log64})

# --- log2, log10 --------------------------------------------------------------------------------

# log2(1 + f) / f
_B32 = _f32(
    1.442695022, -0.721347332, 0.4808982313, -0.3606966436, 0.2885673344, -0.2396174818,
    0.2046017647, -0.1910633594, 0.186168313, -0.1099401265,
)  # fmt: skip
# 1 / ln(2) and 1 / ln(10) in two parts, the first of 32 bits, and log10(2) likewise
_INV2_HIGH, _INV2_LOW = 1.44269504072144627571e00, 1.67517131648865118353e-10
_INV10_HIGH, _INV10_LOW = 4.34294481878168880939e-01, 2.50829467116452752298e-11
_LOG10_2_HIGH, _LOG10_2_LOW = 3.01029995663611771306e-01, 3.69423907715893078616e-13
_INV10_32, _LOG10_2_HIGH32, _LOG10_2_LOW32 = _f32(0.4342944819, 0.3010253906, 4.605038981e-6)


def _log2_32(x: Number) -> Number:
    small = x < _TINY32
    k, f = _split32(x * _UP32 if small else x)
    k = k - _UP_EXPONENT32 if small else k
    s = f * f
    p = (_B32[9] * f + _B32[8]) * s + (_B32[7] * f + _B32[6])
    p = (p * s + (_B32[5] * f + _B32[4])) * s + (_B32[3] * f + _B32[2])
    p = (p * f + _B32[1]) * f + _B32[0]
    return _special32(x, p * f + k)


def _log10_32(x: Number) -> Number:
    small = x < _TINY32
    k, f = _split32(x * _UP32 if small else x)
    k = k - _UP_EXPONENT32 if small else k
    y = f * _near_one32(f)
    return _special32(x, k * _LOG10_2_HIGH32 + (y * _INV10_32 + k * _LOG10_2_LOW32))


def _log2_64(x: Number) -> Number:
    small = x < _TINY
    k, f = _split64(x * _UP if small else x)
    k = k - 52.0 if small else k
    h, y = _near_one64(f)
    high = from_bits(bits(f - h) & -(1 << 32), x)  # its product with _INV2_HIGH is exact
    low = (f - high) - h + y
    return _special64(x, k + high * _INV2_HIGH + ((low + high) * _INV2_LOW + low * _INV2_HIGH))


def _log10_64(x: Number) -> Number:
    small = x < _TINY
    k, f = _split64(x * _UP if small else x)
    k = k - 52.0 if small else k
    h, y = _near_one64(f)
    high = from_bits(bits(f - h) & -(1 << 32), x)
    low = (f - high) - h + y
    rest = k * _LOG10_2_LOW + (low + high) * _INV10_LOW + low * _INV10_HIGH
    return _special64(x, k * _LOG10_2_HIGH + high * _INV10_HIGH + rest)


log2 = Overloaded("log2", {"float32": _log2_32, "float64": _log2_64})
log10 = Overloaded("log10", {"float32": _log10_32, "float64": _log10_64})

# --- log1p --------------------------------------------------------------------------------------

_MINUS_ONE32 = F32(-1.0)


def _log1p32(x: Number) -> Number:
    u = _ONE + x
    w = _shifted32(u)
    exponent = w >> 23
    k = F32(exponent) - _BIAS32
    f = from_bits((w & _FRACTION32) + _ROOT32, x) - _ONE
    lost = _HALF * (x - (u - _ONE))
    f = f + lost * from_bits((255 - exponent) << 23, x)  # times 2**(1 - k): never an infinity
    y = k * _LN2_32 + f * _near_one32(f)
    y = y if x < _INF32 else x
    y = y if u != _ONE else x
    y = y if x != _MINUS_ONE32 else -_INF32
    return y if x >= _MINUS_ONE32 else _NAN32


def _log1p64(x: Number) -> Number:
    u = 1.0 + x
    w = bits(u) + _SHIFT
    exponent = w >> 52
    k = _whole64(exponent)
    f = from_bits((w & _FRACTION) + _ROOT, x) - 1.0
    lost = 0.5 * (x - (u - 1.0))
    f = f + lost * from_bits((2047 - exponent) << 52, x)
    h, y = _near_one64(f)
    y = k * _LN2_HIGH + (f - (h - (y + k * _LN2_LOW)))
    y = y if x < _INF else x
    y = y if u != 1.0 else x
    y = y if x != -1.0 else -_INF
    return y if x >= -1.0 else _NAN


log1p = Overloaded("log1p", {"float32": _log1p32, "float64": _log1p64})
