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
    flowvm-watch       Python: watchdog, window for `flowvm top` (see `flowvm.vm.watch.watchdog`)

A record is published by its last store.  Between taking a sequence number and that store nothing
may raise, or the ring would have a hole that stops the VM: `for seq in counter: break` has no point
at which CPython looks at signals, and `flowvm.vm.callers.interrupt` puts off a Ctrl-C that lands in
one of the functions listed there.

Long because an Engine is one object: every part of it works on the same words, lock and `hot`.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import itertools
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

import numpy as np

from flowvm.compiler import jit
from flowvm.config import config, say
from flowvm.errors import VMError
from flowvm.private.cpython import never_freed
from flowvm.vm.callers.hot import CALL_STREAM, FIRST_USER_STREAM, FRAMES, HOST_STREAM, hot
from flowvm.vm.callers.interrupt import interrupt, protected, waiting
from flowvm.vm.callers.lines import apart, user_frame
from flowvm.vm.callers.tracebacks import install
from flowvm.vm.engine.failures import Failures
from flowvm.vm.machine.lang import address_of, load_acquire
from flowvm.vm.machine.machine import MARGIN
from flowvm.vm.machine.machine import start as start_machine
from flowvm.vm.machine.words import ARG, ARRAY, CTL, ENT, FRE, KIND, OPERAND, RING, STO, STR
from flowvm.vm.watch.flight import Flight
from flowvm.vm.watch.narrate import Narrator
from flowvm.vm.watch.watchdog import Watch
from flowvm.vm.workers import shell

LAUNCH_STREAM = "plans"  # the name of a stream that nothing but launches is issued on
CHECK_EVERY = 256  # records between two looks at the limit, the errors and the memory in flight
SLICE_US = 50_000  # a wait returns to Python this often, so that Ctrl-C works
TOUCH_MAX = 24
EXIT_SECONDS = 10.0  # the longest that leaving Python waits for work in flight
_PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS_NORESERVE = 3, 0x4022

