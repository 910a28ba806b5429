"""LogicalGraph: the result of a capture, which passes rewrite.

Nodes are instructions in program order, each with its operands; operands are places in buffers.  A
buffer is a storage: of an input, of a variable (a parameter, a module's buffer, an optimizer's
state, any eager tensor that the code reached), or temporary.  Order between nodes is that of the
VM: a const access waits for the writer in front, a mut access for everything in front.  So a graph
means the same whatever order its nodes are run in, as long as conflicting accesses keep theirs.

Invariants (`check` holds a graph against them):
- a temporary is written before it is read, whole, by the node that makes it;
- operands lie inside their buffers, and have the metas that the operator gives for them;
- a variable's memory outlives the graph, and a written input is the caller's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowvm.eager import interpreter
from flowvm.errors import ArgumentError, CaptureError
from flowvm.files.printable import printable
from flowvm.graph.logical.memory_reuse import shared
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.graph.logical.printer import graph_text
from flowvm.meta.device import Device
from flowvm.meta.meta import TensorMeta


@dataclass
class Uses:
    """The use that calls of a graph make of memory that they do not own.

    changed   storages of the variables that are written
    held      storages of all variables
    inputs    True if inputs are written
    """

    changed: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    inputs: bool = False

    def add(self, other: Uses) -> None:
        """Add the use that `other` makes."""
        self.changed |= other.changed
        self.held |= other.held
        self.inputs |= other.inputs

    def meet(self, storages: Sequence[int]) -> bool:
        """Return True if a call with inputs in these storages writes memory that has two names.

        Passes take each buffer for memory of its own.  Such a call needs a Plan in which all is
        done in the order of the code.
        """
        if not self.changed.isdisjoint(storages):
            return True
        return self.inputs and (
            len(set(storages)) < len(storages) or not self.held.isdisjoint(storages)
        )


@dataclass(eq=False)
class LogicalGraph:
    """Nodes in program order, with inputs and outputs.

    inputs    one operand for each tensor that the graph is called with
    outputs   one for each tensor that a call gives
    streams   those of its nodes, kept alive
    regst_num launches that may be in flight at one time, if there are several
    in_flight repetitions of its section that may be, on several streams
    abreast   of these, with collectives of forward and of backward on one stream
    order     what its nodes may be put in another order for: see flowvm.graph.passes.order
    spared    percent of the peak that computing values again must spare for a percent of time
    eager     bytes that eager code has allocated at its peak, 0 where nobody has asked
    reuse     results may lie where a dying input lay: see flowvm.graph.memory.inplace
    captured  of an optimized graph: what it was made from, and the passes that were left out
    placed    metas of the outputs that are global tensors, by their place; the graph has the parts
              that are here
    structure what the outputs' tree looks like is kept by whoever made the graph
    """

    name: str
    nodes: list[OpNode] = field(default_factory=list)
    inputs: list[Operand] = field(default_factory=list)
    outputs: list[Operand] = field(default_factory=list)
    streams: list[object] = field(default_factory=list)
    order: str = "speed"
    spared: int = 0
    eager: int = 0
    reuse: bool = False
    regst_num: int = 2
    in_flight: int = 1
    abreast: int = 1
    placed: dict[int, TensorMeta] = field(default_factory=dict)
    captured: tuple[LogicalGraph, tuple[str, ...]] | None = field(default=None, repr=False)

    def buffers(self) -> list[Buffer]:
        """Every buffer that an input, node or output names, in the order of their numbers."""
        named = [operand.buffer for operand in (*self.inputs, *self.outputs)]
        for node in self.nodes:
            named += [operand.buffer for _, operand in node.accesses()]
        return sorted(dict.fromkeys(named), key=lambda buffer: buffer.number)

    def devices(self) -> set[Device]:
        """Return the devices of the graph's operands."""
        return {o.meta.device for node in self.nodes for _, o in node.accesses()}

    def variables(self) -> list[Buffer]:
        """Buffers of memory that was there before and stays."""
        return [b for b in self.buffers() if b.kind is BufferKind.VARIABLE]

    def mutated(self) -> list[Buffer]:
        """Variables that a node writes."""
        written = {operand.buffer for node in self.nodes for operand in node.written()}
        return [b for b in self.variables() if b in written]

    def uses(self) -> Uses:
        """Return the use that the graph makes of memory that others may name, too."""
        changed = {b.held.id for b in self.mutated() if b.held is not None}
        held = {b.held.id for b in self.variables() if b.held is not None}
        return Uses(changed, held, bool(self.written_inputs()))

    def writes(self) -> dict[Buffer, int]:
        """Buffers of inputs and variables that nodes write, with how many writes there are."""
        counts: dict[Buffer, int] = {}
        for node in self.nodes:
            for operand in node.written():
                if operand.buffer.kind is not BufferKind.TEMPORARY:
                    counts[operand.buffer] = counts.get(operand.buffer, 0) + node.repeat
        return counts

    def written_inputs(self) -> list[int]:
        """The places of the call's inputs that nodes write."""
        writes = self.writes()
        return [k for k, o in enumerate(self.inputs) if o.buffer in writes and not o.buffer.crosses]

    def check(self, lowered: dict[object, object] | None = None) -> None:
        """CaptureError, naming the node and its line, unless the invariants hold.

        `lowered` remembers what operators gave; checks of one graph after another share it.
        """
        lowered = {} if lowered is None else lowered
        known = {b for b in self.buffers() if b.kind is not BufferKind.TEMPORARY}
        for node in self.nodes:
            fresh = () if node.into else node.outputs
            for access, operand in node.accesses():
                self._check_operand(node, access, operand, known, operand in fresh)
            self._check_metas(node, lowered)
            known |= {operand.buffer for operand in fresh}
        borders = [a.repeat != b.repeat for a, b in itertools.pairwise(self.nodes)]
        if len({node.repeat for node in self.nodes} - {1}) > 1 or sum(borders) > 2:
            raise CaptureError(f"{self.name}: nodes that are repeated do not stand together")
        for operand in self.outputs:
            if operand.buffer not in known:
                raise CaptureError(f"{self.name}: output {operand!r} is written by no node")
            beyond = operand.meta.numel and operand.end > operand.buffer.nbytes
            if operand.offset < 0 or beyond:
                raise CaptureError(
                    f"{self.name}: output {operand!r} ends at {operand.end} of "
                    f"{operand.buffer.nbytes} bytes"
                )

    def _check_operand(
        self, node: OpNode, access: str, operand: Operand, known: Iterable[Buffer], fresh: bool
    ) -> None:
        buffer = operand.buffer
        problem = ""
        end = operand.end + (node.repeat - 1) * operand.step
        outside = operand.begin < 0 or end > buffer.nbytes
        if (outside and operand.meta.numel) or operand.step < 0 or node.repeat < 1:
            problem = f"reaches from byte {operand.begin} to {end} of {buffer.nbytes}"
        elif fresh and (buffer.kind is not BufferKind.TEMPORARY or buffer in known):
            problem = "is made anew, but there already"
        elif not fresh and buffer not in known:
            problem = "is used before it is written"
        if problem:
            raise CaptureError(
                f"{self.name}: operand {operand!r} of node {node.number} {node.operator.name} "
                f"{problem}  {node.line}".rstrip()
            )

    def _check_metas(self, node: OpNode, lowered: dict[object, Any]) -> None:
        metas = tuple(operand.meta for operand in node.inputs)
        into = tuple(operand.meta for operand in node.outputs) if node.into else ()
        key = (node.operator, *into, *metas, *node.attrs)
        entry = lowered.get(key)
        if entry is None:
            try:
                invocation = interpreter.lowered(node.operator, (*into, *metas), node.attrs)
            except ArgumentError as error:
                raise CaptureError(
                    f"{self.name}: node {node.number}: {error}  {node.line}".rstrip()
                ) from error
            entry = lowered[key] = invocation.outputs
        output_metas = tuple(operand.meta for operand in node.outputs)
        if not node.operator.signature.unsized and tuple(entry) != output_metas:
            raise CaptureError(
                f"{self.name}: node {node.number} {node.operator.name} gives {list(entry)}, and "
                f"the graph says {list(output_metas)}  {node.line}".rstrip()
            )

    def shared(self) -> dict[Buffer, Buffer]:
        """For each buffer that lies in the memory of another: the first buffer that lies there.

        Nothing unless the graph permits it.
        """
        return shared(self.nodes, self.outputs) if self.reuse else {}

    def __repr__(self) -> str:
        text = graph_text(
            self.name, self.nodes, self.inputs, self.variables(), self.outputs, self.shared()
        )
        return printable(text, lines=True)
