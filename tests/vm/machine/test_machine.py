"""The scheduler's state machine under any completion order, played by the test."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowvm.vm.machine import machine
from flowvm.vm.machine.words import ACC, CTL, INS, KIND, RING
from tests.vm.bench import Bench, Instruction, const, feed, mut, op, programs, random_program
from tests.vm.player import (
    POLICIES,
    Player,
    any_move,
    at_once,
    check_order,
    check_run,
    youngest_first,
)

NEARLY_FULL = 3 * RING.SLOTS - 20  # a first sequence number from which the ring soon wraps


def play(program, policy, rng, first=0):
    """Run a program and hold it to everything that is true of every run."""
    player = Player(Bench(first=first)).run(program, rng, policy)
    check_run(player)
    return player


@pytest.mark.parametrize("first", [0, NEARLY_FULL], ids=["fresh", "wrapping"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.__name__)
def test_random_programs_in_any_completion_order(policy, first, seed):
    rng = random.Random(seed)
    for _ in range(12):
        streams, storages = rng.randint(1, 5), rng.randint(1, 10)
        play(random_program(rng, 50, storages, streams), policy, rng, first)


@settings(max_examples=200)
@given(
    program=programs,
    policy=st.sampled_from(POLICIES),
    choices=st.randoms(use_true_random=False),
    first=st.sampled_from([0, NEARLY_FULL, RING.SLOTS - 1]),
)
def test_any_program_in_any_completion_order(program, policy, choices, first):
    play(program, policy, choices, first)


def test_the_ring_wraps_around(seed):
    """More instructions than it has slots; pools stay as small as what was in flight."""
    rng = random.Random(seed)
    program = random_program(rng, RING.SLOTS + 700, 6, 3, barriers=0.01)
    bench = Bench()
    bench.m[CTL.RUN_AHEAD] = 200
    player = Player(bench, check_lists=False).run(program, rng, any_move)
    for first in range(0, len(program) - 60, 501):
        check_order(player, first, first + 60)
    bench.check_empty()
    assert player.most_in_flight > 10
    assert bench.m[CTL.ACCESS_TOP] <= 5 * 256


def test_a_full_pool_of_accesses_only_delays(seed):
    """Instructions of many operands: the machine takes the next one when there is room for it."""
    wide = [
        Instruction(KIND.OP_CALL, s % 2, const(*range(1, 30_001)) + mut(30_001 + s), outline=True)
        for s in range(10)
    ]
    bench = Bench()
    for ins in wide:
        bench.issue(ins)
    received = sum(machine.receive(bench.m) for _ in wide)
    assert received == ACC.LENGTH // 30_001
    bench.dispatch()
    machine.complete(bench.m, bench.slot(0))
    assert machine.receive(bench.m)
    assert bench.m[CTL.ACCESS_TOP] <= ACC.LENGTH


def test_nothing_is_received_before_its_mark():
    bench = Bench()
    assert not machine.receive(bench.m)
    bench.issue(op(*mut(1)))
    mark = RING.AT + RING.MARK
    bench.m[mark], published = 0, bench.m[mark]
    assert not machine.receive(bench.m)
    bench.m[mark] = published
    assert machine.receive(bench.m)
    assert not machine.receive(
        bench.m
    )  # the mark that a slot's last user left is not the next one's


def test_dependents_of_one_stream_go_when_the_first_is_dispatched():
    """Prescheduling: the worker has both before it has run the first."""
    bench = feed([op(*mut(1)), op(*const(1)), op(*mut(1))])
    assert [bench.dispatch() for _ in range(4)] == [0, 1, 2, -1]
    assert bench.m[CTL.N_PRESCHEDULED] == 3


def test_dependents_of_another_stream_wait_until_it_is_done():
    bench = feed([op(*mut(1)), op(*const(1), stream=1)])
    assert [bench.dispatch(), bench.dispatch()] == [0, -1]
    machine.complete(bench.m, 0)
    assert bench.dispatch() == 1


def test_a_waiter_is_not_let_go_by_stream_order():
    """TouchTensors runs on the scheduler: that its writer is in a stream's queue is not enough."""
    bench = feed([op(*mut(1)), Instruction(KIND.TOUCH, 0, const(1)), op(*mut(1))])
    assert [bench.dispatch(), bench.dispatch()] == [0, -1]
    machine.complete(bench.m, 0)
    assert [bench.dispatch(), bench.dispatch()] == [1, -1]  # nor does the next writer overtake it
    machine.complete(bench.m, 1)
    assert bench.dispatch() == 2


