"""A bench for the scheduler's pure state machine, and what its runs must fulfil.

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

from flowvm.vm.machine import layout as w
from flowvm.vm.machine import machine


@dataclass(frozen=True)
class Operand:
    storage: int
    access: int = w.CONST
    offset: int = 0  # of a view, in bytes

    @property
    def writes(self) -> bool:
        return self.access & 3 != w.CONST

    @property
    def word(self) -> int:
        return self.storage | self.offset << w.STORAGE_BITS

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

    def __repr__(self) -> str:
        mark = "*" if self.outline else ""
        return f"{w.Kind(self.kind).name}{mark}@{self.stream}{list(self.operands)}"

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
    return tuple(Operand(s, w.MUT) for s in storages)


def op(*operands: Operand, stream: int = 0) -> Instruction:
    return Instruction(w.OP_CALL, stream, operands)


def conflict(a: Instruction, b: Instruction) -> bool:
    """Whether the two share a storage that one of them writes."""
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
            program.append(Instruction(w.BARRIER))
            continue
        if x < barriers + 0.1:
            kind, count = w.TOUCH, rng.randint(0, 3)
            operands = const(*(rng.randrange(storages) for _ in range(count)))
        elif x < barriers + 0.2:
            kind = w.RELEASE
            operands = mut(*rng.sample(range(storages), rng.randint(1, min(2, storages))))
        else:
            kind = w.CALLBACK if x > 0.95 else w.OP_CALL
            operands = tuple(_random_operand(rng, storages) for _ in range(rng.randint(1, 4)))
        outline = kind == w.OP_CALL and rng.random() < 0.2
        nbytes = rng.choice((0, 0, 64, 4096)) if kind == w.OP_CALL else 0
        program.append(Instruction(kind, stream, operands, outline, nbytes))
    return program


def _random_operand(rng: random.Random, storages: int) -> Operand:
    access = rng.choice((w.CONST, w.CONST, w.MUT, w.MUT2, w.MUT | w.ALLOCATE))
    return Operand(rng.randrange(storages), access, rng.choice((0, 0, 8, 640)))


_operands = st.builds(
    Operand,
    storage=st.integers(0, 4),
    access=st.sampled_from((w.CONST, w.MUT, w.MUT2, w.MUT | w.ALLOCATE)),
    offset=st.sampled_from((0, 16)),
)
_op_calls = st.builds(
    Instruction,
    kind=st.just(w.OP_CALL),
    stream=st.integers(0, 2),
    operands=st.lists(_operands, min_size=1, max_size=4).map(tuple),
    outline=st.booleans(),
)
_touches = st.lists(st.integers(0, 4), max_size=3).map(lambda s: Instruction(w.TOUCH, 0, const(*s)))
_releases = st.builds(
    lambda stream, s: Instruction(w.RELEASE, stream, mut(*s)),
    st.integers(0, 2),
    st.lists(st.integers(0, 4), min_size=1, max_size=2, unique=True),
)
programs = st.lists(
    st.one_of(
        _op_calls, _op_calls, _op_calls, _touches, _releases, st.just(Instruction(w.BARRIER))
    ),
    min_size=1,
    max_size=24,
)


# --- the bench ----------------------------------------------------------------------------------


@dataclass
class Bench:
    """A VM's memory, and the record of what happened in it."""

    first: int = 0  # sequence number of the first instruction
    mutant: int = 0
    program: list[Instruction] = field(default_factory=list)
    # pairs of indices into program: edges ever built, and what the streams' queues put in order
    edges: set[tuple[int, int]] = field(default_factory=set)
    queued: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.array = np.zeros(w.WORDS, np.int64)
        self.m: memoryview = memoryview(self.array)  # type: ignore[arg-type]
        machine.start(self.m)
        self.m[w.RECEIVED] = self.m[w.HEAD] = self.first
        self.m[w.LIMIT] += self.first
        self.m[w.MUTANT] = self.mutant
        self.m[w.USED_STREAMS] = w.STREAMS
        self.issued = self.first
        self.entries: dict[Instruction, int] = {}
        self.blocks: dict[int, np.ndarray] = {}  # operands out of line

    def slot(self, index: int) -> int:
        return (self.first + index) & w.SLOT_MASK

    def index(self, slot: int) -> int:
        """Which instruction of the program is in `slot`."""
        return self.ins(slot, w.I_SEQ) - self.first

    def ins(self, slot: int, word: int) -> int:
        return self.m[w.INS + slot * w.INS_WORDS + word]

    def entry(self, ins: Instruction) -> int:
        """The number of its entry, written now if need be."""
        bare = tuple(Operand(0, o.access) for o in ins.operands)
        shape = Instruction(ins.kind, 0, () if ins.outline else bare, ins.outline, ins.nbytes)
        if shape not in self.entries:
            self.entries[shape] = len(self.entries) + 1
            at = w.ENT + self.entries[shape] * w.ENTRY_WORDS
            self.m[at + w.E_KIND], self.m[at + w.E_COUNT] = ins.kind, len(shape.operands)
            self.m[at + w.E_OUTLINE], self.m[at + w.E_BYTES] = int(ins.outline), ins.nbytes
            for k, o in enumerate(shape.operands):
                word = at + w.E_ACCESS + k // w.ACCESSES_PER_WORD
                self.m[word] |= o.access << (k % w.ACCESSES_PER_WORD * w.ACCESS_BITS)
        return self.entries[shape]

    def issue(self, ins: Instruction) -> None:
        """Publish a record, as an issuing thread does."""
        words = [o.word for o in ins.operands]
        if ins.outline:
            block = np.array([*words, *(o.access for o in ins.operands)], np.int64)
            self.blocks[self.issued] = block
            words = [block.ctypes.data, len(ins.operands)]
        values = [*words[::-1], self.entry(ins) | ins.stream << w.ENTRY_BITS, self.issued + 1]
        slot = self.issued & w.SLOT_MASK
        at = w.RING + (slot + 1) * w.RECORD_WORDS - len(values)
        struct.pack_into(f"{len(values)}q", self.m.cast("B"), 8 * at, *values)
        self.program.append(ins)
        self.issued += 1

    def receive(self) -> bool:
        """Let the scheduler take one record; remembers the edges it built."""
        index = self.m[w.RECEIVED] - self.first
        if not machine.receive(self.m):
            return False
        self.edges |= {(i, index) for i in self._waited_for(self.slot(index))}
        self._remember_order(index)  # what its stream was handed already runs before it
        return True

    def dispatch(self) -> int:
        """Dispatch the first ready instruction: its slot, or -1."""
        slot = self.m[w.READY_FIRST]
        if slot >= 0:
            self._remember_order(self.index(slot))
            assert machine.next_ready(self.m) == slot
            machine.dispatch(self.m, slot)
        return slot

    def _remember_order(self, index: int) -> None:
        """Stream order: it comes behind its stream's queue and those that are ready to go there."""
        ins = self.program[index]
        if ins.kind in (w.TOUCH, w.BARRIER):
            return
        tail = self.m[w.STR + ins.stream * w.STR_WORDS + w.T_TAIL]
        if tail > 0:
            last = self.m[w.QUE + ins.stream * w.CAPACITY + ((tail - 1) & w.SLOT_MASK)]
            self.queued.add((self.index(last), index))
        slot = self.m[w.READY_FIRST]
        while slot >= 0 and self.index(slot) != index:
            other = self.program[self.index(slot)]
            if other.stream == ins.stream and other.kind != w.TOUCH:
                self.queued.add((self.index(slot), index))
            slot = self.ins(slot, w.I_NEXT)

    def _waited_for(self, target: int) -> Iterator[int]:
        for seq in range(self.m[w.HEAD], self.m[w.RECEIVED]):
            slot = seq & w.SLOT_MASK
            for word in (w.I_AT_DISPATCH, w.I_AT_DONE):
                for other in self.edge_list(w.INS + slot * w.INS_WORDS + word):
                    if other == target:
                        yield seq - self.first

    def edge_list(self, at: int) -> Iterator[int]:
        """The target slots of the edge list that starts at word `at`."""
        index, steps = self.m[at], 0
        while index >= 0:
            yield self.m[w.EDG + index * w.EDG_WORDS + w.G_TARGET]
            index = self.m[w.EDG + index * w.EDG_WORDS + w.G_NEXT]
            steps += 1
            assert steps <= w.EDGES, "an edge list is a circle"

    def access_list(self, storage: int) -> list[tuple[int, bool]]:
        """(instruction, writes) of every access in flight, after a check of the list's links."""
        dep = w.DEP + storage * w.DEP_WORDS
        found, previous, at = [], -1, self.m[dep + w.D_FIRST] - 1
        while at >= 0:
            node = w.ACC + at * w.ACC_WORDS
            assert self.m[node + w.A_PREVIOUS] == previous, "a list's links differ by direction"
            assert self.m[node + w.A_STORAGE] == storage, "a node is on another storage's list"
            found.append((self.index(self.m[node + w.A_SLOT]), bool(self.m[node + w.A_WRITES])))
            previous, at = at, self.m[node + w.A_NEXT]
        assert self.m[dep + w.D_LAST] - 1 == previous, "a list's end is not its last node"
        return found

    def check_lists(self) -> None:
        """`[one writer]? readers*`, and only of lively instructions that do access the storage."""
        for storage in {o.storage for ins in self.program for o in ins.operands}:
            accesses = self.access_list(storage)
            assert not any(writes for _, writes in accesses[1:]), f"s{storage}: {accesses}"
            for i, writes in accesses:
                state = self.ins(self.slot(i), w.I_STATE)
                assert w.PENDING <= state <= w.DISPATCHED, f"s{storage}: #{i} is over"
                assert self.program[i].touches()[storage] >= writes, f"s{storage}: {accesses}"

    def check_empty(self) -> None:
        """Nothing is in flight and nothing has leaked."""
        m, issued = self.m, self.issued
        assert m[w.HEAD] == m[w.RECEIVED] == issued, (m[w.HEAD], m[w.RECEIVED], issued)
        assert m[w.N_DISPATCHED] == m[w.N_DONE] == len(self.program)
        assert m[w.LIVE_ACCESSES] == m[w.IN_FLIGHT_BYTES] == 0
        assert (m[w.READY_FIRST], m[w.BARRIER_FIRST]) == (-1, -1)
        assert _length(m, m[w.FREE_ACCESS], w.ACC, w.ACC_WORDS, w.A_NEXT) == m[w.ACCESS_TOP]
        assert _length(m, m[w.FREE_EDGE], w.EDG, w.EDG_WORDS, w.G_NEXT) == m[w.EDGE_TOP]
        deps = self.array[w.DEP : w.DEP + 4096 * w.DEP_WORDS]
        assert not deps.any(), "a storage still has an access"
        assert m[w.LIMIT] == issued + m[w.RUN_AHEAD]


def _length(m: memoryview, index: int, base: int, words: int, following: int) -> int:
    count = 0
    while index >= 0:
        count, index = count + 1, m[base + index * words + following]
        assert count <= w.EDGES, "a free list is a circle"
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
