"""The parts of memory at every moment of a run: the kinds, workspace, memory to be released.

Sizes are those asked for, and the level that the VM counts is rounded up: what the parts do not
account for is "other", so that they sum to the level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.tables import Births, Memory
from flowvm.profiler.grammar import percent, size
from flowvm.profiler.run.kinds import KINDS, OTHER, held_before
from flowvm.profiler.run.run import Run
from flowvm.profiler.run.spaces import allocation_times, inside, returned
from flowvm.vm.watch.spaces import HOST

COLUMNS = 120  # of what is kept of the course
# the kinds, and what is no tensor in use
PARTS = (
    ("█", "run", "params"), ("▓", "queue", "optim"), ("▞", "head", "other"),
    ("░", "const", "activations"), ("▒", "mut", "grads"), ("▤", "jit", "workspace"),
    ("○", "dep", "to be released"),
)  # fmt: skip
WORKSPACE, WAITING = len(KINDS), len(KINDS) + 1


@dataclass(frozen=True)
class Course:
    """PARTS in each of equal parts of the run, when their sum was largest; PARTS at the peak; and
    the most that was ever to be released.
    """

    parts: tuple[tuple[int, ...], ...]
    at_peak: tuple[int, ...]
    most_waiting: int


def course_of(
    run: Run, data: Memory, known: Births, space: str = HOST, columns: int = COLUMNS
) -> Course:
    """PARTS of a memory in so many equal parts of the run."""
    none = [0] * len(PARTS)
    none[OTHER] = data.peak
    times, level = _levels(run, data, known, space)
    if not run.wall or not len(times):
        return Course((tuple(none),) * columns * bool(run.wall), tuple(none), 0)
    total = np.cumsum(level[:, -1]) + int(data.nbytes[0] if len(data.nbytes) else data.peak)
    level = np.cumsum(level[:, :-1], axis=0)
    room, parts = total.copy(), np.zeros_like(level)
    first = [WAITING, WORKSPACE, *(k for k in range(len(KINDS)) if k != OTHER)]
    before = [sum(n for of, n, _ in held_before(run, space) if of == k) for k in range(len(PARTS))]
    for k in first:  # sizes are rounded up where they are counted: what is left is other
        parts[:, k] = np.clip(level[:, k] + before[k], 0, room)
        room -= parts[:, k]
    parts[:, OTHER] = room
    borders = np.linspace(run.begun, run.ended, columns + 1)
    first_of = np.searchsorted(times, borders[:-1], side="left")
    last_of = np.searchsorted(times, borders[1:], side="right")
    peaks = []
    for a, b in zip(first_of.tolist(), last_of.tolist(), strict=True):
        a = max(0, min(a - 1, len(parts) - 1))  # what held when this part began
        b = max(a + 1, b)
        peaks.append(tuple(parts[_last_most(total, a, b)].tolist()))
    peak = parts[_last_most(total, 0, len(total))]
    return Course(tuple(peaks), tuple(peak.tolist()), int(parts[:, WAITING].max()))


def _last_most(values: Array, a: int, b: int) -> int:
    """Return the index of the largest value in [a, b), the last one of several."""
    return b - 1 - int(np.argmax(values[a:b][::-1]))


def _levels(run: Run, data: Memory, known: Births, space: str) -> tuple[Array, Array]:
    """Times in order, and by how much each of PARTS changes then, and the sum of all."""
    late = known.died > np.maximum(known.freed, known.born)  # let go of, and not released
    ends = np.where(late, np.maximum(known.freed, known.born), known.died)
    busy = (run.scratch > 0) & (run.time("released") > 0) & inside(run, space)
    scratch, everything = run.scratch[busy], len(PARTS)
    first = int(data.nbytes[0]) if len(data.nbytes) else data.peak
    changes = [
        (everything, data.time, np.diff(data.nbytes, prepend=first)),
        (OTHER, known.gone, -known.gone_size),
        (WORKSPACE, returned(run)[busy], -scratch),
        (WORKSPACE, allocation_times(run)[busy], scratch),
        (WAITING, known.died[late], -known.size[late]),
        (WAITING, ends[late], known.size[late]),
    ]
    for kind in range(len(KINDS)):
        mine = known.kind == kind
        changes.append((kind, ends[mine], -known.size[mine]))
        changes.append((kind, known.born[mine], known.size[mine]))
    times = np.concatenate([t for _, t, _ in changes])
    of = np.repeat([k for k, _, _ in changes], [len(t) for _, t, _ in changes])
    level = np.zeros((len(times), len(PARTS) + 1), np.int64)
    level[np.arange(len(times)), of] = np.concatenate([c for _, _, c in changes])
    order = np.lexsort((-level.sum(axis=1), times))  # what comes at a time, before what goes
    return times[order], level[order]


def in_words(view: Any) -> str:
    """The peak of a MemoryView in one sentence; "" where there was none."""
    if not view.peak:
        return ""
    parts = sorted(zip(view.at_peak, PARTS, strict=False), key=lambda part: -part[0])
    words = [
        f"{percent(nbytes / view.peak)} {name}"
        for nbytes, (_, _, name) in parts
        if nbytes > view.peak / 50
    ]
    most = max(view.places, key=lambda place: place.nbytes, default=None)
    by = ""
    if most is not None and most.nbytes:
        line = f" at {most.line}" if most.line else ""
        by = f"; {most.name}{line} made most, {size(most.nbytes)}"
    during = f" while {view.during.split('  ')[0]} ran" if view.during else ""
    return f"the peak{during} was {', '.join(words[:4])}{by}"


def kinds_in(kind: Array, nbytes: Array) -> str:
    """` (grads 2.0 MiB, activations 1.0 MiB)` of tensors of these kinds and bytes, or ""."""
    total = np.bincount(kind, nbytes, len(KINDS))
    texts = [f"{PARTS[k][2]} {size(int(total[k]))}" for k in np.argsort(-total) if total[k] > 0]
    return f" ({', '.join(texts)})" if texts else ""


def together(keepers: Iterable[tuple[int, str]]) -> str:
    """Name the keeper of most of the bytes, and count the others."""
    total: Counter[str] = Counter()
    for nbytes, keeper in keepers:
        total[keeper] += nbytes
    first = next((keeper for keeper, _ in total.most_common(1)), "")
    return first + (f" and {len(total) - 1} more" if len(total) > 1 else "")
