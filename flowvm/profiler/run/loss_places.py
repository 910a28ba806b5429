"""The place of a loss within its stretch: a `gil` wait says how much time was lost, not when, nor
how much of it was for want of a core.

An issuing thread looks at its clocks every so many instructions; what it lost between two looks
was lost where it was seen not to run (`flowvm.profiler.run.samples`), and else where it issued
nothing.  So the loss goes there, the longest first, each time up to the end; and what is left into
the longest pauses between instructions of that stretch.  Its length stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flowvm.profiler.run.run import Array
from flowvm.vm.watch.flight import HostWait


class Off(NamedTuple):
    """From `begun` to `ended` a thread was off its processor for so many `lost` nanoseconds."""

    begun: int
    ended: int
    lost: int


def placed(
    waits: list[HostWait], issued: Array, off: Mapping[int, Sequence[Off]] | None = None
) -> list[HostWait]:
    """The waits, with losses where threads did not run or issued nothing; `issued` are times, in
    any order, `off` is what was seen, by thread.
    """
    moments = np.sort(issued[issued > 0])
    places = []
    for wait in waits:
        seen = (off or {}).get(wait.thread, ())
        parts = _placed(wait, moments, seen) if wait.since else [wait]
        places += parts if wait.cause != "gil" else [one for p in parts for one in _told(p, wait)]
    return places


def _told(part: HostWait, whole: HostWait) -> list[HostWait]:
    """Split a part into `core`, first, and `gil`, in the ratio of the whole."""
    lasted = part.ended - part.begun
    cut = part.begun + round(lasted * min(1.0, whole.core / max(1, whole.ended - whole.begun)))
    both = part._replace(cause="core", ended=cut, core=0), part._replace(begun=cut, core=0)
    return [one for one in both if one.ended > one.begun]


def _placed(wait: HostWait, moments: Array, off: Sequence[Off]) -> list[HostWait]:
    """One loss, in as many parts as it takes; what is as long as its stretch stays as it is."""
    left, parts = wait.ended - wait.begun, list[HostWait]()
    taken = list[tuple[int, int]]()
    for one in sorted(off, key=lambda o: -o.lost):
        ended = min(one.ended, wait.ended)
        part = min(left, one.lost, ended - max(one.begun, wait.since))
        if part > 0:
            parts.append(wait._replace(begun=ended - part, ended=ended, since=0))
            taken.append((ended - part, ended))
            left -= part
    first, last = np.searchsorted(moments, [wait.since, wait.ended], side="right")
    edges = [edge for pair in taken for edge in pair]
    borders = np.unique(np.concatenate(([wait.since], moments[first:last], edges, [wait.ended])))
    pauses = np.diff(borders)
    free = np.ones(len(pauses), bool)
    for begun, ended in taken:
        free &= (borders[:-1] >= ended) | (borders[1:] <= begun)
    for k in np.argsort(-pauses, kind="stable").tolist():
        part = min(left, int(pauses[k])) if free[k] else 0
        if part > 0:
            ended = int(borders[k + 1])
            parts.append(wait._replace(begun=ended - part, ended=ended, since=0))
            left -= part
    return parts
