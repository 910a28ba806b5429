"""Random numbers on CUDA, word for word as from `flowvm.ops.random.parts.philox`.

A thread makes one counter, four words, at a time, and all numbers that are made of them.  The
functions from words to numbers are the CPU's own, so one seed gives the same uniform numbers,
integers and choices on both, bit for bit; normal and exponential ones may differ in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numba import cuda

from flowvm.cuda.launch import STATUS_AT, Const, CudaLaunch, Details, Operand, Param, Scalar
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import flat_step
from flowvm.ops.declare.cuda.vectors import aligned, load_many, store_many
from flowvm.ops.random.parts.philox import (
    LOW,
    U64,
    _exponential_32,
    _exponential_64,
    _pair_32,
    _pair_64,
    philox,
)
from flowvm.ops.random.parts.poisson import NO_MEAN, SMALL, _counted, _fraction, _rejected

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

Metas = tuple[TensorMeta, ...]
WORDS = 4  # of a counter
load_4, store_2, store_4 = load_many[4], store_many[2], store_many[4]


def _steps(
    launch: Launch, kernel: Callable[..., None], each: int, kinds: str, *consts: float
) -> CudaLaunch:
    """kernel(operands..., consts..., dynamic scalars...); `each` elements are made of a counter."""
    operands = tuple(Operand(k, view) for k, view in enumerate(launch.views))
    scalars = tuple(Scalar(i, kind) for i, kind in enumerate(kinds))
    counters = -(-operands[0].view.shape[0] // each)
    params: tuple[Param, ...] = (*operands, *(Const(value) for value in consts), *scalars)
    return CudaLaunch(launch.outputs, (flat_step(kernel, counters, *params),))


def _put_two(out: Array, i: int, a: float | int, b: float | int) -> None:
    """Store elements i and i + 1, as far as they exist."""
    if i + 1 < len(out) and aligned(out, 2):
        store_2(out, i, (a, b))
    else:
        out[i] = a
        if i + 1 < len(out):
            out[i + 1] = b


def _put_four(out: Array, i: int, a: object, b: object, c: object, d: object) -> None:
    """Store elements i to i + 3, as far as they exist."""
    if i + 3 < len(out) and aligned(out, 4):
        store_4(out, i, (a, b, c, d))
    else:
        out[i] = a
        if i + 1 < len(out):
            out[i + 1] = b
        if i + 2 < len(out):
            out[i + 2] = c
        if i + 3 < len(out):
            out[i + 3] = d


def _get_four(x: Array, i: int) -> Number:
    """Load elements i to i + 3; the last one stands for elements beyond it."""
    if i + 3 < len(x) and aligned(x, 4):
        return load_4(x, i)
    last = len(x) - 1
    return x[i], x[min(i + 1, last)], x[min(i + 2, last)], x[min(i + 3, last)]


# --- uniform numbers ------------------------------------------------------------------------------


def _uniform_64(out: Array, start: float, span: float, seed: int, call: int) -> None:
    n = len(out)
    for k in range(cuda.grid(1), (n + 1) // 2, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        _put_two(
            out,
            2 * k,
            start + span * (((a << 21) | (b >> 11)) * 2.0**-53),
            start + span * (((c << 21) | (d >> 11)) * 2.0**-53),
        )


def _fraction_of(word: int, scale: Number) -> Number:
    """A word of at most 24 bits, times a power of two: exact."""
    return np.float32(np.int32(word)) * scale


def _uniform_32(
    out: Array, drop: int, unit: float, start: float, span: float, seed: int, call: int
) -> None:
    """Fill `out` with uniform numbers; a word's lowest bit that is not dropped counts `unit`."""
    n = len(out)
    first, size, scale = out.dtype.type(start), out.dtype.type(span), out.dtype.type(unit)
    for k in range(cuda.grid(1), (n + 3) // 4, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        _put_four(
            out,
            4 * k,
            first + size * (_fraction_of(a >> drop, scale)),
            first + size * (_fraction_of(b >> drop, scale)),
            first + size * (_fraction_of(c >> drop, scale)),
            first + size * (_fraction_of(d >> drop, scale)),
        )


