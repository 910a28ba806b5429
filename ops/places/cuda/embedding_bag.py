"""The rules and kernels of `embedding_bag`: first a thread for each bag checks its bounds and
indices and notes whose they are, then `lanes` threads fold its rows, in the order of the indices.
"""

from __future__ import annotations

from numba import cuda

from flowvm.cuda.launch import CudaLaunch, Details, Operand
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.error_report import OUTSIDE, report
from flowvm.ops.declare.cuda.steps import consts, flat_step, row_step, wide
from flowvm.ops.places.embedding_bag import Bags

# --- kernels ------------------------------------------------------------------------------------


def _bag(bounds: Array, bag: int, bags: int, total: int) -> tuple[int, int]:
    """The indices of a bag; none if its bounds cannot be."""
    begin, end = bounds[bag], bounds[bag + 1]
    if (bag == 0 and begin != 0) or (bag == bags - 1 and end != total):
        return 0, 0
    if begin < 0 or end < begin or end > total:
        return 0, 0
    return begin, end


def _check(index: Array, bounds: Array, details: Array, bags: int, rows: int) -> None:
    """Say which bound or index is outside, as the CPU's kernel does."""
    bag, total = cuda.grid(1), len(index)
    while bag < bags:
        begin, end = bounds[bag], bounds[bag + 1]
        low = 0 if bag == 0 else begin
        high = total if bag == bags - 1 else end
        if begin != low or begin < 0 or begin > total:
            report(details, OUTSIDE, begin, 1 if bag == 0 else total + 1, -1)
        elif end != high or end < begin or end > total:
            report(details, OUTSIDE, end, total + 1, -1)
        else:
            for e in range(begin, end):
                if index[e] < 0 or index[e] >= rows:
                    report(details, OUTSIDE, index[e], rows, 0)
        bag += cuda.gridsize(1)


def _note(ids: Array, counts: Array, index: Array, bounds: Array, bags: int, skip: int) -> None:
    """Store the bag of each index, and the number of indices of a bag that take part."""
    bag = cuda.grid(1)
    while bag < bags:
        begin, end = _bag(bounds, bag, bags, len(index))
        count = 0
        for e in range(begin, end):
            ids[e] = bag
            count += 0 if index[e] == skip else 1
        counts[bag] = counts.dtype.type(max(count, 1))
        bag += cuda.gridsize(1)


def _fold(
    out: Array, counts: Array, weight: Array, index: Array, bounds: Array, scales: Array,
    t: Bags, lanes: int,
) -> None:  # fmt: skip
    lane, bag = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    (bags, n), rows, skip, mean = out.shape, t.rows, t.skip, t.mean
    while bag < bags:
        begin, end = _bag(bounds, bag, bags, len(index))
        for k in range(lane, n, lanes):
            total = wide(out.dtype.type(0))
            for e in range(begin, end):
                i = index[e]
                if i != skip and 0 <= i and i < rows:
                    total += wide(scales[e]) * wide(weight[i, k])
            if mean != 0:
                total /= wide(counts[bag])
            out[bag, k] = out.dtype.type(total)
        bag += cuda.gridsize(1) // lanes


def _largest(
    out: Array, where: Array, weight: Array, index: Array, bounds: Array, t: Bags, lanes: int
) -> None:
    lane, bag = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    (bags, n), rows, skip = out.shape, t.rows, t.skip
    while bag < bags:
        begin, end = _bag(bounds, bag, bags, len(index))
        for k in range(lane, n, lanes):
            best, at = wide(out.dtype.type(0)), -1
            for e in range(begin, end):
                i = index[e]
                if i != skip and 0 <= i and i < rows:
                    value = wide(weight[i, k])
                    if at < 0 or value > best or (value != value and best == best):
                        best, at = value, i
            out[bag, k], where[bag, k] = out.dtype.type(best), at
        bag += cuda.gridsize(1) // lanes


# --- rules --------------------------------------------------------------------------------------


def _arrays(launch: Launch, metas: tuple[TensorMeta, ...]) -> list[Operand]:
    """All operands."""
    every = enumerate((*launch.outputs, *metas))
    return [Operand(k, View(m.dtype, tuple(m.shape))) for k, m in every]


def fold(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """Sums and means of bags."""
    out, ids, counts, weight, index, bounds, scales = _arrays(launch, metas)
    (rows, n), bags = metas[0].shape, metas[2].numel - 1
    table: Bags = launch.consts[0]
    steps = (
        flat_step(_check, bags, index, bounds, Details(), *consts(bags, rows)),
        flat_step(_note, bags, ids, counts, index, bounds, *consts(bags, table.skip)),
        row_step(_fold, bags, n, out, counts, weight, index, bounds, scales,
                 *consts(table)),
    )  # fmt: skip
    return CudaLaunch(launch.outputs, steps if bags else ())


def largest(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """Maxima of bags."""
    out, where, weight, index, bounds = _arrays(launch, metas)
    (rows, n), bags = metas[0].shape, metas[2].numel - 1
    steps = (
        flat_step(_check, bags, index, bounds, Details(), *consts(bags, rows)),
        row_step(_largest, bags, n, out, where, weight, index, bounds, *consts(*launch.consts)),
    )  # fmt: skip
    return CudaLaunch(launch.outputs, steps if bags else ())
