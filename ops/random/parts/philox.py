"""Random numbers that depend on the seed, the call and the place alone.

A generator has a seed and counts its calls.  Call `c` of seed `s` owns a sequence of 32-bit words:
word k is word k % 4 of Philox4x32-10 with the counter (k // 4, c), 64 bits each, low half first,
and the key s.  What is made of the words:

    float32             element i: the top 24 bits of word i, as a fraction of 1; 11 of float16 and
                        8 of bfloat16, so that they are exact
    float64             element i: the top 53 bits of words 2i and 2i + 1, the first one higher
    normal              elements 2i and 2i + 1: a radius times the cosine and the sine of an angle
                        (Box and Muller); the radius from word 2i, the angle from word 2i + 1, for
                        float64 from two words each
    exponential         element i: minus the logarithm of (word i // 2 + 1/2) / 2**31; for float64
                        of a fraction of 53 bits, from two words
    integers            below n: n times (words 2i and 2i + 1) / 2**64, rounded down
    dropout, bernoulli  element i is dropped (is 1) where word i < p * 2**32

So the numbers are the same for any number of threads, and on CUDA
(`flowvm.ops.random.cuda.random`).  Seed and call are dynamic scalars: another value is not another
kernel.  dropout keeps no mask: its gradient makes it again.

A unit of work is STEP words.  A kernel makes them into its arena and then numbers of them: two
loops that LLVM vectorizes, or one where the numbers are made of whole counters.  The last unit
makes whole rounds of words, more than it needs, so that whether a number comes out of the vector
loop never depends on how many follow it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.errors import InvalidValueError, declare_status
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType, float64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.scalar import functions as scalar

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

# --- Philox -----------------------------------------------------------------------------------

U64 = np.uint64
LOW = 0xFFFFFFFF
_LOW, _HALF_WORD = U64(LOW), U64(32)
_M0, _M1, _W0, _W1 = U64(0xD2511F53), U64(0xCD9E8D57), U64(0x9E3779B9), U64(0xBB67AE85)
STEP = 1024  # words of a unit: in the first-level cache, with the numbers made of them
ROUND = 256  # words that are made at least: any vector loop's stride divides it
GRAIN = 32  # units of a chunk
ARENA = 4 * STEP  # bytes
INLINE_ALWAYS = True  # philox in the loop over counters is what vectorizes


def philox(block: int, call: int, seed: int) -> tuple[Number, Number, Number, Number]:
    """Four 32-bit words, as int64.

    What is multiplied is unsigned: LLVM may take it that a signed product does not overflow, and
    draw conclusions on its sign.
    """
    x, y, z = U64(block), U64(call), U64(seed)
    a, b, c, d = x & _LOW, x >> _HALF_WORD, y & _LOW, y >> _HALF_WORD
    k, m = z & _LOW, z >> _HALF_WORD
    for _ in range(10):
        p, q = _M0 * a, _M1 * c
        a, b, c, d = (q >> _HALF_WORD) ^ b ^ k, q & _LOW, (p >> _HALF_WORD) ^ d ^ m, p & _LOW
        k, m = (k + _W0) & _LOW, (m + _W1) & _LOW
    return np.int64(a), np.int64(b), np.int64(c), np.int64(d)


def _rounded(count: int) -> int:
    return (count + ROUND - 1) // ROUND * ROUND


def draw_words(words: Array, first: int, count: int, seed: int, call: int) -> None:
    """Words 4 * first and on into the int32 array `words`: `count` of them, rounded up to ROUND."""
    for k in range(_rounded(count) // 4):
        a, b, c, d = philox(first + k, call, seed)
        words[4 * k] = np.int32(a)
        words[4 * k + 1] = np.int32(b)
        words[4 * k + 2] = np.int32(c)
        words[4 * k + 3] = np.int32(d)


def _unit(arena: Array, unit: int, total: int, seed: int, call: int) -> tuple[Array, int]:
    """The words of a unit, and how many of them are among the `total` that are wanted."""
    words = arena[: 4 * STEP].view(np.int32)
    count = min(STEP, total - unit * STEP)
    draw_words(words, unit * (STEP // 4), count, seed, call)
    return words, count


# --- uniform numbers --------------------------------------------------------------------------


def _wide(words: Array, k: int) -> Number:
    """The top 53 bits of words k and k + 1."""
    return ((words[k] & LOW) << 21) | ((words[k + 1] & LOW) >> 11)


def _uniform_body(
    out: Array,
    drop: int,
    start: float,
    span: float,
    seed: int,
    call: int,
    arena: Array,
    lo: int,
    hi: int,
) -> None:
    """`drop` low bits of a word are not used; 0 of them: float64."""
    each = 2 if drop == 0 else 1
    a, b = out.dtype.type(start), out.dtype.type(span)
    scale = out.dtype.type(1.0 / (1 << (32 - drop)))
    for unit in range(lo, hi):
        words, count = _unit(arena, unit, each * len(out), seed, call)
        at = unit * STEP // each
        y = out[at : at + count // each]
        if drop == 0:
            for k in range(len(y)):
                y[k] = a + b * (_wide(words, 2 * k) * 2.0**-53)
        else:
            for k in range(len(y)):
                y[k] = a + b * (np.int32((words[k] & LOW) >> drop) * scale)


# --- normal and exponential numbers -----------------------------------------------------------

# sine and cosine on an eighth of a turn to each side (the coefficients of Cephes and of fdlibm)
_F = np.float32
_HALF, _ONE, _TWO = _F(0.5), _F(1), _F(2)
_SIN_32 = _F(-1.6666654611e-1), _F(8.3321608736e-3), _F(-1.9515295891e-4)
_COS_32 = _F(4.166664568298827e-2), _F(-1.388731625493765e-3), _F(2.443315711809948e-5)
_SIN_64 = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
    2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
_COS_64 = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
    -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip


def _turned(s: Number, c: Number, quarter: int) -> tuple[Number, Number]:
    """Return cosine and sine of an angle that is `quarter` quarters of a turn beyond (s, c)'s."""
    x, y = (s, c) if quarter & 1 else (c, s)
    return (-x if (quarter + 1) & 2 else x), (-y if quarter & 2 else y)


