"""Lent memory: storages that Python reads and writes without the VM, as NumPy arrays do.

The VM does not see accesses to such memory from outside.  So it is ordered here, as in PyTorch: an
instruction that accesses a lent storage is done before its call returns (`settle`).  An array shows
the results of earlier calls, and later calls see a write to the array.  Storages that are not lent
stay asynchronous; while none is lent, a call looks at one word.

Two ways of lending:

- a tensor's memory is lent to an array (`Loan`, until the array has gone).  A native call makes
  the Loan itself, and one of a storage whose last Loan has ended just now goes on with that one's
  count (`flowvm.eager.native.values`);
- an array's memory is lent to a tensor (`adopt`, as long as its storage lives, or until nobody else
  has the array any more: then it cannot be written from outside).

Not waited for: exchanges with other ranks, which may need what this rank issues next, and
callbacks, which are asynchronous by what they are for.  A `Work` is waited for by its user.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from flowvm.private.cpython import getrefcount
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND, RING, STO

_ended: list[int] = []  # ids of storages, one for each Loan that has ended
MOST_ENDED = 16  # of them that wait for the next call which accesses lent memory


class Loan:
    """The memory of a storage as NumPy takes it, `interface`.  Arrays keep this object alive, and
    it keeps the storage; the loan ends with it.
    """

    __slots__ = ("__array_interface__", "__weakref__", "id", "storage")

    @protected
    def __init__(self, lending: Lending, storage: Any, interface: dict[str, Any]) -> None:
        self.storage, self.__array_interface__ = storage, interface
        lending.begin(storage.id)
        self.id: int = storage.id

    @protected
    def __del__(self, _ends: Any = _ended.append) -> None:
        try:  # noqa: SIM105 - a context manager would cost more than all of it
            _ends(self.id)
        except AttributeError:  # interrupted before it had begun
            pass


class Lending:
    """The lent storages, and the loans for which instructions wait."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        # storage id -> [Loans, the array whose memory a tensor has, or None]; empty: none is lent
        self.lent: dict[int, list[Any]] = {}
        # the same for native calls: word i is 1 while storage i is lent, word 0 is 0 if none is
        self.words = np.zeros(STO.LENGTH, np.int64)
        self._words = self.words.data
        hot.update(lent=self.lent, settle=self.settle, lent_at=self.words.ctypes.data)
        hot.update(lend=self.begin, ended=_ended, Loan=Loan)

    @protected
    def begin(self, storage: int) -> None:
        """Add a Loan of a storage."""
        with self.engine.lock:
            entry = self.lent.get(storage)
            if entry is None:
                entry = self._entry(storage)
            entry[0] += 1
            if len(_ended) > MOST_ENDED:
                self._end_some()

    @protected
    def adopt(self, storage: int, array: Any) -> None:
        """Note that a storage has the memory of `array`, which others have, too."""
        with self.engine.lock:
            self._end_some()
            self._entry(storage)[1] = array

    def _entry(self, storage: int) -> list[Any]:
        entry = self.lent.get(storage)
        if entry is None:  # the words first: an exception in between leaves calls that wait in vain
            self._words[storage], self._words[0] = 1, len(self.lent) + 1
            entry = self.lent[storage] = [0, None]
        return entry

    @protected
    def _drop(self, storage: int) -> None:
        self.lent.pop(storage, None)
        if self._words[storage]:  # so also where an exception came in between
            self._words[storage], self._words[0] = 0, len(self.lent)

    @protected
    def _end_some(self) -> None:
        """Note the Loans that have ended."""
        while _ended:
            try:
                storage = _ended.pop()
            except IndexError:  # a native call goes on with the last one, which holds no lock
                break
            entry = self.lent[storage]
            entry[0] -= 1
            if entry[0] == 0 and entry[1] is None:
                self._drop(storage)

    @protected
    def forget(self, ids: list[int]) -> None:
        """Forget storages that were freed, since their ids may name others."""
        with self.engine.lock:
            self._end_some()
            for storage in ids:
                self._drop(storage)

    def holds(self, operand: int) -> bool:
        """Return True if the storage of an operand word is lent."""
        return operand & OPERAND.STORAGE_MASK in self.lent

    def settle(self, seq: int) -> None:
        """Wait until instruction `seq`, of this thread, is done, if it accesses lent memory."""
        with self.engine.lock:
            if _ended:
                self._end_some()
            ids = [i for i in self._lent_of(seq) if not self._is_alone(i)]
        if ids and self.engine.words[CTL.HEAD] <= seq:
            self.engine.wait_done(ids)

    def _lent_of(self, seq: int) -> set[int]:
        """Return the lent storages that instruction `seq` accesses; none if nobody waits for its
        kind.

        Once it is done its record may be another's; then it does not matter what these are.
        """
        words = self.engine.words
        record = RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS
        what = words[record + RING.ENTRY]
        entry = ENT.AT + (what & ENT.MASK) * ENT.WORDS
        if words[entry + ENT.KIND] not in (KIND.OP_CALL, KIND.LAUNCH):
            return set()
        if words[CTL.LANES] >> (what >> ENT.BITS) & 1:
            return set()
        first = record + RING.OPERANDS
        if words[entry + ENT.OUTLINE]:
            block, count = words[first], words[first - 1]
            if words[CTL.HEAD] > seq:  # checked behind the reads: until then they are its own
                return set()
            operands = np.frombuffer(ctypes.string_at(block, 8 * count), np.int64).tolist()
        else:
            operands = words[first - words[entry + ENT.COUNT] + 1 : first + 1].tolist()
        return {o & OPERAND.STORAGE_MASK for o in operands} & self.lent.keys()

    def _is_alone(self, storage: int) -> bool:
        """Return True if only the VM still refers to an adopted array; then its loan ends."""
        entry = self.lent[storage]
        if entry[0] or not isinstance(entry[1], np.ndarray):
            return False
        if _references(entry) > _ADOPTED or not _owns(entry[1]):
            return False
        self._drop(storage)
        return True


def _owns(array: np.ndarray[Any, Any]) -> bool:
    """Return True if memory can be reached by an array alone: it owns the memory, or is the only
    reference to its owner.
    """
    while not array.flags.owndata:
        if not isinstance(array.base, np.ndarray) or weakref.getweakrefcount(array):
            return False
        if _references_to_base(array) > _VIEWED:
            return False
        array = array.base
    return not weakref.getweakrefcount(array)


def _references(entry: list[Any]) -> int:
    return getrefcount(entry[1])


def _references_to_base(array: np.ndarray[Any, Any]) -> int:
    return getrefcount(array.base)


def _fewest() -> tuple[int, int]:
    """Return the least numbers of references: to an adopted array, and to the base of a view.
    Interpreters count references differently.
    """
    entry = [0, np.empty(2)]
    adopted = {0: entry[1]}
    return _references(entry) + 0 * len(adopted), _references_to_base(np.empty(2)[:1])


_ADOPTED, _VIEWED = _fewest()
