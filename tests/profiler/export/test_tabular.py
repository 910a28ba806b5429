"""The DAG as tables and graphs that other programs read back, and what a view saves of itself."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler.export import chrome, trace_rules
from flowvm.profiler.export.tabular import table


@pytest.fixture(scope="module")
def run():
    x = flow.rand(8, 8)
    with flow.profiler.profile() as p, flow.profiler.span("outer"):
        with flow.profiler.span("inner"):
            y = (x @ x).relu()
        flow.profiler.mark("half")
        (y @ x).sum().item()
    return p


def pairs(p):
    return list(
        zip(p.run.seq[p.run.source].tolist(), p.run.seq[p.run.target].tolist(), strict=True)
    )


def test_edges_as_columns_csv_and_pandas(run, tmp_path):
    columns = run.to_edges()
    assert list(zip(columns["source"].tolist(), columns["target"].tolist(), strict=True)) == pairs(
        run
    )
    assert {"RAW"} <= set(columns["hazard"])
    assert columns["gating"].sum() == (run.order.producer >= 0).sum()
    with (run.export(tmp_path / "run.edges.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(r["source"]), int(r["target"])) for r in rows] == pairs(run)
    with (run.export(tmp_path / "run.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert [r["op"] for r in rows] == run.to_columns()["op"].tolist()
    assert float(rows[0]["run"]) == pytest.approx(float(run.to_columns()["run"][0]), abs=1e-6)
    pandas = pytest.importorskip("pandas")
    assert isinstance(run.to_pandas("edges"), pandas.DataFrame)
    with pytest.raises(ArgumentError, match=r"to_pandas\('nodes'\)"):
        run.to_pandas("nodes")


def test_networkx_reads_the_file_and_gets_the_same(run, tmp_path):
    networkx = pytest.importorskip("networkx")
    file = networkx.read_graphml(run.export(tmp_path / "run.graphml"), node_type=int)
    graph = run.to_networkx()
    for document in (file, graph):
        assert set(document.nodes) == set(run.run.seq.tolist())
        assert set(document.edges) == set(pairs(run))
    seq = int(run.run.seq[0])
    assert graph.nodes[seq]["op"] == file.nodes[seq]["op"] == "matmul"
    assert networkx.is_directed_acyclic_graph(file)


def test_text_of_files_is_text():
    """Names that mean something in CSV or XML stay names."""
    text = table({"line": np.array(['a,"b"<&>'], object), "n": np.array([1])})
    assert list(csv.reader(io.StringIO(text))) == [["line", "n"], ['a,"b"<&>', "1"]]


def test_a_view_saves_what_it_shows(run, tmp_path):
    view = run.graph(limit=2)
    dot = view.save(tmp_path / "part.dot").read_text()
    assert dot.count("[label=") == len(view.rows) == 2
    svg = view.save(tmp_path / "part.svg").read_text()
    assert svg.count("<g id=") == 2
    lines = run.graph(collapse="line")
    assert lines.save(tmp_path / "lines.mmd").read_text().startswith("flowchart TD")
    with pytest.raises(ArgumentError, match=r"\.svg, \.dot, \.mmd"):
        view.save(tmp_path / "part.png")


def test_either_path_is_marked(run):
    longest = {row.seq for row in run.graph(path="longest").rows if row.critical}
    assert longest == set(run.run.seq[run.floor.path].tolist())
    columns = run.to_columns()
    assert set(columns["seq"][columns["longest"]].tolist()) == longest
    with pytest.raises(ArgumentError, match="path='shortest'"):
        run.graph(path="shortest")


def test_spans_are_a_track_of_the_trace(run):
    events = chrome.events(run)
    assert trace_rules.problems({"traceEvents": events}) == []
    (track,) = [e["tid"] for e in events if e["ph"] == "M" and e["args"].get("name") == "spans"]
    spans = {e["name"]: e for e in events if e.get("tid") == track and e["ph"] == "X"}
    assert set(spans) == {"outer", "inner"}
    assert spans["outer"]["ts"] <= spans["inner"]["ts"]
    assert spans["inner"]["args"]["instructions"] >= 2
    assert [e["name"] for e in events if e.get("tid") == track and e["ph"] == "i"] == ["half"]


def test_sql_over_both_tables(run):
    rows = run.sql("select op, count(*) n, sum(run) from instructions group by op order by op")
    assert rows.columns == ("op", "n", "sum(run)")
    columns = run.to_columns()
    for op, n, took in rows:
        own = columns["op"] == op
        assert n == own.sum()
        assert took == pytest.approx(columns["run"][own].sum())
    joined = run.sql(
        "select source, wait_dep from edges join instructions on target = seq where gating"
    )
    assert len(joined) == run.to_edges()["gating"].sum()
    text = rows.screen(80).plain()
    assert text.split()[:2] == ["op", "n"]
    with pytest.raises(ArgumentError, match="no such column: duration"):
        run.sql("select duration from instructions")
