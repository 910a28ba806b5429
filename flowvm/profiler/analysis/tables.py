"""Sums over a run: by operator, line, module, phase of time; and what memory was used for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.host_time import by_line, spent
from flowvm.profiler.analysis.paths import Segment
from flowvm.profiler.analysis.waits import STATES, Lane, Waits
from flowvm.profiler.run.kinds import KINDS, kinds_of
from flowvm.profiler.run.run import Run
from flowvm.profiler.run.spaces import allocation_times, inside, returned
from flowvm.vm.machine.words import KIND, OPERAND
from flowvm.vm.watch.spaces import HOST

BY = ("op", "line", "module", "stream")
STEP = "step"  # what a span is called that is one of many alike


@dataclass(frozen=True)
class Row:
    """A line of a table.  Times are nanoseconds; `hottest` is the user's line where most of `run`
    was spent; of a module, what its backward ran counts to the lines of the forward calls.

    `path`: time on the observed path.  That of a graph's replay is shared out to its tasks by how
    long they ran; the launch keeps the rest.  To a line belongs the host's time on the path, too,
    as far as issuing threads were seen there (level 2).  `dep` and `sched`: time in which a stream
    stood still because what came next waited for a producer, or for the VM; what waits behind
    others that run blocks nobody.  `queue`: the sum of each instruction's wait for those in front,
    many at a time.
    """

    name: str
    count: int
    run: int
    path: int
    dep: int
    queue: int
    sched: int
    nbytes: int
    flops: int
    hottest: str
    devices: bool = False  # some of it ran on a device
    host: int = 0  # of a line: what issuing threads spent there, but for waits of the VM's

    @property
    def gigabytes(self) -> float:
        """GB/s while it ran."""
        return self.nbytes / self.run if self.run else 0.0

    @property
    def gigaflops(self) -> float:
        """GFLOP/s while it ran."""
        return self.flops / self.run if self.run else 0.0


def table(
    run: Run, waits: Waits, lanes: list[Lane], path: list[Segment], by: str = "op"
) -> list[Row]:
    """A Row for each operator, line, module or stream, the one with the longest path time first.

    What a graph's replay ran has rows of its own if its tasks were recorded (level 2); the launch
    keeps the rest of its time.  ArgumentError if `by` is none of BY.
    """
    if by not in BY:
        raise ArgumentError(f"by={by!r}: a table is by one of {', '.join(BY)}")
    duration = np.maximum(0, run.time("ended") - run.time("started"))
    lasted = run.tasks.times[:, 1] - run.tasks.times[:, 0]
    inside = np.zeros(len(run), np.int64)
    np.add.at(inside, run.tasks.launch, lasted)
    on_path = np.zeros(len(run), np.int64)
    for segment in path:
        if segment.cause == "run":
            on_path[segment.instruction] += segment.end - segment.begin
    whole = np.maximum(np.maximum(duration, inside), 1)[run.tasks.launch]
    # in floating point: products of two times in ns do not fit into 64 bits
    task_path = (lasted * (on_path[run.tasks.launch] / whole)).astype(np.int64)
    np.subtract.at(on_path, run.tasks.launch, task_path)

    def blocked(state: str) -> Array:
        """Return the time for which each instruction kept its stream in `state`."""
        still = np.zeros(len(run), np.int64)
        for lane in lanes:
            own = lane.state == STATES.index(state)
            np.add.at(still, lane.instruction[own], (lane.end - lane.begin)[own])
        return still

    shown = run.kind != KIND.BARRIER
    none = np.zeros(len(lasted), np.int64)
    keys = {
        "op": (run.op, run.tasks.op, run.names),
        "line": (run.line, run.tasks.line, run.lines),
        "module": (run.module, run.tasks.module, run.modules or [""]),
        "stream": (run.stream, run.tasks.stream, run.streams),
    }
    mine, tasks, names = keys[by]
    key = np.concatenate((mine[shown], tasks))
    lines = np.concatenate((run.line[shown], run.tasks.line))
    if by == "module":  # one line calls all of backward
        forward = np.concatenate((run.forward[shown], run.tasks.forward))
        lines = np.where(forward >= 0, forward, lines)
    columns = {
        "run": (np.maximum(0, duration - inside), lasted),
        "path": (on_path, task_path),
        "dep": (blocked("dep"), none),
        "queue": (waits.queue, none),
        "sched": (blocked("sched"), none),
        "nbytes": (np.where(inside > 0, 0, run.nbytes), run.tasks.nbytes),
        "flops": (run.flops, run.tasks.flops),
    }
    values = {c: np.concatenate((a[shown], b)) for c, (a, b) in columns.items()}
    sums = {c: np.bincount(key, v, len(names)).astype(np.int64) for c, v in values.items()}
    counts = np.bincount(key, minlength=len(names))
    away = np.bincount(key, np.concatenate((run.clock[shown], none)), len(names)) > 0
    hottest = _hottest(key, lines, values["run"], len(names), len(run.lines))
    hosted = np.zeros(len(names), np.int64)
    if by == "line":
        hosted = by_line(run)
        for one in spent(run, path):
            if one.line >= 0:
                sums["path"][one.line] += one.time
    rows = [
        Row(names[k], int(counts[k]), **{c: int(v[k]) for c, v in sums.items()},
            hottest=run.lines[k if by == "line" else hottest[k]] if run.lines else "",
            devices=bool(away[k]), host=int(hosted[k]))
        for k in np.flatnonzero((counts > 0) | (hosted > 0) | (sums["path"] > 0))
    ]  # fmt: skip
    return sorted(rows, key=lambda r: (-r.path, -r.run, r.name))


def _hottest(key: Array, line: Array, value: Array, keys: int, lines: int) -> Array:
    """For each key the line with the largest sum."""
    both, which = np.unique(key * max(1, lines) + line, return_inverse=True)
    total = np.bincount(which, value)
    best = np.zeros(keys, np.int64)
    order = np.argsort(total, kind="stable")
    best[both[order] // max(1, lines)] = both[order] % max(1, lines)
    return best


def overhead(run: Run, waits: Waits) -> dict[str, float]:
    """Return the VM's own cost: nanoseconds that an instruction waited for nothing else.

    `median` and `p99` are of all that ran in a stream, `total` their sum; a wait that is hidden
    behind what the stream was running counts as `queue`, not here.
    """
    real = (run.time("released") > 0) & ~np.isin(run.kind, (KIND.TOUCH, KIND.BARRIER))
    sched = waits.sched[real]
    if not len(sched):
        return {"median": 0.0, "p99": 0.0, "total": 0.0}
    return {
        "median": float(np.median(sched)),
        "p99": float(np.percentile(sched, 99)),
        "total": float(sched.sum()),
    }


@dataclass(frozen=True)
class Owner:
    """An owner of memory at the peak: an operator at a line, for one of KINDS; `nbytes` in `count`
    tensors.
    """

    name: str
    line: str
    nbytes: int
    count: int
    kind: str


@dataclass(frozen=True)
class Memory:
    """Bytes over time: `nbytes[i]` from `time[i]` on.  At the peak `owners` had them, the largest
    first, `scratch` was of what ran; `before` is what was there before the run began and lived
    still, or was not recorded; `base` was there when it began.
    """

    time: Array
    nbytes: Array
    peak: int
    peak_time: int
    before: int
    scratch: int
    owners: list[Owner]
    base: int

    def level(self, time: int) -> int:
        """Bytes at a time."""
        i = int(np.searchsorted(self.time, time, side="right")) - 1
        return int(self.nbytes[i]) if i >= 0 else self.base


def memory(run: Run, space: str = HOST) -> Memory:
    """Return the course of memory that tensors took, as instructions ran.

    A tensor takes its memory when the instruction that makes it starts, and gives it back when its
    ReleaseTensor ends; scratch memory is there while its instruction runs (of devices, see
    `flowvm.profiler.run.spaces`).  The level is that of `info["live"]` at the end.  Sizes are what
    was asked for: the allocator rounds them up.
    """
    owner = run.owner
    finished = (run.time("released") > 0) & inside(run, space)
    started, ended = allocation_times(run), returned(run)
    allocates = ((run.access & OPERAND.ALLOCATE) != 0) & finished[owner]
    freed = (run.kind[owner] == KIND.RELEASE) & finished[owner]
    busy = np.flatnonzero(finished & (run.scratch > 0))
    time = np.concatenate(
        (started[owner[allocates]], ended[owner[freed]], started[busy], ended[busy])
    )
    change = np.concatenate(
        (run.size[allocates], -run.size[freed], run.scratch[busy], -run.scratch[busy])
    )
    order = np.lexsort((-change, time))
    time, level = time[order], np.cumsum(change[order])
    base = int(run.info.get("live", {}).get(space, 0)) - (int(level[-1]) if len(level) else 0)
    base = max(base, -int(level.min(initial=0)))
    if not len(level):
        return Memory(time, level, base, run.begun, base, 0, [], base)
    at = int(np.argmax(level))
    moment = int(time[at])
    death = np.full(int(run.tensor.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    death[run.tensor[freed]] = ended[owner[freed]]
    live = allocates.copy()
    live[allocates] = (started[owner[allocates]] <= moment) & (
        death[run.tensor[allocates]] > moment
    )
    kind, kinds = kinds_of(run), tuple(KINDS)
    groups: dict[tuple[int, int, int], list[int]] = {}
    for k in np.flatnonzero(live).tolist():
        i = int(owner[k])
        of = (int(run.op[i]), int(run.line[i]), int(kind[run.tensor[k]]))
        group = groups.setdefault(of, [0, 0])
        group[0] += int(run.size[k])
        group[1] += 1
    owners = [
        Owner(run.names[o], run.lines[n], nbytes, count, kinds[of])
        for (o, n, of), (nbytes, count) in groups.items()
    ]
    owners.sort(key=lambda o: -o.nbytes)
    scratch = int(run.scratch[busy][(started[busy] <= moment) & (ended[busy] > moment)].sum())
    peak = int(level[at]) + base
    before = peak - scratch - sum(o.nbytes for o in owners)
    return Memory(time, level + base, peak, moment, before, scratch, owners, base)


@dataclass(frozen=True)
class Births:
    """Tensors that the run made: by which instruction, its operator and line, bytes, kind (an index
    into KINDS), its number, and when each was born, let go of (its ReleaseTensor was issued) and
    died (that has run); never is the largest int64.

    `release` is the ReleaseTensor, or -1.  `gone` are times at which tensors died that were there
    before the run, of `gone_size` bytes.
    """

    maker: Array
    op: Array
    line: Array
    size: Array
    kind: Array
    tensor: Array
    born: Array
    freed: Array
    died: Array
    release: Array
    gone: Array
    gone_size: Array


def births(run: Run, space: str = HOST) -> Births:
    """Return the life of each tensor of a memory; those whose maker has not run are left out."""
    owner, never = run.owner, np.iinfo(np.int64).max
    finished = (run.time("released") > 0) & inside(run, space)
    allocates = ((run.access & OPERAND.ALLOCATE) != 0) & finished[owner]
    count = int(run.tensor.max(initial=-1)) + 1
    release = np.full(count, -1, np.int64)
    releases = run.kind[owner] == KIND.RELEASE
    release[run.tensor[releases]] = owner[releases]
    tensor, maker = run.tensor[allocates], owner[allocates]
    by = release[tensor]
    known, over = by >= 0, (by >= 0) & finished[by] if len(finished) else by >= 0
    freed, died = np.full(len(by), never), np.full(len(by), never)
    freed[known] = run.time("issued")[by[known]]
    died[over] = returned(run)[by[over]]
    mine = np.zeros(count, bool)
    mine[tensor] = True
    gone = releases & finished[owner] & ~mine[run.tensor]
    return Births(
        maker,
        run.op[maker],
        run.line[maker],
        run.size[allocates],
        kinds_of(run)[tensor],
        tensor,
        allocation_times(run)[maker],
        freed,
        died,
        by,
        returned(run)[owner[gone]],
        run.size[gone],
    )


def repeats(run: Run, least: int) -> Array:
    """Return the places where a repetition of the run begins: the first instructions of steps, if
    the user named some, else of the operator at a line that comes least often, but `least` times,
    from the first part of the run to its last.
    """
    steps = sorted({m[4] for m in run.marks if m[0] == STEP and m[1] >= run.begun})
    if steps:
        return np.array(steps if len(steps) >= least else [], np.int64)
    pair = run.op.astype(np.int64) * max(1, len(run.lines)) + run.line
    pair = np.where(np.isin(run.kind, (KIND.OP_CALL, KIND.LAUNCH)), pair, -1)
    values, first, count = np.unique(pair, return_index=True, return_counts=True)
    last = np.zeros(len(values), np.int64)
    np.maximum.at(last, np.searchsorted(values, pair), np.arange(len(pair)))
    part = 1.2 * len(run) / least
    possible = (values >= 0) & (count >= least) & (first < part) & (last >= len(run) - part)
    if not possible.any():
        return np.zeros(0, np.int64)
    chosen = min(np.flatnonzero(possible).tolist(), key=lambda k: (count[k], first[k]))
    return np.flatnonzero(pair == values[chosen])
