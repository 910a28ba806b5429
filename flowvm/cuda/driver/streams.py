"""The VM's streams of a device, and the facts about them that callers need.

    streams(0).compute      the VM stream that instructions on cuda:0 go to by default
    streams(0).h2d          that of copies from the host; .d2h: to the host
    new_stream(0, "mine")   one more compute stream

They are numbers of the VM.  Each has a worker that hands instructions to a CUDA stream of its own
(`flowvm.vm.workers.device`).  The worker reads a *block* of words, which is made here: the driver's
functions by address, handles, page-locked lines for kernels' reports.  Blocks, and the memory that
they point at, stay for ever: worker threads outlive the interpreter.

The first use of a device makes its three streams.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from flowvm.cuda.driver import clocks
from flowvm.cuda.driver import driver as drivers
from flowvm.cuda.driver.functions import INDEX
from flowvm.cuda.driver.runtime import Runtime, runtime
from flowvm.eager import modes
from flowvm.errors import OutOfMemoryError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.device_words import DEV, EVENT, LINES
from flowvm.vm.machine.record import fields_of
from flowvm.vm.machine.words import CTL, RING, STR
from flowvm.vm.workers.steps import CALL_AREA

Words = np.ndarray[Any, np.dtype[np.int64]]

STAGE_BYTES: Final = 4 << 20  # of a page-locked buffer for copies from the host
_PORTABLE_MAPPED: Final = 3
_FUNCTIONS: Final = {f.at: f.meaning for f in fields_of(DEV) if f.meaning.startswith("cu")}


@dataclass(frozen=True)
class Streams:
    """The streams of one device, and the words that its memory is counted in."""

    runtime: Runtime
    compute: int
    h2d: int
    d2h: int
    counters: Words  # CTL.LIVE_BYTES, CTL.PEAK_BYTES, CTL.RESERVED_BYTES of the device's memory
    pinned: Words  # the same of page-locked memory that copies to the host go to


_lock = threading.RLock()  # guards the tables below
_streams: dict[Runtime, Streams] = {}
_blocks: dict[int, tuple[Runtime, Words]] = {}  # by VM stream
_lanes: dict[Runtime, list[int]] = {}
_events: dict[Runtime, list[int]] = {}
_twins: list[
    tuple[Runtime, Words]
] = []  # of Plans with kernels: see flowvm.vm.workers.device_graph


def streams(index: int) -> Streams:
    """The streams of cuda:`index`, made by the first call.  DeviceError if it cannot be used."""
    with _lock:
        of = runtime(index)
        if of not in _streams:
            if not _streams:
                modes.admit_devices()
            _streams[of] = _make(of)
        return _streams[of]


def used() -> list[Streams]:
    """Return the streams of all devices in use."""
    return list(_streams.values())


def new_stream(index: int, name: str, priority: int = 0) -> int:
    """Add a compute stream of cuda:`index`.  Return its number.  VMError if no more can be
    added.
    """
    with _lock:
        of = streams(index)
        stream = _stream(of.runtime, name, STR.DEVICE_MEMORY, of.counters, priority)
        if block_of(of.compute)[DEV.CUBLAS]:
            need_cublas(stream)
        return stream


def device_of(stream: int) -> int | None:
    """The index of the device that VM stream `stream` belongs to; None for one of the CPU's."""
    return _blocks[stream][0].index if stream in _blocks else None


def block_of(stream: int) -> Words:
    """The block of a device's stream: `DEV.STREAM` is its CUDA handle."""
    return _blocks[stream][1]


def lanes(index: int, count: int) -> list[int]:
    """Return the addresses of `count` blocks, always the same, on which branches of graphs are
    captured.  They stand beside the twin of the device's compute stream; only that stream's worker
    may use them.
    """
    with _lock:
        runtime = streams(index).runtime
        known = _lanes.setdefault(runtime, [])
        while len(known) < count:
            known.append(_twin(runtime, 0))
            if block_of(streams(index).compute)[DEV.CUBLAS]:
                need_cublas(streams(index).compute)
        return known[:count]


def lane_events(index: int, count: int) -> list[int]:
    """`count` events, always the same, to order lanes with while a graph is captured."""
    with _lock:
        runtime = streams(index).runtime
        known = _events.setdefault(runtime, [])
        known += [runtime.event() for _ in range(count - len(known))]
        return known[:count]


