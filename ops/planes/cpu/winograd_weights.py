"""The kernel of a convolution's gradient by the weight, by Winograd's F(2x2, 3x3).

`winograd_plan` says what is computed, and how it is cut.  A sum goes over tiles in order, one
multiply-add a step, so no cut changes a result; one that is not finite is computed again, as the
sum that it is defined as.
"""

from __future__ import annotations

from typing import Any

from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.planes.cpu.conv_rows import take_row
from flowvm.ops.planes.cpu.conv_strips import fill_with
from flowvm.ops.planes.cpu.conv_winograd import tiles_of, transform_channels, transform_of
from flowvm.ops.planes.cpu.winograd_plan import PLACES, WinogradWeights
from flowvm.ops.products.cpu.tile import (
    START_NONE,
    START_ROWS,
    address,
    caller,
    multiply_tile,
    tile_functions,
    transpose_block,
)

Array = Any
LOOPS_ONLY = True  # for flowvm.compiler.native: what takes time are the functions that it calls
TAPS = 9

transform_gradients = caller(
    "iiiiii",
    """A row of 2x2 gradients of results transformed to 16 places each, inside a body.

transform_gradients(function, y, row, count, v, place, following)

Gradient (y, x) is the vector at y + y * row + x * lanes; place t of tile i goes to v + i *
following + t * place.
""",
)

transform_kernels = caller(
    "iiiiii",
    """Sums of 16 places transformed to the gradients of 3x3 weights, inside a body.

transform_kernels(function, m, place, following, count, w, flags)

Sum t of kernel i is the vector at m + i * following + t * place; tap k of it goes to w + (9 * i +
k) * lanes.  The lanes of the vector at `flags` in which a tap is not finite are no numbers
afterwards.
""",
)


def with_kernels(p: WinogradWeights, dtype: str) -> WinogradWeights:
    """A plan with the addresses of what it calls, which is compiled if it was not yet."""
    functions = tile_functions(dtype, {"tile", "transpose"})
    return p._replace(
        multiply=functions.tile, transpose=functions.transpose,
        of_tiles=transform_of("tiles", dtype), of_gradients=transform_of("gradients", dtype),
        of_kernels=transform_of("kernels", dtype),
    )  # fmt: skip


def _transform_outputs(
    p: WinogradWeights, g: Array, group: int, o: int, block: int, margins: Array, to: int, row: int
) -> None:
    """A vector of outputs from `o` on of a block's gradients, to address `to`, tiles `row` apart.

    `margins` begins with rows of whole tiles: of planes of odd sizes they end with zeros.
    """
    lanes, size = p.lanes, p.size
    n0, y0 = block // p.parts * p.segments, block % p.parts * p.high
    segments, high = min(p.segments, p.samples - n0), min(p.high, p.down - y0)
    rows, wide = min(2 * high, p.oh - 2 * y0), 2 * p.across * lanes
    count, outputs = rows * p.ow, min(lanes, p.outputs - o)
    pixels = 2 * p.high * wide
    for s in range(segments):
        plane = ((n0 + s) * p.groups + group) * p.outputs + o
        source = address(g) + (plane * p.oh + 2 * y0) * p.ow * size
        target = address(margins) + pixels * size
        for k in range(0, count, lanes):
            transpose_block(
                p.transpose, source + k * size, p.oh * p.ow, outputs, min(lanes, count - k),
                target + k * lanes * size, lanes, lanes,
            )  # fmt: skip
        for y in range(rows):
            take_row(margins, y * wide, margins, pixels + y * p.ow * lanes, p.ow * lanes, 1)
        for y in range(high):
            transform_gradients(
                p.of_gradients, address(margins) + 2 * y * wide * size, wide, p.across,
                to + (s * high + y) * p.across * row * size, p.gradient_place, row,
            )  # fmt: skip


def _defined(g: Array, x: Array, p: WinogradWeights, group: int, o: int, c: int, tap: int) -> Any:
    """One result, as the sum that it is defined as; padding is zeros."""
    none = x.dtype.type(0)
    total = none
    for n in range(p.samples):
        plane = ((n * p.groups + group) * p.channels + c) * p.h
        own = ((n * p.groups + group) * p.outputs + o) * p.oh
        for y in range(p.oh):
            for column in range(p.ow):
                i, j = y - p.ph + tap // 3, column - p.pw + tap % 3
                value = none
                if 0 <= i < p.h and 0 <= j < p.w:
                    value = x[(plane + i) * p.w + j]
                total += g[(own + y) * p.ow + column] * value
        if total != total:  # it stays so
            return total
    return total


