"""Capture: run Python code once, under a lazy interpreter, and keep the instructions it issues.

No kernel runs.  Every operation is told to a `Capture` instead, and what is issued in its place is
an instruction that poisons the outputs: so whoever reads a value that is not there, at once or
after the capture, gets a CaptureError by the VM's one mechanism for failed instructions, with the
line that made the tensor.  A variable that the code changes in place is not touched.

The tensors that operations make are kept until the capture ends, so a storage's id means one buffer
throughout.

A capture with `breaks` ends a segment where what is captured so far must run for code to go on
(`flowvm.graph.capture.breaks`): `graph` is then another one, that of the next segment, and so are
its Buffers.

Long because all that is noted of an operation is noted by one class, in one pass.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from sys import getrefcount
from typing import TYPE_CHECKING, Any

from flowvm.compiler import jit
from flowvm.device import Device, cpu
from flowvm.eager.interpreter import (
    Node,
    Operator,
    OutputEdge,
    current_recorder,
    device_of,
    find_user,
    recording_to,
)
from flowvm.eager.live import Decisions, Frozen, Leaf, Live
from flowvm.eager.tensor import Tensor, new_tensor
from flowvm.errors import CaptureError, Status
from flowvm.graph.logical.logical import Buffer, BufferKind, LogicalGraph, Operand, OpNode
from flowvm.meta import TensorMeta
from flowvm.streams import current_stream
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import KIND, OPERAND

if TYPE_CHECKING:
    from flowvm.graph.capture.breaks import Breaks
    from flowvm.graph.capture.segments import Outcome, Segment, Source

__all__ = ["Capture", "capturing"]

Place = tuple[Any, int]  # code object and offset of a user's expression


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
        kernel = jit.native(no_value, "int32(int64, int64, int64, int64)")
        known.append(
            engine.new_entry(KIND.OP_CALL, [OPERAND.MUT] * outputs, kernel=kernel, info=name)
        )
    return known[0]


engine.on_entries_full.append(_instead.cache_clear)


class ReadValue:
    """A tensor from outside whose values Python code has read: they must stay what they were."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.storage = tensor, tensor.storage()
        self.version = self.storage.version

    def holds(self) -> bool:
        """Whether nothing has changed it in place since, nor given it other memory."""
        return self.storage.version == self.version and self.tensor._storage is self.storage

    def difference(self) -> list[str]:
        """What is otherwise, in words."""
        return [f"a value that build reads, of a tensor {self.tensor._meta!r}, may have changed"]


