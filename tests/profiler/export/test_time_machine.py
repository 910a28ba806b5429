"""The data of the page's time machine: columns that give the run's times back."""

import json

import numpy as np

from flowvm.profiler import Profile
from flowvm.profiler.analysis.moments import NEVER
from flowvm.profiler.export import time_machine
from flowvm.vm.watch.flight import TIMES
from tests.profiler.synthetic import synthetic


class Page:
    """Columns as they are put."""

    def __init__(self, profile):
        self.profile, self.run = profile, profile.run
        self.columns = {}

    def put(self, name, kind, values):
        assert kind in ("f", "i", "b")
        self.columns[name] = np.asarray(values)

    def whole(self, name, values):
        self.columns[name] = np.asarray(values)

    def since(self, nanoseconds):
        return (np.asarray(nanoseconds) - self.run.begun) / 1e6


def test_columns_are_the_stages_of_each_instruction(seed):
    page = Page(Profile(synthetic(seed, 60)))
    facts = time_machine.rewinding(page)
    times = page.profile.moments.times
    happened = times < NEVER
    at = page.columns["t0"] * 1e6 + page.run.begun
    np.testing.assert_allclose(at[happened[:, 0]], times[happened[:, 0], 0])
    assert np.isnan(page.columns["t0"][~happened[:, 0]]).all()
    for k in range(1, len(TIMES)):
        step = page.columns[f"t{k}"]
        at = at + np.where(step < 0, 0, step)
        assert (step[~happened[:, k]] == -1).all()
        np.testing.assert_allclose(at[happened[:, k]], times[happened[:, k], k])
    assert facts["wall"] == page.run.wall
    assert facts["over"] >= page.run.ended - page.run.begun
    assert len(facts["events"]) == len(facts["times"]) == len(TIMES)
    assert (page.columns["kind"] == page.run.kind).all()
    assert json.loads(json.dumps(facts))["spaces"] == facts["spaces"]
    assert {f"level{k}.bytes" for k in range(len(facts["spaces"]))} <= set(page.columns)


def test_waits_are_numbered_through_the_parts(seed):
    page = Page(Profile(synthetic(seed, 40)))
    facts = time_machine.rewinding(page)
    assert facts["first_waits"][0] == 0
    assert facts["first_waits"][-1] == len(page.run.waits.cause)
    assert len(page.columns["wait.cause"]) == len(page.columns["wait.begin"])


def test_actors_are_named_by_their_tasks():
    plan = {"tasks": [["add", 0], ["mul", 0], ["exp", 0]]}
    plan["actors"] = [["a", 0, 2, [], 2], ["b", 2, 1, [0], 1]]
    actors = time_machine._actors(plan)
    assert [(a["first"], a["count"], a["credits"]) for a in actors] == [(0, 2, 2), (2, 1, 1)]
    assert "add" in actors[0]["label"]
    assert "exp" in actors[1]["label"]
