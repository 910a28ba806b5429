"""The kernels of a convolution as a matrix product of its windows, and of both gradients.

`windows_plan` says what is multiplied, and how it is cut.  A sum goes over its depth in order, one
multiply-add a step, from the bias on; the gradient by the input adds such sums tap after tap.  So
no cut changes a result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.planes.cpu.conv_rows import add_row, gather_row, take_row
from flowvm.ops.planes.cpu.conv_strips import fill_with
from flowvm.ops.planes.cpu.windows_plan import Windows
from flowvm.ops.products.cpu.gemm_kernels import copy_lines, pack_panels
from flowvm.ops.products.cpu.tile import (
    START_COLUMN,
    START_NONE,
    START_ROWS,
    address,
    multiply_tile,
)

WORDS_ONLY = True  # for flowvm.compiler.native, as the next
LOOPS_ONLY = (
    True  # for flowvm.compiler.native: what takes time are the tiles and rows that it calls
)
PHASE_MASK = (1 << PHASE_BITS) - 1


def _up(value: int, step: int) -> int:
    return (value + step - 1) // step * step


def _block(p: Windows, block: int) -> tuple[int, int, int, int]:
    """A block's first sample and how many it has, its first position and how many of each."""
    n0, q0 = block // p.parts * p.segments, block % p.parts * p.span
    return n0, min(p.segments, p.samples - n0), q0, min(p.span, p.places - q0)


