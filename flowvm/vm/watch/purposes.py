"""The purposes of storages, as their makers declared them: parameters, state of optimizers.

The owner of a live tensor knows its purpose.  These notes keep the purposes of tensors that are
gone by the time of a question (a script's whole `main()`).  Numbers of storages are used again.  So
each note has the number of the next instruction, and a freed number is noted, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from flowvm.vm.machine.words import OPERAND
from flowvm.vm.watch.pending import issued

REMEMBERED = 1 << 14


class Purpose(NamedTuple):
    """A storage was `kind` ("param" or "optim") of `owner` when instruction `seq` came next.  State
    of an optimizer belongs to a parameter, whose storage is `of`; 0: to none.  No kind: the storage
    was gone by then.
    """

    storage: int
    seq: int
    kind: str
    owner: str
    of: int


purposes: deque[Purpose] = deque(maxlen=REMEMBERED)
_living: set[int] = set()  # storages that are for something


def storage_of(tensor: object) -> int:
    """The number of a tensor's storage; 0 where it has none yet."""
    return int(getattr(tensor, "_ref", 0)) & OPERAND.STORAGE_MASK


def made_for(tensor: object, kind: str, owner: str, of: object = None) -> None:
    """Note a tensor's purpose."""
    storage = storage_of(tensor)
    if storage:
        _living.add(
            storage
        )  # first, and last taken out: where an exception comes between, it stays
        purposes.append(Purpose(storage, issued(), kind, owner, storage_of(of)))


def are_gone(storages: Iterable[int]) -> None:
    """Note that these numbers are free: their next owners have other purposes."""
    if _living:
        for storage in _living.intersection(storages):
            purposes.append(Purpose(storage, issued(), "", "", 0))
            _living.discard(storage)
