"""The DAG as lanes: the drawing has the run's nodes and edges, for random lanes and edges."""

from __future__ import annotations

import random

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import profile
from flowvm.profiler.terminal import to_ascii
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.lanes import draw_lanes

ENDS = {"├", "┤", "╰", "╯", "┼", "┴"}


@pytest.mark.parametrize("seed", range(30))
def test_every_drawn_line_is_an_edge_and_every_edge_is_drawn(seed):
    rng = random.Random(seed)
    count, rows = rng.randint(1, 8), rng.randint(1, 40)
    lanes = [rng.randrange(count) for _ in range(rows)]
    sources = [
        sorted({lanes[rng.randrange(r)] for _ in range(rng.randint(0, 3))} - {lanes[r]})
        if r
        else []
        for r in range(rows)
    ]
    critical = [rng.random() < 0.3 for _ in range(rows)]
    lines = draw_lanes(lanes, sources, critical, [0] * rows)
    shown = max(lanes) + 1
    for r, line in enumerate(lines):
        text = "".join(t for t, _ in line)
        assert len(text) == 3 * shown - 2, "each lane has three columns"
        cells = text[::3]
        assert cells[lanes[r]] == ("◆" if critical[r] else "○")
        assert [k for k in range(shown) if cells[k] in ENDS] == sources[r]
        reach = [lanes[r], *sources[r]]
        for k in range(shown - 1):  # a line runs from the row's own lane to the furthest source
            assert ("─" in text[3 * k + 1]) == (min(reach) <= k < max(reach))
    for r, line in enumerate(lines):  # a lane that is needed below goes on
        text = "".join(t for t, _ in line)
        for k in range(shown):
            needed = any(k in (lanes[b], *sources[b]) for b in range(r + 1, rows))
            begun = any(k in (lanes[b], *sources[b]) for b in range(r + 1))
            if needed and begun and text[3 * k] in ENDS:
                assert text[3 * k] in {"├", "┤", "┼"}


def test_two_streams_and_their_edges():
    side = flow.Stream("dag side")
    x = flow.ones(8, 8)
    with profile() as p:
        with flow.stream(side):
            a = x * 2
        b = a @ x
        with flow.stream(side):
            c = b + a
    view = p.graph()
    assert c.sum().item() == 64 * 18
    assert [row.op for row in view.rows] == ["mul", "matmul", "add"]
    assert set(view.lanes) == {"cpu", "dag side"}
    mul, matmul, add = view.rows
    assert [(e.source, e.hazard) for e in matmul.edges] == [(mul.seq, "RAW")]
    assert {e.source for e in add.edges} == {mul.seq, matmul.seq}
    assert sum(e.gating for e in add.edges) == 1
    text = view.screen(100).plain()
    for row in view.rows:
        assert f"#{row.seq}" in text
    assert "test_view_dag.py" in text


def test_edges_of_the_view_are_those_of_the_run():
    x = flow.randn(16, 16)
    with profile() as p:
        y = x
        for k in range(10):
            y = (y @ x) * 0.1 + k
            x.mul_(0.5)
    run, view = p.run, p.graph(limit=None)
    expected = {
        (int(run.seq[a]), int(run.seq[b]))
        for a, b in zip(run.source, run.target, strict=True)
        if run.kind[b] not in (KIND.RELEASE, KIND.BARRIER)
    }
    assert {(e.source, row.seq) for row in view.rows for e in row.edges} == expected
    assert y.numpy().size


def test_around_shows_what_is_near_and_says_what_is_hidden():
    x = flow.randn(4)
    with profile() as p:
        y = x
        for _ in range(100):
            y = y + 1
    assert p.graph().hidden == 40
    centre = p.graph(limit=None).rows[50].seq
    near = p.graph(around=centre, depth=3)
    assert [row.seq for row in near.rows] == [row.seq for row in p.graph(limit=None).rows[47:54]]
    release = int(p.run.seq[p.run.kind == KIND.RELEASE][0])
    assert [row.seq for row in p.graph(around=release, depth=0).rows] == [release]
    with pytest.raises(ArgumentError, match="is not in this run"):
        p.graph(around=10**9)
    with pytest.raises(ArgumentError, match="depth=-1"):
        p.graph(around=centre, depth=-1)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_it_fits_and_has_an_ascii_twin(width):
    x = flow.randn(4)
    with profile() as p:
        for _ in range(5):
            x = (x + 1).exp().log() * x
    lines = p.graph().screen(width).plain().splitlines()
    assert max(map(len, lines[:-1])) <= width
    assert to_ascii("\n".join(lines)).isascii()
    assert "?" not in to_ascii("\n".join(lines))


def test_an_empty_run_says_so():
    with profile() as p:
        pass
    assert "no instruction" in repr(p.graph()) or len(p.graph().rows) <= 1


def test_the_view_is_plain_data():
    with profile() as p:
        flow.ones(3).sum().item()
    document = p.graph().to_dict()
    assert isinstance(document["rows"][0]["seq"], int)
    assert not any(isinstance(v, np.generic) for v in document["rows"][0].values())
