"""Conditions: values that code read, and gated watchers that are asked only after a change."""

import pytest

import flowvm as flow
from flowvm.eager.modes import note_change
from flowvm.graph.capture.conditions import Conditions, ReadSeed, ReadValue


def read_value():
    x = flow.ones(2)
    return ReadValue(x), lambda: x.add_(1.0)


def read_value_of_other_memory():
    x = flow.ones(2)
    return ReadValue(x), lambda: setattr(x, "data", flow.zeros(2))


def read_seed():
    generator = flow.Generator().manual_seed(5)
    return ReadSeed(generator), lambda: generator.manual_seed(6)


@pytest.mark.parametrize("kind", [read_value, read_value_of_other_memory, read_seed])
def test_conditions_of_reads_hold_until_the_value_changes(kind):
    condition, change = kind()
    own = {"MISS": "miss"}
    source = "\n".join(["def call():", *(f"    {line}" for line in condition.lines(own, {}))])
    exec(source, own)
    assert condition.holds()
    assert own["call"]() is None
    change()
    assert not condition.holds()
    assert own["call"]() == "miss"
    assert "build reads" in condition.difference()


class Watcher:
    def __init__(self, gated):
        self.gated, self.asked, self.answer = gated, 0, True

    def holds(self):
        self.asked += 1
        return self.answer


def test_conditions_ask_what_is_gated_only_after_a_change():
    gated, other = Watcher(True), Watcher(False)
    conditions = Conditions()
    conditions.watched, conditions.guards, conditions.last_check = [gated, other], [], [None]
    assert conditions.holds()
    assert conditions.holds()
    assert (gated.asked, other.asked) == (1, 2)
    note_change()
    gated.answer = False
    assert not conditions.holds()
    assert not conditions.unchanged()
    gated.answer = True
    assert conditions.holds()
    other.answer = False
    assert not conditions.holds()


def test_conditions_are_not_met_where_one_guard_is_not():
    met, change = read_seed()
    conditions = Conditions()
    conditions.watched, conditions.guards, conditions.last_check = [], [met], [None]
    assert conditions.holds()
    change()
    assert not conditions.holds()
