"""Every interleaving of actors, of small graphs: see `tests.graph.plan.exploring`."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flowvm.graph.plan import actors as plan_actors
from flowvm.vm.machine.plan_words import ACTOR, LAUNCH, RUNTIME
from flowvm.vm.machine.words import OPERAND, STO
from flowvm.vm.workers import actors, execute
from tests.graph.plan.exploring import Case, World, explore, random_case, random_section


@pytest.mark.parametrize("length", [2, 3])
def test_cases_by_chance(length, seed):
    rng = random.Random(seed + length)
    for _ in range({2: 40, 3: 40}[length]):
        case = random_case(rng, length)
        try:
            explore(World(case))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{case}") from error


@pytest.mark.parametrize("length", [2, 3, 4])
def test_sections_by_chance(length, seed):
    rng = random.Random(seed + length)
    for _ in range(12):
        case = random_section(rng, length)
        try:
            explore(World(case))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{case}") from error


def test_an_error_behind_is_none_of_the_launch_in_front():
    """The second launch fails on one stream while the first has yet to act on the other."""
    explore(World(Case(((0, "new", "last"), (1, "w", "x")), (1, 1), returned="v")))


def test_an_actor_that_fails_has_left_half_written_what_it_wrote_itself():
    explore(World(Case(((0, "w", "x"), (0, "new", "x"), (0, "w", "last"), (1, "v", "x")), (0, 1))))


HANDED_ON = Case(
    ((0, "new", "x"), (1, "v", "last"), (0, "w", "v"), (1, "w", "last")), returned="v", times=2
)


def test_every_reader_of_a_register_gives_its_credit(monkeypatch):
    """The last task reads the first one's result, and the one in between gives credits, too."""
    explore(World(HANDED_ON))
    monkeypatch.setattr(plan_actors, "_handed_on", lambda graph, section: set())
    with pytest.raises(AssertionError, match="finds"):
        explore(World(HANDED_ON))


# --- what is planted is found ---------------------------------------------------------------------

CASES = [
    Case(((0, "new", "x"), (1, "w", "x")), (0, 1)),
    Case(((0, "v", "x"), (1, "w", "v")), returned="w"),
    Case(((0, "new", "x"), (1, "new", "last"), (0, "v", "last"))),
    Case(((0, "v", "x"), (1, "w", "v"), (0, "v", "w")), (0, 1)),
    Case(((0, "v", "x"), (1, "w", "v"), (1, "new", "w")), (0, 1), released=True),
    Case(((0, "new", "last"), (1, "w", "x")), (1, 1), returned="v"),
    Case(((0, "new", "v"), (1, "w", "last")), None, 1),
    Case(((0, "w", "x"), (1, "new", "w"), (1, "v", "last")), (0, 2), returned="v"),
    Case(((0, "new", "x"), (1, "w", "last")), returned="w", times=2),
    Case(((0, "v", "x"), (1, "w", "v")), (0, 1), returned="v", times=2, late=1, depth=1),
    Case(((0, "v", "x"), (1, "w", "v")), returned="v", times=2, once=1),
    Case(((0, "v", "last"), (1, "w", "x")), (0, 1), returned="v", times=2, once=1),
]


def caught(rules: Any) -> bool:
    """Return True if exploring one of the cases finds an error."""
    for case in CASES:
        try:
            explore(World(case, rules))
        except AssertionError:
            return True
    return False


def test_nothing_planted_nothing_found():
    assert not caught({})


def _forget_credits(plan: Any, actor: Any) -> bool:
    known = actor[ACTOR.CREDITS]
    actor[ACTOR.CREDITS] = 0
    may = actors.may_act(plan, actor)
    actor[ACTOR.CREDITS] = known
    return may


def _forget_inputs(plan: Any, actor: Any) -> bool:
    known = actor[ACTOR.INS]
    actor[ACTOR.INS] = 0
    may = actors.may_act(plan, actor)
    actor[ACTOR.INS] = known
    return may


def _is_begun(other: Any, acted: int, times: int, before: int) -> bool:
    if other[ACTOR.TIMES] == times:
        return bool(actors.has_acted(other, acted, times, before))
    return bool(other[ACTOR.ACTED] > (acted // times - before) * other[ACTOR.TIMES])


def _tell_consumers_alone(m: Any, plan: Any, actor: Any) -> None:
    for k in range(actor[ACTOR.TELLS] - 1):
        actors.post(m, actors.actor_of(plan, plan[actor[ACTOR.TELL] + k]))


def _close_at_once(plan: Any) -> bool:
    at = RUNTIME.WORDS + plan[RUNTIME.FINISHED] % plan[RUNTIME.DEPTH] * LAUNCH.WORDS
    return bool(plan[at + LAUNCH.LEFT] < plan[RUNTIME.ACTORS])


def _open_unseen(m: Any, slot: int, entry: int, plan: Any) -> bool:
    return bool(plan[RUNTIME.STARTED] - plan[RUNTIME.FINISHED] < plan[RUNTIME.DEPTH])


def _call_it_whole(m: Any, slot: int, entry: int, *more: Any) -> None:
    actors.poison_rest(m, slot, entry, *more)
    for k in range(actors.count_of(m, slot, entry)):
        storage = actors.operand_of(m, slot, entry, k) & OPERAND.STORAGE_MASK
        m[STO.AT + storage * STO.WORDS + STO.TORN] = 0


MUTANTS: dict[str, dict[str, Any]] = {
    "a consumer's credit is forgotten": {"may_act": _forget_credits},
    "an input is forgotten": {"may_act": _forget_inputs},
    "somebody is not told": {"tell": _tell_consumers_alone},
    "a launch is closed when one actor has acted": {"may_close": _close_at_once},
    "poison is not looked at when a launch is opened": {"may_open": _open_unseen},
    "a launch in flight does not look for poison": {"poison_in_front": lambda m, slot, entry: 0},
    "it looks at what was poisoned behind it": {"poison_in_front": execute.poison_of},
    "what a failure leaves half written is not poisoned": {"poison_rest": lambda *words: None},
    "what a failure leaves half written counts as whole": {"poison_rest": _call_it_whole},
    "so does what a skipped launch had begun": {"tear_begun": lambda *words: None},
    "outputs of a failure are not poisoned": {"poison_outputs": lambda *words: None},
    "what is skipped poisons nobody": {"skip": lambda m, slot, entry, cause: 1 << 20},
    "an error is not reported": {"report": lambda *words: None},
    "the sources are not told": {"tell_sources": lambda m, plan: None},
    "an actor behind a section waits for its first repetition": {"has_acted": _is_begun},
}


@pytest.mark.parametrize("what", MUTANTS)
def test_what_is_planted_is_found(what):
    assert caught(MUTANTS[what])
