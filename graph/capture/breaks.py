"""Breaks: where a capture ends a segment, because code needs a value to go on.

What is captured so far is compiled and really run, the outcome is waited for, and capture goes on
knowing it, with a graph whose inputs are those of the call and what crosses.  A capture of code
whose first segments have run (`path`) passes these: it compares, and runs nothing.

Invariants:
- a segment that is captured again is the one that ran, node by node, or a CaptureError says where
  it is not;
- a capture that fails leaves variables and generators as they were, whatever of it had run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from flowvm.eager.live import Decisions, Live
from flowvm.eager.modes import recording_to
from flowvm.eager.tensor import Storage, new_tensor
from flowvm.eager.values import memory_of
from flowvm.errors import CaptureError
from flowvm.graph.capture.buffers import Buffers
from flowvm.graph.capture.segments import Ask, Outcome, Run, Segment, Source
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.graph.plan.plan import Plan, compile_plan
from flowvm.guards.regions import Switched
from flowvm.meta.dtype import uint8
from flowvm.meta.meta import TensorMeta

T = TypeVar("T")


class Captured(Protocol):
    """A capture (`flowvm.graph.capture.capture`), as far as its segments are ended."""

    graph: LogicalGraph
    guards: Decisions
    draws: list[Any]
    buffers: Buffers

    def reachable(self) -> set[Buffer]:
        """The buffers that Python can still reach."""


class Breaks(Switched):
    """The means by which a capture ends segments: a call's inputs, passes, segments that ran.

    `path` has the segments that ran, each with its outcome; the segments that the capture adds
    follow, and `last`.  `watchers` has the things besides decisions by numbers that must stay
    as they are: each has a `holds()`.
    """

    def __init__(
        self,
        run: Run,
        optimize: Callable[[LogicalGraph], LogicalGraph],
        path: Sequence[tuple[Segment, Outcome]] = (),
    ) -> None:
        self.run, self.optimize = run, optimize
        self.path = list(path)
        self.last: Segment | None = None
        self.watchers: Sequence[object] = ()
        self.passed = 0  # of the path, by this capture
        self._lengths = {"guards": 0, "draws": 0, "watchers": 0}
        self._echoes: list[tuple[list[object], list[object]]] = []
        self._backs: list[Callable[[], object]] = []
        self._succeeded = False

    def end(self, capture: Captured, number: Operand | None, why: str) -> tuple[Segment, Outcome]:
        """End a segment: run what was captured since the last one, unless it ran.

        `number` is the operand of a number that is to be known.
        """
        segment = self._close(capture, number, why)
        if self.passed < len(self.path):
            known, outcome = self.path[self.passed]
            _compare(known, segment)
            for (_, drawn), (_, echo) in zip(known.draws, segment.draws, strict=True):
                self._echoes.append((drawn, echo))
            segment = known
        else:
            with recording_to(None):
                if segment.captured.nodes:
                    segment.plan = compile_plan(self.optimize(segment.captured))
                changed = self._remember(segment)
                outcome = self.run.through(segment)
            for storage, version in changed:  # counted already, as the operations were captured
                storage.version = version
            if self.path:
                self.path[-1][0].lead_to(self.path[-1][1], segment)
            self.path.append((segment, outcome))
        self.passed += 1
        return segment, outcome

    def finish(self, capture: Captured) -> tuple[Segment, Plan]:
        """Compile the last segment; its outputs are the user's.  The caller adds its function.

        `guards`, `draws` and seen values are the ones since the segment before, for the capture
        too.
        """
        segment = Segment(capture.graph.name, capture.graph, _used_inputs(capture))
        self._note(segment, capture)
        capture.guards.open = False
        capture.guards, capture.draws = Decisions(segment.guards), segment.draws
        plan = segment.plan = compile_plan(self.optimize(segment.captured))
        before, outcome = self.path[-1]
        before.lead_to(outcome, segment)
        self.last = segment
        return segment, plan

    def _on_exit(self, kind: object = None, *error: object) -> None:
        self._succeeded = kind is None

    def _undo(self) -> None:
        if not self._succeeded:
            self.undo()

    def undo(self) -> None:
        """Undo the changes by the segments that this capture ran."""
        for put_back in reversed(self._backs):
            put_back()
        self._backs.clear()

    # --- one segment --------------------------------------------------------------------------

    def _note(self, segment: Segment, capture: Captured) -> None:
        segment.guards = self._new("guards", capture.guards)
        segment.draws = self._new("draws", capture.draws)
        segment.echoes = list(self._echoes)
        segment.watched = self._new("watchers", self.watchers)

    def _new(self, what: str, of: Sequence[T]) -> list[T]:
        """Return the items that were added to a list since the last segment."""
        before, self._lengths[what] = self._lengths[what], len(of)
        return list(of[before:])

    def _close(self, capture: Captured, number: Operand | None, why: str) -> Segment:
        graph = capture.graph
        border = [node for node in graph.nodes if node.operator.signature.unsized]
        nodes = [node for node in graph.nodes if not node.operator.signature.unsized]
        graph.nodes = [replace(node, number=i) for i, node in enumerate(nodes)]
        alive = capture.reachable()
        unsized = [o.buffer for access, o in _accesses(border) if access == "mut2"]
        needed = {o.buffer for access, o in _accesses(border) if access == "const"}
        asks: list[Ask] = [("rows", b.number) for b in unsized if b in alive]
        if number is not None:
            needed.add(number.buffer)
            asks.append(("value", number))
        buffers = {o.buffer for node in nodes if not node.into for o in node.outputs}
        crossing = [
            b for b in capture.buffers.whole if b in buffers and (b in alive or b in needed)
        ]
        graph.outputs = [Operand(b, 0, capture.buffers.whole[b]) for b in crossing]
        segment = Segment(graph.name, graph, _used_inputs(capture, border, number), why=why)
        segment.results = [b.number for b in crossing]
        segment.border, segment.asks = border, asks
        segment.alive = {b.number for b in alive}
        self._note(segment, capture)
        return segment

    def _remember(self, segment: Segment) -> list[tuple[Storage, int]]:
        """Keep copies of the memory that the segment changes; return its storages, with
        versions.
        """
        mutated = segment.captured.mutated()
        written = [self.run.arguments(segment)[k] for k in segment.captured.written_inputs()]
        memories = [
            new_tensor(b.held.id, TensorMeta.of((b.nbytes,), uint8), b.held) for b in mutated
        ]
        for memory in (*memories, *(t.detach() for t in written)):
            self._backs.append(functools.partial(memory.copy_, memory.clone()))
        moved = [getattr(source, "generator", source) for source, _ in segment.draws]
        for generator in dict.fromkeys(moved):
            self._backs.append(functools.partial(generator.set_state, generator.get_state()))
        return [(buffer.held, buffer.held.version) for buffer in mutated]


def _accesses(nodes: Sequence[OpNode]) -> list[tuple[str, Operand]]:
    return [pair for node in nodes for pair in node.accesses()]


def _used_inputs(
    capture: Captured, border: Sequence[OpNode] = (), number: Operand | None = None
) -> list[Source]:
    """Leave inputs that nobody reads out of the capture's graph; where the others come from."""
    graph = capture.graph
    used = {operand.buffer for _, operand in _accesses([*graph.nodes, *border])}
    used |= {operand.buffer for operand in graph.outputs}
    if number is not None:
        used.add(number.buffer)
    graph.inputs = [operand for operand in graph.inputs if operand.buffer in used]
    return [capture.buffers.sources[operand.buffer] for operand in graph.inputs]


