"""The kernel bodies of reductions.  Which one does what, and how the work is cut, is in `folds`.

A body reduces a walk over memory: `kept` positions times `count` elements each, cut into segments
whose results (partials, in scratch) are put together in a second phase.  Three forms:

    rows      the reduced elements lie one after another: a unit is one segment of one result
    columns   the kept ones do: a unit is a segment of rows over a tile of columns, eight at a time
    few       results of a few adjacent elements each: neighbours are joined, then theirs, ...

Sums and products are kept in float64 or int64 between segments and runs of elements, and in the
result's dtype within: 2,048 elements of a row, side by side in as many parts as four vectors have
lanes, or eight rows.  So the error of a float32 sum does not grow with its length: in 64 parts it
is at most 3e-6 of the sum of the magnitudes, and 1e-7 as a rule.

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.ops.rows.parts.fold_rules import Rule, choose
from flowvm.ops.rows.parts.fold_walk import Columns, Runs
from flowvm.vm.machine.words import ARG

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
Array = Any
RUN = 2048  # elements of a row that are joined in their own dtype
BUFFER = 4096  # elements of a block of the few form


# --- partials, and the second phase ---------------------------------------------------------------


def _doubles(memory: Array, out: Array) -> Array:
    return memory.view(np.float64)


def _longs(memory: Array, out: Array) -> Array:
    return memory.view(np.int64)


def _same(memory: Array, out: Array) -> Array:
    return memory.view(out.dtype)


_PARTIALS = {"float64": _doubles, "int64": _longs, "": _same}


def partials_of(rule: Rule) -> Callable[[Array, Array], Array]:
    """(memory, out) -> scratch or arena as an array of partials."""
    return _PARTIALS[rule.wide]


def _merging(keep: Callable[[Any, Any], Any]) -> Callable[..., None]:
    """Results [lo, hi) from partials [outer, segments, inner]."""

    def merge(
        out: Array, partials: Array, totals: Array, segments: int, inner: int, divisor: float,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        at = lo
        while at < hi:
            row = at // inner
            column = at - row * inner
            width = min(inner - column, hi - at, len(totals))
            start = row * segments * inner + column
            total = totals[:width]
            part = partials[start : start + width]
            for i in range(width):
                total[i] = part[i]
            for _ in range(1, segments):
                start += inner
                part = partials[start : start + width]
                for i in range(width):
                    total[i] = keep(total[i], part[i])
            _finish(out[at : at + width], total, divisor)
            at += width

    return merge


def _finish(out: Array, totals: Array, divisor: float) -> None:
    if divisor == 1.0:  # not a conditional expression: it would make integers floats
        for i in range(len(out)):
            out[i] = totals[i]
    else:
        for i in range(len(out)):
            out[i] = out.dtype.type(totals[i] / divisor)


# --- the three forms ----------------------------------------------------------------------------


def rows_body(rule: Rule, lift: Callable[[Any], Any]) -> Callable[..., None]:
    """Reduces `lift` of the elements of `Runs`."""
    join, keep, start, _, watches = rule
    partials_in = partials_of(rule)
    merge = _merging(keep)

    def run(part: Array, element: Any, kind: Array) -> Any:
        few = start(kind.dtype.type(0), kind.dtype.type(1), element)
        lost = watches and element != element
        for i in range(len(part)):
            v = kind.dtype.type(lift(part[i]))
            few = join(v, few)
            if watches:
                lost |= v != v
        return kind.dtype.type(np.nan) if lost else few

    def body(
        out: Array, x: Array, t: Runs, divisor: float, scratch: Array, arena: Array,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        inner, outer_stride, inner_stride, n = t.inner, t.outer_stride, t.inner_stride, t.n
        row_stride, count, length, segments = t.row_stride, t.elements, t.length, t.segments
        partials = partials_in(scratch, out)
        if lo >> ARG.PHASE_BITS != 0:
            first, single = lo & ((1 << ARG.PHASE_BITS) - 1), partials_in(arena, out)[:1]
            merge(out, partials, single, segments, 1, divisor, first, first + hi - lo)
            return
        m = lo // segments
        segment = lo - m * segments
        outer = m // inner
        column = m - outer * inner
        for unit in range(lo, hi):
            base = outer * outer_stride + column * inner_stride
            at = segment * length
            end = min(at + length, count)
            row, place = 0, at
            if place >= n:
                row = at // n
                place = at - row * n
            element = out.dtype.type(lift(x[base + row * row_stride + place]))
            total = partials.dtype.type(start(out.dtype.type(0), out.dtype.type(1), element))
            while at < end:
                size = min(n - place, end - at, RUN)
                first = base + row * row_stride + place
                few = run(x[first : first + size], element, out)
                total = keep(total, partials.dtype.type(few))
                at += size
                place += size
                if place == n:
                    row, place = row + 1, 0
            segment += 1
            if segments > 1:
                partials[unit] = total
            elif divisor == 1.0:
                out[m] = total
            else:
                out[m] = out.dtype.type(total / divisor)
            if segment == segments:
                segment = 0
                m += 1
                column += 1
                if column == inner:
                    outer, column = outer + 1, 0

    return body


def columns_body(rule: Rule, lift: Callable[[Any], Any]) -> Callable[..., None]:
    """Reduces `lift` of the rows of `Columns`."""
    join, keep, _, _, watches = rule
    partials_in = partials_of(rule)
    merge = _merging(keep)

    def add_row(totals: Array, a: Array, kind: Array) -> None:
        for i in range(len(a)):
            totals[i] = keep(totals[i], totals.dtype.type(kind.dtype.type(lift(a[i]))))

    def add_rows(totals: Array, x: Array, at: int, step: int, kind: Array) -> None:
        width = len(totals)
        xa, xb = x[at : at + width], x[at + step : at + step + width]
        at += 2 * step
        xc, xd = x[at : at + width], x[at + step : at + step + width]
        at += 2 * step
        xe, xf = x[at : at + width], x[at + step : at + step + width]
        at += 2 * step
        xg, xh = x[at : at + width], x[at + step : at + step + width]
        for i in range(width):
            a, b = kind.dtype.type(lift(xa[i])), kind.dtype.type(lift(xb[i]))
            c, d = kind.dtype.type(lift(xc[i])), kind.dtype.type(lift(xd[i]))
            e, f = kind.dtype.type(lift(xe[i])), kind.dtype.type(lift(xf[i]))
            g, h = kind.dtype.type(lift(xg[i])), kind.dtype.type(lift(xh[i]))
            v = join(join(join(a, b), join(c, d)), join(join(e, f), join(g, h)))
            if watches:
                lost = ((a != a) | (b != b)) | ((c != c) | (d != d))
                lost |= ((e != e) | (f != f)) | ((g != g) | (h != h))
                v = choose(lost, kind.dtype.type(np.nan), v)
            totals[i] = keep(totals[i], totals.dtype.type(v))

    def body(
        out: Array, x: Array, t: Columns, divisor: float, scratch: Array, arena: Array,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        outer_stride, n, far, near, rows = t.outer_stride, t.n, t.far, t.near, t.rows
        width, tile, rest, parts = t.width, t.tile, t.rest, t.parts
        length, segments = t.length, t.segments
        partials, own = partials_in(scratch, out), partials_in(arena, out)
        if lo >> ARG.PHASE_BITS != 0:
            first, every = lo & ((1 << ARG.PHASE_BITS) - 1), segments * parts
            totals = own[:tile]
            merge(out, partials, totals, every, width // parts, divisor, first, first + hi - lo)
            return
        tiles = (width + tile - 1) // tile
        for k in range(hi - lo):
            rest_of_unit = (lo + k) // segments
            segment = lo + k - rest_of_unit * segments
            outer = rest_of_unit // tiles
            column = (rest_of_unit - outer * tiles) * tile
            wide = min(tile, width - column)
            base = outer * outer_stride + column
            totals = own[:wide]
            r = segment * length
            end = min(r + length, rows)
            at = base + r // n * far + r % n * near
            head = x[at : at + wide]
            start = (outer * segments + segment) * width + column
            if rows < 8:  # in the result's dtype
                goal = out[start : start + wide]
                for i in range(wide):
                    goal[i] = lift(head[i])
                for r in range(1, rows):
                    at = base + r // n * far + r % n * near
                    add_row(goal, x[at : at + wide], out)
                if divisor != 1.0:
                    _finish(goal, goal, divisor)
                continue
            for i in range(wide):
                totals[i] = out.dtype.type(lift(head[i]))
            r += 1
            while r < end:
                major = r // n
                minor = r - major * n
                run = min(n - minor, end - r)
                at = base + major * far + minor * near
                short = r + run == rows and rest < width
                r += run
                if short:
                    run -= 1
                for _ in range(run // 8):
                    add_rows(totals, x, at, near, out)
                    at += 8 * near
                for _ in range(run % 8):
                    add_row(totals, x[at : at + wide], out)
                    at += near
                if short and rest > column:
                    add_row(totals, x[at : at + min(wide, rest - column)], out)
            if segments * parts == 1:
                _finish(out[start : start + wide], totals, divisor)
            else:
                goal = partials[start : start + wide]
                for i in range(wide):
                    goal[i] = totals[i]

    return body


def few_body(rule: Rule, lift: Callable[[Any], Any]) -> Callable[..., None]:
    """Reduces `lift` of n adjacent elements to each result; x is dense.  A unit is a block of
    `length` results.
    """
    keep = rule.keep

    def pairs(y: Array, x: Array) -> None:
        for i in range(len(y)):
            y[i] = keep(x[2 * i], x[2 * i + 1])

    def threes(y: Array, x: Array) -> None:
        for i in range(len(y)):
            y[i] = keep(keep(x[3 * i], x[3 * i + 1]), x[3 * i + 2])

    def several(y: Array, x: Array, n: int) -> None:
        for i in range(len(y)):
            total = x[i * n]
            for j in range(1, n):
                total = keep(total, x[i * n + j])
            y[i] = total

    def body(
        out: Array, x: Array, n: int, length: int, divisor: float, arena: Array, lo: int, hi: int
    ) -> None:
        memory = arena.view(out.dtype)
        for k in range(hi - lo):
            at = (lo + k) * length
            end = min(at + length, len(out))
            size, left = (end - at) * n, n
            part = x[at * n : at * n + size]
            here, there = 0, BUFFER
            first = memory[:size]
            for i in range(size):
                first[i] = lift(part[i])
            while left > 1:
                size //= 2 if left % 2 == 0 else 3 if left % 3 == 0 else left
                old, new = memory[here : here + BUFFER], memory[there : there + size]
                if left % 2 == 0:
                    left //= 2
                    pairs(new, old)
                elif left % 3 == 0:
                    left //= 3
                    threes(new, old)
                else:
                    several(new, old, left)
                    left = 1
                here, there = there, here
            _finish(out[at:end], memory[here : here + size], divisor)

    return body
