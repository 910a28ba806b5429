"""Forks: the parent's VM comes to rest; the child has the memory and starts threads of its own.

A fork waits, up to `PATIENCE_S`, until all issued instructions are done.  It also waits until no
other thread is in the middle of issuing, compiling or other work that `flowvm.guards.forks`
guards.  Meanwhile a `Gate` replaces the counter of sequence numbers, so that no thread gets a
number: an issuing thread waits there until the fork is over.  If something does not come to rest in
time, computing in the child is a VMError; the parent goes on in any case.

Threads that had a number when the gate was closed publish their records.  The fork waits for them,
because its barrier comes behind them.  The threads of callbacks pass the gate, or their work would
never be done.

CPython calls what was registered last first.  `logging` registers that a fork takes its lock, and
who compiles needs that lock while it has the compiler's: so logging is imported here, in front of
our own registering, and a fork takes its lock when nobody compiles.
"""

from __future__ import annotations

import itertools
import logging  # noqa: F401  # see above
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from flowvm.guards.forks import Held
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.engine.failures import Failures
from flowvm.vm.engine.loops import Loops
from flowvm.vm.engine.records import Records
from flowvm.vm.engine.threads import Threads
from flowvm.vm.engine.waits import Waits
from flowvm.vm.machine.words import CTL, POL, RING, STR
from flowvm.vm.watch.flight import Flight
from flowvm.vm.watch.pending import issued
from flowvm.vm.watch.watchdog import Watch

PATIENCE_S = 60.0  # that a fork waits for the VM and for locks
TRY_S = 1.0  # that it waits with the gate closed, before it lets the others go on for a while
HOST = "flowvm-host"


class Gate:
    """The counter of sequence numbers, closed for all threads but its maker and `HOST`."""

    def __init__(self, counter: Iterator[int]) -> None:
        self.counter = counter
        self.passes = {threading.get_ident()}
        self.passes |= {t.ident for t in threading.enumerate() if t.name == HOST and t.ident}
        self.closed = True
        self.opened = threading.Event()

    @protected
    def __iter__(self) -> Iterator[int]:
        # the last look at `closed` and the number that `for` takes then have nothing between them
        # at which CPython would change threads
        while self.closed and threading.get_ident() not in self.passes:
            self.opened.wait()
        return self.counter

    def __repr__(self) -> str:  # the count of issued instructions reads this and the next
        return repr(self.counter)

    def __reduce__(self) -> Any:
        return self.counter.__reduce__()

    def open(self) -> None:
        """Open the gate for all threads."""
        self.closed = False
        hot["counter"] = self.counter
        self.opened.set()


class Forked(Protocol):
    """The parts of an engine that a fork brings to rest, or makes anew."""

    words: memoryview

    @property
    def failures(self) -> Failures:
        """Errors of instructions."""

    @property
    def flight(self) -> Flight:
        """The recorder."""

    @property
    def watch(self) -> Watch:
        """The watchdog."""

    @property
    def loops(self) -> Loops:
        """The native functions."""

    @property
    def threads(self) -> Threads:
        """Scheduler, workers and helpers."""

    @property
    def records(self) -> Records:
        """The writer of records."""

    @property
    def waits(self) -> Waits:
        """The waits of issuing threads."""


class Forking:
    """The handlers of one engine around a fork."""

    def __init__(self, vm: Forked) -> None:
        self.vm = vm
        self.held = Held()
        self.gate: Gate | None = None
        self.why = ""  # the child that is made now cannot compute
        self.interrupted = False  # a Ctrl-C came, which is to be raised behind the fork

    @protected
    def before(self) -> None:
        """Finish everything before a fork, and keep other threads from issuing."""
        if threading.current_thread().name == HOST:
            self.why = (
                "this process was forked by a callback of its parent's VM, which was in the middle "
                "of it; its tensors are lost.  Fork outside of callbacks"
            )
            self.held.take(False, time.monotonic() + TRY_S)
            self.held.take(True, time.monotonic() + TRY_S)
            return
        try:
            if not self._rest_in_spite_of_one_interrupt(time.monotonic() + PATIENCE_S):
                self.why = (
                    f"this process was forked while its parent's VM was busy for more than "
                    f"{PATIENCE_S:g} s; its tensors are lost.  Start workers with "
                    "multiprocessing's 'spawn' method, or before computing"
                )
        except BaseException as error:
            self.why = f"waiting for the VM before a fork failed: {error!r}"

    def _rest_in_spite_of_one_interrupt(self, deadline: float) -> bool:
        """Return `_rest(deadline)`.  The next Ctrl-C ends the wait: then the child cannot compute.

        Python would ignore it in a hook of a fork, and who gets it is the parent.
        """
        try:
            return self._rest(deadline)
        except KeyboardInterrupt:
            self.interrupted = True
            self._let_go()
            return self._rest(deadline)

    def _rest(self, deadline: float) -> bool:
        """Come to rest, with the gate closed and locks held.  Return True if that succeeded."""
        while not self.vm.threads.broken:
            if self.vm.threads.running and not self._quiet():
                self.vm.waits.wait_idle(max(0.0, deadline - time.monotonic()))
            late = time.monotonic() > deadline - TRY_S
            until = deadline if late else time.monotonic() + TRY_S
            if self.held.take(False, until) or late:
                self.gate = hot["counter"] = Gate(iter(hot["counter"]))
                at_once = self.vm.threads.vetoes or self.vm.threads.uncompiled
                if not self._quiet() and (self.vm.threads.running or at_once):
                    self.vm.waits.wait_idle(TRY_S)
                if (self.held.take(True, until) and self._quiet()) or late:
                    break
            self._let_go()
            time.sleep(0.001)  # another thread that waits for a lock must get it
        return self._quiet()

    def _quiet(self) -> bool:
        words = self.vm.words
        idle = words[CTL.HEAD] == words[CTL.RECEIVED] == issued()
        return bool(idle and not words[CTL.TAKEN])  # nor is the scheduler at the end of a pass

    @protected  # CPython ignores what a hook raises: a Ctrl-C comes behind it
    def after_in_parent(self) -> None:
        """Let the parent's VM go on."""
        self.why = ""
        self._let_go()
        if self.interrupted:
            self.interrupted = False
            signal.raise_signal(signal.SIGINT)  # it is put off in here

    def _let_go(self) -> None:
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.open()
        self.held.let_go()

    @protected
    def after_in_child(self) -> None:
        """Reset the VM in a child: its memory exists, its threads do not.  The VM is idle and
        starts its threads on demand.
        """
        vm, words = self.vm, self.vm.words
        vm.threads.after_fork_in_child(self.why)
        self.why, self.interrupted = "", False
        vm.waits.after_fork_in_child()
        for stream in range(words[CTL.USED_STREAMS]):
            at = STR.AT + stream * STR.WORDS
            words[at + STR.SLEEPS] = words[at + STR.TEAM_SLEEPS] = 0
            words[at + STR.TEAM] = words[at + STR.TAKEN] = 0
        received = words[CTL.RECEIVED]
        # half-written records of threads that are gone
        for seq in range(received, received + RING.SLOTS):
            words[RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK] = 0
        self.gate = None  # the threads that wait at it do not exist here
        self.held.let_go(in_child=True)
        hot["counter"] = itertools.count(received)
        hot["limit"] = 0 if vm.threads.broken else received  # 0: nothing is read natively
        words[CTL.SEEN] = received
        vm.flight.after_fork_in_child()
        vm.watch.after_fork_in_child()
        vm.failures.after_fork_in_child()
        vm.loops.after_fork_in_child()
        words[CTL.STOP] = words[CTL.ROOM_SLEEPS] = words[CTL.TAKEN] = 0
        words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        words[POL.KIND] = words[POL.PULLED] = 0  # whose block it is may not be here
        vm.records.after_fork_in_child()
