"""Kernels that read and write at positions that are data, as `flowvm.ops.index_kernels` says.

Reads have a thread for each element.  Of writes to one place the last in the order of the indices
has to win, and sums have to be taken in that order; so there are three ways:

    walk      a thread for each column of the destination goes through the indices in order
    latest    for SET: the largest position that names a place is found by an integer atomic, and
              only its source is written
    grouped   the indices are sorted, stably, and a thread goes through those of one place

An index outside is reported and left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from flowvm.ops.cuda.radix import current_half
from flowvm.ops.cuda.reporting import OUTSIDE, report
from flowvm.ops.cuda.steps import wide
from flowvm.ops.index_kernels import NONE, _combined

__all__ = [
    "gather",
    "join",
    "put_grouped",
    "put_keys",
    "put_last",
    "put_latest",
    "put_walk",
    "scatter_grouped",
    "scatter_keys",
    "scatter_last",
    "scatter_latest",
    "scatter_walk",
    "take",
    "unset",
]

Array = Any
EVERY_DIGIT = -1  # no digit of the keys is passed over


def _place(index: Array, i: int, low: int, n: int, dim: int, skip: int, details: Array) -> int:
    """The position that index i names, -1 if it is outside or to be skipped."""
    j: Any = np.int64(index[i])
    if j == skip and skip != NONE:
        return -1
    if j < low or j >= n:
        report(details, OUTSIDE, j, n, dim)
        return -1
    return j + n if j < 0 else j  # type: ignore[no-any-return]


# --- reading ------------------------------------------------------------------------------------


def take(
    out: Array, x: Array, index: Array, details: Array, rows: int, n: int, inner: int, low: int,
    dim: int, zero: int, lanes: int,
) -> None:  # fmt: skip
    """out[o, r, :] = x[o, index[r], :] for rows o * m + r; zeros for the index `zero`."""
    lane, row, m = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes, len(index)
    while row < rows:
        at = _place(index, row % m, low, n, dim, NONE, details)
        if zero != NONE and index[row % m] == zero:
            for k in range(lane, inner, lanes):
                out[row * inner + k] = 0
        elif at >= 0:
            source = (row // m * n + at) * inner
            for k in range(lane, inner, lanes):
                out[row * inner + k] = x[source + k]
        row += cuda.gridsize(1) // lanes


def gather(
    out: Array, x: Array, index: Array, details: Array, n: int, m: int, inner: int, dim: int
) -> None:
    """out[o, r, k] = x[o, index[o, r, k], k]."""
    i = cuda.grid(1)
    while i < len(out):
        at = _place(index, i, 0, n, dim, NONE, details)
        if at >= 0:
            out[i] = x[(i // (m * inner) * n + at) * inner + i % inner]
        i += cuda.gridsize(1)


def join(
    out: Array, a: Array, b: Array, details: Array, na: int, nb: int, da: int, db: int
) -> None:
    """Positions in two dimensions as positions in both taken together."""
    i = cuda.grid(1)
    while i < len(out):
        p = _place(a, i, -na, na, da, NONE, details)
        q = _place(b, i, -nb, nb, db, NONE, details) if p >= 0 else 0
        out[i] = p * nb + q
        i += cuda.gridsize(1)


# --- writing slices -------------------------------------------------------------------------------


def put_walk(
    x: Array, index: Array, source: Array, details: Array, columns: int, n: int, inner: int,
    low: int, dim: int, skip: int, mode: int, one: int,
) -> None:  # fmt: skip
    """A unit is one k of `inner` of one o."""
    unit, m = cuda.grid(1), len(index)
    while unit < columns:
        o, k = unit // inner, unit % inner
        for r in range(m):
            at = _place(index, r, low, n, dim, skip, details)
            if at >= 0:
                to = (o * n + at) * inner + k
                new = wide(source[0 if one != 0 else (o * m + r) * inner + k])
                x[to] = x.dtype.type(_combined(mode, wide(x[to]), new))
        unit += cuda.gridsize(1)


def unset(latest: Array) -> None:
    i = cuda.grid(1)
    while i < len(latest):
        latest[i] = -1
        i += cuda.gridsize(1)


def put_latest(
    latest: Array, index: Array, details: Array, n: int, low: int, dim: int, skip: int
) -> None:
    """For each of the n positions the last index that names it."""
    r = cuda.grid(1)
    while r < len(index):
        at = _place(index, r, low, n, dim, skip, details)
        if at >= 0:
            cuda.atomic.max(latest, at, latest.dtype.type(r))
        r += cuda.gridsize(1)


def put_last(
    x: Array, index: Array, source: Array, latest: Array, rows: int, n: int, inner: int, one: int,
    lanes: int,
) -> None:  # fmt: skip
    """x[o, index[r], :] = source[o, r, :] for rows o * m + r that come last."""
    lane, row, m = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes, len(index)
    while row < rows:
        r = row % m
        at = index[r]
        at = at + n if at < 0 else at
        if 0 <= at and at < n and latest[at] == r:
            to = (row // m * n + at) * inner
            for k in range(lane, inner, lanes):
                x[to + k] = source[0 if one != 0 else row * inner + k]
        row += cuda.gridsize(1) // lanes


def put_keys(
    keys: Array, places: Array, varying: Array, index: Array, details: Array, n: int, low: int,
    dim: int, skip: int,
) -> None:  # fmt: skip
    """The keys of a sort by destination; n for an index that names none."""
    r = cuda.grid(1)
    if r == 0:
        varying[0] = EVERY_DIGIT
    while r < len(index):
        at = _place(index, r, low, n, dim, skip, details)
        keys[0, r] = at if at >= 0 else n
        places[0, r] = r
        r += cuda.gridsize(1)


def put_grouped(
    x: Array, source: Array, keys: Array, places: Array, varying: Array, digits: int, rows: int,
    n: int, inner: int, mode: int, one: int, lanes: int,
) -> None:  # fmt: skip
    """Rows o * m + e, where e is the first of its destination's stretch, combine all of it."""
    lane, row, m = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes, keys.shape[1]
    half = current_half(varying, digits)
    key, place = keys[half], places[half]
    while row < rows:
        o, e = row // m, row % m
        at = np.int64(key[e])
        if at < n and (e == 0 or key[e - 1] != at):
            end = e + 1
            while end < m and key[end] == at:
                end += 1
            for k in range(lane, inner, lanes):
                to = (o * n + at) * inner + k
                value = wide(x[to])
                for f in range(e, end):
                    new = wide(source[0 if one != 0 else (o * m + place[f]) * inner + k])
                    value = _combined(mode, value, new)
                x[to] = x.dtype.type(value)
        row += cuda.gridsize(1) // lanes