def test_ready_instructions_go_first_come_first_served():
    bench = feed([op(*mut(s), stream=s % 3) for s in range(1, 7)])
    assert [bench.dispatch() for _ in range(6)] == list(range(6))


def test_barriers_run_in_order_when_they_are_the_oldest():
    barrier = Instruction(KIND.BARRIER)
    bench = feed([op(*mut(1)), barrier, barrier, op(*mut(2))])
    assert machine.ready_barrier(bench.m) == -1
    bench.dispatch()
    bench.dispatch()
    machine.complete(bench.m, 3)  # a later one is no matter
    assert machine.ready_barrier(bench.m) == -1
    machine.complete(bench.m, 0)
    assert machine.ready_barrier(bench.m) == 1
    assert machine.ready_barrier(bench.m) == -1
    machine.complete(bench.m, 1)
    assert machine.ready_barrier(bench.m) == 2
    machine.complete(bench.m, 2)
    assert bench.m[CTL.HEAD] == bench.issued


def test_issuing_is_bounded_in_instructions():
    bench = Bench()
    bench.m[CTL.RUN_AHEAD] = bench.m[CTL.LIMIT] = 10
    player = Player(bench)
    player.run([op(*mut(1 + i % 3)) for i in range(60)], random.Random(0), youngest_first)
    assert player.most_in_flight == 10
    assert bench.m[CTL.LIMIT] == bench.m[CTL.HEAD] + 10


def test_issuing_is_bounded_in_bytes_but_never_stops_for_good():
    writer = Instruction(KIND.OP_CALL, 0, mut(1), nbytes=1000)
    bench = Bench()
    bench.m[CTL.BYTES_HIGH] = 2500
    bench.issue(writer)
    assert bench.receive()
    assert bench.m[CTL.LIMIT] > bench.issued
    for _ in range(4):  # who issues has not looked
        bench.issue(writer)
    assert bench.receive()
    assert bench.m[CTL.LIMIT] == bench.m[CTL.HEAD] == 0  # wait, whoever you are
    assert not bench.receive()
    assert bench.m[CTL.IN_FLIGHT_BYTES] == 2000
    bench.dispatch()
    machine.complete(bench.m, 0)
    assert bench.receive()
    assert not bench.receive()
    assert bench.m[CTL.IN_FLIGHT_BYTES] == 2000
    free = op(*mut(2))  # what allocates nothing waits for its turn alone
    bench = Bench()
    bench.m[CTL.BYTES_HIGH] = 2500
    for ins in (writer, writer, free, writer):
        bench.issue(ins)
    assert [bench.receive() for _ in range(4)] == [True, True, True, False]
    alone = Instruction(KIND.OP_CALL, 0, mut(1), nbytes=10_000)  # more than may be in flight at all
    player = Player(Bench())
    player.bench.m[CTL.BYTES_HIGH] = 2500
    player.run([alone] * 5, random.Random(0), at_once)
    check_run(player)


def test_who_is_held_takes_no_records():
    bench = Bench()
    bench.issue(op(*mut(1)))
    bench.m[CTL.HOLD] = 1
    assert not bench.receive()
    bench.m[CTL.HOLD] = 0
    assert bench.receive()


def test_a_poisoned_or_failed_instruction_is_complete_like_any_other(seed):
    """The machine does not look at statuses: order and accounting hold whatever became of it."""
    rng = random.Random(seed)
    bench = feed(random_program(rng, 20, 3, 2, barriers=0))
    while (slot := bench.dispatch()) >= 0:
        bench.m[INS.AT + slot * INS.WORDS + INS.STATUS] = rng.choice((0, 1, INS.POISONED))
        machine.complete(bench.m, slot)
        bench.check_lists()
    bench.check_empty()
