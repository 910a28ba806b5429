"""The kernel bodies of scans (`parts.scan_programs`).

    segments  rows of sums and products: eight elements at a time (`scan_blocks`), and a long row in
              segments, of which a first phase sums each, and a second starts each with the sum of
              those before it
    exponential_rows
              rows of sums of exponentials
    rows      any other, element by element
    columns   columns go side by side

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu.scan_blocks import LANES, blocks_of
from flowvm.ops.rows.cpu.states import cut_of, memory_of
from flowvm.ops.rows.parts.exponential_sums import element_sum, logarithm, nothing, turned
from flowvm.ops.rows.parts.fold_rules import Rule, choose
from flowvm.ops.rows.parts.scan_programs import Scan
from flowvm.ops.rows.parts.states import Arrays, loaded_of, stored_of
from flowvm.vm.machine.words import ARG

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)

RUN = 256  # elements of sums of exponentials that go together


class Rows(NamedTuple):
    """Rows of n elements, each in `segments` of `length`; `reverse` from the end."""

    n: int
    length: int
    segments: int
    reverse: bool


class Matrices(NamedTuple):
    """Matrices of n rows and `inner` columns; a tile has `tile` columns.

    `reverse`: from the last row on.
    """

    n: int
    inner: int
    tile: int
    reverse: bool


# --- sums and products --------------------------------------------------------------------------


def segments_body(rule: Rule) -> Callable[..., None]:
    """Scans rows of n adjacent elements, `reverse` from the end.  A unit is a segment of a row."""
    forward, backward, lines, lines_back = blocks_of(rule)
    join, keep, start, wide = rule.join, rule.keep, rule.neutral, np.dtype(rule.wide).type

    def total(part: Array, kind: Array) -> Number:
        result = kind.dtype.type(start)
        for i in range(len(part)):
            result = join(kind.dtype.type(part[i]), result)
        return result

    def scan(out: Array, x: Array, carry: object) -> None:
        whole = len(x) // LANES
        for block in range(whole):
            carry = forward(out, x, block * LANES, carry)
        for i in range(whole * LANES, len(x)):
            carry = keep(carry, x[i])
            out[i] = carry

    def scan_back(out: Array, x: Array, carry: object) -> None:
        at = len(x)
        for _ in range(len(x) // LANES):
            at -= LANES
            carry = backward(out, x, at, carry)
        while at > 0:
            at -= 1
            carry = keep(carry, x[at])
            out[at] = carry

    def scan_short(out: Array, x: Array, n: int, carry: object, reverse: bool) -> None:
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

    def body(out: Array, x: Array, t: Rows, scratch: Array, lo: int, hi: int) -> None:
        n, length, segments, reverse = t.n, t.length, t.segments, t.reverse != 0
        totals = scratch.view(wide)
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


# --- sums of exponentials -------------------------------------------------------------------------


def exponential_rows(out: Array, x: Array, n: int, arena: Array, lo: int, hi: int) -> None:
    """Rows of n adjacent elements, which are the units; RUN elements at a time.  The largest so far
    of each are found first: then exponentials and logarithms wait for nothing, and fill vectors.
    """
    numbers = arena.view(np.float64)
    for row in range(lo, hi):
        top, total = nothing()
        for first in range(row * n, row * n + n, RUN):
            count = min(RUN, row * n + n - first)
            xs, to = x[first : first + count], out[first : first + count]
            before, after = numbers[:count], numbers[RUN : RUN + count]
            sums, factors = numbers[2 * RUN :][:count], numbers[3 * RUN :][:count]
            for k in range(count):
                before[k] = top
                v, _ = element_sum(np.float64(xs[k]))
                top = choose(top < v, v, top)
                after[k] = top
            _turn(factors, sums, before, xs)
            for k in range(count):
                total = total * factors[k] + sums[k]
                sums[k] = total
            _finish(to, after, sums)


def _turn(factors: Array, more: Array, tops: Array, x: Array) -> None:
    for k in range(len(x)):
        factors[k], more[k] = turned(tops[k], element_sum(np.float64(x[k])))


def _finish(out: Array, tops: Array, sums: Array) -> None:
    for k in range(len(out)):
        out[k] = logarithm((tops[k], sums[k]))


# --- any scan -------------------------------------------------------------------------------------


def _of_arrays(outputs: int, lines: Callable[..., None]) -> Callable[..., None]:
    """A body of the outputs one by one, from one of all of them as a tuple."""

    def one(out: Array, x: Array, n: int, reverse: bool, lo: int, hi: int) -> None:
        lines((out,), x, n, reverse, lo, hi)

    def two(first: Array, second: Array, x: Array, n: int, reverse: bool, lo: int, hi: int) -> None:
        lines((first, second), x, n, reverse, lo, hi)

    return two if outputs == 2 else one


def rows_body(scan: Scan) -> Callable[..., None]:
    """Scans rows of n adjacent elements, which are the units, `reverse` from the end."""
    nothing, of, join, results = scan.nothing, scan.of, scan.join, scan.results
    idle = scan.idle or _never
    put, part_of = stored_of(scan.outputs), cut_of(scan.outputs)

    def lines(outs: Arrays, x: Array, n: int, reverse: bool, lo: int, hi: int) -> None:
        for row in range(lo, hi):
            xs, to, state = x[row * n : row * n + n], part_of(outs, row * n, n), nothing()
            for k in range(n):
                place = n - 1 - k if reverse else k
                v = xs[place]
                if not idle(state, v):
                    state = join(state, of(v, place))
                put(to, place, results(state))

    return _of_arrays(scan.outputs, lines)


def _never(state: object, v: object) -> bool:
    return False


def columns_body(scan: Scan) -> Callable[..., None]:
    """Scans the columns of matrices of n rows and `inner` columns, `reverse` from the last row.  A
    unit is a tile of columns.
    """
    nothing, of, join, results = scan.nothing, scan.of, scan.join, scan.results
    count, memory_in = len(scan.kinds), memory_of(scan.kinds)
    load, keep, part_of = loaded_of(count), stored_of(count), cut_of(count)
    put, goal_of = stored_of(scan.outputs), cut_of(scan.outputs)

    def lines(outs: Arrays, x: Array, t: Matrices, arena: Array, lo: int, hi: int) -> None:
        n, inner, tile, reverse = t.n, t.inner, t.tile, t.reverse != 0
        memory, tiles = memory_in(arena, tile), (inner + tile - 1) // tile
        for unit in range(lo, hi):
            outer = unit // tiles
            column = (unit - outer * tiles) * tile
            width = min(tile, inner - column)
            states = part_of(memory, 0, width)
            for i in range(width):
                keep(states, i, nothing())
            for k in range(n):
                row = n - 1 - k if reverse else k
                at = (outer * n + row) * inner + column
                part, to = x[at : at + width], goal_of(outs, at, width)
                for i in range(width):
                    state = join(load(states, i), of(part[i], row))
                    keep(states, i, state)
                    put(to, i, results(state))

    def one(out: Array, x: Array, t: Matrices, arena: Array, lo: int, hi: int) -> None:
        lines((out,), x, t, arena, lo, hi)

    def two(
        first: Array, second: Array, x: Array, t: Matrices, arena: Array, lo: int, hi: int
    ) -> None:
        lines((first, second), x, t, arena, lo, hi)

    return two if scan.outputs == 2 else one
