"""The Python side of the VM: its memory, its threads, issuing, waiting, errors, fork and exit.

One `Engine` a process, made when flowvm is imported (it reserves address space and nothing else),
whose threads start with the first instruction.  Who runs where:

    issuing threads    take a sequence number, write a record, publish it (`hot` holds what they
                       touch); wait in slices
    flowvm-sched       `shell.scheduler_loop`, native, no GIL
    flowvm-w:NAME      `shell.worker_loop` of a stream, native, no GIL; of a device's stream
                       `shell.device_loop`
    flowvm-h:NAME      `shell.helper_loop`: its helpers for large kernels
    flowvm-host        Python: runs callbacks
    flowvm-watch       Python: watchdog, window for `flowvm top` (see `flowvm.vm.watch.watchdog`);
                       from the first instruction on, whether the loops are compiled or not

A record is published by its last store.  Between taking a sequence number and that store nothing
may raise, or the ring would have a hole that stops the VM: `for seq in counter: break` has no point
at which CPython looks at signals, and `flowvm.vm.callers.interrupt` puts off a Ctrl-C that lands in
one of the functions listed there.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import itertools
import math
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType
from typing import Any

import numpy as np

from flowvm.compiler import helpers, jit
from flowvm.compiler.progress import tell
from flowvm.config import config, say
from flowvm.errors import InvalidValueError, VMError
from flowvm.guards.apart import apart
from flowvm.guards.collection import Uncollected
from flowvm.guards.forks import Rank, held_at_fork
from flowvm.guards.regions import reverting
from flowvm.meta.arrays import Array
from flowvm.private.cpython import never_freed
from flowvm.vm.callers.hot import CALL_STREAM, FIRST_USER_STREAM, FRAMES, HOST_STREAM, hot
from flowvm.vm.callers.interrupt import interrupt, protected, waiting
from flowvm.vm.callers.lines import apart as line_apart
from flowvm.vm.callers.lines import user_frame
from flowvm.vm.callers.publish_check import assert_none, begun, watch
from flowvm.vm.callers.tracebacks import install
from flowvm.vm.engine import cancel
from flowvm.vm.engine.bounds import bound
from flowvm.vm.engine.failures import Failures
from flowvm.vm.engine.forks import Forking
from flowvm.vm.engine.loans import Lending
from flowvm.vm.engine.loops import Loops
from flowvm.vm.engine.restore import Restorer
from flowvm.vm.machine.lang import address_of, load_acquire
from flowvm.vm.machine.machine import MARGIN, is_settled
from flowvm.vm.machine.machine import start as start_machine
from flowvm.vm.machine.wait_words import WAIT
from flowvm.vm.machine.words import ARG, ARRAY, CTL, ENT, FRE, KIND, OPERAND, RING, STO, STR, VEW
from flowvm.vm.watch.cores import new_cell
from flowvm.vm.watch.flight import Flight
from flowvm.vm.watch.narrate import Narrator
from flowvm.vm.watch.pending import issued
from flowvm.vm.watch.purposes import are_gone
from flowvm.vm.watch.watchdog import Watch
from flowvm.vm.workers import shell, zones
from flowvm.vm.workers.allocator import trim

WORDS_ONLY = True
LAUNCH_STREAM = "plans"  # the name of a stream that nothing but launches is issued on
CHECK_EVERY = 256  # records between two looks at the limit, the errors and the memory in flight
SLICE_US = 50_000  # a wait returns to Python this often, so that Ctrl-C works
TOUCH_MAX = 24
REST_SECONDS = 0.1  # the longest that others are kept from the lock before all is tried again
NAMES = 1 << 13  # names of entries dropped last that are remembered
ADOPTED_BYTES = 1 << 26  # bytes of adopted memory between two searches for releasable ones
EXIT_SECONDS = 10.0  # the longest that leaving Python waits for work in flight
_PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS_NORESERVE = 3, 0x4022

SIGNATURES = {
    "scheduler_loop": "int64(int64, int64)",
    "close_plan": "int64(int64, int64)",
    "worker_loop": "int64(int64, int64, int64)",
    "device_loop": "int64(int64, int64)",
    "helper_loop": "int64(int64, int64, int64, int64)",
    "wake_stream": "int64(int64, int64)",
    "wake_scheduler": "int64(int64)",
    "wait_cell": "int64(int64, int64, int64, int64)",
    "settle_soon": "int64(int64, int64, int64, int64, int64)",
    "wait_room": "int64(int64, int64, int64)",
    "host_next": "int64(int64, int64, int64)",
    "host_begin": "int64(int64, int64, int64)",
    "host_fail": "int64(int64, int64, int64, int64)",
    "host_end": "int64(int64, int64)",
    "host_finish": "int64(int64, int64)",
    "read_clocks": "int64(int64)",
    "stamp_some": "int64(int64, int64)",
    "nap": "int64(int64, int64)",
    "publish_mark": "int64(int64, int64)",
    "drain": "int64(int64)",
    "settle": "int64(int64, int64)",
}
# What one helper compiles: functions that call the same ones, which are lowered once a process.
# The first of a group takes most of its time; whatever is in no group is quick.
RUNNING = ("worker_loop", "host_begin", "host_fail", "host_next", "helper_loop", "drain")
SCHEDULING = ("scheduler_loop", "settle_soon", "settle")
LAST = ("drain",)  # beside the threads' own it is used when Python ends
DEVICES = {"device_loop"}
SEQUENTIAL = {"drain", "settle", "read_clocks"}
THREADED = SIGNATURES.keys() - DEVICES - {"drain"}

_TEAM_AT = STR.AT + CALL_STREAM * STR.WORDS + STR.TEAM


def _helper(number: int) -> str:
    return f"flowvm-h:cpu.{number}"


# exceptions of packing a record; in a debug build an assertion, too
STRUCT_ERRORS = (struct.error, OverflowError, TypeError) + (VMError,) * config.debug_calls
_RECORDS = [struct.Struct(f"{n}q") for n in range(RING.WORDS + 1)]


def no_word(bad: Exception) -> Exception:
    """Return the error for a number, among a call's arguments, that fits in no word of a record."""
    if isinstance(bad, VMError):
        return bad
    return InvalidValueError(f"a number of this call does not fit into 64 bits ({bad})")


