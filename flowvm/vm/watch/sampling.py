"""Samples of the issuing threads, a thousand times a second: they show where host time goes.

From level 2 on a native thread without the GIL (`flowvm.vm.workers.sampler`) looks at every thread
that issues.  It sees addresses.  `samples` finds the live code objects of these addresses, each
identified by more than its address.  So a freed one is left out and not mistaken.

Until the loop is compiled a thread of Python does the same, ten times as seldom.  Where CPython's
places are not found, or nothing may read memory by the system, that thread asks for frame objects
(`how` says which).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from flowvm.compiler import helpers
from flowvm.config import say
from flowvm.guards.apart import apart
from flowvm.guards.collection import Uncollected, live_functions
from flowvm.meta.arrays import Array
from flowvm.private import frames
from flowvm.private.cpython import never_freed
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.machine.device_words import CALL
from flowvm.vm.machine.lang import address_of, cached_address
from flowvm.vm.machine.sample_words import SAMPLING, SEEN, WATCHED
from flowvm.vm.workers import sampler

PERIOD_US = 1000  # but in the first 16 ms
SELDOM_S = 0.01  # between two looks of Python's
NAME = "flowvm-sampler"
# instead of a code object's address, where C calls the interpreter anew: from CPython 3.13 on
_NO_CODE = (0, id(None))
_Cached: Any = type(functools.lru_cache(len))


class Sample(NamedTuple):
    """A sample of a thread at `time` (monotonic ns).  `frames` has the code and the offset of each
    frame, the innermost first; None for code that is gone.  `used` is the thread's processor time
    so far, in ns.
    """

    time: int
    thread: int
    used: int
    frames: tuple[tuple[CodeType | None, int], ...]


# Time, thread and processor time of a sample; and for each frame the address of its code, the
# address in the code, and the code's identity.
_Row = tuple[int, int, int, tuple[tuple[int, int, int], ...]]


class _Issuing:
    """An object in the locals of a sampled thread: it ends with the thread, and frees its slot."""

    def __init__(self, words: Any, free: list[int]) -> None:
        self.words, self.free = words, free
        self.slot = free.pop()

    @protected
    def __del__(self) -> None:
        self.words[self.slot + WATCHED.STATE] = 0
        self.free.append(self.slot)


class StackNumber:
    """The number of the calling thread's stack, or 0: `function(cell())`."""

    def __init__(self, address: int, base: int) -> None:
        # PYFUNCTYPE keeps the GIL; types of arguments would make an object of each at each call
        self.function: Callable[[ctypes.c_int64], int] = ctypes.PYFUNCTYPE(ctypes.c_int64)(address)
        self.base = base
        self.cells = threading.local()  # attribute `own`: what `cell` has returned to a thread

    def cell(self) -> ctypes.c_int64:
        """Return the argument for the calling thread, and keep it as `cells.own`."""
        words = (ctypes.c_int64 * 2)(self.base, frames.thread_state())
        self.cells.words, self.cells.own = words, ctypes.c_int64(ctypes.addressof(words))
        own: ctypes.c_int64 = self.cells.own
        return own


