"""Streams and events of CUDA devices, with PyTorch's names.

    s = flow.cuda.Stream()
    with flow.cuda.stream(s):
        y = work(x)                    beside what the default stream does
    z = y + 1                          waits for y: operands decide, nothing is waited for by hand

A `Stream` is a queue of the VM whose worker feeds a CUDA stream of its own.  Instructions of
different streams are ordered by their operands, so `wait_event` and `wait_stream` are needed only
where the order comes from something that the VM does not see: time, or other libraries' work on
`Stream.cuda_stream`.

Recording an event is an instruction that writes the event, waiting for it one that reads it; the
VM's edges do the rest.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flowvm.cuda.devices import device as on_device
from flowvm.cuda.devices import index_of
from flowvm.cuda.driver.driver import error_of
from flowvm.cuda.driver.functions import INDEX
from flowvm.cuda.driver.runtime import Runtime
from flowvm.cuda.driver.streams import block_of, device_of, new_stream, streams
from flowvm.eager import modes
from flowvm.errors import ArgumentError, ArgumentTypeError, CaptureError, DeviceError
from flowvm.meta.device import Device
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.numbers import Numbers
from flowvm.vm.machine.device_words import DEV, SOURCE, STEP
from flowvm.vm.machine.lang import address_of
from flowvm.vm.machine.words import CTL, ENT, INS, KIND, OPERAND, RING, STATE
from flowvm.vm.watch.pending import POLL, in_flight_on, issued
from flowvm.vm.workers.steps import take_steps

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


# public: cuda

_KERNEL: Final = "int32(int64, int64, int64, int64, int64)"
_numbers: dict[tuple[Runtime, int], Numbers] = {}  # of streams of a device, with a priority
_marking = threading.RLock()  # while an event gets its mark
_live: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_count = itertools.count(1)


class Stream:
    """A queue of instructions of a device: `flow.cuda.Stream()`, `Stream("cuda:1", priority=-1)`.

    VMError when as many streams as the VM has are in use.
    """

    def __init__(
        self, device: DeviceLike | None = None, priority: int = 0, *, name: str | None = None
    ) -> None:
        index = index_of(device)
        runtime = streams(index).runtime
        self.priority = priority
        self.device = Device("cuda", index)
        numbers = _numbers.setdefault((runtime, priority), Numbers())
        name = f"cuda:{index} {name or next(_count)}"
        self.number = numbers.take(name, lambda: new_stream(index, name, priority))
        _live[self.number] = self
        numbers.lend(self.number, self)

    @property
    def stream_id(self) -> int:
        """The stream's number in the VM; traces show it."""
        return self.number

    @property
    def cuda_stream(self) -> int:
        """The driver's handle, for other libraries.  What they do there the VM does not see."""
        return int(block_of(self.number)[DEV.STREAM])

    def query(self) -> bool:
        """Return True if all instructions issued to this stream so far are done."""
        return not in_flight_on(engine, self.number, issued())

    def synchronize(self) -> None:
        """Wait for all instructions issued to this stream so far; raise an error not seen yet."""
        _wait_for([self.number])

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a new one, behind all instructions issued to this stream so far."""
        recorded = Event() if event is None else event
        recorded.record(self)
        return recorded

    def wait_event(self, event: Event) -> None:
        """Let instructions issued to this stream from now on wait for `event`."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Let later instructions of this stream wait for all that `stream` has got so far."""
        self.wait_event(stream.record_event())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash((Stream, self.number))

    def __repr__(self) -> str:
        return f"<flow.cuda.Stream {engine.streams.name(self.number)!r} ({self.number})>"


class _Default(Stream):
    """The stream of everything that is issued outside of `with flow.cuda.stream(...)`."""

    def __init__(self, index: int) -> None:
        self.number = streams(index).compute
        self.device = Device("cuda", index)
        self.priority = 0


def _wait_for(numbers: list[int]) -> None:
    before = issued()
    while any(in_flight_on(engine, number, before) for number in numbers):
        time.sleep(POLL)
    engine.failures.collect()
    engine.failures.raise_unseen()
    for number in numbers:  # a device that is lost is lost, however often that was seen
        if code := int(block_of(number)[DEV.FAILED]):
            raise error_of(code, f"cuda:{device_of(number)}")