_SIGNATURES = {
    "scheduler_loop": "int64(int64)",
    "close_plan": "int64(int64, int64)",
    "worker_loop": "int64(int64, int64)",
    "device_loop": "int64(int64, int64)",
    "helper_loop": "int64(int64, int64, int64, int64)",
    "wake_team": "int64(int64, int64)",
    "wake_scheduler": "int64(int64)",
    "wait_cell": "int64(int64, int64, int64)",
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


_TEAM_AT = STR.AT + CALL_STREAM * STR.WORDS + STR.TEAM


def _helper(number: int) -> str:
    return f"flowvm-h:cpu.{number}"


STRUCT_ERRORS = (struct.error, OverflowError, TypeError)
_RECORDS = [struct.Struct(f"{n}q") for n in range(RING.WORDS + 1)]


def _mark(seq: int) -> int:
    return seq + 1 if RING.ORDERED_STORES else 0


def no_op(args: int, layout: int, lo: int, hi: int) -> int:
    """The kernel of instructions whose work is done in Python."""
    return 0


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
        self.m: np.ndarray[Any, Any] = np.ctypeslib.as_array(memory)
        self.words = memoryview(memory).cast("B").cast("q")
        start_machine(self.m)
        self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        self.words[CTL.SPINS] = 200
        self.failures = Failures(self)
        self.threads: list[threading.Thread] = []
        self.running = False
        self.stopped = False  # for good: at exit
        self.broken = ""
        self.lock = threading.RLock()
        self.configured = False  # the settings that are taken at the start have been taken
        self.sequential = 0  # depth of `with sequential()`, and one if the settings say so
        self.narrator = Narrator(self)
        self.flight = Flight(self)
        self.watch = Watch(self)
        self.local = threading.local()
        self.adopted: dict[int, Any] = {}  # storage id -> owner of memory that is not the VM's
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
        self.immortal_entries = 0
        self.calls: dict[str, Any] = {}
        self.keep: list[Any] = []
        self.arenas: dict[str, np.ndarray[Any, Any]] = {}  # by thread
        self.interrupt_installed = False
        hot.update(
            ring=self.words[RING.AT : RING.AT + RING.SLOTS * RING.WORDS].cast("B"),
            control=self.words[: CTL.WORDS],
            counter=itertools.count(),
            limit=0 if config.debug >= 2 else CHECK_EVERY,
            free=[],
            dead=[],
            pop=None,
            codes=[None] * FRAMES,
            lasts=[0] * FRAMES,
            after=self.after_issue,
            publish_mark=self.publish_mark,
            make_room=self.make_room,
            fill_hole=self.fill_hole,
            struct_errors=STRUCT_ERRORS,
            refill=self.refill,
            release_dead=self.release_dead,
            getframe=sys._getframe,
        )
        hot["pop"] = hot["free"].pop
        self.control: memoryview = hot["control"]
        self._touch = [
            self.new_entry(KIND.TOUCH, [OPERAND.CONST] * n, scalars=1, info=None)
            for n in range(TOUCH_MAX + 1)
        ]
        self._barrier = self.new_entry(KIND.BARRIER, [], scalars=1, info=None)
        self._release = [
            self.new_entry(KIND.RELEASE, [OPERAND.MUT] * n, info=None) for n in range(TOUCH_MAX + 1)
        ]
        self.immortal_entries = len(self.entry_info)
        self._callback: dict[tuple[int, ...], int] = {}
        for stream in (CALL_STREAM, HOST_STREAM):
            self._give_arena(stream)
        config.on_change("debug", self._debug_changed)
        config.on_change("profile", self.flight.set_level)
        jit.listeners.append(lambda name, begun: self.flight.waited("jit", begun))
        config.on_change("workers", self._make_team)

    # --- native calls -------------------------------------------------------------------------

    def call(self, name: str) -> Any:
        """The compiled shell function `name`, through ctypes, which lets go of the GIL."""
        if name not in self.calls:
            signature = _SIGNATURES[name]
            count = signature.count("int64") - 1
            address = address_of(getattr(shell, name), signature)
            kind = ctypes.CFUNCTYPE(ctypes.c_int64, *([ctypes.c_int64] * count))
            self.calls[name] = kind(address)
        return self.calls[name]

    # --- threads ------------------------------------------------------------------------------

    @protected
    def start(self) -> None:
        """Start the threads, if they are not running and are wanted."""
        with self.lock:
            if not self.configured:
                self.configured = True
                config.lock("the VM has started")
                install()
                self.sequential += config.engine == "sequential" or config.sync
            if self.running or self.sequential or self.stopped:
                return
            if self.broken:
                raise VMError(self.broken)
            for name in _SIGNATURES:
                if name != "device_loop" or self.words[CTL.DEVICES]:
                    self.call(name)
            self.flight.start()
            self.words[CTL.STOP] = 0
            self.words[CTL.BYTES_HIGH] = config.run_ahead_bytes
            self.words[CTL.RUN_AHEAD] = min(config.run_ahead, RING.SLOTS - MARGIN)
            self.words[CTL.LIMIT] = self.words[CTL.HEAD] + self.words[CTL.RUN_AHEAD]
            hot["limit"] = min(hot["limit"], self.words[CTL.LIMIT])
            self._install_interrupt()
            self.running = True
            self.words[CTL.SCHEDULER_SLEEPS] = 0
            self._thread("flowvm-sched", self.call("scheduler_loop"), self.base)
            self._thread("flowvm-w:cpu", self.call("worker_loop"), self.base, CALL_STREAM)
            self._make_team(config.workers)
            self._thread("flowvm-host", self._host_loop)
            for i in range(len(self.user_streams)):
                self._start_worker(FIRST_USER_STREAM + i)
            self.watch.start()

    def _make_team(self, workers: int) -> None:
        """Let so many threads share the large kernels of the default stream, from now on."""
        with self.lock:
            if not self.running:
                return  # `start` will
            team = self.words[_TEAM_AT]
            self.words[_TEAM_AT] = workers - 1
            leaving = [t for t in self.threads if t.name in map(_helper, range(workers - 1, team))]
            while any(t.is_alive() for t in leaving):  # or a number might be taken twice
                self.call("wake_team")(self.base, CALL_STREAM)
                leaving[0].join(0.001)
                leaving = [t for t in leaving if t.is_alive()]
            self.threads = [t for t in self.threads if t.is_alive()]
            for k in range(team, workers - 1):
                arena = self._arena(_helper(k))
                self._thread(_helper(k), self.call("helper_loop"), self.base, CALL_STREAM, k, arena)

    def _arena(self, owner: str) -> int:
        """The address of a thread's private memory.  It is kept, for threads outlive much."""
        if owner not in self.arenas:
            self.arenas[owner] = np.empty(ARG.ARENA_BYTES + 4096, np.uint8)
        return int(self.arenas[owner].ctypes.data + 4095) & -4096

    def _thread(self, name: str, target: Callable[..., Any], *args: int) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        say(1, f"started thread {name}")
        self.threads.append(thread)

    def _give_arena(self, stream: int) -> None:
        at = STR.AT + stream * STR.WORDS
        self.words[at + STR.ARENA] = self._arena(f"stream {stream}")

    @protected
    def stop(self, seconds: float) -> bool:
        """Stop the threads; whether all of them left within `seconds`."""
        with self.lock:
            self.words[CTL.STOP] = 1
            deadline = time.monotonic() + seconds
            for thread in self.threads:
                while thread.is_alive() and time.monotonic() < deadline:
                    self.call("wake_scheduler")(self.base)
                    thread.join(0.02)
            left = [t for t in self.threads if t.is_alive()]
            self.threads = left
            self.running = False
            self.words[_TEAM_AT] = 0
            self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
            return not left

    def stream_name(self, stream: int) -> str:
        """What a stream is called: "cpu", "host", or what its user called it."""
        user = stream - FIRST_USER_STREAM
        return self.user_streams[user] if user >= 0 else ("cpu", "host")[stream]

    def _start_worker(self, stream: int) -> None:
        loop = "device_loop" if self.words[CTL.DEVICES] >> stream & 1 else "worker_loop"
        self._thread(f"flowvm-w:{self.stream_name(stream)}", self.call(loop), self.base, stream)

    def new_stream(self, name: str) -> int:
        """A further compute stream with a worker of its own: its number."""
        with self.lock:
            stream = self._add_stream(name)
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
        """How many streams were made so far; their numbers are below it."""
        return FIRST_USER_STREAM + len(self.user_streams)

    def new_device_stream(self, name: str, block: Any, memory: int, counters: Any) -> int:
        """A stream of a device, whose worker hands instructions to it: its number.

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
        """The stream of LaunchPlans whose actors are on several streams: its number."""
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
        info: Any,
    ) -> int:
        """Write what all calls of a kind have in common into ENT: the entry's number.

        `access` has an `Access` (with ALLOCATE) an operand; `sizes` the bytes to allocate for each
        (for mut2 outputs: the bytes of a row).  `layout` is an int64 array, kept alive with the
        entry.  `phases` are the (units, grain) of those after the first.
        """
        with self.lock:
            if len(self.entry_info) >= ENT.LENGTH:
                self._clear_entries()
            number = len(self.entry_info)
            at = ENT.AT + number * ENT.WORDS
            words = [0] * ENT.WORDS
            words[ENT.KIND], words[ENT.KERNEL] = int(kind), kernel
            words[ENT.LAYOUT] = 0 if layout is None else layout.ctypes.data
            words[ENT.COUNT], words[ENT.SCALARS] = len(access), scalars
            words[ENT.UNITS], words[ENT.GRAIN] = units, max(1, grain)
            words[ENT.SCRATCH], words[ENT.OUTLINE] = scratch, int(outline)
            if outline:
                words[ENT.BYTES] = sum(sizes)
            words[ENT.PREPARE] = int(prepare)
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
            self.entry_info.append((info, (layout, more)))
            return number

    def _clear_entries(self) -> None:
        """All entries are taken (many shapes were seen): forget what caches hold, begin again."""
        self.wait_idle()
        self.forget_entries()
        self._callback.clear()
        self.flight.forget()
        del self.entry_info[self.immortal_entries :]

    def forget_entries(self) -> None:
        """Empty all caches of entries: what comes next is described anew."""
        for forget in self.on_entries_full:
            forget()

    # --- issuing ------------------------------------------------------------------------------

    def new_storage(self) -> int:
        """The id of a storage that nothing refers to yet."""
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
    ) -> int:
        """Issue one instruction, the slow and general way: `operands` as words, `scalars` as int64.

        When the VM is full the thread waits for room, but not past the moment `until` of the
        monotonic clock.  The instruction's sequence number.
        """
        if hot["dead"]:
            self.release_dead()
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
        """Write and publish a record: its sequence number."""
        count = len(operands) + len(scalars) + 2
        pack = _RECORDS[count].pack_into
        values = (*scalars[::-1], *operands[::-1], entry)
        ring, codes, lasts = hot["ring"], hot["codes"], hot["lasts"]
        back = (RING.WORDS - count) * 8
        counter: Iterator[int] = hot["counter"]
        for seq in counter:  # noqa: B007 - not next(): see the module
            break
        codes[seq & (FRAMES - 1)] = code
        lasts[seq & (FRAMES - 1)] = last
        try:
            pack(ring, ((seq & RING.SLOT_MASK) << 8) + back, *values, _mark(seq))
        except STRUCT_ERRORS:  # and not a Ctrl-C that came after the record was published
            self.fill_hole(seq)
            raise
        finally:
            if not RING.ORDERED_STORES:
                self.publish_mark(seq)
        if self.control[CTL.SCHEDULER_SLEEPS]:
            self.after_issue()
        if seq >= hot["limit"]:
            self.make_room(seq, until)
        return seq

    def fill_hole(self, seq: int) -> None:
        """Publish an instruction that does nothing where a record could not be written.

        That is one with a scalar that no int64 holds.
        """
        back = (RING.WORDS - 3) * 8
        _RECORDS[3].pack_into(
            hot["ring"], ((seq & RING.SLOT_MASK) << 8) + back, 0, self._touch[0], _mark(seq)
        )

    def publish_mark(self, seq: int) -> None:
        """Where stores may pass each other: publish a record, after all of it was written."""
        self.call("publish_mark")(self.base, seq)

    def after_issue(self) -> None:
        """A record was published and nobody looks: start or wake the scheduler, or do its work."""
        if not (self.running or self.sequential or self.stopped):
            self.start()  # unless the settings want the sequential engine
        if self.running:
            self.call("wake_scheduler")(self.base)
        else:  # also at interpreter exit, after the threads have left
            self._run_sequentially()

    @waiting
    def make_room(self, seq: int, until: float | None = None) -> None:
        """Called by an issuing thread past `limit`: wait until the VM has room; read its news."""
        debug = config.debug >= 2
        if debug:
            place = seq & (FRAMES - 1)
            self.narrator.tell(seq, *apart(hot["codes"][place], hot["lasts"][place])[:2])
        self.flight.note(seq)
        self.failures.collect()
        limit = self.control[CTL.LIMIT]
        if seq >= limit:
            begun = time.monotonic_ns()
            while seq >= (limit := self.call("wait_room")(self.base, seq, SLICE_US)):
                if until is not None and time.monotonic() > until:
                    return
            self.flight.waited("credit", begun, seq)
        hot["limit"] = 0 if debug else min(limit, seq + min(CHECK_EVERY, self.flight.every))

    def _debug_changed(self, level: int) -> None:
        """From level 2 on every record comes by `make_room`, which prints its line."""
        self.narrator = Narrator(self)
        if level >= 2:
            hot["limit"] = 0

    # --- storages -----------------------------------------------------------------------------

    @protected
    def refill(self) -> int:
        """More free storage ids; one of them is the answer."""
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
        """Take back the ids of storages whose ReleaseTensor has run; let go of adopted memory."""
        freed = load_acquire(self.m, CTL.FREED)
        owners: list[Any] = []
        while self.freed_seen < freed:
            at = self.freed_seen & (STO.LENGTH - 1)
            count = min(freed - self.freed_seen, STO.LENGTH - at)
            ids = self.m[FRE.AT + at : FRE.AT + at + count].tolist()
            if self.adopted:
                owners += [self.adopted.pop(i, None) for i in ids]
            if self.stream_of:
                for i in ids:
                    self.stream_of.pop(i, None)
            hot["free"].extend(ids)
            self.freed_seen += count
        del owners  # last: their finalizers may make tensors, and so come here again

    def adopt(self, address: int, nbytes: int, owner: Any) -> int:
        """A new storage over memory that `owner` keeps alive: its id."""
        try:
            storage: int = hot["free"].pop()
        except IndexError:
            storage = self.refill()
        at = STO.AT + storage * STO.WORDS
        self.adopted[storage] = owner
        self.words[at + STO.POINTER] = address
        self.words[at + STO.BYTES] = nbytes
        self.words[at + STO.CLASS] = 0
        return storage

    @protected
    def release_dead(self) -> None:
        """Turn what `Tensor.__del__` left into ReleaseTensor instructions."""
        dead: list[int] = hot["dead"]
        while dead:
            batch = []
            try:
                for _ in range(min(len(dead), TOUCH_MAX)):
                    batch.append(dead.pop())
            except IndexError:  # another thread took the rest
                pass
            if self.stream_of:
                self._release_by_stream(batch)
            elif batch:
                self.publish(self._release[len(batch)], batch, (), None, 0)
            if self.adopted:
                with self.lock:
                    self.reclaim()

    def _release_by_stream(self, batch: list[int]) -> None:
        by_stream: dict[int, list[int]] = {}
        for storage in batch:
            by_stream.setdefault(self.stream_of.get(storage, CALL_STREAM), []).append(storage)
        while by_stream:
            stream, ids = by_stream.popitem()
            entry = self._release[len(ids)] | stream << ENT.BITS
            try:
                self.publish(entry, ids, (), None, 0)
            except BaseException:  # a Ctrl-C while it waited for room: the others' turn comes later
                for others in by_stream.values():
                    hot["dead"].extend(others)
                raise

    # --- waiting ------------------------------------------------------------------------------

    def _cell(self) -> tuple[Any, int]:
        cell = getattr(self.local, "cell", None)
        if cell is None:
            array = np.zeros(3, np.int64)
            cell = self.local.cell = (array, array.ctypes.data)
            self.keep.append(array)  # a late notification must not meet freed memory
        cell[0][0] = cell[0][1] = 0
        return cell

    @waiting
    def _wait(self, entry: int, operands: Sequence[int], seconds: float | None = None) -> int:
        """Issue a waiter and wait for it: 0 when it is done.

        If an operand is poisoned: the sequence number + 1 of what poisoned it.  -1 when `seconds`
        passed first.
        """
        cell, address = self._cell()
        deadline = None if seconds is None else time.monotonic() + seconds
        seq = self.issue(entry, operands, (address,), deadline)
        begun = self.flight.begin_wait()
        try:
            while not (outcome := self.call("wait_cell")(self.base, address, SLICE_US)):
                if deadline is not None and time.monotonic() > deadline:
                    self.local.cell = None  # it may still be written to: never use it again
                    return -1
                if not self.running:  # another thread has changed the engine while this one waited
                    self.after_issue()
        except BaseException:
            self.local.cell = None
            raise
        self.flight.waited("sync", begun, seq, int(cell[2]))
        return 0 if outcome == 1 else -outcome

    def wait_for(self, operands: Sequence[int]) -> None:
        """Wait until the storages of `operands` are written; raise what poisoned one of them."""
        for i in range(0, len(operands), TOUCH_MAX):
            some = [word & OPERAND.STORAGE_MASK for word in operands[i : i + TOUCH_MAX]]
            cause = self._wait(self._touch[len(some)], some)
            if cause:
                self.failures.collect()
                raise self.failures.exception(cause - 1)

    def wait_idle(self, seconds: float | None = None) -> bool:
        """Wait until everything issued so far is done; raises no error of an instruction."""
        done = self._wait(self._barrier, (), seconds) == 0
        self.failures.collect()
        return done

    def sync(self) -> None:
        """Wait until all that was issued so far is done; raise the first error nobody has seen."""
        self.wait_idle()
        if self.adopted:
            with self.lock:
                self.reclaim()
        self.failures.raise_unseen()

    def trim(self) -> None:
        """Ask every stream's worker to give its cached memory back; returns when they have."""
        if not self.running:
            return
        with self.lock:
            self.words[CTL.TRIM] += 1
            wanted = self.words[CTL.TRIM]
        streams = [CALL_STREAM, *range(FIRST_USER_STREAM, self.streams)]
        answers = [STR.AT + stream * STR.WORDS + STR.TRIMMED for stream in streams]
        while min(self.words[at] for at in answers) < wanted:
            self.call("nap")(self.base, 1000)

    def pointer(self, operand: int) -> int:
        """The address that an operand word means.  Only after waiting for its writer."""
        at = STO.AT + (operand & OPERAND.STORAGE_MASK) * STO.WORDS
        return int(self.words[at + STO.POINTER]) + (operand >> OPERAND.STORAGE_BITS)

    def rows(self, operand: int) -> int:
        """Rows that the kernel of a mut2 output found.  Only after waiting for it."""
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
            entry = self.new_entry(KIND.CALLBACK, key, kernel=kernel, scalars=1, info="callback")
            self._callback[key] = entry
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
        except BaseException as error:  # whatever it is, it belongs to whoever reads the result
            self.failures.raised[seq] = error
            self.call("host_fail")(self.base, HOST_STREAM, slot, 6)
        self.call("host_end")(self.base, slot)
        del function

    # --- the sequential engine ----------------------------------------------------------------

    @contextmanager
    def run_sequentially(self) -> Iterator[None]:
        """Inside, each instruction runs on the thread that issues it, at once, and raises there."""
        self.wait_idle()
        with self.lock:
            if self.running:
                self.stop(60.0)
            self.sequential += 1
            self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        try:
            yield
        finally:
            with self.lock:
                self.sequential -= 1

    def _run_sequentially(self) -> None:
        failed = False
        with self.lock:
            self.words[CTL.STOP] = 0
            self.flight.start()
            while (slot := self.call("drain")(self.base)) != -1:
                if slot >= 0:
                    self._run_callback(slot)
                    failed |= self.failures.new()
                    self.call("settle")(self.base, slot)
                else:
                    failed = True
            self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        if failed and self.sequential:
            self.failures.collect()
            self.failures.raise_unseen()

    # --- signals, fork, exit ------------------------------------------------------------------

    def _install_interrupt(self) -> None:
        if self.interrupt_installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
            self.interrupt_installed = True

    def before_fork(self) -> None:
        """A child gets a copy of memory and no threads: let everything finish first."""
        if self.running and threading.current_thread().name != "flowvm-host":
            try:
                if not self.wait_idle(60.0):
                    self.broken = (
                        "this process was forked while its parent's VM was busy for more than "
                        "60 s; its tensors are lost.  Start workers with multiprocessing's 'spawn' "
                        "method, or before computing"
                    )
            except BaseException as error:
                self.broken = f"waiting for the VM before a fork failed: {error!r}"

    def after_fork_in_parent(self) -> None:
        """The parent's VM goes on."""
        self.broken = ""

    def after_fork_in_child(self) -> None:
        """Threads are gone, memory is there: an idle VM that starts its threads when asked."""
        self.lock = threading.RLock()
        self.local = threading.local()
        self.threads, self.running = [], False
        for stream in range(self.streams):
            at = STR.AT + stream * STR.WORDS
            self.words[at + STR.SLEEPS] = self.words[at + STR.TEAM_SLEEPS] = 0
            self.words[at + STR.TEAM] = 0
        received = self.words[CTL.RECEIVED]
        # half-written records of threads that are gone
        for seq in range(received, received + RING.SLOTS):
            self.words[RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK] = 0
        hot["counter"] = itertools.count(received)
        hot["limit"] = received
        self.words[CTL.SEEN] = received
        self.flight.after_fork_in_child()
        self.watch.after_fork_in_child()
        self.words[CTL.STOP] = self.words[CTL.ROOM_SLEEPS] = 0
        self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        self.narrator = Narrator(self)
        if not self.sequential:  # the child may start its VM with other settings
            self.configured = False
            config.lock("")

    def exit(self) -> None:
        """Finish what was issued, within bounds; report errors that nobody has seen."""
        if self.running:
            try:
                finished = self.wait_idle(EXIT_SECONDS)
            except KeyboardInterrupt:
                finished = False
            if not finished:
                left = int(self.words[CTL.RECEIVED] - self.words[CTL.HEAD])
                text = f"flowvm: exit did not wait for {left} unfinished instructions"
                print(text, file=sys.stderr)
            if not self.stop(2.0 if finished else 0.2) or not finished:
                # a kernel is running still: what it may look at must outlive the interpreter
                never_freed(self)
        self.stopped = True
        self.failures.report_unseen()


engine = Engine()
os.register_at_fork(
    before=engine.before_fork,
    after_in_parent=engine.after_fork_in_parent,
    after_in_child=engine.after_fork_in_child,
)
atexit.register(engine.exit)
