"""A picture of what was compiled: seconds by kernel, process, thread and phase, in order of time.

`flowvm doctor --cold` draws it of a program's first minute, and FLOWVM_DEBUG=1 (and no level above)
of this process when it ends.  A function that two processes or two programs have made is said to be
there twice: one of them should have waited, or not have asked.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from flowvm.compiler import progress, record
from flowvm.compiler.record import CODE, FRONT, LINK, LOAD, NUMBA, PASSES, START, Compilation
from flowvm.config import config
from flowvm.files.printable import printable
from flowvm.loading.lazy import lazy

consoles = lazy("rich.console")  # when something is drawn
grids = lazy("rich.table")

WIDTH = 130  # columns where there is no terminal
BAR = 16
SHORT = 0.05  # seconds; what took less is one row together
# a column's head, and the phases in it
COLUMNS = (
    ("start", (START, NUMBA)), ("front", (FRONT,)), ("link", (LINK,)), ("LLVM", (PASSES,)),
    ("code", (CODE,)), ("load", (LOAD,)),
)  # fmt: skip


def of(process: int, rows: Sequence[Compilation]) -> list[Compilation]:
    """Return the rows of a process and its helpers, in order of their beginning."""
    return sorted(
        (row for row in rows if process in (row.process, row.parent)), key=lambda row: row.began
    )


def who(row: Compilation) -> str:
    """Return the process and thread of a row, as shown."""
    if row.parent:
        return row.job or "helper"
    ours = row.thread.startswith("flowvm-")  # else one of the program's, or where it waits apart
    return row.thread.removeprefix("flowvm-") if ours else "program"


def twice(rows: Sequence[Compilation]) -> set[str]:
    """Return the digests of functions that were compiled more than once."""
    counts = Counter(row.digest for row in rows if row.digest and row.seconds)
    return {digest for digest, count in counts.items() if count > 1}


def tables(rows: Sequence[Compilation]) -> list[object]:
    """Return the waterfall and the sums, as rich's tables."""
    return [_waterfall(rows), _sums(rows)]


def _waterfall(rows: Sequence[Compilation]) -> Any:
    table = grids.Table(title="Compiled, in order of time", title_justify="left", box=None)
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("by", no_wrap=True, overflow="ellipsis", max_width=14)
    table.add_column("what", no_wrap=True, overflow="ellipsis", max_width=32)
    table.add_column("", no_wrap=True, min_width=BAR)
    table.add_column("s", justify="right", style="bold", no_wrap=True)
    for head, _ in COLUMNS:
        table.add_column(head, justify="right", style="dim", no_wrap=True, min_width=5)
    table.add_column("waited", justify="right", no_wrap=True)
    begun = min((row.began for row in rows), default=0.0)
    length = max((row.began + row.passed for row in rows), default=0.0) - begun
    again = twice(rows)
    short = [row for row in rows if max(row.busy, row.waited) < SHORT]
    for row in rows:
        if max(row.busy, row.waited) < SHORT:
            continue
        name = printable(progress.shown(row.name))
        note = "  twice" if row.digest in again and row.seconds else ""
        table.add_row(
            f"{row.began - begun:.1f}", who(row), f"{name}{note}",
            _bar(row.began - begun, row.passed, length), *_numbers([row]),
            f"{row.waited:.2f}" if row.waited else "",
        )  # fmt: skip
    if short:
        table.add_row("", "", f"{len(short)} of less than {SHORT} s", "", *_numbers(short), "")
    return table


def _bar(at: float, lasts: float, of: float) -> str:
    block = "█" if "utf" in (getattr(sys.stdout, "encoding", "") or "").lower() else "#"
    first = min(BAR - 1, int(BAR * at / max(of, 1e-9)))
    end = max(first + 1, round(BAR * (at + lasts) / max(of, 1e-9)))
    return " " * first + block * (end - first)


def _numbers(rows: Sequence[Compilation]) -> list[str]:
    columns = [
        sum(row.seconds.get(phase, 0.0) for row in rows for phase in phases)
        for _, phases in COLUMNS
    ]
    return [f"{seconds:.2f}" if seconds >= 0.005 else "" for seconds in (sum(columns), *columns)]


def _sums(rows: Sequence[Compilation]) -> Any:
    table = grids.Table(title="\nProcessor seconds", title_justify="left", box=None)
    table.add_column("by", no_wrap=True, overflow="ellipsis", max_width=30)
    table.add_column("made", justify="right")
    table.add_column("s", justify="right", style="bold")
    for head, _ in COLUMNS:
        table.add_column(head, justify="right", style="dim")
    table.add_column("waited", justify="right")
    groups: dict[str, list[Compilation]] = {}
    for row in rows:
        groups.setdefault("helpers" if row.parent else who(row), []).append(row)
    for name, group in (*groups.items(), ("all", list(rows))):
        compilations = sum(bool(row.digest and row.seconds) for row in group)
        waited = sum(row.waited for row in group)
        table.add_row(name, f"{compilations}", *_numbers(group), f"{waited:.2f}" if waited else "")
    return table


def warning(rows: Sequence[Compilation]) -> str:
    """Return a line that names what was compiled more than once; "" where nothing was."""
    again = twice(rows)
    names = dict.fromkeys(printable(progress.shown(r.name)) for r in rows if r.digest in again)
    return f"compiled more than once: {', '.join(names)}" if names else ""


# --- FLOWVM_DEBUG=1 -------------------------------------------------------------------------------


@functools.cache
def at_exit() -> None:
    """Draw what this process and its helpers have compiled when it ends."""
    atexit.register(_draw, os.getpid())


def _draw(process: int) -> None:
    if process != os.getpid() or sys.stderr is None:  # a forked child has compiled nothing yet
        return
    if config.debug != 1:  # above that instructions are told, one a line, and the last is the end
        return
    rows = of(process, record.read(config.cache_dir))
    narrow = None if sys.stderr.isatty() else WIDTH
    console = consoles.Console(file=sys.stderr, width=narrow, highlight=False)
    for table in tables(rows):
        console.print(table)
    if text := warning(rows):
        console.print(f"flowvm: {text}", style="yellow")
