"""Counts of numbers: `bincount`, `histc`, `repeated_positions`.

Counts are added up as integers, in whatever order; sums of weights in the order of a stable sort,
by one block for each bin.  So results do not depend on which block was first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numba import cuda

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import (
    STATUS_AT,
    Const,
    CudaLaunch,
    Details,
    KernelStep,
    Operand,
    Scratch,
    unsized,
)
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import flat_step
from flowvm.ops.places.counts import NEGATIVE
from flowvm.ops.places.cuda.compaction import single
from flowvm.ops.places.cuda.prefix import prefix_room, prefix_steps
from flowvm.ops.places.cuda.radix import (
    current_half,
    digit_count,
    note_varying,
    sorting,
    sorting_steps,
)
from flowvm.ops.places.search import NO_RANGE, bounds_of
from flowvm.ops.scalar.intrinsics import bits, from_bits

if TYPE_CHECKING:
    from flowvm.cuda.launch import Param
    from flowvm.meta.arrays import Number

Word = int | np.int64  # an integer of 64 bits, Python's or NumPy's
Metas = tuple[TensorMeta, ...]
FAR = 0x7FFFFFFFFFFFFFFF
PRIVATE = 4096  # bins that a block counts in its shared memory
BLOCK = 256
BLOCKS = 1024  # where only the device knows how much there is to do


def _strided(kernel: Callable[..., object], *params: Param, counts: bool = False) -> KernelStep:
    """A launch for work whose amount only the device knows."""
    block = threads(BLOCK)
    blocks = BLOCKS if block == BLOCK else 2
    return KernelStep(kernel, params, (blocks, 1, 1), (block, 1, 1), counts=counts)


def _counting(step: KernelStep) -> KernelStep:
    return KernelStep(step.kernel, step.params, step.grid, step.block, counts=True)


# --- what is negative, and what is largest --------------------------------------------------------

# words: the place of the first negative element, and the number of bins
BAD, SIZE = 0, 1


def _begin(words: Array, least: int) -> None:
    if cuda.grid(1) == 0:
        words[BAD], words[SIZE] = FAR, least


def _look(words: Array, x: Array) -> None:
    bad, size = np.int64(FAR), np.int64(0)
    for i in range(cuda.grid(1), len(x), cuda.gridsize(1)):
        if x[i] < 0:
            bad = min(bad, np.int64(i))
        size = max(size, x[i] + 1)
    room = cuda.shared.array(2, np.int64)
    if cuda.threadIdx.x == 0:
        room[BAD], room[SIZE] = FAR, 0
    cuda.syncthreads()
    cuda.atomic.min(room, BAD, bad)
    cuda.atomic.max(room, SIZE, size)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.min(words, BAD, room[BAD])
        cuda.atomic.max(words, SIZE, room[SIZE])


def _report(details: Array, words: Array, x: Array, rows: Array, at: int) -> None:
    """The rows of the output, rows[at], or the first negative element."""
    if cuda.grid(1) == 0:
        if words[BAD] < FAR:
            details[0], details[1] = words[BAD], x[words[BAD]]
            cuda.threadfence_system()
            details[STATUS_AT] = NEGATIVE
        else:
            details[0] = rows[at]


# --- bincount -------------------------------------------------------------------------------------


def _zero(out: Array, words: Array) -> None:
    for k in range(cuda.grid(1), words[SIZE], cuda.gridsize(1)):
        out[k] = 0


def _tally(out: Array, x: Array, words: Array) -> None:
    room = cuda.shared.array(PRIVATE, np.int32)
    bins = words[SIZE]
    if bins > PRIVATE:
        for i in range(cuda.grid(1), len(x), cuda.gridsize(1)):
            cuda.atomic.add(out, x[i], np.int64(1))
        return
    for k in range(cuda.threadIdx.x, bins, cuda.blockDim.x):
        room[k] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), len(x), cuda.gridsize(1)):
        cuda.atomic.add(room, x[i], 1)
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, bins, cuda.blockDim.x):
        if room[k] != 0:
            cuda.atomic.add(out, k, np.int64(room[k]))


def _encode(keys: Array, places: Array, varying: Array, x: Array) -> None:
    shared_bits = cuda.shared.array(1, np.int64)
    first, differing = x[0], np.int64(0)
    for i in range(cuda.grid(1), len(x), cuda.gridsize(1)):
        differing |= x[i] ^ first
        keys[0, i], places[0, i] = x[i], i
    note_varying(varying, shared_bits, differing)


def _begin_sort(varying: Array) -> None:
    if cuda.grid(1) == 0:
        varying[0] = 0


def _first_at_least(keys: Array, key: int) -> int:
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


def _sum_bins(
    out: Array,
    weights: Array,
    keys: Array,
    places: Array,
    varying: Array,
    words: Array,
    digits: int,
) -> None:
    """Each block sums the weights of one bin after another."""
    parts = cuda.shared.array(BLOCK, np.float64)
    half, t = current_half(varying, digits), cuda.threadIdx.x
    near, order = keys[half], places[half]
    for k in range(cuda.blockIdx.x, words[SIZE], cuda.gridDim.x):
        begin, end, total = _first_at_least(near, k), _first_at_least(near, k + 1), 0.0
        for i in range(begin + t, end, cuda.blockDim.x):
            total += weights[order[i]]
        parts[t] = total
        cuda.syncthreads()
        apart = cuda.blockDim.x // 2
        while apart > 0:
            if t < apart:
                parts[t] += parts[t + apart]
            cuda.syncthreads()
            apart //= 2
        if t == 0:
            out[k] = parts[0]
        cuda.syncthreads()


def bincount(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Return the steps that count each number, or sum the weights at its places."""
    weighted, least = attrs
    out = unsized(0, launch.views[0])
    x, weights = (Operand(k, launch.views[k]) for k in (1, 2))
    n, words = x.view.shape[0], Scratch(0, "int64", (2,))
    steps = [single(_begin, words, Const(least), counts=True)]
    if n > 0:
        steps.append(_counting(flat_step(_look, n, words, x)))
    steps.append(single(_report, Details(), words, x, words, Const(SIZE), counts=True))
    if not weighted or n == 0:
        steps.append(_strided(_zero, out, words))
        if n > 0:
            steps.append(_strided(_tally, out, x, words))
        return CudaLaunch(launch.outputs, tuple(steps), 16)
    s = sorting(1, n, 64, True, 16)
    steps += [
        single(_begin_sort, s.varying),
        flat_step(_encode, n, s.keys, s.places, s.varying, x),
        *sorting_steps(s),
        _strided(
            _sum_bins, out, weights, s.keys, s.places, s.varying, words, Const(digit_count(64))
        ),
    ]
    return CudaLaunch(launch.outputs, tuple(steps), s.end)


