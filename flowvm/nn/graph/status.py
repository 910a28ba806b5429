"""What is said while a graph is captured and compiled: one line on a terminal, or `graph.debug`.

The line is there only while something takes long enough to be waited for, only on a terminal, and
is gone afterwards, so nothing is ever printed behind it.  At a prompt it is one line that stays:
what is typed meanwhile would go with it.  `graph.debug(level)` says on stderr, line
by line, for people who want to know:

    1   each capture: operators, kernels compiled, seconds
    2   and each pass: operators before and after, milliseconds
    3   and the graph as a tree when it is compiled
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowvm.compiler.progress import on_terminal, telling
from flowvm.files.printable import printable

if TYPE_CHECKING:
    from flowvm.graph.logical.logical import LogicalGraph

PATIENCE = 0.25  # seconds before the line appears


class Status:
    """One capture of the graph `name` on its way, told of each stage."""

    def __init__(self, name: str, level: int) -> None:
        self.name, self.level = name, level
        self.began = time.monotonic()
        self.kernels = 0
        self._stage, self._shown = "", False
        self._stage_began = self.began

    @contextmanager
    def shown(self) -> Iterator[Status]:
        """The line may be on the terminal inside; kernels that are compiled count."""
        with telling(self._compiles):
            try:
                yield self
            finally:
                self._erase()

    def stage(self, text: str) -> None:
        """What is done from now on: "capturing", the name of a pass, "planning memory"."""
        self._stage = text
        self._show()

    def passed(self, name: str, before: LogicalGraph, after: LogicalGraph) -> None:
        """A pass is through."""
        now = time.monotonic()
        if self.level >= 2:
            self._say(
                f"  {name:16s} {len(before.nodes):5d} -> {len(after.nodes):5d} operators "
                f"{(now - self._stage_began) * 1e3:8.1f} ms"
            )
        self._stage_began = now
        self.stage("optimizing")

    def done(self, operators: int, tree: Callable[[], str]) -> None:
        """All is compiled; `tree` gives the graph in print."""
        if self.level >= 1:
            seconds = time.monotonic() - self.began
            self._say(
                f"graph {self.name}: captured and compiled, {operators} operators, "
                f"{self.kernels} kernels compiled, {seconds:.2f} s"
            )
        if self.level >= 3:
            self._say(tree())

    def _compiles(self, name: str) -> None:
        self.kernels += 1
        self._show()

    def _show(self) -> None:
        seconds = time.monotonic() - self.began
        if seconds < PATIENCE or not on_terminal():
            return
        kernels = f", compiling kernel {self.kernels}" if self.kernels else ""
        name = printable(self.name)
        text = f"graph {name}: {self._stage}{kernels}\N{HORIZONTAL ELLIPSIS} {seconds:.1f} s"
        if not hasattr(sys, "ps1"):
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
        elif not self._shown:
            print(f"flowvm: graph {name}: {self._stage}", file=sys.stderr, flush=True)
        self._shown = True

    def _erase(self) -> None:
        if self._shown and not hasattr(sys, "ps1"):
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._shown = False

    def _say(self, text: str) -> None:
        self._erase()
        print(printable(text, lines=True), file=sys.stderr)
