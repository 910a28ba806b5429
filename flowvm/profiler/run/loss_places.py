"""The place of a loss within its stretch: a `gil` wait says how much time was lost, not when, nor
how much of it was for want of a core; nor does a wait for a value whose thread woke late.

An issuing thread looks at its clocks every so many instructions; what it lost between two looks
was lost where it was seen not to run (`flowvm.profiler.run.samples`), and else where it issued
nothing.  So the loss goes there, the longest first, each time up to the end; and what is left into
the longest pauses between instructions of that stretch.  Its length stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.vm.watch.flight import HostWait
from flowvm.vm.watch.offcpu import LEAST


class Off(NamedTuple):
    """From `begun` to `ended` a thread was off its processor for so many `lost` nanoseconds."""

    begun: int
    ended: int
    lost: int


def woken(waits: list[HostWait], over: Array) -> list[HostWait]:
    """The waits for values, with what lies behind the value and was for want of a core cut off as
    `core`; `over` are the times at which values were there, in any order.
    """
    moments = np.sort(over[over > 0])
    rows = []
    for wait in waits:
        k = int(np.searchsorted(moments, wait.ended, side="right")) - 1
        arrival = int(moments[k]) if k >= 0 else wait.ended
        late = min(wait.core, wait.ended - arrival - 1)  # the path goes through the wait
        if wait.cause != "sync" or late < LEAST or arrival < wait.begun:
            rows.append(wait)
            continue
        cut = wait.ended - late
        rows.append(wait._replace(ended=cut, core=0))
        rows.append(wait._replace(cause="core", begun=cut, core=0))
    return rows


def placed(
    waits: list[HostWait], issued: Array, off: Mapping[int, Sequence[Off]] | None = None
) -> list[HostWait]:
    """The waits, with losses where threads did not run or issued nothing; `issued` are times, in
    any order, `off` is what was seen, by thread.
    """
    moments = np.sort(issued[issued > 0])
    places = []
    for wait in waits:
        off_times = (off or {}).get(wait.thread, ())
        parts = _placed(wait, moments, off_times) if wait.since else [wait]
        places += (
            parts if wait.cause != "gil" else [one for p in parts for one in _split_core(p, wait)]
        )
    return places


def _split_core(part: HostWait, whole: HostWait) -> list[HostWait]:
    """Split a part into `core`, first, and `gil`, in the ratio of the whole."""
    lasted = part.ended - part.begun
    cut = part.begun + round(lasted * min(1.0, whole.core / max(1, whole.ended - whole.begun)))
    both = part._replace(cause="core", ended=cut, core=0), part._replace(begun=cut, core=0)
    return [one for one in both if one.ended > one.begun]


def _placed(wait: HostWait, moments: Array, off: Sequence[Off]) -> list[HostWait]:
    """One loss, in as many parts as it takes; what is as long as its stretch stays as it is."""
    budget, parts = wait.ended - wait.begun, list[HostWait]()
    pieces = list[tuple[int, int]]()
    for one in sorted(off, key=lambda o: -o.lost):
        ended = min(one.ended, wait.ended)
        part = min(budget, one.lost, ended - max(one.begun, wait.since))
        if part > 0:
            parts.append(wait._replace(begun=ended - part, ended=ended, since=0))
            pieces.append((ended - part, ended))
            budget -= part
    first, last = np.searchsorted(moments, [wait.since, wait.ended], side="right")
    edges = [edge for pair in pieces for edge in pair]
    borders = np.unique(np.concatenate(([wait.since], moments[first:last], edges, [wait.ended])))
    pauses = np.diff(borders)
    free = np.ones(len(pauses), bool)
    for begun, ended in pieces:
        free &= (borders[:-1] >= ended) | (borders[1:] <= begun)
    for k in np.argsort(-pauses, kind="stable").tolist():
        part = min(budget, int(pauses[k])) if free[k] else 0
        if part > 0:
            ended = int(borders[k + 1])
            parts.append(wait._replace(begun=ended - part, ended=ended, since=0))
            budget -= part
    return parts
