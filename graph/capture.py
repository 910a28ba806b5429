"""Capture: run Python code once, under a lazy interpreter, and keep the instructions it issues.

No kernel runs.  Every operation is told to a `Capture` instead, and what is issued in its place is
an instruction that poisons the outputs: so whoever reads a value that is not there, at once or
after the capture, gets a CaptureError by the VM's one mechanism for failed instructions, with the
line that made the tensor.  A variable that the code changes in place is not touched.

The tensors that operations make are kept until the capture ends, so a storage's id means one buffer
throughout.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowvm import jit
from flowvm.errors import CaptureError, Status
from flowvm.graph.logical import Buffer, BufferKind, LogicalGraph, Operand, OpNode
from flowvm.interpreter import Operator, current_recorder, find_user, recording_to
from flowvm.live import Frozen, Guard, Live
from flowvm.meta import TensorMeta
from flowvm.tensor import Tensor, new_tensor
from flowvm.vm import layout as w
from flowvm.vm.engine import engine

__all__ = ["Capture", "capturing"]


def no_value(args: int, layout: int, lo: int, hi: int) -> int:
    """The kernel of what is issued in a captured operation's place."""
    return CAPTURED


CAPTURED = int(Status.CAPTURED)


@functools.cache
def _instead(outputs: int, name: str) -> list[int]:
    """The entry of instructions that poison so many outputs, in a list that is emptied when the VM
    forgets its entries.
    """
    return []


def _entry_instead(outputs: int, name: str) -> int:
    """An entry that looks at an operation's outputs alone: each fails by itself, so that the error
    of one names its own line.
    """
    known = _instead(outputs, name)
    if not known:
        kernel = jit.native(no_value, "int32(int64, int64, int64, int64)", key="no_value")
        known.append(engine.new_entry(w.OP_CALL, [w.MUT] * outputs, kernel=kernel, info=name))
    return known[0]


engine.on_entries_full.append(_instead.cache_clear)


