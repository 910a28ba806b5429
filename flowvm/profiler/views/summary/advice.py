"""Advice of the summary: a table of causes and rules, with the gain of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from flowvm.profiler.analysis.bounds import crowded, short_of_memory, waited
from flowvm.profiler.analysis.contention import machine
from flowvm.profiler.grammar import percent, size
from flowvm.profiler.views.summary.facts import Facts, Said, roof_share
from flowvm.profiler.views.summary.verdict import Part
from flowvm.vm.machine.words import KIND

LITTLE = 0.02  # of the wall time: what brings less is not worth a word
OFTEN = 2  # values that are read on the path, below which nothing can be read less often
ISSUING_NS = 5_000  # of issuing an op: a run with more of Python's time an op has other Python
LOW = 0.25  # of the roofline: below, an operator with much of the path is worth a word
FALSE = 1.2  # of the roofline's products: above, it was measured while the machine was busy


def _uncompiled(f: Facts) -> Said | None:
    return Said(UNCOMPILED) if f.p.run.info.get("uncompiled") else None


def _often_read(f: Facts, part: Part) -> Said | None:
    times = waited(f.p.run, f.p.observed, "sync")
    line, count = max(times.items(), key=lambda item: (item[1], -item[0]), default=(-1, 0))
    if line < 0 or count < OFTEN:
        return None
    gain = f.without(part.gross * f.p.run.wall)
    text = f"{f.p.run.lines[line]} waited for a value {count}x on the path: read it less often"
    return Said(f"{text}, at best {gain.text}", gain.time)


def _heaviest(f: Facts, part: Part) -> Said | None:
    row = f.heavy
    if row is None:
        return None
    ask = f"p.what_if({row.name!r})" if f.issued(row) else "p.plan()"
    line = f" at {row.hottest}" if row.hottest else ""
    gain = f.to(f.p.run.wall - row.path / 2)
    share = percent(row.path / f.p.run.wall)
    text = f"{row.name}{line} is {share}: in half the time {gain.text}; {ask}"
    return Said(text, gain.time)


def _far_from_roof(f: Facts, part: Part) -> Said | None:
    row = f.heavy
    ran = part.share / part.gross if part.gross else 1.0  # of its time, with a core
    reached = min(1.0, roof_share(f.roof, row) / ran) if row is not None and ran else 0.0
    if row is None or not 0 < reached < LOW:
        return None
    why = f", p.why({row.name!r})" if f.issued(row) else ""
    gain = f.to(f.p.run.wall - row.path * ran * (1 - reached))
    return Said(
        f"{row.name} reaches {percent(reached)} of the roofline: larger or contiguous operands, at "
        f"best {gain.text}{why}", gain.time,
    )  # fmt: skip


def _past_the_roof(f: Facts) -> Said | None:
    most = np.inf if f.roof is None else FALSE * f.roof.gigaflops
    past = any(not r.devices and r.flops / max(1, r.run) > most for r in f.rows)
    text = "an operator exceeds the roofline: measure that by flow.profiler.roofline(again=True)"
    return Said(text) if past else None


def _next_view(f: Facts) -> Said | None:
    if not f.rows:
        return None
    return Said('p.summary("line")' if f.by == "op" else "p.timeline()")


UNCOMPILED = (
    "the VM was being compiled, once for this machine: run, dep, queue and sched are of Python, "
    "so record again"
)


def _unseen(f: Facts, part: Part) -> Said | None:
    """A graph would help if flowvm's own part of it were large, which is not known."""
    if part.share < LITTLE:
        return None
    more = "profile(level=2) says"
    if f.p.run.info.get("level", 1) >= 2:
        more = "the run was too short for samples; a longer run says"
    text = (
        f"Python is {percent(part.share)} of the path: {more} whether that is your own code, a "
        f"sleep, or flowvm issuing op by op, which flow.compile and nn.Graph do away with"
    )
    count = int(np.count_nonzero(f.p.run.kind == KIND.OP_CALL))
    if not _first_of(f, part) or count * ISSUING_NS < part.share * f.p.run.wall:
        return Said(text)
    gain = f.without(_one_by_one(f) * f.p.run.wall)
    return Said(f"{text}: at best {gain.text}", gain.time)


