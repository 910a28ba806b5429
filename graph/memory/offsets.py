"""The memory plan: offsets in one chunk for blocks of known size and lifetime.

A block lives from the step that first writes it to the step that last touches it, both included.
Two blocks may share bytes when their lives do not meet.  Finding the smallest chunk is NP-hard
(dynamic storage allocation, Garey and Johnson SR2), so several ways are tried, of three families:

- *first fit*: blocks in some greedy order, each at the lowest gap that fits;
- *best fit* on the skyline: the lowest ledge takes the block that lives longest of those whose
  lives lie within it (Sekiyama et al. 2018, "Profile-guided memory optimization for deep neural
  networks");
- *raised*: first fit again and again, what stuck out at the top being placed first the next time.

The most that is alive at one step bounds all of them from below; the first that meets the bound
ends the search.  Everything is found by sizes and lives alone, so a graph has the same plan always.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from flowvm.errors import CaptureError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind
from flowvm.graph.logical.printer import size_text
from flowvm.vm.workers.allocator import class_of, size_of
from flowvm.vm.workers.zones import CHUNK_ZONE

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
EFFORT = 4000  # blocks that "raised" places in all, and as many as one pass over them has
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(eq=False)
class Block:
    """Bytes needed from step `first` to step `last`; `offset` is where the plan puts them."""

    nbytes: int
    first: int
    last: int
    name: str = ""
    offset: int = -1

    @property
    def size(self) -> int:
        """Bytes that it takes up; under the memory check with a zone behind them."""
        return -(-max(self.nbytes, 1) // ALIGNMENT) * ALIGNMENT + CHUNK_ZONE

    def meets(self, other: Block) -> bool:
        """Return True if both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass
class MemoryPlan:
    """The chosen layout: the chunk's bytes, the algorithm, and the bytes needed by each.

    `lower_bound` is the most that is alive at one step: no plan can be smaller.
    """

    nbytes: int
    algorithm: str
    candidates: dict[str, int]
    lower_bound: int
    blocks: list[Block] = field(default_factory=list)

    def check(self) -> None:
        """CaptureError if two blocks that live at one time overlap, or one is outside the chunk.

        Steps are gone through in order, and what is alive is kept sorted by offset: while it does
        not overlap, a block that comes can only meet its neighbours.
        """
        for block in self.blocks:
            if block.last < block.first:
                raise CaptureError(f"memory plan: {block} ends before it begins")
            end = block.offset + block.size
            if block.offset < 0 or block.offset % ALIGNMENT or end > self.nbytes:
                raise CaptureError(
                    f"memory plan: {block} is outside the chunk of {self.nbytes} bytes"
                )
        leaving = sorted(self.blocks, key=lambda b: b.last, reverse=True)
        alive: list[tuple[int, int, Block]] = []  # (offset, place among blocks, block)
        places = {id(block): place for place, block in enumerate(self.blocks)}
        for block in sorted(self.blocks, key=lambda b: b.first):
            while leaving[-1].last < block.first:
                gone = leaving.pop()
                del alive[bisect.bisect_left(alive, (gone.offset, places[id(gone)], gone))]
            key = (block.offset, places[id(block)], block)
            at = bisect.bisect_left(alive, key)
            for _, _, other in alive[max(0, at - 1) : at + 1]:
                if block.offset < other.offset + other.size and other.offset < (
                    block.offset + block.size
                ):
                    raise CaptureError(f"memory plan: {other} and {block} overlap")
            alive.insert(at, key)


class _Blocks:
    """Blocks as arrays: first and last steps, and sizes."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.first: Ints = np.array([b.first for b in blocks], np.int64)
        self.last: Ints = np.array([b.last for b in blocks], np.int64)
        self.size: Ints = np.array([b.size for b in blocks], np.int64)

    def needed(self, offsets: Ints) -> int:
        """The chunk's bytes for these offsets."""
        return int((offsets + self.size).max())


# --- first fit ----------------------------------------------------------------------------------

