"""Flame graphs for speedscope (https://www.speedscope.app): by time, by bytes, and each stream in
its order.

A stack is, from the outside: the modules that are around the instruction, the user's line (at level
3 all lines of the Python stack), the operator.  A graph's replay is shown by its tasks, each under
the launch's line.  What launches side by side is on a profile beside its stream's.

The format: https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources, file format 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from flowvm.profiler.export.intervals import beside
from flowvm.profiler.run.run import Run
from flowvm.version import VERSION
from flowvm.vm.machine.words import KIND

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(profile: Any, path: Path) -> None:
    """Write the flame graphs of a Profile."""
    path.write_text(json.dumps(flames(profile), separators=(",", ":")))


def flames(profile: Any) -> dict[str, Any]:
    """The file's contents."""
    return _Flames(profile).contents()


class _Flames:
    """Frames, each once, and rows: a stack, when it ran, where, how many bytes it was about."""

    def __init__(self, profile: Any) -> None:
        self.run: Run = profile.run
        self.frames: dict[tuple[str, str, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.python = {stack[0]: stack[1:] for stack in self.run.stacks}
        rows = [*self._instructions(profile.order.done), *self._tasks()]
        self.rows = np.array(rows, np.int64).reshape(-1, 5)  # stack, stream, begin, end, bytes

    def _instructions(self, done: Any) -> list[tuple[int, int, int, int, int]]:
        run = self.run
        replayed = np.isin(np.arange(len(run)), run.task_launch)  # its tasks are shown
        own = np.flatnonzero(done & ~replayed & ~np.isin(run.kind, (KIND.TOUCH, KIND.BARRIER)))
        begin, end = run.time("started"), run.time("ended")
        return [
            (self._stack(i, int(run.module[i]), (), int(run.op[i])), int(run.stream[i]),
             int(begin[i]), int(end[i]), int(run.nbytes[i]))
            for i in own.tolist()
        ]  # fmt: skip

    def _tasks(self) -> list[tuple[int, int, int, int, int]]:
        run = self.run
        return [
            (self._stack(launch, int(run.task_module[k]), (int(run.op[launch]),),
                         int(run.task_op[k]), int(run.task_line[k])),
             int(run.task_stream[k]), *run.task_times[k].tolist(), int(run.task_nbytes[k]))
            for k, launch in enumerate(run.task_launch.tolist())
        ]  # fmt: skip

    def _stack(self, i: int, module: int, around: tuple[int, ...], op: int, task: int = -1) -> int:
        """The number of an instruction's stack, or of a task's in it."""
        run = self.run
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

    def contents(self) -> dict[str, Any]:
        """The file, but for its text."""
        frames = [
            {"name": name, "file": file, "line": line} if file else {"name": name}
            for name, file, line in self.frames
        ]
        profiles = [
            self._weighted("by time", "nanoseconds", self.rows[:, 3] - self.rows[:, 2]),
            self._weighted("by bytes", "bytes", self.rows[:, 4]),
            *self._streams(),
        ]
        return {
            "$schema": SCHEMA, "exporter": f"flowvm {VERSION}", "name": "flowvm",
            "activeProfileIndex": 0, "shared": {"frames": frames}, "profiles": profiles,
        }  # fmt: skip

    def _weighted(self, name: str, unit: str, weights: Any) -> dict[str, Any]:
        """Every stack once, with the sum of its weights."""
        sums = np.zeros(len(self.stacks), np.int64)
        np.add.at(sums, self.rows[:, 0], weights)
        return {
            "type": "sampled", "name": name, "unit": unit, "startValue": 0,
            "endValue": int(sums.sum()), "samples": [list(stack) for stack in self.stacks],
            "weights": sums.tolist(),
        }  # fmt: skip

    def _streams(self) -> list[dict[str, Any]]:
        made, begun = [], self.run.begun
        stacks = list(self.stacks)
        for stream in np.unique(self.rows[:, 1]).tolist():
            own = self.rows[self.rows[:, 1] == stream]
            own = own[np.argsort(own[:, 2], kind="stable")]
            places = beside(own[:, 2], own[:, 3])
            for place in range(int(places.max(initial=0)) + 1):
                events: list[dict[str, Any]] = []
                for stack, _, begin, end, _ in own[places == place].tolist():
                    for kind, at, frames in (
                        ("O", begin, stacks[stack]), ("C", end, stacks[stack][::-1]),
                    ):  # fmt: skip
                        events += [{"type": kind, "frame": f, "at": at - begun} for f in frames]
                made.append({
                    "type": "evented", "unit": "nanoseconds", "startValue": 0,
                    "name": self.run.streams[stream] + (f" +{place}" if place else ""),
                    "endValue": max(self.run.wall, events[-1]["at"] if events else 0),
                    "events": events,
                })  # fmt: skip
        return made
