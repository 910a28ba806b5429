"""The replays of a Plan: times of tasks and actors, and the waits of actors."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.meta.arrays import Array
from flowvm.profiler.grammar import ms, percent
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.plan import ActorRow, PlanView, TaskRow, label
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.device_times import HOST

MOST_LAUNCHES = 2000  # that a what-if plays through
WORTH = 0.02  # a what-if below is not worth a line


def plan_of(profile: ProfileLike, name: str | None = None) -> PlanView:
    """The replays of a Plan in a Profile.  ArgumentError: there is no such, or none."""
    run: Run = profile.run
    plans = run.info.get("plans", {})
    lasted = run.time("ended") - run.time("started")
    launches = np.flatnonzero((run.kind == KIND.LAUNCH) & profile.order.finished)
    spent = {
        n: int(lasted[launches[run.op[launches] == run.names.index(n)]].sum())
        for n in plans
        if n in run.names
    }
    if not spent:
        raise ArgumentError("no graph was replayed in this run: p.plan() is about nn.Graph")
    if name is None:
        name = max(spent, key=lambda n: spent[n])
    if name not in spent:
        raise ArgumentError(f"no plan {name!r} in this run; there are {', '.join(sorted(spent))}")
    mine = launches[run.op[launches] == run.names.index(name)]
    return Replays(run, name, plans[name], mine).view()


class Replays:
    """The launches of one Plan, and their tasks."""

    def __init__(self, run: Run, name: str, known: dict[str, Any], launches: Array) -> None:
        self.run, self.name, self.known, self.launches = run, name, known, launches
        own = np.isin(run.tasks.launch, launches)
        self.number = run.tasks.number[own]
        self.launch = np.searchsorted(launches, run.tasks.launch[own])
        self.begun, self.over = run.tasks.times[own, 0], run.tasks.times[own, 1]
        self.nbytes, self.flops = run.tasks.nbytes[own], run.tasks.flops[own]
        # how often each actor acts for a launch
        self.times = [known["tasks"][actor[1]][2] for actor in known["actors"]]
        self.repeated = any(n > 1 for n in self.times)

    def view(self) -> PlanView:
        run, known = self.run, self.known
        lasted = (run.time("ended") - run.time("started"))[self.launches]
        tasks = self.tasks()
        acts = self.acts() if known["actors"] else None
        actors = () if acts is None else self.actors(*acts)
        streams = dict.fromkeys(run.streams[a[0]] for a in known["actors"])
        inside = int((self.over - self.begun).sum())
        notes = self.notes(tasks)
        if acts is not None and len(self.number):
            notes = self.turns() if self.repeated else self.what_if(*acts)
        return PlanView(
            self.name, tuple(streams), known["regst_num"], known["registers"], known["chunk"],
            len(self.launches), float(lasted.mean()) if len(lasted) else 0.0,
            0.0 if actors or not inside else max(0.0, 1 - inside / max(1, int(lasted.sum()))),
            actors, tasks, tuple(notes),
            tuple((a, b) for a, b in run.info.get("flows", {}).get(self.name, ())),
        )  # fmt: skip

    def tasks(self) -> tuple[TaskRow, ...]:
        run, known = self.run, self.known["tasks"]
        count = np.bincount(self.number, minlength=len(known))
        time, nbytes, flops = (
            np.bincount(self.number, v, len(known))
            for v in (self.over - self.begun, self.nbytes, self.flops)
        )
        total = max(1.0, float(time.sum()))
        alone = [] if self.known["actors"] else run.stream[self.launches[:1]].tolist()
        return tuple(
            TaskRow(
                k, op, repeat, run.streams[alone[0] if alone else stream], "", "", scope,
                run.lines[line], int(count[k]),
                float(time[k] / max(1, count[k])), float(time[k] / total),
                float(nbytes[k] / max(1.0, time[k])), float(flops[k] / max(1.0, time[k])),
            )
            for k, (op, scope, repeat, stream, line) in enumerate(known)
        )  # fmt: skip

    def notes(self, tasks: tuple[TaskRow, ...]) -> list[str]:
        if (self.run.clock[self.launches] != HOST).any():
            return [
                "of a device's launch the whole is timed, not its tasks: they are one CUDA graph, "
                "or were launched one by one: graph.explain() says which"
            ]
        if not len(self.number):
            return ["tasks were not recorded: flow.profiler.profile(level=2) has them"]
        heavy = max(tasks, key=lambda t: t.share)
        return [f"task {heavy.number} {heavy.op} is {percent(heavy.share)} of a replay"]

    def acts(self) -> tuple[Array, Array, Array]:
        """For each actor and launch: when it acted, until when, and for how long it ran tasks."""
        actors = self.known["actors"]
        of_task = np.repeat(np.arange(len(actors)), [a[2] for a in actors])
        shape = (len(actors), len(self.launches))
        begun = np.full(shape, np.iinfo(np.int64).max)
        over, ran = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        place = (of_task[self.number], self.launch)
        np.minimum.at(begun, place, self.begun)
        np.maximum.at(over, place, self.over)
        np.add.at(ran, place, self.over - self.begun)
        return begun, over, ran

    def actors(self, begun: Array, over: Array, ran: Array) -> tuple[ActorRow, ...]:
        run = self.run
        issued = run.time("issued")[self.launches]
        rows = []
        names = [task[0] for task in self.known["tasks"]]
        for k, (stream, first, count, inputs, credits) in enumerate(self.known["actors"]):
            acted = over[k] > 0
            acts = int(acted.sum()) * self.times[k]
            # between repetitions is not known: begun and over are of all of a launch
            waited = {} if self.repeated else self.waited(k, begun, over, issued)
            total = max(1.0, sum(waited.values()))
            parts = [
                f"{what} {percent(t / total)}" if t < 0.95 * total else what
                for what, t in sorted(waited.items(), key=lambda item: (-item[1], item[0]))
                if t >= 0.05 * total
            ]
            rows.append(
                ActorRow(
                    k, label(names[first : first + count]), run.streams[stream], count,
                    tuple(inputs), tuple((a, n) for a, n in credits), None, acts,
                    float(ran[k].sum() / max(1, run.wall)), float(ran[k].sum() / max(1, acts)),
                    " · ".join(parts[:3]),
                )
            )  # fmt: skip
        return tuple(rows)

    def turns(self) -> list[str]:
        """Return the turns of repeated tasks' actors on the busiest stream in the last launch: F0
        is one that begins with a forward task, in the first repetition, B0 one that begins with a
        backward one.
        """
        tasks = self.known["tasks"]
        on = [task[3] for task in tasks if task[2] > 1]
        busy = max(on, key=on.count)
        actors = self.known["actors"]
        firsts = [first for stream, first, *_ in actors if stream == busy]
        backward = {actors[k][1] for k in self.run.info.get("backward", {}).get(self.name, ())}
        own = np.flatnonzero((self.launch == self.launch.max()) & np.isin(self.number, firsts))
        turns_of_task = dict.fromkeys(firsts, 0)
        turns: list[str] = []
        for i in own[np.argsort(self.begun[own], kind="stable")].tolist():
            task = int(self.number[i])
            name = f"{'B' if task in backward else 'F'}{turns_of_task[task]}"
            turns_of_task[task] += 1
            if tasks[task][2] > 1 and turns[-1:] != [name]:
                turns.append(name)
        return [f"the last launch: {' '.join(turns)}"]

    def waited(self, k: int, begun: Array, over: Array, issued: Array) -> dict[str, float]:
        """Between two of its acts: time by what let the later one begin."""
        _, _, _, inputs, credits = self.known["actors"][k]
        gates = [("the launch", issued)] + [(f"a{j:02}", over[j]) for j in inputs]
        for j, n in credits:
            gates.append((f"credit a{j:02}", np.concatenate((np.zeros(n), over[j][:-n]))))
        times = np.vstack([g[: len(issued)] for _, g in gates])
        free = np.concatenate(([0], over[k][:-1]))
        last = times.argmax(axis=0)
        wait = np.clip(times.max(axis=0) - free, 0, None)
        wait[(over[k] == 0) | (free == 0)] = 0
        sums = np.bincount(last, wait, len(gates))
        return {name: float(t) for (name, _), t in zip(gates, sums, strict=True) if t > 0}

    def what_if(self, begun: Array, over: Array, ran: Array) -> list[str]:
        """Name the actor that bounds the throughput, and the effect of a register more or less."""
        lasts = np.where(over > 0, over - begun, 0)
        each = lasts.sum(axis=1) / np.maximum(1, (over > 0).sum(axis=1))
        slow = int(each.argmax())
        notes = [f"throughput limit: a{slow:02} ({ms(float(each[slow]))} ms an act)"]
        num = self.known["regst_num"]
        now = self.played(lasts, num)
        more = self.played(lasts, num + 1)
        if now and (now - more) / now >= WORTH:
            notes.append(f"regst_num {num} → {num + 1}: {percent((now - more) / now)} less time")
        elif num > 1 and now:
            less = self.played(lasts, num - 1)
            if (less - now) / now < WORTH:
                notes.append(f"regst_num {num} → {num - 1} would cost nothing, and save memory")
        return notes

    def played(self, lasts: Array, num: int) -> float:
        """Time of these launches, one issued as soon as there is room, with `num` registers."""
        actors, count = self.known["actors"], min(lasts.shape[1], MOST_LAUNCHES)
        depth = self.known["regst_num"]
        over = np.zeros((len(actors), count))
        free: dict[int, float] = {}
        for n in range(count):
            for k, (stream, _, _, inputs, credits) in enumerate(actors):
                gate = free.get(stream, 0.0)
                gate = max([gate, *(over[j, n] for j in inputs)])
                for j, back in credits:
                    at = n - (num if back == depth and depth > 1 else back)
                    gate = max(gate, over[j, at] if at >= 0 else 0.0)
                free[stream] = over[k, n] = gate + lasts[k, n]
        return float(over.max(initial=0.0))
