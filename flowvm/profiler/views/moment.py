"""A moment of a run: what every instruction, stream, storage and actor was at, from records alone.

    p.at(1.25)                     1.25 ms after the beginning
    p.at(instr=311, when="ready")  when instruction 311 came to that stage
    p.step()  p.step(-1)           one event further on, one back
    p.step(to="started")           to where the next instruction starts

What waits is shown with what it waits for; a storage's access list is `[one writer]? readers*`,
oldest first, and what stands behind another that conflicts with it has to wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.files.printable import printable
from flowvm.meta.arrays import Array
from flowvm.profiler.analysis import moments
from flowvm.profiler.analysis.across import Tied
from flowvm.profiler.analysis.moments import STATES, Moments
from flowvm.profiler.grammar import ACCESS, Screen, Span, View, counted, cropped, ms, size
from flowvm.profiler.run.columns import CAUSES
from flowvm.profiler.run.rank_runs import title
from flowvm.profiler.run.run import Run
from flowvm.profiler.run.spaces import spaces_of
from flowvm.profiler.views.memory.holders import Holder
from flowvm.profiler.views.plan import label
from flowvm.profiler.views.summary.facts import PartLike, ProfileLike
from flowvm.vm.machine.edges import HAZARDS
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.flight import TIMES

MOST = 5  # instructions of a queue, storages, those that wait
# what happened to an instruction when it came to a stage
EVENTS = dict(
    zip(
        TIMES,
        ("was issued", "was received by the scheduler", "is ready: nothing in front of it is left",
         "went to the queue of its stream", "started", "ended",
         "was taken from its access lists: what waited for it may go on"),
        strict=True,
    )
)  # fmt: skip
WAITS = {
    "sync": "waits for a value", "credit": "waits for room to issue",
    "memory": "waits for memory in flight",
    "jit": "waits for a kernel to be compiled", "gil": "waits for the GIL",
    "core": "is ready and has no core",
}  # fmt: skip


@dataclass(frozen=True)
class Named:
    """An instruction as a moment names it."""

    seq: int
    op: str
    line: str

    def __str__(self) -> str:
        return f"#{self.seq} {printable(self.op)}"


@dataclass(frozen=True)
class Queue:
    """A stream's instructions: the running ones, their times so far (ns), and its queue, in
    order.
    """

    name: str
    running: tuple[Named, ...]
    ran: tuple[int, ...]
    queued: tuple[Named, ...]


@dataclass(frozen=True)
class Waiting:
    """An instruction that the scheduler holds back, and what has to end first: who, which hazard,
    on which tensor.
    """

    what: Named
    front: tuple[tuple[Named, str, int], ...]


@dataclass(frozen=True)
class Listed:
    """A storage's access list: who (with mut as 1, mut2 as 2, const as 0), and what that is at."""

    tensor: int
    nbytes: int
    accesses: tuple[tuple[Named, int, str], ...]


@dataclass(frozen=True)
class Acting:
    """An actor of a graph that is replayed: acts so far, the task that runs, the registers in its
    mailbox by producer, and those that it may still fill by who gives them back.  One that rests
    with a `launch` to act for (its number, -1: none) waits for `waits`: a regst or a credit, and
    the actor that it comes from; `since` a time in ns, from the beginning.
    """

    plan: str
    number: int
    label: str
    acts: int
    task: int
    mailbox: tuple[tuple[int, int], ...]
    credits: tuple[tuple[int, int], ...]
    launch: int
    waits: tuple[tuple[str, int], ...]
    since: int


@dataclass(frozen=True)
class Meeting:
    """A collective that is under way, the `number`th of all: for each rank what it is at ("to
    come", "waits", "exchanges" once all are there, "done") and for how long, or until when (ns);
    and the rank that is waited for, -1 for none.
    """

    name: str
    number: int
    nbytes: int
    ranks: tuple[tuple[str, int], ...]
    awaited: int