def need_cublas(stream: int) -> None:
    """Let the compute streams of a stream's device have cuBLAS handles, later ones too; DeviceError
    where cuBLAS is not there.

    To be called before an instruction that uses it is issued: to which of them is not known yet.
    """
    with _lock:
        device = _blocks[stream][0]
        computing = [of for of in _blocks.values() if of[1][DEV.TWIN]]  # the others only copy
        for runtime, block in (*computing, *_twins):
            if runtime is device and not block[DEV.CUBLAS]:
                block[DEV.CUBLAS] = runtime.cublas(int(block[DEV.STREAM]))


def _make(runtime: Runtime) -> Streams:
    counters, pinned = (np.zeros(CTL.WORDS, np.int64) for _ in range(2))
    name = f"cuda:{runtime.index}"
    return Streams(
        runtime,
        _stream(runtime, name, STR.DEVICE_MEMORY, counters),
        _stream(runtime, f"{name} h2d", STR.DEVICE_MEMORY, counters, stages=True),
        _stream(runtime, f"{name} d2h", STR.PINNED_MEMORY, pinned),
        counters,
        pinned,
    )


def _stream(
    runtime: Runtime,
    name: str,
    memory: int,
    counters: Words,
    priority: int = 0,
    stages: bool = False,
) -> int:
    block = _block(runtime, priority, stages)
    if memory == STR.DEVICE_MEMORY and not stages:  # graphs are captured on another
        block[DEV.TWIN] = _twin(runtime, priority)
    number = engine.streams.new_device(name, block, memory, counters)
    _blocks[number] = runtime, block
    clocks.attach(number, runtime, block)
    return number


def _twin(runtime: Runtime, priority: int) -> int:
    """The address of a block to capture graphs with."""
    twin = _caller(runtime, priority)
    _twins.append((runtime, twin))
    return _permanent_address(twin)


def _caller(runtime: Runtime, priority: int) -> Words:
    """The words that a worker calls the driver with, for a new stream."""
    block = np.zeros(DEV.WORDS, np.int64)
    for place, name in _FUNCTIONS.items():
        block[place] = runtime.driver.table[INDEX[name]]
    block[DEV.F_MEMCPY] = ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value or 0
    block[DEV.STREAM] = runtime.stream(priority)
    block[DEV.CONTEXT] = runtime.context
    block[DEV.WAIT_EVENT] = runtime.event()
    block[DEV.CALL] = _permanent_address(np.zeros(CALL_AREA, np.int64))
    return block


def _block(runtime: Runtime, priority: int, stages: bool) -> Words:
    """The block of a stream that has instructions."""
    block = _caller(runtime, priority)
    block[DEV.LINES] = pinned(runtime, 8 * LINES.WORDS * RING.SLOTS)
    events = np.zeros((EVENT.LENGTH, EVENT.WORDS), np.int64)
    events[:, EVENT.EVENT] = [runtime.event() for _ in range(EVENT.LENGTH)]
    block[DEV.EVENTS] = _permanent_address(events)
    if stages:
        pairs = [(pinned(runtime, STAGE_BYTES), runtime.event()) for _ in range(DEV.STAGE_COUNT)]
        block[DEV.STAGES], block[DEV.STAGE_BYTES] = (
            _permanent_address(np.array(pairs, np.int64)),
            STAGE_BYTES,
        )
    return block


def _permanent_address(words: Words) -> int:
    """Keep words for ever.  Return their address."""
    engine.streams.keep.append(words)
    return int(words.ctypes.data)


def pinned(runtime: Runtime, size: int) -> int:
    """Page-locked memory of the host, which kernels can write to."""
    address = ctypes.c_void_p()
    runtime.enter()
    if runtime.driver.functions["cuMemHostAlloc"](ctypes.byref(address), size, _PORTABLE_MAPPED):
        raise OutOfMemoryError(
            f"cuda:{runtime.index}: the system gave no {size >> 10} KiB of page-locked memory; see "
            f"ulimit -l"
        )
    ctypes.memset(address, 0, size)
    return int(address.value or 0)


_refuse = ctypes.CFUNCTYPE(ctypes.c_int)(drivers.refuse)


def _after_fork_in_child() -> None:
    """Let workers of the child fail their instructions without calls of the driver."""
    address = ctypes.cast(_refuse, ctypes.c_void_p).value or 0
    for _, block in (*_blocks.values(), *_twins):
        for place in _FUNCTIONS:
            block[place] = address
        block[DEV.FAILED] = drivers.NOT_INITIALIZED


os.register_at_fork(after_in_child=_after_fork_in_child)


def forget() -> None:
    """Forget the streams of drivers that tests have put away."""
    with _lock:
        driver = drivers.loaded()
        for owner in [m for m in _streams if m.driver is not driver]:
            del _streams[owner]
            clocks.drop(owner)