class Capture:
    """What is captured so far; a Recorder of the interpreter."""

    def __init__(self, name: str) -> None:
        self.graph = LogicalGraph(name)
        self.guards = Decisions()
        self.guards.user = lambda: find_user(sys._getframe(1))
        self.draws: list[tuple[Any, list[Any]]] = []  # a generator, and where its draw is put
        self.drawn: list[tuple[Live, Live]] = []
        self.phase, self.scope = "forward", ""
        self.region = self.again = 0  # of the nodes to come: see OpNode
        self.repeat = 1  # likewise
        self._steps: dict[Buffer, int] = {}  # of operands in these buffers, in repeated nodes
        self.checkpoints: tuple[Any, ...] = ()  # modules, or their paths, that are to be forgotten
        self.forgotten: set[Any] = set()  # those of them that were called
        self._numbered = 0  # regions and repetitions so far
        self._redrawn: Iterator[tuple[Live, Live]] | None = None
        self.backwards = False  # whether backward reached a leaf
        self.on_leaf: Callable[[Tensor], None] | None = None  # told of leaves that backward reaches
        # scope and place of the calls that autograd recorded
        self._scopes: dict[Node, tuple[str, Place]] = {}
        self._made: list[tuple[Tensor, tuple[str, Place]]] = []  # whose nodes are not looked at yet
        self._forward: Place = (None, 0)  # in backward: that of the call whose gradient is computed
        self._by_storage: dict[int, Buffer] = {}
        self._used: set[int] = set()  # storages that operations read or change
        self._changed: set[int] = set()  # those that they change
        self._kept: list[Any] = []
        # of the present segment: what its inputs are, the metas of whole temporaries, and what is
        # read and made by mut2 instructions, which run at its end
        self.breaks: Breaks | None = None
        self.sources: dict[Buffer, Source] = {}
        self.whole: dict[Buffer, TensorMeta] = {}
        self._read_last: set[Buffer] = set()
        self._made_last: set[Buffer] = set()
        self._places: dict[int, tuple[Source, Operand]] = {}  # of inputs, by buffer number
        self._rows: dict[int, int] = {}  # of mut2 outputs whose size is known, by storage
        self._given: list[Tensor] = []  # outputs

    def input(self, tensor: Tensor, name: str) -> Operand:
        """Take `tensor` for an input: what the graph is called with will stand in its place.

        CaptureError if another input has the same storage; `placeholder` has no such limit.
        """
        if tensor._ref & OPERAND.STORAGE_MASK in self._by_storage:
            raise CaptureError(f"{self.graph.name}: input {name!r} shares memory with another one")
        buffer = self._new_buffer(BufferKind.INPUT, tensor, name)
        self._kept.append(tensor.storage())
        operand = Operand(buffer, tensor._ref >> OPERAND.STORAGE_BITS, tensor._meta)
        buffer.nbytes = operand.end
        source = self.sources[buffer] = ("input", len(self.graph.inputs))
        self._places[buffer.number] = source, operand
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
        self.drawn.append(self._draw(generator))
        return self.drawn[-1]

    def _draw(self, generator: Any) -> tuple[Live, Live]:
        if self._redrawn is not None:
            found = next(self._redrawn, None)
            if found is not None:
                return found
        drawn: list[Any] = [(0, 0)]
        n = len(self.draws)
        self.draws.append((generator, drawn))
        seed = Leaf(drawn, (0, 0), self.guards, ("draw", n, 0), f"seed{n}")
        return seed, Leaf(drawn, (0, 1), self.guards, ("draw", n, 1), f"call{n}")

    @contextmanager
    def repeating(self, drawn: Sequence[tuple[Live, Live]] | None) -> Iterator[None]:
        """What is recorded inside was computed before; random ops draw what they drew then."""
        before = self.again, self._redrawn
        self._numbered += 1
        self.again, self._redrawn = self._numbered, None if drawn is None else iter(drawn)
        try:
            yield
        finally:
            self.again, self._redrawn = before

    @contextmanager
    def forgetting(self, module: Any, path: str) -> Iterator[None]:
        """This module runs inside: what it computes is not kept, if it is one of `checkpoints`."""
        before = self.region
        marks = [mark for mark in self.checkpoints if mark is module or mark == path]
        self.forgotten.update(marks)
        if marks and not before:
            self._numbered += 1
            self.region = self._numbered
        try:
            yield
        finally:
            self.region = before

    def name_variable(self, tensor: Tensor, name: str) -> None:
        """Call `tensor`, should the code reach it, by this name."""
        self._external(tensor, name)

    def name_reached(self, tensor: Tensor, name: str) -> None:
        """Call `tensor` by this name if the code has reached it and nothing else names it."""
        buffer = self._by_storage.get(tensor._ref & OPERAND.STORAGE_MASK)
        if buffer is not None and buffer.kind is BufferKind.VARIABLE and not buffer.name:
            buffer.name = name

    def place(self, tensor: Tensor) -> Operand:
        """Where `tensor` is: in a buffer of the graph, or a variable from now on."""
        buffer = self._by_storage.get(tensor._ref & OPERAND.STORAGE_MASK)
        if buffer is None:
            buffer = self._external(tensor, "")
        elif buffer in self._made_last:
            self._end_segment()
            buffer = self._by_storage[tensor._ref & OPERAND.STORAGE_MASK]
        step = self._steps.get(buffer, 0)
        operand = Operand(buffer, tensor._ref >> OPERAND.STORAGE_BITS, tensor._meta, step)
        if buffer.kind is not BufferKind.TEMPORARY:
            buffer.nbytes = max(buffer.nbytes, operand.end)
        return operand

    def move(self, tensor: Tensor, step: int) -> None:
        """From now on, what lies in the memory of `tensor` moves by `step` bytes from one
        repetition to the next.
        """
        self._steps[self._by_storage[tensor._ref & OPERAND.STORAGE_MASK]] = step

    def is_repeated(self, tensor: Tensor) -> bool:
        """Whether `tensor` is another one in each repetition."""
        buffer = self._by_storage.get(tensor._ref & OPERAND.STORAGE_MASK)
        return buffer is not None and (
            buffer.kind is BufferKind.TEMPORARY or self._steps.get(buffer, 0) != 0
        )

    def output(self, tensor: Tensor) -> Operand:
        """Take `tensor` for an output."""
        operand = self.place(tensor)
        self._given.append(tensor)
        self.graph.outputs.append(operand)
        return operand

    def holds(self, tensor: Tensor) -> bool:
        """Whether `tensor` was made by a captured operation."""
        buffer = self._by_storage.get(tensor._ref & OPERAND.STORAGE_MASK)
        return buffer is not None and (buffer.kind is BufferKind.TEMPORARY or buffer.crosses)

    # --- segments -----------------------------------------------------------------------------

    def decide(self, tensor: Tensor) -> Any:
        """The value of a one-element tensor by which the framework itself must decide."""
        if self.breaks is None or self.repeat > 1:
            raise CaptureError(f"{self.graph.name}: no value is there during this capture")
        asked = self.place(tensor)
        segment, outcome = self.breaks.end(self, asked, f"the decision by {tensor._meta!r}")
        self._next_segment(segment, outcome)
        return outcome[-1]

    def size_of(self, out: Tensor, most: TensorMeta) -> Callable[[], TensorMeta]:
        """What finds the meta of a mut2 output when it is asked for."""
        ref = out._ref

        def ask() -> TensorMeta:
            if current_recorder() is not self:
                engine.wait_for([ref])  # it never ran, and this says so
            if ref not in self._rows:
                self._end_segment()
            return most.with_shape((self._rows[ref], *most.shape[1:]))

        return ask

    def reachable(self) -> set[Buffer]:
        """Buffers, made by operations, that code can still name: by tensors, views or autograd."""
        self._learn_scopes()
        found = set()
        for kept in self._kept:
            if isinstance(kept, Tensor):
                own = getrefcount(kept) > _HELD
                if own or (kept._storage is not None and getrefcount(kept._storage) > _HELD - 1):
                    found.add(self._by_storage[kept._ref & OPERAND.STORAGE_MASK])
        return found

    def _end_in_front(
        self, op: Operator, inputs: tuple[Tensor, ...], written: tuple[Tensor, ...]
    ) -> None:
        """End the segment, if an operation reads what its mut2 instructions make, or changes what
        they read: they run behind everything else.
        """

        def buffers(tensors: Iterable[Tensor]) -> set[Any]:
            return {self._by_storage.get(t._ref & OPERAND.STORAGE_MASK) for t in tensors}

        named = zip(op.inputs, inputs, strict=True)
        changed = buffers([*written, *(t for name, t in named if name in op.writes)])
        if buffers(inputs) & self._made_last or changed & (self._read_last | self._made_last):
            self._end_segment()

    def _end_segment(self) -> None:
        assert self.breaks is not None
        last = [node for node in self.graph.nodes if node.operator.unsized][-1]
        segment, outcome = self.breaks.end(self, None, f"{last.operator.name} {last.line}")
        self._next_segment(segment, outcome)

    def _next_segment(self, segment: Segment, outcome: Outcome) -> None:
        """Go on with a graph whose inputs are those of the call and what crosses."""
        known = zip(segment.asks, outcome, strict=True)
        rows = {what: n for (kind, what), n in known if kind == "rows"}
        metas = self.whole
        self.graph = LogicalGraph(self.graph.name)
        self.sources, self.whole = {}, {}
        self._read_last.clear()
        self._made_last.clear()
        for storage, old in self._by_storage.items():
            made = old.kind is BufferKind.TEMPORARY or old.crosses
            if made and old.number not in segment.alive:
                continue
            buffer = self._by_storage[storage] = replace(old)
            if made:
                meta = metas[old]
                if old.number in rows:
                    self._rows[storage] = rows[old.number]
                    meta = meta.with_shape((rows[old.number], *meta.shape[1:]))
                buffer.kind, buffer.crosses, buffer.nbytes = BufferKind.INPUT, True, meta.span
                self.sources[buffer] = ("value", buffer.number)
                self.whole[buffer] = meta
                self.graph.inputs.append(Operand(buffer, 0, meta))
            elif old.kind is BufferKind.INPUT:
                self.sources[buffer], operand = self._places[old.number]
                self.graph.inputs.append(replace(operand, buffer=buffer))
        self.graph.outputs = [self.place(t) for t in self._given]

    def is_used(self, tensor: Tensor) -> bool:
        """Whether a captured operation reads or changes `tensor`'s memory."""
        return tensor._ref & OPERAND.STORAGE_MASK in self._used

    def made_at(self, tensor: Tensor) -> str:
        """The user's file and line that made a captured tensor, or ""."""
        buffer = self._by_storage.get(tensor._ref & OPERAND.STORAGE_MASK)
        nodes = [n for n in self.graph.nodes if any(o.buffer is buffer for o in n.outputs)]
        return nodes[0].line if nodes else ""

    def read(self, tensor: Tensor) -> None:
        """Values that a capture does not change may be read, as long as they stay what they are."""
        number = tensor._ref & OPERAND.STORAGE_MASK
        buffer = self._by_storage.get(number)
        if buffer is not None and buffer.kind is not BufferKind.VARIABLE:
            return  # it has none, and who waits for it is told
        if number in self._changed:
            raise CaptureError(
                f"{self.graph.name}: code in build reads a tensor that it has changed in place: "
                f"while a graph is captured nothing is computed, so the new value is not there.  "
                f"Compute with the tensor, or read it after the call"
            )
        self.guards.append((ReadValue(tensor).holds, True))

    def _new_buffer(self, kind: BufferKind, tensor: Tensor, name: str) -> Buffer:
        buffer = Buffer(len(self._by_storage), kind, 0, name)
        self._by_storage[tensor._ref & OPERAND.STORAGE_MASK] = buffer
        return buffer

    def _external(self, tensor: Tensor, name: str) -> Buffer:
        known = self._by_storage.get(tensor._ref & OPERAND.STORAGE_MASK)
        if known is not None:
            return known
        buffer = self._new_buffer(BufferKind.VARIABLE, tensor, name)
        buffer.held = tensor.storage()
        buffer.nbytes = (tensor._ref >> OPERAND.STORAGE_BITS) + tensor._meta.span
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
        if op.unsized and self.breaks is None:
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
        if op.unsized and self.repeat > 1:
            raise CaptureError(
                f"{op.name}: the shape of its result depends on values, and with gradient "
                f"accumulation all micro-batches run without a break; use a form of fixed shape "
                f"(flow.where, masked_fill, a mask that multiplies)"
            )
        if self._made_last:
            self._end_in_front(op, inputs, outputs if into else ())
        read = tuple(self.place(t) for t in inputs)
        if into:
            written = tuple(self.place(t) for t in outputs)
        else:
            written = tuple(
                self._fresh(t, meta) for t, meta in zip(outputs, made[1:], strict=False)
            )
        changed = [*(outputs if into else ())]
        changed += [t for n, t in zip(op.inputs, inputs, strict=True) if n in op.writes]
        self._changed.update(t._ref & OPERAND.STORAGE_MASK for t in changed)
        self._used.update(t._ref & OPERAND.STORAGE_MASK for t in (*inputs, *changed))
        if op.unsized:
            self._read_last.update(operand.buffer for operand in read)
            self._made_last.update(operand.buffer for operand in written)
        for t in (*outputs, *inputs) if into or op.writes else ():
            if t._node is not None:  # what is written gets another node
                self._learn_scopes()
                break
        code, last = find_user(sys._getframe(2))
        forward = self._forward if self.phase == "backward" else (None, 0)
        where = self.scope, (code, last) if forward[0] is None else forward
        self._made += [(t, where) for t in (*outputs, *(inputs if op.writes else ()))]
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
            self._stream(device_of(tuple(o.meta for o in (*written, *read)), attrs)),
            self.repeat,
            region=self.region if self.phase == "forward" else 0,
            again=self.again,
        )
        self.graph.nodes.append(node)
        return _entry_instead(0 if into else len(outputs), op.name)

    def _stream(self, device: Device) -> int:
        """This thread's stream for a device, which lives as long as the graph; that which it has by
        default is 0 everywhere.
        """
        stream, number = _stream_for(device)
        if self.repeat > 1 and self.graph.streams and stream != self.graph.streams[0]:
            raise CaptureError(
                f"{self.graph.name}: with gradient accumulation, build runs on one stream; leave "
                f"out `with flow.stream(...)` in it"
            )
        if stream not in self.graph.streams:
            self.graph.streams.append(stream)
        return number

    def enter(self, node: Node) -> None:
        """What follows belongs to the module in which `node` was made, or, for a node of no
        operation of its own (a view), to that of the node in front.
        """
        self._learn_scopes()
        self.scope, self._forward = self._scopes.get(node, (self.scope, (None, 0)))

    def reach(self, leaf: Tensor) -> None:
        """Backward is about to add to the `.grad` of `leaf`."""
        self.backwards = True
        if self.on_leaf is not None:
            self.on_leaf(leaf)

    def _learn_scopes(self) -> None:
        for tensor, where in self._made:
            node = tensor._node
            if node is not None:
                self._scopes.setdefault(node.node if isinstance(node, OutputEdge) else node, where)
        self._made.clear()

    def _fresh(self, tensor: Tensor, meta: Any) -> Operand:
        self._kept.append(tensor)
        buffer = self._new_buffer(BufferKind.TEMPORARY, tensor, "")
        buffer.nbytes = meta.span
        self.whole[buffer] = meta
        return Operand(buffer, 0, meta)


def _held() -> int:
    """What getrefcount says of an object that one list and one local variable hold."""
    kept = [object()]
    for held in kept:
        return getrefcount(held)
    return 0


_HELD = _held()


def _stream_for(device: Device) -> tuple[Any, int]:
    """The stream that this thread issues to, and its number, or 0 for the device's own."""
    if device is cpu:
        stream = current_stream()
        return stream, stream.number
    from flowvm.cuda.driver.streams import streams
    from flowvm.cuda.events import current_stream as used_stream

    used: Any = used_stream(device)
    return used, 0 if used.number == streams(device.index or 0).compute else used.number


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
    if capture.breaks is not None:  # of the last mut2 instructions, nobody asked
        capture.graph.nodes = [n for n in capture.graph.nodes if not n.operator.unsized]
