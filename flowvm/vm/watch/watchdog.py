"""The thread that looks at the VM while nobody else can: a watchdog, and a window for other
processes.

`flowvm-watch` starts with the VM and sleeps.  Once a second it checks if anything was done.  If
instructions are pending and nothing was done for `config.watchdog` seconds, it prints the chain of
waits down to a running one.  It does so once, wherever the other threads are stuck.  It also
answers questions at its socket (`flowvm top PID`), see `flowvm.vm.watch.window`.

`kill -USR1 PID` prints the same, on the main thread, unless the program has a handler of its own.
Nothing here ever ends or interrupts anything.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from flowvm.compiler import helpers
from flowvm.config import config, say
from flowvm.files.printable import printable
from flowvm.loading.lazy import lazy
from flowvm.vm.machine.words import CTL, STR

if TYPE_CHECKING:
    import socket

    from flowvm.vm.watch import dump, in_flight, window
else:
    dump = lazy("flowvm.vm.watch.dump")
    in_flight = lazy("flowvm.vm.watch.in_flight")
    window = lazy("flowvm.vm.watch.window")

LOOK_S = 1.0  # seconds between two looks, or a quarter of the watchdog's patience


class Watch:
    """The watchdog of one engine: its thread and its state."""

    def __init__(self, vm: window.Shown) -> None:
        self.vm = vm
        self.begun = 0  # monotonic ns at which the VM first started
        self.thread: threading.Thread | None = None
        self.listener: socket.socket | None = None
        self.refused = False  # there was no listener when one was wanted
        self.state: tuple[int, ...] = ()
        self.since = self.looked = time.monotonic()
        self.has_reported = False

    def start(self) -> None:
        """Start the thread; called at each start of the VM, it does nothing from the second time
        on.
        """
        if self.thread is not None:
            return
        self.begun = time.monotonic_ns()
        self._listen()
        self._take_signal()
        self.thread = threading.Thread(target=self._run, name="flowvm-watch", daemon=True)
        self.thread.start()
        say(1, "started thread flowvm-watch")

    def _listen(self) -> None:
        if not config.window:
            return
        try:
            self.listener = window.listen()
        except OSError as error:  # a sandbox without sockets, no descriptor, or the name is taken
            if not self.refused:
                say(1, f"`flowvm top` cannot look at this process: {error}")
            self.refused = True

    def after_fork_in_child(self) -> None:
        """Forget the thread and the socket in a forked child: they are the parent's."""
        if self.listener is not None:
            self.listener.close()
        self.__init__(self.vm)  # type: ignore[misc]

    def _take_signal(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._print(f"signal {number}")

    def _run(self) -> None:
        while not self.vm.threads.stopped:
            seconds = min(LOOK_S, config.watchdog / 4 if config.watchdog else LOOK_S)
            try:
                self._serve(seconds)
                helpers.bury()
                if config.watchdog:
                    self.look(seconds)
            except Exception as error:  # no descriptors or no memory left: there may be some later
                say(1, f"the watch thread goes on after {error!r}")
                time.sleep(seconds)

    def _serve(self, seconds: float) -> None:
        """Answer one question of another process within `seconds`, or just wait."""
        if self.listener is None:
            time.sleep(seconds)
            self._listen()
        else:
            self.listener.settimeout(seconds)
            with suppress(TimeoutError):
                window.serve(self.vm, self.listener)

    def look(self, seconds: float) -> None:
        """Note if an instruction was done.  `seconds` have passed since the last look, or a little
        more.

        Long after that this process was stopped, or the machine slept: the time does not count.
        """
        words, now = self.vm.words, time.monotonic()
        streams = range(self.vm.streams.count)
        tasks = (words[STR.AT + s * STR.WORDS + STR.TASK] for s in streams)  # within replays
        state = (words[CTL.N_DONE], *tasks)
        idle = words[CTL.HEAD] == in_flight.begun(self.vm)
        if state != self.state or idle or now - self.looked > 3 * seconds + 1:
            self.state, self.since, self.has_reported = state, now, False
        elif not self.has_reported and now - self.since > config.watchdog:
            self.has_reported = True
            self._print(f"no progress for {config.watchdog:g} s")
        self.looked = now

    def _print(self, why: str) -> None:
        instructions = in_flight.pending(self.vm)
        table = dump.dump_text(self.vm, instructions)
        text = f"flowvm: {why}\n{in_flight.chain_text(instructions)}\n{table}"
        with suppress(OSError, ValueError):  # stderr may be closed
            text = printable(text.replace("\n\n", "\n"), lines=True)
            print(text, file=sys.stderr, flush=True)
