"""Tensors and the rest of Python: DLPack, NumPy functions, pickle and copy.

What is shared and for how long:

- `numpy()`, `np.asarray(t)` and NumPy functions on tensors copy.  DLPack and
  `t.__array__(copy=False)` share memory; they wait for the tensor's writer, so what they hand out
  is there.  After that the VM does not know of the other side's reads and writes, nor the other
  side of the VM's: an in-place op issued later happens under the sharer's eyes.
- An exported array keeps the memory, not the Tensor: the tensor may go, and its ReleaseTensor comes
  when the array has gone too.
- An imported array is kept by the tensor's storage, and let go some time after the ReleaseTensor of
  its last tensor has run.
- Tensors that share a storage share one again in a copy.deepcopy, and in a pickle, of an object
  that has them; all of the storage goes with each, as in PyTorch: clone a small view first.
- The same holds on CUDA devices, where `__cuda_array_interface__` shares memory too; see
  `flowvm.cuda.exchange` for the order with other libraries' streams.

Unpickling runs what a pickle says, whatever is in it besides tensors: never unpickle what you do
not trust.  Files of others are for `flow.load`, which opens no pickle.

NumPy writes and reads the DLPack capsules.  A capsule's deleter may run anywhere: without the GIL,
while an exception propagates, after the interpreter has gone.  NumPy's C code is right in all of
these places; a deleter in Python cannot be.

Long because pickles name what builds their tensors by this file.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from flowvm.eager.modes import current_recorder
from flowvm.eager.reading import adopt_array, memory_of, values_of, wait_for
from flowvm.eager.tensor import Storage, Tensor, alias, method, new_tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError, DeviceError
from flowvm.interop.capsules import (
    CODES,
    UNSIGNED,
    device_of,
    dtype_code,
    is_used,
    marked,
    retyped,
)  # fmt: skip
from flowvm.loading.lazy import lazy
from flowvm.meta.device import cpu
from flowvm.meta.device import meta as nowhere
from flowvm.meta.dtype import DType, dtype_named, uint8
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND, STO

if TYPE_CHECKING:
    from flowvm.cuda import exchange
else:
    exchange = lazy("flowvm.cuda.exchange")

CPU = (1, 0)
# DLPack's device types: name, and whether the CPU reads their memory
_DEVICES = {1: ("CPU", True), 2: ("CUDA", False), 3: ("CUDA host", True), 4: ("OpenCL", False)}
_DEVICES |= {7: ("Vulkan", False), 8: ("Metal", False), 10: ("ROCm", False)}
_DEVICES |= {11: ("ROCm host", True), 13: ("CUDA managed", True), 14: ("oneAPI", False)}


# --- DLPack ---------------------------------------------------------------------------------------


@method("__dlpack_device__")
def _dlpack_device(t: Tensor) -> tuple[int, int]:
    return (2, t._meta.device.index or 0) if t._meta.device.type == "cuda" else CPU


@method("__dlpack__")
def _dlpack(
    t: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    if t._meta.device is nowhere:
        raise BufferError(f"__dlpack__: a tensor on the meta device has no values: {t._meta!r}")
    here = _dlpack_device(t)
    if stream is not None and (here == CPU or not _is_stream(stream)):
        raise ArgumentError(f"__dlpack__: a tensor on {t.device} takes no stream {stream!r}")
    asked = here if dl_device is None else tuple(map(int, dl_device))
    if asked != here and (asked != CPU or copy is False):
        raise BufferError(f"__dlpack__: the tensor is on {t.device} {here}, not on {asked}")
    if t.requires_grad:
        raise BufferError(
            "a tensor that requires grad cannot be exported, changes to it would bypass autograd; "
            "use t.detach()"
        )
    if asked == CPU:
        memory = memory_of(t)
        capsule = _capsule(memory.copy() if copy else memory, max_version)
    else:
        memory = exchange.exported(t.detach().clone() if copy else t)
        capsule = marked(_capsule(memory, max_version), asked)
    code = CODES.get(t._meta.dtype.name)
    return capsule if code is None else retyped(capsule, code)


def _is_stream(number: Any) -> bool:
    """Whether DLPack has it: -1 for none, 1 and 2 for the default ones, or a handle; 0 is neither.

    Which of them it is does not matter: what goes out has been computed.
    """
    return isinstance(number, int) and number >= -1 and number != 0


def _capsule(memory: np.ndarray[Any, Any], max_version: tuple[int, int] | None) -> Any:
    if max_version is None:
        return memory.__dlpack__()
    try:
        return memory.__dlpack__(max_version=max_version)
    except TypeError:  # NumPy before 2.1; a consumer must take unversioned capsules too
        return memory.__dlpack__()


def _cuda_array_interface(t: Tensor) -> dict[str, Any]:
    """How CuPy, Numba and others see a CUDA tensor; its memory is shared, see `__dlpack__`."""
    if t._meta.device.type != "cuda":
        raise AttributeError(f"a tensor on {t._meta.device} has no __cuda_array_interface__")
    return exchange.interface(t)


Tensor.__cuda_array_interface__ = property(_cuda_array_interface)  # type: ignore[attr-defined]


class _Producer:
    """What NumPy imports from, so that the kind of capsule it gets is seen."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.versioned = False
        self.dtype: DType | None = None  # if it is not the one that NumPy sees

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.source.__dlpack_device__()
        return device

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.source.__dlpack__(**options)
        self.versioned = "dltensor_versioned" in repr(capsule)
        code = dtype_code(capsule)
        for name, known in CODES.items():
            if code == known:
                self.dtype = dtype_named(name)
                retyped(capsule, UNSIGNED)
        return capsule


