"""Use and lack of cores, and the best time that a run could have had: of runs made by hand, whose
shares are counted here.
"""

from __future__ import annotations

import numpy as np
import pytest

from flowvm.profiler import Profile
from flowvm.profiler.analysis.bounds import bounded, covered, crowded, on_free_cores, work
from flowvm.profiler.analysis.contention import blocked, lack, own_takers, takers, unserved
from flowvm.profiler.run.columns import CAUSES, SAMPLED
from flowvm.profiler.run.loss_places import woken
from flowvm.profiler.views.summary.verdict import FEW
from flowvm.vm.machine.words import KIND, OPERAND
from flowvm.vm.watch.cores import Reading, between
from flowvm.vm.watch.flight import HostWait
from tests.profiler.synthetic import of_rows

MS = 1_000_000


def ran_alone(streams=("cpu", "side")):
    """Eight products of 10 ms one behind the other on the first stream; the second has one of 1."""
    rows = [(0, KIND.OP_CALL, 0, 0, 10 * MS * k, 10 * MS * (k + 1)) for k in range(8)]
    rows.append((1, KIND.OP_CALL, 1, 0, 0, MS))
    operands = [[(k + 1, OPERAND.MUT), (0, OPERAND.CONST)] for k in range(9)]
    run = of_rows(rows, operands)
    run.streams = [*streams]
    run.names = ["matmul", "copy"]
    run.line[:] = 0
    return run


def load(others, *threads, cores=2):
    return {
        "cores": cores,
        "wall": 80 * MS,
        "others": others,
        "threads": [list(t) for t in threads],
    }


def test_what_ran_without_a_core_is_told_from_what_ran():
    """A worker was ready for 20 of 80 ms: three quarters of them another program had its core, a
    quarter a thread of Python, which is named.
    """
    run = ran_alone()
    run.info["load"] = load(
        60 * MS, ["flowvm-w:cpu", "own", 60 * MS, 20 * MS], ["T", "python", 20 * MS, 0]
    )
    run.info["ran"] = [[1, -1, "T", 20 * MS]]
    p = Profile(run)
    assert takers(run, "flowvm-w:cpu") == {"core": 0.75, "own": 0.0, "gil": 0.25}
    assert lack(run, "cpu", 80 * MS) == 0.25
    shares = {part.cause: round(part.share, 4) for part in p.summary().parts if part.share}
    assert shares == {"run": 0.75, "gil": 0.0625, "core": 0.1875}
    assert [part.cause for part in p.summary().parts if part.share] == ["run", "gil", "core"]
    assert (
        next(part for part in p.summary().parts if part.cause == "gil").where == "a.py:2 (thread T)"
    )
    text = p.summary().screen(100).plain()
    assert "machine    other processes had 0.8 of its cores" in text
    assert "80.00 → 65.00 ms" in p.summary().advice[-2]  # without them
    # of a thread that issues and had no core it is the same
    run.waits.cause, run.waits.times = run.waits.cause[:0], run.waits.times[:0]
    assert takers(run)["gil"] == pytest.approx(20 / 140)


def tiny(samples):
    """A thousand ops of 100 ns that Python issues in 600 us; for another 300 it has no core.  All
    run behind that, each 300 ns after the one in front.
    """
    us = 1000
    rows = [
        (0, KIND.OP_CALL, 0, 0, 900 * us + 400 * k + 300, 900 * us + 400 * k + 400)
        for k in range(1000)
    ]
    run = of_rows(
        rows, [[(k, OPERAND.MUT)] for k in range(1000)],
        [(CAUSES.index("core"), 600 * us, 900 * us)],
    )  # fmt: skip
    run.times[:, 0] = 900 * us
    run.names, run.streams[0], run.line[:] = ["add"], "cpu", 0
    times = np.linspace(0, 600 * us, samples + 1).astype(np.int64)
    run.samples.times = np.column_stack((times[:-1], times[1:]))
    run.samples.state = np.full(samples, SAMPLED.index("flowvm"), np.int8)
    run.samples.thread = np.zeros(samples, np.int64)
    run.samples.line = run.samples.spot = run.samples.stack = np.zeros(samples, np.int32)
    run.spots, run.sample_stacks = [["x + 1", 0, 5, "f"]], [[0, 0]]
    run.info |= {"level": 2, "load": load(0, ["M", "issuing", 600 * us, 300 * us])}
    run.info["load"]["threads"] += [
        ["flowvm-sched", "own", 600 * us, 0], ["flowvm-w:cpu", "own", 300 * us, 0],
        ["flowvm-sampler", "own", 0, 0],
    ]  # fmt: skip
    run.info["load"]["wall"] = run.wall
    return run


