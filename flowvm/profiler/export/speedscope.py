"""Flame graphs for speedscope (https://www.speedscope.app): by time, by bytes, and each stream in
its order.

A stack is, from the outside: the modules that are around the instruction, the user's line (at level
3 all lines of the Python stack), the operator.  A graph's replay is shown by its tasks, each under
the launch's line.  What launches side by side is on a profile beside its stream's.

The format: https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources, file format 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flowvm.files.writer import put
from flowvm.meta.arrays import Array
from flowvm.profiler.export.intervals import beside
from flowvm.profiler.run.rows import distinct
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.version import VERSION
from flowvm.vm.machine.words import KIND

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(profile: ProfileLike, path: Path) -> None:
    """Write the flame graphs of a Profile."""
    put(path, json.dumps(flames(profile), separators=(",", ":")), "export")


def flames(profile: ProfileLike) -> dict[str, object]:
    """The file's contents."""
    return _Flames(profile).contents()


class _Flames:
    """Frames, each once, and rows: a stack, when it ran, where, how many bytes it was about."""

    def __init__(self, profile: ProfileLike) -> None:
        self.run: Run = profile.run
        self.frames: dict[tuple[str, str, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.python = {stack[0]: stack[1:] for stack in self.run.stacks}
        rows = (self._instructions(profile.order.finished), self._tasks())
        self.rows = np.concatenate(rows)  # stack, stream, begin, end, bytes

    def _instructions(self, finished: Array) -> Array:
        run = self.run
        replayed = np.isin(np.arange(len(run)), run.tasks.launch)  # its tasks are shown
        own = np.flatnonzero(finished & ~replayed & ~np.isin(run.kind, (KIND.TOUCH, KIND.BARRIER)))
        known = np.where(np.isin(own, list(self.python)), own, -1)  # a stack of its own
        stack = self._each(
            (run.module[own], run.line[own], run.op[own], known),
            lambda k: self._stack(own[k], run.module[own[k]], (), run.op[own[k]]),
        )
        begin, end = run.time("started")[own], run.time("ended")[own]
        return np.column_stack((stack, run.stream[own], begin, end, run.nbytes[own]))

    def _tasks(self) -> Array:
        run, launch = self.run, self.run.tasks.launch
        stack = self._each(
            (run.tasks.module, run.tasks.line, run.tasks.op, run.op[launch], run.line[launch],
             np.where(np.isin(launch, list(self.python)), launch, -1)),
            lambda k: self._stack(launch[k], run.tasks.module[k], (int(run.op[launch[k]]),),
                                  run.tasks.op[k], int(run.tasks.line[k])),
        )  # fmt: skip
        return np.column_stack((stack, run.tasks.stream, run.tasks.times, run.tasks.nbytes))

    @staticmethod
    def _each(columns: tuple[Array, ...], stack: Callable[[int], int]) -> Array:
        """The stack of each row, made once for all rows that are alike."""
        alike = np.column_stack(columns).astype(np.int64)
        first, which = distinct(alike)
        numbers = np.zeros(len(first), np.int64)
        for k in np.argsort(first).tolist():  # in the order that they are first met
            numbers[k] = stack(int(first[k]))
        of: Array = numbers[which]
        return of

    def _stack(self, i: int, module: int, around: tuple[int, ...], op: int, task: int = -1) -> int:
        """The number of an instruction's stack, or of a task's in it."""
        run, i = self.run, int(i)
        lines = self.python.get(i) or [int(run.line[i])]
        frames = [self._line(k) for k in reversed(lines) if k >= 0 and run.lines[k]]
        frames += [self._frame(run.names[name]) for name in around]
        parts = run.modules[module].split(".") if run.modules and run.modules[module] else []
        inside = [self._frame(".".join(parts[: n + 1])) for n in range(len(parts))]
        frames = [*frames, *inside] if around else [*inside, *frames]
        if task >= 0:
            frames.append(self._line(task))
        frames.append(self._frame(run.names[op]))
        return self.stacks.setdefault(tuple(frames), len(self.stacks))

    def _line(self, line: int) -> int:
        text = self.run.lines[line]
        file, _, number = text.rpartition(":")
        return self._frame(text, file, int(number)) if number.isdigit() else self._frame(text)

    def _frame(self, name: str, file: str = "", line: int = 0) -> int:
        return self.frames.setdefault((name, file, line), len(self.frames))

    # --- profiles ---------------------------------------------------------------------------------

    def contents(self) -> dict[str, object]:
        """The file, but for its text."""
        frames = [
            {"name": name, "file": file, "line": line} if file else {"name": name}
            for name, file, line in self.frames
        ]
        time, nbytes = self._sum(self.rows[:, 3] - self.rows[:, 2]), self._sum(self.rows[:, 4])
        profiles = [
            self._weighted("by time", "nanoseconds", time),
            self._weighted("by bytes", "bytes", nbytes),
            *self._streams(),
        ]
        return {
            "$schema": SCHEMA, "exporter": f"flowvm {VERSION}", "name": "flowvm",
            "activeProfileIndex": 0, "shared": {"frames": frames}, "profiles": profiles,
        }  # fmt: skip

    def _sum(self, weights: Array) -> Array:
        sums = np.zeros(len(self.stacks), np.int64)
        np.add.at(sums, self.rows[:, 0], weights)
        return sums

    def _weighted(self, name: str, unit: str, sums: Array) -> dict[str, object]:
        """Every stack once, with the sum of its weights."""
        return {
            "type": "sampled", "name": name, "unit": unit, "startValue": 0,
            "endValue": int(sums.sum()), "samples": [list(stack) for stack in self.stacks],
            "weights": sums.tolist(),
        }  # fmt: skip

    def _streams(self) -> list[dict[str, object]]:
        profiles, begun = [], self.run.begun
        stacks = list(self.stacks)
        for stream in np.unique(self.rows[:, 1]).tolist():
            own = self.rows[self.rows[:, 1] == stream]
            own = own[np.argsort(own[:, 2], kind="stable")]
            places = beside(own[:, 2], own[:, 3])
            for place in range(int(places.max(initial=0)) + 1):
                events = []
                for stack, _, begin, end, _ in own[places == place].tolist():
                    for kind, at, frames in (
                        ("O", begin, stacks[stack]), ("C", end, stacks[stack][::-1]),
                    ):  # fmt: skip
                        events += [{"type": kind, "frame": f, "at": at - begun} for f in frames]
                profiles.append({
                    "type": "evented", "unit": "nanoseconds", "startValue": 0,
                    "name": self.run.streams[stream] + (f" +{place}" if place else ""),
                    "endValue": max(self.run.wall, events[-1]["at"] if events else 0),
                    "events": events,
                })  # fmt: skip
        return profiles
