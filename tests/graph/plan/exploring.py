"""Every interleaving of actors, for small graphs and two launches.

The scheduler hands launches to their home; that opens and closes them; workers take messages and
let actors look, and act.  Each of these is a step, run by the functions that the VM runs, with one
in the place of `run_once` that notes who has written what.  `explore` goes through every state
that any order of steps leads to, each once.  Checked are

- values: a task finds in each operand what the tasks in front of it have written, of this launch
  all, of an earlier one all, or nothing if that one failed; tasks that are repeated find what those
  in front of them have written in this repetition, and all have in the ones before;
- poison: no task runs on it, an error poisons the outputs, no variable is left half written, who
  comes behind a poisoned variable is skipped, and a deferred ReleaseTensor clears its own alone;
- wholeness: exactly those variables are torn that a launch has left half written;
- the end: where no step can be taken, all launches are closed, so no message was lost.

What waits in a mailbox is the same wherever in it that is, so states differ by what waits alone;
and cases that differ by the names of streams or variables are one.

`python -m tests.graph.plan.exploring 3` explores all graphs of up to three tasks.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.graph.capture.capture import capturing
from flowvm.graph.plan.plan import Plan, compile_plan
from flowvm.graph.plan.words import ActorWords
from flowvm.vm.machine.lang import words_at
from flowvm.vm.machine.plan_words import ACTOR, PLAN, RUNTIME
from flowvm.vm.machine.words import CTL, ENT, ERR, INS, KIND, MBX, OPERAND, QUE, RING, STO, STR
from flowvm.vm.workers import actors, shell
from flowvm.vm.workers.execute import seq_of
from tests.vm.bench import Bench
from tests.vm.kernels import mix, tensor, update
from tests.vm.mutants import copy_of

STATUS = 77  # of the task that fails
LAUNCHES = 2
ENTRY = 1  # of the launches; ENTRY + 1: of releases
MAIL = 64  # messages of a run in one mailbox, at most
SIDE = flow.Stream("exploring")
SOURCES = ("x", "v", "w", "last")
TASKS = [
    (stream, target, source)
    for stream in (0, 1)
    for target in ("v", "w", "new")
    for source in SOURCES
    if target != source
]
Task = tuple[int, str, str]  # stream, what it writes, what it reads


@dataclass(frozen=True)
class Case:
    """A graph of tasks; the (launch, task) that fails; the launch whose input is poisoned; whether
    the first output is released behind the first launch; launches in flight.

    times      how often all but the last `once` tasks run in a launch; `late`: which of these fails
    in_flight  repetitions at a time
    """

    tasks: tuple[Task, ...]
    failing: tuple[int, int] | None = None
    bad: int = -1
    released: bool = False
    depth: int = 2
    returned: str = "last"
    times: int = 1
    once: int = 0
    in_flight: int = 1
    late: int = 0


def cases(length: int) -> Iterator[Case]:
    """Yield all cases of `length` tasks on two streams, up to names of streams and variables."""
    for tasks in itertools.product(TASKS, repeat=length):
        if tasks[0][0] or not any(stream for stream, _, _ in tasks):
            continue
        if next((name for task in tasks for name in task[1:] if name in "vw"), "v") == "w":
            continue
        for failing in (None, *itertools.product(range(LAUNCHES), range(length))):
            for bad in (-1, 0, 1) if failing is None else (-1,):
                for released, depth in ((False, 1), (False, 2), (True, 2)):
                    yield Case(tasks, failing, bad, released, depth)


def random_case(rng: random.Random, length: int) -> Case:
    """One like them."""
    tasks = [rng.choice(TASKS) for _ in range(length)]
    tasks[0] = (0, *tasks[0][1:])
    tasks[-1] = (1, *tasks[-1][1:])
    failing = None if rng.random() < 0.3 else (rng.randrange(LAUNCHES), rng.randrange(length))
    return Case(
        tuple(tasks), failing, rng.choice([-1, -1, 0, 1]) if failing is None else -1,
        rng.random() < 0.3, rng.choice([1, 2, 2]), rng.choice(["last", "last", "v"]),
    )  # fmt: skip


def random_section(rng: random.Random, length: int) -> Case:
    """One whose tasks are repeated; a variable is returned, for outputs are packed."""
    case, once = random_case(rng, length), rng.choice([0, 1])
    times = rng.choice([2, 3])
    late = rng.randrange(times)
    if case.failing is not None and case.failing[1] >= length - once:
        late = 0
    return replace(
        case, returned="v", times=times, once=once, in_flight=rng.choice([1, 2]), late=late
    )


def plan_of(case: Case) -> Plan:
    """The graph, captured and compiled as it stands."""
    x, t = tensor(), {"v": tensor(), "w": tensor()}
    with capturing("explored", [(x, "x")]) as capture:
        t["x"] = t["last"] = x
        for k, (stream, target, source) in enumerate(case.tasks):
            capture.repeat = case.times if k < len(case.tasks) - case.once else 1
            with flow.stream(SIDE if stream else None):
                if target == "new":
                    t["last"] = mix(t[source], x, k)
                else:
                    update(t[target], t[source], k)
        capture.output(t[case.returned])
    graph = replace(capture.graph, regst_num=case.depth, in_flight=case.in_flight)
    return compile_plan(graph)


class World:
    """A Plan and its launches in a VM's memory; all of it can be copied and put back."""

    shared: Bench | None = None

    def __init__(self, case: Case, rules: Any = None) -> None:
        World.shared = World.shared or Bench()
        self.case, self.bench = case, World.shared
        self.m, self.array = self.bench.m, self.bench.array
        self.actors, self.shell = _with_rules(rules, self)
        self.plan = plan_of(case)
        assert self.plan.actors, "a graph on one stream"
        (words,) = [k for k in self.plan.references if isinstance(k, ActorWords)]
        self.runtime = words.words
        self.home = int(self.runtime[RUNTIME.HOME])
        self.streams = sorted({actor.stream for actor in self.plan.actors})
        self.inputs, self.outputs = len(self.plan.graph.inputs), len(self.plan.own_outputs)
        block = self.plan.launching.own["blocks"][0][1]
        self.count = int(self.plan.words[PLAN.OPERANDS])
        self.accesses = [int(a) for a in block[self.count : 2 * self.count]]
        unread = self.accesses[self.outputs] == OPERAND.CONST + OPERAND.UNREAD
        self.bad = -1 if unread else case.bad  # poison that no task looks at is no matter
        self._place()
        self.m[CTL.USED_STREAMS] = STR.LENGTH
        self.written = [
            [r.buffer for access, _, r in task.registers if access != "const"]
            for task in self.plan.tasks
        ]
        self.writers: dict[Any, list[int]] = {}
        for t, buffers in enumerate(self.written):
            for buffer in dict.fromkeys(buffers):
                self.writers.setdefault(buffer, []).append(t)
        self.values: dict[Any, tuple[Any, ...]] = {}
        self.pending = dict.fromkeys(self.streams, 0)
        self.opened = -1
        self.dispatched = 0

    def _place(self) -> None:
        """Write records, and where the words are that change."""
        fresh, storage = self.outputs + self.inputs, 1
        variables = {k: 100 + k for k in range(fresh, self.count)}
        self.storages: list[list[int]] = []
        self.blocks = []
        self.queue: list[tuple[int, int]] = []  # (launch or -1, slot)
        slots = 0
        for n in range(LAUNCHES):
            own = list(range(storage, storage + fresh))
            storage += fresh
            self.storages.append([*own, *variables.values()])
            block = np.array([*self.storages[n], *self.accesses, *[0] * 8], np.int64)
            self.blocks.append(block)
            self._record(slots, ENTRY, [block.ctypes.data, self.count])
            self.queue.append((n, slots))
            slots += 1
            if n == 0 and self.case.released and self.outputs:
                self._record(slots, ENTRY + 1, [own[0]])
                self.queue.append((-1, slots))
                slots += 1
        at = ENT.AT + ENTRY * ENT.WORDS
        self.m[at + ENT.KIND], self.m[at + ENT.OUTLINE] = KIND.LAUNCH, 1
        self.m[at + ENT.LAYOUT] = int(self.plan.words.ctypes.data)
        self.m[at + ENT.WORDS + ENT.KIND], self.m[at + ENT.WORDS + ENT.COUNT] = KIND.RELEASE, 1
        self.m[at + ENT.WORDS + ENT.ACCESS] = OPERAND.MUT
        ids = {s for row in self.storages for s in row}
        places = [*range(CTL.AT, CTL.AT + CTL.WORDS, 8)]
        for s in ids:
            places += [STO.AT + s * STO.WORDS + word for word in (STO.POISON, STO.TORN)]
        for stream in (*self.streams, self.home):
            at = STR.AT + stream * STR.WORDS
            places += [at + STR.TAIL, at + STR.DONE]
            at = MBX.AT + stream * MBX.WORDS
            places += [at + MBX.HEAD, at + MBX.TAIL, *range(at + MBX.FIRST, at + MBX.FIRST + MAIL)]
        places += [INS.AT + k * INS.WORDS + INS.STATUS for k in range(slots)]
        places += range(QUE.AT + self.home * RING.SLOTS, QUE.AT + self.home * RING.SLOTS + slots)
        places += range(ERR.AT, ERR.AT + 4 * ERR.WORDS)
        self.places = np.array(places)
        self.array[self.places] = 0
        if self.case.bad >= 0:
            s = self.storages[self.case.bad][self.outputs]
            self.m[STO.AT + s * STO.WORDS + STO.POISON] = 1000

    def _record(self, slot: int, entry: int, operands: list[int]) -> None:
        at = RING.AT + (slot + 1) * RING.WORDS
        values = [*operands[::-1], entry | self.home << ENT.BITS, slot + 1]
        for k, value in enumerate(values):
            self.m[at - len(values) + k] = value

    # --- a state --------------------------------------------------------------------------------

    def state(self) -> tuple[Any, ...]:
        self._move_up()
        return (
            self.array[self.places].tobytes(), self.runtime.tobytes(),
            frozenset(self.values.items()), tuple(self.pending.values()), self.opened,
            self.dispatched,
        )  # fmt: skip

    def _move_up(self) -> None:
        """Move a mailbox's messages to its beginning: their place does not matter."""
        for stream in self.streams:
            box = MBX.AT + stream * MBX.WORDS
            length, tail = self.m[box + MBX.HEAD], self.m[box + MBX.TAIL]
            if length:
                first = box + MBX.FIRST
                self.array[first : first + MAIL - length] = self.array[
                    first + length : first + MAIL
                ]
                self.array[first + MAIL - length : first + MAIL] = 0
                self.m[box + MBX.HEAD], self.m[box + MBX.TAIL] = 0, tail - length

    def restore(self, state: tuple[Any, ...]) -> None:
        words, runtime, values, pending, self.opened, self.dispatched = state
        self.array[self.places] = np.frombuffer(words, np.int64)
        self.runtime[:] = np.frombuffer(runtime, np.int64)
        self.values = dict(values)
        self.pending = dict(zip(self.streams, pending, strict=True))

    # --- steps ------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Any]:
        """Yield functions of the threads that might act now; each returns True if it did."""
        yield self.dispatch
        yield self.keep_house
        for stream in self.streams:
            yield lambda stream=stream: self.serve(stream)

    def dispatch(self) -> bool:
        """The scheduler: the next record to the home's queue."""
        if self.dispatched == len(self.queue):
            return False
        at = STR.AT + self.home * STR.WORDS + STR.TAIL
        self.m[QUE.AT + self.home * RING.SLOTS + self.m[at]] = self.queue[self.dispatched][1]
        self.m[at] += 1
        self.dispatched += 1
        return True

    def keep_house(self) -> bool:
        """Act as the home's worker, as `worker_loop` and `run_window` do between two looks."""
        m, at = self.m, STR.AT + self.home * STR.WORDS
        plan = words_at(self.runtime.ctypes.data, len(self.runtime))
        if self.opened >= 0:
            if self.shell.open_next_launch(m, self.home, plan, self.opened):
                self.opened += 1
                return True
            if m[at + STR.DONE] == self.opened:
                self.opened = -1
                return True
            return bool(self.shell.close_next(m, self.home, plan))
        if m[at + STR.DONE] == m[at + STR.TAIL]:
            return False
        slot = m[QUE.AT + self.home * RING.SLOTS + m[at + STR.DONE]]
        entry = ENT.AT + (ENTRY + (self._launch(slot) < 0)) * ENT.WORDS
        if self.shell.runtime_of(m, entry) != 0 and self.shell.will_run(m, slot, entry):
            self.opened = m[at + STR.DONE]
        else:
            self.shell.execute(m, self.home, slot)
            self.shell.finish(m, self.home)
        return True

    def serve(self, stream: int) -> bool:
        """A stream's worker: a message, or a look of the actor that it was for."""
        if self.pending[stream]:
            actor = words_at(self.pending[stream], ACTOR.WORDS)
            acted = self.actors.look(self.m, stream, actor)
            if acted and actor[ACTOR.TIMES] > 1:
                self.actors.post(self.m, actor)
            if not acted or actor[ACTOR.TIMES] > 1:
                self.actors.leave(actor)
                self.pending[stream] = 0
            return True
        self.pending[stream] = int(self.actors.take(self.m, stream))
        return self.pending[stream] != 0

    def _launch(self, slot: int) -> int:
        return next(n for n, s in self.queue if s == slot)

    # --- instead of the tasks -------------------------------------------------------------------

    def run_once(self, stream: int, first: int, count: int, n: int, turn: int) -> int:
        """Note the writer of each access; AssertionError if a task finds a wrong value."""
        for t in range(first, first + count):
            self.m[STR.AT + stream * STR.WORDS + STR.TASK] = t
            keys = {r.buffer: self._key(r, n, turn) for _, _, r in self.plan.tasks[t].registers}
            for buffer, key in keys.items():
                self._check_operand(n, turn, t, buffer, key)
            failed = (n, t) == self.case.failing and turn == self.case.late
            for buffer in dict.fromkeys(self.written[t]):
                key, new = keys[buffer], "garbage" if failed else (n, turn, t)
                self.values[key] = (*self.values.get(key, ()), new)
            if failed:
                return STATUS
        return 0

    def _key(self, register: Any, n: int, turn: int) -> Any:
        if register.operand >= 0:
            return self.storages[n][register.operand]
        return n, register.buffer.name, id(register), turn % register.copies

    def _written(self, n: int, writers: list[int], turns: Any = None) -> list[Any]:
        """Return the writes of these tasks in a launch, in its order: in all turns, or in some."""
        many = [t for t in writers if self.plan.tasks[t].node.repeat > 1]
        turns = range(self.case.times) if turns is None else turns
        results = [(n, turn, t) for turn in turns for t in many]
        return results + [(n, 0, t) for t in writers if t not in many]

    def _poison(self, storage: int) -> int:
        return int(self.m[STO.AT + storage * STO.WORDS + STO.POISON])

    def _torn(self, storage: int) -> int:
        return int(self.m[STO.AT + storage * STO.WORDS + STO.TORN])

    def _check_operand(self, n: int, turn: int, t: int, buffer: Any, key: Any) -> None:
        entry = self.values.get(key, ())
        writers = self.writers.get(buffer, [])
        repeated = self.plan.tasks[t].node.repeat > 1
        copies = self.plan.registers[buffer].copies
        turns = range(turn % copies, turn + 1, copies) if repeated else None
        written = self._written(n, writers, turns)
        tasks = self.plan.tasks
        mine = tuple(
            w for w in written if w[2] < t or (w[1] < turn and tasks[w[2]].node.repeat > 1)
        )
        before = entry[: len(entry) - len(mine)]
        assert entry[len(before) :] == mine, f"task {t} of launch {n} finds {entry}, not {mine}"
        variable = self.plan.registers[buffer].operand >= self.outputs + self.inputs
        allowed = self._whole(n, writers) if variable else {()}
        assert before in allowed, f"task {t} of launch {n} finds {before}"
        if isinstance(key, int):
            cause = self._poison(key)
            # of a launch behind this one, which has failed at what this one has left to it
            later = variable and cause > seq_of(self.m, dict(self.queue)[int(n)])
            assert cause == 0 or later, f"task {t} of launch {n} runs on poison"

    def _whole(
        self, launches: int, writers: list[int], status: Sequence[int] = (0,) * LAUNCHES
    ) -> set[tuple[Any, ...]]:
        """Return the possible remains of so many launches: all of each, or nothing if it failed."""
        outcomes: set[tuple[Any, ...]] = {()}
        for n in range(launches):
            all_of = tuple(self._written(n, writers))
            may_fail = self.bad == n or (self.case.failing or (-1,))[0] == n or status[n] != 0
            outcomes = {(*f, *all_of) for f in outcomes} | (outcomes if may_fail else set())
        return outcomes

    # --- the end ----------------------------------------------------------------------------------

    def check_end(self) -> None:
        """No step can be taken."""
        m, case = self.m, self.case
        finished = m[STR.AT + self.home * STR.WORDS + STR.DONE]
        assert finished == len(self.queue), f"stuck behind {finished} of {self.queue}"
        status = [
            int(m[INS.AT + slot * INS.WORDS + INS.STATUS]) for n, slot in self.queue if n >= 0
        ]
        failing = -1 if case.failing is None else case.failing[0]
        variables = self.storages[0][self.outputs + self.inputs :]
        spoiled = [s for s in variables if self._poison(s)]
        for n, ended in enumerate(status):
            behind = n > max(failing, self.bad) >= 0 and bool(spoiled)
            due = STATUS if n == failing else INS.POISONED if n == self.bad or behind else 0
            assert ended == due, f"launch {n} ended with {ended}, not {due}"
            outputs = self.storages[n][: self.outputs]
            released = outputs[:1] if case.released and n == 0 else []
            for s in outputs:
                assert (self._poison(s) != 0) == (ended != 0 and s not in released)
                assert (self._torn(s) < 0) == (self._poison(s) != 0), "it never had a value"
            if n == self.bad:
                ran = [v for values in self.values.values() for v in values if v[0] == n]
                assert not ran, f"tasks {ran} of a launch that was to be skipped"
        assert m[CTL.ERROR_COUNT] == (failing >= 0)
        for register in self.plan.registers.values():
            if register.operand >= self.outputs + self.inputs:
                s = self.storages[0][register.operand]
                writers = self.writers.get(register.buffer, [])
                value = self.values.get(s, ())
                assert s in spoiled or value in self._whole(LAUNCHES, writers), f"half: {value}"
                half = value not in self._whole(LAUNCHES, writers, status)
                assert half <= (self._torn(s) > 0), f"half written, and called whole: {value}"
                if case.times == 1:  # else those that run together count as begun together
                    assert (self._torn(s) > 0) <= half, f"whole, and called half written: {value}"
                if self.bad >= 0 and writers:
                    assert s in spoiled, "a skipped launch poisons all that it writes"
                if failing >= 0 and writers:
                    whole = self._written(failing, writers)[-1] in value
                    assert s in spoiled or whole, "it looks fine, and is not what it should be"