def test_the_cost_of_ops_one_by_one_is_of_one_cause_and_advice():
    """Python has no core because the scheduler has it: that is of the ops that it starts.  A graph
    does away with what issuing and what starting them takes, so one advice has both.
    """
    run = tiny(6)
    assert own_takers(run) == {"sched": 2 / 3, "run": 1 / 3, "own": 0.0}
    shares = {part.cause: round(part.share * 13, 2) for part in Profile(run).summary().parts}
    assert {cause: share for cause, share in shares.items() if share} == {
        "flowvm": 6, "sched": 3 + 2, "run": 1 + 1
    }  # fmt: skip
    said = [text for text in Profile(run).summary().advice if "nn.Graph" in text]
    assert said == [
        "issuing and starting ops one by one is 85 % of the path: flow.compile or nn.Graph replays "
        "them without Python, at best 1.30 → 0.200 ms"
    ]


def test_a_wait_for_the_vm_is_of_all_that_wait():
    """The first instruction waits for 900 of 1,300 us, and behind it a thousand of another line."""
    run = tiny(6)
    run.waits.cause, run.waits.times = run.waits.cause[:0], run.waits.times[:0]
    run.waits.thread = run.waits.thread[:0]
    run.times[:, 0] = 1000
    run.line[0] = 1
    part = Profile(run).summary().parts[0]
    assert (part.cause, part.line) == ("sched", "a.py:1")
    assert part.time == pytest.approx((900 + 300) * 1000 * 999 / 1000, rel=0.01)


def test_a_few_samples_say_nothing():
    """Two samples stand for all of the time, whatever lay between them: a graph may still help."""
    summary = Profile(tiny(2)).summary()
    assert [part.cause for part in summary.parts[:2]] == ["host", "sched"]
    said = next(text for text in summary.advice if "nn.Graph" in text)
    assert said.startswith("Python is 46 % of the path: the run was too short for samples")
    assert said.endswith("do away with: at best 1.30 → 0.200 ms")
    assert Profile(tiny(FEW)).summary().parts[0].cause == "flowvm"


def test_a_thread_that_is_ready_does_not_sleep():
    """Samples off its core make 60 of 80, and it was blocked for 20 alone: 40 had no core."""
    run = of_rows([(0, KIND.OP_CALL, 0, 0, 0, MS)], [[(1, OPERAND.MUT)]], (), 80 * MS)
    times = np.arange(0, 81 * MS, 10 * MS)
    run.samples.times = np.column_stack((times[:-1], times[1:]))
    run.samples.state = np.array([SAMPLED.index("asleep")] * 6 + [SAMPLED.index("python")] * 2)
    run.samples.thread = np.zeros(8, np.int64)
    run.samples.line = run.samples.spot = run.samples.stack = np.zeros(8, np.int32)
    run.spots, run.sample_stacks = [["work()", 0, 6, "f"]], [[0, 0]]
    assert blocked(run) is None
    assert milliseconds(run) == {"asleep": 60, "python": 20}
    run.info["load"] = load(80 * MS, ["M", "issuing", 20 * MS, 40 * MS])
    assert blocked(run) == 20 * MS
    assert milliseconds(run) == {"asleep": 20, "python": 20, "core": 40}
    run.info["load"]["threads"][0][3] = 0  # never ready without one: it slept
    assert milliseconds(run) == {"asleep": 60, "python": 20}


def test_a_thread_that_wakes_late_has_no_core():
    """A wait of 10 had no core for 7; three lay behind the value."""
    wait = HostWait("sync", 100_000, 1_100_000, 1, core=700_000)
    over = np.array([50_000, 800_000, 1_200_000])
    assert woken([wait], over) == [
        wait._replace(ended=800_001, core=0),
        wait._replace(cause="core", begun=800_001, core=0),
    ]
    short = wait._replace(core=100_000)
    assert [one.begun for one in woken([short], over)] == [100_000, 1_000_000]
    for other in (
        wait._replace(core=0), wait._replace(cause="memory"), wait._replace(ended=820_000),
        wait._replace(begun=900_000),
    ):  # fmt: skip
        assert woken([other], over) == [other]
    assert woken([wait], over[:0]) == [wait]


