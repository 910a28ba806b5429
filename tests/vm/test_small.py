"""The small VM gives program order's values by any schedule; machine and actors keep to it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pytest

import flowvm as flow
from flowvm.graph.logical.nodes import BufferKind
from flowvm.graph.plan.actors import actors_of, by_actor
from flowvm.vm import small
from flowvm.vm.machine import machine as real
from flowvm.vm.machine.words import CTL, INS, KIND, OPERAND, STATE
from tests.vm.bench import Bench, Instruction, Operand

LAUNCHES = 4  # that are looked at
STATES = {"pending": STATE.PENDING, "ready": STATE.READY, "dispatched": STATE.DISPATCHED}


def random_program(rng: random.Random, length: int, storages: int, streams: int):
    """(reads, writes, stream, number) of each instruction."""
    return [
        (
            [rng.randrange(storages) for _ in range(rng.randint(0, 3))],
            rng.sample(range(storages), rng.randint(1, 2)),
            rng.randrange(streams),
            rng.random(),
        )
        for _ in range(length)
    ]


def kernel_of(number: float, count: int):
    """A kernel whose results tell in which order it and others ran."""

    def kernel(*values):
        results = [0.5 * sum(values) + number + k for k in range(count)]
        return results if count > 1 else results[0]

    return kernel


def issued(program, storages: Sequence[small.Storage]):
    """The program's instructions, on these storages."""
    return [
        small.Instruction(
            kernel_of(number, len(writes)),
            [
                *((storages[s], small.CONST) for s in reads),
                *((storages[s], small.MUT) for s in writes),
            ],
            stream,
        )
        for reads, writes, stream, number in program
    ]


def expected(program, storages: int, times: int = 1):
    """The values that the program leaves when it runs from first to last."""
    values = [0.0] * storages
    for reads, writes, _, number in list(program) * times:
        results = kernel_of(number, len(writes))(*(values[s] for s in reads))
        for s, value in zip(writes, results if len(writes) > 1 else [results], strict=True):
            values[s] = value
    return values


def test_any_schedule_gives_the_values_of_program_order(seed):
    rng = random.Random(seed)
    for _ in range(60):
        program = random_program(rng, 40, 4, 3)
        storages = [small.Storage(0.0) for _ in range(4)]
        machine = small.Machine(3)
        for ins in issued(program, storages):
            machine.receive(ins)
            while rng.random() < 0.6 and machine.step(rng.choice):
                pass
        while machine.step(rng.choice):
            pass
        assert [s.value for s in storages] == expected(program, 4)
        assert all(not s.dependence for s in storages)


class Both:
    """The small machine and the real one, fed the same instructions and played the same moves."""

    def __init__(self, program, rng: random.Random) -> None:
        self.rng = rng
        self.small, self.bench = small.Machine(4), Bench()
        instructions = issued(program, [small.Storage(0.0) for _ in range(6)])
        self.todo = list(zip(instructions, program, strict=True))
        self.received: list[small.Instruction] = []
        self.queues: list[list[int]] = [[] for _ in range(4)]  # slots, of each stream

    def receive(self) -> None:
        ins, (reads, writes, stream, _) = self.todo.pop(0)
        operands = [Operand(s + 1) for s in reads]
        operands += [Operand(s + 1, OPERAND.MUT) for s in writes]
        self.small.receive(ins)
        self.received.append(ins)
        self.bench.issue(Instruction(KIND.OP_CALL, stream, tuple(operands)))
        assert real.receive(self.bench.m)

    def choose(self, moves: list[int]) -> int:
        """Take any move, and make it on the real machine."""
        move, m = self.rng.choice(moves), self.bench.m
        if move == small.DISPATCH:
            slot = real.next_ready(m)
            real.dispatch(m, slot)
            self.queues[self.bench.ins(slot, INS.STREAM)].append(slot)
        else:
            real.complete(m, self.queues[move].pop(0))
        return move

    def check(self) -> None:
        for slot, ins in enumerate(self.received):
            state = STATES.get(ins.state, STATE.RELEASED)
            assert self.bench.ins(slot, INS.STATE) == state, f"#{slot} is {ins.state}"
            if ins.state != "done":
                assert self.bench.ins(slot, INS.WAITING) == ins.waiting


def test_the_machine_keeps_step_with_the_small_one(seed):
    rng = random.Random(seed)
    for _ in range(25):
        both = Both(random_program(rng, 30, rng.randint(2, 6), rng.randint(1, 4)), rng)
        while both.todo or both.small.ready or any(both.small.queues):
            if both.todo and rng.random() < 0.4:
                both.receive()
            else:
                both.small.step(both.choose)
            both.check()
        for hazard, word in {"RAW": CTL.N_RAW, "WAR": CTL.N_WAR, "WAW": CTL.N_WAW}.items():
            assert both.bench.m[word] == sum(h == hazard for _, _, h in both.small.edges)


def test_an_error_poisons_what_depends_on_it_and_nothing_else():
    machine, (a, b, c) = small.Machine(), [small.Storage(1.0) for _ in range(3)]
    error = ValueError("no")

    def fail(*values):
        raise error

    machine.receive(small.Instruction(fail, [(a, small.CONST), (b, small.MUT)]))
    machine.receive(small.Instruction(kernel_of(0, 1), [(b, small.CONST), (c, small.MUT2)], 1))
    machine.receive(small.Instruction(kernel_of(0, 1), [(a, small.MUT)]))
    while machine.step():
        pass
    assert (b.poison, c.poison, a.poison) == (error, error, None)
    assert a.value == 0.0


