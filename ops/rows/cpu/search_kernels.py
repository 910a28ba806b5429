"""The segments of a search for the largest or smallest element along a dimension (`fold_kernels`).

The first of equals wins and a NaN beats every number.  A row goes block by block: the extreme of a
block takes no index, and only the block that has the best is searched for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu import fold_kernels
from flowvm.ops.rows.parts.fold_programs import place_of
from flowvm.ops.rows.parts.fold_rules import choose
from flowvm.ops.rows.parts.fold_walk import Columns, Runs
from flowvm.ops.rows.parts.orders import Order
from flowvm.ops.rows.parts.states import Arrays

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)

BLOCK = 512
SHORT = 24  # a row of no more is faster one by one


def rows_body(order: Order, kind: object, lift: Callable[[Number], Number]) -> Callable[..., None]:
    """Searches the elements of `Runs`, which are one row each, for values of NumPy's `kind`."""
    join, beats = order.join, order.beats

    def search_short(part: Array, kind: Array) -> tuple[object, int]:
        best, place = kind.dtype.type(lift(part[0])), 0
        for i in range(1, len(part)):
            v = kind.dtype.type(lift(part[i]))
            wins = beats(v, best)
            best, place = choose(wins, v, best), choose(wins, i, place)
        return best, place

    def extreme(part: Array, kind: Array) -> tuple[object, bool]:
        best = kind.dtype.type(lift(part[0]))
        lost = best != best
        for i in range(len(part)):
            v = kind.dtype.type(lift(part[i]))
            best = join(v, best)
            lost |= v != v
        return (kind.dtype.type(np.nan) if lost else best), lost

    def first_of(part: Array, best: object, lost: bool, kind: Array) -> int:
        place = np.int32(BLOCK)
        for i in range(len(part)):
            v = kind.dtype.type(lift(part[i]))
            hit = v != v if lost else v == best
            place = min(place, choose(hit, np.int32(i), np.int32(BLOCK)))
        return int(place)

    def search(part: Array, kind: Array) -> tuple[object, int]:
        best, lost = extreme(part[:BLOCK], kind)
        where, at = 0, BLOCK
        while at < len(part) and not lost:
            value, lost = extreme(part[at : at + BLOCK], kind)
            if beats(value, best):
                best, where = value, at
            at += BLOCK
        return best, where + first_of(part[where : where + BLOCK], best, lost, kind)

    def segment(
        x: Array, base: int, begin: int, end: int, t: Runs, values: Array
    ) -> tuple[object, int]:
        part = x[base + begin : base + end]
        if t.n <= SHORT:
            return search_short(part, values)
        value, index = search(part, values)
        return value, begin + index

    return fold_kernels.rows_body(place_of(order, kind), segment)


def columns_body(
    order: Order, kind: object, lift: Callable[[Number], Number]
) -> Callable[..., None]:
    """Searches the columns of `Columns`."""
    beats = order.beats

    def take(best: Array, place: Array, a: Array, row: int) -> None:
        index = np.int32(row)
        for i in range(len(a)):
            v = best.dtype.type(lift(a[i]))
            wins = beats(v, best[i])
            best[i] = choose(wins, v, best[i])
            place[i] = choose(wins, index, place[i])

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

    def fill(
        states: Arrays, memory: Array, x: Array, base: int, begin: int, end: int, last: int,
        t: Columns, values: Array,
    ) -> None:  # fmt: skip
        best, to_place = states
        wide, near, parts = len(best), t.near, t.parts
        place = memory[: 4 * wide].view(np.int32)  # of the segment: as wide as most elements
        at = base + begin * near
        head = x[at : at + wide]
        for i in range(wide):
            best[i] = lift(head[i])
            place[i] = 0
        at += near
        whole = end - begin - 1 - (last < wide)
        r = 1
        for _ in range(whole // 4):
            take_four(best, place, x, at, near, r)
            at += 4 * near
            r += 4
        for _ in range(whole % 4):
            take(best, place, x[at : at + wide], r)
            at += near
            r += 1
        if last < wide:
            take(best, place, x[at : at + last], r)
        if parts == 1:
            for i in range(wide):
                to_place[i] = begin + place[i]
        else:
            for i in range(wide):
                to_place[i] = (begin + place[i]) * parts + i // (t.width // parts)

    return fold_kernels.columns_body(place_of(order, kind), fill)
