"""The campaign of gradients finds planted faults, and none in correct code."""

from __future__ import annotations

import pytest

import flowvm as flow
from flowvm.autograd import engine
from flowvm.eager.nodes import Node
from flowvm.ops.pointwise.parts import unary
from flowvm.vm.callers.hot import hot
from tools.campaign import autograd as campaign


def case(op="tanh", steps=(), after=(), second=False, seed=1, sample=0):
    """A case by hand; the sample is the op's first with two dimensions."""
    numbers = [n for name, n in campaign.table() if name == op]
    for number in numbers:
        results = {"op": op, "sample": number, "steps": [[s, 5] for s in steps],
                "after": list(after), "second": second, "seed": seed}  # fmt: skip
        if len(shape := campaign.Program(results).inputs[0].shape) == 2 and min(shape) > 1:
            return results
    raise LookupError(op)


CASES = {
    "a wrong formula": case("tanh"),
    "missing accumulation": case("tanh", ["twice"]),
    "a dropped broadcast reduction": case("sigmoid", ["factor"]),
    "a stale saved tensor": case("sigmoid", [campaign.CHANGED]),
    "a wrong second gradient": case("tanh", second=True),
    "a lost hook": case("tanh", ["hook"]),
}


@pytest.mark.parametrize("fault", CASES)
def test_nothing_is_found_in_what_is_right(fault):
    expected = "refused: changed behind" if fault == "a stale saved tensor" else "right"
    assert campaign.check(CASES[fault]) == expected


@pytest.fixture(autouse=True)
def planted_where_it_counts(request, monkeypatch):
    """Faults are planted in Python, so Python goes back: native backward would not come by."""
    planted = request.node.name.endswith("_is_found")
    if planted:
        monkeypatch.setattr(engine, "_run_usual", lambda *ready: None)
        monkeypatch.setattr(engine, "_gradients", lambda node, g: node.operator.grad(node, g))
        hot["started"].add("a fault")  # so that backward does not begin natively, either
    yield
    hot["started"].discard("a fault")


@pytest.fixture
def tanh():
    """The Operator of tanh, as it was afterwards."""
    operator = flow.ones(1, requires_grad=True).tanh()._node.operator
    grad = operator.grad
    yield operator
    object.__setattr__(operator, "grad", grad)


def check_finding(fault, text="difference"):
    with pytest.raises(AssertionError, match=text):
        campaign.check(CASES[fault])


def test_a_wrong_formula_is_found(tanh):
    right = tanh.grad
    object.__setattr__(tanh, "grad", lambda c, g: (right(c, g)[0] * 1.001,))
    check_finding("a wrong formula")


def test_a_wrong_second_gradient_is_found(tanh):
    right = tanh.grad

    def first_only(c, g):
        return (right(c, g)[0].detach() + 0 * g,)

    object.__setattr__(tanh, "grad", first_only)
    check_finding("a wrong second gradient", "second gradient")


def test_missing_accumulation_is_found(monkeypatch):
    right = engine._arrive

    def first_alone(grads, edge, g, create_graph):
        if edge not in grads or edge.__class__ is engine.OutputEdge:
            right(grads, edge, g, create_graph)

    monkeypatch.setattr(engine, "_arrive", first_alone)
    check_finding("missing accumulation")


def test_a_dropped_broadcast_reduction_is_found(monkeypatch):
    def first_row(g, shape):
        return g if g.shape == shape else g.reshape(-1, *shape)[0]

    monkeypatch.setattr(unary, "sum_to", first_row)
    check_finding("a dropped broadcast reduction")


def test_a_stale_saved_tensor_is_found(monkeypatch):
    def unchecked(node):
        saved = node._saved
        saved = saved if saved.__class__ is tuple else node._recalled()
        return node._recorded_outputs(saved) if saved and flow.is_grad_enabled() else saved

    monkeypatch.setattr(Node, "saved", property(unchecked))
    check_finding("a stale saved tensor")


def test_a_hook_that_changes_the_gradient_is_found(monkeypatch):
    monkeypatch.setattr(engine, "run_hooks", lambda table, g: g * 2)
    check_finding("a lost hook")


def test_random_cases_are_right():
    outcomes = [campaign.check(campaign.case(seed)) for seed in range(12)]
    assert outcomes.count("right") >= 6
