"""A bench for the scheduler's pure state machine, and the invariants of its runs.

`Bench` holds a VM's memory without threads: it writes records as an issuing thread does, and the
test decides what happens next (receive, dispatch, run, complete).  The functions of
`flowvm.vm.machine.machine` run uncompiled on a memoryview, which also checks every index.

The specification is written here a second time, without lists of accesses: two instructions
*conflict* if they share a storage that at least one of them writes; of two that conflict, the
earlier one in program order must be over before the later one starts, and nothing else is ordered.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from flowvm.vm.machine import machine
from flowvm.vm.machine.words import (
    ACC,
    ARRAY,
    CTL,
    DEP,
    EDG,
    ENT,
    INS,
    KIND,
    OPERAND,
    QUE,
    RING,
    STATE,
    STR,
    Kind,
)
from tests.vm.mutants import MUTANT, forgetful


@dataclass(frozen=True)
class Operand:
    storage: int
    access: int = OPERAND.CONST
    offset: int = 0  # of a view, in bytes

    @property
    def writes(self) -> bool:
        return self.access & 3 != OPERAND.CONST

    @property
    def word(self) -> int:
        return self.storage | self.offset << OPERAND.STORAGE_BITS

    def __repr__(self) -> str:
        view = f"+{self.offset}" if self.offset else ""
        return f"{'!' if self.writes else ''}s{self.storage}{view}"


@dataclass(frozen=True)
class Instruction:
    kind: int
    stream: int = 0
    operands: tuple[Operand, ...] = ()
    outline: bool = False
    nbytes: int = 0
    scalar: int = 0  # of a Restore

    def __repr__(self) -> str:
        mark = "*" if self.outline else ""
        return f"{Kind(self.kind).name}{mark}@{self.stream}{list(self.operands)}"

    def touches(self) -> dict[int, bool]:
        """Each storage it accesses, and whether it writes it."""
        touched: dict[int, bool] = {}
        for o in self.operands:
            touched[o.storage] = touched.get(o.storage, False) or o.writes
        return touched


Program = Sequence[Instruction]


def const(*storages: int) -> tuple[Operand, ...]:
    return tuple(Operand(s) for s in storages)


def mut(*storages: int) -> tuple[Operand, ...]:
    return tuple(Operand(s, OPERAND.MUT) for s in storages)


def op(*operands: Operand, stream: int = 0) -> Instruction:
    return Instruction(KIND.OP_CALL, stream, operands)


def conflict(a: Instruction, b: Instruction) -> bool:
    """Return True if the two share a storage that one of them writes."""
    mine, others = a.touches(), b.touches()
    return any(s in others and (mine[s] or others[s]) for s in mine)


def conflicts(program: Program) -> Iterator[tuple[int, int]]:
    """Every pair i < j of a program whose order matters."""
    for j, b in enumerate(program):
        for i, a in enumerate(program[:j]):
            if conflict(a, b):
                yield i, j


# --- random programs ----------------------------------------------------------------------------


def random_program(
    rng: random.Random, length: int, storages: int, streams: int, barriers: float = 0.05
) -> list[Instruction]:
    """A program in which storages are read, written, seen through views, touched and released."""
    program = []
    for _ in range(length):
        x = rng.random()
        stream = rng.randrange(streams)
        if x < barriers:
            program.append(Instruction(KIND.BARRIER))
            continue
        if x < barriers + 0.1:
            kind, count = KIND.TOUCH, rng.randint(0, 3)
            operands = const(*(rng.randrange(storages) for _ in range(count)))
        elif x < barriers + 0.2:
            kind = KIND.RELEASE
            operands = mut(*rng.sample(range(storages), rng.randint(1, min(2, storages))))
        else:
            kind = KIND.CALLBACK if x > 0.95 else KIND.OP_CALL
            operands = tuple(_random_operand(rng, storages) for _ in range(rng.randint(1, 4)))
        outline = kind == KIND.OP_CALL and rng.random() < 0.2
        nbytes = rng.choice((0, 0, 64, 4096)) if kind == KIND.OP_CALL else 0
        program.append(Instruction(kind, stream, operands, outline, nbytes))
    return program


def _random_operand(rng: random.Random, storages: int) -> Operand:
    access = rng.choice(
        (OPERAND.CONST, OPERAND.CONST, OPERAND.MUT, OPERAND.MUT2, OPERAND.MUT | OPERAND.ALLOCATE)
    )
    return Operand(rng.randrange(storages), access, rng.choice((0, 0, 8, 640)))


_operands = st.builds(
    Operand,
    storage=st.integers(0, 4),
    access=st.sampled_from(
        (OPERAND.CONST, OPERAND.MUT, OPERAND.MUT2, OPERAND.MUT | OPERAND.ALLOCATE)
    ),
    offset=st.sampled_from((0, 16)),
)
_op_calls = st.builds(
    Instruction,
    kind=st.just(KIND.OP_CALL),
    stream=st.integers(0, 2),
    operands=st.lists(_operands, min_size=1, max_size=4).map(tuple),
    outline=st.booleans(),
)
_touches = st.lists(st.integers(0, 4), max_size=3).map(
    lambda s: Instruction(KIND.TOUCH, 0, const(*s))
)
_releases = st.builds(
    lambda stream, s: Instruction(KIND.RELEASE, stream, mut(*s)),
    st.integers(0, 2),
    st.lists(st.integers(0, 4), min_size=1, max_size=2, unique=True),
)
programs = st.lists(
    st.one_of(
        _op_calls, _op_calls, _op_calls, _touches, _releases, st.just(Instruction(KIND.BARRIER))
    ),
    min_size=1,
    max_size=24,
)


# --- the bench ----------------------------------------------------------------------------------


@dataclass
class Bench:
    """A VM's memory, and the record of its events."""

    first: int = 0  # sequence number of the first instruction
    mutant: int = 0  # what the machine forgets (see `tests.vm.mutants`)
    program: list[Instruction] = field(default_factory=list)
    # pairs of indices into program: edges ever built, and what the streams' queues put in order
    edges: set[tuple[int, int]] = field(default_factory=set)
    queued: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.array = np.zeros(ARRAY.WORDS, np.int64)
        self.m: memoryview = memoryview(self.array)  # type: ignore[arg-type]
        self.machine = forgetful if self.mutant else machine
        machine.start(self.m)
        self.m[CTL.RECEIVED] = self.m[CTL.HEAD] = self.first
        self.m[CTL.LIMIT] += self.first
        self.m[MUTANT] = self.mutant
        self.m[CTL.USED_STREAMS] = STR.LENGTH
        self.issued = self.first
        self.entries: dict[Instruction, int] = {}
        self.blocks: dict[int, np.ndarray] = {}  # operands out of line

    def slot(self, index: int) -> int:
        return (self.first + index) & RING.SLOT_MASK

    def index(self, slot: int) -> int:
        """Return the index in the program of the instruction in `slot`."""
        return self.ins(slot, INS.SEQ) - self.first

    def ins(self, slot: int, word: int) -> int:
        return self.m[INS.AT + slot * INS.WORDS + word]

    def entry(self, ins: Instruction) -> int:
        """The number of its entry, written now if need be."""
        bare = tuple(Operand(0, o.access) for o in ins.operands)
        shape = Instruction(ins.kind, 0, () if ins.outline else bare, ins.outline, ins.nbytes)
        if shape not in self.entries:
            self.entries[shape] = len(self.entries) + 1
            at = ENT.AT + self.entries[shape] * ENT.WORDS
            self.m[at + ENT.KIND], self.m[at + ENT.COUNT] = ins.kind, len(shape.operands)
            self.m[at + ENT.OUTLINE], self.m[at + ENT.BYTES] = int(ins.outline), ins.nbytes
            for k, o in enumerate(shape.operands):
                word = at + ENT.ACCESS + k // OPERAND.ACCESSES_PER_WORD
                self.m[word] |= o.access << (k % OPERAND.ACCESSES_PER_WORD * OPERAND.ACCESS_BITS)
        return self.entries[shape]

    def issue(self, ins: Instruction) -> None:
        """Publish a record, as an issuing thread does."""
        words = [o.word for o in ins.operands]
        if ins.outline:
            block = np.array([*words, *(o.access for o in ins.operands)], np.int64)
            self.blocks[self.issued] = block
            words = [block.ctypes.data, len(ins.operands)]
        if ins.kind == KIND.RESTORE:
            words.append(ins.scalar)
        values = [*words[::-1], self.entry(ins) | ins.stream << ENT.BITS, self.issued + 1]
        slot = self.issued & RING.SLOT_MASK
        at = RING.AT + (slot + 1) * RING.WORDS - len(values)
        struct.pack_into(f"{len(values)}q", self.m.cast("B"), 8 * at, *values)
        self.program.append(ins)
        self.issued += 1

    def receive(self) -> bool:
        """Let the scheduler take one record; remembers the edges it built."""
        index = self.m[CTL.RECEIVED] - self.first
        if not self.machine.receive(self.m):
            return False
        self.edges |= {(i, index) for i in self._waited_for(self.slot(index))}
        self._remember_order(index)  # what its stream was handed already runs before it
        return True

    def dispatch(self) -> int:
        """Dispatch the first ready instruction: its slot, or -1."""
        slot = self.m[CTL.READY_FIRST]
        if slot >= 0:
            self._remember_order(self.index(slot))
            assert self.machine.next_ready(self.m) == slot
            self.machine.dispatch(self.m, slot)
        return slot

    def _remember_order(self, index: int) -> None:
        """Stream order: it comes behind its stream's queue and those that are ready to go there."""
        ins = self.program[index]
        if ins.kind in (KIND.TOUCH, KIND.BARRIER):
            return
        tail = self.m[STR.AT + ins.stream * STR.WORDS + STR.TAIL]
        if tail > 0:
            last = self.m[QUE.AT + ins.stream * RING.SLOTS + ((tail - 1) & RING.SLOT_MASK)]
            self.queued.add((self.index(last), index))
        slot = self.m[CTL.READY_FIRST]
        while slot >= 0 and self.index(slot) != index:
            other = self.program[self.index(slot)]
            if other.stream == ins.stream and other.kind != KIND.TOUCH:
                self.queued.add((self.index(slot), index))
            slot = self.ins(slot, INS.NEXT)

    def _waited_for(self, target: int) -> Iterator[int]:
        for seq in range(self.m[CTL.HEAD], self.m[CTL.RECEIVED]):
            slot = seq & RING.SLOT_MASK
            for word in (INS.AT_DISPATCH, INS.AT_DONE):
                for other in self.edge_list(INS.AT + slot * INS.WORDS + word):
                    if other == target:
                        yield seq - self.first

    def edge_list(self, at: int) -> Iterator[int]:
        """The target slots of the edge list that starts at word `at`."""
        index, steps = self.m[at], 0
        while index >= 0:
            yield self.m[EDG.AT + index * EDG.WORDS + EDG.TARGET]
            index = self.m[EDG.AT + index * EDG.WORDS + EDG.NEXT]
            steps += 1
            assert steps <= EDG.LENGTH, "an edge list is a circle"

    def access_list(self, storage: int) -> list[tuple[int, bool]]:
        """(instruction, writes) of every access in flight, after a check of the list's links."""
        dep = DEP.AT + storage * DEP.WORDS
        chain, previous, at = [], -1, self.m[dep + DEP.FIRST] - 1
        while at >= 0:
            node = ACC.AT + at * ACC.WORDS
            assert self.m[node + ACC.PREVIOUS] == previous, "a list's links differ by direction"
            assert self.m[node + ACC.STORAGE] == storage, "a node is on another storage's list"
            chain.append((self.index(self.m[node + ACC.SLOT]), bool(self.m[node + ACC.WRITES])))
            previous, at = at, self.m[node + ACC.NEXT]
        assert self.m[dep + DEP.LAST] - 1 == previous, "a list's end is not its last node"
        return chain

    def check_lists(self) -> None:
        """`[one writer]? readers*`, of instructions in flight that access the storage."""
        for storage in {o.storage for ins in self.program for o in ins.operands}:
            accesses = self.access_list(storage)
            assert not any(writes for _, writes in accesses[1:]), f"s{storage}: {accesses}"
            for i, writes in accesses:
                state = self.ins(self.slot(i), INS.STATE)
                assert STATE.PENDING <= state <= STATE.DISPATCHED, f"s{storage}: #{i} is over"
                assert self.program[i].touches()[storage] >= writes, f"s{storage}: {accesses}"

    def check_empty(self) -> None:
        """Nothing is in flight and nothing has leaked."""
        m, issued = self.m, self.issued
        assert m[CTL.HEAD] == m[CTL.RECEIVED] == issued, (m[CTL.HEAD], m[CTL.RECEIVED], issued)
        assert m[CTL.N_DISPATCHED] == m[CTL.N_DONE] == len(self.program)
        assert m[CTL.LIVE_ACCESSES] == m[CTL.IN_FLIGHT_BYTES] == 0
        assert (m[CTL.READY_FIRST], m[CTL.BARRIER_FIRST]) == (-1, -1)
        assert _length(m, m[CTL.FREE_ACCESS], ACC.AT, ACC.WORDS, ACC.NEXT) == m[CTL.ACCESS_TOP]
        assert _length(m, m[CTL.FREE_EDGE], EDG.AT, EDG.WORDS, EDG.NEXT) == m[CTL.EDGE_TOP]
        deps = self.array[DEP.AT : DEP.AT + 4096 * DEP.WORDS]
        assert not deps.any(), "a storage still has an access"
        assert m[CTL.LIMIT] == issued + m[CTL.RUN_AHEAD]