@dataclass(frozen=True, repr=False)
class Moment(View):
    """See the module.  `time` and `wall` are ns from the beginning; `number` of `events` events
    have happened, the last of which is `event`.  `python` has a row for each process, `live` and
    `holders` (who has how much of it) for each memory.
    """

    number: int
    events: int
    time: int
    wall: int
    event: str
    line: str
    counts: tuple[tuple[str, int], ...]
    python: tuple[tuple[str, str], ...]
    live: tuple[tuple[str, int], ...]
    streams: tuple[Queue, ...]
    ready: tuple[Named, ...]
    waiting: tuple[Waiting, ...]
    storages: tuple[Listed, ...]
    actors: tuple[Acting, ...]
    meetings: tuple[Meeting, ...]
    holders: tuple[tuple[Holder, ...], ...]

    def screen(self, width: int) -> Screen:
        """See View."""
        screen = Screen()
        screen.add((f"{ms(self.time)} ms", "id"), f" of {ms(self.wall)}  ", (
            f"event {self.number:,} of {self.events:,}", "head"))  # fmt: skip
        screen.add("  ", (self.event, "verdict"), ("  " + self.line, "line"))
        shown = [f"{n:,} {name}" for name, n in self.counts if n]
        alive = ", ".join(
            f"{size(nbytes)} alive" + (f" in {space}" if len(self.live) > 1 else "")
            for space, nbytes in self.live
        )
        screen.add(" ", " · ".join(shown), (f"   {alive}", "head"))
        wide = max(
            10, *(len(name) for name, _ in self.python), *(len(s.name) for s in self.streams)
        )
        wide = min(wide, 24)
        for m in self.meetings:
            screen.add(f" {m.name} {m.number}  ", *_rank_states(m))
        for name, doing in self.python:
            screen.add(f" {cropped(name, wide):{wide}s} ", (doing, "host"))
        for s in self.streams:
            spans: list[str | Span] = [f" {cropped(s.name, wide):{wide}s} "]
            for what, ran in zip(s.running, s.ran, strict=True):
                spans.append((f"█ {what} for {ms(ran)} ms  ", "run"))
            if not s.running:
                spans.append(("idle  ", "head"))
            if s.queued:
                spans.append(("▫ " + _named(s.queued), "queue"))
            screen.add(*spans)
        rows = [(s, h) for (s, _), some in zip(self.live, self.holders, strict=True) for h in some]
        rows.sort(key=lambda row: -row[1].nbytes)
        for k, (space, h) in enumerate(rows[:MOST]):
            at = space if len(self.live) > 1 else ""
            holder = " ".join(
                filter(None, (h.module, h.op, h.keeper and f"kept by {h.keeper}", at))
            )
            screen.add(
                f" {'memory' if not k else '':{wide}s} {size(h.nbytes)} ", (h.kind, "const"),
                f"  {holder}", (f"  {h.line}", "line"),
            )  # fmt: skip
        if len(rows) > MOST:
            rest = sum(h.nbytes for _, h in rows[MOST:])
            screen.add(f" {'':{wide}s} {size(rest)} in {len(rows) - MOST:,} more")
        if self.ready:
            screen.add(" ready      ", (_named(self.ready), "sched"))
        for k, w in enumerate(self.waiting[:MOST]):
            front = ", ".join(f"{who} ({hazard} of t{t})" for who, hazard, t in w.front[:MOST])
            screen.add(
                " pending    " if not k else " " * 12, (f"░ {w.what}", "dep"),
                f"  waits for {front}" if front else "", (f"  {w.what.line}", "line"),
            )  # fmt: skip
        if len(self.waiting) > MOST:
            screen.add(" " * 12, f"and {len(self.waiting) - MOST:,} more")
        for k, listed in enumerate(self.storages[:MOST]):
            spans = [
                " storages   " if not k else " " * 12,
                f"t{listed.tensor} {size(listed.nbytes)}",
            ]
            for who, access, state in listed.accesses[:MOST]:
                style = ACCESS[access][2]
                spans += [" ◄ ", (f"{style} {who}", style), (f" {state}", "head")]
            if len(listed.accesses) > MOST:
                spans.append(f" and {len(listed.accesses) - MOST} more")
            screen.add(*spans)
        if len(self.storages) > MOST:
            screen.add(" " * 12, f"and {len(self.storages) - MOST:,} more with several accesses")
        for k, a in enumerate(self.actors):
            mail = ", ".join(f"a{j:02}: {n}" for j, n in a.mailbox) or "–"
            room = ", ".join(f"a{j:02}: {n}" for j, n in a.credits) or "–"
            screen.add(
                " actors     " if not k else " " * 12, (f"a{a.number:02} {a.label}", "id"),
                f"  {counted(a.acts, 'act')}",
                _doing(a, self.time),
                f"  mailbox {mail}  credits {room}",
            )  # fmt: skip
        return screen.cut(width)


def _doing(a: Acting, now: int) -> Span:
    """Return the state of an actor: the task that runs, or its wait."""
    if a.task >= 0:
        return f"  █ task {a.task}", "run"
    if a.launch < 0:
        return "  idle", "head"
    long = f"#{a.launch} since {ms(a.since)}, {ms(now - a.since)} ms"
    if not a.waits:
        return f"  ▷ ready for {long}", "sched"
    lacks = ", ".join(f"{what} of a{j:02}" for what, j in a.waits)
    return f"  ░ waits for {lacks}, for {long}", "dep"