class Capture:
    """What is captured so far; a Recorder of the interpreter."""

    def __init__(self, name: str) -> None:
        self.graph = LogicalGraph(name)
        self.guards: list[Guard] = []
        self.draws: list[tuple[Any, list[Any]]] = []  # a generator, and where its draw is put
        self.phase, self.scope = "forward", ""
        self._by_storage: dict[int, Buffer] = {}
        self._kept: list[Any] = []

    def input(self, tensor: Tensor, name: str) -> Operand:
        """Take `tensor` for an input: what the graph is called with will stand in its place.

        CaptureError if another input has the same storage; `placeholder` has no such limit.
        """
        if tensor._ref & w.STORAGE_MASK in self._by_storage:
            raise CaptureError(f"{self.graph.name}: input {name!r} shares memory with another one")
        buffer = self._new_buffer(BufferKind.INPUT, tensor, name)
        self._kept.append(tensor.storage())
        operand = Operand(buffer, tensor._ref >> w.STORAGE_BITS, tensor._meta)
        buffer.nbytes = operand.end
        self.graph.inputs.append(operand)
        return operand

    def placeholder(self, meta: TensorMeta, name: str) -> Tensor:
        """An input that is no tensor yet: what code is to be run on.  It has no value to read."""
        tensor = new_tensor(engine.new_storage(), meta)
        self.input(tensor, name)
        engine.issue(_entry_instead(1, name), [tensor._ref])
        return tensor

    def draw(self, generator: Any) -> tuple[Live, Live]:
        """Seed and call number of a random op, drawn anew for each replay."""
        drawn: list[Any] = [(0, 0)]
        self.draws.append((generator, drawn))
        return Live(lambda: drawn[0][0], self.guards), Live(lambda: drawn[0][1], self.guards)

    def name_variable(self, tensor: Tensor, name: str) -> None:
        """Call `tensor`, should the code reach it, by this name."""
        self._external(tensor, name)

    def place(self, tensor: Tensor) -> Operand:
        """Where `tensor` is: in a buffer of the graph, or a variable from now on."""
        buffer = self._by_storage.get(tensor._ref & w.STORAGE_MASK)
        if buffer is None:
            buffer = self._external(tensor, "")
        operand = Operand(buffer, tensor._ref >> w.STORAGE_BITS, tensor._meta)
        if buffer.kind is not BufferKind.TEMPORARY:
            buffer.nbytes = max(buffer.nbytes, operand.end)
        return operand

    def output(self, tensor: Tensor) -> Operand:
        """Take `tensor` for an output."""
        operand = self.place(tensor)
        self.graph.outputs.append(operand)
        return operand

    def holds(self, tensor: Tensor) -> bool:
        """Whether `tensor` was made by a captured operation."""
        buffer = self._by_storage.get(tensor._ref & w.STORAGE_MASK)
        return buffer is not None and buffer.kind is BufferKind.TEMPORARY

    def _new_buffer(self, kind: BufferKind, tensor: Tensor, name: str) -> Buffer:
        buffer = Buffer(len(self._by_storage), kind, 0, name)
        self._by_storage[tensor._ref & w.STORAGE_MASK] = buffer
        return buffer

    def _external(self, tensor: Tensor, name: str) -> Buffer:
        known = self._by_storage.get(tensor._ref & w.STORAGE_MASK)
        if known is not None:
            return known
        buffer = self._new_buffer(BufferKind.VARIABLE, tensor, name)
        buffer.held = tensor.storage()
        buffer.nbytes = (tensor._ref >> w.STORAGE_BITS) + tensor._meta.span
        return buffer

    # --- the Recorder -------------------------------------------------------------------------

    def record(
        self,
        op: Operator,
        made: tuple[Any, ...],
        outputs: tuple[Tensor, ...],
        inputs: tuple[Tensor, ...],
        attrs: tuple[Any, ...],
        scalars: tuple[Any, ...],
        into: bool = False,
    ) -> int:
        """Append a node; the entry to issue in the operation's place."""
        if op.unsized:
            raise CaptureError(
                f"{op.name}: the shape of its result depends on values, which a graph has only "
                f"when it runs; use a form of fixed shape (flow.where, masked_fill, a mask that "
                f"multiplies), or do this part outside"
            )
        if any(isinstance(a, Live) for a in attrs):
            raise CaptureError(
                f"{op.name}: an attribute that changes from replay to replay cannot be captured "
                f"(got {attrs}); pass a fixed number, or compute with tensors"
            )
        read = tuple(self.place(t) for t in inputs)
        if into:
            written = tuple(self.place(t) for t in outputs)
        else:
            written = tuple(
                self._fresh(t, meta) for t, meta in zip(outputs, made[1:], strict=False)
            )
        code, last = find_user(sys._getframe(2))
        node = OpNode(
            len(self.graph.nodes),
            op,
            read,
            written,
            attrs,
            tuple(s.live if isinstance(s, Frozen) else s for s in scalars),
            into,
            self.phase,
            self.scope,
            code,
            last,
        )
        self.graph.nodes.append(node)
        return _entry_instead(0 if into else len(outputs), op.name)

    def _fresh(self, tensor: Tensor, meta: Any) -> Operand:
        self._kept.append(tensor)
        buffer = self._new_buffer(BufferKind.TEMPORARY, tensor, "")
        buffer.nbytes = meta.span
        return Operand(buffer, 0, meta)


@contextmanager
def capturing(name: str, inputs: Sequence[tuple[Tensor, str]] = ()) -> Iterator[Capture]:
    """Capture what this thread does inside.  CaptureError if it is captured already."""
    if current_recorder() is not None:
        raise CaptureError(
            f"{name}: a graph cannot be captured while another one is; call the inner one's "
            f"modules, or use its outputs as inputs"
        )
    capture = Capture(name)
    for tensor, called in inputs:
        capture.input(tensor, called)
    with recording_to(capture):
        yield capture
