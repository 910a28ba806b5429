"""From a call to an instruction: the eager interpreter.

An `Operator` says what its calls mean; `flowvm.eager.calls` writes the Python function that makes
them.  On a miss `Operator.lower` infers (wrong arguments raise here, on the caller's line),
compiles or loads the kernel and describes the call as an `Invocation`; that becomes an entry of the
VM, and the next call with such metas finds it in the operator's cache.
"""

from __future__ import annotations

import functools
import operator
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import numpy as np

from flowvm.compiler.progress import making
from flowvm.eager import nodes  # noqa: F401 - generated calls make them
from flowvm.eager.autocast import AMP
from flowvm.eager.batched import Batches
from flowvm.eager.call_entry import CallEntry
from flowvm.eager.calls import call_function
from flowvm.eager.global_calls import Globals, is_placed, local_of, mixed
from flowvm.eager.live import Live, now
from flowvm.eager.modes import current_recorder, current_trace_recorder, placed
from flowvm.eager.native.install import callable_of
from flowvm.eager.overrides import hint
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError, DTypeError, ShapeError
from flowvm.guards.lru_cache import LRUCache
from flowvm.meta.arrays import Array
from flowvm.meta.batched_meta import base_device, is_batched
from flowvm.meta.device import Device, cpu
from flowvm.meta.device import meta as nowhere
from flowvm.meta.dtype import MINIFLOATS, DType, on_default_dtype
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.meta.unique import Unique
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.tracebacks import install
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import ENT, KIND, OPERAND

BRIEF = 1 << 16  # bytes of operands that a thread which waits goes through itself
LARGE = 1 << 16  # bytes that a call allocates, for which dead tensors are released first


@dataclass(frozen=True)
class Invocation:
    """The kernel, layout and sizes for one (operator, metas, attributes)."""

    outputs: tuple[TensorMeta, ...]  # a mut2 output's meta has in shape[0] the most it can be
    kernel: int
    layout: Array
    units: int = 1
    grain: int = 1
    scratch: int = 0
    scalar_pack: str = ""  # struct codes of the dynamic scalars, "q" or "d" each
    phases: tuple[tuple[int, int], ...] = ()  # (units, grain) of those after the first
    blocks: tuple[int, ...] = ()  # elements of each operand that a unit is alone with: see Launch
    arena: int = 0  # bytes of it that are used
    stream: int = 0  # of a device's instructions, or a lane's: where they go by default


operators: weakref.WeakSet[Operator] = weakref.WeakSet()  # all there are


