"""The kernels of a convolution by Winograd's F(2x2, 3x3), and of its input's gradient.

`winograd_plan` says what is computed, and how it is cut.  Sums and differences would spread what is
not finite over a tile, or lose its sign: each result that is not finite is computed again, as the
sum that it is defined as.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from flowvm.compiler import jit
from flowvm.compiler.jit import llvm
from flowvm.launch import PHASE_BITS
from flowvm.loading.lazy import lazy
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.declare.cpu.vector_code import lanes_of
from flowvm.ops.planes.cpu.conv_rows import take_row
from flowvm.ops.planes.cpu.conv_strips import PHASE_MASK, fill_with
from flowvm.ops.planes.cpu.winograd_plan import PLACES, Winograd
from flowvm.ops.products.cpu.tile import (
    START_NONE,
    START_ROWS,
    address,
    caller,
    multiply_tile,
    tile_functions,
    transpose_block,
)

if TYPE_CHECKING:
    from flowvm.ops.planes.cpu import winograd_code
else:  # for a compilation only
    winograd_code = lazy("flowvm.ops.planes.cpu.winograd_code")

Array = Any
WORDS_ONLY = True  # for flowvm.compiler.native, as the next
LOOPS_ONLY = True  # for flowvm.compiler.native: what takes time are the functions that it calls
TAPS = 9

transform_weights = caller(
    "iiiiiii",
    """Kernels of 3x3 transformed to 16 places each, inside a body.

transform_weights(function, w, step, following, count, u, place, u_following)

Matrices are addresses, all else is in elements: tap k of kernel i is the vector at w + i *
following + k * step, and place t of it goes to u + i * u_following + t * place.
""",
)

transform_tiles = caller(
    "iiiiii",
    """A row of tiles of 4x4 pixels, two pixels apart, transformed to 16 places each, inside a body.

transform_tiles(function, x, row, count, v, place, following)

Pixel (y, x) is the vector at x + y * row + x * lanes; place t of tile i goes to v + i * following +
t * place.
""",
)

transform_sums = caller(
    "iiiiiiii",
    """A row of tiles of 16 sums transformed to 2x2 results each, inside a body.

transform_sums(function, m, place, following, count, y, row, bias, flags)

Sum t of tile i is the vector at m + i * following + t * place; its results go to y + 2 * i * lanes,
those of its second row `row` elements on.  The vector at `bias` is added.  The lanes of the vector
at `flags` in which a result is not finite are no numbers afterwards.

Tiles are done from the right.  So where `row` is one vector less than two for each tile, the first
row's results beyond that end are overwritten by the second row's first one, as they should be.
""",
)


@functools.cache
def transform_of(name: str, dtype: str) -> int:
    """The address of one of the functions above for a dtype."""
    make = functools.partial(_lowered, name, dtype, lanes_of(dtype))
    return jit.load(make, f"winograd {name}, {dtype}")


def _lowered(name: str, dtype: str, lanes: int) -> jit.Lowered:
    module = llvm.parse_assembly(str(winograd_code.emit_transform(name, dtype, lanes)))
    return jit.Lowered([], "entry", written=(module,))


def with_transforms(p: Winograd, dtype: str) -> Winograd:
    """A plan with the addresses of what it calls, which is compiled if it was not yet."""
    functions = tile_functions(dtype, {"tile", "transpose"})
    return p._replace(
        multiply=functions.tile, transpose=functions.transpose,
        of_weights=transform_of("weights", dtype), of_tiles=transform_of("tiles", dtype),
        of_sums=transform_of("sums", dtype),
    )  # fmt: skip


def _weight_index(p: Winograd, group: int, o: int, c: int) -> int:
    """The first tap's index in the weights of an output and a channel of a group."""
    if p.turned:
        return ((group * p.channels + c) * p.outputs + o) * TAPS
    return ((group * p.outputs + o) * p.channels + c) * TAPS


def _transform_panel(
    p: Winograd, weight: Array, group: int, o0: int, c0: int, c1: int, kernels: int, to: int
) -> None:
    """The weights of a panel of outputs from `o0` on and channels [c0, c1): at address `to`."""
    lanes, size = p.lanes, p.size
    for o in range(o0, min(o0 + p.nr, p.outputs), lanes):
        rows = min(lanes, p.outputs - o)
        for c in range(c0, c1, lanes):
            count = min(lanes, c1 - c)
            runs, run, row, first, step = 1, count * TAPS, p.channels * TAPS, 0, lanes
            if p.turned:
                runs, run, row, first, step = count, TAPS, TAPS, (TAPS - 1) * lanes, -lanes
            for k in range(runs):
                source = address(weight) + _weight_index(p, group, o, c + k) * size
                target = kernels + k * TAPS * lanes * size
                for e in range(0, run, lanes):
                    transpose_block(
                        p.transpose, source + e * size, row, rows, min(lanes, run - e),
                        target + e * lanes * size, lanes, lanes,
                    )  # fmt: skip
            transform_weights(
                p.of_weights, kernels + first * size, step, TAPS * lanes, count,
                to + ((c - c0) * p.nr + o - o0) * size, p.weight_place, p.nr,
            )  # fmt: skip


