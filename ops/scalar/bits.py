"""Parts of trigonometry, powers and the gamma functions: parts of numbers, polynomials, a
logarithm, and functions with a rare case.

A scalar function is one stream of arithmetic without branches, calls or tables, or LLVM could not
run it on whole vectors.  Integers are handled inside floats: adding `MAGIC` rounds to an integer n,
and the low bits of the sum t = n + MAGIC are n.

Products whose rounding error is needed use `fma` in so many words: nothing here depends on what
LLVM contracts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.compiler.native import Overloaded
from flowvm.meta.arrays import Number
from flowvm.ops.scalar.intrinsics import bits, float_intrinsic, fma, from_bits

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, Value


INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
Float = type[np.floating[Any]]

BITS: dict[Float, int] = {np.float32: 32, np.float64: 64}
MAGIC = {32: 12582912.0, 64: 6755399441055744.0}  # 1.5 * 2**(mantissa bits)
MANTISSA = {32: 23, 64: 52}
_BIAS = {32: 127, 64: 1023}
_SQRT_HALF = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}

# --- integers in floats -----------------------------------------------------------------------


def odd(t: Number) -> Number:
    """Return True if n is odd."""
    return bits(t) & 1 != 0


def outward(x: Number) -> Number:
    """The next number away from 0; `inward`, towards it."""
    return from_bits(bits(x) + 1, x)


def inward(x: Number) -> Number:
    return from_bits(bits(x) - 1, x)


def _word(value: Number, bits: int) -> Number:
    from llvmlite import ir

    return ir.IntType(bits)


def _scale_ir(builder: Builder, values: list[Value], bits: int) -> Value:
    word = _word(values, bits)
    y, t = values
    magic = builder.bitcast(t.type(MAGIC[bits]), word)
    n = builder.sub(builder.bitcast(t, word), magic)
    half = builder.ashr(n, word(1))
    for part in (half, builder.sub(n, half)):
        power = builder.shl(builder.add(part, word(_BIAS[bits])), word(MANTISSA[bits]))
        y = builder.fmul(y, builder.bitcast(power, y.type))
    return y


def _scale_once_ir(builder: Builder, values: list[Value], bits: int) -> Value:
    word = _word(values, bits)
    y, t = values
    scale = builder.shl(builder.bitcast(t, word), word(MANTISSA[bits]))  # of t, only n is left
    return builder.bitcast(builder.add(builder.bitcast(y, word), scale), y.type)


def _negated_if_odd_ir(builder: Builder, values: list[Any], bits: int) -> Any:
    """Move the last bit of t to where the sign is."""
    word = _word(values, bits)
    x, t = (builder.bitcast(value, word) for value in values)
    return builder.bitcast(builder.xor(x, builder.shl(t, word(bits - 1))), values[0].type)


def _width(x: Number) -> int:
    return 32 if isinstance(x, np.float32) else 64


def _like(x: Number, number: float) -> Number:
    return np.float32(number) if isinstance(x, np.float32) else np.float64(number)


def _scale_python(y: Number, t: Number) -> Number:
    if not math.isfinite(t):
        return y * _like(y, math.nan)
    n = int(float(t) - MAGIC[_width(t)])
    return y * _like(y, 2.0 ** (n >> 1)) * _like(y, 2.0 ** (n - (n >> 1)))


scale = float_intrinsic(
    _scale_ir, _scale_python, 2
)  # x * 2**n; in two steps, so that subnormal results round once
scale_once = float_intrinsic(
    _scale_once_ir, _scale_python, 2
)  # the same where x and the result are normal numbers

negated_if_odd = float_intrinsic(
    _negated_if_odd_ir, lambda x, t: -x if odd(t) else x, 2
)  # -x where n is odd

# --- exponents and mantissas ------------------------------------------------------------------


def _reduced(builder: Builder, x: Value, bits: int) -> tuple[Value, Value]:
    word = _word(x, bits)
    one = _BIAS[bits] << MANTISSA[bits]
    return word, builder.add(builder.bitcast(x, word), word(one - _SQRT_HALF[bits]))


def _exponent_ir(builder: Builder, values: list[Value], bits: int) -> Value:
    """Emit the exponent by the low bits of a float: AVX2 has no conversion from 64-bit integers."""
    word, reduced = _reduced(builder, values[0], bits)
    kind = values[0].type
    biased = builder.lshr(reduced, word(MANTISSA[bits]))
    base = 2.0 ** MANTISSA[bits]
    number = builder.bitcast(builder.or_(biased, builder.bitcast(kind(base), word)), kind)
    return builder.fsub(number, kind(base + _BIAS[bits]))


def _mantissa_ir(builder: Builder, values: list[Value], bits: int) -> Value:
    word, reduced = _reduced(builder, values[0], bits)
    mantissa = builder.and_(reduced, word((1 << MANTISSA[bits]) - 1))
    return builder.bitcast(builder.add(mantissa, word(_SQRT_HALF[bits])), values[0].type)


def _split(x: Number) -> tuple[float, int]:
    m, k = math.frexp(float(x))
    return (m * 2, k - 1) if m < math.sqrt(0.5) else (m, k)


exponent = float_intrinsic(
    _exponent_ir, lambda x: _like(x, _split(x)[1]), 1
)  # k of a normal x = m * 2**k > 0 with sqrt(1/2) <= m < sqrt(2)
mantissa = float_intrinsic(_mantissa_ir, lambda x: _like(x, _split(x)[0]), 1)  # m of the same


def _scaled_like_ir(builder: Builder, values: list[Value], bits: int) -> Value:
    low, high = values
    word, reduced = _reduced(builder, high, bits)
    biased = builder.lshr(reduced, word(MANTISSA[bits]))
    power = builder.shl(builder.sub(word(2 * _BIAS[bits]), biased), word(MANTISSA[bits]))
    return builder.fmul(low, builder.bitcast(power, low.type))


scaled_like = float_intrinsic(
    _scaled_like_ir, lambda low, high: low * _like(low, 2.0 ** -_split(high)[1]), 2
)  # low * 2**-k, k being the exponent of `high`


# --- polynomials ------------------------------------------------------------------------------


def polynomial(dtype: Float, *coefficients: float) -> Callable[[Number], Number]:
    """The function of x that is sum(c[k] * x**k), in `dtype`.

    It is written out as Estrin's scheme: half of the dependent steps of Horner's for a few more
    products, and products are what a core has units to spare for.
    """
    names = [f"c{k}" for k in range(len(coefficients))]
    scope: dict[str, Any] = {n: dtype(c) for n, c in zip(names, coefficients, strict=True)}
    scope["INLINE_ALWAYS"] = True
    lines, power = ["def p(x):"], "x"
    while len(names) > 1:
        pairs = [names[k : k + 2] for k in range(0, len(names), 2)]
        names = [f"({b} * {power} + {a})" if b else a for a, b in (((*p, "")[:2]) for p in pairs)]
        if len(names) > 1:
            lines.append(f"    {power}{power[0]} = {power} * {power}")
            power += power[0]
    lines.append(f"    return {names[0]}")
    exec("\n".join(lines), scope)
    function: Callable[[Number], Number] = scope["p"]
    return function


# --- the logarithm ---------------------------------------------------------------------------

# (2 atanh(s) - 2 s) / s**3 in s**2, (1 + s) / (1 - s) between sqrt(1/2) and sqrt(2)
_ATANH: dict[Float, tuple[float, ...]] = {
    np.float32: (6.6666776e-01, 3.997608e-01, 2.9925454e-01),
    np.float64: (
        0.666666666666671, 0.3999999999952011, 0.2857142872920575, 0.22222199100199116,
        0.18183571008722682, 0.15313178995027835, 0.14810365622455615,
    ),
}  # fmt: skip
# ln 2 in two numbers, the first short enough to be multiplied by an exponent
_LN2: dict[Float, tuple[float, float]] = {
    np.float32: (0.693145751953125, 1.4286068203094173e-06),
    np.float64: (0.6931471805598903, 5.497923018708371e-14),
}


def log_of_sum(dtype: Float) -> Callable[[Number, Number, Number], Number]:
    """The function log(high + low) + more * ln 2; |low| is below the digits of a normal high > 0.

    `more` is a small integer.  NaN and infinity give any number.
    """
    p = polynomial(dtype, *_ATANH[dtype])
    ln2, ln2_low = map(dtype, _LN2[dtype])
    half, one, two = dtype(0.5), dtype(1), dtype(2)

    def log_sum(high: Number, low: Number, more: Number) -> Number:
        k = exponent(high) + more
        f = (mantissa(high) - one) + scaled_like(low, high)
        s = f / (two + f)
        z = s * s
        h = half * f * f
        y = f - (h - fma(s, fma(z, p(z), h), k * ln2_low))
        return fma(k, ln2, y)

    return log_sum


# --- functions with a rare case ---------------------------------------------------------------

Parts = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]


class Guarded(Overloaded):
    """A function that is `near(x)` where `fits(x)`, as nearly always, and `far(x)` elsewhere.

    A loop that calls it goes element by element, because `far` is no straight arithmetic.  Where
    an op is one such call, its kernel runs on whole vectors of `near`, asks `fits` of all
    arguments meanwhile, and goes through a tile anew where one did not fit.
    """

    def __init__(self, name: str, parts: dict[str, Parts], **others: Any) -> None:
        whole = {dtype: _whole(*functions) for dtype, functions in parts.items()}
        super().__init__(name, {**whole, **others})
        self.fits = Overloaded(f"{name}_fits", {d: p[0] for d, p in parts.items()})
        self.near = Overloaded(f"{name}_near", {d: p[1] for d, p in parts.items()})

    def jit_parts(self) -> tuple[Any, ...]:
        return (*super().jit_parts(), self.fits, self.near)


def _whole(
    fits: Callable[..., Any], near: Callable[..., Any], far: Callable[..., Any]
) -> Callable[..., Any]:
    def one(x: Number) -> Number:
        return near(x) if fits(x) else far(x)

    def two(x: Number, y: Number) -> Number:
        return near(x, y) if fits(x, y) else far(x, y)

    return two if fits.__code__.co_argcount == 2 else one
