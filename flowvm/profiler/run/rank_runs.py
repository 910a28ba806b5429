"""Runs of several ranks as one: on one clock, with names and numbers that no two of them share.

Rank 2's stream `cpu` is `rank 2 cpu`, and its memory too; its instruction 311 is 2000311, by a
power of ten above all numbers.  Operators, lines and modules are the same on all ranks.
Instructions of one rank stand together, in the order of ranks, so program order stays what it is
within each, and what is found of a rank's run holds behind its first instruction, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.run.columns import COLUMNS
from flowvm.profiler.run.run import Run
from flowvm.vm.watch.spaces import HOST

# columns that point into a list which all ranks share, by that list
_SHARED = {
    "names": ("op", "task_op"),
    "lines": ("line", "forward", "task_line", "task_forward", "sample_line"),
    "spots": ("spot", "forward_spot", "sample_spot"),
    "modules": ("module", "task_module"),
}
_STREAMS = ("stream", "task_stream", "share_stream")
_TENSORS = ("tensor", "use_tensor")
_TIMES = ("times", "opened", "task_times", "share_times", "use_times", "wait_times", "sample_times")
_ROWS = ("source", "target", "task_launch", "share_of", "use_of")
Table = dict[Any, int]


def title(rank: int) -> str:
    """Return the name of a rank."""
    return f"rank {rank}"


def placed(runs: Sequence[Run], shifts: Sequence[int]) -> list[Run]:
    """Each rank's run so that it can stand beside the others; `shifts` are the nanoseconds that are
    added to each one's times.  Indices of instructions and operands are a run's own still.
    """
    tables: dict[str, Table] = {name: {} for name in _SHARED}
    base = 10 ** len(str(max((int(run.seq.max(initial=0)) for run in runs), default=0)))
    streams = tensors = 0
    spans = []
    for rank, (run, shift) in enumerate(zip(runs, shifts, strict=True)):
        one = _Placing(run, rank, shift, tables)
        spans.append(one.placed_run(rank * base, streams, tensors))
        streams += len(run.streams)
        tensors += max(int(getattr(run, name).max(initial=-1)) for name in _TENSORS) + 1
    names = [name for run in spans for name in run.streams]
    spaces = [space for run in spans for space in run.info["spaces"]]
    sources = {k: v for run in spans for k, v in run.info.get("sources", {}).items()}
    for run in spans:
        run.streams = names
        run.info |= {"spaces": spaces, "sources": sources}
        for name, table in tables.items():
            rows = [list(row) for row in table] if name == "spots" else list(table)
            setattr(run, name, rows)
    return spans


class _Placing:
    """A run among others."""

    def __init__(self, run: Run, rank: int, shift: int, tables: dict[str, Table]) -> None:
        self.run, self.rank, self.shift = run, rank, shift
        plans = run.info.get("plans", {})
        self.names = [self.own(name) if name in plans else name for name in run.names]
        rows: dict[str, list[Any]] = {
            "names": self.names, "lines": run.lines, "modules": run.modules,
            "spots": [tuple(spot) for spot in run.spots],
        }  # fmt: skip
        # where each row stands in the table of all; what is below 0 says that there is none
        self.places = {
            name: np.array([table.setdefault(row, len(table)) for row in rows[name]], np.int64)
            for name, table in tables.items()
        }

    def own(self, name: str) -> str:
        """The name of something that each rank has one of."""
        return f"{title(self.rank)} {name}"

    def later(self, times: Array) -> Array:
        """Times on the clock of all; 0 is what has not happened."""
        return np.where(times > 0, times + self.shift, times)

    def at(self, table: str, places: Array) -> Array:
        """Places in a table of the run in that of all ranks."""
        known = self.places[table]
        inside = (places >= 0) & (places < len(known))
        return np.where(inside, known[np.where(inside, places, 0)] if len(known) else -1, places)

    def placed_run(self, numbers: int, streams: int, tensors: int) -> Run:
        """The run with numbers of instructions, streams and tensors behind those of others."""
        run = self.run
        columns = {name: getattr(run, name) for name in COLUMNS}
        if not len(run.spot):  # a run may know its lines and not the expressions in them
            columns["spot"] = np.full(len(run), -1)
        for table, some in _SHARED.items():
            columns |= {name: self.at(table, columns[name]) for name in some}
        columns |= {name: columns[name] + streams for name in _STREAMS}
        columns |= {name: columns[name] + tensors for name in _TENSORS}
        columns |= {name: self.later(columns[name]) for name in _TIMES}
        columns["seq"] = run.seq + numbers
        line = self.places["lines"].tolist()
        return Run(
            run.begun + self.shift,
            run.ended + self.shift,
            streams=[self.own(name) for name in run.streams],
            info=self.info(streams, tensors),
            stacks=[[s[0], *(line[k] if k >= 0 else k for k in s[1:])] for s in run.stacks],
            sample_stacks=[self.stack(stack) for stack in run.sample_stacks],
            marks=[[m[0], m[1] + self.shift, m[2] + self.shift, *m[3:]] for m in run.marks],
            **{name: values.astype(COLUMNS[name][0]) for name, values in columns.items()},
        )

    def stack(self, stack: list[int]) -> list[int]:
        """A stack of lines and expressions, one behind the other."""
        pairs = np.array(stack, np.int64).reshape(-1, 2)
        both = self.at("lines", pairs[:, 0]), self.at("spots", pairs[:, 1])
        flat: list[int] = np.column_stack(both).ravel().tolist()
        return flat

    def info(self, streams: int, tensors: int) -> dict[str, object]:
        """Return the other facts of the rank's run."""
        info = self.run.info
        spaces = info.get("spaces") or [HOST] * len(self.run.streams)
        line = self.places["lines"].tolist()
        plans = {
            self.own(name): {
                **plan,
                "actors": [[actor[0] + streams, *actor[1:]] for actor in plan["actors"]],
                "tasks": [
                    [*t[:3], t[3] + streams, line[t[4]] if t[4] >= 0 else t[4]]
                    for t in plan["tasks"]
                ],
            }
            for name, plan in info.get("plans", {}).items()
        }
        held = [
            [t + tensors if t >= 0 else t, nbytes, kind, keeper, self.own(*of or (HOST,))]
            for t, nbytes, kind, keeper, *of in info.get("held", ())
        ]
        return {
            **info,
            "spaces": [self.own(space) for space in spaces],
            "live": {self.own(space): n for space, n in info.get("live", {}).items()},
            "clocks": {self.own(name): note for name, note in info.get("clocks", {}).items()},
            "plans": plans,
            "passes": {self.own(name): facts for name, facts in info.get("passes", {}).items()},
            **{
                key: {self.own(name): facts for name, facts in info.get(key, {}).items()}
                for key in ("backward", "flows", "stages")
            },
            "held": held,
            "purposes": [[t + tensors, *rest] for t, *rest in info.get("purposes", ())],
        }


