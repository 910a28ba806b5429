"""Simulated runs as the profiler's columns: times, lanes, and what each instruction reads."""

import numpy as np
import pytest

from flowvm import lab
from flowvm.lab.records import run_of
from flowvm.profiler import Profile
from flowvm.vm.machine.words import OPERAND
from tests.profiler.synthetic import synthetic


def diamond():
    return lab.Dag([1.0, 2.0, 3.0, 1.0], [(0, 1, 8), (0, 2, 16), (1, 3, 0), (2, 3, 4)],
                   op=["a", "b", "c", "d"])  # fmt: skip


def test_instructions_have_the_schedules_times():
    dag = diamond()
    schedule = lab.simulate(dag, 2, "fifo")
    run = run_of(dag, 2, schedule.start, schedule.end, schedule.worker)
    order = dag.order
    np.testing.assert_allclose(run.time("started") - 1, schedule.start[order] * 1e9, atol=1)
    np.testing.assert_allclose(run.time("ended") - 1, schedule.end[order] * 1e9, atol=1)
    assert run.streams == ["worker 0", "worker 1"]
    assert run.stream.tolist() == schedule.worker[order].tolist()
    assert (run.begun, run.ended) == (0, int(run.time("ended").max()))
    assert run.info["machine"] == "simulated"
    ready = run.time("ready")
    for a, b in zip(run.source.tolist(), run.target.tolist(), strict=True):
        assert run.time("ended")[a] <= ready[b]
    assert (ready <= run.time("started")).all()


def test_instructions_read_what_they_wait_for():
    dag = diamond()
    schedule = lab.simulate(dag, 1, "fifo")
    run = run_of(dag, 1, schedule.start, schedule.end, schedule.worker)
    names = [run.names[k] for k in run.op.tolist()]
    edges = {(names[a], names[b]) for a, b in zip(run.source, run.target, strict=True)}
    assert edges == {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")}
    for i in range(len(run)):
        own = slice(run.offsets[i], run.offsets[i + 1])
        assert run.access[own][0] == OPERAND.MUT | OPERAND.ALLOCATE
        assert run.tensor[own][0] == i
        sources = run.source[run.target == i].tolist()
        assert sorted(run.tensor[own][1:].tolist()) == sorted(sources)
        assert run.nbytes[i] == run.size[own].sum()
    for k, operand in enumerate(run.operand.tolist()):
        assert run.tensor[operand] == run.source[k]
    assert Profile(run).observed  # it is a run as any other


def test_recorded_instructions_keep_what_they_had(seed):
    recorded = synthetic(seed, 60)
    dag = lab.Dag.of(recorded)
    schedule = lab.simulate(dag, 3, "fifo")
    run = run_of(dag, 3, schedule.start, schedule.end, schedule.worker)
    assert len(run) == len(dag)
    assert run.seq.tolist() == recorded.seq[dag.rows].tolist()
    assert [run.names[k] for k in run.op] == [recorded.names[k] for k in recorded.op[dag.rows]]
    assert (np.diff(run.offsets) == np.diff(recorded.offsets)[dag.rows]).all()
    assert len(run.tensor) == run.offsets[-1]
    assert (run.time("ended") >= run.time("started")).all()


@pytest.mark.parametrize("count", [0, 1])
def test_few_tasks(count):
    dag = lab.Dag([1.0] * count)
    schedule = lab.simulate(dag, 2, "fifo")
    run = run_of(dag, 2, schedule.start, schedule.end, schedule.worker)
    assert len(run) == count
    assert run.ended == (10**9 + 1) * count
