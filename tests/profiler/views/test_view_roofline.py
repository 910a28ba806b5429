"""The roofline plot: where operators stand below the roof."""

from __future__ import annotations

import re

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler.run.roof import Roofline
from flowvm.profiler.views.roofline import Point, RooflinePlot

ROOF = Roofline("a processor", 2, 10.0, 100.0)
PLOT = RooflinePlot(
    "op",
    ROOF,
    (
        Point("product", 3, 1000, 400, 50_000, 0.5),  # 125 operations a byte: under the flat part
        Point("scale", 2, 1000, 8000, 4000, 0.8),  # half an operation a byte: under the slope
        Point("copy", 1, 10, 50, 0, 0.5),
        Point("<evil>", 1, 500, 400, 50_000, 1.0),  # beside the first
    ),
)


def test_points_and_limits():
    assert [p.name for _, p in PLOT.drawn] == ["product", "scale", "<evil>"]  # no operations a byte
    assert PLOT.limit(0.5) == pytest.approx(5.0)
    assert PLOT.limit(ROOF.ridge) == PLOT.limit(1e6) == pytest.approx(100.0)
    left, right, low, high = PLOT.bounds()
    assert 10**left < 0.5 < 125 < 10**right
    assert 10**low < 4 < 100 < 10**high


def test_it_prints():
    for width in (60, 80, 120):
        text = PLOT.screen(width).plain()
        assert max(map(len, text.split("\n"))) <= width
    assert re.search(r"a +product +3 .* 50 %  products", text)
    assert re.search(r"b +scale +2 .* 80 %  memory", text)
    assert "·····" in text
    unknown = RooflinePlot("op", None, PLOT.points).screen(80).plain()
    assert "flow.profiler.roofline() measures it" in unknown
    assert RooflinePlot("op", None, ()).screen(80).plain()


def test_the_picture(tmp_path):
    svg = PLOT.save(tmp_path / "roof.svg").read_text()
    circles = re.findall(r'<circle class="op" cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert len(circles) == 3
    (x0, y0), (x1, y1), _ = [(float(x), float(y)) for x, y in circles]
    assert x0 > x1
    assert y0 < y1  # faster is higher
    assert "&lt;evil&gt;" in svg
    assert "<evil>" not in svg
    heights = [float(y) for y in re.findall(r'y="([\d.]+)">(?:product|&lt;evil&gt;)</text>', svg)]
    assert abs(heights[0] - heights[1]) >= 12  # names of what stands at one place
    with pytest.raises(ArgumentError, match=r"written as \.svg"):
        PLOT.save(tmp_path / "roof.png")


def test_of_a_run():
    a = flow.rand(64, 64)
    with flow.profiler.profile() as p:
        (a @ a).relu().sum().item()
    plot = p.roofline()
    assert {"matmul", "relu"} <= {point.name for point in plot.points}
    assert [point.name for _, point in plot.drawn] == ["matmul"]
    assert plot.drawn[0][1].flops == 2 * 64**3
    with pytest.raises(ArgumentError, match="by='colour'"):
        p.roofline("colour")
