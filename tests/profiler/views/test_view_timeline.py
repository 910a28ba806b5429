"""The timeline: columns sum to the lanes' figures, gaps name the awaited instruction."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import profile
from flowvm.profiler.grammar import bar, cropped, ms, percent, size
from flowvm.profiler.terminal import to_ascii
from flowvm.profiler.views.timeline import _inside, timeline
from tests.profiler.analysis.test_stalls import again
from tests.vm.kernels import Gate, mix, tensor, wait_for_gate
from tests.vm.live import Background, until


def test_time_in_columns_is_that_of_the_intervals():
    rng = np.random.default_rng(3)
    for _ in range(50):
        points = np.sort(rng.choice(1000, 20, replace=False)).astype(np.int64)
        begun, ended = points[::2], points[1::2]
        borders = np.linspace(-50, 1050, 23)
        expected = [
            sum(max(0.0, min(e, hi) - max(b, lo)) for b, e in zip(begun, ended, strict=True))
            for lo, hi in itertools.pairwise(borders)
        ]
        np.testing.assert_allclose(_inside(begun, ended, borders), expected, atol=1e-6)


def test_a_planted_wait_is_the_longest_gap_and_names_its_producer():
    side = flow.Stream("timeline side")
    total, x = tensor([0]), tensor([1])
    with profile() as p, Gate() as gate:
        with flow.stream(side):
            wait_for_gate(total, x, gate.address)
        out = mix(total, total, 0)
        until(lambda: gate.is_reached, "the kernel waits")
        reader = Background(out.numpy)
        gate.open()
        reader.result()
    view = timeline(p)
    assert {lane.name for lane in view.lanes} >= {
        "observed path", "python", "scheduler", "cpu", "timeline side"
    }  # fmt: skip
    dep = [gap for gap in view.gaps if gap.cause == "dep"]
    if dep:  # unless the gate opened at once
        assert "wait_for_gate" in dep[0].text
        assert "RAW" in dep[0].text
    for lane in view.lanes:
        assert len(lane.cells) == len(view.lanes[0].cells)
        assert 0 <= lane.busy <= 1


def test_zoom_lanes_and_marks():
    x = flow.randn(64, 64)
    with profile() as p:
        for _ in range(20):
            x = (x @ x) * 0.01
        x.numpy()
    whole = p.timeline()
    half = p.run.wall / 2e6
    part = p.timeline(t=(0.0, half), lanes=["cpu"])
    assert [lane.name for lane in part.lanes] == ["cpu"]
    assert part.end < whole.end
    for k in (1, 20):
        number = int(p.run.seq[k])
        marked = p.timeline(follow=number).screen(100).plain()
        text = f"#{number} {p.run.names[p.run.op[k]]}"
        assert f"▲{text}\n" in marked or f"{text}▲\n" in marked  # where there is room for it
        assert max(map(len, marked.split("\n"))) <= 100
    with pytest.raises(ArgumentError, match="there are observed path, python, scheduler, cpu"):
        p.timeline(lanes=["gpu"])
    for t in ((1.0, 0.5), (1e6, 2e6)):
        with pytest.raises(ArgumentError, match="two times in ms"):
            p.timeline(t=t)
    with pytest.raises(ArgumentError, match="is not in this run"):
        p.timeline(follow=10**9)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_it_fits(width):
    with profile() as p:
        flow.randn(100).sum().item()
    for line in timeline(p, width=width).screen(width).plain().splitlines():
        assert len(line) <= width, line


def test_numbers_as_they_are_written():
    assert [ms(x) for x in (412_600_000, 8_210_000, 38_000, 100, 0)] == [
        "412.6", "8.21", "0.038", "0.000", "0.000",
    ]  # fmt: skip
    assert [size(x) for x in (512, 2048, 61.3 * 2**20, 2**31)] == [
        "512 B", "2.0 KiB", "61.3 MiB", "2.0 GiB",
    ]  # fmt: skip
    assert [percent(x) for x in (0.46, 0.004, 0.0, 1.0)] == ["46 %", "0.4 %", "0 %", "100 %"]
    assert [bar(x, 4) for x in (0, 0.5, 1, 0.03125, 2)] == ["", "██", "████", "▏", "████"]
    assert [cropped(x, 4) for x in ("abcdef", "abc")] == ["abc…", "abc"]
    assert to_ascii("█░◆─→ é") == "#.*-> ?"


@again
def test_tasks_of_a_graph_on_several_streams_have_lanes():
    stages = [flow.Stream(f"timeline stage {k}") for k in range(2)]

    class Staged(flow.nn.Graph):
        def build(self, x):
            for stream in stages:
                with flow.stream(stream):
                    x = (x @ x).tanh()
            return x

    graph, x = Staged(), flow.rand(64, 64)
    graph(x).numpy()
    with profile() as p:
        results = [graph(x) for _ in range(6)]
        results[-1].numpy()
    lanes = {lane.name: lane for lane in p.timeline().lanes}
    for stream in stages:
        cells = lanes[f"{stream.name} tasks"].cells
        assert {cause for cause, _ in cells} == {"", "run"}
        assert 0 < lanes[f"{stream.name} tasks"].busy < 1