ONE_BY_ONE = ("host", "flowvm", "sched")  # causes that a graph does away with, together


def _one_by_one(f: Facts) -> float:
    """The share of the path that a graph does away with: Python issues ops one by one, and the VM
    starts them so, beside it or behind it.
    """
    return min(1.0, sum(part.gross for part in f.parts if part.cause in ONE_BY_ONE))


def _first_of(f: Facts, part: Part) -> bool:
    """Return True if none of ONE_BY_ONE has more of the path: one advice speaks of all of them."""
    return next(one for one in f.parts if one.cause in ONE_BY_ONE) is part


def _by_graph(f: Facts, part: Part) -> Said | None:
    """A graph replays without Python what flowvm's own would issue op by op."""
    if not _first_of(f, part):
        return None
    gain = f.without(_one_by_one(f) * f.p.run.wall)
    started = sum(one.share for one in f.parts if one.cause == "sched")
    what = "issuing and starting" if started >= LITTLE else "issuing"
    share = part.share + (started if started >= LITTLE else 0.0)
    return Said(
        f"{what} ops one by one is {percent(share)} of the path: flow.compile or nn.Graph "
        f"replays them without Python, at best {gain.text}", gain.time,
    )  # fmt: skip


def _your_own(f: Facts, part: Part) -> Said:
    at = f"{part.where} " if part.where else ""
    gain = f.at_line(part)
    return Said(
        f"{at}is your own Python: without it {gain.text}; a graph would not help: "
        f"compute it with tensors, once, or in another process", gain.time,
    )  # fmt: skip


def _asleep(f: Facts, part: Part) -> Said:
    at = f"{part.where} " if part.where else "your thread "
    gain = f.at_line(part)
    return Said(
        f"{at}sleeps or waits for something outside flowvm: without it {gain.text}; "
        f"a graph would not help", gain.time,
    )  # fmt: skip


def _loading(f: Facts, part: Part) -> Said:
    gain = f.without(part.gross * f.p.run.wall)
    at = f"{part.where} is" if part.where else "this is"
    return Said(
        f"{at} where the DataLoader's next batch comes from: more num_workers, or less work a "
        f"sample; with batches that are there in time {gain.text}", gain.time,
    )  # fmt: skip


def _captured(f: Facts, part: Part) -> Said:
    gain = f.without(part.gross * f.p.run.wall)
    return Said(
        f"{part.where} captured a graph: the same shapes again are replayed; graph.explain() says "
        f"why it was captured anew; without it {gain.text}", gain.time,
    )  # fmt: skip


def _imported(f: Facts, part: Part) -> Said:
    at = f"{part.where} imports modules" if part.where else "importing modules"
    gain = f.without(part.gross * f.p.run.wall)
    return Said(
        f"{at}, {percent(part.share)} of the path, once a process: import them before what is to "
        f"be measured; without it {gain.text}", gain.time,
    )  # fmt: skip


def _python_thread_advice(f: Facts, part: Part) -> Said:
    gain = f.to(f.p.run.wall * (1 - part.share))
    at = f"{part.where} " if part.where else "another Python thread "
    return Said(
        f"{at}had the GIL or a core {percent(part.share)} of the path: do it before, or in another "
        f"process; without it {gain.text}", gain.time,
    )  # fmt: skip


def _crowded_out(f: Facts) -> Said | None:
    part = next((part for part in f.parts if part.cause == "core"), None)
    if part is None or part.share < LITTLE:
        return None
    gain = f.to(f.p.run.wall * (1 - part.share))
    return Said(
        f"{machine(f.p.run) or 'no core was free'}, {percent(part.share)} of the path: record "
        f"again when they are done; without them {gain.text}", gain.time,
    )  # fmt: skip