class Sampling:
    """The sampler of one engine."""

    def __init__(self) -> None:
        self.on = False
        self.native = False  # True if the thread runs the native loop
        self.why = ""  # it is Python's
        self.thread: threading.Thread | None = None
        self.local = threading.local()
        self.words = (ctypes.c_int64 * SAMPLING.WORDS)()
        slots = range(WATCHED.LENGTH)
        self.free = [SAMPLING.WATCHED + k * WATCHED.WORDS for k in slots]  # places of WATCHED
        self.ring: Array | None = None
        self.codes: dict[tuple[int, int], CodeType] = {}  # by address and name
        self.seldom: deque[Sample] = deque(maxlen=SEEN.LENGTH)
        self.rows: deque[_Row] = deque(maxlen=SEEN.LENGTH)
        self.making = False

    # --- beginning and ending -----------------------------------------------------------------

    def watch(self) -> None:
        """Sample the calling thread from now on, as long as it lives."""
        own = getattr(self.local, "own", None)
        if own is None:
            if not self.free:
                return  # only as many threads as there is room for are sampled
            self.local.own = own = _Issuing(self.words, self.free)
            self.words[own.slot + WATCHED.THREAD] = threading.get_ident()
            self.words[own.slot + WATCHED.CLOCK] = (~threading.get_native_id() << 3) | 6
            self.words[own.slot + WATCHED.LAST] = 0
            self.words[own.slot + WATCHED.STATE] = frames.thread_state()
        if not self.on:
            self._start()

    def _start(self) -> None:
        self.stop()  # where a Ctrl-C came into that, it was not waited for
        self.words[SAMPLING.STOP] = 0
        loop = apart(self._loop)
        self.native = loop is not None
        target, args = (loop, (ctypes.addressof(self.words),)) if loop else (self._look, ())
        self.thread = threading.Thread(target=target, args=args, name=NAME, daemon=True)
        self.thread.start()
        self.on = True  # last: after an exception, the next issuing thread begins anew
        say(1, f"started thread {NAME}")

    def _loop(self) -> Any:
        """Return the native loop; None if there is none, or not yet."""
        if self.why:
            return None
        self.why = frames.why_not()
        if self.why:
            say(1, f"issuing threads are looked at by Python: {self.why}")
            return None
        address = cached_address(sampler.sampler_loop, sampler.SIGNATURE)
        if address is None:
            if not self.making:
                self.making = True
                helpers.later(f"{__name__}:make", lambda: None)
            return None
        if self.ring is None:
            self._fill()
        return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)

    def _fill(self) -> None:
        """Fill the loop's memory.  It is never freed: the thread may outlive the interpreter."""
        self.ring = np.zeros((SEEN.LENGTH, SEEN.WORDS), np.int64)
        call, spans = (ctypes.c_int64 * CALL.WORDS)(), (ctypes.c_int64 * (2 + 2 * SEEN.MOST))()
        window = (ctypes.c_int64 * (SAMPLING.WINDOW_BYTES // 8))()
        libc, w, at = ctypes.CDLL(None), self.words, ctypes.addressof
        for array in (self.ring, self.words, call, spans, window):
            never_freed(array)
        layout = frames.layout()
        w[SAMPLING.PERIOD] = PERIOD_US
        w[SAMPLING.RING], w[SAMPLING.PID] = self.ring.ctypes.data, os.getpid()
        w[SAMPLING.CALL], w[SAMPLING.SPANS], w[SAMPLING.WINDOW] = at(call), at(spans), at(window)
        for word, function in (
            (SAMPLING.READ, frames.reader()),
            (SAMPLING.CLOCK, libc.clock_gettime),
        ):
            w[word] = ctypes.cast(function, ctypes.c_void_p).value or 0
        for name in ("CURRENT", "THROUGH", "CODE", "BEFORE", "AT", "NAME", "TABLE"):
            w[getattr(SAMPLING, name)] = getattr(layout, name.lower())

    def stack_number(self) -> StackNumber | None:
        """Return what gives the calling thread's stack a number; None where frames cannot be read,
        or not yet.
        """
        if self.ring is None:
            return None
        address = cached_address(sampler.own_stack, sampler.STACK_SIGNATURE)
        if address is None:
            return None
        return StackNumber(address, ctypes.addressof(self.words))

    def stop(self) -> None:
        """Stop sampling; the samples stay."""
        self.on = False
        if self.thread is not None:
            self.words[SAMPLING.STOP] = 1
            if self.thread.is_alive():  # else an exception came before it was started
                self.thread.join()
            self.thread = None

    def after_fork_in_child(self) -> None:
        """Forget the thread in a forked child: it is not there, and threads have other numbers."""
        self.__init__()  # type: ignore[misc]

    def _look(self) -> None:
        """Sample from a Python thread until told to stop, if there is no native loop."""
        while not self.words[SAMPLING.STOP]:
            now = time.monotonic_ns()
            for k in range(WATCHED.LENGTH):
                at = SAMPLING.WATCHED + k * WATCHED.WORDS
                thread, state = self.words[at + WATCHED.THREAD], self.words[at + WATCHED.STATE]
                if state == 0:
                    continue
                try:
                    used = time.clock_gettime_ns(self.words[at + WATCHED.CLOCK])
                except OSError:
                    continue
                if self.why:
                    self.seldom.append(Sample(now, thread, used, _frames_of(thread)))
                else:
                    self.rows.append((now, thread, used, _words_of_frames(state)))
            time.sleep(SELDOM_S)

    # --- looking ------------------------------------------------------------------------------

    def samples(self, since: int, until: int, more: Iterable[object] = ()) -> list[Sample]:
        """Return the remembered samples from `since` to `until`, the oldest first.  `more` are code
        objects that may be alive and in no function.
        """
        samples = [s for s in tuple(self.seldom) if since <= s.time <= until]
        rows = [row for row in tuple(self.rows) if since <= row[0] <= until]
        if self.ring is not None:
            rows += self._native_rows(since, until)
        if not rows:
            return samples
        self._find({(a, n) for row in rows for a, _, n in row[3]}, more)
        shift, size = frames.layout().shift, 1 << 24
        for time_, thread, used, words in rows:
            stack = []
            for address, at, name in words:
                if address in _NO_CODE:
                    continue
                last = at - address - shift
                stack.append((self.codes.get((address, name)), last if 0 <= last < size else 0))
            samples.append(Sample(time_, thread, used, tuple(stack)))
        return sorted(samples, key=lambda sample: sample.time)

    def _native_rows(self, since: int, until: int) -> list[_Row]:
        """Return the samples that the native loop has put into the ring."""
        rows = []
        for row in self._rows(since, until).tolist():
            words = row[SEEN.FRAMES : SEEN.FRAMES + 3 * row[SEEN.DEPTH]]
            triples = tuple(zip(words[::3], words[1::3], words[2::3], strict=True))
            rows.append((row[SEEN.TIME], row[SEEN.THREAD], row[SEEN.USED], triples))
        return rows

    def _rows(self, since: int, until: int) -> Array:
        """Return the rows of the ring that were whole while they were copied."""
        assert self.ring is not None
        count = int(self.words[SAMPLING.COUNT])
        number = np.arange(max(0, count - SEEN.LENGTH + 1), count)
        rows = self.ring[number % SEEN.LENGTH]
        whole = (rows[:, SEEN.MARK] == number + 1) & (
            self.ring[number % SEEN.LENGTH, SEEN.MARK] == number + 1
        )
        whole &= (rows[:, SEEN.TIME] >= since) & (rows[:, SEEN.TIME] <= until)
        complete: Array = rows[whole]
        return complete

    def _find(self, pairs: set[tuple[int, int]], more: Iterable[Any]) -> None:
        """Look for the live code objects with these addresses and names."""
        missing = {pair for pair in pairs if pair not in self.codes and pair[1] != 0}
        addresses = {address for address, _ in missing}
        for source in (_running, lambda: more, lambda: _own(len(sys.modules)), _functions, _named):
            if not addresses:
                return
            waiting = [c for c in source() if type(c) is CodeType]
            known = set[int]()
            while waiting:
                code = waiting.pop()
                if id(code) in known:
                    continue
                known.add(id(code))
                if id(code) in addresses:
                    self.codes[id(code), _name(code)] = code
                    addresses.discard(id(code))
                waiting += [c for c in code.co_consts if type(c) is CodeType]


def how() -> str:
    """Return a text: the kind of sampling thread, its rate, and the reason for a slow one."""
    if why := frames.why_not():
        return f"by a Python thread, 100 Hz: {why}"
    return "by a native thread, 1 kHz, without the GIL"


def _running() -> list[CodeType]:
    codes = []
    with Uncollected():
        for top in sys._current_frames().values():
            frame: Any = top
            while frame is not None:
                codes.append(frame.f_code)
                frame = frame.f_back
    return codes


@functools.lru_cache(maxsize=1)
def _own(modules: int) -> list[CodeType]:
    """Return the code objects of flowvm's own functions, cached by the number of modules."""
    return list(_named("flowvm"))


def _named(package: str = "") -> Iterator[CodeType]:
    """Yield the code objects of the functions and classes of modules.  The garbage collector does
    not list all of them (`gc.freeze`).
    """
    modules = [m for name, m in list(sys.modules.items()) if name.startswith(package)]
    waiting: list[Any] = [v for m in modules for v in _values(m)]
    known = set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in known:
            continue
        known.add(id(value))
        kind = type(value)  # not isinstance: an attribute of a module may lie about its class
        if kind is FunctionType:
            yield value.__code__
            if value.__closure__:
                waiting += [c.cell_contents for c in value.__closure__ if _is_filled(c)]
        elif issubclass(kind, type):
            if str(type.__dict__["__module__"].__get__(value)).startswith(package):
                waiting += type.__dict__["__dict__"].__get__(value).values()
        elif kind is property:
            waiting += (value.fget, value.fset, value.fdel)
        elif kind in (staticmethod, classmethod):
            waiting.append(value.__func__)
        elif kind is functools.cached_property:
            waiting.append(value.func)
        elif kind is _Cached:
            waiting.append(value.__wrapped__)


def _values(module: object) -> list[object]:
    return list(getattr(module, "__dict__", {}).values())


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _functions() -> Iterator[CodeType]:
    for function in live_functions():
        yield function.__code__


def _frames_of(thread: int) -> tuple[tuple[CodeType | None, int], ...]:
    stack = list[tuple[CodeType | None, int]]()
    with Uncollected():
        frame: FrameType | None = sys._current_frames().get(thread)
        while frame is not None and len(stack) < SEEN.MOST:
            stack.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
    return tuple(stack)


def _words_of_frames(state: int) -> tuple[tuple[int, int, int], ...]:
    """Return the words of a running thread's frames, read as the native loop does, without frame
    objects.
    """
    layout = frames.layout()
    stack = []
    for code, last in frames.walk(layout, state, SEEN.MOST):
        name, table = (
            frames.words_of(code + layout.name, 1),
            frames.words_of(code + layout.table, 1),
        )
        if name and table:
            stack.append((code, code + last + layout.shift, name[0] + table[0]))
    return tuple(stack)


def _name(code: CodeType) -> int:
    """Return the number by which the sampler identifies a code object."""
    layout = frames.layout()
    word = ctypes.c_int64.from_address
    return word(id(code) + layout.name).value + word(id(code) + layout.table).value


def make() -> None:
    """Compile the loop and the number of a stack into the cache: a helper's job."""
    address_of(sampler.sampler_loop, sampler.SIGNATURE)
    address_of(sampler.own_stack, sampler.STACK_SIGNATURE)
