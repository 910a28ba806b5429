"""Sorting rows on CUDA, in the order that `flowvm.ops.places.cpu.order` says, from the same keys;
`mode`, and the order of slices.

    up to `short()` elements    several rows, or one, in a block's shared memory: bitonic sort of
                                (key, place)
    longer                      radix sort (`flowvm.ops.places.cuda.radix`)

Pairs of key and place are all different, so sorting them is stable whatever the method.  Values are
taken from the row by their places, so a NaN keeps its bits and -0 its sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Operand, Param, blocks_for
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import consts, flat_step
from flowvm.ops.places.cpu.order import Order, key_of, order_of
from flowvm.ops.places.cuda.radix import (
    current_half,
    digit_count,
    note_varying,
    sorting,
    sorting_steps,
)
from flowvm.ops.places.sort import _row_before

Metas = tuple[TensorMeta, ...]
SHORT = 2048  # elements that a block sorts at once: BLOCK * EACH
BLOCK = 512
EACH = 4  # elements of the longest short row, for each thread


def short() -> int:
    """The longest row that one block sorts."""
    return EACH * threads(BLOCK)


# --- short rows -----------------------------------------------------------------------------------


def sort_pairs(keys: Array, places: Array, span: int, width: int) -> None:
    """Sort each `width` neighbours of the `span` pairs, both powers of two; all threads call it."""
    size = 2
    while size <= width:
        apart = size // 2
        while apart > 0:
            for p in range(cuda.threadIdx.x, span // 2, cuda.blockDim.x):
                a = 2 * p - (p & (apart - 1))
                b = a + apart
                upward = (a & (width - 1) & size) == 0
                behind = keys[a] > keys[b] or (keys[a] == keys[b] and places[a] > places[b])
                if behind == upward:
                    keys[a], keys[b] = keys[b], keys[a]
                    places[a], places[b] = places[b], places[a]
            cuda.syncthreads()
            apart //= 2
        size *= 2


def _put(
    values: Array,
    indices: Array,
    x: Array,
    places: Array,
    first: int,
    row: int,
    rows: int,
    width: int,
) -> None:
    """Values and places of `rows` sorted rows from `row` on, each `width` apart in `places`."""
    count = values.shape[1]
    for s in range(cuda.threadIdx.x, rows * count, cuda.blockDim.x):
        r, k = s // count, s % count
        place = places[r * width + first + k]
        values[row + r, k] = x[row + r, place]
        indices[row + r, k] = place


def _sort_short(
    values: Array, indices: Array, x: Array, first: int, order: Order, span: int, width: int
) -> None:
    keys = cuda.shared.array(SHORT, np.int64)
    places = cuda.shared.array(SHORT, np.int32)
    rows, n = x.shape
    height = span // width
    row = cuda.blockIdx.x * height
    for s in range(cuda.threadIdx.x, span, cuda.blockDim.x):
        r, i = row + s // width, s % width
        places[s] = i
        keys[s] = 0x7FFFFFFFFFFFFFFF  # and a place behind those of the row
        if r < rows and i < n:
            keys[s] = key_of(x[r, i], order)
    cuda.syncthreads()
    sort_pairs(keys, places, span, width)
    _put(values, indices, x, places, first, row, min(height, rows - row), width)


def power_from(n: int) -> int:
    return 1 << max(0, (n - 1).bit_length())


def _short_step(views: tuple[View, ...], first: int, order: Order) -> KernelStep:
    values, indices, x = (Operand(k, view) for k, view in enumerate(views))
    rows, n = x.view.shape
    width = power_from(n)
    height = max(1, min(short() // width, power_from(rows)))
    span = height * width
    block = threads(max(32, min(BLOCK, span // 2)))
    params: tuple[Param, ...] = (
        values, indices, x, *consts(first, order, span, width),
    )  # fmt: skip
    return KernelStep(_sort_short, params, blocks_for(rows, height), (block, 1, 1))


# --- long rows ------------------------------------------------------------------------------------


def _begin(varying: Array) -> None:
    if cuda.threadIdx.x == 0:
        varying[0] = 0


def _encode(keys: Array, places: Array, varying: Array, x: Array, order: Order) -> None:
    shared_bits = cuda.shared.array(1, np.int64)
    n = x.shape[1]
    first = np.int64(key_of(x[0, 0], order))
    differing = np.int64(0)
    for i in range(cuda.grid(1), x.shape[0] * n, cuda.gridsize(1)):
        key = np.int64(key_of(x[i // n, i % n], order))
        differing |= key ^ first
        keys[0, i] = key
        places[0, i] = i % n
    note_varying(varying, shared_bits, differing)


def _take_sorted(
    values: Array, indices: Array, x: Array, places: Array, varying: Array, first: int, digits: int
) -> None:
    n, count = x.shape[1], values.shape[1]
    near = places[current_half(varying, digits)]
    for s in range(cuda.grid(1), values.shape[0] * count, cuda.gridsize(1)):
        r, k = s // count, s % count
        place = near[r * n + first + k]
        values[r, k] = x[r, place]
        indices[r, k] = place


def _radix_sorted(outputs: Metas, views: tuple[View, ...], first: int, order: Order) -> CudaLaunch:
    values, indices, x = (Operand(k, view) for k, view in enumerate(views))
    rows, n = x.view.shape
    bits, signed = bits_of(x.view)
    s = sorting(rows, n, bits, signed)
    digits, total = digit_count(bits), rows * n
    steps = (
        KernelStep(_begin, (s.varying,), (1, 1, 1), (32, 1, 1)),
        flat_step(_encode, total, s.keys, s.places, s.varying, x, Const(order)),
        *sorting_steps(s),
        flat_step(
            _take_sorted, rows * values.view.shape[1], values, indices, x, s.places, s.varying,
            *consts(first, digits),
        ),
    )  # fmt: skip
    return CudaLaunch(outputs, steps, s.end)


def bits_of(x: View) -> tuple[int, bool]:
    """The bits of a key, and whether the highest one is a sign."""
    return 8 * x.dtype.itemsize, x.dtype.name != "uint8"


def sorted_rows(
    outputs: Metas, views: tuple[View, ...], x: TensorMeta, first: int, down: bool
) -> CudaLaunch:
    """Return the launch for elements from `first` on of each sorted row, as many as outputs
    have.
    """
    rows, n = views[2].shape
    if rows * views[0].shape[1] == 0:
        return CudaLaunch(outputs, ())
    order = order_of(x, down)
    if n <= short():
        return CudaLaunch(outputs, (_short_step(views, first, order),))
    return _radix_sorted(outputs, views, first, order)


def sort(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Elements first to first + count of the sorted rows."""
    first, _, down = attrs
    return sorted_rows(launch.outputs, launch.views, metas[0], first, down)


