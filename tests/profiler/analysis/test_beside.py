"""The floor of launches that were in flight together, against a walk over their tasks."""

from __future__ import annotations

import random

import numpy as np
import pytest

import flowvm as flow
from flowvm.profiler.analysis.paths import floor, what_if
from flowvm.vm.machine.words import KIND, OPERAND
from tests.profiler.synthetic import of_rows

STREAMS = 3


def pipeline(seed, count, recorded=True):
    """Return launches of one Plan whose task k runs on stream k.

    A task runs after the task before it, after the stream's last task, and after tasks of the
    launch before that use its tensors.

    Returns the run, and for each launch its tasks as (started, ended, tensors).
    """
    rng = random.Random(seed)
    touched = [rng.sample(range(4), rng.randrange(3)) for _ in range(STREAMS)]
    written = {t for t in range(4) if rng.random() < 0.7}
    free, finished, tasks = [0] * STREAMS, {}, []
    for n in range(count):
        now, own = n * rng.choice((0, 2, 30)), []
        for k in range(STREAMS):
            waits = [finished[t] for t in touched[k] if t in finished and t in written]
            begun = max(now, free[k], *waits, 0) + rng.choice((0, 0, 5))
            now = free[k] = begun + rng.choice((1, 10, 40))
            own.append((begun, now, touched[k]))
        for _, over, tensors in own:
            for t in tensors:
                finished[t] = max(over, finished.get(t, 0))
        tasks.append(own)
    used = sorted({t for one in touched for t in one})
    rows = [(0, KIND.LAUNCH, 0, own[0][0], own[0][0], own[-1][1]) for own in tasks]
    operands = [[(t, OPERAND.MUT if t in written else OPERAND.CONST) for t in used] for _ in tasks]
    run = of_rows(rows, operands)
    known = {int(t): int(n) for o, n in zip(operands, [0], strict=False) for t, n in
             zip([t for t, _ in o], run.tensor[: len(o)], strict=True)}  # fmt: skip
    uses = []
    for i, own in enumerate(tasks):
        for t in used:
            when = [(a, b) for a, b, tensors in own if t in tensors]
            times = (min(a for a, _ in when), max(b for _, b in when)) if recorded else (0, 0)
            uses.append((i, known[t], t in written, *times))
    table = np.array(uses, np.int64).reshape(-1, 5)
    run.uses.of, run.uses.tensor = table[:, 0].astype(np.int32), table[:, 1].astype(np.int32)
    run.uses.writes, run.uses.times = table[:, 2].astype(bool), table[:, 3:]
    if recorded:
        flat = [(i, k, a, b) for i, own in enumerate(tasks) for k, (a, b, _) in enumerate(own)]
        run.tasks.launch = np.array([i for i, *_ in flat], np.int32)
        run.tasks.number = np.array([k for _, k, *_ in flat], np.int32)
        run.tasks.times = np.array([x[2:] for x in flat], np.int64).reshape(-1, 2)
    return run, tasks, written


def by_tasks(tasks, written):
    """Return the longest path of launches.

    A task comes after the one before it in its launch, and after the earlier launch's work on a
    tensor that it uses first.
    """
    last, longest = {}, 0
    for own in tasks:
        now, visited, ends = 0, set(), {}
        for begun, over, tensors in own:
            fresh = [t for t in tensors if t not in visited]
            now = max([now, *(last[t] for t in fresh if t in last and t in written)])
            visited.update(tensors)
            now += over - begun
            ends.update(dict.fromkeys(tensors, now))
        last.update(ends)
        longest = max(longest, now)
    return longest


@pytest.mark.parametrize("k", range(40))
def test_the_floor_is_the_longest_path_of_tasks(seed, k):
    run, tasks, written = pipeline(seed * 100 + k, 6)
    if len(run.uses.of):
        assert floor(run).length == by_tasks(tasks, written)
    assert floor(run).length <= run.wall
    assert what_if(run, lambda name: True) == 0
    assert what_if(run, lambda name: True, 2.0) == 2 * floor(run).length


@pytest.mark.parametrize("k", range(20))
def test_without_tasks_it_is_no_longer_than_the_run(seed, k):
    run, _, _ = pipeline(seed * 100 + k, 6, recorded=False)
    assert 0 < floor(run).length <= run.wall


def test_launches_one_after_another_and_side_by_side():
    """Two launches of two tasks of 10 share a tensor of the first task, or of both."""
    early, both = (
        of_rows(
            [(0, KIND.LAUNCH, 0, 0, 0, 20), (0, KIND.LAUNCH, 0, at, at, at + 20)],
            [[(0, OPERAND.MUT)]] * 2,
        )
        for at in (10, 20)
    )
    for run, over, at in ((early, 10, 10), (both, 20, 20)):
        run.uses.of, run.uses.tensor = np.array([0, 1], np.int32), np.zeros(2, np.int32)
        run.uses.writes = np.ones(2, bool)
        run.uses.times = np.array([(1, over), (at, at + over)], np.int64)
        run.tasks.launch = np.array([0, 0, 1, 1], np.int32)
        starts = (0, 10, at, at + 10)
        run.tasks.times = np.array([(a, a + 10) for a in starts], np.int64)
    assert floor(early).length == 30  # not 40: the second's first task needs the first's first
    assert floor(both).length == 40
    assert floor(early).path == [0, 1]


def test_of_a_graph_on_several_streams():
    """Real launches are in flight together: the floor is no longer than the run."""
    stages = [flow.Stream(f"floor {k}") for k in range(3)]

    class Staged(flow.nn.Graph):
        def build(self, x):
            for stream in stages:
                with flow.stream(stream):
                    x = (x @ x).tanh()
            return x

    graph = Staged()
    x = flow.rand(96, 96)
    graph(x).numpy()
    with flow.profiler.profile() as p:
        results = [graph(x) for _ in range(20)]
        results[-1].numpy()
    launches = int((p.run.kind == KIND.LAUNCH).sum())
    assert launches == 20
    assert set(p.run.uses.of.tolist()) == set(np.flatnonzero(p.run.kind == KIND.LAUNCH).tolist())
    assert 0 < p.floor.length <= p.run.wall
