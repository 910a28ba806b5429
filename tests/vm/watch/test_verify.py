"""The schedule verifier: it passes real runs, and catches planted faults."""

from __future__ import annotations

import dataclasses
import random
import time

import pytest

from flowvm.eager.modes import use_stream
from flowvm.errors import ScheduleError
from flowvm.vm import dump, record, trace
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND, Access, Kind
from flowvm.vm.watch.trace import Edge, Trace, Traced, TracedOperand
from flowvm.vm.watch.uses import UNUSED
from flowvm.vm.watch.verify import verify
from tests.vm.kernels import Gate, mix, open_gate, tensor, update, update_in_chunks, wait_for_gate
from tests.vm.live import streams
from tests.vm.mutants import BARRIER_ORDER, HAZARDS, MUTANT, forgetful_scheduler

CONST, MUT = Access.CONST, Access.MUT
CLOCKS = 2000  # ns by which the recorder's clock and Python's may differ


def work(rng, numbers, length=200):
    """Random conflicting work on several streams, callbacks and releases included."""
    t = [tensor() for _ in range(5)]
    for _ in range(length):
        x, y, z = (rng.randrange(5) for _ in range(3))
        with use_stream(rng.choice(numbers)):
            what = rng.random()
            if what < 0.4:
                t[z] = mix(t[x], t[y], 1)
            elif what < 0.8:
                update(t[x], t[y], 2)
            elif what < 0.9:
                update_in_chunks(t[x], t[y], 3)
            else:
                engine.callbacks.issue(
                    lambda *a: None, [t[x]._ref, t[y]._ref], [OPERAND.MUT, OPERAND.CONST]
                )
    return t


@pytest.mark.parametrize("count", [1, 2, 4])
def test_real_runs_pass(count, seed):
    run = trace(work, random.Random(seed), streams(count))
    checked = verify(run)
    assert checked.pairs > 200
    assert {ins.stream for ins in run} >= set(streams(count)) | {1}
    assert run.dropped == 0


def test_a_sequential_run_passes(seed):
    with engine.sequential.region():
        run = trace(work, random.Random(seed), [0])
    assert verify(run).pairs > 200
    assert all(a.ended <= b.started for a, b in zip(run, list(run)[1:], strict=False))


def test_the_traces_edges_hold_in_its_times(seed):
    run = trace(work, random.Random(seed), streams(3))
    assert len(run.edges) > 100
    for e in run.edges:
        assert run.instructions[e.source].ended <= run.instructions[e.target].started, e


def test_a_callback_ends_when_its_function_has_returned():
    x, times = tensor(), []
    with record() as run:
        engine.callbacks.issue(lambda a: times.append(time.monotonic_ns()), [x._ref], [OPERAND.MUT])
        update(x, x, 1)
    callback = next(i for i in run if i.kind == Kind.CALLBACK)
    assert callback.started <= times[0] + CLOCKS
    assert times[0] <= callback.ended + CLOCKS
    assert verify(run).pairs >= 1


def test_what_a_trace_says_of_an_instruction():
    x, y = tensor(), tensor()
    with record() as run:
        z = mix(x, y, 1)
        update(x, z, 1)
    first, second = (i for i in run if i.kind == Kind.OP_CALL)
    assert [o.access for o in first.operands] == [MUT, CONST, CONST]
    assert [o.name for o in second.operands] == ["x", "y"]
    assert first.name == "mix"
    assert first.where.startswith("test_verify.py:")
    hazards = {(e.source, e.target): e.hazard for e in run.edges}
    assert hazards[0, 1] == "WAR" or (0, 1) in hazards
    assert str(run).count("\n") == len(run)


def test_traces_nest():
    with record() as outer:
        update(tensor(), tensor(), 1)
        with record() as inner:
            update(tensor(), tensor(), 1)
    assert [i.name for i in inner if i.name == "update"] == ["update"]
    assert [i.name for i in outer if i.name == "update"] == ["update", "update"]


# --- planted violations -------------------------------------------------------------------------


def traced(seq, started, ended, *operands):
    """A made-up instruction; `operands` are (tensor, access)."""
    accesses = tuple(TracedOperand(t, access, "", "") for t, access in operands)
    return Traced(seq, f"op{seq}", Kind.OP_CALL, 0, accesses, started, ended, 0, "")


def check(*instructions):
    return verify(Trace(list(instructions)))


PAIRS = {"RAW": (MUT, CONST), "WAR": (CONST, MUT), "WAW": (MUT, MUT)}


@pytest.mark.parametrize("hazard", PAIRS)
def test_swapped_and_overlapping_times_are_caught(hazard):
    a, b = PAIRS[hazard]
    assert check(traced(0, 0, 1, (5, a)), traced(1, 2, 3, (5, b))).pairs == 1
    for times in ((2, 3, 0, 1), (0, 2, 1, 3), (1, 2, 0, 3), (0, 3, 1, 2)):
        with pytest.raises(ScheduleError, match=r"#0 op0 and #1 op1 overlap on tensor t5"):
            check(traced(0, *times[:2], (5, a)), traced(1, *times[2:], (5, b)))


