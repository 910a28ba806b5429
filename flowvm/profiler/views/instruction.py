"""One instruction as a value: `p.instr[311]`, with what it used, waited for and held up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.profiler.analysis.shares import Helped, helpers_of
from flowvm.profiler.grammar import ACCESS, Screen, View, cropped, ms, rate, size
from flowvm.profiler.run.devices import TIMED, steps_of
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.query import KINDS
from flowvm.profiler.views.spots import Origin, Spot, origin_of, spot_of
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.profiler.views.why import steps
from flowvm.vm.machine.edges import HAZARDS
from flowvm.vm.machine.words import KIND, OPERAND

MOST = 6  # operands, neighbours or tasks that are named


@dataclass(frozen=True)
class Used:
    """An operand: a tensor of the run, and how it was used.  `made`: its memory was given here."""

    tensor: int
    access: int
    nbytes: int
    made: bool


@dataclass(frozen=True)
class Met:
    """Another instruction, and the edge between: what it is about, and why."""

    seq: int
    op: str
    hazard: str
    tensor: int


@dataclass(frozen=True, repr=False)
class Instr(View):
    """See the module.  Times are nanoseconds, `times` from the start of the run, -1: not yet."""

    seq: int
    op: str
    kind: str
    stream: str
    line: str
    spot: Spot
    origin: Origin
    times: tuple[tuple[str, int], ...]
    run: int
    dep: int
    queue: int
    sched: int
    nbytes: int
    flops: int
    status: int
    critical: bool
    operands: tuple[Used, ...]
    waits_for: tuple[Met, ...]
    blocks: tuple[Met, ...]
    tasks: tuple[tuple[int, str, int], ...]  # of a launch: number, operator, ns
    stack: tuple[str, ...]  # lines, innermost first, at level 3
    helpers: tuple[Helped, ...] = ()  # that took part, from level 2 on
    timed: str = ""  # of a device's: whose its times are

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        head = (f"#{self.seq} {self.op}", "critical" if self.critical else "id")
        note = "  on the critical path" if self.critical else ""
        failed = f"  failed: status {self.status}" if self.status else ""
        screen.add(head, f"  {self.stream}  ", (self.line, "line"), (note, "critical"),
                   (failed, "bad"))  # fmt: skip
        screen.lines += self.spot.lines(4, width) + self.origin.lines(1, width)
        screen.add(" ", (steps(self.times, width - 1), "head"))
        facts = [f"ran {ms(self.run)} ms" + (f", {self.timed}" if self.timed else "")]
        if self.nbytes:
            facts.append(size(self.nbytes))
        if self.run and self.nbytes:
            facts.append(f"{rate(self.nbytes / self.run)} GB/s")
        if self.run and self.flops:
            facts.append(f"{rate(self.flops / self.run)} GFLOP/s")
        waits = (("dep", self.dep), ("queue", self.queue), ("sched", self.sched))
        screen.add(" " + " · ".join(facts))
        screen.add(" waited ", *((f" {name} {ms(t)} ", name) for name, t in waits), " ms")
        for used in self.operands[:MOST]:
            style = ACCESS[used.access][2]
            origin = "  made here" if used.made else ""
            nbytes = size(used.nbytes) if used.nbytes else ""
            screen.add(" ", (f"{style:5s}", style), f" t{used.tensor}  {nbytes}{origin}")
        if len(self.operands) > MOST:
            screen.add(f" and {len(self.operands) - MOST} operands more")
        for title, others in ((" waits for ", self.waits_for), (" blocks    ", self.blocks)):
            if others:
                named = [f"#{o.seq} {o.op} (t{o.tensor} {o.hazard})" for o in others[:MOST]]
                more = f" and {len(others) - MOST} more" if len(others) > MOST else ""
                screen.add((title, "head"), cropped(", ".join(named) + more, width - len(title)))
        if self.tasks:
            longest = sorted(self.tasks, key=lambda t: -t[2])[:MOST]
            named = [f".{number} {op} {ms(t)} ms" for number, op, t in longest]
            screen.add((f" {len(self.tasks)} tasks ", "head"),
                       cropped(", ".join(named), width - 12))  # fmt: skip
        if self.helpers:
            named = [f"{h.name} {ms(h.run)} ms, {h.chunks} chunks" for h in self.helpers[:MOST]]
            more = f" and {len(self.helpers) - MOST} more" if len(self.helpers) > MOST else ""
            text = "beside the worker: " + "; ".join(named) + more
            screen.add((f" {1 + len(self.helpers)} threads ", "head"), cropped(text, width - 12))
        if self.stack:
            screen.add((" stack ", "head"), cropped(" ← ".join(self.stack), width - 8))
        return screen.cut(width)


class Instrs:
    """The instructions of a Profile by number: `p.instr[311]`."""

    def __init__(self, profile: ProfileLike) -> None:
        self._profile = profile

    def __len__(self) -> int:
        return len(self._profile.run)

    def __iter__(self) -> Iterator[Instr]:
        return (_instruction(self._profile, i) for i in range(len(self)))

    def __getitem__(self, seq: int) -> Instr:
        """ArgumentError: there is no instruction of that number in the run."""
        if isinstance(seq, bool) or not isinstance(seq, (int, np.integer)):
            raise ArgumentError(f"instr[{seq!r}]: the number of an instruction")
        return _instruction(self._profile, self._profile.run.index(int(seq)))

    def __repr__(self) -> str:
        run: Run = self._profile.run
        if not len(run):
            return "<no instructions>"
        return f"<{len(run)} instructions, #{run.seq[0]} to #{run.seq[-1]}: p.instr[{run.seq[-1]}]>"


def _instruction(profile: ProfileLike, i: int) -> Instr:
    run: Run = profile.run
    first, last = int(run.offsets[i]), int(run.offsets[i + 1])
    operands = [
        Used(int(run.tensor[k]), int(run.access[k]) & 3, int(run.size[k]),
             bool(int(run.access[k]) & OPERAND.ALLOCATE))
        for k in range(first, last)
    ]  # fmt: skip
    a, b = np.searchsorted(run.target, [i, i + 1])
    mine = np.flatnonzero(run.tasks.launch == i)
    lasted = run.tasks.times[mine, 1] - run.tasks.times[mine, 0]
    waits = profile.waits
    stack = next((s[1:] for s in run.stacks if s[0] == i), ())
    return Instr(
        int(run.seq[i]),
        run.names[run.op[i]],
        KINDS[int(run.kind[i])],
        run.streams[run.stream[i]],
        run.lines[run.line[i]],
        spot_of(run, i), origin_of(run, i),
        steps_of(run, i),
        max(0, int(run.time("ended")[i] - run.time("started")[i])),
        int(waits.dep[i]), int(waits.queue[i]), int(waits.sched[i]),
        int(run.nbytes[i]), int(run.flops[i]), int(run.status[i]),
        any(s.cause == "run" and s.instruction == i for s in profile.observed),
        tuple(operands),
        tuple(_meeting_of(run, e, int(run.source[e])) for e in range(int(a), int(b))),
        tuple(_meeting_of(run, e, int(run.target[e]))
              for e in np.flatnonzero(run.source == i).tolist()
              if run.kind[run.target[e]] != KIND.RELEASE),
        tuple(zip(run.tasks.number[mine].tolist(),
                  (run.names[k] for k in run.tasks.op[mine]), lasted.tolist(), strict=True)),
        tuple(run.lines[k] for k in stack),
        helpers_of(run, i), TIMED[int(run.clock[i])],
    )  # fmt: skip


def _meeting_of(run: Run, edge: int, other: int) -> Met:
    return Met(
        int(run.seq[other]),
        run.names[run.op[other]],
        HAZARDS[run.hazard[edge]],
        int(run.tensor[run.operand[edge]]),
    )
