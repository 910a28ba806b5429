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
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.device import as_device
from flowvm.dtype import DType, as_dtype, float16, float32, float64, get_default_dtype, int64
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta import Size, TensorMeta, as_shape
from flowvm.ops import scalar
from flowvm.ops.create import _finished, ones, size_of, tensor
from flowvm.ops.recording import need_tensor
from flowvm.ops.registry import GRAIN, Launch, Sample, View, op, samples
from flowvm.tensor import Tensor, method

__all__ = [
    "Generator",
    "bernoulli",
    "default_generator",
    "dropout",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "multinomial",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "seed",
    "set_rng_state",
]

Array = Any
DEFAULT_SEED = 67280421310721  # PyTorch's: a program that sets no seed repeats its numbers


# --- generators -------------------------------------------------------------------------------


class Generator:
    """A source of random numbers: `manual_seed(s)` starts it anew.  Threads may share one."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = as_device(device)
        self._lock = threading.Lock()
        self._seed, self._calls = DEFAULT_SEED, 0

    def manual_seed(self, seed: int) -> Generator:
        """Start the numbers of `seed`, an int of 64 bits (a negative one counts from 2**64); the
        generator.
        """
        if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
            raise ArgumentTypeError(f"manual_seed: a seed is an int, got {type(seed).__name__}")
        if not -(1 << 63) <= seed < 1 << 64:
            raise ArgumentError(f"manual_seed: a seed has 64 bits, got {seed}")
        with self._lock:
            self._seed, self._calls = int(seed) % (1 << 64), 0
        return self

    def seed(self) -> int:
        """Start from a seed that the operating system draws; the seed."""
        drawn = int.from_bytes(os.urandom(8), "little")
        self.manual_seed(drawn)
        return drawn

    def initial_seed(self) -> int:
        """The seed that the numbers started from."""
        return self._seed

    def get_state(self) -> Tensor:
        """The state as a tensor of 16 bytes, for `set_state`."""
        with self._lock:
            words = np.array([self._seed, self._calls], np.uint64)
        return tensor(words.view(np.uint8))

    def set_state(self, new_state: Tensor) -> Generator:
        """Go on from where `get_state` was called; the generator."""
        if not isinstance(new_state, Tensor) or new_state._meta.nbytes != 16:
            raise ArgumentTypeError(
                "set_state takes what get_state gave: a uint8 tensor of 16 bytes"
            )
        words = new_state.numpy().view(np.uint64)
        with self._lock:
            self._seed, self._calls = int(words[0]), int(words[1])
        return self

    def draw(self) -> tuple[int, int]:
        """The seed (as int64) and the number of a new call."""
        with self._lock:
            call = self._calls
            self._calls += 1
            chosen = self._seed
        return (chosen - (1 << 64) if chosen >> 63 else chosen), call

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, calls={self._calls})"


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Start the default generator's numbers of `seed`; the generator."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Start the default generator from a seed that the operating system draws; the seed."""
    return default_generator.seed()


def initial_seed() -> int:
    """The default generator's seed."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The default generator's state."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Set the default generator's state."""
    default_generator.set_state(new_state)


def _draw(generator: Generator | None) -> tuple[int, int]:
    if generator is None:
        return default_generator.draw()
    if not isinstance(generator, Generator):
        raise ArgumentTypeError(
            f"generator must be a flow.Generator, got {type(generator).__name__}"
        )
    return generator.draw()


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
    """A unit is four words.  `drop` low bits of each are not used; for float64 words go in pairs.
    """
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
def _uniform(shape: Size, dtype: DType, drop: int) -> Launch:
    words = 2 if dtype is float64 else 1
    return _launch(_uniform_body, TensorMeta.of(shape, dtype), words, (drop,), 0)


@op(" -> out", name="randn", scalars=_SCALARS)
def _normal(shape: Size, dtype: DType) -> Launch:
    wide = dtype is float64
    return _launch(_normal_body, TensorMeta.of(shape, dtype), 1 + wide, (wide,), 0)


@op(" -> out", name="randint", scalars="low: int, size: int, seed: int, call: int")
def _integer(shape: Size) -> Launch:
    return _launch(_integer_body, TensorMeta.of(shape, int64), 2, (), 0)


