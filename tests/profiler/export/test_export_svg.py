"""The DAG as a picture: valid XML, nothing overlaps, every dependence is a way through edges."""

from __future__ import annotations

import itertools
import random
from xml.etree import ElementTree

import pytest

import flowvm as flow
from flowvm.profiler import Profile, profile
from flowvm.profiler.export.drawings import by_instruction, by_line
from flowvm.profiler.export.svg import HIGH, MOST, layout, svg
from tests.profiler.synthetic import synthetic


@pytest.mark.parametrize("seed", range(12))
def test_boxes_do_not_overlap_and_edges_lead_down(seed):
    rng = random.Random(seed)
    p = Profile(synthetic(seed, length=rng.randint(1, 90), streams=rng.randint(1, 4)))
    nodes, links = by_instruction(p)
    drawing = layout(nodes, links)
    rects = [(b.x - b.width / 2, b.y, b.x + b.width / 2, b.y + HIGH) for b in drawing.boxes]
    for a, b in itertools.combinations(rects, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (a, b)
    for box, (left, top, right, bottom) in zip(drawing.boxes, rects, strict=True):
        name, low, high = drawing.bands[box.band]
        assert name == box.node[2]
        assert low <= left < right <= high
        assert 0 <= top < bottom <= drawing.height
        assert right <= drawing.width
    for one, other in itertools.pairwise(drawing.bands):
        assert one[2] < other[1]
    for _, route in drawing.routes:
        assert [b.layer for b in route] == list(range(route[0].layer, route[-1].layer + 1))
    assert not drawing.back


@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_out_follows_from_the_rest(seed):
    nodes, links = by_instruction(Profile(synthetic(seed, length=70)))
    drawing = layout(nodes, links)

    def closure(pairs):
        reach = {}
        for name, *_ in reversed(nodes):
            direct = {b for a, b in pairs if a == name}
            reach[name] = direct.union(*(reach[b] for b in direct))
        return reach

    drawn = {(link[0], link[1]) for link, _ in drawing.routes}
    assert closure(drawn) == closure({(a, b) for a, b, *_ in links})
    for pair in drawn:  # and none of those drawn does
        assert pair[1] not in closure(drawn - {pair})[pair[0]]
    assert drawing.left_out == len(links) - len(drawing.routes)


def test_the_file(tmp_path):
    side = flow.Stream("<side> & co")
    x = flow.ones(8, 8)
    with profile() as p:
        with flow.stream(side):
            y = x * 2
        z = y @ x
        z += y
    path = p.export(tmp_path / "dag.svg")
    root = ElementTree.fromstring(path.read_text("utf-8"))
    space = {"s": "http://www.w3.org/2000/svg"}
    titles = [g.find("s:title", space).text for g in root.findall("s:g", space)]
    assert [t.split()[1] for t in titles] == ["mul", "matmul", "add"]
    bands = [t.text for t in root.findall("s:text", space)]
    assert "<side> & co" in bands
    edges = [e for e in root.findall("s:path", space) if e.find("s:title", space) is not None]
    assert sorted(e.get("class") for e in edges) == ["const", "mut"]
    assert all(e.get("d").startswith("M") and "nan" not in e.get("d") for e in edges)
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(rect.get("width")) <= width
        assert float(rect.get("height")) <= height


def test_many_are_drawn_by_lines():
    p = Profile(synthetic(3, length=MOST * 2))
    root = ElementTree.fromstring(svg(p))
    assert "lines" in root.find("{http://www.w3.org/2000/svg}title").text
    drawing = layout(*by_line(p))
    assert drawing.back, "iterations lead back"
    assert svg(p).count(" back to ") == len(drawing.back)


def test_an_empty_run():
    ElementTree.fromstring(svg(Profile()))
