"""The kernel of the weight's gradient of a convolution of single pixels.

`pixel_weights_plan` says what is multiplied, and how it is cut.
"""

from __future__ import annotations

from typing import Any

from flowvm.launch import PHASE_BITS
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.planes.cpu.conv_strips import PHASE_MASK
from flowvm.ops.planes.cpu.pixel_weights_plan import PixelWeights
from flowvm.ops.products.cpu.tile import (
    START_NONE,
    START_ROWS,
    address,
    multiply_tile,
    tile_functions,
    transpose_block,
)

Array = Any
WORDS_ONLY = True  # for flowvm.compiler.native, as the next
LOOPS_ONLY = True  # for flowvm.compiler.native: what takes time are the functions that it calls


def with_tiles(p: PixelWeights, dtype: str) -> PixelWeights:
    """A plan with the addresses of what it calls, which is compiled if it was not yet."""
    functions = tile_functions(dtype, {"tile", "transpose"})
    return p._replace(multiply=functions.tile, transpose=functions.transpose)


def _pack(p: PixelWeights, source: int, columns: int, to: int) -> None:
    """A sample's positions of at most `nr` channels, to rows of a panel."""
    for j in range(0, p.nr, p.lanes):
        count = max(0, min(p.lanes, columns - j))
        for k in range(0, p.places, p.lanes):
            transpose_block(
                p.transpose, source + (j * p.places + k) * p.size, p.places, count,
                min(p.lanes, p.places - k), to + (k * p.nr + j) * p.size, p.nr, p.lanes,
            )  # fmt: skip


def _turn_back(p: PixelWeights, sums: int, rows: int, to: int) -> None:
    """Sums of `rows` of the input's channels, to the gradient, whose rows are outputs."""
    wide = p.panels * p.nr
    for j in range(0, p.columns, p.lanes):
        for i in range(0, rows, p.lanes):
            count = min(p.lanes, rows - i)
            transpose_block(
                p.transpose, sums + (i * wide + j) * p.size, wide, count,
                min(p.lanes, p.columns - j), to + (j * p.rows + i) * p.size, p.rows, count,
            )  # fmt: skip


def pixel_weights_body(
    out: Array, g: Array, x: Array, p: PixelWeights, scratch: Array, arena: Array, lo: int, hi: int
) -> None:
    """Compute units [lo, hi): of panels, then of products."""
    size, panel = p.size, p.samples * p.places * p.nr
    left, right = address(g), address(x)
    if p.swap:
        left, right = right, left
    if lo >> PHASE_BITS == 0:
        for unit in range(lo, hi):
            n, j = unit % p.samples, unit // p.samples % p.panels
            group = unit // p.samples // p.panels
            channel = (n * p.groups + group) * p.columns + j * p.nr
            to = address(scratch) + ((unit // p.samples) * panel + n * p.places * p.nr) * size
            _pack(p, right + channel * p.places * size, p.columns - j * p.nr, to)
        return
    wide = p.panels * p.nr if p.swap else p.columns
    sums = array_in(arena, 0, p.tall * wide if p.swap else 0, out)
    for unit in range(lo & PHASE_MASK, hi & PHASE_MASK):
        group, i0 = unit // p.down, unit % p.down * p.tall
        rows = min(p.tall, p.rows - i0)
        to = address(sums)
        if not p.swap:
            to = address(out) + (group * p.rows + i0) * p.columns * size
        for n in range(p.samples):
            row = left + ((n * p.groups + group) * p.rows + i0) * p.places * size
            for k in range(0, p.places, p.deep):
                kind = START_NONE if n == 0 and k == 0 else START_ROWS
                depth = min(p.deep, p.places - k)
                for j in range(p.panels):
                    packed = address(scratch) + (group * p.panels + j) * panel * size
                    packed += (n * p.places + k) * p.nr * size
                    for i in range(0, rows, p.mr):
                        tile = to + (i * wide + j * p.nr) * size
                        multiply_tile(
                            p.multiply, depth, row + (i * p.places + k) * size, p.places, 1, packed,
                            p.nr, 1, tile, wide, kind, tile, wide, min(p.mr, rows - i),
                            min(p.nr, p.columns - j * p.nr),
                        )  # fmt: skip
        if p.swap:
            _turn_back(
                p, address(sums), rows, address(out) + (group * p.columns * p.rows + i0) * size
            )
