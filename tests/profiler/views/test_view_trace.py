"""The output of flow.vm.trace: lanes as in a profile's DAG, with the facts of a trace."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console

import flowvm as flow
from flowvm.vm.watch.lanes import ASCII, encodable


def two_streams(x, side):
    h = x @ x
    with flow.stream(side):
        y = x.exp()
    h += y
    return h.sum()


def art_of(trace):
    return ["".join(text for text, _ in line) for line in trace.lanes()]


def test_lanes_and_rows():
    trace = flow.vm.trace(two_streams, flow.ones(8, 8), flow.Stream("trace side"))
    art = dict(zip((ins.name for ins in trace), art_of(trace), strict=True))
    assert art["exp"][3] in "◆○"
    assert art["add"][:3] in ("◆──", "○──"), "it reads what comes from the other stream"
    assert art["add"][3] in "┤╯"
    lines = str(trace).split("\n")
    assert lines[0].split() == [
        "id",
        "op",
        "reads",
        "writes",
        "waits",
        "for",
        "stream",
        "us",
        "line",
    ]
    for line, drawn, row in zip(lines[1:], art_of(trace), trace.rows(), strict=True):
        assert line.startswith(drawn)
        assert all(cell in line for cell in row)


def test_the_longest_path_is_marked():
    x = flow.ones(8, 8)
    trace = flow.vm.trace(lambda: ((x @ x).exp(), x + 1))
    marked = {trace.instructions[k].name for k in trace.longest()}
    lasted = {ins.name: ins.ended - ins.started for ins in trace}
    expected = {"matmul", "exp"} if lasted["matmul"] + lasted["exp"] >= lasted["add"] else {"add"}
    assert marked == expected
    for ins, drawn in zip(trace, art_of(trace), strict=True):
        assert ("◆" in drawn) == (ins.name in marked)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_it_fits(width):
    trace = flow.vm.trace(two_streams, flow.ones(8, 8), flow.Stream("fits"))
    out = io.StringIO()
    Console(file=out, width=width).print(trace)
    lines = out.getvalue().rstrip("\n").split("\n")
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if re.search(r"#\d+ ", line)]
    assert len(rows) == len(trace) == len(lines) - 1, "a line an instruction"
    for line, drawn in zip(rows, art_of(trace), strict=True):
        assert line.startswith(drawn)


def test_nothing_and_ascii(monkeypatch):
    assert len(str(flow.vm.trace(lambda: None)).split("\n")) == 1
    trace = flow.vm.trace(two_streams, flow.ones(8, 8), flow.Stream("ascii"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
        text = str(trace)
    assert text.isascii()
    assert text == str(trace).translate(ASCII)
    assert encodable("◆──┤") == "◆──┤"
