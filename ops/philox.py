"""Random numbers that depend on the seed, the call and the place alone.

A generator has a seed and counts its calls.  Call `c` of seed `s` owns a sequence of 32-bit words:
word k is word k % 4 of Philox4x32-10 with the counter (k // 4, c), 64 bits each, low half first,
and the key s.  What is made of the words:

    float32, float16    element i: the top 24 (11) bits of word i, as a fraction of 1
    float64             element i: the top 53 bits of words 2i and 2i + 1, the first one higher
    normal              the inverse of the normal distribution at (word i + 1/2) / 2**32; for
                        float64 at the uniform number plus 2**-54
    integers            below n: (words 2i and 2i + 1, the first one higher) % n
    dropout             element i is dropped where word i < p * 2**32

So the numbers are the same for any number of threads, and could be made on another device.  Seed
and call are dynamic scalars: another value is not another kernel.  dropout keeps no mask: its
gradient makes it again.
"""

from __future__ import annotations

import math
from typing import Any

from flowvm.dtype import DType, float64, int64
from flowvm.meta import Size, TensorMeta
from flowvm.ops import scalar
from flowvm.ops.registry import GRAIN, Launch, View, op

__all__ = [
    "dropout_words",
    "integer_words",
    "normal_words",
    "philox",
    "uniform_words",
]

Array = Any


# --- Philox -----------------------------------------------------------------------------------

_LOW = 0xFFFFFFFF
_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def philox(block: int, call: int, seed: int) -> tuple[int, int, int, int]:
    """Four 32-bit words.  int64 arithmetic wraps around, so products and shifts are cut to 32 bits
    where they matter.
    """
    a, b, c, d = block & _LOW, (block >> 32) & _LOW, call & _LOW, (call >> 32) & _LOW
    k, m = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(10):
        p, q = _M0 * a, _M1 * c
        a, b, c, d = ((q >> 32) & _LOW) ^ b ^ k, q & _LOW, ((p >> 32) & _LOW) ^ d ^ m, p & _LOW
        k, m = (k + _W0) & _LOW, (m + _W1) & _LOW
    return a, b, c, d


def _wide_fraction(high: int, low: int) -> float:
    return ((high << 21) | (low >> 11)) * 2.0**-53


def _uniform_body(out: Array, drop: int, seed: int, call: int, lo: int, hi: int) -> None:
    """A unit is four words, whose `drop` low bits are not used; for float64 they go in pairs."""
    n = len(out)
    scale = 2.0 ** (drop - 32)
    for unit in range(lo, hi):
        a, b, c, d = philox(unit, call, seed)
        if drop == 0:
            out[2 * unit] = _wide_fraction(a, b)
            if 2 * unit + 1 < n:
                out[2 * unit + 1] = _wide_fraction(c, d)
            continue
        i = 4 * unit
        out[i] = (a >> drop) * scale
        if i + 1 < n:
            out[i + 1] = (b >> drop) * scale
        if i + 2 < n:
            out[i + 2] = (c >> drop) * scale
        if i + 3 < n:
            out[i + 3] = (d >> drop) * scale


def _normal_of(word: int) -> float:
    """The inverse of the normal distribution at (word + 1/2) / 2**32, to 3e-7 of itself (after
    Giles).
    """
    y = (word + 0.5) * 2.0**-31 - 1.0
    w = -scalar.log((1.0 - y) * (1.0 + y))
    near = w - 2.5
    far = math.sqrt(w) - 3.0
    small = w < 5.0
    v = near if small else far
    p = 2.81022636e-08 if small else -0.000200214257
    p = (3.43273939e-07 if small else 0.000100950558) + p * v
    p = (-3.5233877e-06 if small else 0.00134934322) + p * v
    p = (-4.39150654e-06 if small else -0.00367342844) + p * v
    p = (0.00021858087 if small else 0.00573950773) + p * v
    p = (-0.00125372503 if small else -0.0076224613) + p * v
    p = (-0.00417768164 if small else 0.00943887047) + p * v
    p = (0.246640727 if small else 1.00167406) + p * v
    p = (1.50140941 if small else 2.83297682) + p * v
    return 1.4142135623730951 * p * y


