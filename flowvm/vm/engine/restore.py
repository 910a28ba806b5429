"""Last whole values: the work of `flow.vm.restore()`, and of each error when it is raised.

A failure poisons values that were not computed, so that no old value is taken for a new one.  If
such a value would only have been updated, its bytes are unchanged: STO.TORN is 0.  A Restore, an
instruction like all others, lifts this poison.  Instructions issued in front of it still meet the
poison; the ones behind it see the last whole value.  So it marks the point from which the program
knows of the error.

    an error is raised   what persists (`flowvm.vm.engine.persistent`) and was poisoned by what
                         failed is restored.  A gradient or an optimizer's state that got no first
                         value is let go of: it was not there before, either
    flow.vm.restore()    whatever is poisoned and whole is restored, whoever has heard of the error
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.vm.callers.interrupt import waiting
from flowvm.vm.engine.entries import Entries
from flowvm.vm.engine.failures import Failures
from flowvm.vm.engine.persistent import holders, persistent, storage_of
from flowvm.vm.engine.records import Records
from flowvm.vm.engine.storages import Storages
from flowvm.vm.machine.words import CTL, ERR, KIND, OPERAND, STO
from flowvm.vm.watch.pending import issued
from flowvm.vm.watch.protocol import ThreadTable, Waiter

PATIENCE = 0.15  # seconds for issued instructions to end, before persistent tensors are restored
MOST = 24  # storages of one Restore
SHOWN = 12  # tensors without a whole value that are printed
NEVER = -(1 << 62)  # TORN of storages that no Restore may touch, such as the order of exchanges


class Restoring(Protocol):
    """The parts of an engine that restore."""

    m: Array
    words: memoryview

    @property
    def failures(self) -> Failures:
        """Errors of instructions."""

    @property
    def entries(self) -> Entries:
        """Entries: the facts that all calls of a kind share."""

    @property
    def records(self) -> Records:
        """The writer of records."""

    @property
    def storages(self) -> Storages:
        """The ids of memories."""

    @property
    def threads(self) -> ThreadTable:
        """Scheduler, workers and helpers."""

    @property
    def waits(self) -> Waiter:
        """The waits of issuing threads."""


@dataclass(frozen=True)
class Lost:
    """A tensor without a whole value: it stays poisoned.

    name    what holds it, as "layer.weight"; "" if nothing that persists does
    tensor  its dtype and shape
    seq     the instruction that failed
    begun   True: that one had begun to write to it; False: nothing ever wrote to it

    >>> flow.vm.Lost("layer.weight", "f32[2,3]", 309, True)
    layer.weight f32[2,3]: #309 failed while it wrote to it
    """

    name: str
    tensor: str
    seq: int
    begun: bool

    def __repr__(self) -> str:
        why = f"#{self.seq} failed while it wrote to it" if self.begun else "was never computed"
        return f"{self.name or 'a tensor'} {self.tensor}: {why}"


@dataclass(frozen=True)
class Restored:
    """The outcome of `flow.vm.restore()`.

    tensors  how many memories of tensors have their last whole values again
    lost     tensors that have none: a `Lost` each

    >>> flow.vm.Restored(tensors=2, lost=())
    2 tensors have their last whole values again
    """

    tensors: int
    lost: tuple[Lost, ...]

    def __repr__(self) -> str:
        many = self.tensors != 1
        lines = [
            f"{self.tensors:,} tensor{'s' * many} ha{'ve' if many else 's'} "
            f"{'their' if many else 'its'} last whole value{'s' * many} again"
        ]
        lines += [f"  lost: {one!r}" for one in self.lost[:SHOWN]]
        if len(self.lost) > SHOWN:
            lines.append(f"  and {len(self.lost) - SHOWN:,} more that are lost")
        return "\n".join(lines)


class Restorer:
    """The issuer of Restores of one engine."""

    def __init__(self, vm: Restoring) -> None:
        self.vm = vm
        self.entries: dict[int, int] = {}

    # --- as an error is raised ----------------------------------------------------------------

    def restore_whole(self, causes: Collection[int]) -> None:
        """Restore the last whole values of persistent tensors, now that failures are raised.
        `causes` are the numbers + 1 of the failed instructions.
        """
        quiet = self._settle(issued())
        poison, torn = self._poisoned()
        ours = np.isin(poison, list(causes))
        if quiet and not (ours & (torn == 0)).any() and not any(map(self._skipped, causes)):
            return
        lost = set(np.flatnonzero(ours & (torn < 0)).tolist())
        if lost:
            _forget(lost.__contains__)
        parameters = {storage for storage, _ in persistent()}
        if quiet:
            whole = parameters.intersection(np.flatnonzero(ours & (torn == 0)).tolist())
            for cause in {int(poison[storage]) for storage in whole}:
                self._issue([s for s in whole if poison[s] == cause], cause)
        else:  # running instructions may still poison others
            for cause in causes:
                self._issue(parameters, cause)

    def _settle(self, until: int) -> bool:
        """Wait a moment for the instructions before `until`.  Return True if they have ended."""
        words, deadline = self.vm.words, time.monotonic() + PATIENCE
        while words[CTL.HEAD] < until:
            if not self.vm.threads.running or time.monotonic() > deadline:
                return False
            time.sleep(0.0002)
        return True

    def _skipped(self, cause: int) -> bool:
        """Return True if an instruction was skipped because of a failed one."""
        return bool(self.vm.words[ERR.AT + (cause - 1) % ERR.LENGTH * ERR.WORDS + ERR.POISONED])

    # --- flow.vm.restore() --------------------------------------------------------------------

    @waiting
    def restore(self) -> Restored:
        """Lift the poison of all whole storages, and wait for that."""
        self.vm.storages.release_dead()
        self.vm.waits.wait_idle()
        poison, torn = self._poisoned()
        whole = np.flatnonzero((poison != 0) & (torn == 0)).tolist()
        self._issue(whole, 0)
        unmade = set(np.flatnonzero((poison != 0) & (torn < 0)).tolist())
        if unmade:
            _forget(unmade.__contains__)
        self.vm.waits.wait_idle()
        after, torn = self._poisoned()
        return Restored(int((after[whole] == 0).sum()), tuple(self._lost(after, torn)))

    def _lost(self, poison: Any, torn: Any) -> Iterator[Lost]:
        """Return the tensors in use that are not whole."""
        ids = set(np.flatnonzero((poison != 0) & (torn != 0) & (torn != NEVER)).tolist())
        if not ids:
            return
        names, texts = _descriptions(ids)
        for storage, text in sorted(texts.items()):
            failure = self.vm.failures.by_seq.get(int(poison[storage]) - 1)
            if failure is None or not failure.captured:
                seq = abs(int(torn[storage])) - 1
                yield Lost(names.get(storage, ""), text, seq, int(torn[storage]) > 0)

    def leave_alone(self, storage: int) -> None:
        """Exclude a storage from Restores for its lifetime."""
        self.vm.words[STO.AT + storage * STO.WORDS + STO.TORN] = NEVER

    # --- both ---------------------------------------------------------------------------------

    def _poisoned(self) -> tuple[Any, Any]:
        """Return STO.POISON and STO.TORN of all storages, now."""
        count = self.vm.storages.next_id
        table = self.vm.m[STO.AT : STO.AT + count * STO.WORDS].reshape(count, STO.WORDS)
        return table[:, STO.POISON].copy(), table[:, STO.TORN].copy()

    def _issue(self, storages: Iterable[int], cause: int) -> None:
        """Issue Restores of these storages."""
        todo = sorted(storages)
        for k in range(0, len(todo), MOST):
            some = todo[k : k + MOST]
            entry = self.entries.get(len(some))
            if entry is None:
                access = [int(OPERAND.MUT)] * len(some)
                entry = self.vm.entries.new(KIND.RESTORE, access, scalars=1, info="restore")
                self.entries[len(some)] = entry
            self.vm.records.issue(entry, some, (cause,), traced=True)


def _forget(lost: Callable[[int], bool]) -> None:
    """Let holders of tensors that never got a value release them."""
    for thing, holder in list(holders()):
        if holder.forget is not None:
            holder.forget(thing, lambda operand: lost(storage_of(operand)))


def _descriptions(storages: Collection[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Return two tables of storages: what users call them, where anybody has a name, and the dtype
    and shape of each that a tensor has.
    """
    names: dict[int, str] = {}
    texts: dict[int, str] = {}
    things: dict[Any, list[object]] = {}
    for thing, holder in holders():
        if holder.names is not None:
            things.setdefault(holder.names, []).append(thing)
        if holder.text is not None:
            operand, text = holder.text(thing)
            if storage_of(operand) in storages:
                texts.setdefault(storage_of(operand), text)
    for named, some in things.items():
        for operand, name in named(some):
            if storage_of(operand) in storages:
                names.setdefault(storage_of(operand), name)
    return names, texts
