"""Watching the VM from outside, and its bounds: dump, the watchdog, how far issuing runs ahead."""

from __future__ import annotations

import pytest

from flowvm.eager.modes import use_stream
from flowvm.vm import dump
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL
from tests.vm.kernels import Gate, mix, tensor, update, wait_for_gate
from tests.vm.live import Background, script, streams, until, word


def lines_of(name):
    return [line for line in dump().splitlines() if f" {name} " in line]


def test_dump_names_what_waits_and_for_what():
    x, y = tensor([1]), tensor([2])
    with Gate() as gate:
        with use_stream(streams(2)[1]):
            wait_for_gate(x, x, gate.address)
        update(y, x, 1)
        z = mix(y, y, 1)
        waiting = Background(z.item)
        until(lambda: gate.is_reached and lines_of("wait"), "the waiter is received")
        (first,), (second,), (third,), (waiter,) = map(
            lines_of, ("wait_for_gate", "update", "mix", "wait")
        )
        numbers = [line.split()[0] for line in (first, second, third)]
        assert f"running on {engine.streams.name(streams(2)[1])}" in first
        assert f"waits for {numbers[0]} " in second
        assert f"waits for {numbers[1]} " in third
        assert f"waits for {numbers[2]} " in waiter
        assert all("test_looking.py:" in line for line in (first, second, third))
        assert "instructions in flight" in dump().splitlines()[0]
        text = dump()
        assert repr(text) == str(text)
    assert waiting.result() == 2 * (5 * 2 + 2 + 1) + 1


def test_dump_of_an_idle_vm():
    engine.waits.wait_idle()
    assert dump().startswith("nothing in flight; ")


def test_dump_says_what_a_barrier_waits_for():
    x = tensor()
    with Gate() as gate:
        wait_for_gate(x, x, gate.address)
        waiting = Background(engine.waits.wait_idle)
        until(lambda: lines_of("barrier"), "the barrier is received")
        assert "waits for everything before it" in lines_of("barrier")[0]
    assert waiting.result() is True


def test_the_watchdog_prints_the_chain_once_when_nothing_moves():
    process = script(
        """
        gate, x, y = Gate(), tensor([1]), tensor([2])
        wait_for_gate(x, x, gate.address)
        update(y, x, 1)
        dumped = threading.Event()
        class Err:
            def write(self, text):
                sys.__stderr__.write(text)
                if "no progress" in text:
                    dumped.set()
            def flush(self):
                pass
        sys.stderr = Err()
        def rescue():
            dumped.wait()
            gate.open()
        threading.Thread(target=rescue).start()
        print(y.item())
        """,
        watchdog="0.5",
    )
    assert process.stdout == "13\n"
    assert process.stderr.count("no progress for 0.5 s") == 1
    for what in ("wait_for_gate", "update", "wait  waits for #", "running on cpu for"):
        assert what in process.stderr


def test_the_watchdog_is_quiet_while_something_moves():
    process = script(
        """
        x, y = tensor([1]), tensor([2])
        start = time.monotonic()
        while time.monotonic() - start < 1:
            for k in range(100):
                update(x, y, k)
            x.item()
        """,
        watchdog="0.3",
    )
    assert process.stderr == ""


# --- bounded run-ahead --------------------------------------------------------------------------

AHEAD = """
gate, x = Gate(), tensor([0])
issued = 0
def issue():
    global issued
    for _ in range(3000):
        step()
        issued += 1
def stuck():
    return engine.words[CTL.ROOM_SLEEPS] != 0
def check(most):
    wait_for_gate(x, x, gate.address)
    thread = threading.Thread(target=issue, daemon=True)
    thread.start()
    while not stuck():
        os.sched_yield()
    assert issued <= most, issued
    in_flight = engine.words[CTL.RECEIVED] - engine.words[CTL.HEAD]
    assert in_flight <= most + 2, in_flight
    gate.open()
    thread.join()
    engine.waits.sync()
    assert issued == 3000
"""


@pytest.mark.parametrize("limit", [1, 16, 700])
def test_a_stuck_kernel_stops_issuing_at_the_limit_of_instructions(limit):
    script(AHEAD + f"\nstep = lambda: update(x, x, 1)\ncheck({limit})\n", run_ahead=str(limit))


def test_a_stuck_kernel_stops_issuing_at_the_limit_of_bytes():
    """Half of the bytes that the scheduler has seen, looked at every 256 records; what it takes is
    never more than all of them.
    """
    body = """
seen = []
def step():
    mix(big, big, 1)
    issued = int(repr(hot["counter"])[6:-1])
    while engine.words[CTL.RECEIVED] < min(issued, first + 33):
        os.sched_yield()
    seen.append(engine.words[CTL.IN_FLIGHT_BYTES])
big = empty(4096)
big.numpy()
first = engine.words[CTL.RECEIVED]
check(17 + 256)
assert max(seen) == 1 << 20, max(seen)
"""
    script(AHEAD + body, run_ahead_bytes="1M")


def test_the_limit_is_that_of_the_ring_at_most():
    body = AHEAD.replace("3000", "3 * RING.SLOTS") + "\nstep = lambda: update(x, x, 1)\n"
    script(body + "check(RING.SLOTS)\n", run_ahead=str(1 << 20))


def test_one_instruction_larger_than_the_limit_of_bytes_runs():
    process = script(
        """
        x = empty(300_000)
        for k in range(20):
            x = mix(x, x, k)
        print(int(x.numpy()[0]) > 0, engine.words[CTL.IN_FLIGHT_BYTES])
        """,
        run_ahead_bytes="1M",
    )
    assert process.stdout == "True 0\n"
    assert word(CTL.IN_FLIGHT_BYTES) == 0
