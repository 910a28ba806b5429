"""The way of a batch from a worker process to the main one: through shared memory.

A batch is pickled with the memory of its tensors and arrays left out; that is copied into a
*segment*, and the main process makes tensors and arrays on it.  A segment is memory without a name
(a memfd) whose file descriptor goes through the worker's socket once.  So there is no file that
somebody would have to remove: the kernel frees it when nobody maps it, however processes ended.

When the last tensor on a segment is gone, its number goes back to the worker with the next task,
and the worker fills it again: that is several times faster than memory which both must map anew.

Invariants:
- a worker writes to a segment while nothing in the main process refers to it, and never afterwards;
- a segment that was lent while the main process forked is never written again: the child may read;
- a worker has at most `most` segments that come back.  Others are mapped once, and go.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.eager.values import memory_of
from flowvm.interop.pickles import reduced
from flowvm.meta.arrays import Array
from flowvm.utils.data.messages import Placed
from flowvm.vm.callers.interrupt import protected

ONCE: Final = -1  # in place of a number: this segment does not come back
_ALIGNED: Final = 64
_SMALLEST: Final = 1 << 16
_READ_WRITE, _SHARED = 3, 1

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap = _libc.mmap, _libc.munmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_forks = 0  # of this process so far


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork)


class Memory:
    """A mapping of a segment, as NumPy takes it; unmapped when it goes.

    Not `mmap`: that would keep a file descriptor for each, and a list of batches has many.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.size = 0
        address = _mmap(None, size, _READ_WRITE, _SHARED, fd, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot map {size} bytes of a batch: {os.strerror(number)}")
        self.address, self.size = address, size

    @protected
    def __del__(self, _munmap: Any = _munmap) -> None:
        if self.size:
            _munmap(self.address, self.size)

    def array(self, owner: object = None) -> Array:
        """Return the segment's bytes; the array keeps `owner` or, without one, this object
        alive.
        """
        return np.asarray(_Bytes(self.address, self.size, self if owner is None else owner))


class _Bytes:
    """The base of a NumPy array: it keeps `owner` alive."""

    def __init__(self, address: int, size: int, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False),
        }  # fmt: skip


# --- the worker's side ----------------------------------------------------------------------------


class Segments:
    """A worker's segments, used by its one thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free: dict[int, Memory] = {}
        self._lent: dict[int, Memory] = {}

    def take_back(self, numbers: Sequence[int]) -> None:
        """Take back segments that are no longer in use.  A negative number is ~number of a segment
        that this worker may never use again.
        """
        for number in numbers:
            if number < 0:
                del self._lent[~number]
            else:
                self._free[number] = self._lent.pop(number)

    def place(self, payload: bytes, parts: Sequence[Any]) -> tuple[Placed, int | None]:
        """Copy the memory left out of a pickle into a segment.  Return its place, and the file
        descriptor of a segment that the main process does not have yet.
        """
        spans, end = [], 0
        for part in parts:
            begin = -(-end // _ALIGNED) * _ALIGNED
            end = begin + len(part)
            spans.append((begin, end))
        if end == 0:
            return Placed(payload, ONCE, 0, tuple(spans)), None
        number, memory, fd = self._take(end)
        array = memory.array()
        for part, (begin, end) in zip(parts, spans, strict=True):
            if begin < end:
                array[begin:end] = np.frombuffer(part, np.uint8)
        return Placed(payload, number, memory.size, tuple(spans)), fd

    def _take(self, size: int) -> tuple[int, Memory, int | None]:
        fitting = [number for number, memory in self._free.items() if memory.size >= size]
        if fitting:
            number = min(fitting, key=lambda one: self._free[one].size)
            self._lent[number] = self._free.pop(number)
            return number, self._lent[number], None
        if self._free:  # all too small: one of them becomes larger
            number, _ = self._free.popitem()
        else:
            unused = (n for n in range(self.most) if n not in self._lent)
            number = next(unused, ONCE)
        fd = os.memfd_create("flowvm-batch")
        try:
            # untouched memory costs nothing, so room for a somewhat larger next batch is free
            whole = max(_SMALLEST, 1 << (size - 1).bit_length())
            os.ftruncate(fd, whole)
            memory = Memory(fd, whole)
        except BaseException:
            os.close(fd)
            raise
        if number != ONCE:
            self._lent[number] = memory
        return number, memory, fd


class _Pickler(pickle.Pickler):
    """A pickler that leaves out the memory of tensors, as pickle leaves out the memory of
    arrays.
    """

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, Tensor) and type(obj).__reduce_ex__ is Tensor.__reduce_ex__:
            return reduced(obj, np.ascontiguousarray(memory_of(obj)).reshape(obj.shape))
        return NotImplemented


def encoded(batch: object) -> tuple[bytes, list[memoryview]]:
    """Return a batch as a pickle, and the memory left out of it."""
    stream, left_out = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(stream, 5, buffer_callback=left_out.append).dump(batch)
    return stream.getvalue(), [part.raw() for part in left_out]


# --- the main process's side ----------------------------------------------------------------------


class _Loan:
    """A segment that tensors of the main process are on.  When the last goes, so does this, and
    its number to `returned`.  It may go anywhere, so appending is all that it does.
    """

    def __init__(self, memory: Memory, number: int, returned: deque[int]) -> None:
        self.memory, self.number, self.returned = memory, number, returned
        self.forks = _forks

    @protected
    def __del__(self) -> None:
        if self.number != ONCE:
            self.returned.append(self.number if self.forks == _forks else ~self.number)


class Borrowed:
    """The segments of one worker that the main process has mapped."""

    def __init__(self) -> None:
        self.returned: deque[int] = deque()  # numbers that the worker is to hear of
        self._memory: dict[int, Memory] = {}

    def back(self) -> list[int]:
        """Return the numbers of free segments, to send to the worker."""
        numbers = []
        while self.returned:
            numbers.append(self.returned.popleft())
            if numbers[-1] < 0:
                del self._memory[~numbers[-1]]
        return numbers

    def parts(self, placed: Placed, fd: int | None) -> list[Any]:
        """Return the parts left out of a pickle, on the memory of the segment, whose loan
        begins.
        """
        if not placed.size:
            return [b"" for _ in placed.spans]
        if fd is None:
            memory = self._memory[placed.segment]
        else:
            memory = Memory(fd, placed.size)
            if placed.segment != ONCE:
                self._memory[placed.segment] = memory
        whole = memory.array(_Loan(memory, placed.segment, self.returned))
        view = memoryview(whole)  # type: ignore[arg-type]
        return [view[begin:end] for begin, end in placed.spans]


def decoded(placed: Placed, parts: list[object]) -> Any:
    """The batch, on the parts' memory."""
    return pickle.loads(placed.payload, buffers=parts)