def _pair_32(word: int, angle: int) -> tuple[Number, Number]:
    """Two numbers: 31 bits of radius, 32 of angle."""
    size = (_F(np.int32(word >> 1)) + _HALF) * _F(2.0**-31)
    radius = scalar.sqrt(-_TWO * scalar.log(size))
    quarter = (angle + (1 << 29)) >> 30
    t = _F(np.int32(angle - (quarter << 30))) * _F(math.pi / 2 * 2.0**-30)
    z = t * t
    s = t + t * z * (_SIN_32[0] + z * (_SIN_32[1] + z * _SIN_32[2]))
    c = _ONE - _HALF * z + z * z * (_COS_32[0] + z * (_COS_32[1] + z * _COS_32[2]))
    x, y = _turned(s, c, quarter)
    return radius * x, radius * y


def _pair_64(a: int, b: int, c: int, d: int) -> tuple[float, float]:
    """Two numbers: 53 bits of radius, 64 of angle."""
    size = (((a << 21) | (b >> 11)) + 0.5) * 2.0**-53
    radius = scalar.sqrt(-2.0 * scalar.log(size))
    angle = (c << 32) | d
    quarter = ((angle >> 61) + 1) >> 1
    t = np.int64(U64(angle) - U64(quarter << 62)) * (math.pi / 2 * 2.0**-62)
    z = t * t
    p, q = _SIN_64[5], _COS_64[5]
    p, q = _SIN_64[4] + z * p, _COS_64[4] + z * q
    p, q = _SIN_64[3] + z * p, _COS_64[3] + z * q
    p, q = _SIN_64[2] + z * p, _COS_64[2] + z * q
    p, q = _SIN_64[1] + z * p, _COS_64[1] + z * q
    p, q = _SIN_64[0] + z * p, _COS_64[0] + z * q
    x, y = _turned(t + t * z * p, 1.0 - 0.5 * z + z * z * q, quarter)
    return radius * x, radius * y