ORDERS: dict[str, Callable[[_Blocks], Ints]] = {
    "largest first": lambda b: np.lexsort((b.first, -b.size)),
    "longest first": lambda b: np.lexsort((-b.size, b.first - b.last)),
    "in order": lambda b: np.lexsort((-b.size, b.first)),
    "largest volume first": lambda b: np.lexsort((b.first, -b.size * (b.last - b.first + 1))),
}


def _first_fit(blocks: _Blocks, order: Ints) -> Ints:
    """Offsets when blocks are placed in this order, each at the lowest gap that fits."""
    count = len(order)
    first, last, size = blocks.first[order], blocks.last[order], blocks.size[order]
    start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for k in range(count):
        met = np.flatnonzero((first[:k] <= last[k]) & (last[:k] >= first[k]))
        at = 0
        if met.size:
            met = met[start[met].argsort(kind="stable")]
            below = np.concatenate(([0], np.maximum.accumulate(end[met])))
            fits = start[met] - below[:-1] >= size[k]
            place = int(fits.argmax())
            at = below[place] if fits[place] else below[-1]
        start[k], end[k] = at, at + size[k]
    offsets = np.empty(count, np.int64)
    offsets[order] = start
    return offsets


def _by(order: Callable[[_Blocks], Ints]) -> Callable[[_Blocks, int], Ints]:
    return lambda blocks, bound: _first_fit(blocks, order(blocks))


