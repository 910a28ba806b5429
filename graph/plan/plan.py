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

import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.eager.declaration import Invocation
from flowvm.eager.interpreter import device_of, lowered
from flowvm.eager.live import Live
from flowvm.eager.tensor import Tensor
from flowvm.errors import CaptureError
from flowvm.files.printable import printable
from flowvm.graph.logical.logical import LogicalGraph, Uses
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.graph.logical.printer import operand_text, size_text
from flowvm.graph.memory.offsets import Block, MemoryPlan, MemoryReport, joined, plan_memory
from flowvm.graph.passes.changes import changes
from flowvm.graph.passes.order import WORTH
from flowvm.graph.plan.actors import ActorDesc, actors_of, by_actor, passed_on
from flowvm.graph.plan.launch_code import Launching
from flowvm.graph.plan.parts import RegstDesc, TaskDesc
from flowvm.graph.plan.plan_info import PlanInfo
from flowvm.graph.plan.words import ActorWords, PlanWords
from flowvm.loading.lazy import lazy
from flowvm.meta.device import cpu
from flowvm.meta.meta import TensorMeta
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.persistent import HOLDERS, Holder
from flowvm.vm.machine.words import CTL
from flowvm.vm.workers.zones import CHUNK_ZONE

if TYPE_CHECKING:
    from flowvm.graph.passes import changes_view
    from flowvm.graph.plan import tables
    from flowvm.ops.declare.cuda import lowering
    from flowvm.profiler.front import live
    from flowvm.profiler.views.passes import PassesView
    from flowvm.profiler.views.plan import PlanView
else:
    lowering = lazy("flowvm.ops.declare.cuda.lowering")
    changes_view = lazy("flowvm.graph.passes.changes_view")
    live = lazy("flowvm.profiler.front.live")
    tables = lazy("flowvm.graph.plan.tables")

PATIENCE = 0.2  # seconds: idle workers look up four times