def test_readers_may_overlap_and_so_may_strangers():
    assert check(traced(0, 0, 3, (5, CONST)), traced(1, 1, 2, (5, CONST))).pairs == 0
    assert check(traced(0, 0, 3, (5, MUT)), traced(1, 1, 2, (6, MUT))).pairs == 0


def test_a_reader_behind_a_later_writer_is_caught():
    """w r w, where the read runs after the second write: RAW holds, WAR does not."""
    with pytest.raises(ScheduleError, match="1 of 3 "):
        check(traced(0, 0, 1, (5, MUT)), traced(1, 4, 5, (5, CONST)), traced(2, 2, 3, (5, MUT)))


def test_a_launch_that_used_nothing_hides_no_order_around_it():
    """Three beside each other: the second did nothing, and the third overtook the first."""
    run = Trace()
    run.instructions += [traced(k, 0, 9, (5, MUT)) for k in range(3)]
    run.uses.update({(0, 5): [UNUSED, (4, 6)], (1, 5): [UNUSED, UNUSED], (2, 5): [UNUSED, (7, 8)]})
    assert verify(run).pairs == 3
    run.uses[2, 5] = [UNUSED, (3, 5)]
    with pytest.raises(ScheduleError, match=r"1 of 3 .*\n +#0 op0 and #2 op2 overlap"):
        verify(run)


def test_launches_beside_each_other_may_both_read_what_both_write():
    run = Trace()
    run.instructions += [traced(k, 0, 9, (5, MUT)) for k in range(2)]
    run.uses.update({(0, 5): [(1, 7), (2, 3)], (1, 5): [(4, 6), (8, 9)]})
    assert verify(run).pairs == 1
    for times in ([(2, 6), (8, 9)], [(4, 6), (6, 9)], [UNUSED, (2, 9)]):
        run.uses[1, 5] = times
        with pytest.raises(ScheduleError):
            verify(run)


def test_one_instruction_may_read_what_it_writes():
    both = ((5, MUT), (5, CONST))
    assert check(traced(0, 0, 1, *both), traced(1, 2, 3, *both)).pairs == 1


def test_times_swapped_in_a_real_trace_are_caught(seed):
    run = trace(work, random.Random(seed), [0], 40)
    verify(run)
    edge = next(e for e in run.edges if run.instructions[e.source].kind == Kind.OP_CALL)
    a, b = run.instructions[edge.source], run.instructions[edge.target]
    run.instructions[edge.source] = dataclasses.replace(a, started=b.started, ended=b.ended)
    run.instructions[edge.target] = dataclasses.replace(b, started=a.started, ended=a.ended)
    with pytest.raises(ScheduleError):
        verify(run)


# --- violations that really happen --------------------------------------------------------------


@pytest.fixture
def _forgetful():
    with forgetful_scheduler():
        yield


@pytest.mark.usefixtures("_forgetful")
@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_machine_that_forgets_a_hazard_is_caught(hazard):
    """The first instruction waits for the second, which can only be because the order is broken."""
    first, second = streams(3)[1:]
    shared, other, third = tensor(), tensor(), tensor()
    operands = {
        "RAW": [(shared, other), (third, shared)],
        "WAR": [(other, shared), (shared, third)],
        "WAW": [(shared, other), (shared, third)],
    }[hazard]
    engine.words[MUTANT] = HAZARDS[hazard]
    gate = Gate()
    with record() as run:
        with use_stream(first):
            wait_for_gate(*operands[0], gate.address)
        with use_stream(second):
            open_gate(*operands[1], gate.address)
    engine.words[MUTANT] = 0
    with pytest.raises(ScheduleError, match=r"wait_for_gate and #\d+ open_gate overlap"):
        verify(run)
    assert [e for e in run.edges if e.hazard == hazard] == [
        Edge(0, 1, hazard, 0 if hazard != "WAR" else 1)
    ]


def test_a_machine_that_forgets_nothing_keeps_the_second_waiting():
    """On the real machine, the second instruction is received and does not run."""
    first, second = streams(3)[1:]
    x, later = tensor(), tensor()
    with record() as run, Gate() as gate:
        with use_stream(first):
            wait_for_gate(x, tensor(), gate.address)
        with use_stream(second):
            update(tensor(), x, 1)
            update(later, later, 1)  # in the second's stream, and free to go
            later.numpy()
        stuck = [line for line in dump().splitlines() if "update" in line]
        assert len(stuck) == 1
        assert "pending" in stuck[0]
    assert verify(run).pairs >= 1


@pytest.mark.usefixtures("_forgetful")
def test_a_barrier_that_does_not_wait_is_caught():
    x = tensor()
    with Gate() as gate:
        wait_for_gate(x, tensor(), gate.address)
        assert not engine.waits.wait_idle(0.2)
        engine.words[MUTANT] = BARRIER_ORDER
        assert engine.waits.wait_idle(200)
        engine.words[MUTANT] = 0
        assert not gate.words[0]
