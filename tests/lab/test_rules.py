"""From a policy of the lab to a rule of the scheduler: kinds, keys, seeds and errors."""

import numpy as np
import pytest

from flowvm import lab
from flowvm.errors import ArgumentError, PolicyWarning
from flowvm.lab import rules
from flowvm.vm.machine.words import POL


@pytest.fixture
def chain():
    return lab.Dag([1.0, 4.0, 2.0, 3.0], [(0, 1, 0)])


def test_arrival_needs_no_table():
    for name, kind in (("fifo", POL.ARRIVAL), ("lifo", POL.LATEST)):
        rule = rules.rule_of(name, None, None, ())
        assert (rule.name, rule.kind, rule.table) == (name, kind, None)


def test_random_keys_repeat_behind_their_end():
    rule = rules.rule_of("random", 3, None, ())
    assert (rule.kind, rule.wraps) == (POL.KEYED, True)
    assert rule.table.shape == (rules.MANY, 2)
    assert sorted(rule.table[:, 0].tolist()) == list(range(rules.MANY))
    assert (rule.table[:, 1] == -1).all()
    again, other = (rules.rule_of("random", s, None, ()) for s in (3, 4))
    assert (again.table == rule.table).all()
    assert (other.table != rule.table).any()


def test_the_adversary_takes_what_came_last():
    keys = rules.rule_of("adversarial", None, None, ()).table[:, 0]
    assert (np.diff(keys) < 0).all()


def test_pct_has_a_chain_for_each_instruction():
    rule = rules.rule_of("pct:5", None, None, ())
    assert rule.kind == POL.KEYED
    assert sorted(rule.table[:, 0].tolist()) == list(range(rules.STEPS))
    policy = lab.policies.pct(5)
    keys = rules._keys_of_many(policy)
    assert (keys >= rules.STEPS).sum() == policy.k - 1  # moments at which a chain falls back


def test_keys_are_ranks_in_a_stable_order():
    table = rules._table(np.array([3.0, 1.0, 3.0, -2.0]), np.array([7, 8, 9, 6]))
    assert table.tolist() == [[2, 7], [1, 8], [3, 9], [0, 6]]


def test_graphs_give_keys_and_streams(chain):
    rule = rules.rule_of(lab.priority([1, 9, 5, 7]), None, chain, ())
    assert rule.kind == POL.KEYED
    assert np.argsort(rule.table[:, 0]).tolist() == [1, 3, 2, 0]  # the highest first
    planned = rules.rule_of("heft", None, chain, (4, 6))
    assert set(planned.table[:, 1].tolist()) <= {4, 6}
    assert sorted(planned.table[:, 0].tolist()) == [0, 1, 2, 3]
    alone = rules.rule_of("heft", None, chain, ())
    assert (alone.table[:, 1] == -1).all()


def test_policies_that_are_asked(chain):
    class Mine(lab.Policy):
        def pick(self, worker, now):
            return self.heap.pop()[1] if self.heap else -1

    rule = rules.rule_of(Mine(), None, None, ())
    assert rule.kind == POL.ASKED
    assert (rule.native is None) == bool(rule.why)


@pytest.mark.filterwarnings("error")
def test_wrong_policies_are_errors(chain):
    with pytest.raises(ArgumentError, match="policy fifo takes no seed"):
        rules.rule_of(lab.policies.fifo(), 3, None, ())
    with pytest.raises(ArgumentError, match="heft looks at the whole graph: give it like="):
        rules.rule_of("heft", None, None, ())
    with pytest.raises(ArgumentError, match="no_such"):
        rules.rule_of("no_such", None, None, ())

    class Nothing(lab.Policy):
        pass

    with pytest.raises(ArgumentError, match="has neither key, nor plan, nor ready and pick"):
        rules.rule_of(Nothing(), None, chain, ())
    assert issubclass(PolicyWarning, Warning)