def _rank_states(meeting: Meeting) -> list[str | Span]:
    """Return the state of each rank in a collective."""
    spans: list[str | Span] = []
    for rank, (state, ns) in enumerate(meeting.ranks):
        style = {"waits": "dep", "exchanges": "run"}.get(state, "head")
        how = f"in {ms(ns)} ms" if state == "to come" else f"{ms(ns)} ms"
        late = ", for whom others wait" if rank == meeting.awaited else ""
        spans.append((f"{title(rank)} {state} {how}{late}   ", style))
    return spans


def _named(some: tuple[Named, ...]) -> str:
    more = f" and {len(some) - MOST:,} more" if len(some) > MOST else ""
    return ", ".join(str(what) for what in some[:MOST]) + more


def resolve_moment(
    profile: ProfileLike, t: float | None, instr: int | None, when: str
) -> tuple[int, int | None]:
    """The number of the moment that `Profile.at` is asked for, and its time if that was given (ns).

    ArgumentError: there is none.
    """
    events: Moments = profile.moments
    if (t is None) == (instr is None):
        raise ArgumentError(
            "at: say when, in milliseconds from the beginning (p.at(1.5)), or the number of an "
            "instruction (p.at(instr=311))"
        )
    if instr is None:
        if isinstance(t, bool) or not isinstance(t, (int, float, np.number)) or t != t:
            raise ArgumentError(f"at({t!r}): milliseconds from the beginning of the run")
        begun = profile.run.begun
        over = max(profile.run.ended, *events.time[-1:].tolist(), begun)
        now = begun + round(min(max(float(t) * 1e6, 0.0), float(over - begun)))
        return events.number_at(now), now
    stage = 1 if when == "waits" else _stage("at", "when", when)
    i = profile.run.index(instr)
    number = events.number_of(i, stage)
    if number < 0:
        raise ArgumentError(f"at: #{instr} never came so far as to be {when!r} in this run")
    return number, None


def next_of(profile: ProfileLike, number: int, steps: int, to: str) -> int:
    """The number of the moment that `Profile.step` goes to.  ArgumentError: there is no such."""
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)):
        raise ArgumentError(f"step({steps!r}): how many events further on, below 0: back")
    events: Moments = profile.moments
    return events.next(number, _stage("step", "to", to) if to else -1, int(steps))


def _stage(call: str, argument: str, name: str) -> int:
    if name not in TIMES:
        raise ArgumentError(f"{call}: {argument}={name!r} is none of {', '.join(TIMES)}")
    return TIMES.index(name)


def moment(profile: ProfileLike, number: int, time: int | None = None) -> Moment:
    """Return the state of a Profile's run behind `number` events: at a time (ns), or when the last
    of them happened.
    """
    run: Run = profile.run
    events: Moments = profile.moments
    states = events.states(number)
    names = _Names(run)
    now = time if time is not None else int(events.time[number - 1]) if number else run.begun
    event, line = "nothing was issued yet", ""
    if number:
        i, stage = int(events.index[number - 1]), TIMES[int(events.stage[number - 1])]
        on = f" on {run.streams[run.stream[i]]}" if stage in ("started", "dispatched") else ""
        event, line = f"{names(i)} {EVENTS[stage]}{on}", names(i).line
    counts = np.bincount(states, minlength=len(STATES))
    streams = []
    for s in sorted({int(k) for k in run.stream}):
        own = np.flatnonzero((states == moments.RUNNING) & (run.stream == s))
        streams.append(
            Queue(
                run.streams[s],
                names.all(own),
                tuple(now - int(events.times[i, moments.RUNNING - 1]) for i in own),
                names.all(events.queue(states, s)),
            )
        )
    pending = np.flatnonzero(states == moments.PENDING)
    return Moment(
        number, len(events), now - run.begun, run.wall, event, line,
        tuple(zip(STATES, counts.tolist(), strict=True)),
        tuple(_python(part, names, states, now) for part in profile.parts),
        tuple((space, profile.memory_of(space).level(now)) for space in spaces_of(run)),
        tuple(streams), names.all(np.flatnonzero(states == moments.READY)),
        tuple(_waiting(run, names, events, states, int(i)) for i in pending),
        _storages(run, names, events, states), _actors(run, states, now),
        meetings(profile.tied, now),
        tuple(profile.holdings_of(space).at(now) for space in spaces_of(run)),
    )  # fmt: skip