class _Given:
    """A capsule, as what gives it."""

    def __init__(self, capsule: Any) -> None:
        if is_used(capsule):
            raise ArgumentError("from_dlpack: a capsule hands its memory over once; make another")
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return device_of(self.capsule)

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule


def from_dlpack(obj: Any, *, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of `obj`, an array or tensor of any library that speaks DLPack, or a
    capsule of one, on the CPU or on a CUDA device.

    Memory that kernels cannot use as it is (read-only, negative or zero strides) is copied; `copy`
    False raises ArgumentError instead, `copy` True always copies.  DeviceError if `obj` lies
    elsewhere.

    >>> flow.from_dlpack(np.arange(3))
    tensor([0, 1, 2])
    """
    if type(obj).__name__ == "PyCapsule":
        obj = _Given(obj)
    if not hasattr(type(obj), "__dlpack__") or not hasattr(type(obj), "__dlpack_device__"):
        raise ArgumentTypeError(
            f"from_dlpack: a {type(obj).__name__} has no __dlpack__ and __dlpack_device__; "
            f"make a tensor of it with flow.tensor(...)"
        )
    kind, index = obj.__dlpack_device__()
    if int(kind) == 2:
        return _from_cuda(obj, int(index), copy)
    name, readable = _DEVICES.get(int(kind), (f"DLPack device type {int(kind)}", False))
    if not readable:
        raise DeviceError(
            f"from_dlpack: the data is on {name} device {index}, and flowvm runs on the CPU and on "
            "CUDA devices only; move it there first"
        )
    producer = _Producer(obj)
    array = np.from_dlpack(producer)
    obstacle = "a copy was asked for" if copy else ""
    if not array.flags.writeable:
        if producer.versioned:
            obstacle = obstacle or "the memory is read-only"
        else:  # these capsules cannot say so: whoever gives one lets its memory be written
            array = _writeable(array)
    strides = zip(array.strides, array.shape, strict=True)
    if array.size and any(s <= 0 and d > 1 for s, d in strides):
        obstacle = obstacle or f"strides {array.strides}"
    if not array.flags.aligned:
        obstacle = obstacle or "the memory is not aligned"
    if obstacle and copy is False:
        raise ArgumentError(
            f"from_dlpack: only a copy can be had ({obstacle}); leave out copy=False"
        )
    return adopt_array(array.copy() if obstacle else array, dtype=producer.dtype)


def _from_cuda(obj: Any, index: int, copy: bool | None) -> Tensor:
    producer = exchange.Capsules(obj, index)
    array = producer.array()
    obstacle = "a copy was asked for" if copy else ""
    if producer.versioned and not array.flags.writeable:
        obstacle = obstacle or "the memory is read-only"
    strides = zip(array.strides, array.shape, strict=True)
    if array.size and any(s == 0 and d > 1 for s, d in strides):
        obstacle = obstacle or f"strides {array.strides}"
    if obstacle and copy is False:
        raise ArgumentError(
            f"from_dlpack: only a copy can be had ({obstacle}); leave out copy=False"
        )
    return exchange.tensor_on(array, producer.device, obstacle, producer.dtype)


class _Lender:
    """An array's memory without the array's read-only flag; keeps the array."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self.__array_interface__["strides"] = array.strides


def _writeable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(_Lender(array))


# --- NumPy ----------------------------------------------------------------------------------------

# array + tensor asks the tensor, not NumPy, which would add element by element
Tensor.__array_priority__ = 1000  # type: ignore[attr-defined]


@method("__array__")
def _array(t: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    if copy is False:
        if t._meta.device is not cpu:
            raise ArgumentError(f"a tensor on {t.device} cannot be an array uncopied")
        if np.dtype(t.dtype.numpy if dtype is None else dtype) != t.dtype.numpy:
            raise ArgumentError(f"a {t.dtype.name} tensor cannot be {np.dtype(dtype)} uncopied")
        return memory_of(t)
    return values_of(t).astype(t.dtype.numpy if dtype is None else dtype)


# --- pickle and copy ------------------------------------------------------------------------------


def _whole(t: Tensor) -> Tensor:
    """All bytes of the storage that `t`, which has elements, lies in."""
    at = STO.AT + (t._ref & OPERAND.STORAGE_MASK) * STO.WORDS
    if not engine.words[at + STO.POINTER]:
        wait_for(t)  # whose writer gets the memory
    meta = TensorMeta.of((int(engine.words[at + STO.BYTES]),), uint8, t._meta.device)
    return new_tensor(t._ref & OPERAND.STORAGE_MASK, meta, t.storage())


class _Shared:
    """A storage, for pickles: one object for all tensors on it, so that a pickle has it once."""

    __slots__ = ("__weakref__", "bytes", "storage")

    def __init__(self, t: Tensor) -> None:
        self.storage, self.bytes = t.storage(), _whole(t)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _stored, (memory_of(self.bytes).copy(), str(self.bytes._meta.device))


# by id of the storage; a pickler keeps what it has written, and so the entry
_shared: WeakValueDictionary[int, _Shared] = WeakValueDictionary()


def _shared_of(t: Tensor) -> _Shared:
    found = _shared.get(id(t.storage()))
    if found is None or found.bytes._meta.device is not t._meta.device:
        found = _shared[id(t.storage())] = _Shared(t)
    return found


def _stored(array: np.ndarray[Any, Any], device: str) -> Tensor:
    if not array.flags.writeable:  # out-of-band buffers of pickle 5 may be
        array = array.copy()
    there: Tensor = adopt_array(array).to(device)
    return there


def _rebuild_on(
    base: Tensor,
    cls: type[Tensor],
    meta: TensorMeta,
    offset_bytes: int,
    requires_grad: bool,
    attributes: dict[str, Any],
) -> Tensor:
    meta = TensorMeta.of(meta.shape, meta.dtype, base._meta.device, meta.stride)
    if offset_bytes < 0 or offset_bytes + meta.span > base._meta.nbytes:
        raise ArgumentError(
            f"a pickle has a tensor of {meta.span} bytes at {offset_bytes} of a storage of "
            f"{base._meta.nbytes}: it is damaged"
        )
    return _of_class(cls, alias(base, meta, offset_bytes), requires_grad, attributes)


def _rebuild(
    cls: type[Tensor],
    array: np.ndarray[Any, Any],
    requires_grad: bool,
    attributes: dict[str, Any],
    device: str = "cpu",
    dtype: DType | None = None,
) -> Tensor:
    if not array.flags.writeable:  # out-of-band buffers of pickle 5 may be
        array = array.copy()
    made = adopt_array(array, dtype=dtype).to(device)
    return _of_class(cls, made, requires_grad, attributes)


def _rebuild_valueless(
    cls: type[Tensor], meta: TensorMeta, requires_grad: bool, attributes: dict[str, Any]
) -> Tensor:
    there: Any = adopt_array(np.empty(0, np.float32)).to(device=nowhere)
    made = there.new_empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
    return _of_class(cls, made, requires_grad, attributes)


def _of_class(
    cls: type[Tensor], data: Tensor, requires_grad: bool, attributes: dict[str, Any]
) -> Tensor:
    out = data if cls is Tensor else alias(data, data._meta, 0, cls)
    if attributes:
        out.__dict__.update(attributes)
    if requires_grad:
        out.requires_grad_(True)
    return out


def _attributes(t: Tensor) -> dict[str, Any]:
    """What users have set on a tensor of a subclass."""
    return dict(getattr(t, "__dict__", ()))


@method("__reduce_ex__")
def _reduce(t: Tensor, protocol: Any) -> tuple[Any, ...]:
    """By value, outside the graph; tensors of one pickle that share a storage share one again.

    It comes back on the device that it was on, which must be there.
    """
    if isinstance(t._meta, GlobalMeta):
        raise ArgumentTypeError(
            "a global tensor cannot be pickled: other processes hold parts of it; use flow.save, "
            "or pickle its to_local() on each rank"
        )
    if t._meta.device is nowhere:
        facts = type(t), t._meta, t.requires_grad and t.is_leaf, _attributes(t)
        return _rebuild_valueless, facts
    if t._meta.numel == 0:
        return reduced(t, memory_of(t))
    wait_for(t)
    leaf, offset = t.requires_grad and t.is_leaf, t._ref >> OPERAND.STORAGE_BITS
    return _rebuild_on, (_shared_of(t), type(t), t._meta, offset, leaf, _attributes(t))


def reduced(t: Tensor, values: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """What pickle makes a tensor like `t` of, on the memory of `values` alone."""
    facts = type(t), values, t.requires_grad and t.is_leaf, _attributes(t)
    return _rebuild, (*facts, str(t._meta.device), t._meta.dtype)


@method("__copy__")
def _copy(t: Tensor) -> Tensor:
    """Another tensor on the same memory, at the same place in the autograd graph."""
    if not t.is_leaf:
        again: Tensor = t.view_as(t)
        return again
    return _of_class(type(t), alias(t, t._meta), t.requires_grad, _attributes(t))


@method("__deepcopy__")
def _deepcopy(t: Tensor, memo: dict[int, Any]) -> Tensor:
    """A leaf with values, gradient and attributes of its own; copies share a storage where the
    originals of one deepcopy do.
    """
    if id(t) in memo:
        found: Tensor = memo[id(t)]
        return found
    if not t.is_leaf:
        raise AutogradError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol; use t.detach().clone() for the values"
        )
    values = _copied(t, memo)
    out = _of_class(type(t), values, t.requires_grad, {})
    memo[id(t)] = out
    if _attributes(t):
        out.__dict__.update(deepcopy(_attributes(t), memo))
    if t.grad is not None:
        out.grad = deepcopy(t.grad, memo)
    return out


def _copied(t: Tensor, memo: dict[int, Any]) -> Tensor:
    """The values of `t` on the copy of its storage that this deepcopy makes."""
    meta = t._meta
    alone = t._storage is None or isinstance(meta, GlobalMeta) or meta.numel == 0
    if alone or meta.device is nowhere or current_recorder() is not None:
        cloned: Tensor = t.detach().clone()
        return cloned
    storage = t.storage()
    known: tuple[Storage, Tensor] | None = memo.get(id(storage))
    if known is None:
        whole: Any = _whole(t)
        if meta.contiguous and meta.nbytes == whole._meta.nbytes:
            whole = new_tensor(t._ref, meta, storage)  # its dtype's kernel is there already
        known = memo[id(storage)] = storage, whole.clone()  # kept: its id is its own
    return alias(known[1], meta, t._ref >> OPERAND.STORAGE_BITS)
