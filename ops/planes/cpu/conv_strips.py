"""The kernel of convolution, of its gradient by the input and of transposed convolution.

Phase 0 packs the weights as panels, and writes the table of offsets: where the shift of each tap of
each channel of a block begins.  Phase 1 is strips of positions, each one chunk: it lays out the
rows that it needs in its arena, multiplies panel after panel with `convolve_strip`, whose results
stay in the arena while channels and planes of depth are added up, and writes them out with the
bias.  See `conv_plan` for the geometry.  The gradient by the weight is in `conv_weight`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.planes.cpu.conv_plan import Strips, shift_of
from flowvm.ops.planes.cpu.conv_rows import add_row, take_row
from flowvm.ops.planes.cpu.conv_tile import ADDED, ALONE, PLACED, StripSize, convolve_strip

Pair = tuple[int, int]
PHASE_MASK = (1 << PHASE_BITS) - 1


def fill_with(line: Array, value: object) -> None:
    """line[:] = value; vectorized, where Numba's own is a loop over one element at a time."""
    for k in range(len(line)):
        line[k] = value


def lay_out(
    line: Array, plane: Array, size: Pair, wide: int, q0: int, corner: Pair, step: Pair,
    outside: object,
) -> None:  # fmt: skip
    """Positions from q0 on of a plane of `size`, in rows of `wide`: row u, column t of it is
    plane[corner + (u, t) * step], or `outside`.
    """
    (h, w), (top, left), (down, right), count = size, corner, step, len(line)
    if wide == w and left == 0 and right == 1 and down == 1 and top == 0:  # the plane as it is
        inside = max(0, min(count, h * w - q0))
        take_row(line, 0, plane, q0, inside, 1)
        fill_with(line[inside:], outside)
        return
    fill_with(line, outside)
    first = max(0, (right - 1 - left) // right)
    last = min(wide, (w - 1 - left) // right + 1)
    u = max(q0 // wide, (down - 1 - top) // down)
    end = min((q0 + count - 1) // wide, (h - 1 - top) // down)
    while u <= end:
        t0, t1 = max(first, q0 - u * wide), min(last, q0 + count - u * wide)
        if t1 > t0:
            source = (top + u * down) * w + left + t0 * right
            take_row(line, u * wide + t0 - q0, plane, source, t1 - t0, right)
        u += 1


def _write_table(table: Array, t: Strips, taps: Array) -> None:
    """For each phase of the result the offsets of its taps, channel after channel."""
    phases = t.results_h * t.results_w
    lines = t.sources_h * t.sources_w * t.pitch
    at, shift = 0, phases + t.kh * t.kw
    for phase in range(phases):
        for c in range(t.channels):
            for k in range(taps[phase]):
                table[at] = c * lines + taps[shift + k]
                at += 1
        shift += taps[phase]


def _height(rest: int, tall: int) -> int:
    """Return the rows of the panel when `rest` rows are left."""
    if rest > 4:
        return tall
    return 4 if rest > 1 else 1


def _pack_panel(packed: Array, weight: Array, t: Strips, taps: Array, group: int, row: int) -> None:
    """The panel that begins with `row`, for each phase, plane of depth and block of channels."""
    plane = t.kh * t.kw
    height = _height(t.rows - row, t.tall)
    real = min(height, t.rows - row)
    per_row, per_channel = t.depth * t.kd * plane, t.kd * plane
    if t.back:
        per_row, per_channel = per_channel, t.rows * per_channel
    start = group * t.rows * t.depth * t.kd * plane + row * per_row
    first = group * t.padded * t.depth * t.kd * plane
    zero = packed.dtype.type(0)
    number = t.results_h * t.results_w
    for phase in range(t.results_h * t.results_w):
        count = taps[phase]
        for a in range(t.kd):
            for c0 in range(0, t.depth, t.channels):
                c1 = min(c0 + t.channels, t.depth)
                at = first + ((a * t.depth + c0) * t.padded + row * (c1 - c0)) * count
                for c in range(c0, c1):
                    for k in range(count):
                        source = start + c * per_channel + a * plane + taps[number + k]
                        for i in range(real):
                            packed[at + i] = weight[source + i * per_row]
                        for i in range(real, height):
                            packed[at + i] = zero
                        at += height
        first += t.padded * t.depth * t.kd * count
        number += count


def _write_out(
    out: Array, at: int, plus: object, line: Array, t: Strips, q0: int, phase: int
) -> None:
    """Positions from q0 on of a row of results in a phase, to the plane at `at`."""
    step_h, step_w, count = t.results_h, t.results_w, len(line)
    ph, pw = phase // step_w, phase % step_w
    down = (t.result_h - ph + step_h - 1) // step_h
    across = (t.result_w - pw + step_w - 1) // step_w
    if t.wide == across and step_w == 1 and step_h == 1:
        add_row(out, at + q0, line, 0, min(count, down * across - q0), plus)
        return
    y = q0 // t.wide
    while y * t.wide < q0 + count and y < down:
        x0, x1 = max(0, q0 - y * t.wide), min(across, q0 + count - y * t.wide)
        source = y * t.wide + x0 - q0
        to = at + (y * step_h + ph) * t.result_w + x0 * step_w + pw
        if step_w == 1:
            add_row(out, to, line, source, x1 - x0, plus)
        elif step_w == 2 and x1 > x0:
            own, pairs = line[source : source + x1 - x0], out[to : to + 2 * (x1 - x0) - 1]
            for k in range(x1 - x0):
                pairs[2 * k] = own[k] + plus
        else:
            for k in range(x1 - x0):
                out[to + k * step_w] = line[source + k] + plus
        y += 1


def plane_of(t: Strips, z: int, a: int) -> int:
    """Return the plane that tap a of depth reads for plane z of the result; -1 if there is none."""
    i = shift_of(a, z, t.stride_d, t.pad_d, t.gap_d, t.back, 0)
    if t.back:
        if i % t.stride_d != 0:
            return -1
        i //= t.stride_d
    else:
        i += z * t.stride_d - t.pad_d
    return i if 0 <= i < t.source_d else -1


def _lay_out_channels(
    lines: Array, x: Array, x_at: int, t: Strips, q0: int, plane: int, c0: int, c1: int
) -> None:
    """The phases of channels [c0, c1) of a plane, from position q0 on."""
    step_h, step_w = (1, 1) if t.back else (t.stride_h, t.stride_w)
    size, space, pitch = (t.source_h, t.source_w), t.source_h * t.source_w, t.pitch
    at = 0
    for c in range(c0, c1):
        source = x_at + (c * t.source_d + plane) * space
        for phase in range(t.sources_h * t.sources_w):
            corner = t.base_h + phase // t.sources_w, t.base_w + phase % t.sources_w
            lay_out(
                lines[at : at + pitch], x[source : source + space], size, t.wide, q0, corner,
                (step_h, step_w), x.dtype.type(0),
            )  # fmt: skip
            at += pitch


def positions_of(t: Strips, unit: int) -> tuple[int, int]:
    """The first of a unit's positions, and how many they are."""
    q0 = unit % t.blocks * t.span
    return q0, min(t.span, (t.down - 1) * t.wide + t.across - q0)


def _table(scratch: Array, t: Strips) -> Any:
    return array_in(scratch, 0, t.table // 4, np.int32)


def _packed(scratch: Array, t: Strips, like: Array) -> Any:
    return array_in(scratch, t.table, (len(scratch) - t.table) // like.itemsize, like)


def _spots(arena: Array, t: Strips) -> Any:
    return array_in(arena, 0, 2 * (t.span // t.lanes), np.int32)


def _masks(arena: Array, t: Strips) -> Any:
    vectors = t.span // t.lanes
    return array_in(arena, 8 * vectors, 2 * vectors, np.uint16)


def _arena_layout(t: Strips) -> tuple[int, int, int]:
    """Return the begin of lines in the arena, and the elements of lines and of results."""
    begin = (12 * (t.span // t.lanes) + 63) // 64 * 64
    laid = (t.channels * t.sources_h * t.sources_w * t.pitch + 63) // 64 * 64
    return begin, laid, (t.results_h * t.results_w * t.high * t.span + 63) // 64 * 64


def _strip(
    out: Array, x: Array, bias: Array, t: Strips, taps: Array, scratch: Array, arena: Array,
    unit: int,
) -> None:  # fmt: skip
    """One unit of phase 1: some rows of a group of a sample at a strip of positions of a plane."""
    table, packed = _table(scratch, t), _packed(scratch, t, out)
    spots, masks = _spots(arena, t), _masks(arena, t)
    begin, laid, rest = _arena_layout(t)
    lines = array_in(arena, begin, laid, out)
    results = array_in(arena, begin + laid * out.itemsize, rest, out)
    zeros = array_in(arena, begin + (laid + rest) * out.itemsize, t.tall, out)
    fill_with(zeros, zeros.dtype.type(0))
    z = unit // t.blocks % t.result_d
    part = unit // (t.blocks * t.result_d) % t.parts
    task = unit // (t.blocks * t.result_d * t.parts)  # a group of a sample
    group = task % t.groups
    r0, r1 = part * t.part, min((part + 1) * t.part, t.rows)
    q0, count = positions_of(t, unit)
    phases = t.results_h * t.results_w
    first = group * t.padded * t.depth * t.kd * t.kh * t.kw
    x_at = task * t.depth * t.source_d * t.source_h * t.source_w
    biased = len(bias) > 0
    plus = bias if biased else zeros
    passes = 0
    for a in range(t.kd):
        passes += plane_of(t, z, a) >= 0
    passes *= (t.depth + t.channels - 1) // t.channels
    space = t.result_h * t.result_w
    passed = 0
    for a in range(t.kd):
        plane = plane_of(t, z, a)
        if plane < 0:
            continue
        for c0 in range(0, t.depth, t.channels):
            c1 = min(c0 + t.channels, t.depth)
            _lay_out_channels(lines, x, x_at, t, q0, plane, c0, c1)
            begin = 0  # of the phase's taps
            for phase in range(phases):
                taps_of_phase = taps[phase]
                weights = first + begin * t.padded * t.depth * t.kd
                weights += (a * t.depth + c0) * t.padded * taps_of_phase
                for row in range(r0, r1, t.tall):
                    own = (phase * t.high + (row - r0) % t.high) * t.span
                    at_once = t.placed and passes == 1 and row + t.tall <= r1
                    to = ((task * t.rows + row) * t.result_d + z) * space
                    size = StripSize(
                        _height(t.rows - row, t.tall),
                        (c1 - c0) * taps_of_phase,
                        (count + t.lanes - 1) // t.lanes,
                        t.result_d * space if at_once else t.span,
                        PLACED if at_once else ADDED if passed > 0 else ALONE,
                    )
                    convolve_strip(
                        out[to:] if at_once else results[own:],
                        packed[weights + row * (c1 - c0) * taps_of_phase :],
                        lines,
                        table[begin * t.channels :],
                        plus[group * t.rows + row :] if biased else plus,
                        spots,
                        masks,
                        size,
                    )
                    if passed == passes - 1 and not at_once:  # while they are in the nearest cache
                        last = min(row + t.tall, r1)
                        _write_rows(out, bias, results[own:], t, unit, phase, row, last)
                begin += taps_of_phase
            passed += 1
    if passes == 0:
        fill_with(results, results.dtype.type(0))
        for phase in range(phases):
            for row in range(r0, r1):
                own = phase * t.high * t.span
                _write_rows(out, bias, results[own:], t, unit, phase, row, row + 1)


def _write_rows(
    out: Array, bias: Array, results: Array, t: Strips, unit: int, phase: int, r0: int, r1: int
) -> None:
    """A unit's rows [r0, r1) of a group, which `results` begin with."""
    space, span = t.result_h * t.result_w, t.span
    z = unit // t.blocks % t.result_d
    task = unit // (t.blocks * t.result_d * t.parts)
    q0, count = positions_of(t, unit)
    for row in range(r0, r1):
        plus = bias[task % t.groups * t.rows + row] if len(bias) > 0 else out.dtype.type(0)
        at = ((task * t.rows + row) * t.result_d + z) * space
        own = (row - r0) * span
        _write_out(out, at, plus, results[own : own + count], t, q0, phase)


def _write_spots(spots: Array, masks: Array, t: Strips, block: int) -> None:
    """Store where each vector of a strip goes in a plane: its lanes are in two rows at most."""
    q0, count = positions_of(t, block)
    y, x = q0 // t.wide, q0 % t.wide
    every = (1 << t.lanes) - 1
    for v in range((count + t.lanes - 1) // t.lanes):
        lanes = (1 << min(t.lanes, count - v * t.lanes)) - 1
        begin = t.wide - x  # the lane that is the next row's first
        spots[2 * v] = y * t.result_w + x
        masks[2 * v] = np.uint16(lanes & ((1 << max(0, min(t.lanes, t.across - x))) - 1))
        spots[2 * v + 1] = (y + 1) * t.result_w - begin
        end = (1 << min(t.lanes, begin + t.across)) - 1
        masks[2 * v + 1] = np.uint16(lanes & end & (every << min(t.lanes, begin)))
        x += t.lanes
        if x >= t.wide:
            x, y = x - t.wide, y + 1


def strips_body(
    out: Array, x: Array, weight: Array, bias: Array, t: Strips, taps: Array, scratch: Array,
    arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute units [lo, hi) of either phase; `taps` come from `taps_of`."""
    if lo >> PHASE_BITS == 0:
        table, packed = _table(scratch, t), _packed(scratch, t, out)
        panels = (t.rows + t.tall - 1) // t.tall
        for unit in range(lo, hi):
            if unit == 0:
                _write_table(table, t, taps)
            _pack_panel(packed, weight, t, taps, unit // panels, unit % panels * t.tall)
        return
    spots_of = -1
    for unit in range(lo & PHASE_MASK, hi & PHASE_MASK):
        if t.placed and unit % t.blocks != spots_of:
            spots_of = unit % t.blocks
            _write_spots(_spots(arena, t), _masks(arena, t), t, spots_of)
        _strip(out, x, bias, t, taps, scratch, arena, unit)
