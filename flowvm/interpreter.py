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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Protocol

import numpy as np

from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError
from flowvm.live import Frozen, Live, freeze
from flowvm.meta import TensorMeta
from flowvm.tensor import Storage, Tensor, alias
from flowvm.vm import layout as w
from flowvm.vm.engine import CALL_STREAM, engine, hot
from flowvm.vm.lines import INTERNAL

__all__ = [
    "Invocation",
    "Node",
    "Operator",
    "Recorder",
    "call_function",
    "call_into",
    "current_recorder",
    "current_stream",
    "find_user",
    "grad_enabled",
    "pin_user_line",
    "recording_to",
    "set_grad_enabled",
    "unpin_user_line",
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


@dataclass(eq=False)
class Operator:
    """A kind of instruction.  `flowvm.ops.registry` makes them from declarations."""

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
    cache: dict[Any, Any] = field(default_factory=dict)
    call: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        engine.on_entries_full.append(self.cache.clear)
        self.call = call_function(self)

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
    """

    __slots__ = ("_saved", "attrs", "edges", "extra", "metas", "operator", "out_metas", "versions")
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
    ) -> None:
        self.operator = operator
        self.edges = edges
        self._saved: tuple[Tensor, ...] | None = saved
        self.versions = versions
        self.metas = metas
        self.attrs = attrs
        self.out_metas = out_metas

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
        saved = self._saved
        if saved is None:
            from flowvm.errors import AutogradError

            raise AutogradError(
                f"backward through {self.operator.name} a second time: what it saved was freed by "
                f"the first.  Give the first backward retain_graph=True"
            )
        for tensor, version in zip(saved, self.versions, strict=True):
            if tensor._storage is not None and tensor._storage.version != version:
                from flowvm.errors import AutogradError

                raise AutogradError(
                    f"{self.operator.name} saved a tensor of shape {tuple(tensor.shape)} for its "
                    f"gradient, and it was changed in place since (version {tensor.version}, saved "
                    f"at {version}).  Work on a clone()"
                )
        return self._recorded_outputs(saved) if saved and _modes.grad else saved

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
    user: tuple[Any, int] | None = None  # while a line is pinned: what everything is attributed to
    stream = CALL_STREAM
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

    phase: str
    scope: str


_modes = _Modes()
hot.update(unrecorded=0, departed=0, grad_enabled=lambda: _modes.grad)
_count_lock = threading.Lock()


def _count(mode: str, change: int) -> None:
    with _count_lock:
        hot[mode] += change


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
def recording_to(recorder: Recorder) -> Iterator[None]:
    """Tell `recorder` of this thread's operations instead of computing them."""
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
    stream = _modes.stream
    if stream != CALL_STREAM:  # remember the outputs: their ReleaseTensor must run there
        for out in outputs:
            engine.stream_of[out._ref] = stream
    word: int = made[0] | stream << w.ENTRY_BITS
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


def _entry(
    op: Operator,
    metas: tuple[TensorMeta, ...],
    attrs: tuple[Any, ...],
    into: tuple[TensorMeta, ...] | None,
) -> tuple[Any, ...]:
    invocation = op.lower(metas, attrs) if into is None else op.lower((*into, *metas), attrs)
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
    return (number, *invocation.outputs, large, invocation.scalar_pack)


def call_into(
    op: Operator,
    outs: tuple[Tensor, ...],
    tensors: tuple[Tensor, ...],
    attrs: tuple[Any, ...] = (),
    scalars: tuple[Any, ...] = (),
) -> None:
    """Issue `op` with its outputs written into existing tensors.

    `op.lower` gets the outputs' metas in front of the inputs'.  Records nothing for autograd and
    counts no version: the caller does.
    """
    metas = _checked(op, tensors)
    into = tuple(o._meta for o in outs)
    key = ("into", *into, *metas, *attrs)
    made = op.cache.get(key)
    if made is None:
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
        word = made[0] | current_stream() << w.ENTRY_BITS
    engine.issue(word, operands, words)


def _unsized(op: Operator, out: Tensor, most: TensorMeta) -> None:
    """Leave a mut2 output's meta unset: whoever needs its shape waits for the kernel."""
    del out._meta
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
    body = textwrap.indent(_source(op), "    ")
    source = f"def make({', '.join(own)}):\n{body}    return call\n"
    filename = f"<flowvm call {op.name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    made: dict[str, Any] = {}
    exec(_from_file(_compiled(source), filename), hot, made)
    call: Callable[..., Any] = made["make"](**own)
    call.__name__ = call.__qualname__ = op.name
    return call


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
    pinned: tuple[Any, int] | None = _modes.user
    if pinned is not None:
        return pinned
    while frame is not None:
        name = frame.f_code.co_filename
        if name in _user_files:
            return frame.f_code, frame.f_lasti
        if not INTERNAL[name]:
            _user_files.add(name)
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None, 0


def pin_user_line() -> Any:
    """Attribute what this thread issues from now on to the user's present line.

    `unpin_user_line` takes the result and undoes it.  For code that issues a lot from far below the
    user's frame (backward), where finding it each time would cost more than issuing.
    """
    before = _modes.user
    if before is None:
        _modes.user = find_user(sys._getframe(1))
    return before


def unpin_user_line(before: Any) -> None:
    """Undo `pin_user_line`."""
    _modes.user = before


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
    find_user=find_user,
    as_number=_number,
)


def _source(op: Operator) -> str:
    params = [*op.inputs, *op.attrs, *op.scalars]
    tensors = "".join(f"{n}, " for n in op.inputs)
    attrs = "".join(f"{n}, " for n in op.attrs)
    key = "".join(f"{n}._meta, " for n in op.inputs) + attrs
    lines = [
        f"def call({', '.join(params)}):",
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
    n_words = len(op.inputs) + len(op.outputs) + len(op.scalars) + 2
    operands = [f"_s{i}" for i in range(len(op.outputs))] + [f"{n}._ref" for n in op.inputs]
    values = [*reversed(op.scalars), *reversed(operands), "_word"]
    values.append("_seq + 1" if w.ORDERED_STORES else "0")
    back = (w.RECORD_WORDS - n_words) * 8
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
        "    for _seq in counter: break",
        f"    _i = _seq & {w.SLOT_MASK}; codes[_i] = _c; lasts[_i] = _last",
        f"    try: _write(ring, (_i << 8) + {back}, {', '.join(values)})",
        "    except struct_errors: fill_hole(_seq); raise",  # a scalar that no word holds
        *([] if w.ORDERED_STORES else ["    finally: publish_mark(_seq)"]),
        f"    if not _i & {KEEP_DEAD} and dead: release_dead()",
        f"    if control[{w.SCHEDULER_SLEEPS}]: after()",
        "    if _seq >= limit: make_room(_seq)",
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
    return "\n".join(lines) + "\n"


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
        f"({''.join(v + ', ' for v in versions)}), ({metas}), ({attrs}), ({out_metas}))"
    )
    if len(live) == 1:
        lines.append("        _o0._node = _node")
    else:
        lines += [
            f"        if _e[{i + 1}].dtype.is_floating_point: _o{i}._node = OutputEdge(_node, {i})"
            for i in live
        ]
    return lines
