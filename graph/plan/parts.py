"""The parts of a Plan, for the modules that make its words and describe it: see `plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from flowvm.eager.declaration import Invocation
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, Operand, OpNode
from flowvm.graph.memory.offsets import Block, MemoryPlan
from flowvm.graph.plan.actors import ActorDesc
from flowvm.meta.arrays import Array


@dataclass(eq=False)
class RegstDesc:
    """The position of a buffer during a launch: `operand` of the launch, or `block` in its chunk.

    Repetitions that are in flight together have `copies` of it, `apart` bytes from one to the next.
    """

    buffer: Buffer
    operand: int = -1
    block: Block | None = None
    copies: int = 1
    apart: int = 0

    @property
    def text(self) -> str:
        """The position in words, such as chunk+128 or operand 3."""
        if self.block is None:
            return f"operand {self.operand}"
        return f"chunk+{self.block.offset}" + (f" x{self.copies}" if self.copies > 1 else "")


@dataclass(eq=False)
class TaskDesc:
    """A node with the code that runs it; `scratch` is its part of the chunk.

    On a device it may `report` bad data, and have steps before each launch, `begins`.
    """

    number: int
    node: OpNode
    invocation: Invocation
    registers: list[tuple[str, Operand, RegstDesc]]
    scratch: Block | None
    reports: bool = False
    begins: tuple[Any, ...] = ()


class PlanParts(Protocol):
    """A Plan, as its makers see it: they find the fields that are set already."""

    name: str
    graph: LogicalGraph
    tasks: list[TaskDesc]
    registers: dict[Buffer, RegstDesc]
    own_outputs: list[Buffer]
    actors: list[ActorDesc]
    branches: list[ActorDesc]
    stream: int
    memory: MemoryPlan
    chunk_bytes: int
    words: Array
    references: list[object]
    live_kinds: list[str]
