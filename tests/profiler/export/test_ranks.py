"""Chrome trace events of several ranks: tracks apart, one clock, arrows from who came last."""

import json

import pytest

from flowvm.profiler import Profile
from flowvm.profiler.export import chrome, ranks
from tests.profiler.synthetic import meeting, synthetic


def profiles():
    return [Profile(meeting([10, 20, 90], 0)), Profile(meeting([200, 60, 15], 1))]


def test_tracks_of_ranks_are_apart_on_one_clock():
    both = profiles()
    alone = [chrome.events(p, "gating") for p in both]
    listed = ranks.events(both, [0, 2_000_000])
    for rank, own in enumerate(alone):
        mine = [e for e in listed if e["pid"] // ranks.PIDS == rank and e.get("cat") != "ranks"]
        assert len(mine) == len(own)
        later = 2000 * rank  # microseconds
        expected = sorted(round(e["ts"] + later, 3) for e in own if e["ph"] == "X")
        assert sorted(e["ts"] for e in mine if e["ph"] == "X") == pytest.approx(expected)
    names = {e["args"]["name"] for e in listed if e["name"] == "process_name"}
    assert {name.split()[1] for name in names} == {"0", "1"}
    times = [e["ts"] for e in listed if "ts" in e]
    assert times == sorted(times)


def test_flows_have_numbers_of_their_own():
    listed = ranks.events(profiles(), [0, 0], "all")
    starts = [e["id"] for e in listed if e["ph"] == "s"]
    assert len(starts) == len(set(starts))
    assert sorted(starts) == sorted(e["id"] for e in listed if e["ph"] == "f")


def test_arrows_lead_from_the_last_to_the_others():
    listed = ranks.events(profiles(), [0, 0])
    arrows = [e for e in listed if e.get("cat") == "ranks"]
    assert len(arrows) == 2 * 3  # three collectives of two ranks
    slices = [e for e in listed if e["ph"] == "X"]
    for start in (e for e in arrows if e["ph"] == "s"):
        (end,) = [e for e in arrows if e["ph"] == "f" and e["id"] == start["id"]]
        assert start["pid"] // ranks.PIDS != end["pid"] // ranks.PIDS
        (own,) = [s for s in slices if (s["pid"], s["tid"], s["ts"], s["name"])
                  == (start["pid"], start["tid"], start["ts"], start["name"])]  # fmt: skip
        assert own["ts"] == start["ts"]
        assert any(
            s["ts"] <= end["ts"] <= s["ts"] + s["dur"]
            for s in slices if (s["pid"], s["tid"]) == (end["pid"], end["tid"])
        )  # fmt: skip


def test_ranks_with_other_collectives_have_no_arrows():
    one, other = Profile(meeting([10, 20], 0)), Profile(synthetic(3, 20))
    assert not [e for e in ranks.events([one, other], [0, 0]) if e.get("cat") == "ranks"]


@pytest.mark.parametrize(
    ("at", "inside"), [(5.0, 10.0), (12.0, 12.0), (19.9995, 19.999), (50.0, 19.999)]
)
def test_moments_are_inside_a_slice(at, inside):
    assert ranks._inside({"ts": 10.0, "dur": 10.0}, at) == inside
    assert ranks._inside({"ts": 10.0, "dur": 0.0}, at) == 10.0


def test_traces_are_written_as_json(tmp_path):
    path = tmp_path / "t.json"
    ranks.write(profiles(), [0, 0], path, "gating")
    read = json.loads(path.read_text())
    listed = read["traceEvents"] if isinstance(read, dict) else read
    assert listed == json.loads(json.dumps(ranks.events(profiles(), [0, 0])))
