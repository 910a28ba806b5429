"""The roofline: rates from the threads' work, its memory, and shares of it."""

from __future__ import annotations

import pytest

import flowvm as flow
from flowvm.compiler import jit
from flowvm.config import config
from flowvm.profiler import profile
from flowvm.profiler.run import roof
from flowvm.profiler.run.roof import Roofline, best_rate


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder of its own, and a short measure."""
    monkeypatch.setattr(roof, "SECONDS", 0.005)
    monkeypatch.setattr(roof, "COPIED", 1 << 20)
    jit.set_cache_dir(tmp_path)
    yield tmp_path
    jit.set_cache_dir(None)


def test_one_thread_has_the_rate_of_its_best_call():
    assert best_rate([[(0.0, 0.2), (0.2, 0.3), (0.3, 0.5)]], 100) == pytest.approx(1000)
    assert best_rate([[(5.0, 5.5)]], 100) == pytest.approx(200)


def test_threads_that_take_turns_do_not_count_twice():
    turns = [[(0.0, 0.1), (0.2, 0.3), (0.4, 0.5)], [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)]]
    assert best_rate(turns, 100) == pytest.approx(1000)
    both = [[(0.0, 0.1), (0.1, 0.2)], [(0.0, 0.1), (0.1, 0.2)]]
    assert best_rate(both, 100) == pytest.approx(2000)


def test_shares_are_of_the_bound_that_is_nearer():
    r = Roofline("a processor", 2, 40.0, 200.0)
    assert r.ridge == 5.0
    assert r.share(20, 0, 1.0) == 0.5
    assert r.share(20, 150, 1.0) == 0.75
    assert r.share(20, 150, 0.0) == 0.0
    assert r.screen(100).plain() == (
        " roofline  40.0 GB/s · 200 GFLOP/s float32 · 5.0 operations a byte · "
        "2 threads of a processor"
    )


def test_measured_once_and_kept(folder, monkeypatch):
    assert roof.known() is None
    first = flow.profiler.roofline()
    assert first.gigabytes > 0
    assert first.gigaflops > 0
    assert first.threads == config.workers
    assert roof.known() == first
    monkeypatch.setattr(roof, "_copied", lambda threads: 1e9)
    assert flow.profiler.roofline() == first
    assert flow.profiler.roofline(again=True).gigabytes == 1.0
    assert roof.known().gigabytes == 1.0
    assert [p.suffix for p in folder.iterdir()] == [".json"]
    next(folder.iterdir()).write_text("{")
    assert roof.known() is None


def test_a_run_remembers_it_and_nobody_measures_behind_the_users_back(folder, tmp_path):
    x = flow.ones(64, 64)
    with profile() as p:
        (x + x).numpy()
    assert p.summary().roof == ()
    assert roof.known() is None
    roofline = flow.profiler.roofline()
    assert len(p.summary().roof) == len(p.summary().rows)  # the same machine
    with profile() as q:
        (x + x).numpy()
    q.run.info["cpu"] = "another"
    q.save(tmp_path / "run.flowtrace")
    loaded = flow.profiler.load(tmp_path / "run.flowtrace")
    assert roof.of_run(loaded.run) == roofline
    p.run.info["cpu"] = "another"
    assert p.summary().roof == ()
