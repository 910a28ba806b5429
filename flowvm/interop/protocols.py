"""Tensors and the rest of Python: DLPack and NumPy functions.

What is shared and for how long:

- `numpy()`, `np.asarray(t)`, NumPy functions on tensors and DLPack share memory.  They wait for who
  writes or reads it, so what they hand out is there, and may be written.  Calls that access that
  memory later are done when they return, as long as the other side has it: each side sees what the
  other did before (`flowvm.vm.engine.loans`).
- An exported array keeps the memory, not the Tensor: the tensor may go, and its ReleaseTensor comes
  when the array has gone too.
- An imported array is kept by the tensor's storage, and let go some time after the ReleaseTensor of
  its last tensor has run.
- On CUDA devices, where `__cuda_array_interface__` shares memory too, only what was issued before
  is waited for; see `flowvm.cuda.exchange` for the order with other libraries' streams.

NumPy writes and reads the DLPack capsules.  A capsule's deleter may run anywhere: without the GIL,
while an exception propagates, after the interpreter has gone.  NumPy's C code is right in all of
these places; a deleter in Python cannot be.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.native.functions import value_method
from flowvm.eager.native.words import AS_ARRAY
from flowvm.eager.tensor import Tensor, method
from flowvm.eager.values import adopt_array, lent_array, memory_of, values_of
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError
from flowvm.interop.capsules import (
    CODES,
    UNSIGNED,
    device_of,
    is_used,
    kind_of,
    marked,
    retyped,
)  # fmt: skip
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array
from flowvm.meta.device import cpu
from flowvm.meta.device import meta as nowhere
from flowvm.meta.dtype import DType, dtype_named
from flowvm.meta.global_meta import GlobalMeta

if TYPE_CHECKING:
    from flowvm.cuda import exchange
    from flowvm.meta.device import DeviceLike
else:
    exchange = lazy("flowvm.cuda.exchange")

CPU = (1, 0)
# DLPack's device types: name, and whether the CPU reads their memory
_DEVICES = {1: ("CPU", True), 2: ("CUDA", False), 3: ("CUDA host", True), 4: ("OpenCL", False)}
_DEVICES |= {7: ("Vulkan", False), 8: ("Metal", False), 10: ("ROCm", False)}
_DEVICES |= {11: ("ROCm host", True), 13: ("CUDA managed", True), 14: ("oneAPI", False)}


_NAMES = {code: name for name, code in CODES.items()}
PLAIN = frozenset("?bhilqBHILQefdFD")  # characters of NumPy's dtypes that a capsule may have

# --- DLPack ---------------------------------------------------------------------------------------


@method("__dlpack_device__")
def _dlpack_device(t: Tensor) -> tuple[int, int]:
    return (2, t._meta.device.index or 0) if t._meta.device.type == "cuda" else CPU


@method("__dlpack__")
def _dlpack(
    t: Tensor,
    *,
    stream: object = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:  # a capsule; its type has a name from Python 3.13 on
    if t._meta.device is nowhere:
        raise BufferError(f"__dlpack__: a tensor on the meta device has no values: {t._meta!r}")
    place = _dlpack_device(t)
    if stream is not None and (place == CPU or not _is_stream(stream)):
        raise ArgumentError(f"__dlpack__: a tensor on {t.device} takes no stream {stream!r}")
    target = place if dl_device is None else tuple(map(int, dl_device))
    if target != place and (target != CPU or copy is False):
        raise BufferError(f"__dlpack__: the tensor is on {t.device} {place}, not on {target}")
    if t.requires_grad:
        raise BufferError(
            "a tensor that requires grad cannot be exported, changes to it would bypass autograd; "
            "use t.detach()"
        )
    if target == CPU:
        elsewhere = t._meta.device is not cpu or isinstance(t._meta, GlobalMeta)
        memory = memory_of(t) if copy or elsewhere else lent_array(t)
        capsule = _capsule(memory.copy() if copy else memory, max_version)
    else:
        memory = exchange.exported(t.detach().clone() if copy else t)
        capsule = marked(_capsule(memory, max_version), target)
    code = CODES.get(t._meta.dtype.name)
    return capsule if code is None else retyped(capsule, code)


def _is_stream(number: object) -> bool:
    """Return True if DLPack has this stream number: -1 for none, 1 and 2 for the default ones, or a
    handle; 0 is neither.

    Which of them it is does not matter: what goes out has been computed.
    """
    return isinstance(number, int) and number >= -1 and number != 0


def _capsule(memory: Array, max_version: tuple[int, int] | None) -> Any:
    if max_version is None:
        return memory.__dlpack__()
    try:
        return memory.__dlpack__(max_version=max_version)
    except TypeError:  # NumPy before 2.1; a consumer must take unversioned capsules too
        return memory.__dlpack__()


def _cuda_array_interface(t: Tensor) -> dict[str, object]:
    """Return the array interface of a CUDA tensor for CuPy, Numba and others.  Its memory is
    shared, see `__dlpack__`.
    """
    if t._meta.device.type != "cuda":
        raise AttributeError(f"a tensor on {t._meta.device} has no __cuda_array_interface__")
    return exchange.interface(t)


Tensor.__cuda_array_interface__ = property(_cuda_array_interface)  # type: ignore[assignment, method-assign]


class _Producer:
    """The object from which NumPy imports.  It records the kind of capsule that NumPy gets."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.versioned = False
        self.dtype: DType | None = None  # if it is not the one that NumPy sees

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.source.__dlpack_device__()
        return device

    def __dlpack__(self, **options: object) -> Any:
        capsule = self.source.__dlpack__(**options)
        self.versioned, code = kind_of(capsule)
        if (name := _NAMES.get(code)) is not None:
            self.dtype = dtype_named(name)
            retyped(capsule, UNSIGNED)
        return capsule


