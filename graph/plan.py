"""Plan: a LogicalGraph compiled for replay, and the LaunchPlan instruction that replays it.

Each node becomes a task: kernel, layout, and its operands as registers.  A register is a place in
the launch's chunk (temporaries, by the memory plan) or an operand of the launch (inputs, variables,
and the outputs, which get memory of their own).  The tasks are a chain on one stream, so one native
loop runs them without asking anybody; the launch as a whole is one instruction, ordered among eager
ones by its operands.

Invariants:
- a launch holds no state: chunk and outputs are its own, so launches of one Plan may overlap;
- everything that a task's words point to lives as long as the Plan.
"""

from __future__ import annotations

import struct
import sys
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np

from flowvm.errors import CaptureError
from flowvm.graph.logical import Buffer, BufferKind, LogicalGraph, Operand, OpNode
from flowvm.graph.memory import Block, MemoryPlan, plan_memory
from flowvm.graph.printing import operand_text, size_text
from flowvm.interpreter import Invocation, current_recorder, current_stream, find_user
from flowvm.live import Live
from flowvm.tensor import Storage, Tensor, new_tensor
from flowvm.vm import layout as w
from flowvm.vm.engine import engine, hot

__all__ = ["Plan", "RegstDesc", "TaskDesc", "compile_plan"]


@dataclass(eq=False)
class RegstDesc:
    """Where a buffer is during a launch: `operand` of the launch, or `block` in its chunk."""

    buffer: Buffer
    operand: int = -1
    block: Block | None = None

    @property
    def text(self) -> str:
        """Such as chunk+128, or operand 3."""
        return f"operand {self.operand}" if self.block is None else f"chunk+{self.block.offset}"


@dataclass(eq=False)
class TaskDesc:
    """A node with what runs it; `scratch` is its part of the chunk."""

    number: int
    node: OpNode
    invocation: Invocation
    registers: list[tuple[str, Operand, RegstDesc]]
    scratch: Block | None