class _Names:
    """Instructions of a run by index, as a moment names them."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, i: int) -> Named:
        run = self.run
        return Named(int(run.seq[i]), run.names[run.op[i]], run.lines[run.line[i]])

    def all(self, some: Array) -> tuple[Named, ...]:
        return tuple(self(int(i)) for i in some)


def _python(part: PartLike, names: _Names, states: Array, now: int) -> tuple[str, str]:
    """Return the name and the activity of a process's Python."""
    run, who = part.profile.run, f"{part.name} Python".lstrip()
    inside = np.flatnonzero((run.waits.times[:, 0] <= now) & (now < run.waits.times[:, 1]))
    if len(inside):
        return who, WAITS[CAUSES[int(run.waits.cause[inside[-1]])]]
    ahead = np.flatnonzero(states[part.first : part.first + len(run)] == moments.TO_COME)
    if not len(ahead):
        return who, "has issued everything"
    following = names(part.first + int(ahead[0]))
    return who, f"will issue {following} next, at {following.line}"


def meetings(tied: Tied | None, now: int) -> tuple[Meeting, ...]:
    """The collectives to which a rank has come and that are not over on all of them."""
    if tied is None or not len(tied):
        return ()
    current = np.flatnonzero((tied.begin.min(axis=1) <= now) & (now < tied.end.max(axis=1)))
    rows = []
    for k in current.tolist():
        last, late = int(tied.last[k]), int(tied.late[k])
        ranks = []
        for begin, end in zip(tied.begin[k].tolist(), tied.end[k].tolist(), strict=True):
            if now < begin:
                ranks.append(("to come", begin - now))
            elif now >= end:
                ranks.append(("done", now - end))
            else:
                ranks.append(("waits", now - begin) if now < last else ("exchanges", now - last))
        awaited = late if now < last else -1
        rows.append(Meeting(tied.names[k], k, int(tied.nbytes[k]), tuple(ranks), awaited))
    return tuple(rows)


def _waiting(run: Run, names: _Names, events: Moments, states: Array, i: int) -> Waiting:
    front = [
        (names(int(run.source[e])), HAZARDS[run.hazard[e]], int(run.tensor[run.operand[e]]))
        for e in events.waits_for(states, i)
    ]
    return Waiting(names(i), tuple(front))


def _storages(run: Run, names: _Names, events: Moments, states: Array) -> tuple[Listed, ...]:
    """The access lists in which something stands behind something else: those in which most waits
    first, then the longest.
    """
    accesses = events.accesses(states)
    if not len(accesses):
        return ()
    owner = run.owner
    order = accesses[np.argsort(run.tensor[accesses], kind="stable")]
    storages = []
    for own in np.split(order, np.flatnonzero(np.diff(run.tensor[order])) + 1):
        own = own[np.unique(owner[own] * 4 + run.access[own] % 4, return_index=True)[1]]
        who = owner[own]
        if who[0] == who[-1]:
            continue
        storages.append(
            Listed(
                int(run.tensor[own[0]]), int(run.size[own].max()),
                tuple(
                    (names(int(i)), int(run.access[k]) & 3, STATES[states[i]])
                    for k, i in zip(own, who, strict=True)
                ),
            )
        )  # fmt: skip
    waiting = STATES[moments.PENDING]
    return tuple(
        sorted(
            storages,
            key=lambda one: (
                -sum(state == waiting for *_, state in one.accesses),
                -len(one.accesses),
                one.tensor,
            ),
        )
    )


def _actors(run: Run, states: Array, now: int) -> tuple[Acting, ...]:
    """The actors of the Plans whose launches run."""
    plans = run.info.get("plans", {})
    running = moments.launches_at(run, states)
    actors: list[Acting] = []
    for name in dict.fromkeys(run.names[run.op[i]] for i in running):
        plan = plans.get(name)
        launches = np.flatnonzero((run.kind == KIND.LAUNCH) & (run.op == run.names.index(name)))
        if not plan or not np.isin(run.tasks.launch, launches).any():
            continue
        titles = [task[0] for task in plan["tasks"]]
        at = moments.registers(run, plan, launches, now)
        for k, ((_, first, count, *_), one) in enumerate(
            zip(moments.actors_of(plan), at, strict=True)
        ):
            actors.append(
                Acting(
                    name, k, label(titles[first : first + count]), one["acts"], one["task"],
                    tuple(one["mailbox"].items()), tuple(one["credits"].items()),
                    int(run.seq[launches[one["launch"]]]) if one["launch"] >= 0 else -1,
                    tuple(one["waits"]), one["since"] - run.begun if one["launch"] >= 0 else -1,
                )
            )  # fmt: skip
    return tuple(actors)
