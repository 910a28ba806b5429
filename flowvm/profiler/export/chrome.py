"""Chrome trace events, as Perfetto reads them: a track for each stream, edges as flows.

Rules that viewers do not forgive, and `problems` checks: the slices of a track are nested or
disjoint (others are dropped); a flow begins inside the slice of the producer and ends at the start
of the consumer's; both have one id, name and category.  Dense flows freeze viewers, so by default
only the gating edge of each instruction is one.  What launches side by side overlap on a track goes
to a track beside it.  Times are microseconds with three decimals: nanoseconds, exactly.

The format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import bisect
import gzip
import heapq
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.profiler.grammar import ACCESS
from flowvm.profiler.run import CAUSES, Run
from flowvm.profiler.sharing import helper_name
from flowvm.profiler.views.spots import origin_of
from flowvm.profiler.waits import STATES
from flowvm.vm import layout as w
from flowvm.vm.edges import HAZARDS

__all__ = ["EDGES", "events", "problems", "write"]

EDGES = ("gating", "all", "none")
Event = dict[str, Any]
PID = 1
# track numbers: one group each, so that they stand together
PATH, PYTHON, STREAMS, WAITS, TASKS, HELPERS = 1, 10, 1000, 2000, 3000, 4000
BESIDE = 20  # tracks of one stream


def write(profile: Any, path: Path, edges: str = "gating") -> None:
    """Write the trace; compressed if the name ends in .gz."""
    text = json.dumps(
        {"traceEvents": events(profile, edges), "displayTimeUnit": "ns"}, separators=(",", ":")
    )
    if path.name.endswith(".gz"):
        with gzip.open(path, "wt", compresslevel=5) as file:
            file.write(text)
    else:
        path.write_text(text)


def events(profile: Any, edges: str = "gating") -> list[Event]:
    """The events of a Profile: names of tracks first, then by time.

    ArgumentError if `edges` is none of EDGES.
    """
    if edges not in EDGES:
        raise ArgumentError(f"edges={edges!r}: one of {', '.join(EDGES)}")
    run: Run = profile.run
    tracks: dict[int, str] = {}
    found: list[Event] = []
    place: dict[int, int] = {}  # instruction -> track
    found += _slices(profile, tracks, place)
    found += _tasks(run, tracks)
    found += _helpers(run, tracks)
    found += _gaps(profile, tracks)
    found += _python(run, tracks)
    found += _path(profile, tracks)
    found += _counters(profile)
    if edges != "none":
        found += _flows(profile, place, edges)
    found.sort(key=lambda e: (e["ts"], -e.get("dur", 0)))
    return [*_names(tracks), *found]


def _us(nanoseconds: int) -> float:
    return round(nanoseconds / 1000, 3)


def _names(tracks: dict[int, str]) -> Iterator[Event]:
    yield {"ph": "M", "pid": PID, "tid": 0, "name": "process_name", "args": {"name": "flowvm"}}
    for tid in sorted(tracks):
        yield {"ph": "M", "pid": PID, "tid": tid, "name": "thread_name",
               "args": {"name": tracks[tid]}}  # fmt: skip
        yield {"ph": "M", "pid": PID, "tid": tid, "name": "thread_sort_index",
               "args": {"sort_index": tid}}  # fmt: skip


def _slice(tid: int, name: str, begin: int, end: int, run: Run, **args: Any) -> Event:
    return {"ph": "X", "pid": PID, "tid": tid, "name": name, "ts": _us(begin - run.begun),
            "dur": _us(max(1, end - begin)), "args": args}  # fmt: skip


def _beside(intervals: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """For (begin, end, key), sorted by begin: a row for each key such that a row has no overlap."""
    rows: dict[int, int] = {}
    free: list[int] = []  # rows
    busy: list[tuple[int, int]] = []  # end, row
    count = 0
    for begin, end, key in intervals:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, count = count, count + 1
        rows[key] = row
        heapq.heappush(busy, (max(end, begin + 1), row))
    return rows


def _slices(profile: Any, tracks: dict[int, str], place: dict[int, int]) -> Iterator[Event]:
    run, waits, done = profile.run, profile.waits, profile.order.done
    started, ended = run.time("started"), run.time("ended")
    shown = np.flatnonzero(done & ~np.isin(run.kind, (w.TOUCH, w.BARRIER)))
    for stream in np.unique(run.stream[shown]).tolist():
        own = shown[run.stream[shown] == stream]
        own = own[np.argsort(started[own], kind="stable")]
        rows = _beside(zip(started[own].tolist(), ended[own].tolist(), own.tolist(), strict=True))
        for i in own.tolist():
            tid = STREAMS + stream * BESIDE + min(rows[i], BESIDE - 1)
            tracks[tid] = run.streams[stream] + (f" +{rows[i]}" if rows[i] else "")
            place[i] = tid
            first, last = run.offsets[i], run.offsets[i + 1]
            yield _slice(
                tid, run.names[run.op[i]], int(started[i]), int(ended[i]), run,
                id=int(run.seq[i]), line=run.lines[run.line[i]], bytes=int(run.nbytes[i]),
                flops=int(run.flops[i]), status=int(run.status[i]), **origin_of(run, i).known(),
                wait_dep_ns=int(waits.dep[i]), wait_queue_ns=int(waits.queue[i]),
                wait_sched_ns=int(waits.sched[i]),
                operands=[
                    f"{ACCESS[int(a) & 3][2]} t{t}"
                    for a, t in zip(run.access[first:last], run.tensor[first:last], strict=True)
                ],
            )  # fmt: skip


def _tasks(run: Run, tracks: dict[int, str]) -> Iterator[Event]:
    """Tasks of graphs' replays, on a track beside their stream's."""
    order = np.lexsort((run.task_times[:, 0], run.task_stream))
    for k in order.tolist():
        stream = int(run.task_stream[k])
        tid = TASKS + stream
        tracks[tid] = f"{run.streams[stream]} graph tasks"
        begin, end = run.task_times[k].tolist()
        yield _slice(
            tid, run.names[run.task_op[k]], begin, end, run,
            launch=int(run.seq[run.task_launch[k]]), task=int(run.task_number[k]),
            line=run.lines[run.task_line[k]], module=run.modules[run.task_module[k]],
        )  # fmt: skip


def _helpers(run: Run, tracks: dict[int, str]) -> Iterator[Event]:
    """Shares of helpers in large kernels, a track each."""
    for k in np.argsort(run.share_times[:, 0], kind="stable").tolist():
        stream, helper, i = int(run.share_stream[k]), int(run.share_helper[k]), run.share_of[k]
        tid = HELPERS + stream * w.MAX_TEAM + helper
        tracks[tid] = helper_name(run, stream, helper)
        begin, end = run.share_times[k].tolist()
        yield _slice(tid, run.names[run.op[i]], begin, end, run, id=int(run.seq[i]),
                     chunks=int(run.share_chunks[k]))  # fmt: skip


def _gaps(profile: Any, tracks: dict[int, str]) -> Iterator[Event]:
    """When a stream stood still, and why."""
    run = profile.run
    for lane in profile.lanes:
        tid = WAITS + lane.stream
        tracks[tid] = f"{run.streams[lane.stream]} waits"
        waiting = np.flatnonzero(lane.state != STATES.index("run"))
        for k in waiting.tolist():
            i = int(lane.instruction[k])
            about = {"id": int(run.seq[i]), "op": run.names[run.op[i]]} if i >= 0 else {}
            yield _slice(
                tid, STATES[lane.state[k]], int(lane.begin[k]), int(lane.end[k]), run, **about
            )


def _python(run: Run, tracks: dict[int, str]) -> Iterator[Event]:
    """Waits of the issuing threads."""
    threads = {t: k for k, t in enumerate(dict.fromkeys(run.wait_thread.tolist()))}
    order = np.argsort(run.wait_times[:, 0], kind="stable")
    until: dict[int, int] = {}
    for k in order.tolist():
        thread = int(run.wait_thread[k])
        tid = PYTHON + threads[thread]
        tracks[tid] = "python" if not threads[thread] else f"python {thread}"
        begin, end = run.wait_times[k].tolist()
        begin = max(begin, until.get(tid, begin))
        if end > begin:
            until[tid] = end
            yield _slice(tid, CAUSES[run.wait_cause[k]], begin, end, run)
            if CAUSES[run.wait_cause[k]] == "sync":
                yield {"ph": "i", "s": "t", "pid": PID, "tid": tid, "name": "sync",
                       "ts": _us(begin - run.begun), "args": {}}  # fmt: skip


def _path(profile: Any, tracks: dict[int, str]) -> Iterator[Event]:
    """The observed path as a track of its own: viewers cannot mark slices of others."""
    run = profile.run
    tracks[PATH] = "critical path"
    for s in profile.observed:
        i = s.instruction
        name = s.cause if i < 0 else f"{s.cause} {run.names[run.op[i]]}"
        about = {} if i < 0 else {"id": int(run.seq[i]), "line": run.lines[run.line[i]]}
        yield _slice(PATH, name, s.begin, s.end, run, **about)


def _counters(profile: Any) -> Iterator[Event]:
    """Bytes of tensors, and instructions that are issued and not released."""
    run, memory = profile.run, profile.memory_data
    for t, n in zip(memory.time.tolist(), memory.nbytes.tolist(), strict=True):
        yield _counter("memory", t, run, bytes=n)
    issued, released = run.time("issued"), run.time("released")
    moments = np.concatenate((issued[issued > 0], released[released > 0]))
    change = np.concatenate((np.ones((issued > 0).sum()), -np.ones((released > 0).sum())))
    order = np.argsort(moments, kind="stable")
    for t, n in zip(moments[order].tolist(), np.cumsum(change[order]).tolist(), strict=True):
        yield _counter("in flight", t, run, instructions=int(n))


def _counter(name: str, t: int, run: Run, **value: int) -> Event:
    ts = _us(max(t, run.begun) - run.begun)
    return {"ph": "C", "pid": PID, "tid": 0, "name": name, "ts": ts, "args": value}


def _flows(profile: Any, place: dict[int, int], edges: str) -> Iterator[Event]:
    run = profile.run
    started, ended = run.time("started").tolist(), run.time("ended").tolist()
    chosen = _reduced(run) if edges == "all" else np.arange(len(run.source))
    number = 0
    for e in chosen.tolist():
        a, b = int(run.source[e]), int(run.target[e])
        if a not in place or b not in place:
            continue
        if edges == "gating" and int(profile.order.producer[b]) != a:
            continue
        number += 1
        kind = ACCESS[int(run.access[run.operand[e]]) & 3][2]
        name = f"{kind} {HAZARDS[run.hazard[e]]}"
        both = {"pid": PID, "cat": kind, "name": name, "id": number}
        last = max(started[a], ended[a] - 1)  # inside the slice, which ends before `ended`
        yield {"ph": "s", "tid": place[a], "ts": _us(last - run.begun), **both}
        yield {"ph": "f", "bp": "e", "tid": place[b], "ts": _us(started[b] - run.begun), **both}


def _reduced(run: Run) -> np.ndarray[Any, Any]:
    """Edges that do not follow from two others: the rest is implied for the eye."""
    before: dict[int, set[int]] = {}
    for a, b in zip(run.source.tolist(), run.target.tolist(), strict=True):
        before.setdefault(b, set()).add(a)
    kept = [
        e
        for e, (a, b) in enumerate(zip(run.source.tolist(), run.target.tolist(), strict=True))
        if not any(a in before.get(c, ()) for c in before[b] if c != a)
    ]
    return np.array(kept, np.int64)


# --- checking -----------------------------------------------------------------------------------


def problems(trace: Any) -> list[str]:
    """What a viewer would drop or refuse of a trace, in words; nothing if it is as it should be."""
    found: list[str] = []
    listed = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(listed, list):
        return ["no list traceEvents"]
    tracks: dict[tuple[Any, Any], list[tuple[int, int, str]]] = {}
    flows: dict[Any, list[Event]] = {}
    counters: dict[str, float] = {}
    named, timed = set(), False
    for k, e in enumerate(listed):
        missing = [field for field in ("ph", "pid", "tid", "name") if field not in e]
        if e.get("ph") != "M" and "ts" not in e:
            missing.append("ts")
        if missing:
            found.append(f"event {k} has no {', '.join(missing)}")
            continue
        kind = e["ph"]
        if kind == "M":
            if timed:
                found.append(f"event {k}: {e['name']} stands behind events with a time")
            if e["name"] == "thread_name":
                named.add(e["tid"])
            continue
        timed = True
        if e["ts"] < 0 or round(e["ts"], 3) != e["ts"]:
            found.append(f"event {k} {e['name']}: ts {e['ts']} is no whole number of nanoseconds")
        begin = round(e["ts"] * 1000)
        if kind == "X":
            if e.get("dur", -1) < 0:
                found.append(f"event {k} {e['name']}: dur {e.get('dur')}")
                continue
            span = (begin, begin + round(e["dur"] * 1000), e["name"])
            tracks.setdefault((e["pid"], e["tid"]), []).append(span)
        elif kind in "sf":
            flows.setdefault((e.get("cat"), e["name"], e.get("id")), []).append(e)
        elif kind == "C":
            if e["ts"] < counters.get(e["name"], 0):
                found.append(f"counter {e['name']} goes back in time at {e['ts']}")
            counters[e["name"]] = e["ts"]
        elif kind != "i":
            found.append(f"event {k}: phase {kind!r} is not one of M X s f C i")
    for (_, tid), spans in tracks.items():
        if tid not in named:
            found.append(f"track {tid} has no name")
        found += _overlaps(tid, spans)
    covers = {track: _cover(spans) for track, spans in tracks.items()}
    for key, pair in flows.items():
        found += _flow_problems(key, pair, covers)
    return found


def _overlaps(tid: Any, spans: list[tuple[int, int, str]]) -> Iterator[str]:
    open_: list[tuple[int, str]] = []
    for begin, end, name in sorted(spans, key=lambda s: (s[0], -s[1])):
        while open_ and open_[-1][0] <= begin:
            open_.pop()
        if open_ and end > open_[-1][0]:
            yield f"track {tid}: {name} at {begin / 1000} us overlaps {open_[-1][1]}, not nested"
        open_.append((end, name))


def _cover(spans: list[tuple[int, int, str]]) -> tuple[list[int], list[int]]:
    """Begins of the slices in order, and for each the latest end of it and those before."""
    ordered = sorted(spans)
    return [s[0] for s in ordered], list(itertools.accumulate((s[1] for s in ordered), max))


def _flow_problems(key: Any, pair: list[Event], covers: Any) -> Iterator[str]:
    if [e["ph"] for e in pair] not in (["s", "f"], ["f", "s"]):
        yield f"flow {key} is not one s and one f"
        return
    for e in pair:
        at = round(e["ts"] * 1000)
        begins, ends = covers.get((e["pid"], e["tid"]), ([], []))
        k = bisect.bisect_right(begins, at) - 1
        if k < 0 or ends[k] < at:
            yield f"flow {key}: its {e['ph']} at {e['ts']} us is in no slice of track {e['tid']}"
        if e["ph"] == "f" and e.get("bp") != "e":
            yield f"flow {key}: its f has no bp e"
