"""The table of storages, STO: memories of tensors, by ids that are used again.

An id is free (`hot["free"]`), a tensor's, dead (`hot["dead"]`: its last tensor went), or named by a
ReleaseTensor in flight; it is free again when that has run.
"""

from __future__ import annotations

from typing import Any

from flowvm.errors import VMError
from flowvm.vm.callers.hot import CALL_STREAM, hot
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.engine.entries import TOUCH_MAX, Entries
from flowvm.vm.engine.loans import Lending
from flowvm.vm.engine.records import Records
from flowvm.vm.engine.threads import Threads
from flowvm.vm.machine.lang import load_acquire
from flowvm.vm.machine.words import CTL, ENT, FRE, KIND, OPERAND, STO
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.watch.purposes import are_gone

ADOPTED_BYTES = 1 << 26  # bytes of adopted memory between two searches for releasable ones


class Storages:
    """The storages of one engine."""

    def __init__(
        self, vm: Recorded, entries: Entries, records: Records, threads: Threads, lending: Lending
    ) -> None:
        self.vm = vm
        self.words = vm.words
        self.records = records
        self.threads = threads
        self.lending = lending
        self.next_id = 1  # ids from here on were never used
        self.adopted: dict[int, Any] = {}  # id -> owner of memory that is not the VM's
        self.stream_of: dict[int, int] = {}  # id -> stream that allocates it, if not CALL_STREAM
        self.releases = [
            entries.new(KIND.RELEASE, [OPERAND.MUT] * n, brief=True, info=None)
            for n in range(TOUCH_MAX + 1)
        ]
        self._adopted_bytes = 0  # since the last search for releasable memory
        self._freed_seen = 0
        free: list[int] = []
        hot.update(
            {
                "free": free,
                "pop": free.pop,
                "dead": [],
                "refill": self.refill,
                "release_dead": self.release_dead,
                # native calls do the work of `release_dead` by these
                "releases": self.releases,
                "adopted": self.adopted,
                "stream_of": self.stream_of,
            }
        )

    def new(self) -> int:
        """Return the id of a new storage, to which nothing refers yet."""
        try:
            return int(hot["pop"]())
        except IndexError:
            return int(self.refill())

    @protected
    def refill(self) -> int:
        """Find more free storage ids; return one of them."""
        with self.vm.lock:
            free: list[int] = hot["free"]
            self.reclaim()
            if not free:
                first, last = self.next_id, min(self.next_id + 256, STO.LENGTH)
                if first == last:
                    self.release_dead()
                    self.vm.waits.wait_idle()
                    self.reclaim()
                    if not free:
                        raise VMError(
                            f"more than {STO.LENGTH} tensors with memory of their own are alive"
                        )
                    return free.pop()
                self.next_id = last
                free.extend(range(last - 1, first - 1, -1))
            return free.pop()

    @protected
    def reclaim(self) -> None:
        """Take back the ids of storages whose ReleaseTensor has run, and release adopted memory."""
        freed = load_acquire(self.vm.m, CTL.FREED)
        owners = []
        while self._freed_seen < freed:
            at = self._freed_seen & (STO.LENGTH - 1)
            count = min(freed - self._freed_seen, STO.LENGTH - at)
            ids = self.vm.m[FRE.AT + at : FRE.AT + at + count].tolist()
            # first: of an exception an id may be lost, and not come twice
            self._freed_seen += count
            if self.adopted:
                owners += [self.adopted.pop(i, None) for i in ids]
            if self.stream_of:
                for i in ids:
                    self.stream_of.pop(i, None)
            are_gone(ids)
            if hot["lent"][0]:
                self.lending.forget(ids)
            hot["free"].extend(ids)
        del owners  # last: their finalizers may make tensors, and so come here again

    def adopt(self, address: int, nbytes: int, owner: object, shared: bool = False) -> int:
        """Make a storage over memory that `owner` keeps alive.  Return its id.

        `shared`: others write that memory, or read it, without the VM (`flowvm.vm.engine.loans`).
        """
        try:
            storage: int = hot["free"].pop()
        except IndexError:
            storage = self.refill()
        at = STO.AT + storage * STO.WORDS
        self.adopted[storage] = owner
        self.words[at + STO.POINTER] = address
        self.words[at + STO.BYTES] = nbytes
        self.words[at + STO.CLASS] = 0
        if shared:
            self.lending.adopt(storage, owner)
        self._adopted_bytes += nbytes
        if self._adopted_bytes > ADOPTED_BYTES:  # the memory is large, and may be all that is made
            self._adopted_bytes = 0
            self.release_dead()
        return storage

    def _take_back(self) -> None:
        """Release adopted memory without the VM, as far as nobody else can know of it."""
        dead, ids, own_ids, owners = hot["dead"], [], [], []
        with self.vm.lock:
            try:
                while dead:
                    ids.append(dead.pop())
            except IndexError:  # another thread took the rest
                pass
            # checked again: a user of one of them has issued that by now
            if self.threads.untouched:
                for storage in ids:
                    if storage not in self.adopted:
                        own_ids.append(storage)  # the VM's own, of before a fork
                        continue
                    at = STO.AT + storage * STO.WORDS
                    self.words[at + STO.POINTER] = 0
                    self.words[at + STO.POISON] = self.words[at + STO.TORN] = 0
                    owners.append(self.adopted.pop(storage))
                    are_gone((storage,))
                    self.lending.forget([storage])
                    hot["free"].append(storage)
            else:
                own_ids = ids
            dead.extend(own_ids)
        del owners  # last: as in `reclaim`

    @protected
    def release_dead(self) -> None:
        """Issue ReleaseTensor instructions for the storages that `Tensor.__del__` left."""
        dead: list[int] = hot["dead"]
        if dead and self.threads.untouched:
            self._take_back()
            return
        while dead:
            batch = []
            try:
                for _ in range(min(len(dead), TOUCH_MAX)):
                    batch.append(dead.pop())
            except IndexError:  # another thread took the rest
                pass
            try:
                while batch:
                    self._release_some(batch)
            except BaseException:  # their turn comes later
                dead.extend(batch)
                raise
            if self.adopted:
                with self.vm.lock:
                    self.reclaim()

    def _release_some(self, batch: list[int]) -> None:
        """Issue a ReleaseTensor for storages of one stream, and remove them from `batch`."""
        ids, stream = batch, CALL_STREAM
        others: list[int] = []
        if self.stream_of:
            stream = self.stream_of.get(batch[0], CALL_STREAM)
            ids = []
            for storage in batch:
                own = self.stream_of.get(storage, CALL_STREAM) == stream
                (ids if own else others).append(storage)
        entry = self.releases[len(ids)] | stream << ENT.BITS
        self.records.wake(self.records.write(entry, ids, (), None, 0, batch, others))

    def pointer(self, operand: int) -> int:
        """Return the address of an operand word.  Only after waiting for its writer."""
        at = STO.AT + (operand & OPERAND.STORAGE_MASK) * STO.WORDS
        return int(self.words[at + STO.POINTER]) + (operand >> OPERAND.STORAGE_BITS)

    def rows(self, operand: int) -> int:
        """Return the number of rows that a mut2 kernel found.  Only after waiting for it."""
        return int(self.words[STO.AT + (operand & OPERAND.STORAGE_MASK) * STO.WORDS + STO.ROWS])
