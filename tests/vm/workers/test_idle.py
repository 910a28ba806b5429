"""Threads that find nothing to do: they poll for a while, once, and then sleep."""

from __future__ import annotations

from typing import Any

import pytest

from flowvm.vm.machine.words import CTL, STR
from flowvm.vm.workers import shell
from tests.vm.bench import Bench
from tests.vm.mutants import copy_of

ENTERED: dict[str, tuple[int, ...]] = {
    "scheduler_loop": (-1,),
    "worker_loop": (1, 0),
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
