"""Remainders and quotients, exact for floats and integers, and the neighbours of a float.

For floats these are `Guarded`: `near` needs a quotient that fits the mantissa, `far` is the C
library's fmod.  An integer divided by zero raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.bits import BITS, MANTISSA, Float, Guarded, inward, outward
from flowvm.ops.scalar.intrinsics import (
    copysign,
    declared,
    fabs,
    float_intrinsic,
    floor,
    fma,
    trunc,
)

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, Value


INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
F32, F64 = np.float32, np.float64
Binary = Callable[[Number, Number], Number]

# --- remainders -----------------------------------------------------------------------------------


def _frem_ir(builder: Builder, values: list[Value], bits: int) -> Value:
    return builder.frem(*values)


def _frem_libdevice(builder: Builder, values: list[Value], bits: int) -> Value:
    """NVVM's own frem is not exact."""
    return declared(builder, "__nv_fmodf" if bits == 32 else "__nv_fmod", values)


_frem = float_intrinsic(_frem_ir, np.fmod, 2, _frem_libdevice)


def _far_remainder(x: Number, y: Number) -> Number:
    r = _frem(x, y)
    return r + y if (r != 0 and (r < 0) != (y < 0)) else r


def _far_quotient(dtype: Float) -> Binary:
    zero, half, one = dtype(0), dtype(0.5), dtype(1)

    def far_quotient(x: Number, y: Number) -> Number:
        r = _frem(x, y)
        q = (x - r) / y
        q = q - one if (r != zero and (r < zero) != (y < zero)) else q
        f = floor(q)
        f = f + one if q - f > half else f
        f = copysign(zero, x / y) if q == zero else f
        return x / y if y == zero else f

    return far_quotient


def _near_divisions(dtype: Float) -> tuple[Binary, Binary, Binary, Binary]:
    zero, one, room = dtype(0), dtype(1), dtype(2.0 ** (MANTISSA[BITS[dtype]] - 1))

    def fits(x: Number, y: Number) -> Number:
        return fabs(x) < fabs(y) * room

    def parts(x: Number, y: Number) -> tuple[Number, Number]:
        """Quotient and remainder of the absolute values.

        Rounding makes the quotient too large by 1 at most, and then the remainder is negative; it
        has no more digits than y, so fma does not round it.
        """
        a, b = fabs(x), fabs(y)
        q = trunc(a / b)
        r = fma(-q, b, a)
        over = r < zero
        r = r + b if over else r
        return q - one if over else q, a if a < b else r  # b may be infinite

    def modulus(x: Number, y: Number) -> Number:
        return copysign(parts(x, y)[1], x)

    def remainder_(x: Number, y: Number) -> Number:
        r = modulus(x, y)
        return r + y if (r != zero and (r < zero) != (y < zero)) else r

    def quotient(x: Number, y: Number) -> Number:
        q, r = parts(x, y)
        q = copysign(q, copysign(one, x) * copysign(one, y))
        return q - one if (r != zero and (x < zero) != (y < zero)) else q

    return fits, modulus, remainder_, quotient


def _fmod_int(x: int, y: int) -> int:
    """The sign of the dividend, as in C."""
    r = _remainder_int(x, y)
    return r - y if (r != 0 and (r < 0) != (x < 0)) else r


def _floored(x: int, y: int) -> tuple[int, int]:
    """Quotient and remainder of 64 bits by way of float64, which has vectors; |y| > 1.

    The first quotient may be off by its last bits; what is then left is small, and divided again.
    """
    d = float(y)
    q = int(float(x) / d)
    r = x - q * y
    more = math.floor(float(r) / d)
    q, r = q + more, r - more * y
    if r != 0 and (r < 0) != (y < 0):
        q, r = q - 1, r + y
    if (r >= y) if y > 0 else (r <= y):
        q, r = q + 1, r - y
    return q, r


def _remainder_int(x: int, y: int) -> int:
    """The sign of the divisor, as in Python."""
    if y == 0:
        raise ZeroDivisionError
    _, r = _floored(x, 2 if -1 <= y <= 1 else y)
    return 0 if -1 <= y <= 1 else r


def _floor_divide_int(x: int, y: int) -> int:
    if y == 0:
        raise ZeroDivisionError
    q, _ = _floored(x, 2 if -1 <= y <= 1 else y)
    return q if y > 1 or y < -1 else (x if y == 1 else -x)


def _floor_divide_narrow(x: int, y: int) -> int:
    """Divide numbers of at most 32 bits: a quotient in float64 never rounds up to a whole one."""
    if y == 0:
        raise ZeroDivisionError
    return math.floor(float(x) / float(y))


def _remainder_narrow(x: int, y: int) -> int:
    if y == 0:
        raise ZeroDivisionError
    return x - math.floor(float(x) / float(y)) * y


def _fmod_narrow(x: int, y: int) -> int:
    if y == 0:
        raise ZeroDivisionError
    return x - math.trunc(float(x) / float(y)) * y


def _floor_divide_uint(x: int, y: int) -> int:
    if y == 0:
        raise ZeroDivisionError
    return x // y


def _remainder_uint(x: int, y: int) -> int:
    if y == 0:
        raise ZeroDivisionError
    return x % y


_fits32, _fmod32, _remainder32, _quotient32 = _near_divisions(F32)
_fits64, _fmod64, _remainder64, _quotient64 = _near_divisions(F64)
fmod = Guarded(
    "fmod",
    {"float32": (_fits32, _fmod32, _frem), "float64": (_fits64, _fmod64, _frem)},
    int64=_fmod_int,
    uint64=_remainder_uint,
    int32=_fmod_narrow,
)
remainder = Guarded(
    "remainder",
    {
        "float32": (_fits32, _remainder32, _far_remainder),
        "float64": (_fits64, _remainder64, _far_remainder),
    },
    int64=_remainder_int,
    uint64=_remainder_uint,
    int32=_remainder_narrow,
)
floor_divide = Guarded(
    "floor_divide",
    {
        "float32": (_fits32, _quotient32, _far_quotient(F32)),
        "float64": (_fits64, _quotient64, _far_quotient(F64)),
    },
    int64=_floor_divide_int,
    uint64=_floor_divide_uint,
    int32=_floor_divide_narrow,
)

# --- neighbours -----------------------------------------------------------------------------------


def _neighbour(dtype: Float) -> Binary:
    zero, least = dtype(0), np.finfo(dtype).smallest_subnormal

    def neighbour(x: Number, y: Number) -> Number:
        out, inner = outward(x), inward(x)
        step = out if (y > x) == (x > zero) else inner
        step = copysign(least, y) if x == zero else step
        step = y if x == y else step
        return x + y if x != x or y != y else step

    return neighbour


nextafter = Overloaded("nextafter", {"float32": _neighbour(F32), "float64": _neighbour(F64)})
