"""Do the tests of the state machine notice a missing edge? Each hazard is left out in turn.

A copy of the machine forgets one kind of edge, or lets barriers go at once (`tests.vm.mutants`).
The checks that hold for every program must then fail, for the smallest program that has the hazard
and for nearly every random one.
"""

from __future__ import annotations

import random

import pytest

from flowvm.vm.machine import machine
from flowvm.vm.machine.words import KIND
from tests.vm.bench import Bench, Instruction, check_closure, const, feed, mut, op, random_program
from tests.vm.mutants import BARRIER_ORDER, HAZARDS
from tests.vm.player import POLICIES, Player, any_move, check_barriers, check_order, youngest_first

SMALLEST = {
    "RAW": [op(*mut(1)), op(*const(1), stream=1)],
    "WAR": [op(*const(1)), op(*mut(1), stream=1)],
    "WAW": [op(*mut(1)), op(*mut(1), stream=1)],
}


def caught(check, *args):
    """Return True if a check fails."""
    try:
        check(*args)
    except AssertionError:
        return True
    return False


def played(program, mutant, policy, rng):
    return Player(Bench(mutant=mutant), check_lists=False).run(program, rng, policy)


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_closure_check_catches_a_missing_hazard(hazard, seed):
    mutant = HAZARDS[hazard]
    assert caught(check_closure, feed(SMALLEST[hazard], mutant))
    rng = random.Random(seed)
    many = [random_program(rng, 40, 3, 3) for _ in range(20)]
    assert sum(caught(check_closure, feed(p, mutant)) for p in many) >= 19
    assert not any(caught(check_closure, feed(p)) for p in many)


@pytest.mark.parametrize("hazard", HAZARDS)
def test_completion_orders_catch_a_missing_hazard(hazard, seed):
    mutant, rng = HAZARDS[hazard], random.Random(seed)
    assert caught(check_order, played(SMALLEST[hazard], mutant, youngest_first, rng))
    many = [random_program(rng, 40, 2, 4) for _ in range(20)]
    for policy in POLICIES[:3]:  # the fourth keeps nothing in flight that could be overtaken
        count = sum(caught(check_order, played(p, mutant, policy, rng)) for p in many)
        assert count >= 15, f"{policy.__name__} caught {count} of {len(many)}"


def test_completion_orders_catch_a_barrier_that_does_not_wait(seed):
    rng = random.Random(seed)
    program = [op(*mut(1)), Instruction(KIND.BARRIER), op(*mut(1))]
    runs = [played(program, BARRIER_ORDER, any_move, rng) for _ in range(20)]
    assert any(caught(check_barriers, run) for run in runs)
    program = random_program(rng, 60, 4, 2, barriers=0.2)
    assert caught(check_barriers, played(program, BARRIER_ORDER, any_move, rng))
    assert not caught(check_barriers, played(program, 0, any_move, rng))


@pytest.mark.parametrize("hazard", HAZARDS)
def test_only_the_hazard_that_is_left_out_is_missing(hazard):
    """A mutant is one missing rule, not a broken machine: the other hazards' edges are there."""
    for other, program in SMALLEST.items():
        assert feed(program, HAZARDS[hazard]).edges == (set() if other == hazard else {(0, 1)})


def test_every_edge_left_out_by_hand_is_missed_when_nothing_else_orders_the_pair(seed, monkeypatch):
    """One edge of one program: the closure check fails exactly if no other path joins the two."""
    rng = random.Random(seed)
    add_edge, needed = machine.add_edge, 0
    for _ in range(60):
        program = random_program(rng, 12, 3, 9, barriers=0)
        whole = feed(program).edges
        source, target = rng.choice(sorted(whole))

        def forgetful(m, a, b, hazard, pair=(source, target)):
            if (a, b) != pair:
                add_edge(m, a, b, hazard)

        monkeypatch.setattr(machine, "add_edge", forgetful)
        bench = feed(program)
        monkeypatch.setattr(machine, "add_edge", add_edge)
        assert (source, target) not in bench.edges
        other_path = joined(bench.edges | bench.queued, source, target)
        assert caught(check_closure, bench) is not other_path
        needed += not other_path
    assert needed > 20


def joined(edges, source, target):
    """Return True if a path leads from `source` to `target`."""
    reached = {source}
    for i, j in sorted(edges):
        if i in reached:
            reached.add(j)
    return target in reached
