"""The segments of mean and variance (`fold_kernels`): they go through the elements twice.

The first time is for the mean, the second for the squares of the distances from it.  Both are kept
in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu import fold_kernels
from flowvm.ops.rows.parts.fold_programs import Reduced
from flowvm.ops.rows.parts.fold_rules import ADD
from flowvm.ops.rows.parts.fold_walk import Columns, Runs
from flowvm.ops.rows.parts.states import Arrays

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)

_add = ADD[0].join


def rows_body(p: Reduced, lift: Callable[[Number], Number]) -> Callable[..., None]:
    """Return the body of `Runs`; `p` makes the stored numbers."""

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

    def segment(
        x: Array, base: int, begin: int, end: int, t: Runs, out: Array
    ) -> tuple[float, float, float]:
        n, row_stride, middle, squares = t.n, t.row_stride, 0.0, 0.0
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
        return np.float64(end - begin), middle, squares

    return fold_kernels.rows_body(p, segment)


def columns_body(p: Reduced, lift: Callable[[Number], Number]) -> Callable[..., None]:
    """Return the body of `Columns`; `p` makes the stored numbers."""

    def add_row(sums: Array, a: Array) -> None:
        for i in range(len(a)):
            sums[i] += np.float64(lift(a[i]))

    def add_squares(squares: Array, means: Array, a: Array) -> None:
        for i in range(len(a)):
            apart = np.float64(lift(a[i])) - means[i]
            squares[i] += apart * apart

    def fill(
        states: Arrays, memory: Array, x: Array, base: int, begin: int, end: int, last: int,
        t: Columns, out: Array,
    ) -> None:  # fmt: skip
        counts, means, squares = states
        wide, n, far, near = len(counts), t.n, t.far, t.near
        for i in range(wide):
            means[i] = 0.0
            squares[i] = 0.0
        for again in range(2):
            for r in range(begin, end):
                at = base + r // n * far + r % n * near
                width = wide if r + 1 < end else last
                if again:
                    add_squares(squares, means, x[at : at + width])
                else:
                    add_row(means, x[at : at + width])
            if not again:
                for i in range(wide):
                    counts[i] = end - begin - (i >= last)
                    means[i] /= max(1, end - begin - (i >= last))

    return fold_kernels.columns_body(p, fill)
