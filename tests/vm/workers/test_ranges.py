"""Kernels split into ranges: every unit once, errors surface, and the same bits with any number of
threads."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.declaration import Kernel, Signature
from flowvm.eager.interpreter import Operator
from flowvm.eager.modes import use_stream
from flowvm.errors import KernelError
from flowvm.vm.callers.hot import CALL_STREAM
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import STR
from tests.vm import kernels
from tests.vm.kernels import (
    USER_STATUS,
    add_total_in_phases,
    count_by_arena,
    count_kernel,
    meet,
    tensor,
    update_in_chunks,
)
from tests.vm.live import Background, script, streams, word

NOWHERE = -1


def counter(units, grain, bad=NOWHERE):
    """An op that counts in its operand which units ran, and the calls in the last element."""
    lower = kernels._lower_in_place(count_kernel, grain, units)

    def with_shape(metas, attrs):
        launch = lower(metas, attrs)
        launch.layout[:] = units, bad
        return launch

    return Operator(
        f"count_{units}_{grain}",
        Signature(("x",), scalars=("status",), scalar_kinds="q", writes=frozenset("x")),
        Kernel(lambda metas, attrs: with_shape(metas, (0,))),
    ).call


def chunks(units, grain):
    return max(1, -(-units // grain))


@pytest.fixture(scope="module", autouse=True)
def _team():
    """Helpers, whatever the machine has: three threads for one kernel."""
    with flow.config(workers=3):
        yield


@pytest.mark.parametrize("units", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("grain", [1, 3, 8, 63, 64, 65, 2000])
def test_each_unit_runs_exactly_once(units, grain):
    count, x = counter(units, grain), tensor(np.zeros(units + 1))
    for _ in range(5):
        count(x, 0)
    actual = x.numpy()
    assert (actual[:units] == 5).all(), np.flatnonzero(actual[:units] != 5)
    assert actual[units] == 5 * chunks(units, grain)


def test_no_units_are_one_call():
    x = tensor(np.zeros(1))
    counter(0, 1)(x, 0)
    assert x.numpy().tolist() == [1]


def test_a_stream_without_helpers_runs_its_chunks_alone():
    x = tensor(np.zeros(101))
    with use_stream(streams(2)[1]):
        counter(100, 9)(x, 0)
    assert x.numpy().tolist() == [1] * 100 + [12]


@pytest.mark.parametrize("bad", [0, 41, 99])
def test_an_error_in_any_chunk_surfaces(bad):
    x = tensor(np.zeros(101))
    counter(100, 10, bad)(x, USER_STATUS + 5)
    with pytest.raises(KernelError, match=f"status {USER_STATUS + 5}"):
        x.numpy()
    y = tensor(np.zeros(101))
    counter(100, 10)(y, 0)  # the team is as good as new
    assert y.numpy().tolist() == [1] * 100 + [10]


def test_chunks_of_one_instruction_run_on_several_threads():
    x = tensor([0])
    meet(x, tensor([3]), 0)  # returns only if three threads are in it at the same time
    assert x.item() == 3


def test_jobs_back_to_back():
    """A helper that is late for one job must not take a chunk of the next with its fields."""
    small, large = counter(6, 2), counter(35, 1)
    x, y = tensor(np.zeros(7)), tensor(np.zeros(36))
    rounds = 10_000
    for _ in range(rounds):
        small(x, 0)
        large(y, 0)
    assert x.numpy().tolist() == [rounds] * 6 + [3 * rounds]
    assert y.numpy().tolist() == [rounds] * 35 + [35 * rounds]
    assert word(STR.AT + CALL_STREAM * STR.WORDS + STR.LEFT) == 0


def test_chunked_kernels_of_several_streams_and_threads():
    """Only the default stream has a team; both run chunks of different instructions at one time."""
    results = []
    update_in_chunks(tensor(), tensor(), 0)

    def work(stream):
        x, y = tensor(np.arange(48)), tensor(np.ones(48))
        with use_stream(stream):
            for k in range(300):
                update_in_chunks(x, y, k)
        results.append(x.numpy())

    for thread in [Background(work, s) for s in streams(2) * 2]:
        thread.result()
    assert all((r == results[0]).all() for r in results)


def test_the_same_bits_with_any_number_of_workers():
    """Chunks depend on the instruction alone, so what a kernel makes of its range does too."""
    outputs = [
        script(
            """
            import zlib
            x, y = tensor(np.arange(5000)), tensor(np.arange(5000) % 13)
            for k in range(200):
                scan_in_chunks(x, y, k)
            print(engine.words[STR.AT + STR.TEAM], zlib.crc32(x.numpy().tobytes()))
            """,
            workers=str(workers),
        ).stdout.split()
        for workers in (1, 2, 4)
    ]
    assert [team for team, _ in outputs] == ["0", "1", "3"]
    assert len({bits for _, bits in outputs}) == 1


def test_a_phase_begins_when_the_one_before_is_done():
    for k in range(200):
        values = np.arange(320) * (k % 7 - 3)
        x = tensor(values)
        add_total_in_phases(x, x, k)
        assert (x.numpy() == values + values.sum() + k).all(), k


def test_phases_without_helpers():
    values = np.arange(96)
    x = tensor(values)
    with use_stream(streams(2)[1]):
        add_total_in_phases(x, x, 0)
    with flow.vm.sequential():
        add_total_in_phases(x, x, 0)
    once = values + values.sum()
    assert (x.numpy() == once + once.sum()).all()


def test_every_thread_has_an_arena_of_its_own():
    x, y = tensor(np.zeros(60)), tensor(np.zeros(60))
    count_by_arena(x)
    with use_stream(streams(2)[1]):
        count_by_arena(y)
    assert x.numpy().tolist() == y.numpy().tolist() == list(range(60))


def test_the_number_of_threads_changes_while_kernels_run():
    x, count = tensor(np.zeros(65)), counter(64, 1)
    threads = flow.get_num_threads()
    try:
        for k in range(300):
            count(x, 0)
            if k % 3 == 0:
                flow.set_num_threads(1 + k % 5)
                team = word(STR.AT + CALL_STREAM * STR.WORDS + STR.TEAM)
                helpers = [t for t in engine.threads.members if t.name.startswith("flowvm-h:cpu")]
                assert team == len(helpers) == k % 5 == flow.get_num_threads() - 1
    finally:
        flow.set_num_threads(threads)
    assert x.numpy().tolist() == [300] * 64 + [300 * 64]


@pytest.mark.parametrize("wrong", [0, -1, 257, 1.5, "many", None])
def test_a_number_of_threads_that_is_none(wrong):
    with pytest.raises(flow.errors.ConfigError, match="1 to 256"):
        flow.set_num_threads(wrong)
