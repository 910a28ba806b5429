"""The Python side of the VM: its memory, and the parts that issue, wait, run and tell of errors.

One `Engine` a process, made when flowvm is imported (it reserves address space and nothing else),
whose threads start with the first instruction.  Each part is a class of its own, in the order in
which they are made; a part is given those before it that it uses:

    failures      errors of instructions, until somebody sees them
    lending       memory that NumPy has, too
    flight        the recorder
    watch         flowvm-watch: watchdog, window for `flowvm top`; from the first instruction on
    loops         the native functions, or Python until they are compiled
    entries       what all calls of a kind have in common
    threads       scheduler, workers and helpers: whether they run, and why not
    streams       queues of instructions, by number and name
    records       taking a sequence number, writing a record, room in the ring
    storages      ids of memories, their release
    waits         for values, for everything
    callbacks     Python functions as instructions
    sequential    running instructions on the thread that issues them
    restorer      last whole values behind an error

What a part needs of a later one it calls by `hot`, as native calls do.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading

import numpy as np

from flowvm.compiler import helpers, jit
from flowvm.config import config
from flowvm.errors import VMError
from flowvm.guards.forks import Rank, held_at_fork
from flowvm.meta.arrays import Array
from flowvm.private.cpython import never_freed
from flowvm.vm.callers.publish_check import watch
from flowvm.vm.callers.tracebacks import install
from flowvm.vm.engine import cancel
from flowvm.vm.engine.callbacks import Callbacks
from flowvm.vm.engine.entries import Entries
from flowvm.vm.engine.failures import Failures
from flowvm.vm.engine.forks import Forking
from flowvm.vm.engine.loans import Lending
from flowvm.vm.engine.loops import Loops
from flowvm.vm.engine.natives import JOB, LAST, RUNNING, SCHEDULING, SIGNATURES
from flowvm.vm.engine.records import Records
from flowvm.vm.engine.restore import Restorer
from flowvm.vm.engine.sequential import Sequential
from flowvm.vm.engine.storages import Storages
from flowvm.vm.engine.streams import Streams
from flowvm.vm.engine.threads import Threads
from flowvm.vm.engine.waits import Waits
from flowvm.vm.machine.machine import start as start_machine
from flowvm.vm.machine.words import ARRAY, CTL
from flowvm.vm.watch.flight import Flight
from flowvm.vm.watch.watchdog import Watch
from flowvm.vm.workers import shell

EXIT_SECONDS = 10.0  # the longest that leaving Python waits for work in flight
_PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS_NORESERVE = 3, 0x4022


def _reserve(size: int) -> int:
    """Return the address of `size` bytes, which become memory where they are touched.

    They are never unmapped: threads may outlive the interpreter.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    number = ctypes.c_int
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
    flags = _MAP_PRIVATE_ANONYMOUS_NORESERVE
    base: int | None = libc.mmap(None, size, _PROT_READ_WRITE, flags, -1, 0)
    if base is None or base == ctypes.c_void_p(-1).value:
        raise VMError(f"cannot reserve {size >> 20} MiB of address space for the VM's state")
    return base


class Engine:
    """The process's VM.  `flowvm.vm` is its public face."""

    def __init__(self) -> None:
        self.base = _reserve(ARRAY.WORDS * 8)
        memory = (ctypes.c_int64 * ARRAY.WORDS).from_address(self.base)
        self.m: Array = np.ctypeslib.as_array(memory)
        self.words = memoryview(memory).cast("B").cast("q")
        start_machine(self.m)
        self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        self.words[CTL.SPINS] = 200
        self.lock = held_at_fork(threading.RLock(), Rank.VM)
        self.failures = Failures(self)
        self.lending = Lending(self)
        self.flight = Flight(self)
        self.watch = Watch(self)
        clock, groups = self.flight.change_clock, (RUNNING, SCHEDULING)
        self.loops = Loops(shell, SIGNATURES, groups, LAST, clock, JOB)
        self.entries = Entries(self)
        self.threads = Threads(self, self.loops, self.watch, self._configure)
        self.streams = Streams(self, self.threads, self.loops)
        self.records = Records(self, self.entries, self.failures)
        self.storages = Storages(self, self.entries, self.records, self.threads, self.lending)
        self.waits = Waits(
            self, self.entries, self.records, self.storages, self.threads, self.failures
        )
        self.callbacks = Callbacks(self, self.entries, self.records, self.threads, self.failures)
        self.sequential = Sequential(
            self, self.loops, self.threads, self.waits, self.callbacks, self.failures
        )
        self.restorer = Restorer(self)
        self.failures.told_of = self.restorer.restore_whole
        config.on_change("debug", self.records.change_debug)
        config.on_change("profile", self.flight.set_level)
        jit.listeners.append(lambda name, begun: self.flight.waited("jit", begun))
        config.on_change("workers", self.threads.make_team)
        config.on_change("memory", self.threads.bound_memory)
        config.on_change("helping", self.threads.let_waiters_help)
        if config.debug_calls:
            watch(self.words)

    def _configure(self) -> None:
        """Take the settings that count from the first instruction on."""
        config.lock("the VM has started")
        install()
        self.threads.bound_memory(config.memory)
        cancel.install(self)
        if config.engine == "sequential" or config.sync:
            self.threads.vetoes.add("settings")

    def exit(self) -> None:
        """Finish the issued instructions within bounds of time, and report unseen errors."""
        if self.threads.running:
            try:
                finished = self.waits.wait_idle(EXIT_SECONDS)
            except KeyboardInterrupt:
                finished = False
            if not finished:
                unfinished = int(self.words[CTL.RECEIVED] - self.words[CTL.HEAD])
                text = f"flowvm: exit did not wait for {unfinished} unfinished instructions"
                print(text, file=sys.stderr)
            if not self.threads.stop(2.0 if finished else 0.2) or not finished:
                # a kernel is still running: the memory that it may read must outlive the
                # interpreter
                never_freed(self)
        self.threads.stopped = True
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