@op(
    "x -> out",
    name="dropout",
    scalars="p: float, seed: int, call: int",
    grad=lambda c, g: (_dropout(g, *c.attrs),),
)
def _dropout(x: TensorMeta) -> Launch:
    return _launch(_dropout_body, x.dense(), 1, (), 1)


# --- uniform and normal numbers -----------------------------------------------------------------


def _float_dtype(name: str, dtype: Any) -> DType:
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    if not chosen.is_floating_point:
        raise DTypeError(f"{name} makes floats, got dtype {chosen.name}; randint makes integers")
    return chosen


def _uniform_of(shape: Size, dtype: DType, generator: Generator | None) -> Tensor:
    drawn = _draw(generator)
    if dtype is float16:
        narrow: Tensor = _uniform(shape, float32, 21, *drawn).to(float16)
        return narrow
    out: Tensor = _uniform(shape, dtype, 0 if dtype is float64 else 8, *drawn)
    return out


def _normal_like(shape: Size, dtype: DType, generator: Generator | None) -> Tensor:
    out: Tensor = _normal(shape, float32 if dtype is float16 else dtype, *_draw(generator))
    return out.to(dtype)


def rand(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) with uniform numbers from [0, 1)."""
    as_device(device)
    chosen = _float_dtype("rand", dtype)
    return _finished(_uniform_of(size_of(size), chosen, generator), requires_grad)


def randn(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) with numbers of mean 0 and variance 1,
    normally distributed.
    """
    as_device(device)
    chosen = _float_dtype("randn", dtype)
    return _finished(_normal_like(size_of(size), chosen, generator), requires_grad)


def rand_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`rand` of `input`'s shape, and dtype unless one is given."""
    meta = need_tensor("rand_like", "input", input)._meta
    kind = meta.dtype if dtype is None else dtype
    return rand(meta.shape, dtype=kind, device=device, requires_grad=requires_grad)


def randn_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`randn` of `input`'s shape, and dtype unless one is given."""
    meta = need_tensor("randn_like", "input", input)._meta
    kind = meta.dtype if dtype is None else dtype
    return randn(meta.shape, dtype=kind, device=device, requires_grad=requires_grad)


