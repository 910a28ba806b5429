"""Elements that are kept, and where they go: `nonzero`, masks, distinct values.

Each counts the elements of a tile that are kept, sums what tiles before keep
(`flowvm.ops.places.cuda.prefix`), and writes from there on.  The first two are the counting steps
of a mut2 op: the sum of all is how many rows its output gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

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
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import flat_step
from flowvm.ops.declare.cuda.vectors import aligned, load_many
from flowvm.ops.places.cuda.prefix import (
    EACH,
    MOST_WARPS,
    before_in_block,
    own_range,
    prefix_room,
    prefix_steps,
    tile_step,
    tiles_of,
)
from flowvm.ops.places.masks import TOO_FEW

if TYPE_CHECKING:
    from flowvm.cuda.launch import Param

Word = int | np.int64  # an integer of 64 bits, Python's or NumPy's
Metas = tuple[TensorMeta, ...]
load_each = load_many[EACH]


def single(kernel: Callable[..., object], *params: Param, counts: bool = False) -> KernelStep:
    """A launch of one warp, for a kernel whose first thread does all."""
    return KernelStep(kernel, params, (1, 1, 1), (32, 1, 1), counts=counts)


# --- masks ----------------------------------------------------------------------------------------


def _true_in(mask: Array, first: int, end: int) -> Word:
    """Count the true elements in a thread's part of a tile."""
    count = np.int64(0)
    if end - first == EACH and aligned(mask, EACH):
        for one in load_each(mask, first):
            count += 1 if one != 0 else 0
    else:
        for i in range(first, end):
            count += 1 if mask[i] != 0 else 0
    return count


def _count_true(counts: Array, mask: Array) -> None:
    room = cuda.shared.array(MOST_WARPS, np.int64)
    first, end = own_range(len(mask), cuda.blockIdx.x)
    count = _true_in(mask, first, end)
    _, total = before_in_block(room, count)
    if cuda.threadIdx.x == 0:
        counts[cuda.blockIdx.x] = total


def _place_of(room: Array, counts: Array, mask: Array) -> Word:
    """Return the place of the first element that this thread's part of the tile keeps."""
    first, end = own_range(len(mask), cuda.blockIdx.x)
    count = _true_in(mask, first, end)
    before, _ = before_in_block(room, count)
    place: Word = before + counts[cuda.blockIdx.x]
    return place


def _report_rows(details: Array, counts: Array) -> None:
    if cuda.grid(1) == 0:
        details[0] = counts[len(counts) - 1]


def _mask_counts(n: int) -> Scratch:
    return Scratch(0, "int64", (tiles_of(n) + 1,))


def _counted(mask: Operand, report: bool) -> tuple[KernelStep, ...]:
    """Steps that leave in scratch how many true elements the tiles before have."""
    (n,) = mask.view.shape
    tiles, counts = tiles_of(n), _mask_counts(n)
    steps = prefix_steps(0, tiles, 8 * (tiles + 1), counts=report)
    if n > 0:
        steps = (tile_step(_count_true, tiles, counts, mask, counts=report), *steps)
    return (*steps, single(_report_rows, Details(), counts, counts=True)) if report else steps


def _mask_scratch(n: int) -> int:
    return 8 * (tiles_of(n) + 1) + prefix_room(tiles_of(n))


def _chosen(launch: Launch, kernel: Callable[..., object], mask: int, *others: int) -> CudaLaunch:
    """A mut2 op whose one output is written by kernel(out, others..., mask, counts)."""
    out = unsized(0, launch.views[0])
    parts = [out, *(Operand(k, launch.views[k]) for k in (*others, mask))]
    (n,) = launch.views[mask].shape
    steps = _counted(parts[-1], True)
    if n > 0:
        steps = (*steps, tile_step(kernel, tiles_of(n), *parts, _mask_counts(n)))
    return CudaLaunch(launch.outputs, steps, _mask_scratch(n))


def _put_positions(out: Array, mask: Array, counts: Array) -> None:
    room = cuda.shared.array(MOST_WARPS, np.int64)
    at = _place_of(room, counts, mask)
    first, end = own_range(len(mask), cuda.blockIdx.x)
    for i in range(first, end):
        if mask[i] != 0:
            out[at] = i
            at += 1


