"""The kernels of convolution: windows become columns of a matrix, BLAS does the rest.

Every convolution is done in three dimensions of space; missing ones have size 1.  A unit has its
own part of the scratch memory and does several blocks one after the other.  Which, depends on
shapes alone.  Units never write the same element.

Long because forward, input gradient and weight gradient share its gather and scatter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flowvm.ops.blas import gemm

Array = Any
Triple = tuple[int, int, int]
COLUMNS = 1 << 16  # elements of the matrix of columns at a time: what stays in a core's cache
UNITS = 16  # parts that the work is cut into at most: each has scratch of its own


class _Shape(NamedTuple):
    """A convolution, in the order in which kernels take it."""

    samples: int
    channels: int
    d: int
    h: int
    w: int
    outputs: int
    kd: int
    kh: int
    kw: int
    od: int
    oh: int
    ow: int
    sd: int
    sh: int
    sw: int
    pd: int
    ph: int
    pw: int
    dd: int
    dh: int
    dw: int
    groups: int

    @property
    def rows(self) -> int:
        """Rows of the matrix of columns: the elements of a window."""
        return self.channels // self.groups * self.kd * self.kh * self.kw

    @property
    def places(self) -> int:
        """Output positions of a sample."""
        return self.od * self.oh * self.ow

    @property
    def direct(self) -> bool:
        """Whether the input is its own matrix of columns."""
        return (
            self.kd == self.kh == self.kw == self.sd == self.sh == self.sw == 1
            and self.pd == self.ph == self.pw == 0
            and (self.d, self.h, self.w) == (self.od, self.oh, self.ow)
        )

    def width(self, rows: int) -> int:
        """Columns of a block, for so many rows."""
        return max(1, min(self.places, max(16, COLUMNS // max(1, rows))))


def _segment(z0: int, count: int, start: int, step: int, size: int) -> tuple[int, int]:
    """The part [first, last) of `count` outputs from z0 on whose input z * step + start is inside
    [0, size).
    """
    at = z0 * step + start
    first = 0 if at >= 0 else min(count, (step - 1 - at) // step)
    last = min(count, (size - 1 - at) // step + 1) if at < size else 0
    return first, max(first, last)


def _wipe(line: Array, w: int, q0: int, q1: int, right: int) -> None:
    """Zero what a shift by `right` carries from the end of one row to the next."""
    first, last = (max(w - right, 0), w) if right > 0 else (0, min(-right, w))
    if first < last:
        for y in range(q0 // w, (q1 + w - 1) // w):
            for q in range(max(q0, y * w + first), min(q1, y * w + last)):
                line[q - q0] = 0


def _overlap(h: int, w: int, q0: int, q1: int, down: int, right: int) -> tuple[int, int]:
    """The positions in [q0, q1) that, shifted, are rows of the plane and inside its memory."""
    delta = down * w + right
    first = min(q1, max(q0, max(-down * w, -delta)))
    return first, max(first, min(q1, min((h - down) * w, h * w - delta)))


def _gather(
    columns: Array, x: Array, x_at: int, channels: int, g: tuple[int, ...], p0: int, p1: int
) -> None:
    """Windows at output positions [p0, p1) of `channels` channels from x_at on, one a column."""
    _, _, d, h, w, _, kd, kh, kw, _, oh, ow, sd, sh, sw, pd, ph, pw, dd, dh, dw, _ = g
    width = p1 - p0
    for tap in range(channels * kd * kh * kw):
        e, b, a, c = tap % kw, tap // kw % kh, tap // (kw * kh) % kd, tap // (kw * kh * kd)
        line = columns[tap * width : (tap + 1) * width]
        shift = e * dw - pw
        if sw == 1 and sh == 1 and ow == w:  # a line is the plane, shifted: copied in one piece
            p = p0
            while p < p1:
                z = p // (ow * oh)
                q0 = p - z * ow * oh
                q1 = min(ow * oh, q0 + p1 - p)
                into, i, down = line[p - p0 : p - p0 + q1 - q0], z * sd - pd + a * dd, b * dh - ph
                first, last = q0, q0
                if i >= 0 and i < d:
                    first, last = _overlap(h, w, q0, q1, down, shift)
                for k in range(first - q0):
                    into[k] = 0
                middle = into[first - q0 : last - q0]
                start = x_at + (c * d + i) * h * w + down * w + shift + first
                source = x[start : start + last - first]
                for k in range(len(middle)):
                    middle[k] = source[k]
                for k in range(last - q0, q1 - q0):
                    into[k] = 0
                _wipe(into, w, q0, q1, shift)
                p += q1 - q0
            continue
        whole_first, whole_last = _segment(0, ow, shift, sw, w)
        p, z0, y, z = p0, p0 % ow, p0 // ow % oh, p0 // (ow * oh)
        while p < p1:
            n = min(ow - z0, p1 - p)
            into = line[p - p0 : p - p0 + n]
            i, j = z * sd - pd + a * dd, y * sh - ph + b * dh
            first, last = whole_first, whole_last
            if n < ow:
                first, last = _segment(z0, n, shift, sw, w)
            if i < 0 or i >= d or j < 0 or j >= h:
                first, last = 0, 0
            for k in range(first):
                into[k] = 0
            start = x_at + ((c * d + i) * h + j) * w + (z0 + first) * sw + shift
            middle = into[first:last]
            if sw == 1:
                source = x[start : start + last - first]
                for k in range(len(middle)):
                    middle[k] = source[k]
            else:
                for k in range(len(middle)):
                    middle[k] = x[start + k * sw]
            for k in range(last, n):
                into[k] = 0
            p, z0, y = p + n, 0, y + 1
            if y == oh:
                y, z = 0, z + 1


def _scatter(
    columns: Array, x: Array, x_at: int, channels: int, g: tuple[int, ...], p0: int, p1: int
) -> None:
    """The reverse: add every column to its window."""
    _, _, d, h, w, _, kd, kh, kw, _, oh, ow, sd, sh, sw, pd, ph, pw, dd, dh, dw, _ = g
    width = p1 - p0
    for tap in range(channels * kd * kh * kw):
        e, b, a, c = tap % kw, tap // kw % kh, tap // (kw * kh) % kd, tap // (kw * kh * kd)
        line = columns[tap * width : (tap + 1) * width]
        shift = e * dw - pw
        if sw == 1 and sh == 1 and ow == w:
            p = p0
            while p < p1:
                z = p // (ow * oh)
                q0 = p - z * ow * oh
                q1 = min(ow * oh, q0 + p1 - p)
                part, i, down = line[p - p0 : p - p0 + q1 - q0], z * sd - pd + a * dd, b * dh - ph
                if i >= 0 and i < d:
                    _wipe(part, w, q0, q1, shift)
                    first, last = _overlap(h, w, q0, q1, down, shift)
                    middle = part[first - q0 : last - q0]
                    start = x_at + (c * d + i) * h * w + down * w + shift + first
                    target = x[start : start + last - first]
                    for k in range(len(middle)):
                        target[k] += middle[k]
                p += q1 - q0
            continue
        whole_first, whole_last = _segment(0, ow, shift, sw, w)
        p, z0, y, z = p0, p0 % ow, p0 // ow % oh, p0 // (ow * oh)
        while p < p1:
            n = min(ow - z0, p1 - p)
            i, j = z * sd - pd + a * dd, y * sh - ph + b * dh
            if i >= 0 and i < d and j >= 0 and j < h:
                first, last = whole_first, whole_last
                if n < ow:
                    first, last = _segment(z0, n, shift, sw, w)
                start = x_at + ((c * d + i) * h + j) * w + (z0 + first) * sw + shift
                middle = line[p - p0 + first : p - p0 + last]
                if sw == 1:
                    target = x[start : start + last - first]
                    for k in range(len(middle)):
                        target[k] += middle[k]
                else:
                    for k in range(len(middle)):
                        x[start + k * sw] += middle[k]
            p, z0, y = p + n, 0, y + 1
            if y == oh:
                y, z = 0, z + 1


def _forward(
    out: Array, x: Array, weight: Array, bias: Array, biased: bool, g: tuple[int, ...],
    address: int, direct: bool, width: int, units: int, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """A task is a block of output positions of one group in one sample."""
    samples, channels, outputs, groups = g[0], g[1], g[5], g[21]
    each, made = channels // groups, outputs // groups
    space, places = g[2] * g[3] * g[4], g[9] * g[10] * g[11]
    rows = each * g[6] * g[7] * g[8]
    blocks = (places + width - 1) // width
    tasks = samples * groups * blocks
    one = out.dtype.type(1)
    beta = out.dtype.type(biased)
    for unit in range(lo, hi):
        own = scratch.view(out.dtype)
        if not direct:
            own = own[unit * rows * width : (unit + 1) * rows * width]
        for task in range(unit * tasks // units, (unit + 1) * tasks // units):
            block, group, n = task % blocks, task // blocks % groups, task // (blocks * groups)
            p0 = block * width
            p1 = min(p0 + width, places)
            x_at = (n * channels + group * each) * space
            at = (n * outputs + group * made) * places + p0
            if biased:
                for o in range(made):
                    line = out[at + o * places : at + o * places + p1 - p0]
                    b = bias[group * made + o]
                    for k in range(len(line)):
                        line[k] = b
            if direct:
                gemm(
                    address, 0, 0, made, p1 - p0, rows, one, weight, group * made * rows, rows,
                    x, x_at + p0, places, beta, out, at, places,
                )  # fmt: skip
            else:
                _gather(own, x, x_at, each, g, p0, p1)
                gemm(
                    address, 0, 0, made, p1 - p0, rows, one, weight, group * made * rows, rows,
                    own, 0, p1 - p0, beta, out, at, places,
                )  # fmt: skip


def _conv_body(
    out: Array, x: Array, weight: Array,
    samples: int, channels: int, d: int, h: int, w: int, outputs: int, kd: int, kh: int, kw: int,
    od: int, oh: int, ow: int, sd: int, sh: int, sw: int, pd: int, ph: int, pw: int,
    dd: int, dh: int, dw: int, groups: int, address: int, direct: bool, width: int, units: int,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    g = (
        samples, channels, d, h, w, outputs, kd, kh, kw, od, oh, ow, sd, sh, sw, pd, ph, pw, dd,
        dh, dw, groups,
    )  # fmt: skip
    _forward(out, x, weight, weight, False, g, address, direct, width, units, scratch, lo, hi)


def _conv_bias_body(
    out: Array, x: Array, weight: Array, bias: Array,
    samples: int, channels: int, d: int, h: int, w: int, outputs: int, kd: int, kh: int, kw: int,
    od: int, oh: int, ow: int, sd: int, sh: int, sw: int, pd: int, ph: int, pw: int,
    dd: int, dh: int, dw: int, groups: int, address: int, direct: bool, width: int, units: int,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    g = (
        samples, channels, d, h, w, outputs, kd, kh, kw, od, oh, ow, sd, sh, sw, pd, ph, pw, dd,
        dh, dw, groups,
    )  # fmt: skip
    _forward(out, x, weight, bias, True, g, address, direct, width, units, scratch, lo, hi)


def _input_body(
    out: Array, grad: Array, weight: Array,
    samples: int, channels: int, d: int, h: int, w: int, outputs: int, kd: int, kh: int, kw: int,
    od: int, oh: int, ow: int, sd: int, sh: int, sw: int, pd: int, ph: int, pw: int,
    dd: int, dh: int, dw: int, groups: int, address: int, direct: bool, width: int, units: int,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """A task is one group in one sample: its windows overlap, so that their sums belong to one
    unit.
    """
    g = (
        samples, channels, d, h, w, outputs, kd, kh, kw, od, oh, ow, sd, sh, sw, pd, ph, pw, dd,
        dh, dw, groups,
    )  # fmt: skip
    each, made, space, places = channels // groups, outputs // groups, d * h * w, od * oh * ow
    rows = each * kd * kh * kw
    tasks = samples * groups
    one, zero = out.dtype.type(1), out.dtype.type(0)
    for unit in range(lo, hi):
        own = scratch.view(out.dtype)
        if not direct:
            own = own[unit * rows * width : (unit + 1) * rows * width]
        for task in range(unit * tasks // units, (unit + 1) * tasks // units):
            at, g_at = task * each * space, task * made * places
            weight_at = task % groups * made * rows
            if direct:
                gemm(
                    address, 1, 0, each, places, made, one, weight, weight_at, rows, grad, g_at,
                    places,
                    zero, out, at, places,
                )  # fmt: skip
                continue
            whole = out[at : at + each * space]
            for k in range(len(whole)):
                whole[k] = 0
            for p0 in range(0, places, width):
                p1 = min(p0 + width, places)
                gemm(
                    address, 1, 0, rows, p1 - p0, made, one, weight, weight_at, rows,
                    grad, g_at + p0, places, zero, own, 0, p1 - p0,
                )  # fmt: skip
                _scatter(own, out, at, each, g, p0, p1)


def _weight_body(
    out: Array, grad: Array, x: Array,
    samples: int, channels: int, d: int, h: int, w: int, outputs: int, kd: int, kh: int, kw: int,
    od: int, oh: int, ow: int, sd: int, sh: int, sw: int, pd: int, ph: int, pw: int,
    dd: int, dh: int, dw: int, groups: int, address: int, direct: bool, width: int,
    c_parts: int, o_parts: int, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """A unit is some of a group's input channels with some of its output channels, over all
    samples.
    """
    g = (
        samples, channels, d, h, w, outputs, kd, kh, kw, od, oh, ow, sd, sh, sw, pd, ph, pw, dd,
        dh, dw, groups,
    )  # fmt: skip
    each, made, space, places = channels // groups, outputs // groups, d * h * w, od * oh * ow
    taps = kd * kh * kw
    widest = (each + c_parts - 1) // c_parts * taps * width
    one = out.dtype.type(1)
    for unit in range(lo, hi):
        own = scratch.view(out.dtype)
        if not direct:
            own = own[unit * widest : (unit + 1) * widest]
        o_part, c_part = unit % o_parts, unit // o_parts % c_parts
        group = unit // (o_parts * c_parts)
        c0, c1 = c_part * each // c_parts, (c_part + 1) * each // c_parts
        o0, o1 = o_part * made // o_parts, (o_part + 1) * made // o_parts
        rows = (c1 - c0) * taps
        at = ((group * made + o0) * each + c0) * taps
        beta = out.dtype.type(0)
        if samples * places == 0:
            for o in range(o1 - o0):
                for k in range(rows):
                    out[at + o * each * taps + k] = 0
        for n in range(samples):
            x_at = (n * channels + group * each + c0) * space
            g_at = (n * outputs + group * made + o0) * places
            for p0 in range(0, places, width):
                p1 = min(p0 + width, places)
                if direct:
                    gemm(
                        address, 0, 1, o1 - o0, rows, p1 - p0, one, grad, g_at + p0, places,
                        x, x_at + p0, places, beta, out, at, each * taps,
                    )  # fmt: skip
                else:
                    _gather(own, x, x_at, c1 - c0, g, p0, p1)
                    gemm(
                        address, 0, 1, o1 - o0, rows, p1 - p0, one, grad, g_at + p0, places,
                        own, 0, p1 - p0, beta, out, at, each * taps,
                    )  # fmt: skip
                beta = one
