"""LogicalGraph: what a capture yields and what passes rewrite.

Nodes are instructions in program order, each with its operands; operands are places in buffers.  A
buffer is a storage: of an input, of a variable (a parameter, a module's buffer, an optimizer's
state, any eager tensor that the code reached), or temporary.  Order between nodes is that of the
VM: a const access waits for the writer in front, a mut access for everything in front.  So a graph
means the same whatever order its nodes are run in, as long as conflicting accesses keep theirs.

Invariants (`check` holds a graph against them):
- a temporary is written before it is read, whole, by the node that makes it;
- operands lie inside their buffers, and have the metas that the operator gives for them;
- inputs are never written; a variable's memory outlives the graph.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from flowvm.device import Device
from flowvm.eager import interpreter
from flowvm.eager.interpreter import Operator
from flowvm.errors import CaptureError
from flowvm.meta import TensorMeta

__all__ = ["Buffer", "BufferKind", "LogicalGraph", "OpNode", "Operand"]


class BufferKind(enum.Enum):
    """Whose memory a buffer is."""

    INPUT = "input"
    VARIABLE = "variable"
    TEMPORARY = "temporary"


@dataclass(eq=False)
class Buffer:
    """A storage.

    `held` keeps a variable's memory alive: the tensor by which it was first reached.  `name` is
    what the user calls it: "layer.weight", "input 0"; "" where there is no such name.
    `crosses`: an input that an earlier segment made; it may be written.
    """

    number: int
    kind: BufferKind
    nbytes: int
    name: str = ""
    held: Any = None
    crosses: bool = False

    def __repr__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True)
class Operand:
    """A place in a buffer, as a node or the user sees it."""

    buffer: Buffer
    offset: int  # bytes
    meta: TensorMeta
    step: int = 0  # bytes from one repetition of the node to the next: unpack and pack

    def moved(self, to: Operand) -> Operand:
        """The same place when its buffer's contents are found at `to`."""
        return Operand(to.buffer, to.offset + self.offset, self.meta, to.step + self.step)

    @property
    def end(self) -> int:
        """Bytes from the start of the buffer to behind the last element."""
        return self.offset + self.meta.span

    def __repr__(self) -> str:
        return f"{self.buffer!r}" + (f"+{self.offset}" if self.offset else "")


@dataclass(eq=False)
class OpNode:
    """One instruction: an operator on operands.

    attrs    part of what is compiled; scalars: numbers, some of them live
    into     the outputs are places that existed before (an in-place or out= form)
    phase    "forward", "backward" or "optimizer"; scope: the module's path
    code     with `last`: the user's expression, as the VM keeps it
    forward  the same two of the forward call whose gradient it is a part of
    stream   the VM's stream that it was issued on
    repeat   how many times a launch runs it: nodes of one `repeat` above 1 stand together
    region   a number for each call whose activations are not to be kept, of its forward nodes; 0
             for others (flowvm.graph.passes.checkpointing)
    again    a number for each computation that is made again in backward, of its nodes; 0 for
             others.  Such a node is no common subexpression of what was computed the first time
    """

    number: int
    operator: Operator
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    attrs: tuple[Any, ...] = ()
    scalars: tuple[Any, ...] = ()
    into: bool = False
    phase: str = "forward"
    scope: str = ""
    code: CodeType | None = None
    last: int = 0
    forward: tuple[CodeType | None, int] = (None, 0)
    stream: int = 0
    repeat: int = 1
    region: int = 0
    again: int = 0

    def accesses(self) -> Iterator[tuple[str, Operand]]:
        """(access, operand) of each operand, outputs first; access is const, mut or mut2."""
        for name, operand in zip(self.operator.outputs, self.outputs, strict=True):
            yield ("mut2" if name in self.operator.unsized else "mut"), operand
        for name, operand in zip(self.operator.inputs, self.inputs, strict=True):
            yield ("mut" if name in self.operator.writes else "const"), operand

    def written(self) -> list[Operand]:
        """Operands that it writes."""
        return [operand for access, operand in self.accesses() if access != "const"]

    def read(self) -> list[Operand]:
        """Operands whose contents it needs: const ones and those updated in place."""
        return list(self.inputs)

    @property
    def line(self) -> str:
        """The user's file and line, "" where flowvm itself issued it."""
        if self.code is None:
            return ""
        positions = list(self.code.co_positions())
        index = self.last // 2
        number = positions[index][0] if index < len(positions) else None
        return f"{self.code.co_filename}:{number or self.code.co_firstlineno}"

    def __repr__(self) -> str:
        return f"<OpNode {self.number} {self.operator.name}>"