@dataclass(eq=False)
class Operator(Unique):
    """A kind of instruction.  `flowvm.ops.declare.registry` makes them from declarations."""

    name: str
    inputs: tuple[str, ...]  # names; those in `writes` are mut
    outputs: tuple[str, ...]  # fresh ones
    lower: Callable[[tuple[TensorMeta, ...], Attrs], Invocation]
    attrs: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()  # names of dynamic numbers
    scalar_kinds: str = ""  # "d" float or "q" int each
    writes: frozenset[str] = frozenset()
    unsized: frozenset[str] = frozenset()  # mut2 outputs
    saves: tuple[str, ...] = ()  # operands that the gradient needs
    constants: frozenset[str] = frozenset()  # outputs without a place in the graph
    grad: Callable[..., object] | None = None
    # called on a miss with the call's arguments: a result if the call must be made some other way
    # (numbers among the tensors, float16, strides that the kernel does not take), else None
    fallback: Callable[..., object] = lambda *args: None
    form: Any = None  # what it was made of, for who wants to make more of it: see ops.elementwise
    # what `lower` makes the CPU's call of: infer(metas, attrs) gives a Launch or the like
    infer: Callable[..., Any] | None = None
    everywhere: bool = False  # `lower` is for every device: it copies between them
    cuda: str | Callable[..., Any] | Callable[..., Any] = (
        ""  # its CUDA rule, or where that is, if it has one: see ops.registry.op
    )
    # an output may lie exactly where an input does that has its arrangement: the kernel reads each
    # element before it writes it
    aliases: bool = False
    dense: bool = False  # its infer and kernel rely on inputs that are contiguous
    refills: bool = False  # in place, it makes nothing of what was there
    complex: bool = False  # takes complex numbers
    amp: str = ""  # the rule by which autocast converts its inputs, "" for none
    # the rule of its SBP letters, of (metas, attrs, outs), None if it says none: see
    # flowvm.ops.declare.letters
    letters: Callable[[Any, Any, Any], Any] | None = None
    shaped: str = ""  # the attribute that is the shape of its first output
    facts: dict[object, object] = field(
        default_factory=dict
    )  # of single rooms: flowvm.ops.declare.facts
    minifloats: bool = False  # takes floats of 8 bits: it moves, converts or compares elements
    # of an operator made at run time: (maker, arguments), which makes it again; see ops.recipes
    recipe: tuple[str, tuple[Any, ...]] | None = None
    # the operator of `op(tensor, number)`, where `fallback` makes such a call with it
    numbered: Callable[[], Operator] | None = None
    # the operator whose result goes over its first input here: see `going_over`
    over: Operator | None = None
    keywords: tuple[str, ...] = ()  # of calls, if not the names of inputs, attributes and scalars
    site: object = field(init=False, default=None, repr=False)  # for native calls
    lru: LRUCache = field(default_factory=lambda: LRUCache("calls"))
    cache: dict[object, object] = field(init=False)  # where calls look: the young of `lru`
    twin: Callable[..., object] = field(init=False)  # the Python function that issues calls
    call: Callable[..., Any] = field(init=False)  # that, or compiled code that does the same

    def __post_init__(self) -> None:
        if self.amp and self.amp not in AMP:
            raise ArgumentError(f"{self.name}: amp is one of {', '.join(AMP)}, not {self.amp!r}")
        self.cache = self.lru.young
        engine.entries.on_full.append(self.lru.forget)
        self.twin = call_function(self, keywords=self.keywords)
        self.call = callable_of(self)
        operators.add(self)

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The outputs that have a place in the graph; they come first."""
        return tuple(n for n in self.outputs if n not in self.constants)

    def __repr__(self) -> str:
        return f"<Operator {self.name}>"


@dataclass(frozen=True)
class EntryInfo:
    """Facts about an entry for messages and traces."""

    name: str
    operands: str
    metas: tuple[TensorMeta, ...]  # outputs first
    names: tuple[str, ...]
    operator: Operator


# --- making entries -----------------------------------------------------------------------------


def _checked(op: Operator, tensors: Sequence[Any]) -> tuple[TensorMeta, ...]:
    for name, t in zip(op.inputs, tensors, strict=True):
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(
                f"{op.name}: argument {name!r} must be a Tensor, got {type(t).__name__} "
                f"({short(t)}); make one with flow.tensor(...){hint(t)}"
            )
    metas = tuple(t._meta for t in tensors)
    if len({m.device for m in metas}) > 1 and len({base_device(m.device) for m in metas}) > 1:
        if any(map(is_placed, metas)):
            if not (Globals.meeting() and all(map(is_placed, metas))):
                raise mixed(op.name, op.inputs, metas)
            return metas
        places = ", ".join(f"{n} on {m.device}" for n, m in zip(op.inputs, metas, strict=True))
        raise DeviceError(f"{op.name}: all tensors must be on one device, got {places}")
    return metas


def short(value: object) -> str:
    """Return the repr of a wrong argument for a message, cut to 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _fallback(op: Operator, tensors: Any, attrs: Attrs, scalars: Any) -> object:
    """On a miss: the result, if the call must be made some other way, else None.

    So must one with attributes that are no plain values: what is no plain value does not come
    further than here.
    """
    for value in attrs:
        kind = value.__class__
        if kind not in _PLAIN and (kind is not tuple or not _PLAIN.issuperset(map(type, value))):
            plain = _plain(attrs)
            if plain is not attrs:
                return op.call(*tensors, *plain, *scalars)
            break
    return op.fallback(*tensors, *attrs, *scalars)


_PLAIN = frozenset((int, float, bool, str, TensorMeta, type(None)))


