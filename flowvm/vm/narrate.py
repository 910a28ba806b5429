"""FLOWVM_DEBUG=2 and up: a line an instruction, printed by the thread that issued it.

    flowvm: #311     cpu  add            mut out f32[8,8] · const x f32[8,8]          train.py:12

Level 3 adds what the instruction waits for, by the rule that the scheduler follows (`[one writer]?
readers*`), whether or not the ones in front are done by now.  Lines come in the order issued; those
of several issuing threads may swap.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from flowvm.config import config, say
from flowvm.vm import layout as w
from flowvm.vm.lines import short_position
from flowvm.vm.machine import access_of, count_of, entry_of, operand_of

if TYPE_CHECKING:
    from flowvm.vm.engine import Engine

__all__ = ["Narrator"]

MOST_WAITS = 6  # instructions named after "waits for"
NAMES = {w.TOUCH: "wait", w.BARRIER: "barrier", w.RELEASE: "release", w.CALLBACK: "callback"}


class Narrator:
    """Prints what one engine issues."""

    def __init__(self, vm: Engine) -> None:
        self.vm = vm
        self.lock = threading.Lock()
        self.accesses: dict[int, list[tuple[int, bool]]] = {}  # storage -> [(seq, writes)]

    def tell(self, seq: int, code: Any, last: int) -> None:
        """Print the line of instruction `seq`, which has just been published."""
        m, slot = self.vm.words, seq & w.SLOT_MASK
        record = w.RING + slot * w.RECORD_WORDS
        if m[record + w.MARK] != seq + 1:
            return  # issued and done so long ago that the slot is another's
        entry = entry_of(m, slot)
        info = self.vm.entry_info[m[record + w.ENTRY] & w.ENTRY_MASK][0]
        kind, count = m[entry + w.E_KIND], count_of(m, slot, entry)
        operands = [operand_of(m, slot, entry, k) & w.STORAGE_MASK for k in range(count)]
        writes = [access_of(m, slot, entry, k) & 3 != w.CONST for k in range(count)]
        text = getattr(info, "operands", "") or " ".join(f"storage {o}" for o in operands)
        stream = self.vm.stream_name(m[record + w.ENTRY] >> w.ENTRY_BITS)
        name = getattr(info, "name", "") or NAMES.get(kind, "")
        line = f"#{seq:<7d} {stream:5s} {name:16s} {text:60s} {short_position(code, last)}"
        if config.debug >= 3 and (front := self._waits(seq, kind, operands, writes)):
            named = ", ".join(front[:MOST_WAITS]) + (" ..." if len(front) > MOST_WAITS else "")
            line = f"{line.rstrip()}  waits for {named}"
        say(2, line.rstrip())

    def _waits(self, seq: int, kind: int, operands: list[int], writes: list[bool]) -> list[str]:
        """The instructions that `seq` waits for; from now on it is one that others wait for."""
        front: dict[int, str] = {}
        with self.lock:
            for storage, write in sorted(
                zip(operands, writes, strict=True), key=lambda o: not o[1]
            ):
                before = self.accesses.setdefault(storage, [])
                for other, wrote in before if write else before[:1]:
                    if other != seq and (write or wrote):
                        hazard = "RAW" if not write else "WAW" if wrote else "WAR"
                        front.setdefault(other, f"#{other} {hazard}")
                if write:
                    self.accesses[storage] = [(seq, True)]
                elif (seq, True) not in before:
                    before.append((seq, False))
            if kind == w.RELEASE:  # the id will be another storage's
                for storage in operands:
                    self.accesses.pop(storage, None)
        return list(front.values())
