"""The kernel bodies of mean and variance, which go through the elements of a segment twice: for
their mean, and for the squares of the distances from it.

Both are kept in float64.  Segments are put together by `moment_rules`.  The walk and the cut are
those of `fold_kernels`.

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.ops.rows.parts.fold_rules import ADD
from flowvm.ops.rows.parts.fold_walk import Columns, Runs
from flowvm.ops.rows.parts.moment_rules import joined
from flowvm.vm.machine.words import ARG

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
Array = Any
_add = ADD[0].join


def rows_body(lift: Callable[[Any], Any]) -> Callable[..., None]:
    """As `fold_kernels.rows_body`; variance is the sum of squared distances / `freedom`."""

    def sum_of(part: Array) -> float:
        total = 0.0
        for i in range(len(part)):
            total = _add(np.float64(lift(part[i])), total)
        return total

    def squares_of(part: Array, mean: float) -> float:
        total = 0.0
        for i in range(len(part)):
            apart = np.float64(lift(part[i])) - mean
            total = _add(apart * apart, total)
        return total

    def body(
        variance: Array, mean: Array, x: Array, t: Runs, freedom: float, scratch: Array,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        inner, outer_stride, inner_stride, n = t.inner, t.outer_stride, t.inner_stride, t.n
        row_stride, count, length, segments = t.row_stride, t.elements, t.length, t.segments
        partials = scratch.view(np.float64)
        if lo >> ARG.PHASE_BITS != 0:
            first = lo & ((1 << ARG.PHASE_BITS) - 1)
            for k in range(hi - lo):
                m = first + k
                moments = 0.0, 0.0, 0.0
                for s in range(segments):
                    own = np.float64(min(length, count - s * length))
                    at = 2 * (m * segments + s)
                    moments = joined(moments, (own, partials[at], partials[at + 1]))
                variance[m], mean[m] = moments[2] / freedom, moments[1]
            return
        for unit in range(lo, hi):
            m, begin = unit, 0
            if segments > 1:
                m = unit // segments
                begin = (unit - m * segments) * length
            end = min(begin + length, count)
            outer = m // inner
            base = outer * outer_stride + (m - outer * inner) * inner_stride
            middle, squares = 0.0, 0.0
            for again in range(2):
                at, total = begin, 0.0
                while at < end:
                    row = at // n
                    place = at - row * n
                    size = min(n - place, end - at)
                    place += base + row * row_stride
                    part = x[place : place + size]
                    total += squares_of(part, middle) if again else sum_of(part)
                    at += size
                if again:
                    squares = total
                else:
                    middle = total / (end - begin)
            if segments == 1:
                variance[m], mean[m] = squares / freedom, middle
            else:
                partials[2 * unit], partials[2 * unit + 1] = middle, squares

    return body


def columns_body(lift: Callable[[Any], Any]) -> Callable[..., None]:
    """As `fold_kernels.columns_body`."""

    def add_row(sums: Array, a: Array) -> None:
        for i in range(len(a)):
            sums[i] += np.float64(lift(a[i]))

    def add_squares(squares: Array, means: Array, a: Array) -> None:
        for i in range(len(a)):
            apart = np.float64(lift(a[i])) - means[i]
            squares[i] += apart * apart

    def body(
        variance: Array, mean: Array, x: Array, t: Columns, freedom: float, scratch: Array,
        arena: Array, lo: int, hi: int,
    ) -> None:  # fmt: skip
        outer_stride, n, far, near, rows = t.outer_stride, t.n, t.far, t.near, t.rows
        width, tile, rest, parts = t.width, t.tile, t.rest, t.parts
        length, segments = t.length, t.segments
        partials, own = scratch.view(np.float64), arena.view(np.float64)
        inner = width // parts
        if lo >> ARG.PHASE_BITS != 0:
            first = lo & ((1 << ARG.PHASE_BITS) - 1)
            for k in range(hi - lo):
                outer = (first + k) // inner
                column = first + k - outer * inner
                moments = 0.0, 0.0, 0.0
                for s in range(segments):
                    have = min(length, rows - s * length)
                    for part in range(parts):
                        c = part * inner + column
                        short = s == segments - 1 and c >= rest
                        at = 2 * ((outer * segments + s) * width + c)
                        own = np.float64(have - short)
                        moments = joined(moments, (own, partials[at], partials[at + 1]))
                variance[first + k], mean[first + k] = moments[2] / freedom, moments[1]
            return
        tiles = (width + tile - 1) // tile
        for unit in range(lo, hi):
            block = unit // segments
            segment = unit - block * segments
            outer = block // tiles
            column = (block - outer * tiles) * tile
            wide = min(tile, width - column)
            base = outer * outer_stride + column
            means, squares = own[:wide], own[tile : tile + wide]
            for i in range(wide):
                means[i] = 0.0
                squares[i] = 0.0
            begin, end = segment * length, min(segment * length + length, rows)
            whole = wide if end < rows else max(0, min(wide, rest - column))
            for again in range(2):
                for r in range(begin, end):
                    at = base + r // n * far + r % n * near
                    here = wide if r + 1 < rows else whole
                    if again:
                        add_squares(squares, means, x[at : at + here])
                    else:
                        add_row(means, x[at : at + here])
                if not again:
                    for i in range(wide):
                        means[i] /= max(1, end - begin - (i >= whole))
            goal = (outer * segments + segment) * width + column
            if segments * parts == 1:
                for i in range(wide):
                    variance[goal + i], mean[goal + i] = squares[i] / freedom, means[i]
            else:
                to = partials[2 * goal : 2 * (goal + wide)]
                for i in range(wide):
                    to[2 * i], to[2 * i + 1] = means[i], squares[i]

    return body
