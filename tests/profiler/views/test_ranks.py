"""The screen of several ranks: who was late to what, and what it did meanwhile."""

import numpy as np

from flowvm.profiler import Profile
from flowvm.profiler.views.ranks import ExchangeRow, RankRow, RanksSummary, ranks_summary
from tests.profiler.synthetic import meeting, synthetic, three_ranks


def lines(summary, width=100):
    return ["".join(text for text, _ in line) for line in summary.screen(width).lines]


def test_the_late_rank_is_named():
    profiles = [Profile(meeting([10, 20, 90], 0)), Profile(meeting([200, 60, 15], 1))]
    summary = ranks_summary(profiles, [0, 0])
    assert [r.rank for r in summary.ranks] == [0, 1]
    late = {r.rank: r.late for r in summary.ranks}
    assert sum(late.values()) == sum(e.count for e in summary.exchanges)
    assert late[1] > late[0]  # it comes last to the first two collectives
    assert all(r.wall == p.run.wall for r, p in zip(summary.ranks, profiles, strict=True))
    assert sum(r.others for r in summary.ranks) == sum(e.waited for e in summary.exchanges)
    assert not summary.note
    assert any(said.startswith("rank 1 came last to") for said in summary.late)
    text = lines(summary)
    assert text[0].startswith("2 ranks")
    assert any("collective" in line for line in text)


def test_shifts_are_those_of_clocks():
    """A rank whose clock is far behind is not later for that."""
    plain = [Profile(meeting([10, 20, 90], 0)), Profile(meeting([200, 60, 15], 1))]
    moved = meeting([200, 60, 15], 1)
    moved.times = np.where(moved.times > 0, moved.times - 5, moved.times)
    once = ranks_summary(plain, [0, 0])
    again = ranks_summary([plain[0], Profile(moved)], [0, 5])
    assert [(r.late, r.others) for r in again.ranks] == [(r.late, r.others) for r in once.ranks]


def test_ranks_that_made_different_collectives_are_not_tied():
    runs = [meeting([10, 20, 90], 0), meeting([10, 20], 1)]
    summary = ranks_summary([Profile(run) for run in runs], [0, 0])
    assert "different collectives" in summary.note
    assert summary.exchanges == summary.late == ()
    assert [r.late for r in summary.ranks] == [0, 0]
    assert lines(summary)[-1].endswith("unknown")


def test_ranks_without_exchanges():
    runs = [synthetic(3, 20), synthetic(4, 20)]
    summary = ranks_summary([Profile(run) for run in runs], [0, 0])
    assert [r.exchanging for r in summary.ranks] == [0, 0]
    assert [r.hidden for r in summary.ranks] == [0, 0]
    assert "0 % of the time" in lines(summary)[0]


def test_shares_are_of_what_was_computed_meanwhile():
    for seed in range(3):
        ranks = three_ranks(seed)
        for row in ranks_summary(ranks.profiles, ranks.shifts).ranks:
            assert 0 <= row.hidden <= 1
            assert row.computing <= row.wall + 1


def test_screens_have_a_row_for_each():
    summary = RanksSummary(
        (RankRow(0, 10**6, 5 * 10**5, 10**5, 0.5, 1, 10**5), RankRow(1, 10**6, 0, 0, 0.0, 0, 0)),
        (ExchangeRow("all_reduce", 3, 2048, 10**5, 1e9),), late=("rank 0 came last",),
    )  # fmt: skip
    text = lines(summary)
    assert text[0].startswith("2 ranks   50 % of")
    assert "all_reduce" in "".join(text)
    assert "2.0 KiB" in "".join(text)
    assert text[-1].strip() == "rank 0 came last"
