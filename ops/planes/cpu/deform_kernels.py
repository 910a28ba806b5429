"""The kernels of `deform_conv2d`: the elements that its windows read, and the gradients of that.

Where an element of a window lies is that of a convolution plus an offset, which is data; what is
read there is between four elements of the plane, those outside being 0.  The places of a block of
windows are found once for all channels that share offsets.

Tensors are seen as x[n, channel, element], columns[n, channel, tap, window],
offset[n, group, tap, (y, x), window] and mask[n, group, tap, window].
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.planes.cpu.conv_strips import fill_with
from flowvm.ops.planes.cpu.pool_kernels import Windows

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

BLOCK = 256  # windows
ARENA = BLOCK * (4 * 8 + 10 * 8)  # bytes: see `_parts`
CHANNELS = 8  # that the gradient by x takes at a time


def _parts(arena: Array, like: Array) -> tuple[Array, Array, Array, Array]:
    """Return a block's arrays in the arena.

    They are the four elements around each place, with their shares; the distance of the place from
    the first element in y and x; four sums.
    """
    index = array_in(arena, 0, 4 * BLOCK, np.int64)
    numbers = array_in(arena, 32 * BLOCK, 10 * BLOCK, like)
    return (
        index, numbers[: 4 * BLOCK], numbers[4 * BLOCK : 6 * BLOCK], numbers[6 * BLOCK :]
    )  # fmt: skip


def _find(
    index: Array, share: Array, far: Array, offset: Array, mask: Array, tap: int, t: Windows,
    first: int, count: int,
) -> None:  # fmt: skip
    """The places of one tap in `count` windows; an index of -1 is of an element outside."""
    h, w, ow = t.h, t.w, t.ow
    top, corner = tap // t.kw * t.dh - t.ph, tap % t.kw * t.dw - t.pw
    sh, sw = t.sh, t.sw
    for m in range(count):
        at = first + m
        y = at // ow * sh + top + float(offset[0, at])
        x = at % ow * sw + corner + float(offset[1, at])
        for q in range(4):
            index[q * BLOCK + m], share[q * BLOCK + m] = -1, 0
        far[m] = far[BLOCK + m] = 0
        if y != y or x != x:  # what is read there is NaN, too
            index[m], share[m], far[m] = 0, y + x, y + x
        elif -1 <= y < h and -1 <= x < w:
            i, j = int(math.floor(y)), int(math.floor(x))  # noqa: RUF046 - Numba's floor
            down, along = y - i, x - j
            far[m], far[BLOCK + m] = down, along
            for q in range(4):
                row, column = i + q // 2, j + q % 2
                if 0 <= row < h and 0 <= column < w:
                    index[q * BLOCK + m] = row * w + column
                    near = (down if q >= 2 else 1 - down) * (along if q % 2 == 1 else 1 - along)
                    share[q * BLOCK + m] = near * mask[at]


def _read(plane: Array, i: int) -> Number:
    value = plane[np.uint64(max(i, 0))]
    return value if i >= 0 else plane.dtype.type(0)


def columns_body(
    out: Array, x: Array, offset: Array, mask: Array, t: Windows, arena: Array, lo: int, hi: int
) -> None:
    """A unit is a tap of a group of channels."""
    groups, taps, windows = mask.shape[1], mask.shape[2], mask.shape[3]
    each = x.shape[1] // groups
    index, share, far, _ = _parts(arena, out)
    for unit in range(lo, hi):
        n, group, tap = unit // (groups * taps), unit // taps % groups, unit % taps
        for first in range(0, windows, BLOCK):
            count = min(BLOCK, windows - first)
            _find(
                index, share, far, offset[n, group, tap], mask[n, group, tap], tap, t, first, count
            )
            for c in range(group * each, (group + 1) * each):
                plane, row = x[n, c], out[n, c, tap][first : first + count]
                for m in range(len(row)):
                    row[m] = (
                        share[m] * _read(plane, index[m])
                        + share[BLOCK + m] * _read(plane, index[BLOCK + m])
                        + share[2 * BLOCK + m] * _read(plane, index[2 * BLOCK + m])
                        + share[3 * BLOCK + m] * _read(plane, index[3 * BLOCK + m])
                    )


def columns_back_body(
    out: Array, g: Array, offset: Array, mask: Array, t: Windows, arena: Array, lo: int, hi: int
) -> None:
    """Compute the gradient by x.

    A unit is some channels of a group; it adds up all their taps and windows in order.
    """
    groups, taps, windows = mask.shape[1], mask.shape[2], mask.shape[3]
    each = out.shape[1] // groups
    blocks = (each + CHANNELS - 1) // CHANNELS
    index, share, far, _ = _parts(arena, out)
    for unit in range(lo, hi):
        n, group, block = unit // (groups * blocks), unit // blocks % groups, unit % blocks
        begin = group * each + block * CHANNELS
        end = min(begin + CHANNELS, (group + 1) * each)
        for c in range(begin, end):
            fill_with(out[n, c], out.dtype.type(0))
        for tap in range(taps):
            for first in range(0, windows, BLOCK):
                count = min(BLOCK, windows - first)
                _find(
                    index, share, far, offset[n, group, tap], mask[n, group, tap], tap, t, first,
                    count,
                )  # fmt: skip
                for c in range(begin, end):
                    plane, row = out[n, c], g[n, c, tap][first : first + count]
                    for q in range(0, 4 * BLOCK, BLOCK):
                        for m in range(len(row)):
                            i = index[q + m]
                            if i >= 0:
                                plane[np.uint64(i)] += share[q + m] * row[m]


def places_back_body(
    moved: Array, masked: Array, g: Array, x: Array, offset: Array, mask: Array, t: Windows,
    arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """The gradients by offset and mask.  A unit is a tap of a group of channels: both follow from
    the sums, over channels, of g times each of the four elements.
    """
    groups, taps, windows = mask.shape[1], mask.shape[2], mask.shape[3]
    each = x.shape[1] // groups
    index, share, far, sums = _parts(arena, g)
    for unit in range(lo, hi):
        n, group, tap = unit // (groups * taps), unit // taps % groups, unit % taps
        for first in range(0, windows, BLOCK):
            count = min(BLOCK, windows - first)
            _find(
                index, share, far, offset[n, group, tap], mask[n, group, tap], tap, t, first, count
            )
            fill_with(sums, g.dtype.type(0))
            for c in range(group * each, (group + 1) * each):
                plane, row = x[n, c], g[n, c, tap][first : first + count]
                for q in range(0, 4 * BLOCK, BLOCK):
                    for m in range(len(row)):
                        sums[q + m] += row[m] * _read(plane, index[q + m])
            for m in range(count):
                at = first + m
                down, along = far[m], far[BLOCK + m]
                a, b = sums[m], sums[BLOCK + m]
                c, d = sums[2 * BLOCK + m], sums[3 * BLOCK + m]
                upper, lower = (1 - along) * a + along * b, (1 - along) * c + along * d
                masked[n, group, tap, at] = (1 - down) * upper + down * lower
                scale = mask[n, group, tap, at]
                moved[n, group, tap, 0, at] = scale * (lower - upper)
                moved[n, group, tap, 1, at] = scale * ((1 - down) * (b - a) + down * (d - c))
