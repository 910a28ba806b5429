"""The table of functions that take sparse tensors: filled once, at the first such tensor."""

import pytest

import flowvm as flow
from flowvm.ops.sparse import table


@pytest.fixture
def unfilled(monkeypatch):
    monkeypatch.setattr(table, "_filled", False)
    calls = []
    monkeypatch.setattr(table, "on_first", [lambda: calls.append("first")])
    return calls


def test_rules_are_entered_once(unfilled):
    table.fill()
    table.fill()
    assert unfilled == ["first"]


def test_rules_that_fail_are_entered_at_the_next_time(unfilled, monkeypatch):
    def fail():
        raise ImportError("not now")

    monkeypatch.setattr(table, "on_first", [fail])
    with pytest.raises(ImportError, match="not now"):
        table.fill()
    monkeypatch.setattr(table, "on_first", [lambda: unfilled.append("again")])
    table.fill()
    assert unfilled == ["again"]


def test_a_function_has_one_rule_at_most():
    table.fill()
    assert table.RULES
    kinds = [set(table.RULES), set(table.OF_THE_FUNCTION), set(table.OF_THE_META)]
    assert not kinds[0] & kinds[1]
    assert not kinds[2] & (kinds[0] | kinds[1])


def test_functions_of_the_meta_say_the_same_of_both_kinds():
    dense = flow.tensor([[0.0, 2.0], [0.0, 0.0]])
    sparse = dense.to_sparse()
    for name in ("dim", "numel", "is_complex", "is_floating_point", "element_size", "is_signed"):
        assert name in table.OF_THE_META
        assert getattr(sparse, name)() == getattr(dense, name)()
    assert sparse.size() == dense.size()
