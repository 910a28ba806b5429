"""The inverses of the hyperbolic functions.

Each is a logarithm of 1 + u, which is taken as two numbers, so that nothing is lost where u is
small, and of 2 x alone where x is so large that 1 has no part in it.

The largest errors measured, in units in the last place, over every seventh float32 and on samples
of all exponents in float64, subnormals included:

               asinh acosh atanh
    float32    1.8   2.0   2.1
    float64    1.6   1.9   1.6
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.bits import Float, log_of_sum
from flowvm.ops.scalar.intrinsics import copysign, fabs, fma, sqrt

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32, F64 = np.float32, np.float64
Unary = Callable[[Number], Number]


def _area_functions(dtype: Float) -> tuple[Unary, Unary, Unary]:
    log_sum = log_of_sum(dtype)
    zero, half, one, two, infinite, nan = map(dtype, (0, 0.5, 1, 2, math.inf, math.nan))
    huge = dtype(2.0 ** (13 if dtype is F32 else 28))  # whose square has no use for 1

    def lost(u: Number, high: Number) -> Number:
        """Return the rounding error of `high` = 1 + u."""
        return u - (high - one) if u < one else one - (high - u)

    def area_sine(x: Number) -> Number:
        a = fabs(x)
        big = a > huge
        s = a * a
        u = a + s / (one + sqrt(one + s))
        high = one + u
        low = zero if big else lost(u, high)
        y = log_sum(half * a if big else high, low, two if big else zero)
        return copysign(y if a < infinite else a, x)

    def area_cosine(x: Number) -> Number:
        big = x > huge
        t = x - one
        u = t + sqrt(fma(t, t, two * t))
        high = one + u
        low = zero if big else lost(u, high)
        y = log_sum(half * x if big else high, low, two if big else zero)
        y = y if x < infinite else x
        return nan if x < one else y

    def area_tangent(x: Number) -> Number:
        a = fabs(x)
        u = (a + a) / (one - a)
        high = one + u
        y = half * log_sum(high, lost(u, high), zero)
        y = y if a < one else (infinite if a == one else nan)
        return copysign(y, x)

    return area_sine, area_cosine, area_tangent


_asinh32, _acosh32, _atanh32 = _area_functions(F32)
_asinh64, _acosh64, _atanh64 = _area_functions(F64)
asinh = Overloaded("asinh", {"float32": _asinh32, "float64": _asinh64})
acosh = Overloaded("acosh", {"float32": _acosh32, "float64": _acosh64})
atanh = Overloaded("atanh", {"float32": _atanh32, "float64": _atanh64})
