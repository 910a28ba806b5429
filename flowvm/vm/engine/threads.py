"""The VM's threads: started with the first instruction, stopped for a fork, a debugger and the end.

    flowvm-sched       `shell.scheduler_loop`, native, no GIL
    flowvm-w:NAME      `shell.worker_loop` of a stream, native, no GIL; of a device's stream
                       `shell.device_loop`
    flowvm-h:NAME      `shell.helper_loop`: its helpers for large kernels
    flowvm-host        Python: runs callbacks (`flowvm.vm.engine.callbacks`)

While `running` is False nothing takes records, and whoever issues runs them (`Sequential.run`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flowvm.compiler.progress import tell
from flowvm.config import config, say
from flowvm.errors import VMError
from flowvm.guards.regions import reverting
from flowvm.meta.arrays import Array
from flowvm.vm.callers import interrupt
from flowvm.vm.callers.hot import CALL_STREAM, hot
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.engine.bounds import bound
from flowvm.vm.engine.loops import Loops
from flowvm.vm.engine.natives import DEVICES, THREADED
from flowvm.vm.machine.machine import MARGIN
from flowvm.vm.machine.words import ARG, CTL, RING, STR
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.watch.pending import issued
from flowvm.vm.watch.watchdog import Watch
from flowvm.vm.workers import zones

_TEAM_AT = STR.AT + CALL_STREAM * STR.WORDS + STR.TEAM


def _helper(number: int) -> str:
    return f"flowvm-h:cpu.{number}"


class Threads:
    """The threads of one engine, and why they do not run."""

    def __init__(
        self, vm: Recorded, loops: Loops, watch: Watch, on_first: Callable[[], None]
    ) -> None:
        self.vm = vm
        self.words = vm.words
        self.loops = loops
        self.watch = watch
        self.on_first = on_first  # called once, before the first of them starts
        self.on_start: list[Callable[[], object]] = []  # each starts threads of its own
        self.members: list[threading.Thread] = []
        self.running = False
        self.uncompiled = False  # instructions run at once, until the threads are compiled
        self.stopped = False  # for good: at exit
        self.broken = ""
        self.configured = False  # the settings that are taken at the start have been taken
        self.vetoes: set[object] = set()  # who wants none: see `Sequential.region`
        self._arenas: dict[str, Array] = {}  # by thread

    @protected
    def start(self) -> None:
        """Start the threads, if they are not running, are wanted, and are compiled.

        Until they are compiled, an instruction runs at once on the thread that issues it.  Nothing
        is in flight then, so the threads take over between two instructions.
        """
        with self.vm.lock:
            if not self.configured:
                self.configured = True
                self.on_first()
            if self.running or self.vetoes or self.stopped:
                return
            if self.broken:
                raise VMError(self.broken)
            interrupt.install()
            if self.words[CTL.DEVICES]:
                self.compile_all()  # a device waits for no compilation
                for name in DEVICES:
                    self.loops.compiled(name)
            elif not self.loops.ready(THREADED):
                self.uncompiled = True
                self.watch.start()  # the words mean the same in Python and in native code
                return
            self.vm.flight.start()
            if self.uncompiled:
                self.uncompiled = False
                tell("the VM is compiled now, once for this machine: calls take microseconds")
            self.words[CTL.STOP] = 0
            self.words[CTL.BYTES_HIGH] = config.run_ahead_bytes
            self.words[CTL.RUN_AHEAD] = min(config.run_ahead, RING.SLOTS - MARGIN)
            self.words[CTL.LIMIT] = self.words[CTL.HEAD] + self.words[CTL.RUN_AHEAD]
            hot["limit"] = min(hot["limit"], self.words[CTL.LIMIT])
            complete: list[bool] = []
            with reverting(lambda: None if complete else self._end_all(time.monotonic() + 60)):
                self._start_all()
                complete.append(True)

    def bound_memory(self, memory: float | int) -> None:
        """Set the most bytes of tensors, for a `config.memory`."""
        self.words[CTL.MOST_BYTES] = bound(memory)

    def compile_all(self) -> None:
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

    def let_waiters_help(self, on: bool) -> None:
        """Let a waiting thread do the scheduler's and a worker's work, or not."""
        if self.running:
            self.words[CTL.SCHEDULE] = self._address("scheduler_loop") if on else 0
            self.words[CTL.WORK] = self._address("worker_loop") if on else 0

    def _start_all(self) -> None:
        self.running = True
        self.words[CTL.SCHEDULER_SLEEPS] = 0
        self.words[CTL.SETTLE] = self._address("settle_soon")
        self.let_waiters_help(config.helping)
        self.begin("flowvm-sched", self.loops.function("scheduler_loop"), self.vm.base, -1)
        self.begin("flowvm-w:cpu", self.loops.function("worker_loop"), self.vm.base, CALL_STREAM, 0)
        self.make_team(config.workers)
        for start in self.on_start:
            start()
        self.watch.start()

    def make_team(self, workers: int) -> None:
        """Set the number of threads that share the large kernels of the default stream."""
        with self.vm.lock:
            if not self.running:
                return  # `start` will
            team = self.words[_TEAM_AT]
            self.words[_TEAM_AT] = workers - 1
            leaving = [t for t in self.members if t.name in map(_helper, range(workers - 1, team))]
            while any(t.is_alive() for t in leaving):  # or a number might be taken twice
                self.loops.function("wake_stream")(self.vm.base, CALL_STREAM)
                leaving[0].join(0.001)
                leaving = [t for t in leaving if t.is_alive()]
            self.members = [t for t in self.members if t.is_alive()]
            for k in range(team, workers - 1):
                arena = self.arena(_helper(k))
                self.begin(
                    _helper(k),
                    self.loops.function("helper_loop"),
                    self.vm.base,
                    CALL_STREAM,
                    k,
                    arena,
                )

    def arena(self, owner: str) -> int:
        """Return the address of a thread's private memory.  It is kept, because threads may live
        long.
        """
        if owner not in self._arenas:
            around = 2 * zones.ARENA_ZONE
            self._arenas[owner] = np.empty(ARG.ARENA_BYTES + around + 4096, np.uint8)
            if zones.CHECKED:
                self._arenas[owner].view(np.int64)[:] = zones.PATTERN
        return (int(self._arenas[owner].ctypes.data + 4095) & -4096) + zones.ARENA_ZONE

    def begin(self, name: str, target: Callable[..., object], *args: int) -> threading.Thread:
        """Start a thread, which `stop` waits for."""
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self.members.append(thread)  # first: a started thread must be waited for
        thread.start()
        say(1, f"started thread {name}")
        return thread

    @protected
    def stop(self, seconds: float) -> bool:
        """Stop the threads.  Return True if all of them ended within `seconds`."""
        with self.vm.lock:
            deadline = time.monotonic() + seconds
            with reverting(partial(self._end_all, deadline)):
                pass  # an exception in there does not leave the half of them
            return not self.members

    def _end_all(self, deadline: float) -> None:
        self.words[CTL.STOP] = 1
        for thread in self.members:
            while thread.is_alive() and time.monotonic() < deadline:
                self.loops.function("wake_scheduler")(self.vm.base)
                for stream in range(self.words[CTL.USED_STREAMS]):
                    self.loops.function("wake_stream")(self.vm.base, stream)
                thread.join(0.02)
        self.members = [t for t in self.members if t.is_alive()]
        self.words[_TEAM_AT] = 0
        self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        # a thread that waits, and helped, may still be at it; from now on none begins
        while not self.members and self._is_helped() and time.monotonic() < deadline:
            self.loops.function("nap")(self.vm.base, 100)
        self.running = False

    def _is_helped(self) -> bool:
        taken_counts = [
            STR.AT + stream * STR.WORDS + STR.TAKEN
            for stream in range(self.words[CTL.USED_STREAMS])
        ]
        return any(self.words[word] for word in (CTL.TAKEN, *taken_counts))

    def start_worker(self, stream: int, name: str) -> None:
        """Start the worker of a stream of this name."""
        loop = "device_loop" if self.words[CTL.DEVICES] >> stream & 1 else "worker_loop"
        run = self.loops.compiled(loop)  # of Python, it would poll with the interpreter's lock held
        waits = () if loop == "device_loop" else (0,)
        thread = self.begin(f"flowvm-w:{name}", run, self.vm.base, stream, *waits)
        priority = self.words[STR.AT + stream * STR.WORDS + STR.PRIORITY]
        if priority > 0 and thread.native_id is not None:
            os.setpriority(os.PRIO_PROCESS, thread.native_id, priority)

    @property
    def untouched(self) -> bool:
        """True if nothing was ever issued in this process: no thread of the VM has a storage."""
        return not (self.configured or self.broken) and self.words[CTL.HEAD] == issued()

    def after_fork_in_child(self, why: str) -> None:
        """Forget the parent's threads in a forked child.  `why` it cannot have its own, or ""."""
        self.broken = self.broken or why
        self.members, self.running = [], False
        if not self.vetoes:  # the child may start its VM with other settings
            self.configured = False
            config.lock("")
