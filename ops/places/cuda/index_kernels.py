"""Kernels that read and write at positions that are data, as `flowvm.ops.places.cpu.index_kernels`
says.

Reads have a thread for each element.  Of writes to one place the last in the order of the indices
has to win, and sums have to be taken in that order; so there are three ways:

    walk      a thread for each column of the destination goes through the indices in order
    latest    for SET: the largest position that names a place is found by an integer atomic, and
              only its source is written
    grouped   the indices are sorted, stably, and a thread goes through those of one place

An index outside is reported and left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import cuda

from flowvm.meta.arrays import Array
from flowvm.ops.declare.cuda.error_report import OUTSIDE, report
from flowvm.ops.declare.cuda.steps import remade_by, wide
from flowvm.ops.declare.cuda.vectors import aligned, load_many, store_many
from flowvm.ops.places.cpu.index_kernels import NONE, Elements, Joined, Slices, _combined
from flowvm.ops.places.cuda.radix import current_half

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

EVERY_DIGIT = -1  # no digit of the keys is passed over


class Grouping(NamedTuple):
    """The combination of the sources of one place, once indices are sorted."""

    digits: int  # of the keys
    mode: int
    one: int  # whether the source is one element, for all


def _place(index: Array, i: int, low: int, n: int, dim: int, skip: int, details: Array) -> int:
    """The position that index i names, -1 if it is outside or to be skipped."""
    j: Any = np.int64(index[i])
    if j == skip and skip != NONE:
        return -1
    if j < low or j >= n:
        report(details, OUTSIDE, j, n, dim)
        return -1
    return j + n if j < 0 else j  # type: ignore[no-any-return]


def _unit(threads: object, lanes: int) -> Any:
    """Return the number of teams of `lanes`, a power of two, in a number of threads."""
    return threads >> cuda.popc(lanes - 1)


def _element(i: int, at: int, s: Elements) -> int:
    """Return the position of the element that index i names; `at` is the value of the index."""
    return (i // (s.m * s.inner) * s.n + at) * s.inner + i % s.inner


# --- reading ------------------------------------------------------------------------------------


@functools.cache
def take(many: int) -> Callable[..., object]:
    """Return a kernel: out[o, r, :] = x[o, index[r], :] for rows o * m + r.

    There are zeros for the index `skip`.  `many` elements are moved at once where they lie so; a
    row is a multiple of `many`.
    """
    load, store = load_many[many], store_many[many]

    def body(out: Array, x: Array, index: Array, details: Array, s: Slices, lanes: int) -> None:
        lane, row, m = cuda.threadIdx.x & (lanes - 1), _unit(cuda.grid(1), lanes), len(index)
        rows, n, inner, zero = s.outer * m, s.n, s.inner, s.skip
        together = many > 1 and aligned(out, many) and aligned(x, many)
        while row < rows:
            o = row // m if rows > m else 0
            at = _place(index, row - o * m, s.low, n, s.dim, NONE, details)
            to = row * inner
            if zero != NONE and index[row - o * m] == zero:
                for k in range(lane, inner, lanes):
                    out[to + k] = 0
            elif at >= 0:
                source = (o * n + at) * inner
                if together:
                    for k in range(lane * many, inner, lanes * many):
                        store(out, to + k, load(x, source + k))
                else:
                    for k in range(lane, inner, lanes):
                        out[to + k] = x[source + k]
            row += _unit(cuda.gridsize(1), lanes)

    return remade_by(body, f"{__name__}:take", many)


def gather(out: Array, x: Array, index: Array, details: Array, s: Elements) -> None:
    """out[o, r, k] = x[o, index[o, r, k], k]."""
    i = cuda.grid(1)
    while i < len(out):
        at = _place(index, i, 0, s.n, s.dim, NONE, details)
        if at >= 0:
            out[i] = x[_element(i, at, s)]
        i += cuda.gridsize(1)


def join(out: Array, a: Array, b: Array, details: Array, s: Joined) -> None:
    """Positions in two dimensions as positions in both taken together."""
    i = cuda.grid(1)
    while i < len(out):
        p = _place(a, i, -s.na, s.na, s.da, NONE, details)
        q = _place(b, i, -s.nb, s.nb, s.db, NONE, details) if p >= 0 else 0
        out[i] = p * s.nb + q
        i += cuda.gridsize(1)


# --- writing slices -------------------------------------------------------------------------------


def put_walk(
    x: Array, index: Array, source: Array, details: Array, s: Slices, mode: int, one: int
) -> None:
    """A unit is one k of `inner` of one o."""
    unit, m, n, inner = cuda.grid(1), len(index), s.n, s.inner
    while unit < s.outer * inner:
        o, k = unit // inner, unit % inner
        for r in range(m):
            at = _place(index, r, s.low, n, s.dim, s.skip, details)
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


def put_latest(latest: Array, index: Array, details: Array, s: Slices) -> None:
    """For each of the n positions the last index that names it."""
    r = cuda.grid(1)
    while r < len(index):
        at = _place(index, r, s.low, s.n, s.dim, s.skip, details)
        if at >= 0:
            cuda.atomic.max(latest, at, latest.dtype.type(r))
        r += cuda.gridsize(1)


def put_last(
    x: Array, index: Array, source: Array, latest: Array, s: Slices, one: int, lanes: int
) -> None:
    """x[o, index[r], :] = source[o, r, :] for rows o * m + r that come last."""
    lane, row, m = cuda.threadIdx.x & (lanes - 1), _unit(cuda.grid(1), lanes), len(index)
    rows, n, inner = s.outer * m, s.n, s.inner
    while row < rows:
        o = row // m if rows > m else 0
        r = row - o * m
        at = index[r]
        at = at + n if at < 0 else at
        if 0 <= at and at < n and latest[at] == r:
            to = (o * n + at) * inner
            for k in range(lane, inner, lanes):
                x[to + k] = source[0 if one != 0 else row * inner + k]
        row += _unit(cuda.gridsize(1), lanes)


def put_keys(
    keys: Array, places: Array, varying: Array, index: Array, details: Array, s: Slices
) -> None:
    """The keys of a sort by destination; n for an index that names none."""
    r = cuda.grid(1)
    if r == 0:
        varying[0] = EVERY_DIGIT
    while r < len(index):
        at = _place(index, r, s.low, s.n, s.dim, s.skip, details)
        keys[0, r] = at if at >= 0 else s.n
        places[0, r] = r
        r += cuda.gridsize(1)


def _stretch_end(key: Array, e: int, m: int) -> int:
    """Return the end of the keys equal to key e; the steps of the search double, then halve."""
    last, step = e, 1
    while last + step < m and key[last + step] == key[e]:
        last += step
        step *= 2
    while step > 1:
        step //= 2
        if last + step < m and key[last + step] == key[e]:
            last += step
    return last + 1


def _added(source: Array, at: int, one: int) -> Number:
    """The element that is combined; `one`: there is one for all."""
    return wide(source[0 if one != 0 else at])


def put_grouped(
    x: Array, source: Array, keys: Array, places: Array, varying: Array, s: Slices, g: Grouping,
    lanes: int,
) -> None:  # fmt: skip
    """Rows o * m + e, where e is the first of its destination's stretch, combine all of it."""
    lane, row, m = cuda.threadIdx.x & (lanes - 1), _unit(cuda.grid(1), lanes), keys.shape[1]
    rows, n, inner, mode, one = s.outer * m, s.n, s.inner, g.mode, g.one
    half = current_half(varying, g.digits)
    key, place = keys[half], places[half]
    while row < rows:
        o = row // m if rows > m else 0
        e = row - o * m
        at = np.int64(key[e])
        if at < n and (e == 0 or key[e - 1] != at):
            end = _stretch_end(key, e, m)
            for k in range(lane, inner, lanes):
                to = (o * n + at) * inner + k
                value, f, row_of = wide(x[to]), e, o * m
                while f + 3 < end:  # four are on their way at a time
                    a = _added(source, (row_of + place[f]) * inner + k, one)
                    b = _added(source, (row_of + place[f + 1]) * inner + k, one)
                    c = _added(source, (row_of + place[f + 2]) * inner + k, one)
                    d = _added(source, (row_of + place[f + 3]) * inner + k, one)
                    value = _combined(mode, _combined(mode, value, a), b)
                    value = _combined(mode, _combined(mode, value, c), d)
                    f += 4
                while f < end:
                    new = _added(source, (row_of + place[f]) * inner + k, one)
                    value = _combined(mode, value, new)
                    f += 1
                x[to] = x.dtype.type(value)
        row += _unit(cuda.gridsize(1), lanes)


