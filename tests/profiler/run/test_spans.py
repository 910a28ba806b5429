"""Spans and marks, and the part of a run that a span is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import load, mark, profile, range_pop, range_push, span
from flowvm.profiler.run.columns import COLUMNS
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND
from tests.profiler.synthetic import synthetic


def step(x):
    return flow.relu(x @ x).sum()


def test_a_span_has_what_was_issued_inside(tmp_path):
    x = flow.ones(8, 8)
    step(x).item()
    with profile() as p:
        x + x
        for _ in range(3):
            with span("step"):
                step(x).item()
        mark("end")
        x * x
    for q in (p, load(_saved(p, tmp_path))):
        assert [m[0] for m in q.run.marks] == ["step", "step", "step", "end"]
        for number in range(3):
            part = q.part("step", number)
            calls = [part.run.names[k] for k in part.run.op[part.run.kind == KIND.OP_CALL]]
            assert calls == ["matmul", "relu", "sum"]
            assert sum(s.end - s.begin for s in part.observed) == part.run.wall
            assert part.run.marks[0][4:] == [0, len(part)]
    parts = [p.part("step", k) for k in range(3)]
    assert all(a.run.ended <= b.run.begun for a, b in itertools.pairwise(parts))
    assert p.part("step").run.begun == parts[2].run.begun
    assert p.part("end").run.wall == 0


def _saved(p, folder):
    p.save(folder / "x.flowtrace")
    return folder / "x.flowtrace"


def test_a_span_that_is_not_there():
    with profile() as p, span("a"):
        pass
    with pytest.raises(
        ArgumentError, match=r"span 1 of 'a': there are 1 in this run; names are 'a'"
    ):
        p.part("a", 1)
    with pytest.raises(ArgumentError, match="there are 0 in this run; names are 'a'"):
        p.part("b")


@pytest.mark.parametrize("k", range(6))
def test_a_part_of_a_run_is_a_run(seed, k):
    run = synthetic(seed + k, 120)
    first, last = 30 + k, 90 - k
    part = run.part(first, last, run.begun, run.ended)
    assert (part.seq == run.seq[first:last]).all()
    expected = {
        (a - first, b - first, h, int(run.tensor[o]))
        for a, b, h, o in zip(run.source, run.target, run.hazard, run.operand, strict=True)
        if first <= a and b < last
    }
    spans = {
        (a, b, h, int(part.tensor[o]))
        for a, b, h, o in zip(part.source, part.target, part.hazard, part.operand, strict=True)
    }
    assert spans == expected
    for i in range(len(part)):
        mine = slice(part.offsets[i], part.offsets[i + 1])
        theirs = slice(run.offsets[first + i], run.offsets[first + i + 1])
        assert (part.tensor[mine] == run.tensor[theirs]).all()
    whole = run.part(0, len(run), run.begun, run.ended)
    for name in COLUMNS:
        assert np.array_equal(whole.column(name), run.column(name)), name


def test_ranges_are_spans_of_their_thread():
    x = flow.ones(8, 8)
    with profile() as p:
        range_push("outer")
        range_push("inner")
        step(x).item()
        range_pop()
        x + x
        range_pop()
    assert [m[0] for m in p.run.marks] == ["inner", "outer"]
    assert len(p.part("outer")) > len(p.part("inner")) > 0
    with pytest.raises(ArgumentError, match="no range_push of this thread is open"):
        range_pop()


def test_columns_of_tables_go_by_their_names_in_columns():
    shares = {"share_of": np.array([0], np.int32), "share_chunks": np.array([7])}
    run = Run.of({"seq": np.array([5]), **shares}, 1, 3, names=["one"])
    assert (run.begun, run.ended, run.names) == (1, 3, ["one"])
    assert run.shares.of.tolist() == [0]
    assert run.column("share_chunks").tolist() == run.shares.chunks.tolist() == [7]
    assert run.columns().keys() == COLUMNS.keys()
    assert run.column("forward_spot").tolist() == [-1]  # an instruction's, whatever its name
