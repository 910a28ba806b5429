"""SAGA's own schedulers as policies, where `anrg-saga` is installed (Python 3.12)."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm import lab
from flowvm.errors import ConfigError

pytest.importorskip("saga", reason="no SAGA here: pip install anrg-saga (Python 3.12)")

PAIRS = (("HeftScheduler", "heft"), ("CpopScheduler", "cpop"), ("MinMinScheduler", "minmin"))


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_a_heuristic_of_saga_is_a_policy(theirs, ours):
    dag = lab.synthetic("layered", n=40, seed=1, cost="lognormal", ccr=0.5)
    machine = lab.Machine(speeds=[1, 2, 0.5, 1.5], link=1.0)
    schedule = lab.simulate(dag, machine, lab.saga(theirs))
    assert schedule.verify().tasks == 40
    assert lab.simulate(dag, machine, ours).makespan == pytest.approx(schedule.makespan, rel=1e-6)


def test_a_schedule_of_saga_runs_here():
    x = flow.arange(16.0).reshape(4, 4) * 0.1

    def step():
        return (x @ x).tanh() + (x + 1.0) @ x

    with flow.profiler.profile() as p:
        expected = step().numpy().copy()
    side, planned = flow.Stream("saga"), lab.saga("HeftScheduler")
    with flow.vm.schedule(planned, streams=[None, side], like=p) as scheduled:
        value = step()
        flow.vm.sync()
    assert np.array_equal(value.numpy(), expected)
    assert len(scheduled.order) == len(lab.Dag.of(p))


def test_a_heuristic_that_saga_has_not_is_an_error():
    with pytest.raises(ConfigError, match="no 'BestScheduler'"):
        lab.saga("BestScheduler")
