"""Intervals of time as traces want them: exact microseconds, and rows without overlaps."""

from __future__ import annotations

import heapq

import numpy as np

from flowvm.meta.arrays import Array


def microseconds(nanoseconds: Array) -> list[str]:
    """Microseconds, exactly."""
    whole, rest = np.divmod(nanoseconds, 1000)
    return [f"{a}.{b:03}" for a, b in zip(whole.tolist(), rest.tolist(), strict=True)]


def beside(begin: Array, end: Array) -> Array:
    """For intervals in the order of `begin`: a row for each such that a row has no overlap."""
    end = np.maximum(end, begin + 1)
    rows = np.zeros(len(begin), np.int64)
    if (begin[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return rows
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # end, row
    for k, (b, e) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= b:
            heapq.heappush(free, heapq.heappop(busy)[1])
        rows[k] = row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (e, row))
    return rows