def _normal_body(out: Array, wide: bool, seed: int, call: int, lo: int, hi: int) -> None:
    n = len(out)
    for unit in range(lo, hi):
        a, b, c, d = philox(unit, call, seed)
        if wide:
            y = 2.0 * (_wide_fraction(a, b) + 2.0**-54) - 1.0
            out[2 * unit] = 1.4142135623730951 * scalar.erfinv(y)
            if 2 * unit + 1 < n:
                y = 2.0 * (_wide_fraction(c, d) + 2.0**-54) - 1.0
                out[2 * unit + 1] = 1.4142135623730951 * scalar.erfinv(y)
            continue
        i = 4 * unit
        out[i] = _normal_of(a)
        if i + 1 < n:
            out[i + 1] = _normal_of(b)
        if i + 2 < n:
            out[i + 2] = _normal_of(c)
        if i + 3 < n:
            out[i + 3] = _normal_of(d)


def _below(high: int, low: int, size: int) -> int:
    """The number of 63 bits modulo `size`; 63, so that it is never negative."""
    return (((high & 0x7FFFFFFF) << 32) | low) % size


def _integer_body(out: Array, low: int, size: int, seed: int, call: int, lo: int, hi: int) -> None:
    n = len(out)
    for unit in range(lo, hi):
        a, b, c, d = philox(unit, call, seed)
        out[2 * unit] = low + _below(a, b, size)
        if 2 * unit + 1 < n:
            out[2 * unit + 1] = low + _below(c, d, size)


def _dropout_body(out: Array, x: Array, p: float, seed: int, call: int, lo: int, hi: int) -> None:
    n = len(out)
    limit = int(p * 4294967296.0)
    scale = out.dtype.type(0.0 if p >= 1.0 else 1.0 / (1.0 - p))
    zero = out.dtype.type(0)
    for unit in range(lo, hi):
        a, b, c, d = philox(unit, call, seed)
        i = 4 * unit
        out[i] = zero if a < limit else x[i] * scale
        if i + 1 < n:
            out[i + 1] = zero if b < limit else x[i + 1] * scale
        if i + 2 < n:
            out[i + 2] = zero if c < limit else x[i + 2] * scale
        if i + 3 < n:
            out[i + 3] = zero if d < limit else x[i + 3] * scale


# --- ops --------------------------------------------------------------------------------------


def _launch(body: Any, out: TensorMeta, words: int, consts: tuple[Any, ...], inputs: int) -> Launch:
    """`words` are those of one element."""
    views = (View(out.dtype, (out.numel,)),) * (1 + inputs)
    units = (out.numel * words + 3) // 4
    return Launch((out,), body, views, consts, units=units, grain=GRAIN // 8)


_SCALARS = "seed: int, call: int"


@op(" -> out", name="rand", scalars=_SCALARS)
def uniform_words(shape: Size, dtype: DType, drop: int) -> Launch:
    words = 2 if dtype is float64 else 1
    return _launch(_uniform_body, TensorMeta.of(shape, dtype), words, (drop,), 0)


@op(" -> out", name="randn", scalars=_SCALARS)
def normal_words(shape: Size, dtype: DType) -> Launch:
    wide = dtype is float64
    return _launch(_normal_body, TensorMeta.of(shape, dtype), 1 + wide, (wide,), 0)


@op(" -> out", name="randint", scalars="low: int, size: int, seed: int, call: int")
def integer_words(shape: Size) -> Launch:
    return _launch(_integer_body, TensorMeta.of(shape, int64), 2, (), 0)


@op(
    "x -> out",
    name="dropout",
    scalars="p: float, seed: int, call: int",
    grad=lambda c, g: (dropout_words(g, *c.attrs),),
)
def dropout_words(x: TensorMeta) -> Launch:
    return _launch(_dropout_body, x.dense(), 1, (), 1)
