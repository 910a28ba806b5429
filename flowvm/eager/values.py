"""Reading values: the places where Python waits for the VM.

Each waits for the tensor's own writer and nothing else, then looks at memory directly.  What leaves
flowvm on a tensor's memory (`numpy()`, DLPack) is on loan: as long as it is there, calls that
access the memory are done when they return (`flowvm.vm.engine.loans`), and what reads it is
waited for before it is handed out.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from flowvm.eager.batched import refuse_values
from flowvm.eager.global_calls import Globals
from flowvm.eager.modes import current_recorder, current_trace_recorder
from flowvm.eager.native.functions import lacking, value_method
from flowvm.eager.native.words import AS_ARRAY, AS_BOOL, AS_FLOAT, AS_INT, AS_ITEM, AS_LIST
from flowvm.eager.tensor import Tensor, lacked, method, new_tensor, refused
from flowvm.errors import ArgumentError, ArgumentTypeError, InvalidValueError, ValuelessError
from flowvm.meta.arrays import Array
from flowvm.meta.batched_meta import is_batched
from flowvm.meta.device import Device, cpu
from flowvm.meta.device import meta as nowhere
from flowvm.meta.dtype import DType
from flowvm.meta.dtype import from_numpy as dtype_from_numpy
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import Size, TensorMeta, array_interface
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.tracebacks import border
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.loans import Loan
from flowvm.vm.machine.words import STO
from flowvm.vm.workers import zones

_SCALARS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "uint8": ctypes.c_uint8,
    "int8": ctypes.c_int8,
    "int16": ctypes.c_int16,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


type.__setattr__(Tensor, "__getattr__", lacking(Tensor.__getattr__, lacked))


class _Memory:
    """A tensor's memory for NumPy: keeps the tensor, and so the memory, alive."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        address = engine.storages.pointer(tensor._ref)
        self.__array_interface__ = array_interface(tensor._meta, address, False)


def wait_for(t: Tensor, read: bool = False) -> None:
    """Wait for the tensor's writer, because Python code wants its values; if `read` also for who
    reads them, because it may write there.

    CaptureError if they are not there because a graph is captured.
    """
    if hot["departed"]:
        recorder = current_recorder()
        if recorder is not None:
            recorder.read(t)
        if (trace := current_trace_recorder()) is not None:
            trace.refuse()  # what follows may depend on it
    engine.waits.wait_for([t._ref], read)


def memory_of(t: Tensor) -> Array:
    """A NumPy array on the tensor's own memory, after waiting for its writer; on that of a copy, if
    it is on a device.  It has the dtype's `storage`: the bits of bfloat16.
    """
    if t._meta.device is not cpu:
        t = on_host(t)
    wait_for(t)
    return memory_now(t)


def values_of(t: Tensor) -> Array:
    """The numbers, to be read at once: `memory_of`, where NumPy has none a float32 copy."""
    return t._meta.dtype.loaded(memory_of(t))


def on_host(t: Tensor) -> Tensor:
    """A copy of a device's tensor on the CPU, outside the autograd graph; of a global tensor all of
    it, which the ranks that have it make together.
    """
    if is_batched(t._meta):
        raise refuse_values("reading values")
    if t._meta.device is nowhere:
        raise ValuelessError(f"a tensor on the meta device has no values: {t._meta!r}")
    if isinstance(t._meta, GlobalMeta):
        return on_host(Globals.gathered(t)) if t.is_cuda else Globals.gathered(t)
    copied: Tensor = new_tensor(t._ref, t._meta, t.storage()).cpu()
    return copied


def memory_now(t: Tensor) -> Array:
    """`memory_of` for who knows that the writer is done."""
    meta = t._meta
    if meta.numel == 0:
        return np.empty(meta.shape, meta.dtype.storage)
    # a detached tensor, so that holding the array holds no autograd graph
    held = new_tensor(t._ref, meta, t.storage())
    return np.asarray(_Memory(held))


@partial(value_method, how=AS_ARRAY)
def lent_array(t: Tensor) -> Array:
    """A NumPy array on the memory of a tensor on the CPU, for whoever may write to it, too."""
    meta = t._meta
    if meta.numel == 0:
        wait_for(t)
        return np.empty(meta.shape, meta.dtype.storage)
    storage = t.storage()
    loan = Loan(engine.lending, storage, {})
    wait_for(t, read=True)  # on loan already: what another thread issues now waits for itself
    loan.__array_interface__ = array_interface(meta, engine.storages.pointer(t._ref), False)
    return np.asarray(loan)


@method()
@partial(value_method, how=AS_ARRAY)
@border
def numpy(t: Tensor, *, force: bool = False) -> Array:
    """Return the values as a NumPy array, once they are there.

    The array is on the tensor's memory: what is written to one is seen by the other.  As long as
    the array lives, calls that access that memory are done when they return, as all of PyTorch's
    are.

    Where writing could not be promised to reach the tensor the array is a copy that is read-only,
    and NumPy says so to whoever writes: of a tensor that requires grad (`detach()` it first), of
    one on another device, of a global tensor (an empty one on a rank that holds nothing of it).
    With `force` such a copy may be written to; it is
    an array of its own.

    ArgumentTypeError for bfloat16, which NumPy has not.

    >>> x = flow.tensor([1, 2])
    >>> x.numpy()[0] = 5
    >>> x
    tensor([5, 2])
    >>> flow.ones(2, requires_grad=True).numpy().flags.writeable
    False
    """
    try:
        meta = t._meta
        _ = meta.dtype.numpy
        if meta.device is cpu and t._node is None and not isinstance(meta, GlobalMeta):
            return lent_array(t)
        if force and meta.device is cpu and not isinstance(meta, GlobalMeta):
            return lent_array(t)
        if isinstance(meta, GlobalMeta):
            if Globals.read_together:
                t = Globals.widened(t)
            elif not meta.inside:
                t = t.to_local()  # nothing of it is here: an empty array
        copied = memory_of(t).copy()
        copied.flags.writeable = force
        return copied
    except AttributeError as error:
        raise refused("numpy", t, error) from None


