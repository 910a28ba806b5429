"""A recorded run's memory under other allocators: how much they would have of the system.

What a run allocated and released, in the order of time, is played to each: to one heap that is cut
anew (first fit, best fit), to a buddy system, and to free lists by size, as the VM has them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND, OPERAND
from flowvm.vm.workers.allocator import class_of, size_of

ALIGNED = 64  # bytes that a block of a heap begins at a multiple of
LEAST_BUDDY = 64


class Allocator(Protocol):
    """A heap without memory: `top` is the most bytes that it has had of the system."""

    top: int

    def allocate(self, size: int) -> int: ...
    def free(self, block: int) -> None: ...


class _Heap:
    """One heap: blocks by their place, free ones joined with free neighbours."""

    def __init__(self) -> None:
        self.top = 0
        self.gaps: list[tuple[int, int]] = []  # (place, size), sorted
        self.sizes: dict[int, int] = {}

    def gap(self, size: int) -> int:
        """Return the gap to take, or -1."""
        raise NotImplementedError

    def allocate(self, size: int) -> int:
        size = max(ALIGNED, (size + ALIGNED - 1) // ALIGNED * ALIGNED)
        k = self.gap(size)
        if k < 0:
            if self.gaps and sum(self.gaps[-1]) == self.top:  # the last gap grows
                place = self.gaps.pop()[0]
            else:
                place = self.top
            self.top = place + size
        else:
            place, free = self.gaps.pop(k)
            if free > size:
                self.gaps.insert(k, (place + size, free - size))
        self.sizes[place] = size
        return place

    def free(self, block: int) -> None:
        size = self.sizes.pop(block)
        k = bisect_left(self.gaps, (block, 0))
        if k < len(self.gaps) and self.gaps[k][0] == block + size:
            size += self.gaps.pop(k)[1]
        if k > 0 and sum(self.gaps[k - 1]) == block:
            block, before = self.gaps.pop(k - 1)
            size += before
        insort(self.gaps, (block, size))


class _FirstFit(_Heap):
    def gap(self, size: int) -> int:
        return next((k for k, (_, free) in enumerate(self.gaps) if free >= size), -1)


class _BestFit(_Heap):
    def gap(self, size: int) -> int:
        fits = [(free, k) for k, (_, free) in enumerate(self.gaps) if free >= size]
        return min(fits)[1] if fits else -1


class _Buddy:
    """Blocks of powers of two, halved and joined again; the whole doubles when it is full."""

    def __init__(self) -> None:
        self.top = 0
        self.gaps: dict[int, set[int]] = {}
        self.sizes: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        size = max(LEAST_BUDDY, 1 << (size - 1).bit_length())
        wide = size
        while not self.gaps.get(wide):
            if wide >= max(self.top, size):
                self._grow(size)
                wide = size
                continue
            wide *= 2
        place = min(self.gaps[wide])
        self.gaps[wide].discard(place)
        while wide > size:
            wide //= 2
            self.gaps.setdefault(wide, set()).add(place + wide)
        self.sizes[place] = size
        return place

    def _grow(self, size: int) -> None:
        if self.top == 0:
            self.top = size
            self._give(0, size)
        else:
            self.top, more = 2 * self.top, self.top
            self._give(more, more)

    def _give(self, place: int, size: int) -> None:
        while place ^ size in self.gaps.get(size, ()) and 2 * size <= self.top:
            self.gaps[size].discard(place ^ size)
            place, size = place & ~size, 2 * size
        self.gaps.setdefault(size, set()).add(place)

    def free(self, block: int) -> None:
        self._give(block, self.sizes.pop(block))


class _Caching:
    """A free list for each size class of the VM's, which nothing is cut from or joined in."""

    def __init__(self) -> None:
        self.top = 0
        self.lists: dict[int, list[int]] = {}
        self.classes: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        number = int(class_of(size))
        if blocks := self.lists.get(number):
            place = blocks.pop()
        else:
            place = self.top
            self.top += int(size_of(number))
        self.classes[place] = number
        return place

    def free(self, block: int) -> None:
        self.lists.setdefault(self.classes.pop(block), []).append(block)


ALLOCATORS: dict[str, Callable[[], Allocator]] = {
    "first_fit": _FirstFit, "best_fit": _BestFit, "buddy": _Buddy, "caching": _Caching,
}  # fmt: skip


class Fragmented(NamedTuple):
    """Result of an allocator for a run: the most bytes held of the system, the most bytes of
    tensors, and the share of the former that is never in use at once.
    """

    name: str
    peak: int
    live: int

    @property
    def fragmentation(self) -> float:
        """The share of the peak that the most of tensors leaves."""
        return 1 - self.live / self.peak if self.peak else 0.0


class Allocations(list[Fragmented]):
    """A row an allocator; prints as a table.

    >>> flow.lab.allocators([(1, 100), (2, 64), (-1, 0), (3, 32)], ["best_fit"])[0].peak
    192
    """

    def __repr__(self) -> str:
        lines = [f"{'allocator':10s}  {'peak':>14s}  {'tensors':>14s}  lost"]
        for row in self:
            lines.append(f"{row.name:10s}  {row.peak:14,}  {row.live:14,}  {row.fragmentation:.1%}")
        return "\n".join(lines)


def allocators(what: Any, names: Sequence[str] = tuple(ALLOCATORS)) -> Allocations:
    """Play what a run allocated and released to allocators, and say what each would have taken.

    what    a Profile or its Run, recorded at level 2; or events: (tensor, bytes) of what is
            allocated, (-tensor, 0) of what is released, tensors numbered from 1
    names   "first_fit", "best_fit", "buddy", "caching"
    ArgumentError: there is no such allocator.

    >>> with flow.profiler.profile() as p:
    ...     x = flow.ones(1000) + 1
    ...     flow.vm.sync()
    >>> [row.live >= 4000 for row in flow.lab.allocators(p)]
    [True, True, True, True]
    """
    if wrong := [name for name in names if name not in ALLOCATORS]:
        raise ArgumentError(f"allocators: no {wrong[0]!r}; there are {', '.join(ALLOCATORS)}")
    run = what if isinstance(what, Run) else getattr(what, "run", None)
    events = _events(run) if isinstance(run, Run) else [(int(a), int(b)) for a, b in what]
    rows = Allocations()
    for name in names:
        heap, blocks = ALLOCATORS[name](), dict[int, tuple[int, int]]()
        now = live = 0
        for tensor, size in events:
            if tensor > 0:
                blocks[tensor] = heap.allocate(max(1, size)), size
                now += size
                live = max(live, now)
            elif -tensor in blocks:
                block, size = blocks.pop(-tensor)
                heap.free(block)
                now -= size
        rows.append(Fragmented(name, heap.top, live))
    return rows


def _events(run: Run) -> list[tuple[int, int]]:
    """Allocations when instructions start, releases when they end, in the order of time."""
    owner = run.owner
    births = np.flatnonzero(run.access & OPERAND.ALLOCATE != 0)
    deaths = np.flatnonzero(run.kind[owner] == KIND.RELEASE)
    started, ended = run.time("started"), run.time("ended")
    rows = [(int(started[owner[k]]), 1, int(run.tensor[k]) + 1, int(run.size[k])) for k in births]
    rows += [(int(ended[owner[k]]), 0, -int(run.tensor[k]) - 1, 0) for k in deaths]
    return [(tensor, size) for time, _, tensor, size in sorted(rows) if time > 0]