def test_who_reads_less_often_does_not_wake_late():
    run = drained()
    late = np.array([[10 * MS * k + 9 * MS - MS // 2, 10 * MS * k + 9 * MS] for k in range(4)])
    run.waits.times = np.concatenate((run.waits.times, late))
    run.waits.times[:4, 1] = late[:, 0]
    run.waits.cause = np.append(run.waits.cause, [CAUSES.index("core")] * 4).astype(np.int8)
    run.waits.thread = np.zeros(8, np.int64)
    assert milliseconds(run) == {"sync": 4 * 0.5 + 3 * (2 + 3), "run": 16, "sched": 3,
                                 "host": 1, "core": 2}  # fmt: skip
    sync = Profile(run).summary().parts[0]
    assert sync.gross * run.wall == pytest.approx((4 * (0.5 + 0.5) + 3 * (2 + 3)) * MS)


def taking_turns(side=1):
    """Eight products of 10 ms that follow each other, on streams in turn: there is memory for one
    at a time.
    """
    rows = [(0, KIND.OP_CALL, side * (k % 2), 0, 10 * MS * k, 10 * MS * (k + 1)) for k in range(8)]
    run = of_rows(rows, [[(k, OPERAND.MUT | OPERAND.ALLOCATE)] for k in range(8)])
    run.times[:, 1] = run.time("started")
    run.times[:, 6] = run.time("ended")
    run.names, run.streams[:2], run.line[:] = ["matmul"], ["cpu", "side"], 0
    run.info["run_ahead_bytes"] = 100  # for one of 64
    return run


@pytest.mark.parametrize(
    ("cores", "others", "memory"),
    [
        (2, 0, 40),  # each stream stood still for half of the time, and both may run at once
        (2, 80 * MS, 0),  # but another program has a core
        (2, 40 * MS, 80 - 80 / 1.5),  # or half of it
        (1, 0, 0),
    ],
)
def test_streams_that_take_turns_for_memory_wait_for_it(cores, others, memory):
    """No data leads from one to the next, and without the limit they run beside each other."""
    run = taking_turns()
    threads = [["flowvm-w:cpu", "own", 40 * MS, 0], ["flowvm-w:side", "own", 40 * MS, 0]]
    run.info["load"] = load(others, *threads, cores=cores)
    parts = {part.cause: part for part in Profile(run).summary().parts if part.share > 1e-6}
    shares = {cause: part.share * 80 for cause, part in parts.items()}
    assert shares == pytest.approx(
        {"run": 80 - memory} | ({"memory": memory} if memory else {}), abs=1e-3
    )
    said = [text for text in Profile(run).summary().advice if "for memory in flight" in text]
    assert bool(said) == bool(memory)
    if memory:
        assert parts["memory"].line == "a.py:1"
        assert "waited 7x" in said[0]
        assert f"80.00 → {80 - memory:.2f} ms" in said[0]


def test_a_stream_that_waits_for_its_own_memory_runs():
    """One behind the other on one stream: more memory brings nothing."""
    summary = Profile(taking_turns(side=0)).summary()
    assert [part.cause for part in summary.parts if part.share] == ["run"]
    assert not any("for memory in flight" in text for text in summary.advice)


def test_streams_that_are_used_unevenly_are_named():
    run = ran_alone()
    crowd = crowded(run, Profile(run).lanes, 10 * MS)
    assert crowd[:6] == ("cpu", "side", 1 - 1 / 80, "matmul", "a.py:1", 8)
    assert crowd.best == 40 * MS
    run.info["load"] = load(0, ["flowvm-w:cpu", "own", 80 * MS, 0])
    assert work(run) == 81 * MS
    assert bounded(run, 10 * MS) == 81 * MS // 2
    assert "80.00 → 40.50 ms" in next(a for a in Profile(run).summary().advice if "side" in a)
    run.info["load"]["cores"] = 1
    summary = Profile(run).summary()
    assert summary.streams.endswith("which used all cores: moving them brings nothing")
    assert not any("side" in text for text in summary.advice)


def test_products_that_wait_for_each_other_stay_where_they_are():
    run = ran_alone()
    chain = of_rows(
        [(0, KIND.OP_CALL, 0, 0, 10 * MS * k, 10 * MS * (k + 1)) for k in range(8)]
        + [(1, KIND.OP_CALL, 1, 0, 0, MS)],
        [[(k + 1, OPERAND.MUT), (k, OPERAND.CONST)] for k in range(8)] + [[(20, OPERAND.MUT)]],
    )
    chain.streams, chain.names, chain.line = run.streams, run.names, run.line
    assert crowded(chain, Profile(chain).lanes, 80 * MS) is None


def test_a_value_that_is_read_often_is_worth_what_streams_stood_still():
    rows, operands, waits = [], [], []
    for k in range(4):
        at = 10 * MS * k
        rows += [
            (0, KIND.OP_CALL, 0, at, at, at + 8 * MS),
            (1, KIND.TOUCH, 0, at, at + 8 * MS, at + 8 * MS),
        ]
        operands += [[(k, OPERAND.MUT)], [(k, OPERAND.CONST)]]
        waits.append((CAUSES.index("sync"), at, at + 9 * MS))
    run = of_rows(rows, operands, waits, 40 * MS)
    run.names, run.line[:] = ["matmul", "wait"], 1
    message = next(text for text in Profile(run).summary().advice if "read it less" in text)
    assert (
        message
        == "a.py:2 waited for a value 4x on the path: read it less often, at best 40.00 → 32.00 ms"
    )


def drained():
    """Four products that are read at once: of 10 ms each one Python issues for 1, then 3 pass until
    the product starts, 4 until it ends, 1 until Python goes on.
    """
    rows, operands, waits = [], [], []
    for k in range(4):
        at = 10 * MS * k
        rows += [
            (0, KIND.OP_CALL, 0, at + MS, at + 4 * MS, at + 8 * MS),
            (1, KIND.TOUCH, 0, at + MS, at + 8 * MS, at + 8 * MS),
        ]
        operands += [[(k, OPERAND.MUT)], [(k, OPERAND.CONST)]]
        waits.append((CAUSES.index("sync"), at + MS, at + 9 * MS))
    run = of_rows(rows, operands, waits, 39 * MS)
    run.names, run.line[:], run.streams[0] = ["matmul", "wait"], 1, "cpu"
    return run


def milliseconds(run):
    return {
        part.cause: round(part.share * run.wall / MS, 3)
        for part in Profile(run).summary().parts
        if part.share
    }


def test_what_follows_a_read_until_something_runs_is_of_the_read():
    """Only in front of the first read is issuing the host's, and starting the scheduler's."""
    run = drained()
    assert milliseconds(run) == {"sync": 4 + 3 * (2 + 3), "run": 16, "sched": 3, "host": 1}
    part = Profile(run).summary().parts[0]
    assert (part.cause, part.line, part.gross) == ("sync", "a.py:2", pytest.approx(19 / 39))


def test_a_scheduler_without_a_core_is_not_the_scheduler():
    """Half of the time until products started is the lack of a core, in every cause that had a part
    of that time: another program has the scheduler's core for half of the run.
    """
    run = drained()
    run.info["load"] = load(39 * MS, ["flowvm-sched", "own", 0, 39 * MS // 2])
    run.info["load"]["wall"] = run.wall
    assert unserved(run, "cpu", 1.0) == 0.5
    assert unserved(run, "cpu", 0.0) == 0.0
    half = {"sync": 4 + 3 * (2 + 1.5), "run": 16, "core": 6, "sched": 1.5, "host": 1}
    assert milliseconds(run) == half
    assert Profile(run).summary().parts[-1].cause == "core"
    # who reads less often needs none of these cores
    sync = next(part for part in Profile(run).summary().parts if part.cause == "sync")
    assert sync.gross == pytest.approx(19 / 39)
    # nor does the worker's lack leave more than there was
    run.info["load"]["threads"].append(["flowvm-w:cpu", "own", 0, 100 * MS])
    assert unserved(run, "cpu", 28 * MS) == 1.0


def test_streams_take_their_processor_time_on_the_cores_that_others_leave():
    run = drained()
    assert on_free_cores(run) == 0  # not known
    run.info["load"] = load(39 * MS, ["flowvm-w:cpu", "own", 16 * MS, 0], ["M", "issuing", MS, 0])
    run.info["load"]["wall"] = run.wall
    assert on_free_cores(run) == 16 * MS
    run.info["load"]["others"] = 39 * MS * 3 // 2
    assert on_free_cores(run) == 32 * MS
    assert not any("read it less" in text for text in Profile(run).summary().advice[:1])
    run.info["load"]["others"] = 2 * 39 * MS
    assert on_free_cores(run) == run.wall


def test_two_readings():
    first = Reading(
        0, {1: ("M", 0, 0), 2: ("flowvm-w:cpu", 5, 5), 3: ("flowvm-h:cpu.0", 9, 9)}, 50, {}, 0
    )
    last = Reading(
        20 * MS,
        {1: ("M", MS, 2), 2: ("flowvm-w:cpu", 2 * MS + 5, 7)},
        9 * MS + 50,
        {77: 3 * MS},
        30 * MS,
    )
    record = between(first, last, {1})
    assert record["threads"] == [
        ["M", "issuing", MS, 2], ["flowvm-w:cpu", "own", 2 * MS, 2],
        ["flowvm-h:cpu.0", "own", 6 * MS, 0], ["", "compiling", 3 * MS, 0],
    ]  # fmt: skip
    assert record["wall"] == 20 * MS
    assert record["others"] == min(30 * MS - 9 * MS - 3 * MS, record["cores"] * 20 * MS - 9 * MS)


def test_time_in_any_of_some_spans():
    spans = np.array([[10, 20], [0, 4], [15, 18], [19, 30], [40, 40]])
    assert covered(spans) == 4 + 20
    assert covered(spans[:0]) == 0
