"""Use and lack of cores, and the best time that a run could have had: of runs made by hand, whose
shares are counted here.
"""

from __future__ import annotations

import numpy as np
import pytest

from flowvm.profiler import Profile
from flowvm.profiler.analysis.bounds import bounded, covered, crowded, work
from flowvm.profiler.analysis.contention import lack, takers
from flowvm.profiler.run.columns import CAUSES
from flowvm.vm.machine.words import KIND, OPERAND
from flowvm.vm.watch.cores import Reading, between
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
    run.wait_cause, run.wait_times = run.wait_cause[:0], run.wait_times[:0]
    assert takers(run)["gil"] == pytest.approx(20 / 140)


def test_streams_that_are_used_unevenly_are_named():
    run = ran_alone()
    found = crowded(run, Profile(run).lanes, 10 * MS)
    assert found[:6] == ("cpu", "side", 1 - 1 / 80, "matmul", "a.py:1", 8)
    assert found.best == 40 * MS
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
    said = next(text for text in Profile(run).summary().advice if "read it less" in text)
    assert (
        said
        == "a.py:2 waited for a value 4x on the path: read it less often, at best 40.00 → 32.00 ms"
    )


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
    found = between(first, last, {1})
    assert found["threads"] == [
        ["M", "issuing", MS, 2], ["flowvm-w:cpu", "own", 2 * MS, 2],
        ["flowvm-h:cpu.0", "own", 6 * MS, 0], ["", "compiling", 3 * MS, 0],
    ]  # fmt: skip
    assert found["wall"] == 20 * MS
    assert found["others"] == min(30 * MS - 9 * MS - 3 * MS, found["cores"] * 20 * MS - 9 * MS)


def test_time_in_any_of_some_spans():
    spans = np.array([[10, 20], [0, 4], [15, 18], [19, 30], [40, 40]])
    assert covered(spans) == 4 + 20
    assert covered(spans[:0]) == 0
