"""The kernels of `interpolate`: planes of another size, each element from a few of the old ones.

A way of resizing is separable, so an axis is two tables: for each place of the result its taps'
places in the input, and their weights.  Phase 0 writes the tables of the three axes (depth, height,
width; missing ones have size 1) to the scratch, phase 1 is rows of the result.

Forward, a row of the input is resized to a line of the arena when it is first needed, and a row of
the result is the weighted sum of up to four lines, vectorized along the width; lines are kept while
the rows that need them follow each other.  Columns are done in blocks, so a line has a limit.

Backward turns the tables round: for each place of the input the places of the result that it went
to, in order.  A row of the gradient is then gathered, by one worker, in one order.  Tables of one
axis after another:

    forward     places[taps][out], weights[taps][out]
    backward    begins[in + 1], places[taps * out], weights[taps * out], without weights of 0
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.planes.cpu.conv_strips import fill_with

Pair = tuple[int, int]

PHASE_MASK = (1 << PHASE_BITS) - 1
NEAREST, EXACT, LINEAR, CUBIC = 0, 1, 2, 3  # kinds
FEW = 4  # entries of a place that need no loop
SHARP = -0.75  # the free parameter of the cubic kernel, as PyTorch has it


class Sizes(NamedTuple):
    """Sizes of the input and the result, steps in the input for one of the result, taps of each
    axis, kind and `align_corners`; `single`: places are reckoned in float32.
    """

    d: int
    h: int
    w: int
    od: int
    oh: int
    ow: int
    step_d: float
    step_h: float
    step_w: float
    taps_d: int
    taps_h: int
    taps_w: int
    kind: int
    corners: int
    single: int


# --- tables -------------------------------------------------------------------------------------


def _source(i: int, step: float, t: Sizes) -> float:
    """Return the position in the input of place i of the result."""
    kind, corners = t.kind, t.corners
    if t.single != 0:  # rounded where PyTorch rounds: the nearest place can hang on it
        if kind == NEAREST or (kind != EXACT and corners != 0):
            return float(np.float32(i) * np.float32(step))
        middle = (np.float32(i) + np.float32(0.5)) * np.float32(step)
        return float(middle) if kind == EXACT else float(middle - np.float32(0.5))
    if kind == NEAREST or (kind != EXACT and corners != 0):
        return i * step
    return (i + 0.5) * step if kind == EXACT else (i + 0.5) * step - 0.5


def _near(x: float) -> float:
    """The cubic kernel at a distance of at most 1."""
    return ((SHARP + 2.0) * x - (SHARP + 3.0)) * x * x + 1.0


def _far(x: float) -> float:
    """The cubic kernel at a distance between 1 and 2."""
    return ((SHARP * x - 5.0 * SHARP) * x + 8.0 * SHARP) * x - 4.0 * SHARP


def write_axis(places: Array, weights: Array, size: Pair, step: float, taps: int, t: Sizes) -> None:
    """The tables of an axis of n places that is resized to m, `size`; one tap takes the place as it
    is.
    """
    for i in range(size[1]):
        write_place(places, weights, i, size, step, taps, t)


def write_place(
    places: Array, weights: Array, i: int, size: Pair, step: float, taps: int, t: Sizes
) -> None:
    """Place i of an axis' tables."""
    n, m = size
    at = _source(i, step, t) if t.kind < LINEAR or taps > 1 else 0.0
    if taps == 1:
        places[i] = min(int(at), n - 1)
        weights[i] = 1
    elif taps == 2:
        if n == m:
            at = float(i)
        at = max(at, 0.0)
        low = min(int(at), n - 1)
        part = min(max(at - low, 0.0), 1.0)
        places[i] = low
        places[m + i] = low if n == m else min(low + 1, n - 1)
        weights[i], weights[m + i] = 1.0 - part, part
    else:
        low = min(math.floor(at), n - 1)
        part = min(max(at - low, 0.0), 1.0)
        for k in range(4):
            places[k * m + i] = min(max(low - 1 + k, 0), n - 1)
        weights[i], weights[m + i] = _far(part + 1.0), _near(part)
        weights[2 * m + i], weights[3 * m + i] = _near(1.0 - part), _far(2.0 - part)


def _turn(
    begins: Array, places: Array, weights: Array, to: Array, shares: Array, n: int, m: int,
    taps: int,
) -> None:  # fmt: skip
    """Invert an axis' tables (to, shares): store, for each of n places, its targets in order."""
    for j in range(n + 1):
        begins[j] = 0
    for k in range(taps * m):
        if shares[k] != 0:
            begins[to[k] + 1] += 1
    for j in range(n):
        begins[j + 1] += begins[j]
    for i in range(m):
        for k in range(taps):
            if shares[k * m + i] != 0:
                j = to[k * m + i]
                e = begins[j]
                places[e], weights[e] = i, shares[k * m + i]
                begins[j] = e + 1
    for j in range(n, 0, -1):
        begins[j] = begins[j - 1]
    begins[0] = 0


