"""From a call to an instruction: the eager interpreter.

An `Operator` says what its calls mean, in the records of `flowvm.eager.declaration`;
`flowvm.eager.calls` writes the Python function that makes them.  On a miss `Kernel.lower` infers
(wrong arguments raise here, on the caller's line), compiles or loads the kernel and describes the
call as an `Invocation`; that becomes an entry of the VM, and the next call with such metas finds it
in the operator's cache.
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
from flowvm.eager.declaration import Invocation, Kernel, Origin, Rules, Signature
from flowvm.eager.global_calls import Globals, is_placed, local_of, mixed
from flowvm.eager.live import Live, now
from flowvm.eager.modes import current_recorder, current_trace_recorder, placed
from flowvm.eager.native.install import callable_of
from flowvm.eager.overrides import hint
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError, DTypeError, ShapeError
from flowvm.guards.lru_cache import LRUCache
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


operators: weakref.WeakSet[Operator] = weakref.WeakSet()  # all there are


@dataclass(eq=False, slots=True, weakref_slot=True)
class Operator(Unique):
    """A kind of instruction.  `flowvm.ops.declare.registry` makes them from declarations."""

    name: str
    signature: Signature
    kernel: Kernel
    grad: Callable[..., object] | None = None
    saves: tuple[str, ...] = ()  # operands that the gradient needs
    constants: frozenset[str] = frozenset()  # outputs without a place in the graph
    rules: Rules = field(default_factory=Rules)
    origin: Origin = field(default_factory=Origin)
    facts: dict[object, object] = field(default_factory=dict)  # flowvm.ops.declare.facts
    # the operator of `op(tensor, number)`, where the fallback makes such a call with it
    numbered: Callable[[], Operator] | None = None
    # the operator whose result goes over its first input here: see `going_over`
    over: Operator | None = None
    site: object = field(init=False, default=None, repr=False)  # for native calls
    lru: LRUCache = field(
        default_factory=functools.partial(LRUCache, "calls")
    )  # calls look at its young
    twin: Callable[..., object] = field(init=False)  # the Python function that issues calls
    call: Callable[..., Any] = field(init=False)  # that, or compiled code that does the same

    def __post_init__(self) -> None:
        if (amp := self.rules.amp) and amp not in AMP:
            raise ArgumentError(f"{self.name}: amp is one of {', '.join(AMP)}, not {amp!r}")
        engine.entries.on_full.append(self.lru.forget)
        self.twin = call_function(self, keywords=self.signature.keywords)
        self.call = callable_of(self)
        operators.add(self)

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The outputs that have a place in the graph; they come first."""
        return tuple(n for n in self.signature.outputs if n not in self.constants)

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
    for name, t in zip(op.signature.inputs, tensors, strict=True):
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(
                f"{op.name}: argument {name!r} must be a Tensor, got {type(t).__name__} "
                f"({short(t)}); make one with flow.tensor(...){hint(t)}"
            )
    metas = tuple(t._meta for t in tensors)
    if len({m.device for m in metas}) > 1 and len({base_device(m.device) for m in metas}) > 1:
        if any(map(is_placed, metas)):
            if not (Globals.meeting() and all(map(is_placed, metas))):
                raise mixed(op.name, op.signature.inputs, metas)
            return metas
        places = ", ".join(
            f"{n} on {m.device}" for n, m in zip(op.signature.inputs, metas, strict=True)
        )
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
    return op.rules.fallback(*tensors, *attrs, *scalars)


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
        changed = 0 if op.over.kernel.refills else OPERAND.UPDATED
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
    signature = op.signature._replace(
        outputs=(), writes=frozenset(op.signature.inputs[:1]), shaped="", keywords=()
    )
    kernel = Kernel(op.kernel.lower, minifloats=op.kernel.minifloats)
    return Operator(f"{op.name}_", signature, kernel, over=op)


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
            places = (device, *attrs) if op.kernel.everywhere else (device,)
            check_kernels(op, dtype, [p for p in places if isinstance(p, Device)])
    install()  # a Ctrl-C may come while the first kernel is compiled, before the VM has started
    with making(op.name, first):
        if device is cpu or op.kernel.everywhere:
            return op.kernel.lower(metas, attrs)
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
        if dtype.minifloat and not op.kernel.minifloats:
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
    if not op.kernel.complex:
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
    signature = op.signature
    alike = op.kernel.refills and op.origin.form  # all elements become the same number
    if metas and not alike:
        _check_written(op, (*(into or ()), *signature.written(metas)))
    invocation = lowered(op, metas if into is None else (*into, *metas), attrs, first)
    access, sizes = [], []
    for name, meta in zip(signature.outputs, invocation.outputs, strict=True):
        if into is not None:
            access.append(OPERAND.MUT | updated)
            sizes.append(0)
        elif name in signature.unsized:
            access.append(OPERAND.MUT2 | OPERAND.ALLOCATE)
            rows = max(1, meta.shape[0])
            sizes.append(meta.nbytes // rows if meta.numel else meta.dtype.itemsize)
        else:
            access.append(OPERAND.MUT | OPERAND.ALLOCATE)
            sizes.append(0 if meta.device is nowhere else meta.nbytes)
    changed = OPERAND.MUT | (0 if op.kernel.refills else updated)
    access += [changed if name in signature.writes else OPERAND.CONST for name in signature.inputs]
    sizes += [0] * len(signature.inputs)
    names = signature.operands
    kinds = [("mut2" if n in signature.unsized else "mut") for n in signature.outputs]
    kinds += ["mut" if n in signature.writes else "const" for n in signature.inputs]
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
        scalars=len(invocation.scalar_pack or signature.scalar_kinds),
        prepare=bool(signature.unsized),
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

    `op.kernel.lower` gets the outputs' metas in front of the inputs'.  Records nothing for autograd
    and counts no version: the caller does.
    """
    renewed = hot["renewed"]
    metas = _checked(op, tensors)
    into = tuple(o._meta for o in outs)
    updated = OPERAND.UPDATED if tensors and tensors[0] is outs[0] and not op.kernel.refills else 0
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
    pack = entry.scalar_pack[::-1] or op.signature.scalar_kinds
    words = [
        struct.unpack("q", struct.pack("d", v))[0] if k == "d" else int(v)
        for k, v in zip(pack, map(now, scalars), strict=True)
    ]
    together = (*outs, *tensors)
    operands = [t._ref for t in together]
    held = [t.storage() for t in together]  # until the record is published
    if hot["renewed"] is not renewed:  # the metas may be of other places
        return call_into(op, outs, tensors, attrs, scalars, traced)
    recorder = current_recorder()
    if recorder is not None:
        word = recorder.record(op, entry, outs, tensors, attrs, scalars, into=True)
    else:
        word = placed(entry.word)
    if traced and (trace := current_trace_recorder()) is not None:
        trace.record(op, entry, outs, tensors, attrs, scalars, into=True)
    number = engine.records.issue(word, operands, words, traced=traced)
    del held
    return number


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
