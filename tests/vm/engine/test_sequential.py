"""The sequential engine: who runs an instruction, inside a region and behind it."""

from __future__ import annotations

import threading

from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND
from tests.vm.kernels import tensor


def test_the_issuing_thread_runs_instructions_inside_a_region_alone() -> None:
    x = tensor([1])
    here = threading.get_ident()
    seen: list[tuple[bool, bool]] = []

    def look(address: int) -> None:
        seen.append((engine.sequential.at_once, threading.get_ident() == here))

    with engine.sequential.region():
        engine.callbacks.issue(look, [x._ref], [OPERAND.CONST])
        assert seen == [(True, True)]  # without a wait
        assert not engine.sequential.at_once
    engine.callbacks.issue(look, [x._ref], [OPERAND.CONST])
    engine.waits.wait_idle()
    assert len(seen) == 2
    assert seen[1] == ((False, False) if engine.threads.running else (True, True))
