"""Streams for the tasks of a graph by a policy: the graph's values stay, streams follow workers."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import lab
from flowvm.errors import ArgumentError
from flowvm.graph.logical.interpret import interpret
from flowvm.lab.placement import Placement
from flowvm.vm.callers.hot import CALL_STREAM
from tests.graph.helpers import captured, names


def graph():
    x = flow.rand(64, 64)

    def function(x):
        a, b = x @ x, (x + 1) @ x
        return (a.exp() + b.sin()).sum()

    return captured(function, x), x


def test_tasks_go_to_the_streams_of_the_schedule():
    plain, x = graph()
    streams = [None, flow.Stream("mine")]
    placed = Placement("heft", streams, None, None)(plain)
    placed.check()
    assert sorted(names(placed)) == sorted(names(plain))
    assert {node.stream for node in placed.nodes} <= {CALL_STREAM, streams[1].number}
    assert [node.number for node in placed.nodes] == list(range(len(plain.nodes)))
    assert streams[1] in placed.streams
    for ours, theirs in zip(interpret(placed, [x]), interpret(plain, [x]), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_one_stream_keeps_all_tasks():
    plain, _ = graph()
    placed = Placement("fifo", [None], None, None)(plain)
    assert {node.stream for node in placed.nodes} == {CALL_STREAM}
    assert placed.streams == plain.streams


def test_machines_have_a_worker_a_stream():
    with pytest.raises(ArgumentError, match="a machine of 3 workers for 2 streams"):
        Placement("heft", [None, None], None, lab.Machine(3))
    made = Placement("heft", [None, None], None, lab.Machine(speeds=[1.0, 2.0]))
    assert repr(made) == "tasks by heft() on 2 streams"
    with pytest.raises(ArgumentError, match="no_such"):
        Placement("no_such", [None], None, None)