# --- the most frequent ----------------------------------------------------------------------------


def _same(a: object, b: object) -> bool:
    return bool(a == b or (a != a and b != b))


def _run_begin(row: Array, last: int) -> int:
    """Return where the elements equal to the one at `last` begin, in a sorted row."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        if _same(row[middle], row[last]):
            high = middle
        else:
            low = middle + 1
    return low


def _most_frequent(values: Array, indices: Array, x: Array, order: Array) -> None:
    """A block looks at the last element of each run of a row: of the longest runs the first."""
    most = cuda.shared.array(BLOCK, np.int64)
    ends = cuda.shared.array(BLOCK, np.int64)
    n, r, t = x.shape[1], cuda.blockIdx.x, cuda.threadIdx.x
    row = x[r]
    best: Any = np.int64(0)
    at: object = np.int64(0)
    for i in range(t, n, cuda.blockDim.x):
        if i == n - 1 or not _same(row[i], row[i + 1]):
            length = i + 1 - _run_begin(row, i)
            if length > best:
                best, at = length, i
    most[t], ends[t] = best, at
    cuda.syncthreads()
    apart = cuda.blockDim.x // 2
    while apart > 0:
        if t < apart:
            other = most[t + apart]
            if other > most[t] or (other == most[t] and ends[t + apart] < ends[t]):
                most[t], ends[t] = other, ends[t + apart]
        cuda.syncthreads()
        apart //= 2
    if t == 0:
        values[r], indices[r] = row[ends[0]], order[r, ends[0]]


def mode(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The most frequent element of each sorted row; one block a row."""
    views = launch.views
    if views[0].shape[0] == 0:
        return CudaLaunch(launch.outputs, ())
    params = tuple(Operand(k, view) for k, view in enumerate(views))
    block = threads(max(32, min(256, power_from(views[2].shape[1]))))
    step = KernelStep(_most_frequent, params, (views[0].shape[0], 1, 1), (block, 1, 1))
    return CudaLaunch(launch.outputs, (step,))


# --- slices in order ------------------------------------------------------------------------------


def _number(order: Array) -> None:
    for i in range(cuda.grid(1), len(order), cuda.gridsize(1)):
        order[i] = i


def _merge(merged: Array, order: Array, x: Array, width: int) -> None:
    """Merge neighbouring runs of `width` sorted slices.

    A slice's place is its place in its run and how many of the other run come before it: of the
    later run those that are smaller, of the earlier one also those that are equal.
    """
    n = len(order)
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        run, slice_ = i // width, order[i]
        other = min(n, (run ^ 1) * width)
        low, high = other, min(n, other + width)
        while low < high:
            middle = (low + high) // 2
            if run % 2 == 0:
                before = _row_before(x, order[middle], slice_)
            else:
                before = not _row_before(x, slice_, order[middle])
            if before:
                low = middle + 1
            else:
                high = middle
        merged[(run // 2) * 2 * width + i % width + low - other] = slice_


def row_order(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """Merge sort: a launch for each doubling of the runs."""
    order, other, x = (Operand(k, view) for k, view in enumerate(launch.views))
    n = x.view.shape[0]
    widths = [1 << p for p in range(max(0, (n - 1).bit_length()))]
    near, far = (other, order) if len(widths) % 2 else (order, other)
    steps = [flat_step(_number, n, near)]
    for width in widths:
        steps.append(flat_step(_merge, n, far, near, x, Const(width)))
        near, far = far, near
    return CudaLaunch(launch.outputs, tuple(steps))
