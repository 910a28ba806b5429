"""Unusual profiles: nothing, one instruction, failed ones, more than the ring."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import FlowError
from flowvm.profiler import Profile, profile
from flowvm.profiler.run.rows import distinct
from flowvm.vm.machine.words import KIND, REC

SCREENS = ("summary", "timeline", "graph", "critical_path", "memory", "step", "to_dict")
FORMATS = ("json", "html", "svg", "dot", "mmd", "flowtrace")


def shown(p, folder):
    """The text of every screen; each fits and has an ASCII twin, and every export is written."""
    texts = {}
    for name in SCREENS:
        view = getattr(p, name)()
        if name == "to_dict":
            json.dumps(view)
            continue
        for width in (80, 100, 120, 160):
            text = view.screen(width).plain(ascii_only=True)
            assert text.isascii()
            if name != "timeline":  # laid out for its width when it is made
                assert max(map(len, text.split("\n"))) <= width, (name, width)
        texts[name] = str(view)
    for ending in FORMATS:
        assert p.export(folder / f"p.{ending}").stat().st_size
    return texts


def test_an_empty_block(tmp_path):
    with profile() as p:
        pass
    assert len(p) == 0
    texts = shown(p, tmp_path)
    assert texts["summary"] == "flow.profiler  nothing was recorded"
    assert texts["graph"] == " no instruction to show"
    with pytest.raises(FlowError, match="no graph was replayed"):
        p.plan()


def test_an_empty_block_that_was_left_by_an_error():
    with pytest.raises(ValueError, match="planted"), profile() as p:
        raise ValueError("planted")
    assert str(p) == "flow.profiler  nothing was recorded: ValueError left the block"


def test_one_instruction(tmp_path):
    x = flow.ones(4)
    with profile() as p:
        product = x * 2
    assert len(p) == 1
    texts = shown(p, tmp_path)
    assert texts["summary"].startswith("flow.profiler  1 instruction · wall")
    assert "mul" in texts["critical_path"]
    assert product.tolist() == [2.0] * 4


def test_a_part_is_not_said_to_be_what_only_the_whole_is():

    def fail():
        for _ in range(4):
            with flow.profiler.span("one"):
                flow.ones(8) * 2
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"), profile() as p:
        fail()
    part = p.part("one", 1)
    assert "left by" in str(p)
    assert "left by" not in str(part)


def test_the_user_s_own_wait_is_kept():
    x = flow.ones(4)
    with profile() as p:
        product = x * 2
        flow.vm.sync()
    assert [int(k) for k in p.run.kind] == [KIND.OP_CALL, KIND.BARRIER]
    assert product.tolist() == [2.0] * 4


def test_what_failed_is_said(tmp_path):
    table = flow.randn(5, 2)

    def read():
        bad = table[flow.tensor([7])]
        (bad * 2).sum().item()

    with pytest.raises(IndexError), profile() as p:
        read()
    texts = shown(p, tmp_path)
    lines = texts["summary"].split("\n")
    assert lines[1].startswith("left by    OutOfRangeError")
    assert lines[2].startswith("failed     #")
    assert "index_select test_odd_runs.py:" in lines[2]
    assert "2 did not run for want of it" in lines[2]
    assert "index_select ✗" in texts["graph"]
    assert "mul ∅" in texts["graph"]
    assert "✗ failed" in texts["graph"]
    p.run.save(tmp_path / "kept.flowtrace")
    assert "left by" in str(flow.profiler.load(tmp_path / "kept.flowtrace"))


def test_more_than_the_ring_holds(tmp_path):
    x = flow.ones(4)
    count = REC.LENGTH + 20_000
    with profile() as p:
        for _ in range(count):
            x.add_(1)
    assert len(p) <= REC.LENGTH
    first = int(p.run.time("issued").min())
    assert p.run.begun == first, "of what came before nothing is known"
    assert p.run.info["lost"] > 0
    text = str(p)
    assert "before them are forgotten" in text
    assert "ms are remembered" in text
    assert f"{len(p):,} instructions" in text
    assert sum(p.bound.values()) == pytest.approx(1)
    assert "rows hidden" in str(p.graph())
    assert "×65,5" in str(p.critical_path())
    p.export(tmp_path / "p.html")
    part = Profile(p.run.part(0, 10, p.run.begun, p.run.ended))
    assert len(part) == 10


def test_rows_that_are_alike_are_found(rng):
    for shape in ((0, 2), (1, 3), (200, 2), (50, 1)):
        rows = rng.integers(-2, 3, shape)
        first, which = distinct(rows)
        _, expected, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        np.testing.assert_array_equal(first, expected)
        np.testing.assert_array_equal(which, inverse.reshape(-1))
