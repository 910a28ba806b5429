"""The host's time: what issuing threads did while the observed path was theirs.

The observed path says how much of the wall time was the host's; samples of the issuing threads say
which line had it, and whether that was the user's Python, a sleep, a loader, or flowvm's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.paths import Segment
from flowvm.profiler.run.columns import SAMPLED
from flowvm.profiler.run.run import Run

HOSTED = ("host", "gil", "core")  # causes of the path that samples tell apart
KEPT = ("gil", "core")  # of these: a thread could have run
OWN = (
    "python",
    "asleep",
    "loader",
    "capture",
    "flowvm",
    "import",
)  # of SAMPLED: the thread was in no wait of the VM's


class Spent(NamedTuple):
    """Nanoseconds of the path in which an issuing thread was at a line, -1 for none known, in the
    expression `spot`, and what it was doing there: one of SAMPLED.
    """

    state: str
    line: int
    spot: int
    time: int


def spent(run: Run, path: list[Segment], causes: tuple[str, ...] = HOSTED) -> list[Spent]:
    """List the host's work in the path's time of `causes`, most first.  Empty without samples.

    How long a thread was kept from running is known, and when only nearly: where the path says so,
    what a sample takes for running is `gil` or `core`.
    """
    every = np.arange(len(run.samples.line))
    sums: dict[tuple[str, int], Spent] = {}
    for cause in causes:
        begin, end = _intervals(path, cause)
        if not len(every) or not len(begin):
            continue
        for one in _summed(run, every, overlaps(run.samples.times, begin, end)):
            own: tuple[str, ...] = ("loader", "capture", "import")
            # who waits for a thread that computes waits for who has the GIL, which is named
            own = own if cause == "gil" and run.info.get("ran") else (*own, "asleep")
            is_cause = cause in KEPT and one.state not in own
            state = cause if is_cause else one.state
            before = sums.get((state, one.line))
            spot = one.spot if before is None or before.time < one.time else before.spot
            time = one.time + (before.time if before else 0)
            sums[state, one.line] = Spent(state, one.line, spot, time)
    return _sorted(sums.values())


def without_core(run: Run, path: list[Segment]) -> list[Spent]:
    """List what issuing threads were about while they had no core, most first, as `spent` does."""
    begin, end = _intervals(path, "core")
    every = np.arange(len(run.samples.line) if len(begin) else 0)
    sums = _summed(run, every, overlaps(run.samples.times, begin, end)) if len(every) else []
    # what is in here by its own name in `spent` is counted there
    return [one for one in sums if one.state in ("python", "flowvm")]


def inside(run: Run, begin: int, end: int) -> list[Spent]:
    """List the work of issuing threads from `begin` to `end`, most first."""
    times = run.samples.times
    of = np.flatnonzero((times[:, 1] > begin) & (times[:, 0] < end))
    within = np.minimum(times[of, 1], end) - np.maximum(times[of, 0], begin)
    return _summed(run, of, within)


def during(run: Run, begin: int, end: int) -> Iterator[tuple[int, int, str, int, int]]:
    """Yield the parts of the time from `begin` to `end`: from, to, one of SAMPLED, line and
    expression; "" and -1 where no thread was seen.
    """
    times = run.samples.times
    first = int(np.searchsorted(times[:, 1], begin, side="right"))
    at = begin
    for k in range(first, len(times)):
        own, over = max(int(times[k, 0]), at), min(int(times[k, 1]), end)
        if own >= end:
            break
        if own >= over:
            continue
        if own > at:
            yield at, own, "", -1, -1
        line, spot = int(run.samples.line[k]), int(run.samples.spot[k])
        yield own, over, SAMPLED[run.samples.state[k]], line, spot
        at = over
    if at < end:
        yield at, end, "", -1, -1


def by_line(run: Run) -> Array:
    """For each line nanoseconds of issuing threads, but for those in waits of the VM's."""
    own = np.isin(run.samples.state, [SAMPLED.index(s) for s in OWN]) & (run.samples.line >= 0)
    lasted = run.samples.times[:, 1] - run.samples.times[:, 0]
    sums = np.bincount(run.samples.line[own], lasted[own], len(run.lines))
    return sums.astype(np.int64)


def _sorted(rows: Iterable[Spent]) -> list[Spent]:
    return sorted(rows, key=lambda one: (-one.time, one.line, one.state))


def _intervals(path: list[Segment], cause: str) -> tuple[Array, Array]:
    own = [(s.begin, s.end) for s in path if s.cause == cause]
    both = np.array(own, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def overlaps(times: Array, begin: Array, end: Array) -> Array:
    """Return the part of each of `times` (rows of from, to) in the disjoint, sorted intervals."""
    before = np.concatenate(([0], np.cumsum(end - begin)))

    def until(t: Array) -> Array:
        k = np.searchsorted(begin, t, side="right") - 1
        at = np.maximum(k, 0)
        into = np.minimum(t, end[at]) - begin[at]
        return np.where(k < 0, 0, before[at] + into)

    overlap: Array = until(times[:, 1]) - until(times[:, 0])
    return overlap


def _summed(run: Run, of: Array, times: Array) -> list[Spent]:
    total: dict[tuple[int, int], int] = {}
    widest: dict[tuple[int, int], dict[int, int]] = {}
    rows = zip(
        run.samples.state[of].tolist(), run.samples.line[of].tolist(),
        run.samples.spot[of].tolist(), times.tolist(), strict=True,
    )  # fmt: skip
    for state, line, spot, time in rows:
        if time > 0:
            total[state, line] = total.get((state, line), 0) + time
            spots = widest.setdefault((state, line), {})
            spots[spot] = spots.get(spot, 0) + time
    return _sorted(
        Spent(SAMPLED[s], line, max(widest[s, line], key=widest[s, line].__getitem__), time)
        for (s, line), time in total.items()
    )


def text_of(run: Run, line: int, spot: int) -> str:
    """A line and the expression in it: "train.py:12 time.sleep(.01)"; "" for none."""
    if line < 0:
        return ""
    text, first, last, _ = run.spots[spot] if 0 <= spot < len(run.spots) else ("", 0, 0, "")
    return f"{run.lines[line]} {text[first:last] or text}".rstrip()
