"""The changes of passes as plain values and as a screen's lines."""

import json
from dataclasses import replace

import flowvm as flow
from flowvm.graph.passes import changes_view
from flowvm.graph.passes.changes import changes
from flowvm.graph.passes.passes import optimize
from tests.graph.helpers import captured

F = flow.nn.functional


def optimized():
    def function(x):
        twice = (x + 1) * 1.0
        flow.exp(twice)  # nobody reads it
        return F.relu((x + 1) + twice)

    graph = captured(function, flow.rand(3, 4))
    return graph, changes(replace(optimize(graph), captured=(graph, ("epilogues",))))


def test_pairs_have_every_node_once():
    graph, result = optimized()
    view = changes_view.passes_view(result)
    assert (view.before, view.after) == (len(graph.nodes), len(result.after.nodes))
    assert view.left_out == ("epilogues",)
    before = [node.number for pair in view.pairs for node in pair.before]
    assert sorted(before) == [node.number for node in graph.nodes]
    after = [pair.after.number for pair in view.pairs if pair.after]
    assert after == [node.number for node in result.after.nodes]  # in the order that they run
    for pair in view.pairs:
        assert (pair.after is None) == bool(pair.why)
    gone = {pair.before[0].op for pair in view.pairs if pair.why}
    assert "exp" in gone
    assert {p.name for p in view.passes}.isdisjoint(view.idle)
    for one in view.passes:
        assert one.did


def test_records_are_plain_and_name_tasks_by_their_places():
    _, result = optimized()
    tasks = list(result.after.nodes)
    record = json.loads(json.dumps(changes_view.passes_record(result, tasks)))
    assert record["captured"] == len(result.before.nodes)
    assert [row[2] for row in record["pairs"] if row[1]] == list(range(len(tasks)))
    assert all(row[2] == -1 for row in record["pairs"] if row[1] is None)
    unknown = changes_view.passes_record(result, [])
    assert {row[2] for row in unknown["pairs"]} == {-1}


def test_stages_are_the_graph_behind_each_pass(monkeypatch):
    graph, result = optimized()
    first, *others = changes_view.stages_record(result)
    assert first[0] == "captured"
    assert [row[0] for row in first[1]] == [n.operator.name for n in graph.nodes]
    assert not any(row[4] for row in first[1])
    assert [title.split(":")[0] for title, _, _ in others] == [
        p.name for p in result.passes if p.changed
    ]
    for _, rows, edges in [first, *others]:
        assert all(0 <= a < b < len(rows) for a, b in edges)
    assert len(others[-1][1]) == len(result.after.nodes)
    monkeypatch.setattr(changes_view, "MOST_DRAWN", len(graph.nodes) - 1)
    assert changes_view.stages_record(result) == []


def test_a_graph_of_no_passes_has_no_stages():
    graph = captured(lambda x: x + 1, flow.ones(2))
    plain = changes(graph)
    assert changes_view.stages_record(plain) == []
    view = changes_view.passes_view(plain)
    assert [(len(p.before), p.after.op) for p in view.pairs] == [(1, "add")]