def joined(runs: Sequence[Run]) -> Run:
    """One run of what `placed` gave, from when the first began to when the last ended."""
    first = np.cumsum([0, *(len(run) for run in runs)]).tolist()
    operands = np.cumsum([0, *(len(run.tensor) for run in runs)]).tolist()
    stacks = np.cumsum([0, *(len(run.sample_stacks) for run in runs)]).tolist()
    parts: dict[str, list[Array]] = {name: [] for name in COLUMNS}
    for k, run in enumerate(runs):
        added = dict.fromkeys(_ROWS, first[k]) | {"sample_stack": stacks[k], "offsets": operands[k]}
        for name in COLUMNS:
            own = getattr(run, name)
            if name == "offsets" and k:
                own = own[1:]
            if name == "operand":
                own = np.where(own >= 0, own + operands[k], own)
            parts[name].append(own + added.get(name, 0) if name in added else own)
    columns = {n: np.concatenate(p).astype(COLUMNS[n][0]) for n, p in parts.items()}
    one = runs[0]
    info = dict(one.info)
    info["level"] = min(run.info.get("level", 0) for run in runs)
    info["overwritten"] = sum(run.info.get("overwritten", 0) for run in runs)
    for name in ("live", "clocks", "plans", "passes", "backward", "flows", "stages"):
        info[name] = {k: v for run in runs for k, v in run.info.get(name, {}).items()}
    for name in ("held", "purposes"):
        info[name] = [row for run in runs for row in run.info.get(name, ())]
    for name in ("load", "ran"):  # of one process: each rank's own profile has it
        info.pop(name, None)
    return Run(
        min(run.begun for run in runs),
        max(run.ended for run in runs),
        names=one.names, lines=one.lines, streams=one.streams, modules=one.modules,
        spots=one.spots, info=info,
        stacks=[[s[0] + first[k], *s[1:]] for k, run in enumerate(runs) for s in run.stacks],
        sample_stacks=[stack for run in runs for stack in run.sample_stacks],
        marks=[
            [*m[:4], m[4] + first[k], m[5] + first[k]] for k, run in enumerate(runs)
            for m in run.marks
        ],
        **columns,
    )  # fmt: skip
