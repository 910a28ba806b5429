"""Threads that find nothing to do: they poll for a while, once, and then sleep."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import flowvm as flow
from flowvm.vm.machine.words import CTL, STR
from flowvm.vm.workers import shell
from tests.vm.bench import Bench
from tests.vm.mutants import copy_of

ENTERED: dict[str, tuple[int, ...]] = {
    "scheduler_loop": (),
    "worker_loop": (1,),
    "helper_loop": (1, 0, 0),
}


@pytest.mark.parametrize("loop", ENTERED)
def test_who_slept_for_nothing_sleeps_on(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, rules = Bench(), copy_of(shell)
    bench.m[CTL.SPINS] = 40
    bench.m[STR.AT + STR.WORDS + STR.TEAM] = 1
    bench.m[CTL.USED_STREAMS] = 2
    polled: list[int] = []  # before each sleep

    def sched_yield() -> int:
        yielded[-1] += 1
        return 0

    def futex_wait(m: Any, word: int, value: int, microseconds: int) -> int:
        polled.append(yielded[-1])
        yielded.append(0)
        m[CTL.STOP] = len(polled) == 5
        return 0

    yielded = [0]
    monkeypatch.setattr(rules, "sched_yield", sched_yield)
    monkeypatch.setattr(rules, "futex_wait", futex_wait)
    assert getattr(rules, loop)(bench.array.ctypes.data, *ENTERED[loop]) == 0
    assert 0 < polled[0] <= 40
    assert polled[1:] == [0] * 4


@pytest.mark.parametrize(
    ("stream", "nanoseconds", "most"), [(1, 0, 40), (1, 10**6, 1), (0, 10**6, 40)]
)
def test_a_lanes_worker_polls_where_nobody_computes(
    stream: int, nanoseconds: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, rules = Bench(), copy_of(shell)
    bench.m[CTL.SPINS] = 40
    bench.m[CTL.USED_STREAMS] = 2
    yields, now = [0], [0]

    def sched_yield() -> int:
        yields[0] += 1
        now[0] += nanoseconds
        return 0

    def futex_wait(m: Any, word: int, value: int, microseconds: int) -> int:
        m[CTL.STOP] = 1
        return 0

    monkeypatch.setattr(rules, "clock", lambda: now[0])
    monkeypatch.setattr(rules, "sched_yield", sched_yield)
    monkeypatch.setattr(rules, "futex_wait", futex_wait)
    assert rules.worker_loop(bench.array.ctypes.data, stream) == 0
    assert most - 1 <= yields[0] <= most


def test_threads_of_the_vm_sleep_for_as_long_as_they_say() -> None:
    assert flow.ones(2).sum().item() == 2  # they run
    names = ("flowvm-sched", "flowvm-w:cpu")
    found = {t.name: t.native_id for t in threading.enumerate() if t.name in names}
    assert set(found) == set(names)
    for number in found.values():
        assert int(Path(f"/proc/{number}/timerslack_ns").read_text()) <= 1000
