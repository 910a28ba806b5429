"""Patterns found and replaced in graphs, and the results of nodes."""

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import MissingNameError
from flowvm.fx import passes, replace_pattern, subgraph_rewriter, symbolic_trace
from flowvm.fx.passes import graph_drawer

relu, sigmoid = flow.relu, flow.sigmoid


def two_results(a, b):
    c = a + b
    return c.relu(), c.neg()


def shared(x, y):
    s = x + y
    return s.relu() + s


def of_two(x, y):
    s = x + y
    return s.relu() * s.neg()


# a program, a pattern, what comes in its place, how often it is found, and what is left
CASES = {
    "twice": (
        lambda x: relu(x + 1) * 2 + relu(x) * 2, lambda a: relu(a) * 2, lambda a: sigmoid(a), 2,
        lambda x: sigmoid(x + 1) + sigmoid(x),
    ),
    "in a list": (
        lambda x: flow.cat([relu(x), relu(x.neg())]).sum(), lambda a: relu(a),
        lambda a: a.tanh(), 2, lambda x: flow.cat([x.tanh(), x.neg().tanh()]).sum(),
    ),
    "one behind the other": (
        lambda x: x + 1.5 + x, lambda a, b: a + b, lambda a, b: a * b, 2, lambda x: x * 1.5 * x,
    ),
    "a value named twice": (
        lambda x: x.neg() + x.exp(), lambda a: a.neg() + a.exp(), lambda a: a * -2, 1,
        lambda x: x * -2,
    ),
    "overlapping": (
        lambda x: relu(relu(relu(x))), lambda a: relu(relu(a)), lambda a: sigmoid(a), 1,
        lambda x: relu(sigmoid(x)),
    ),
    "named outside": (
        lambda x: shared(x, x), lambda a, b: (a + b).relu(), lambda a, b: a - b, 0,
        lambda x: shared(x, x),
    ),
    "two results": (
        lambda x: of_two(x, x.exp()), two_results, lambda a, b: (a * b, a - b), 1,
        lambda x: (x * x.exp()) * (x - x.exp()),
    ),
    "another number": (
        lambda x: x * 2 + x * 3, lambda a: a * 2, lambda a: a + a, 1, lambda x: x + x + x * 3,
    ),
    "a number for a parameter": (
        lambda x: flow.nn.functional.leaky_relu(x, 0.1),
        lambda a, slope: flow.nn.functional.leaky_relu(a, slope),
        lambda a, slope: a * slope, 1, lambda x: x * 0.1,
    ),
    "a keyword": (
        lambda x: flow.add(x, 1, alpha=2), lambda a: flow.add(a, 1, alpha=2), lambda a: a, 1,
        lambda x: x,
    ),
    "a slice": (
        lambda x: x[1:, 0] + x[:1, 0], lambda a: a[1:, 0], lambda a: a[0:1, 0], 1,
        lambda x: x[0:1, 0] + x[:1, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_found_is_replaced(case):
    program, pattern, replacement, count, expected = CASES[case]
    traced = symbolic_trace(program)
    matches = replace_pattern(traced, pattern, replacement)
    assert len(matches) == count
    traced.graph.lint()
    x = flow.tensor([[1.0, -2.0], [0.5, 3.0]])
    assert traced(x).tolist() == expected(x).tolist()
    for match in matches:
        assert match.anchor in match.nodes_map


class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.bias = nn.Parameter(flow.ones(3))

    def forward(self, x):
        return self.inner(x) + self.bias


class New(nn.Module):
    def __init__(self):
        super().__init__()
        self.new = nn.Linear(3, 2)

    def forward(self, x):
        return self.new(x)


def test_modules_come_with_what_they_name():
    both = nn.Sequential(nn.ReLU(), nn.ReLU())
    traced, new = symbolic_trace(both), New()
    (match,) = replace_pattern(traced, symbolic_trace(both), new)
    assert match.anchor.op == "call_module"
    assert set(dict(traced.named_modules())) == {"", "new"}
    x = flow.ones(1, 3)
    assert traced(x).tolist() == new(x).tolist()
    assert replace_pattern(symbolic_trace(Biased()), Biased(), New())[0].nodes_map


def test_filters_and_callbacks_choose():
    def program(x):
        return x * 2 + x * 3

    traced = symbolic_trace(program)

    def three(match, graph, pattern):
        return 3 in match.nodes_map[match.anchor].args

    (match,) = subgraph_rewriter.replace_pattern_with_filters(
        traced, lambda a: a * 7, lambda a: -a, [three], ignore_literals=True
    )
    assert [node.name for node in match.replacements] == ["neg"]
    assert traced(flow.tensor([1.0])).tolist() == [1.0]
    traced = symbolic_trace(program)
    subgraph_rewriter.replace_pattern_with_filters(
        traced, lambda a: a * 7, ignore_literals=True,
        replacement_callback=lambda match, graph, pattern: symbolic_trace(lambda a: a + 10),
    )  # fmt: skip
    assert traced(flow.tensor([1.0])).tolist() == [22.0]


@pytest.mark.parametrize(
    ("pattern", "replacement", "says"),
    [
        (lambda a: relu(a), lambda a, b: a + b, "1 parameters, the replacement 2"),
        (lambda a: relu(a), lambda a: (a, a), "gives 1 values"),
        (lambda a: a, lambda a: -a, "something that it computes"),
        (lambda a, b: relu(a), lambda a, b: a + b, "nothing of its b"),
    ],
)
def test_patterns_that_do_not_fit(pattern, replacement, says):
    with pytest.raises(ValueError, match=says):
        replace_pattern(symbolic_trace(lambda x: relu(x)), pattern, replacement)


def test_shapes_are_noted():
    def program(x):
        values, places = flow.max(x, 1)
        return values.t(), places, x.shape[0]

    traced = symbolic_trace(program)
    inputs = passes.shape_prop.ShapeProp(traced).propagate(flow.ones(2, 3, dtype=flow.float64))
    assert inputs[2] == 2
    metas = {node.name: node.meta for node in traced.graph.nodes}
    x = metas["x"]["tensor_meta"]
    assert (x.shape, x.dtype, x.stride) == ((2, 3), flow.float64, (3, 1))
    values, places = metas["max_1"]["tensor_meta"]
    assert (values.shape, places.dtype) == ((2,), flow.int64)
    assert metas["max_1"]["type"] is flow.return_types.max
    assert "tensor_meta" not in metas["getattr_1"]
    with pytest.raises(MissingNameError, match="no drawings"):
        _ = passes.graph_drawer.FxGraphDrawer


def test_there_is_no_drawer_of_graphs():
    with pytest.raises(MissingNameError, match=r"fx\.passes\.graph_drawer has no 'FxGraphDrawer'"):
        _ = graph_drawer.FxGraphDrawer
