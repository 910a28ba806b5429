"""The DAG by lines and modules: groups partition the instructions, and edges are theirs."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import Profile, profile
from flowvm.vm.machine.words import KIND
from tests.profiler.synthetic import synthetic


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_sums_of_their_instructions(seed):
    p = Profile(synthetic(seed, length=120, streams=4))
    run = p.run
    view = p.graph(collapse="line", limit=None)
    real = ~np.isin(run.kind, (KIND.RELEASE, KIND.BARRIER))
    key = {}
    for r, row in enumerate(view.rows):
        key[row.name, view.lanes[row.lane]] = r
    group = [key[run.lines[run.line[i]], run.streams[run.stream[i]]] for i in range(len(run))]
    lasted = np.maximum(0, run.time("ended") - run.time("started"))
    for r, row in enumerate(view.rows):
        own = [i for i in range(len(run)) if group[i] == r and real[i]]
        assert (row.count, row.run) == (len(own), int(lasted[own].sum()))
        assert row.dep == int(p.waits.dep[own].sum())
        assert sum(n for _, n in row.ops) == len(own)
        needs = {}
        for a, b in zip(run.source.tolist(), run.target.tolist(), strict=True):
            if group[b] == r:
                needs[group[a]] = needs.get(group[a], 0) + 1
        assert {n.row: n.count for n in row.needs} == needs
    assert view.instructions == sum(row.count for row in view.rows)
    for width in (80, 100, 160):
        assert max(map(len, view.screen(width).plain().split("\n"))) <= width
    json.dumps(view.to_dict())


def test_lines_of_a_loop():
    x = flow.ones(4, 4)
    with profile() as p:
        for _ in range(3):
            y = x @ x
            x = y + 1
    view = p.graph(collapse="line")
    product, plus = view.rows
    assert (product.count, plus.count) == (3, 3)
    assert product.text == "y = x @ x"
    assert [(n.row, n.count) for n in product.needs] == [(1, 2)], "from the iteration before"
    assert [(n.row, n.count) for n in plus.needs if n.hazards == ("RAW",)] == [(0, 3)]
    text = view.screen(160).plain()
    assert f"↩ {plus.name}" in text
    assert "3× matmul" in text


def test_functions_and_modules():
    def double(x):
        return x * 2

    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = flow.nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x).relu()

    class Graph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def build(self, x):
            return self.net(x)

    net, graph, x = Net(), Graph(), flow.ones(4, 8)
    graph(x)
    with profile() as p:
        double(net(x))
        graph(x)
    names = [row.name for row in p.graph(collapse="module").rows]
    assert any(name.startswith("Net") and name.endswith(".fc") for name in names)
    assert any(name.endswith("double") for name in names)
    assert "net" in names, "a replay is the path that its tasks have in common"


def test_choosing():
    p = Profile(synthetic(1, length=60))
    seq = int(p.run.seq[30])
    few = p.graph(around=seq, depth=1, collapse="line")
    assert few.instructions == len(p.graph(around=seq, depth=1, limit=None).rows)
    one = p.graph(collapse="line", limit=1)
    assert len(one.rows) == 1
    assert one.hidden > 0
    assert "limit=None" in one.screen(100).plain()
    with pytest.raises(ArgumentError, match="collapse='op': it is one of 'line', 'module'"):
        p.graph(collapse="op")
    assert "no instruction" in repr(Profile().graph(collapse="line"))


def test_what_leads_upwards_within_a_step_is_not_of_the_iteration_before():
    def half(x, k):
        return x * k  # a line that runs twice a step: it needs what the line below it made

    x = flow.ones(4)
    with profile() as p:
        for _ in range(3):
            with flow.profiler.span("step"):
                y = half(x, 2.0) + 1
                z = half(y, 3.0)
    view = p.graph(collapse="line")
    twice, plus = view.rows
    assert [(n.row, n.count, n.within) for n in twice.needs] == [(1, 3, True)]
    text = view.screen(160).plain()
    assert f"↑ {plus.name}" in text
    assert "iteration before" not in text
    assert z is not None
