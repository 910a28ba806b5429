"""Arrows of a trace: edges that do not follow from others, and messages between actors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.run.run import Run


def messages(run: Run, name: str, plan: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield each message between actors of a Plan's launches: the row of tasks that sent it and
    its end, the row of tasks that received it and its start.
    """
    if name not in run.names:
        return
    mine = np.flatnonzero(run.op[run.tasks.launch] == run.names.index(name))
    counts = [actor[2] for actor in plan["actors"]]
    of_task = np.repeat(np.arange(len(counts)), counts)
    firsts: dict[tuple[int, int], int] = {}
    lasts: dict[tuple[int, int], int] = {}
    begun, over = run.tasks.times.T.tolist()
    for k in mine.tolist() if len(counts) else ():
        key = int(run.tasks.launch[k]), int(of_task[run.tasks.number[k]])
        if key not in firsts or begun[k] < begun[firsts[key]]:
            firsts[key] = k
        if key not in lasts or over[k] > over[lasts[key]]:
            lasts[key] = k
    for launch, target in sorted(firsts):
        for source in plan["actors"][target][3]:
            a, b = lasts.get((launch, source)), firsts[launch, target]
            if a is not None and over[a] <= begun[b]:
                yield (a, over[a]), (b, begun[b])


def reduced(run: Run) -> Array:
    """Edges that do not follow from two others: the rest is implied for the eye."""
    before: dict[int, set[int]] = {}
    for a, b in zip(run.source.tolist(), run.target.tolist(), strict=True):
        before.setdefault(b, set()).add(a)
    shown = [
        e
        for e, (a, b) in enumerate(zip(run.source.tolist(), run.target.tolist(), strict=True))
        if not any(a in before.get(c, ()) for c in before[b] if c != a)
    ]
    return np.array(shown, np.int64)
