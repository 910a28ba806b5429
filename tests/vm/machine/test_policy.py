"""The machine's policy: who takes the work of a pool, and who runs its releases."""

from __future__ import annotations

import pytest

from flowvm.vm.machine import machine
from flowvm.vm.machine.words import INS, KIND, OPERAND, POL, STR
from tests.vm.bench import Bench, Instruction, Operand

FIRST, SECOND = 0, 2  # streams of the pool


@pytest.fixture
def bench():
    """Two streams share their work; their workers take it in passes of their own."""
    b = Bench()
    b.m[POL.KIND], b.m[POL.DEPTH], b.m[POL.PULLED] = POL.ARRIVAL, 1, 1
    b.m[POL.POOL], b.m[POL.PASSER] = 1 << FIRST | 1 << SECOND, -1
    return b


def issue(bench, *kinds):
    for k, kind in enumerate(kinds):
        operands = (Operand(k + 1, OPERAND.MUT),)
        bench.issue(Instruction(kind, FIRST, operands))
        assert machine.receive(bench.m)


def streams_of_pass(bench, passer):
    """Let a stream's worker, or the scheduler's thread, make a pass; streams in order."""
    bench.m[POL.PASSER] = passer
    went = []
    while (slot := machine.next_ready(bench.m)) >= 0:
        machine.dispatch(bench.m, slot)
        went.append(bench.ins(slot, INS.STREAM))
    return went


def test_a_worker_takes_for_itself_alone(bench):
    issue(bench, KIND.OP_CALL, KIND.OP_CALL, KIND.OP_CALL)
    assert streams_of_pass(bench, -1) == []
    assert streams_of_pass(bench, SECOND) == [SECOND]
    assert streams_of_pass(bench, SECOND) == []  # it has one, and the depth is one
    assert streams_of_pass(bench, FIRST) == [FIRST]


def test_without_passes_of_workers_the_scheduler_hands_out(bench):
    bench.m[POL.PULLED] = 0
    issue(bench, KIND.OP_CALL, KIND.OP_CALL, KIND.OP_CALL)
    assert streams_of_pass(bench, -1) == [FIRST, SECOND]


def test_a_release_goes_to_whoever_is_awake(bench):
    issue(bench, KIND.RELEASE, KIND.OP_CALL)
    assert streams_of_pass(bench, SECOND) == [SECOND]
    assert bench.m[STR.AT + FIRST * STR.WORDS + STR.TAIL] == 0


def test_a_release_of_another_stream_stays_there(bench):
    bench.m[POL.POOL] = 1 << SECOND
    issue(bench, KIND.RELEASE)
    assert streams_of_pass(bench, SECOND) == [FIRST]