@method()
@partial(value_method, how=AS_ITEM)
@border
def item(t: Tensor) -> Any:
    """The value of a one-element tensor as a Python number.  Waits for the tensor.

    >>> flow.tensor([2.5]).item()
    2.5
    """
    try:
        meta = t._meta
        if meta.numel != 1:
            raise ArgumentError(
                f"item() needs a tensor of one element, this one has shape {tuple(meta.shape)}"
            )
        if meta.device is not cpu:
            t = on_host(t)
        wait_for(t)
        address = engine.storages.pointer(t._ref)
        if meta.dtype.reduced:
            bits = np.frombuffer(ctypes.string_at(address, meta.dtype.itemsize), meta.dtype.storage)
            return float(meta.dtype.loaded(bits)[0])
        if meta.dtype.is_complex:
            part = _SCALARS[meta.dtype.real.name]
            return complex(*(part * 2).from_address(address))
        return _SCALARS[meta.dtype.name].from_address(address).value
    except AttributeError as error:
        raise refused("item", t, error) from None


@method()
@partial(value_method, how=AS_LIST)
@border
def tolist(t: Tensor) -> Any:
    """The values as nested Python lists (a number for a 0-d tensor).  Waits for the tensor.

    >>> flow.tensor([[1, 2], [3, 4]]).tolist(), flow.tensor(5).tolist()
    ([[1, 2], [3, 4]], 5)
    """
    try:
        return values_of(t).tolist()
    except AttributeError as error:
        raise refused("tolist", t, error) from None


# --- as a Python number ---------------------------------------------------------------------------


@method("__bool__")
@partial(value_method, how=AS_BOOL)
@border
def _bool(t: Tensor) -> bool:
    try:
        if t._meta.numel != 1:
            what = "more than one value" if t._meta.numel else "no values"
            raise InvalidValueError(
                f"Boolean value of Tensor with {what} is ambiguous: this one has shape "
                f"{tuple(t.shape)}; use .any() or .all()"
            )
        return bool(t.item())
    except AttributeError as error:
        raise refused("__bool__", t, error) from None


@method("__float__")
@partial(value_method, how=AS_FLOAT)
@border
def _float(t: Tensor) -> float:
    return float(_real_item(t))


def _real_item(t: Tensor) -> Any:
    """`item`, of a complex number its real part if that is all there is."""
    value = t.item()
    if not isinstance(value, complex):
        return value
    if value.imag != 0:
        raise ArgumentTypeError(f"{value} is complex and no real number; take .real or .abs()")
    return value.real


@method("__complex__")
@border
def _complex(t: Tensor) -> complex:
    return complex(t.item())


@method("__int__")
@partial(value_method, how=AS_INT)
@border
def _int(t: Tensor) -> int:
    return int(_real_item(t))


@method("__index__")
@border
def _index(t: Tensor) -> int:
    try:
        if t._meta.numel != 1 or t._meta.dtype.inexact:
            raise ArgumentTypeError(
                "only integer tensors of a single element can be converted to an index, this one "
                f"is {t._meta.dtype.name} of shape {tuple(t.shape)}"
            )
        return int(t.item())
    except AttributeError as error:
        raise refused("__index__", t, error) from None


def adopt_array(
    array: Array,
    owner: object = None,
    device: Device = cpu,
    dtype: DType | None = None,
    shared: bool = False,
) -> Tensor:
    """A tensor on `array`'s memory, which stays alive with it (or with its `owner`), and which is
    on `device`.

    Strides must be multiples of the element size, and not negative.  `dtype`: whose `storage` the
    array has, if not that of the array.  `shared`: others have that memory, too.
    """
    dtype = dtype_from_numpy(array.dtype) if dtype is None else dtype
    dense = array.flags.c_contiguous
    zoned = zones.CHECKED and owner is None and not shared and device == cpu and array.flags.owndata
    zoned = zoned and dense and array.nbytes > 0
    if zoned:  # nobody else knows the array
        array = zones.zoned(array)
    stride = None if dense else tuple(s // array.itemsize for s in array.strides)
    meta = TensorMeta.of(Size(array.shape), dtype, device, stride)
    nbytes = array.nbytes
    if nbytes and not dense:
        span = sum(s * (n - 1) for s, n in zip(array.strides, array.shape, strict=True))
        nbytes = span + array.itemsize
    owner_of = array if owner is None else owner
    storage = engine.storages.adopt(array.ctypes.data, nbytes, owner_of, shared)
    if zoned:
        engine.words[STO.AT + storage * STO.WORDS + STO.CLASS] = zones.ZONED
    result = new_tensor(storage, meta)
    return constant(result) if owner is None and not shared else result


def constant(tensor: Tensor) -> Tensor:
    """`tensor`, whose values come from Python and not from an operation, and which nobody else
    writes: a capture that reaches it may keep them with its graph.
    """
    recorder = current_recorder()
    if recorder is not None:
        recorder.constant(tensor)
    return tensor
