"""The test plays the workers: whatever can happen next is a list of moves, and a policy picks one.

A move is what one thread does between two points where another may come in: an issuing thread
publishes, the scheduler receives, dispatches, collects or runs a barrier, a worker starts or ends
the instruction at the head of its stream's queue.  So a policy is a schedule, and a seed repeats
it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from flowvm.vm.machine.words import CTL, FRE, INS, KIND, QUE, RING, STR
from tests.vm.bench import Bench, Program, conflicts
from tests.vm.mutants import BARRIER_ORDER

Move = tuple[str, int, int]  # what, which stream, which instruction (its index)
Policy = Callable[[random.Random, list[Move]], Move]


def any_move(rng: random.Random, moves: list[Move]) -> Move:
    return rng.choice(moves)


def youngest_first(rng: random.Random, moves: list[Move]) -> Move:
    """Take in all there is, then work on the youngest: as far from program order as can be."""
    return max(moves, key=lambda move: (move[0] in ("issue", "receive", "dispatch"), move[2]))


def oldest_last(rng: random.Random, moves: list[Move]) -> Move:
    """Like youngest first, and what has ended is collected as late as possible."""
    late = [move for move in moves if move[0] != "collect"]
    return youngest_first(rng, late or moves)


def at_once(rng: random.Random, moves: list[Move]) -> Move:
    """Finish everything before taking in more: few in flight, and nodes reused at once."""
    order = (
        "collect", "barrier", "close", "finish", "end", "start", "open", "dispatch", "receive",
        "issue",
    )  # fmt: skip
    return min(moves, key=lambda move: (order.index(move[0]), move[2]))


POLICIES = (any_move, youngest_first, oldest_last, at_once)


@dataclass
class Player:
    """Runs a program on a bench.  `started` and `ended` are times of a clock that counts moves."""

    bench: Bench
    started: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    released: list[int] = field(
        default_factory=list
    )  # storages, in the order of their ReleaseTensor
    most_in_flight: int = 0
    clock: int = 0
    check_lists: bool = True

    def __post_init__(self) -> None:
        self.begun = [0] * STR.LENGTH
        self.over = [0] * STR.LENGTH
        self.collected = [0] * STR.LENGTH

    def run(self, program: Program, rng: random.Random, policy: Policy) -> Player:
        todo = list(reversed(program))
        while moves := self.moves(bool(todo)):
            what, stream, _ = policy(rng, moves)
            self.clock += 1
            if what == "issue":
                self.bench.issue(todo.pop())
            else:
                getattr(self, f"_{what}")(stream)
        in_flight = self.bench.m[CTL.RECEIVED] - self.bench.m[CTL.HEAD]
        assert (len(todo), in_flight) == (0, 0), (
            f"stuck: {len(todo)} not issued, {in_flight} in flight"
        )
        return self

    def moves(self, more: bool) -> list[Move]:
        """Everything that could happen next."""
        m, bench, moves = self.bench.m, self.bench, []
        if more and bench.issued < m[CTL.LIMIT]:
            moves.append(("issue", 0, bench.issued - bench.first))
        if m[CTL.RECEIVED] < bench.issued and bench.machine.may_receive(m):
            moves.append(("receive", 0, m[CTL.RECEIVED] - bench.first))
        if m[CTL.READY_FIRST] >= 0:
            moves.append(("dispatch", 0, bench.index(m[CTL.READY_FIRST])))
        if m[CTL.BARRIER_FIRST] >= 0:
            index = bench.index(m[CTL.BARRIER_FIRST])
            if bench.mutant == BARRIER_ORDER or index + bench.first == m[CTL.HEAD]:
                moves.append(("barrier", 0, index))
        for s in {ins.stream for ins in bench.program}:
            tail = m[STR.AT + s * STR.WORDS + STR.TAIL]
            if self.over[s] < self.begun[s]:
                moves.append(("end", s, self._at(s, self.over[s])))
            elif self.begun[s] < tail:
                moves.append(("start", s, self._at(s, self.begun[s])))
            if self.collected[s] < self.over[s]:
                moves.append(("collect", s, self._at(s, self.collected[s])))
        return moves

    def _slot(self, stream: int, place: int) -> int:
        return self.bench.m[QUE.AT + stream * RING.SLOTS + (place & RING.SLOT_MASK)]

    def _at(self, stream: int, place: int) -> int:
        return self.bench.index(self._slot(stream, place))

    def _receive(self, _: int) -> None:
        assert self.bench.machine.receive(self.bench.m)
        if self.check_lists:
            self.bench.check_lists()
        self.most_in_flight = max(
            self.most_in_flight, self.bench.m[CTL.RECEIVED] - self.bench.m[CTL.HEAD]
        )

    def _dispatch(self, _: int) -> None:
        slot = self.bench.machine.next_ready(self.bench.m)
        self.bench.machine.dispatch(self.bench.m, slot)
        if self.bench.ins(slot, INS.KIND) == KIND.TOUCH:  # a waiter is done as soon as it may
            self._run_here(slot)

    def _barrier(self, _: int) -> None:
        slot = self.bench.machine.ready_barrier(self.bench.m)
        assert slot >= 0, "a barrier waits though it is the oldest"
        self._run_here(slot)

    def _run_here(self, slot: int) -> None:
        index = self.bench.index(slot)
        assert index not in self.started, f"#{index} ran twice"
        self.started[index] = self.ended[index] = self.clock
        self._complete(slot)

    def _start(self, stream: int) -> None:
        index = self._at(stream, self.begun[stream])
        assert index not in self.started, f"#{index} ran twice"
        self.begun[stream] += 1
        self.started[index] = self.clock

    def _end(self, stream: int) -> None:
        self.ended[self._at(stream, self.over[stream])] = self.clock
        self.over[stream] += 1

    def _collect(self, stream: int) -> None:
        slot = self._slot(stream, self.collected[stream])
        self.collected[stream] += 1
        self._complete(slot)

    def _complete(self, slot: int) -> None:
        ins = self.bench.program[self.bench.index(slot)]
        self.bench.machine.complete(self.bench.m, slot)
        if ins.kind == KIND.RELEASE:
            self.released += [o.storage for o in ins.operands]
        if self.check_lists:
            self.bench.check_lists()


def check_order(player: Player, first: int = 0, last: int | None = None) -> None:
    """Everything ran once; of two that conflict, the earlier was over before the later began."""
    program = player.bench.program[first:last]
    for i in range(len(program)):
        assert first + i in player.ended, f"#{first + i} never ran"
    for i, j in conflicts(program):
        end, start = player.ended[first + i], player.started[first + j]
        assert end < start, f"#{first + i} {program[i]} ran into #{first + j} {program[j]}"


def check_barriers(player: Player) -> None:
    """A barrier ran when everything before it was over."""
    for j, ins in enumerate(player.bench.program):
        if ins.kind == KIND.BARRIER:
            late = [i for i in range(j) if player.ended[i] > player.started[j]]
            assert not late, f"barrier #{j} ran before #{late} ended"


def check_released(player: Player) -> None:
    """The ids of released storages were handed back, in the order of their ReleaseTensors."""
    m = player.bench.m
    assert m[CTL.FREED] == len(player.released)
    assert list(m[FRE.AT : FRE.AT + len(player.released)]) == player.released


def check_run(player: Player) -> None:
    """All of the above, and nothing is left."""
    check_order(player)
    check_barriers(player)
    check_released(player)
    player.bench.check_empty()