def _plain(value: Any) -> Any:
    """An attribute without tensors and NumPy's numbers, whose values stand in their place, and
    without anything that stands for an int by its `__index__`; itself if it has none of them.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple):
        plain = [_plain(v) for v in value]
        if all(a is b for a, b in zip(plain, value, strict=True)):
            return value
        return tuple(plain) if value.__class__ is tuple else value.__class__(*plain)
    if isinstance(value, Live):
        return value.fixed()
    if isinstance(value, (Tensor, np.generic)):
        return value.item()
    if hasattr(value.__class__, "__index__") and not isinstance(value, int):
        return operator.index(value)
    return value


def _miss(op: Operator, tensors: Sequence[Tensor], attrs: tuple[object, ...]) -> CallEntry:
    """Make the call's entry.

    A call on global tensors has none yet, nor has one on tensors inside `vmap`: `globally` of
    `flowvm.eager.global_calls` makes it.
    """
    metas = _checked(op, tensors)
    key = (*metas, *attrs)
    entry: CallEntry | None = op.lru.find(key)
    if entry is None and (is_placed(*metas, *attrs) or is_batched(*metas, *attrs)):
        globally: Any = hot["globally"]
        return globally  # type: ignore[no-any-return]
    if entry is None and op.over is None:
        needs = tuple(t._node is not None for t in tensors)
        recorded = op.grad is not None and any(needs) and hot["grad_enabled"]()
        call = (op, metas, attrs, needs) if recorded else None
        first = functools.partial(_foretell, call, get_ident())
        entry = _keep(op, key, _entry(op, metas, attrs, None, first=first))
    elif entry is None:
        assert op.over is not None
        changed = 0 if op.over.refills else OPERAND.UPDATED
        entry = _keep(op, key, _entry(op.over, metas, attrs, metas[:1], changed))
    return entry


# called with a call whose gradient will be asked for, before its kernels are compiled: operator,
# metas, attributes, and which of its tensors have a place in the graph
on_recorded: list[Callable[[Operator, Any, Any, tuple[bool, ...]], None]] = []
# called before a call's kernels are compiled, with the identifier of its thread
on_missing: list[Callable[[int], None]] = []


def _foretell(call: tuple[Operator, object, object, tuple[bool, ...]] | None, thread: int) -> None:
    if call is not None:
        for hook in on_recorded:
            hook(*call)
    for missing in on_missing:
        missing(thread)


def keep_global(
    op: Operator, metas: tuple[GlobalMeta, ...], attrs: Attrs, outs: tuple[GlobalMeta, ...]
) -> None:
    """Keep the entry of a call on global tensors that the parts here alone can make: from now on
    it is issued as a call on local ones.
    """
    local = _entry(op, tuple(map(local_of, metas)), tuple(map(local_of, attrs)), None)
    held = zip(outs, local.outputs, strict=True)
    metas_held = tuple(o.with_local(m) for o, m in held)
    entry = CallEntry(local.word, metas_held, local.large, local.scalar_pack)
    _keep(op, (*metas, *attrs), entry)


def going_over(op: Operator) -> Operator:
    """The operator of calls of `op`, which has one output, that write it over their first input.

    It is for calls that nothing is recorded of and whose other operands have memory of their own:
    who calls it sees to that, or leaves it to `call_into`.
    """
    return Operator(
        f"{op.name}_",
        op.inputs,
        (),
        op.lower,
        attrs=op.attrs,
        scalars=op.scalars,
        scalar_kinds=op.scalar_kinds,
        writes=frozenset(op.inputs[:1]),
        minifloats=op.minifloats,
        over=op,
    )


def keep_batched(
    op: Operator,
    metas: tuple[object, ...],
    attrs: Attrs,
    outs: tuple[TensorMeta, ...],
    physical: tuple[object, ...],
) -> bool:
    """Keep the entry of a call on tensors inside `vmap`, whose metas are `metas`, if there is one
    of the call that makes it, `physical`: from now on it is issued as that.
    """
    entry: CallEntry | None = op.lru.find(physical)
    if entry is None:
        return False
    _keep(op, (*metas, *attrs), CallEntry(entry.word, outs, entry.large, entry.scalar_pack))
    return True


ENTRY_BYTES = 3000  # of an entry of a call in the VM, with what is known of it, without its layout


def _keep(op: Operator, key: tuple[object, ...], entry: CallEntry) -> CallEntry:
    layout = engine.entries.info[entry.word & ENT.MASK][1][0]
    cached: CallEntry = op.lru.put(key, entry, ENTRY_BYTES + layout.nbytes)
    return cached


# how a call is lowered for a device type other than the CPU
lowerings: dict[str, Callable[[Operator, tuple[TensorMeta, ...], Attrs], Invocation]] = {}


def device_of(metas: tuple[TensorMeta, ...], attrs: tuple[object, ...]) -> Device:
    """Return the device of a call: that of its tensors; a creation op has its output's meta, or its
    device, among `attrs`.
    """
    for value in (*metas, *attrs):
        if isinstance(value, TensorMeta):
            return value.device
        if isinstance(value, Device):
            return value
    return cpu


def lowered(
    op: Operator,
    metas: tuple[TensorMeta, ...],
    attrs: tuple[object, ...],
    first: Callable[[], None] | None = None,
) -> Invocation:
    """Lower a call on its device; `first` is called before a kernel is compiled."""
    device = device_of(metas, attrs)
    for value in (*metas, *attrs):
        dtype = value.dtype if isinstance(value, TensorMeta) else value
        if isinstance(dtype, DType) and (dtype.is_complex or dtype.name in HOST_ONLY):
            places = (device, *attrs) if op.everywhere else (device,)
            check_kernels(op, dtype, [p for p in places if isinstance(p, Device)])
    install()  # a Ctrl-C may come while the first kernel is compiled, before the VM has started
    with making(op.name, first):
        if device is cpu or op.everywhere:
            return op.lower(metas, attrs)
        return lowerings[device.type](op, metas, attrs)


# dtypes, beside complex ones
HOST_ONLY = frozenset({"uint16", "uint32", "uint64", *(dtype.name for dtype in MINIFLOATS)})


def check_kernels(op: Operator, dtype: DType, devices: Sequence[Device]) -> None:
    """An error where an operator has no kernel for a dtype on one of the devices of its call."""
    on_cuda = any(device.type == "cuda" for device in devices)
    if dtype.name in HOST_ONLY:
        if on_cuda:
            other = "another float" if dtype.minifloat else "a signed integer or uint8"
            raise DeviceError(
                f"{op.name}: {dtype.name} tensors are not on CUDA; convert with .to() to {other}"
            )
        if dtype.minifloat and not op.minifloats:
            raise DTypeError(
                f"{op.name} is not defined for {dtype.name}, which is to store numbers; convert "
                f"with .to(flow.float32) first"
            )
        return
    if on_cuda:
        raise DeviceError(
            f"{op.name}: complex tensors are not on CUDA; move view_as_real(...) to the "
            f"device, or compute there with .real and .imag"
        )
    if not op.complex:
        raise DTypeError(
            f"{op.name} is not defined for {dtype.name}; take .real, .imag, abs() or "
            f"view_as_real(...) first"
        )


def _check_written(op: Operator, metas: Sequence[TensorMeta]) -> None:
    """An error where elements that are to be written lie on each other: which of them stays?"""
    for meta in metas:
        if meta.numel and any(
            n > 1 and s == 0 for n, s in zip(meta.shape, meta.stride, strict=True)
        ):
            raise ShapeError(
                f"{op.name}: cannot write into a tensor of shape {tuple(meta.shape)} and strides "
                f"{meta.stride}, several of whose elements lie in one place; write into a clone()"
            )


def _entry(
    op: Operator,
    metas: tuple[TensorMeta, ...],
    attrs: tuple[object, ...],
    into: tuple[TensorMeta, ...] | None,
    updated: int = OPERAND.UPDATED,
    first: Callable[[], None] | None = None,
) -> CallEntry:
    if metas and not (op.refills and op.form):  # else all elements become the same number
        written = [m for n, m in zip(op.inputs, metas, strict=True) if n in op.writes]
        _check_written(op, (*(into or ()), *written))
    invocation = lowered(op, metas if into is None else (*into, *metas), attrs, first)
    access, sizes = [], []
    for name, meta in zip(op.outputs, invocation.outputs, strict=True):
        if into is not None:
            access.append(OPERAND.MUT | updated)
            sizes.append(0)
        elif name in op.unsized:
            access.append(OPERAND.MUT2 | OPERAND.ALLOCATE)
            rows = max(1, meta.shape[0])
            sizes.append(meta.nbytes // rows if meta.numel else meta.dtype.itemsize)
        else:
            access.append(OPERAND.MUT | OPERAND.ALLOCATE)
            sizes.append(0 if meta.device is nowhere else meta.nbytes)
    changed = OPERAND.MUT | (0 if op.refills else updated)
    access += [changed if name in op.writes else OPERAND.CONST for name in op.inputs]
    sizes += [0] * len(op.inputs)
    names = (*op.outputs, *op.inputs)
    kinds = [("mut2" if n in op.unsized else "mut") for n in op.outputs]
    kinds += ["mut" if n in op.writes else "const" for n in op.inputs]
    all_metas = (*invocation.outputs, *metas)
    text = " · ".join(f"{k} {n} {m!r}" for k, n, m in zip(kinds, names, all_metas, strict=True))
    word = engine.entries.new(
        KIND.OP_CALL,
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
        brief=_is_brief(invocation, all_metas),
        stream=invocation.stream,
        info=EntryInfo(op.name, text, all_metas, names, op),
    )
    large = sum(sizes) >= LARGE
    return CallEntry(word, tuple(invocation.outputs), large, invocation.scalar_pack)


def _is_brief(invocation: Invocation, metas: Sequence[TensorMeta]) -> bool:
    """Return True if a call ends within some microseconds.  It runs on the CPU, needs little
    memory, and its op declares that it is not worth waking a thread.
    """
    if invocation.stream or any(meta.device is not cpu for meta in metas):
        return False
    if sum(meta.nbytes for meta in metas) + invocation.scratch > BRIEF:
        return False
    pieces = ((invocation.units, invocation.grain), *invocation.phases)
    return invocation.grain > 1 and all(units <= grain for units, grain in pieces)


def call_into(
    op: Operator,
    outs: tuple[Tensor, ...],
    tensors: tuple[Tensor, ...],
    attrs: tuple[object, ...] = (),
    scalars: tuple[object, ...] = (),
    traced: bool = False,
) -> int:
    """Issue `op` with its outputs written into existing tensors: the instruction's number.

    traced  this thread's trace recorder is told of it: it has one output, and counts its
            version when this returns

    `op.lower` gets the outputs' metas in front of the inputs'.  Records nothing for autograd and
    counts no version: the caller does.
    """
    metas = _checked(op, tensors)
    into = tuple(o._meta for o in outs)
    updated = OPERAND.UPDATED if tensors and tensors[0] is outs[0] and not op.refills else 0
    key = ("into", updated, *into, *metas, *attrs)
    entry: CallEntry | None = op.lru.find(key)
    if entry is None:
        if is_placed(*into, *metas):
            return Globals.call_into(op, outs, tensors, attrs, scalars)
        if is_batched(*into, *metas):
            return Batches.call_into(op, outs, tensors, attrs, scalars)
        if len({m.device for m in (*into, *metas)}) > 1:
            places = ", ".join(str(m.device) for m in metas)
            raise DeviceError(
                f"{op.name}: the output is a tensor on {into[0].device}, and the inputs are on "
                f"{places}; all must be on one device"
            )
        entry = _keep(op, key, _entry(op, metas, attrs, into, updated))
    pack = entry.scalar_pack[::-1] or op.scalar_kinds
    words = [
        struct.unpack("q", struct.pack("d", v))[0] if k == "d" else int(v)
        for k, v in zip(pack, map(now, scalars), strict=True)
    ]
    operands = [*(o._ref for o in outs), *(t._ref for t in tensors)]
    recorder = current_recorder()
    if recorder is not None:
        word = recorder.record(op, entry, outs, tensors, attrs, scalars, into=True)
    else:
        word = placed(entry.word)
    if traced and (trace := current_trace_recorder()) is not None:
        trace.record(op, entry, outs, tensors, attrs, scalars, into=True)
    return engine.records.issue(word, operands, words, traced=traced)


def _unsized(op: Operator, out: Tensor, most: TensorMeta) -> None:
    """Leave a mut2 output's meta unset: whoever needs its shape waits for the kernel."""
    del out._meta
    recorder = current_recorder()
    if recorder is not None:
        out._pending = recorder.size_of(out, most)
        return
    ref = out._ref  # not `out`, which keeps the function

    def pending() -> TensorMeta:
        engine.waits.wait_for([ref])
        return most.with_shape((engine.storages.rows(ref), *most.shape[1:]))

    out._pending = pending


on_default_dtype.append(engine.entries.forget)  # by which results of integers were inferred
hot.update({"fallback": _fallback, "miss": _miss, "unsized": _unsized})
