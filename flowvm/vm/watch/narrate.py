"""FLOWVM_DEBUG=2 and up: a line an instruction, printed by the thread that issued it.

    flowvm: #311     cpu   matmul           mut out f32[64,10] · const x f32[64,32] · const ...
        0.041 ms    1.0 GF/s   11.6 KiB  train.py:12

(one line).  The left part is written when the instruction was issued, the right one when it is
done, for which the thread waits a moment: so lines come in the order issued, and of a program that
hangs or crashes the last line is the one to look at.  What takes longer than PATIENCE, or waits for
something else, is left behind as "not done yet".

Level 3 adds the instructions waited for, by the scheduler's rule (`[one writer]? readers*`), even
if they had finished.  Level 4 adds the source and the types of each kernel at its first use
(`kernel_text`), and LLVM's result for compiled ones.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import CodeType

from flowvm.config import config
from flowvm.files.printable import printable
from flowvm.vm.callers.lines import short_position
from flowvm.vm.machine.machine import access_of, count_of, entry_of, operand_of
from flowvm.vm.machine.words import CTL, ENT, INS, KIND, OPERAND, REC, RING
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.watch.work import flops_of

MOST_WAITS = 6  # instructions named after "waits for"
PATIENCE = 0.25  # seconds that an instruction is waited for
NAMES = {
    KIND.TOUCH: "wait",
    KIND.BARRIER: "barrier",
    KIND.RELEASE: "release",
    KIND.CALLBACK: "callback",
    KIND.RESTORE: "restore",
}


class Narrator:
    """Prints the instructions that one engine issues."""

    def __init__(self, vm: Recorded) -> None:
        self.vm = vm
        self.lock = threading.Lock()
        self.accesses: dict[int, list[tuple[int, bool]]] = {}  # storage -> [(seq, writes)]

    def tell(self, seq: int, code: CodeType | None, last: int) -> None:
        """Print the line of instruction `seq`, which has just been published."""
        m, slot = self.vm.words, seq & RING.SLOT_MASK
        record = RING.AT + slot * RING.WORDS
        if m[record + RING.MARK] != seq + 1:
            return  # issued and done so long ago that the slot is another's
        entry = entry_of(m, slot)
        info = self.vm.entries.info[m[record + RING.ENTRY] & ENT.MASK][0]
        kind, count = m[entry + ENT.KIND], count_of(m, slot, entry)
        operands = [operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK for k in range(count)]
        writes = [access_of(m, slot, entry, k) & 3 != OPERAND.CONST for k in range(count)]
        text = getattr(info, "operands", "") or " ".join(f"storage {o}" for o in operands)
        stream = self.vm.streams.name(m[record + RING.ENTRY] >> ENT.BITS)
        name = getattr(info, "name", "") or NAMES.get(kind, "")
        line = short_position(code, last)
        with self.lock:
            _write(f"flowvm: #{seq:<7d} {stream:5s} {name:16s} {text:60s} ")
            outcome = self._duration(seq) if kind not in (KIND.TOUCH, KIND.BARRIER) else f"{'':33s}"
            right = f"{outcome}  {line}"
            if config.debug >= 3 and (front := self._waits(seq, kind, operands, writes)):
                named = ", ".join(front[:MOST_WAITS]) + (" ..." if len(front) > MOST_WAITS else "")
                right = f"{right.rstrip()}  waits for {named}"
            _write(right.rstrip() + "\n")

    def _duration(self, seq: int) -> str:
        """Return time, rate and bytes of a finished instruction, in 33 columns."""
        if threading.current_thread().name == "flowvm-host":
            return f"{'issued by a callback':>33s}"  # it may wait for that callback
        vm, at = self.vm, REC.AT + (seq & REC.MASK) * REC.WORDS
        deadline = time.monotonic() + PATIENCE
        while vm.words[at + REC.SEQ] != seq + 1 or not vm.words[at + REC.RELEASED]:
            if not vm.words[CTL.LEVEL]:
                return f"{'not recorded':>33s}"
            if time.monotonic() > deadline:
                return f"{'not done yet':>33s}"
            if vm.threads.running:
                vm.loops.function("nap")(vm.base, 20)
        row = vm.words[at : at + REC.WORDS].tolist()
        if row[REC.STATUS] == INS.POISONED:
            return f"{'skipped: an operand failed':>33s}"
        (t0, n0), (t1, n1) = vm.flight.zero, vm.flight.clocks()
        took = max(1, row[REC.ENDED] - row[REC.STARTED]) * ((n1 - n0) / (t1 - t0))
        info = vm.entries.info[row[REC.WHAT] & ENT.MASK][0]
        calls = [(task[0], task[3]) for task in getattr(info, "recorded", ())]  # of a LaunchPlan
        calls = calls or [(getattr(info, "name", ""), getattr(info, "metas", ()))]
        nbytes = sum(meta.nbytes for _, metas in calls for meta in metas)
        flops = sum(flops_of(name, metas) for name, metas in calls)
        rate = f"{flops / took:.1f} GF/s" if flops else f"{nbytes / took:.1f} GB/s" * bool(nbytes)
        failed = "failed " if row[REC.STATUS] else ""
        return f"{failed}{took / 1e6:.3f} ms".rjust(11) + f"{rate:>11s}{_size(nbytes):>11s}"

    def _waits(self, seq: int, kind: int, operands: list[int], writes: list[bool]) -> list[str]:
        """Return the instructions for which `seq` waits, and remember `seq` as one to wait for."""
        front: dict[int, str] = {}
        for storage, write in sorted(zip(operands, writes, strict=True), key=lambda o: not o[1]):
            before = self.accesses.setdefault(storage, [])
            for other, wrote in before if write else before[:1]:
                if other != seq and (write or wrote):
                    hazard = "RAW" if not write else "WAW" if wrote else "WAR"
                    front.setdefault(other, f"#{other} {hazard}")
            if write:
                self.accesses[storage] = [(seq, True)]
            elif (seq, True) not in before:
                before.append((seq, False))
        if kind == KIND.RELEASE:  # the id will be another storage's
            for storage in operands:
                self.accesses.pop(storage, None)
        return list(front.values())


def kernel_text(
    name: str, body: Callable[..., object], operands: Sequence[tuple[str, int, bool]], scalars: str
) -> str:
    """Return level 4's account of a kernel: the source given to Numba.

    `operands` are (dtype, dimensions, dense) of the arrays that `body` takes first, `scalars` the
    codes of the numbers that change from call to call, "d" or "q" each.
    """
    try:
        source = textwrap.dedent(inspect.getsource(body))
    except (OSError, TypeError):  # it was made at run time
        source = f"(generated: {body!r})"
    types = [f"array({d}, {n}d, {'C' if dense else 'A'})" for d, n, dense in operands]
    types += ["float64" if code == "d" else "int64" for code in scalars]
    return f"kernel of {name}: {', '.join(types)}\n{textwrap.indent(source.rstrip(), '    ')}"


def _size(nbytes: int) -> str:
    if not nbytes:
        return ""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def _write(text: str) -> None:
    if not sys.stderr:
        return
    if (sys.stderr.encoding or "ascii").lower().replace("-", "") != "utf8":
        text = text.replace("·", "|")
    with suppress(OSError, ValueError):  # the output has no reader: that must not stop the program
        sys.stderr.write(printable(text, lines=True))
        sys.stderr.flush()