class Plan:
    """A compiled graph: `launch(inputs)` gives the outputs."""

    def __init__(self, graph: LogicalGraph) -> None:
        unsized = next((node for node in graph.nodes if node.operator.signature.unsized), None)
        if unsized is not None:
            raise CaptureError(
                f"{graph.name}: {unsized.operator.name} gives a tensor whose shape is known only "
                f"after it ran, so what follows cannot be compiled  {unsized.line}"
            )
        if len(graph.devices()) > 1:
            places = ", ".join(sorted(map(str, graph.devices())))
            raise CaptureError(
                f"{graph.name}: a graph computes on one device, and this one has tensors on "
                f"{places}; copy between them outside of it"
            )
        several = len({node.stream for node in graph.nodes}) > 1
        if several:
            graph = by_actor(graph)
        self.graph, self.name, regst_num = graph, graph.name, graph.regst_num
        chains = actors_of(graph, regst_num) if several else []
        on_cpu = graph.devices() <= {cpu}
        self.actors = chains if on_cpu else []
        # on a device: of one graph
        self.branches = [] if on_cpu else chains or [ActorDesc(0, 0, 0, len(graph.nodes))]
        self.handed = passed_on(graph, self.actors)
        self.variables = graph.variables()
        self.own_outputs = _own_outputs(graph)
        self.registers = self._registers()
        self.tasks = [self._task(i, node) for i, node in enumerate(graph.nodes)]
        # of the VM; the CPU's is wherever the caller issues to
        streams = [0 if on_cpu else task.invocation.stream for task in self.tasks]
        self.stream = max(streams, default=0)
        self.memory = self._memory()
        actors = None
        if self.actors:
            actors = ActorWords(self.actors, regst_num, engine.streams.of_launches())
        words = PlanWords(self, actors)
        self.words, self.references, self.device_graph = words.words, words.references, words.graph
        self.live, self.live_kinds, self.turns = words.live, words.live_kinds, words.turns
        if actors is not None:
            weakref.finalize(self, _close, actors).atexit = False
        operands = sum(r.operand >= 0 for r in self.registers.values())
        # the addresses that operands start from
        head = (8 * operands + 8 + 63) // 64 * 64 + CHUNK_ZONE
        self.chunk_bytes = head + self.memory.nbytes + words.extra
        self.launching = Launching(self, PlanInfo(self))

    @property
    def passes(self) -> PassesView:
        """The changes of the passes to the captured graph, side by side.

        See `flowvm.graph.passes.changes`.
        """
        return changes_view.passes_view(changes(self.graph))

    @functools.cached_property
    def uses(self) -> Uses:
        """The use that launches make of memory that they do not own."""
        return self.graph.uses()

    # --- compiling ----------------------------------------------------------------------------

    def _registers(self) -> dict[Buffer, RegstDesc]:
        """Launch operands: outputs first, then inputs, then variables; the rest is in the chunk."""
        registers: dict[Buffer, RegstDesc] = {}
        inputs = [operand.buffer for operand in self.graph.inputs]
        for buffer in (*self.own_outputs, *inputs, *self.variables):
            registers[buffer] = RegstDesc(buffer, len(registers))
        lives: dict[Buffer, Block] = {}
        same = self.graph.shared()
        first = last = -1
        for step, node in enumerate(self.graph.nodes):
            if step > last:
                first, last = self._section(step)
            for _, operand in node.accesses():
                buffer = operand.buffer
                if buffer in registers:
                    continue
                begun = lives.get(same.get(buffer, buffer))
                begun = begun or Block(buffer.nbytes, step, step, repr(buffer))
                block = lives.setdefault(buffer, begun)
                # what was there before repetitions began is needed until the last of them
                block.last = step if block.first >= first else last
        registers.update({buffer: RegstDesc(buffer, -1, block) for buffer, block in lives.items()})
        for buffer, who in self.handed.items():  # copies, for repetitions in flight
            if who[0].copies > 1:
                block, apart = lives[buffer], (buffer.nbytes + 63) // 64 * 64
                block.nbytes = who[0].copies * apart
                for register in registers.values():
                    if register.block is block:
                        register.copies, register.apart = who[0].copies, apart
        return registers

    def _section(self, step: int) -> tuple[int, int]:
        """Return the first and last step of the section that is repeated together with `step`."""
        repeat, last = self.graph.nodes[step].repeat, step
        while last + 1 < len(self.graph.nodes) and self.graph.nodes[last + 1].repeat == repeat > 1:
            last += 1
        return step, last

    def _memory(self) -> MemoryPlan:
        """Give all blocks offsets.

        Blocks of different streams share no memory, since nothing orders their lives.  Memory of
        several streams is shared with no other block, nor is memory that actors of a section hand
        on.
        """
        streams: dict[Any, set[int]] = {}
        for task in self.tasks:
            for _, _, register in task.registers:
                if register.block is not None:
                    streams.setdefault(register.block, set()).add(task.node.stream)
            if task.scratch is not None:
                streams[task.scratch] = {task.node.stream}
        groups: dict[int, list[Block]] = {}
        for buffer in self.handed:
            if (block := self.registers[buffer].block) is not None:
                streams[block].add(-1)
        for block, numbers in streams.items():
            if len(numbers) > 1:
                block.first, block.last = 0, len(self.tasks)
            groups.setdefault(min(numbers) if len(numbers) == 1 else -1, []).append(block)
        return joined([plan_memory(blocks) for blocks in groups.values()])

    def _task(self, number: int, node: OpNode) -> TaskDesc:
        metas = tuple(operand.meta for operand in node.inputs)
        into = tuple(operand.meta for operand in node.outputs) if node.into else ()
        invocation, reports, begins = _lowered(node, (*into, *metas))
        registers = [(a, o, self.registers[o.buffer]) for a, o in node.accesses()]
        scratch = None
        if invocation.scratch:
            scratch = Block(invocation.scratch, number, number, f"scratch of {number}")
        return TaskDesc(number, node, invocation, registers, scratch, reports, begins)

    # --- replay -------------------------------------------------------------------------------

    def launch(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay once, on this thread's stream: the outputs.

        The inputs must have the metas that the graph was captured with: the caller has looked.
        """
        return self.launching.function(*inputs, *[value.find() for value in self.live])

    # --- what it looks like -------------------------------------------------------------------

    def dump(self) -> str:
        """The Plan as text: registers, memory and tasks."""
        memory = self.memory
        others = ", ".join(f"{name} {size_text(n)}" for name, n in memory.candidates.items())
        total = sum(b.size for b in memory.blocks)
        lines = [
            f"Plan {self.name}: {len(self.tasks)} tasks on {self._actors_text()}",
            f"  chunk {size_text(memory.nbytes)} by {memory.algorithm!r} ({others}; at least "
            f"{size_text(memory.lower_bound)}; without sharing {size_text(total)})",
        ]
        if self.graph.eager:
            lines.append(f"  {self.memory_report()!r}")
        for register in self.registers.values():
            buffer, block = register.buffer, register.block
            life = "" if block is None else f"  tasks {block.first} to {block.last}"
            lines.append(
                f"  regst {buffer!r} {buffer.kind.value} {buffer.name}".rstrip()
                + f"  {size_text(buffer.nbytes)}  {register.text}{life}"
            )
        starts = {actor.first: actor for actor in self.actors}
        for task in self.tasks:
            if task.number in starts:
                lines.append(f"  {self._actor_text(starts[task.number])}")
            shown = ", ".join(_operand_text(access, o) for access, o, _ in task.registers)
            times = f" x{task.node.repeat}" if task.node.repeat > 1 else ""
            lines.append(f"  task {task.number} {task.node.operator.name}{times}: {shown}")
        return "\n".join(map(printable, lines))

    def table(self) -> PlanView:
        """The Plan as a screen: actors with registers and credits as they stand, or tasks."""
        return tables.plan_table(self, self.memory_report())

    def watch(self, hz: float = 2.0) -> live.live:
        """`with plan.watch():` shows `table()` while the block runs, as `flow.profiler.live`."""
        return live.live(hz, self.table)

    def memory_report(self) -> MemoryReport:
        """Return the memory that a launch allocates, and the memory that eager code allocates."""
        return MemoryReport(
            self.chunk_bytes,
            sum(buffer.nbytes for buffer in self.own_outputs),
            sum(buffer.nbytes for buffer in self.variables),
            self.graph.eager,
        )

    def _actors_text(self) -> str:
        if len(self.branches) > 1:
            return f"one stream, {len(self.branches)} branches of a CUDA graph"
        if not self.actors:
            return "one stream, one actor"
        streams = len({actor.stream for actor in self.actors})
        return f"{streams} streams, {len(self.actors)} actors, regst_num {self.graph.regst_num}"

    def _actor_text(self, actor: ActorDesc) -> str:
        waits = ", ".join(map(str, actor.inputs)) or "the launch"
        credits = ", ".join(f"{n} by {k}" for k, n in actor.credits) or "none"
        times = f", acts {actor.times} times" if actor.times > 1 else ""
        return (
            f"actor {actor.number} on stream {engine.streams.name(actor.stream)}{times}: waits for "
            f"{waits}; credits {credits}"
        )

    def __repr__(self) -> str:
        return printable(
            f"<Plan {self.name}: {len(self.tasks)} tasks, {len(self.registers)} registers, "
            f"chunk {size_text(self.memory.nbytes)}>"
        )

    def _repr_html_(self) -> str:
        return tables.plan_html(self, self.dump())


def _lowered(node: OpNode, metas: tuple[TensorMeta, ...]) -> tuple[Invocation, bool, Any]:
    """Lower a node: return its Invocation, True if it reports, and the steps that begin it."""
    operator, attrs = node.operator, node.attrs
    if operator.kernel.everywhere or device_of(metas, attrs) is cpu:
        return lowered(operator, metas, attrs), False, ()
    return lowering.lower_task(operator, metas, attrs, [isinstance(s, Live) for s in node.scalars])


def _own_outputs(graph: LogicalGraph) -> list[Buffer]:
    """Temporaries that an output names: they get memory of their own."""
    buffers = [o.buffer for o in graph.outputs]
    return list(dict.fromkeys(b for b in buffers if b.kind is BufferKind.TEMPORARY))


def _operand_text(access: str, operand: Operand) -> str:
    """Return an operand's text, such as const %3 fc.weight; it says if each repetition moves it."""
    step = f" (+{operand.step} each)" if operand.step else ""
    return f"{access} {operand_text(operand)}{step}"


_closing: dict[int, ActorWords] = {}  # their end of data is under way: workers look at these


def _close(actors: ActorWords) -> None:
    """The Plan is gone: no launch will follow."""
    for address, words in [*_closing.items()]:  # another thread may do the same
        if words.is_left:
            _closing.pop(address, None)
    _closing[actors.address] = actors
    engine.loops.function("close_plan")(engine.base, actors.address)


def _held_variables(plan: Plan) -> Iterator[tuple[int, bool]]:
    for buffer in plan.__dict__.get("variables", ()):
        if buffer.held is not None:
            yield buffer.held.id, True


HOLDERS.append(Holder(Plan, _held_variables))


def compile_plan(graph: LogicalGraph) -> Plan:
    """Check the graph and compile it.

    Launches take the memory of temporaries in one large block, for which the smaller ones that
    eager code has left are no use.  Where these are as much, they go back to the system.
    """
    graph.check()
    plan = Plan(graph)
    cached = engine.words[CTL.RESERVED_BYTES] - engine.words[CTL.LIVE_BYTES]
    if graph.devices() <= {cpu} and WORTH <= plan.chunk_bytes <= cached:
        engine.streams.trim(PATIENCE)
    return plan
