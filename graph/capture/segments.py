"""Segments: a graph whose continuation depends on values, so that it cannot be one Plan.

How many rows `nonzero` finds, or whether a gradient is finite, is known when it has run.  A capture
that needs it ends a *segment* there (`flowvm.graph.capture.breaks`).  A replay runs the segment,
waits for its *outcome* (sizes of mut2 outputs, numbers) and follows the segment that this outcome
leads to; for one that was not there yet, the code is captured again from the start, without running
again what ran.

Invariants:
- what crosses the end of a segment is every tensor that Python can still reach there, so whatever
  follows, for any outcome, finds it among the segment's results;
- mut2 instructions stand behind their segment's Plan and are issued one by one: their outputs get
  memory of the size found.  Nothing in the segment writes what they read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flowvm.eager.autocast import autocasting
from flowvm.eager.live import Condition, now
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor, new_tensor
from flowvm.graph.capture.conditions import Conditions
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import BufferKind, Operand, OpNode
from flowvm.graph.plan.plan import Plan
from flowvm.vm.machine.words import OPERAND

MAX_FOLLOWING = 16  # outcomes of one segment; the one that did not come for longest goes first


@dataclass(eq=False)
class Segment(Conditions):
    """One Plan, the instructions issued behind it, and the questions that choose the next segment.

    sources    where each of the Plan's inputs is: an input of the call, or a value that crosses
    results    the numbers under which the Plan's outputs cross
    border     mut2 instructions
    asks       the outcome: ("rows", number of a value), or ("value", operand)
    alive      numbers of the values that what follows may use
    captured   the graph before any pass, which a capture of the same code is compared with
    echoes     what earlier segments drew, and where this one's capture looks for it
    end        of a last segment: what runs it; it has `run(inputs)`
    """

    name: str
    captured: LogicalGraph
    sources: list[Source]
    results: list[int] = field(default_factory=list)
    border: list[OpNode] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    plan: Plan | None = None
    guards: list[Condition] = field(default_factory=list)
    draws: list[tuple[Any, list[Any]]] = field(default_factory=list)
    echoes: list[tuple[list[object], list[object]]] = field(default_factory=list)
    watched: list[object] = field(default_factory=list)
    last_check: list[object] = field(default_factory=lambda: [None])
    why: str = ""
    end: Any = None
    following: OrderedDict[Outcome, list[Segment]] = field(default_factory=OrderedDict)

    def follow(self, outcome: Outcome) -> Segment | None:
        """The segment for this outcome, if there is one that holds."""
        for segment in self.following.get(outcome, ()):
            if segment.holds():
                with suppress(KeyError):  # another thread has put others in its place
                    self.following.move_to_end(outcome)
                return segment
        return None

    def lead_to(self, outcome: Outcome, segment: Segment) -> None:
        """Follow `segment` after this outcome from now on."""
        same = self.following.setdefault(outcome, [])
        same.insert(0, segment)
        del same[MAX_FOLLOWING:]
        self.following.move_to_end(outcome)
        if len(self.following) > MAX_FOLLOWING:
            self.following.popitem(last=False)

    def tree(self) -> list[Segment]:
        """This segment and all that may follow it."""
        segments = [self]
        for same in self.following.values():
            for segment in same:
                segments += segment.tree()
        return segments


Source = tuple[str, int]  # ("input", which) or ("value", number)
Ask = tuple[str, Any]
Outcome = tuple[Any, ...]


class Run:
    """One call on its way through the segments: its inputs, and the values that cross."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.inputs = inputs
        self.values: dict[int, Tensor] = {}

    def arguments(self, segment: Segment) -> list[Tensor]:
        """Return the arguments with which the segment's Plan is launched."""
        return [
            self.inputs[n] if kind == "input" else self.values[n] for kind, n in segment.sources
        ]

    def enter(self, segment: Segment) -> None:
        """Give a segment the random draws of the segments before."""
        for drawn, echo in segment.echoes:
            echo[0] = drawn[0]

    def through(self, segment: Segment) -> Outcome:
        """Run a segment that others follow; waits for its outcome."""
        self.enter(segment)
        for generator, drawn in segment.draws:
            drawn[0] = generator.draw_now()
        if segment.plan is not None:
            launch = segment.plan.launch(self.arguments(segment))
            self.values.update(zip(segment.results, launch, strict=True))
        with recording(False), autocasting(None):
            for node in segment.border:
                self._issue(node, segment)
        outcome = tuple(self._answer(ask, segment) for ask in segment.asks)
        self.values = {n: t for n, t in self.values.items() if n in segment.alive}
        return outcome

    def _issue(self, node: OpNode, segment: Segment) -> None:
        tensors = [self._tensor(operand, segment) for operand in node.inputs]
        result = node.operator.call(*tensors, *node.attrs, *map(now, node.scalars))
        results = result if isinstance(result, tuple) else (result,)
        for operand, tensor in zip(node.outputs, results, strict=True):
            self.values[operand.buffer.number] = tensor

    def _answer(self, ask: Ask, segment: Segment) -> object:
        kind, what = ask
        if kind == "rows":
            return self.values[what]._meta.shape[0]
        return self._tensor(what, segment).item()

    def _tensor(self, operand: Operand, segment: Segment) -> Tensor:
        buffer = operand.buffer
        offset = operand.offset << OPERAND.STORAGE_BITS
        if buffer.kind is BufferKind.VARIABLE:
            return new_tensor(buffer.held.id + offset, operand.meta, buffer.held)
        base = self.values.get(buffer.number)
        if base is None:
            place = next(i for i, o in enumerate(segment.captured.inputs) if o.buffer is buffer)
            base = self.arguments(segment)[place]
        return new_tensor(base._ref + offset, operand.meta, base.storage())
