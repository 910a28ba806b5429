"""Flame graphs: Python's stacks above, what they were doing or issued below; by time or by bytes.

By time a stack ends in what an issuing thread was doing ("your Python", "asleep", "dispatch", from
level 2 on), or in an operator that ran in a stream: the two go on beside each other, so all of it
is more than the wall time.  By bytes it ends in operators, with the memory that they took.

Which stack an instruction was issued in is known at level 3; else its line is, and the stack is the
one in which that line was seen most often, or the line alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.files.printable import printable
from flowvm.files.writer import put
from flowvm.meta.arrays import Array
from flowvm.profiler.grammar import Screen, Span, View, bar, cropped, ms, percent, size
from flowvm.profiler.run.columns import SAMPLED
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.profiler.views.summary.verdict import WORDS
from flowvm.version import VERSION
from flowvm.vm.machine.words import KIND, OPERAND

BY = ("time", "bytes")
MOST = 40  # rows of the screen
LEAST_WIDTH = 60  # with bars
LEAST = 0.01  # of all: what has less has no row
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
Stack = tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Flame(View):
    """`stacks`: frames from the outermost on, and nanoseconds or bytes; see the module."""

    by: str
    stacks: tuple[tuple[Stack, int], ...]

    @property
    def total(self) -> int:
        """The sum over all stacks."""
        return sum(weight for _, weight in self.stacks)

    def folded(self) -> str:
        """The stacks as `flamegraph.pl` and its like read them: `main (a.py:3);add 1200` a line."""
        return "".join(f"{printable(';'.join(stack))} {weight}\n" for stack, weight in self.stacks)

    def speedscope(self) -> dict[str, Any]:
        """The contents of a file for https://www.speedscope.app."""
        frames: dict[str, int] = {}
        samples = [
            [frames.setdefault(name, len(frames)) for name in stack] for stack, _ in self.stacks
        ]
        profile = {
            "type": "sampled", "name": f"by {self.by}", "startValue": 0, "endValue": self.total,
            "unit": "nanoseconds" if self.by == "time" else "bytes", "samples": samples,
            "weights": [weight for _, weight in self.stacks],
        }  # fmt: skip
        return {
            "$schema": SCHEMA, "exporter": f"flowvm {VERSION}", "name": "flowvm",
            "shared": {"frames": [{"name": name} for name in frames]}, "profiles": [profile],
        }  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write it: a name that ends in .json for speedscope, any other as folded stacks."""
        path = Path(path)
        text = json.dumps(self.speedscope()) if path.suffix == ".json" else self.folded()
        put(path, text, "save")
        return path

    def screen(self, width: int) -> Screen:
        """See View: the stacks as a tree, what has most first."""
        screen = Screen()
        shown = ms(self.total) + " ms" if self.by == "time" else size(self.total)
        screen.add((f" flame graph by {self.by}", "verdict"), (f"  {shown} in all", "head"))
        rows = list(_tree(self.stacks, self.total))
        for depth, name, weight in rows[:MOST]:
            amount = f"{ms(weight)} ms" if self.by == "time" else size(weight)
            share = weight / max(1, self.total)
            spans: list[Span] = [(f" {amount:>12} ", "")]
            if width >= LEAST_WIDTH:
                spans += [(f"{percent(share):>5} ", ""), (f"{bar(share, 5):5} ", "run")]
            room = width - sum(len(text) for text, _ in spans)
            screen.add(*spans, _fitted("  " * depth, name, room))
        if len(rows) > MOST:
            screen.add((f"   and {len(rows) - MOST} more: .folded(), .save(PATH)", "head"))
        return screen.cut(width)


def _fitted(indent: str, name: str, room: int) -> str:
    """A frame's name in so much room; its (file:line) is what stays."""
    text = indent + name
    if len(text) <= room or not name.endswith(")"):
        return cropped(text, room)
    name, _, where = name.rpartition(" (")
    room_left = room - len(where) - 2
    indent = indent[: max(0, room_left - 8)]
    return (
        f"{cropped(indent + name, room_left)} ({where}" if room_left > 1 else cropped(where, room)
    )


