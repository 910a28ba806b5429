"""The kernel bodies that find where the largest or smallest element along a dimension is.

They walk memory as those of `fold_kernels` do, in the forms rows and columns, and with the same
cut.  The first of equals wins and a NaN beats every number.  A row goes block by block: the extreme
of a block takes no index, and only the block that has the best is searched for it.

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.ops.rows.parts.fold_rules import choose
from flowvm.ops.rows.parts.fold_walk import Columns, Runs
from flowvm.ops.rows.parts.orders import Order
from flowvm.vm.machine.words import ARG

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
Array = Any
BLOCK = 512
SHORT = 24  # a row of no more is faster one by one


def _merging(replaces: Callable[[Any, Any, Any, Any], Any]) -> Callable[..., None]:
    """Results [lo, hi) from the partials [outer, segments, inner], whose places are absolute."""

    def merge(
        values: Array, indices: Array, best: Array, place: Array, segments: int, inner: int,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        for m in range(lo, hi):
            outer = m // inner
            at = outer * segments * inner + m - outer * inner
            value, index = best[at], place[at]
            for _ in range(1, segments):
                at += inner
                if replaces(value, index, best[at], place[at]):
                    value, index = best[at], place[at]
            values[m], indices[m] = value, index

    return merge


def rows_body(order: Order, lift: Callable[[Any], Any]) -> Callable[..., None]:
    """Searches the elements of `Runs`, which are one row each."""
    join, beats = order.join, order.beats
    merge = _merging(order.replaces)

    def search_short(part: Array, kind: Array) -> tuple[Any, int]:
        best, place = kind.dtype.type(lift(part[0])), 0
        for i in range(1, len(part)):
            v = kind.dtype.type(lift(part[i]))
            wins = beats(v, best)
            best, place = choose(wins, v, best), choose(wins, i, place)
        return best, place

    def extreme(part: Array, kind: Array) -> tuple[Any, bool]:
        best = kind.dtype.type(lift(part[0]))
        lost = best != best
        for i in range(len(part)):
            v = kind.dtype.type(lift(part[i]))
            best = join(v, best)
            lost |= v != v
        return (kind.dtype.type(np.nan) if lost else best), lost

    def first_of(part: Array, best: Any, lost: bool, kind: Array) -> int:
        place = np.int32(BLOCK)
        for i in range(len(part)):
            v = kind.dtype.type(lift(part[i]))
            hit = v != v if lost else v == best
            place = min(place, choose(hit, np.int32(i), np.int32(BLOCK)))
        return int(place)

    def search(part: Array, kind: Array) -> tuple[Any, int]:
        best, lost = extreme(part[:BLOCK], kind)
        where, at = 0, BLOCK
        while at < len(part) and not lost:
            value, lost = extreme(part[at : at + BLOCK], kind)
            if beats(value, best):
                best, where = value, at
            at += BLOCK
        return best, where + first_of(part[where : where + BLOCK], best, lost, kind)

    def body(
        values: Array, indices: Array, x: Array, t: Runs, scratch: Array, lo: int, hi: int
    ) -> None:
        inner, outer_stride, inner_stride = t.inner, t.outer_stride, t.inner_stride
        n, length, segments = t.n, t.length, t.segments
        count = len(values) * segments
        place, best = scratch.view(np.int64), scratch[8 * count :].view(values.dtype)
        if lo >> ARG.PHASE_BITS != 0:
            first = lo & ((1 << ARG.PHASE_BITS) - 1)
            merge(values, indices, best, place, segments, 1, first, first + hi - lo)
            return
        for unit in range(lo, hi):
            m, at = unit, 0
            if segments > 1:
                m = unit // segments
                at = (unit - m * segments) * length
            outer = m // inner
            base = outer * outer_stride + (m - outer * inner) * inner_stride
            part = x[base + at : base + min(at + length, n)]
            if n <= SHORT:
                values[m], indices[m] = search_short(part, values)
            elif segments == 1:
                values[m], indices[m] = search(part, values)
            else:
                value, index = search(part, values)
                best[unit], place[unit] = value, at + index

    return body


def columns_body(order: Order, lift: Callable[[Any], Any]) -> Callable[..., None]:
    """Searches the columns of `Columns`."""
    beats, merge = order.beats, _merging(order.replaces)

    def take(best: Array, place: Array, a: Array, row: int) -> None:
        here = np.int32(row)
        for i in range(len(a)):
            v = best.dtype.type(lift(a[i]))
            wins = beats(v, best[i])
            best[i] = choose(wins, v, best[i])
            place[i] = choose(wins, here, place[i])

    def take_four(best: Array, place: Array, x: Array, at: int, step: int, row: int) -> None:
        width = len(best)
        xa, xb = x[at : at + width], x[at + step : at + step + width]
        at += 2 * step
        xc, xd = x[at : at + width], x[at + step : at + step + width]
        ra, rb = np.int32(row), np.int32(row + 1)
        rc, rd = np.int32(row + 2), np.int32(row + 3)
        for i in range(width):
            a, b = best.dtype.type(lift(xa[i])), best.dtype.type(lift(xb[i]))
            c, d = best.dtype.type(lift(xc[i])), best.dtype.type(lift(xd[i]))
            wins = beats(b, a)
            a, r = choose(wins, b, a), choose(wins, rb, ra)
            wins = beats(d, c)
            c, q = choose(wins, d, c), choose(wins, rd, rc)
            wins = beats(c, a)
            a, r = choose(wins, c, a), choose(wins, q, r)
            wins = beats(a, best[i])
            best[i] = choose(wins, a, best[i])
            place[i] = choose(wins, r, place[i])

    def body(
        values: Array, indices: Array, x: Array, t: Columns, scratch: Array, arena: Array,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        outer_stride, near, rows, rest = t.outer_stride, t.near, t.rows, t.rest
        width, tile, parts = t.width, t.tile, t.parts
        length, segments = t.length, t.segments
        inner = width // parts
        count = len(values) // inner * segments * width
        place, best = scratch.view(np.int64), scratch[8 * count :].view(values.dtype)
        if lo >> ARG.PHASE_BITS != 0:
            first, every = lo & ((1 << ARG.PHASE_BITS) - 1), segments * parts
            merge(values, indices, best, place, every, inner, first, first + hi - lo)
            return
        tiles = (width + tile - 1) // tile
        for unit in range(lo, hi):
            block = unit // segments
            segment = unit - block * segments
            outer = block // tiles
            column = (block - outer * tiles) * tile
            wide = min(tile, width - column)
            own_place = arena[: 4 * wide].view(np.int32)
            own_best = arena[8 * tile :].view(values.dtype)[:wide]
            start = segment * length
            end = min(start + length, rows)
            at = outer * outer_stride + start * near + column
            head = x[at : at + wide]
            for i in range(wide):
                own_best[i] = lift(head[i])
                own_place[i] = 0
            at += near
            whole = end - start - 1 - (end == rows and rest < width)
            r = 1
            for _ in range(whole // 4):
                take_four(own_best, own_place, x, at, near, r)
                at += 4 * near
                r += 4
            for _ in range(whole % 4):
                take(own_best, own_place, x[at : at + wide], r)
                at += near
                r += 1
            if end == rows and rest < width:
                take(own_best, own_place, x[at : at + rest], r)
            goal = (outer * segments + segment) * width + column
            if segments * parts == 1:
                to_value, to_place = values[goal : goal + wide], indices[goal : goal + wide]
            else:
                to_value, to_place = best[goal : goal + wide], place[goal : goal + wide]
            for i in range(wide):
                to_value[i] = own_best[i]
            if parts == 1:
                for i in range(wide):
                    to_place[i] = start + own_place[i]
            else:
                for i in range(wide):
                    to_place[i] = (start + own_place[i]) * parts + i // inner

    return body
