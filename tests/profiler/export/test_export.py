"""Exports: Chrome traces that viewers accept, DOT, Mermaid within its limits."""

from __future__ import annotations

import copy
import gzip
import json
from typing import Any

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import Profile, load, profile
from flowvm.profiler.export.checking import problems
from flowvm.profiler.export.chrome import events
from flowvm.profiler.export.drawings import MERMAID_EDGES, dot, mermaid
from tests.profiler.synthetic import synthetic


@pytest.fixture(scope="module")
def run() -> Profile:
    side = flow.Stream("export side")
    x = flow.randn(16, 16)
    graph = flow.compile(lambda t: (t @ t).tanh().sum())
    graph(x)
    with profile() as p:
        for _ in range(5):
            with flow.stream(side):
                y = x * 2
            z = (y @ x).tanh()
            graph(z).item()
    return p


@pytest.mark.parametrize("edges", ["gating", "all", "none"])
def test_a_trace_is_what_viewers_accept(run, tmp_path, edges):
    for name in ("trace.json", "trace.json.gz"):
        path = run.export(tmp_path / name, edges=edges)
        opened = gzip.open if name.endswith("gz") else open
        with opened(path, "rt") as file:
            trace = json.load(file)
        assert problems(trace) == []
        kinds = {e["ph"] for e in trace["traceEvents"]}
        assert kinds >= {"M", "X", "C"}
        assert ("s" in kinds) == (edges != "none")


def test_it_has_every_track(run):
    found = events(run)
    names = {e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names >= {"critical path", "cpu", "cpu waits", "export side", "cpu graph tasks"}
    slices = [e for e in found if e["ph"] == "X"]
    assert {e["name"] for e in slices} >= {"matmul", "mul", "sync"}
    mul = next(e for e in slices if e["name"] == "mul")
    assert "test_export.py" in mul["args"]["line"]
    on_path = sum(round(e["dur"] * 1000) for e in slices if e["tid"] == 1)
    assert on_path == run.run.wall


@pytest.mark.parametrize("seed", range(10))
def test_any_run_gives_a_trace_without_problems(seed):
    p = Profile(synthetic(seed, length=300))
    for edges in ("gating", "all"):
        assert problems({"traceEvents": events(p, edges)}) == []


def _broken(kind: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    slices = [e for e in found if e["ph"] == "X" and e["dur"] > 0.01]
    first = slices[0]
    if kind == "has no":
        del first["tid"]
    elif kind == "nested":
        found.append({**first, "ts": round(first["ts"] + first["dur"] - 0.001, 3), "dur": 1e6})
    elif kind == "is not one s and one f":
        found.remove(next(e for e in found if e["ph"] == "f"))
    elif kind == "in no slice":
        next(e for e in found if e["ph"] == "s")["ts"] = 1e9
    elif kind == "has no bp e":
        del next(e for e in found if e["ph"] == "f")["bp"]
    elif kind == "goes back in time":
        found.append({**next(e for e in found if e["ph"] == "C" and e["ts"] > 0), "ts": 0.0})
    elif kind == "stands behind":
        found.append(found[0])
    elif kind == "has no name":
        found[:] = [e for e in found if e["name"] != "thread_name"]
    elif kind == "whole number of nanoseconds":
        first["ts"] = 1.23456
    elif kind == "dur -1":
        first["dur"] = -1
    elif kind == "is not one of M X s f C i":
        found.append({**first, "ph": "B"})
    return found


@pytest.mark.parametrize(
    "kind",
    [
        "has no", "nested", "is not one s and one f", "in no slice", "has no bp e",
        "goes back in time", "stands behind", "has no name", "whole number of nanoseconds",
        "dur -1", "is not one of M X s f C i",
    ],
)  # fmt: skip
def test_the_validator_notices(run, kind):
    found = _broken(kind, copy.deepcopy(events(run)))
    assert any(kind in problem for problem in problems({"traceEvents": found}))
    assert problems([]) == ["no list traceEvents"]


def test_dot_and_mermaid(run, tmp_path):
    text = dot(run)
    assert text.count("{") == text.count("}")
    assert text.count("->") == len([1 for line in text.splitlines() if "->" in line])
    assert "export side" in text
    drawn = mermaid(run)
    assert drawn.startswith("flowchart TD")
    assert "==>" in drawn or "-->" in drawn
    assert (tmp_path / "a.dot") == run.export(tmp_path / "a.dot")
    assert run.export(tmp_path / "a.mmd").read_text() == drawn


def test_mermaid_draws_lines_where_instructions_are_too_many():
    x = flow.ones(2)
    with profile() as p:
        for _ in range(MERMAID_EDGES):
            x = x + 1
            x = x * 1
    drawn = mermaid(p)
    assert "instructions" in drawn
    assert drawn.count("-->") + drawn.count("==>") <= MERMAID_EDGES
    too_many = Profile(synthetic(1, length=3000))
    too_many.run.lines = [f"line{k}" for k in range(3000)]
    too_many.run.line = too_many.run.seq.astype("int32") % 3000
    with pytest.raises(ArgumentError, match="Mermaid draws at most"):
        mermaid(too_many)


def test_the_ending_says_the_format(run, tmp_path):
    with pytest.raises(ArgumentError, match=r"\.json .*\.dot"):
        run.export(tmp_path / "trace.xyz")
    with pytest.raises(ArgumentError, match="one of gating, all, none"):
        run.export(tmp_path / "trace.json", edges="some")
    again = load(run.export(tmp_path / "run.flowtrace"))
    assert len(again) == len(run)