def _length(m: memoryview, index: int, base: int, words: int, following: int) -> int:
    count = 0
    while index >= 0:
        count, index = count + 1, m[base + index * words + following]
        assert count <= EDG.LENGTH, "a free list is a circle"
    return count


def check_closure(bench: Bench) -> None:
    """The closure check: for every pair whose order matters there is a path of edges."""
    after: dict[int, list[int]] = {}
    for i, j in bench.edges | bench.queued:
        after.setdefault(i, []).append(j)
    reached: dict[int, set[int]] = {}
    for i in range(len(bench.program)):
        todo, reached[i] = [i], set()
        while todo:
            for j in after.get(todo.pop(), ()):
                if j not in reached[i]:
                    reached[i].add(j)
                    todo.append(j)
    for i, j in conflicts(bench.program):
        a, b = bench.program[i], bench.program[j]
        assert j in reached[i], (
            f"nothing orders #{i} {a} before #{j} {b}\nedges: {sorted(bench.edges)}"
        )


def check_edges(bench: Bench) -> None:
    """No edge is without a reason: each goes forward, between two instructions that conflict."""
    for i, j in bench.edges:
        a, b = bench.program[i], bench.program[j]
        assert i < j, f"#{j} waits for #{i}"
        assert conflict(a, b), f"#{j} {b} waits for #{i} {a} without need"


def feed(
    program: Program, mutant: int = 0, choose: Callable[[], bool] = lambda: False, first: int = 0
) -> Bench:
    """Receive a whole program and complete nothing; dispatch whenever `choose()` says so."""
    bench = Bench(first=first, mutant=mutant)
    for ins in program:
        bench.issue(ins)
        assert bench.receive(), "the machine refused a record that it has room for"
        bench.check_lists()
        while choose() and bench.dispatch() >= 0:
            pass
    return bench
