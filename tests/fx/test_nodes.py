"""Graphs of nodes: what each node reads, and what a module of a graph computes."""

import pytest

import flowvm as flow
from flowvm.fx.graph import Graph
from flowvm.fx.graph_module import GraphModule
from flowvm.fx.node import Node, immutable_list, map_arg


def test_a_graph_of_nodes_becomes_a_module():
    graph = Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(flow.add, (x, x))
    graph.output(doubled)
    module = GraphModule(flow.nn.Module(), graph)
    assert module(flow.ones(2)).tolist() == [2.0, 2.0]
    assert list(doubled.all_input_nodes) == [x]
    assert list(x.users) == [doubled]


def test_node_arguments_are_mapped_and_cannot_be_changed():
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    calls = []
    result = map_arg([x, (1, y)], lambda node: calls.append(node) or node.name)
    assert calls == [x, y]
    assert all(isinstance(node, Node) for node in calls)
    assert [*result] == ["x", (1, "y")]
    with pytest.raises((NotImplementedError, TypeError)):
        immutable_list([1]).append(2)
