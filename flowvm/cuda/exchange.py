"""Memory of CUDA devices shared with other libraries: DLPack and `__cuda_array_interface__`.

NumPy writes and reads the DLPack capsules here too, for the reason that
`flowvm.interop.protocols` gives: it is shown an array at a device's address, which it does not look
at, and the capsule is told that the array is on the CPU while NumPy has it.

Order with other libraries' streams:

- what goes out has been computed: the tensor's writer is waited for, so any stream may use it;
- what comes in is waited for: a producer orders its work before a stream of ours, which is empty
  else, and that is synchronized;
- memory that was handed out goes back to the VM once its device has done all that it was asked to,
  for another library may have let go of an array that its kernels still use.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flowvm.cuda.driver.driver import error_of
from flowvm.cuda.driver.runtime import runtime, runtimes
from flowvm.cuda.element_reader import own_stream
from flowvm.eager.tensor import Storage, Tensor
from flowvm.eager.values import adopt_array, memory_now, wait_for
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError, FlowError
from flowvm.interop.capsules import CODES, UNSIGNED, kind_of, marked, retyped
from flowvm.meta.arrays import Array
from flowvm.meta.device import Device, require
from flowvm.meta.dtype import DType, bfloat16
from flowvm.vm.callers.interrupt import protected

if TYPE_CHECKING:
    from collections.abc import Mapping


CUDA: Final = 2  # DLPack's number of the device type
_LEGACY: Final = 1  # the default stream, for the driver as for the protocols
_ORDINAL: Final = 9  # pointer attribute: the number of the device


class _Lent(Storage):
    """A storage shared with other libraries.  Its memory is used again when the devices are
    done.
    """

    __slots__ = ()

    @protected
    def __del__(self) -> None:
        try:
            for used in runtimes():
                used.enter()
                used.driver.call("cuCtxSynchronize")
        except (FlowError, AttributeError, TypeError):
            pass  # the device is lost, or Python ends: the memory will not be used again
        Storage.__del__(self)


def _lend(t: Tensor) -> None:
    if t.requires_grad:
        raise AutogradError(
            "a tensor that requires grad cannot be exported, changes to it would bypass autograd; "
            "use t.detach()"
        )
    wait_for(t)
    t.storage().__class__ = _Lent


def exported(t: Tensor) -> Array:
    """An array at the tensor's address on its device, to make a capsule of and nothing else."""
    _lend(t)
    return memory_now(t)


def interface(t: Tensor) -> dict[str, Any]:
    """Return the tensor's `__cuda_array_interface__`.  Its values are ready for a reader on any
    stream.

    ArgumentTypeError for bfloat16, for which the protocol has no name.
    """
    if t._meta.dtype is bfloat16:
        raise ArgumentTypeError(
            "__cuda_array_interface__ has no bfloat16; hand the tensor over with from_dlpack, or "
            "convert it with .float() first"
        )
    _lend(t)
    array = memory_now(t)
    described = dict(array.__array_interface__)
    address = described["data"][0] if array.size else 0
    return {
        "shape": described["shape"],
        "typestr": described["typestr"],
        "data": (address, False),
        "strides": None if t.is_contiguous() else array.strides,
        "version": 3,
        "stream": None,
    }


# --- capsules -------------------------------------------------------------------------------------


class Capsules:
    """An object with a `__dlpack__` that NumPy accepts, for memory of `source` on a CUDA device."""

    def __init__(self, source: Any, index: int) -> None:
        self.source = source
        self.device = require(Device("cuda", index))
        self.versioned = False
        self.capsule: object = None
        self.dtype: DType | None = None  # if it is not the one that NumPy sees

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        version = {k: v for k, v in options.items() if k == "max_version"}
        self.capsule = self.source.__dlpack__(stream=own_stream(self.device.index or 0), **version)
        self.versioned, code = kind_of(self.capsule)
        marked(self.capsule, (1, 0))
        if code == CODES["bfloat16"]:
            self.dtype = bfloat16
            retyped(self.capsule, UNSIGNED)
        return self.capsule

    def array(self) -> Array:
        """Return an array at the memory's address, after waiting for the producer's computation."""
        array = np.from_dlpack(self)
        marked(self.capsule, (CUDA, self.device.index or 0))
        used = runtime(self.device.index or 0)
        used.enter()
        used.driver.call("cuStreamSynchronize", own_stream(used.index))
        return array


