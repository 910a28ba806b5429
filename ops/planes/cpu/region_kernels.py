"""The kernels of `roi_align`: regions of planes, averaged over bins.

A bin's value is the mean of points on a grid, each between the four elements around it.  Row and
column of a point have nothing to do with each other, so a bin is a weighted sum of rows, and of
that a weighted sum of columns; the weights of a region are made once for a range of channels.
Points outside count, and have no weight.

The elements that a bin takes are neighbours, and bins follow each other without overlapping by more
than two, so `size + 2 * bins` weights along a dimension are enough.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.planes.cpu.conv_strips import fill_with

FARTHEST = float(1 << 31)  # beyond, coordinates have too few digits to tell elements apart
NO_REGION = 72  # a status: `flowvm.ops.planes.regions` has its words


class Regions(NamedTuple):
    """The position of regions on planes."""

    scale: float  # elements of a plane for a unit of the regions' coordinates
    ratio: int  # points of a bin along a dimension; 0 or less: as many as it has elements
    aligned: int  # whether coordinates are those of corners: half an element from the middles


def arena_bytes(size: tuple[int, int], bins: tuple[int, int], itemsize: int) -> int:
    """The arena of both kernels: see `_parts`."""
    (h, w), (ph, pw) = size, bins
    return 16 * (ph + pw) + itemsize * (h + 2 * ph + 2 * w + 2 * pw)


def _low(p: float, size: int) -> int:
    """The first of the elements that point p lies between; the last element, if behind it."""
    return min(int(max(p, 0.0)), size - 1)


def _weigh(weights: Array, spans: Array, start: float, length: float, grid: int, size: int) -> None:
    """Store the elements of each bin, and their weights, one bin's behind the other's.

    Bins have `length`, and the first begins at `start`.  Bin k takes the elements from spans[2 * k]
    to spans[2 * k + 1].
    """
    bins, at = len(spans) // 2, 0
    step = length / max(grid, 1)
    # the points from -1 to size are inside; those numbered first to last are these and a few more
    first, last = 0.0, float(bins) * grid
    if step != 0:
        a, b = (-1.0 - start) / step - 0.5, (size - start) / step - 0.5
        first, last = max(first, math.floor(min(a, b))), min(last, math.ceil(max(a, b)) + 1.0)
    for k in range(bins):
        i = int(max(float(k) * grid, min(first, float(k + 1) * grid)))
        end = int(min(float(k + 1) * grid, max(last, float(k) * grid)))
        while i < end and not -1.0 <= start + (i + 0.5) * step <= size:
            i += 1
        while i < end and not -1.0 <= start + (end - 0.5) * step <= size:
            end -= 1
        if i >= end:
            spans[2 * k] = spans[2 * k + 1] = 0
            continue
        one = _low(start + (i + 0.5) * step, size)
        other = _low(start + (end - 0.5) * step, size)
        low, high = min(one, other), min(max(one, other) + 1, size - 1)
        spans[2 * k], spans[2 * k + 1] = low, high + 1
        for m in range(at, at + high + 1 - low):
            weights[m] = 0
        for m in range(i, end):
            p = max(start + (m + 0.5) * step, 0.0)
            index = _low(p, size)
            far = p - index if index < size - 1 else 0.0
            weights[at + index - low] += (1.0 - far) / grid
            if far > 0.0:
                weights[at + index + 1 - low] += far / grid
        at += high + 1 - low


def _parts(
    arena: Array, like: Array, h: int, w: int, ph: int, pw: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Return the arena's arrays: spans and weights of rows, the same of columns, a row of
    elements.
    """
    spans = array_in(arena, 0, 2 * (ph + pw), np.int64)
    at, heights, widths = 16 * (ph + pw), h + 2 * ph, w + 2 * pw
    numbers = array_in(arena, at, heights + widths + w, like)
    return (
        spans[: 2 * ph], numbers[:heights], spans[2 * ph :], numbers[heights : heights + widths],
        numbers[heights + widths :],
    )  # fmt: skip


def _place(rois: Array, r: int, planes: int, s: Regions, details: Array) -> int:
    """0, or the status of a region that lies nowhere, and then its details."""
    farthest = FARTHEST
    for k in range(1, 5):
        if not abs(rois[r, k] * s.scale) <= farthest:  # NaN is not, either
            details[0], details[1] = r, k
            return NO_REGION
    batch = rois[r, 0]
    if not abs(batch) <= farthest:
        details[0], details[1] = r, 0
        return NO_REGION
    if batch <= -1 or batch >= planes:
        details[0], details[1], details[2] = int(batch), planes, 0
        return 1  # Status.INDEX_OUT_OF_RANGE
    return 0


