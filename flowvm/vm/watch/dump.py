"""The present state of the VM as text: instructions in flight and the waits of each."""

from __future__ import annotations

from collections.abc import Callable

from flowvm.files.printable import printable
from flowvm.vm.machine.words import CTL, RING
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.watch.in_flight import InFlight, begun, pending

MOST = 40

elsewhere: list[Callable[[], list[str]]] = []  # lines about waits for other processes


def dump_text(vm: Recorded, instructions: list[InFlight] | None = None) -> str:
    """Return a table of the oldest instructions in flight, oldest first; `instructions` is the
    result of `pending`.
    """
    words = vm.words
    head, received = int(words[CTL.HEAD]), begun(vm)
    lines = [
        f"{received - head} instructions in flight (#{head} to #{received - 1})"
        if received > head
        else f"nothing in flight; {received} instructions done"
    ]
    instructions = pending(vm) if instructions is None else instructions
    for one in instructions[:MOST]:
        reason = one.reason()
        if one.name == "barrier":
            reason = "waits for everything before it"
        row = f"  #{one.seq:<7d} {one.name:20s} {one.state:10s} {reason:40s} {one.line}"
        lines.append(printable(row))
    if len(instructions) > MOST:
        lines.append(f"  ... {len(instructions) - MOST} more: flow.vm.pending()")
    mark = words[RING.AT + (received & RING.SLOT_MASK) * RING.WORDS + RING.MARK]
    if mark != received + 1:
        for ahead in range(1, 64):
            seq = received + ahead
            if words[RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK] == seq + 1:
                lines.append(
                    f"  #{received} was taken by a thread that has not published it; #{seq} was"
                )
                break
    for ask in elsewhere:
        lines += [f"  {printable(line)}" for line in ask()]
    return "\n".join(lines)
