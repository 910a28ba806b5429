"""Capture: run Python code once, under a lazy interpreter, and keep the instructions it issues.

No kernel runs.  Every operation is told to a `Capture` instead, and what is issued in its place is
an instruction that poisons the outputs: so whoever reads a value that is not there, at once or
after the capture, gets a CaptureError by the VM's one mechanism for failed instructions, with the
line that made the tensor.  A variable that the code changes in place is not touched.

A capture with `breaks` ends a segment where what is captured so far must run for code to go on
(`flowvm.graph.capture.breaks`): `graph` is then another one, that of the next segment, and so are
its Buffers.

`Capture` is what the interpreter tells of operations, and what builds the graph of it.  Which
buffer stands for what is `Buffers`'; which module and line a gradient belongs to, `Origins`'.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CodeType
from typing import Any

from flowvm.eager.call_entry import CallEntry
from flowvm.eager.global_calls import local_of
from flowvm.eager.interpreter import Operator, device_of
from flowvm.eager.live import Decisions, Frozen, Leaf, Live, plain_number
from flowvm.eager.modes import Recorder, current_recorder, find_user, recorder_mode
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor, new_tensor
from flowvm.errors import CaptureError
from flowvm.graph.capture.breaks import Breaks
from flowvm.graph.capture.buffers import Border, Buffers, storage_of
from flowvm.graph.capture.conditions import ReadSeed, ReadValue
from flowvm.graph.capture.origins import NOWHERE, Origins
from flowvm.graph.capture.poison import entry_instead
from flowvm.graph.capture.segments import Outcome, Segment
from flowvm.graph.capture.streams import stream_number
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.guards.regions import Mode, Region, Switch, reverting
from flowvm.meta.dtype import uint8
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.core import _cast
from flowvm.ops.random.generator import Kept, Reseeded, Restored, Seeded
from flowvm.vm.engine.engine import engine


class Capture:
    """The state of a capture; a Recorder of the interpreter."""

    def __init__(self, name: str) -> None:
        self.graph = LogicalGraph(name)
        self.guards = Decisions()
        self.guards.user = lambda: find_user(sys._getframe(1))
        # a generator, or what else is done to one, and where what it answers is put
        self.draws: list[tuple[object, list[object]]] = []
        self.states: dict[int, tuple[Kept, Tensor]] = {}  # by storage: what stands for a state
        self.drawn: list[tuple[Live, Live]] = []
        self.phase, self.scope = "forward", ""
        self.region = self.again = 0  # of the nodes to come: see OpNode
        self.repeat = 1  # likewise
        self.checkpoints: tuple[
            object, ...
        ] = ()  # modules, or their paths, that are to be forgotten
        self.forgotten: set[object] = set()  # those of them that were called
        self._numbered = 0  # regions and repetitions so far
        self._redrawn: Iterator[tuple[Live, Live]] | None = None
        self.backwards = False  # whether backward reached a leaf
        self.on_leaf: Callable[[Tensor], None] | None = None  # told of leaves that backward reaches
        self.on_step: Callable[[object], None] | None = None  # asked whether an optimizer may step
        self._origins = Origins()
        self._forward = NOWHERE  # in backward: the place of the call whose gradient is computed
        self.buffers = Buffers()
        self.breaks: Breaks | None = None
        self._border = Border()
        self._outputs: list[Tensor] = []  # outputs

    def input(self, tensor: Tensor, name: str) -> Operand:
        """Take `tensor` as an input: the argument of a call will stand in its place.

        CaptureError if another input has the same storage; `placeholder` has no such limit.
        """
        if self.buffers.of(tensor) is not None:
            raise CaptureError(f"{self.graph.name}: input {name!r} shares memory with another one")
        operand = self.buffers.input(tensor, name, len(self.graph.inputs))
        self.graph.inputs.append(operand)
        return operand

    def placeholder(self, meta: TensorMeta, name: str) -> Tensor:
        """Make an input that is no tensor yet, to run code on.  It has no value to read."""
        tensor = new_tensor(engine.storages.new(), meta)
        self.input(tensor, name)
        engine.records.issue(entry_instead(1, name), [tensor._ref])
        return tensor

    def draw(self, generator: object) -> tuple[Live, Live]:
        """Seed and call number of a random op, drawn anew for each replay."""
        self.drawn.append(self._draw(generator))
        return self.drawn[-1]

    def redo(self, move: object) -> tuple[Live, Live] | None:
        """Do something else to a generator in each replay, in the order of the code."""
        if isinstance(move, Kept):
            move.turn = sum(
                getattr(source, "generator", source) is move.generator
                for source, _ in self.draws
                if not isinstance(source, Kept)
            )
        elif self._redrawn is not None and not isinstance(move, Reseeded):
            return None  # what is drawn again is known
        return self._drawn_from(move)

    def keep_state(self, seed_state: Kept) -> Tensor:
        """Return a tensor without a value that stands for the state of a generator."""
        self.redo(seed_state)
        state = new_tensor(engine.storages.new(), TensorMeta.of((16,), uint8))
        engine.records.issue(entry_instead(1, "get_rng_state"), [state._ref])
        self.states[storage_of(state)] = seed_state, state
        return state

    def kept_state(self, state: Tensor) -> Kept | None:
        """Return the Kept for which `state` was made, None if that was not in this capture."""
        known = self.states.get(storage_of(state))
        return None if known is None else known[0]

    def seed_of(self, generator: object) -> Any:
        """Return the seed that a generator has where the code is."""
        return self._seed_before(generator, len(self.draws))

    def _seed_before(self, generator: object, place: int) -> Any:
        """The seed that a generator has in front of one of `draws`."""
        for k, (source, drawn) in reversed([*enumerate(self.draws[:place])]):
            if getattr(source, "generator", None) is not generator:
                continue
            if isinstance(source, Seeded):
                return source.seed
            if isinstance(source, Reseeded):
                return Leaf(drawn, (0, 0), self.guards, ("draw", k, 0), f"seed{k}")
            if isinstance(source, Restored):
                state = source.state
                if not isinstance(state, Kept):
                    return state[0]
                index = next(i for i, (one, _) in enumerate(self.draws) if one is state)
                return self._seed_before(state.generator, index)
        read = ReadSeed(generator)
        self.guards.append(read)
        return read.seed

    def _draw(self, generator: object) -> tuple[Live, Live]:
        if self._redrawn is not None:
            again = next(self._redrawn, None)
            if again is not None:
                return again
        return self._drawn_from(generator)

    def _drawn_from(self, generator: object) -> tuple[Live, Live]:
        drawn: list[Any] = [(0, 0)]
        n = len(self.draws)
        if isinstance(generator, Kept):
            generator.place = drawn
        self.draws.append((generator, drawn))
        seed = Leaf(drawn, (0, 0), self.guards, ("draw", n, 0), f"seed{n}")
        return seed, Leaf(drawn, (0, 1), self.guards, ("draw", n, 1), f"call{n}")

    def repeating(self, drawn: Sequence[tuple[Live, Live]] | None) -> reverting:
        """Record operations that were computed before; random ops draw the same numbers again."""
        before = self.again, self._redrawn

        def switch() -> None:
            self._numbered += 1
            self.again, self._redrawn = self._numbered, None if drawn is None else iter(drawn)

        def undo() -> None:
            self.again, self._redrawn = before

        return reverting(undo, switch)

    def forgetting(self, module: object, path: str) -> reverting:
        """Mark that this module runs inside; the values of a module in `checkpoints` are not
        kept.
        """
        before = self.region

        def switch() -> None:
            marks = [mark for mark in self.checkpoints if mark is module or mark == path]
            self.forgotten.update(marks)
            if marks and not before:
                self._numbered += 1
                self.region = self._numbered

        return reverting(partial(setattr, self, "region", before), switch)

    def name_variable(self, tensor: Tensor, name: str) -> None:
        """Call `tensor`, should the code reach it, by this name."""
        self.buffers.variable(tensor, name)

    def name_reached(self, tensor: Tensor, name: str) -> None:
        """Call `tensor` by this name if the code has reached it and nothing else names it."""
        buffer = self.buffers.of(tensor)
        if buffer is not None and buffer.kind is BufferKind.VARIABLE and not buffer.name:
            buffer.name = name

    def constant(self, tensor: Tensor) -> None:
        """Call `tensor`, should the code reach it, a constant: its values come from Python.

        The code makes it anew in each call: who changes it, or is given it, has a copy.
        """
        self.buffers.constant(tensor)

    def place(self, tensor: Tensor) -> Operand:
        """Return the operand of `tensor`: in a buffer of the graph, or a variable from now on."""
        if self.buffers.of(tensor) in self._border.makes:
            self._end_segment()
        if self.states and storage_of(tensor) in self.states:
            raise CaptureError(
                f"{self.graph.name}: the state of a generator is a value that only a call has: "
                f"give it to set_state in build, or keep it outside"
            )
        return self.buffers.place(tensor)

    def move(self, tensor: Tensor, step: int) -> None:
        """Move the contents of `tensor`'s memory by `step` bytes in each repetition from now on."""
        self.buffers.move(tensor, step)

    def is_repeated(self, tensor: Tensor) -> bool:
        """Return True if `tensor` is another one in each repetition."""
        return self.buffers.is_repeated(tensor)

    def output(self, tensor: Tensor) -> Operand:
        """Take `tensor` for an output, which the caller may change."""
        self._make_own(tensor, None, 0)
        operand = self.place(tensor)
        self._outputs.append(tensor)
        if local_of(tensor._meta) is not tensor._meta:
            self.graph.placed[len(self.graph.outputs)] = tensor._meta
        self.graph.outputs.append(operand)
        return operand

    def holds(self, tensor: Tensor) -> bool:
        """Return True if a captured operation made `tensor`."""
        return self.buffers.holds(tensor)

    # --- segments -----------------------------------------------------------------------------

    def decide(self, tensor: Tensor) -> object:
        """The value of a one-element tensor by which the framework itself must decide."""
        if self.breaks is None or self.repeat > 1:
            raise CaptureError(
                f"{self.graph.name}: code decides by the value of a tensor, and a capture that is "
                f"repeated, or may not be cut, computes no values: decide outside of the graph"
            )
        operand = self.place(tensor)
        segment, outcome = self.breaks.end(self, operand, f"the decision by {tensor._meta!r}")
        self._next_segment(segment, outcome)
        return outcome[-1]

    def size_of(self, out: Tensor, most: TensorMeta) -> Callable[[], TensorMeta]:
        """Return a function that returns the meta of a mut2 output when it is asked for."""
        ref = out._ref

        def ask() -> TensorMeta:
            if current_recorder() is not self:
                engine.waits.wait_for([ref])  # it never ran, and this says so
            if ref not in self.buffers.rows:
                self._end_segment()
            return most.with_shape((self.buffers.rows[ref], *most.shape[1:]))

        return ask

    def reachable(self) -> set[Buffer]:
        """Buffers, made by operations, that code can still name: by tensors, views or autograd."""
        self._origins.learn()  # which lets go of tensors
        return self.buffers.reachable()

    def _end_segment(self) -> None:
        assert self.breaks is not None
        last = [node for node in self.graph.nodes if node.operator.signature.unsized][-1]
        segment, outcome = self.breaks.end(self, None, f"{last.operator.name} {last.line}")
        self._next_segment(segment, outcome)

    def _next_segment(self, segment: Segment, outcome: Outcome) -> None:
        """Go on with a graph whose inputs are the inputs of the call and the values that cross."""
        known = zip(segment.asks, outcome, strict=True)
        rows = {what: n for (kind, what), n in known if kind == "rows"}
        self.graph = LogicalGraph(self.graph.name, placed=self.graph.placed)
        self._border.clear()
        self.graph.inputs = self.buffers.go_on(segment.alive, rows)
        self.graph.outputs = [self.place(t) for t in self._outputs]

    def is_used(self, tensor: Tensor) -> bool:
        """Return True if a captured operation reads or changes `tensor`'s memory."""
        return storage_of(tensor) in self.buffers.used

    def made_at(self, tensor: Tensor) -> str:
        """The user's file and line that made a captured tensor, or ""."""
        buffer = self.buffers.of(tensor)
        nodes = [n for n in self.graph.nodes if any(o.buffer is buffer for o in n.outputs)]
        return nodes[0].line if nodes else ""

    def read(self, tensor: Tensor) -> None:
        """Check that a value may be read: a capture must not change it, and it must stay."""
        buffer = self.buffers.of(tensor)
        owned = storage_of(tensor) in self.buffers.owned
        if buffer is not None and buffer.kind is not BufferKind.VARIABLE and not owned:
            return  # it has none, and who waits for it is told
        if storage_of(tensor) in self.buffers.changed:
            raise CaptureError(
                f"{self.graph.name}: code in build reads a tensor that it has changed in place: "
                f"while a graph is captured nothing is computed, so the new value is not known.  "
                f"Compute with the tensor, or read it after the call"
            )
        self.guards.append(ReadValue(tensor))

    # --- the Recorder -------------------------------------------------------------------------

    def record(
        self,
        op: Operator,
        entry: CallEntry,
        outputs: tuple[Tensor, ...],
        inputs: tuple[Tensor, ...],
        attrs: Attrs,
        scalars: tuple[object, ...],
        into: bool = False,
    ) -> int:
        """Append a node; the entry to issue in the operation's place."""
        if op.signature.unsized and self.breaks is None:
            raise CaptureError(
                f"{op.name}: the shape of its result depends on values, which a graph has only "
                f"when it runs; use a form of fixed shape (flow.where, masked_fill, a mask that "
                f"multiplies), or do this part outside"
            )
        if op.signature.unsized and self.repeat > 1:
            raise CaptureError(
                f"{op.name}: the shape of its result depends on values, and with gradient "
                f"accumulation all micro-batches run without a break; use a form of fixed shape "
                f"(flow.where, masked_fill, a mask that multiplies)"
            )
        attrs = local_of(tuple(map(plain_number, attrs)))
        if self._border.is_in_front_of(op, inputs, outputs if into else (), self.buffers):
            self._end_segment()
        code, last = find_user(sys._getframe(2))
        changed = [*(outputs if into else ())]
        changed += op.signature.written(inputs)
        for t in changed:
            self._make_own(t, code, last)
        read = tuple(self.place(t) for t in inputs)
        if into:
            written = tuple(self.place(t) for t in outputs)
        else:
            metas = zip(outputs, entry.outputs, strict=False)
            written = tuple(self.buffers.fresh(t, local_of(meta)) for t, meta in metas)
        self.buffers.use(inputs, changed)
        if op.signature.unsized:
            self._border.add(read, written)
        for t in (*outputs, *inputs) if into or op.signature.writes else ():
            if t._node is not None:  # what is written gets another node
                self._origins.learn()
                break
        forward = self._forward if self.phase == "backward" else NOWHERE
        where = self.scope, (code, last) if forward[0] is None else forward
        self._origins.note((*outputs, *(inputs if op.signature.writes else ())), where)
        self._append(op, read, written, attrs, scalars, into, code, last)
        return entry_instead(0 if into else len(outputs), op.name)

    def _make_own(self, tensor: Tensor, code: CodeType | None, last: int) -> None:
        """If `tensor` is a constant, let a copy stand for it: it is about to be changed."""
        copied = self.buffers.copied(tensor)
        if copied is not None:
            source, copy = copied
            self._append(_cast, (source,), (copy,), (source.meta.dtype,), (), False, code, last)

    def _append(
        self, op: Operator, read: tuple[Operand, ...], written: tuple[Operand, ...],
        attrs: Attrs, scalars: tuple[object, ...], into: bool,
        code: CodeType | None, last: int,
    ) -> None:  # fmt: skip
        device = device_of(tuple(o.meta for o in (*written, *read)), attrs)
        forward = self._forward if self.phase == "backward" else NOWHERE
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
            forward,
            stream_number(self.graph, device, self.repeat),
            self.repeat,
            region=self.region if self.phase == "forward" else 0,
            again=self.again,
        )
        self.graph.nodes.append(node)

    def enter(self, node: Node) -> None:
        """Attribute the next operations to the module in which `node` was made.

        A node of no operation of its own (a view) leaves the module of the node in front.
        """
        self.scope, self._forward = self._origins.of(node) or (self.scope, NOWHERE)

    def reach(self, leaf: Tensor) -> None:
        """Backward is about to add to the `.grad` of `leaf`."""
        self.backwards = True
        if self.on_leaf is not None:
            self.on_leaf(leaf)

    def drop_unasked(self) -> None:
        """Drop the last instructions that were to find a shape, for which nobody asked."""
        self.graph.nodes = [n for n in self.graph.nodes if not n.operator.signature.unsized]

    def stepping(self, optimizer: object) -> reverting:
        """One step of an optimizer is recorded inside.  CaptureError if nobody takes it."""
        if self.on_step is None:
            raise CaptureError(
                f"{self.graph.name}: this capture does not step optimizers, and its code calls "
                f"{type(optimizer).__name__}.step(): write an nn.Graph, or use flow.compile"
            )
        self.on_step(optimizer)
        return reverting(partial(setattr, self, "phase", self.phase), self._step)

    def _step(self) -> None:
        self.phase = "optimizer"


class capturing(Region):  # noqa: N801 - read as a part of the with statement
    """Capture the work of this thread inside.  CaptureError if it is captured already."""

    def __init__(self, name: str, inputs: Sequence[tuple[Tensor, str]] = ()) -> None:
        if current_recorder() is not None:
            raise CaptureError(
                f"{name}: a graph cannot be captured while another one is; call the inner one's "
                f"modules, or use its outputs as inputs"
            )
        self.capture = Capture(name)
        for tensor, called in inputs:
            self.capture.input(tensor, called)

    def _mode(self) -> Mode[Recorder | None]:
        return recorder_mode()

    def _switch(self) -> Switch:
        return recorder_mode(), self.capture, self.capture
