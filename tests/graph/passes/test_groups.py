"""Groups of nodes that become one: where a group may run, what it reads, and the order of many."""

from types import SimpleNamespace

import flowvm as flow
from flowvm.graph.passes import groups
from flowvm.graph.passes.fusion import is_elementwise
from flowvm.graph.passes.groups import Groups
from tests.graph.helpers import captured, names


def found(graph, joins=is_elementwise, fits=lambda members: True):
    """The operators of each group that is found, and the place where it runs."""
    search = Groups(graph)
    listed = search.search(joins, fits)
    return [([n.operator.name for n in search.members(g)], g.at) for g in listed]


def test_chains_are_one_group():
    graph = captured(lambda x: ((x + 1).exp() * x).sum(), flow.rand(3))
    assert names(graph) == ["add", "exp", "mul", "sum"]
    assert found(graph) == [(["add", "exp", "mul"], 3)]
    assert found(graph, lambda node: node.operator.name != "exp") == [(["mul", "sum"], 4)]
    assert found(graph, fits=lambda members: len(members) < 3) == [(["add", "exp"], 2)]
    assert found(graph, lambda node: False) == []


def test_two_chains_that_meet_join():
    graph = captured(lambda x: (x + 1) * (x - 1).exp(), flow.rand(3))
    assert found(graph) == [(["add", "sub", "exp", "mul"], 4)]


def test_members_wait_for_what_they_read():
    """mul reads a sum that is made behind add: the group runs behind the sum, or not at all."""

    def function(x):
        y = x + 1
        return y * x.sum(), y

    assert found(captured(function, flow.rand(3))) == [(["add", "mul"], 3)]

    def through(x):
        y = x + 1
        return y * y.sum()  # the sum reads what the group would make

    assert found(captured(through, flow.rand(3))) == []


def test_members_run_before_their_operands_change():
    def function(x, b):
        y = x + b
        b.add_(1)
        return y * b

    assert found(captured(function, flow.rand(3), flow.rand(3))) == []

    def before(x, b):
        y = (x + b) * b
        b.add_(1)
        return y

    assert found(captured(before, flow.rand(3), flow.rand(3))) == [(["add", "mul"], 2)]


def test_writes_are_no_members():
    def function(x, out):
        flow.add(x, 1, out=out)
        return out * 2

    graph = captured(function, flow.rand(3), flow.rand(3))
    search = Groups(graph)
    assert [search.makes_values(node) for node in graph.nodes] == [False, True]


def test_groups_are_bounded(monkeypatch):
    def function(x):
        for _ in range(5):
            x = x + 1
        return x

    monkeypatch.setattr(groups, "MOST_NODES", 3)
    assert [len(members) for members, _ in found(captured(function, flow.rand(3)))] == [3, 2]


def test_interfaces_are_what_crosses():
    def function(x):
        y = x + 1
        z = y.exp()
        return z * x, z

    graph = captured(function, flow.rand(3))
    inputs, outputs = Groups(graph).interface(graph.nodes)
    assert inputs == [graph.nodes[0].inputs[0]]  # once
    assert outputs == [graph.nodes[1].outputs[0], graph.nodes[2].outputs[0]]
    inputs, outputs = Groups(graph).interface(graph.nodes[:1])
    assert outputs == [graph.nodes[0].outputs[0]]


def test_groups_shrink_from_behind():
    graph = captured(lambda x: (x + 1).exp() * x, flow.rand(3))
    search = Groups(graph)
    (group,) = search.search(is_elementwise, lambda members: True)
    assert search.shrunk(group, lambda members: len(members) <= 2)
    assert group.places == [0, 1]
    assert set(search.group_of) == {0, 1}
    assert not search.shrunk(group, lambda members: False)
    assert group.places == [0]


def test_nodes_at_one_place_are_in_order():
    def node(name, reads, makes):
        operands = [[SimpleNamespace(buffer=k) for k in names] for names in (reads, makes)]
        return SimpleNamespace(name=name, inputs=operands[0], outputs=operands[1])

    c, a, b = node("c", "ab", "c"), node("a", "x", "a"), node("b", "a", "b")
    assert [n.name for n in groups._in_order([c, b, a])] == ["a", "b", "c"]
    assert groups._in_order([]) == []


def test_joined_groups_stand_at_their_place():
    graph = captured(lambda x: ((x + 1).exp() * x).sum(), flow.rand(3))
    search = Groups(graph)
    (group,) = search.search(is_elementwise, lambda members: len(members) < 3)
    assert group.places == [0, 1]
    stand_in = graph.nodes[1]  # which may go where exp went
    joined = search.joined([(group, stand_in)])
    assert names(joined) == ["exp", "mul", "sum"]
    assert [node.number for node in joined.nodes] == [0, 1, 2]
