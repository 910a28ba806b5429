"""The scalar functions that op expressions and kernel bodies are made of.

There is one of each for float32 and one for float64.

Each is plain Python that Numba compiles and LLVM vectorizes where it is inlined in a loop, so the
polynomials branch by conditional expressions and touch a number's bits through intrinsics.  A
float32 argument is computed in float32.  What has no polynomial here calls the C library, one
element at a time.

NaN goes in and out of every function.  Errors, in units in the last place of the result, over the
whole range with subnormals:

    float32   exp 1, log 0.8, log1p 1.5, tanh 1.3, sigmoid 2.3, erf 1, erfinv 4
    float64   exp 1, log 0.8, log1p 1.5, sigmoid 2.3, erfinv 4
    all else  what the C library gives: below 1 as a rule, 3.1 for glibc's erf and cbrt

logaddexp and digamma are that good away from their zeros only.

An integer divided by zero raises inside the kernel, which becomes the status DIVISION_BY_ZERO.

Long because it is a list: every function an expression may name.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.native import Intrinsic, Overloaded

__all__ = [
    "abs_",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmod",
    "functions",
    "hypot",
    "isfinite",
    "isinf",
    "isnan",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "maximum",
    "minimum",
    "nextafter",
    "polygamma",
    "pow_",
    "remainder",
    "round_",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]

INLINE_ALWAYS = True  # for flowvm.native: a call in a loop would keep it from being vectorized
Number = Any  # float32 or float64, NumPy's, Numba's or Python's
F32 = np.float32

# --- intrinsics -----------------------------------------------------------------------------


def _float_intrinsic(
    build: Callable[..., Any], python: Callable[..., Any], arity: int
) -> Intrinsic:
    """An intrinsic on `arity` floats of one dtype, made by `build(builder, values, bits)`."""

    def define() -> Any:
        from numba import types

        def typed(kind: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                return build(builder, list(values), 32 if kind == types.float32 else 64)

            return kind(*([kind] * arity)), codegen

        def one(typingctx: Any, x: Any) -> Any:
            return typed(x)

        def two(typingctx: Any, x: Any, y: Any) -> Any:
            return typed(x)

        return (one, two)[arity - 1]

    return Intrinsic(python, define)


def _declared(builder: Any, name: str, values: list[Any]) -> Any:
    from llvmlite import ir
    from numba.core import cgutils

    kinds = [v.type for v in values]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kinds[0], kinds), name
    )
    return builder.call(function, values)


def _llvm(name: str, python: Callable[..., Any], arity: int = 1) -> Intrinsic:
    """An LLVM intrinsic, which vectorizes."""
    return _float_intrinsic(
        lambda builder, values, bits: _declared(builder, f"llvm.{name}.f{bits}", values),
        python,
        arity,
    )


def _libm(name: str, arity: int = 1) -> Intrinsic:
    """A function of the C library, which does not."""

    def python(*args: Number) -> Number:
        c = getattr(ctypes.CDLL(None), name)
        c.restype, c.argtypes = ctypes.c_double, [ctypes.c_double] * arity
        return c(*(float(a) for a in args))

    python.__name__ = name
    return _float_intrinsic(
        lambda builder, values, bits: _declared(builder, name + ("f" * (bits == 32)), values),
        python,
        arity,
    )


_MAGIC = {
    32: 12582912.0,
    64: 6755399441055744.0,
}  # 1.5 * 2**(mantissa bits): adding rounds to integer
_MANTISSA, _BIAS = {32: 23, 64: 52}, {32: 127, 64: 1023}
_SQRT_HALF = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}


def _scale_ir(builder: Any, values: list[Any], bits: int) -> Any:
    """y * 2**n, where t = n + MAGIC.  In two steps, so that subnormal results round right."""
    from llvmlite import ir

    word = ir.IntType(bits)
    y, t = values
    magic = builder.bitcast(ir.Constant(t.type, _MAGIC[bits]), word)
    n = builder.sub(builder.bitcast(t, word), magic)
    half = builder.ashr(n, word(1))
    for part in (half, builder.sub(n, half)):
        power = builder.shl(builder.add(part, word(_BIAS[bits])), word(_MANTISSA[bits]))
        y = builder.fmul(y, builder.bitcast(power, y.type))
    return y


def _reduced_bits(builder: Any, x: Any, bits: int) -> tuple[Any, Any]:
    from llvmlite import ir

    word = ir.IntType(bits)
    one = word(_BIAS[bits] << _MANTISSA[bits])
    shift = builder.sub(one, word(_SQRT_HALF[bits]))
    return word, builder.add(builder.bitcast(x, word), shift)


def _exponent_ir(builder: Any, values: list[Any], bits: int) -> Any:
    """k of x = m * 2**k with sqrt(1/2) <= m < sqrt(2), as a float."""
    word, reduced = _reduced_bits(builder, values[0], bits)
    k = builder.sub(builder.ashr(reduced, word(_MANTISSA[bits])), word(_BIAS[bits]))
    return builder.sitofp(k, values[0].type)


def _mantissa_ir(builder: Any, values: list[Any], bits: int) -> Any:
    """m of the same."""
    word, reduced = _reduced_bits(builder, values[0], bits)
    kept = builder.and_(reduced, word((1 << _MANTISSA[bits]) - 1))
    return builder.bitcast(builder.add(kept, word(_SQRT_HALF[bits])), values[0].type)


def _bits_of(value: Number) -> int:
    return 32 if isinstance(value, np.float32) else 64


def _scale_python(y: Number, t: Number) -> Number:
    return type(y)(math.ldexp(float(y), int(float(t) - _MAGIC[_bits_of(t)])))


def _split_python(x: Number) -> tuple[float, int]:
    m, k = math.frexp(float(x))
    return (m * 2, k - 1) if m < math.sqrt(0.5) else (m, k)


_scale = _float_intrinsic(_scale_ir, _scale_python, 2)
_exponent = _float_intrinsic(_exponent_ir, lambda x: type(x)(_split_python(x)[1]), 1)
_mantissa = _float_intrinsic(_mantissa_ir, lambda x: type(x)(_split_python(x)[0]), 1)

_fabs = _llvm("fabs", abs)
_floor = _llvm("floor", np.floor)
_ceil = _llvm("ceil", np.ceil)
_trunc = _llvm("trunc", np.trunc)
_rint = _llvm("rint", np.rint)
_sqrt = _llvm("sqrt", np.sqrt)
_copysign = _llvm("copysign", np.copysign, 2)


def _frem_ir(builder: Any, values: list[Any], bits: int) -> Any:
    return builder.frem(*values)


_fmod = _float_intrinsic(_frem_ir, np.fmod, 2)


def _floats(name: str, float32: Any, float64: Any = None, **others: Any) -> Overloaded:
    return Overloaded(name, {"float32": float32, "float64": float64 or float32, **others})


def _same(x: Number) -> Number:
    return x


# --- exponentials -----------------------------------------------------------------------------

_LOG2E_32, _LN2_HI_32, _LN2_LO_32 = F32(1.44269504), F32(0.693359375), F32(-2.12194440e-4)
_MAGIC_32, _EXP_MAX_32, _EXP_MIN_32 = F32(_MAGIC[32]), F32(89.0), F32(-104.0)
_E0, _E1, _E2 = F32(1.9875691500e-4), F32(1.3981999507e-3), F32(8.3334519073e-3)
_E3, _E4, _E5 = F32(4.1665795894e-2), F32(1.6666665459e-1), F32(5.0000001201e-1)
_ZERO_32, _ONE_32, _TWO_32, _HALF_32 = F32(0), F32(1), F32(2), F32(0.5)


def _exp32(x: Number) -> Number:
    v = _EXP_MAX_32 if x > _EXP_MAX_32 else x
    v = _EXP_MIN_32 if v < _EXP_MIN_32 else v
    t = v * _LOG2E_32 + _MAGIC_32
    n = t - _MAGIC_32
    r = (v - n * _LN2_HI_32) - n * _LN2_LO_32
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    return _scale(p * (r * r) + r + _ONE_32, t)


_LOG2E, _LN2_HI, _LN2_LO = (
    1.4426950408889634,
    6.93147180369123816490e-01,
    1.90821492927058770002e-10,
)
_MAGIC_64 = _MAGIC[64]


def _exp64(x: Number) -> Number:
    v = 710.0 if x > 710.0 else x
    v = -746.0 if v < -746.0 else v
    t = v * _LOG2E + _MAGIC_64
    n = t - _MAGIC_64
    r = (v - n * _LN2_HI) - n * _LN2_LO
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    return _scale(p * (r * r) + r + 1.0, t)


exp = _floats("exp", _exp32, _exp64)
exp2 = _floats("exp2", _libm("exp2"))
expm1 = _floats("expm1", _libm("expm1"))


def _sigmoid32(x: Number) -> Number:
    z = _exp32(-_fabs(x))
    return (_ONE_32 if x >= _ZERO_32 else z) / (_ONE_32 + z)


def _sigmoid64(x: Number) -> Number:
    z = _exp64(-_fabs(x))
    return (1.0 if x >= 0.0 else z) / (1.0 + z)


sigmoid = _floats("sigmoid", _sigmoid32, _sigmoid64)

_T0, _T1, _T2 = F32(-5.70498872745e-3), F32(2.06390887954e-2), F32(-5.37397155531e-2)
_T3, _T4, _TANH_EDGE = F32(1.33314422036e-1), F32(-3.33332819422e-1), F32(0.625)


def _tanh32(x: Number) -> Number:
    a = _fabs(x)
    s = x * x
    near = ((((_T0 * s + _T1) * s + _T2) * s + _T3) * s + _T4) * s * x + x
    far = _copysign(_ONE_32 - _TWO_32 / (_exp32(a + a) + _ONE_32), x)
    return near if a < _TANH_EDGE else far


tanh = _floats("tanh", _tanh32, _libm("tanh"))
sinh = _floats("sinh", _libm("sinh"))
cosh = _floats("cosh", _libm("cosh"))
asinh = _floats("asinh", _libm("asinh"))
acosh = _floats("acosh", _libm("acosh"))
atanh = _floats("atanh", _libm("atanh"))

# --- logarithms (after fdlibm) ------------------------------------------------------------------

_TINY_32, _UP_32, _UP_EXP_32 = F32(1.17549435e-38), F32(2.0**23), F32(23)
_INF_32, _NAN_32 = F32(np.inf), F32(np.nan)
_L1, _L2, _L3, _L4 = F32(0.66666662693), F32(0.40000972152), F32(0.28498786688), F32(0.24279078841)
_LOG_HI_32, _LOG_LO_32 = F32(6.9313812256e-01), F32(9.0580006145e-06)


def _log32(x: Number) -> Number:
    small = x < _TINY_32
    v = x * _UP_32 if small else x
    k = _exponent(v) - (_UP_EXP_32 if small else _ZERO_32)
    f = _mantissa(v) - _ONE_32
    s = f / (_TWO_32 + f)
    z = s * s
    w = z * z
    r = z * (_L1 + w * _L3) + w * (_L2 + w * _L4)
    h = _HALF_32 * f * f
    y = s * (h + r) + k * _LOG_LO_32 - h + f + k * _LOG_HI_32
    y = x if x == _INF_32 else y
    y = -_INF_32 if x == _ZERO_32 else y
    return y if x >= _ZERO_32 else _NAN_32


_INF, _NAN = math.inf, math.nan


def _log64(x: Number) -> Number:
    small = x < 2.2250738585072014e-308
    v = x * 4503599627370496.0 if small else x
    k = _exponent(v) - (52.0 if small else 0.0)
    f = _mantissa(v) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (
        3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01)
    )
    odd = 1.818357216161805012e-01 + w * 1.479819860511658591e-01
    odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * odd))
    h = 0.5 * f * f
    y = s * (h + (even + odd)) + k * _LN2_LO - h + f + k * _LN2_HI
    y = x if x == _INF else y
    y = -_INF if x == 0.0 else y
    return y if x >= 0.0 else _NAN


log = _floats("log", _log32, _log64)
log2 = _floats("log2", _libm("log2"))
log10 = _floats("log10", _libm("log10"))


def _log1p32(x: Number) -> Number:
    u = _ONE_32 + x
    y = _log32(u) + (x - (u - _ONE_32)) / u
    y = y if _ZERO_32 < u < _INF_32 else _log32(u)
    return x if u == _ONE_32 else y


def _log1p64(x: Number) -> Number:
    u = 1.0 + x
    y = _log64(u) + (x - (u - 1.0)) / u
    y = y if 0.0 < u < _INF else _log64(u)
    return x if u == 1.0 else y


log1p = _floats("log1p", _log1p32, _log1p64)


def _logaddexp32(x: Number, y: Number) -> Number:
    high = x if x > y else y
    distance = _ZERO_32 if x == y else -_fabs(x - y)  # equal infinities have distance 0
    total = high + _log1p32(_exp32(distance))
    return x + y if (x != x or y != y) else total


def _logaddexp64(x: Number, y: Number) -> Number:
    high = x if x > y else y
    distance = 0.0 if x == y else -_fabs(x - y)
    total = high + _log1p64(_exp64(distance))
    return x + y if (x != x or y != y) else total


logaddexp = _floats("logaddexp", _logaddexp32, _logaddexp64)

# --- the error function and its kin -------------------------------------------------------------

_ERF_EDGE, _ERF_FLAT = F32(0.921875), F32(4.0)
_A0, _A1, _A2, _A3 = (
    F32(-1.72853470e-5),
    F32(3.83197126e-4),
    F32(-3.88396438e-3),
    F32(2.42546219e-2),
)
_A4, _A5, _A6 = F32(-1.06777877e-1), F32(-6.34846687e-1), F32(-1.28717512e-1)
_B0, _B1, _B2 = F32(-5.96761703e-4), F32(4.99119423e-3), F32(-2.67681349e-2)
_B3, _B4, _B5 = F32(1.12819925e-1), F32(-3.76125336e-1), F32(1.28379166e-1)


def _erf32(x: Number) -> Number:
    a = _fabs(x)
    t = _ERF_FLAT if a > _ERF_FLAT else a
    s = t * t
    r = (_A0 * t + _A1) * s + (_A2 * t + _A3)
    r = ((r * t + _A4) * t + _A5) * t + _A6
    far = _copysign(_ONE_32 - _exp32(r * t - t), x)
    p = ((((_B0 * s + _B1) * s + _B2) * s + _B3) * s + _B4) * s + _B5
    return p * x + x if a < _ERF_EDGE else far


erf = _floats("erf", _erf32, _libm("erf"))
erfc = _floats("erfc", _libm("erfc"))
_erf64, _erfc64 = _libm("erf"), _libm("erfc")


def _erfinv64(y: Number) -> Number:
    """A polynomial start (after Giles), then two Newton steps, on erfc where erf has no digits."""
    w = -_log64((1.0 - y) * (1.0 + y))
    if w < 6.25:
        w = w - 3.125
        p = -3.6444120640178196996e-21
        p = -1.685059138182016589e-19 + p * w
        p = 1.2858480715256400167e-18 + p * w
        p = 1.115787767802518096e-17 + p * w
        p = -1.333171662854620906e-16 + p * w
        p = 2.0972767875968561637e-17 + p * w
        p = 6.6376381343583238325e-15 + p * w
        p = -4.0545662729752068639e-14 + p * w
        p = -8.1519341976054721522e-14 + p * w
        p = 2.6335093153082322977e-12 + p * w
        p = -1.2975133253453532498e-11 + p * w
        p = -5.4154120542946279317e-11 + p * w
        p = 1.051212273321532285e-09 + p * w
        p = -4.1126339803469836976e-09 + p * w
        p = -2.9070369957882005086e-08 + p * w
        p = 4.2347877827932403518e-07 + p * w
        p = -1.3654692000834678645e-06 + p * w
        p = -1.3882523362786468719e-05 + p * w
        p = 0.0001867342080340571352 + p * w
        p = -0.00074070253416626697512 + p * w
        p = -0.0060336708714301490533 + p * w
        p = 0.24015818242558961693 + p * w
        p = 1.6536545626831027356 + p * w
    else:
        w = _sqrt(w) - 3.0
        p = -0.000200214257
        p = 0.000100950558 + p * w
        p = 0.00134934322 + p * w
        p = -0.00367342844 + p * w
        p = 0.00573950773 + p * w
        p = -0.0076224613 + p * w
        p = 0.00943887047 + p * w
        p = 1.00167406 + p * w
        p = 2.83297682 + p * w
    a, target = _fabs(p * y), _fabs(y)
    if target < 1.0:
        for _ in range(2):
            error = _erf64(a) - target if target < 0.5 else (1.0 - target) - _erfc64(a)
            a = a - error * 0.8862269254527580 * _exp64(a * a)
        return _copysign(a, y)
    return y * _INF if target == 1.0 else _NAN


def _erfinv32(y: Number) -> Number:
    return F32(_erfinv64(float(y)))


erfinv = _floats("erfinv", _erfinv32, _erfinv64)
lgamma = _floats("lgamma", _libm("lgamma"))
_tan64 = _libm("tan")


def _digamma64(x: Number) -> Number:
    """Reflection, then recurrence up to 10, then the asymptotic series."""
    if x == 0.0:
        return _copysign(_INF, -x)
    start = 0.0
    if x < 0.0:
        if x == _trunc(x):
            return _NAN
        start = -math.pi / _tan64(math.pi * (x - _trunc(x)))
        x = 1.0 - x
    while x < 10.0:
        start -= 1.0 / x
        x += 1.0
    z = 1.0 / (x * x)
    p = 8.33333333333333333333e-2
    p = p * z - 2.10927960927960927961e-2
    p = p * z + 7.57575757575757575758e-3
    p = p * z - 4.16666666666666666667e-3
    p = p * z + 3.96825396825396825397e-3
    p = p * z - 8.33333333333333333333e-3
    p = p * z + 8.33333333333333333333e-2
    return start + _log64(x) - 0.5 / x - (p * z if x < 1.0e17 else 0.0)


def _digamma32(x: Number) -> Number:
    return F32(_digamma64(float(x)))


digamma = _floats("digamma", _digamma32, _digamma64)
_pow64 = _libm("pow", 2)
_ZETA = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9,
    7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14,
    -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip


def _zeta64(s: Number, q: Number) -> Number:
    """The sum of (q + k)**-s over k >= 0, s > 1, by Euler-Maclaurin (after Cephes)."""
    if q <= 0.0 and q == _floor(q):
        return _INF
    total, a, b = _pow64(q, -s), q, 0.0
    for i in range(1 << 62):
        if i >= 9 and a > 9.0:
            break
        a += 1.0
        b = _pow64(a, -s)
        total += b
    total += b * a / (s - 1.0) - 0.5 * b
    factor, k = 1.0, 0.0
    for divisor in _ZETA:
        factor *= s + k
        b /= a
        term = factor * b / divisor
        total += term
        if _fabs(term) < 1e-17 * _fabs(total):
            break
        factor *= s + k + 1.0
        b /= a
        k += 2.0
    return total


def _polygamma64(n: Number, x: Number) -> Number:
    if n == 0.0:
        return _digamma64(x)
    factor = -1.0
    for k in range(1, int(n) + 1):
        factor *= -k
    return factor * _zeta64(n + 1.0, x)


def _polygamma32(n: Number, x: Number) -> Number:
    return F32(_polygamma64(float(n), float(x)))


polygamma = _floats("polygamma", _polygamma32, _polygamma64)

# --- trigonometry and powers --------------------------------------------------------------------

sin = _floats("sin", _libm("sin"))
cos = _floats("cos", _libm("cos"))
tan = _floats("tan", _libm("tan"))
asin = _floats("asin", _libm("asin"))
acos = _floats("acos", _libm("acos"))
atan = _floats("atan", _libm("atan"))
atan2 = _floats("atan2", _libm("atan2", 2))
hypot = _floats("hypot", _libm("hypot", 2))
cbrt = _floats("cbrt", _libm("cbrt"))
sqrt = _floats("sqrt", _sqrt)


def _rsqrt32(x: Number) -> Number:
    return _ONE_32 / _sqrt(x)


def _rsqrt64(x: Number) -> Number:
    return 1.0 / _sqrt(x)


rsqrt = _floats("rsqrt", _rsqrt32, _rsqrt64)


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


pow_ = _floats("pow", _libm("pow", 2), int64=_pow_int)

# --- rounding and parts -------------------------------------------------------------------------

floor = _floats("floor", _floor, int64=_same)
ceil = _floats("ceil", _ceil, int64=_same)
trunc = _floats("trunc", _trunc, int64=_same)
round_ = _floats("round", _rint, int64=_same)  # half to even
copysign = _floats("copysign", _copysign)
nextafter = _floats("nextafter", _libm("nextafter", 2))


def _abs_int(x: int) -> int:
    return -x if x < 0 else x


abs_ = _floats("abs", _fabs, int64=_abs_int, bool=_same)


def _sign32(x: Number) -> Number:
    return _ONE_32 if x > _ZERO_32 else (-_ONE_32 if x < _ZERO_32 else _ZERO_32)


def _sign64(x: Number) -> Number:
    return 1.0 if x > 0.0 else (-1.0 if x < 0.0 else 0.0)


def _sign_int(x: int) -> int:
    return 1 if x > 0 else (-1 if x < 0 else 0)


sign = _floats("sign", _sign32, _sign64, int64=_sign_int, bool=_same)


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


def _finite(x: Number) -> Number:
    """x itself; NaN and infinities raise: what a conversion to integers needs."""
    if x - x != 0:
        raise ValueError
    return x


finite = _floats("finite", _finite, _finite)

# --- minimum, maximum, division -----------------------------------------------------------------


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


maximum = _floats("maximum", _maximum, int64=_maximum_int, bool=_or)
minimum = _floats("minimum", _minimum, int64=_minimum_int, bool=_and)


def _fmod_int(x: int, y: int) -> int:
    """The sign of the dividend, as in C."""
    r = _remainder_int(x, y)
    return r - y if (r != 0 and (r < 0) != (x < 0)) else r


def _remainder_int(x: int, y: int) -> int:
    """The sign of the divisor, as in Python."""
    if y == 0:
        raise ZeroDivisionError
    return 0 if y == -1 else x % y  # the smallest integer by -1 traps


def _floor_divide_int(x: int, y: int) -> int:
    if y == 0:
        raise ZeroDivisionError
    return -x if y == -1 else x // y


def _remainder(x: Number, y: Number) -> Number:
    r = _fmod(x, y)
    return r + y if (r != 0 and (r < 0) != (y < 0)) else r


def _floor_divide32(x: Number, y: Number) -> Number:
    r = _fmod(x, y)
    q = (x - r) / y
    q = q - _ONE_32 if (r != 0 and (r < 0) != (y < 0)) else q
    f = _floor(q)
    f = f + _ONE_32 if q - f > _HALF_32 else f
    f = _copysign(_ZERO_32, x / y) if q == 0 else f
    return x / y if y == 0 else f


def _floor_divide64(x: Number, y: Number) -> Number:
    r = _fmod(x, y)
    q = (x - r) / y
    q = q - 1.0 if (r != 0 and (r < 0) != (y < 0)) else q
    f = _floor(q)
    f = f + 1.0 if q - f > 0.5 else f
    f = _copysign(0.0, x / y) if q == 0 else f
    return x / y if y == 0 else f


fmod = _floats("fmod", _fmod, int64=_fmod_int)
remainder = _floats("remainder", _remainder, int64=_remainder_int)
floor_divide = _floats("floor_divide", _floor_divide32, _floor_divide64, int64=_floor_divide_int)


def functions() -> dict[str, Overloaded]:
    """Every function by the name it has in an expression."""
    return {v.__name__: v for v in globals().values() if isinstance(v, Overloaded)}