def _cut(weights: Array, spans: Array, rois: Array, r: int, k: int, s: Regions, size: int) -> None:
    """The weights of region r along the dimension whose ends are numbers k and k + 2 of it.  Its
    ends and the number of points are found in the digits that its coordinates have.
    """
    real = rois.dtype.type
    scale, offset = real(s.scale), real(0.5 if s.aligned != 0 else 0.0)
    start = rois[r, k] * scale - offset
    length = rois[r, k + 2] * scale - offset - start
    if s.aligned == 0:
        length = max(length, real(1.0))
    each = length / real(len(spans) // 2)
    grid = s.ratio if s.ratio > 0 else int(math.ceil(each))  # noqa: RUF046 - Numba's ceil
    _weigh(weights, spans, float(start), float(each), max(grid, 0), size)


def align_body(
    out: Array, x: Array, rois: Array, s: Regions, arena: Array, lo: int, hi: int, details: Array
) -> int:
    """A unit is a channel of a region."""
    planes, channels, h, w = x.shape
    ph, pw = out.shape[2], out.shape[3]
    rows, tall, columns, wide, sums = _parts(arena, x, h, w, ph, pw)
    known, batch, begin, end = -1, 0, 0, 0
    for unit in range(lo, hi):
        r, c = unit // channels, unit % channels
        if r != known:
            known = r
            status = _place(rois, r, planes, s, details)
            if status != 0:
                return status
            batch = int(rois[r, 0])
            _cut(tall, rows, rois, r, 2, s, h)
            _cut(wide, columns, rois, r, 1, s, w)
            begin, end = _reach(columns, w)
        plane, bins = x[batch, c], out[r, c]
        at = 0
        for i in range(ph):
            mixed = sums[begin:end]
            fill_with(mixed, out.dtype.type(0))
            for y in range(rows[2 * i], rows[2 * i + 1]):
                share, row = tall[at], plane[y, begin:end]
                at += 1
                if share != 0:
                    for k in range(len(mixed)):
                        mixed[k] += share * row[k]
            _collect(bins[i], sums, columns, wide)
    return 0


def _reach(spans: Array, size: int) -> tuple[int, int]:
    """Return the first element that a bin takes, and the end of the last."""
    begin, end = size, 0
    for k in range(len(spans) // 2):
        if spans[2 * k] < spans[2 * k + 1]:
            begin, end = min(begin, spans[2 * k]), max(end, spans[2 * k + 1])
    return min(begin, end), end


def _collect(bins: Array, row: Array, columns: Array, wide: Array) -> None:
    at = 0
    for j in range(len(bins)):
        total = bins.dtype.type(0)
        for k in range(columns[2 * j], columns[2 * j + 1]):
            if wide[at] != 0:
                total += wide[at] * row[k]
            at += 1
        bins[j] = total


def align_back_body(
    out: Array, g: Array, rois: Array, s: Regions, block: int, arena: Array, lo: int, hi: int,
    details: Array,
) -> int:  # fmt: skip
    """Compute the gradient of planes: a unit is a block of channels of one of the batch.

    It goes through all regions, so summands of an element are added in the regions' order.
    """
    planes, channels, h, w = out.shape
    count, ph, pw = len(rois), g.shape[2], g.shape[3]
    rows, tall, columns, wide, sums = _parts(arena, g, h, w, ph, pw)
    blocks = (channels + block - 1) // block
    for unit in range(lo, hi):
        batch, first = unit // blocks, unit % blocks * block
        last = min(channels, first + block)
        for c in range(first, last):
            for y in range(h):
                fill_with(out[batch, c, y], out.dtype.type(0))
        for r in range(count):
            status = _place(rois, r, planes, s, details)
            if status != 0:
                return status
            if int(rois[r, 0]) != batch:
                continue
            _cut(tall, rows, rois, r, 2, s, h)
            _cut(wide, columns, rois, r, 1, s, w)
            begin, end = _reach(columns, w)
            for c in range(first, last):
                plane, bins, at = out[batch, c], g[r, c], 0
                for i in range(ph):
                    mixed = sums[begin:end]
                    fill_with(mixed, out.dtype.type(0))
                    _spread(bins[i], sums, columns, wide)
                    for y in range(rows[2 * i], rows[2 * i + 1]):
                        share, row = tall[at], plane[y, begin:end]
                        at += 1
                        if share != 0:
                            for k in range(len(mixed)):
                                row[k] += share * mixed[k]
    return 0


def _spread(bins: Array, row: Array, columns: Array, wide: Array) -> None:
    at = 0
    for j in range(len(bins)):
        for k in range(columns[2 * j], columns[2 * j + 1]):
            if wide[at] != 0:
                row[k] += wide[at] * bins[j]
            at += 1
