"""Watching the VM of this process while it works.

    with flow.profiler.live(hz=2):      # a screen that refreshes while the block runs
        train()

`flowvm top PID` (`flowvm.profiler.front.top`) shows the same of another process.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from flowvm.errors import ArgumentError
from flowvm.profiler.front.watcher import Watcher
from flowvm.vm.engine.engine import engine

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

    def __init__(self, hz: float = 2.0, look: Callable[[], Any] | None = None) -> None:
        if not 0.1 <= hz <= 10:
            raise ArgumentError(f"live(hz={hz!r}): a screen is refreshed 0.1 to 10 times a second")
        self.hz = hz
        self.looks = 0
        self._look = look
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> live:
        engine.start()
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
    """Whether this is a Jupyter kernel: IPython, and no terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def _renderer(seconds: float) -> tuple[Callable[[], Any], Callable[[Any], Any], Any, float]:
    """What to call first, with each view, and last; seconds between two views."""
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
