"""Streams: queues of instructions with a worker each, so that independent chains run together.

What a thread issues inside `with flow.stream(s):` runs on `s`, in order.  Between streams the
operands decide: an instruction that reads what another stream writes waits for it, so there are no
events to record and nothing to wait for by hand.

A worker thread stays for the life of the process.  The number of a `Stream` that was collected goes
to the next one made; what is still in its queue runs first.
"""

from __future__ import annotations

import itertools
import time
import weakref
from contextlib import AbstractContextManager, nullcontext

from flowvm.config import config
from flowvm.eager import modes
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.loading.listing import listing, own_names
from flowvm.meta.unique import Unique
from flowvm.vm.callers.hot import CALL_STREAM
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.numbers import Numbers
from flowvm.vm.watch.pending import POLL, in_flight_on, issued

# public: flow

__dir__ = listing(globals())

LEAST, MOST = -20, 19  # priorities
_numbers: dict[int, Numbers] = {k: Numbers() for k in range(LEAST, MOST + 1)}
_streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_count = itertools.count(1)


class Stream(Unique):
    """A queue of instructions that runs beside the others: `s = flow.Stream("loader")`.

    priority   the lower, the sooner: within `flow.vm.schedule` ready instructions of a lower number
               go first, whatever the policy; above 0 (at most 19), the worker's thread also gives
               way to others when cores are short, as a process of that `nice` value does
    VMError when as many streams as the VM has are in use.

    >>> s = flow.Stream("load")
    >>> with flow.stream(s):
    ...     x = flow.ones(2) + 1
    >>> x
    tensor([2., 2.])
    """

    def __init__(self, name: str | None = None, priority: int = 0) -> None:
        if name is not None and not isinstance(name, str):
            raise ArgumentTypeError(f"Stream: a name is a str, got {type(name).__name__}")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ArgumentTypeError(f"Stream: a priority is an int, got {priority!r}")
        if not LEAST <= priority <= MOST:
            raise ArgumentError(f"Stream: a priority is from {LEAST} to {MOST}, got {priority}")
        self.priority = priority
        self._take(f"stream{next(_count)}" if name is None else name)

    def _take(self, name: str) -> None:
        self.name = name
        numbers = _numbers[self.priority]
        self.number = numbers.take(name, lambda: engine.streams.new(name, self.priority))
        _streams[self.number] = self
        numbers.lend(self.number, self)

    @property
    def stream_id(self) -> int:
        """The stream's number in the VM; traces show it."""
        return self.number

    def query(self) -> bool:
        """Return True if all instructions issued to this stream so far are done."""
        return not in_flight_on(engine, self.number, issued())

    def synchronize(self) -> None:
        """Wait until all instructions issued to this stream so far are done.  Raise an error that
        nobody has seen.
        """
        before = issued()
        while in_flight_on(engine, self.number, before):
            time.sleep(POLL)
        engine.failures.collect()
        engine.failures.raise_unseen()

    def __repr__(self) -> str:
        more = f", priority {self.priority}" if self.priority else ""
        return f"<flow.Stream {self.name!r} ({self.number}{more})>"


class _Default(Stream):
    """The stream of everything that is issued outside `with flow.stream(...)`."""

    def __init__(self) -> None:
        self.name, self.number, self.priority = "default", CALL_STREAM, 0


_default = _Default()


def current_stream() -> Stream:
    """The stream that this thread issues to.

    >>> flow.current_stream()
    <flow.Stream 'default' (0)>
    """
    number = modes.current_stream()
    return _default if number == CALL_STREAM else _streams[number]


def stream(stream: Stream | None) -> AbstractContextManager[None]:
    """Issue this thread's operations to `stream` for a block; None changes nothing.

    >>> with flow.stream(flow.Stream("load")):
    ...     x = flow.ones(2) + 1
    >>> x
    tensor([2., 2.])
    """
    if stream is None:
        return nullcontext()
    if not isinstance(stream, Stream):
        raise ArgumentTypeError(f"stream: expected a flow.Stream, got {type(stream).__name__}")
    return modes.use_stream(stream.number, stream)


def set_num_threads(threads: int) -> None:
    """Set the number of threads that share each large CPU kernel of the default stream: 1 to 256.

    At any time; kernels that run just now go on with the threads they have.  Results do not depend
    on it, bit for bit.  The same as `flow.config.workers = threads`.  ConfigError if it is no such
    number.

    >>> flow.set_num_threads(flow.get_num_threads())
    """
    config.workers = threads


def get_num_threads() -> int:
    """Return the number of threads that share a large CPU kernel; at first FLOWVM_WORKERS, or the
    number of CPUs.

    >>> flow.get_num_threads() >= 1
    True
    """
    return config.workers


__all__ = own_names(globals())