def uniform(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """`rand` and `uniform_`."""
    (drop,) = launch.consts
    if drop == 0:
        return _steps(launch, _uniform_64, 2, "ffii")
    return _steps(launch, _uniform_32, 4, "ffii", int(drop), 2.0 ** (drop - 32))


# --- normal and exponential numbers ---------------------------------------------------------------


def _normal_64(out: Array, mean: float, std: float, seed: int, call: int) -> None:
    n = len(out)
    for k in range(cuda.grid(1), (n + 1) // 2, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        x, y = _pair_64(a, b, c, d)
        _put_two(out, 2 * k, mean + std * x, mean + std * y)


def _normal_32(out: Array, mean: float, std: float, seed: int, call: int) -> None:
    n = len(out)
    middle, size = out.dtype.type(mean), out.dtype.type(std)
    for k in range(cuda.grid(1), (n + 3) // 4, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        x, y = _pair_32(a, b)
        z, w = _pair_32(c, d)
        _put_four(
            out, 4 * k, middle + size * x, middle + size * y, middle + size * z, middle + size * w
        )


def _wide(launch: Launch, metas: Metas) -> bool:
    """Return True if numbers of 64 bits are made."""
    return (launch.outputs or metas)[0].dtype.itemsize == 8


def normal(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """`randn` and `normal_`."""
    if _wide(launch, metas):
        return _steps(launch, _normal_64, 2, "ffii")
    return _steps(launch, _normal_32, 4, "ffii")


def _exponential_of_64(out: Array, rate: float, seed: int, call: int) -> None:
    n, scale = len(out), 1.0 / rate
    for k in range(cuda.grid(1), (n + 1) // 2, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        _put_two(out, 2 * k, scale * _exponential_64(a, b), scale * _exponential_64(c, d))


def _exponential_of_32(out: Array, rate: float, seed: int, call: int) -> None:
    n, scale = len(out), out.dtype.type(1.0 / rate)
    for k in range(cuda.grid(1), (n + 3) // 4, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        _put_four(
            out,
            4 * k,
            scale * _exponential_32(a),
            scale * _exponential_32(b),
            scale * _exponential_32(c),
            scale * _exponential_32(d),
        )


def exponential(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """Return the steps of `exponential_`, and of the draws of `multinomial`."""
    if _wide(launch, metas):
        return _steps(launch, _exponential_of_64, 2, "fii")
    return _steps(launch, _exponential_of_32, 4, "fii")


# --- integers -------------------------------------------------------------------------------------


def _part(high: int, low: int, big: Number, small: Number) -> int:
    """The high half of the product of two words and a size, in halves."""
    a, b = U64(high), U64(low)
    middle = a * small + ((b * small) >> U64(32))
    other = b * big + (middle & U64(LOW))
    return np.int64(a * big + (middle >> U64(32)) + (other >> U64(32)))  # type: ignore[return-value]


def _integers(out: Array, low: int, size: int, seed: int, call: int) -> None:
    n = len(out)
    small, big = U64(size & LOW), U64(size >> 32)
    for k in range(cuda.grid(1), (n + 1) // 2, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        _put_two(out, 2 * k, low + _part(a, b, big, small), low + _part(c, d, big, small))


def integers(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """`randint` and `random_`."""
    return _steps(launch, _integers, 2, "iiii")


# --- choices --------------------------------------------------------------------------------------


def _bernoulli(out: Array, p: float, seed: int, call: int) -> None:
    n, limit = len(out), np.int64(p * 4294967296.0)
    for k in range(cuda.grid(1), (n + 3) // 4, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        _put_four(out, 4 * k, a < limit, b < limit, c < limit, d < limit)


def bernoulli(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """1 with one probability."""
    return _steps(launch, _bernoulli, 4, "fii")


def _chosen(out: Array, chances: Array, seed: int, call: int) -> None:
    n = len(out)
    for k in range(cuda.grid(1), (n + 3) // 4, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        p0, p1, p2, p3 = _get_four(chances, 4 * k)
        _put_four(
            out, 4 * k, a < np.float64(p0) * 4294967296.0, b < np.float64(p1) * 4294967296.0,
            c < np.float64(p2) * 4294967296.0, d < np.float64(p3) * 4294967296.0,
        )  # fmt: skip


def chosen(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """1 with the probability in the same place."""
    return _steps(launch, _chosen, 4, "ii")


def _dropout(out: Array, x: Array, p: float, seed: int, call: int) -> None:
    n, limit = len(out), np.int64(p * 4294967296.0)
    scale = out.dtype.type(0.0 if p >= 1.0 else 1.0 / (1.0 - p))
    zero = out.dtype.type(0)
    for k in range(cuda.grid(1), (n + 3) // 4, cuda.gridsize(1)):
        a, b, c, d = philox(k, call, seed)
        p0, p1, p2, p3 = _get_four(x, 4 * k)
        _put_four(
            out, 4 * k, zero if a < limit else p0 * scale, zero if b < limit else p1 * scale,
            zero if c < limit else p2 * scale, zero if d < limit else p3 * scale,
        )  # fmt: skip


def dropout(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """0 with a probability, else scaled; its gradient is the same op with the same words."""
    return _steps(launch, _dropout, 4, "fii")


# --- counts ---------------------------------------------------------------------------------------


def _poisson(out: Array, x: Array, details: Array, seed: int, call: int) -> None:
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        mean = np.float64(x[i])
        if 0.0 <= mean and mean < math.inf:
            a, b, c, d = philox(i, call, seed)
            u = _fraction(a, b)
            if mean < SMALL:
                out[i] = _counted(mean, u)
            else:
                out[i] = _rejected(mean, u, _fraction(c, d), i, seed, call)
        else:
            details[0] = i
            cuda.threadfence_system()
            details[STATUS_AT] = NO_MEAN


def poisson(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """Counts of the means in the same places."""
    out, x = (Operand(k, view) for k, view in enumerate(launch.views))
    params = out, x, Details(), Scalar(0, "i"), Scalar(1, "i")
    return CudaLaunch(launch.outputs, (flat_step(_poisson, out.view.shape[0], *params),))
