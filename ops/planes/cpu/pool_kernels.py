"""The kernels of pooling.

Maxima of windows of fixed size go row by row (`pool_rows`).  For averages such windows lie as a
convolution's taps do (`conv_plan`): planes are laid out so that each tap is the same line shifted,
and the sum of all windows is one loop over the line for each tap.  A plane is done in blocks of
positions that stay in the nearest cache; what depends on the position alone is made once for all
planes of a chunk.

Adaptive windows differ in size, and large ones are few: `any_...` go from window to window, where
averages add up the rows first, then the columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flowvm.errors import Status
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.planes.cpu.conv_plan import shift_of, takes_part
from flowvm.ops.planes.cpu.conv_rows import sum_row, take_row
from flowvm.ops.planes.cpu.conv_strips import fill_with, lay_out
from flowvm.ops.planes.cpu.pool_rows import max_row

WORDS_ONLY = True  # for flowvm.compiler.native
OUTSIDE = int(Status.INDEX_OUT_OF_RANGE)


class Windows(NamedTuple):
    """Sizes of input, output, kernel, stride, padding and dilation; a kernel of 0 means adaptive
    windows.
    """

    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int


class Lines(NamedTuple):
    """The layout of planes: phases, row pitch, a block's positions, blocks, a phase's pitch.

    Planes have no blocks, and are not laid out, if windows are adaptive or so large that they are
    few.
    """

    sources_h: int
    sources_w: int
    wide: int
    span: int
    blocks: int
    pitch: int

    @property
    def elements(self) -> int:
        """The number of elements laid out."""
        return self.sources_h * self.sources_w * self.pitch


class Spread(NamedTuple):
    """The layout of the gradient of averages: first positions, height, width; then as `Lines`."""

    base_h: int
    base_w: int
    down: int
    across: int
    wide: int
    span: int
    blocks: int
    pitch: int


class Divisor(NamedTuple):
    """The divisor of averages: the elements of a window, the padding among them if `padded`.

    It is `fixed` if that is not 0.
    """

    padded: bool
    fixed: int


def _lay_out_plane(lines: Array, x: Array, t: Windows, cut: Lines, plane: int, q0: int) -> None:
    """The phases of a plane, from position q0 on."""
    xs = x[plane * t.h * t.w : (plane + 1) * t.h * t.w]
    outside = x.dtype.type(0)
    for phase in range(cut.sources_h * cut.sources_w):
        corner = phase // cut.sources_w - t.ph, phase % cut.sources_w - t.pw
        lay_out(
            lines[phase * cut.pitch : (phase + 1) * cut.pitch], xs, (t.h, t.w), cut.wide, q0,
            corner, (t.sh, t.sw), outside,
        )  # fmt: skip


def _shift(distance: int, step: int, phase: int, next_: int) -> int:
    """Return how far a tap moves the begin of its line, by its distance from its window's begin.

    The distance is down or across; phases are `phase` apart, their rows or columns `next_`.
    """
    return distance % step * phase + distance // step * next_


# --- maxima -------------------------------------------------------------------------------------


def max_body(out: Array, index: Array, x: Array, t: Windows, lo: int, hi: int) -> None:
    h, w, oh, ow, dh = t.h, t.w, t.oh, t.ow, t.dh
    for plane in range(lo, hi):
        for y in range(oh):
            top = y * t.sh - t.ph
            b = (dh - 1 - top) // dh if top < 0 else 0
            rows = min(t.kh, (h - 1 - top) // dh + 1) - b
            place = (top + b * dh) * w
            at = plane * h * w + place
            max_row(
                out, index, (plane * oh + y) * ow, x, at, place, ow, rows, dh * w, t.kw, t.sw,
                t.dw, t.pw, w, len(x) - at,
            )  # fmt: skip


def _bounds(i: int, size: int, out: int, k: int, s: int, p: int) -> tuple[int, int]:
    """Window i as [start, end), which may reach into the padding."""
    if k == 0:
        return i * size // out, ((i + 1) * size + out - 1) // out
    return i * s - p, min(i * s - p + k, size + p)


def any_max_body(out: Array, index: Array, x: Array, t: Windows, lo: int, hi: int) -> None:
    h, w, oh, ow, dh, dw = t.h, t.w, t.oh, t.ow, t.dh, t.dw
    tall, wide = (t.kh - 1) * dh + 1 if t.kh else 0, (t.kw - 1) * dw + 1 if t.kw else 0
    for plane in range(lo, hi):
        xs = x[plane * h * w : (plane + 1) * h * w]
        for i in range(oh):
            top, bottom = _bounds(i, h, oh, tall, t.sh, t.ph)
            while top < 0:
                top += dh
            for j in range(ow):
                left, right = _bounds(j, w, ow, wide, t.sw, t.pw)
                while left < 0:
                    left += dw
                at = top * w + left
                best = xs[at]
                for y in range(top, min(bottom, h), dh):
                    for z in range(left, min(right, w), dw):
                        v = xs[y * w + z]
                        if v > best or v != v:
                            best, at = v, y * w + z
                out[(plane * oh + i) * ow + j] = best
                index[(plane * oh + i) * ow + j] = at


def _outside(index: Array, size: int, details: Array) -> bool:
    """Return True if a place lies outside its plane, and write it to `details`."""
    wrong = 0
    for k in range(len(index)):
        wrong |= int(np.uint64(index[k]) >= np.uint64(size))
    if wrong == 0:
        return False
    for k in range(len(index)):
        if index[k] < 0 or index[k] >= size:
            details[0], details[1], details[2] = index[k], size, -1
            break
    return True


def scatter_body(
    out: Array, g: Array, index: Array, size: int, places: int, lo: int, hi: int, details: Array
) -> int:
    """Add each g to its place in its plane."""
    for plane in range(lo, hi):
        if _outside(index[plane * places : (plane + 1) * places], size, details):
            return OUTSIDE
        whole = out[plane * size : (plane + 1) * size]
        fill_with(whole, whole.dtype.type(0))
        for k in range(plane * places, (plane + 1) * places):
            whole[index[k]] += g[k]
    return 0


def gather_body(
    out: Array, x: Array, index: Array, size: int, places: int, lo: int, hi: int, details: Array
) -> int:
    """Read each place of its plane."""
    for plane in range(lo, hi):
        if _outside(index[plane * places : (plane + 1) * places], size, details):
            return OUTSIDE
        for k in range(plane * places, (plane + 1) * places):
            out[k] = x[plane * size + index[k]]
    return 0


# --- averages -----------------------------------------------------------------------------------


def _divisors(
    counts: Array, t: Windows, by: Divisor, wide: int, q0: int, base_h: int, base_w: int
) -> None:
    """Store the divisor of each position's window.

    Row 0, column 0 is the window (base_h, base_w).
    """
    h, w, kh, kw = t.h, t.w, t.kh, t.kw
    for row in range(q0 // wide, (q0 + len(counts) - 1) // wide + 1):
        top = (row + base_h) * t.sh - t.ph
        high = min(top + kh, h + t.ph) - top
        if not by.padded:
            high = min(top + kh, h) - max(top, 0)
        for k in range(max(q0, row * wide), min(q0 + len(counts), (row + 1) * wide)):
            edge = (k - row * wide + base_w) * t.sw - t.pw
            across = min(edge + kw, w + t.pw) - edge
            if not by.padded:
                across = min(edge + kw, w) - max(edge, 0)
            count = by.fixed if by.fixed != 0 else max(1, high) * max(1, across)
            counts[k - q0] = counts.dtype.type(count)


def _add(total: Array, line: Array) -> None:
    for q in range(len(total)):
        total[q] += line[q]


def _add_number(line: Array, part: object) -> None:
    for q in range(len(line)):
        line[q] += part


def _divide(total: Array, counts: Array) -> None:
    for q in range(len(total)):
        total[q] /= counts[q]


def average_body(
    out: Array, x: Array, t: Windows, by: Divisor, cut: Lines, arena: Array, lo: int, hi: int
) -> None:
    oh, ow, sw, dw, wide, span, pitch = t.oh, t.ow, t.sw, t.dw, cut.wide, cut.span, cut.pitch
    own = array_in(arena, 0, 2 * span + cut.sources_h * cut.sources_w * cut.pitch, out)
    for block in range(cut.blocks):
        q0 = block * span
        count = min(span, (oh - 1) * wide + ow - q0)
        counts, total, lines = own[:count], own[span : span + count], own[2 * span :]
        _divisors(counts, t, by, wide, q0, 0, 0)
        for plane in range(lo, hi):
            _lay_out_plane(lines, x, t, cut, plane, q0)
            fill_with(total, out.dtype.type(0))
            for b in range(t.kh):
                top = _shift(b * t.dh, t.sh, cut.sources_w * pitch, wide)
                for e in range(t.kw):
                    at = top + _shift(e * dw, sw, pitch, 1)
                    _add(total, lines[at : at + count])
            _divide(total, counts)
            y = q0 // wide
            while y * wide < q0 + count:
                x0, x1 = max(0, q0 - y * wide), min(ow, q0 + count - y * wide)
                if x1 > x0:
                    at = y * wide + x0 - q0
                    take_row(out, (plane * oh + y) * ow + x0, total, at, x1 - x0, 1)
                y += 1


def average_back_body(
    out: Array, g: Array, t: Windows, by: Divisor, cut: Spread, arena: Array, lo: int, hi: int
) -> None:
    """Each row and column of the input modulo the stride is a phase, whose elements are in the same
    taps.
    """
    h, w, sh, sw, wide, span, pitch = t.h, t.w, t.sh, t.sw, cut.wide, cut.span, cut.pitch
    space, corner = t.oh * t.ow, (cut.base_h, cut.base_w)
    zero = out.dtype.type(0)
    own = array_in(arena, 0, 2 * pitch + sw * span, out)
    counts, lines, totals = own[:pitch], own[pitch : 2 * pitch], own[2 * pitch :]
    for block in range(cut.blocks):
        q0 = block * span
        count = min(span, (cut.down - 1) * wide + cut.across - q0)
        _divisors(counts, t, by, wide, q0, cut.base_h, cut.base_w)
        for plane in range(lo, hi):
            gs = g[plane * space : (plane + 1) * space]
            lay_out(lines, gs, (t.oh, t.ow), wide, q0, corner, (1, 1), zero)
            _divide(lines, counts)
            for f in range(sh):
                for e in range(sw):
                    total = totals[e * span : e * span + count]
                    fill_with(total, zero)
                    for b in range(t.kh):
                        top = shift_of(b, f, sh, t.ph, 1, 1, cut.base_h)
                        for c in range(t.kw):
                            edge = shift_of(c, e, sw, t.pw, 1, 1, cut.base_w)
                            if takes_part(top, sh, 1) and takes_part(edge, sw, 1):
                                at = top // sh * wide + edge // sw
                                _add(total, lines[at : at + count])
                y = q0 // wide
                while y * wide < q0 + count and y * sh + f < h:
                    x0, x1 = max(0, q0 - y * wide), min(cut.across, q0 + count - y * wide)
                    if x1 > x0:
                        to = (plane * h + y * sh + f) * w
                        _interleave(
                            out[to + x0 * sw : to + min(w, x1 * sw)], totals, y * wide + x0 - q0,
                            span, sw,
                        )  # fmt: skip
                    y += 1


def _interleave(to: Array, lines: Array, at: int, apart: int, step: int) -> None:
    """to[k * step + e] = lines[at + e * apart + k] for every element of `to`."""
    if step == 1:
        take_row(to, 0, lines, at, len(to), 1)
        return
    whole = len(to) // step
    if step == 2:
        even, odd = lines[at : at + whole], lines[at + apart : at + apart + whole]
        pairs = to[: 2 * whole]
        for k in range(whole):
            pairs[2 * k] = even[k]
            pairs[2 * k + 1] = odd[k]
    else:
        for k in range(whole):
            for e in range(step):
                to[k * step + e] = lines[at + e * apart + k]
    for e in range(len(to) - whole * step):
        to[whole * step + e] = lines[at + e * apart + whole]


def any_average_body(
    out: Array, x: Array, t: Windows, by: Divisor, arena: Array, lo: int, hi: int
) -> None:
    h, w, oh, ow, real = t.h, t.w, t.oh, t.ow, out.dtype.type
    line = array_in(arena, 0, min(w, len(arena) // out.itemsize), out)  # less where a row is long
    for plane in range(lo, hi):
        for i in range(oh):
            top, bottom = _bounds(i, h, oh, t.kh, t.sh, t.ph)
            y0, y1 = max(top, 0), min(bottom, h)
            at, ready = (plane * oh + i) * ow, False
            for j in range(ow):
                left, right = _bounds(j, w, ow, t.kw, t.sw, t.pw)
                z0, z1 = max(left, 0), min(right, w)
                count = (bottom - top) * (right - left) if by.padded else (y1 - y0) * (z1 - z0)
                count = by.fixed if by.fixed != 0 else count
                if z1 - z0 == w:  # whole rows lie together
                    total = sum_row(x, (plane * h + y0) * w, (y1 - y0) * w)
                elif len(line) < w:  # too long for the arena
                    total = real(0)
                    for y in range(y0, y1):
                        total += sum_row(x, (plane * h + y) * w + z0, z1 - z0)
                else:
                    if not ready:
                        take_row(line, 0, x, (plane * h + y0) * w, w, 1)
                        ready = True
                        for y in range(y0 + 1, y1):
                            _add(line, x[(plane * h + y) * w : (plane * h + y + 1) * w])
                    total = sum_row(line, z0, z1 - z0)
                out[at + j] = total / real(count)


def any_average_back_body(
    out: Array, g: Array, t: Windows, by: Divisor, arena: Array, lo: int, hi: int
) -> None:
    h, w, oh, ow, real = t.h, t.w, t.oh, t.ow, out.dtype.type
    line = array_in(arena, 0, min(w, len(arena) // out.itemsize), out)
    for plane in range(lo, hi):
        whole = out[plane * h * w : (plane + 1) * h * w]
        fill_with(whole, real(0))
        for i in range(oh):
            top, bottom = _bounds(i, h, oh, t.kh, t.sh, t.ph)
            y0, y1 = max(top, 0), min(bottom, h)
            fill_with(line, real(0))
            for j in range(ow):
                left, right = _bounds(j, w, ow, t.kw, t.sw, t.pw)
                z0, z1 = max(left, 0), min(right, w)
                count = (bottom - top) * (right - left) if by.padded else (y1 - y0) * (z1 - z0)
                count = by.fixed if by.fixed != 0 else count
                part = g[(plane * oh + i) * ow + j] / real(count)
                if len(line) < w:  # too long for the arena
                    for y in range(y0, y1):
                        _add_number(whole[y * w + z0 : y * w + z1], part)
                else:
                    _add_number(line[z0:z1], part)
            if len(line) == w:
                for y in range(y0, y1):
                    _add(whole[y * w : (y + 1) * w], line)
