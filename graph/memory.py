"""The memory plan: offsets in one chunk for blocks of known size and lifetime.

A block lives from the step that first writes it to the step that last touches it, both included.
Two blocks may share bytes when their lives do not meet.  Finding the smallest chunk is NP-hard
(dynamic storage allocation, Garey and Johnson SR2); several greedy orders are tried, each placing a
block at the lowest gap that fits, and the smallest chunk wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flowvm.errors import CaptureError

__all__ = ["ALGORITHMS", "ALIGNMENT", "Block", "MemoryPlan", "plan_memory"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


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
        """Bytes that it takes up."""
        return -(-max(self.nbytes, 1) // ALIGNMENT) * ALIGNMENT

    def meets(self, other: Block) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass
class MemoryPlan:
    """What was chosen: the chunk's bytes, the algorithm, and what each algorithm needed.

    `lower_bound` is the most that is alive at one step: no plan can be smaller.
    """

    nbytes: int
    algorithm: str
    candidates: dict[str, int]
    lower_bound: int
    blocks: list[Block] = field(default_factory=list)

    def check(self) -> None:
        """CaptureError if two blocks that live at one time overlap."""
        for i, a in enumerate(self.blocks):
            for b in self.blocks[:i]:
                apart = a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
                if a.meets(b) and not apart:
                    raise CaptureError(f"memory plan: {a} and {b} overlap")
            if a.offset < 0 or a.offset % ALIGNMENT or a.offset + a.size > self.nbytes:
                raise CaptureError(f"memory plan: {a} is outside the chunk of {self.nbytes} bytes")


ALGORITHMS: dict[str, Callable[[Block], tuple[int, ...]]] = {
    "largest first": lambda b: (-b.size, b.first),
    "longest first": lambda b: (b.first - b.last, -b.size),
    "in order": lambda b: (b.first, -b.size),
    "largest volume first": lambda b: (-b.size * (b.last - b.first + 1), b.first),
}


def _place(blocks: Sequence[Block], key: Callable[[Block], tuple[int, ...]]) -> list[int]:
    """Offsets when blocks are placed in the order of `key`, each at the lowest gap that fits."""
    placed: list[tuple[int, Block]] = []  # sorted by offset
    offsets: dict[int, int] = {}
    for block in sorted(blocks, key=key):
        at = 0
        for offset, other in placed:
            if not other.meets(block):
                continue
            if offset - at >= block.size:
                break
            at = max(at, offset + other.size)
        offsets[id(block)] = at
        place = next((i for i, (offset, _) in enumerate(placed) if offset > at), len(placed))
        placed.insert(place, (at, block))
    return [offsets[id(block)] for block in blocks]


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
    """Give every block its offset; the smallest of what `ALGORITHMS` find."""
    found = {name: _place(blocks, key) for name, key in ALGORITHMS.items()}
    needed = {
        name: max((o + b.size for o, b in zip(offsets, blocks, strict=True)), default=0)
        for name, offsets in found.items()
    }
    best = min(needed, key=lambda name: needed[name])
    for block, offset in zip(blocks, found[best], strict=True):
        block.offset = offset
    plan = MemoryPlan(needed[best], best, needed, lower_bound(blocks), list(blocks))
    plan.check()
    return plan
