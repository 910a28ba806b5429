"""Streams: chains run beside each other, operands alone order them, Stream objects are reusable."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from flowvm import Stream, current_stream, ones, stream, tensor, vm, zeros
from flowvm.errors import ArgumentTypeError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND
from tests.vm.kernels import alone


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Open gates let host callbacks go on; all are open in the end."""
    opened = threading.Event()
    yield opened
    opened.set()
    engine.waits.wait_idle()


def test_the_current_stream_belongs_to_the_block_and_the_thread() -> None:
    s = Stream("mine")
    outside = current_stream()
    assert outside is not s
    calls: list[Stream] = []
    with stream(s):
        assert current_stream() is s
        with stream(None):
            assert current_stream() is s
        thread = threading.Thread(target=lambda: calls.append(current_stream()))
        thread.start()
        thread.join()
    assert current_stream() is outside
    assert calls == [outside]
    with pytest.raises(ZeroDivisionError), stream(s):
        _ = 1 / 0
    assert current_stream() is outside
    assert "mine" in repr(s)
    with pytest.raises(ArgumentTypeError, match="int"), stream(3):  # type: ignore[arg-type]
        pass
    with pytest.raises(ArgumentTypeError, match="name"):
        Stream(3)  # type: ignore[arg-type]


def test_a_chain_on_each_of_two_streams() -> None:
    a, b = Stream("a"), Stream("b")
    with vm.record() as trace:
        with stream(a):
            x = ones(64)
            for _ in range(20):
                x = x * 2
        with stream(b):
            y = ones(64)
            for _ in range(20):
                y = y + 2
        z = x + y  # on the default stream: waits for both
        assert z.tolist() == [2.0**20 + 41.0] * 64
    vm.verify(trace)
    ran = {ins.stream for ins in trace if ins.name == "mul"}
    assert ran == {a.number}
    adds = [ins.stream for ins in trace if ins.name == "add"]
    assert adds == [b.number] * 20 + [0]


def test_a_stuck_stream_holds_up_nobody_else(gate: threading.Event) -> None:
    s, t = Stream(), ones(3)
    engine.callbacks.issue(lambda place: gate.wait(200) and None, [t._ref], [OPERAND.MUT])
    with stream(s):
        stuck = t * 2
    assert not s.query()
    assert (ones(3) * 3).tolist() == [3.0] * 3
    with stream(Stream()):
        assert (ones(3) * 4).tolist() == [4.0] * 3
    current_stream().synchronize()
    assert current_stream().query()
    assert not s.query()
    gate.set()
    s.synchronize()
    assert s.query()
    assert stuck.tolist() == [2.0] * 3


def test_synchronize_waits_for_what_waits_for_another_stream(gate: threading.Event) -> None:
    s, t = Stream(), zeros(3)
    engine.callbacks.issue(lambda place: gate.wait(200) and None, [t._ref], [OPERAND.MUT])
    with stream(s):
        first = t + 1  # not even queued on `s` while it waits for t
        second = ones(3) + 1  # overtakes it
    assert second.tolist() == [2.0] * 3
    threading.Timer(0.05, gate.set).start()
    s.synchronize()
    assert gate.is_set()
    assert first.tolist() == [1.0] * 3


def test_synchronize_raises_what_went_wrong() -> None:
    def fail(place: int) -> None:
        raise ValueError("broken")

    s, t = Stream(), ones(3)
    engine.callbacks.issue(fail, [t._ref], [OPERAND.MUT])
    with stream(s):
        later = t + 1
    with pytest.raises(ValueError, match="broken"):
        s.synchronize()
    s.synchronize()  # once
    with pytest.raises(ValueError, match="broken"):
        later.tolist()


def test_writes_across_streams_keep_program_order(rng: np.random.Generator) -> None:
    streams = [Stream(), Stream(), None]
    x, expected = tensor([0.0] * 8), 0.0
    for _ in range(300):
        with stream(streams[rng.integers(3)]):
            if rng.integers(2):
                x.add_(1)
                expected += 1
            else:
                x.mul_(0.5)
                expected *= 0.5
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)


@alone()
def test_tensors_may_be_released_anywhere(rng: np.random.Generator) -> None:
    vm.sync()
    before = vm.stats()["live_bytes"]
    streams = [Stream(), Stream(), None]
    alive = {}
    for i in range(600):
        with stream(streams[rng.integers(3)]):
            alive[i] = ones(100) * i
        with stream(streams[rng.integers(3)]):
            if i >= 8:
                old = i - 1 - int(rng.integers(8))
                if old in alive:
                    assert alive.pop(old)._meta.numel == 100
    total = sum(float(t.numpy().mean()) for t in alive.values())
    assert total == sum(alive)
    alive.clear()
    vm.sync()
    vm.sync()
    assert vm.stats()["live_bytes"] == before


def test_a_number_is_used_again_when_its_stream_is_gone() -> None:
    gc.collect()  # no other stream may come free meanwhile
    first = Stream("first")
    number = first.number
    with stream(first):
        x = ones(10) + 1
    del first
    calls = []
    for i in range(100):
        s = Stream(f"again{i}")
        calls.append(s.number)
        with stream(s):
            x = x + 1
        del s
    assert number in calls
    assert len(set(calls)) <= 2
    assert x.tolist() == [102.0] * 10


def test_more_streams_than_there_are() -> None:
    program = """
import gc
from flowvm import Stream, ones, stream
streams = []
try:
    while True:
        streams.append(Stream())
except RuntimeError as error:
    print(len(streams), error)
xs = []
for s in streams:
    with stream(s):
        xs.append(ones(3) * 2)
print(sum(x.tolist()[0] for x in xs) == 2 * len(streams))
del streams[5], s
print(Stream().number)

class Owner:
    def __init__(self):
        self.owner, self.stream = self, Stream()

gc.disable()  # or the collector might find some before there is need
streams.clear()
print(len({Owner().stream.number for _ in range(200)}))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.stderr == ""
    assert run.stdout.splitlines() == [
        "61 Stream: all 63 of the VM are in use; keep Stream objects and use them again, "
        "or drop some",
        "True",
        "7",
        "61",
    ]


def test_streams_in_the_sequential_engine() -> None:
    s = Stream()
    with vm.sequential(), stream(s):
        x = ones(3) + 1
        assert s.query()
        s.synchronize()
        assert x.tolist() == [2.0] * 3
    with stream(s):
        assert (x + 1).tolist() == [3.0] * 3
