"""What the VM is doing right now, as text: lively instructions and what each waits for.

Looks at the scheduler's arrays while the scheduler works, so on a busy VM a line may be out of
date; on one that hangs, which is what it is for, it is exact.
"""

from __future__ import annotations

from typing import Any

from flowvm.vm import layout as w
from flowvm.vm.engine import FRAMES, Engine, hot
from flowvm.vm.lines import position

__all__ = ["dump_text"]

MOST = 40


def dump_text(vm: Engine) -> str:
    """A table of the oldest lively instructions, oldest first."""
    words = vm.words
    head, received = int(words[w.HEAD]), int(words[w.RECEIVED])
    lines = [
        f"{received - head} lively instructions (#{head} to #{received - 1})"
        if received > head
        else f"nothing lively; {received} instructions done"
    ]
    waits = _waits(vm, head, received)
    shown = 0
    for seq in range(head, received):
        ins = w.INS + (seq & w.SLOT_MASK) * w.INS_WORDS
        state = int(words[ins + w.I_STATE])
        if words[ins + w.I_SEQ] != seq or state == w.RELEASED:
            continue
        if shown == MOST:
            lines.append("  ...")
            break
        shown += 1
        lines.append(_line(vm, seq, ins, state, waits.get(seq & w.SLOT_MASK, [])))
    mark = words[w.RING + (received & w.SLOT_MASK) * w.RECORD_WORDS + w.MARK]
    if mark != received + 1:
        for ahead in range(1, 64):
            seq = received + ahead
            if words[w.RING + (seq & w.SLOT_MASK) * w.RECORD_WORDS + w.MARK] == seq + 1:
                lines.append(
                    f"  #{received} was taken by a thread that has not published it; #{seq} was"
                )
                break
    return "\n".join(lines)


def _waits(vm: Engine, head: int, received: int) -> dict[int, list[int]]:
    """For each slot, the sequence numbers it waits for."""
    words, waits = vm.words, {}  # type: ignore[var-annotated]
    for seq in range(head, received):
        ins = w.INS + (seq & w.SLOT_MASK) * w.INS_WORDS
        if words[ins + w.I_SEQ] != seq or words[ins + w.I_STATE] == w.RELEASED:
            continue
        for at in (w.I_AT_DISPATCH, w.I_AT_DONE):
            index, steps = int(words[ins + at]), 0
            while 0 <= index < w.EDGES and steps < 1000:
                edge = w.EDG + index * w.EDG_WORDS
                waits.setdefault(int(words[edge + w.G_TARGET]), []).append(seq)
                index, steps = int(words[edge + w.G_NEXT]), steps + 1
    return waits


def _line(vm: Engine, seq: int, ins: int, state: int, waits: list[int]) -> str:
    words = vm.words
    slot = seq & w.SLOT_MASK
    entry = int(words[w.RING + slot * w.RECORD_WORDS + w.ENTRY]) & w.ENTRY_MASK
    info: Any = vm.entry_info[entry][0] if entry < len(vm.entry_info) else None
    kind = w.Kind(int(words[ins + w.I_KIND])).name
    name = getattr(info, "name", None) or kind
    code, last = hot["codes"][seq & (FRAMES - 1)], hot["lasts"][seq & (FRAMES - 1)]
    where = position(code, last)
    if waits:
        reason = "waits for " + ", ".join(f"#{s}" for s in waits[:6])
    elif state == w.DISPATCHED:
        reason = f"in the queue of stream {words[ins + w.I_STREAM]} or running"
    elif kind == "BARRIER":
        reason = "waits for everything before it"
    else:
        reason = ""
    return f"  #{seq:<7d} {name:20s} {w.State(state).name.lower():10s} {reason:40s} {where}"
