"""From a call to an instruction: the eager interpreter.

An `Operator` says what its calls mean; `call_function` writes the Python function that makes them,
in full, for that operator's number of operands: look the metas up in the operator's cache, make the
outputs, write the record, note the autograd node.  On a miss `Operator.lower` infers (wrong
arguments raise here, on the caller's line), compiles or loads the kernel and describes the call;
that becomes an entry of the VM, and the next call with such metas finds it.

The generated function is one piece because it runs once an op: what would be a call elsewhere is a
line in it.  Its source is in `linecache`, so tracebacks and pdb show it.

Long because the generated function and all that it names (nodes, modes, entries) read as one piece.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import operator
import struct
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import CodeType, MappingProxyType
from typing import Any, Protocol

import numpy as np

from flowvm.device import Device, cpu
from flowvm.eager.autocasting import RULES
from flowvm.eager.live import Frozen, Live, freeze
from flowvm.eager.tensor import Storage, Tensor, alias
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError, FlowError
from flowvm.meta import TensorMeta
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.hot import CALL_STREAM, hot
from flowvm.vm.engine.lines import INTERNAL, NO_ORIGIN, UNKNOWN, Backward
from flowvm.vm.engine.tracebacks import cut
from flowvm.vm.machine import layout as w

__all__ = [
    "Invocation",
    "Node",
    "Operator",
    "Recorder",
    "admit_devices",
    "call_function",
    "call_into",
    "current_device_stream",
    "current_recorder",
    "current_stream",
    "departing",
    "device_of",
    "find_user",
    "generated",
    "grad_enabled",
    "lowered",
    "lowerings",
    "note_change",
    "operators",
    "pin_user_line",
    "placed",
    "publishing",
    "recording_to",
    "set_grad_enabled",
    "unpin_user_line",
    "use_device_stream",
    "use_stream",
]


# calls (a power of two, less one) after which dead tensors are released, if none allocates LARGE
KEEP_DEAD = 15
LARGE = 1 << 16  # bytes


@dataclass(frozen=True)
class Invocation:
    """What one (operator, metas, attributes) comes down to."""

    outputs: tuple[TensorMeta, ...]  # a mut2 output's meta has in shape[0] the most it can be
    kernel: int
    layout: np.ndarray[Any, Any]
    units: int = 1
    grain: int = 1
    scratch: int = 0
    scalar_pack: str = ""  # struct codes of the dynamic scalars, "q" or "d" each
    phases: tuple[tuple[int, int], ...] = ()  # (units, grain) of those after the first
    blocks: tuple[int, ...] = ()  # elements of each operand that a unit is alone with: see Launch
    arena: int = 0  # bytes of it that are used
    stream: int = 0  # of a device's instructions: the stream that they go to by default


operators: weakref.WeakSet[Operator] = weakref.WeakSet()  # all there are


@dataclass(eq=False)
class Operator:
    """A kind of instruction.  `flowvm.ops.declare.registry` makes them from declarations."""

    name: str
    inputs: tuple[str, ...]  # names; those in `writes` are mut
    outputs: tuple[str, ...]  # fresh ones
    lower: Callable[[tuple[TensorMeta, ...], tuple[Any, ...]], Invocation]
    attrs: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()  # names of dynamic numbers
    scalar_kinds: str = ""  # "d" float or "q" int each
    writes: frozenset[str] = frozenset()
    unsized: frozenset[str] = frozenset()  # mut2 outputs
    saves: tuple[str, ...] = ()  # operands that the gradient needs
    constants: frozenset[str] = frozenset()  # outputs without a place in the graph
    grad: Callable[..., Any] | None = None
    # called on a miss with the call's arguments: a result if the call must be made some other way
    # (numbers among the tensors, float16, strides that the kernel does not take), else None
    fallback: Callable[..., Any] = lambda *args: None
    form: Any = None  # what it was made of, for who wants to make more of it: see ops.elementwise
    # what `lower` makes the CPU's call of: infer(metas, attrs) gives a Launch or the like
    infer: Callable[..., Any] | None = None
    everywhere: bool = False  # `lower` is for every device: it copies between them
    cuda: Any = ""  # its CUDA rule, or where that is, if it has one: see ops.registry.op
    # an output may lie exactly where an input does that has its arrangement: the kernel reads each
    # element before it writes it
    aliases: bool = False
    # of an operator made at run time: (maker, arguments), which makes it again; see ops.recipes
    recipe: tuple[str, tuple[Any, ...]] | None = None
    amp: str = field(init=False)  # the rule by which autocast converts its inputs, "" for none
    cache: dict[Any, Any] = field(default_factory=dict)
    call: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        engine.on_entries_full.append(self.cache.clear)
        self.amp = RULES.get(self.name, "")
        self.call = call_function(self)
        operators.add(self)

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The outputs that have a place in the graph; they come first."""
        return tuple(n for n in self.outputs if n not in self.constants)

    def __repr__(self) -> str:
        return f"<Operator {self.name}>"