def _compare(known: Segment, again: Segment) -> None:
    """CaptureError unless a segment was captured again as it ran."""
    old, new = known.captured, again.captured
    for one, other in zip((*old.nodes, *known.border), (*new.nodes, *again.border), strict=False):
        if _form(one) != _form(other) or not _same_variables(one, other):
            raise CaptureError(
                f"{known.name}: the graph runs in segments, and to capture what follows the first "
                f"ones its code ran again; it issued {other.operator.name} {other.line} where "
                f"{one.operator.name} {one.line} had run.  What comes before {known.why} must "
                f"not depend on anything that changes between calls"
            )
    same = (
        len(old.nodes) == len(new.nodes)
        and len(known.border) == len(again.border)
        and [g for g, _ in known.draws] == [g for g, _ in again.draws]
        and [a[0] for a in known.asks] == [a[0] for a in again.asks]
    )
    if not same:
        raise CaptureError(
            f"{known.name}: the graph runs in segments, and to capture what follows the first ones "
            f"its code ran again; it issued {len(new.nodes)} operations before {again.why}, and "
            f"{len(old.nodes)} had run.  They must not depend on anything that changes between "
            f"calls"
        )


def _form(node: OpNode) -> tuple[object, ...]:
    """Return the features that two captures of one operation share."""

    def place(operand: Operand) -> tuple[object, ...]:
        return operand.buffer.number, operand.buffer.kind, operand.offset, operand.meta

    return (
        node.operator,
        *map(place, (*node.inputs, *node.outputs)),
        node.attrs,
        tuple("live" if isinstance(s, Live) else (type(s), repr(s)) for s in node.scalars),
        node.into,
        node.phase,
    )


def _same_variables(one: OpNode, other: OpNode) -> bool:
    """Return True if two nodes of one form reach the same variables.

    Constants that the code made anew with the same contents count as the same.
    """
    for (access, a), (_, b) in zip(one.accesses(), other.accesses(), strict=True):
        old, new = a.buffer, b.buffer
        if old.kind is not BufferKind.VARIABLE or old.held.id == new.held.id:
            continue
        if access != "const" or _contents(old) != _contents(new):
            return False
    return True


def _contents(variable: Buffer) -> bytes:
    meta = TensorMeta.of((variable.nbytes,), uint8)
    with recording_to(None):
        return memory_of(new_tensor(variable.held.id, meta, variable.held)).tobytes()
