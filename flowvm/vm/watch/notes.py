"""The note of an asynchronous error: the line, the operands, their makers, the poisoned
instructions.

    flowvm: raised by #309 gather on cpu (step 37); it was submitted at
        train.py:41 in step
            emb = table[idx]
                  ^^^^^^^^^^
        operands  const table f32[500,64] ← #12 randn, net.py:8
                  const idx i64[32] ← #307 copy, data.py:12
                  mut out f32[32,64]
        poisoned  14 later instructions (first #310 mean, train.py:42)
        restored  parameters and what else persists, where whole; other tensors: flow.vm.restore()
        The VM is usable.  More: flow.last_error()

Worked out when the error is raised: from the flight recorder, which still has the instructions
around the failed one, and so costs instructions that do not fail nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import CodeType
from typing import Protocol

import numpy as np

from flowvm.errors import CaptureError, OutOfMemoryError
from flowvm.files.printable import printable
from flowvm.meta.arrays import Array
from flowvm.vm.callers.lines import expression, short_position, shown
from flowvm.vm.callers.tracebacks import NOTE
from flowvm.vm.machine.words import ENT, ERR, INS, KIND, OPERAND
from flowvm.vm.watch.flight import Recorded, Snapshot

REACH = 1 << 13  # instructions before and after the failed one that are looked at
WIDTH = 100  # columns within which operands share a line
RESTORED = "parameters and what else persists, where whole; other tensors: flow.vm.restore()"
_KINDS = ("const", "mut", "mut2")


class Failed(Protocol):
    """A failed instruction (`flowvm.vm.engine.failures.Failure`)."""

    seq: int
    name: str
    exception: BaseException
    operands: str
    scope: str
    info: object
    forward: tuple[CodeType | None, int]

    def where(self) -> str:
        """The user's line."""


class _AboutMemory(Protocol):
    about_memory: Callable[[int], str]


class Failing(Recorded, Protocol):
    """An engine with a failure log and a reporter of the memory's contents."""

    @property
    def failures(self) -> _AboutMemory:
        """The engine's failure log."""


