"""Lent memory: storages that Python reads and writes without the VM, as NumPy arrays do.

The VM does not see accesses to such memory from outside.  So it is ordered here, as in PyTorch: an
instruction that accesses a lent storage is done before its call returns (`settle`).  An array shows
the results of earlier calls, and later calls see a write to the array.  Storages that are not lent
stay asynchronous; while none is lent, a call looks at one word.

Two ways of lending:

- a tensor's memory is lent to an array (`Loan`, until the array has gone).  A native call makes
  the Loan itself (`flowvm.eager.native.values`);
- an array's memory is lent to a tensor (`adopt`, as long as its storage lives, or until nobody else
  has the array any more: then it cannot be written from outside).

Not waited for: exchanges with other ranks, which may need what this rank issues next, and
callbacks, which are asynchronous by what they are for.  A `Work` is waited for by its user.
"""

from __future__ import annotations

import ctypes
import weakref
from operator import add, setitem
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.private.cpython import getrefcount
from flowvm.vm.callers.hot import IssueGlobals, hot
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND, RING, STO

if TYPE_CHECKING:
    from collections.abc import Mapping


class Loan:
    """The memory of a storage as NumPy takes it, `interface`.  Arrays keep this object alive, and
    it keeps the storage; the loan ends with it.
    """

    __slots__ = ("__array_interface__", "__weakref__", "id", "storage")

    @protected
    def __init__(self, lending: Lending, storage: Any, interface: dict[str, object]) -> None:
        self.storage, self.__array_interface__ = storage, interface
        lending.begin(storage.id)
        self.id: int = storage.id

    @protected
    def __del__(self, _hot: IssueGlobals = hot) -> None:
        try:
            # as `_count`, and no call: an exception in one would be lost
            words: Any = _hot["lent"]
            at = self.id, 0
            any(map(setitem, (words, words), at, map(add, map(words.__getitem__, at), (-1, -1))))
        except (AttributeError, TypeError):
            pass  # interrupted before it had begun; or Python ends: no `setitem`


@protected
def _count(words: Any, storage: int, more: int) -> None:
    """Count `more` who have the memory of a storage.

    Native calls do the same, without a lock.  This is one call of C code: no exception and no other
    thread comes between its steps.
    """
    places = storage, 0
    any(
        map(setitem, (words, words), places, map(add, map(words.__getitem__, places), (more, more)))
    )


class Lending:
    """The lent storages, and the loans for which instructions wait."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        # word i: how many have the memory of storage i; word 0: the sum of all
        self.words = np.zeros(STO.LENGTH, np.int64)
        self._words = self.words.data
        self._arrays: dict[int, Any] = {}  # by storage: the array whose memory a tensor has
        hot.update(
            {
                "lent": self._words,
                "settle": self.settle,
                "lent_at": self.words.ctypes.data,
                "Loan": Loan,
            }
        )

    @protected
    def begin(self, storage: int) -> None:
        """Add a Loan of a storage."""
        _count(self._words, storage, 1)

    @protected
    def adopt(self, storage: int, array: object) -> None:
        """Note that a storage has the memory of `array`, which others have, too."""
        with self.engine.lock:
            _count(self._words, storage, 1)  # first: after an exception calls wait in vain
            self._arrays[storage] = array

    @protected
    def forget(self, ids: list[int]) -> None:
        """Forget storages that were freed, since their ids may name others."""
        with self.engine.lock:
            for storage in ids:
                self._arrays.pop(storage, None)
                if loans := self._words[storage]:
                    _count(self._words, storage, -loans)

    def holds(self, operand: int) -> bool:
        """Return True if the storage of an operand word is lent."""
        return self._words[operand & OPERAND.STORAGE_MASK] != 0

    def settle(self, seq: int) -> None:
        """Wait until instruction `seq`, of this thread, is done, if it accesses lent memory."""
        with self.engine.lock:
            ids = [i for i in self._lent_of(seq) if not self._is_alone(i)]
        if ids and self.engine.words[CTL.HEAD] <= seq:
            self.engine.waits.wait_done(ids)

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
        return {i for o in operands if self._words[i := o & OPERAND.STORAGE_MASK]}

    def _is_alone(self, storage: int) -> bool:
        """Return True if only the VM still refers to an adopted array; then its loan ends."""
        arrays = self._arrays
        if self._words[storage] != 1 or not isinstance(arrays.get(storage), np.ndarray):
            return False
        if _references(arrays, storage) > _ADOPTED or not _owns(arrays[storage]):
            return False
        del arrays[storage]
        _count(self._words, storage, -1)
        return True


def _owns(array: Array) -> bool:
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


def _references(arrays: Mapping[int, object], storage: int) -> int:
    return getrefcount(arrays[storage])


def _references_to_base(array: Array) -> int:
    return getrefcount(array.base)


def _fewest() -> tuple[int, int]:
    """Return the least numbers of references: to an adopted array, and to the base of a view.
    Interpreters count references differently.
    """
    arrays = {0: np.empty(2)}
    adopted = {0: arrays[0]}
    return _references(arrays, 0) + 0 * len(adopted), _references_to_base(np.empty(2)[:1])


_ADOPTED, _VIEWED = _fewest()
