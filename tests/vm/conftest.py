"""Every test here leaves an idle VM without secrets: gates open, threads running, errors seen."""

from collections.abc import Iterator

import pytest

from flowvm.vm.engine.engine import engine
from tests.vm.kernels import Gate
from tests.vm.live import PATIENCE_S


@pytest.fixture(autouse=True)
def _idle_vm() -> Iterator[None]:
    yield
    for gate in Gate.every:
        gate.open()
    if not engine.threads.running:
        return
    assert engine.waits.wait_idle(PATIENCE_S), "the test left the VM stuck"
    for failure in engine.failures.all():
        failure.seen = True
