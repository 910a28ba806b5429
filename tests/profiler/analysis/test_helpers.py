"""The threads that ran an instruction: the shares of helpers, from the ring to the screens."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.profiler import Profile, profile
from flowvm.profiler.analysis.shares import Helped, helper_lanes, helpers_of, threads_of
from flowvm.profiler.export.chrome import events
from flowvm.profiler.export.trace_rules import problems
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.stamps import stamp_share
from flowvm.vm.machine.words import ARRAY, HLP, KIND, OPERAND, SHARE, STR
from tests.profiler.synthetic import of_rows
from tests.vm.kernels import meet, tensor, update
from tests.vm.live import until


@pytest.fixture(autouse=True)
def _team():
    """Two helpers, whatever the machine has."""
    with flow.config(workers=3):
        yield


def met(level):
    """A profile of a kernel whose three chunks wait for each other, and of one of one chunk."""
    x, three = tensor([0]), tensor([3])
    with profile(level) as p:
        meet(x, three, 0)
        update(three, x, 0)
        assert x.item() == 3
    return p


@pytest.mark.parametrize("level", [2, 3])
def test_each_thread_that_took_part_is_there(level):
    p = met(level)
    i, j = (list(p.run.op).index(p.run.names.index(n)) for n in ("meet", "update"))
    assert (threads_of(p.run, i), threads_of(p.run, j)) == (3, 1)
    helpers = helpers_of(p.run, i)
    assert [(h.name, h.chunks) for h in helpers] == [("cpu.0", 1), ("cpu.1", 1)]
    ran = int(p.run.time("ended")[i] - p.run.time("started")[i])
    assert all(0 < h.run <= ran for h in helpers)
    for _, lane in helper_lanes(p.run, 0):
        assert (lane[:, 0] >= p.run.time("started")[i]).all()
        assert (lane[:, 1] <= p.run.time("ended")[i]).all()
        assert lane[:, 2].tolist() == [i]


def test_nothing_is_noted_at_level_1():
    assert len(met(1).run.shares.of) == 0


def test_the_screens_say_so(tmp_path):
    p = met(2)
    seq = int(p.run.seq[list(p.run.op).index(p.run.names.index("meet"))])
    assert p.why(seq).threads == 3
    assert "on 3 threads" in str(p.why(seq))
    assert "3 threads beside the worker: cpu.0 " in str(p.instr[seq])
    assert [lane.name for lane in p.timeline().lanes][3:] == ["cpu", "cpu.0", "cpu.1"]
    rows = events(p)
    assert not problems({"traceEvents": rows})
    tracks = {e["args"]["name"] for e in rows if e.get("name") == "thread_name"}
    assert {"cpu", "cpu.0", "cpu.1"} <= tracks
    p.save(tmp_path / "run.flowtrace")
    again = flow.profiler.load(tmp_path / "run.flowtrace")
    assert again.instr[seq].helpers == p.instr[seq].helpers
    part = p.run.part(1, len(p.run), p.run.begun, p.run.ended)
    assert len(part.shares.of) == (2 if p.run.seq[0] != seq else 0)


def test_a_task_of_a_replay_knows_its_helpers():
    graph = flow.compile(lambda x: (x @ x).tanh())
    x = flow.randn(512, 512)
    graph(x).numpy()
    calls = []

    def helped():  # a helper may come too late for the few chunks there are
        with profile() as p:
            graph(x).numpy()
        calls.append(p)
        return len(p.run.shares.of)

    until(helped, "a helper has taken part")
    p = calls[-1]
    launch = list(p.run.kind).index(KIND.LAUNCH)
    assert set(p.run.shares.of) == {launch}
    assert set(p.run.shares.task) <= {0, 1}
    for k in range(len(p.run.shares.of)):
        task = list(p.run.tasks.number).index(p.run.shares.task[k])
        begun, ended = p.run.tasks.times[task]
        assert begun <= p.run.shares.times[k, 0] <= p.run.shares.times[k, 1] <= ended


def test_a_run_of_chunks_makes_a_share_longer_and_another_job_makes_another():
    m = np.zeros(ARRAY.WORDS, np.int64)
    m[STR.AT + STR.LAUNCH], m[STR.AT + STR.TASK] = 5, -1
    at = HLP.AT + 3 * HLP.WORDS
    stamp_share(m, 0, 3, 70, 100, 2)
    first = m[at + HLP.ROWS : at + HLP.ROWS + SHARE.WORDS].copy()
    stamp_share(m, 0, 3, 70, 200, 1)
    row = m[at + HLP.ROWS : at + HLP.ROWS + SHARE.WORDS]
    assert row[:3].tolist() == [5, -1, 100]
    assert row[SHARE.ENDED] >= first[SHARE.ENDED]
    assert (row[SHARE.CHUNKS], row[SHARE.MARK], m[at]) == (3, 1, 1)
    m[STR.AT + STR.LAUNCH] = 6
    stamp_share(m, 0, 3, 71, 300, 4)
    assert m[at] == 2
    second = at + HLP.ROWS + SHARE.WORDS
    assert m[second : second + 3].tolist() == [6, -1, 300]


def test_shares_that_were_overwritten_are_left_out():
    """The ring goes round: the last SHARES are there, each whole."""
    words = engine.words
    at = HLP.AT + (STR.MAX_TEAM - 1) * HLP.WORDS  # a helper that nobody has
    before = words[at : at + HLP.WORDS].tolist()
    m = engine.m
    try:
        for k in range(HLP.ROWS_LENGTH + 10):
            stamp_share(m, 0, STR.MAX_TEAM - 1, k + 1, 10, k)
        shares = engine.flight._shares(0)
        mine = shares[shares[:, 3] == STR.MAX_TEAM - 1]
        assert mine[:, 6].tolist() == list(range(10, HLP.ROWS_LENGTH + 10))
        m[at + HLP.ROWS + SHARE.MARK] = 0  # as if it were being written
        assert len(engine.flight._shares(0)) == len(shares) - 1
    finally:
        m[at : at + HLP.WORDS] = before


def test_shares_of_several_phases_are_summed():
    run = of_rows([(0, KIND.OP_CALL, 0, 0, 0, 100)], [[(1, OPERAND.MUT)]])
    run.shares.of = np.zeros(3, np.int32)
    run.shares.task = np.full(3, -1, np.int32)
    run.shares.stream = np.zeros(3, np.int16)
    run.shares.helper = np.array([1, 0, 1], np.int16)
    run.shares.times = np.array([[60, 90], [10, 20], [10, 40]])
    run.shares.chunks = np.array([2, 1, 4])
    assert helpers_of(run, 0) == (Helped("s0.0", 10, 1), Helped("s0.1", 60, 6))
    assert [lane[:, 0].tolist() for _, lane in helper_lanes(run, 0)] == [[10], [10, 60]]
    assert Profile(run).instr[100].helpers == helpers_of(run, 0)
