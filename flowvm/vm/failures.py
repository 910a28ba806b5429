"""What went wrong in the VM, kept until somebody sees it.

Workers push (sequence number, status, details) to the ERR ring; `collect` turns news into
`Failure`s while the frame that issued the instruction is still remembered.  A failure is *seen*
when its exception was raised at a sync point; what nobody saw is reported at exit.
"""

from __future__ import annotations

import linecache
import sys
import threading
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from flowvm.errors import Status, VMError, exception_for
from flowvm.vm import layout as w
from flowvm.vm.lang import load_acquire

if TYPE_CHECKING:
    from flowvm.vm.engine import Engine

__all__ = ["Failure", "Failures", "caret_lines"]

KEEP = 1024  # failures remembered; an older one still raises, with less to say


@dataclass
class Failure:
    """One failed instruction."""

    seq: int
    name: str
    exception: BaseException
    code: CodeType | None
    last: int
    seen: bool = False
    operands: str = ""
    noted: bool = False  # whether the exception says where it comes from

    def where(self) -> str:
        """The user's line that issued the instruction, with a caret line."""
        return caret_lines(self.code, self.last)


def caret_lines(code: CodeType | None, last: int) -> str:
    """File, line and function of an instruction offset; its line, carets under the expression."""
    if code is None:
        return "    (issued by flowvm itself)"
    positions = list(code.co_positions())
    index = last // 2
    line, end_line, column, end_column = positions[index] if index < len(positions) else (None,) * 4
    number = line or code.co_firstlineno
    text = f'    File "{code.co_filename}", line {number}, in {code.co_name}'
    source = linecache.getline(code.co_filename, number).rstrip("\n")
    if source.strip():
        stripped = source.lstrip()
        text += f"\n      {stripped}"
        if column is not None and end_column is not None and end_line == number:
            # columns are UTF-8 bytes; carets count characters
            before = len(source.encode()[:column].decode(errors="replace"))
            width = len(source.encode()[column:end_column].decode(errors="replace"))
            indent = before - (len(source) - len(stripped))
            text += f"\n      {' ' * indent}{'^' * max(1, width)}"
    return text


class Failures:
    """The failures of one engine."""

    def __init__(self, vm: Engine) -> None:
        self.vm = vm
        self.count = 0
        self.by_seq: dict[int, Failure] = {}
        self.raised: dict[int, BaseException] = {}  # what host callbacks raised, by sequence number
        self.lock = threading.Lock()

    def new(self) -> bool:
        """Whether the workers have reported anything that `collect` has not read."""
        return bool(self.vm.words[w.ERROR_COUNT] != self.count)

    def collect(self) -> None:
        """Read the workers' reports."""
        if not self.new():
            return
        with self.lock:
            total = load_acquire(self.vm.m, w.ERROR_COUNT)
            self.count = max(self.count, total - w.ERRORS)  # older ones were overwritten
            while self.count < total:
                at = w.ERR + self.count % w.ERRORS * w.ERR_WORDS
                if load_acquire(self.vm.m, at + w.R_MARK) != self.count + 1:
                    break  # counted, not yet written
                self._read(self.vm.m[at : at + w.ERR_WORDS].tolist())
                self.count += 1

    def _read(self, report: list[int]) -> None:
        from flowvm.vm.engine import FRAMES, hot

        seq, status = report[w.R_SEQ], report[w.R_STATUS]
        info = self.vm.entry_info[(report[w.R_ENTRY] - w.ENT) // w.ENTRY_WORDS][0]
        name = str(getattr(info, "name", info))
        exception = self.raised.pop(seq, None)
        if exception is None:
            exception = exception_for(status, report[w.R_DETAILS : w.R_DETAILS + w.DETAILS])
        code, last = hot["codes"][seq & (FRAMES - 1)], hot["lasts"][seq & (FRAMES - 1)]
        operands = str(getattr(info, "operands", ""))
        if hasattr(info, "locate"):  # a LaunchPlan: the line that was captured says more
            inner, code, last, operands = info.locate(report[w.R_TASK])
            name = f"{inner} of {name}"
        # that a captured tensor has no value is no failure until somebody wants one
        seen = status == Status.CAPTURED
        failure = Failure(seq, name, exception, code, last, seen, operands)
        self.by_seq[seq] = failure
        while len(self.by_seq) > KEEP:
            self.by_seq.pop(next(iter(self.by_seq)))

    def exception(self, seq: int) -> BaseException:
        """The exception of the failed instruction `seq`, with a note of the line that issued it."""
        failure = self.by_seq.get(seq)
        if failure is None:
            return VMError(
                f"this tensor is poisoned by instruction #{seq}, which failed too long ago to be "
                f"remembered"
            )
        error = failure.exception
        failure.seen = True
        if not failure.noted:
            failure.noted = True
            poisoned = int(self.vm.words[w.ERR + seq % w.ERRORS * w.ERR_WORDS + w.R_POISONED])
            note = f"flowvm: raised by instruction #{seq} {failure.name}, which was issued at\n"
            note += failure.where()
            if failure.operands:
                note += f"\n    operands  {failure.operands}"
            if poisoned:
                were = "instruction was" if poisoned == 1 else "instructions were"
                note += f"\n    {poisoned} later {were} skipped for need of a failed result"
            note += "\n    The VM is usable."
            error.add_note(note)
        return error.with_traceback(None)

    def raise_unseen(self) -> None:
        """Raise the first failure that nobody has seen, and count the others as seen with it."""
        unseen = [f for f in self.by_seq.values() if not f.seen]
        if not unseen:
            return
        error = self.exception(unseen[0].seq)
        for other in unseen[1:]:
            other.seen = True
            error.add_note(f"flowvm: and #{other.seq} {other.name}: {other.exception!r}")
        raise error

    def last(self) -> BaseException | None:
        """The newest failure's exception, or None."""
        self.collect()
        return self.exception(next(reversed(self.by_seq))) if self.by_seq else None

    def all(self) -> list[Any]:
        """The failures remembered, oldest first."""
        self.collect()
        return list(self.by_seq.values())

    def report_unseen(self) -> None:
        """At exit: print what nobody has seen."""
        self.collect()
        unseen = [f for f in self.by_seq.values() if not f.seen]
        for failure in unseen[:5]:
            print(
                f"flowvm: instruction #{failure.seq} {failure.name} failed and nobody looked at "
                f"its result: {type(failure.exception).__name__}: {failure.exception}\n"
                f"{failure.where()}",
                file=sys.stderr,
            )
        if len(unseen) > 5:
            print(f"flowvm: and {len(unseen) - 5} more failed instructions", file=sys.stderr)
