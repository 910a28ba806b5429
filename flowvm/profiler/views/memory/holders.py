"""Holders of memory at any moment of a run: module, line, purpose, and the object that keeps it
alive.

`Holdings` has a row for each tensor that the run made and each instruction that took workspace,
with when it was taken, let go of and given back; the page's program gets these rows, and computes
of them what `at` does (`assets/holders.js`, held against this by a test).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.tables import Births, Memory
from flowvm.profiler.run.kinds import OTHER, held_before
from flowvm.profiler.run.run import Run
from flowvm.profiler.run.spaces import allocation_times, inside, returned
from flowvm.profiler.views.memory.memory_parts import PARTS, WAITING, WORKSPACE, together

NEVER = int(np.iinfo(np.int64).max)
BEFORE = "before the run"


@dataclass(frozen=True)
class Holder:
    """Tensors of one kind (of PARTS) that an operator made at a line of a module: bytes, how many,
    and what keeps most of them alive, "" where that is not known.
    """

    kind: str
    module: str
    op: str
    line: str
    nbytes: int
    count: int
    keeper: str


@dataclass(frozen=True)
class Holdings:
    """See the module.  `kind`, `label` and `keeper` (-1: none) point into PARTS, `labels` (module,
    operator, line) and `keepers`; `before` are rows (kind, label, bytes, number, keeper) of what
    was there when the run began and lived at its end.
    """

    memory: Memory
    labels: tuple[tuple[str, str, str], ...]
    keepers: tuple[str, ...]
    before: tuple[tuple[int, int, int, int, int], ...]
    kind: Array
    label: Array
    keeper: Array
    size: Array
    born: Array
    freed: Array
    died: Array

    def at(self, time: int) -> tuple[Holder, ...]:
        """List the holders at a time (ns), the largest first; together they hold all that is
        alive.
        """
        alive = np.flatnonzero((self.born <= time) & (time < self.died))
        kind = np.where(self.freed[alive] <= time, WAITING, self.kind[alive])
        groups: dict[tuple[int, int], list[int]] = {}
        for k, of in zip(alive.tolist(), kind.tolist(), strict=True):
            groups.setdefault((of, int(self.label[k])), []).append(k)
        holders = [
            self._holder(of, label, int(self.size[own].sum()), len(own), self._keeper(own))
            for (of, label), own in groups.items()
        ]
        rest = self.memory.level(time) - sum(one.nbytes for one in holders)
        for of, label, nbytes, count, keeper in self.before:
            nbytes = min(nbytes, rest)
            if nbytes > 0:
                rest -= nbytes
                holders.append(
                    self._holder(
                        of, label, nbytes, count, self.keepers[keeper] if keeper >= 0 else ""
                    )
                )
        if rest > 0:
            holders.append(Holder(PARTS[OTHER][2], "", BEFORE, "", rest, 0, ""))
        return tuple(sorted(holders, key=lambda h: (-h.nbytes, h.kind, h.module, h.line, h.op)))

    def _holder(self, kind: int, label: int, nbytes: int, count: int, keeper: str) -> Holder:
        return Holder(PARTS[kind][2], *self.labels[label], nbytes, count, keeper)

    def _keeper(self, own: list[int]) -> str:
        """Name the keeper of the largest tensor, and count the other keepers."""
        known = [k for k in own if self.keeper[k] >= 0]
        if not known:
            return ""
        first = max(known, key=lambda k: int(self.size[k]))
        others = len({int(self.keeper[k]) for k in known}) - 1
        text = self.keepers[int(self.keeper[first])]
        return text + (f" and {others} more" if others else "")


class _Names:
    """Numbers in order of appearance."""

    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}

    def __call__(self, row: object) -> int:
        return self.rows.setdefault(row, len(self.rows))


def holdings(run: Run, memory: Memory, known: Births, space: str) -> Holdings:
    """Return the Holdings of one memory of a run."""
    labels, keepers = _Names(), _Names()
    owner = {t: f"was {who}" for t, _, who in run.info.get("purposes", ()) if who}
    owner |= {row[0]: row[3] for row in run.info.get("held", ()) if row[3]}
    owners = [owner.get(t, "") for t in known.tensor.tolist()]

    def label(i: int, keeper: str = "") -> int:
        module = run.modules[run.module[i]] if run.modules else ""
        return labels((module or module_of(keeper), run.names[run.op[i]], run.lines[run.line[i]]))

    busy = np.flatnonzero((run.scratch > 0) & (run.time("released") > 0) & inside(run, space))
    rows = [*map(label, known.maker.tolist(), owners), *map(label, busy.tolist())]
    keeper = [keepers(who) if who else -1 for who in owners] + [-1] * len(busy)
    before = _before(run, space, labels, keepers)
    return Holdings(
        memory, tuple(labels.rows), tuple(keepers.rows), before,
        np.concatenate((known.kind, np.full(len(busy), WORKSPACE))), np.array(rows, np.int64),
        np.array(keeper, np.int64), np.concatenate((known.size, run.scratch[busy])),
        np.concatenate((known.born, allocation_times(run)[busy])),
        np.concatenate((np.maximum(known.freed, known.born), np.full(len(busy), NEVER))),
        np.concatenate((known.died, returned(run)[busy])),
    )  # fmt: skip


def _before(
    run: Run, space: str, labels: _Names, keepers: _Names
) -> tuple[tuple[int, int, int, int, int], ...]:
    """List tensors from before the run with a known keeper, by kind and module."""
    groups: dict[tuple[int, str], list[tuple[int, str]]] = {}
    for kind, nbytes, keeper in held_before(run, space):
        if kind != OTHER:
            groups.setdefault((kind, module_of(keeper)), []).append((nbytes, keeper))
    rows = []
    for (kind, module), some in groups.items():
        who = together((nbytes, keeper) for nbytes, keeper in some if keeper)
        nbytes = sum(nbytes for nbytes, _ in some)
        of = labels((module, BEFORE, ""))
        rows.append((kind, of, nbytes, len(some), keepers(who) if who else -1))
    return tuple(sorted(rows, key=lambda row: (-row[2], row[0], row[1])))


def module_of(keeper: str) -> str:
    """The module in what keeps something: "Adam exp_avg of Net.fc1.weight" says Net.fc1."""
    path = keeper.rpartition(" of ")[2].removeprefix("was ").partition(" and ")[0]
    return path.rpartition(".")[0] if " " not in path else ""