# --- writing elements -----------------------------------------------------------------------------


def scatter_walk(
    x: Array, index: Array, source: Array, details: Array, columns: int, n: int, m: int,
    inner: int, dim: int, mode: int, one: int,
) -> None:  # fmt: skip
    """A unit is one k of `inner` of one o."""
    unit = cuda.grid(1)
    while unit < columns:
        o, k = unit // inner, unit % inner
        for r in range(m):
            i = (o * m + r) * inner + k
            at = _place(index, i, 0, n, dim, NONE, details)
            if at >= 0:
                to = (o * n + at) * inner + k
                new = wide(source[0 if one != 0 else i])
                x[to] = x.dtype.type(_combined(mode, wide(x[to]), new))
        unit += cuda.gridsize(1)


def scatter_latest(
    latest: Array, index: Array, details: Array, n: int, m: int, inner: int, dim: int
) -> None:
    """For each element of x the last index that names it."""
    i = cuda.grid(1)
    while i < len(index):
        at = _place(index, i, 0, n, dim, NONE, details)
        if at >= 0:
            to = (i // (m * inner) * n + at) * inner + i % inner
            cuda.atomic.max(latest, to, latest.dtype.type(i))
        i += cuda.gridsize(1)


def scatter_last(
    x: Array, index: Array, source: Array, latest: Array, n: int, m: int, inner: int, one: int
) -> None:
    i = cuda.grid(1)
    while i < len(index):
        at = index[i]
        if 0 <= at and at < n:
            to = (i // (m * inner) * n + at) * inner + i % inner
            if latest[to] == i:
                x[to] = source[0 if one != 0 else i]
        i += cuda.gridsize(1)


def scatter_keys(
    keys: Array, places: Array, varying: Array, index: Array, details: Array, n: int, m: int,
    inner: int, dim: int, total: int,
) -> None:  # fmt: skip
    """The keys of a sort by destination; `total` for an index that names none."""
    i = cuda.grid(1)
    if i == 0:
        varying[0] = EVERY_DIGIT
    while i < len(index):
        at = _place(index, i, 0, n, dim, NONE, details)
        to = (i // (m * inner) * n + at) * inner + i % inner
        keys[0, i] = to if at >= 0 else total
        places[0, i] = i
        i += cuda.gridsize(1)


def scatter_grouped(
    x: Array, source: Array, keys: Array, places: Array, varying: Array, digits: int, mode: int,
    one: int,
) -> None:  # fmt: skip
    """The first of an element's stretch combines all of it."""
    i, m = cuda.grid(1), keys.shape[1]
    half = current_half(varying, digits)
    key, place = keys[half], places[half]
    while i < m:
        to = np.int64(key[i])
        if to < len(x) and (i == 0 or key[i - 1] != to):
            value, f = wide(x[to]), i
            while f < m and key[f] == to:
                new = wide(source[0 if one != 0 else place[f]])
                value = _combined(mode, value, new)
                f += 1
            x[to] = x.dtype.type(value)
        i += cuda.gridsize(1)