# --- nearest ------------------------------------------------------------------------------------


def nearest_body(out: Array, x: Array, t: Sizes, scratch: Array, lo: int, hi: int) -> None:
    d, h, w, od, oh, ow = t.d, t.h, t.w, t.od, t.oh, t.ow
    table = scratch.view(np.int32)
    if lo >> PHASE_BITS == 0:
        none = table[od + oh + ow :]  # weights are not asked for
        write_axis(table, none, (d, od), t.step_d, 1, t)
        write_axis(table[od:], none, (h, oh), t.step_h, 1, t)
        write_axis(table[od + oh :], none, (w, ow), t.step_w, 1, t)
        return
    columns = table[od + oh : od + oh + ow].view(np.uint32)  # unsigned: never counted from behind
    first, before = lo & PHASE_MASK, -1
    for k in range(hi - lo):
        row = first + k
        plane = row // (od * oh)
        source = (plane * d + table[row // oh % od]) * h + table[od + row % oh]
        to = out[row * ow : row * ow + ow]
        if source == before:
            last = out[(row - 1) * ow : row * ow]
            for i in range(ow):
                to[i] = last[i]
            continue
        line = x[source * w : source * w + w]
        if ow == w and t.step_w == 1.0:
            for i in range(ow):
                to[i] = line[i]
        else:
            for i in range(ow):
                to[i] = line[columns[i]]
        before = source


# --- weighted -----------------------------------------------------------------------------------


def _across(
    line: Array, x: Array, places: Array, weights: Array, m: int, at: int, taps: int
) -> None:
    """The row x resized: columns [at, at + len(line)) of m."""
    n = len(line)
    p, q = places[at : at + n], places[m + at :][:n]
    a, b = weights[at : at + n], weights[m + at :][:n]
    if taps == 2:
        for i in range(n):
            line[i] = a[i] * x[p[i]] + b[i] * x[q[i]]
        return
    r, s = places[2 * m + at :][:n], places[3 * m + at :][:n]
    c, d = weights[2 * m + at :][:n], weights[3 * m + at :][:n]
    for i in range(n):
        line[i] = a[i] * x[p[i]] + b[i] * x[q[i]] + c[i] * x[r[i]] + d[i] * x[s[i]]


def _down(to: Array, lines: Array, span: int, slots: Array, shares: Array, taps: int) -> None:
    """The sum of up to four lines, each with its share."""
    n = len(to)
    one, a = lines[slots[0] * span :][:n], shares[0]
    if taps == 1:
        for i in range(n):
            to[i] = one[i]
        return
    two, b = lines[slots[1] * span :][:n], shares[1]
    if taps == 2:
        for i in range(n):
            to[i] = a * one[i] + b * two[i]
        return
    three, c = lines[slots[2] * span :][:n], shares[2]
    four, d = lines[slots[3] * span :][:n], shares[3]
    for i in range(n):
        to[i] = a * one[i] + b * two[i] + c * three[i] + d * four[i]


def resize_body(
    out: Array, x: Array, t: Sizes, span: int, scratch: Array, arena: Array, lo: int, hi: int
) -> None:
    d, h, w, od, oh, ow = t.d, t.h, t.w, t.od, t.oh, t.ow
    taps_d, taps_h = t.taps_d, t.taps_h
    nd, nh, rows = taps_d * od, taps_h * oh, len(out) // max(1, ow)
    total = nd + nh + t.taps_w * ow
    shares = scratch[: total * out.itemsize].view(out.dtype)
    table = scratch[total * out.itemsize :].view(np.int32)
    if lo >> PHASE_BITS == 0:
        write_axis(table, shares, (d, od), t.step_d, taps_d, t)
        write_axis(table[nd:], shares[nd:], (h, oh), t.step_h, taps_h, t)
        write_axis(table[nd + nh :], shares[nd + nh :], (w, ow), t.step_w, t.taps_w, t)
        return
    columns = table[nd + nh : total].view(np.uint32)  # unsigned: never counted from behind
    across = shares[nd + nh :]
    sources, slots = arena[:32].view(np.int64), arena[32:64].view(np.int64)
    lines = arena[128:].view(out.dtype)
    weights = arena[64:128].view(out.dtype)
    sources[:] = -1
    taps = taps_d * taps_h
    for k in range(hi - lo):
        unit = (lo & PHASE_MASK) + k
        block, row = unit // rows, unit % rows
        plane, z, y = row // (od * oh), row // oh % od, row % oh
        n = min(span, ow - block * span)
        for tap in range(taps):
            down, over = table[tap // taps_h * od + z], table[nd + tap % taps_h * oh + y]
            slot = down % taps_d * taps_h + over % taps_h  # neighbours have slots of their own
            source = (plane * d + down) * h + over
            if sources[slot] != block * rows * d * h + source:
                line = lines[slot * span : slot * span + n]
                row_of = x[source * w : source * w + w]
                _across(line, row_of, columns, across, ow, block * span, t.taps_w)
                sources[slot] = block * rows * d * h + source
            slots[tap] = slot
            weights[tap] = shares[tap // taps_h * od + z] * shares[nd + tap % taps_h * oh + y]
        start = row * ow + block * span
        _down(out[start : start + n], lines, span, slots, weights, taps)


def _fill_up(
    begins: Array, places: Array, weights: Array, even: Array, shares: Array, n: int, m: int
) -> int:
    """Store two or four entries for each place; missing ones have place m and weight 0.

    Return how many; 0 if some place has more than four.
    """
    most = 0
    for j in range(n):
        most = max(most, begins[j + 1] - begins[j])
    if most > FEW:
        return 0
    each = 2 if most <= 2 else FEW
    for j in range(n):
        for k in range(each):
            e = begins[j] + k
            known = e < begins[j + 1]
            even[j * each + k] = places[e] if known else m
            shares[j * each + k] = weights[e] if known else 0
    return each


def _gathered_few(to: Array, line: Array, even: Array, shares: Array, each: int) -> None:
    """to = the line resized back, from two or four entries for each place; line ends with 0."""
    if each == 2:
        for j in range(len(to)):
            p, s = even[2 * j : 2 * j + 2], shares[2 * j : 2 * j + 2]
            to[j] = s[0] * line[p[0]] + s[1] * line[p[1]]
        return
    for j in range(len(to)):
        p, s = even[4 * j : 4 * j + 4], shares[4 * j : 4 * j + 4]
        to[j] = s[0] * line[p[0]] + s[1] * line[p[1]] + s[2] * line[p[2]] + s[3] * line[p[3]]


def _gathered(
    to: Array, line: Array, begins: Array, places: Array, weights: Array, share: object
) -> None:
    """to += share * (line resized back)."""
    for j in range(len(to)):
        total = to.dtype.type(0)
        for e in range(begins[j], begins[j + 1]):
            total += weights[e] * line[places[e]]
        to[j] += share * total


def back_body(
    out: Array, g: Array, t: Sizes, lined: int, scratch: Array, arena: Array, lo: int, hi: int
) -> None:
    d, h, w, od, oh, ow = t.d, t.h, t.w, t.od, t.oh, t.ow
    nd, nh, nw = t.taps_d * od, t.taps_h * oh, t.taps_w * ow
    total = nd + nh + nw
    numbers = 2 * total + FEW * w
    shares = scratch[: numbers * out.itemsize].view(out.dtype)
    table = scratch[numbers * out.itemsize :].view(np.int32)
    begins = table[numbers:]
    if lo >> PHASE_BITS == 0:
        to, part = table[total:], shares[total:]
        write_axis(to, part, (d, od), t.step_d, t.taps_d, t)
        _turn(begins, table, shares, to, part, d, od, t.taps_d)
        write_axis(to, part, (h, oh), t.step_h, t.taps_h, t)
        _turn(begins[d + 1 :], table[nd:], shares[nd:], to, part, h, oh, t.taps_h)
        write_axis(to, part, (w, ow), t.step_w, t.taps_w, t)
        first, columns, weights = begins[d + h + 2 :], table[nd + nh :], shares[nd + nh :]
        _turn(first, columns, weights, to, part, w, ow, t.taps_w)
        begins[d + h + w + 3] = _fill_up(
            first, columns, weights, table[2 * total :], shares[2 * total :], w, ow
        )
        return
    line = arena.view(out.dtype)[: (ow + 1) * lined]  # one more: where missing entries point to
    one, each = out.dtype.type(1), begins[d + h + w + 3]
    first, places, weights = (
        begins[d + h + 2 :],
        table[nd + nh :].view(np.uint32),
        shares[nd + nh :],
    )
    even, parts = table[2 * total :].view(np.uint32), shares[2 * total :]
    for k in range(hi - lo):
        row = (lo & PHASE_MASK) + k
        plane, z, y = row // (d * h), row // h % d, row % h
        to = out[row * w : row * w + w]
        fill_with(to, out.dtype.type(0))
        fill_with(line, out.dtype.type(0))
        for a in range(begins[z], begins[z + 1]):
            for b in range(begins[d + 1 + y], begins[d + 2 + y]):
                source = (plane * od + table[a]) * oh + table[nd + b]
                share = shares[a] * shares[nd + b]
                piece = g[source * ow : source * ow + ow]
                if lined != 0:
                    for i in range(ow):
                        line[i] += share * piece[i]
                else:  # longer than the arena
                    _gathered(to, piece, first, places, weights, share)
        if lined != 0 and each != 0:
            _gathered_few(to, line, even, parts, each)
        elif lined != 0:
            _gathered(to, line, first, places, weights, one)
