"""The few primitives that the engine's logic needs beyond integer arrays, and their compilation.

The engine (`machine`, `allocator`, `execute`, `shell`) is written as plain Python functions on one
int64 array.  They run as Python (under pdb, for coverage, in tests that play the workers), and
compiled (`flowvm.compiler.words`), where nothing takes the GIL.  Primitives that Python lacks are
here twice: as a Python function of equal meaning on one thread, and as LLVM's text, in
`flowvm.vm.machine.texts`.  Its annotations are the types of both, also where Numba compiles
(`flowvm.vm.machine.intrinsics`).

Memory order: `load_acquire` and `store_release` pair up between threads; `fetch_add` and
`compare_exchange` are sequentially consistent, and thereby full fences.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from flowvm.compiler import helpers, jit
from flowvm.compiler.native import Intrinsic
from flowvm.loading.lazy import lazy
from flowvm.vm.machine import texts
from flowvm.vm.machine.clocks import ticks_are_tsc
from flowvm.vm.machine.device_words import CALL

intrinsics = lazy("flowvm.vm.machine.intrinsics")  # Numba, for a compilation only
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Words(Protocol):
    """A one-dimensional int64 array: NumPy's, Numba's, or a memoryview."""

    def __getitem__(self, i: int, /) -> int: ...
    def __setitem__(self, i: int, value: int, /) -> None: ...


MADV_HUGEPAGE = 14
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_uint64,
)

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * CALL.WORDS)


def _primitive(python: _Function) -> _Function:
    text = getattr(texts, python.__name__)  # compiled code does not have `python` itself
    *takes, gives = _annotations(python)

    def define() -> object:
        return intrinsics.intrinsic_of(text, takes, gives)

    kind = "ptr" if gives == "Words" else "i64"
    return cast(_Function, Intrinsic(python, define, text=text, gives=kind))


def _annotations(function: Callable[..., Any]) -> list[str]:
    """Return the annotations of a function's parameters and of its result, as they are written."""
    return [str(kind) for kind in function.__annotations__.values()]


@_primitive
def load_acquire(m: Words, i: int) -> int:
    """Return word `i` of `m`.  Words that its writer wrote before a `store_release` are visible
    afterwards.
    """
    return int(m[i])


@_primitive
def store_release(m: Words, i: int, value: int) -> None:
    """Set word `i` of `m` after all earlier writes."""
    m[i] = value


@_primitive
def fetch_add(m: Words, i: int, value: int) -> int:
    """Add `value` to word `i` of `m`; return the word before.  A full fence."""
    before = int(m[i])
    m[i] = before + value
    return before


@_primitive
def compare_exchange(m: Words, i: int, expected: int, value: int) -> bool:
    """Set word `i` to `value` if it is `expected`; return True if it was.  A full fence."""
    if int(m[i]) != expected:
        return False
    m[i] = value
    return True


@_primitive
def call_kernel(address: int, args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """Call the kernel at `address` on work units [lo, hi).  Return its status.

    A kernel without use for `arena` may be a function of the first four: on x86-64 and aarch64 the
    fifth goes through a register that it does not look at.
    """
    return int(_KERNEL(int(address))(int(args), int(layout), int(lo), int(hi), int(arena)))


@_primitive
def call_address(address: int, arguments: int) -> int:
    """Call the C function at `address` with the CALL.WORDS int64 at `arguments`.  Return its int32
    result.

    A function with fewer arguments, or with int32 ones, reads only its own.  On x86-64 and on
    aarch64 under Linux each argument has a register or eight bytes of the stack, and the caller
    clears the stack.
    """
    words = (ctypes.c_int64 * CALL.WORDS).from_address(int(arguments))
    return int(_FUNCTION(int(address))(*words))


@_primitive
def words_at(address: int, count: int) -> Words:
    """The `count` int64 words at `address`, as an array."""
    return np.ctypeslib.as_array((ctypes.c_int64 * int(count)).from_address(int(address)))


@_primitive
def load_word(address: int) -> int:
    """The int64 word at `address`."""
    return ctypes.c_int64.from_address(int(address)).value


@_primitive
def store_word(address: int, value: int) -> None:
    """Set the int64 word at `address`."""
    ctypes.c_int64.from_address(int(address)).value = int(value)


@_primitive
def address_in(m: Words, i: int) -> int:
    """The address of word `i` of `m`."""
    array: Any = m
    return int(array.__array_interface__["data"][0]) + 8 * int(i)  # imports nothing: Python may end


@_primitive
def aligned_alloc(alignment: int, size: int) -> int:
    """Return the address of `size` bytes aligned to `alignment`; 0 if there is no memory.  `size`
    is a multiple of `alignment`.
    """
    return _libc.aligned_alloc(int(alignment), int(size)) or 0


@_primitive
def advise_huge(address: int, size: int) -> int:
    """Ask for huge pages behind memory that begins at a page.  Return the system's answer."""
    return int(_libc.madvise(int(address), int(size), MADV_HUGEPAGE))


@_primitive
def free(address: int) -> None:
    """Free memory of `aligned_alloc`."""
    _libc.free(int(address))


@_primitive
def copy_bytes(target: int, source: int, count: int) -> int:
    """Copy `count` bytes from one address to another; they do not overlap."""
    ctypes.memmove(int(target), int(source), int(count))
    return int(target)


@_primitive
def clock() -> int:
    """Nanoseconds of the monotonic clock: one for all threads, and `time.monotonic_ns`'s."""
    return time.monotonic_ns()


class Uncompiled:
    """The plain Python form of `ticks`: nanoseconds, until there is a native function."""

    ticks: Callable[[], int] = staticmethod(time.monotonic_ns)


@_primitive
def ticks() -> int:
    """Return the recorder's time, equal for all threads.  It is the processor's counter if the
    system keeps its own time by it, else `clock()`.  Reading it takes half as long.
    """
    return Uncompiled.ticks()


@_primitive
def ticks_after() -> int:
    """Return `ticks`, read after every load before it.  Plain `ticks` may be read some 50 ns before
    an earlier load from another core is complete.
    """
    return Uncompiled.ticks()


@_primitive
def sched_yield() -> int:
    """Let another runnable thread have this core."""
    time.sleep(0)
    return 0


@_primitive
def futex_wait(m: Words, i: int, value: int, microseconds: int) -> int:
    """Sleep until woken, at most `microseconds`, while the low half of word `i` is `value`."""
    return 0


@_primitive
def futex_wake(m: Words, i: int, count: int) -> int:
    """Wake at most `count` of the threads that sleep on word `i` of `m`."""
    return 0


def address_of(function: Callable[..., object], signature: str) -> int:
    """The address of the C function made of `function`, compiled or loaded from the cache."""
    return jit.native(function, signature, facts=_facts())


def cached_address(function: Callable[..., object], signature: str) -> int | None:
    """Return the address of a compiled function if nothing has to be compiled for it, else None."""
    return helpers.native_if_cached(function, signature, facts=_facts())


def _facts() -> object:
    return "ticks are tsc", ticks_are_tsc()