def _clear(margins: Array) -> None:
    fill_with(margins, margins.dtype.type(0))


def transform_channels(
    p: Any, x: Array, group: int, c: int, block: int, margins: Array, to: int
) -> None:
    """A vector of channels from `c` on of a block's tiles, to address `to`; `p` is either plan.

    `margins` begins with a plane whose margin is zeros, and stays so: all blocks of a call have the
    same margin, or a smaller one on one side, which is written here.
    """
    lanes, size = p.lanes, p.size
    n0, y0 = block // p.parts * p.segments, block % p.parts * p.high
    segments, high = min(p.segments, p.samples - n0), min(p.high, p.down - y0)
    wide = 2 * p.across + 2
    top = 2 * y0 - p.ph
    first, last = max(0, top), min(p.h, top + 2 * high + 2)
    count, columns = (last - first) * p.w, min(p.w, wide - p.pw)
    pixels = (2 * p.high + 2) * wide * lanes
    channels = min(lanes, p.channels - c)
    for s in range(segments):
        plane = ((n0 + s) * p.groups + group) * p.channels + c
        source = address(x) + (plane * p.h + first) * p.w * size
        target = address(margins) + pixels * size
        for k in range(0, count, lanes):
            transpose_block(
                p.transpose, source + k * size, p.h * p.w, channels, min(lanes, count - k),
                target + k * lanes * size, lanes, lanes,
            )  # fmt: skip
        for y in range(first, last):
            at = ((y - top) * wide + p.pw) * lanes
            row = pixels + (y - first) * p.w * lanes
            take_row(margins, at, margins, row, columns * lanes, 1)
        for y in range(high):
            tile = (s * high + y) * p.across * p.depth + c
            transform_tiles(
                p.of_tiles, address(margins) + 2 * y * wide * lanes * size, wide * lanes, p.across,
                to + tile * size, p.tile_place, p.depth,
            )  # fmt: skip


def _multiply_places(
    p: Winograd, v: int, u: int, sums: int, c0: int, c1: int, tiles: int, columns: int
) -> None:
    """Each place's product of tiles and weights, channels [c0, c1), added to sums if c0 > 0."""
    size, kind = p.size, START_NONE if c0 == 0 else START_ROWS
    for t in range(PLACES):
        left, right = v + (t * p.tile_place + c0) * size, u + t * p.weight_place * size
        for i in range(0, tiles, p.mr):
            tile = sums + (t * p.sum_place + i * p.nr) * size
            multiply_tile(
                p.multiply, c1 - c0, left + i * p.depth * size, p.depth, 1, right, p.nr, 1, tile,
                p.nr, kind, tile, p.nr, min(p.mr, tiles - i), columns,
            )  # fmt: skip


def _defined(
    x: Array,
    weight: Array,
    plus: object,
    p: Winograd,
    n: int,
    group: int,
    o: int,
    y: int,
    column: int,
) -> Any:
    """One result, as the sum that it is defined as; padding is zeros."""
    total = plus
    none = x.dtype.type(0)
    for c in range(p.channels):
        plane = ((n * p.groups + group) * p.channels + c) * p.h
        taps = _weight_index(p, group, o, c)
        for tap in range(TAPS):
            i, j = y - p.ph + tap // 3, column - p.pw + tap % 3
            value = none
            if 0 <= i < p.h and 0 <= j < p.w:
                value = x[(plane + i) * p.w + j]
            total += weight[taps + (TAPS - 1 - tap if p.turned else tap)] * value
        if total != total:  # it stays so
            return total
    return total