class PlanInfo:
    """What messages and traces say of a Plan's entry, and what its words point to.

    An entry lives as long as the VM, so this holds no tensor and no Plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.name = plan.name
        self.operands = f"{len(plan.tasks)} tasks"
        self.nodes = [_described(task.node) for task in plan.tasks]
        self.kept = plan.kept

    def locate(self, task: int) -> tuple[str, CodeType | None, int, str]:
        """(name, code, offset, operands) of the node that a task came from."""
        return self.nodes[task]


def _described(node: OpNode) -> tuple[str, CodeType | None, int, str]:
    operands = " · ".join(f"{access} {o.meta!r}" for access, o in node.accesses())
    return f"{node.operator.name} (node {node.number})", node.code, node.last, operands


class Plan:
    """A compiled graph: `launch(inputs)` gives the outputs."""

    def __init__(self, graph: LogicalGraph) -> None:
        unsized = next((node for node in graph.nodes if node.operator.unsized), None)
        if unsized is not None:
            raise CaptureError(
                f"{graph.name}: {unsized.operator.name} gives a tensor whose shape is known only "
                f"after it ran, so what follows cannot be compiled  {unsized.line}"
            )
        self.graph, self.name = graph, graph.name
        self.variables = graph.variables()
        self.made = _made(graph)
        self.registers = self._registers()
        self.tasks = [self._task(i, node) for i, node in enumerate(graph.nodes)]
        blocks = [r.block for r in self.registers.values() if r.block is not None]
        blocks += [t.scratch for t in self.tasks if t.scratch is not None]
        self.memory: MemoryPlan = plan_memory(blocks)
        self.live: list[Live] = []
        self._live_kinds: list[str] = []
        self.kept: list[Any] = []
        self.words = self._words()
        self._prepare_launch()

    # --- compiling ----------------------------------------------------------------------------

    def _registers(self) -> dict[Buffer, RegstDesc]:
        """Launch operands: outputs first, then inputs, then variables; the rest is in the chunk."""
        found: dict[Buffer, RegstDesc] = {}
        inputs = [operand.buffer for operand in self.graph.inputs]
        for buffer in (*self.made, *inputs, *self.variables):
            found[buffer] = RegstDesc(buffer, len(found))
        lives: dict[Buffer, Block] = {}
        for step, node in enumerate(self.graph.nodes):
            for _, operand in node.accesses():
                buffer = operand.buffer
                if buffer in found:
                    continue
                block = lives.setdefault(buffer, Block(buffer.nbytes, step, step, repr(buffer)))
                block.last = step
        found.update({buffer: RegstDesc(buffer, -1, block) for buffer, block in lives.items()})
        return found

    def _task(self, number: int, node: OpNode) -> TaskDesc:
        metas = tuple(operand.meta for operand in node.inputs)
        into = tuple(operand.meta for operand in node.outputs) if node.into else ()
        invocation = node.operator.lower((*into, *metas), node.attrs)
        registers = [(a, o, self.registers[o.buffer]) for a, o in node.accesses()]
        scratch = None
        if invocation.scratch:
            scratch = Block(invocation.scratch, number, number, f"scratch of {number}")
        return TaskDesc(number, node, invocation, registers, scratch)

    def _words(self) -> np.ndarray[Any, Any]:
        operands = [r for r in self.registers.values() if r.operand >= 0]
        sizes = [max(1, r.buffer.nbytes) if r.buffer in self.made else 0 for r in operands]
        words = [len(self.tasks), len(operands), 4, 4 + len(sizes), *sizes]
        for task in self.tasks:
            words += self._task_words(task)
        return np.array(words, np.int64)

    def _task_words(self, task: TaskDesc) -> list[int]:
        made = task.invocation
        phases = np.array(made.phases, np.int64)
        self.kept += [made, phases]
        operands = []
        for access, operand, register in task.registers:
            source, offset = register.operand + 1, operand.offset
            if register.block is not None:
                source, offset = 0, register.block.offset + operand.offset
            written = int(access != "const")
            operands.append(source | written << w.SOURCE_BITS | offset << (w.SOURCE_BITS + 1))
        kinds = made.scalar_pack[::-1] or task.node.operator.scalar_kinds
        scalars: list[int] = []
        for kind, value in zip(kinds, task.node.scalars, strict=True):
            if isinstance(value, Live):
                scalars += [len(self.live), 0]
                self.live.append(value)
                self._live_kinds.append(kind)
            else:
                scalars += [-1, _bits(kind, value)]
        head = [
            0, made.kernel, made.layout.ctypes.data, made.units, max(1, made.grain),
            phases.ctypes.data, len(made.phases),
            -1 if task.scratch is None else task.scratch.offset, len(operands), len(kinds),
        ]  # fmt: skip
        words = [*head, *operands, *scalars]
        words[w.K_LENGTH] = len(words)
        return words

    def _prepare_launch(self) -> None:
        """What all launches have in common: the entry, and a block that each copies."""
        operands = [r for r in self.registers.values() if r.operand >= 0]
        written = {o.buffer for node in self.graph.nodes for o in node.written()}
        access = [w.MUT if r.buffer in written else w.CONST for r in operands]
        access[: len(self.made)] = [w.MUT | w.ALLOCATE] * len(self.made)
        count = len(operands)
        self._count = count
        held = [b.held.id for b in self.variables]
        given = [0] * (count - len(held))
        self._block = array("q", [*given, *held, *access, *[0] * len(self.live)])
        self._mutated = [b.held for b in self.graph.mutated()]
        self._first_input = len(self.made)
        self._metas = tuple(o.meta for o in self.graph.inputs)
        self._shifts = [o.offset << w.STORAGE_BITS for o in self.graph.inputs]
        head = (8 * count + 8 + 63) // 64 * 64
        self.chunk_bytes = head + self.memory.nbytes
        self._entry = -1
        _plans.add(self)

    def _make_entry(self) -> int:
        self._entry = engine.new_entry(
            w.LAUNCH,
            [],
            layout=self.words,
            sizes=[max(1, b.nbytes) for b in self.made],
            scratch=self.chunk_bytes,
            outline=True,
            info=PlanInfo(self),
        )
        return self._entry

    # --- replay -------------------------------------------------------------------------------

    def launch(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Replay once, on this thread's stream: the outputs.

        The inputs must have the metas that the graph was captured with: the caller has looked.
        """
        if current_recorder() is not None:
            raise CaptureError(f"{self.name}: a compiled graph cannot be called inside a capture")
        block = self._block[:]
        storages = [engine.new_storage() for _ in self.made]
        k = 0
        for storage in storages:
            block[k] = storage
            k += 1
        for tensor, shift in zip(inputs, self._shifts, strict=True):
            block[k] = tensor._ref - shift
            k += 1
        k = 2 * self._count
        for kind, value in zip(self._live_kinds, self.live, strict=True):
            block[k] = _bits(kind, value.find())
            k += 1
        stream = current_stream()
        if stream:
            for storage in storages:
                engine.stream_of[storage] = stream
        entry = self._entry if self._entry >= 0 else self._make_entry()
        code, last = find_user(sys._getframe(1))
        if hot["dead"]:
            engine.release_dead()
        engine.issue_block(entry | stream << w.ENTRY_BITS, block, self._count, code, last)
        for held in self._mutated:
            held.version += 1
        own = {b: Storage(s, 0) for b, s in zip(self.made, storages, strict=True)}
        return [self._output(operand, own, inputs) for operand in self.graph.outputs]

    def _output(
        self, operand: Operand, own: dict[Buffer, Storage], inputs: Sequence[Tensor]
    ) -> Tensor:
        buffer = operand.buffer
        if buffer.kind is BufferKind.INPUT:
            place = next(i for i, o in enumerate(self.graph.inputs) if o.buffer is buffer)
            storage, base = inputs[place].storage(), inputs[place]._ref - self._shifts[place]
        else:
            storage = own.get(buffer, buffer.held)
            base = storage.id
        return new_tensor(base + (operand.offset << w.STORAGE_BITS), operand.meta, storage)

    # --- what it looks like -------------------------------------------------------------------

    def dump(self) -> str:
        """The Plan as text: registers, memory and tasks."""
        memory = self.memory
        others = ", ".join(f"{name} {size_text(n)}" for name, n in memory.candidates.items())
        total = sum(b.size for b in memory.blocks)
        lines = [
            f"Plan {self.name}: {len(self.tasks)} tasks on one stream, one actor",
            f"  chunk {size_text(memory.nbytes)} by {memory.algorithm!r} ({others}; at least "
            f"{size_text(memory.lower_bound)}; without sharing {size_text(total)})",
        ]
        for register in self.registers.values():
            buffer, block = register.buffer, register.block
            life = "" if block is None else f"  tasks {block.first} to {block.last}"
            lines.append(
                f"  regst {buffer!r} {buffer.kind.value} {buffer.name}".rstrip()
                + f"  {size_text(buffer.nbytes)}  {register.text}{life}"
            )
        for task in self.tasks:
            shown = ", ".join(f"{access} {operand_text(o)}" for access, o, _ in task.registers)
            lines.append(f"  task {task.number} {task.node.operator.name}: {shown}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<Plan {self.name}: {len(self.tasks)} tasks, {len(self.registers)} registers, "
            f"chunk {size_text(self.memory.nbytes)}>"
        )


_plans: weakref.WeakSet[Plan] = weakref.WeakSet()


def _forget_entries() -> None:
    for plan in _plans:
        plan._entry = -1


engine.on_entries_full.append(_forget_entries)


def _made(graph: LogicalGraph) -> list[Buffer]:
    """Temporaries that an output names: they get memory of their own."""
    buffers = [o.buffer for o in graph.outputs]
    return list(dict.fromkeys(b for b in buffers if b.kind is BufferKind.TEMPORARY))


def _bits(kind: str, value: Any) -> int:
    if kind == "d":
        return int(struct.unpack("q", struct.pack("d", value))[0])
    return int(value)


def compile_plan(graph: LogicalGraph) -> Plan:
    """Check the graph and compile it."""
    graph.check()
    return Plan(graph)
