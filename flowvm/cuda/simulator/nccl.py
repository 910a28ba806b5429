# ruff: noqa: N802  methods are named as the functions that they stand for
"""NCCL without GPUs: ranks that are processes of one host exchange by files
(`flowvm.cuda.simulator.exchange`).  Exchanges that do not fit each other are faults that say so.
"""

from __future__ import annotations

import ctypes
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from flowvm.cuda.driver.functions import ID_BYTES, UniqueId
from flowvm.cuda.simulator.exchange import Communicator, Exchanging, Part
from flowvm.cuda.simulator.memory import Fault, Memory
from flowvm.cuda.simulator.streams import Scheduler, Stream
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType, dtype_named

VERSION: Final = 22703
INVALID_ARGUMENT, INVALID_USAGE = 4, 5
DTYPES: Final = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "bfloat16",
)  # fmt: skip
REDUCTIONS: Final = (np.add, np.multiply, np.maximum, np.minimum)
TEXTS: Final = (
    "no error", "unhandled cuda error", "unhandled system error", "internal error",
    "invalid argument", "invalid usage", "remote process exited or there was a network error",
)  # fmt: skip
Out = dict[int, bytes]  # by rank


class Devices(Protocol):
    """The interface of the simulated devices that this module needs."""

    memory: Memory


