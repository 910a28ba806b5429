"""Waits of issuing threads: for values, for memory, and for everything issued so far.

A wait is an instruction, too: a waiter of the operands, which notifies a cell.  It is interrupted
by Ctrl-C every `SLICE_US`, and then its cell is another's no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flowvm.config import config
from flowvm.guards.regions import reverting
from flowvm.meta.arrays import Array
from flowvm.vm.callers.hot import CALL_STREAM, hot
from flowvm.vm.callers.interrupt import waiting
from flowvm.vm.callers.publish_check import assert_none
from flowvm.vm.engine import cancel
from flowvm.vm.engine.entries import TOUCH_MAX, Entries
from flowvm.vm.engine.failures import Failures
from flowvm.vm.engine.natives import SLICE_US
from flowvm.vm.engine.records import Records
from flowvm.vm.engine.storages import Storages
from flowvm.vm.engine.threads import Threads
from flowvm.vm.machine.lang import load_acquire
from flowvm.vm.machine.machine import is_settled
from flowvm.vm.machine.wait_words import WAIT
from flowvm.vm.machine.words import CTL, KIND, OPERAND, RING, STO
from flowvm.vm.watch.cores import new_cell
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.watch.pending import issued

REST_SECONDS = 0.1  # the longest that others are kept from the lock before all is tried again


class Waits:
    """The waits of one engine."""

    def __init__(
        self,
        vm: Recorded,
        entries: Entries,
        records: Records,
        storages: Storages,
        threads: Threads,
        failures: Failures,
    ) -> None:
        self.vm = vm
        self.words = vm.words
        self.records = records
        self.storages = storages
        self.threads = threads
        self.failures = failures
        self.local = threading.local()  # the cell of a thread that waits for nothing
        # waiters of so many operands: behind what writes them, and behind all that access them
        self.touches, self.touches_alone = (
            [
                entries.new(KIND.TOUCH, [access] * n, scalars=1, info=None)
                for n in range(TOUCH_MAX + 1)
            ]
            for access in (OPERAND.CONST, OPERAND.MUT)
        )
        self.barrier = entries.new(KIND.BARRIER, [], scalars=1, info=None)
        self._cells: list[Array] = []  # a late notification must not meet freed memory

    def wait_for(self, operands: Sequence[int], read: bool = False) -> None:
        """Wait until the storages of `operands` are written, and with `read` also until all reads
        are done.  Raise the error that poisoned one of them.
        """
        storages = [word & OPERAND.STORAGE_MASK for word in operands]
        poison = [STO.AT + i * STO.WORDS + STO.POISON for i in storages]
        if self._settled(storages, read) and not any(self.words[at] for at in poison):
            return
        for i in range(0, len(operands), TOUCH_MAX):
            some = storages[i : i + TOUCH_MAX]
            cause = self._wait((self.touches_alone if read else self.touches)[len(some)], some)
            if cause:
                self.failures.collect()
                raise self.failures.to_raise(cause - 1)

    def _settled(self, storages: Sequence[int], alone: bool) -> bool:
        """Return True if no instruction will write these storages, and with `alone` none reads
        them: now or, if the VM's threads run, a moment later.  No instruction is issued for that.

        False where somebody is to hear of reads: a profiler, `debug` 2, a trace recorder.
        """
        if self.words[CTL.LEVEL] > 1 or config.debug >= 2 or self.threads.broken:
            return False
        if hot.get("departed") and not (hot["recorder"]() is hot["trace_recorder"]() is None):
            return False
        before = issued()
        for storage in storages:
            if RING.ORDERED_STORES and is_settled(self.words, storage, before, alone):
                continue
            if not self.threads.running:
                return False
            begun, at = self.vm.flight.begin_wait(), (storage, before, int(alone), CALL_STREAM)
            if not self.vm.loops.function("settle_soon")(self.vm.base, *at):
                return False
            self.vm.flight.waited("sync", begun, before - 1)
        return True

    def wait_done(self, storages: Sequence[int]) -> None:
        """Wait until no issued instruction accesses these storages, failed or not.  Listeners to
        calls are not told.
        """
        if self._settled(storages, True):
            return
        for i in range(0, len(storages), TOUCH_MAX):
            some = storages[i : i + TOUCH_MAX]
            self._wait(self.touches_alone[len(some)], some, traced=True)

    def wait_idle(self, seconds: float | None = None) -> bool:
        """Wait until everything issued so far is done; raise no error of an instruction."""
        finished = self._wait(self.barrier, (), seconds) == 0
        self.failures.collect()
        return finished

    def sync(self) -> None:
        """Wait until everything issued so far is done.  Raise the first error that nobody has
        seen.
        """
        self.wait_idle()
        if self.storages.adopted:
            with self.vm.lock:
                self.storages.reclaim()
        self.failures.raise_unseen()

    def at_rest(self, change: Callable[[], None]) -> None:
        """Call `change` under the lock while nothing is in flight and no thread takes records."""
        while True:
            self.wait_idle()
            with self.vm.lock:
                if not self.threads.running:
                    return change()
                nap = self.vm.loops.function("nap")
                deadline = time.monotonic() + REST_SECONDS  # then others get the lock
                hold = partial(self.words.__setitem__, CTL.HOLD)
                with reverting(partial(hold, 0), partial(hold, 1)):
                    while time.monotonic() < deadline:
                        nap(self.vm.base, 100)  # passes that begin behind it see HOLD
                        # a pass that began before may yet take a record: not one that is seen here
                        if not self.words[CTL.TAKEN] and not self._in_flight():
                            return change()

    def _in_flight(self) -> bool:
        head: int = load_acquire(self.vm.m, CTL.HEAD)
        return head < self.words[CTL.RECEIVED]

    @waiting
    def _wait(
        self,
        entry: int,
        operands: Sequence[int],
        seconds: float | None = None,
        traced: bool = False,
    ) -> int:
        """Issue a waiter and wait for it.  Return 0 when it is done.

        If an operand is poisoned, return the sequence number + 1 of the instruction that poisoned
        it.  Return -1 when `seconds` passed first.  `traced` as in `issue`.
        """
        if config.debug_calls:
            assert_none(self.words, "something was waited for")
        cell, address = self._cell()
        deadline = None if seconds is None else time.monotonic() + seconds
        seq = self.records.issue_unsettled(entry, operands, (address,), deadline, traced)
        flight, function = self.vm.flight, self.vm.loops.function
        begun, started = flight.begin_wait(), time.monotonic()
        at = self.vm.base, address, SLICE_US, CALL_STREAM
        while not (outcome := function("wait_cell")(*at)):
            if deadline is not None and time.monotonic() > deadline:
                return -1
            cancel.name_wait(self.vm, started)
            if not self.threads.running:  # another thread has changed the engine meanwhile
                hot["after"]()
        flight.waited("sync", begun, seq, cell)
        self.local.cell = cell, address
        return 0 if outcome == 1 else -outcome

    def _cell(self) -> tuple[Any, int]:
        """Return a cell that notifies a wait.  `_wait` gives it back once nobody will write to it.

        An interrupted wait, or one that ran out of time, never gives it back.
        """
        cell = getattr(self.local, "cell", None)
        self.local.cell = None
        if cell is None:
            array = new_cell()
            self._cells.append(array)
            cell = (array, array.ctypes.data)
        cell[0][WAIT.OUTCOME] = cell[0][WAIT.SLEEPERS] = cell[0][WAIT.TEXT] = 0
        return cell

    def after_fork_in_child(self) -> None:
        """Let each thread of a forked child have a cell of its own."""
        self.local = threading.local()
