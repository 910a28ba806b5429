"""The parts of a LogicalGraph: nodes, their operands, and the buffers that operands are in."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from flowvm.eager.interpreter import Operator
from flowvm.meta.meta import Attrs, TensorMeta, reach
from flowvm.vm.callers.lines import shown


class BufferKind(enum.Enum):
    """The owner of a buffer's memory."""

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
        """Return the operand of the same bytes after its buffer's contents have moved to `to`."""
        return Operand(to.buffer, to.offset + self.offset, self.meta, to.step + self.step)

    @property
    def begin(self) -> int:
        """Bytes from the start of the buffer to its lowest element, which is not the first where a
        stride is negative.
        """
        lowest, _ = reach(self.meta.shape, self.meta.stride)
        return self.offset + lowest * self.meta.dtype.itemsize

    @property
    def end(self) -> int:
        """Bytes from the start of the buffer to behind the highest element."""
        if min(self.meta.stride, default=0) >= 0:
            return self.offset + self.meta.span
        _, highest = reach(self.meta.shape, self.meta.stride)
        return self.offset + (highest + 1) * self.meta.dtype.itemsize

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
    attrs: Attrs = ()
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
        for name, operand in zip(self.operator.signature.outputs, self.outputs, strict=True):
            yield ("mut2" if name in self.operator.signature.unsized else "mut"), operand
        for name, operand in zip(self.operator.signature.inputs, self.inputs, strict=True):
            yield ("mut" if name in self.operator.signature.writes else "const"), operand

    def written(self) -> list[Operand]:
        """Operands that it writes."""
        return [operand for access, operand in self.accesses() if access != "const"]

    def read(self) -> list[Operand]:
        """Return the operands whose contents the node needs: const and updated ones."""
        return list(self.inputs)

    @property
    def line(self) -> str:
        """The user's file and line, "" where flowvm itself issued it."""
        if self.code is None:
            return ""
        positions = list(self.code.co_positions())
        index = self.last // 2
        number = positions[index][0] if index < len(positions) else None
        return f"{shown(self.code.co_filename)}:{number or self.code.co_firstlineno}"

    def __repr__(self) -> str:
        return f"<OpNode {self.number} {self.operator.name}>"


def is_pure(node: OpNode) -> bool:
    """Return True if a node only makes new values: it changes nothing that was there before."""
    return (
        not node.into and not node.operator.signature.writes and not node.operator.signature.unsized
    )
