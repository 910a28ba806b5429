"""Exports: Chrome traces that viewers accept, DOT, Mermaid within its limits."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import Profile, load, profile
from flowvm.profiler.export.chrome import events
from flowvm.profiler.export.drawings import MERMAID_EDGES, dot, mermaid
from flowvm.profiler.export.speedscope import flames
from flowvm.profiler.export.trace_rules import problems
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
    rows = events(run)
    names = {e["args"]["name"] for e in rows if e["name"] == "thread_name"}
    assert names >= {"critical path", "cpu", "cpu waits", "export side", "cpu graph tasks"}
    slices = [e for e in rows if e["ph"] == "X"]
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


def _broken(kind: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    slices = [e for e in rows if e["ph"] == "X" and e["dur"] > 0.01]
    first = slices[0]
    if kind == "has no":
        del first["tid"]
    elif kind == "nested":
        rows.append({**first, "ts": round(first["ts"] + first["dur"] - 0.001, 3), "dur": 1e6})
    elif kind == "is not one s and one f":
        rows.remove(next(e for e in rows if e["ph"] == "f"))
    elif kind == "in no slice":
        next(e for e in rows if e["ph"] == "s")["ts"] = 1e9
    elif kind == "has no bp e":
        del next(e for e in rows if e["ph"] == "f")["bp"]
    elif kind == "goes back in time":
        rows.append({**next(e for e in rows if e["ph"] == "C" and e["ts"] > 0), "ts": 0.0})
    elif kind == "stands behind":
        rows.append(rows[0])
    elif kind == "has no name":
        rows[:] = [e for e in rows if e["name"] != "thread_name"]
    elif kind == "whole number of nanoseconds":
        first["ts"] = 1.23456
    elif kind == "dur -1":
        first["dur"] = -1
    elif kind == "is not one of M X s f C i":
        rows.append({**first, "ph": "B"})
    elif kind == "of no kind that its field may have: tid: '1', args: [1]":
        first |= {"tid": "1", "args": [1]}
    return rows


@pytest.mark.parametrize(
    "kind",
    [
        "has no", "nested", "is not one s and one f", "in no slice", "has no bp e",
        "goes back in time", "stands behind", "has no name", "whole number of nanoseconds",
        "dur -1", "is not one of M X s f C i",
        "of no kind that its field may have: tid: '1', args: [1]",
    ],
)  # fmt: skip
def test_the_validator_notices(run, kind):
    rows = _broken(kind, copy.deepcopy(events(run)))
    assert any(kind in problem for problem in problems({"traceEvents": rows}))
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


def stacks_of(contents: Any, number: int) -> dict[tuple[str, ...], int]:
    names = [frame["name"] for frame in contents["shared"]["frames"]]
    sampled = contents["profiles"][number]
    pairs = zip(sampled["samples"], sampled["weights"], strict=True)
    return {tuple(names[k] for k in sample): weight for sample, weight in pairs}


def test_flame_graphs(run: Profile, tmp_path: Path) -> None:
    """Each nanosecond of a kernel is in one stack, whose tasks stand under the graph's launch."""
    contents = json.loads(run.export(tmp_path / "run.speedscope.json").read_text())
    by_time, by_bytes, *streams = contents["profiles"]
    assert [p["name"] for p in streams][:2] == ["cpu", "export side"]
    stacks = stacks_of(contents, 0)
    assert sum(stacks.values()) == by_time["endValue"] > 0
    assert sum(stacks_of(contents, 1).values()) == by_bytes["endValue"] > 0
    assert len({id(k) for k in stacks}) == len(by_time["samples"])
    (mul,) = [stack for stack in stacks if stack[-1] == "mul"]
    assert mul[0].startswith("test_export.py:")
    inside = [stack for stack in stacks if "<lambda>" in stack]
    assert {stack[-1] for stack in inside} >= {"sum"}
    assert all(stack[0].startswith("test_export.py:") for stack in inside)
    frame = next(f for f in contents["shared"]["frames"] if f["name"] == mul[0])
    assert (frame["file"], frame["line"]) == ("test_export.py", int(mul[0].split(":")[1]))
    for stream in streams:
        now, opened = 0, []
        for event in stream["events"]:
            assert now <= event["at"] <= stream["endValue"]
            now = event["at"]
            if event["type"] == "O":
                opened.append(event["frame"])
            else:
                assert opened.pop() == event["frame"]
        assert not opened


def test_flame_graphs_have_modules_and_at_level_3_all_of_pythons_stack() -> None:
    def called(x: Any) -> Any:
        return x.exp()

    model = flow.nn.Sequential(flow.nn.Sequential(flow.nn.ReLU()))
    with profile(level=3) as p:
        called(model(flow.ones(3))).sum().item()
    stacks = stacks_of(flames(p), 0)
    (relu,) = [stack for stack in stacks if stack[-1] == "relu"]
    assert relu[:3] == ("Sequential", "Sequential.0", "Sequential.0.0")
    (exp,) = [stack for stack in stacks if stack[-1] == "exp"]
    lines = [int(part.split(":")[1]) for part in exp if part.startswith("test_export.py:")]
    assert len(lines) == 2
    assert lines[0] > lines[1]  # the caller's is outside


@pytest.mark.parametrize("empty", [True, False])
def test_flame_graphs_of_any_run(seed: int, empty: bool) -> None:
    contents = flames(Profile() if empty else Profile(synthetic(seed, length=200)))
    for place in contents["profiles"]:
        frames = [*place.get("samples", []), [e["frame"] for e in place.get("events", [])]]
        assert all(k < len(contents["shared"]["frames"]) for row in frames for k in row)