def place(code: CodeType | None, last: int) -> str:
    """`train.py:41 in Net.forward` of an instruction offset; paths from the current folder."""
    if code is None:
        return "(flowvm itself)"
    positions = list(code.co_positions())
    line = positions[last // 2][0] if last // 2 < len(positions) else None
    path = shown(code.co_filename)
    try:
        near = os.path.relpath(path)
    except (OSError, ValueError):  # no current folder any more, or another drive
        near = path
    if not near.startswith(os.pardir) and not path.startswith("<"):
        path = near
    inside = "" if code.co_name == "<module>" else f" in {code.co_qualname}"
    return f"{path}:{line or code.co_firstlineno}{inside}"


def caret_lines(code: CodeType | None, last: int) -> str:
    """The place of an instruction offset; its line, carets under the expression."""
    text = f"    {place(code, last)}"
    if code is None:
        return text
    source, first, over = expression(code, last)
    if source:
        text += f"\n        {source}"
    if over > first:
        text += f"\n        {' ' * first}{'^' * (over - first)}"
    return text


def note_of(vm: Failing, failure: Failed) -> str:
    """The note of a failed instruction."""
    seq = failure.seq
    snapshot = vm.flight.look(max(0, seq - REACH), seq + REACH)
    at = int(np.searchsorted(snapshot.seq, seq))
    known = at < len(snapshot.seq) and snapshot.seq[at] == seq
    where = f" on {vm.streams.name(int(snapshot.stream[at]))}" if known else ""
    lines = [f"{NOTE}#{seq} {failure.name}{where}{_span(vm, seq)}; it was submitted at"]
    lines.append(failure.where())
    forward = snapshot.forward.get(at, failure.forward) if known else failure.forward
    if forward[0] is not None:
        lines.append(f"    forward   {caret_lines(*forward).lstrip()}")
    if scope := failure.scope or (snapshot.modules[snapshot.module[at]] if known else ""):
        lines.append(f"    module    {scope}")
    operands = _operands(vm, snapshot, at, failure) if known else []
    operands = operands or [part for part in failure.operands.split(" · ") if part]
    if sum(map(len, operands)) + 3 * len(operands) < WIDTH - 14:
        operands = [" · ".join(operands)] if operands else []
    lines += [
        f"    {'operands' if k == 0 else '':8s}  {operand}" for k, operand in enumerate(operands)
    ]
    poisoned = int(vm.words[ERR.AT + seq % ERR.LENGTH * ERR.WORDS + ERR.POISONED])
    if poisoned:
        later = f"{poisoned} later instruction{'s' * (poisoned > 1)}"
        first = _first_poisoned(vm, snapshot, at) if known else ""
        lines.append(f"    poisoned  {later}{first}")
    if isinstance(failure.exception, OutOfMemoryError):
        lines += _memory(vm, int(snapshot.stream[at]) if known else 0)
    if not isinstance(failure.exception, CaptureError):
        lines.append(f"    restored  {RESTORED}")
    lines.append("    The VM is usable.  More: flow.last_error()")
    return printable("\n".join(lines), lines=True)


def _memory(vm: Failing, stream: int) -> list[str]:
    """Return the owners of the memory that a stream allocates: lines of `flow.memory.summary()`."""
    try:
        text = vm.failures.about_memory(stream)
    except Exception as error:  # there may be no memory to look
        return [f"    memory    could not be looked at: {error!r}"]
    return text.split("\n") if text else []


def _span(vm: Recorded, seq: int) -> str:
    """The innermost span of the user's (`flow.profiler.span`) that the instruction was issued in,
    and how many of that name were before: " (step 37)".
    """
    marks = list(vm.flight.marks)
    # from the outside in
    spans = [(first, name, len(marks)) for name, first in list(vm.flight.open) if first <= seq]
    spans += [(m.first, m.name, k) for k, m in enumerate(marks) if m.first <= seq < m.last][::-1]
    if not spans:
        return ""
    _, (_, name, k) = max(enumerate(spans), key=lambda span: (span[1][0], span[0]))
    return f" ({name} {sum(m.name == name for m in marks[:k])})"


def _storages(snapshot: Snapshot, i: int) -> Array:
    return snapshot.storage[int(snapshot.offsets[i]) : int(snapshot.offsets[i + 1])]


def _operands(vm: Recorded, snapshot: Snapshot, at: int, failure: Failed) -> list[str]:
    """Return `const idx i64[32] ← #307 copy, data.py:12` for each operand; the ones that are read
    come first.
    """
    metas, names = getattr(failure.info, "metas", ()), getattr(failure.info, "names", ())
    first, end = int(snapshot.offsets[at]), int(snapshot.offsets[at + 1])
    if len(metas) != end - first or len(names) != len(metas):
        return []
    operands: list[tuple[int, str]] = []
    for k in range(end - first):
        access = int(snapshot.access[first + k])
        kind = _KINDS[access & 3]
        text = f"{kind} {names[k]} {metas[k]!r}"
        if not access & OPERAND.ALLOCATE:
            text += _maker(vm, snapshot, int(snapshot.storage[first + k]), first)
        operands.append((access & 3, text))
    return [text for _, text in sorted(operands, key=lambda pair: pair[0] != OPERAND.CONST)]


def writer_of(vm: Recorded, operand: int) -> str:
    """Return the last writer of a tensor, by the operand word that it has in instructions: `#307
    copy, data.py:12`; "" if no remembered instruction wrote it.
    """
    snapshot = vm.flight.look()
    written = _maker(vm, snapshot, operand & OPERAND.STORAGE_MASK, len(snapshot.storage))
    return written.removeprefix(" ← ")


def _maker(vm: Recorded, snapshot: Snapshot, storage: int, before: int) -> str:
    """The last writer of a storage in front of flat operand number `before`."""
    writes = (snapshot.storage[:before] == storage) & (
        snapshot.access[:before] & 3 != OPERAND.CONST
    )
    if not writes.any():
        return ""
    i = int(np.searchsorted(snapshot.offsets, np.flatnonzero(writes)[-1], side="right")) - 1
    if _kind(vm, snapshot, i) == KIND.RELEASE:
        return ""  # memory of Python's, which no instruction wrote
    return " ← " + _named(vm, snapshot, i)


def _first_poisoned(vm: Recorded, snapshot: Snapshot, at: int) -> str:
    """Return the first instruction that needed a value of the failed one."""
    first, end = int(snapshot.offsets[at]), int(snapshot.offsets[at + 1])
    written = snapshot.storage[first:end][snapshot.access[first:end] & 3 != OPERAND.CONST]
    poisoned = np.flatnonzero(snapshot.status[at + 1 :] == INS.POISONED) + at + 1
    for i in poisoned.tolist():
        used = _storages(snapshot, i)
        if np.isin(used, written).any() and _kind(vm, snapshot, i) not in (
            KIND.TOUCH,
            KIND.RELEASE,
        ):
            return f" (first {_named(vm, snapshot, i)})"
    return ""


def _kind(vm: Recorded, snapshot: Snapshot, i: int) -> int:
    return int(vm.words[ENT.AT + int(snapshot.entry[i]) * ENT.WORDS + ENT.KIND])


def _named(vm: Recorded, snapshot: Snapshot, i: int) -> str:
    """`#307 copy, data.py:12`."""
    info = vm.entries.info[int(snapshot.entry[i])][0]
    line = short_position(snapshot.codes[i], snapshot.lasts[i])
    name = getattr(info, "name", info)
    return f"#{int(snapshot.seq[i])} {name}" + (f", {line}" if line else "")
