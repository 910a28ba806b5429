"""Looking at the VM without issuing anything: who is still to write a tensor, is a stream done.

For readers that must not change what they look at: `repr`, which debuggers call on every local, and
`Stream.query`.  They read the scheduler's arrays while it works.  "Done" is reliable: an
instruction leaves these arrays only after its writes.  "Not yet" may be a moment out of date.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

import numpy as np

from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.hot import hot
from flowvm.vm.machine.words import ACC, CTL, DEP, ENT, INS, OPERAND, RING, STATE, STO

__all__ = ["Pending", "issued", "lively_on", "poison_of", "writer_within"]

POLL = 0.0002  # seconds between two looks
GRACE = 0.01  # seconds that the scheduler gets to take what was issued


class Pending(NamedTuple):
    """An instruction that is yet to write something."""

    seq: int
    name: str

    def __str__(self) -> str:
        return f"#{self.seq} {self.name}"


if sys.version_info < (3, 12):  # later versions deprecate what is the quicker way

    def issued() -> int:
        """The sequence number that comes next: everything issued so far is below it."""
        number: int = hot["counter"].__reduce__()[1][0]
        return number
else:

    def issued() -> int:
        """The sequence number that comes next: everything issued so far is below it."""
        return int(repr(hot["counter"])[6:-1])  # "count(7)"


def _name(slot: int) -> str:
    entry = engine.words[RING.AT + slot * RING.WORDS + RING.ENTRY] & ENT.MASK
    info = engine.entry_info[entry][0] if entry < len(engine.entry_info) else None
    return str(getattr(info, "name", info))


def _writer(operand: int) -> Pending | None:
    """The last received writer of the operand's storage, if it is not done."""
    words = engine.words
    first = DEP.AT + (operand & OPERAND.STORAGE_MASK) * DEP.WORDS + DEP.FIRST
    while (index := words[first] - 1) >= 0:  # invariant: [one writer]? readers*
        node = ACC.AT + index * ACC.WORDS
        writes, slot = words[node + ACC.WRITES], words[node + ACC.SLOT]
        if words[first] - 1 == index:  # else it left the list, and what was read is another's
            seq = words[INS.AT + slot * INS.WORDS + INS.SEQ]
            return Pending(seq, _name(slot)) if writes else None
    return None


def writer_within(operand: int, seconds: float) -> Pending | None:
    """Give an operand's writers up to `seconds`: None when they are done, else what is pending."""
    before, deadline = issued(), time.monotonic() + seconds
    while True:
        received, now = int(engine.words[CTL.RECEIVED]), time.monotonic()
        if received < before:  # taken within microseconds, unless something is wrong
            pending, deadline_here = Pending(received, "not scheduled"), deadline + GRACE
        else:
            writer = _writer(operand)
            if writer is None:
                return None
            pending, deadline_here = writer, deadline
        if now > deadline_here:
            return pending
        time.sleep(POLL)


def poison_of(operand: int) -> int | None:
    """The sequence number of the failed instruction that poisoned a written operand, or None."""
    cause = engine.words[STO.AT + (operand & OPERAND.STORAGE_MASK) * STO.WORDS + STO.POISON]
    return int(cause) - 1 if cause else None


def lively_on(stream: int, before: int) -> bool:
    """Whether an instruction of `stream` with a sequence number below `before` is not done yet."""
    if engine.words[CTL.RECEIVED] < before:
        return True
    table = engine.m[INS.AT : INS.AT + RING.SLOTS * INS.WORDS].reshape(RING.SLOTS, INS.WORDS)
    state = table[:, INS.STATE]
    waiting = (state >= STATE.PENDING) & (state < STATE.RELEASED)
    mine = (table[:, INS.STREAM] == stream) & (table[:, INS.SEQ] < before)
    return bool(np.any(waiting & mine))
