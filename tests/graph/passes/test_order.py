"""Execution order: another order computes the same, needs less memory, and breaks no rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowvm as flow
from flowvm.errors import ArgumentError, OutOfRangeError
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.logical.rewriting import rebuilt
from flowvm.graph.passes.order import ORDERS, order_for_memory, peak_of
from flowvm.graph.passes.order import _Steps as Steps
from flowvm.graph.passes.passes import PASSES, optimize
from flowvm.graph.plan.plan import compile_plan
from tests.graph.helpers import captured, exact, names

nn, F = flow.nn, flow.nn.functional
N = 4096


def conflicts(graph):
    """Return the pairs of nodes, as (operator, outputs), that must keep their order."""
    pairs = set()
    nodes = [(n, {o.buffer for o in n.written()}, {o.buffer for _, o in n.accesses()})
             for n in graph.nodes]  # fmt: skip
    for k, (late, written, touched) in enumerate(nodes):
        for early, written_before, touched_before in nodes[:k]:
            if written & touched_before or written_before & touched:
                pairs.add((key(early), key(late)))
    return pairs


def key(node):
    return node.operator.name, node.inputs, node.outputs, node.into


def same_values(graph, other, *inputs):
    for a, b in zip(interpret(graph, inputs), interpret(other, inputs), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_what_frees_memory_runs_as_soon_as_it_can():
    def function(x):
        big = [x + k for k in range(4)]
        return flow.stack([b.sum() for b in big]).sum()

    graph = captured(function, flow.ones(N))
    ordered = order_for_memory(graph)
    assert names(ordered)[:4] == ["add", "sum", "add", "sum"]
    assert peak_of(graph) > 4 * 4 * N
    assert peak_of(ordered) < 2 * 4 * N
    same_values(graph, ordered, flow.ones(N))


def test_what_takes_memory_runs_when_it_is_needed():
    """The three masks are made of an input: they wait."""

    def function(x):
        masks = [x > k for k in range(3)]
        total = x.sum()
        for mask in masks:
            total = total + flow.where(mask, x, 0.0).sum()
        return total

    graph = captured(function, flow.ones(N))
    ordered = order_for_memory(graph)
    order = names(ordered)
    assert order[: order.index("where")].count("gt") == 1
    assert peak_of(ordered) < peak_of(graph)
    same_values(graph, ordered, flow.ones(N))


def test_an_order_that_is_not_better_is_that_of_the_program():
    graph = captured(lambda x: (x * 2).exp() + x.sin(), flow.ones(N))
    assert names(order_for_memory(graph)) == names(graph)


def test_order_program_leaves_nodes_alone():
    def function(x):
        big = [x + k for k in range(4)]
        return flow.stack([b.sum() for b in big]).sum()

    graph = replace(captured(function, flow.ones(N)), order="program")
    assert order_for_memory(graph) is graph


def random_program(x, choices):
    """Tensor code with views, in-place changes and values that live on."""
    w, values = flow.zeros(8), [x]
    for kind, a, b in choices:
        left, right = values[a % len(values)], values[b % len(values)]
        if kind == 0:
            values.append(left + right * 0.5)
        elif kind == 1:
            values.append(left.clone().mul_(0.5))
        elif kind == 2:
            values[a % len(values)] = left.sin()
        elif kind == 3:
            w.add_(right)
        elif kind == 4:
            values.append(left + w)
        elif kind == 5 and left is not x:
            left[2:4].add_(right[4:6])
        elif kind == 6 and len(values) > 1:
            del values[a % (len(values) - 1) + 1]
    return values[-1], w * 1


choices = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 9)), max_size=40)


@given(choices, st.sampled_from(["speed", "memory"]))
def test_random_programs_keep_their_conflicts_and_their_values(program, order):
    x = flow.arange(8).float()
    graph = replace(captured(lambda x: random_program(x, program), x), order=order)
    ordered = order_for_memory(graph)
    ordered.check()
    assert sorted(map(repr, map(key, ordered.nodes))) == sorted(map(repr, map(key, graph.nodes)))
    assert conflicts(ordered) == conflicts(graph)
    assert peak_of(ordered) <= peak_of(graph)
    assert names(order_for_memory(graph)) == names(ordered)
    same_values(graph, ordered, x)
    steps = Steps(graph, graph.nodes)
    tried = list(range(len(graph.nodes)))
    for backwards in (False, True, True, False):  # better or not
        tried = steps.settle(tried, 1 << 60, backwards)
        other = rebuilt(graph, [graph.nodes[k] for k in tried])
        assert conflicts(other) == conflicts(graph)
        same_values(graph, other, x)


@settings(max_examples=40)
@given(choices)
def test_random_programs_as_plans_are_what_eager_code_computes(program):
    x = flow.arange(8).float()
    expected = [t.numpy() for t in random_program(x, program)]
    for order in ORDERS[1:]:
        graph = replace(captured(lambda x: random_program(x, program), x), order=order)
        plan = compile_plan(optimize(graph, sorted(set(PASSES) - {"dead", "order", "inplace"})))
        results = [t.numpy() for t in plan.launch([x])]
        for ours, theirs in zip(results, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=order)


# --- training ---------------------------------------------------------------------------------


class Train(nn.Graph):
    def __init__(self, model, optimizer, order):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.order = order

    def build(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def trained(order, steps=4):
    flow.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.2), nn.Linear(64, 64),
        nn.SiLU(), nn.Linear(64, 5),
    )  # fmt: skip
    optimizer = flow.optim.AdamW(model.parameters(), lr=0.01)
    graph = exact(Train(model, optimizer, order))
    losses = [graph(flow.randn(64, 32), flow.randint(0, 5, (64,))).item() for _ in range(steps)]
    return losses, [p.numpy() for p in model.parameters()], graph


def test_training_gives_the_same_bits_in_every_order():
    expected = trained("program")
    for order in ORDERS[1:]:
        losses, parameters, _ = trained(order)
        assert losses == expected[0]
        for ours, theirs in zip(parameters, expected[1], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_order_memory_lets_gradients_die_early_and_forgets_what_is_cheap():
    graphs = {order: trained(order)[2].graphs[0] for order in ORDERS[1:]}
    peaks = {order: peak_of(graph) for order, graph in graphs.items()}
    assert peaks["memory"] < peaks["speed"] <= peaks["program"]
    phases = [node.phase for node in graphs["memory"].nodes]
    first = phases.index("optimizer")
    assert "backward" in phases[first:]  # updates in between
    assert "forward" not in phases[first:]  # behind all that can fail on data
    assert any(node.again for node in graphs["memory"].nodes)
    assert not any(graph.spared for graph in graphs.values())
    assert not any(node.again for node in graphs["speed"].nodes)


def test_large_parameters_are_updated_early_for_speed_too():
    """Small ones wait to become one task; one of more than 1 MiB would be no faster for it."""
    flow.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(600, 600) for _ in range(3)), nn.Linear(600, 5))
    graph = Train(model, flow.optim.SGD(model.parameters(), lr=0.1), "speed")
    for _ in range(2):
        graph(flow.randn(8, 600), flow.randint(0, 5, (8,)))
    nodes = graph.graphs[0].nodes
    late = max(k for k, n in enumerate(nodes) if n.phase == "backward")
    early = [n for n in nodes[:late] if n.phase == "optimizer"]
    sizes = [max(o.meta.nbytes for _, o in n.accesses()) for n in early]
    assert len(sizes) >= 2
    assert min(sizes) > 1 << 20


def test_a_step_that_fails_on_its_data_leaves_parameters_alone():
    flow.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 5))
    graph = Train(model, flow.optim.SGD(model.parameters(), lr=0.1), "memory")
    x, y = flow.randn(8, 32), flow.randint(0, 5, (8,))
    graph(x, y)
    before = [p.numpy() for p in model.parameters()]
    loss = graph(x, flow.full((8,), 99, dtype=flow.int64))
    with pytest.raises(OutOfRangeError, match="99"):
        loss.item()
    for p, old in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.numpy(), old)


def test_an_order_that_there_is_not():
    graph = nn.Graph()
    with pytest.raises(ArgumentError, match="speed, memory, program"):
        graph.config.order = "fastest"
    assert graph.config.order == ORDERS[0]


def test_the_pass_can_be_switched_off():
    assert "order" in PASSES
    flow.manual_seed(0)
    model = nn.Linear(4, 4)
    graph = Train(model, flow.optim.SGD(model.parameters(), lr=0.1), "memory")
    graph.config.disable("order")
    for _ in range(2):
        graph(flow.randn(8, 4), flow.randint(0, 4, (8,)))
    phases = [node.phase for node in graph.graphs[0].nodes]
    assert phases == sorted(phases, key=["forward", "backward", "optimizer"].index)


# --- sections and streams ---------------------------------------------------------------------


def test_repeated_nodes_stay_together():
    """Nodes in the middle run three times: none leaves them, none comes between."""

    def function(x):
        a = x + 1
        b = [x * k for k in range(3)]
        c = [t.sum() for t in b]
        return a, flow.stack(c).sum()

    graph = captured(function, flow.ones(N))
    nodes = [
        replace(n, repeat=3) if n.operator.name in ("mul", "sum") and 0 < k < 7 else n
        for k, n in enumerate(graph.nodes)
    ]
    ordered = order_for_memory(replace(graph, nodes=nodes))
    repeats = [n.repeat for n in ordered.nodes]
    assert repeats == [n.repeat for n in nodes]
    assert names(ordered)[1:7] == ["mul", "sum"] * 3
    assert peak_of(ordered) < peak_of(graph)


def test_a_graph_of_several_streams_keeps_its_order():
    side = flow.Stream()

    def function(x):
        with flow.stream(side):
            b = [x * k for k in range(3)]
        return sum(t.sum() for t in b)

    graph = captured(function, flow.ones(N))
    assert len({n.stream for n in graph.nodes}) > 1
    assert order_for_memory(graph) is graph


def test_auto_is_memory_where_there_is_much_of_it():
    for rows, order in ((4, "speed"), (4096, "memory")):
        model = flow.nn.Sequential(flow.nn.Linear(64, 256), flow.nn.ReLU(), flow.nn.Linear(256, 5))
        graph = Train(model, flow.optim.SGD(model.parameters(), lr=0.1), "auto")
        for _ in range(2):
            graph(flow.randn(rows, 64), flow.randint(0, 5, (rows,)))
        assert graph.graphs[0].order == order
        assert graph.graphs[0].spared > 0  # what was not asked for must pay
