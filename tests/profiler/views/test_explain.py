"""flow.explain: the instructions that made a tensor, in every state, without waiting for it."""

from __future__ import annotations

import json
import threading

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ArgumentTypeError, OutOfRangeError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND, REC
from tests.vm.live import in_flight, until


def ops(origin):
    """Return the tree of operators: (op, (source, ...)), None without an instruction."""
    if origin is None:
        return None
    return origin.op, tuple(ops(source.made) for source in origin.sources)


def test_the_tree_is_the_expression():
    a, b = flow.tensor([[1.0, 2.0]]), flow.tensor([[3.0], [4.0]])
    y = (a @ b).relu() + a.sum()
    explanation = flow.explain(y)
    assert ops(explanation.made) == (
        "add", (("relu", (("matmul", (None, None)),)), ("sum", (None,))),
    )  # fmt: skip
    assert explanation.made.spot.text == "y = (a @ b).relu() + a.sum()"
    assert explanation.made.spot.first == 4
    leaf = explanation.made.sources[0].made.sources[0].made.sources[0]
    assert (leaf.name, leaf.access) == ("input", OPERAND.CONST)
    # in a process that has run long, it may have been made by an instruction that is forgotten
    assert leaf.note.startswith(("from Python: a number, a list or an array", "forgotten:"))
    assert explanation.users == ()
    flow.vm.sync()
    assert flow.explain(y).made.state == "done"
    text = repr(flow.explain(y))
    assert text.count("^") == len("(a @ b).relu() + a.sum()(a @ b).relu()a @ ba.sum()")
    json.dumps(explanation.to_dict())


def test_in_place_views_and_users():
    x = flow.ones(4, 4)
    x += 1
    x.mul_(3)
    view = x[1:]
    z = view.exp()
    explanation = flow.explain(view)
    assert ops(explanation.made) == ("mul", (("add", (("fill", ()),)),))
    assert [(user.op, user.how) for user in explanation.users] == [("exp", "read by")]
    assert "a view" in explanation.place
    assert "changed in place 2" in explanation.place
    assert ops(flow.explain(x).made) == ops(explanation.made), "views share what made their base"
    assert flow.explain(x).made.seq == explanation.made.seq
    assert ops(flow.explain(z).made)[0] == "exp"
    assert flow.explain(z).made.sources[0].made.seq == explanation.made.seq


def test_four_levels_and_no_more():
    x = flow.ones(2)
    for _ in range(10):
        x = x + 1
    depth, origin = 0, flow.explain(x).made
    while origin is not None and origin.sources:
        origin, depth = origin.sources[0].made, depth + 1
    assert depth == 4


def test_what_is_there_twice_is_shown_once():
    x = flow.ones(2) + 1
    y = (x * x) + (x * 2)
    flow.vm.sync()
    text = repr(flow.explain(y))
    seq = flow.explain(x).made.seq
    assert sum(f"#{seq} add" in line for line in text.split("\n")) == 2
    assert text.count("(above)") == 1


def test_pending_says_what_it_waits_for_and_nothing_waits():
    gate, begun = threading.Event(), threading.Event()
    side = flow.Stream("explain side")

    def hold(value):
        begun.set()
        gate.wait(200)

    x = flow.ones(8)
    try:
        flow.vm.sync()
        engine.callbacks.issue(hold, [x._ref], [OPERAND.CONST])
        assert begun.wait(200)
        with flow.stream(side):
            x += 1
        y = x * 2
        until(lambda: in_flight() >= 3, "all are received")
        explanation = flow.explain(y)
        assert "waits for" in explanation.made.state
        writer = explanation.made.sources[0].made
        assert f"#{writer.seq}" in explanation.made.state
        assert "explain side" in writer.stream
        assert writer.state != "done"
        assert flow.explain(x).users[0].op == "mul"
        assert "no memory yet" in explanation.place
    finally:
        gate.set()
    assert y.sum().item() == 32
    assert flow.explain(y).made.state == "done"


def test_failed_and_poisoned():
    x = flow.ones(4, 2)
    y = x[flow.tensor([9])]
    z = y + 1
    with pytest.raises(OutOfRangeError):
        z.sum().item()
    explanation = flow.explain(z)
    assert explanation.made.state.startswith("poisoned")
    assert explanation.made.sources[0].made.state.startswith("failed")
    assert "OutOfRangeError: index 9" in explanation.failure
    assert "failed" in repr(explanation)


def test_graphs_name_the_task():
    class Graph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.fc = flow.nn.Linear(4, 4)

        def build(self, x):
            return self.fc(x), x.sum()

    graph, x = Graph(), flow.ones(2, 4)
    graph(x)
    y, s = graph(x)
    first, second = flow.explain(y).made, flow.explain(s).made
    assert first.seq == second.seq, "one launch"
    numbers = [origin.task.split(" ", 1) for origin in (first, second)]
    assert [text for _, text in numbers] == ["linear (fc)", "sum"]
    for number, _ in numbers:
        assert graph.plan.tasks[int(number)].node.operator.name in ("linear", "sum")


def test_what_a_graph_captures():
    calls = []

    @flow.compile
    def graph(x):
        y = x + 1
        engine.waits.wait_idle()  # until it has run it is in a queue, as others are
        calls.append(flow.explain(y))
        return y

    graph(flow.ones(3))
    (explanation,) = calls
    assert explanation.made.op == "add"
    assert explanation.made.state.startswith("captured")
    assert (explanation.failure, explanation.made.sources) == ("", ())


def test_forgotten_and_not_recorded():
    old = flow.ones(3) * 2
    before = flow.profiler.level
    try:
        x = flow.ones(2)
        for _ in range(REC.LENGTH + 100):
            x + 1
        assert "forgotten: the recorder has lost" in flow.explain(old).note
        flow.profiler.level = 0
        assert "the recorder is off" in flow.explain(flow.ones(3)).note
    finally:
        flow.profiler.level = before


def test_shapes_that_are_not_known_and_wrong_input():
    x = flow.tensor([1.0, 0.0, 2.0])
    explanation = flow.explain(x.nonzero())
    assert explanation.made.op == "nonzero"
    for wrong in (3, "x", None):
        with pytest.raises(ArgumentTypeError, match="explain takes a tensor"):
            flow.explain(wrong)


def test_any_width():
    x = flow.ones(64, 64)
    y = ((x @ x).relu() @ x).sum()
    explanation = flow.explain(y)
    for width in (60, 80, 100, 160):
        assert max(map(len, explanation.screen(width).plain().split("\n"))) <= width
    assert explanation.screen(80).plain(ascii_only=True).isascii()


def test_why_takes_a_tensor():
    x = flow.ones(4, 4)
    with flow.profiler.profile() as p:
        y = x @ x
        z = y + 1
    assert p.why(y).op == "matmul"
    assert p.why(z).seq == flow.explain(z).made.seq
    with pytest.raises(ArgumentError, match="is not in this run"):
        p.why(x)
    with pytest.raises(ArgumentError, match="no instruction that is remembered"):
        p.why(flow.tensor([1.0]))
