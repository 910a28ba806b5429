"""Kernels over the rows of a sparse matrix: products, samples of a product, rows as numbers.

A matrix has bounds, n + 1 of them: row r has the entries from bounds[r] to bounds[r + 1], in the
order in which they are added.  A row is computed by one thread, so the threads change no bit.
Bounds and columns are checked before they are used; one outside stops the kernel with
INDEX_OUT_OF_RANGE and the details index, size, dimension.
"""

from __future__ import annotations

from typing import NamedTuple

from flowvm.meta.arrays import Array
from flowvm.ops.sparse.cpu.weighted_rows import weighted_rows

INLINE_ALWAYS = True
CHECKED = 256  # rows that are checked before they are used: their columns stay in a near cache


class Shape(NamedTuple):
    """The shape of the dense factor."""

    columns: int  # of the sparse one
    width: int


def _outside(bounds: Array, col: Array, lo: int, hi: int, columns: int, details: Array) -> bool:
    """Return True if rows have bounds or columns out of range, and write the details."""
    low, high, count = bounds[lo], bounds[hi], len(col)
    falls = (low < 0) | (high > count)
    for r in range(lo, hi):
        falls |= bounds[r + 1] < bounds[r]
    if falls:
        for r in range(lo, hi):
            if bounds[r] < 0 or bounds[r + 1] < bounds[r] or bounds[r + 1] > count:
                details[0], details[1], details[2] = bounds[r + 1], count + 1, 0
                break
        return True
    wrong: bool = False
    for e in range(low, high):
        wrong |= (col[e] < 0) | (col[e] >= columns)
    if wrong:
        for e in range(low, high):
            if col[e] < 0 or col[e] >= columns:
                details[0], details[1], details[2] = col[e], columns, 1
                break
    return bool(wrong)


def multiply(
    out: Array, values: Array, bounds: Array, col: Array, x: Array, s: Shape, lo: int, hi: int,
    details: Array,
) -> int:  # fmt: skip
    """out[r, :] = the sum of values[e] x[col[e], :] over the entries e of row r; out and x are
    flat.
    """
    for first in range(lo, hi, CHECKED):
        last = min(hi, first + CHECKED)
        if _outside(bounds, col, first, last, s.columns, details):
            return 1  # Status.INDEX_OUT_OF_RANGE
        weighted_rows(out, values, bounds, col, x, first, last, s.width)
    return 0


def multiply_kept(
    out: Array, values: Array, bounds: Array, col: Array, x: Array,
    their_bounds: Array, row: Array, order: Array, s: Shape, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """`multiply`; the last three operands are for its gradient."""
    return multiply(out, values, bounds, col, x, s, lo, hi, details)


def multiply_plainly(
    out: Array, values: Array, bounds: Array, col: Array, x: Array, s: Shape, lo: int, hi: int,
    details: Array,
) -> int:  # fmt: skip
    """`multiply` for any dtype and device."""
    columns, n = s.columns, s.width
    for r in range(lo, hi):
        if _outside(bounds, col, r, r + 1, columns, details):
            return 1  # Status.INDEX_OUT_OF_RANGE
        to = out[r * n : (r + 1) * n]
        for k in range(n):
            to[k] = 0
        for e in range(bounds[r], bounds[r + 1]):
            at = col[e] * n
            factor, row = values[e], x[at : at + n]
            for k in range(n):
                to[k] += factor * row[k]
    return 0


def multiply_plainly_kept(
    out: Array, values: Array, bounds: Array, col: Array, x: Array,
    their_bounds: Array, row: Array, order: Array, s: Shape, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """`multiply_plainly`; the last three operands are for its gradient."""
    return multiply_plainly(out, values, bounds, col, x, s, lo, hi, details)


def sample(
    out: Array, bounds: Array, col: Array, a: Array, b: Array, lo: int, hi: int, details: Array
) -> int:
    """out[e] = the sum of a[r, :] b[col[e], :] for the entries e of row r."""
    n, columns = a.shape[1], b.shape[0]
    if _outside(bounds, col, lo, hi, columns, details):
        return 1  # Status.INDEX_OUT_OF_RANGE
    for r in range(lo, hi):
        p = a[r]
        for e in range(bounds[r], bounds[r + 1]):
            q = b[col[e]]
            total = a.dtype.type(0)
            for k in range(n):
                total += p[k] * q[k]
            out[e] = total
    return 0


def group(bounds: Array, order: Array, row: Array, lo: int, hi: int, details: Array) -> int:
    """Put entries in the order of their rows, those of a row as they come; count them."""
    n = len(bounds) - 1
    for r in range(n + 1):
        bounds[r] = 0
    for e in range(len(row)):
        r = row[e]
        if r < 0 or r >= n:
            details[0], details[1], details[2] = r, n, 0
            return 1  # Status.INDEX_OUT_OF_RANGE
        bounds[r + 1] += 1
    before = 0
    for r in range(1, n + 1):
        count = bounds[r]
        bounds[r] = before
        before += count
    for e in range(len(row)):
        place = bounds[row[e] + 1]
        order[place] = e
        bounds[row[e] + 1] = place + 1
    return 0


def number_rows(row: Array, bounds: Array, lo: int, hi: int, details: Array) -> int:
    """Write r to each entry of row r.  The bounds divide all entries."""
    n, count = len(bounds) - 1, len(row)
    for r in range(lo, hi):
        begin, end = bounds[r], bounds[r + 1]
        first, last = (0 if r == 0 else begin), (count if r == n - 1 else end)
        if begin != first or begin < 0 or begin > count:
            details[0], details[1], details[2] = begin, first + 1, 0
            return 1  # Status.INDEX_OUT_OF_RANGE
        if end != last or end < begin or end > count:
            details[0], details[1], details[2] = end, count + 1, 0
            return 1  # Status.INDEX_OUT_OF_RANGE
        for e in range(begin, end):
            row[e] = r
    return 0