def _full(f: Facts, part: Part) -> Said | None:
    """Issuing waits for room in the queue, and streams run out of work meanwhile."""
    times = waited(f.p.run, f.p.observed, "credit")
    if not times:
        return None
    line = max(times, key=lambda k: times[k])
    at = f" at {f.p.run.lines[line]}" if line >= 0 else ""
    gain = f.without(part.gross * f.p.run.wall)
    return Said(
        f"issuing waited for room {sum(times.values()):,}x{at}: as much as run_ahead "
        f"(flow.config) was in flight; with room {gain.text}", gain.time,
    )  # fmt: skip


def _short(f: Facts, part: Part) -> Said | None:
    """Instructions and issuing wait for memory in flight, and streams run out of work."""
    shortage = short_of_memory(f.p.run)
    if not shortage.times:
        return None
    gain = f.without(part.gross * f.p.run.wall)
    most = size(f.p.run.info.get("run_ahead_bytes", 0))
    return Said(
        f"{shortage.line} waited {shortage.times:,}x for memory in flight: run_ahead_bytes "
        f"(flow.config) is {most}; with more {gain.text}; p.memory() says who has it", gain.time,
    )  # fmt: skip


def _slow_vm(f: Facts, part: Part) -> Said | None:
    if not _first_of(f, part):
        return None
    gain = f.without(_one_by_one(f) * f.p.run.wall)
    return Said(
        f"the VM took {percent(part.share)} of the path to start what was ready: larger ops, or "
        f"nn.Graph, at best {gain.text}", gain.time,
    )  # fmt: skip


def _compiled(f: Facts, part: Part) -> Said:
    gain = f.without(part.gross * f.p.run.wall)
    return Said(
        f"kernels were compiled: run it once before, or `python -m flowvm warmup`; then "
        f"{gain.text}", gain.time,
    )  # fmt: skip


def _uneven(f: Facts) -> Said | None:
    crowd = crowded(f.p.run, f.p.lanes, f.p.floor.length)
    if crowd is None:
        return None
    gain = f.to(crowd.best)
    return Said(
        f"{crowd.many} {crowd.op} at {crowd.line} on stream {crowd.stream} do not wait for each "
        f"other, and {crowd.idle} was idle {percent(crowd.share)}: with half of them there "
        f"{gain.text}", gain.time,
    )  # fmt: skip


# what has a share of the path -> what is said of it
OF_PARTS: tuple[tuple[str, Callable[[Facts, Part], Said | None]], ...] = (
    ("python", _your_own),
    ("asleep", _asleep),
    ("loader", _loading),
    ("capture", _captured),
    ("import", _imported),
    ("flowvm", _by_graph),
    ("host", _unseen),
    ("sched", _slow_vm),
    ("gil", _python_thread_advice),
    ("jit", _compiled),
    ("run", _heaviest),
    ("run", _far_from_roof),
    ("sync", _often_read),
    ("credit", _full),
    ("memory", _short),
)
# what is said of the run as a whole: first, among the others by its gain, last
BEFORE: tuple[Callable[[Facts], Said | None], ...] = (_uncompiled,)
OF_ALL: tuple[Callable[[Facts], Said | None], ...] = (_uneven,)
AFTER: tuple[Callable[[Facts], Said | None], ...] = (_crowded_out, _past_the_roof, _next_view)


def advice(f: Facts) -> Iterator[str]:
    """Yield the advice, by gain; nothing that gains less than LITTLE."""
    wall = f.p.run.wall
    known = [(one.gain or 0.0, one) for rule in OF_ALL if (one := rule(f)) is not None]
    for k, part in enumerate(f.parts):
        for cause, of in OF_PARTS:
            one = of(f, part) if cause == part.cause else None
            if one is not None:
                # without a gain to be compared by: first where it had most, else last
                known.append(((0 if k else wall) if one.gain is None else one.gain, one))
    worth = [(gain, one) for gain, one in known if one.gain is None or gain >= LITTLE * wall]
    worth.sort(key=lambda pair: -pair[0])
    firsts, lasts = ([rule(f) for rule in rules] for rules in (BEFORE, AFTER))
    for line in (*firsts, *(one for _, one in worth), *lasts):
        if line is not None:
            yield line.text