def default_stream(device: DeviceLike | None = None) -> Stream:
    """The stream that the device's instructions go to unless another was chosen."""
    return _Default(index_of(device))


def current_stream(device: DeviceLike | None = None) -> Stream:
    """The stream that this thread's instructions for the device go to."""
    default = default_stream(device)
    number = modes.current_device_stream(default.number)
    return default if number == default.number else _live[number]


@contextmanager
def stream(stream: object) -> Iterator[None]:
    """Issue this thread's operations on the stream's device to it for a block, and let "cuda" mean
    that device; None changes nothing.
    """
    if stream is None:
        yield
        return
    if not isinstance(stream, Stream):
        kind = type(stream).__name__
        raise ArgumentTypeError(f"stream: expected a flow.cuda.Stream, got {kind}")
    index = index_of(stream.device)
    default = streams(index).compute
    with on_device(index), modes.use_device_stream(default, stream.number):
        yield


StreamContext = AbstractContextManager  # public: cuda


def synchronize(device: DeviceLike | None = None) -> None:
    """Wait until everything issued to the device so far is done; raise an error nobody has seen,
    and DeviceError where the device is lost.
    """
    index = index_of(device)
    streams(index)
    _wait_for([number for number in range(engine.streams.count) if device_of(number) == index])


# --- events ---------------------------------------------------------------------------------------


class _Mark:
    """The driver's event and the VM's storage of an event, from its first recording on."""

    handle = 0
    storage = 0
    recorded: tuple[int, int] | None = None  # stream, sequence number

    def happened(self) -> bool:
        if self.recorded is None:
            return True
        stream, seq = self.recorded
        return not in_flight_on(engine, stream, seq + 1)


_spare: dict[tuple[Runtime, bool], list[_Mark]] = {}  # with timing or without: of events gone


class Event:
    """A moment in a stream: `record`, then `query`, `synchronize`, `wait`, `elapsed_time`.

    `blocking` and `interprocess` are PyTorch's; the first changes nothing, the second must be
    False.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise ArgumentError("Event: events of other processes are not supported")
        self.timing = enable_timing
        self.device: Device | None = None
        self._mark = _Mark()

    def record(self, stream: Stream | None = None) -> None:
        """Let the event happen when everything issued to the stream so far is done.

        Wait until these instructions were handed to the device, after the host's part of them.
        """
        on = current_stream() if stream is None else stream
        mark = self._mark_for(on)
        _handed_over(on.number, issued())
        entry = _entry("record_event", on)  # the entry exists as long as this reference
        seq = engine.records.issue(entry | on.number << ENT.BITS, (mark.storage,), (mark.handle,))
        mark.recorded = on.number, seq

    def wait(self, stream: Stream | None = None) -> None:
        """Let instructions issued to the stream from now on wait for the event.  Do nothing if it
        was never recorded.
        """
        if self._mark.recorded is not None:
            on = current_stream() if stream is None else stream
            entry = _entry("wait_event", on)
            engine.records.issue(entry | on.number << ENT.BITS, (self._mark.storage,))

    def query(self) -> bool:
        """Return True if the event has happened or was never recorded."""
        return self._mark.happened()

    def synchronize(self) -> None:
        """Wait until the event has happened."""
        if self._mark.recorded is not None:
            engine.waits.wait_for((self._mark.storage,))

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`, as the device measured them."""
        for event, name in ((self, "this event"), (end_event, "end_event")):
            if not event.timing:
                raise ArgumentError(f"elapsed_time: {name} was made without enable_timing=True")
            if event._mark.recorded is None:
                raise ArgumentError(f"elapsed_time: {name} was never recorded")
            if not event.query():
                raise DeviceError(f"elapsed_time: {name} has not happened yet; synchronize() it")
        runtime = streams(index_of(self.device)).runtime
        runtime.enter()
        out = ctypes.c_float()
        runtime.driver.call(
            "cuEventElapsedTime", ctypes.byref(out), self.cuda_event, end_event.cuda_event
        )
        return out.value

    @property
    def cuda_event(self) -> int:
        """The driver's handle; 0 before the event was recorded."""
        return self._mark.handle

    def _mark_for(self, stream: Stream) -> _Mark:
        """Return the event's mark; the first recording makes it."""
        if modes.current_recorder() is not None:
            raise CaptureError("events cannot be recorded while a graph is captured")
        with _marking:
            if self.device is None:
                runtime = streams(index_of(stream.device)).runtime
                self._mark = _new_mark(runtime, self.timing)
                weakref.finalize(self, _drop, self._mark, _spare[runtime, self.timing])
                self.device = stream.device
        if self.device is not stream.device:
            raise DeviceError(
                f"record: the event is of {self.device}, and the stream of {stream.device}"
            )
        return self._mark

    def __repr__(self) -> str:
        state = "not recorded" if self._mark.recorded is None else f"done={self.query()}"
        return f"<flow.cuda.Event {state}>"


