"""Changes of passes, node by node: nothing is lost, and each pass is told apart."""

from __future__ import annotations

import json

import pytest

import flowvm as flow
import flowvm.nn.functional as F
from flowvm.errors import ArgumentError
from flowvm.graph.passes.changes import changes, matched


class Net(flow.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = flow.nn.Linear(6, 8), flow.nn.Linear(8, 3)

    def forward(self, x):
        h = F.gelu(self.fc1(x))
        h * 3  # nobody reads it
        return self.fc2(h * 1.0 + 0.5)


class Train(flow.nn.Graph):
    def __init__(self, net, optimizer):
        super().__init__()
        self.net = net
        self.add_optimizer(optimizer)

    def build(self, x, y):
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        return loss


@pytest.fixture
def train():
    net = Net()
    graph = Train(net, flow.optim.Adam(net.parameters()))
    x, y = flow.rand(4, 6), flow.randint(0, 3, (4,))
    for _ in range(3):
        graph(x, y)
    return graph


def test_every_node_is_accounted_for(train):
    result = changes(train.plan.graph)
    assert len(result.became) == len(result.before.nodes)
    assert [n.operator.name for n in result.after.nodes] == [
        n.operator.name for n in train.plan.graph.nodes
    ], "running the passes again gives the same graph"
    after = {id(n) for n in result.after.nodes}
    for node, into in zip(result.before.nodes, result.became, strict=True):
        assert isinstance(into, str) or id(into) in after, node
    count = len(result.before.nodes)
    for one in result.passes:
        assert one.before == count
        merged = sum(max(0, len(parts) - 1) for _, parts in one.made)
        added = sum(not parts for _, parts in one.made)
        assert one.after == count - merged - len(one.removed) + added, one.name
        count = one.after
    assert count == len(result.after.nodes)


def test_what_each_pass_did(train):
    view = train.compare()
    did = {p.name: p for p in view.passes}
    assert "mul" in did["dead"].removed
    assert did["updates"].made == (("adam_step_each", ("adam_step_",) * 4),)
    fused = [of for _, of in did["fusion"].made]
    assert ("gelu", "add") in fused
    assert set(did) | set(view.idle) == set(flow.graph.passes.passes.PASSES)
    (dead,) = (pair for pair in view.pairs if pair.why == "dead")
    assert [one.op for one in dead.before] == ["mul"]
    assert dead.after is None
    (update,) = (pair for pair in view.pairs if pair.after and "each" in pair.after.op)
    assert len(update.before) == 4
    shown = [one.number for pair in view.pairs for one in pair.before]
    assert sorted(shown) == list(range(view.before)), "each captured node once"
    assert [p.after.number for p in view.pairs if p.after] == list(range(view.after))


def test_switched_off_passes_are_named():
    graph = Train(net := Net(), flow.optim.SGD(net.parameters(), lr=0.1))
    graph.config.disable("fusion")
    for _ in range(2):  # the first call makes the optimizer's state
        graph(flow.rand(4, 6), flow.randint(0, 3, (4,)))
    view = graph.compare()
    assert "fusion" in view.left_out
    assert not any("fused[gelu,add]" in p.after.op for p in view.pairs if p.after)
    assert "switched off: " in repr(view)


def test_it_prints(train):
    view = train.compare()
    for width in (60, 80, 100, 160):
        lines = view.screen(width).plain().split("\n")
        assert max(map(len, lines)) <= width
    assert "removed: dead" in repr(view)
    assert view.screen(80).plain(ascii_only=True).isascii()
    assert json.loads(json.dumps(view.to_dict()))["before"] == view.before
    assert repr(train.plan.passes) == repr(view)


def test_a_run_knows_what_passes_did(train, tmp_path):
    x, y = flow.rand(4, 6), flow.randint(0, 3, (4,))
    with flow.profiler.profile() as p:
        train(x, y).item()
    p.save(tmp_path / "run.flowtrace")
    p = flow.profiler.load(tmp_path / "run.flowtrace")
    record, view = p.run.info["passes"][train.name], train.compare()
    assert record["captured"] == view.before
    assert record["passes"] == [[q.name, q.before, q.after, q.did] for q in view.passes]
    assert record["idle"] == list(view.idle)
    assert sum(len(before) for before, *_ in record["pairs"]) == view.before
    tasks = [(task, after[1]) for _, after, task, _ in record["pairs"] if after]
    nodes = train.plan.graph.nodes
    assert sorted(task for task, _ in tasks) == list(range(len(nodes)))
    assert all(nodes[task].operator.name == op for task, op in tasks)
    assert "dead" in {why for *_, why in record["pairs"]}
    stages = p.run.info["stages"][train.name]
    assert [title.partition(":")[0] for title, *_ in stages] == [
        "captured", *(q.name for q in view.passes)
    ]  # fmt: skip
    assert [len(rows) for _, rows, _ in stages] == [view.before, *(q.after for q in view.passes)]
    assert [sum(row[4] for row in rows) for _, rows, _ in stages] == [
        0, *(len(q.made) for q in view.passes)
    ]  # fmt: skip
    assert all(a < b < len(rows) for _, rows, edges in stages for a, b in edges)
    links = p.plan().drawn()[1]
    assert links == [
        (f"t{a}", f"t{b}", "const", "register") for a, b in p.run.info["flows"][train.name]
    ]
    assert {target for _, target, *_ in links} == {f"t{k}" for k in range(1, len(nodes))}


def test_a_graph_on_two_streams_has_its_tasks_told(train):
    side = flow.Stream("changes side")

    class Both(flow.nn.Graph):
        def build(self, x):
            with flow.stream(side):
                y = (x * 2).tanh()
            return (x @ x).relu() + y * 1.0

    graph = Both()
    for _ in range(3):
        graph(flow.rand(5, 5))
    with flow.profiler.profile() as p:
        graph(flow.rand(5, 5)).sum().item()
    nodes = graph.plan.graph.nodes
    pairs = [pair for pair in p.run.info["passes"][graph.name]["pairs"] if pair[1]]
    assert sorted(task for *_, task, _ in pairs) == list(range(len(nodes)))
    assert all(nodes[task].operator.name == after[1] for _, after, task, _ in pairs)


def test_matched_without_passes(train):
    graph = train.plan.graph
    into = matched(graph.nodes, graph.nodes)
    assert all(into[id(node)] is node for node in graph.nodes)
    alone = changes(graph.captured[0])
    assert (alone.passes, list(alone.became)) == ((), alone.before.nodes)


def test_before_the_first_call():
    with pytest.raises(ArgumentError, match="no plan before its first call"):
        flow.compile(lambda x: x + 1).compare()