def _normals(
    out: Array, first: int, blocks: int, mean: object, std: object, seed: int, call: int
) -> None:
    for k in range(blocks):
        a, b, c, d = philox(first + k, call, seed)
        x, y = _pair_32(a, b)
        z, w = _pair_32(c, d)
        out[4 * k] = mean + std * x
        out[4 * k + 1] = mean + std * y
        out[4 * k + 2] = mean + std * z
        out[4 * k + 3] = mean + std * w


def _wide_normals(
    out: Array, first: int, blocks: int, mean: Number, std: Number, seed: int, call: int
) -> None:
    for k in range(blocks):
        a, b, c, d = philox(first + k, call, seed)
        x, y = _pair_64(a, b, c, d)
        out[2 * k] = mean + std * x
        out[2 * k + 1] = mean + std * y


@functools.cache
def _normal_body(wide: bool) -> Callable[..., None]:
    """`wide`: of float64."""
    each, fill = (2, _wide_normals) if wide else (1, _normals)

    def normal(
        out: Array, mean: float, std: float, seed: int, call: int, arena: Array, lo: int, hi: int
    ) -> None:
        a, b = out.dtype.type(mean), out.dtype.type(std)
        numbers = arena.view(out.dtype)
        for unit in range(lo, hi):
            first, start = unit * (STEP // 4), unit * STEP // each
            y = out[start : start + STEP // each]
            if len(y) * each == STEP:
                fill(y, first, STEP // 4, a, b, seed, call)
            else:
                fill(numbers, first, _rounded(len(y) * each) // 4, a, b, seed, call)
                for k in range(len(y)):
                    y[k] = numbers[k]

    return normal


def _exponential_32(word: int) -> Number:
    """Return minus the logarithm of the top 31 bits as a fraction u.

    Above a half, compute it from 1 - u, which has all its digits.
    """
    part = (_F(np.int32(word >> 1)) + _HALF) * _F(2.0**-31)
    missing = (_F(np.int32(0x7FFFFFFF - (word >> 1))) + _HALF) * _F(2.0**-31)
    above = part > _HALF
    u = _ONE - missing if above else part
    rest = ((_ONE - u) - missing) / u if above else _F(0)
    return -(scalar.log(u) + rest)


def _exponential_64(high: int, low: int) -> Number:
    return -scalar.log((((high << 21) | (low >> 11)) + 0.5) * 2.0**-53)


def _exponentials(out: Array, first: int, blocks: int, scale: object, seed: int, call: int) -> None:
    for k in range(blocks):
        a, b, c, d = philox(first + k, call, seed)
        out[4 * k] = scale * _exponential_32(a)
        out[4 * k + 1] = scale * _exponential_32(b)
        out[4 * k + 2] = scale * _exponential_32(c)
        out[4 * k + 3] = scale * _exponential_32(d)


def _wide_exponentials(
    out: Array, first: int, blocks: int, scale: object, seed: int, call: int
) -> None:
    for k in range(blocks):
        a, b, c, d = philox(first + k, call, seed)
        out[2 * k] = scale * _exponential_64(a, b)
        out[2 * k + 1] = scale * _exponential_64(c, d)


@functools.cache
def _exponential_body(wide: bool) -> Callable[..., None]:
    """`wide`: of float64."""
    each, fill = (2, _wide_exponentials) if wide else (1, _exponentials)

    def exponential(
        out: Array, rate: float, seed: int, call: int, arena: Array, lo: int, hi: int
    ) -> None:
        scale = out.dtype.type(1.0 / rate)
        numbers = arena.view(out.dtype)
        for unit in range(lo, hi):
            first, start = unit * (STEP // 4), unit * STEP // each
            y = out[start : start + STEP // each]
            if len(y) * each == STEP:
                fill(y, first, STEP // 4, scale, seed, call)
            else:
                fill(numbers, first, _rounded(len(y) * each) // 4, scale, seed, call)
                for k in range(len(y)):
                    y[k] = numbers[k]

    return exponential


# --- integers and choices ---------------------------------------------------------------------


def _integer_body(
    out: Array, low: int, size: int, seed: int, call: int, arena: Array, lo: int, hi: int
) -> None:
    """The high half of a product of 64-bit numbers, made of (unsigned) products of their halves."""
    small, big = U64(size & LOW), U64(size >> 32)
    for unit in range(lo, hi):
        words, count = _unit(arena, unit, 2 * len(out), seed, call)
        at = unit * (STEP // 2)
        y = out[at : at + count // 2]
        for k in range(len(y)):
            a, b = U64(words[2 * k] & LOW), U64(words[2 * k + 1] & LOW)
            middle = a * small + ((b * small) >> _HALF_WORD)
            other = b * big + (middle & _LOW)
            high = a * big + (middle >> _HALF_WORD) + (other >> _HALF_WORD)
            y[k] = low + np.int64(high)


def _bernoulli_body(
    out: Array, p: float, seed: int, call: int, arena: Array, lo: int, hi: int
) -> None:
    limit = int(p * 4294967296.0)
    for unit in range(lo, hi):
        words, count = _unit(arena, unit, len(out), seed, call)
        y = out[unit * STEP : unit * STEP + count]
        for k in range(count):
            y[k] = (words[k] & LOW) < limit


NO_CHANCE = declare_status(71, InvalidValueError, "element {0} is no probability from 0 to 1")


def _chosen_body(
    out: Array, chances: Array, seed: int, call: int, arena: Array, lo: int, hi: int, details: Array
) -> int:
    for unit in range(lo, hi):
        words, count = _unit(arena, unit, len(out), seed, call)
        y = out[unit * STEP : unit * STEP + count]
        p = chances[unit * STEP : unit * STEP + count]
        wrong = 0
        for k in range(count):
            y[k] = (words[k] & LOW) < p[k] * 4294967296.0
            wrong += not 0.0 <= p[k] <= 1.0
        if wrong > 0:
            for k in range(count):
                if not 0.0 <= p[k] <= 1.0:
                    details[0] = unit * STEP + k
                    return 71  # NO_CHANCE
    return 0


def _dropout_body(
    out: Array, x: Array, p: float, seed: int, call: int, arena: Array, lo: int, hi: int
) -> None:
    limit = int(p * 4294967296.0)
    scale = out.dtype.type(0.0 if p >= 1.0 else 1.0 / (1.0 - p))
    zero = out.dtype.type(0)
    for unit in range(lo, hi):
        words, count = _unit(arena, unit, len(out), seed, call)
        y = out[unit * STEP : unit * STEP + count]
        v = x[unit * STEP : unit * STEP + count]
        for k in range(count):
            y[k] = zero if (words[k] & LOW) < limit else v[k] * scale


# --- ops --------------------------------------------------------------------------------------

_SCALARS = "seed: int, call: int"
_UNIFORM, _NORMAL = f"start: float, span: float, {_SCALARS}", f"mean: float, std: float, {_SCALARS}"
_EXPONENTIAL, _INTEGERS = f"rate: float, {_SCALARS}", f"low: int, size: int, {_SCALARS}"
_CHANCE = f"p: float, {_SCALARS}"


def _launch(
    body: Any,
    written: TensorMeta,
    words: int,
    consts: tuple[Any, ...] = (),
    *,
    fresh: bool = True,
    others: tuple[TensorMeta, ...] = (),
) -> Launch:
    """Return the Launch of a body that uses `words` words for each element."""
    views = tuple(View(m.dtype, (m.numel,)) for m in (written, *others))
    units = -(-written.numel * words // STEP)
    outputs = (written,) if fresh else ()
    blocks = (STEP,) * len(views) if words == 1 and fresh else ()
    return Launch(
        outputs, body, views, consts, units=units, grain=GRAIN, arena=ARENA, blocks=blocks
    )


def _words(dtype: DType) -> int:
    return 2 if dtype is float64 else 1


@op(" -> out", name="rand", scalars=_UNIFORM, cuda="random:uniform", letters=unsplit)
def uniform_words(out: TensorMeta, drop: int) -> Launch:
    return _launch(_uniform_body, out, _words(out.dtype), (drop,))


@op(
    "x! -> ",
    name="uniform_",
    refills=True,
    scalars=_UNIFORM,
    cuda="random:uniform",
    letters=unsplit,
)
def uniform_into(x: TensorMeta, drop: int) -> Launch:
    return _launch(_uniform_body, x, _words(x.dtype), (drop,), fresh=False)


@op(" -> out", name="randn", scalars=_NORMAL, cuda="random:normal", letters=unsplit)
def normal_words(out: TensorMeta) -> Launch:
    return _launch(_normal_body(out.dtype is float64), out, _words(out.dtype))


@op("x! -> ", name="normal_", refills=True, scalars=_NORMAL, cuda="random:normal", letters=unsplit)
def normal_into(x: TensorMeta) -> Launch:
    return _launch(_normal_body(x.dtype is float64), x, _words(x.dtype), fresh=False)


@op(" -> out", name="exponential", scalars=_EXPONENTIAL, cuda="random:exponential", letters=unsplit)
def exponential_words(out: TensorMeta) -> Launch:
    return _launch(_exponential_body(out.dtype is float64), out, _words(out.dtype))


@op(
    "x! -> ",
    name="exponential_",
    refills=True,
    scalars=_EXPONENTIAL,
    cuda="random:exponential",
    letters=unsplit,
)
def exponential_into(x: TensorMeta) -> Launch:
    return _launch(_exponential_body(x.dtype is float64), x, _words(x.dtype), fresh=False)


@op(" -> out", name="randint", scalars=_INTEGERS, cuda="random:integers", letters=unsplit)
def integer_words(out: TensorMeta) -> Launch:
    return _launch(_integer_body, out, 2)


@op(
    "x! -> ",
    name="random_",
    refills=True,
    scalars=_INTEGERS,
    cuda="random:integers",
    letters=unsplit,
)
def integers_into(x: TensorMeta) -> Launch:
    return _launch(_integer_body, x, 2, fresh=False)


@op(" -> out", name="bernoulli", scalars=_CHANCE, cuda="random:bernoulli", letters=unsplit)
def bernoulli_words(out: TensorMeta) -> Launch:
    """1 with probability `p`."""
    return _launch(_bernoulli_body, out, 1)


@op(
    "x! -> ",
    name="bernoulli_",
    refills=True,
    scalars=_CHANCE,
    cuda="random:bernoulli",
    letters=unsplit,
)
def bernoulli_into(x: TensorMeta) -> Launch:
    return _launch(_bernoulli_body, x, 1, fresh=False)


@op("p -> out", name="bernoulli", scalars=_SCALARS, cuda="random:chosen", letters=unsplit)
def chosen_words(p: TensorMeta, dtype: DType) -> Launch:
    """1 with the probability that is in the same place of `p`."""
    return _launch(_chosen_body, p.dense(dtype), 1, others=(p,))


@op(
    "x -> out",
    name="dropout",
    scalars=_CHANCE,
    grad=lambda c, g: (dropout_words(g, *c.attrs),),
    cuda="random:dropout",
    letters=unsplit,
)
def dropout_words(x: TensorMeta) -> Launch:
    return _launch(_dropout_body, x.dense(), 1, others=(x,))
