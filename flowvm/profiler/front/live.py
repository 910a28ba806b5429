"""Watching the VM of this process while it works.

    with flow.profiler.live(hz=2):      # a screen that refreshes while the block runs
        train()

    flow.profiler.serve().url           # the same in a browser, and the page of what ran

`flowvm top PID` (`flowvm.profiler.front.top`) shows the same of another process.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flowvm.errors import ArgumentError, VMError
from flowvm.guards import processes
from flowvm.loading.lazy import lazy
from flowvm.profiler.front.watcher import Watcher
from flowvm.vm.engine.engine import engine

if TYPE_CHECKING:
    import subprocess
else:
    subprocess = lazy("subprocess")

START_S = 60.0  # for a process that serves to begin
LINE_S = 30.0  # between two lines where there is no terminal


class live:  # noqa: N801 - used like a function
    """`with flow.profiler.live(hz=2):` shows what this process's VM does while the block runs.

    On a terminal a screen below what is printed, refreshed `hz` times a second (0.1 to 10); in a
    notebook one display, at most once a second; elsewhere a plain line every 30 s.  All on stderr.
    A thread of this process does the formatting; `flowvm top PID`, in another terminal, leaves this
    process alone.  `look` gives what is shown, a View with a `line()`, instead of the VM.
    ArgumentError for another `hz`.

    >>> with flow.profiler.live():
    ...     x = flow.ones(2) + 1
    """

    def __init__(self, hz: float = 2.0, look: Callable[[], object] | None = None) -> None:
        if not 0.1 <= hz <= 10:
            raise ArgumentError(f"live(hz={hz!r}): a screen is refreshed 0.1 to 10 times a second")
        self.hz = hz
        self.looks = 0
        self._look = look
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> live:
        engine.threads.start()
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="flowvm-live", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        look = self._look or Watcher().look
        begin, show, finish, seconds = _renderer(1 / self.hz)
        begin()
        try:
            while not self._stop.wait(seconds):
                show(look())
                self.looks += 1
        finally:
            finish()


def _nothing() -> None:
    pass


def in_notebook() -> bool:
    """Return True in a Jupyter kernel: IPython without a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def _renderer(
    seconds: float,
) -> tuple[Callable[[], object], Callable[[object], object], Any, float]:
    """Return the functions to call first, with each view, and last; and the seconds between
    views.
    """
    if in_notebook():
        from IPython.display import display

        handle: list[Any] = []

        def in_place(view: Any) -> None:
            data = {"text/plain": view.screen(100).plain()}
            if handle:
                handle[0].update(data, raw=True)
            else:
                handle.append(display(data, raw=True, display_id=True))

        return _nothing, in_place, _nothing, max(1.0, seconds)
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live as Screen

        screen = Screen(console=Console(stderr=True), auto_refresh=False, transient=True)
        return screen.start, lambda view: screen.update(view, refresh=True), screen.stop, seconds
    return _nothing, lambda view: print(view.line(), file=sys.stderr, flush=True), _nothing, LINE_S


class serve:  # noqa: N801 - used like a function
    """`flow.profiler.serve()` shows this process in a browser while it works; `url` is where.

    Another process, at the lowest priority, asks this one and makes the page: what each stream
    does, twice a second, and the last instructions as `p.export("run.html")` shows them, when
    asked for.  It listens on the loopback interface, at a `port` that the system chooses unless
    one is given; whoever has the address can look, and cannot change anything.  It ends with
    `close()`, with the block in `with flow.profiler.serve() as shown:`, or with this process.

    ArgumentError for what is no port; VMError where nothing can be served.

    >>> with flow.profiler.serve() as shown:
    ...     shown.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, port: int = 0) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise ArgumentError(f"serve(port={port!r}): 0 (any that is free) to 65535")
        engine.threads.start()
        arguments = ["top", str(os.getpid()), "--web", "--port", str(port)]
        try:
            self._process = _started(processes.own("flowvm.commands.cli:main", *arguments))
        except OSError as error:
            raise VMError(f"serve: {error}") from None
        self._end = weakref.finalize(self, _stop, self._process)
        ready, _, _ = select.select([self._process.stdout], [], [], START_S)
        self.url = self._process.stdout.readline().strip() if ready else ""
        if not self.url:
            why = self._process.stderr.read().strip().splitlines() if ready else []
            self.close()
            raise VMError(f"serve: {why[-1] if why else 'the process for it did not begin'}")
        _served.add(self)  # it lives on where nobody keeps it

    def close(self) -> None:
        """End the process that serves."""
        _served.discard(self)
        self._end()

    def __enter__(self) -> serve:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"flow.profiler.serve() at {self.url}" if self._end.alive else "serve, closed"


_served: set[serve] = set()


def _started(command: list[str]) -> Any:
    """A process whose output is read."""
    return processes.start(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _stop(process: Any) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    if process.poll() is None:
        process.kill()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
