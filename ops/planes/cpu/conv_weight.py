"""The kernel of a convolution's gradient by its weight: tiles of sums over samples and positions.

A unit of phase 0 has some input channels, some output channels and a part of the work, which is
blocks of samples and positions.  It lays out both sides of a block in its arena, as `conv_plan`
says, and adds each tile to its partial sums in scratch memory, in the order of the blocks.  Phase 1
adds the parts in their order and writes the gradient; so it is the same for any number of workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.planes.cpu.conv_plan import Tiles
from flowvm.ops.planes.cpu.conv_strips import fill_with, lay_out
from flowvm.ops.planes.cpu.conv_tile import TileSize, correlate_tile

PHASE_MASK = (1 << PHASE_BITS) - 1


def _write_table(table: Array, t: Tiles, shifts: Array) -> None:
    """Store the begin of each channel's shift of each tap; the last tile repeats the last one."""
    channel = t.sources_h * t.sources_w * t.segments * t.pitch
    for k in range(len(table)):
        column = min(k, t.block_c * len(shifts) - 1)
        table[k] = column // len(shifts) * channel + shifts[column % len(shifts)]


def _write_masks(masks: Array, t: Tiles, q0: int) -> None:
    """Store the lanes of each vector, from position q0 on, that are outputs."""
    fill_with(masks, np.uint16(0))
    end = min(q0 + t.span, t.places)
    for row in range(q0 // t.wide, (end - 1) // t.wide + 1):
        q, last = max(q0, row * t.wide) - q0, min(end, row * t.wide + t.output_w) - q0
        while q < last:
            v, lane = q // t.lanes, q % t.lanes
            more = min(t.lanes - lane, last - q)
            masks[v] |= np.uint16(((1 << more) - 1) << lane)
            q += more


def _lay_out_outputs(gs: Array, g: Array, t: Tiles, unit: int, work: int) -> None:
    """The gradient at a block of positions; rows of tiles that have no channel are 0."""
    group, _, _, o0, o1 = _channels(t, unit)
    n0, segments, z, q0 = _place(t, work)
    size, space, span = (t.output_h, t.output_w), t.output_h * t.output_w, t.span
    zero = gs.dtype.type(0)
    none: Any = np.int64(0)  # as literals they are types, and `lay_out` would be compiled for them
    one: Any = np.int64(1)
    at = 0
    for o in range(o0, o1):
        for s in range(segments):
            channel = ((n0 + s) * t.groups + group) * t.outputs + o
            plane = (channel * t.output_d + z) * space
            lay_out(
                gs[at + s * span : at + (s + 1) * span], g[plane : plane + space], size, t.wide,
                q0, (none, none), (one, one), zero,
            )  # fmt: skip
        at += t.segments * span
    padding = (o1 - o0 + t.rows - 1) // t.rows * t.rows - (o1 - o0)
    fill_with(gs[at : at + padding * t.segments * span], zero)


def _lay_out_inputs(
    xs: Array, x: Array, t: Tiles, unit: int, work: int, plane: int, c0: int, c1: int
) -> None:
    """The phases of a unit's channels [c0, c1) of a plane of each sample, from a block on."""
    group = _channels(t, unit)[0]
    n0, segments, _, q0 = _place(t, work)
    size, space, pitch = (t.input_h, t.input_w), t.input_h * t.input_w, t.pitch
    at = 0
    for c in range(c0, c1):
        for phase in range(t.sources_h * t.sources_w):
            corner = phase // t.sources_w - t.pad_h, phase % t.sources_w - t.pad_w
            for s in range(segments):
                channel = ((n0 + s) * t.groups + group) * t.channels + c
                start = (channel * t.input_d + plane) * space
                lay_out(
                    xs[at + s * pitch : at + (s + 1) * pitch], x[start : start + space], size,
                    t.wide, q0, corner, (t.stride_h, t.stride_w), xs.dtype.type(0),
                )  # fmt: skip
            at += t.segments * pitch


def _columns(t: Tiles) -> int:
    """Columns of the tiles of a block of input channels."""
    one: Any = np.int64(1)
    return _tiles(t, one, t.block_c)[1] * t.columns


def _table(arena: Array, t: Tiles) -> Any:
    return array_in(arena, 0, _columns(t), np.int32)


def _masks(arena: Array, t: Tiles) -> Any:
    return array_in(arena, (4 * _columns(t) + 63) // 64 * 64, t.span // t.lanes, np.uint16)


def _block(
    g: Array, x: Array, t: Tiles, partial: Array, arena: Array, unit: int, work: int
) -> None:
    """Add one block of samples and positions to a unit's partial sums."""
    table, masks = _table(arena, t), _masks(arena, t)
    begin = (4 * _columns(t) + 63) // 64 * 64 + (2 * t.span + 63) // 64 * 64
    outputs = (t.block_o + t.rows) * t.segments * t.span
    gs = array_in(arena, begin, outputs, g)
    begin += outputs * g.itemsize
    xs = array_in(arena, begin, (len(arena) - begin) // g.itemsize, g)
    _, c0, c1, o0, o1 = _channels(t, unit)
    _, segments, z, q0 = _place(t, work)
    _lay_out_outputs(gs, g, t, unit, work)
    vectors = (min(t.span, t.places - q0) + t.lanes - 1) // t.lanes
    down, across = _tiles(t, o1 - o0, t.block_c)
    size = TileSize(t.rows, segments, vectors, t.segments * t.span, t.span, t.pitch, 1)
    row = t.rows * t.segments * t.span
    tile = 0
    for b0 in range(c0, c1, t.block_c):
        b1 = min(b0 + t.block_c, c1)
        for a in range(t.kd):
            plane = z * t.stride_d + a * t.gap_d - t.pad_d
            if 0 <= plane < t.input_d:
                _lay_out_inputs(xs, x, t, unit, work, plane, b0, b1)
                for i in range(down):
                    for j in range(_tiles(t, o1 - o0, b1 - b0)[1]):
                        correlate_tile(
                            partial[(tile + i * across + j) * t.slots :], gs[i * row :], xs,
                            table[j * t.columns :], masks, size,
                        )  # fmt: skip
            tile += down * across


def _place(t: Tiles, work: int) -> tuple[int, int, int, int]:
    """A block's first sample and how many it has, its plane, and its first position."""
    n0 = work // (t.blocks * t.output_d) * t.segments
    z, q0 = work // t.blocks % t.output_d, work % t.blocks * t.span
    return n0, min(t.segments, t.samples - n0), z, q0


def _tiles(t: Tiles, outputs: int, inputs: int) -> tuple[int, int]:
    """Return the rows and columns of tiles for numbers of channels."""
    columns = inputs * t.kh * t.kw
    return (outputs + t.rows - 1) // t.rows, (columns + t.columns - 1) // t.columns


def _channels(t: Tiles, unit: int) -> tuple[int, int, int, int, int]:
    """A unit's group, its input channels and its output channels."""
    c0, o0 = unit % t.units_c * t.unit_c, unit // t.units_c % t.blocks_o * t.block_o
    group = unit // (t.units_c * t.blocks_o) % t.groups
    return group, c0, min(c0 + t.unit_c, t.channels), o0, min(o0 + t.block_o, t.outputs)


def _part(
    g: Array, x: Array, t: Tiles, shifts: Array, partials: Array, arena: Array, unit: int
) -> None:
    """One unit of phase 0."""
    part = unit // (t.groups * t.blocks_o * t.units_c)
    size = len(partials) // (t.parts * t.groups * t.blocks_o * t.units_c)
    partial = partials[unit * size : (unit + 1) * size]
    fill_with(partial, g.dtype.type(0))
    _write_table(_table(arena, t), t, shifts)
    works = (t.samples + t.segments - 1) // t.segments * t.output_d * t.blocks
    first = part * works // t.parts
    for work in range(first, (part + 1) * works // t.parts):
        if work == first or t.blocks > 1:
            _write_masks(_masks(arena, t), t, work % t.blocks * t.span)
        _block(g, x, t, partial, arena, unit, work)


def _gather(out: Array, partials: Array, t: Tiles, unit: int) -> None:
    """One unit of phase 1: add its parts, and write its part of the gradient."""
    each = t.groups * t.blocks_o * t.units_c
    size = len(partials) // (t.parts * each)
    total = partials[unit * size : (unit + 1) * size]
    for part in range(1, t.parts):
        more = partials[(part * each + unit) * size : (part * each + unit + 1) * size]
        for k in range(size):
            total[k] += more[k]
    group, c0, c1, o0, o1 = _channels(t, unit)
    down, across = _tiles(t, o1 - o0, t.block_c)
    taps = t.kh * t.kw
    for o in range(o0, o1):
        row, inner = (o - o0) // t.rows, (o - o0) % t.rows * t.columns
        to = (group * t.outputs + o) * t.channels * t.kd * taps
        for c in range(c0, c1):
            block, column = (c - c0) // t.block_c, (c - c0) % t.block_c * taps
            for a in range(t.kd):
                tile = ((block * t.kd + a) * down + row) * across + column // t.columns
                j = column % t.columns
                for tap in range(taps):
                    out[to + (c * t.kd + a) * taps + tap] = total[tile * t.slots + inner + j]
                    j += 1
                    if j == t.columns:
                        j = 0
                        tile += 1


def weight_body(
    out: Array, g: Array, x: Array, t: Tiles, shifts: Array, scratch: Array, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute units [lo, hi) of either phase; `shifts` come from `shifts_of`."""
    partials = array_in(scratch, 0, len(scratch) // out.itemsize, out)
    if lo >> PHASE_BITS == 0:
        for unit in range(lo, hi):
            _part(g, x, t, shifts, partials, arena, unit)
        return
    for unit in range(lo & PHASE_MASK, hi & PHASE_MASK):
        _gather(out, partials, t, unit)
