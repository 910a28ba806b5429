"""The sequential engine: instructions run at once, on the thread that issues them.

So they do where the user or the settings want it, until the threads' functions are compiled, and
behind their end, at exit.
"""

from __future__ import annotations

import ctypes
import threading
from functools import partial
from typing import Any

from flowvm.guards.regions import reverting
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.callbacks import Callbacks
from flowvm.vm.engine.failures import Failures
from flowvm.vm.engine.loops import Loops
from flowvm.vm.engine.natives import SEQUENTIAL
from flowvm.vm.engine.threads import Threads
from flowvm.vm.engine.waits import Waits
from flowvm.vm.machine.words import CTL
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.workers import shell


class Sequential:
    """The runner of instructions of one engine while its threads do not run."""

    def __init__(
        self,
        vm: Recorded,
        loops: Loops,
        threads: Threads,
        waits: Waits,
        callbacks: Callbacks,
        failures: Failures,
    ) -> None:
        self.vm = vm
        self.words = vm.words
        self.loops = loops
        self.threads = threads
        self.waits = waits
        self.callbacks = callbacks
        self.failures = failures
        self.at_once = False  # an issuing thread runs its instructions itself
        self.stepping: Any = None  # the debugger, of `flowvm.vm.engine.debugger`
        hot["after"] = self.after_issue

    def after_issue(self) -> None:
        """Start or wake the scheduler, or do its work, after a record was published."""
        threads = self.threads
        if not (threads.running or threads.vetoes or threads.stopped):
            threads.start()  # unless the settings want the sequential engine
        if threads.running:
            try:
                self.loops.function("wake_scheduler")(self.vm.base)
            except ctypes.ArgumentError as error:  # its word for a RecursionError on the way
                raise RecursionError(str(error)) from None  # a waiting thread wakes the scheduler
        elif self.stepping is not None:
            self.stepping.run(self.run)
        else:  # also at interpreter exit, after the threads have left
            self.run()

    def region(self) -> reverting:
        """Run each instruction at once on the thread that issues it, and raise its errors there,
        inside the with statement.

        Other threads may issue meanwhile.  The VM ends the instructions that it has begun.  The
        ones that it has not taken run in the order issued, once, on one of the threads.
        """
        wish = object()

        def change() -> None:
            self.threads.stop(60.0)
            self.threads.vetoes.add(wish)
            self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT

        return reverting(
            partial(self.threads.vetoes.discard, wish), partial(self.waits.at_rest, change)
        )

    def run(self) -> None:
        """Run what was issued, if no other thread does."""
        if self.loops.draining == threading.get_ident():
            return  # an instruction issued by a finalizer in there runs next
        failed = False
        with self.vm.lock:
            if self.threads.running:  # by another thread, since this one looked
                self.loops.function("wake_scheduler")(self.vm.base)
                return
            self.words[CTL.STOP] = 0
            native = (
                self.loops.ready(SEQUENTIAL)
                if self.threads.vetoes
                else "drain" in self.loops.native
            )
            self.vm.flight.start()
            drain = (
                self.loops.function("drain")
                if native
                else partial(self.loops.in_python, shell.drain)
            )
            self.at_once = True
            try:
                while (slot := drain(self.vm.base)) != -1:
                    if slot >= 0:
                        self.callbacks.run(slot)
                        failed |= self.failures.new()
                        self.loops.function("settle")(self.vm.base, slot)
                    else:
                        failed = True
            finally:
                self.at_once = False
            self.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
        if failed and self.threads.vetoes:
            self.failures.collect()
            self.failures.raise_unseen()
