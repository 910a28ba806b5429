"""Ranks in one run: unique numbers, one clock, each rank's analysis, late ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import Profile, profile
from flowvm.profiler.front.rank_profile import Joined
from flowvm.profiler.front.ranks import Ranks
from flowvm.profiler.run.rank_runs import joined, placed
from flowvm.profiler.run.run import Run
from tests.profiler.synthetic import meeting, synthetic, three_ranks


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    """Return two ranks; the second comes last to the first two collectives."""
    return Ranks([Profile(meeting([10, 20, 90], 0)), Profile(meeting([200, 60, 15], 1))], [0, 0])


def test_runs_keep_what_they_say(seed: int) -> None:
    runs, shifts = [synthetic(seed + k, 40 + 30 * k) for k in range(3)], [0, 500, -7]
    one, first, operands = joined(placed(runs, shifts)), 0, 0
    assert len(np.unique(one.seq)) == len(one)
    assert one.source.max(initial=0) < len(one)
    assert (one.source < one.target).all()
    for rank, (run, shift) in enumerate(zip(runs, shifts, strict=True)):
        own = slice(first, first + len(run))
        names = [one.streams[s] for s in one.stream[own]]
        assert names == [f"rank {rank} {run.streams[s]}" for s in run.stream]
        assert [one.names[k] for k in one.op[own]] == [run.names[k] for k in run.op]
        assert [one.lines[k] for k in one.line[own]] == [run.lines[k] for k in run.line]
        assert (one.times[own] == np.where(run.times > 0, run.times + shift, run.times)).all()
        assert (one.seq[own] == run.seq + rank * 1000).all()
        tensors = one.tensor[operands : operands + len(run.tensor)]
        assert len(np.unique(tensors - run.tensor)) == 1
        first, operands = first + len(run), operands + len(run.tensor)
    assert len(one.source) == sum(len(run.source) for run in runs)
    assert len(np.unique(one.tensor)) == sum(len(np.unique(run.tensor)) for run in runs)


def test_each_ranks_analysis_is_its_own(seed: int) -> None:
    runs = [synthetic(seed + k, 120) for k in range(2)]
    both = Ranks([Profile(run) for run in runs], [0, 40]).joined
    for part, run in zip(both.parts, runs, strict=True):
        alone, own = Profile(run), slice(part.first, part.first + len(run))
        for name in ("dep", "queue", "sched"):
            assert (getattr(both.waits, name)[own] == getattr(alone.waits, name)).all()
        assert part.profile.bound == alone.bound
        assert part.profile.floor.length == alone.floor.length
    walls = sum(run.wall for run in runs)
    assert sum(s.end - s.begin for s in both.observed) == walls
    assert sum(both.bound.values()) == pytest.approx(1)
    for by in ("op", "line", "stream"):
        rows = {row.name: row for row in both.table(by)}
        parts = [row for part in both.parts for row in part.profile.table(by)]
        assert set(rows) == {row.name for row in parts}
        assert sum(row.run for row in rows.values()) == sum(row.run for row in parts)
        assert sum(row.count for row in rows.values()) == len(both)
    assert both.flame().total == sum(part.profile.flame().total for part in both.parts)
    assert [lane.total for lane in both.lanes] == [
        lane.total for part in both.parts for lane in part.profile.lanes
    ]


def test_who_was_late_is_said_with_what_it_did(ranks: Ranks) -> None:
    summary = ranks.summary()
    assert [row.late for row in summary.ranks] == [1, 2]
    assert [row.others for row in summary.ranks] == [75, 190 + 40]
    assert "rank 1 came last to 2 of 3 collectives: others waited 0.000 ms" in summary.late[0]
    assert re.search(r"of it at a\.py:1, .* ms in matmul", summary.late[0])
    assert "rank 1 came last to 2 of 3" in " ".join(str(ranks).split())
    even = Ranks([Profile(meeting([10, 20], k)) for k in range(2)], [0, 0])
    assert even.summary().late == ()


def test_a_moment_says_who_waits_for_whom(ranks: Ranks) -> None:
    p = ranks.joined
    begun = p.run.begun
    (met,) = ranks.at((1100 - begun) / 1e6).meetings
    assert (met.name, met.number, met.awaited) == ("all_reduce", 0, 1)
    assert met.ranks == (("waits", 90), ("to come", 100))
    (met,) = ranks.at((1300 - begun) / 1e6).meetings
    assert met.ranks == (("exchanges", 100), ("exchanges", 100))
    assert met.awaited == -1
    assert ranks.at((1600 - begun) / 1e6).meetings == ()
    shown = str(ranks.at((1100 - begun) / 1e6))
    assert "rank 1 to come in 0.000 ms, for whom others wait" in shown
    assert [name for name, _ in ranks.at(0).python] == ["rank 0 Python", "rank 1 Python"]
    assert ranks.at(instr=int(p.run.seq[-1]), when="started").event.startswith(
        f"#{p.run.seq[-1]} all_reduce started on rank 1 comm"
    )
    assert ranks.step(-1).number < ranks.step(2).number


def test_the_clocks_are_one(seed: int) -> None:
    ranks = three_ranks(seed)
    p = ranks.joined
    assert p.tied is not None
    begins = p.run.time("started")[p.tied.instruction]
    assert (begins == p.tied.begin).all()
    assert ((p.tied.begin // 1000) == (p.tied.begin[:, :1] // 1000)).all()  # as if on one clock
    assert [p.run.names[k] for k in p.run.op[p.tied.instruction].ravel()] == ["all_reduce"] * 15


def test_other_collectives_are_not_tied() -> None:
    other = meeting([5], 1)
    other.names[1] = "all_gather"
    ranks = Ranks([Profile(meeting([5], 0)), Profile(other)], [0, 0])
    assert ranks.joined.tied is None
    assert "made different collectives" in ranks.summary().note
    assert ranks.at(0).meetings == ()


def test_a_real_run_beside_another(tmp_path: Path) -> None:
    layer = flow.nn.Linear(8, 8)
    graph = flow.compile(lambda t: layer(t).tanh().sum())
    x = flow.randn(4, 8)
    graph(x)

    def work() -> Profile:
        with profile() as p:
            for _ in range(3):
                with flow.profiler.span("step"):
                    graph(x).item()
                    (x * 2).sum().item()
        return p

    both = Ranks([work(), work()], [0, 0])
    p = both.joined
    plans = [name for name in p.run.info["plans"] if name in p.run.names]
    assert len(plans) == 2
    assert {name[:7] for name in plans} == {"rank 0 ", "rank 1 "}
    for name in plans:
        assert p.plan(name).launches == 3
    assert len([m for m in p.run.marks if m[0] == "step"]) == 6
    assert [p.memory_of(f"rank {k} cpu").peak for k in range(2)] == [
        one.memory_of().peak for one in both
    ]
    assert "<html" in both.export(tmp_path / "both.html").read_text()
    with pytest.raises(ArgumentError, match=r"\.html, \.json or"):
        both.export(tmp_path / "both.svg")


def test_ranks_that_recorded_nothing() -> None:
    ranks = Ranks([Profile(Run()), Profile(Run())], [0, 0])
    assert len(ranks.joined) == 0
    assert ranks.at(0).number == 0
    table: Any = ranks.joined.table("op")
    assert table == []


def test_ranks_are_parts_with_their_own_analysis(seed: int) -> None:
    runs, shifts = [synthetic(seed + k, 30 + 10 * k) for k in range(3)], [0, 90, 40]
    whole, alone = Joined(runs, shifts), [Profile(run) for run in runs]
    assert [part.first for part in whole.parts] == [0, 30, 70]
    assert len(whole.run) == sum(map(len, runs))
    for part, own in zip(whole.parts, alone, strict=True):
        rows = slice(part.first, part.first + len(own.run))
        producers = own.order.producer
        expected = np.where(producers >= 0, producers + part.first, producers)
        assert (whole.order.producer[rows] == expected).all()
        assert (whole.waits.dep[rows] == own.waits.dep).all()
    lanes = [lane.instruction for lane in whole.lanes]
    assert len(lanes) == sum(len(own.lanes) for own in alone)
    assert max(int(i.max(initial=-1)) for i in lanes) < len(whole.run)


def test_collectives_are_tied_by_instructions_of_the_joined_run() -> None:
    runs = [meeting([10, 20, 90], 0), meeting([200, 60, 15], 1)]
    tied = Joined(runs, [0, 0]).tied
    assert tied is not None
    one = Joined(runs, [0, 0]).run
    for k, name in enumerate(tied.names):
        for rank in range(2):
            assert one.names[one.op[tied.instruction[k, rank]]] == name
    assert Joined([runs[0], meeting([10], 1)], [0, 0]).tied is None