class _Given:
    """A producer that hands over one capsule."""

    def __init__(self, capsule: object) -> None:
        if is_used(capsule):
            raise ArgumentError("from_dlpack: a capsule hands its memory over once; make another")
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return device_of(self.capsule)

    def __dlpack__(self, **options: object) -> Any:
        return self.capsule


# public: flow
def from_dlpack(
    ext_tensor: Any, *, device: DeviceLike | None = None, copy: bool | None = None
) -> Tensor:
    """Return a tensor on the memory of `ext_tensor`, on the CPU or on a CUDA device: an array or
    tensor of any library with DLPack, or a capsule of one.  `device` is where a copy goes to.

    Memory that kernels cannot use as it is (read-only, negative or zero strides) is copied; `copy`
    False raises ArgumentError instead, `copy` True always copies.  DeviceError if it lies
    elsewhere.

    >>> flow.from_dlpack(np.arange(3))
    tensor([0, 1, 2])
    """
    if device is not None:
        tensor = from_dlpack(ext_tensor, copy=copy)
        moved: Tensor = tensor.to(device)
        if moved is not tensor and copy is False:
            raise DeviceError(f"from_dlpack: the data is on {tensor.device}, and copy=False")
        return moved
    obj = ext_tensor
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
    array = obj if _is_plain(obj) else np.from_dlpack(producer)
    obstacle = "a copy was asked for" if copy else ""
    if not array.flags.writeable:
        if producer.versioned:
            obstacle = obstacle or "the memory is read-only"
        else:  # these capsules have no such flag: their givers allow writes
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
    if obstacle:
        return adopt_array(array.copy(), dtype=producer.dtype)
    return adopt_array(array, dtype=producer.dtype, shared=True)


def _is_plain(obj: object) -> bool:
    """Return True for an array of NumPy's that a capsule would only describe."""
    if type(obj) is not np.ndarray or not obj.flags.writeable:
        return False
    return obj.dtype.char in PLAIN and obj.dtype.isnative


def _from_cuda(obj: object, index: int, copy: bool | None) -> Tensor:
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

    def __init__(self, array: Array) -> None:
        self.array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self.__array_interface__["strides"] = array.strides


def _writeable(array: Array) -> Array:
    return np.asarray(_Lender(array))


# --- NumPy ----------------------------------------------------------------------------------------

# array + tensor asks the tensor, not NumPy, which would add element by element
Tensor.__array_priority__ = 1000  # type: ignore[attr-defined]


@method("__array__")
@partial(value_method, how=AS_ARRAY)
def _array(t: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    kind = np.dtype(t.dtype.numpy if dtype is None else dtype)
    if copy is False:
        if t._meta.device is not cpu or isinstance(t._meta, GlobalMeta):
            raise ArgumentError(f"a tensor on {t.device} cannot be an array uncopied")
        if kind != t.dtype.numpy:
            raise ArgumentError(f"a {t.dtype.name} tensor cannot be {kind} uncopied")
        array = lent_array(t)
        if t._node is not None:  # changes would bypass autograd
            array.flags.writeable = False
        return array
    own = np.dtype(t._meta.dtype.storage)
    if copy or kind != own or (t._meta.dtype.reduced and own.kind != "f"):  # bits are no numbers
        return values_of(t).astype(kind)
    return t.numpy()
