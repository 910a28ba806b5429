"""The functions of complex numbers that expressions name; each is plain Python on their two parts.

Their names begin with c, as C's do, so an expression says which it means.  They follow from the
real functions (which see float32 or float64, as the parts are), by the formulas of Kahan, "Branch
Cuts for Complex Elementary Functions" (1987), where textbook ones lose figures or the branch.  What
they are where a part is infinite or NaN is that of C (C11, annex G.6).
"""

from __future__ import annotations

import math
from typing import Any

from flowvm.ops.scalar.area import asinh
from flowvm.ops.scalar.exp import cosh, exp, expm1, sinh
from flowvm.ops.scalar.intrinsics import copysign as _copysign
from flowvm.ops.scalar.intrinsics import fabs as _fabs
from flowvm.ops.scalar.intrinsics import sqrt as _sqrt
from flowvm.ops.scalar.log import log, log1p
from flowvm.ops.scalar.power import hypot
from flowvm.ops.scalar.trig import atan2, cos, sin, tan

INLINE_ALWAYS = False  # they branch, so a loop of them is none of vectors

_INF, _NAN = math.inf, math.nan
_PER_TWO, _PER_TEN = 1 / math.log(2), 1 / math.log(10)
_LARGE = 16.0  # tanh differs from 1 by less than a float64 has figures for, a few units later


def cdiv(x: complex, y: complex) -> complex:
    """x / y, by the larger part of y, so that no square of a part overflows."""
    a, b = x.real, x.imag
    c, d = y.real, y.imag
    if _fabs(c) >= _fabs(d):
        ratio = d / c
        scale = c + d * ratio
        return complex((a + b * ratio) / scale, (b - a * ratio) / scale)
    ratio = c / d
    scale = c * ratio + d
    return complex((a * ratio + b) / scale, (b * ratio - a) / scale)


def crecip(x: complex) -> complex:
    """1 / x, as cdiv has it."""
    c, d = x.real, x.imag
    if _fabs(c) >= _fabs(d):
        ratio = d / c
        scale = c + d * ratio
        return complex(1 / scale, -ratio / scale)
    ratio = c / d
    scale = c * ratio + d
    return complex(ratio / scale, -1 / scale)


def cabs(x: complex) -> float:
    """The distance from 0; infinite if a part is, whatever the other."""
    return hypot(x.real, x.imag)  # type: ignore[no-any-return]


def cangle(x: complex) -> float:
    return atan2(x.imag, x.real)  # type: ignore[no-any-return]


def cconj(x: complex) -> complex:
    return complex(x.real, -x.imag)


def csgn(x: complex) -> complex:
    """x / |x|, and 0 for 0."""
    size = hypot(x.real, x.imag)
    if size == 0:
        return complex(x.real * 0, x.imag * 0)
    return complex(x.real / size, x.imag / size)


def cexp(x: complex) -> complex:
    a, b = x.real, x.imag
    if b == 0:
        return complex(exp(a), b)
    if _fabs(a) == _INF and not _fabs(b) < _INF:
        return complex(exp(a), 0.0 if a < 0 else _NAN)
    size = exp(a)
    return complex(size * cos(b), size * sin(b))


def cexpm1(x: complex) -> complex:
    """Return exp(x) - 1: expm1(a) cos(b) - 2 sin(b / 2)^2 keeps small results exact."""
    a, b = x.real, x.imag
    if b == 0:
        return complex(expm1(a) + 0.0, b)
    if _fabs(a) == _INF and not _fabs(b) < _INF:
        return complex(expm1(a), 0.0 if a < 0 else _NAN)
    half = sin(b / 2)
    return complex(expm1(a) * cos(b) - (half + half) * half, exp(a) * sin(b))


def clog(x: complex) -> complex:
    """Return log(x): near the unit circle log |x| is log1p((a - 1)(a + 1) + b^2) / 2."""
    a, b = _fabs(x.real), _fabs(x.imag)
    if a < b:
        a, b = b, a
    size = hypot(a, b)
    if 0.5 < size < 2:
        level = log1p((a - 1) * (a + 1) + b * b) / 2
    else:
        level = log(size)
    return complex(level, atan2(x.imag, x.real))


