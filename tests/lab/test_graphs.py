"""Graphs of work come from runs and files, and go there, unchanged."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import flowvm as flow
from flowvm import lab, nn
from flowvm.commands.cli import main
from flowvm.errors import ArgumentError


@pytest.fixture
def dag():
    return lab.synthetic("lu", n=3, ccr=0.5, cost="lognormal")


def same(a, b, sizes=True):
    assert np.array_equal(a.source, b.source)
    assert np.array_equal(a.target, b.target)
    assert np.allclose(a.cost, b.cost)
    assert not sizes or np.allclose(a.size, b.size)


def pairs(dag):
    return list(zip(dag.source.tolist(), dag.target.tolist(), strict=True))


@pytest.mark.parametrize("end", [".json", ".stg", ".graphml"])
def test_files_keep_a_graph(dag, tmp_path, end):
    dag.save(tmp_path / f"a{end}")
    same(dag, lab.Dag.load(tmp_path / f"a{end}"), sizes=end != ".stg")
    (tmp_path / f"b{end}").write_text("nothing")
    with pytest.raises(ArgumentError, match="is not a graph"):
        lab.Dag.load(tmp_path / f"b{end}")


def test_networkx_reads_what_is_written(dag, tmp_path):
    networkx = pytest.importorskip("networkx")
    same(dag, lab.Dag.from_networkx(dag.to_networkx()))
    dag.save(tmp_path / "a.graphml")
    read = networkx.read_graphml(tmp_path / "a.graphml")
    assert read.number_of_edges() == len(dag.source)
    assert read.nodes["n0"]["cost"] == dag.cost[0]
    assert networkx.dag_longest_path_length(read, weight="none") >= len(dag.levels()) - 1


def test_columns_and_pickles(dag):
    pandas = pytest.importorskip("pandas")
    frame = dag.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["upward"].max() == pytest.approx(dag.span)
    same(dag, pickle.loads(pickle.dumps(dag)))


def test_work_span_width_and_levels():
    dag = lab.Dag([1, 2, 3, 4], [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert (dag.work, dag.span, dag.width) == (10, 8, 2)
    assert [level.tolist() for level in dag.levels()] == [[0], [1, 2], [3]]
    assert lab.bounds(dag, lab.Machine(2)) == lab.Bounds(8, 5, 0)


def test_a_run_a_trace_and_a_plan_have_one_graph(tmp_path):
    x = flow.ones(8, 8)

    def step():
        y = x @ x
        return (y.tanh() @ x) + y

    with flow.profiler.profile() as p:
        result = step()
        flow.vm.sync()
    dag = lab.Dag.of(p)
    assert [dag.names[k] for k in dag.op] == ["matmul", "tanh", "matmul", "add"]
    assert pairs(dag) == [(0, 1), (1, 2), (0, 3), (2, 3)]
    assert (dag.size == 8 * 8 * 4).all()
    trace = lab.Dag.of(flow.vm.trace(step))
    assert pairs(trace) == pairs(dag)
    p.save(tmp_path / "run.flowtrace")
    same(dag, lab.Dag.load(tmp_path / "run.flowtrace"))
    assert (lab.Dag.of(p, issued=True).release > 0).all()
    assert result.shape == (8, 8)

    class Step(nn.Graph):
        def build(self, x):
            return (x @ x).tanh() @ x

    graph = Step()
    graph(x)
    plan = lab.Dag.of(graph.plans[0])
    assert len(plan) >= 2
    assert len(plan.source) >= 1


def test_costs_are_fitted_and_predict(rng):
    with flow.profiler.profile() as p:
        for n in (16, 48, 96):
            x = flow.ones(n, n)
            for _ in range(5):
                x = x @ x * 0.01
        flow.vm.sync()
    cost = lab.Cost.fit(p, by=("op", "flops"))
    assert cost("matmul", flops=2 * 512**3).seconds > cost("matmul", flops=2).seconds > 0
    assert cost("matmul", flops=1e9).error > 0
    assert cost.of(lab.Dag.of(p)).work > 0
    with pytest.raises(ArgumentError, match="in no run"):
        cost("sort")
    compared = lab.compare(lab.simulate(lab.Dag.of(p), 1), p)
    off = sum(cause.seconds for cause in compared.causes)
    assert compared.predicted + off == pytest.approx(compared.measured)


def test_a_line_is_found_under_noise(rng):
    from flowvm.lab.fits import _line

    x = np.column_stack((np.ones(200), rng.uniform(1, 1e6, 200), np.zeros(200)))
    y = (2e-6 + 3e-12 * x[:, 1]) * rng.normal(1, 0.02, 200)
    line = _line(x, y)
    off = np.abs(line.coefficients - [2e-6, 3e-12, 0])
    assert (off <= 4 * np.sqrt(np.diag(line.covariance)) + 1e-30).all()
    assert line.spread == pytest.approx(0.02, rel=0.3)


def test_a_sweep_goes_on_where_it_was(tmp_path):
    dags = {"lu": lab.synthetic("lu", n=3), "r": lambda seed: lab.synthetic("erdos", 20, seed)}
    names = ["fifo", "heft", "random"]
    first = lab.sweep(dags, [1, 2], names, seeds=range(2), path=tmp_path / "s.csv")
    # of lu the seeds make a difference to random alone
    assert len(first.rows) == 2 * ((1 + 1 + 2) + (2 + 2 + 2))
    again = lab.sweep(dags, [1, 2], names, seeds=range(2), path=tmp_path / "s.csv")
    assert again.rows == first.rows
    assert "heft" in first.table()
    first.svg(tmp_path / "s.svg")
    assert (tmp_path / "s.svg").read_text().count("<text") >= 3


def test_the_command_prints_makespans(dag, tmp_path, capsys):
    dag.save(tmp_path / "a.json")
    assert main(["lab", str(tmp_path / "a.json"), "--workers", "1,2", "--policy", "fifo,heft",
                 "--json"]) == 0  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert report["makespan"]["heft"]["1"] == pytest.approx(dag.work)
    assert main(["lab", str(tmp_path / "a.json"), "--workers", "2", "--policy", "heft"]) == 0
    assert "bound" in capsys.readouterr().out
    assert main(["lab", str(tmp_path / "a.json"), "--policy", "best"]) == 1