class Nccl:
    """Functions of NCCL, for simulated devices."""

    communicators: dict[int, Communicator]
    texts_of_nccl: dict[str, ctypes.Array[ctypes.c_char]]
    memory: Memory
    streams: Scheduler
    local: threading.local
    last_fault: str

    if TYPE_CHECKING:  # the simulator's own

        def refuse(self, code: int, why: str) -> int: ...
        def _handle(self) -> int: ...
        def _device(self) -> int: ...
        def _stream(self, handle: int, /) -> Stream: ...

    # --- communicators --------------------------------------------------------------------------

    def ncclGetVersion(self: object, out: int) -> None:
        ctypes.c_int.from_address(out).value = VERSION

    def ncclGetUniqueId(self: object, out: int) -> None:
        name = secrets.token_hex(16).encode()
        ctypes.memmove(out, name.ljust(ID_BYTES, b"\0"), ID_BYTES)

    def ncclCommInitRank(self, out: int, size: int, unique: UniqueId, rank: int) -> int:
        if not 0 <= rank < size:
            return int(self.refuse(INVALID_ARGUMENT, f"rank {rank} of {size}"))
        folder = Path(tempfile.gettempdir(), f"flowvm-nccl-{unique.bytes.decode()}")
        folder.mkdir(exist_ok=True)
        handle = self._handle()
        self.communicators[handle] = Communicator(folder, size, rank, self._device())
        ctypes.c_size_t.from_address(out).value = handle
        return 0

    def ncclCommDestroy(self, comm: int) -> int:
        return self.ncclCommAbort(comm)

    def ncclCommAbort(self, comm: int) -> int:
        ended = self.communicators.pop(comm, None)
        if ended is None:
            return INVALID_ARGUMENT
        ended.ended = True
        shutil.rmtree(ended.folder, ignore_errors=True)
        return 0

    def ncclCommGetAsyncError(self, comm: int, out: int) -> int:
        if comm not in self.communicators:
            return INVALID_ARGUMENT
        ctypes.c_int.from_address(out).value = self.communicators[comm].error
        return 0

    def ncclGetErrorString(self, code: int) -> int:
        return int(
            self._kept_text(TEXTS[code] if 0 <= code < len(TEXTS) else "unknown result code")
        )

    def ncclGetLastError(self, comm: int) -> int:
        return int(self._kept_text(self.last_fault))

    def _kept_text(self, text: str) -> int:
        buffer = self.texts_of_nccl.setdefault(text, ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(buffer)

    # --- exchanges ------------------------------------------------------------------------------

    def ncclGroupStart(self) -> None:
        self.local.depth = getattr(self.local, "depth", 0) + 1
        if self.local.depth == 1:
            self.local.parts = []

    def ncclGroupEnd(self) -> int:
        if not getattr(self.local, "depth", 0):
            return int(self.refuse(INVALID_USAGE, "a group ends that nobody began"))
        self.local.depth -= 1
        if self.local.depth == 0 and self.local.parts:
            self._exchange(self.local.parts)
        return 0

    def ncclAllReduce(
        self, sent: int, to: int, count: int, kind: int, op: int, comm: int, stream: int
    ) -> int:
        return int(self._collective(comm, stream, "all_reduce", kind, count, sent,
            lambda of, came: _store(self, of, to, _reduced(came, kind, op))))  # fmt: skip

    def ncclReduce(
        self, sent: int, to: int, count: int, kind: int, op: int, root: int, comm: int,
        stream: int,
    ) -> int:  # fmt: skip
        def then(of: Communicator, came: Out) -> None:
            if of.rank == root:
                _store(self, of, to, _reduced(came, kind, op))

        return int(self._collective(comm, stream, f"reduce to {root}", kind, count, sent, then))

    def ncclReduceScatter(
        self, sent: int, to: int, count: int, kind: int, op: int, comm: int, stream: int
    ) -> int:
        def then(of: Communicator, came: Out) -> None:
            begin = of.rank * count
            _store(self, of, to, _reduced(came, kind, op)[begin : begin + count])

        size = self.communicators[comm].size if comm in self.communicators else 0
        return int(self._collective(comm, stream, "reduce_scatter", kind, count * size, sent, then))

    def ncclAllGather(
        self, sent: int, to: int, count: int, kind: int, comm: int, stream: int
    ) -> int:
        def then(of: Communicator, came: Out) -> None:
            _store(self, of, to, np.concatenate([_loaded(came[r], kind) for r in came]))

        return int(self._collective(comm, stream, "all_gather", kind, count, sent, then))

    def ncclBroadcast(
        self, sent: int, to: int, count: int, kind: int, root: int, comm: int, stream: int
    ) -> int:
        of = self.communicators.get(comm)
        source = sent if of is not None and of.rank == root else 0
        return int(self._collective(comm, stream, f"broadcast of {root}", kind, count, source,
            lambda of, came: _store(self, of, to, _loaded(came[root], kind))))  # fmt: skip

    def ncclSend(self, sent: int, count: int, kind: int, peer: int, comm: int, stream: int) -> int:
        of = self.communicators.get(comm)
        if of is None or not 0 <= peer < of.size:
            return int(self.refuse(INVALID_ARGUMENT, f"no rank {peer} to send to"))
        size = count * _dtype(kind).itemsize

        def begins() -> tuple[dict[str, bytes], tuple[str, ...]]:
            of.sent[peer] += 1
            name = f"{of.rank}to{peer}.{of.sent[peer]}"
            return {name: _bytes(self, of, sent, size)}, ()

        self._add(Part(of, begins, lambda came: None), stream)
        return 0

    def ncclRecv(self, to: int, count: int, kind: int, peer: int, comm: int, stream: int) -> int:
        devices = self  # the devices
        of = devices.communicators.get(comm)
        if of is None or not 0 <= peer < of.size:
            return int(devices.refuse(INVALID_ARGUMENT, f"no rank {peer} to receive from"))
        size = count * _dtype(kind).itemsize

        def then(came: list[bytes]) -> None:
            if len(came[0]) != size:
                raise Fault(700, f"{len(came[0])} bytes came where {size} are received")
            _store(devices, of, to, _loaded(came[0], kind))
            (of.folder / part.reads[0]).unlink(missing_ok=True)

        def begins() -> tuple[dict[str, bytes], tuple[str, ...]]:
            of.received[peer] += 1
            return {}, (f"{peer}to{of.rank}.{of.received[peer]}",)

        part = Part(of, begins, then)
        devices._add(part, stream)
        return 0

    def _collective(
        self, comm: int, stream: int, what: str, kind: int, count: int, sent: int,
        then: Callable[[Communicator, Out], None],
    ) -> int:  # fmt: skip
        """An exchange to which each rank brings `count` elements at `sent`; 0: none."""
        of = self.communicators.get(comm)
        if of is None or not 0 <= kind < len(DTYPES):
            return int(self.refuse(INVALID_ARGUMENT, f"{comm:#x} is no communicator"))
        label = f"{what}|{DTYPES[kind]}|{count}|".encode()
        size = count * _dtype(kind).itemsize

        def begins() -> tuple[dict[str, bytes], tuple[str, ...]]:
            of.exchanges += 1
            own = label + (_bytes(self, of, sent, size) if sent else b"")
            names = tuple(f"{of.exchanges}.{r}" for r in range(of.size))
            return {names[of.rank]: own}, names

        def finish(came: list[bytes]) -> None:
            for other, data in enumerate(came):
                if not data.startswith(label):
                    raise Fault(700, f"rank {other} makes another exchange than {label.decode()}")
            then(of, {r: data[len(label) :] for r, data in enumerate(came)})

        self._add(Part(of, begins, finish), stream)
        return 0

    def _add(self, part: Part, stream: int) -> None:
        """Start an exchange at once, or with the open group."""
        if getattr(self.local, "depth", 0):
            self.local.parts.append((part, stream))
        else:
            self._exchange([(part, stream)])

    def _exchange(self, parts: list[tuple[Part, int]]) -> None:
        """Enqueue exchanges that belong together on the first one's stream."""
        stream = self._stream(parts[0][1])
        self.streams.enqueue(stream, Exchanging([part for part, _ in parts]).work())


def _dtype(kind: int) -> DType:
    return dtype_named(DTYPES[kind])


def _bytes(devices: Devices, of: Communicator, at: int, size: int) -> bytes:
    if size:
        devices.memory.check(at, size, "what NCCL sends", of.device)
    return ctypes.string_at(at, size)


def _loaded(data: bytes, kind: int) -> Array:
    dtype = _dtype(kind)
    return np.frombuffer(data, dtype.storage)


def _reduced(came: Out, kind: int, op: int) -> Array:
    dtype = _dtype(kind)
    values = [_loaded(came[r], kind) for r in came]
    if dtype.name in ("float16", "bfloat16"):
        wide = [dtype.loaded(v) if dtype.name == "bfloat16" else v.astype("f4") for v in values]
        total = REDUCTIONS[op].reduce(wide)
        return dtype.stored(total) if dtype.name == "bfloat16" else total.astype("f2")
    return np.asarray(REDUCTIONS[op].reduce(values, dtype=values[0].dtype))


def _store(devices: Devices, of: Communicator, to: int, values: Array) -> None:
    if values.nbytes:
        devices.memory.check(to, values.nbytes, "where NCCL writes to", of.device)
        ctypes.memmove(to, np.ascontiguousarray(values).ctypes.data, values.nbytes)
