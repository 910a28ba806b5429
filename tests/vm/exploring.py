"""Every interleaving of the machine's steps, for small programs.

A step is what one thread does between two points where another may come in: the scheduler receives
a record, dispatches, collects, or runs a barrier; a worker runs the instruction at the head of its
queue.  `explore` goes through every state that any order of steps leads to, each once: what the
machine knows is a few hundred words, which are copied and put back.  In every state

- an instruction that runs finds in its operands what program order left there, values and poison,
  and is skipped exactly if an operand is poisoned;
- a waiter hears of exactly that poison;
- a Restore lifts the poison of what is whole, and of nothing else;
- where no step can be taken, everything is released.

The machine's functions run as they are, and so do those of `execute` but the kernel itself.

Orders that make no difference are left out where `World` is asked to reduce: what is dispatched
runs before anything else happens, and what is ready is dispatched if it lets nobody go by that: no
waiter, which is over then, and nobody behind it on its stream.  That is enough because

- who waits for a dispatch on a stream is known when it gets ready, as `add_edge` sees to, and what
  is ready later is behind it in the list;
- an instruction's run touches its storages and its stream's count.  Who else touches these is
  dispatched when the instruction is over, or behind it on its stream: which `dispatch` checks in
  every state.

So any order of these steps ends in the same state, and so does whatever else is done before,
between or behind them: `tests.vm.machine.test_exploring` tries that in every state of programs of
up to four instructions.  What is left are the orders of receiving, collecting, barriers and of
dispatches that let others go: what is received before those may go in front of the others.  States
are told apart by what they mean, not by which nodes the machine's lists are made of.

`explore_all` goes through all programs at once.  What has been received knows nothing of what comes
behind it, so the states of a program are where all that begin with it go on.

`python -m tests.vm.exploring 6` explores all programs of up to six instructions.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowvm.vm.machine import machine
from flowvm.vm.machine.record import LINE
from flowvm.vm.machine.words import (
    ACC,
    CTL,
    DEP,
    EDG,
    ERR,
    FRE,
    INS,
    KIND,
    QUE,
    RING,
    STATE,
    STO,
    STR,
    WAI,
)
from flowvm.vm.workers import execute, shell
from tests.vm.bench import Bench, Instruction, Program, conflict, const, mut
from tests.vm.mutants import copy_of

STATUS = 77  # of the instruction that fails
STREAMS, STORAGES = 2, 2
MOST = 6  # instructions


@dataclass(frozen=True)
class Explored:
    """The number of states seen, and of steps taken."""

    states: int
    steps: int


def instructions() -> list[Instruction]:
    """Return the instructions of programs.

    There are ops that write one storage, and may read the other, on either stream; and waiters,
    releases, restores and a barrier.  A restore is of one storage, or of the other if the first
    instruction has poisoned it.
    """
    ops = [
        Instruction(KIND.OP_CALL, stream, (*mut(a), *const(*reads)))
        for stream in range(STREAMS)
        for a in range(STORAGES)
        for reads in ((), (1 - a,))
    ]
    return [
        *ops,
        *(Instruction(KIND.TOUCH, 0, const(a)) for a in range(STORAGES)),
        *(Instruction(KIND.RELEASE, a, mut(a)) for a in range(STORAGES)),
        *(Instruction(KIND.RESTORE, a, mut(a), scalar=a) for a in range(STORAGES)),
        Instruction(KIND.BARRIER),
    ]


def programs(length: int) -> Iterator[tuple[Program, int]]:
    """All programs of so many instructions with at most one that fails (-1: none), but for the
    names of streams and storages, and those that a waiter or barrier begins.
    """
    alphabet = instructions()
    for program in itertools.product(beginnings(), *[alphabet] * (length - 1)):
        yield program, -1
        yield from ((program, k) for k, ins in enumerate(program) if ins.kind == KIND.OP_CALL)


def beginnings() -> list[Instruction]:
    """Instructions that programs begin with, one for all that differ from it by names."""
    alphabet = instructions()
    return [
        i
        for i in alphabet
        if i.kind == KIND.OP_CALL and not i.stream and i.operands[0].storage == 0
    ]


def random_case(rng: random.Random, length: int) -> tuple[Program, int]:
    """One of `programs(length)`, or of those that differ from it by names."""
    program = rng.choices(instructions(), k=length)
    failing = [-1, *(k for k, ins in enumerate(program) if ins.kind == KIND.OP_CALL)]
    return program, rng.choice(failing)


class Expected:
    """The results of program order: the values and the poison that each instruction finds."""

    def __init__(self, program: Program, failing: int) -> None:
        values, poison, torn = list(range(STORAGES)), [0] * STORAGES, [False] * STORAGES
        self.values: list[list[int]] = []
        self.poison: list[list[int]] = []
        for k, ins in enumerate(program):
            self.values.append(list(values))
            self.poison.append(list(poison))
            causes = [poison[o.storage] for o in ins.operands if poison[o.storage]]
            if ins.kind == KIND.RELEASE:
                for o in ins.operands:
                    poison[o.storage], torn[o.storage] = 0, False
            elif ins.kind == KIND.RESTORE:
                for o in ins.operands:
                    if not torn[o.storage] and ins.scalar in (0, poison[o.storage]):
                        poison[o.storage] = 0
            elif ins.kind == KIND.OP_CALL and (causes or k == failing):
                poison[ins.operands[0].storage] = causes[0] if causes else k + 1
                if not causes and fails_late(ins):
                    values[ins.operands[0].storage], torn[ins.operands[0].storage] = GARBAGE, True
            elif ins.kind == KIND.OP_CALL:
                values[ins.operands[0].storage] = computed(k, ins, values)
        self.values.append(values)
        self.poison.append(poison)
        self.torn = torn


GARBAGE = -1  # what an instruction leaves that fails while it writes


def fails_late(ins: Instruction) -> bool:
    """Return True if a failing instruction has begun to write: it reads another storage."""
    return len(ins.operands) > 1


def computed(k: int, ins: Instruction, values: list[int]) -> int:
    """Return the value that instruction `k` writes: another number for all that it is made of."""
    return hash((k, *(values[o.storage] for o in ins.operands))) & 0xFFFFFFFF


VALUES_AT = CTL.RECEIVED + 1  # where the values are kept: the rest of a line, which nobody uses


def _indices() -> np.ndarray:
    """Return the indices of the words that the machine uses for small programs."""
    nodes = 4 * MOST * STORAGES
    places = [*range(CTL.AT, CTL.AT + CTL.WORDS, LINE), *range(VALUES_AT, VALUES_AT + STORAGES)]
    for region, count in (
        (INS, MOST), (DEP, STORAGES), (STO, STORAGES), (ACC, nodes), (EDG, nodes), (WAI, MOST),
        (FRE, MOST), (ERR, 2),
    ):  # fmt: skip
        places += range(region.AT, region.AT + count * region.WORDS)
    for stream in range(STREAMS):
        at = STR.AT + stream * STR.WORDS
        places += [at + STR.TAIL, at + STR.DONE, at + STR.COLLECTED]
        places += range(QUE.AT + stream * RING.SLOTS, QUE.AT + stream * RING.SLOTS + MOST)
    return np.array(places)


INDICES = _indices()
STREAMS_AT = [STR.AT + stream * STR.WORDS for stream in range(STREAMS)]


class World:
    """A machine with a program issued, whose state can be copied and put back.

    `reduced`: without the orders that make no difference.
    """

    shared: Bench | None = None  # its memory is large: one for all

    def __init__(
        self, program: Program, failing: int, reduced: bool = False, rules: Any = machine
    ) -> None:
        self.rules, self.reduced = rules, reduced
        if World.shared is None:
            World.shared = Bench()
            World.fresh = World.shared.array[INDICES].copy()
        bench = World.shared
        bench.array[INDICES] = World.fresh
        bench.program.clear()
        bench.issued = 0
        self.bench, self.m, self.array = bench, bench.m, bench.array
        for a in range(STORAGES):
            self.m[VALUES_AT + a] = a
        self.take(program, failing)

    def take(self, program: Program, failing: int, first: int = 0) -> None:
        """Go on with this program, of which the records in front of `first` are there already."""
        self.program, self.failing = program, failing
        self.expected = Expected(program, failing)
        self.before = [
            [k for k, a in enumerate(program[:j]) if conflict(a, b)] for j, b in enumerate(program)
        ]
        self.bench.issued = first
        for ins in program[first:]:
            self.bench.issue(ins)

    def moves(self) -> list[tuple[str, int]]:
        """Every step that could be taken now."""
        m, events = self.m, []
        if m[CTL.READY_FIRST] >= 0:
            events.append(("dispatch", 0))
        if m[CTL.RECEIVED] < len(self.program):
            events.append(("receive", 0))
        if m[CTL.BARRIER_FIRST] >= 0 and self.rules.is_oldest(m, m[CTL.BARRIER_FIRST]):
            events.append(("barrier", 0))
        for stream, at in enumerate(STREAMS_AT):
            if m[at + STR.DONE] < m[at + STR.TAIL]:
                events.append(("run", stream))
            if m[at + STR.COLLECTED] < m[at + STR.DONE]:
                events.append(("collect", stream))
        return events

    def settle(self) -> int:
        """Run whatever is to run, and dispatch what lets nobody go: how many steps that took."""
        steps = 0
        while True:
            if self.dispatches_alone():
                self.dispatch(0)
            elif (stream := self.busy()) >= 0:
                self.run(stream)
            else:
                return steps
            steps += 1

    def dispatches_alone(self) -> bool:
        """Return True if an instruction is to be dispatched, and this makes no other one ready."""
        slot = self.m[CTL.READY_FIRST]
        if slot < 0 or self.program[slot].kind == KIND.TOUCH:
            return False
        return bool(self.m[INS.AT + slot * INS.WORDS + INS.AT_DISPATCH] < 0)

    def busy(self) -> int:
        """The first stream on which something is to run, or -1."""
        for stream, at in enumerate(STREAMS_AT):
            if self.m[at + STR.DONE] < self.m[at + STR.TAIL]:
                return stream
        return -1

    def meaning(self) -> Any:
        """Return the meaning of the words, without node numbers and finished instructions."""
        m = self.m
        lively: list[Any] = []
        for slot in range(m[CTL.HEAD], m[CTL.RECEIVED]):
            at = INS.AT + slot * INS.WORDS
            state = m[at + INS.STATE]
            if state != STATE.RELEASED:
                lively += (slot, state, m[at + INS.WAITING])
                for edge in (m[at + INS.AT_DISPATCH], m[at + INS.AT_DONE]):  # whom it lets go
                    while edge >= 0:
                        lively.append(m[EDG.AT + edge * EDG.WORDS + EDG.TARGET])
                        edge = m[EDG.AT + edge * EDG.WORDS + EDG.NEXT]
                    lively.append(-1)
        for k in range(STORAGES):
            at = STO.AT + k * STO.WORDS
            lively += (m[VALUES_AT + k], m[at + STO.POISON], m[at + STO.TORN])
            node = m[DEP.AT + k * DEP.WORDS + DEP.FIRST] - 1
            while node >= 0:
                at = ACC.AT + node * ACC.WORDS
                lively += (m[at + ACC.SLOT], m[at + ACC.WRITES])
                node = m[at + ACC.NEXT]
            lively.append(-1)
        for stream, at in enumerate(STREAMS_AT):
            first, finished, tail = m[at + STR.COLLECTED], m[at + STR.DONE], m[at + STR.TAIL]
            queue = QUE.AT + stream * RING.SLOTS
            lively += (tail - first, finished - first, *m[queue + first : queue + tail])
        for first in (m[CTL.READY_FIRST], m[CTL.BARRIER_FIRST]):
            while first >= 0:
                lively.append(first)
                first = m[INS.AT + first * INS.WORDS + INS.NEXT]
            lively.append(-1)
        return (m[CTL.RECEIVED], m[CTL.ERROR_COUNT], *lively)

    def receive(self, _: int) -> None:
        assert self.rules.receive(self.m)

    def dispatch(self, _: int) -> None:
        slot = self.rules.next_ready(self.m)
        for other in self.before[slot]:
            assert self.is_over(other) or self.is_in_front(other, slot), (
                f"#{slot} is dispatched, and #{other} is neither over nor in front of it"
            )
        self.rules.dispatch(self.m, slot)
        if self.program[slot].kind == KIND.TOUCH:
            self.wait(slot)

    def is_over(self, slot: int) -> bool:
        """Return True if an instruction is released."""
        return bool(self.m[INS.AT + slot * INS.WORDS + INS.STATE] == STATE.RELEASED)

    def is_in_front(self, other: int, slot: int) -> bool:
        """Return True if one instruction is already on the stream to which the other goes."""
        a, b = self.program[other], self.program[slot]
        queued = a.kind != KIND.TOUCH and b.kind != KIND.TOUCH and a.stream == b.stream
        return queued and bool(self.m[INS.AT + other * INS.WORDS + INS.STATE] == STATE.DISPATCHED)

    def barrier(self, _: int) -> None:
        slot = self.rules.ready_barrier(self.m)
        assert all(self.is_over(k) for k in range(slot))
        self.wait(slot)

    def wait(self, slot: int) -> None:
        """Finish a waiter as the scheduler does: `shell.finish_wait` without its cell."""
        outcome = shell.outcome_of(self.m, slot)
        causes = {self.expected.poison[slot][o.storage] for o in self.program[slot].operands}
        assert -outcome in causes - {0} or (outcome == 1 and not causes - {0}), (
            f"#{slot} heard {outcome}, {causes} was due"
        )
        self.rules.complete(self.m, slot)

    def run(self, stream: int) -> None:
        at = STR.AT + stream * STR.WORDS
        slot = self.m[QUE.AT + stream * RING.SLOTS + self.m[at + STR.DONE]]
        ins = self.program[slot]
        for o in ins.operands:
            k = o.storage
            state = self.m[VALUES_AT + k], self.m[STO.AT + k * STO.WORDS + STO.POISON]
            due = self.expected.values[slot][k], self.expected.poison[slot][k]
            assert state == due, f"#{slot} {ins} finds {state} in s{k}, {due} is due"
        World.running = self
        status = runner.execute(self.m, stream, slot)
        poisoned = any(self.expected.poison[slot][o.storage] for o in ins.operands)
        if ins.kind == KIND.OP_CALL:
            due = INS.POISONED if poisoned else STATUS if slot == self.failing else 0
            assert status == due, f"#{slot} {ins} ended with {status}, not {due}"
        self.m[at + STR.DONE] += 1

    def kernel(self, slot: int) -> int:
        """Instead of the kernel."""
        ins = self.program[slot]
        if slot == self.failing:
            if fails_late(ins):
                runner.tear(self.m, slot, machine.entry_of(self.m, slot))
                self.m[VALUES_AT + ins.operands[0].storage] = GARBAGE
            return STATUS
        values = [self.m[VALUES_AT + k] for k in range(STORAGES)]
        self.m[VALUES_AT + ins.operands[0].storage] = computed(slot, ins, values)
        return 0

    def collect(self, stream: int) -> None:
        at = STR.AT + stream * STR.WORDS
        slot = self.m[QUE.AT + stream * RING.SLOTS + self.m[at + STR.COLLECTED]]
        self.m[at + STR.COLLECTED] += 1
        self.rules.complete(self.m, slot)

    def check_end(self) -> None:
        """No step can be taken: all is released, and is as program order says."""
        unfinished = [k for k in range(len(self.program)) if not self.is_over(k)]
        assert not unfinished, f"stuck: {unfinished} of {self.program}"
        assert self.m[CTL.HEAD] == len(self.program)
        poison = [self.m[STO.AT + k * STO.WORDS + STO.POISON] for k in range(STORAGES)]
        values = [self.m[VALUES_AT + k] for k in range(STORAGES)]
        assert (values, poison) == (self.expected.values[-1], self.expected.poison[-1])
        torn = [self.m[STO.AT + k * STO.WORDS + STO.TORN] != 0 for k in range(STORAGES)]
        assert torn == self.expected.torn
        released = sum(len(i.operands) for i in self.program if i.kind == KIND.RELEASE)
        assert self.m[CTL.FREED] == released
        assert self.m[CTL.LIVE_ACCESSES] == 0
        failed = int(
            self.failing >= 0
            and not any(
                self.expected.poison[self.failing][o.storage]
                for o in self.program[self.failing].operands
            )
        )
        assert self.m[CTL.ERROR_COUNT] == failed


def explore(world: World) -> Explored:
    """Go through every state that can be reached; AssertionError says what is wrong where."""
    states, steps = reached(world, [world.array[INDICES].tobytes()])
    return Explored(len(states), steps)


def reached(world: World, states: Iterable[bytes]) -> tuple[list[bytes], int]:
    """Return these states and all states reachable from them, and the number of steps."""
    visited, todo, finals, steps = set(), list(states), [], 0
    while todo:
        state = todo.pop()
        words = np.frombuffer(state, np.int64)
        world.array[INDICES] = words
        key = world.meaning() if world.reduced else state
        if key in visited:
            continue
        visited.add(key)
        finals.append(state)
        moves = world.moves()
        if not moves:
            world.check_end()
        for k, (what, stream) in enumerate(moves):
            if k:
                world.array[INDICES] = words
            getattr(world, what)(stream)
            steps += 1 + (world.settle() if world.reduced else 0)
            todo.append(world.array[INDICES].tobytes())
    return finals, steps


def explore_all(length: int, rules: Any = machine) -> list[list[int]]:
    """Explore all programs of up to so many instructions, reduced: for each length the programs,
    states and steps.  A state counts for the first program only that leads to it.
    """
    counts = [[0, 0, 0] for _ in range(length)]
    world = World((), -1, reduced=True, rules=rules)

    def extend(program: Program, failing: int, states: list[bytes]) -> None:
        count = counts[len(program)]
        for ins in instructions() if program else beginnings():
            longer = (*program, ins)
            fails = failing < 0 and ins.kind == KIND.OP_CALL
            for bad in (failing, len(program)) if fails else (failing,):
                world.take(longer, bad, first=len(program))
                received = []
                for state in states:
                    world.array[INDICES] = np.frombuffer(state, np.int64)
                    world.receive(0)
                    count[2] += 1 + world.settle()
                    received.append(world.array[INDICES].tobytes())
                on, steps = reached(world, received)
                count[0] += 1
                count[1] += len(on)
                count[2] += steps
                if len(longer) < length:
                    extend(longer, bad, on)

    extend((), -1, [world.array[INDICES].tobytes()])
    return counts


runner: Any = copy_of(execute)
runner.run_kernel = lambda m, stream, slot, entry: World.running.kernel(slot)


def main(length: int) -> None:
    """Explore all programs up to a length, and say how many there were."""
    begun = time.process_time()
    for n, (count, states, steps) in enumerate(explore_all(length), 1):
        print(f"{n} instructions: {count:,} programs, {states:,} states, {steps:,} steps")
    print(f"{(time.process_time() - begun) / 60:.1f} minutes")


if __name__ == "__main__":
    main(int(sys.argv[1]))