def clog2(x: complex) -> complex:
    level = clog(x)
    return complex(level.real * _PER_TWO, level.imag * _PER_TWO)


def clog10(x: complex) -> complex:
    level = clog(x)
    return complex(level.real * _PER_TEN, level.imag * _PER_TEN)


def clog1p(x: complex) -> complex:
    """|1 + x|^2 is 1 + a (2 + a) + b^2."""
    a, b = x.real, x.imag
    if _fabs(a) < 0.5 and _fabs(b) < 0.5:
        return complex(log1p(a * (2 + a) + b * b) / 2, atan2(b, 1 + a))
    return clog(complex(1 + a, b))


def csqrt(x: complex) -> complex:
    """The root with a real part that is not negative."""
    a, b = x.real, x.imag
    if a == 0 and b == 0:
        return complex(_fabs(a), b)
    if _fabs(b) == _INF:
        return complex(_fabs(b), b)
    quarter = _fabs(a) / 8
    eighth = _fabs(b) / 8
    root = 2 * _sqrt(quarter + hypot(quarter, eighth))  # no part overflows
    if a >= 0:
        return complex(root, b / (root + root))
    return complex(_fabs(b) / (root + root), _copysign(root, b))


def csinh(x: complex) -> complex:
    a, b = x.real, x.imag
    if b == 0:
        return complex(sinh(a), b)
    if (a == 0 or _fabs(a) == _INF) and not _fabs(b) < _INF:
        return complex(a, _NAN)
    return complex(sinh(a) * cos(b), cosh(a) * sin(b))


def ccosh(x: complex) -> complex:
    a, b = x.real, x.imag
    if b == 0:
        return complex(cosh(a), _copysign(1.0, a) * b)
    if not _fabs(b) < _INF:
        if a == 0:
            return complex(_NAN, a)
        if _fabs(a) == _INF:
            return complex(_fabs(a), _NAN)
    return complex(cosh(a) * cos(b), sinh(a) * sin(b))


def ctanh(x: complex) -> complex:
    a, b = x.real, x.imag
    if b == 0 and a != a:
        return x
    if not _fabs(b) < _INF:
        if _fabs(a) == _INF:
            return complex(_copysign(1.0, a), 0.0)
        return complex(a if a == 0 else _NAN, _NAN)
    if _fabs(a) > _LARGE:
        small = exp(-2 * _fabs(a))
        return complex(_copysign(1.0, a), 4 * sin(b) * cos(b) * small)
    t, s = tan(b), sinh(a)
    beta, square = 1 + t * t, s * s
    scale = 1 + beta * square
    if _fabs(t) == _INF:
        return complex(_sqrt(1 + square) / s, 1 / t)
    return complex(beta * _sqrt(1 + square) * s / scale, t / scale)


def csin(x: complex) -> complex:
    turned = csinh(complex(-x.imag, x.real))
    return complex(turned.imag, -turned.real)


def ccos(x: complex) -> complex:
    return ccosh(complex(-x.imag, x.real))


def ctan(x: complex) -> complex:
    turned = ctanh(complex(-x.imag, x.real))
    return complex(turned.imag, -turned.real)


def casin(x: complex) -> complex:
    a, b = x.real, x.imag
    if _fabs(a) == _INF or _fabs(b) == _INF:
        return complex(atan2(a, _fabs(b)), _copysign(_INF, b))
    if a == 0 and b != b:
        return x
    less, more = csqrt(complex(1 - a, -b)), csqrt(complex(1 + a, b))
    return complex(
        atan2(a, less.real * more.real - less.imag * more.imag),
        asinh(less.real * more.imag - less.imag * more.real),
    )