# --- writing elements -----------------------------------------------------------------------------


def scatter_walk(
    x: Array, index: Array, source: Array, details: Array, s: Elements, mode: int, one: int
) -> None:
    """A unit is one k of `inner` of one o."""
    unit, n, m, inner = cuda.grid(1), s.n, s.m, s.inner
    while unit < s.outer * inner:
        o, k = unit // inner, unit % inner
        for r in range(m):
            i = (o * m + r) * inner + k
            at = _place(index, i, 0, n, s.dim, NONE, details)
            if at >= 0:
                to = (o * n + at) * inner + k
                new = wide(source[0 if one != 0 else i])
                x[to] = x.dtype.type(_combined(mode, wide(x[to]), new))
        unit += cuda.gridsize(1)


def scatter_latest(latest: Array, index: Array, details: Array, s: Elements) -> None:
    """For each element of x the last index that names it."""
    i = cuda.grid(1)
    while i < len(index):
        at = _place(index, i, 0, s.n, s.dim, NONE, details)
        if at >= 0:
            cuda.atomic.max(latest, _element(i, at, s), latest.dtype.type(i))
        i += cuda.gridsize(1)


def scatter_last(
    x: Array, index: Array, source: Array, latest: Array, s: Elements, one: int
) -> None:
    i = cuda.grid(1)
    while i < len(index):
        at = index[i]
        if 0 <= at and at < s.n:
            to = _element(i, at, s)
            if latest[to] == i:
                x[to] = source[0 if one != 0 else i]
        i += cuda.gridsize(1)


