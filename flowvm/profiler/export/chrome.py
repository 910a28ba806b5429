"""Chrome trace events, as Perfetto reads them: a track for each stream, edges as flows.

Rules that viewers do not forgive, and `trace_rules.problems` checks: the slices of a track are
nested or disjoint (others are dropped); a flow begins inside the slice of the producer and ends at
the start of the consumer's; both have one id, name and category.  Dense flows freeze viewers, so by
default only the gating edge of each instruction is one.  What launches side by side overlap on a
track goes to a track beside it.  Times are microseconds with three decimals: nanoseconds, exactly.

A run of 100,000 instructions is 700,000 events.  So an event is never an object here: what all of
a kind have in common is a pattern, and what differs are columns; only order is looked at once all
are there.

The format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.files.writer import put
from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.shares import helper_name
from flowvm.profiler.analysis.waits import STATES, device_of
from flowvm.profiler.export.arrows import messages, reduced
from flowvm.profiler.export.intervals import beside, microseconds
from flowvm.profiler.grammar import ACCESS
from flowvm.profiler.run.columns import CAUSES
from flowvm.profiler.run.rows import distinct
from flowvm.profiler.run.spaces import spaces_of
from flowvm.profiler.views.spots import origin_of
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.edges import HAZARDS
from flowvm.vm.machine.words import KIND, STR

EDGES = ("gating", "all", "none")
PID = 1  # the host; device k is PID + 1 + k
# track numbers: one group each, so that they stand together
PATH, PYTHON, SPANS, STREAMS, WAITS, TASKS, HELPERS = 1, 10, 500, 1000, 3000, 4000, 5000
BESIDE = 20  # tracks of one stream


def write(profile: ProfileLike, path: Path, edges: str = "gating") -> None:
    """Write the trace; compressed if the name ends in .gz."""
    write_events(",\n".join(_Trace(profile, edges).lines()), path)


def write_events(listed: str, path: Path) -> None:
    """Write events, as JSON with commas between them, as a trace."""
    text = '{"traceEvents":[\n' + listed + '\n],"displayTimeUnit":"ns"}'
    packed = path.name.endswith(".gz")
    put(path, gzip.compress(text.encode(), 5) if packed else text, "export")


def events(profile: ProfileLike, edges: str = "gating") -> list[dict[str, Any]]:
    """The events of a Profile: names of tracks first, then by time.

    ArgumentError if `edges` is none of EDGES.
    """
    events: list[dict[str, object]] = json.loads(f"[{','.join(_Trace(profile, edges).lines())}]")
    return events


def _quoted(texts: Iterable[str]) -> list[str]:
    return [json.dumps(text) for text in texts]


def _picked(texts: Sequence[str], numbers: Array) -> list[str]:
    return [texts[k] for k in numbers.tolist()]


class _Trace:
    """The events of a Profile as text, group after group, and what they are ordered by."""

    def __init__(self, profile: ProfileLike, edges: str) -> None:
        if edges not in EDGES:
            raise ArgumentError(f"edges={edges!r}: one of {', '.join(EDGES)}")
        self.profile, self.run = profile, profile.run
        self.tracks: dict[tuple[int, int], str] = {}
        self.at: list[Array] = []
        self.length: list[Array] = []
        self.text: list[str] = []
        self.names, self.line = _quoted(self.run.names), _quoted(self.run.lines)
        self.place = np.full(len(self.run), -1)  # instruction -> track
        self._slices()
        self._tasks()
        self._helpers()
        self._gaps()
        self._python()
        self._spans()
        self._path()
        self._counters()
        if edges != "none":
            self._flows(edges)
            self._messages()

    def lines(self) -> list[str]:
        """All events in their order, names of tracks first."""
        if not self.text:
            return self._names()
        at, length = np.concatenate(self.at), np.concatenate(self.length)
        return [*self._names(), *_picked(self.text, np.lexsort((-length, at)))]

    def _names(self) -> list[str]:
        events = []

        def write_metadata(pid: int, tid: int, what: str, **args: object) -> None:
            event = {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}
            events.append(json.dumps(event, separators=(",", ":")))

        for pid in sorted({PID, *(pid for pid, _ in self.tracks)}):
            write_metadata(
                pid, 0, "process_name", name="flowvm" if pid == PID else f"cuda:{pid - PID - 1}"
            )
            write_metadata(pid, 0, "process_sort_index", sort_index=pid)
        for (pid, tid), name in sorted(self.tracks.items()):
            write_metadata(pid, tid, "thread_name", name=name)
            write_metadata(pid, tid, "thread_sort_index", sort_index=tid)
        return events

    # --- adding -----------------------------------------------------------------------------------

    def track(self, tid: int, name: str, stream: int | None = None) -> str:
        """Name a track; how events on it begin.  One of a device's stream is the device's."""
        pid = PID if stream is None else PID + 1 + device_of(self.run.streams[stream])
        self.tracks[pid, tid] = name
        return f'"pid":{pid},"tid":{tid},'

    def slices(
        self,
        track: list[str] | str,
        names: Sequence[str],
        begin: Array,
        end: Array,
        args: Iterable[str],
    ) -> None:
        """Add slices on a track, or each on one of its own; names are JSON, args what stands in
        the braces.
        """
        at, length = begin - self.run.begun, np.maximum(1, end - begin)
        tracks = [track] * len(at) if isinstance(track, str) else track
        self.at.append(at)
        self.length.append(length)
        self.text += [
            f'{{"ph":"X",{t}"name":{name},"ts":{ts},"dur":{dur},"args":{{{a}}}}}'
            for t, name, ts, dur, a in zip(
                tracks, names, microseconds(at), microseconds(length), args, strict=True
            )
        ]

    def points(self, moments: Array, texts: Iterable[str]) -> None:
        """Add events without a length: all that they are, but for the time."""
        at = np.maximum(moments - self.run.begun, 0)
        self.at.append(at)
        self.length.append(np.zeros(len(at), np.int64))
        self.text += [
            f'{{{text},"ts":{ts}}}' for text, ts in zip(texts, microseconds(at), strict=True)
        ]

    # --- what there is ----------------------------------------------------------------------------

    def _slices(self) -> None:
        run, finished = self.run, self.profile.order.finished
        started, ended = run.time("started"), run.time("ended")
        shown = np.flatnonzero(finished & ~np.isin(run.kind, (KIND.TOUCH, KIND.BARRIER)))
        for stream in np.unique(run.stream[shown]).tolist():
            own = shown[run.stream[shown] == stream]
            own = own[np.argsort(started[own], kind="stable")]
            rows = np.minimum(beside(started[own], ended[own]), BESIDE - 1)
            self.place[own] = STREAMS + stream * BESIDE + rows
            tracks = [
                self.track(STREAMS + stream * BESIDE + row,
                           run.streams[stream] + (f" +{row}" if row else ""), stream)
                for row in range(int(rows.max(initial=0)) + 1)
            ]  # fmt: skip
            names = _picked(self.names, run.op[own])
            self.slices(_picked(tracks, rows), names, started[own], ended[own], self._about(own))

    def _about(self, own: Array) -> list[str]:
        """The arguments of instructions' slices."""
        run, waits = self.run, self.profile.waits
        operands = self._operands()
        first, last = run.offsets[own].tolist(), run.offsets[own + 1].tolist()
        example, which = distinct(np.column_stack((run.module, run.forward, run.forward_spot))[own])
        origins = [
            json.dumps(origin_of(run, i).known(), separators=(",", ":"))[1:-1]
            for i in own[example].tolist()
        ]
        columns = (
            run.seq, run.line, run.nbytes, run.flops, run.status, waits.dep, waits.queue,
            waits.sched,
        )  # fmt: skip
        line = self.line
        return [
            f'"id":{seq},"line":{line[at]},"bytes":{nbytes},"flops":{flops},"status":{status},'
            f'{origins[origin]}{"," if origins[origin] else ""}"wait_dep_ns":{dep},'
            f'"wait_queue_ns":{queue},"wait_sched_ns":{sched},'
            f'"operands":[{",".join(operands[a:b])}]'
            for seq, at, nbytes, flops, status, dep, queue, sched, origin, a, b in zip(
                *(c[own].tolist() for c in columns), which.tolist(), first, last,
                strict=True,
            )
        ]  # fmt: skip

    def _operands(self) -> list[str]:
        styles = [ACCESS[k][2] for k in range(len(ACCESS))]
        access, tensor = (self.run.access & 3).tolist(), self.run.tensor.tolist()
        return [f'"{styles[a]} t{t}"' for a, t in zip(access, tensor, strict=True)]

    def _tasks(self) -> None:
        """Tasks of graphs' replays, on a track beside their stream's."""
        run, modules = self.run, _quoted(self.run.modules)
        order = np.lexsort((run.tasks.times[:, 0], run.tasks.stream))
        for stream in np.unique(run.tasks.stream).tolist():
            own = order[run.tasks.stream[order] == stream]
            track = self.track(TASKS + stream, f"{run.streams[stream]} graph tasks", stream)
            args = (
                f'"launch":{launch},"task":{task},"line":{self.line[line]},"module":{modules[m]}'
                for launch, task, line, m in zip(
                    run.seq[run.tasks.launch[own]].tolist(), run.tasks.number[own].tolist(),
                    run.tasks.line[own].tolist(), run.tasks.module[own].tolist(), strict=True,
                )
            )  # fmt: skip
            names = _picked(self.names, run.tasks.op[own])
            begin, end = run.tasks.times[own].T
            self.slices(track, names, begin, end, args)

    def _helpers(self) -> None:
        """Shares of helpers in large kernels, a track each."""
        run = self.run
        order = np.argsort(run.shares.times[:, 0], kind="stable")
        who = np.column_stack((run.shares.stream, run.shares.helper))[order]
        for stream, helper in who[distinct(who)[0]].tolist():
            own = order[(who == (stream, helper)).all(axis=1)]
            tid = HELPERS + stream * STR.MAX_TEAM + helper
            track = self.track(tid, helper_name(run, stream, helper))
            of = run.shares.of[own]
            args = (
                f'"id":{seq},"chunks":{chunks}'
                for seq, chunks in zip(
                    run.seq[of].tolist(), run.shares.chunks[own].tolist(), strict=True
                )
            )
            begin, end = run.shares.times[own].T
            self.slices(track, _picked(self.names, run.op[of]), begin, end, args)

    def _gaps(self) -> None:
        """Write the gaps of each stream, with their causes."""
        states = _quoted(STATES)
        for lane in self.profile.lanes:
            name = f"{self.run.streams[lane.stream]} waits"
            track = self.track(WAITS + lane.stream, name, lane.stream)
            own = lane.state != STATES.index("run")
            names = _picked(states, lane.state[own])
            self.slices(
                track, names, lane.begin[own], lane.end[own], self._named(lane.instruction[own])
            )

    def _named(self, instructions: Array) -> list[str]:
        """Number and operator, where there is an instruction."""
        run = self.run
        seq, op = run.seq[instructions].tolist(), run.op[instructions].tolist()
        return [
            f'"id":{s},"op":{self.names[o]}' if i >= 0 else ""
            for i, s, o in zip(instructions.tolist(), seq, op, strict=True)
        ]

    def _python(self) -> None:
        """Waits of the issuing threads."""
        run, causes = self.run, _quoted(CAUSES)
        order = np.argsort(run.waits.times[:, 0], kind="stable")
        for k, thread in enumerate(dict.fromkeys(run.waits.thread.tolist())):
            own = order[run.waits.thread[order] == thread]
            begin, end = run.waits.times[own].T
            begin = np.maximum(begin, np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1])))
            real = end > begin
            track = self.track(PYTHON + k, f"python {thread}" if k else "python")
            names = _picked(causes, run.waits.cause[own][real])
            self.slices(track, names, begin[real], end[real], [""] * len(names))
            synced = begin[real & (run.waits.cause[own] == CAUSES.index("sync"))]
            self.points(
                synced, [f'"ph":"i","s":"t",{track}"name":"sync","args":{{}}'] * len(synced)
            )

    def _spans(self) -> None:
        """Add the user's spans, a track for each thread; a marked moment is a point."""
        run = self.run
        threads = list(dict.fromkeys(run.waits.thread.tolist()))  # in the order of their tracks
        threads += [t for t in dict.fromkeys(m[3] for m in run.marks) if t not in threads]
        for k, thread in enumerate(threads):
            own = [m for m in run.marks if m[3] == thread]
            if not own:
                continue
            track = self.track(SPANS + k, f"spans {thread}" if k else "spans")
            spans = [m for m in own if m[2] > m[1]]
            times = np.array([m[1:3] for m in spans], np.int64).reshape(-1, 2)
            begin, end = np.clip(times, run.begun, run.ended).T
            args = (f'"instructions":{last - first}' for *_, first, last in spans)
            self.slices(track, _quoted(m[0] for m in spans), begin, end, args)
            points = [m for m in own if m[2] == m[1]]
            self.points(
                np.array([m[1] for m in points], np.int64),
                [f'"ph":"i","s":"t",{track}"name":{json.dumps(m[0])},"args":{{}}' for m in points],
            )

    def _path(self) -> None:
        """The observed path as a track of its own: viewers cannot mark slices of others."""
        run, path = self.run, self.profile.observed
        names, about = [], []
        for s in path:
            i = s.instruction
            names.append(json.dumps(s.cause if i < 0 else f"{s.cause} {run.names[run.op[i]]}"))
            about.append(f'"id":{run.seq[i]},"line":{self.line[run.line[i]]}' if i >= 0 else "")
        begin = np.array([s.begin for s in path], np.int64)
        end = np.array([s.end for s in path], np.int64)
        self.slices(self.track(PATH, "critical path"), names, begin, end, about)

    def _counters(self) -> None:
        """Bytes of each memory, and instructions that are issued and not released."""
        run = self.run
        for space in spaces_of(run):
            memory = self.profile.memory_of(space)
            self._counter(PID + 1 + device_of(space), "memory", "bytes", memory.time, memory.nbytes)
        issued, released = run.time("issued"), run.time("released")
        moments = np.concatenate((issued[issued > 0], released[released > 0]))
        change = np.repeat((1, -1), ((issued > 0).sum(), (released > 0).sum()))
        order = np.argsort(moments, kind="stable")
        level = np.cumsum(change[order])
        self._counter(PID, "in flight", "instructions", moments[order], level)

    def _counter(self, pid: int, name: str, of: str, moments: Array, values: Array) -> None:
        """A counter; of several values of one moment the last is what was."""
        last = np.append(moments[1:] != moments[:-1], True)[: len(moments)]
        head = f'"ph":"C","pid":{pid},"tid":0,"name":"{name}","args":{{"{of}":'
        self.points(moments[last], [f"{head}{n}}}" for n in values[last].tolist()])

    def _messages(self) -> None:
        """Add the messages between actors of a graph: from an actor's last task of a launch to
        the first task of the receiver.
        """
        run, number = self.run, len(self.run.source)
        for name, plan in run.info.get("plans", {}).items():
            for (a, a_end), (b, b_begin) in messages(run, name, plan):
                number += 1
                about = f'"cat":"message","name":"message","id":{number}'
                for head, task, moment in (
                    ('"ph":"s"', a, max(int(run.tasks.times[a, 0]), a_end - 1)),
                    ('"ph":"f","bp":"e"', b, b_begin),
                ):
                    stream = int(run.tasks.stream[task])
                    pid = PID + 1 + device_of(run.streams[stream])
                    where = f'"pid":{pid},"tid":{TASKS + stream}'
                    self.points(np.array([moment]), [f"{head},{where},{about}"])

    def _flows(self, edges: str) -> None:
        run, place = self.run, self.place
        started, ended = run.time("started"), run.time("ended")
        chosen = reduced(run) if edges == "all" else np.arange(len(run.source))
        source, target = run.source[chosen], run.target[chosen]
        shown = (place[source] >= 0) & (place[target] >= 0)
        if edges == "gating":
            shown &= self.profile.order.producer[target] == source
        chosen, source, target = chosen[shown], source[shown], target[shown]
        kinds = [ACCESS[k][2] for k in range(len(ACCESS))]
        both = [
            f'"cat":"{kinds[a]}","name":"{kinds[a]} {HAZARDS[h]}","id":{number}'
            for number, (a, h) in enumerate(
                zip((run.access[run.operand[chosen]] & 3).tolist(), run.hazard[chosen].tolist(),
                    strict=True), 1
            )
        ]  # fmt: skip
        pids = {tid: pid for pid, tid in self.tracks}
        where = {tid: f'"pid":{pid},"tid":{tid}' for tid, pid in pids.items()}
        last = np.maximum(started[source], ended[source] - 1)  # inside the slice, which ends before
        for head, of, moments in (
            ('"ph":"s"', source, last), ('"ph":"f","bp":"e"', target, started[target]),
        ):  # fmt: skip
            tids = place[of].tolist()
            texts = [f"{head},{where[t]},{b}" for t, b in zip(tids, both, strict=True)]
            self.points(moments, texts)