def _store_sums(
    out: Array, x: Array, weight: Array, bias: Array, p: Winograd, group: int, o0: int, block: int,
    sums: int, results: Array,
) -> None:  # fmt: skip
    """The results of a block and a panel of outputs from `o0` on."""
    lanes, size = p.lanes, p.size
    n0, y0 = block // p.parts * p.segments, block % p.parts * p.high
    segments, high = min(p.segments, p.samples - n0), min(p.high, p.down - y0)
    count = min(2 * high, p.oh - 2 * y0) * p.ow
    begin, flags, none = 2 * lanes, lanes, out.dtype.type(0)  # results lie behind bias and flags
    first = address(results) + begin * size
    for o in range(o0, min(o0 + p.nr, p.outputs), lanes):
        channels = min(lanes, p.outputs - o)
        fill_with(results[:lanes], none)
        if len(bias) > 0:
            take_row(results, 0, bias, group * p.outputs + o, channels, 1)
        for s in range(segments):
            fill_with(results[flags:begin], none)
            for y in range(high):
                tile = sums + ((s * high + y) * p.across * p.nr + o - o0) * size
                transform_sums(
                    p.of_sums, tile, p.sum_place, p.nr, p.across,
                    first + 2 * y * p.ow * lanes * size, p.ow * lanes, address(results),
                    address(results) + flags * size,
                )  # fmt: skip
            for lane in range(channels):
                if results[flags + lane] == none:
                    continue
                for k in range(count):
                    at = begin + k * lanes + lane
                    if results[at] - results[at] != none:
                        y, column = 2 * y0 + k // p.ow, k % p.ow
                        results[at] = _defined(
                            x, weight, results[lane], p, n0 + s, group, o + lane, y, column
                        )
            plane = ((n0 + s) * p.groups + group) * p.outputs + o
            target = address(out) + (plane * p.oh + 2 * y0) * p.ow * size
            for k in range(0, count, lanes):
                rows = min(lanes, count - k)
                transpose_block(
                    p.transpose, first + k * lanes * size, lanes, rows, channels,
                    target + k * size, p.oh * p.ow, rows,
                )  # fmt: skip


def tiles_of(p: Any, block: int) -> int:
    """Tiles of a block; `p` is either plan."""
    n0, y0 = block // p.parts * p.segments, block % p.parts * p.high
    tiles: int = min(p.segments, p.samples - n0) * min(p.high, p.down - y0) * p.across
    return tiles


def winograd_body(
    out: Array, x: Array, weight: Array, bias: Array, p: Winograd, scratch: Array, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute units [lo, hi): of tiles or weights that are transformed, then of results."""
    size, lanes = p.size, p.lanes
    places = PLACES * (p.weight_place if p.few else p.tile_place)
    rows = (2 * p.high + 2) * (2 * p.across + 2 + p.w)
    own = array_in(arena, 0, places, out)
    margins = array_in(arena, places * size, lanes * max(TAPS * lanes, rows), out)
    at = places + lanes * max(TAPS * lanes, rows)
    sums = array_in(arena, at * size, PLACES * p.sum_place, out)
    at += PLACES * p.sum_place
    results = array_in(arena, at * size, lanes * ((2 * p.high + 1) * p.ow + 4), out)
    shared = address(scratch)
    chunks = (p.channels + lanes - 1) // lanes
    if lo >> PHASE_BITS == 0:
        if p.few:
            _clear(margins)
        for unit in range(lo, hi):
            if p.few:
                group, c = unit // chunks, unit % chunks * lanes
                to = shared + group * PLACES * p.tile_place * size
                transform_channels(p, x, group, c, 0, margins, to)
            else:
                group, o = unit // p.panels, unit % p.panels * p.nr
                to = shared + unit * PLACES * p.weight_place * size
                _transform_panel(p, weight, group, o, 0, p.channels, address(margins), to)
        return
    for unit in range(lo & PHASE_MASK, hi & PHASE_MASK):
        if p.few:
            group, o = unit // p.panels, unit % p.panels * p.nr
            columns = min(p.nr, p.outputs - o)
            v = shared + group * PLACES * p.tile_place * size
            for c in range(0, p.channels, p.deep):
                end = min(c + p.deep, p.channels)
                _transform_panel(p, weight, group, o, c, end, address(margins), address(own))
                _multiply_places(p, v, address(own), address(sums), c, end, p.tiles, columns)
            _store_sums(out, x, weight, bias, p, group, o, 0, address(sums), results)
            continue
        group, block = unit // p.blocks, unit % p.blocks
        tiles = tiles_of(p, block)
        _clear(margins)  # blocks at the upper and lower edge have more
        for c in range(0, p.channels, lanes):
            transform_channels(p, x, group, c, block, margins, address(own))
        for panel in range(p.panels):
            o = panel * p.nr
            u = shared + (group * p.panels + panel) * PLACES * p.weight_place * size
            columns = min(p.nr, p.outputs - o)
            _multiply_places(p, address(own), u, address(sums), 0, p.channels, tiles, columns)
            _store_sums(out, x, weight, bias, p, group, o, block, address(sums), results)