def true_positions(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """Return the steps that find the positions at which a mask is true."""
    return _chosen(launch, _put_positions, 1)


def _put_indices(out: Array, sizes: Array, mask: Array, counts: Array) -> None:
    room = cuda.shared.array(MOST_WARPS, np.int64)
    at = _place_of(room, counts, mask)
    first, end = own_range(len(mask), cuda.blockIdx.x)
    for i in range(first, end):
        if mask[i] != 0:
            rest = np.int64(i)
            for d in range(len(sizes) - 1, -1, -1):
                out[at, d] = rest % sizes[d]
                rest //= sizes[d]
            at += 1


def nonzero(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The indices of the elements at which a mask is true."""
    return _chosen(launch, _put_indices, 1, 2)


def _put_selected(out: Array, x: Array, mask: Array, counts: Array) -> None:
    room = cuda.shared.array(MOST_WARPS, np.int64)
    at = _place_of(room, counts, mask)
    first, end = own_range(len(mask), cuda.blockIdx.x)
    for i in range(first, end):
        if mask[i] != 0:
            out[at] = x[i]
            at += 1


def masked_select(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The elements at which a mask is true."""
    return _chosen(launch, _put_selected, 2, 1)


def _place(x: Array, source: Array, mask: Array, counts: Array, details: Array) -> None:
    room = cuda.shared.array(MOST_WARPS, np.int64)
    at, available = _place_of(room, counts, mask), len(source)
    first, end = own_range(len(mask), cuda.blockIdx.x)
    for i in range(first, end):
        if mask[i] != 0:
            if at < available:
                x[i] = source[at]
            at += 1
    if cuda.grid(1) == 0 and counts[len(counts) - 1] > available:
        details[0] = available
        cuda.threadfence_system()
        details[STATUS_AT] = TOO_FEW


def _with_counts(
    launch: Launch, kernel: Callable[..., object], mask: int, *params: Param
) -> CudaLaunch:
    """kernel(params..., mask, counts, ...) behind the steps that count."""
    operand = Operand(mask, launch.views[mask])
    (n,) = operand.view.shape
    if n == 0:
        return CudaLaunch(launch.outputs, ())
    step = tile_step(kernel, tiles_of(n), *params)
    return CudaLaunch(launch.outputs, (*_counted(operand, False), step), _mask_scratch(n))


def masked_scatter(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The elements of a source, in order, where a mask is true."""
    x, mask, source = (Operand(k, view) for k, view in enumerate(launch.views))
    counts = _mask_counts(mask.view.shape[0])
    return _with_counts(launch, _place, 1, x, source, mask, counts, Details())


def _collect(out: Array, g: Array, mask: Array, counts: Array) -> None:
    room = cuda.shared.array(MOST_WARPS, np.int64)
    at, n = _place_of(room, counts, mask), len(out)
    first, end = own_range(len(mask), cuda.blockIdx.x)
    for i in range(first, end):
        if mask[i] != 0:
            if at < n:
                out[at] = g[i]
            at += 1


def _clear_rest(out: Array, counts: Array) -> None:
    for i in range(counts[len(counts) - 1] + cuda.grid(1), len(out), cuda.gridsize(1)):
        out[i] = 0


def _clear(out: Array) -> None:
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        out[i] = 0


def masked_collect(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """Return the launch for the elements at which a mask is true, as far as they fit, then
    zeros.
    """
    out, g, mask = (Operand(k, view) for k, view in enumerate(launch.views))
    total, counts = out.view.shape[0], _mask_counts(mask.view.shape[0])
    collected = _with_counts(launch, _collect, 2, out, g, mask, counts)
    if not collected.steps:
        return CudaLaunch(launch.outputs, (flat_step(_clear, total, out),))
    rest = flat_step(_clear_rest, total, out, counts)
    return CudaLaunch(launch.outputs, (*collected.steps, rest), collected.scratch)


# --- distinct elements ----------------------------------------------------------------------------


def _is_new(x: Array, i: int) -> bool:
    return bool(i == 0 or x[i] != x[i - 1])


def _mark_new(marks: Array, x: Array) -> None:
    for i in range(cuda.grid(1), len(x), cuda.gridsize(1)):
        marks[i] = 1 if _is_new(x, i) else 0


def _is_new_row(x: Array, order: Array, i: int) -> bool:
    if i == 0:
        return True
    row, last = order[i], order[i - 1]
    for k in range(x.shape[1]):  # noqa: SIM110
        if x[row, k] != x[last, k]:
            return True
    return False


def _mark_new_rows(marks: Array, x: Array, order: Array) -> None:
    for i in range(cuda.grid(1), len(order), cuda.gridsize(1)):
        marks[i] = 1 if _is_new_row(x, order, i) else 0


def _report_distinct(details: Array, marks: Array, counted: int) -> None:
    if cuda.grid(1) == 0:
        rows = marks[len(marks) - 1]
        details[0], details[2] = rows, rows * counted


def _number_distinct(
    values: Array, inverse: Array, starts: Array, x: Array, order: Array, marks: Array
) -> None:
    """Element i is new if the number behind it is another one; `starts` has where each value
    begins.  `inverse`, `order` and `starts` are empty where they are not wanted.
    """
    n = len(x)
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        new = marks[i + 1] != marks[i]
        number = marks[i + 1] - 1
        if new:
            values[number] = x[i]
            if len(starts) > 0:
                starts[number] = i
        if len(inverse) > 0:
            inverse[order[i] if len(order) > 0 else i] = number


def _number_rows(
    values: Array, inverse: Array, starts: Array, x: Array, order: Array, marks: Array
) -> None:
    for i in range(cuda.grid(1), len(order), cuda.gridsize(1)):
        row, number = order[i], marks[i + 1] - 1
        inverse[row] = number
        if marks[i + 1] != marks[i]:
            starts[number] = i
            for k in range(x.shape[1]):
                values[number, k] = x[row, k]


def _put_counts(counts: Array, starts: Array, marks: Array) -> None:
    n = len(marks) - 1
    count = marks[n]
    for k in range(cuda.grid(1), count, cuda.gridsize(1)):
        end = starts[k + 1] if k + 1 < count else n
        counts[k] = end - starts[k]


def _distinct(
    launch: Launch, n: int, mark: KernelStep, number: Any, counted: bool, last: tuple[Any, ...]
) -> CudaLaunch:
    """Steps of both ops: marks become numbers, then values and counts are written."""
    values, counts = (unsized(k, launch.views[k]) for k in (0, 2))
    inverse = Operand(1, launch.views[1])
    marks, starts_at = Scratch(0, "int64", (n + 1,)), 8 * (n + 1)
    starts = Scratch(starts_at, "int64", (n if counted else 0,))
    spare = starts_at + 8 * (n if counted else 0)
    steps: tuple[KernelStep, ...] = (
        *((mark,) if n > 0 else ()),
        *prefix_steps(0, n, spare, counts=True),
        single(_report_distinct, Details(), marks, Const(int(counted)), counts=True),
    )
    if n > 0:
        steps += (flat_step(number, n, values, inverse, starts, *last, marks),)
    if counted and n > 0:
        steps += (flat_step(_put_counts, n, counts, starts, marks),)
    return CudaLaunch(launch.outputs, steps, spare + prefix_room(n))


def _counting(step: KernelStep) -> KernelStep:
    return KernelStep(step.kernel, step.params, step.grid, step.block, counts=True)


def unique(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The different elements of sorted ones."""
    x, order = (Operand(k, launch.views[k]) for k in (3, 4))
    n = x.view.shape[0]
    mark = _counting(flat_step(_mark_new, n, Scratch(0, "int64", (n + 1,)), x))
    return _distinct(launch, n, mark, _number_distinct, bool(attrs[1]), (x, order))


def unique_dim(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The different rows of sorted ones."""
    x, order = (Operand(k, launch.views[k]) for k in (3, 4))
    n = math.prod(order.view.shape)
    mark = _counting(flat_step(_mark_new_rows, n, Scratch(0, "int64", (n + 1,)), x, order))
    return _distinct(launch, n, mark, _number_rows, True, (x, order))
