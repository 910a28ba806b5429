"""Every interleaving of small programs: see `tests.vm.exploring`."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from flowvm.vm.machine import machine
from flowvm.vm.workers import execute
from tests.vm import exploring
from tests.vm.exploring import (
    INDICES,
    MOST,
    World,
    explore,
    explore_all,
    programs,
    random_case,
    reached,
    runner,
)
from tests.vm.mutants import copy_of


@pytest.mark.parametrize("length", [1, 2])
def test_all_programs(length):
    states = [explore(World(program, failing)).states for program, failing in programs(length)]
    assert len(states) == {1: 4, 2: 76}[length]
    assert sum(states) > 4 * len(states)


def test_all_programs_of_three_at_once():
    counts = explore_all(3)
    assert [programs for programs, _, _ in counts] == [4, 76, 1380]
    assert counts[2][1] > 4000


@pytest.mark.parametrize("length", range(3, MOST + 1))
def test_programs_by_chance(length, seed):
    rng = random.Random(seed + length)
    for _ in range({3: 200, 4: 100, 5: 200, 6: 100}[length]):
        program, failing = random_case(rng, length)
        explore(World(program, failing, reduced=length > 4))


# --- what is left out makes no difference ---------------------------------------------------------


def some_programs(seed: int) -> list[Any]:
    """All of two instructions, and some of three and four."""
    rng = random.Random(seed)
    return [*programs(2), *(random_case(rng, 3 + k // 80) for k in range(100))]


def test_what_is_taken_at_once_ends_alike_wherever_it_is_taken(seed):
    tried: Counter[str] = Counter()
    for program, failing in some_programs(seed):
        world = World(program, failing)
        for words in _states(world):
            world.array[INDICES] = words
            moves, alone = world.moves(), world.dispatches_alone()
            settled = _after(world, words)
            for what, stream in moves:
                if what == "run" or (what == "dispatch" and alone):
                    alike = settled, _after(world, words, (what, stream), "settle")
                else:
                    later = _after(world, words, "settle", (what, stream), "settle")
                    alike = later, _after(world, words, (what, stream), "settle")
                assert alike[0] == alike[1], f"{what} {stream} of {program}"
                tried[what] += 1
    assert set(tried) == {"receive", "dispatch", "run", "collect", "barrier"}


def test_states_that_mean_the_same_go_on_alike(seed):
    merged = 0
    for program, failing in some_programs(seed):
        world, known = World(program, failing), {}
        for words in _states(world):
            world.array[INDICES] = words
            meaning = world.meaning()
            on = {move: _after(world, words, move) for move in world.moves()}
            merged += meaning in known
            assert known.setdefault(meaning, on) == on, f"{program}"
    assert merged > 100


def _states(world: World) -> list[Any]:
    states, _ = reached(world, [world.array[INDICES].tobytes()])
    return [np.frombuffer(state, np.int64) for state in states]


def _after(world: World, words: Any, *steps: Any) -> Any:
    """Return the state's meaning after these steps; without any, after all immediate ones."""
    world.array[INDICES] = words
    for step in steps or ("settle",):
        if step == "settle":
            world.settle()
        else:
            getattr(world, step[0])(step[1])
    return world.meaning()


# --- what is interleaved -------------------------------------------------------------------------


def test_two_that_wait_for_nothing_run_in_either_order():
    """On two streams, and of one storage or of two: what waits has fewer states."""
    writes = [i for i in exploring.instructions() if len(i.operands) == 1 and not i.kind]
    states = {
        (first, other): explore(World([writes[first], writes[other]], -1)).states
        for first, other in ((0, 3), (0, 2))
    }
    assert [writes[k].operands[0].storage for k in (0, 2, 3)] == [0, 0, 1]
    assert [writes[k].stream for k in (0, 2, 3)] == [0, 1, 1]
    assert states[0, 3] > states[0, 2]


# --- what is planted is found ---------------------------------------------------------------------


def caught_by(length: int, rules: Any = machine) -> bool:
    """Return True if exploring all programs of a length finds an error, both in full and
    reduced.
    """
    try:
        explore_all(length, rules)
    except AssertionError:
        pass
    else:
        return False
    for program, failing in programs(length):
        try:
            explore(World(program, failing, rules=rules))
        except AssertionError:
            return True
    return False


def without(module: Any, name: str, value: Any) -> Any:
    """The module with another function of this name."""
    mutant = copy_of(module)
    assert hasattr(mutant, name)
    setattr(mutant, name, value)
    return mutant


def _no_edge(hazard: int) -> Any:
    def add_edge(m: Any, source: int, target: int, of: int) -> None:
        if of != hazard:
            machine.add_edge(m, source, target, of)

    return add_edge


@pytest.mark.parametrize("hazard", ["RAW", "WAR", "WAW"])
def test_a_missing_edge_is_found(hazard):
    rules = without(machine, "add_edge", _no_edge(getattr(machine, hazard)))
    assert caught_by(3, rules)


def test_a_barrier_that_does_not_wait_is_found():
    assert caught_by(2, without(machine, "is_oldest", lambda m, slot: True))


def test_a_completion_that_lets_nobody_go_is_found():
    def complete(m: Any, slot: int) -> None:
        m[machine.INS.AT + slot * machine.INS.WORDS + machine.INS.AT_DONE] = -1
        machine.complete(m, slot)

    assert caught_by(2, without(machine, "complete", complete))


def test_an_edge_within_a_stream_that_is_dropped_when_it_is_received_is_found():
    """As if what is pending went first come, first served."""

    def add_edge(m: Any, source: int, target: int, hazard: int) -> None:
        ins = machine.INS
        src, dst = ins.AT + source * ins.WORDS, ins.AT + target * ins.WORDS
        if m[src + ins.STREAM] != m[dst + ins.STREAM]:
            machine.add_edge(m, source, target, hazard)

    assert caught_by(3, without(machine, "add_edge", add_edge))


POISON = {
    "nobody looks": ("poison_of", lambda m, slot, entry: 0),
    "nobody is poisoned by an error": ("poison", lambda m, slot, entry, cause: None),
    "what is skipped poisons nobody": ("skip", lambda m, slot, entry, cause: 1 << 20),
    "it is never forgotten": ("release_storages", lambda m, stream, slot, entry, over: 0),
    "a Restore does nothing": ("restore_storages", lambda m, slot, entry: 0),
    "what is half written counts as whole": ("tear", lambda m, slot, entry: None),
}


@pytest.mark.parametrize("what", POISON)
def test_poison_that_is_dropped_is_found(what, monkeypatch):
    name, function = POISON[what]
    assert hasattr(execute, name)
    monkeypatch.setattr(runner, name, function)
    assert caught_by(3)