def scatter_keys(
    keys: Array, places: Array, varying: Array, index: Array, details: Array, s: Elements
) -> None:
    """The keys of a sort by destination; how many there are for an index that names none."""
    i = cuda.grid(1)
    if i == 0:
        varying[0] = EVERY_DIGIT
    while i < len(index):
        at = _place(index, i, 0, s.n, s.dim, NONE, details)
        keys[0, i] = _element(i, at, s) if at >= 0 else s.outer * s.n * s.inner
        places[0, i] = i
        i += cuda.gridsize(1)


def scatter_grouped(
    x: Array, source: Array, keys: Array, places: Array, varying: Array, g: Grouping
) -> None:
    """The first of an element's stretch combines all of it."""
    i, m, mode, one = cuda.grid(1), keys.shape[1], g.mode, g.one
    half = current_half(varying, g.digits)
    key, place = keys[half], places[half]
    while i < m:
        to = np.int64(key[i])
        if to < len(x) and (i == 0 or key[i - 1] != to):
            value, f = wide(x[to]), i
            while f + 3 < m and key[f + 3] == to:  # and so those between; four are on their way
                a, b = _added(source, place[f], one), _added(source, place[f + 1], one)
                c, d = _added(source, place[f + 2], one), _added(source, place[f + 3], one)
                value = _combined(mode, _combined(mode, value, a), b)
                value = _combined(mode, _combined(mode, value, c), d)
                f += 4
            while f < m and key[f] == to:
                value = _combined(mode, value, _added(source, place[f], one))
                f += 1
            x[to] = x.dtype.type(value)
        i += cuda.gridsize(1)