def _new_mark(runtime: Runtime, timing: bool) -> _Mark:
    mark = _Mark()
    spare = _spare.setdefault((runtime, timing), [])
    # one that is still to be recorded for its last event may not be used
    place = next((i for i, used in enumerate(spare) if used.happened()), None)
    mark.handle = runtime.event(timing) if place is None else spare.pop(place).handle
    word = np.zeros(1, np.int64)
    mark.storage = engine.storages.adopt(word.ctypes.data, word.nbytes, word)
    return mark


def _drop(mark: _Mark, spare: list[_Mark]) -> None:
    """Drop a mark whose event is gone: release its storage, and keep its handle for reuse."""
    hot["dead"].append(mark.storage)
    spare.append(mark)


def _handed_over(stream: int, before: int) -> None:
    """Wait until all instructions issued to a stream are in its worker's queue, so that later ones
    come behind them.
    """
    table = engine.m[INS.AT : INS.AT + RING.SLOTS * INS.WORDS].reshape(RING.SLOTS, INS.WORDS)
    while True:
        if engine.words[CTL.RECEIVED] >= before:
            state = table[:, INS.STATE]
            mine = (table[:, INS.STREAM] == stream) & (table[:, INS.SEQ] < before)
            if not np.any(mine & (state >= STATE.PENDING) & (state < STATE.DISPATCHED)):
                return
        time.sleep(POLL)


# --- instructions ---------------------------------------------------------------------------------

_entries: dict[tuple[str, Runtime], int] = {}
engine.entries.on_full.append(_entries.clear)


def _entry(name: str, stream: Stream) -> int:
    """The VM's entry of the instruction `name` for the stream's device."""
    runtime = streams(index_of(stream.device)).runtime
    entry = _entries.get((name, runtime))
    if entry is None:
        records = name == "record_event"
        access = [OPERAND.MUT if records else OPERAND.CONST]
        kernel = address_of(take_steps, _KERNEL)
        layout = np.array(_record_steps(runtime) if records else [0], np.int64)
        facts: Any = {"kernel": kernel, "layout": layout, "scalars": int(records), "info": name}
        number = engine.entries.new(KIND.OP_CALL, access, **facts)
        entry = _entries.setdefault((name, runtime), number)
    return entry


def _record_steps(runtime: Runtime) -> list[int]:
    """cuEventRecord(the call's scalar, the stream), as `flowvm.vm.workers.steps` takes it."""
    step = [0] * STEP.TEMPLATE
    step[STEP.KIND] = STEP.FUNCTION_CALL
    step[STEP.FUNCTION] = int(runtime.driver.table[INDEX["cuEventRecord"]])
    step[STEP.TEMPLATE_WORDS], step[STEP.PATCHES] = 2, 2
    step += [0, 0]
    step += [0, SOURCE.ARG | 1 << SOURCE.SHIFT, 0]  # behind the one operand
    step += [1, SOURCE.BLOCK | DEV.STREAM << SOURCE.SHIFT, 0]
    step[STEP.LENGTH] = len(step)
    return [1, *step]
