"""Kernels over the rows of a sparse matrix: products, samples of a product, rows as numbers.

A matrix has bounds, n + 1 of them: row r has the entries from bounds[r] to bounds[r + 1], in the
order in which they are added.  A row is computed by one thread, so the threads change no bit.
Bounds and columns are checked before they are used; one outside stops the kernel with
INDEX_OUT_OF_RANGE and the details index, size, dimension.
"""

from __future__ import annotations

from typing import Any

Array = Any
INLINE_ALWAYS = True


def _outside(bounds: Array, col: Array, r: int, columns: int, details: Array) -> bool:
    """Return True if row `r` has bounds or columns out of range, and write the details."""
    begin, end = bounds[r], bounds[r + 1]
    if begin < 0 or end < begin or end > len(col):
        details[0], details[1], details[2] = end, len(col) + 1, 0
        return True
    wrong: Any = False
    for e in range(begin, end):
        wrong |= (col[e] < 0) | (col[e] >= columns)
    if wrong:
        for e in range(begin, end):
            if col[e] < 0 or col[e] >= columns:
                details[0], details[1], details[2] = col[e], columns, 1
                break
    return bool(wrong)


def multiply(
    out: Array, values: Array, bounds: Array, col: Array, x: Array, lo: int, hi: int, details: Array
) -> int:
    """out[r, :] = the sum of values[e] x[col[e], :] over the entries e of row r."""
    n, columns = x.shape[1], x.shape[0]
    for r in range(lo, hi):
        if _outside(bounds, col, r, columns, details):
            return 1  # Status.INDEX_OUT_OF_RANGE
        _add_rows(out[r], values, col, x, bounds[r], bounds[r + 1], n)
    return 0


def _add_rows(to: Array, values: Array, col: Array, x: Array, begin: int, end: int, n: int) -> None:
    e = begin
    if (end - begin) % 2 == 1:
        a, p = values[e], x[col[e]]
        for k in range(n):
            to[k] = a * p[k]
        e += 1
    elif end > begin:
        a, b, p, q = values[e], values[e + 1], x[col[e]], x[col[e + 1]]
        for k in range(n):
            to[k] = a * p[k] + b * q[k]
        e += 2
    else:
        for k in range(n):
            to[k] = 0
    while e + 4 <= end:
        a, b, p, q = values[e], values[e + 1], x[col[e]], x[col[e + 1]]
        c, d, s, t = values[e + 2], values[e + 3], x[col[e + 2]], x[col[e + 3]]
        for k in range(n):
            to[k] = (((to[k] + a * p[k]) + b * q[k]) + c * s[k]) + d * t[k]
        e += 4
    if e < end:
        a, b, p, q = values[e], values[e + 1], x[col[e]], x[col[e + 1]]
        for k in range(n):
            to[k] = (to[k] + a * p[k]) + b * q[k]


def multiply_both(
    out: Array, values: Array, bounds: Array, col: Array, x: Array,
    their_bounds: Array, row: Array, order: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """`multiply`; the last three operands are for its gradient."""
    return multiply(out, values, bounds, col, x, lo, hi, details)


def sample(
    out: Array, bounds: Array, col: Array, a: Array, b: Array, lo: int, hi: int, details: Array
) -> int:
    """out[e] = the sum of a[r, :] b[col[e], :] for the entries e of row r."""
    n, columns = a.shape[1], b.shape[0]
    for r in range(lo, hi):
        if _outside(bounds, col, r, columns, details):
            return 1  # Status.INDEX_OUT_OF_RANGE
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