@dataclass(eq=False)
class LogicalGraph:
    """Nodes in program order, and what goes in and out.

    inputs    one operand for each tensor that the graph is called with
    outputs   one for each tensor that a call gives
    streams   those of its nodes, kept alive
    regst_num launches that may be in flight at one time, if there are several
    order     what its nodes may be put in another order for: see flowvm.graph.passes.order
    eager     bytes that eager code has allocated at its peak, 0 where nobody has asked
    reuse     results may lie where a dying input lay: see flowvm.graph.memory.inplace
    captured  of an optimized graph: what it was made from, and the passes that were left out
    structure what the outputs' tree looks like is kept by whoever made the graph
    """

    name: str
    nodes: list[OpNode] = field(default_factory=list)
    inputs: list[Operand] = field(default_factory=list)
    outputs: list[Operand] = field(default_factory=list)
    streams: list[Any] = field(default_factory=list)
    order: str = "speed"
    eager: int = 0
    reuse: bool = False
    regst_num: int = 2
    captured: tuple[LogicalGraph, tuple[str, ...]] | None = field(default=None, repr=False)

    def buffers(self) -> list[Buffer]:
        """Every buffer that an input, node or output names, in the order of their numbers."""
        named = [operand.buffer for operand in (*self.inputs, *self.outputs)]
        for node in self.nodes:
            named += [operand.buffer for _, operand in node.accesses()]
        return sorted(dict.fromkeys(named), key=lambda buffer: buffer.number)

    def devices(self) -> set[Device]:
        """Where its operands are."""
        return {o.meta.device for node in self.nodes for _, o in node.accesses()}

    def variables(self) -> list[Buffer]:
        """Buffers of memory that was there before and stays."""
        return [b for b in self.buffers() if b.kind is BufferKind.VARIABLE]

    def mutated(self) -> list[Buffer]:
        """Variables that a node writes."""
        written = {operand.buffer for node in self.nodes for operand in node.written()}
        return [b for b in self.variables() if b in written]

    def changed_storages(self) -> frozenset[int]:
        """The storages of the variables that nodes write.

        To passes, an input is memory that nobody changes.  A call whose inputs are in one of these
        needs a Plan in which all is done in the order of the code.
        """
        return frozenset(b.held.id for b in self.mutated() if b.held is not None)

    def check(self, lowered: dict[Any, Any] | None = None) -> None:
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
            if operand.offset < 0 or operand.end > operand.buffer.nbytes:
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
        if operand.offset < 0 or operand.step < 0 or node.repeat < 1 or end > buffer.nbytes:
            problem = f"reaches from byte {operand.offset} to {end} of {buffer.nbytes}"
        elif fresh and (buffer.kind is not BufferKind.TEMPORARY or buffer in known):
            problem = "is made anew, but there already"
        elif not fresh and buffer not in known:
            problem = "is used before it is written"
        elif access != "const" and buffer.kind is BufferKind.INPUT and not buffer.crosses:
            problem = "is an input of the graph, which may not be written"
        if problem:
            raise CaptureError(
                f"{self.name}: operand {operand!r} of node {node.number} {node.operator.name} "
                f"{problem}  {node.line}".rstrip()
            )

    def _check_metas(self, node: OpNode, lowered: dict[Any, Any]) -> None:
        metas = tuple(operand.meta for operand in node.inputs)
        into = tuple(operand.meta for operand in node.outputs) if node.into else ()
        key = (node.operator, *into, *metas, *node.attrs)
        said = lowered.get(key)
        if said is None:
            made = interpreter.lowered(node.operator, (*into, *metas), node.attrs)
            said = lowered[key] = made.outputs
        found = tuple(operand.meta for operand in node.outputs)
        if not node.operator.unsized and tuple(said) != found:
            raise CaptureError(
                f"{self.name}: node {node.number} {node.operator.name} gives {list(said)}, and the "
                f"graph says {list(found)}  {node.line}".rstrip()
            )

    def __repr__(self) -> str:
        from flowvm.graph.logical.printing import graph_text

        return graph_text(self)