# --- arrays ---------------------------------------------------------------------------------------


class _Described:
    """An object with an array interface, from which NumPy makes an array that keeps `source`
    alive.
    """

    def __init__(self, source: object, facts: Mapping[str, object]) -> None:
        self.source = source
        self.__array_interface__ = facts


def tensor_on(array: Array, device: Device, obstacle: str, dtype: DType | None = None) -> Tensor:
    """Return a tensor on an array's memory, which is on `device`; a copy if there is an obstacle.
    `dtype` is the tensor's, if it is not the array's.
    """
    if any(s % array.itemsize or s < 0 for s in array.strides) and array.size:
        raise ArgumentError(
            f"memory on {device} with strides of {array.strides} bytes cannot be used; make the "
            f"array contiguous first"
        )
    shared = adopt_array(array, device=device, dtype=dtype)
    copied: Tensor = shared.clone() if obstacle else shared
    return copied


def from_interface(obj: Any, copy: bool = False) -> Tensor:
    """A tensor on the memory that `obj.__cuda_array_interface__` describes, or a copy of it."""
    facts = obj.__cuda_array_interface__
    what = type(obj).__name__
    if not isinstance(facts, dict) or not {"shape", "typestr", "data"} <= facts.keys():
        raise ArgumentTypeError(f"the __cuda_array_interface__ of a {what} is {facts!r:.80}")
    if facts.get("mask") is not None:
        raise ArgumentTypeError(f"a {what} with a mask cannot be a tensor; fill it first")
    address, read_only = facts["data"]
    described = {k: facts[k] for k in ("shape", "typestr")} | {"version": 3}
    if 0 in facts["shape"]:  # no memory, so no device to ask for
        index = runtimes()[0].index if runtimes() else 0
        dtype = np.dtype(facts["typestr"])
        empty: Tensor = adopt_array(np.empty(facts["shape"], dtype)).to(Device("cuda", index))
        return empty
    described |= {"strides": facts.get("strides"), "data": (address, False)}
    device = _device_at(address, what)
    _wait_for(device, facts.get("stream", _LEGACY))
    array = np.asarray(_Described(obj, described))
    obstacle = "a copy was asked for" if copy else ""
    obstacle = obstacle or ("the memory is read-only" if read_only else "")
    if any(s == 0 and d > 1 for s, d in zip(array.strides, array.shape, strict=True)):
        obstacle = "elements share memory"
    return tensor_on(array, device, obstacle)


def _device_at(address: int, what: str) -> Device:
    used, ordinal = runtime(0), ctypes.c_int()
    used.enter()
    arguments = ctypes.byref(ordinal), _ORDINAL, address
    result = used.driver.functions["cuPointerGetAttribute"](*arguments)
    if result == 1:  # CUDA_ERROR_INVALID_VALUE
        raise ArgumentError(
            f"the __cuda_array_interface__ of a {what} names the address {address:#x}, where no "
            f"CUDA device has memory"
        )
    if result:
        raise error_of(result, "cuPointerGetAttribute")
    return require(Device("cuda", ordinal.value))


def _wait_for(device: Device, stream: object) -> None:
    """Wait for the stream on which the producer may still compute; None: for none.

    1 is the default stream, 2 this thread's default stream, for the driver as for the protocol.
    """
    if stream is None:
        return
    if not isinstance(stream, int) or stream <= 0:
        raise ArgumentError(f"__cuda_array_interface__: stream {stream!r} is not a stream")
    used = runtime(device.index or 0)
    used.enter()
    used.driver.call("cuStreamSynchronize", stream)