def _write_table(table: Array, p: Windows, block: int, sample: int, outside: int) -> None:
    """The pixel of each tap for each column of a block, from the plane of its first sample.

    `sample` is how far the next sample's plane is.  Columns in the padding have `outside` if that
    is negative, else as many different places from `outside` on.
    """
    _, segments, q0, count = _block(p, block)
    apart = 1 if outside >= 0 else 0
    for tap in range(p.taps):
        down = tap // p.kw % p.kh * p.dh - p.ph
        across = tap % p.kw * p.dw - p.pw
        deep = tap // (p.kw * p.kh) * p.dd - p.pd
        at = tap * p.width
        for k in range(at, at + p.width):
            table[k] = outside + apart * (k - at)
        for s in range(segments):
            q = q0
            while q < q0 + count:  # a run: some positions of a row
                x, y, z = q % p.ow, q // p.ow % p.oh, q // (p.ow * p.oh)
                run = min(p.ow - x, q0 + count - q)
                i, j, k = z * p.sd + deep, y * p.sh + down, x * p.sw + across
                if 0 <= i < p.d and 0 <= j < p.h:
                    first = min(run, max(0, (p.sw - 1 - k) // p.sw))
                    last = max(first, min(run, (p.w - 1 - k) // p.sw + 1))
                    place = s * sample + (i * p.h + j) * p.w + k
                    for more in range(first, last):
                        table[at + more] = place + more * p.sw
                at += run
                q += run


def _table(arena: Array, p: Windows) -> Any:
    return array_in(arena, 0, p.taps * p.width, np.int32)


def _table_bytes(p: Windows) -> int:
    return _up(4 * p.taps * p.width, 64)


def _copy_pixels(
    to: Array, panel: int, wide: int, apart: int, x: Array, plane: int, p: Windows, segments: int,
    count: int,
) -> None:  # fmt: skip
    """A channel of each of a block's samples, to panels of `wide` columns that are `apart`."""
    column = 0
    for s in range(segments):
        source, rest = plane + s * p.groups * p.channels * p.space, count
        while rest > 0:
            run = min(rest, wide - column)
            take_row(to, panel + column, x, source, run, 1)
            column += run
            source += run
            rest -= run
            if column == wide:
                column = 0
                panel += apart
    if column > 0:
        fill_with(to[panel + column : panel + wide], to.dtype.type(0))


def _write_windows(
    to: Array, at: int, row: int, wide: int, apart: int, x: Array, p: Windows, table: Array,
    group: int, block: int, r0: int, r1: int,
) -> None:  # fmt: skip
    """Rows [r0, r1) of a group's windows at a block of columns; a row is a tap of a channel.

    Rows are `row` elements apart, in panels of `wide` columns that are `apart`.
    """
    n0, segments, q0, count = _block(p, block)
    plane = ((n0 * p.groups + group) * p.channels + r0 // p.taps) * p.space
    tap = r0 % p.taps
    for _ in range(r0, r1):
        panel = at
        if p.direct:
            _copy_pixels(to, panel, wide, apart, x, plane + q0, p, segments, count)
            plane += p.space
            at += row
            continue
        for j in range(tap * p.width, (tap + 1) * p.width, wide):
            gather_row(to, panel, x, plane, table, j, wide)
            panel += apart
        at += row
        tap += 1
        if tap == p.taps:
            tap = 0
            plane += p.space


def _write_gradients(
    to: Array, at: int, g: Array, p: Windows, group: int, block: int, o: int
) -> None:
    """A channel of the gradient at a block of columns, and zeros up to whole panels."""
    n0, segments, q0, count = _block(p, block)
    for s in range(segments):
        plane = (((n0 + s) * p.groups + group) * p.outputs + o) * p.places
        take_row(to, at + s * count, g, plane + q0, count, 1)
    fill_with(to[at + segments * count : at + p.width], to.dtype.type(0))


# --- forward ------------------------------------------------------------------------------------


def _windows_unit(
    out: Array, x: Array, weight: Array, bias: Array, p: Windows, windows: Array, arena: Array,
    unit: int,
) -> None:  # fmt: skip
    """Some rows of a group's product at a block of columns."""
    size = p.size
    group, block = unit // p.down // p.blocks, unit // p.down % p.blocks
    n0, segments, q0, count = _block(p, block)
    columns, depth_all = segments * count, p.channels * p.taps
    o0, o1 = unit % p.down * p.tall, min((unit % p.down + 1) * p.tall, p.outputs)
    own = _table_bytes(p)
    table = _table(arena, p)
    laid = array_in(arena, own, 0 if p.shared else p.deep * p.width, out)
    own += _up(len(laid) * size, 64)
    lines = array_in(arena, own, p.high * p.deep if p.packed else 0, out)
    own += _up(len(lines) * size, 64)
    sums = array_in(arena, own, p.tall * p.pitch if p.staged else 0, out)
    first = (group * p.blocks + block) * depth_all * p.width
    if not (p.shared or p.direct):
        _write_table(table, p, block, p.groups * p.channels * p.space, -1)
    at = ((n0 * p.groups + group) * p.outputs + o0) * p.places + q0
    to, row = address(out) + at * size, p.places
    if p.staged:
        to, row = address(sums), p.pitch
    biases, biased = address(bias) + group * p.outputs * size, len(bias) > 0
    for k in range(0, depth_all, p.deep):
        depth = min(p.deep, depth_all - k)
        right, apart = address(windows) + (first + k * p.nr) * size, depth_all * p.nr
        if not p.shared:
            right, apart = address(laid), depth * p.nr
            _write_windows(laid, 0, p.nr, p.nr, apart, x, p, table, group, block, k, k + depth)
        for o in range(o0, o1, p.high):
            most = min(o1, o + p.high)
            begin = (group * p.outputs + o) * depth_all + k
            left, step = address(weight) + begin * size, depth_all
            if p.packed:
                for i in range(most - o):
                    take_row(lines, i * depth, weight, begin + i * depth_all, depth, 1)
                left, step = address(lines), depth
            for j in range(0, columns, p.nr):
                for i in range(o, most, p.mr):
                    tile = to + ((i - o0) * row + j) * size
                    kind, start, start_row = START_ROWS, tile, row
                    if k == 0:
                        kind, start, start_row = START_NONE, biases + i * size, 1
                        if biased:
                            kind = START_COLUMN
                    multiply_tile(
                        p.tile, depth, left + (i - o) * step * size, step, 1,
                        right + j // p.nr * apart * size, p.nr, 1, tile, row, kind, start,
                        start_row, min(p.mr, most - i), min(p.nr, columns - j),
                    )  # fmt: skip
    if p.staged:
        for o in range(o0, o1):
            for s in range(segments):
                place = (((n0 + s) * p.groups + group) * p.outputs + o) * p.places + q0
                take_row(out, place, sums, (o - o0) * p.pitch + s * count, count, 1)


def _turn_weights(weights: Array, weight: Array, p: Windows, unit: int) -> None:
    """The taps of some of a group's outputs for each channel, which is an output of `weight`."""
    units = (p.outputs + p.some - 1) // p.some
    group, o0 = unit // units, unit % units * p.some
    for c in range(p.channels):
        for o in range(o0, min(o0 + p.some, p.outputs)):
            source = ((group * p.channels + c) * p.outputs + o) * p.taps
            target = ((group * p.outputs + o) * p.channels + c) * p.taps
            take_row(weights, target, weight, source, p.taps, 1)


def windows_body(
    out: Array, x: Array, weight: Array, bias: Array, p: Windows, scratch: Array, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute units [lo, hi): weights if `turned`, windows if `shared`, then products."""
    turned = p.groups * p.outputs * p.channels * p.taps if p.turned else 0
    weights = array_in(scratch, 0, turned, out)
    begin = _up(turned * out.itemsize, 64)
    windows = array_in(scratch, begin, (len(scratch) - begin) // out.itemsize, out)
    if (p.shared or p.turned) and lo >> PHASE_BITS == 0:
        chunks = (p.channels + p.some - 1) // p.some
        turns = p.groups * ((p.outputs + p.some - 1) // p.some) if p.turned else 0
        table = _table(arena, p)
        for number in range(lo, hi):
            if number < turns:
                _turn_weights(weights, weight, p, number)
                continue
            unit = number - turns
            group, block = unit // chunks // p.blocks, unit // chunks % p.blocks
            c = unit % chunks * p.some
            if (number == lo or c == 0) and not p.direct:
                _write_table(table, p, block, p.groups * p.channels * p.space, -1)
            r0, r1 = c * p.taps, min(c + p.some, p.channels) * p.taps
            deep = p.channels * p.taps
            at = (group * p.blocks + block) * deep * p.width + r0 * p.nr
            _write_windows(windows, at, p.nr, p.nr, deep * p.nr, x, p, table, group, block, r0, r1)
        return
    first = lo & PHASE_MASK
    for unit in range(first, first + hi - lo):
        _windows_unit(out, x, weights if p.turned else weight, bias, p, windows, arena, unit)


# --- by the input -------------------------------------------------------------------------------


def _pixels_unit(
    out: Array, weight: Array, bias: Array, p: Windows, gradients: Array, arena: Array, unit: int,
    written: int,
) -> int:  # fmt: skip
    """Some channels of a group of the samples of a block; the block whose table is written."""
    size = p.size
    group, block = unit // p.down // p.blocks, unit // p.down % p.blocks
    n0, segments, _, count = _block(p, block)
    columns, across = segments * count, p.channels * p.taps
    c0, c1 = unit % p.down * p.tall, min((unit % p.down + 1) * p.tall, p.channels)
    rows = (c1 - c0) * p.taps
    table = _table(arena, p)
    planes = p.segments * p.space
    if written != block and not p.direct:
        _write_table(table, p, block, p.space, planes)
    own = _table_bytes(p)
    packed = array_in(arena, own, _up(p.tall * p.taps, p.mr) * p.deep if p.packed else 0, out)
    own += _up(len(packed) * size, 64)
    sums = array_in(arena, own, p.tall * p.taps * p.pitch, out)
    own += _up(len(sums) * size, 64)
    pixels = array_in(arena, own, planes + p.width, out)
    begin = (group * p.blocks + block) * p.outputs * p.pitch
    for k in range(0, p.outputs, p.deep):
        depth = min(p.deep, p.outputs - k)
        left = address(weight) + ((group * p.outputs + k) * across + c0 * p.taps) * size
        panel, step = 1, across
        if p.packed:
            copy_lines(p, left, across, 1, depth, rows, address(packed), p.mr)
            left, panel, step = address(packed), depth, p.mr
        right = address(gradients) + (begin + k * p.pitch) * size
        for j in range(0, columns, p.nr):
            for i in range(0, rows, p.mr):
                tile = address(sums) + (i * p.pitch + j) * size
                multiply_tile(
                    p.tile, depth, left + i * panel * size, 1, step, right + j * size, p.pitch, 1,
                    tile, p.pitch, START_NONE if k == 0 else START_ROWS, tile, p.pitch,
                    min(p.mr, rows - i), min(p.nr, columns - j),
                )  # fmt: skip
    for c in range(c0, c1):
        plus = bias[group * p.channels + c] if len(bias) > 0 else out.dtype.type(0)
        if p.direct:
            for s in range(segments):
                place = (((n0 + s) * p.groups + group) * p.channels + c) * p.space
                add_row(out, place, sums, (c - c0) * p.pitch + s * p.space, p.space, plus)
            continue
        fill_with(pixels[: segments * p.space], plus)
        for tap in range(p.taps):
            line, spots = ((c - c0) * p.taps + tap) * p.pitch, tap * p.width
            for q in range(columns):
                pixels[table[spots + q]] += sums[line + q]
        for s in range(segments):
            place = (((n0 + s) * p.groups + group) * p.channels + c) * p.space
            take_row(out, place, pixels, s * p.space, p.space, 1)
    return block


def pixels_body(
    out: Array, g: Array, weight: Array, bias: Array, p: Windows, scratch: Array, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute units [lo, hi): rows of the gradient side by side, then products and their places."""
    gradients = array_in(scratch, 0, len(scratch) // out.itemsize, out)
    if lo >> PHASE_BITS == 0:
        chunks = (p.outputs + p.some - 1) // p.some
        for unit in range(lo, hi):
            group, block = unit // chunks // p.blocks, unit // chunks % p.blocks
            o0 = unit % chunks * p.some
            for o in range(o0, min(o0 + p.some, p.outputs)):
                at = ((group * p.blocks + block) * p.outputs + o) * p.pitch
                _write_gradients(gradients, at, g, p, group, block, o)
        return
    block = -1
    for unit in range(lo & PHASE_MASK, hi & PHASE_MASK):
        block = _pixels_unit(out, weight, bias, p, gradients, arena, unit, block)


# --- by the weight ------------------------------------------------------------------------------


def _depth_pitch(p: Windows) -> int:
    pitch = _up(p.samples * p.places, p.lanes)
    return pitch + (p.lanes if pitch * p.size % 512 == 0 else 0)


def _taps_unit(
    out: Array, x: Array, p: Windows, gradients: Array, arena: Array, unit: int, written: int
) -> int:
    """Some columns of a group's gradient by the weight; the block whose table is written."""
    size = p.size
    group, across = unit // p.down, p.channels * p.taps
    r0, r1 = unit % p.down * p.tall, min((unit % p.down + 1) * p.tall, across)
    table = _table(arena, p)
    own = _table_bytes(p)
    laid = array_in(arena, own, _up(p.tall, p.nr) * p.pitch, out)
    own += _up(len(laid) * size, 64)
    panels = array_in(arena, own, _up(p.tall, p.nr) * p.pitch, out)
    row = _depth_pitch(p)
    first = address(gradients) + group * p.outputs * row * size
    to = address(out) + (group * p.outputs * across + r0) * size
    for block in range(p.blocks):
        n0, segments, q0, count = _block(p, block)
        if written != block and not p.direct:
            _write_table(table, p, block, p.groups * p.channels * p.space, -1)
            written = block
        depth = segments * count
        _write_windows(laid, 0, p.pitch, p.width, 0, x, p, table, group, block, r0, r1)
        pack_panels(p, address(laid), depth, r1 - r0, address(panels))
        offset = first + (n0 * p.places + q0) * size
        kind = START_NONE if block == 0 else START_ROWS
        for o in range(0, p.outputs, p.high):
            most = min(p.outputs, o + p.high)
            for j in range(0, r1 - r0, p.nr):
                for i in range(o, most, p.mr):
                    tile = to + (i * across + j) * size
                    multiply_tile(
                        p.tile, depth, offset + i * row * size, row, 1,
                        address(panels) + j * depth * size, p.nr, 1, tile, across, kind, tile,
                        across, min(p.mr, most - i), min(p.nr, r1 - r0 - j),
                    )  # fmt: skip
    return written


def taps_body(
    out: Array, g: Array, x: Array, p: Windows, scratch: Array, arena: Array, lo: int, hi: int
) -> None:
    """Compute units [lo, hi): all samples' gradients side by side, then products."""
    gradients = array_in(scratch, 0, len(scratch) // out.itemsize, out)
    if lo >> PHASE_BITS == 0:
        chunks, row = (p.outputs + p.some - 1) // p.some, _depth_pitch(p)
        for unit in range(lo, hi):
            group, o0 = unit // chunks, unit % chunks * p.some
            for o in range(o0, min(o0 + p.some, p.outputs)):
                for n in range(p.samples):
                    plane = ((n * p.groups + group) * p.outputs + o) * p.places
                    at = (group * p.outputs + o) * row + n * p.places
                    take_row(gradients, at, g, plane, p.places, 1)
        return
    block = -1
    for unit in range(lo & PHASE_MASK, hi & PHASE_MASK):
        block = _taps_unit(out, x, p, gradients, arena, unit, block)
