"""The debugger: instructions run at once on the thread that issues them, with stops in front of
them.

    with flow.vm.step(op="matmul"):
        train(batch)

At a *stop* the instruction has been issued and not begun.  `on` is called with it, by default a
prompt (`flowvm.vm.engine.prompt`).  With nan=True the machine stops behind an instruction that made
a NaN of operands that had none.  Other threads' instructions run without stops.  Instructions
issued during a stop come behind the stopped one, which then runs first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.files.printable import printable
from flowvm.guards.regions import Switched
from flowvm.meta.arrays import Array
from flowvm.meta.meta import TensorMeta, array_interface
from flowvm.vm.callers.lines import INTERNAL, short_position
from flowvm.vm.machine.machine import access_of, count_of, entry_of, operand_of
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND, RING
from flowvm.vm.watch.narrate import NAMES

if TYPE_CHECKING:
    from flowvm.vm.engine.engine import Engine


ACCESS = ("const", "mut", "mut2")
SHOWN = 6  # numbers of an operand in a list of all


@dataclass(frozen=True)
class StepOperand:
    """An operand at a stop: `meta` (its shape and dtype) if it is known, the number of its
    `storage`, and `value`, a copy of its numbers.  `value` is None if the tensor has no value yet,
    or is on a device.
    """

    name: str
    access: str
    storage: int
    meta: TensorMeta | None
    value: Array | None


@dataclass(frozen=True)
class Stop:
    """A stop of the machine at instruction `seq`, issued at `line`.  `over` is True behind the
    instruction.

    `why` is the reason for the stop.  `frame` is the user's; its locals may be looked at.
    """

    seq: int
    op: str
    stream: str
    line: str
    why: str
    over: bool
    operands: tuple[StepOperand, ...]
    frame: FrameType | None

    def __getitem__(self, name: str) -> StepOperand:
        """Return the operand of this name; ArgumentError if there is none."""
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise ArgumentError(
            f"{self.op} has no operand {name!r}; it has {', '.join(o.name for o in self.operands)}"
        )

    def __repr__(self) -> str:
        place = "behind" if self.over else "in front of"
        lines = [f"{place} #{self.seq} {self.op}  {self.stream}  {self.line}  ({self.why})"]
        for o in self.operands:
            what = "" if o.meta is None else f"{o.meta.dtype.name}{list(o.meta.shape)}"
            lines.append(f"  {o.access:5s} {o.name:10s} {what:22s} {_few(o.value)}".rstrip())
        return "\n".join(map(printable, lines))


def _few(value: Array | None) -> str:
    if value is None:
        return ""
    numbers = value.reshape(-1)
    shown = ", ".join(f"{v:.4g}" if value.dtype.kind in "fc" else str(v) for v in numbers[:SHOWN])
    return f"{shown}{', ...' if numbers.size > SHOWN else ''}"


class Stepping(Switched):
    """`with flow.vm.step(...):`, see the module; `stops` counts them."""

    def __init__(
        self,
        vm: Engine,
        op: str | None,
        line: str | int | None,
        storage: object,
        nan: bool,
        on: Callable[[Stop], object] | None,
    ) -> None:
        if op is not None and not isinstance(op, str):
            raise ArgumentError(f"step: op is the name of an operator, got {op!r}")
        if line is not None and (isinstance(line, bool) or not isinstance(line, (str, int))):
            raise ArgumentError(f'step: line is a number or "file.py:12", got {line!r}')
        if storage is not None and not hasattr(storage, "_ref"):
            raise ArgumentError(f"step: storage is a tensor, got {type(storage).__name__}")
        if on is not None and not callable(on):
            raise ArgumentError(f"step: on is called with each stop, got {on!r}")
        self.vm, self.on = vm, on
        self.op, self.line, self.nan = op, line, nan
        self.storage = storage  # kept alive: its number would be another's
        self.every = op is None and line is None and storage is None and not nan
        self.thread, self.inside, self.stops = 0, False, 0
        self._before: object = None
        self._wish = vm.sequential.region()

    def _switch(self) -> Stepping:
        self.thread = threading.get_ident()
        self._before = self.vm.sequential.stepping
        self._wish._switch()
        self.vm.sequential.stepping = self
        return self

    def _on_exit(self, *error: object) -> None:
        if self.vm.sequential.stepping is self:
            self.vm.waits.wait_idle()

    def _undo(self) -> None:
        if self.vm.sequential.stepping is self:
            self.vm.sequential.stepping = self._before
        self._wish._undo()

    def run(self, drain: Callable[[], None]) -> None:
        """Run the instructions that this thread has issued by `drain`, and stop at breakpoints."""
        if self.inside or threading.get_ident() != self.thread:
            return drain()
        self.inside = True
        try:
            seq = int(self.vm.words[CTL.RECEIVED])
            instruction = self._stop_at(seq)
            why = "" if instruction is None else self._reason(instruction)
            if instruction is not None and why:
                self._stop(instruction, why, False)
            before = (
                instruction is not None
                and self.nan
                and _has_nan(self._operands(instruction, "const", False))
            )
            drain()
            if instruction is not None and self.nan and not before:
                outputs = self._operands(instruction, "mut", True)
                if _has_nan(outputs):
                    self._stop(instruction, "a NaN", True)
        finally:
            self.inside = False

    def _stop(self, instruction: _Found, why: str, over: bool) -> None:
        assert self.on is not None
        self.stops += 1
        shown = self._operands(instruction, "", over)
        self.on(
            Stop(
                instruction.seq,
                instruction.name,
                instruction.stream,
                instruction.line,
                why,
                over,
                shown,
                instruction.frame,
            )
        )

    def _stop_at(self, seq: int) -> _Found | None:
        """Return the next instruction, if it is one to stop at."""
        m, slot = self.vm.words, seq & RING.SLOT_MASK
        record = RING.AT + slot * RING.WORDS
        if m[record + RING.MARK] != seq + 1:
            return None
        entry = entry_of(m, slot)
        kind = int(m[entry + ENT.KIND])
        if kind in (KIND.TOUCH, KIND.BARRIER, KIND.RELEASE, KIND.RESTORE):
            return None
        info = self.vm.entries.info[m[record + RING.ENTRY] & ENT.MASK][0]
        frame = _user_frame()
        line = "" if frame is None else short_position(frame.f_code, frame.f_lasti)
        count = count_of(m, slot, entry)
        return _Found(
            seq,
            getattr(info, "name", "") or NAMES.get(kind, str(info)),
            self.vm.streams.name(m[record + RING.ENTRY] >> ENT.BITS),
            line,
            frame,
            tuple(int(operand_of(m, slot, entry, k)) for k in range(count)),
            tuple(int(access_of(m, slot, entry, k)) for k in range(count)),
            tuple(getattr(info, "names", ())),
            tuple(getattr(info, "metas", ())),
        )

    def _reason(self, instruction: _Found) -> str:
        """Return the reason to stop in front of an instruction; "" if there is none."""
        if self.every:
            return "every instruction"
        if self.op is not None and instruction.name == self.op:
            return f"op {self.op}"
        if self.line is not None:
            _, _, number = instruction.line.rpartition(":")
            if str(self.line) in (instruction.line, number) or f"{self.line}".endswith(
                f"/{instruction.line}"
            ):
                return f"line {self.line}"
        if self.storage is not None:
            own = self.storage._ref & OPERAND.STORAGE_MASK
            if any(o & OPERAND.STORAGE_MASK == own for o in instruction.operands):
                return f"storage {own}"
        return ""

    def _operands(self, instruction: _Found, access: str, over: bool) -> tuple[StepOperand, ...]:
        shown = []
        for k, (operand, how) in enumerate(
            zip(instruction.operands, instruction.access, strict=True)
        ):
            name = instruction.names[k] if k < len(instruction.names) else str(k)
            meta = instruction.metas[k] if k < len(instruction.metas) else None
            kind = ACCESS[how & 3]
            if not kind.startswith(access):
                continue
            if meta is not None and kind == "mut2" and over:
                meta = meta.with_shape((self.vm.storages.rows(operand), *meta.shape[1:]))
            value = None if meta is None else self.value(operand, meta)
            shown.append(StepOperand(name, kind, operand & OPERAND.STORAGE_MASK, meta, value))
        return tuple(shown)

    def value(self, operand: int, meta: TensorMeta) -> Array | None:
        """Return a copy of the numbers of an operand; None if it has no memory yet, or a
        device's.
        """
        address = self.vm.storages.pointer(operand)
        at_start = address - (operand >> OPERAND.STORAGE_BITS)
        if meta.device.type != "cpu" or at_start == 0:
            return None
        return _copied(address, meta)


@dataclass(frozen=True)
class _Found:
    seq: int
    name: str
    stream: str
    line: str
    frame: FrameType | None
    operands: tuple[int, ...]
    access: tuple[int, ...]
    names: tuple[str, ...]
    metas: tuple[TensorMeta, ...]


class _Memory:
    """Memory of the VM for NumPy."""

    def __init__(self, address: int, meta: TensorMeta) -> None:
        self.__array_interface__ = array_interface(meta, address, True)


def _copied(address: int, meta: TensorMeta) -> Array:
    stored = np.array(np.asarray(_Memory(address, meta)))
    return meta.dtype.loaded(stored)


def _has_nan(operands: tuple[StepOperand, ...]) -> bool:
    return any(
        o.value is not None and o.value.dtype.kind in "fc" and bool(np.isnan(o.value).any())
        for o in operands
    )


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and INTERNAL[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame
