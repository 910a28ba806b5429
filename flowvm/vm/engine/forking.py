"""A fork: the parent's VM comes to rest, the child has the memory and starts threads of its own.

What a fork waits for, up to `PATIENCE_S`: that all that was issued is done; that no other thread is
in the middle of issuing, compiling or anything else that `flowvm.guards.forks` guards.  While it
happens a `Gate` stands in the place of the counter of sequence numbers, so that nobody gets a
number: a thread that issues waits there until the fork is over.  What did not come to rest in time
leaves a child in which computing is a VMError; the parent goes on in any case.

Threads that had their number when the gate was closed publish their records, and are waited for,
since the barrier that is waited for comes behind them.  The threads of callbacks pass the gate,
or what they are in the middle of would never be done.

CPython calls what was registered last first.  `logging` registers that a fork takes its lock, and
who compiles needs that lock while it has the compiler's: so logging is imported here, in front of
our own registering, and a fork takes its lock when nobody compiles.
"""

from __future__ import annotations

import itertools
import logging  # noqa: F401  # see above
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from flowvm.config import config
from flowvm.guards.forks import Held
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.machine.words import CTL, RING, STR
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.watch.narrate import Narrator
from flowvm.vm.watch.pending import issued

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

    def __repr__(self) -> str:  # this and the next: what says how much was issued asks for them
        return repr(self.counter)

    def __reduce__(self) -> Any:
        return self.counter.__reduce__()

    def open(self) -> None:
        """Let everybody go on."""
        self.closed = False
        hot["counter"] = self.counter
        self.opened.set()


class Forked(Recorded, Protocol):
    """An engine, as far as forks change it."""

    failures: Any
    watch: Any
    local: threading.local
    broken: str
    configured: bool
    narrator: Any
    loops: Any
    uncompiled: bool

    @property
    def sequential(self) -> int:
        """How many want that instructions run at once."""

    def wait_idle(self, seconds: float | None = None) -> bool:
        """Wait until everything issued so far is done."""


class Forking:
    """What one engine does at forks."""

    def __init__(self, vm: Forked) -> None:
        self.vm = vm
        self.held = Held()
        self.gate: Gate | None = None
        self.why = ""  # the child that is made now cannot compute

    @protected
    def before(self) -> None:
        """Let everything finish, and keep others from beginning."""
        if threading.current_thread().name == HOST:
            self.why = (
                "this process was forked by a callback of its parent's VM, which was in the middle "
                "of it; its tensors are lost.  Fork outside of callbacks"
            )
            self.held.take(False, time.monotonic() + TRY_S)
            self.held.take(True, time.monotonic() + TRY_S)
            return
        try:
            if not self._rest(time.monotonic() + PATIENCE_S):
                self.why = (
                    f"this process was forked while its parent's VM was busy for more than "
                    f"{PATIENCE_S:g} s; its tensors are lost.  Start workers with "
                    "multiprocessing's 'spawn' method, or before computing"
                )
        except BaseException as error:
            self.why = f"waiting for the VM before a fork failed: {error!r}"

    def _rest(self, deadline: float) -> bool:
        """Come to rest; whether it did.  The gate is closed and locks are held then."""
        while not self.vm.broken:
            if self.vm.running and not self._quiet():
                self.vm.wait_idle(max(0.0, deadline - time.monotonic()))
            late = time.monotonic() > deadline - TRY_S
            until = deadline if late else time.monotonic() + TRY_S
            if self.held.take(False, until) or late:
                self.gate = hot["counter"] = Gate(hot["counter"])
                at_once = self.vm.sequential or self.vm.uncompiled
                if not self._quiet() and (self.vm.running or at_once):
                    self.vm.wait_idle(TRY_S)
                if (self.held.take(True, until) and self._quiet()) or late:
                    break
            self._let_go()
            time.sleep(0.001)  # whoever waits for a lock is to have it
        return self._quiet()

    def _quiet(self) -> bool:
        words = self.vm.words
        return bool(words[CTL.HEAD] == words[CTL.RECEIVED] == issued())

    def after_in_parent(self) -> None:
        """The parent's VM goes on."""
        self.why = ""
        self._let_go()

    def _let_go(self) -> None:
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.open()
        self.held.let_go()

    def after_in_child(self) -> None:
        """Threads are gone, memory is there: an idle VM that starts its threads when asked."""
        vm, words = self.vm, self.vm.words
        vm.broken, self.why = vm.broken or self.why, ""
        vm.local = threading.local()
        vm.threads, vm.running = [], False
        for stream in range(vm.streams):
            at = STR.AT + stream * STR.WORDS
            words[at + STR.SLEEPS] = words[at + STR.TEAM_SLEEPS] = 0
            words[at + STR.TEAM] = words[at + STR.TAKEN] = 0
        received = words[CTL.RECEIVED]
        # half-written records of threads that are gone
        for seq in range(received, received + RING.SLOTS):
            words[RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK] = 0
        self.gate = None  # those who wait at it are not here, nor is who has the lock in its event
        self.held.let_go(in_child=True)
        hot["counter"] = itertools.count(received)
        hot["limit"] = 0 if vm.broken else received  # 0: nothing is read natively
        words[CTL.SEEN] = received
        vm.flight.after_fork_in_child()
        vm.watch.after_fork_in_child()
        vm.failures.after_fork_in_child()
        vm.loops.after_fork_in_child()
        words[CTL.STOP] = words[CTL.ROOM_SLEEPS] = words[CTL.TAKEN] = 0
        words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        vm.narrator = Narrator(vm)
        if not vm.sequential:  # the child may start its VM with other settings
            vm.configured = False
            config.lock("")
