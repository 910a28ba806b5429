"""Reasons of captures: the facts of a call that no earlier call had, in the user's words.

A call is described by its *facts*, name -> text: each argument, grad mode, settings of optimizers
and of the graph.  Two calls of one Plan have the same facts; where facts are the same and the Plan
still does not hold, a module, a decision by a live number or something that the code reads changed.

`Status` says what happens while a graph is captured and compiled: one line on a terminal, or
`graph.debug`.  The line is there only while something takes long enough to be waited for, only on a
terminal, and is gone afterwards, so nothing is ever printed behind it.  At a prompt it is one line
that stays: what is typed meanwhile would go with it.  `graph.debug(level)` says on stderr, line by
line, for people who want to know:

    1   each capture: operators, kernels compiled, seconds
    2   and each pass: operators before and after, milliseconds
    3   and the graph as a tree when it is compiled
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from flowvm.eager.autocast import autocast_dtype
from flowvm.eager.live import Decision
from flowvm.eager.modes import find_user
from flowvm.eager.tensor import Tensor
from flowvm.errors import CaptureWarning, RecaptureWarning
from flowvm.graph.capture.trees import unflatten
from flowvm.nn.graph.steps import fixed_options
from flowvm.vm.callers.lines import shown, warn

if TYPE_CHECKING:
    from flowvm.nn.graph.config import GraphConfig
    from flowvm.optim import Optimizer
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowvm.compiler.progress import on_terminal, telling
from flowvm.files.printable import printable

if TYPE_CHECKING:
    from flowvm.graph.logical.logical import LogicalGraph


# --- why a call was captured ------------------------------------------------------------------


KEPT = 64  # captures remembered
SHOWN = 4  # differences named one by one; of more it is said how many
again: list[str] = []  # names of this process's graphs, each as often as it was captured again


@dataclass
class Happened:
    """One capture: the facts of its call, what made it necessary, the user's line, and how many
    seconds it took with all that is made of it.
    """

    facts: dict[str, str]
    why: str
    where: str
    took: float


class History:
    """The captures of one graph, the newest last."""

    def __init__(self) -> None:
        self.happened: deque[Happened] = deque(maxlen=KEPT)
        self.dropped = 0

    def reason(
        self, facts: dict[str, str], same: Sequence[object], paths: Mapping[int, str]
    ) -> str | None:
        """Explain why a call with these facts needs a capture, None for the first; `same`: the
        compiled calls with these facts, whose conditions do not hold.
        """
        if not self.happened:
            return None
        if same:
            return _summed(_unmet(same[0], paths)) or "a value that build reads changed"
        differences = [_fact_differences(old.facts, facts) for old in reversed(self.happened)]
        return _summed(min(differences, key=len)) or "a call like one whose plan was dropped"

    def add(
        self, name: str, facts: dict[str, str], why: str | None, plans: int, took: float
    ) -> None:
        """Note a capture that took so many seconds, and say that it is not the first."""
        code, last = find_user(sys._getframe(1))
        place = _line_of(code, last)
        self.happened.append(Happened(facts, why or "", _short(place), took))
        if why:
            again.append(name)
            message = f"graph {name} was captured again (plan {plans}, {_ms(took)}): {why}"
            warn(message, RecaptureWarning, place)

    def drop(self, name: str, most: int) -> None:
        """Note that the Plan that was not used for longest went."""
        self.dropped += 1
        text = (
            f"graph {name} had more than {most} kinds of calls: the plan not used for longest was "
            f"dropped, and its calls will be captured again.  Give it fewer shapes and numbers"
        )
        warn(text, RecaptureWarning, _line_of(*find_user(sys._getframe(1))))

    def lines(self) -> list[str]:
        """Return the lines of `explain` about captures."""
        lines = [
            f"captured again: {one.why}  {_ms(one.took)}" + f"  {one.where}" * bool(one.where)
            for one in self.happened
            if one.why
        ]
        if self.dropped:
            lines.append(f"dropped for want of use: {self.dropped}")
        return lines


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def call_facts(
    structure: Any,
    tensors: Sequence[Tensor],
    mode: bool,
    config: GraphConfig,
    optimizers: Sequence[tuple[Optimizer, Any]],
    presence: Sequence[bool],
) -> dict[str, str]:
    """Return the facts of a call by name: its arguments, and all else that a Plan is looked up
    by.
    """
    facts: dict[str, str] = {}
    rest = iter(tensors)
    positional, named = structure[1], structure[2]
    for k, one in enumerate(positional[1:]):
        _add_facts(facts, f"argument {k}", one, rest)
    for name, one in named[1:]:
        _add_facts(facts, f"argument {name!r}", one, rest)
    facts["grad mode"] = "on" if mode else "off"
    facts["autocast"] = repr(autocast_dtype() or "off")
    facts["graph.config"] = "; ".join(config.settings()) or "as it comes"
    for name, value in _option_facts(optimizers):
        facts[name] = value
    if presence:
        facts[".grad of the leaves, before the call,"] = (
            "None" if not any(presence) else "there" if all(presence) else f"{list(presence)}"
        )
    return facts


def _add_facts(facts: dict[str, str], name: str, structure: Any, rest: Iterator[Tensor]) -> None:
    kind = structure[0]
    if kind == "tensor":
        tensor = next(rest)
        facts[name] = repr(tensor._meta)
        if tensor._node is not None:
            facts[name] += " that requires grad" + ("" if tensor.is_leaf else " and is no leaf")
    elif kind == "constant":
        facts[name] = repr(unflatten(structure, iter(())))
    else:
        begin = {"sequence": 2, "composed": 3}.get(kind, 1)
        kind, items = structure[1].__name__ if begin > 1 else kind, structure[begin:]
        facts[name] = f"a {kind} of {len(items)}"
        for k, one in enumerate(items):
            key, value = one if kind == "dict" else (k, one)
            _add_facts(facts, f"{name}[{key!r}]", value, rest)


def _option_facts(optimizers: Sequence[tuple[Optimizer, object]]) -> Iterator[tuple[str, str]]:
    for number, (optimizer, _) in enumerate(optimizers):
        for place, group in enumerate(optimizer.param_groups):
            of = f" of group {place}" if len(optimizer.param_groups) > 1 else ""
            of += f" of optimizer {number}" if len(optimizers) > 1 else ""
            for name, value in fixed_options(optimizer, group).items():
                if name not in ("params", "initial_lr"):
                    yield f"option {name}{of}", repr(value)
            yield f"parameters{of or ' of the optimizer'}", f"{len(group['params'])}"


def _fact_differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """List the facts that distinguish two calls; empty if all known facts are equal."""
    lines = []
    for name in dict.fromkeys((*new, *old)):
        before, now = old.get(name), new.get(name)
        if before == now:
            continue
        if before is None:
            lines.append(f"{name} is new: {now}")
        elif now is None:
            lines.append(f"{name} is gone (was {before})")
        elif name.startswith("option"):
            lines.append(f"{name} {before} -> {now}")
        else:
            lines.append(f"{name} was {before}, is {now}")
    return lines


def _unmet(compiled: object, paths: Mapping[int, str]) -> list[str]:
    """List the conditions of a Plan that do not hold: of modules by path, of decisions, of
    reads.
    """
    reasons: list[str] = []
    for guard in getattr(compiled, "guards", ()):
        if guard.holds():
            continue
        line = ""
        if isinstance(guard, Decision):
            question = guard.question
            line = _short(_line_of(*question.guards.places.get(id(question), (None, 0))))
        reasons.append(guard.difference() + f" ({line})" * bool(line))
    for watched in getattr(compiled, "watched", ()):
        reasons += watched.difference()
    return reasons


def _summed(differences: Sequence[str]) -> str:
    """Differences as one text, not too long."""
    differences = [*dict.fromkeys(differences)]
    text = "; ".join(differences[:SHOWN])
    more = len(differences) - SHOWN
    return f"{text}; and {more} more" if more > 0 else text


def _line_of(code: CodeType | None, last: int) -> tuple[str, int]:
    """File and line number of a user's call."""
    if code is None:
        return "", 0
    positions = list(code.co_positions())
    number = positions[last // 2][0] if last // 2 < len(positions) else None
    return code.co_filename, number or code.co_firstlineno


def _short(place: tuple[str, int]) -> str:
    """train.py:31"""
    return f"{os.path.basename(shown(place[0]))}:{place[1]}" if place[0] else ""


def say(text: str) -> None:
    """A RecaptureWarning on the line that called the graph."""
    warn(text, RecaptureWarning, _line_of(*find_user(sys._getframe(1))))


def unwatched_line(text: str, place: tuple[str, int]) -> str:
    """Return the line of `explain` for a value that cannot be watched."""
    return f"not watched: {text}" + f"  {_short(place)}" * bool(place[0])


def say_unwatched(name: str, text: str, place: tuple[str, int]) -> None:
    """A CaptureWarning on the line that has something no call can ask for."""
    where = f"line {place[1]} calls " if place[0] else ""
    message = f"graph {name} cannot watch everything that build reads: {where}{text}"
    if not place[0]:
        place = _line_of(*find_user(sys._getframe(1)))
    warn(message, CaptureWarning, place)


def say_difference(text: str) -> None:
    """A CaptureWarning on the line that called the graph."""
    warn(text, CaptureWarning, _line_of(*find_user(sys._getframe(1))))


# --- what is said meanwhile -------------------------------------------------------------------


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
        """Set the stage that is shown: "capturing", the name of a pass, "planning memory"."""
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

    def finish(self, operators: int, tree: Callable[[], str]) -> None:
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
