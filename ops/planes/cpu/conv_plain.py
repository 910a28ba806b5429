"""Convolution row by row, for shapes of which not even one channel fits into an arena.

These are planes some 100,000 elements wide and kernels with strides of hundreds.  A row of the
result stays in the cache while every tap adds its row to it; nothing is laid out.
"""

from __future__ import annotations

from typing import Any

from flowvm.ops.planes.cpu.conv_plan import Shape
from flowvm.ops.planes.cpu.conv_strips import fill_with

__all__ = [
    "numbers_of",
    "plain_back_bias_body",
    "plain_back_body",
    "plain_bias_body",
    "plain_body",
    "plain_weight_body",
]

Array = Any


def numbers_of(s: Shape) -> tuple[int, ...]:
    """What the bodies take, in their order."""
    head = (s.samples, s.groups, s.channels, s.outputs)
    return (*head, *s.input, *s.output, *s.kernel, *s.stride, *s.padding, *s.dilation)


def _inside(tap: int, size: int, out: int, step: int, pad: int, gap: int) -> tuple[int, int, int]:
    """The outputs [first, last) whose tap is in the input, and where it lies for output 0."""
    start = tap * gap - pad
    first = max(0, (step - 1 - start) // step)
    return first, max(first, min(out, (size - 1 - start) // step + 1)), start


def _add_every(to: Array, x: Array, times: Any, step: int) -> None:
    """to[k] += times * x[k * step]"""
    if step == 1:
        for k in range(len(to)):
            to[k] += times * x[k]
    else:
        for k in range(len(to)):
            to[k] += times * x[k * step]


def _add_to_every(to: Array, x: Array, times: Any, step: int) -> None:
    """to[k * step] += times * x[k]"""
    if step == 1:
        for k in range(len(x)):
            to[k] += times * x[k]
    else:
        for k in range(len(x)):
            to[k * step] += times * x[k]


def _dot(y: Array, x: Array, step: int) -> Any:
    total = y.dtype.type(0)
    for k in range(len(y)):
        total += y[k] * x[k * step]
    return total


def _forward(out: Array, x: Array, weight: Array, s: tuple[int, ...], unit: int, plus: Any) -> None:
    """One channel of one sample."""
    _, groups, channels, outputs, d, h, w, od, oh, ow, kd, kh, kw = s[:13]
    sd, sh, sw, pd, ph, pw, dd, dh, dw = s[13:]
    n, o = unit // (groups * outputs), unit % (groups * outputs)
    for row in range(od * oh):
        z, y = row // oh, row % oh
        line = out[(unit * od * oh + row) * ow : (unit * od * oh + row + 1) * ow]
        fill_with(line, plus)
        for tap in range(channels * kd * kh * kw):
            e, b, a = tap % kw, tap // kw % kh, tap // (kw * kh) % kd
            c = tap // (kw * kh * kd)
            i, j = z * sd + a * dd - pd, y * sh + b * dh - ph
            if 0 <= i < d and 0 <= j < h:
                first, last, start = _inside(e, w, ow, sw, pw, dw)
                channel = (n * groups + o // outputs) * channels + c
                at = ((channel * d + i) * h + j) * w + start + first * sw
                times = weight[o * channels * kd * kh * kw + tap]
                _add_every(line[first:last], x[at:], times, sw)


def plain_body(
    out: Array, x: Array, weight: Array, samples: int, groups: int, channels: int, outputs: int,
    d: int, h: int, w: int, od: int, oh: int, ow: int, kd: int, kh: int, kw: int, sd: int, sh: int,
    sw: int, pd: int, ph: int, pw: int, dd: int, dh: int, dw: int, lo: int, hi: int,
) -> None:  # fmt: skip
    s = (
        samples, groups, channels, outputs, d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph,
        pw, dd, dh, dw,
    )  # fmt: skip
    for unit in range(lo, hi):
        _forward(out, x, weight, s, unit, out.dtype.type(0))


def plain_bias_body(
    out: Array, x: Array, weight: Array, bias: Array, samples: int, groups: int, channels: int,
    outputs: int, d: int, h: int, w: int, od: int, oh: int, ow: int, kd: int, kh: int, kw: int,
    sd: int, sh: int, sw: int, pd: int, ph: int, pw: int, dd: int, dh: int, dw: int, lo: int,
    hi: int,
) -> None:  # fmt: skip
    s = (
        samples, groups, channels, outputs, d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph,
        pw, dd, dh, dw,
    )  # fmt: skip
    for unit in range(lo, hi):
        _forward(out, x, weight, s, unit, bias[unit % (groups * outputs)])


def _back(out: Array, g: Array, weight: Array, s: tuple[int, ...], unit: int, plus: Any) -> None:
    """One channel of the input of one sample."""
    _, groups, channels, outputs, d, h, w, od, oh, ow, kd, kh, kw = s[:13]
    sd, sh, sw, pd, ph, pw, dd, dh, dw = s[13:]
    task, c = unit // channels, unit % channels
    taps = kd * kh * kw
    for row in range(d * h):
        z, y = row // h, row % h
        line = out[(unit * d * h + row) * w : (unit * d * h + row + 1) * w]
        fill_with(line, plus)
        for tap in range(outputs * taps):
            e, b, a, o = tap % kw, tap // kw % kh, tap // (kw * kh) % kd, tap // taps
            i, j = z + pd - a * dd, y + ph - b * dh
            if i % sd != 0 or j % sh != 0 or not 0 <= i < od * sd or not 0 <= j < oh * sh:
                continue
            first, last, start = _inside(e, w, ow, sw, pw, dw)
            at = (((task * outputs + o) * od + i // sd) * oh + j // sh) * ow
            times = weight[((task % groups * outputs + o) * channels + c) * taps + tap % taps]
            to = line[min(w, start + first * sw) :]
            _add_to_every(to, g[at + first : at + last], times, sw)


def plain_back_body(
    out: Array, g: Array, weight: Array, samples: int, groups: int, channels: int, outputs: int,
    d: int, h: int, w: int, od: int, oh: int, ow: int, kd: int, kh: int, kw: int, sd: int, sh: int,
    sw: int, pd: int, ph: int, pw: int, dd: int, dh: int, dw: int, lo: int, hi: int,
) -> None:  # fmt: skip
    s = (
        samples, groups, channels, outputs, d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph,
        pw, dd, dh, dw,
    )  # fmt: skip
    for unit in range(lo, hi):
        _back(out, g, weight, s, unit, out.dtype.type(0))


def plain_back_bias_body(
    out: Array, g: Array, weight: Array, bias: Array, samples: int, groups: int, channels: int,
    outputs: int, d: int, h: int, w: int, od: int, oh: int, ow: int, kd: int, kh: int, kw: int,
    sd: int, sh: int, sw: int, pd: int, ph: int, pw: int, dd: int, dh: int, dw: int, lo: int,
    hi: int,
) -> None:  # fmt: skip
    s = (
        samples, groups, channels, outputs, d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph,
        pw, dd, dh, dw,
    )  # fmt: skip
    for unit in range(lo, hi):
        _back(out, g, weight, s, unit, bias[unit % (groups * channels)])


def plain_weight_body(
    out: Array, g: Array, x: Array, samples: int, groups: int, channels: int, outputs: int,
    d: int, h: int, w: int, od: int, oh: int, ow: int, kd: int, kh: int, kw: int, sd: int, sh: int,
    sw: int, pd: int, ph: int, pw: int, dd: int, dh: int, dw: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """A unit is one output channel."""
    taps = kd * kh * kw
    for unit in range(lo, hi):
        group = unit // outputs
        for tap in range(channels * taps):
            e, b, a, c = tap % kw, tap // kw % kh, tap // (kw * kh) % kd, tap // taps
            first, last, start = _inside(e, w, ow, sw, pw, dw)
            total = out.dtype.type(0)
            for row in range(samples * od * oh):
                n, z, y = row // (od * oh), row // oh % od, row % oh
                i, j = z * sd + a * dd - pd, y * sh + b * dh - ph
                if 0 <= i < d and 0 <= j < h:
                    channel = (n * groups + group) * channels + c
                    at = ((channel * d + i) * h + j) * w + start + first * sw
                    own = ((n * groups * outputs + unit) * od + z) * oh * ow + y * ow
                    total += _dot(g[own + first : own + last], x[at:], sw)
            out[unit * channels * taps + tap] = total
