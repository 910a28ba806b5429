"""Watching a VM that runs, from another process or from its own.

A `Watcher` asks a VM's window (`flowvm.vm.watch.window`) what it shows, and counts here: the last
1,024 instructions become a `Run`, so utilisation and causes of idling are those of `Profile.lanes`,
and what streams did in full is counted, not sampled (instructions a second, in flight, memory).
The VM is never stopped; a row that was written while it was copied is left out.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.analysis.waits import lanes
from flowvm.profiler.run.columns import CAUSES
from flowvm.profiler.run.rows import operands_of, sizes_of
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.live import Live, StreamNow
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.edges import connect, tensors_of
from flowvm.vm.machine.words import ARRAY, CTL, ENT, INS, KIND, OPERAND, REC, RING, STATE, STR
from flowvm.vm.watch import window
from flowvm.vm.watch.device_times import place_on_devices
from flowvm.vm.watch.flight import TIMES
from flowvm.vm.watch.in_flight import NAMES
from flowvm.vm.watch.spaces import Space

WINDOW_S = 5.0  # what shares and rates are of
SPARKS = 8
LEAST = 0.01  # shares below are not shown
UNCOMPILED = (
    "the VM is being compiled, once for this machine: until then Python does its work, and slowly"
)


def _own(question: dict[str, object]) -> tuple[dict[str, object], list[tuple[int, bytes]]]:
    """The answer of this process to itself."""
    header, parts = window.answer(engine, question)
    header["fronts"] = {str(k): v for k, v in header["fronts"].items()}
    return header, [(first, bytes(engine.words[first : first + n])) for first, n in parts]


@dataclass
class _Look:
    """The addition of one look to the window: counters at its moment, and sums of its sample."""

    now: int
    finished: dict[str, int]
    received: int
    scheduled: int  # processor time of the scheduler so far, ns
    wall: int  # of the sample
    states: dict[str, dict[str, int]] = field(default_factory=dict)  # stream -> state -> ns
    lines: dict[str, list[int]] = field(default_factory=dict)  # line -> [ns run, ns waited]
    waits: dict[str, int] = field(default_factory=dict)  # cause -> how many


class Watcher:
    """Looks at the VM of process `pid`, by default this one's, when `look` or `ring` is called.

    VMError from it when that process shows none.
    """

    def __init__(self, pid: int | None = None, most: int = window.SAMPLE) -> None:
        self.pid = os.getpid() if pid is None else pid
        self.most = most
        own = self.pid == os.getpid()
        self._ask: Callable[..., Any] = _own if own else lambda q: window.ask(self.pid, q)
        # the other VM's words, as far as they were shown; what was not touched takes no memory
        self._m = np.zeros(ARRAY.WORDS, np.int64)
        self._names: list[str] = []
        self._reused = 0
        self._bytes: list[int] = []
        self._since = self._waited = 0
        self._looks: collections.deque[_Look] = collections.deque()
        self._rates: collections.deque[float] = collections.deque(maxlen=SPARKS)
        self._moved = (-1, 0)  # instructions done, and since when it is so many
        self.dump = ""  # what `flow.vm.dump()` says there, if `look(dump=True)` asked for it

    # --- asking -------------------------------------------------------------------------------

    def _shown(self, most: int, since: int, dump: bool = False) -> dict[str, Any]:
        question = {
            "since": since, "most": most, "entries": len(self._names), "waits": self._waited,
            "dump": dump,
        }  # fmt: skip
        header = self._take(question)
        if header["reused"] != self._reused:  # numbers have other names now
            self._reused = header["reused"]
            self._take({"since": header["received"], "most": 0, "entries": 0})
        while len(self._names) < header["of"]:  # names come some thousand at a time
            more = {"since": header["received"], "most": 0, "entries": len(self._names)}
            if not self._take(more)["names"]:
                break
        self.dump = header.get("dump", "")
        fields: dict[str, object] = header
        return fields

    def _take(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask, and keep the words and names that are shown."""
        header: dict[str, Any]
        header, parts = self._ask(question)
        for first, raw in parts:
            self._m[first : first + len(raw) // 8] = np.frombuffer(raw, np.int64)
        del self._names[header["entries"] :], self._bytes[header["entries"] :]
        self._names += header["names"]
        self._bytes += header["bytes"]
        return header

    def _name(self, entry: int) -> str:
        kind = int(self._m[ENT.AT + entry * ENT.WORDS + ENT.KIND])
        name = self._names[entry] if entry < len(self._names) else "?"
        return name or NAMES.get(kind, "?")

    def ring(self, most: int = REC.LENGTH) -> Run:
        """Return the other process's last `most` instructions as a Run: times, operators, lines,
        operands, the bytes of those that are made in it, and spans.
        """
        return self._run(self._shown(most, 0), 0)

    def look(self, dump: bool = False) -> Live:
        """Look once: what there is to see of the last seconds."""
        # what was in flight at the last look has ended since
        head = self._shown(self.most, self._since, dump)
        last = self._looks[-1] if self._looks else None
        run = self._run(head, last.now if last else 0)
        look = self._counted(head, run)
        self._since = head["head"]
        self._waited = max([self._waited, *(x[2] for x in head["waits"])])
        if last:
            seconds = (look.now - last.now) / 1e9
            self._rates.append((look.received - last.received) / seconds)
        self._looks.append(look)
        while len(self._looks) > 2 and (look.now - self._looks[1].now) / 1e9 >= WINDOW_S:
            self._looks.popleft()
        return self._view(head)

    # --- counting -----------------------------------------------------------------------------

    def _run(self, head: dict[str, Any], begun: int) -> Run:
        """The sample as a Run that ends now; what runs now is taken to end now."""
        m, first, received = self._m, head["first"], head["received"]
        seqs = np.arange(first, received)
        ring = m[REC.AT : REC.AT + REC.LENGTH * REC.WORDS].reshape(-1, REC.WORDS)
        rows = ring[seqs & REC.MASK]
        (t0, n0), (t1, n1) = head["zero"], head["clocks"]
        scale = (n1 - n0) / (t1 - t0) if t1 > t0 else 1.0
        now = int(head["now"])
        self._add_running(head, rows, seqs, t1)
        stamps = rows[:, REC.ISSUED : REC.RELEASED + 1]
        over = stamps[:, -1] > 0
        torn = over & ((stamps[:, 4] == 0) | (stamps[:, 5] < stamps[:, 4]))
        good = (rows[:, REC.SEQ] == seqs + 1) & ~torn
        rows, stamps = rows[good], stamps[good]
        times = np.where(stamps == 0, 0, n1 + np.floor((stamps - t1) * scale).astype(np.int64))
        entry = rows[:, REC.WHAT] & ENT.MASK
        table = m[ENT.AT : ENT.AT + ENT.LENGTH * ENT.WORDS].reshape(-1, ENT.WORDS)
        kind = table[entry, ENT.KIND]
        offsets, owner, storage, access = operands_of(rows, table[entry])
        tensor = tensors_of(owner, storage, kind == KIND.RELEASE)
        edges = connect(owner, tensor, access & 3 != OPERAND.CONST)
        stream = rows[:, REC.WHAT] >> ENT.BITS
        times, opened, clock = place_on_devices(
            times, stream, kind, edges, int(m[CTL.DEVICES]), np.zeros((len(rows), 2), np.int64)
        )
        names, op = np.unique([self._name(e) for e in entry.tolist()], return_inverse=True)
        waits = [x for x in head["waits"] if x[2] > begun]
        starts = times[:, 4][times[:, 4] > 0]
        complete = first <= max(self._since, 1) and begun > 0
        since = begun if complete else int(starts.min(initial=now))
        nbytes = np.array([self._bytes[e] if e < len(self._bytes) else 0 for e in entry], np.int64)
        zeros = np.zeros(len(rows), np.int64)
        run = Run(
            begun=since, ended=now, names=names.tolist(), lines=head["lines"] or [""],
            streams=head["streams"], modules=[""], seq=seqs[good], op=op.astype(np.int32),
            kind=kind.astype(np.int8), stream=stream.astype(np.int16),
            line=np.array(head["line_of"], np.int32)[good], status=rows[:, REC.STATUS], times=times,
            opened=opened, clock=clock, nbytes=nbytes, flops=zeros, scratch=zeros, offsets=offsets,
            tensor=tensor.astype(np.int32), access=access.astype(np.int8),
            size=sizes_of(table[entry], offsets, owner, tensor, access),
            source=edges.source.astype(np.int32),
            target=edges.target.astype(np.int32), hazard=edges.hazard.astype(np.int8),
            operand=edges.operand.astype(np.int32),
            wait_cause=np.array([CAUSES.index(x[0]) for x in waits], np.int8),
            wait_times=np.array([x[1:3] for x in waits], np.int64).reshape(-1, 2),
            wait_thread=np.array([x[3] for x in waits], np.int64),
        )  # fmt: skip
        run.info = {
            "level": int(m[CTL.LEVEL]), "overwritten": first, "sources": {}, "bare": 0,
            "live": {row[0]: row[1] for row in head["memory"]}, "spaces": head["spaces"],
        }  # fmt: skip
        run.marks = [
            [*mark[:4], *np.searchsorted(run.seq, mark[4:]).tolist()]
            for mark in head["marks"] if mark[4] >= first
        ]  # fmt: skip
        return run

    def _add_running(self, head: dict[str, Any], rows: Array, seqs: Array, now: int) -> None:
        """Give what streams have in hand the time that it has taken so far."""
        for seq in head["fronts"].values():
            at = INS.AT + (seq & RING.SLOT_MASK) * INS.WORDS
            started = int(self._m[at + INS.T_START])
            if head["in_flight"] <= seq and self._m[at + INS.SEQ] == seq and len(seqs):
                place = seq - int(seqs[0])
                if place >= 0 and 0 < self._m[at + INS.T_DISPATCHED] <= started <= now:
                    row = rows[place]
                    row[REC.STARTED], row[REC.ENDED], row[REC.RELEASED] = started, now, now

    def _counted(self, head: dict[str, Any], run: Run) -> _Look:
        m = self._m
        finished = {
            name: int(m[STR.AT + s * STR.WORDS + STR.DONE])
            for s, name in enumerate(head["streams"])
        }
        look = _Look(head["now"], finished, head["received"], head["scheduled"], run.wall)
        if m[CTL.LEVEL] == 0:  # nothing is known of when anything ran
            look.states = {name: {} for name in head["streams"]}
            return look
        for lane in lanes(run):
            look.states[run.streams[lane.stream]] = lane.total
        times = run.times
        length = np.where(times[:, 5] > 0, times[:, 5] - np.maximum(times[:, 4], run.begun), 0)
        own = ~np.isin(run.kind, (KIND.TOUCH, KIND.BARRIER))
        spent = np.bincount(run.line[own], np.maximum(length[own], 0), len(run.lines))
        for line, ns in zip(run.lines, spent.tolist(), strict=True):
            if ns > 0:
                look.lines[line] = [int(ns), 0]
        line_of = dict(zip(run.seq.tolist(), run.line.tolist(), strict=True))
        for cause, begun, ended, _, seq in head["waits"]:
            if ended <= run.begun:
                continue
            look.waits[cause] = look.waits.get(cause, 0) + 1
            if cause != "jit" and seq in line_of:
                both = look.lines.setdefault(run.lines[line_of[seq]], [0, 0])
                both[1] += max(0, min(ended, run.ended) - max(begun, run.begun))
        return look

    def _view(self, head: dict[str, Any]) -> Live:
        m, looks = self._m, self._looks
        first, last = looks[0], looks[-1]
        recent = list(looks)[1:] or [last]
        seconds = max((last.now - first.now) / 1e9, 1e-9)
        wall = max(1, sum(x.wall for x in recent))
        ins = m[INS.AT : INS.AT + RING.SLOTS * INS.WORDS].reshape(-1, INS.WORDS)
        in_flight = ins[np.arange(head["in_flight"], head["received"]) & RING.SLOT_MASK]
        waiting = in_flight[
            (in_flight[:, INS.STATE] == STATE.PENDING) | (in_flight[:, INS.STATE] == STATE.READY)
        ]
        streams = []
        for s, name in enumerate(head["streams"]):
            at = STR.AT + s * STR.WORDS
            totals: dict[str, int] = {}
            for x in recent:  # a stream that ran nothing in a sample has no lane there
                for state, ns in x.states.get(name, {"host": x.wall}).items():
                    totals[state] = totals.get(state, 0) + ns
            count = last.finished[name] - first.finished.get(name, 0)
            tail = int(m[at + STR.TAIL])
            if name == "host" and not tail:
                continue
            causes = sorted(
                ((c, ns / wall) for c, ns in totals.items() if c != "run" and ns / wall >= LEAST),
                key=lambda c: -c[1],
            )
            running, line, since = self._running(head, s)
            streams.append(StreamNow(
                name, min(1.0, totals.get("run", 0) / wall), tail - last.finished[name],
                int((waiting[:, INS.STREAM] == s).sum()), running, line, since,
                tuple(causes),
                count / seconds if len(looks) > 1 else 0.0,
            ))  # fmt: skip
        finished = int(m[CTL.N_DONE]) + sum(last.finished.values())
        if finished != self._moved[0] or head["received"] == head["head"]:
            self._moved = (finished, last.now)
        lines: dict[str, list[int]] = {}
        for x in recent:
            for line, both in x.lines.items():
                sums = lines.setdefault(line, [0, 0])
                sums[0] += both[0]
                sums[1] += both[1]
        hot = sorted(((n or "(flowvm)", max(r, s) / wall, s / wall) for n, (r, s) in lines.items()),
                     key=lambda x: -x[1])  # fmt: skip

        def often(cause: str) -> float:
            counts = sum(x.waits.get(cause, 0) for x in recent)
            return counts / (wall / 1e9)

        return Live(
            pid=head["pid"], program=head["program"], up=(last.now - head["begun"]) / 1e9,
            window=min(WINDOW_S, seconds) if len(looks) > 1 else last.wall / 1e9,
            level=int(m[CTL.LEVEL]),
            rate=(last.received - first.received) / seconds if len(looks) > 1 else 0.0,
            rates=tuple(self._rates),
            step=_step(head["marks"], last.now),
            streams=tuple(streams), in_flight=head["received"] - head["head"], room=head["room"],
            syncs=often("sync"), compiled=often("jit"), compiling=tuple(head["compiling"]),
            captured_again=head["again"], errors=head["errors"],
            memory=tuple(Space(*row) for row in head["memory"]),
            lines=tuple(x for x in hot if x[1] >= LEAST), sampled=wall / 1e9,
            idle=(last.now - self._moved[1]) / 1e9,
            sched=self._scheduler(last.scheduled - first.scheduled, seconds, len(waiting)),
            note=UNCOMPILED if head["uncompiled"] else "",
        )  # fmt: skip

    def _scheduler(self, spent: int, seconds: float, waiting: int) -> StreamNow:
        """The scheduler as a row among the streams: what it received, the share of a processor
        that it had, and what is received and not dispatched.
        """
        looks = self._looks
        count = looks[-1].received - looks[0].received
        rate = count / seconds if len(looks) > 1 else 0.0
        util = min(1.0, spent / 1e9 / seconds) if len(looks) > 1 else 0.0
        return StreamNow("sched", util, 0, waiting, "", "", 0.0, (), rate)

    def _running(self, head: dict[str, Any], stream: int) -> tuple[str, str, float]:
        """Return the instruction that a stream runs, the line that issued it, and its time so
        far.
        """
        seq = head["fronts"].get(str(stream))
        at = INS.AT + (seq & RING.SLOT_MASK) * INS.WORDS if seq is not None else 0
        if seq is None or seq < head["first"] or self._m[at + INS.SEQ] != seq:
            return "", "", 0.0
        row = REC.AT + (seq & REC.MASK) * REC.WORDS
        name = self._name(int(self._m[row + REC.WHAT] & ENT.MASK))
        (t0, n0), (t1, n1) = head["zero"], head["clocks"]
        started = int(self._m[at + INS.T_START])
        fresh = 0 < self._m[at + INS.T_DISPATCHED] <= started
        seconds = (t1 - started) * ((n1 - n0) / max(1, t1 - t0)) / 1e9 if fresh else 0.0
        line = head["lines"][head["line_of"][seq - head["first"]]]
        return f"#{seq} {name}", line, max(0.0, seconds)


def _step(marks: list[list[Any]], now: int) -> tuple[str, float]:
    """Return the name of the last mark, and its rate per second since the oldest mark known."""
    if not marks:
        return "", 0.0
    name = marks[-1][0]
    ends = [mark[2] for mark in marks if mark[0] == name]
    return name, (len(ends) - 1) / max((now - ends[0]) / 1e9, 1e-9)


assert len(TIMES) == REC.RELEASED - REC.ISSUED + 1, "a column for each stamp"