def _tree(
    stacks: tuple[tuple[tuple[str, ...], int], ...] | list[tuple[tuple[str, ...], int]],
    total: int,
    depth: int = 0,
) -> Any:
    """(depth, name, weight) of what has LEAST of all, down the tree."""
    below: dict[str, list[tuple[Stack, int]]] = {}
    for stack, weight in stacks:
        if stack:
            below.setdefault(stack[0], []).append((stack[1:], weight))
    sums = {name: sum(w for _, w in inner) for name, inner in below.items()}
    for name in sorted(sums, key=lambda n: (-sums[n], n)):
        if sums[name] >= LEAST * total:
            yield depth, name, sums[name]
            yield from _tree(below[name], total, depth + 1)


def flame(profile: ProfileLike, by: str = "time") -> Flame:
    """The flame graph of a Profile; ArgumentError: `by` is none of BY."""
    if by not in BY:
        raise ArgumentError(f"by={by!r}: a flame graph is by one of {', '.join(BY)}")
    run: Run = profile.run
    above = _Stacks(run)
    total: dict[Stack, int] = {}
    if by == "time":
        lasted = (run.samples.times[:, 1] - run.samples.times[:, 0]).tolist()
        for stack, state, time in zip(
            run.samples.stack.tolist(), run.samples.state.tolist(), lasted, strict=True
        ):
            whole = (*above.of_sample(stack), WORDS[SAMPLED[state]][0])
            total[whole] = total.get(whole, 0) + time
    weights = _ran(run) if by == "time" else _took(run)
    finished = profile.order.finished & (weights > 0) & (run.kind != KIND.RELEASE)
    finished &= ~np.isin(run.kind, (KIND.TOUCH, KIND.BARRIER))
    for i in np.flatnonzero(finished).tolist():
        whole = (*above.of_instruction(i), run.names[run.op[i]])
        total[whole] = total.get(whole, 0) + int(weights[i])
    return Flame(by, tuple(sorted(total.items(), key=lambda item: (-item[1], item[0]))))


def _ran(run: Run) -> Array:
    ran: Array = np.maximum(0, run.time("ended") - run.time("started"))
    return ran


def _took(run: Run) -> Array:
    """Bytes of the memory that each instruction took."""
    took = np.zeros(len(run), np.int64)
    allocates = (run.access & OPERAND.ALLOCATE) != 0
    np.add.at(took, run.owner[allocates], run.size[allocates])
    return took


class _Stacks:
    """Python's stacks, the outermost frame first."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.known: dict[int, Stack] = {}
        self.lines_of = {stack[0]: stack[1:] for stack in run.stacks}
        counts = np.bincount(run.samples.stack, minlength=len(run.sample_stacks)).tolist()
        # by line: the stack that it is the innermost of
        self.stack_of_line: dict[int, Stack] = {}
        for number in sorted(range(len(counts)), key=lambda n: -counts[n]):
            lines = run.sample_stacks[number][::2]
            frames = self.of_sample(number)
            for k, line in enumerate(reversed(lines)):
                self.stack_of_line.setdefault(line, frames[: k + 1])

    def of_sample(self, number: int) -> Stack:
        """Return the frames of one of `sample_stacks`, the outermost first."""
        if number not in self.known:
            pairs = self.run.sample_stacks[number]
            frames = [self._frame(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
            self.known[number] = tuple(reversed(frames))
        return self.known[number]

    def of_instruction(self, i: int) -> Stack:
        """Return the frames in which an instruction was issued, the outermost first."""
        run = self.run
        if i in self.lines_of:
            return tuple(run.lines[line] for line in reversed(self.lines_of[i]) if line >= 0)
        line = int(run.line[i])
        if line < 0 or not run.lines[line]:
            return ("(flowvm)",)
        spot = int(run.spot[i]) if len(run.spot) else -1
        return self.stack_of_line.get(line) or (self._frame(line, spot),)

    def _frame(self, line: int, spot: int) -> str:
        function = self.run.spots[spot][3] if 0 <= spot < len(self.run.spots) else ""
        name = self.run.lines[line].replace(";", ",")
        return f"{function} ({name})" if function else name
