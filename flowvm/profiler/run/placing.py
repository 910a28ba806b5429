"""Where in its stretch a loss of unknown place lies: a `gil` wait says how much, not when.

An issuing thread looks at its clocks every so many instructions; what it lost between two looks
was lost where it issued nothing.  So the loss goes into the longest pauses between instructions of
that stretch, the longest first, each time up to the pause's end.  Its length stays what it was.
"""

from __future__ import annotations

import numpy as np

from flowvm.profiler.run.run import Array
from flowvm.vm.watch.flight import HostWait


def placed(waits: list[HostWait], issued: Array) -> list[HostWait]:
    """The waits, with losses where nothing was issued; `issued` are times, in any order."""
    moments = np.sort(issued[issued > 0])
    places = []
    for wait in waits:
        places += _placed(wait, moments) if wait.since else [wait]
    return places


def _placed(wait: HostWait, moments: Array) -> list[HostWait]:
    """One loss, in as many parts as it takes; what is as long as its stretch stays as it is."""
    first, last = np.searchsorted(moments, [wait.since, wait.ended], side="right")
    borders = np.concatenate(([wait.since], moments[first:last], [wait.ended]))
    pauses = np.diff(borders)
    left, parts = wait.ended - wait.begun, []
    for k in np.argsort(-pauses, kind="stable").tolist():
        part = min(left, int(pauses[k]))
        if part > 0:
            ended = int(borders[k + 1])
            parts.append(wait._replace(begun=ended - part, ended=ended, since=0))
            left -= part
    return parts
