"""The kernel bodies of running sums, products and extremes.

Running sums and products are kept in float64 or int64, so each result is rounded once, and the
error does not grow with the length beyond that of float64.  A row goes eight elements at a time
(`scan_blocks`).  A long row is cut into segments: a first phase sums
each, a second starts each with the sum of those before it.  Rows of columns go side by side.

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.ops.rows.cpu.fold_kernels import partials_of
from flowvm.ops.rows.cpu.scan_blocks import LANES, blocks_of
from flowvm.ops.rows.parts.fold_rules import Rule, choose
from flowvm.ops.rows.parts.orders import Order
from flowvm.vm.machine.words import ARG

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
Array = Any


# --- sums and products --------------------------------------------------------------------------


def rows_body(rule: Rule) -> Callable[..., None]:
    """Scans rows of n adjacent elements, `reverse` from the end.  A unit is a segment of a row."""
    forward, backward, lines, lines_back = blocks_of(rule)
    join, keep, start, partials_in = rule.join, rule.keep, rule.neutral, partials_of(rule)

    def total(part: Array, kind: Array) -> Any:
        result = kind.dtype.type(start)
        for i in range(len(part)):
            result = join(kind.dtype.type(part[i]), result)
        return result

    def scan(out: Array, x: Array, carry: Any) -> None:
        whole = len(x) // LANES
        for block in range(whole):
            carry = forward(out, x, block * LANES, carry)
        for i in range(whole * LANES, len(x)):
            carry = keep(carry, x[i])
            out[i] = carry

    def scan_back(out: Array, x: Array, carry: Any) -> None:
        at = len(x)
        for _ in range(len(x) // LANES):
            at -= LANES
            carry = backward(out, x, at, carry)
        while at > 0:
            at -= 1
            carry = keep(carry, x[at])
            out[at] = carry

    def scan_short(out: Array, x: Array, n: int, carry: Any, reverse: bool) -> None:
        at, step = 0, LANES // n * n
        for block in range((len(x) - LANES) // step + 1 if len(x) >= LANES else 0):
            if reverse:
                lines_back(out, x, block * step, carry, n)
            else:
                lines(out, x, block * step, carry, n)
            at += step
        while at < len(x):
            if reverse:
                scan_back(out[at : at + n], x[at : at + n], carry)
            else:
                scan(out[at : at + n], x[at : at + n], carry)
            at += n

    def body(
        out: Array, x: Array, n: int, length: int, segments: int, reverse: bool, scratch: Array,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        totals = partials_in(scratch, out)
        last = segments == 1 or lo >> ARG.PHASE_BITS != 0
        first = lo & ((1 << ARG.PHASE_BITS) - 1)
        if n < LANES:
            part = x[lo * n : hi * n]
            scan_short(out[lo * n : hi * n], part, n, totals.dtype.type(start), reverse)
            return
        for k in range(hi - lo):
            unit = first + k
            row = unit // segments
            segment = unit - row * segments
            at, end = row * n + segment * length, row * n + min((segment + 1) * length, n)
            if not last:
                totals[unit] = total(x[at:end], totals)
                continue
            carry = totals.dtype.type(start)
            if reverse:
                for before in range(segments - 1, segment, -1):
                    carry = keep(carry, totals[row * segments + before])
                scan_back(out[at:end], x[at:end], carry)
            else:
                for before in range(segment):
                    carry = keep(carry, totals[row * segments + before])
                scan(out[at:end], x[at:end], carry)

    return body


def columns_body(rule: Rule) -> Callable[..., None]:
    """Scans the columns of matrices of n rows and `inner` columns, `reverse` from the last row.  A
    unit is a tile of columns.
    """
    keep, start, partials_in = rule.keep, rule.neutral, partials_of(rule)

    def body(
        out: Array, x: Array, n: int, inner: int, tile: int, reverse: bool, arena: Array, lo: int,
        hi: int,
    ) -> None:  # fmt: skip
        memory = partials_in(arena, out)
        tiles = (inner + tile - 1) // tile
        for unit in range(lo, hi):
            outer = unit // tiles
            column = (unit - outer * tiles) * tile
            width = min(tile, inner - column)
            totals = memory[:width]
            for i in range(width):
                totals[i] = start
            at, step = outer * n * inner + column, inner
            if reverse:
                at, step = at + (n - 1) * inner, -inner
            for _ in range(n):
                part, goal = x[at : at + width], out[at : at + width]
                for i in range(width):
                    v = keep(totals[i], totals.dtype.type(part[i]))
                    totals[i] = v
                    goal[i] = v
                at += step

    return body


# --- extremes -----------------------------------------------------------------------------------


def extreme_rows_body(order: Order) -> Callable[..., None]:
    """The extreme so far, and where it is, in rows of n adjacent elements, which are the units."""
    follows, ahead = order.follows, order.ahead

    def body(values: Array, indices: Array, x: Array, n: int, lo: int, hi: int) -> None:
        for row in range(lo, hi):
            part = x[row * n : row * n + n]
            to_value, to_index = values[row * n : row * n + n], indices[row * n : row * n + n]
            best, place = part[0], 0
            for k in range(len(part)):
                v = part[k]
                if not ahead(best, v) and follows(best, v):  # a jump, which is foreseen
                    best, place = v, k
                to_value[k], to_index[k] = best, place

    return body


def extreme_columns_body(order: Order) -> Callable[..., None]:
    """The same in the columns of matrices.  A unit is a tile of columns."""
    follows = order.follows

    def body(
        values: Array, indices: Array, x: Array, n: int, inner: int, tile: int, arena: Array,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        tiles = (inner + tile - 1) // tile
        for unit in range(lo, hi):
            outer = unit // tiles
            column = (unit - outer * tiles) * tile
            width = min(tile, inner - column)
            places = arena[: 8 * width].view(np.int64)
            best = arena[8 * tile :].view(values.dtype)[:width]
            at = outer * n * inner + column
            part = x[at : at + width]
            for i in range(width):
                best[i] = part[i]
            for row in range(n):
                part = x[at : at + width]
                to_value, to_index = values[at : at + width], indices[at : at + width]
                for i in range(width):
                    v, old = part[i], best[i]
                    wins = follows(old, v)
                    v, place = choose(wins, v, old), choose(wins, row, places[i])
                    best[i], places[i] = v, place
                    to_value[i], to_index[i] = v, place
                at += inner

    return body
