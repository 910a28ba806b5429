"""`flowvm top PID`: the screen of a running VM, from another process; --web: in a browser.

On a terminal it refreshes twice a second; KEYS says what can be typed.  Elsewhere it prints a line
every 30 s, or a JSON object.  The reader does all the work, at the lowest priority: what it watches
is asked for some hundred kilobytes a look, and never stopped.  The large screens, the DAG of the
last step and the memory, are made once, when their key is typed, and stand below until it is typed
again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flowvm.errors import VMError
from flowvm.files.printable import printable
from flowvm.loading.lazy import lazy
from flowvm.profiler.front.live import LINE_S
from flowvm.profiler.front.profiles import Profile
from flowvm.profiler.front.watcher import Watcher
from flowvm.profiler.grammar import Line, Screen, counted, flowed, ms
from flowvm.profiler.terminal import WIDE, to_ascii
from flowvm.profiler.views.live import Live, StreamNow
from flowvm.vm.watch import window

if TYPE_CHECKING:
    from flowvm.profiler.front import server
    from flowvm.profiler.run.run import Run
else:
    server = lazy("flowvm.profiler.front.server")

SORTS: dict[str, Callable[[StreamNow], float]] = {
    "number": lambda s: 0,
    "util": lambda s: -s.util,
    "queue": lambda s: -s.queue,
    "rate": lambda s: -s.rate,
}
KEYS = ("[q]uit", "[p]ause", "[s]ort", "[g]raph of the last step", "[m]emory",
        "[w]ho waits for whom", "[d]ump to a file")  # fmt: skip
RECENT = 4096  # instructions that g looks at for a step; m looks at four times as many
UNNAMED = 40  # instructions that are shown where no step was named


def main(args: argparse.Namespace) -> int:
    """Watch until the process ends or somebody has seen enough; the exit code."""
    with contextlib.suppress(OSError):
        os.nice(19)
    if not 0.1 <= args.hz <= 10 or (args.interval is not None and args.interval <= 0):
        raise VMError("--hz is 0.1 to 10, --interval more than 0")
    watcher = Watcher(_pid(args.pid))
    if args.web:
        return server.run(watcher, args.port, lambda url: print(url, flush=True))
    if args.dump:
        watcher.look(dump=True)
        print(printable(watcher.dump, lines=True))
        return 0
    watcher.look()
    if args.once:
        time.sleep(min(1.0, args.interval or 1.0))
        view = watcher.look()
        print(_json(view) if args.json else view)
        return 0
    terminal = sys.stdout.isatty() and not args.json and args.interval is None
    try:
        if terminal:
            _screens(watcher, 1 / args.hz)
        while not terminal:
            time.sleep(args.interval or LINE_S)
            view = watcher.look()
            print(_json(view) if args.json else _printable(view.line()), flush=True)
    except VMError as error:
        print(f"flowvm top: {error}", file=sys.stderr)
    return 0


def _pid(pid: int | None) -> int:
    if pid is not None:
        return pid
    windows = window.shown()
    if not windows:
        raise VMError("none of your processes shows a VM: start one that runs a flowvm operation")
    if len(windows) > 1:
        raise VMError(
            "several processes show a VM, name one: "
            + ", ".join(f"{p} ({_program(p)})" for p in windows[:8])
        )
    return windows[0]


def _program(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    return " ".join(os.path.basename(x) for x in words[:3] if x and len(x) < 80)


def _json(view: Live) -> str:
    return json.dumps(dataclasses.asdict(view))


def _printable(text: str) -> str:
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return text if encoding == "utf8" else to_ascii(text)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key: its character, or ""."""
    try:
        before = termios.tcgetattr(sys.stdin.fileno())
    except (termios.error, OSError, ValueError):  # no terminal to read from
        yield _no_key
        return
    file = sys.stdin.fileno()

    def key(seconds: float) -> str:
        ready, _, _ = select.select([file], [], [], seconds)
        if not ready:
            return ""
        return os.read(file, 1).decode(errors="replace").lower() or "q"  # nobody will type more

    tty.setcbreak(file)
    try:
        yield key
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