@dataclass(frozen=True)
class EntryInfo:
    """What messages and traces say of an entry."""

    name: str
    operands: str
    metas: tuple[TensorMeta, ...]  # outputs first
    names: tuple[str, ...]
    operator: Operator


class Node:
    """A recorded call: where the gradients of its outputs go.

    edges    for each input, the Node or leaf accumulator that its gradient goes to, or None
    saved    what the gradient needs, with the versions the tensors had
    metas    the inputs' metas; attrs: the call's attributes and scalars
    seq      the instruction that the call issued, by which its line and module are found; NO_ORIGIN
             if it issued none
    """

    __slots__ = (
        "_saved", "attrs", "edges", "extra", "metas", "operator", "out_metas", "seq", "versions",
    )  # fmt: skip
    is_leaf = False
    index = 0
    extra: Any  # hooks and the like; unset where there are none

    def __init__(
        self,
        operator: Any,
        edges: tuple[Any, ...],
        saved: tuple[Tensor, ...],
        versions: tuple[int, ...],
        metas: tuple[TensorMeta, ...],
        attrs: tuple[Any, ...],
        out_metas: tuple[TensorMeta, ...],
        seq: int = NO_ORIGIN,
    ) -> None:
        self.operator = operator
        self.edges = edges
        self._saved: Any = saved  # a tuple; None when released; or what `recall`s it: a checkpoint
        self.versions = versions
        self.metas = metas
        self.attrs = attrs
        self.out_metas = out_metas
        self.seq = seq

    @property
    def needs(self) -> tuple[bool, ...]:
        """Which inputs want a gradient."""
        return tuple(edge is not None for edge in self.edges)

    def name(self) -> str:
        """The operator's name with "Backward", as PyTorch prints it."""
        return "".join(p.capitalize() for p in self.operator.name.split("_")) + "Backward"

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """The saved tensors; AutogradError when one was released or changed in place since."""
        saved: tuple[Tensor, ...] = self._saved
        if saved.__class__ is not tuple:
            saved = self._recalled()
        for tensor, version in zip(saved, self.versions, strict=True):
            if tensor._storage is not None and tensor._storage.version != version:
                from flowvm.errors import AutogradError

                raise AutogradError(
                    f"{self.operator.name} saved a tensor of shape {tuple(tensor.shape)} for its "
                    f"gradient, and it was changed in place since (version {tensor.version}, saved "
                    f"at {version}).  Work on a clone()"
                )
        return self._recorded_outputs(saved) if saved and _modes.grad else saved

    def _recalled(self) -> tuple[Tensor, ...]:
        if self._saved is None:
            from flowvm.errors import AutogradError

            raise AutogradError(
                f"backward through {self.operator.name} a second time: what it saved was freed by "
                f"the first.  Give the first backward retain_graph=True"
            )
        recalled: tuple[Tensor, ...] = self._saved.recall(self)
        return recalled

    def release(self) -> None:
        """Drop what was saved: after a backward that need not be repeated."""
        self._saved = None

    def _recorded_outputs(self, saved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`saved` with the outputs among them in the graph again, for gradients of gradients.

        A node saves its outputs without their place in the graph: holding it would be a reference
        cycle.
        """
        outputs = getattr(self.operator, "differentiable", ())
        again = list(saved)
        for i, name in enumerate(self.operator.saves if outputs else ()):
            if name in outputs:
                again[i] = alias(saved[i], saved[i]._meta)
                place = outputs.index(name)
                again[i]._node = self if len(outputs) == 1 else OutputEdge(self, place)
        return tuple(again)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class OutputEdge:
    """Output `index` of a Node that has several."""

    __slots__ = ("index", "node")
    is_leaf = False

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index

    def name(self) -> str:
        """The node's name."""
        return self.node.name()

    def __repr__(self) -> str:
        return repr(self.node)


# --- per-thread modes ---------------------------------------------------------------------------
# `hot["unrecorded"]` counts threads that do not record for backward, `hot["departed"]` those that
# issue to another stream or capture, so the common case is one test of each.


class _Modes(threading.local):
    grad = True
    user: list[Any] | None = None  # while a line is pinned: [a Backward, an origin], for everything
    stream = CALL_STREAM
    device_streams: Mapping[int, int] = MappingProxyType({})  # default stream of a device: another
    recorder: Recorder | None = None  # while a graph is captured


class Recorder(Protocol):
    """What is told of every operation while a thread captures instead of computing.

    `record` answers the entry to issue in the operation's place: what it would have written must
    not be taken for values.
    """

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
        """Take note of one operation; `into`: its outputs are tensors that were there before."""

    def draw(self, generator: Any) -> tuple[Live, Live]:
        """A draw of a random generator, to be made anew for each replay."""

    def repeating(self, drawn: Sequence[Any] | None) -> AbstractContextManager[None]:
        """What is recorded inside was computed before; random ops draw what they drew then."""

    def forgetting(self, module: Any, path: str) -> AbstractContextManager[None]:
        """This module runs inside: what it computes is not kept, if it is one of `checkpoints`."""

    def read(self, tensor: Tensor) -> None:
        """Python code is about to look at a tensor's values: an error, or remembered."""

    def enter(self, node: Any) -> None:
        """The gradient of `node` is computed next: what follows belongs to where it was made."""

    def size_of(self, out: Tensor, most: TensorMeta) -> Callable[[], TensorMeta]:
        """What finds the meta of a mut2 output when somebody needs it."""

    def decide(self, tensor: Tensor) -> Any:
        """The value of a one-element tensor by which the framework itself must decide."""

    def reach(self, leaf: Tensor) -> None:
        """Backward is about to add to the `.grad` of `leaf`."""

    phase: str
    scope: str
    drawn: list[tuple[Live, Live]]
    checkpoints: tuple[Any, ...]  # modules, or their paths


_modes = _Modes()
hot.update(unrecorded=0, departed=0, changed=object(), grad_enabled=lambda: _modes.grad)
hot.update(recorder=lambda: _modes.recorder)
_count_lock = threading.Lock()


def _count(mode: str, change: int) -> None:
    with _count_lock:
        hot[mode] += change


def note_change() -> None:
    """Something was changed that a compiled graph watches: a module's attribute, where a tensor's
    memory is, whether it requires grad.

    `hot["changed"]` is another object then; to be called after the change.
    """
    hot["changed"] = object()


def grad_enabled() -> bool:
    """Whether this thread records operations for backward."""
    return _modes.grad


def set_grad_enabled(value: bool) -> bool:
    """Switch recording on this thread; what it was."""
    before = _modes.grad
    if before != value:
        _count("unrecorded", -1 if value else 1)
        _modes.grad = value
    return before


def current_stream() -> int:
    """The stream that this thread issues to."""
    return _modes.stream


@contextmanager
def use_stream(stream: int) -> Iterator[None]:
    """Issue this thread's operations to `stream`."""
    before = _modes.stream
    _count("departed", 1)
    _modes.stream = stream
    try:
        yield
    finally:
        _modes.stream = before
        _count("departed", -1)


@contextmanager
def use_device_stream(default: int, stream: int) -> Iterator[None]:
    """Issue this thread's operations to `stream` where they would go to `default`, a device's."""
    before = _modes.device_streams
    _modes.device_streams = {**before, default: stream}
    try:
        yield
    finally:
        _modes.device_streams = before


def current_device_stream(default: int) -> int:
    """Where this thread's operations go that go to `default`, a device's stream, by default."""
    return _modes.device_streams.get(default, default)


def admit_devices() -> None:
    """From now on every thread is asked where its instructions go: there is more than the CPU."""
    _count("departed", 1)


def placed(word: int) -> int:
    """An entry word with the stream that this thread issues it to."""
    default = word >> w.ENTRY_BITS
    stream = _modes.stream if default == 0 else current_device_stream(default)
    return word & w.ENTRY_MASK | stream << w.ENTRY_BITS


@contextmanager
def departing() -> Iterator[None]:
    """Have this thread asked, inside, whether it departs from the default."""
    _count("departed", 1)
    try:
        yield
    finally:
        _count("departed", -1)


@contextmanager
def recording_to(recorder: Recorder | None) -> Iterator[None]:
    """Tell `recorder` of this thread's operations instead of computing them; None: compute them."""
    before = _modes.recorder
    _count("departed", 1)
    _modes.recorder = recorder
    try:
        yield
    finally:
        _modes.recorder = before
        _count("departed", -1)


def current_recorder() -> Recorder | None:
    """What this thread captures to, None while it computes."""
    return _modes.recorder


def _depart(
    op: Operator,
    made: tuple[Any, ...],
    outputs: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    attrs: tuple[Any, ...],
    scalars: tuple[Any, ...],
) -> int:
    """The entry word of a call while some thread departs from the default."""
    recorder = _modes.recorder
    if recorder is not None:
        return recorder.record(op, made, outputs, inputs, attrs, scalars)
    word = placed(made[0])
    stream = word >> w.ENTRY_BITS
    if stream != CALL_STREAM:  # remember the outputs: their ReleaseTensor must run there
        for out in outputs:
            engine.stream_of[out._ref] = stream
    return word


# --- making entries -----------------------------------------------------------------------------


def _checked(op: Operator, tensors: Sequence[Any]) -> tuple[TensorMeta, ...]:
    for name, t in zip(op.inputs, tensors, strict=True):
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(
                f"{op.name}: argument {name!r} must be a Tensor, got {type(t).__name__} "
                f"({_short(t)}); make one with flow.tensor(...)"
            )
    metas = tuple(t._meta for t in tensors)
    if len({m.device for m in metas}) > 1:
        places = ", ".join(f"{n} on {m.device}" for n, m in zip(op.inputs, metas, strict=True))
        raise DeviceError(f"{op.name}: all tensors must be on one device, got {places}")
    return metas


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _miss(op: Operator, tensors: Sequence[Any], attrs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make the call's entry: (entry word, output metas, does it allocate much, scalar pack)."""
    metas = _checked(op, tensors)
    made = _entry(op, metas, attrs, None)
    op.cache[(*metas, *attrs)] = made
    return made


# how a call is lowered for a device type other than the CPU
lowerings: dict[str, Callable[[Operator, Any, Any], Invocation]] = {}


def device_of(metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Device:
    """Where a call computes: on its tensors' device; a creation op has its output's meta, or its
    device, among `attrs`.
    """
    for value in (*metas, *attrs):
        if isinstance(value, TensorMeta):
            return value.device
        if isinstance(value, Device):
            return value
    return cpu


def lowered(op: Operator, metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Invocation:
    """What a call comes down to on its device."""
    device = device_of(metas, attrs)
    if device is cpu or op.everywhere:
        return op.lower(metas, attrs)
    return lowerings[device.type](op, metas, attrs)


def _entry(
    op: Operator,
    metas: tuple[TensorMeta, ...],
    attrs: tuple[Any, ...],
    into: tuple[TensorMeta, ...] | None,
) -> tuple[Any, ...]:
    invocation = lowered(op, metas if into is None else (*into, *metas), attrs)
    access, sizes = [], []
    for name, meta in zip(op.outputs, invocation.outputs, strict=True):
        if into is not None:
            access.append(w.MUT)
            sizes.append(0)
        elif name in op.unsized:
            access.append(w.MUT2 | w.ALLOCATE)
            rows = max(1, meta.shape[0])
            sizes.append(meta.nbytes // rows if meta.numel else meta.dtype.itemsize)
        else:
            access.append(w.MUT | w.ALLOCATE)
            sizes.append(meta.nbytes)
    access += [w.MUT if name in op.writes else w.CONST for name in op.inputs]
    sizes += [0] * len(op.inputs)
    names = (*op.outputs, *op.inputs)
    kinds = [("mut2" if n in op.unsized else "mut") for n in op.outputs]
    kinds += ["mut" if n in op.writes else "const" for n in op.inputs]
    all_metas = (*invocation.outputs, *metas)
    text = " · ".join(f"{k} {n} {m!r}" for k, n, m in zip(kinds, names, all_metas, strict=True))
    number = engine.new_entry(
        w.OP_CALL,
        access,
        kernel=invocation.kernel,
        layout=invocation.layout,
        sizes=sizes,
        units=invocation.units,
        grain=invocation.grain,
        scratch=invocation.scratch,
        phases=invocation.phases,
        scalars=len(invocation.scalar_pack or op.scalar_kinds),
        prepare=bool(op.unsized),
        info=EntryInfo(op.name, text, all_metas, names, op),
    )
    large = sum(sizes) >= LARGE
    word = number | invocation.stream << w.ENTRY_BITS
    return (word, *invocation.outputs, large, invocation.scalar_pack)


def call_into(
    op: Operator,
    outs: tuple[Tensor, ...],
    tensors: tuple[Tensor, ...],
    attrs: tuple[Any, ...] = (),
    scalars: tuple[Any, ...] = (),
) -> int:
    """Issue `op` with its outputs written into existing tensors: the instruction's number.

    `op.lower` gets the outputs' metas in front of the inputs'.  Records nothing for autograd and
    counts no version: the caller does.
    """
    metas = _checked(op, tensors)
    into = tuple(o._meta for o in outs)
    key = ("into", *into, *metas, *attrs)
    made = op.cache.get(key)
    if made is None:
        if len({m.device for m in (*into, *metas)}) > 1:
            places = ", ".join(str(m.device) for m in metas)
            raise DeviceError(
                f"{op.name}: the result goes into a tensor on {into[0].device}, and what it is "
                f"made of is on {places}; all must be on one device"
            )
        made = op.cache[key] = _entry(op, metas, attrs, into)
    pack = made[-1][::-1] or op.scalar_kinds
    words = [
        struct.unpack("q", struct.pack("d", v))[0] if k == "d" else int(v)
        for k, v in zip(pack, scalars, strict=True)
    ]
    operands = [*(o._ref for o in outs), *(t._ref for t in tensors)]
    recorder = _modes.recorder
    if recorder is not None:
        word = recorder.record(op, made, outs, tensors, attrs, scalars, into=True)
    else:
        word = placed(made[0])
    return engine.issue(word, operands, words)


def _unsized(op: Operator, out: Tensor, most: TensorMeta) -> None:
    """Leave a mut2 output's meta unset: whoever needs its shape waits for the kernel."""
    del out._meta
    recorder = _modes.recorder
    if recorder is not None:
        out._pending = recorder.size_of(out, most)
        return
    ref = out._ref  # not `out`, which keeps the function

    def pending() -> TensorMeta:
        engine.wait_for([ref])
        return most.with_shape((engine.rows(ref), *most.shape[1:]))

    out._pending = pending


# --- the generated call function ------------------------------------------------------------------


def call_function(op: Operator) -> Callable[..., Any]:
    """The function `call(*inputs, *attrs, *scalars)` that issues `op`.

    It gives the op's outputs, or the input that the op writes.

    Its globals are `hot` itself, which is how it sees `limit`, `departed` and `counter` change;
    what belongs to the operator is in its closure.
    """
    names = {*op.inputs, *op.attrs, *op.scalars}
    taken = {
        n for n in names if n in hot or n in ("op", "cache", "packs", "pack") or n[:1] == "_" != n
    }
    if taken:
        raise ArgumentError(
            f"{op.name}: {', '.join(sorted(taken))} cannot name an argument, because the function "
            f"that issues calls uses that name itself; choose another"
        )
    n_words = len(op.inputs) + len(op.outputs) + len(op.scalars) + 2
    n_rest = n_words - len(op.scalar_kinds)
    kinds = ["".join(k) for k in itertools.product("qd", repeat=len(op.scalars))]
    own = {
        "op": op,
        "cache": op.cache,
        "packs": {k: struct.Struct(k + "q" * (n_words - len(k))).pack_into for k in kinds},
        "pack": struct.Struct(op.scalar_kinds[::-1] + "q" * n_rest).pack_into,
    }
    call = generated(_source(op), f"<flowvm call {op.name}>", own)
    call.__name__ = call.__qualname__ = op.name
    return call


def generated(source: str, filename: str, own: dict[str, Any]) -> Callable[..., Any]:
    """The function that `source` defines, with `hot` for its globals and `own` in its closure.

    `filename` begins with "<flowvm", so that its frames are nobody's lines.
    """
    name = source[4 : source.index("(")]
    body = textwrap.indent(source, "    ")
    source = f"def make({', '.join(own)}):\n{body}    return {name}\n"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    made: dict[str, Any] = {}
    exec(_from_file(_compiled(source), filename), hot, made)
    function: Callable[..., Any] = made["make"](**own)
    return function


@functools.cache
def _compiled(source: str) -> CodeType:
    """Many operators look alike, and compiling is most of what declaring one costs."""
    return compile(source, "<flowvm call>", "exec")


def _from_file(code: CodeType, filename: str) -> CodeType:
    """`code`, and the functions in it, as if it had been compiled from `filename`."""
    consts = [_from_file(c, filename) if isinstance(c, CodeType) else c for c in code.co_consts]
    return code.replace(co_filename=filename, co_consts=tuple(consts))


def find_user(frame: Any) -> tuple[Any, int]:
    """Code and instruction offset of the first frame from `frame` up that is not flowvm's.

    While a line is pinned (`pin_user_line`): that one.
    """
    pinned = _modes.user
    if pinned is not None:
        return pinned[0].code, pinned[0].last
    return _first_user(frame)


def _issued_at(frame: Any) -> Any:
    """What issuing remembers of a place: `find_user`, and in backward the origin (`vm.lines`)."""
    return _modes.user or _first_user(frame)


def _first_user(frame: Any) -> tuple[Any, int]:
    while frame is not None:
        name = frame.f_code.co_filename
        if name in _user_files:
            return frame.f_code, frame.f_lasti
        if not INTERNAL[name]:
            _user_files.add(name)
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None, 0


def pin_user_line() -> tuple[Any, list[Any]]:
    """Attribute what this thread issues from now on to the user's present line.

    What was pinned, which `unpin_user_line` takes; and what is, whose second element is the origin
    of what is issued.  For backward, which issues a lot from far below the user's frame, where
    finding it each time would cost more than issuing.
    """
    before = _modes.user
    if before is None:
        _modes.user = [Backward(*_first_user(sys._getframe(1))), UNKNOWN]
    return before, _modes.user  # type: ignore[return-value]


def unpin_user_line(before: Any = None) -> Any:
    """Pin `before`, or nothing; what was pinned."""
    now, _modes.user = _modes.user, before
    return now


def _number(value: Any) -> Any:
    """A call's number as Python's own."""
    if isinstance(value, (Live, Frozen)):
        return freeze(value)
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


_user_files: set[str] = set()
hot.update(
    miss=_miss,
    new=object.__new__,
    Tensor=Tensor,
    Storage=Storage,
    Node=Node,
    OutputEdge=OutputEdge,
    unsized=_unsized,
    depart=_depart,
    user_files=_user_files,
    find_user=_issued_at,
    as_number=_number,
    flow_error=FlowError,
    cut=cut,
)


def _source(op: Operator) -> str:
    params = [*op.inputs, *op.attrs, *op.scalars]
    tensors = "".join(f"{n}, " for n in op.inputs)
    attrs = "".join(f"{n}, " for n in op.attrs)
    key = "".join(f"{n}._meta, " for n in op.inputs) + attrs
    lines = [
        f"def call({', '.join(params)}):",
        *(_converting_lines(op) if op.amp else ()),
        "    try:",
        f"        _e = cache[({key})]",
        "    except (KeyError, AttributeError, TypeError): _e = None",
        "    if _e is None:",  # out here, or an error would say it came while handling a KeyError
        f"        _result = op.fallback({', '.join(params)})",
        "        if _result is not None: return _result",
        f"        _e = miss(op, ({tensors}), ({attrs}))",
        "    if _e[-2] and dead: release_dead()",
    ]
    for i, _ in enumerate(op.outputs):
        lines += [
            f"    try: _s{i} = pop()",
            f"    except IndexError: _s{i} = refill()",
            f"    _o{i} = new(Tensor); _o{i}._storage = None; _o{i}._ref = _s{i}",
            f"    _o{i}._meta = _e[{i + 1}]; _o{i}._node = None",
        ]
    outs = "".join(f"_o{i}, " for i in range(len(op.outputs)))
    scalars = "".join(f"{n}, " for n in op.scalars)
    operands = [f"_s{i}" for i in range(len(op.outputs))] + [f"{n}._ref" for n in op.inputs]
    values = [*reversed(op.scalars), *reversed(operands), "_word"]
    lines += [  # now, while no sequence number is taken: to convert a tensor is to wait for it
        f"    if {n}.__class__ is not float and {n}.__class__ is not int: {n} = as_number({n})"
        for n in op.scalars
    ]
    lines += [
        "    _word = _e[0]",
        f"    if departed: _word = depart(op, _e, ({outs}), ({tensors}), ({attrs}), ({scalars}))",
        "    _f = getframe(1); _c = _f.f_code",
        "    if _c.co_filename in user_files: _last = _f.f_lasti",
        "    else: _c, _last = find_user(_f)",
        "    _write = packs[_e[-1]]" if op.scalars and not op.scalar_kinds else "    _write = pack",
        *publishing(values),
    ]
    lines += [f"    {n}.bump()" for n in op.inputs if n in op.writes]
    for i, name in enumerate(op.outputs):
        if name in op.unsized:
            lines.append(f"    unsized(op, _o{i}, _e[{i + 1}])")
    if op.grad is not None and op.inputs:
        lines += _node_lines(op)
    written = [n for n in op.inputs if n in op.writes]
    results = [f"_o{i}" for i in range(len(op.outputs))] or written[:1]
    lines.append(f"    return {', '.join(results)}")
    body = "\n".join("    " + line for line in lines[1:])
    return f"{lines[0]}\n    try:\n{body}\n    except flow_error as _error: cut(_error); raise\n"


def _converting_lines(op: Operator) -> list[str]:
    """Ask autocast, where some thread is in a region."""
    tensors = "".join(f"{n}, " for n in op.inputs)
    return [
        "    if autocast:",
        f"        _t = convert(op, ({tensors}))",
        f"        if _t is not None: {tensors}= _t",
    ]


def publishing(values: Sequence[str], taken: str = "") -> list[str]:
    """Lines of a generated function that publish a record of these words, the last one first.

    `_write` packs them, with the mark behind; `_c` and `_last` are the user's place; `taken` is a
    statement without a call for the moment when the sequence number `_seq` is known.
    """
    mark = "_seq + 1" if w.ORDERED_STORES else "0"
    back = (w.RECORD_WORDS - len(values) - 1) * 8
    return [
        "    for _seq in counter: break",
        *([f"    {taken}"] if taken else []),
        f"    _i = _seq & {w.SLOT_MASK}; codes[_i] = _c; lasts[_i] = _last",
        f"    try: _write(ring, (_i << 8) + {back}, {', '.join(values)}, {mark})",
        "    except struct_errors: fill_hole(_seq); raise",  # a scalar that no word holds
        *([] if w.ORDERED_STORES else ["    finally: publish_mark(_seq)"]),
        f"    if not _i & {KEEP_DEAD} and dead: release_dead()",
        f"    if control[{w.SCHEDULER_SLEEPS}]: after()",
        "    if _seq >= limit: make_room(_seq)",
    ]


def _node_lines(op: Operator) -> list[str]:
    needed = " or ".join(f"{n}._node is not None" for n in op.inputs)
    edges = "".join(f"{n}._node, " for n in op.inputs)
    metas = "".join(f"{n}._meta, " for n in op.inputs)
    live = range(len(op.differentiable))
    out_metas = "".join(f"_e[{i + 1}], " for i in live)
    attrs = "".join(f"{n}, " for n in (*op.attrs, *op.scalars))
    lines = [f"    if ({needed}) and (not unrecorded or grad_enabled()):"]
    saved, versions = [], []
    for name in op.saves:
        if name in op.outputs:
            i = op.outputs.index(name)
            lines.append(
                f"        _st = _o{i}._storage = Storage(_s{i}, 0); _a{i} = new(Tensor); "
                f"_a{i}._storage = _st; _a{i}._ref = _s{i}; _a{i}._meta = _e[{i + 1}]; "
                f"_a{i}._node = None"
            )
            saved.append(f"_a{i}")
            versions.append("0")
        else:
            saved.append(name)
            versions.append(f"0 if {name}._storage is None else {name}._storage.version")
    lines.append(
        f"        _node = Node(op, ({edges}), ({''.join(s + ', ' for s in saved)}), "
        f"({''.join(v + ', ' for v in versions)}), ({metas}), ({attrs}), ({out_metas}), _seq)"
    )
    if len(live) == 1:
        lines.append("        _o0._node = _node")
    else:
        lines += [
            f"        if _e[{i + 1}].dtype.is_floating_point: _o{i}._node = OutputEdge(_node, {i})"
            for i in live
        ]
    return lines