def _mark(seq: int) -> int:
    return seq + 1 if RING.ORDERED_STORES else 0


def _deeper(frames: int) -> None:
    """Raise RecursionError if Python has no room for `frames` more frames."""
    if frames:
        _deeper(frames - 1)


def no_op(args: int, layout: int, lo: int, hi: int) -> int:
    """Do nothing: the kernel of instructions whose work is done in Python."""
    return 0


dead_entries: collections.deque[int] = collections.deque()  # numbers without users


def make_loop(name: str) -> None:
    """Compile a function of the shell into the cache: a helper's job."""
    address_of(getattr(shell, name), SIGNATURES[name])


class EntryWord(int):
    """An entry's number and stream as the word of a record.  When this object goes, so does the
    entry.
    """

    @protected
    def __del__(self, _dead: Any = dead_entries.append, _mask: int = ENT.MASK) -> None:
        _dead(self & _mask)


class Engine:
    """The process's VM.  `flowvm.vm` is its public face."""

    def __init__(self) -> None:
        size = ARRAY.WORDS * 8
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        number = ctypes.c_int
        libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            number,
            number,
            number,
            ctypes.c_long,
        ]
        flags = _MAP_PRIVATE_ANONYMOUS_NORESERVE
        base = libc.mmap(None, size, _PROT_READ_WRITE, flags, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise VMError(f"cannot reserve {size >> 20} MiB of address space for the VM's state")
        self.base: int = base  # never unmapped: threads may outlive the interpreter
        memory = (ctypes.c_int64 * ARRAY.WORDS).from_address(base)
        self.m: Array = np.ctypeslib.as_array(memory)
        self.words = memoryview(memory).cast("B").cast("q")
        start_machine(self.m)
        self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        self.words[CTL.SPINS] = 200
        self.failures: Failures = Failures(self)
        self.restorer = Restorer(self)
        self.failures.told_of = self.restorer.restore_whole
        self.threads: list[threading.Thread] = []
        self.running = False
        self.uncompiled = False  # instructions run at once, until the threads are compiled
        self.stopped = False  # for good: at exit
        self.broken = ""
        self.lock = held_at_fork(threading.RLock(), Rank.VM)
        self.lending = Lending(self)
        self.configured = False  # the settings that are taken at the start have been taken
        self.sequential_for: set[object] = set()  # the objects that want it: see `run_sequentially`
        self.stepping: Any = None  # the debugger, of `flowvm.vm.engine.debugger`
        self.narrator = Narrator(self)
        self.flight: Flight = Flight(self)
        self.watch = Watch(self)
        self.local = threading.local()
        self.adopted: dict[int, object] = {}  # storage id -> owner of memory that is not the VM's
        self.adopted_bytes = 0  # since the last search for releasable memory
        # storage id -> stream that allocates it, when not CALL_STREAM
        self.stream_of: dict[int, int] = {}
        self.freed_seen = 0
        self.next_storage = 1
        self.callbacks: dict[int, Callable[..., None]] = {}
        self.tokens = itertools.count(1)
        # [number, operands outside the record] of LaunchPlans, until they are released
        self.outline: collections.deque[list[Any]] = collections.deque()
        self.user_streams: list[str] = []
        self.words[CTL.USED_STREAMS] = FIRST_USER_STREAM
        self.entry_info: list[Any] = []
        self.on_entries_full: list[Callable[[], None]] = []
        # (instructions issued by then, number) of entries that are in no cache any more: ones that
        # may be in flight, and ones whose number may be another's
        self._resting: collections.deque[tuple[int, int]] = collections.deque()
        self._nameless: collections.deque[tuple[int, int]] = collections.deque()
        self.entries_reused = 0
        self.loops = Loops(
            shell,
            SIGNATURES,
            (RUNNING, SCHEDULING),
            LAST,
            self.flight.change_clock,
            f"{__name__}:make_loop",
        )
        self.draining = 0  # the thread on which uncompiled code runs instructions
        self.at_once = False  # an issuing thread runs its instructions itself
        self.keep: list[object] = []
        self.arenas: dict[str, Array] = {}  # by thread
        self.interrupt_installed = False
        hot.update(
            {
                "ring": self.words[RING.AT : RING.AT + RING.SLOTS * RING.WORDS].cast("B"),
                "control": self.words[: CTL.WORDS],
                "counter": itertools.count(),
                "limit": 0 if config.debug >= 2 else CHECK_EVERY,
                "free": [],
                "dead": [],
                "codes": [None] * FRAMES,
                "lasts": [0] * FRAMES,
                "after": self.after_issue,
                "publish_mark": self.publish_mark,
                "make_room": self.make_room,
                "no_word": no_word,
                "struct_errors": STRUCT_ERRORS,
                "fill_hole": self.fill_hole,
                "any_error": BaseException,
                "refill": self.refill,
                "release_dead": self.release_dead,
                "getframe": sys._getframe,
            }
        )
        hot["pop"] = hot["free"].pop
        self.control: memoryview = hot["control"]
        self._touch, self._touch_alone = (
            [
                self.new_entry(KIND.TOUCH, [access] * n, scalars=1, info=None)
                for n in range(TOUCH_MAX + 1)
            ]
            for access in (OPERAND.CONST, OPERAND.MUT)
        )
        # where a record could not be written: an instruction that does nothing
        hot.update({"hole": self._touch[0], "write_hole": _RECORDS[3].pack_into})
        self._barrier = self.new_entry(KIND.BARRIER, [], scalars=1, info=None)
        self._release = [
            self.new_entry(KIND.RELEASE, [OPERAND.MUT] * n, brief=True, info=None)
            for n in range(TOUCH_MAX + 1)
        ]
        # native calls do the work of `release_dead` by these
        hot.update(
            {"releases": self._release, "adopted": self.adopted, "stream_of": self.stream_of}
        )
        self._callback: dict[tuple[int, ...], int] = {}
        for stream in (CALL_STREAM, HOST_STREAM):
            self._give_arena(stream)
        config.on_change("debug", self._debug_changed)
        config.on_change("profile", self.flight.set_level)
        jit.listeners.append(lambda name, begun: self.flight.waited("jit", begun))
        config.on_change("workers", self._make_team)
        config.on_change("memory", self._bound_memory)
        config.on_change("helping", self._let_waiters_help)
        if config.debug_calls:
            watch(self.words)

    # --- native calls -------------------------------------------------------------------------

    def call(self, name: str) -> Callable[..., int]:
        """Return the shell function `name`: called through ctypes, which releases the GIL, or as
        Python until it is compiled.
        """
        return self.loops.function(name)

    # --- threads ------------------------------------------------------------------------------

    @protected
    def start(self) -> None:
        """Start the threads, if they are not running, are wanted, and are compiled.

        Until they are compiled, an instruction runs at once on the thread that issues it.  Nothing
        is in flight then, so the threads take over between two instructions.
        """
        with self.lock:
            if not self.configured:
                self.configured = True
                config.lock("the VM has started")
                install()
                self._bound_memory(config.memory)
                cancel.install(self)
                if config.engine == "sequential" or config.sync:
                    self.sequential_for.add("settings")
            if self.running or self.sequential or self.stopped:
                return
            if self.broken:
                raise VMError(self.broken)
            self.install_interrupt()
            if self.words[CTL.DEVICES]:
                self.need_threads()  # a device waits for no compilation
                for name in DEVICES:
                    self.loops.compiled(name)
            elif not self.loops.ready(THREADED):
                self.uncompiled = True
                self.watch.start()  # the words mean the same in Python and in native code
                return
            self.flight.start()
            if self.uncompiled:
                self.uncompiled = False
                tell("the VM is compiled now, once for this machine: calls take microseconds")
            self.words[CTL.STOP] = 0
            self.words[CTL.BYTES_HIGH] = config.run_ahead_bytes
            self.words[CTL.RUN_AHEAD] = min(config.run_ahead, RING.SLOTS - MARGIN)
            self.words[CTL.LIMIT] = self.words[CTL.HEAD] + self.words[CTL.RUN_AHEAD]
            hot["limit"] = min(hot["limit"], self.words[CTL.LIMIT])
            complete: list[bool] = []
            with reverting(lambda: None if complete else self._end_threads(time.monotonic() + 60)):
                self._start_threads()
                complete.append(True)

    def _bound_memory(self, memory: float | int) -> None:
        self.words[CTL.MOST_BYTES] = bound(memory)

    def need_threads(self) -> None:
        """Compile the functions of the threads now, if that is still to be done.

        For instructions that wait for another process.  Until then each would run on the issuing
        thread, and keep it from issuing the instructions that the other process waits for.
        """
        for name in THREADED:
            self.loops.compiled(name)

    def _address(self, name: str) -> int:
        """Return the address of a compiled function."""
        function: Any = self.loops.compiled(name)
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def _let_waiters_help(self, on: bool) -> None:
        """Let a waiting thread do the scheduler's and a worker's work, or not."""
        if self.running:
            self.words[CTL.SCHEDULE] = self._address("scheduler_loop") if on else 0
            self.words[CTL.WORK] = self._address("worker_loop") if on else 0

    def _start_threads(self) -> None:
        self.running = True
        self.words[CTL.SCHEDULER_SLEEPS] = 0
        self.words[CTL.SETTLE] = self._address("settle_soon")
        self._let_waiters_help(config.helping)
        self._thread("flowvm-sched", self.call("scheduler_loop"), self.base, -1)
        self._thread("flowvm-w:cpu", self.call("worker_loop"), self.base, CALL_STREAM, 0)
        self._make_team(config.workers)
        self._thread("flowvm-host", self._host_loop)
        for i in range(len(self.user_streams)):
            self._start_worker(FIRST_USER_STREAM + i)
        self.watch.start()

    def _make_team(self, workers: int) -> None:
        """Set the number of threads that share the large kernels of the default stream."""
        with self.lock:
            if not self.running:
                return  # `start` will
            team = self.words[_TEAM_AT]
            self.words[_TEAM_AT] = workers - 1
            leaving = [t for t in self.threads if t.name in map(_helper, range(workers - 1, team))]
            while any(t.is_alive() for t in leaving):  # or a number might be taken twice
                self.call("wake_stream")(self.base, CALL_STREAM)
                leaving[0].join(0.001)
                leaving = [t for t in leaving if t.is_alive()]
            self.threads = [t for t in self.threads if t.is_alive()]
            for k in range(team, workers - 1):
                arena = self._arena(_helper(k))
                self._thread(_helper(k), self.call("helper_loop"), self.base, CALL_STREAM, k, arena)

    def _arena(self, owner: str) -> int:
        """Return the address of a thread's private memory.  It is kept, because threads may live
        long.
        """
        if owner not in self.arenas:
            around = 2 * zones.ARENA_ZONE
            self.arenas[owner] = np.empty(ARG.ARENA_BYTES + around + 4096, np.uint8)
            if zones.CHECKED:
                self.arenas[owner].view(np.int64)[:] = zones.PATTERN
        return (int(self.arenas[owner].ctypes.data + 4095) & -4096) + zones.ARENA_ZONE

    def _thread(self, name: str, target: Callable[..., object], *args: int) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self.threads.append(thread)  # first: a started thread must be waited for
        thread.start()
        say(1, f"started thread {name}")
        return thread

    def _give_arena(self, stream: int) -> None:
        at = STR.AT + stream * STR.WORDS
        self.words[at + STR.ARENA] = self._arena(f"stream {stream}")

    @protected
    def stop(self, seconds: float) -> bool:
        """Stop the threads.  Return True if all of them ended within `seconds`."""
        with self.lock:
            deadline = time.monotonic() + seconds
            with reverting(partial(self._end_threads, deadline)):
                pass  # an exception in there does not leave the half of them
            return not self.threads

    def _end_threads(self, deadline: float) -> None:
        self.words[CTL.STOP] = 1
        for thread in self.threads:
            while thread.is_alive() and time.monotonic() < deadline:
                self.call("wake_scheduler")(self.base)
                for stream in range(self.streams):
                    self.call("wake_stream")(self.base, stream)
                thread.join(0.02)
        self.threads = [t for t in self.threads if t.is_alive()]
        self.words[_TEAM_AT] = 0
        self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        # a thread that waits, and helped, may still be at it; from now on none begins
        while not self.threads and self._is_helped() and time.monotonic() < deadline:
            self.call("nap")(self.base, 100)
        self.running = False

    def _is_helped(self) -> bool:
        taken_counts = [STR.AT + stream * STR.WORDS + STR.TAKEN for stream in range(self.streams)]
        return any(self.words[word] for word in (CTL.TAKEN, *taken_counts))

    def stream_name(self, stream: int) -> str:
        """Return the name of a stream: "cpu", "host", or the name that its user gave."""
        user = stream - FIRST_USER_STREAM
        return self.user_streams[user] if user >= 0 else ("cpu", "host")[stream]

    def _start_worker(self, stream: int) -> None:
        loop = "device_loop" if self.words[CTL.DEVICES] >> stream & 1 else "worker_loop"
        run = self.loops.compiled(loop)  # of Python, it would poll with the interpreter's lock held
        waits = () if loop == "device_loop" else (0,)
        name = f"flowvm-w:{self.stream_name(stream)}"
        thread = self._thread(name, run, self.base, stream, *waits)
        priority = self.words[STR.AT + stream * STR.WORDS + STR.PRIORITY]
        if priority > 0 and thread.native_id is not None:
            os.setpriority(os.PRIO_PROCESS, thread.native_id, priority)

    def new_stream(self, name: str, priority: int = 0) -> int:
        """Add a compute stream with its own worker.  Return its number.

        Policies read `priority`.  Above 0 it is also the nice value of the worker's thread.
        """
        with self.lock:
            stream = self._add_stream(name)
            self.words[STR.AT + stream * STR.WORDS + STR.PRIORITY] = priority
            if self.running:
                self._start_worker(stream)
            return stream

    def _add_stream(self, name: str) -> int:
        stream = self.streams
        if stream >= STR.LENGTH:
            raise VMError(
                f"Stream: all {STR.LENGTH} of the VM are in use; keep Stream objects and use them "
                "again, or drop some"
            )
        self.user_streams.append(name)
        self._give_arena(stream)
        self.words[CTL.USED_STREAMS] = stream + 1
        return stream

    @property
    def streams(self) -> int:
        """The number of streams made so far; their numbers are below it."""
        return FIRST_USER_STREAM + len(self.user_streams)

    def new_device_stream(self, name: str, block: Any, memory: int, counters: Any) -> int:
        """Add a stream of a device, whose worker hands instructions to it.  Return its number.

        `block`: its words (`DEV` of `flowvm.vm.machine.device_words`), `counters`: those that the
        memory of its device is counted in, CTL.WORDS of them; int64 arrays, both kept.  `memory`:
        what its allocator gives, STR.DEVICE_MEMORY or STR.PINNED_MEMORY.
        """
        with self.lock:
            stream = self._add_stream(name)
            self.keep += [block, counters]
            at = STR.AT + stream * STR.WORDS
            self.words[at + STR.BLOCK], self.words[at + STR.MEMORY] = block.ctypes.data, memory
            self.words[at + STR.COUNTERS] = counters.ctypes.data
            self.words[CTL.DEVICES] |= 1 << stream
            if self.running:
                self._start_worker(stream)
            return stream

    def launch_stream(self) -> int:
        """Return the number of the stream of LaunchPlans whose actors are on several streams."""
        with self.lock:
            if LAUNCH_STREAM not in self.user_streams:
                self.new_stream(LAUNCH_STREAM)
            return FIRST_USER_STREAM + self.user_streams.index(LAUNCH_STREAM)

    # --- entries ------------------------------------------------------------------------------

    def new_entry(
        self,
        kind: int,
        access: Sequence[int],
        *,
        kernel: int = 0,
        layout: Any = None,
        sizes: Sequence[int] = (),
        units: int = 1,
        grain: int = 1,
        scratch: int = 0,
        phases: Sequence[tuple[int, int]] = (),
        scalars: int = 0,
        outline: bool = False,
        prepare: bool = False,
        brief: bool = False,
        stream: int = 0,
        info: object,
    ) -> EntryWord:
        """Write an entry into ENT: all that calls of a kind have in common.  Return the word for
        records, made of the entry's number and `stream`.  The entry lives as long as this word
        object.

        `access` has an `Access` (with ALLOCATE) an operand; `sizes` the bytes to allocate for each
        (for mut2 outputs: the bytes of a row).  `layout` is an int64 array, kept alive with the
        entry.  `phases` are the (units, grain) of the phases after the first.  `brief`: it ends
        within some microseconds, so that a waiting thread may run it.
        """
        with self.lock:
            number = self._entry_number()
            at = ENT.AT + number * ENT.WORDS
            words = [0] * ENT.WORDS
            words[ENT.KIND], words[ENT.KERNEL] = int(kind), kernel
            words[ENT.LAYOUT] = 0 if layout is None else layout.ctypes.data
            words[ENT.COUNT], words[ENT.SCALARS] = len(access), scalars
            words[ENT.UNITS], words[ENT.GRAIN] = units, max(1, grain)
            words[ENT.SCRATCH], words[ENT.OUTLINE] = scratch, int(outline)
            if outline:
                words[ENT.BYTES] = sum(sizes)
            words[ENT.PREPARE], words[ENT.BRIEF] = int(prepare), int(brief)
            more = np.array(phases, np.int64)
            words[ENT.PHASES], words[ENT.MORE] = more.ctypes.data, len(phases)
            if not outline:
                for k, a in enumerate(access):
                    word = ENT.ACCESS + k // OPERAND.ACCESSES_PER_WORD
                    words[word] |= int(a) << (k % OPERAND.ACCESSES_PER_WORD * OPERAND.ACCESS_BITS)
                for k, size in enumerate(sizes):
                    words[ENT.SIZES + k] = size
                words[ENT.BYTES] = sum(
                    s for s, a in zip(sizes, access, strict=False) if a & OPERAND.ALLOCATE
                )
            self.m[at : at + ENT.WORDS] = words
            views = None
            if zones.CHECKED:
                writes = [a & 3 != OPERAND.CONST and not a & OPERAND.ALLOCATE for a in access]
                views = zones.views_of(info, writes)
                self.words[VEW.AT + number] = 0 if views is None else views.ctypes.data
            self.entry_info[number] = (info, (layout, more, views))
            return EntryWord(number | stream << ENT.BITS)

    def _entry_number(self) -> int:
        """Return a number for a new entry: the number of one dropped long ago, or the next one.

        A dropped entry keeps its memory until all instructions issued by then are done.  It keeps
        its name, for the recorder, until NAMES others were dropped.  Then its number is used again.
        """
        self._let_entries_go()
        if len(self._nameless) <= NAMES and len(self.entry_info) < ENT.LENGTH:
            self.entry_info.append((None, ()))
            return len(self.entry_info) - 1
        if not self._nameless:  # all numbers are taken: drop the caches' entries
            self.wait_idle()
            self.forget_entries()
            self._callback.clear()
            self.wait_idle()
            self._let_entries_go()
        if not self._nameless:
            raise VMError(f"more than {ENT.LENGTH} kinds of calls and graphs are in use")
        seq, number = self._nameless.popleft()
        self.flight.forget(seq)
        self.entries_reused += 1
        return number

    def _let_entries_go(self) -> None:
        while dead_entries:
            self._resting.append((issued(), dead_entries.popleft()))
        head = self.words[CTL.HEAD]
        while self._resting and self._resting[0][0] <= head:
            seq, number = self._resting.popleft()
            self.entry_info[number] = (self.entry_info[number][0], ())
            self._nameless.append((seq, number))

    def forget_entries(self) -> None:
        """Empty all caches of entries, so that coming calls are described anew."""
        for forget in self.on_entries_full:
            forget()

    # --- issuing ------------------------------------------------------------------------------

    def new_storage(self) -> int:
        """Return the id of a new storage, to which nothing refers yet."""
        try:
            return int(hot["pop"]())
        except IndexError:
            return int(self.refill())

    def issue(
        self,
        entry: int,
        operands: Sequence[int],
        scalars: Sequence[int] = (),
        until: float | None = None,
        traced: bool = False,
    ) -> int:
        """Issue one instruction, the slow and general way: `operands` as words, `scalars` as int64.

        `traced`: the trace recorder of this thread was told of it.

        When the VM is full the thread waits for room, but not past the moment `until` of the
        monotonic clock.  The instruction's sequence number.
        """
        seq = self._issue(entry, operands, scalars, until, traced)
        if hot["lent"][0]:
            self.lending.settle(seq)
        return seq

    def _issue(
        self,
        entry: int,
        operands: Sequence[int],
        scalars: Sequence[int],
        until: float | None,
        traced: bool,
    ) -> int:
        """Issue one instruction, also one that accesses lent memory."""
        if hot["dead"]:
            self.release_dead()
        if not traced and hot.get("departed") and (trace := hot["trace_recorder"]()) is not None:
            trace.refuse()  # no step stands for this
        code, last = user_frame(2)
        return self.publish(entry, operands, scalars, code, last, until)

    @protected
    def publish(
        self,
        entry: int,
        operands: Sequence[int],
        scalars: Sequence[int],
        code: CodeType | None,
        last: int,
        until: float | None = None,
    ) -> int:
        """Write and publish a record.  Return its sequence number.  All its words are ints."""
        seq = self._write(entry, operands, scalars, code, last)
        self._have_it_seen(seq, until)
        return seq

    @protected
    def _write(
        self,
        entry: int,
        operands: Sequence[int],
        scalars: Sequence[int],
        code: CodeType | None,
        last: int,
        batch: list[int] | None = None,
        leftover: Sequence[int] = (),
    ) -> int:
        """Publish a record now.  Return its sequence number.

        `batch` becomes `leftover` just before the store.  An exception behind the store must not
        find released ids in it: a lost id leaks memory, and an id freed twice frees another's.
        """
        if config.debug_calls:
            assert_none(self.words, "something was issued")
        count = len(operands) + len(scalars) + 2
        pack = _RECORDS[count].pack_into
        values = (*scalars[::-1], *operands[::-1], entry)
        ring, codes, lasts = hot["ring"], hot["codes"], hot["lasts"]
        back = (RING.WORDS - count) * 8
        counter = hot["counter"]
        _deeper(3)  # or a RecursionError comes here, and not where neither a record can be written
        seq = -1  # nor the hole that it leaves be filled
        try:
            for seq in counter:  # noqa: B007 - not next(): see the module
                break
            if config.debug_calls:
                begun[threading.get_ident()] = seq
            codes[seq & (FRAMES - 1)] = code
            lasts[seq & (FRAMES - 1)] = last
            record: tuple[Any, ...] = (
                ring,
                ((seq & RING.SLOT_MASK) << 8) + back,
                *values,
                _mark(seq),
            )
            if batch is not None:
                batch[:] = leftover
            pack(*record)
            if not RING.ORDERED_STORES:
                self.publish_mark(seq)
        except STRUCT_ERRORS as bad:
            self.fill_hole(seq)
            raise no_word(bad) from None
        except BaseException:
            self.fill_hole(seq)
            raise
        return seq

    def _have_it_seen(self, seq: int, until: float | None = None) -> None:
        """Wake the scheduler behind a record if it sleeps, and make room for the next records."""
        if self.control[CTL.SCHEDULER_SLEEPS]:
            self.after_issue()
        if seq >= hot["limit"] and until is None:
            hot["make_room"](seq)  # the recorder's, at level 3
        elif seq >= hot["limit"]:
            self.make_room(seq, until)

    def fill_hole(self, seq: int) -> None:
        """Publish an instruction that does nothing in the place of a record that was not written.

        That is one with a scalar that no int64 holds, or in whose place an exception came; one that
        came behind the record finds it published, and nothing is done.  -1: no number was taken.
        """
        place = RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS
        if seq < 0 or self.words[place + RING.MARK] == seq + 1:
            return
        back = (RING.WORDS - 3) * 8
        _RECORDS[3].pack_into(
            hot["ring"], ((seq & RING.SLOT_MASK) << 8) + back, 0, self._touch[0], _mark(seq)
        )
        if not RING.ORDERED_STORES:
            self.publish_mark(seq)

    def publish_mark(self, seq: int) -> None:
        """Publish a record whose words are all written, on machines where stores may pass each
        other.
        """
        self.call("publish_mark")(self.base, seq)

    def after_issue(self) -> None:
        """Start or wake the scheduler, or do its work, after a record was published."""
        if not (self.running or self.sequential or self.stopped):
            self.start()  # unless the settings want the sequential engine
        if self.running:
            try:
                self.call("wake_scheduler")(self.base)
            except ctypes.ArgumentError as error:  # its word for a RecursionError on the way
                raise RecursionError(str(error)) from None  # a waiting thread wakes the scheduler
        elif self.stepping is not None:
            self.stepping.run(self._run_sequentially)
        else:  # also at interpreter exit, after the threads have left
            self._run_sequentially()

    @waiting
    def make_room(self, seq: int, until: float | None = None) -> None:
        """Wait until the VM has room, and read its news; called by an issuing thread past
        `limit`.
        """
        level = self.words[CTL.LEVEL]
        if config.debug >= 2:
            place = seq & (FRAMES - 1)
            self.narrator.tell(seq, *line_apart(hot["codes"][place], hot["lasts"][place])[:2])
        self.flight.note(seq)
        self.failures.collect()
        limit = self.control[CTL.LIMIT]
        if seq >= limit:
            begun = time.monotonic_ns()
            # as `finish` of the machine lowers the limit
            full = 2 * self.words[CTL.IN_FLIGHT_BYTES] > self.words[CTL.BYTES_HIGH]
            while seq >= (limit := self.call("wait_room")(self.base, seq, SLICE_US)):
                if until is not None and time.monotonic() > until:
                    return
                cancel.name_wait(self, begun / 1e9)
                if not self.running:  # another thread has changed the engine while this one waited
                    self.after_issue()
            self.flight.waited("memory" if full else "credit", begun, seq)
        self._look_behind(min(limit, seq + min(CHECK_EVERY, self.flight.every)), level)

    def _look_behind(self, limit: int, level: int) -> None:
        """Let records below `limit` be issued without a look, if each one's line or stack is not
        wanted, and while the recorder's level is `level`.  Who changes what is wanted sets `limit`
        to 0, perhaps before it is set here.
        """
        hot["limit"] = limit
        hot["make_room"] = self.flight.keep or self.make_room
        if config.debug >= 2 or level >= 3 or self.words[CTL.LEVEL] != level:
            hot["limit"] = 0  # not a number: a call's releases come behind it, and before its look

    def _debug_changed(self, level: int) -> None:
        """Set up printing for a debug level.  From level 2 on every record comes by `make_room`,
        which prints its line.
        """
        self.narrator = Narrator(self)
        if level >= 2:
            hot["limit"] = self.flight.due[0] = 0

    # --- storages -----------------------------------------------------------------------------

    @protected
    def refill(self) -> int:
        """Find more free storage ids; return one of them."""
        with self.lock:
            free: list[int] = hot["free"]
            self.reclaim()
            if not free:
                first, last = self.next_storage, min(self.next_storage + 256, STO.LENGTH)
                if first == last:
                    self.release_dead()
                    self.wait_idle()
                    self.reclaim()
                    if not free:
                        raise VMError(
                            f"more than {STO.LENGTH} tensors with memory of their own are alive"
                        )
                    return free.pop()
                self.next_storage = last
                free.extend(range(last - 1, first - 1, -1))
            return free.pop()

    @protected
    def reclaim(self) -> None:
        """Take back the ids of storages whose ReleaseTensor has run, and release adopted memory."""
        freed = load_acquire(self.m, CTL.FREED)
        owners = []
        while self.freed_seen < freed:
            at = self.freed_seen & (STO.LENGTH - 1)
            count = min(freed - self.freed_seen, STO.LENGTH - at)
            ids = self.m[FRE.AT + at : FRE.AT + at + count].tolist()
            self.freed_seen += count  # first: of an exception an id may be lost, and not come twice
            if self.adopted:
                owners += [self.adopted.pop(i, None) for i in ids]
            if self.stream_of:
                for i in ids:
                    self.stream_of.pop(i, None)
            are_gone(ids)
            if hot["lent"][0]:
                self.lending.forget(ids)
            hot["free"].extend(ids)
        del owners  # last: their finalizers may make tensors, and so come here again

    def adopt(self, address: int, nbytes: int, owner: object, shared: bool = False) -> int:
        """Make a storage over memory that `owner` keeps alive.  Return its id.

        `shared`: others write that memory, or read it, without the VM (`flowvm.vm.engine.loans`).
        """
        try:
            storage: int = hot["free"].pop()
        except IndexError:
            storage = self.refill()
        at = STO.AT + storage * STO.WORDS
        self.adopted[storage] = owner
        self.words[at + STO.POINTER] = address
        self.words[at + STO.BYTES] = nbytes
        self.words[at + STO.CLASS] = 0
        if shared:
            self.lending.adopt(storage, owner)
        self.adopted_bytes += nbytes
        if self.adopted_bytes > ADOPTED_BYTES:  # the memory is large, and may be all that is made
            self.adopted_bytes = 0
            self.release_dead()
        return storage

    @property
    def untouched(self) -> bool:
        """True if nothing was ever issued in this process: no thread of the VM has a storage."""
        return not (self.configured or self.broken) and self.words[CTL.HEAD] == issued()

    def _take_back(self) -> None:
        """Release adopted memory without the VM, as far as nobody else can know of it."""
        dead, ids, own_ids, owners = hot["dead"], [], [], []
        with self.lock:
            try:
                while dead:
                    ids.append(dead.pop())
            except IndexError:  # another thread took the rest
                pass
            if self.untouched:  # checked again: a user of one of them has issued that by now
                for storage in ids:
                    if storage not in self.adopted:
                        own_ids.append(storage)  # the VM's own, of before a fork
                        continue
                    at = STO.AT + storage * STO.WORDS
                    self.words[at + STO.POINTER] = 0
                    self.words[at + STO.POISON] = self.words[at + STO.TORN] = 0
                    owners.append(self.adopted.pop(storage))
                    are_gone((storage,))
                    self.lending.forget([storage])
                    hot["free"].append(storage)
            else:
                own_ids = ids
            dead.extend(own_ids)
        del owners  # last: as in `reclaim`

    @protected
    def release_dead(self) -> None:
        """Issue ReleaseTensor instructions for the storages that `Tensor.__del__` left."""
        dead: list[int] = hot["dead"]
        if dead and self.untouched:
            self._take_back()
            return
        while dead:
            batch = []
            try:
                for _ in range(min(len(dead), TOUCH_MAX)):
                    batch.append(dead.pop())
            except IndexError:  # another thread took the rest
                pass
            try:
                while batch:
                    self._release_some(batch)
            except BaseException:  # their turn comes later
                dead.extend(batch)
                raise
            if self.adopted:
                with self.lock:
                    self.reclaim()

    def _release_some(self, batch: list[int]) -> None:
        """Issue a ReleaseTensor for storages of one stream, and remove them from `batch`."""
        ids, stream = batch, CALL_STREAM
        others: list[int] = []
        if self.stream_of:
            stream = self.stream_of.get(batch[0], CALL_STREAM)
            ids = []
            for storage in batch:
                own = self.stream_of.get(storage, CALL_STREAM) == stream
                (ids if own else others).append(storage)
        entry = self._release[len(ids)] | stream << ENT.BITS
        self._have_it_seen(self._write(entry, ids, (), None, 0, batch, others))

    # --- waiting ------------------------------------------------------------------------------

    def _cell(self) -> tuple[Any, int]:
        """Return a cell that notifies a wait.  `_wait` gives it back once nobody will write to it.

        An interrupted wait, or one that ran out of time, never gives it back.
        """
        cell = getattr(self.local, "cell", None)
        self.local.cell = None
        if cell is None:
            array = new_cell()
            self.keep.append(array)  # a late notification must not meet freed memory
            cell = (array, array.ctypes.data)
        cell[0][WAIT.OUTCOME] = cell[0][WAIT.SLEEPERS] = cell[0][WAIT.TEXT] = 0
        return cell

    @waiting
    def _wait(
        self,
        entry: int,
        operands: Sequence[int],
        seconds: float | None = None,
        traced: bool = False,
    ) -> int:
        """Issue a waiter and wait for it.  Return 0 when it is done.

        If an operand is poisoned, return the sequence number + 1 of the instruction that poisoned
        it.  Return -1 when `seconds` passed first.  `traced` as in `issue`.
        """
        if config.debug_calls:
            assert_none(self.words, "something was waited for")
        cell, address = self._cell()
        deadline = None if seconds is None else time.monotonic() + seconds
        seq = self._issue(entry, operands, (address,), deadline, traced)
        begun, started = self.flight.begin_wait(), time.monotonic()
        at = self.base, address, SLICE_US, CALL_STREAM
        while not (outcome := self.call("wait_cell")(*at)):
            if deadline is not None and time.monotonic() > deadline:
                return -1
            cancel.name_wait(self, started)
            if not self.running:  # another thread has changed the engine while this one waited
                self.after_issue()
        self.flight.waited("sync", begun, seq, cell)
        self.local.cell = cell, address
        return 0 if outcome == 1 else -outcome

    def wait_for(self, operands: Sequence[int], read: bool = False) -> None:
        """Wait until the storages of `operands` are written, and with `read` also until all reads
        are done.  Raise the error that poisoned one of them.
        """
        storages = [word & OPERAND.STORAGE_MASK for word in operands]
        poison = [STO.AT + i * STO.WORDS + STO.POISON for i in storages]
        if self._settled(storages, read) and not any(self.words[at] for at in poison):
            return
        for i in range(0, len(operands), TOUCH_MAX):
            some = storages[i : i + TOUCH_MAX]
            cause = self._wait((self._touch_alone if read else self._touch)[len(some)], some)
            if cause:
                self.failures.collect()
                raise self.failures.to_raise(cause - 1)

    def _settled(self, storages: Sequence[int], alone: bool) -> bool:
        """Return True if no instruction will write these storages, and with `alone` none reads
        them: now or, if the VM's threads run, a moment later.  No instruction is issued for that.

        False where somebody is to hear of reads: a profiler, `debug` 2, a trace recorder.
        """
        if self.words[CTL.LEVEL] > 1 or config.debug >= 2 or self.broken:
            return False
        if hot.get("departed") and not (hot["recorder"]() is hot["trace_recorder"]() is None):
            return False
        before = issued()
        for storage in storages:
            if RING.ORDERED_STORES and is_settled(self.words, storage, before, alone):
                continue
            if not self.running:
                return False
            begun, at = self.flight.begin_wait(), (storage, before, int(alone), CALL_STREAM)
            if not self.call("settle_soon")(self.base, *at):
                return False
            self.flight.waited("sync", begun, before - 1)
        return True

    def wait_done(self, storages: Sequence[int]) -> None:
        """Wait until no issued instruction accesses these storages, failed or not.  Listeners to
        calls are not told.
        """
        if self._settled(storages, True):
            return
        for i in range(0, len(storages), TOUCH_MAX):
            some = storages[i : i + TOUCH_MAX]
            self._wait(self._touch_alone[len(some)], some, traced=True)

    def wait_idle(self, seconds: float | None = None) -> bool:
        """Wait until everything issued so far is done; raise no error of an instruction."""
        finished = self._wait(self._barrier, (), seconds) == 0
        self.failures.collect()
        return finished

    def sync(self) -> None:
        """Wait until everything issued so far is done.  Raise the first error that nobody has
        seen.
        """
        self.wait_idle()
        if self.adopted:
            with self.lock:
                self.reclaim()
        self.failures.raise_unseen()

    def trim(self, patience: float = math.inf) -> None:
        """Let every stream's worker give its cached memory back, and wait for that, at most
        `patience` seconds.  A worker that is busy for longer does it later.
        """
        streams = [CALL_STREAM, *range(FIRST_USER_STREAM, self.streams)]
        with self.lock:
            if not self.running:
                for stream in () if self.stopped else streams:
                    self._in_python(trim, self.m, stream)
                return
            self.words[CTL.TRIM] += 1
            request = self.words[CTL.TRIM]
        answers = [STR.AT + stream * STR.WORDS + STR.TRIMMED for stream in streams]
        until = time.monotonic() + patience
        while min(self.words[at] for at in answers) < request and time.monotonic() < until:
            self.call("nap")(self.base, 1000)

    def pointer(self, operand: int) -> int:
        """Return the address of an operand word.  Only after waiting for its writer."""
        at = STO.AT + (operand & OPERAND.STORAGE_MASK) * STO.WORDS
        return int(self.words[at + STO.POINTER]) + (operand >> OPERAND.STORAGE_BITS)

    def rows(self, operand: int) -> int:
        """Return the number of rows that a mut2 kernel found.  Only after waiting for it."""
        return int(self.words[STO.AT + (operand & OPERAND.STORAGE_MASK) * STO.WORDS + STO.ROWS])

    # --- host callbacks -----------------------------------------------------------------------

    def call_back(
        self, function: Callable[..., None], operands: Sequence[int], access: Sequence[int]
    ) -> None:
        """AccessBlobByCallback: run `function(*addresses)` on the host stream.

        It runs when the operands may be accessed as `access` says.
        """
        if len(operands) > TOUCH_MAX:
            raise VMError(f"a callback accesses at most {TOUCH_MAX} tensors, not {len(operands)}")
        key = tuple(access)
        entry = self._callback.get(key)
        if entry is None:
            kernel = jit.native(no_op, "int32(int64, int64, int64, int64)")
            default = self.new_entry(KIND.CALLBACK, key, kernel=kernel, scalars=1, info="callback")
            entry = self._callback.setdefault(key, default)
        token = next(self.tokens)
        self.callbacks[token] = function
        self.issue(entry | HOST_STREAM << ENT.BITS, operands, (token,))

    def _host_loop(self) -> None:
        while not self.words[CTL.STOP]:
            slot = self.call("host_next")(self.base, HOST_STREAM, SLICE_US)
            if slot >= 0:
                self._run_callback(slot)
                self.call("host_finish")(self.base, HOST_STREAM)

    @protected
    def _run_callback(self, slot: int) -> None:
        record = RING.AT + slot * RING.WORDS
        seq = int(self.words[record + RING.MARK]) - 1
        entry = ENT.AT + (int(self.words[record + RING.ENTRY]) & ENT.MASK) * ENT.WORDS
        count = int(self.words[entry + ENT.COUNT])
        function = self.callbacks.pop(int(self.words[record + RING.OPERANDS - count]))
        if self.call("host_begin")(self.base, HOST_STREAM, slot) != 0:
            return
        at = ARG.AT + HOST_STREAM * ARG.WORDS + ARG.HEADER
        try:
            function(*self.m[at : at + count].tolist())
        except BaseException as error:  # any exception belongs to the reader of the result
            self.failures.raised[seq] = error
            self.call("host_fail")(self.base, HOST_STREAM, slot, 6)
        self.call("host_end")(self.base, slot)
        del function

    # --- the sequential engine ----------------------------------------------------------------

    def run_sequentially(self) -> reverting:
        """Run each instruction at once on the thread that issues it, and raise its errors there,
        inside the with statement.

        Other threads may issue meanwhile.  The VM ends the instructions that it has begun.  The
        ones that it has not taken run in the order issued, once, on one of the threads.
        """
        wish = object()

        def change() -> None:
            self.stop(60.0)
            self.sequential_for.add(wish)
            self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT

        return reverting(partial(self.sequential_for.discard, wish), partial(self.at_rest, change))

    @property
    def sequential(self) -> int:
        """The number of reasons to run instructions at once: `with sequential()`, and the
        settings.
        """
        return len(self.sequential_for)

    def at_rest(self, change: Callable[[], None]) -> None:
        """Call `change` under the lock while nothing is in flight and no thread takes records."""
        while True:
            self.wait_idle()
            with self.lock:
                if not self.running:
                    return change()
                deadline = time.monotonic() + REST_SECONDS  # then others get the lock
                hold = partial(self.words.__setitem__, CTL.HOLD)
                with reverting(partial(hold, 0), partial(hold, 1)):
                    while time.monotonic() < deadline:
                        self.call("nap")(self.base, 100)  # passes that begin behind it see HOLD
                        # a pass that began before may yet take a record: not one that is seen here
                        if not self.words[CTL.TAKEN] and not self._in_flight():
                            return change()

    def _in_flight(self) -> bool:
        head: int = load_acquire(self.m, CTL.HEAD)
        return head < self.words[CTL.RECEIVED]

    def _run_sequentially(self) -> None:
        if self.draining == threading.get_ident():
            return  # an instruction issued by a finalizer in there runs next
        failed = False
        with self.lock:
            if self.running:  # another thread has started the VM's threads since this one looked
                self.call("wake_scheduler")(self.base)
                return
            self.words[CTL.STOP] = 0
            native = (
                self.loops.ready(SEQUENTIAL) if self.sequential else "drain" in self.loops.native
            )
            self.flight.start()
            drain = self.call("drain") if native else partial(self._in_python, shell.drain)
            self.at_once = True
            try:
                while (slot := drain(self.base)) != -1:
                    if slot >= 0:
                        self._run_callback(slot)
                        failed |= self.failures.new()
                        self.call("settle")(self.base, slot)
                    else:
                        failed = True
            finally:
                self.at_once = False
            self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        if failed and self.sequential:
            self.failures.collect()
            self.failures.raise_unseen()

    def _in_python(self, function: Callable[..., object], *args: object) -> Any:
        """Run a function of the machine as Python, where no signal handler runs (`apart`).

        No garbage is collected from before that thread begins: a finalizer that computes would wait
        there for the lock that this thread holds.
        """
        with Uncollected():
            return apart(self._drained, function, *args)

    def _drained(self, function: Callable[..., object], *args: object) -> object:
        self.draining = threading.get_ident()
        try:
            return function(*args)
        finally:
            self.draining = 0

    # --- signals, exit ------------------------------------------------------------------------

    def install_interrupt(self) -> None:
        """Delay a Ctrl-C where it would be lost, unless the program has a handler."""
        if self.interrupt_installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
            self.interrupt_installed = True

    def exit(self) -> None:
        """Finish the issued instructions within bounds of time, and report unseen errors."""
        if self.running:
            try:
                finished = self.wait_idle(EXIT_SECONDS)
            except KeyboardInterrupt:
                finished = False
            if not finished:
                unfinished = int(self.words[CTL.RECEIVED] - self.words[CTL.HEAD])
                text = f"flowvm: exit did not wait for {unfinished} unfinished instructions"
                print(text, file=sys.stderr)
            if not self.stop(2.0 if finished else 0.2) or not finished:
                # a kernel is still running: the memory that it may read must outlive the
                # interpreter
                never_freed(self)
        self.stopped = True
        helpers.stop()
        self.failures.report_unseen()


engine = Engine()
_forking = Forking(engine)
os.register_at_fork(
    before=_forking.before,
    after_in_parent=_forking.after_in_parent,
    after_in_child=_forking.after_in_child,
)
atexit.register(engine.exit)
