"""The segments of sums, products, extremes and truth (`fold_kernels`), and their third form:

    rows      2,048 elements of a row side by side, in as many parts as four vectors have lanes
    columns   eight rows at a time
    few       results of a few adjacent elements each: neighbours are joined, then theirs, ...

Sums and products are kept in float64 or int64 between segments and runs of elements, and in the
result's dtype within: 2,048 elements of a row, or eight rows.  So the error of a float32 sum does
not grow with its length: in 64 parts it is at most 3e-6 of the sum of the magnitudes, and 1e-7 as a
rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu import fold_kernels
from flowvm.ops.rows.parts.fold_programs import Reduced
from flowvm.ops.rows.parts.fold_rules import Rule, choose
from flowvm.ops.rows.parts.fold_walk import Columns, Runs
from flowvm.ops.rows.parts.states import Arrays

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)

RUN = 2048  # elements of a row that are joined in their own dtype
BUFFER = 4096  # elements of a block of the few form
TOGETHER = 8  # rows


def rows_body(rule: Rule, p: Reduced, lift: Callable[[Number], Number]) -> Callable[..., None]:
    """Reduces `lift` of the elements of `Runs`."""
    join, keep, start, _, watches = rule
    (wide,) = p.kinds

    def run(part: Array, element: object, kind: Array) -> Any:
        few = start(kind.dtype.type(0), kind.dtype.type(1), element)
        lost = watches and element != element
        for i in range(len(part)):
            v = kind.dtype.type(lift(part[i]))
            few = join(v, few)
            if watches:
                lost |= v != v
        return kind.dtype.type(np.nan) if lost else few

    def segment(x: Array, base: int, at: int, end: int, t: Runs, out: Array) -> tuple[object]:
        n, row_stride, row, place = t.n, t.row_stride, 0, at
        if place >= n:
            row = at // n
            place = at - row * n
        element = out.dtype.type(lift(x[base + row * row_stride + place]))
        total = wide(start(out.dtype.type(0), out.dtype.type(1), element))
        while at < end:
            size = min(n - place, end - at, RUN)
            first = base + row * row_stride + place
            few = run(x[first : first + size], element, out)
            total = keep(total, wide(few))
            at += size
            place += size
            if place == n:
                row, place = row + 1, 0
        return (total,)

    return fold_kernels.rows_body(p, segment)


def columns_body(rule: Rule, p: Reduced, lift: Callable[[Number], Number]) -> Callable[..., None]:
    """Reduces `lift` of the rows of `Columns`; fewer than eight in the result's dtype."""
    join, keep, _, _, watches = rule
    results = p.results

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

    def fill(
        states: Arrays, memory: Array, x: Array, base: int, r: int, end: int, last: int, t: Columns,
        out: Array,
    ) -> None:  # fmt: skip
        n, far, near, totals = t.n, t.far, t.near, states[0]
        wide = len(totals)
        at = base + r // n * far + r % n * near
        head = x[at : at + wide]
        for i in range(wide):
            totals[i] = out.dtype.type(lift(head[i]))
        r += 1
        while r < end:
            major = r // n
            minor = r - major * n
            run = min(n - minor, end - r)
            at = base + major * far + minor * near
            short = r + run == end and last < wide
            r += run
            if short:
                run -= 1
            for _ in range(run // TOGETHER):
                add_rows(totals, x, at, near, out)
                at += TOGETHER * near
            for _ in range(run % TOGETHER):
                add_row(totals, x[at : at + wide], out)
                at += near
            if short:
                add_row(totals, x[at : at + last], out)

    def few(out: Array, x: Array, base: int, t: Columns) -> bool:
        if t.rows >= TOGETHER:
            return False
        head = x[base : base + len(out)]
        for i in range(len(out)):
            out[i] = lift(head[i])
        for r in range(1, t.rows):
            at = base + r // t.n * t.far + r % t.n * t.near
            add_row(out, x[at : at + len(out)], out)
        if t.extra != 1.0:
            for i in range(len(out)):
                out[i] = results((out[i],), t.extra)[0]
        return True

    return fold_kernels.columns_body(p, fill, few)


def few_body(rule: Rule, p: Reduced, lift: Callable[[Number], Number]) -> Callable[..., None]:
    """Reduces `lift` of n adjacent elements to each result; x is dense.  A unit is a block of
    `length` results.
    """
    keep, results = rule.keep, p.results

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
            size, remaining = (end - at) * n, n
            part = x[at * n : at * n + size]
            source, target = 0, BUFFER
            first = memory[:size]
            for i in range(size):
                first[i] = lift(part[i])
            while remaining > 1:
                size //= 2 if remaining % 2 == 0 else 3 if remaining % 3 == 0 else remaining
                old, new = memory[source : source + BUFFER], memory[target : target + size]
                if remaining % 2 == 0:
                    remaining //= 2
                    pairs(new, old)
                elif remaining % 3 == 0:
                    remaining //= 3
                    threes(new, old)
                else:
                    several(new, old, remaining)
                    remaining = 1
                source, target = target, source
            goal, last = out[at:end], memory[source : source + size]
            for i in range(size):
                goal[i] = results((last[i],), divisor)[0]

    return body