def cacos(x: complex) -> complex:
    a, b = x.real, x.imag
    if _fabs(a) == _INF or _fabs(b) == _INF:
        return complex(atan2(_fabs(b), a), _copysign(_INF, -b))
    if a == 0 and b != b:
        return complex(math.pi / 2, b)
    less, more = csqrt(complex(1 - a, -b)), csqrt(complex(1 + a, b))
    return complex(
        2 * atan2(less.real, more.real), asinh(more.real * less.imag - more.imag * less.real)
    )


def cacosh(x: complex) -> complex:
    a, b = x.real, x.imag
    if _fabs(a) == _INF or _fabs(b) == _INF:
        return complex(_INF, atan2(b, a))
    if a == 0 and b != b:
        return complex(b, math.pi / 2)
    less, more = csqrt(complex(a - 1, b)), csqrt(complex(a + 1, b))
    return complex(
        asinh(less.real * more.real + less.imag * more.imag), 2 * atan2(less.imag, more.real)
    )


def casinh(x: complex) -> complex:
    turned = casin(complex(-x.imag, x.real))
    return complex(turned.imag, -turned.real)


def catanh(x: complex) -> complex:
    a, b = _fabs(x.real), x.imag
    if a == _INF or _fabs(b) == _INF:
        return complex(_copysign(0.0, x.real), _copysign(math.pi / 2, b) if b == b else b)
    if a == 0 and b != b:
        return x
    less = 1 - a
    far = hypot(less, b)  # no square overflows
    ratio = 4 * (a / far) / far
    if ratio == _INF and far > 0:
        size = (log(4 * a) / 2 - log(far)) / 2
    else:
        size = log1p(ratio) / 4
    return complex(_copysign(size, x.real), atan2(b + b, less * (1 + a) - b * b) / 2)


def catan(x: complex) -> complex:
    turned = catanh(complex(-x.imag, x.real))
    return complex(turned.imag, -turned.real)


def cpow(x: complex, y: complex) -> complex:
    """exp(y log x); 0 to a power with a positive real part is 0, and to the power 0 1."""
    zero = x.real * 0
    if y.real == 0 and y.imag == 0:
        return complex(1 + zero, zero)
    if x.real == 0 and x.imag == 0 and y.real > 0:
        return complex(zero, zero)
    level = clog(x)
    return cexp(
        complex(
            y.real * level.real - y.imag * level.imag, y.real * level.imag + y.imag * level.real
        )
    )


def csigmoid(x: complex) -> complex:
    """1 / (1 + exp(-x)), by the exponential that does not overflow."""
    if x.real >= 0:
        small = cexp(complex(-x.real, -x.imag))
        return cdiv(complex(1 + 0 * small.real, 0 * small.real), 1 + small)
    small = cexp(x)
    return cdiv(small, 1 + small)


def clogaddexp(x: complex, y: complex) -> complex:
    """log(exp(x) + exp(y)), by the exponential that does not overflow."""
    if x.real != x.real or y.real != y.real:
        return complex(_NAN, _NAN)
    small, large = (x, y) if x.real < y.real else (y, x)
    if small.real == large.real and _fabs(small.real) == _INF:
        return small if small.real < 0 else clog(cexp(small) + cexp(large))
    return large + clog1p(cexp(small - large))


def csinc(x: complex) -> complex:
    """sin(pi x) / (pi x), and 1 at 0."""
    turned = complex(x.real * math.pi, x.imag * math.pi)
    if x.real == 0 and x.imag == 0:
        return complex(1 + turned.real, turned.imag)
    return cdiv(csin(turned), turned)


def complex_functions() -> dict[str, Any]:
    """Every function by its name."""
    functions = (
        cabs, cacos, cacosh, cangle, casin, casinh, catan, catanh, cconj, ccos, ccosh, cdiv, cexp,
        cexpm1, clog, clog10, clog1p, clog2, clogaddexp, cpow, crecip, csgn, csigmoid, csin, csinc,
        csinh, csqrt, ctan, ctanh,
    )  # fmt: skip
    return {f.__name__: f for f in functions}
