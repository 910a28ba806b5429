"""Times of instructions by the devices' clocks, converted to the host's clock.

From level 3 of the recorder on workers keep when each instruction began and ended by the clock of
its device (`flowvm.vm.workers.device_times`).  Here are made the events and the rings that they
need, when the level rises or a stream is made, and here their times become the host's:

    compare    record an event on an idle stream and wait for it: the host's clock read before and
               after bounds the moment; the closest of COMPARISONS
    look       compares again, where the device has nothing to do; the host's time of anything
               between is on the line through both, so clocks that drift apart do no harm

All times of one device are on one line: among themselves they are as exact as the driver's.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from flowvm.cuda.driver.runtime import Runtime
from flowvm.errors import FlowError
from flowvm.meta.arrays import Array
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.device_words import DEV, EVENT, TIME
from flowvm.vm.machine.words import REC, STR
from flowvm.vm.watch.flight import DeviceTimes
from flowvm.vm.workers.device_times import FRESH

COMPARISONS: Final = 5


class _Moment(NamedTuple):
    """A moment by both clocks, in ns; `within` is how far off the host's may be."""

    host: int
    device: int
    within: int


@dataclass
class _Clock:
    """A device's clock.  Its times count from the first recording of `origin`, which happened at
    `origin_ns`; `probe` is for comparisons, on the stream that was attached first.
    """

    runtime: Runtime
    stream: int  # the driver's handle
    origin: int
    probe: int
    origin_ns: int = 0
    streams: list[int] = field(default_factory=list)  # the VM's numbers
    first: _Moment = field(default_factory=lambda: _Moment(0, 0, 0))

    def start(self) -> None:
        """Count times from now on."""
        self.happen(self.origin, self.stream)
        self.origin_ns, self.streams = 0, []
        self.first = self.compare()

    def happen(self, event: int, stream: int) -> None:
        """Record an event on a stream, and wait for it."""
        self.runtime.enter()
        self.runtime.driver.call("cuEventRecord", event, stream)
        self.runtime.driver.call("cuEventSynchronize", event)

    def when(self, event: int) -> int:
        """Return the time of a past event."""
        out = ctypes.c_float()
        self.runtime.driver.call("cuEventElapsedTime", ctypes.byref(out), self.origin, event)
        return self.origin_ns + round(out.value * 1e6)

    def compare(self) -> _Moment:
        """Return the present moment by both clocks."""
        samples = []
        for _ in range(COMPARISONS):
            before = time.monotonic_ns()
            self.happen(self.probe, self.stream)
            after = time.monotonic_ns()
            within = (after - before + 1) // 2
            samples.append(_Moment(before + within, self.when(self.probe), within))
        if samples[-1].device - self.origin_ns > FRESH:  # the driver's floats are finer nearby
            self.origin, self.probe = self.probe, self.origin
            self.origin_ns = samples[-1].device
        return min(samples, key=lambda moment: moment.within)


_lock = threading.RLock()  # guards the tables below
_keeps_times = engine.flight.level > 2  # whether workers keep times
_attached: dict[int, tuple[Runtime, Array]] = {}  # by VM stream, with its block
_clocks: dict[Runtime, _Clock] = {}
_started: set[Runtime] = set()  # runtimes whose clocks run since times are recorded
_rings: dict[int, Array] = {}


def attach(stream: int, runtime: Runtime, block: Array) -> None:
    """Register a new stream of a device, so that its times can be recorded."""
    with _lock:
        _attached[stream] = runtime, block
        if _keeps_times:
            _start(stream, runtime, block)


def drop(runtime: Runtime) -> None:
    """Forget a device that nobody uses any more."""
    with _lock:
        _clocks.pop(runtime, None)
        for stream in [s for s, (of, _) in _attached.items() if of is runtime]:
            del _attached[stream]


def _on_level(level: int) -> None:
    """Start or stop the recording of times when the profiling level changes.  A new start clears
    the times recorded before.
    """
    global _keeps_times
    with _lock:
        before, _keeps_times = _keeps_times, level > 2
        if before or not _keeps_times:
            return
        _started.clear()
        for stream, (runtime, block) in _attached.items():
            _start(stream, runtime, block)


def _start(stream: int, runtime: Runtime, block: Array) -> None:
    """Let a stream's worker record times from now on.  Skip a device that is lost, or was left
    behind by a fork.
    """
    block[DEV.TIMES] = 0
    with contextlib.suppress(FlowError):
        _prepare(stream, runtime, block)
        block[DEV.TIMES] = _rings[stream].ctypes.data


def _prepare(stream: int, runtime: Runtime, block: Array) -> None:
    events, handle = _events(block), int(block[DEV.STREAM])
    if stream not in _rings:
        for place in (EVENT.BEGIN, EVENT.END):
            events[:, place] = [runtime.event(timing=True) for _ in range(len(events))]
        block[DEV.BASE] = runtime.event(timing=True)
        _rings[stream] = np.zeros((REC.LENGTH, TIME.WORDS), np.int64)
        engine.streams.keep.append(_rings[stream])
    if runtime not in _clocks:
        _clocks[runtime] = _Clock(
            runtime, handle, runtime.event(timing=True), runtime.event(timing=True)
        )
    if runtime not in _started:
        _clocks[runtime].start()
        _started.add(runtime)
    clock, base = _clocks[runtime], int(block[DEV.BASE])
    clock.happen(base, handle)
    block[DEV.BASE_NS] = clock.when(base)
    _rings[stream][:, TIME.MARK] = 0
    clock.streams.append(stream)


def _events(block: Array) -> Array:
    count = EVENT.LENGTH * EVENT.WORDS
    words = (ctypes.c_int64 * count).from_address(int(block[DEV.EVENTS]))
    return np.ctypeslib.as_array(words).reshape(-1, EVENT.WORDS)


def _look(seqs: Array) -> DeviceTimes:
    """Return the times of these instructions on the host's clock; 0 for an instruction without
    times.
    """
    times, notes = np.zeros((len(seqs), 2), np.int64), {}
    with _lock:
        for runtime, clock in _clocks.items():
            last = clock.first
            if all(_idle(stream) for stream in clock.streams):
                with contextlib.suppress(FlowError):  # the device is lost: the known times stay
                    last = clock.compare()
            first = clock.first
            apart = last.device - first.device
            rate = (last.host - first.host) / apart if apart > 0 else 1.0
            for stream in clock.streams:
                rows = _rings[stream][seqs & REC.MASK]
                mine = rows[:, TIME.MARK] == seqs + 1
                since = rows[mine, TIME.BEGAN :] - first.device
                times[mine] = first.host + np.rint(since * rate).astype(np.int64)
            notes[f"cuda:{runtime.index}"] = {
                "within_ns": max(first.within, last.within),
                "drift_ppm": round((rate - 1) * 1e6, 1),
                "apart_ns": apart,
            }
    return DeviceTimes(times, notes)


def _idle(stream: int) -> bool:
    at = STR.AT + stream * STR.WORDS
    return bool(engine.words[at + STR.TAIL] == engine.words[at + STR.DONE])


engine.flight.on_level.append(_on_level)
engine.flight.device_times = _look