def _store_kernels(
    out: Array, g: Array, x: Array, p: WinogradWeights, group: int, o0: int, c0: int, sums: int,
    kernels: Array,
) -> None:  # fmt: skip
    """The gradients of a unit's weights; `kernels` has flags, then taps."""
    lanes, size, none = p.lanes, p.size, out.dtype.type(0)
    end = min(c0 + p.wide, p.channels)
    vectors = (end - c0 + lanes - 1) // lanes
    for o in range(o0, min(o0 + p.tall, p.outputs)):
        fill_with(kernels[:lanes], none)
        transform_kernels(
            p.of_kernels, sums + (o - o0) * p.wide * size, p.sum_place, lanes, vectors,
            address(kernels) + lanes * size, address(kernels),
        )  # fmt: skip
        for k in range(vectors):
            c = c0 + k * lanes
            count, taps = min(lanes, end - c), (1 + TAPS * k) * lanes
            for lane in range(count):
                if kernels[lane] == none:
                    continue
                for tap in range(TAPS):
                    at = taps + tap * lanes + lane
                    if kernels[at] - kernels[at] != none:
                        kernels[at] = _defined(g, x, p, group, o, c + lane, tap)
            first = address(kernels) + taps * size
            target = address(out) + ((group * p.outputs + o) * p.channels + c) * TAPS * size
            for tap in range(0, TAPS, lanes):
                rows = min(lanes, TAPS - tap)
                transpose_block(
                    p.transpose, first + tap * lanes * size, lanes, rows, count,
                    target + tap * size, TAPS, rows,
                )  # fmt: skip


def winograd_weights_body(
    out: Array, g: Array, x: Array, p: WinogradWeights, arena: Array, lo: int, hi: int
) -> None:
    """Compute units [lo, hi): some outputs and channels of a group."""
    size, lanes = p.size, p.lanes
    high, wide = (p.outputs + p.tall - 1) // p.tall, (p.channels + p.wide - 1) // p.wide
    row = (p.tall + lanes - 1) // lanes * lanes
    plane = lanes * (2 * p.high + 2) * (2 * p.across + 2 + max(p.w, p.ow))
    tiles_at = address(arena)
    gradients_at = tiles_at + PLACES * p.tile_place * size
    sums_at = gradients_at + PLACES * p.gradient_place * size
    at = PLACES * (p.tile_place + p.gradient_place + p.sum_place)
    margins = array_in(arena, at * size, plane, out)
    rows_of = array_in(arena, (at + plane) * size, plane, out)
    kernels = array_in(arena, (at + 2 * plane) * size, TAPS * p.wide + 2 * lanes, out)
    for unit in range(lo, hi):
        group = unit // (high * wide)
        o0, c0 = unit // wide % high * p.tall, unit % wide * p.wide
        outputs, channels = min(p.tall, p.outputs - o0), min(p.wide, p.channels - c0)
        for block in range(p.blocks):
            if block == 0 or p.parts > 1:  # margins of blocks of one sample differ
                fill_with(margins, out.dtype.type(0))
                fill_with(rows_of, out.dtype.type(0))
            for c in range(0, channels, lanes):
                transform_channels(
                    p, x, group, c0 + c, block, margins, tiles_at - c0 * size
                )  # fmt: skip
            for o in range(0, outputs, lanes):
                to = gradients_at + o * size
                _transform_outputs(p, g, group, o0 + o, block, rows_of, to, row)
            depth, kind = tiles_of(p, block), START_NONE if block == 0 else START_ROWS
            for t in range(PLACES):
                left = gradients_at + t * p.gradient_place * size
                right = tiles_at + t * p.tile_place * size
                for j in range(0, channels, p.nr):
                    for i in range(0, outputs, p.mr):
                        tile = sums_at + (t * p.sum_place + i * p.wide + j) * size
                        multiply_tile(
                            p.multiply, depth, left + i * size, 1, row, right + j * size, p.wide, 1,
                            tile, p.wide, kind, tile, p.wide, min(p.mr, outputs - i),
                            min(p.nr, channels - j),
                        )  # fmt: skip
        _store_kernels(out, g, x, p, group, o0, c0, sums_at, kernels)
