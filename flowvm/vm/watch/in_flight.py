"""The instructions in flight and the waits of each, as values.

It reads the scheduler's arrays while the scheduler works, so on a busy VM a row may be out of
date.  On a VM that hangs, which is its purpose, it is exact.  `chain` follows the waits from the
instruction for which Python waits down to a running one: the one that would have to move.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowvm.files.printable import printable
from flowvm.guards.collection import Uncollected
from flowvm.vm.callers.hot import FRAMES, hot
from flowvm.vm.callers.lines import apart, is_internal, short_position
from flowvm.vm.machine.machine import access_of, count_of, entry_of, operand_of
from flowvm.vm.machine.words import (
    CTL,
    EDG,
    ENT,
    INS,
    KIND,
    OPERAND,
    QUE,
    RING,
    STATE,
    STR,
    Access,
    Kind,
    State,
)
from flowvm.vm.watch.flight import Recorded

MOST_STEPS = 1000  # of a list that the scheduler may be changing
MOST_LINKS = 32  # of a chain
HOST_THREAD = "flowvm-host"
NAMES = {
    KIND.TOUCH: "wait",
    KIND.BARRIER: "barrier",
    KIND.RELEASE: "release",
    KIND.CALLBACK: "callback",
    KIND.RESTORE: "restore",
}
_ACCESS = {int(a): a.name.lower() for a in Access}


class Waited(NamedTuple):
    """An instruction in flight for which another waits.  `operand` is the number of the waiting
    one's operand, -1 if the wait is not about an operand.
    """

    seq: int
    operand: int
    access: str  # how the waiting one accesses it: const, mut, mut2
    hazard: str  # RAW, WAR, WAW or ""

    def __str__(self) -> str:
        if self.operand < 0:
            return f"#{self.seq}"
        return f"#{self.seq} (operand {self.operand}, {self.access}, {self.hazard})"


@dataclass(frozen=True)
class InFlight:
    """An instruction that is issued and not released yet.

    `state` is a `flowvm.vm.machine.words.State` in small letters, or "running".  `behind` is the
    stream's present instruction while this one is in the queue, else -1.  `seconds` is the running
    time so far, 0 if it is not running.  `python` is the present line of a callback.
    """

    seq: int
    name: str
    state: str
    stream: str
    line: str
    waits: tuple[Waited, ...] = ()
    behind: int = -1
    seconds: float = 0.0
    python: str = ""

    def reason(self) -> str:
        """Return the reason why the instruction is not over, as text."""
        if self.state == "running":
            text = f"running on {self.stream}"
            text += f" for {self.seconds:.1f} s" if self.seconds >= 0.05 else ""
            return text + (f", in {self.python}" if self.python else "")
        if self.behind >= 0:
            return f"in the queue of {self.stream} behind #{self.behind}"
        if self.waits:
            return "waits for " + ", ".join(map(str, self.waits[:6]))
        return ""

    def __repr__(self) -> str:
        return printable(f"<#{self.seq} {self.name} {self.state}: {self.reason()}  {self.line}>")


def pending(vm: Recorded) -> list[InFlight]:
    """Every instruction in flight that the scheduler has received, oldest first."""
    words, head, received = vm.words, int(vm.words[CTL.HEAD]), begun(vm)
    front = fronts(vm)
    targets = _targets(vm, head, received)
    instructions = []
    for seq in range(head, received):
        ins = INS.AT + (seq & RING.SLOT_MASK) * INS.WORDS
        at_once = seq >= words[CTL.RECEIVED]
        state = STATE.DISPATCHED if at_once else int(words[ins + INS.STATE])
        if words[ins + INS.SEQ] == seq and state not in (STATE.RELEASED, 0):
            instructions.append(
                _described(vm, seq, ins, state, targets.get(seq & RING.SLOT_MASK, ()), front)
            )
    return instructions


def begun(vm: Recorded) -> int:
    """Return the number behind the last instruction that the scheduler, or the issuing thread in
    its place, has received.
    """
    seq = int(vm.words[CTL.RECEIVED])
    at = INS.AT + (seq & RING.SLOT_MASK) * INS.WORDS
    return seq + (vm.sequential.at_once and vm.words[at + INS.SEQ] == seq)


def fronts(vm: Recorded) -> dict[int, int]:
    """Return, for each busy stream, the instruction that runs or runs next."""
    words, by_stream = vm.words, {}
    if (received := int(words[CTL.RECEIVED])) < begun(vm):
        at = INS.AT + (received & RING.SLOT_MASK) * INS.WORDS
        by_stream[int(words[at + INS.STREAM])] = received
    for stream in range(vm.streams.count):
        at = STR.AT + stream * STR.WORDS
        finished = int(words[at + STR.DONE])
        if words[at + STR.TAIL] > finished:
            slot = int(words[QUE.AT + stream * RING.SLOTS + (finished & RING.SLOT_MASK)])
            by_stream[stream] = int(words[INS.AT + slot * INS.WORDS + INS.SEQ])
    return by_stream


def _targets(vm: Recorded, head: int, received: int) -> dict[int, list[int]]:
    """Return the sequence numbers for which each slot waits, according to the scheduler."""
    words = vm.words
    waits: dict[int, list[int]] = {}
    for seq in range(head, received):
        ins = INS.AT + (seq & RING.SLOT_MASK) * INS.WORDS
        if words[ins + INS.SEQ] != seq or words[ins + INS.STATE] == STATE.RELEASED:
            continue
        for at in (INS.AT_DISPATCH, INS.AT_DONE):
            index, steps = int(words[ins + at]), 0
            while 0 <= index < EDG.LENGTH and steps < MOST_STEPS:
                edge = EDG.AT + index * EDG.WORDS
                waits.setdefault(int(words[edge + EDG.TARGET]), []).append(seq)
                index, steps = int(words[edge + EDG.NEXT]), steps + 1
    return waits


def _operands(vm: Recorded, seq: int) -> list[tuple[int, int]]:
    """Return (storage, access) of an instruction's operands; nothing if its operands are
    elsewhere.
    """
    m, slot = vm.words, seq & RING.SLOT_MASK
    entry = entry_of(m, slot)
    if m[entry + ENT.OUTLINE]:  # the list may be gone by now: it is not looked at
        return []
    return [
        (operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK, access_of(m, slot, entry, k) & 3)
        for k in range(min(count_of(m, slot, entry), RING.MAX_INLINE))
    ]


def _wait(vm: Recorded, seq: int, source: int) -> Waited:
    """Return the reason why `seq` waits for `source`: the first operand that they share and one of
    them writes.
    """
    theirs: dict[int, bool] = {}
    for storage, access in _operands(vm, source):
        theirs[storage] = theirs.get(storage, False) or access != OPERAND.CONST
    for k, (storage, access) in enumerate(_operands(vm, seq)):
        writes = access != OPERAND.CONST
        if storage in theirs and (writes or theirs[storage]):
            hazard = "RAW" if not writes else "WAW" if theirs[storage] else "WAR"
            return Waited(source, k, _ACCESS[access], hazard)
    return Waited(source, -1, "", "")


def _described(
    vm: Recorded, seq: int, ins: int, state: int, sources: Any, front: dict[int, int]
) -> InFlight:
    words, slot = vm.words, seq & RING.SLOT_MASK
    kind, stream = int(words[ins + INS.KIND]), int(words[ins + INS.STREAM])
    entry = int(words[RING.AT + slot * RING.WORDS + RING.ENTRY]) & ENT.MASK
    info = vm.entries.info[entry][0] if entry < len(vm.entries.info) else None
    waits = [_wait(vm, seq, source) for source in sources]
    head = int(words[CTL.HEAD])
    if kind == KIND.BARRIER and head < seq:
        waits.append(Waited(head, -1, "", ""))
    dispatched = kind not in (KIND.TOUCH, KIND.BARRIER) and state == STATE.DISPATCHED
    first = front.get(stream, -1) if dispatched else -1
    code, last, _ = apart(hot["codes"][seq & (FRAMES - 1)], hot["lasts"][seq & (FRAMES - 1)])
    return InFlight(
        seq,
        getattr(info, "name", None) or NAMES.get(kind, Kind(kind).name.lower()),
        "running" if first == seq else State(state).name.lower(),
        vm.streams.name(stream) if stream < vm.streams.count else str(stream),
        short_position(code, last),
        tuple(waits),
        first if first >= 0 and first != seq else -1,
        running_for(vm, ins) if first == seq else 0.0,
        _callback_line(vm) if first == seq and kind == KIND.CALLBACK else "",
    )


def running_for(vm: Recorded, ins: int) -> float:
    """Return the seconds since the worker started the instruction at `ins`; 0 if unknown."""
    started, dispatched = int(vm.words[ins + INS.T_START]), int(vm.words[ins + INS.T_DISPATCHED])
    if not vm.threads.running or vm.words[CTL.LEVEL] == 0 or started < dispatched:
        return 0.0  # the stamp is an earlier instruction's
    (t0, n0), (t1, n1) = vm.flight.zero, vm.flight.clocks()
    scale = (n1 - n0) / (t1 - t0) if t1 > t0 else 1.0
    return max(0.0, (t1 - started) * scale / 1e9)


def _callback_line(vm: Recorded) -> str:
    """Return the present line of the running callback, in its own function."""
    host = [t.ident for t in vm.threads.members if t.name == HOST_THREAD]
    own = None
    with Uncollected():
        frame = sys._current_frames().get(host[0] or 0) if host else None
        while frame is not None and not is_internal(frame.f_code.co_filename):
            own, frame = frame, frame.f_back
    return f"{short_position(own.f_code, own.f_lasti)} {own.f_code.co_name}()" if own else ""


def chain(instructions: list[InFlight]) -> list[InFlight]:
    """Return the chain of waits.  It begins at the instruction for which Python waits, or else at
    the youngest, and ends at a running one.
    """
    by_seq = {one.seq: one for one in instructions}
    readers = [one for one in instructions if one.name in ("wait", "barrier")]
    links: list[InFlight] = []
    at = next(iter(readers or instructions[-1:]), None)
    while at is not None and at not in links and len(links) < MOST_LINKS:
        links.append(at)
        ahead = [at.behind, *(wait.seq for wait in at.waits)]
        alive = [by_seq[seq] for seq in ahead if seq in by_seq]
        # every chain ends at a running instruction: the shortest way there is by the youngest
        at = max(alive, key=lambda one: one.seq, default=None)
    return links


def chain_text(instructions: list[InFlight]) -> str:
    """Return `chain` as lines, "" if nothing is in flight."""
    links = chain(instructions)
    if not links:
        return ""
    lines = ["  who waits for whom:"]
    for depth, one in enumerate(links):
        arrow = "   " if depth == 0 else "<- "
        lines.append(f"    {arrow}#{one.seq} {one.name}  {one.reason()}  {one.line}".rstrip())
    if len(links) == MOST_LINKS:
        lines.append(f"    ... {len(instructions)} instructions are in flight: flow.vm.pending()")
    return "\n".join(lines)
