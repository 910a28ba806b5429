"""Why a graph was captured again: what a call has that no earlier one had, in the user's words.

A call is described by its *facts*, name -> text: each argument, grad mode, settings of optimizers
and of the graph.  Two calls of one Plan have the same facts; where facts are the same and the Plan
still does not hold, a module, a decision by a live number or something that the code reads changed.
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
from flowvm.eager.live import Live
from flowvm.eager.modes import find_user
from flowvm.eager.tensor import Tensor
from flowvm.errors import CaptureWarning, RecaptureWarning
from flowvm.graph.capture.conditions import NO_ANSWER, is_met
from flowvm.graph.capture.trees import unflatten
from flowvm.nn.graph.steps import fixed_options
from flowvm.vm.callers.lines import shown, warn

if TYPE_CHECKING:
    from flowvm.nn.graph.config import GraphConfig
    from flowvm.optim import Optimizer

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
        self, facts: dict[str, str], same: Sequence[Any], paths: Mapping[int, str]
    ) -> str | None:
        """Why a call with these facts needs a capture, None for the first; `same`: what there is
        for such calls, and does not hold.
        """
        if not self.happened:
            return None
        if same:
            return _summed(_unmet(same[0], paths)) or "something that build reads"
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
            said = f"graph {name} was captured again (plan {plans}, {_ms(took)}): {why}"
            warn(said, RecaptureWarning, place)

    def drop(self, name: str, most: int) -> None:
        """Note that the Plan that was not used for longest went."""
        self.dropped += 1
        text = (
            f"graph {name} had more than {most} kinds of calls: the plan not used for longest was "
            f"dropped, and its calls will be captured again.  Give it fewer shapes and numbers"
        )
        warn(text, RecaptureWarning, _line_of(*find_user(sys._getframe(1))))

    def lines(self) -> list[str]:
        """What `explain` says."""
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
    there: Sequence[bool],
) -> dict[str, str]:
    """What is said of a call: its arguments and whatever else a Plan is looked up by."""
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
    if there:
        facts[".grad of the leaves, before the call,"] = (
            "None" if not any(there) else "there" if all(there) else f"{list(there)}"
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
        kind = structure[1].__name__ if kind == "sequence" else kind
        items = structure[2:] if structure[0] == "sequence" else structure[1:]
        facts[name] = f"a {kind} of {len(items)}"
        for k, one in enumerate(items):
            key, value = one if kind == "dict" else (k, one)
            _add_facts(facts, f"{name}[{key!r}]", value, rest)


def _option_facts(optimizers: Sequence[tuple[Optimizer, Any]]) -> Iterator[tuple[str, str]]:
    for number, (optimizer, _) in enumerate(optimizers):
        for place, group in enumerate(optimizer.param_groups):
            of = f" of group {place}" if len(optimizer.param_groups) > 1 else ""
            of += f" of optimizer {number}" if len(optimizers) > 1 else ""
            for name, value in fixed_options(optimizer, group).items():
                if name not in ("params", "initial_lr"):
                    yield f"option {name}{of}", repr(value)
            yield f"parameters{of or ' of the optimizer'}", f"{len(group['params'])}"


def _fact_differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What distinguishes two calls; empty if nothing that facts know of does."""
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


def _unmet(compiled: Any, paths: Mapping[int, str]) -> list[str]:
    """Which of a Plan's conditions do not hold: modules by path, decisions, what the code reads."""
    reasons: list[str] = []
    for asked, outcome in getattr(compiled, "guards", ()):
        if is_met((asked, outcome)):
            continue
        if isinstance(asked, Live):
            line = _short(_line_of(*asked.guards.places.get(id(asked), (None, 0))))
            reasons.append(
                f"decision `{asked!r}` {outcome} -> {_answer(asked)}" + f" ({line})" * bool(line)
            )
        else:
            reasons += asked.__self__.difference()
    for watched in getattr(compiled, "watched", ()):
        reasons += watched.difference()
    return reasons


def _answer(asked: Live) -> str:
    """What an expression gives now, or why it gives nothing."""
    try:
        return str(asked())
    except NO_ANSWER as error:
        return f"{type(error).__name__}: {error}"


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
    """What `explain` says of something that cannot be watched."""
    return f"not watched: {text}" + f"  {_short(place)}" * bool(place[0])


def say_unwatched(name: str, text: str, place: tuple[str, int]) -> None:
    """A CaptureWarning on the line that has something no call can ask for."""
    where = f"line {place[1]} calls " if place[0] else ""
    said = f"graph {name} cannot watch everything that build reads: {where}{text}"
    if not place[0]:
        place = _line_of(*find_user(sys._getframe(1)))
    warn(said, CaptureWarning, place)


def say_difference(text: str) -> None:
    """A CaptureWarning on the line that called the graph."""
    warn(text, CaptureWarning, _line_of(*find_user(sys._getframe(1))))