def test_gradients_are_those_of_the_vm(rng):
    x, w = rng.standard_normal((3, 4)), rng.standard_normal((4, 4))

    def loss(vm, x, w):
        h = vm.relu(vm.matmul(x, w))
        return vm.add(vm.mul(h, h), vm.matmul(h, w))

    a, b = small.Tensor(x), small.Tensor(w)
    loss(small, a, b).backward(small.Tensor(np.ones((3, 4))))
    c, d = (flow.tensor(v, requires_grad=True) for v in (x, w))
    loss(flow, c, d).sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), c.grad.numpy(), rtol=1e-12)
    np.testing.assert_allclose(b.grad.numpy(), d.grad.numpy(), rtol=1e-12)


def test_a_tensor_is_released_behind_its_last_reader():
    x = small.Tensor([1.0, -2.0])
    storage = x.storage
    y = small.op(lambda v: 2 * v)(x)
    del x
    assert y.numpy().tolist() == [2.0, -4.0]
    while small.machine.step():
        pass
    assert storage.value is None


@pytest.mark.parametrize("regst_num", [1, 2, 3])
def test_a_plan_gives_the_values_of_program_order(regst_num, seed):
    rng = random.Random(seed)
    for _ in range(40):
        program = random_program(rng, 12, 4, 2)
        storages = [small.Storage(0.0) for _ in range(4)]
        plan = small.Plan(issued(program, storages), storages, regst_num)
        for times in (1, 3):
            plan.launch(times, rng.choice)
        assert [s.value for s in storages] == expected(program, 4, 4)


def test_launches_overlap_as_far_as_credits_go():
    a, b, c = (small.Storage(0.0) for _ in range(3))
    first = small.Instruction(kernel_of(1, 1), [(b, small.MUT)])
    second = small.Instruction(kernel_of(1, 1), [(b, small.CONST), (c, small.MUT)], 1)
    for regst_num in (1, 2, 4):
        plan = small.Plan([first, second], [a], regst_num)
        ahead = []

        def eager(moves, plan=plan, ahead=ahead):
            ahead.append(plan.actors[0].acted - plan.actors[1].acted)
            return min(moves)

        plan.launch(10, eager)
        assert max(ahead) == regst_num


def order_of(waits: Sequence[Sequence[tuple[int, int]]], launches: int):
    """All ((k, a), (l, b)) for which actor a has acted for launch k before b acts for launch l."""
    before: dict[tuple[int, int], set[tuple[int, int]]] = {}

    def closed(k: int, a: int) -> set[tuple[int, int]]:
        if (k, a) not in before:
            before[k, a] = set()
            for b, n in [*waits[a], (a, 1)]:
                if k >= n:
                    before[k, a] |= {(k - n, b)} | closed(k - n, b)
        return before[k, a]

    return {(x, (k, a)) for k in range(launches) for a in range(len(waits)) for x in closed(k, a)}


class Mixed(flow.nn.Graph):
    """Random products on three streams, of which some are added to variables."""

    def __init__(self, rng: random.Random, streams: list[flow.Stream]) -> None:
        super().__init__()
        self.variables = [flow.zeros(3, 3) for _ in range(2)]
        self.steps = [
            (rng.random(), rng.random(), rng.choice([None, *streams]), rng.choice("pppv"))
            for _ in range(14)
        ]

    def build(self, x):
        values = [x, *self.variables]
        for first, second, stream, what in self.steps:
            a, b = (values[int(k * len(values))] for k in (first, second))
            with flow.stream(stream) if stream else nullcontext():
                if what == "p":
                    values.append(a @ b)
                else:
                    self.variables[int(2 * first)].add_(b)
        return values[-1]


def test_actors_keep_every_order_of_the_small_plan(seed):
    """Registers are left out: here a launch in flight has a chunk of its own for all of them."""
    rng = random.Random(seed)
    streams, orders = [flow.Stream() for _ in range(2)], 0
    for _ in range(5):
        graph = Mixed(rng, streams)
        graph(flow.rand(3, 3))
        logical = by_actor(graph.plans[0].graph)
        actors = actors_of(logical, 2)
        storages: dict[object, small.Storage] = defaultdict(small.Storage)
        program = [
            small.Instruction(
                kernel_of(0, 1), [(storages[o.buffer], a) for a, o in node.accesses()], node.stream
            )
            for node in logical.nodes
        ]
        stays = [s for b, s in storages.items() if b.kind is BufferKind.VARIABLE]
        plan = small.Plan(program, stays, regst_num=LAUNCHES)
        number = {actor: k for k, actor in enumerate(plan.actors)}
        actor_of = [a.number for a in actors for _ in range(a.count)]
        expected = order_of([[(number[b], n) for b, n in a.waits] for a in plan.actors], LAUNCHES)
        edges = order_of([[*((k, 0) for k in a.inputs), *a.credits] for a in actors], LAUNCHES)
        for (k, i), (m, j) in expected:
            source, target = actor_of[i], actor_of[j]
            if source != target:
                assert ((k, source), (m, target)) in edges, f"#{i} of launch {k}, #{j} of {m}"
                orders += 1
    assert orders > 100
