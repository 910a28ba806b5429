"""The scalar functions that op expressions and kernel bodies are made of.

There is one of each for float32 and one for float64.

Each is plain Python that Numba compiles and LLVM vectorizes where it is inlined in a loop: no
branches, no tables, no calls.  A float32 argument is computed in float32.  The modules `scalar_*`
have the functions; those of the ones that are not in the table below state their errors there.

NaN goes in and out of every function, zeros keep their signs, subnormal numbers are numbers.  The
largest errors that were found, in units in the last place of the result (float32: every seventh of
all numbers; float64: millions, of all sizes and from the hard places):

                 float32  float64                   float32  float64
    exp             0.89     0.92    log               1.6      0.87
    exp2            0.95     1.2     log2              1.7      1.1
    expm1           1.6      2.3     log10             2.7      1.6
    sinh            2.8      3.1     log1p             2.0      1.3
    cosh            2.7      2.4     erf               2.4      2.0
    tanh            2.9      2.9     erfc              3.1      3.8
    sigmoid         2.5      2.5     erfinv            3.6      3.5
    softplus        2.2      2.3     rsqrt             1.5      1.5
    tanh_softplus   3.3      3.2

logaddexp is softplus's where it is not near 0, and good to an absolute 2e-7 and 4e-16 there;
normal_cdf is 4.6 for float64, and for float32 good to an absolute 1.6e-7, which is what gelu needs.

An integer divided by zero raises inside the kernel, which becomes the status DIVISION_BY_ZERO, and
so does what `probability` gets and is not between 0 and 1: NO_PROBABILITY.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.area import acosh, asinh, atanh
from flowvm.ops.scalar.bessel import (
    bessel_i0,
    bessel_i0e,
    bessel_i1,
    bessel_i1e,
    bessel_j0,
    bessel_j1,
    bessel_k0,
    bessel_k0e,
    bessel_k1,
    bessel_k1e,
    bessel_y0,
    bessel_y1,
)
from flowvm.ops.scalar.division import floor_divide, fmod, nextafter, remainder
from flowvm.ops.scalar.erf import erf, erfc, erfinv, normal_cdf
from flowvm.ops.scalar.exp import (
    cosh,
    exp,
    exp2,
    expm1,
    logaddexp,
    sigmoid,
    sinh,
    softplus,
    tanh,
    tanh_softplus,
)
from flowvm.ops.scalar.intrinsics import bfloat as _bfloat
from flowvm.ops.scalar.intrinsics import ceil as _ceil
from flowvm.ops.scalar.intrinsics import copysign as _copysign
from flowvm.ops.scalar.intrinsics import fabs as _fabs
from flowvm.ops.scalar.intrinsics import floor as _floor
from flowvm.ops.scalar.intrinsics import half as _half
from flowvm.ops.scalar.intrinsics import rint as _rint
from flowvm.ops.scalar.intrinsics import sqrt as _sqrt
from flowvm.ops.scalar.intrinsics import trunc as _trunc
from flowvm.ops.scalar.log import log, log1p, log2, log10
from flowvm.ops.scalar.power import cbrt, hypot, pow_
from flowvm.ops.scalar.special import digamma, lgamma, polygamma
from flowvm.ops.scalar.tails import erfcx, igamma, igammac, ndtri, zeta
from flowvm.ops.scalar.trig import acos, asin, atan, atan2, cos, sin, tan
from flowvm.ops.scalar.whole import gcd, lcm

__all__ = [
    "abs_",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bessel_i0",
    "bessel_i0e",
    "bessel_i1",
    "bessel_i1e",
    "bessel_j0",
    "bessel_j1",
    "bessel_k0",
    "bessel_k0e",
    "bessel_k1",
    "bessel_k1e",
    "bessel_y0",
    "bessel_y1",
    "bfloat",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmod",
    "functions",
    "gcd",
    "half",
    "hypot",
    "igamma",
    "igammac",
    "isfinite",
    "isinf",
    "isnan",
    "lcm",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "maximum",
    "minimum",
    "ndtri",
    "nextafter",
    "normal_cdf",
    "polygamma",
    "pow_",
    "probability",
    "remainder",
    "round_",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softplus",
    "sqrt",
    "tan",
    "tanh",
    "tanh_softplus",
    "trunc",
    "zeta",
]

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32 = np.float32


def _floats(
    name: str,
    float32: object,
    float64: Callable[[object], object] | Callable[[object], bool] | None = None,
    **others: object,
) -> Overloaded:
    return Overloaded(name, {"float32": float32, "float64": float64 or float32, **others})


def _same(x: Number) -> Number:
    return x


_ZERO_32, _ONE_32, _INF_32 = F32(0), F32(1), F32(np.inf)
_INF = math.inf

# --- roots --------------------------------------------------------------------------------------

sqrt = _floats("sqrt", _sqrt)


def _rsqrt32(x: Number) -> Number:
    return _ONE_32 / _sqrt(x)


def _rsqrt64(x: Number) -> Number:
    return 1.0 / _sqrt(x)


rsqrt = _floats("rsqrt", _rsqrt32, _rsqrt64)


# --- rounding and parts -------------------------------------------------------------------------

floor = _floats("floor", _floor, int64=_same)
ceil = _floats("ceil", _ceil, int64=_same)
trunc = _floats("trunc", _trunc, int64=_same)
round_ = _floats("round", _rint, int64=_same)  # half to even
copysign = _floats("copysign", _copysign)
half = _floats("half", _half)  # as float16 would hold it
bfloat = _floats("bfloat", _bfloat)  # as bfloat16 would


def _abs_int(x: int) -> int:
    return -x if x < 0 else x


abs_ = _floats("abs", _fabs, int64=_abs_int, uint64=_same, bool=_same)


def _sign32(x: Number) -> Number:
    return _ONE_32 if x > _ZERO_32 else (-_ONE_32 if x < _ZERO_32 else _ZERO_32)


def _sign64(x: Number) -> Number:
    return 1.0 if x > 0.0 else (-1.0 if x < 0.0 else 0.0)


def _sign_int(x: int) -> int:
    return 1 if x > 0 else (-1 if x < 0 else 0)


def _sign_uint(x: int) -> int:
    return 1 if x > 0 else 0


sign = _floats("sign", _sign32, _sign64, int64=_sign_int, uint64=_sign_uint, bool=_same)


def _isnan(x: Number) -> bool:
    return bool(x != x)


def _isinf32(x: Number) -> bool:
    return bool(_fabs(x) == _INF_32)


def _isinf64(x: Number) -> bool:
    return bool(_fabs(x) == _INF)


def _isfinite32(x: Number) -> bool:
    return bool(_fabs(x) < _INF_32)


def _isfinite64(x: Number) -> bool:
    return bool(_fabs(x) < _INF)


def _never(x: int) -> bool:
    return False


def _always(x: int) -> bool:
    return True


isnan = _floats("isnan", _isnan, int64=_never)
isinf = _floats("isinf", _isinf32, _isinf64, int64=_never)
isfinite = _floats("isfinite", _isfinite32, _isfinite64, int64=_always)


def _probability32(x: Number) -> Number:
    if not (x >= _ZERO_32 and x <= _ONE_32):
        raise ValueError
    return x


def _probability64(x: Number) -> Number:
    if not (x >= 0.0 and x <= 1.0):
        raise ValueError
    return x


probability = _floats("probability", _probability32, _probability64)

_LEAST, _LEAST_32 = -(2.0**63), F32(-(2.0**63))


def _whole32(x: Number) -> Number:
    return x if x - x == 0 else _LEAST_32


def _whole64(x: Number) -> Number:
    return x if x - x == 0 else _LEAST


# what is converted to integers: x, or the least int64 for NaN and infinities
whole = _floats("whole", _whole32, _whole64)

# --- minimum, maximum ---------------------------------------------------------------------------


def _maximum(x: Number, y: Number) -> Number:
    return x if (x > y or x != x) else y


def _minimum(x: Number, y: Number) -> Number:
    return x if (x < y or x != x) else y


def _maximum_int(x: int, y: int) -> int:
    return x if x > y else y


def _minimum_int(x: int, y: int) -> int:
    return x if x < y else y


def _or(x: bool, y: bool) -> bool:
    return x or y


def _and(x: bool, y: bool) -> bool:
    return x and y


maximum = _floats("maximum", _maximum, int64=_maximum_int, uint64=_maximum_int, bool=_or)
minimum = _floats("minimum", _minimum, int64=_minimum_int, uint64=_minimum_int, bool=_and)


def functions() -> dict[str, Overloaded]:
    """Every function by the name it has in an expression."""
    return {v.__name__: v for v in globals().values() if isinstance(v, Overloaded)}
