"""The DAG by lines or modules: groups, what each needs of others, and common paths."""

import numpy as np
import pytest

from flowvm.errors import ArgumentError
from flowvm.profiler import Profile
from flowvm.profiler.views import dag_groups
from flowvm.profiler.views.dag_groups import collapsed
from flowvm.vm.machine.words import KIND
from tests.profiler.synthetic import synthetic


@pytest.mark.parametrize(
    ("paths", "common"),
    [
        (["model.fc1", "model.fc2"], "model"), (["a.b.c"], "a.b.c"), (["a.b", "a"], "a"),
        (["a", "b"], ""), ([], ""), (["a.bc", "a.bd"], "a"),
    ],
)  # fmt: skip
def test_paths_begin_alike(paths, common):
    assert dag_groups._common(paths) == common


@pytest.mark.parametrize("by", dag_groups.COLLAPSES)
def test_groups_have_all_instructions(seed, by):
    profile = Profile(synthetic(seed, 120))
    run = profile.run
    view = collapsed(profile, by, None, 0, None)
    shown = ~np.isin(run.kind, (KIND.BARRIER, KIND.RELEASE))
    assert sum(g.count for g in view.rows) == int(shown.sum())
    names = dag_groups._names(run, by)
    for group in view.rows:
        stream = run.streams.index(view.lanes[group.lane])
        own = [
            i for i in np.flatnonzero(shown).tolist()
            if names[i] == group.name and run.stream[i] == stream
        ]  # fmt: skip
        assert group.count == len(own)
        assert group.seq == run.seq[own].min()
        assert sum(n for _, n in group.ops) == group.count
        lasted = np.maximum(0, run.time("ended") - run.time("started"))[own]
        assert group.run == lasted.sum()


def test_needs_are_the_edges_between_groups(seed):
    profile = Profile(synthetic(seed, 80))
    run = profile.run
    view = collapsed(profile, "line", None, 0, None)
    counted = sum(n.count for group in view.rows for n in group.needs)
    shown = ~np.isin(run.kind, (KIND.BARRIER, KIND.RELEASE))
    assert counted == int((shown[run.source] & shown[run.target]).sum())
    for group in view.rows:
        for need in group.needs:
            assert 0 <= need.row < len(view.rows)
            assert need.access in (0, 1, 2)
            assert need.hazards


def test_a_limit_names_what_is_left_out(seed):
    profile = Profile(synthetic(seed, 80))
    whole = collapsed(profile, "line", None, 0, None)
    part = collapsed(profile, "line", None, 0, 2)
    assert [g.name for g in part.rows] == [g.name for g in whole.rows[:2]]
    assert "".join(t for line in part.screen(80).lines for t, _ in line)


def test_other_groups_are_an_error(seed):
    with pytest.raises(ArgumentError, match="collapse='op': it is one of 'line', 'module'"):
        collapsed(Profile(synthetic(seed, 10)), "op", None, 0, None)


def test_instructions_are_in_the_innermost_span(seed):
    run = synthetic(seed, 20)
    run.marks = [["step", 0, 0, 0, 0, 10], ["inner", 0, 0, 0, 2, 4], ["empty", 0, 0, 0, 5, 5]]
    step = dag_groups._steps(run)
    outer, inner = step[0], step[2]
    assert step[:10].tolist() == [outer, outer, inner, inner, *[outer] * 6]
    assert inner > outer >= 0
    assert (step[10:] == -1).all()
