"""Kernels of a simulated device: a launch's raw words as arguments, checked, and the kernel run.

A kernel was registered with its *signature*, as it would be compiled
(`flowvm.cuda.compiler.compilation`): a dtype's name for a number, (dtype, dimensions, "C" or "A")
for an array, (type, dtypes) for a NamedTuple of numbers, which are passed one by one.  An array is
passed as Numba lays it out: meminfo, parent (both 0), elements, size of one, address, shape,
strides in bytes.  What does not fit together in these words is found at the call, as no GPU would;
what lies outside of its memory is found before the kernel runs.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flowvm.cuda.launch import UNSIZED, itemsize_of
from flowvm.cuda.simulator.grid import run_grid
from flowvm.cuda.simulator.memory import Fault, Memory
from flowvm.errors import DeviceError
from flowvm.meta.dtype import bfloat16

INVALID_VALUE, LAUNCH_FAILED, ILLEGAL_ADDRESS, MISALIGNED = 1, 719, 700, 716
MAX_THREADS = 1024
MAX_SHARED = 48 << 10  # until cuFuncSetAttribute asks for more
MOST_SHARED = 227 << 10
EXTRA_POINTER, EXTRA_SIZE = 1, 2  # in cuLaunchKernel's last argument
_NUMBERS: dict[str, Any] = {
    "bool": ctypes.c_bool, "int8": ctypes.c_int8, "uint8": ctypes.c_uint8,
    "int16": ctypes.c_int16, "int32": ctypes.c_int32, "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64, "uint32": ctypes.c_uint32,
    "float32": ctypes.c_float, "float64": ctypes.c_double,
}  # fmt: skip


@dataclass
class Function:
    """A function of a device: a registered kernel, or one that a module's PTX declares."""

    handle: int
    name: str
    device: int
    kernel: Callable[..., object] | None
    signature: tuple[Any, ...]
    shared: int = MAX_SHARED  # bytes of dynamic shared memory that a launch may ask for

    def sizes(self) -> list[int]:
        """Bytes of each parameter as it is passed."""
        kinds: list[int] = []
        for kind in self.signature:
            if isinstance(kind, str):
                kinds.append(ctypes.sizeof(_NUMBERS[kind]))
            elif isinstance(kind[0], type):
                kinds += [ctypes.sizeof(_NUMBERS[k]) for k in kind[1]]
            else:
                kinds += [8] * (5 + 2 * kind[1])
        return kinds


class _Bfloat:
    """The dtype of `Bfloats`, for kernels."""

    @staticmethod
    def type(number: object) -> object:
        """Return the number rounded to bfloat16."""
        return bfloat16.loaded(bfloat16.stored(np.array(number)))[()]


class Bfloats(np.ndarray[Any, Any]):
    """Memory with bfloat16 in it: an element is read as a float32, and rounded when written."""

    dtype: _Bfloat = _Bfloat()

    def __getitem__(self, at: Any) -> Any:
        value = super().__getitem__(at)
        return value if isinstance(value, np.ndarray) else bfloat16.loaded(np.array(value))[()]

    def __setitem__(self, at: Any, value: Any) -> None:
        same = isinstance(value, Bfloats)
        super().__setitem__(at, value.view(np.ndarray) if same else bfloat16.stored(value))


@dataclass(frozen=True)
class Array:
    """An array argument with the fields that its words describe."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    address: int

    def extent(self) -> tuple[int, int]:
        """The first byte that the array may touch, and one past the last."""
        if 0 in self.shape:
            return self.address, self.address
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(s for s in steps if s < 0)
        high = sum(s for s in steps if s > 0) + itemsize_of(self.dtype)
        return self.address + low, self.address + high

    def within(self, memory: Memory) -> Array:
        """Return the array with as many rows as its memory has room for, if it has UNSIZED rows."""
        if not self.shape or self.shape[0] < UNSIZED:
            return self
        block = memory.find(self.address)
        rows = (block.end - self.address) // self.strides[0] if block is not None else 0
        return replace(self, shape=(rows, *self.shape[1:]))

    def view(self) -> np.ndarray[Any, Any]:
        """The memory itself."""
        low, high = self.extent()
        bits = self.dtype == "bfloat16"
        kind = np.dtype(np.uint16 if bits else self.dtype)
        if low == high:
            array = np.empty(self.shape, kind)
        else:
            raw: Any = (ctypes.c_char * (high - low)).from_address(low)
            array = np.ndarray(self.shape, kind, raw, self.address - low, self.strides)
        return array.view(Bfloats) if bits else array


@dataclass(frozen=True)
class Launch:
    """One launch, with its arguments read: numbers and `Array`s."""

    function: Function
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[object, ...]

    def check(self, memory: Memory) -> None:
        """Raise Fault if an array goes outside of its block of memory, or is misaligned."""
        for place, array in enumerate(self.arguments):
            if isinstance(array, Array):
                low, high = array.within(memory).extent()
                what = f"argument {place} of {self.function.name} ({array.dtype}{array.shape})"
                if high > low:
                    memory.check(low, high - low, what, self.function.device)
                if array.address % itemsize_of(array.dtype):
                    raise Fault(MISALIGNED, f"{what} is at {array.address:#x}")

    def run(self, memory: Memory) -> None:
        """Check the arrays again, since memory may have been freed since the call, and run the
        kernel.
        """
        self.check(memory)
        arguments = [a.within(memory).view() if isinstance(a, Array) else a for a in self.arguments]
        try:
            run_grid(self.function.kernel, arguments, self.grid, self.block, self.shared)  # type: ignore[arg-type]
        except IndexError as error:
            raise Fault(ILLEGAL_ADDRESS, f"{self.function.name}: {error}") from error
        except Exception as error:
            why = f"{self.function.name}: {type(error).__name__}: {error}"
            raise Fault(LAUNCH_FAILED, why) from error


def read_launch(
    function: Function,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    params: int,
    extra: int,
) -> Launch:
    """The launch that cuLaunchKernel's arguments mean; Fault where they cannot be right."""
    for name, sizes in (("grid", grid), ("block", block)):
        if min(sizes) < 1 or max(sizes[1:]) > 65535 or sizes[0] > 2**31 - 1:
            raise Fault(INVALID_VALUE, f"{function.name} is launched with a {name} of {sizes}")
    if math.prod(block) > MAX_THREADS:
        raise Fault(INVALID_VALUE, f"{function.name} is launched with a block of {block} threads")
    if shared > function.shared:
        raise Fault(
            INVALID_VALUE,
            f"{function.name} is launched with {shared} bytes of shared memory; it may have "
            f"{function.shared}",
        )
    addresses = _addresses(function, params, extra)
    return Launch(function, grid, block, shared, tuple(_arguments(function, addresses)))


