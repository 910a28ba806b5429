"""The reasons of one start: the instruction's waits, its producers' waits, and the instructions
that wait for it.

Every interval before its start has one cause (`flowvm.profiler.analysis.waits`): `dep` for the
producers, `queue` for its stream, `sched` for the VM.  The producer that ended last is the gating
one; the others had ended before, so making them faster would change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.profiler.analysis.shares import threads_of
from flowvm.profiler.grammar import ACCESS, Screen, View, ms
from flowvm.profiler.run.devices import TIMED, steps_of
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.explanation import explain
from flowvm.profiler.views.spots import Origin, Spot, origin_of, spot_of
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.edges import HAZARDS
from flowvm.vm.machine.words import KIND

DEPTH = 3  # gating producers that are followed back
FAR = 4096  # instructions that are followed back to the slow one
MOST = 4  # producers and dependents that are named


@dataclass(frozen=True)
class Producer:
    """Something that was waited for.  Times are ns; `held` is how long it alone would have been
    waited for, from the issue of what waits.
    """

    seq: int
    op: str
    operand: str
    access: int
    hazard: str
    ended: int
    held: int
    gating: bool
    stream: str
    line: str
    behind: Why | None  # of the gating one


@dataclass(frozen=True, repr=False)
class Why(View):
    """See the module.  Times are ns; those of `times` count from the start of the run."""

    seq: int
    op: str
    stream: str
    line: str
    spot: Spot  # the user's expression
    origin: Origin
    times: tuple[tuple[str, int], ...]
    dep: int
    queue: int
    sched: int
    run: int
    producers: tuple[Producer, ...]
    front: str  # what its stream ran in front of it
    blocks: tuple[str, ...]
    more_blocks: int
    what_if: tuple[tuple[str, int, int], ...]  # what, the floor now, the floor then
    threads: int = 1  # that ran it, as far as was recorded
    timed: str = ""  # of a device's: whose its times are
    slow: str = ""  # what ran longest on the way back to where nothing was waited for

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        screen.add((f"#{self.seq} {self.op}", "id"), f"  {self.stream}  ", (self.line, "line"))
        screen.lines += self.spot.lines(4, width) + self.origin.lines(2, width)
        screen.add((steps(self.times, width), "head"))
        self._causes(screen, "")
        if self.slow:
            screen.add("├─ slow   ", (self.slow, "critical"))
        for k, text in enumerate(self.blocks):
            more = (
                f" and {self.more_blocks} more"
                if self.more_blocks and k + 1 == len(self.blocks)
                else ""
            )
            screen.add("├─ blocks ", (text + more, ""))
        for what, before, after in self.what_if:
            screen.add("├─ what-if  ", f"{what}: floor {ms(before)} → {ms(after)} ms")
        if screen.lines:  # the last branch ends the tree
            last = screen.lines[-1][0]
            screen.lines[-1][0] = (last[0].replace("├─", "╰─", 1), last[1])
        return screen.cut(width)

    def _causes(self, screen: Screen, indent: str) -> None:
        for p in self.producers:
            glyph, _, style = ACCESS[p.access]
            # in front: a narrow screen cuts what stands between it and the line
            mark = "[gating]" if p.gating else "[not gating]"
            screen.add(
                f"{indent}├─ ", ("dep  ", "dep"), f"{ms(p.held)} ms  ",
                (mark, "critical" if p.gating else "head"), f"  {p.operand} ",
                (f"({style})", style),
                f" ◄{glyph[0]} #{p.seq} {p.op}  {p.hazard}  ended {ms(p.ended)}",
                (f"  {p.line}", "line"),
            )  # fmt: skip
            if p.behind is not None:
                behind = p.behind
                screen.add(
                    f"{indent}│  ", (f"#{p.seq} waited ", "head"),
                    f"dep {ms(behind.dep)}  queue {ms(behind.queue)}  sched {ms(behind.sched)}  "
                    f"and ran {ms(behind.run)} ms",
                )  # fmt: skip
                behind._causes(screen, f"{indent}│  ")
        if not indent:
            behind_what = f" behind {self.front}" if self.front and self.queue else ""
            screen.add(
                "├─ ", ("queue", "queue"), f" {ms(self.queue)} ms{behind_what}   ",
                ("sched", "sched"), f" {ms(self.sched)} ms   ",
                ("ran", "run"), f" {ms(self.run)} ms",
                f" on {self.threads} threads" if self.threads > 1 else "",
                (f", {self.timed}" if self.timed else "", "head"),
            )  # fmt: skip


def steps(times: Sequence[tuple[str, int]], width: int) -> str:
    """Return the times of an instruction's stages in one line; without the VM's own stages if there
    is no room.
    """
    own = ("received", "dispatched")
    for left_out in ((), own, (*own, "ready"), (*own, "ready", "released")):
        shown = [f"{n} {ms(t)}" for n, t in times if t >= 0 and n not in left_out]
        if len(line := " → ".join(shown) + " ms") <= width:
            break
    return line


def find(run: Run, what: object) -> int:
    """The index of an instruction: by its number in the VM, the longest wait of an operator, or the
    one that wrote a tensor last.
    """
    if isinstance(what, Tensor):
        maker = explain(what).made
        if maker is None:
            raise ArgumentError("why(tensor): no instruction that is remembered has written it")
        return run.index(maker.seq)
    if isinstance(what, str):
        if what not in run.names:
            raise ArgumentError(
                f"no operator {what!r} in this run; there are {', '.join(sorted(run.names))}"
            )
        own = np.flatnonzero(run.op == run.names.index(what))
        waited = run.time("started")[own] - run.time("issued")[own]
        return int(own[waited.argmax()])
    if isinstance(what, (int, np.integer)) and not isinstance(what, bool):
        return run.index(int(what))
    raise ArgumentError(
        f"why({what!r}): the number of an instruction, the name of an operator, or a tensor"
    )


def why(profile: ProfileLike, what: object, depth: int = DEPTH) -> Why:
    """Explain the start of an instruction of a Profile.

    what   its number; the name of an operator: the one of those that waited longest; or a tensor:
           the one that wrote it last
    depth  gating producers that are followed back
    ArgumentError: no such instruction.
    """
    i = find(profile.run, what)
    return _why(profile, i, depth, True)


def _why(profile: ProfileLike, i: int, depth: int, whole: bool) -> Why:
    run: Run = profile.run
    before, waits = profile.order, profile.waits
    issued = int(run.time("issued")[i])
    producers = []
    a, b = np.searchsorted(run.target, [i, i + 1])
    for e in range(int(a), int(b)):
        j = int(run.source[e])
        if run.kind[j] == KIND.RELEASE:
            continue
        flat = int(run.operand[e])
        ended = int(run.time("ended")[j])
        gating = j == int(before.producer[i]) and waits.dep[i] > 0
        producers.append(
            Producer(
                int(run.seq[j]),
                run.names[run.op[j]],
                f"t{run.tensor[flat]} #{flat - int(run.offsets[i])}",
                int(run.access[flat]) & 3,
                HAZARDS[run.hazard[e]],
                ended - run.begun,
                max(0, ended - issued),
                gating,
                run.streams[run.stream[j]],
                run.lines[run.line[j]],
                _why(profile, j, depth - 1, False) if gating and depth > 0 else None,
            )
        )
    producers.sort(key=lambda p: (not p.gating, -p.held))
    front = int(before.front[i])
    blocks, more = _blocks(run, i) if whole else ((), 0)
    ifs = _what_if(profile, i, [p for p in producers if p.gating]) if whole else ()
    return Why(
        int(run.seq[i]),
        run.names[run.op[i]],
        run.streams[run.stream[i]],
        run.lines[run.line[i]],
        spot_of(run, i), origin_of(run, i),
        steps_of(run, i),
        int(waits.dep[i]), int(waits.queue[i]), int(waits.sched[i]),
        max(0, int(run.time("ended")[i] - run.time("started")[i])),
        tuple(producers[:MOST]),
        f"#{run.seq[front]} {run.names[run.op[front]]}" if front >= 0 else "",
        blocks, more, ifs, threads_of(run, i), TIMED[int(run.clock[i])],
        _slowest(profile, i) if whole else "",
    )  # fmt: skip


def _slowest(profile: ProfileLike, i: int) -> str:
    """Name the instruction that ran longest in the chain of waits in front of an instruction."""
    run: Run = profile.run
    before, ran = profile.order, run.time("ended") - run.time("started")
    issued = run.time("issued")
    chain, at = list[int](), i
    while len(chain) < FAR:
        gate = max(int(before.produced[at]), int(before.freed[at]))
        if gate <= issued[at]:  # Python issued it when all else was there
            break
        back = before.producer if before.produced[at] == gate else before.front
        at = int(back[at])
        if at < 0 or at in chain:
            break
        chain.append(at)
    if not chain:
        return ""
    slow = max(chain, key=lambda k: int(ran[k]))
    share = 100 * int(ran[slow]) / max(1, int(ran[chain].sum()))
    far = f"{chain.index(slow) + 1} of {len(chain)} back" if len(chain) > 1 else "just in front"
    return (
        f"#{run.seq[slow]} {run.names[run.op[slow]]} ran {ms(ran[slow])} ms, {share:.0f} % of what "
        f"was waited for, {far}  {run.lines[run.line[slow]]}"
    )


def _blocks(run: Run, i: int) -> tuple[tuple[str, ...], int]:
    """List the first instructions that wait for an instruction, and count the others."""
    rows = []
    for e in np.flatnonzero(run.source == i).tolist():
        j = int(run.target[e])
        if run.kind[j] == KIND.RELEASE:
            continue
        flat = int(run.operand[e])
        rows.append(
            f"#{run.seq[j]} {run.names[run.op[j]]} (t{run.tensor[flat]}, {HAZARDS[run.hazard[e]]})"
        )
    return tuple(rows[:MOST]), max(0, len(rows) - MOST)


def _what_if(
    profile: ProfileLike, i: int, gating: list[Producer]
) -> tuple[tuple[str, int, int], ...]:
    run: Run = profile.run
    now = profile.floor.length
    names = dict.fromkeys([run.names[run.op[i]], *(p.op for p in gating)])
    return tuple((f"every {name} free", now, profile.what_if(name)) for name in names)
