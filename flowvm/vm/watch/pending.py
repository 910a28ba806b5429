"""Questions to the VM that issue nothing: the pending writer of a tensor, the end of a stream's
work.

For readers that must not change the VM: `repr`, which debuggers call on every local, and
`Stream.query`.  They read the scheduler's arrays while it works. "Done" is reliable: an instruction
leaves these arrays only after its writes. "Not yet" may be a moment out of date.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from flowvm.files.printable import printable
from flowvm.private.cpython import CPYTHON, next_of
from flowvm.vm.callers.hot import hot
from flowvm.vm.machine.words import ACC, CTL, DEP, ENT, INS, OPERAND, RING, STATE, STO
from flowvm.vm.watch.protocol import VM

POLL = 0.0002  # seconds between two looks
GRACE = 0.01  # seconds for the scheduler to receive issued instructions


class Pending(NamedTuple):
    """An instruction that has yet to write an operand."""

    seq: int
    name: str

    def __str__(self) -> str:
        return f"#{self.seq} {printable(self.name)}"


def issued() -> int:
    """Return the next sequence number: everything issued so far is below it."""
    CPYTHON.require("counter")
    return next_of(hot["counter"])


def _name(vm: VM, slot: int) -> str:
    entry = vm.words[RING.AT + slot * RING.WORDS + RING.ENTRY] & ENT.MASK
    info = vm.entries.info[entry][0] if entry < len(vm.entries.info) else None
    return str(getattr(info, "name", info))


def _writer(vm: VM, operand: int) -> Pending | None:
    """The last received writer of the operand's storage, if it is not done."""
    words = vm.words
    first = DEP.AT + (operand & OPERAND.STORAGE_MASK) * DEP.WORDS + DEP.FIRST
    while (index := words[first] - 1) >= 0:  # invariant: [one writer]? readers*
        node = ACC.AT + index * ACC.WORDS
        writes, slot = words[node + ACC.WRITES], words[node + ACC.SLOT]
        if words[first] - 1 == index:  # else it left the list, and the words read belong to another
            seq = words[INS.AT + slot * INS.WORDS + INS.SEQ]
            return Pending(seq, _name(vm, slot)) if writes else None
    return None


def writer_within(vm: VM, operand: int, seconds: float) -> Pending | None:
    """Wait up to `seconds` for an operand's writers.  Return None if they are done, else the
    pending one.
    """
    before, deadline = issued(), time.monotonic() + seconds
    while True:
        received, now = int(vm.words[CTL.RECEIVED]), time.monotonic()
        if received < before:  # taken within microseconds, unless something is wrong
            pending, deadline_here = Pending(received, "not scheduled"), deadline + GRACE
        else:
            writer = _writer(vm, operand)
            if writer is None:
                return None
            pending, deadline_here = writer, deadline
        if now > deadline_here:
            return pending
        time.sleep(POLL)


def poison_of(vm: VM, operand: int) -> int | None:
    """The sequence number of the failed instruction that poisoned a written operand, or None."""
    cause = vm.words[STO.AT + (operand & OPERAND.STORAGE_MASK) * STO.WORDS + STO.POISON]
    return int(cause) - 1 if cause else None


def in_flight_on(vm: VM, stream: int, before: int) -> bool:
    """Return True if an instruction of `stream` with a sequence number below `before` is not done
    yet.
    """
    if vm.words[CTL.RECEIVED] < before:
        return True
    table = vm.m[INS.AT : INS.AT + RING.SLOTS * INS.WORDS].reshape(RING.SLOTS, INS.WORDS)
    state = table[:, INS.STATE]
    waiting = (state >= STATE.PENDING) & (state < STATE.RELEASED)
    mine = (table[:, INS.STREAM] == stream) & (table[:, INS.SEQ] < before)
    return bool(np.any(waiting & mine))