def _addresses(function: Function, params: int, extra: int) -> list[int]:
    """Return the address of each parameter: from a table of addresses, or one after another in a
    buffer.
    """
    sizes = function.sizes()
    if not extra:
        if sizes and not params:
            raise Fault(INVALID_VALUE, f"{function.name} is launched without parameters")
        return [_word(params + 8 * i) for i in range(len(sizes))]
    buffer = size = 0
    while key := _word(extra):
        if key == EXTRA_POINTER:
            buffer = _word(extra + 8)
        elif key == EXTRA_SIZE:
            size = _word(_word(extra + 8))
        extra += 16
    parts, at = [], 0
    for one in sizes:
        at = -(-at // one) * one
        parts.append(buffer + at)
        at += one
    if at != size:
        raise Fault(INVALID_VALUE, f"{function.name} takes {at} bytes of parameters, got {size}")
    return parts


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _arguments(function: Function, addresses: list[int]) -> list[object]:
    values = []
    place = 0
    for kind in function.signature:
        if isinstance(kind, str):
            values.append(_NUMBERS[kind].from_address(addresses[place]).value)
            place += 1
        elif isinstance(kind[0], type):
            numbers = zip(kind[1], addresses[place:], strict=False)
            values.append(kind[0](*(_NUMBERS[k].from_address(at).value for k, at in numbers)))
            place += len(kind[1])
        else:
            count = 5 + 2 * kind[1]
            words = [_word(at) for at in addresses[place : place + count]]
            values.append(_array(function, len(values), kind, words))
            place += count
    return values


def _array(function: Function, place: int, kind: tuple[str, int, str], words: list[int]) -> Array:
    dtype, dimensions, layout = kind
    array = Array(dtype, tuple(words[5 : 5 + dimensions]), tuple(words[5 + dimensions :]), words[4])
    if wrong := "; ".join(_wrong(array, layout, words)):
        what = f"argument {place} of {function.name}, {dtype}{array.shape}"
        raise Fault(INVALID_VALUE, f"{what}: {wrong}")
    return array


def _wrong(array: Array, layout: str, words: list[int]) -> Iterator[str]:
    """Yield the errors in an array's words, as text."""
    meminfo, parent, elements, itemsize = words[:4]
    if meminfo or parent:
        yield "meminfo or parent is not 0"
    if min(array.shape, default=0) < 0 or elements != math.prod(array.shape):
        yield f"it has {elements} elements"
    if itemsize != itemsize_of(array.dtype):
        yield f"an element has {itemsize} bytes"
    if layout == "C" and elements and not _dense(array, itemsize):
        yield f"its strides {array.strides} are not those of a dense array"


def _dense(array: Array, step: int) -> bool:
    for d, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if d > 1 and stride != step:
            return False
        step *= d
    return True


def choose_simulator() -> None:
    """Let Numba-CUDA be its simulator in this process; DeviceError where it is the real one."""
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
    from numba import config

    if not config.ENABLE_CUDASIM and "numba.cuda" not in sys.modules:
        config.reload_config()
    if not config.ENABLE_CUDASIM:
        raise DeviceError(
            "FLOWVM_CUDA_DRIVER=simulator: numba.cuda was imported before flowvm could choose its "
            "simulator; start Python with NUMBA_ENABLE_CUDASIM=1"
        )
    try:
        import numba.cuda  # noqa: F401
    except Exception as error:  # where CUDA's runtime is not found, cuda-bindings has its own
        raise DeviceError(
            f"FLOWVM_CUDA_DRIVER=simulator runs kernels with numba-cuda, which cannot be imported "
            f"({str(error).strip()}); pip install 'numba-cuda[cu12]' or 'numba-cuda[cu13]'"
        ) from None
