"""Convolution row by row, for shapes of which an arena cannot hold one channel.

These are planes some 100,000 elements wide and kernels with strides of hundreds.  A row of the
result stays in the cache while every tap adds its row to it; nothing is laid out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.meta.arrays import Array
from flowvm.ops.planes.cpu.conv_plan import Geometry
from flowvm.ops.planes.cpu.conv_strips import fill_with

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number


def _inside(tap: int, size: int, out: int, step: int, pad: int, gap: int) -> tuple[int, int, int]:
    """The outputs [first, last) whose tap is in the input, and where it lies for output 0."""
    start = tap * gap - pad
    first = max(0, (step - 1 - start) // step)
    return first, max(first, min(out, (size - 1 - start) // step + 1)), start


def _add_every(to: Array, x: Array, times: object, step: int) -> None:
    """to[k] += times * x[k * step]"""
    if step == 1:
        for k in range(len(to)):
            to[k] += times * x[k]
    else:
        for k in range(len(to)):
            to[k] += times * x[k * step]


def _add_to_every(to: Array, x: Array, times: object, step: int) -> None:
    """to[k * step] += times * x[k]"""
    if step == 1:
        for k in range(len(x)):
            to[k] += times * x[k]
    else:
        for k in range(len(x)):
            to[k * step] += times * x[k]


def _dot(y: Array, x: Array, step: int) -> Number:
    total = y.dtype.type(0)
    for k in range(len(y)):
        total += y[k] * x[k * step]
    return total


def plain_body(
    out: Array, x: Array, weight: Array, bias: Array, s: Geometry, lo: int, hi: int
) -> None:
    """A unit is a channel of a sample."""
    d, h, w, od, oh, ow, kd, kh, kw = s.d, s.h, s.w, s.od, s.oh, s.ow, s.kd, s.kh, s.kw
    taps = s.channels * kd * kh * kw
    for unit in range(lo, hi):
        n, o = unit // (s.groups * s.outputs), unit % (s.groups * s.outputs)
        plus = bias[o] if len(bias) > 0 else out.dtype.type(0)
        for row in range(od * oh):
            z, y = row // oh, row % oh
            line = out[(unit * od * oh + row) * ow : (unit * od * oh + row + 1) * ow]
            fill_with(line, plus)
            for tap in range(taps):
                e, b, a = tap % kw, tap // kw % kh, tap // (kw * kh) % kd
                c = tap // (kw * kh * kd)
                i, j = z * s.sd + a * s.dd - s.pd, y * s.sh + b * s.dh - s.ph
                if 0 <= i < d and 0 <= j < h:
                    first, last, start = _inside(e, w, ow, s.sw, s.pw, s.dw)
                    channel = (n * s.groups + o // s.outputs) * s.channels + c
                    at = ((channel * d + i) * h + j) * w + start + first * s.sw
                    _add_every(line[first:last], x[at:], weight[o * taps + tap], s.sw)


def plain_back_body(
    out: Array, g: Array, weight: Array, bias: Array, s: Geometry, lo: int, hi: int
) -> None:
    """A unit is a channel of the input of a sample."""
    d, h, w, od, oh, ow, kd, kh, kw = s.d, s.h, s.w, s.od, s.oh, s.ow, s.kd, s.kh, s.kw
    taps = kd * kh * kw
    for unit in range(lo, hi):
        task, c = unit // s.channels, unit % s.channels
        plus = bias[unit % (s.groups * s.channels)] if len(bias) > 0 else out.dtype.type(0)
        for row in range(d * h):
            z, y = row // h, row % h
            line = out[(unit * d * h + row) * w : (unit * d * h + row + 1) * w]
            fill_with(line, plus)
            for tap in range(s.outputs * taps):
                e, b, a, o = tap % kw, tap // kw % kh, tap // (kw * kh) % kd, tap // taps
                i, j = z + s.pd - a * s.dd, y + s.ph - b * s.dh
                if i % s.sd != 0 or j % s.sh != 0:
                    continue
                if not 0 <= i < od * s.sd or not 0 <= j < oh * s.sh:
                    continue
                first, last, start = _inside(e, w, ow, s.sw, s.pw, s.dw)
                at = (((task * s.outputs + o) * od + i // s.sd) * oh + j // s.sh) * ow
                row_of = (task % s.groups * s.outputs + o) * s.channels + c
                times = weight[row_of * taps + tap % taps]
                to = line[min(w, start + first * s.sw) :]
                _add_to_every(to, g[at + first : at + last], times, s.sw)


def plain_weight_body(out: Array, g: Array, x: Array, s: Geometry, lo: int, hi: int) -> None:
    """A unit is one output channel."""
    d, h, w, od, oh, ow, kd, kh, kw = s.d, s.h, s.w, s.od, s.oh, s.ow, s.kd, s.kh, s.kw
    taps = kd * kh * kw
    for unit in range(lo, hi):
        group = unit // s.outputs
        for tap in range(s.channels * taps):
            e, b, a, c = tap % kw, tap // kw % kh, tap // (kw * kh) % kd, tap // taps
            first, last, start = _inside(e, w, ow, s.sw, s.pw, s.dw)
            total = out.dtype.type(0)
            for row in range(s.samples * od * oh):
                n, z, y = row // (od * oh), row // oh % od, row % oh
                i, j = z * s.sd + a * s.dd - s.pd, y * s.sh + b * s.dh - s.ph
                if 0 <= i < d and 0 <= j < h:
                    channel = (n * s.groups + group) * s.channels + c
                    at = ((channel * d + i) * h + j) * w + start + first * s.sw
                    own = ((n * s.groups * s.outputs + unit) * od + z) * oh * ow + y * ow
                    total += _dot(g[own + first : own + last], x[at:], s.sw)
            out[unit * s.channels * taps + tap] = total