class _Looking:
    """The state of the screen, apart from numbers."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.paused = False
        self.panel = ""  # the key of what stands below
        self.below = Screen()
        self.sort = 0
        self.note = ""
        self.view: Live | None = None

    def key(self, key: str, width: int) -> None:
        """Do what a key asks for, on a terminal so wide."""
        if key == "p":
            self.paused = not self.paused
        elif key == "s":
            self.sort = (self.sort + 1) % len(SORTS)
        elif key == "d":
            self.note = _written(self.watcher)
        elif key == self.panel:
            self.panel, self.below = "", Screen()
        elif key in ("w", "g", "m"):
            self.panel, self.below = key, Screen()
            if key == "g":
                self.below = _graph(self.watcher.ring(RECENT), width)
            if key == "m":
                self.below = Profile(self.watcher.ring(4 * RECENT)).memory().screen(width)

    def look(self, width: int, height: int) -> Screen:
        who = self.panel == "w"
        if self.view is None or not self.paused:
            self.view = self.watcher.look(dump=who)
        by = list(SORTS)[self.sort]
        streams = tuple(sorted(self.view.streams, key=SORTS[by]))
        view = dataclasses.replace(self.view, streams=streams, note=self.note or self.view.note)
        screen = view.screen(width)
        state = [f"by {by}"] * bool(self.sort) + ["PAUSED"] * self.paused
        parts = [*((key, "head") for key in KEYS), *((text, "advice") for text in state)]
        screen.lines += flowed(parts, width, "  ")
        dump: list[Line] = [[(line, "")] for line in self.watcher.dump.split("\n")] if who else []
        below = dump or self.below.lines
        room = max(3, height - len(screen.lines))
        if len(below) > room:
            more = len(below) - room + 1
            below = [*below[: room - 1], [(f" {more} more lines: d, flowvm view", "head")]]
        screen.lines += below
        return screen


def _graph(run: Run, width: int) -> Screen:
    """The DAG of the last span that is whole in the run, else of its last instructions."""
    whole = [m[0] for m in run.marks if m[5] > m[4] and m[1] >= run.begun]
    if whole:
        name, part = f"the last {whole[-1]}", Profile(run).part(whole[-1])
    else:
        name, first = "the last instructions", max(0, len(run) - UNNAMED)
        begun = int(run.time("issued")[first:].min(initial=run.ended))
        part = Profile(run.part(first, len(run), begun, run.ended))
    screen = Screen()
    count = counted(len(part), "instruction")
    screen.add((f" {name}", "verdict"), f"  {count} · {ms(part.run.wall)} ms")
    screen.lines += part.graph(limit=None).screen(width).lines
    return screen


def _written(watcher: Watcher) -> str:
    """Write the ring of what is watched to a new file here; what to say of it."""
    path = next(
        p for k in range(10_000) if not (p := Path(f"flowvm-{watcher.pid}-{k}.flowtrace")).exists()
    )
    try:
        run = watcher.ring()
        run.save(path)
    except OSError as error:
        return f"not written: {error}"
    return f"{counted(len(run), 'instruction')} written: flowvm view {path}"


def _screens(watcher: Watcher, seconds: float) -> None:
    from rich.console import Console
    from rich.live import Live as Refreshed

    state = _Looking(watcher)
    console = Console()
    with _keys() as key, Refreshed(console=console, auto_refresh=False, screen=True) as shown:
        while True:
            width = min(console.width, WIDE)
            screen = state.look(width, console.height)
            if console.encoding.lower().replace("-", "") != "utf8":
                screen = Screen([[(to_ascii(t), s) for t, s in line] for line in screen.lines])
            shown.update(screen, refresh=True)
            pressed = key(seconds)
            if pressed == "q":
                return
            state.key(pressed, width)