# --- repeats --------------------------------------------------------------------------------------


def _copy(sums: Array, repeats: Array) -> None:
    for i in range(cuda.grid(1), len(repeats), cuda.gridsize(1)):
        sums[i] = max(repeats[i], 0)


def _put_repeated(out: Array, sums: Array) -> None:
    """Set position k to the last element that begins at or before it."""
    n = len(sums) - 1
    for k in range(cuda.grid(1), sums[n], cuda.gridsize(1)):
        low, high = 0, n
        while low < high:
            middle = (low + high) // 2
            if sums[middle + 1] <= k:
                low = middle + 1
            else:
                high = middle
        out[k] = low


def repeated_positions(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """Each position as often as its element says."""
    out, x = unsized(0, launch.views[0]), Operand(1, launch.views[1])
    (n,) = x.view.shape
    words, sums = Scratch(0, "int64", (2,)), Scratch(16, "int64", (n + 1,))
    spare = 16 + 8 * (n + 1)
    steps = [
        single(_begin, words, Const(0), counts=True),
        _counting(flat_step(_look, n, words, x)),
        _counting(flat_step(_copy, n, sums, x)),
        *prefix_steps(16, n, spare, counts=True),
        single(_report, Details(), words, x, sums, Const(n), counts=True),
        _strided(_put_repeated, out, sums),
    ]
    return CudaLaunch(launch.outputs, tuple(steps), spare + prefix_room(n))


# --- histograms -----------------------------------------------------------------------------------

LOW, HIGH = 0, 1


def _rank(v: object) -> np.int64:
    """An integer in the order of the numbers."""
    word: np.int64 = bits(v)
    return word ^ ((word >> 63) & FAR)


def _number(rank: Word) -> Number:
    return from_bits(int(rank ^ ((rank >> 63) & FAR)), np.float64(0))


def _clear(counts: Array, limits: Array) -> None:
    for k in range(cuda.grid(1), len(counts), cuda.gridsize(1)):
        counts[k] = 0
    if cuda.grid(1) == 0:
        limits[LOW], limits[HIGH] = FAR, -FAR


def _extremes(limits: Array, x: Array) -> None:
    """The ranks of the smallest and the largest element that is a number."""
    room = cuda.shared.array(2, np.int64)
    low, high = np.int64(FAR), np.int64(-FAR)
    for i in range(cuda.grid(1), len(x), cuda.gridsize(1)):
        v = np.float64(x[i])
        if v == v:
            low, high = min(low, _rank(v)), max(high, _rank(v))
    if cuda.threadIdx.x == 0:
        room[LOW], room[HIGH] = FAR, -FAR
    cuda.syncthreads()
    cuda.atomic.min(room, LOW, low)
    cuda.atomic.max(room, HIGH, high)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.min(limits, LOW, room[LOW])
        cuda.atomic.max(limits, HIGH, room[HIGH])


def _bin(counts: Array, limits: Array, x: Array, low: float, high: float, details: Array) -> None:
    """Count the elements of each of equal intervals from low to high.

    If these are equal, the range is from the smallest element to the largest.
    """
    bins, least, most = len(counts), math.inf, -math.inf
    if limits[LOW] <= limits[HIGH]:
        least, most = _number(limits[LOW]), _number(limits[HIGH])
    low, high = bounds_of(low, high, least, most)
    if not high - low < math.inf:
        if cuda.grid(1) == 0:
            details[STATUS_AT] = NO_RANGE
        return
    for i in range(cuda.grid(1), len(x), cuda.gridsize(1)):
        v = np.float64(x[i])
        if low <= v and v <= high:
            k = np.int64((v - low) / (high - low) * bins)
            cuda.atomic.add(counts, max(0, min(bins - 1, k)), np.int64(1))


def _convert(out: Array, counts: Array) -> None:
    for k in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        out[k] = counts[k]


def histc(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Return the steps that count the elements of each of equal intervals."""
    bins, low, high = attrs
    out, x = (Operand(k, view) for k, view in enumerate(launch.views))
    n = x.view.shape[0]
    limits, counts = Scratch(0, "int64", (2,)), Scratch(16, "int64", (bins,))
    steps = [flat_step(_clear, bins, counts, limits)]
    if n > 0 and low == high:
        steps.append(flat_step(_extremes, n, limits, x))
    if n > 0:
        steps.append(
            flat_step(_bin, n, counts, limits, x, Const(float(low)), Const(float(high)), Details())
        )
    steps.append(flat_step(_convert, bins, out, counts))
    return CudaLaunch(launch.outputs, tuple(steps), 16 + 8 * bins)
