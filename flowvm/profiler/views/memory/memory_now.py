"""Memory at this moment: how much, what it is for, who made it and what keeps it alive.

`flow.memory.summary()`, and the body of every out-of-memory error.  Of the VM's counters and of a
census of all tensors; the flight recorder says which line made each, as long as it remembers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flowvm.profiler.analysis.census import HOST, Held, census
from flowvm.profiler.grammar import Column, Screen, View, advised, bar, flowed, percent, size, table
from flowvm.profiler.run.kinds import KINDS
from flowvm.profiler.views.memory.memory_parts import PARTS, together
from flowvm.vm.callers.lines import short_position
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.lang import words_at
from flowvm.vm.machine.words import CTL, OPERAND

MOST = 12  # rows
LEAST = 1000  # parts of the memory, of which a row has more than one
SEVERAL = 4  # tensors that are kept where one would do, perhaps
ADVISED = 0.25  # share of the memory from which on something is worth a word


@dataclass(frozen=True)
class Owned:
    """`count` tensors of a kind that an operator at a line made; what keeps most of them alive."""

    kind: str
    name: str
    line: str
    nbytes: int
    count: int
    keeper: str


@dataclass(frozen=True, repr=False)
class MemoryNow(View):
    """See the module.  Bytes; `kinds` are (name, bytes), `rest` is live and no tensor's: rounded
    up, to be released, or a graph's.  `rows` are the largest of `of`.
    """

    live: int
    peak: int
    reserved: int
    kinds: tuple[tuple[str, int], ...]
    rest: int
    rows: tuple[Owned, ...]
    of: int
    advice: tuple[str, ...]

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        reserve = f" · {size(self.reserved)} reserved, {size(self.reserved - self.live)} of it free"
        screen.add(
            (f" memory  {size(self.live)} live", "verdict"), f" · peak {size(self.peak)}", reserve
        )
        glyphs = dict(zip(KINDS, PARTS, strict=False))
        shown = [
            (f"{glyphs[name][0]} {glyphs[name][2]} {size(n)}", glyphs[name][1])
            for name, n in self.kinds
            if n
        ]
        rest = [(f"rest {size(self.rest)}", "head")] if self.rest > self.live // 100 else []
        screen.lines += flowed([*shown, *rest], width)
        columns = [
            Column("bytes", right=True), Column("", drop=3), Column("n", right=True, drop=2),
            Column("kind"), Column("made by", grow=True),
            Column("line", style="line", grow=True, where=True),
            Column("kept alive by", grow=True, drop=1),
        ]  # fmt: skip
        rows: list[list[Any]] = [
            [size(r.nbytes), (bar(r.nbytes / max(1, self.live), 8), "run"), f"{r.count:,}", r.kind,
             r.name or "-", r.line, r.keeper]
            for r in self.rows
        ]  # fmt: skip
        if rows:
            screen.lines += table(columns, rows, width)
        if self.of > len(rows):
            screen.add((f"   and {self.of - len(rows)} more", "head"))
        screen.lines += advised(self.advice, width)
        return screen.fitted(width)


def memory_now(space: int = HOST) -> MemoryNow:
    """The memory of the host, or of a device (`census.space_of`).  Waits for nothing."""
    held = [h for h in census() if h.space == space]
    words = words_at(space, CTL.WORDS) if space != HOST else engine.m
    live = int(words[CTL.LIVE_BYTES])
    sums = {name: sum(h.nbytes for h in held if h.kind == name) for name in KINDS}
    rows = _rows(held)
    return MemoryNow(
        live,
        int(words[CTL.PEAK_BYTES]),
        int(words[CTL.RESERVED_BYTES]),
        tuple(sums.items()),
        max(0, live - sum(sums.values())),
        tuple(r for r in rows[:MOST] if r.nbytes > live // LEAST),
        len(rows),
        tuple(_advice(sums, rows, live)),
    )


def _rows(held: list[Held]) -> list[Owned]:
    """Storages by kind, maker and line, those with most bytes first."""
    makers = _makers()
    groups: dict[tuple[str, str, str], list[Held]] = {}
    for h in held:
        groups.setdefault((h.kind, *makers.get(h.storage, ("", ""))), []).append(h)
    rows = [
        Owned(kind, name, line, sum(h.nbytes for h in own), len(own),
              together((h.nbytes, h.keeper) for h in own if h.keeper))
        for (kind, name, line), own in groups.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda r: (-r.nbytes, r.kind, r.name, r.line))


def _makers() -> dict[int, tuple[str, str]]:
    """Map each storage to the recorded instruction that allocated it."""
    snapshot = engine.flight.look()
    flat = np.flatnonzero(snapshot.access & OPERAND.ALLOCATE)
    owner = np.searchsorted(snapshot.offsets, flat, side="right") - 1
    owners: dict[int, tuple[str, str]] = {}
    last = dict(zip(snapshot.storage[flat].tolist(), owner.tolist(), strict=True))
    lines = {}
    for storage, i in last.items():
        key = (snapshot.codes[i], snapshot.lasts[i])
        if key not in lines:
            lines[key] = short_position(*key)
        entry = int(snapshot.entry[i])
        info = engine.entries.info[entry][0] if entry < len(engine.entries.info) else None
        owners[storage] = (str(getattr(info, "name", "")), lines[key])
    return owners


def _advice(sums: dict[str, int], rows: list[Owned], live: int) -> list[str]:
    """List advice for the uses that have a good part of the memory."""
    much = live * ADVISED
    texts = []
    for r in rows:
        if r.kind == "other" and r.nbytes > much and r.keeper and r.count >= SEVERAL:
            texts.append(
                f"{r.keeper} keeps {size(r.nbytes)}: keep x.item() or x.detach(), or let it go"
            )
    if sums["activation"] > much:
        texts.append(
            f"activations are {percent(sums['activation'] / live)}: a smaller batch, "
            f"flow.utils.checkpoint, or flow.no_grad() where no gradient is wanted"
        )
    if sums["grad"] > much:
        texts.append(
            f"gradients are {percent(sums['grad'] / live)}: optimizer.zero_grad() frees them "
            f"before the next forward"
        )
    if sums["optim"] > live / 2:
        texts.append(
            f"optimizers' state is {percent(sums['optim'] / live)}: SGD keeps less than Adam"
        )
    return texts
