"""`graph.config.check(n)`: a graph's call against eager code."""

import copy
import itertools
from dataclasses import replace
from typing import Any

import pytest

import flowvm as flow
import flowvm.nn.functional as F
from flowvm import nn
from flowvm.errors import ArgumentError, ArgumentTypeError, CheckError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.passes.passes import PASSES
from tests.graph.helpers import INEXACT, arrays_in, same_bits


class Step(nn.Graph):
    """A training step with batch norm, dropout and Adam."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.Adam(model.parameters(), lr=1e-2))

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    )


def test_a_step_is_what_it_is_without_the_check(seed: int) -> None:
    """Return losses, parameters, the optimizer's state, and the next random number."""
    flow.manual_seed(seed)
    first = model()
    graphs = [Step(first), Step(copy.deepcopy(first))]
    graphs[0].config.check(2)
    assert repr(graphs[0].config) == "(CONFIG: every 2. call checked)"
    x, y = flow.randn(6, 4), flow.tensor([0, 1, 2, 0, 1, 2])
    arrays = []
    for graph in graphs:
        flow.manual_seed(seed)
        losses = [graph(x, y) for _ in range(5)]
        arrays.append(arrays_in([losses, graph.state_dict(), flow.rand(3)]))
    same_bits(arrays[0], arrays[1], f"a checked step, seed {seed}")
    assert len(graphs[0].plans) == 1


def test_a_function_of_its_arguments() -> None:
    """Gradients of the arguments are added once."""

    @flow.compile
    def function(a: Any, b: Any) -> Any:
        out = (a * b + flow.rand(3)).exp()
        out.sum().backward()
        return {"out": out, "twice": [out * 2]}

    function.config.check()
    a = flow.ones(3, requires_grad=True)
    for k in range(3):
        function(a, flow.tensor([1.0, 2.0, float(k)]))
    before = a.grad.clone()
    function.config.check(0)
    function(a, flow.tensor([0.0, 0.0, 0.0]))
    assert a.grad.tolist() == before.tolist()


def test_what_a_capture_keeps_and_code_would_not() -> None:
    """A module called from build counts in Python."""
    numbers = itertools.count(1)

    class Counting(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x.exp()
            return y * next(numbers)

    graph = flow.compile(Counting())
    graph.config.check(2)
    graph(flow.ones(3))
    with pytest.raises(CheckError, match=r"output 0: 3 of 3 elements differ, the first at \[0\]"):
        graph(flow.ones(3))


def sum_for_product(graph: LogicalGraph) -> LogicalGraph:
    """A graph whose products are sums."""
    (add,) = {n.operator for n in graph.nodes if n.operator.name == "add"}
    nodes = [replace(n, operator=add) if n.operator.name == "mul" else n for n in graph.nodes]
    return replace(graph, nodes=nodes)


def test_a_pass_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PASSES["algebra"]
    monkeypatch.setitem(PASSES, "algebra", lambda graph: sum_for_product(plain(graph)))

    @flow.compile
    def function(a: Any) -> Any:
        b = a + a
        return b.sum(), a * b

    function.config.check()
    with pytest.raises(CheckError) as caught:
        function(flow.ones(3) * 3)
    text = str(caught.value)
    assert "bit by bit" in text
    assert "  output 1: 3 of 3 elements differ, the first at [0]: 9.0, eagerly 18.0" in text
    assert "output 0" not in text
    assert "Without the pass 'algebra' (graph.config.disable) it is the same" in text
    assert "The first node that wrote one of them is " in text
    assert "test_checking.py:" in text
    function.config.disable("algebra")
    assert function(flow.ones(3) * 3)[1].tolist() == [18, 18, 18]


def test_a_pass_that_may_round_is_named_where_it_does_more(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PASSES[INEXACT[0]]
    monkeypatch.setitem(PASSES, INEXACT[0], lambda graph: plain(sum_for_product(graph)))

    @flow.compile
    def function(a: Any) -> Any:
        return (a * a).sum(), a + a

    function.config.check()
    with pytest.raises(CheckError, match="by more than rounding") as caught:
        function(flow.ones(3) * 3)
    assert "output 0: 1 of 1 elements differ, the first: 18.0, eagerly 27.0" in str(caught.value)
    assert f"Without the pass {INEXACT[0]!r}" in str(caught.value)


def test_what_cannot_be_checked() -> None:
    total = flow.zeros(3)

    @flow.compile
    def function(a: Any) -> Any:
        total.add_(a)
        return total * 2

    function.config.check()
    with pytest.raises(ArgumentError, match="changes tensors besides its arguments"):
        function(flow.ones(3))
    with pytest.raises(ArgumentError, match="must not be negative, got -1"):
        function.config.check(-1)
    for n in (True, 1.5, "2"):
        with pytest.raises(ArgumentTypeError, match="check: n must be int"):
            function.config.check(n)  # type: ignore[arg-type]
    function.config.check(0)
    assert function(flow.ones(3)).tolist() == [4, 4, 4]
