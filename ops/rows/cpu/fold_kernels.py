"""The kernel bodies of reductions (`parts.fold_programs`), whatever is reduced: how they go through
a walk over memory.  How the work is cut is in `fold_launch`.

A body reduces a walk: `free` positions times `count` elements each, cut into segments whose states
(partials, in scratch) are joined in a second phase.  Two forms:

    rows      the reduced elements lie one after another: a unit is one segment of one result
    columns   the kept ones do: a unit is a segment of rows over a tile of columns

What becomes of a segment is in `sum_kernels`, `search_kernels` and `moment_kernels`, which fill the
vector unit each in its way.

Invariant: what a unit does depends on the consts alone, so no split of the units changes a bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu.states import cut_of, memory_of
from flowvm.ops.rows.parts.fold_programs import Reduced
from flowvm.ops.rows.parts.fold_walk import Columns, Runs
from flowvm.ops.rows.parts.states import Arrays, State, loaded_of, stored_of
from flowvm.vm.machine.words import ARG

WORDS_ONLY = True  # for flowvm.compiler.native, as the next
INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)


@functools.cache  # rows and columns have one, which is compiled once
def _merging(p: Reduced) -> Callable[..., None]:
    """Results [lo, hi) from partials [outer, segments, inner]."""
    join, results, count = p.join, p.results, len(p.kinds)
    load, keep, part_of = loaded_of(count), stored_of(count), cut_of(count)
    put, goal_of = stored_of(p.outputs), cut_of(p.outputs)

    def merge(
        outs: Arrays, partials: Arrays, memory: Arrays, segments: int, inner: int, extra: float,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        at = lo
        while at < hi:
            row = at // inner
            column = at - row * inner
            width = min(inner - column, hi - at, len(memory[0]))
            start = row * segments * inner + column
            own, part = part_of(memory, 0, width), part_of(partials, start, width)
            for i in range(width):
                keep(own, i, load(part, i))
            for _ in range(1, segments):
                start += inner
                part = part_of(partials, start, width)
                for i in range(width):
                    keep(own, i, join(load(own, i), load(part, i)))
            to = goal_of(outs, at, width)
            for i in range(width):
                put(to, i, results(load(own, i), extra))
            at += width

    return merge


def _of_arrays(outputs: int, units: Callable[..., None]) -> Callable[..., None]:
    """A body of the outputs one by one, from one of all of them as a tuple."""

    def one(
        out: Array, x: Array, t: object, scratch: Array, arena: Array, lo: int, hi: int
    ) -> None:  # fmt: skip
        units((out,), x, t, scratch, arena, lo, hi)

    def two(
        first: Array, second: Array, x: Array, t: object, scratch: Array, arena: Array, lo: int,
        hi: int,
    ) -> None:  # fmt: skip
        units((first, second), x, t, scratch, arena, lo, hi)

    return two if outputs == 2 else one


def rows_body(p: Reduced, segment: Callable[..., State]) -> Callable[..., None]:
    """Reduces `Runs`: segment(x, base, begin, end, t, out) -> the state of the elements
    [begin, end) of a result whose own begin at `base`.
    """
    results, count = p.results, len(p.kinds)
    memory_in, keep, put = memory_of(p.kinds), stored_of(count), stored_of(p.outputs)
    merge = _merging(p)

    def units(
        outs: Arrays, x: Array, t: Runs, scratch: Array, arena: Array, lo: int, hi: int
    ) -> None:
        inner, outer_stride, inner_stride = t.inner, t.outer_stride, t.inner_stride
        elements, length, segments = t.elements, t.length, t.segments
        partials = memory_in(scratch, len(outs[0]) * segments)
        if lo >> ARG.PHASE_BITS != 0:
            first = lo & ((1 << ARG.PHASE_BITS) - 1)
            one: Any = np.int64(1)  # as a literal it is a type, and what it goes to compiled for it
            single = memory_in(arena, one)
            merge(outs, partials, single, segments, one, t.extra, first, first + hi - lo)
            return
        m = lo // segments
        own = lo - m * segments
        outer = m // inner
        column = m - outer * inner
        for unit in range(lo, hi):
            base, at = outer * outer_stride + column * inner_stride, own * length
            state = segment(x, base, at, min(at + length, elements), t, outs[0])
            own += 1
            if segments > 1:
                keep(partials, unit, state)
            else:
                put(outs, m, results(state, t.extra))
            if own == segments:
                own = 0
                m += 1
                column += 1
                if column == inner:
                    outer, column = outer + 1, 0

    return _of_arrays(p.outputs, units)


def _none_are_few(out: Array, x: Array, base: int, t: Columns) -> bool:
    return False


def columns_body(
    p: Reduced, fill: Callable[..., None], few: Callable[..., bool] = _none_are_few
) -> Callable[..., None]:
    """Reduces `Columns`: fill(states, memory, x, base, begin, end, last, t, out) leaves the states
    of columns, whose row r begins at `base` and is one of [begin, end); the last of these has
    `last` columns.  few(out, x, base, t) may store the results of few rows at once.
    """
    results, count = p.results, len(p.kinds)
    memory_in, load, keep = memory_of(p.kinds), loaded_of(count), stored_of(count)
    put, part_of, goal_of = stored_of(p.outputs), cut_of(count), cut_of(p.outputs)
    merge = _merging(p)

    def units(
        outs: Arrays, x: Array, t: Columns, scratch: Array, arena: Array, lo: int, hi: int
    ) -> None:
        rows, width, tile, segments = t.rows, t.width, t.tile, t.segments
        inner, every = width // t.parts, segments * t.parts
        partials = memory_in(scratch, len(outs[0]) // inner * segments * width)
        memory, more = memory_in(arena, tile), arena[8 * count * tile :]
        if lo >> ARG.PHASE_BITS != 0:
            first = lo & ((1 << ARG.PHASE_BITS) - 1)
            merge(outs, partials, memory, every, inner, t.extra, first, first + hi - lo)
            return
        tiles = (width + tile - 1) // tile
        for k in range(hi - lo):
            block = (lo + k) // segments
            segment = lo + k - block * segments
            outer = block // tiles
            column = (block - outer * tiles) * tile
            wide = min(tile, width - column)
            base, start = outer * t.outer_stride + column, (outer * segments + segment) * width
            begin = segment * t.length
            end = min(begin + t.length, rows)
            last = wide if end < rows else max(0, min(wide, t.rest - column))
            start += column
            if few(outs[0][start : start + wide], x, base, t):
                continue
            own = part_of(memory, 0, wide)
            fill(own, more, x, base, begin, end, last, t, outs[0])
            if every == 1:
                to = goal_of(outs, start, wide)
                for i in range(wide):
                    put(to, i, results(load(own, i), t.extra))
            else:
                goal = part_of(partials, start, wide)
                for i in range(wide):
                    keep(goal, i, load(own, i))

    return _of_arrays(p.outputs, units)