def normal(
    mean: Any,
    std: Any = 1.0,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normally distributed numbers of means `mean` and standard deviations `std`: tensors that
    broadcast, or numbers.

    Two numbers need `size`.  ArgumentError if the number `std` is negative.
    """
    as_device(device)
    if not isinstance(std, Tensor) and std < 0:
        raise ArgumentError(f"normal: a standard deviation is not negative, got {std}")
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    if size is None:
        if not tensors:
            raise ArgumentTypeError("normal of two numbers needs size")
        like = mean + std
        shape, kind = like._meta.shape, like._meta.dtype
    else:
        if tensors:
            raise ArgumentTypeError("normal takes size, or tensors for mean or std, not both")
        shape, kind = as_shape(size), _float_dtype("normal", dtype)
    with_spread = _normal_like(shape, kind, generator) * std + mean
    return _finished(with_spread, requires_grad)


# --- integers ---------------------------------------------------------------------------------


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers from `low` (0 if `randint(high, size)`) up to, not including, `high`; int64 unless
    `dtype` is given.
    """
    as_device(device)
    if size is None or isinstance(high, (tuple, list)):
        low, high, size = 0, low, high if size is None else size
    if size is None:
        raise ArgumentTypeError(
            "randint needs size: randint(high, size) or randint(low, high, size)"
        )
    for bound in (low, high):
        if not isinstance(bound, (int, np.integer)) or isinstance(bound, bool):
            raise ArgumentTypeError(f"randint: bounds are ints, got {type(bound).__name__}")
    if not low < high:
        raise ArgumentError(f"randint: low must be less than high, got {low} and {high}")
    if not (-(1 << 63) <= low and high <= 1 << 63 and high - low < 1 << 63):
        raise ArgumentError(f"randint: from {low} to {high} is more than int64 has room for")
    chosen = int64 if dtype is None else as_dtype(dtype)
    if chosen.category == 1:
        limits = np.iinfo(chosen.numpy)
        if low < limits.min or high - 1 > limits.max:
            raise ArgumentError(
                f"randint: numbers from {low} to {high - 1} do not fit {chosen.name}"
            )
    out: Tensor = _integer(as_shape(size), int(low), int(high) - int(low), *_draw(generator))
    return _finished(out.to(chosen), requires_grad)


def randint_like(
    input: Tensor,
    low: int,
    high: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`randint` of `input`'s shape, and dtype unless one is given; `randint_like(x, high)` starts
    at 0.
    """
    meta = need_tensor("randint_like", "input", input)._meta
    if high is None:
        low, high = 0, low
    kind = meta.dtype if dtype is None else dtype
    return randint(
        low, high, tuple(meta.shape), dtype=kind, device=device, requires_grad=requires_grad
    )


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The integers from 0 to `n` - 1 in random order: that of `n` random 62-bit keys."""
    as_device(device)
    if not isinstance(n, (int, np.integer)) or n < 0:
        raise ArgumentError(f"randperm: n is a non-negative int, got {n!r}")
    keys: Tensor = _integer(as_shape(n), 0, 1 << 62, *_draw(generator))
    order = keys.argsort(stable=True)
    return _finished(order.to(int64 if dtype is None else as_dtype(dtype)), requires_grad)


# --- choices ----------------------------------------------------------------------------------


def _check_p(name: str, p: Any) -> float:
    if isinstance(p, bool) or not isinstance(p, (int, float, np.number)):
        raise ArgumentTypeError(f"{name}: p is a number, got {type(p).__name__}")
    if not 0 <= p <= 1:
        raise ArgumentError(f"{name}: p is a probability, from 0 to 1, got {p}")
    return float(p)


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None
) -> Tensor:
    """1 with the probability that each element of `input` (or `p` for all) gives, else 0; in
    `input`'s dtype.
    """
    meta = need_tensor("bernoulli", "input", input)._meta
    if p is None and not meta.dtype.is_floating_point:
        raise DTypeError(f"bernoulli: probabilities are floats, got {meta.dtype.name}")
    chance: Any = input.detach() if p is None else _check_p("bernoulli", p)
    kind = meta.dtype if meta.dtype is float64 else float32
    hits: Tensor = (_uniform_of(meta.shape, kind, generator) < chance).to(meta.dtype)
    return hits


def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """`num_samples` indices drawn from each row of weights (which need not sum to 1), as int64.

    Without `replacement` an index comes once at most, so `num_samples` is limited by the number of
    weights.
    """
    x = need_tensor("multinomial", "input", input).detach()
    meta = x._meta
    if meta.ndim not in (1, 2) or meta.shape[-1] == 0:
        raise ShapeError(
            f"multinomial: weights are a vector or a matrix with columns, "
            f"got shape {tuple(meta.shape)}"
        )
    if not meta.dtype.is_floating_point:
        raise DTypeError(f"multinomial: weights are floats, got {meta.dtype.name}")
    if num_samples <= 0 or (not replacement and num_samples > meta.shape[-1]):
        raise ArgumentError(
            f"multinomial: cannot draw {num_samples} of {meta.shape[-1]} without replacement"
            if num_samples > 0
            else f"multinomial: num_samples must be positive, got {num_samples}"
        )
    weights = x.to(float64)
    if replacement:
        from flowvm.ops.searching import searchsorted

        sums = weights.cumsum(-1)
        shape = (*meta.shape[:-1], num_samples)
        places = _uniform_of(Size(shape), float64, generator) * sums[..., -1:]
        drawn: Tensor = searchsorted(sums, places, right=True).clamp(max=meta.shape[-1] - 1)
        return drawn
    # the first of exponential waiting times with these rates
    times = -(-_uniform_of(meta.shape, float64, generator)).log1p() / weights
    order: Tensor = times.topk(num_samples, -1, False, True)[1]
    return order


# --- dropout ----------------------------------------------------------------------------------


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`input` with each element 0 with probability `p`, else divided by 1 - p; `input` itself
    unless `training`.

    No mask is kept: the gradient makes the same random words again.
    """
    x = need_tensor("dropout", "input", input)
    chance = _check_p("dropout", p)
    if not training or chance == 0.0:
        return x
    if not x._meta.dtype.is_floating_point:
        raise DTypeError(f"dropout is for floats, got {x.dtype.name}")
    dropped: Tensor = _dropout(x, chance, *default_generator.draw())
    if not inplace:
        return dropped
    changed: Tensor = x.copy_(dropped)
    return changed


def dropout_mask(shape: Sequence[int], p: float, dtype: DType) -> Tensor:
    """What dropout multiplies with: 0 with probability `p`, else 1 / (1 - p); for dropout of whole
    channels.
    """
    return dropout(ones(tuple(shape), dtype=dtype), p)


# --- in place ---------------------------------------------------------------------------------


def _filled(x: Tensor, name: str, draw: Any, generator: Generator | None) -> Tensor:
    return draw(x._meta.shape, _float_dtype(name, x._meta.dtype), generator)  # type: ignore[no-any-return]


@method()
def uniform_(
    x: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill `x` with uniform numbers from [from_, to)."""
    if not from_ <= to:
        raise ArgumentError(f"uniform_: from_ must not exceed to, got {from_} and {to}")
    numbers = _filled(x, "uniform_", _uniform_of, generator)
    changed: Tensor = x.copy_(numbers * (to - from_) + from_)
    return changed


@method()
def normal_(
    x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill `x` with normally distributed numbers."""
    if std < 0:
        raise ArgumentError(f"normal_: a standard deviation is not negative, got {std}")
    numbers = _filled(x, "normal_", _normal_like, generator)
    if std != 1 or mean != 0:
        numbers = numbers * std + mean
    changed: Tensor = x.copy_(numbers)
    return changed


@method()
def exponential_(x: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill `x` with waiting times of rate `lambd`."""
    if lambd <= 0:
        raise ArgumentError(f"exponential_: lambd must be positive, got {lambd}")
    numbers = -(-_filled(x, "exponential_", _uniform_of, generator)).log1p() / lambd
    changed: Tensor = x.copy_(numbers)
    return changed


@method()
def bernoulli_(x: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill `x` with 1 with probability `p` (a number, or a tensor that broadcasts), else 0."""
    chance = p.detach() if isinstance(p, Tensor) else _check_p("bernoulli_", p)
    numbers = _uniform_of(x._meta.shape, float64, generator) < chance
    changed: Tensor = x.copy_(numbers.to(x._meta.dtype))
    return changed


@method()
def random_(
    x: Tensor, from_: int = 0, to: int | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Fill `x` with integers from `from_` up to, not including, `to`; by default all that its dtype
    counts.
    """
    dtype = x._meta.dtype
    if to is None and dtype.is_floating_point:
        to = 1 << (np.finfo(dtype.numpy).nmant + 1)
    elif to is None:
        to = 2 if dtype.is_bool else int(np.iinfo(dtype.numpy).max)
    numbers = randint(from_, to, tuple(x._meta.shape), generator=generator)
    changed: Tensor = x.copy_(numbers.to(dtype))
    return changed


method()(bernoulli)
method()(multinomial)

samples(
    dropout,
    lambda rng: [Sample((rng.standard_normal((3, 4)), 0.5, False)), Sample((np.ones((2, 3)), 0.0))],
    lambda x, p, training=True: x,
    errors=(
        (lambda flow: flow.dropout(flow.ones(2), 1.5), ValueError),
        (lambda flow: flow.dropout([1.0]), TypeError),
        (lambda flow: flow.rand(2, dtype=flow.int64), RuntimeError),
        (lambda flow: flow.randint(3, 3, (2,)), ValueError),
        (lambda flow: flow.randint(0, 300, (2,), dtype=flow.uint8), ValueError),
        (lambda flow: flow.randperm(-1), ValueError),
        (lambda flow: flow.multinomial(flow.ones(2), 3), ValueError),
        (lambda flow: flow.bernoulli(flow.arange(2)), RuntimeError),
        (lambda flow: flow.normal(0.0, -1.0, (2,)), ValueError),
        (lambda flow: flow.manual_seed(1.5), TypeError),
    ),
)
