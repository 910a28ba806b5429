"""Kernels that read and write at positions that are data: one index for whole slices (take, put),
or one for each element (gather, scatter).

Tensors are seen as [outer, n, inner] around the indexed dimension and passed flat.  Indices are
checked first, vectors at a time, and then used without a check: one outside stops the kernel with
INDEX_OUT_OF_RANGE and the details index, size, dimension.

Reads are split over positions.  Writes are split over `outer`, over blocks of `inner`, or over
parts of the n destinations, never over the indices: so whatever the number of threads, the writes
to one element come in the order of the indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.meta.arrays import Array

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

SET, ADD, MULTIPLY, AMAX, AMIN = range(5)
NONE = -(1 << 63)  # where no index is special
CHECKED = 4096  # indices that are checked before they are used: they stay in the first-level cache
INLINE_ALWAYS = True


class Slices(NamedTuple):
    """A tensor seen as [outer, n, inner], and which of its n slices an index may name."""

    outer: int
    n: int
    inner: int
    low: int  # the smallest index: 0, or -n where negative ones count from the end
    dim: int  # the dimension that an error names
    skip: int  # an index that nothing is read or written for, or NONE


class Elements(NamedTuple):
    """A tensor seen as [outer, n, inner], and m indices for each of its outer and inner."""

    outer: int
    n: int
    m: int
    inner: int
    dim: int  # the dimension that an error names


class Joined(NamedTuple):
    """Two dimensions whose positions become positions in both taken together."""

    na: int  # sizes
    nb: int
    da: int  # the dimensions that an error names
    db: int


class Writing(NamedTuple):
    """The way in which a source is written, and the division of destinations into units."""

    mode: int  # SET, ADD, ...
    one: int  # whether the source is one element, for all
    block: int  # of inner
    parts: int  # of n


def _outside(index: Array, low: int, n: int, dim: int, details: Array) -> bool:
    """Return True if an index is not in [low, n), and write it to the details."""
    wrong: Any = 0
    for i in range(len(index)):
        wrong |= np.int64(index[i] < low) | np.int64(index[i] >= n)
    if wrong != 0:
        for i in range(len(index)):
            if index[i] < low or index[i] >= n:
                details[0], details[1], details[2] = index[i], n, dim
                break
    return bool(wrong != 0)


# --- reading ----------------------------------------------------------------------------------


def take(out: Array, x: Array, index: Array, s: Slices, lo: int, hi: int, details: Array) -> int:
    """out[o, r, :] = x[o, index[r], :] for units o * m + r; zeros for the index `skip`."""
    n, inner, low, dim, zero, m = s.n, s.inner, s.low, s.dim, s.skip, len(index)
    o, r = lo // max(m, 1), lo % max(m, 1)
    whole = hi - lo >= m
    if _outside(index if whole else index[r : r + hi - lo], low, n, dim, details):
        return 1  # Status.INDEX_OUT_OF_RANGE
    if not whole and _outside(index[: max(0, r + hi - lo - m)], low, n, dim, details):
        return 1
    remaining = hi - lo
    while remaining > 0:
        count = min(remaining, m - r)
        y = out[(o * m + r) * inner : (o * m + r + count) * inner]
        rows = x[o * n * inner : (o + 1) * n * inner]
        if inner == 1:
            _take_elements(y, rows, index[r : r + count], n, low, zero)
        else:
            _take_rows(y, rows, index[r : r + count], n, inner, zero)
        remaining -= count
        o, r = o + 1, 0
    return 0


def _take_elements(out: Array, x: Array, index: Array, n: int, low: int, zero: int) -> None:
    if zero == NONE and low >= 0:
        for i in range(len(out)):
            out[i] = x[np.uint64(index[i])]
    elif zero == NONE:
        for i in range(len(out)):
            j = index[i]
            out[i] = x[np.uint64(j + n if j < 0 else j)]
    else:
        for i in range(len(out)):
            j = index[i]
            value = x[np.uint64(j + n if j < 0 else j)]
            out[i] = out.dtype.type(0) if j == zero else value


def _take_rows(out: Array, x: Array, index: Array, n: int, inner: int, zero: int) -> None:
    for i in range(len(index)):
        j = index[i]
        y = out[i * inner : (i + 1) * inner]
        if j == zero:
            for k in range(inner):
                y[k] = 0
        else:
            at = (j + n if j < 0 else j) * inner
            row = x[at : at + inner]
            for k in range(inner):
                y[k] = row[k]


def gather(
    out: Array, x: Array, index: Array, s: Elements, lo: int, hi: int, details: Array
) -> int:
    """out[o, r, k] = x[o, index[o, r, k], k] for units o * m + r."""
    n, m, inner, dim = s.n, s.m, s.inner, s.dim
    step = max(1, CHECKED // max(inner, 1))
    for first in range(lo, hi, step):
        last = min(hi, first + step)
        if _outside(index[first * inner : last * inner], 0, n, dim, details):
            return 1  # Status.INDEX_OUT_OF_RANGE
        _gather_checked(out, x, index, n, m, inner, first, last)
    return 0


def _gather_checked(
    out: Array, x: Array, index: Array, n: int, m: int, inner: int, lo: int, hi: int
) -> None:
    o, r = lo // max(m, 1), lo % max(m, 1)
    remaining = hi - lo
    while remaining > 0:
        count = min(remaining, m - r)
        start = (o * m + r) * inner
        rows = x[o * n * inner : (o + 1) * n * inner]
        if inner == 1:
            y, at = out[start : start + count], index[start : start + count]
            for i in range(count):
                y[i] = rows[np.uint64(at[i])]
        else:
            for i in range(count):
                begin = start + i * inner
                y, at = out[begin : begin + inner], index[begin : begin + inner]
                for k in range(inner):
                    y[k] = rows[np.uint64(at[k] * inner + k)]
        remaining -= count
        o, r = o + 1, 0


# --- writing ----------------------------------------------------------------------------------


def _combined(mode: int, old: Number, new: Number) -> Number:
    if mode == SET:
        return new
    if mode == ADD:
        return old + new
    if mode == MULTIPLY:
        return old * new
    if new != new or old != old:  # a NaN stays
        return old + new
    if mode == AMAX:
        return new if new > old else old
    return new if new < old else old


def put(
    x: Array, index: Array, source: Array, s: Slices, w: Writing, lo: int, hi: int, details: Array
) -> int:
    """x[o, index[r], :] combined with source[o, r, :], or with the one element of `source`.

    A unit is a block of `inner` of one of `parts` of the n destinations of one o.
    """
    n, inner, skip, m = s.n, s.inner, s.skip, len(index)
    mode, one, block, parts = w.mode, w.one != 0, w.block, w.parts
    if _outside(index, s.low, n, s.dim, details):
        return 1  # Status.INDEX_OUT_OF_RANGE
    blocks = (inner + block - 1) // block
    for unit in range(lo, hi):
        o, part, begin = unit // (blocks * parts), unit // blocks % parts, unit % blocks * block
        width = min(inner - begin, block)
        first, last = n * part // parts, n * (part + 1) // parts
        rows = x[o * n * inner : (o + 1) * n * inner]
        if inner == 1 and not one:
            _put_elements(rows, index, source[o * m : (o + 1) * m], n, skip, mode)
            continue
        for r in range(m):
            j = index[r]
            at = j + n if j < 0 else j
            if j == skip or at < first or at >= last:
                continue
            y = rows[at * inner + begin : at * inner + begin + width]
            if one:
                value = source[0]
                for k in range(width):
                    y[k] = _combined(mode, y[k], value)
                continue
            start = (o * m + r) * inner + begin
            v = source[start : start + width]
            if mode == SET:
                for k in range(width):
                    y[k] = v[k]
            elif mode == ADD:
                for k in range(width):
                    y[k] += v[k]
            else:
                for k in range(width):
                    y[k] = _combined(mode, y[k], v[k])
    return 0


def _put_elements(x: Array, index: Array, source: Array, n: int, skip: int, mode: int) -> None:
    if mode == ADD and skip == NONE:
        for r in range(len(index)):
            j = index[r]
            x[np.uint64(j + n if j < 0 else j)] += source[r]
    else:
        for r in range(len(index)):
            j = index[r]
            at = np.uint64(j + n if j < 0 else j)
            if j != skip:
                x[at] = _combined(mode, x[at], source[r])


def scatter(
    x: Array, index: Array, source: Array, s: Elements, w: Writing, lo: int, hi: int, details: Array
) -> int:
    """x[o, index[o, r, k], k] combined with source[o, r, k], or with its one element.

    A unit is a block of `inner` of one o.
    """
    n, m, inner, dim = s.n, s.m, s.inner, s.dim
    mode, one, block = w.mode, w.one != 0, w.block
    blocks = (inner + block - 1) // block
    for unit in range(lo, hi):
        o, begin = unit // blocks, unit % blocks * block
        width = min(inner - begin, block)
        rows = x[o * n * inner : (o + 1) * n * inner]
        if width == inner:  # all of them are neighbours
            start, end = o * m * inner, (o + 1) * m * inner
            if _outside(index[start:end], 0, n, dim, details):
                return 1  # Status.INDEX_OUT_OF_RANGE
        if inner == 1:
            at, v = index[o * m : (o + 1) * m], source if one else source[o * m : (o + 1) * m]
            _scatter_elements(rows, at, v, mode, one)
            continue
        for r in range(m):
            start = (o * m + r) * inner + begin
            at = index[start : start + width]
            if width < inner and _outside(at, 0, n, dim, details):
                return 1  # Status.INDEX_OUT_OF_RANGE
            v = source if one else source[start : start + width]
            _scatter_row(rows[begin:], at, v, inner, mode, one)
    return 0


def _scatter_elements(x: Array, index: Array, source: Array, mode: int, one: bool) -> None:
    if mode == ADD and not one:
        for r in range(len(index)):
            x[np.uint64(index[r])] += source[r]
    elif mode == SET and not one:
        for r in range(len(index)):
            x[np.uint64(index[r])] = source[r]
    else:
        for r in range(len(index)):
            at = np.uint64(index[r])
            x[at] = _combined(mode, x[at], source[0 if one else r])


def _scatter_row(x: Array, index: Array, source: Array, inner: int, mode: int, one: bool) -> None:
    if mode == ADD and not one:
        for k in range(len(index)):
            x[np.uint64(index[k] * inner + k)] += source[k]
    elif mode == SET and not one:
        for k in range(len(index)):
            x[np.uint64(index[k] * inner + k)] = source[k]
    else:
        for k in range(len(index)):
            at = np.uint64(index[k] * inner + k)
            x[at] = _combined(mode, x[at], source[0 if one else k])