def _raised(blocks: _Blocks, bound: int) -> Ints:
    """Place blocks by first fit, longest first; then again, the topmost in front, while it pays."""
    order = ORDERS["longest first"](blocks)
    best = offsets = _first_fit(blocks, order)
    for _ in range(EFFORT // len(order)):
        ends = offsets + blocks.size
        if blocks.needed(best) == bound:
            break
        top = ends[order] == ends.max()
        order = np.concatenate((order[top], order[~top]))
        offsets = _first_fit(blocks, order)
        if blocks.needed(offsets) < blocks.needed(best):
            best = offsets
    return best


# --- best fit on the skyline --------------------------------------------------------------------


def _best_fit(blocks: _Blocks, bound: int) -> Ints:
    """Offsets by best fit: see the module."""
    order = np.lexsort((-blocks.size, blocks.first - blocks.last))  # longest, then largest, first
    first, last = blocks.first[order].copy(), blocks.last[order]
    offsets = np.zeros(len(order), np.int64)
    ledges = [(0, int(last.max()) + 1, 0)]  # (from step, to step, height), side by side
    index = len(order)
    while index:
        k = min(range(len(ledges)), key=lambda k: ledges[k][2])
        begin, stop, height = ledges[k]
        fits = (first >= begin) & (last < stop)
        place = int(fits.argmax())
        if not fits[place]:  # nothing more goes here: fill it up to the lower of its neighbours
            beside = [ledges[n][2] for n in (k - 1, k + 1) if 0 <= n < len(ledges)]
            ledges[k] = (begin, stop, min(beside))
        else:
            block = order[place]
            a, b = int(first[place]), int(last[place]) + 1
            first[place] = -1  # placed: it lies within no ledge any more
            index -= 1
            offsets[block] = height
            parts = (begin, a, height), (a, b, height + int(blocks.size[block])), (b, stop, height)
            ledges[k : k + 1] = [part for part in parts if part[0] < part[1]]
        _merge(ledges, k)
    return offsets


def _merge(ledges: list[tuple[int, int, int]], near: int) -> None:
    """Join ledges of one height around a place."""
    k = max(1, near)
    while k < min(len(ledges), near + 4):
        if ledges[k - 1][2] == ledges[k][2]:
            ledges[k - 1 : k + 1] = [(ledges[k - 1][0], ledges[k][1], ledges[k][2])]
        else:
            k += 1


# --- the plan -----------------------------------------------------------------------------------

ALGORITHMS: dict[str, Callable[[_Blocks, int], Ints]] = {
    "largest first": _by(ORDERS["largest first"]),
    "best fit": _best_fit,
    "largest volume first": _by(ORDERS["largest volume first"]),
    "in order": _by(ORDERS["in order"]),
    "raised": _raised,
}


def lower_bound(blocks: Sequence[Block]) -> int:
    """The most bytes that are alive at one step."""
    change: dict[int, int] = {}
    for block in blocks:
        change[block.first] = change.get(block.first, 0) + block.size
        change[block.last + 1] = change.get(block.last + 1, 0) - block.size
    live = most = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most


def plan_memory(blocks: Sequence[Block]) -> MemoryPlan:
    """Give every block its offset: take the smallest layout of all `ALGORITHMS`."""
    bound = lower_bound(blocks)
    if not blocks:
        return MemoryPlan(0, next(iter(ALGORITHMS)), {}, 0)
    arrays = _Blocks(blocks)
    needed: dict[str, int] = {}
    best, chosen = "", np.empty(0, np.int64)
    for name, place in ALGORITHMS.items():
        offsets = place(arrays, bound)
        needed[name] = arrays.needed(offsets)
        if not best or needed[name] < needed[best]:
            best, chosen = name, offsets
        if needed[best] == bound:
            break
    for block, offset in zip(blocks, chosen, strict=True):
        block.offset = int(offset)
    plan = MemoryPlan(needed[best], best, needed, bound, list(blocks))
    plan.check()
    return plan


def joined(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """One chunk of several, each behind the other."""
    if len(plans) < 2:
        return plans[0] if plans else plan_memory([])
    whole = MemoryPlan(0, "one part a stream", {}, 0)
    for plan in plans:
        for block in plan.blocks:
            block.offset += whole.nbytes
        whole.nbytes += plan.nbytes
        whole.lower_bound += plan.lower_bound
        whole.blocks += plan.blocks
    for name in ALGORITHMS:
        if all(name in plan.candidates for plan in plans):
            whole.candidates[name] = sum(plan.candidates[name] for plan in plans)
    return whole


# --- beside eager code --------------------------------------------------------------------------


def eager_peak(graph: LogicalGraph) -> int:
    """Return the most bytes that eager code has allocated at once when it runs the captured code.

    Inputs, variables and the kernels' own memory do not count.

    A tensor lives from the instruction that makes it to the last that names it, which is when
    autograd or Python let it go at the earliest; outputs, and gradients that an optimizer reads,
    live to the end.  Sizes are the allocator's.  So real code needs this or more.
    """
    end = len(graph.nodes)
    lives: dict[Buffer, list[int]] = {}
    results = {operand.buffer for operand in graph.outputs}
    for step, node in enumerate(graph.nodes):
        for _, operand in node.accesses():
            buffer = operand.buffer
            if buffer.kind is BufferKind.TEMPORARY:
                life = lives.setdefault(buffer, [step, step])
                stays = buffer in results or (node.phase == "optimizer" and life[0] < step)
                life[1] = end if stays else max(life[1], step)
    change = [0] * (end + 2)
    for buffer, (first, last) in lives.items():
        size = size_of(class_of(max(1, buffer.nbytes)))
        change[first] += size
        change[last + 1] -= size
    return max(accumulate(change), default=0)


@dataclass(frozen=True)
class MemoryReport:
    """Bytes that a launch allocates: `chunk` and `outputs`.

    The others are memory that exists anyway (`variables`) and eager code's peak for the same
    program (`eager`).
    """

    chunk: int
    outputs: int
    variables: int
    eager: int

    @property
    def ratio(self) -> float:
        """The memory that a launch allocates, divided by the memory that eager code allocates."""
        return (self.chunk + self.outputs) / max(1, self.eager)

    def __repr__(self) -> str:
        return (
            f"memory: a launch takes {size_text(self.chunk + self.outputs)} (chunk "
            f"{size_text(self.chunk)}, outputs {size_text(self.outputs)}), eager code "
            f"{size_text(self.eager)} or more: {self.ratio:.2f}x; variables "
            f"{size_text(self.variables)}"
        )
