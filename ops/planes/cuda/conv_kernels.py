"""The kernels of convolution, and of `unfold` and `fold`.

    unrolled    the matrix of windows: a row for each (sample, channel, tap), a column for each
                position of the output
    gathered    that matrix added up again, each element of the input by one thread
    direct...   convolutions of one channel a group, without a matrix

Spaces have three dimensions (depth, height, width), missing ones of size 1.  A bias may be an array
of no elements.  Sums are taken in one order, whatever runs when.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import cuda

from flowvm.meta.arrays import Array
from flowvm.ops.declare.cuda.steps import BLOCK, remade_by, wide
from flowvm.ops.planes.cpu.conv_plan import Geometry


def _position(at: int, step: int, size: int) -> int:
    """The position whose window of this tap begins at `at`, or -1."""
    if at < 0:
        return -1
    place = at if step == 1 else at // step
    return place if place * step == at and place < size else -1


class Columns(NamedTuple):
    """Columns [first, first + length) of the matrix of windows, and where they lie: pitches from
    row to row and from sample to sample.
    """

    first: int
    length: int
    row_pitch: int
    sample_pitch: int


def unrolled(out: Array, x: Array, t: Geometry, part: Columns, rows: int, lanes: int) -> None:
    """Some columns of the matrix of windows."""
    channels, kh, kw, d, h, w = t.groups * t.channels, t.kh, t.kw, t.d, t.h, t.w
    oh, ow, sd, sh, sw = t.oh, t.ow, t.sd, t.sh, t.sw
    taps = t.kd * kh * kw
    lane, row = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    across, down, deep = lanes % ow, lanes // ow % oh, lanes // (ow * oh)
    zero = x.dtype.type(0)
    while row < rows:
        sample, place = row // (channels * taps), row % (channels * taps)
        tap, plane = place % taps, sample * channels + place // taps
        front = tap // (kh * kw) * t.dd - t.pd
        top, edge = tap // kw % kh * t.dh - t.ph, tap % kw * t.dw - t.pw
        to = sample * part.sample_pitch + place * part.row_pitch
        p = part.first + lane
        qx, qy, qz = p % ow, p // ow % oh, p // (ow * oh)
        for k in range(lane, part.length, lanes):
            i, j, e = qz * sd + front, qy * sh + top, qx * sw + edge
            inside = 0 <= i and i < d and 0 <= j and j < h and 0 <= e and e < w
            out[to + k] = x[((plane * d + i) * h + j) * w + e] if inside else zero
            qx, qy, qz = qx + across, qy + down, qz + deep
            if qx >= ow:
                qx, qy = qx - ow, qy + 1
            if qy >= oh:
                qy, qz = qy - oh, qz + 1
        row += cuda.gridsize(1) // lanes


def gathered(
    out: Array, columns: Array, bias: Array, t: Geometry, total: int, span: int, from_channel: int
) -> None:
    """The input's elements from the matrix of windows of `span` of its channels, the first of
    which is `from_channel`; `out` begins there.
    """
    channels, kd, kh, kw = t.groups * t.channels, t.kd, t.kh, t.kw
    h, w, od, oh, ow = t.h, t.w, t.od, t.oh, t.ow
    space, places, taps = t.d * h * w, od * oh * ow, kd * kh * kw
    unit = cuda.grid(1)
    while unit < total:
        plane, place = unit // space, unit % space
        z, y, x = place // (h * w) + t.pd, place // w % h + t.ph, place % w + t.pw
        sum_ = wide(out.dtype.type(0))
        if len(bias) > 0:
            sum_ = wide(bias[from_channel + plane % span])
        for a in range(kd):
            i = _position(z - a * t.dd, t.sd, od)
            if i >= 0:
                for b in range(kh):
                    j = _position(y - b * t.dh, t.sh, oh)
                    if j >= 0:
                        line = (i * oh + j) * ow
                        row = plane * taps + (a * kh + b) * kw
                        for c in range(kw):
                            e = _position(x - c * t.dw, t.sw, ow)
                            if e >= 0:
                                sum_ += wide(columns[(row + c) * places + line + e])
        out[(plane // span * channels + plane % span) * space + place] = out.dtype.type(sum_)
        unit += cuda.gridsize(1)


def biased(out: Array, bias: Array, rows: int, length: int, lanes: int) -> None:
    """Each row of `out` is the bias of its channel."""
    lane, row = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    while row < rows:
        value = bias[row % len(bias)]
        for k in range(lane, length, lanes):
            out[row * length + k] = value
        row += cuda.gridsize(1) // lanes


def regrouped(out: Array, x: Array, rows: int, channels: int, length: int, lanes: int) -> None:
    """(samples, channels, length) as (channels, samples, length)."""
    lane, row = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    samples = rows // max(channels, 1)
    while row < rows:
        to = (row % channels * samples + row // channels) * length
        for k in range(lane, length, lanes):
            out[to + k] = x[row * length + k]
        row += cuda.gridsize(1) // lanes


# --- one channel a group --------------------------------------------------------------------------


def direct(
    out: Array, x: Array, weight: Array, bias: Array, t: Geometry, rows: int, lanes: int
) -> None:
    """A row is a line of the output."""
    groups, outputs, kd, kh, kw = t.groups, t.outputs, t.kd, t.kh, t.kw
    d, h, w, od, oh, ow = t.d, t.h, t.w, t.od, t.oh, t.ow
    lane, row = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    while row < rows:
        plane, z, y = row // (od * oh), row // oh % od, row % oh
        channel = plane % (groups * outputs)
        base = (plane // (groups * outputs) * groups + channel // outputs) * d
        front, top = z * t.sd - t.pd, y * t.sh - t.ph
        for q in range(lane, ow, lanes):
            edge = q * t.sw - t.pw
            total = wide(out.dtype.type(0))
            if len(bias) > 0:
                total = wide(bias[channel])
            for a in range(kd):
                i = front + a * t.dd
                if 0 <= i and i < d:
                    for b in range(kh):
                        j = top + b * t.dh
                        if 0 <= j and j < h:
                            line = ((base + i) * h + j) * w
                            tap = ((channel * kd + a) * kh + b) * kw
                            for c in range(kw):
                                e = edge + c * t.dw
                                if 0 <= e and e < w:
                                    total += wide(x[line + e]) * wide(weight[tap + c])
            out[row * ow + q] = out.dtype.type(total)
        row += cuda.gridsize(1) // lanes


def direct_back(
    out: Array, g: Array, weight: Array, bias: Array, t: Geometry, rows: int, lanes: int
) -> None:
    """A row is a line of the input."""
    groups, outputs, kd, kh, kw = t.groups, t.outputs, t.kd, t.kh, t.kw
    d, h, w, od, oh, ow = t.d, t.h, t.w, t.od, t.oh, t.ow
    lane, row = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    while row < rows:
        plane, z, y = row // (d * h), row // h % d + t.pd, row % h + t.ph
        channel = plane % groups
        for q in range(lane, w, lanes):
            total = wide(out.dtype.type(0))
            if len(bias) > 0:
                total = wide(bias[channel])
            for o in range(outputs):
                for a in range(kd):
                    i = _position(z - a * t.dd, t.sd, od)
                    if i >= 0:
                        for b in range(kh):
                            j = _position(y - b * t.dh, t.sh, oh)
                            if j >= 0:
                                line = (((plane * outputs + o) * od + i) * oh + j) * ow
                                tap = (((channel * outputs + o) * kd + a) * kh + b) * kw
                                for c in range(kw):
                                    e = _position(q + t.pw - c * t.dw, t.sw, ow)
                                    if e >= 0:
                                        total += wide(g[line + e]) * wide(weight[tap + c])
            out[row * w + q] = out.dtype.type(total)
        row += cuda.gridsize(1) // lanes


@functools.cache
def direct_weight(dtype: str) -> Callable[..., None]:
    """The kernel that sums a tap's products over samples and positions, a block for each, in
    numbers of this dtype.
    """
    kind = np.dtype(dtype).type

    def direct_weight(out: Array, g: Array, x: Array, t: Geometry) -> None:
        kh, kw, d, h, w, oh, ow = t.kh, t.kw, t.d, t.h, t.w, t.oh, t.ow
        groups, outputs = t.groups, t.outputs
        parts = cuda.shared.array(BLOCK, kind)
        thread, count = cuda.threadIdx.x, cuda.blockDim.x
        taps, places, channels = t.kd * kh * kw, t.od * oh * ow, groups * outputs
        unit = cuda.blockIdx.x
        while unit < channels * taps:  # the same for all threads of a block
            channel, tap = unit // taps, unit % taps
            front = tap // (kh * kw) * t.dd - t.pd
            top, edge = tap // kw % kh * t.dh - t.ph, tap % kw * t.dw - t.pw
            total = kind(0)
            for k in range(thread, t.samples * places, count):
                sample, p = k // places, k % places
                i = p // (oh * ow) * t.sd + front
                j, e = p // ow % oh * t.sh + top, p % ow * t.sw + edge
                if 0 <= i and i < d and 0 <= j and j < h and 0 <= e and e < w:
                    plane = sample * groups + channel // outputs
                    value = kind(x[((plane * d + i) * h + j) * w + e])
                    total += value * kind(g[(sample * channels + channel) * places + p])
            parts[thread] = total
            cuda.syncthreads()
            half = count // 2
            while half > 0:
                if thread < half:
                    parts[thread] += parts[thread + half]
                cuda.syncthreads()
                half //= 2
            if thread == 0:
                out[unit] = out.dtype.type(kind(parts[0]))
            cuda.syncthreads()
            unit += cuda.gridDim.x

    return remade_by(direct_weight, f"{__name__}:direct_weight", dtype)