def _with_rules(rules: Any, world: World) -> tuple[Any, Any]:
    """The modules of actors and of loops, with tasks that only note; `rules`: other functions."""
    if World.__dict__.get("modules") is None:
        acting, looping = copy_of(actors), copy_of(shell)
        World.modules = (acting, looping)
        World.plain = {**vars(acting)}, {**vars(looping)}
    acting, looping = World.modules
    for module, plain in zip(World.modules, World.plain, strict=True):
        vars(module).update(plain)
    acting.run_once = lambda m, stream, at, task, count, chunk, scalars, turn: world.run_once(
        stream, task, count, chunk - 1, turn
    )
    acting.take_chunk = lambda m, stream, slot, entry: world._launch(slot) + 1
    acting.release = lambda m, stream, pointer, size: None
    for name, value in (rules or {}).items():
        assert hasattr(acting, name)
        setattr(acting, name, value)
    for name, value in vars(actors).items():
        if callable(value) and vars(looping).get(name) is value:
            setattr(looping, name, getattr(acting, name))
    return acting, looping


def explore(world: World) -> tuple[int, int]:
    """Go through every state that can be reached: how many, and how many steps were taken."""
    start = world.state()
    try:
        return _explore(world, start)
    finally:
        world.restore(start)  # for the Plan's end goes through its actors


def _explore(world: World, start: tuple[Any, ...]) -> tuple[int, int]:
    visited, todo, steps = {start}, [start], 0
    while todo:
        state = todo.pop()
        did, changed = False, True
        for step in world.steps():
            if changed:
                world.restore(state)
            changed = step()
            if not changed:
                continue
            did = True
            steps += 1
            after = world.state()
            if after not in visited:
                visited.add(after)
                todo.append(after)
        if not did:
            world.restore(state)
            world.check_end()
    return len(visited), steps


def main(length: int) -> None:
    """Explore all cases up to a length, and say how many there were."""
    for n in range(2, length + 1):
        begun, count, states, steps = time.process_time(), 0, 0, 0
        for case in cases(n):
            counts = explore(World(case))
            count, states, steps = count + 1, states + counts[0], steps + counts[1]
        minutes = (time.process_time() - begun) / 60
        print(
            f"{n} tasks: {count:,} cases, {states:,} states, {steps:,} steps, "
            f"{minutes:.1f} minutes",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
