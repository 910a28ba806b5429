"""Instructions of devices: where they are put in time, and what a driver's floats become.

On a simulated device: tests/cuda/test_profiler_on_device.py.
"""

from __future__ import annotations

import ctypes
import json
import random
from typing import Any

import numpy as np
import pytest

from flowvm.errors import ArgumentError, ScheduleError
from flowvm.profiler import SCHEMA, Profile, load
from flowvm.profiler.run.devices import said_of
from flowvm.version import VERSION
from flowvm.vm.machine.device_words import DEV, EVENT, TIME
from flowvm.vm.machine.edges import connect, tensors_of
from flowvm.vm.machine.words import KIND, OPERAND, REC
from flowvm.vm.watch.device_times import DEVICE, HOST, SEEN, place_on_devices
from flowvm.vm.workers.device_times import FRESH, note_time
from flowvm.vm.workers.steps import CALL_AREA
from tests.profiler.synthetic import of_rows, synthetic

DEVICES = 0b110  # streams 1 and 2


def placed(rows: list[Any], operands: list[Any], own: Any = None) -> Any:
    """Rows of (kind, stream, opened, closed), placed: started, ended, opened, clock."""
    kind, stream, opened, closed = np.array(rows, np.int64).T
    zero = np.zeros(len(rows), np.int64)
    times = np.column_stack((zero, zero, zero, zero, opened, closed, closed))
    owner = np.repeat(np.arange(len(rows)), [len(o) for o in operands])
    flat = np.array([pair for o in operands for pair in o], np.int64).reshape(-1, 2)
    tensor = tensors_of(owner, flat[:, 0], kind == KIND.RELEASE)
    edges = connect(owner, tensor, flat[:, 1] != OPERAND.CONST)
    own = np.zeros((len(rows), 2), np.int64) if own is None else np.array(own, np.int64)
    placements, at, clock = place_on_devices(times, stream, kind, edges, DEVICES, own)
    return placements[:, 4].tolist(), placements[:, 5].tolist(), at.tolist(), clock.tolist()


def test_what_the_host_saw_begins_when_it_can_have_begun() -> None:
    op, call = KIND.OP_CALL, (KIND.OP_CALL, 0, 5, 8)
    started, ended, opened, clock = placed(
        [call, (op, 1, 10, 40), (op, 1, 11, 70), (op, 2, 12, 90), (op, 1, 80, 95),
         (op, 1, 81, 0), (op, 1, 0, 0)],
        [[(9, OPERAND.MUT)], [(1, OPERAND.MUT)], [(2, OPERAND.MUT)],
         [(1, OPERAND.CONST), (3, OPERAND.MUT)], [], [], [(2, OPERAND.CONST)]],
    )  # fmt: skip
    # behind the one in front; behind what it reads, of another stream; opened late; open; not yet
    assert started == [5, 10, 40, 40, 80, 95, 0]
    assert ended == [8, 40, 70, 90, 95, 0, 0]
    assert opened == [0, 10, 11, 12, 80, 81, 0]
    assert clock == [HOST, *[SEEN] * 6]


def test_the_devices_own_times_stay_between_opened_and_closed() -> None:
    op = KIND.OP_CALL
    started, ended, _, clock = placed(
        [(op, 1, 10, 40), (op, 1, 11, 70), (op, 1, 50, 90), (KIND.RELEASE, 1, 55, 95)],
        [[], [], [], [(1, OPERAND.MUT)]],
        [(15, 30), (30, 75), (45, 60), (0, 0)],
    )
    assert started == [15, 30, 50, 90]
    assert ended == [30, 70, 60, 90]
    assert clock == [DEVICE, DEVICE, DEVICE, SEEN]


@pytest.mark.parametrize("case", range(5))
def test_any_times_become_possible_ones(case: int, seed: int) -> None:
    """Instructions of a stream never overlap, and none begins before its operands are written."""
    rng = random.Random(seed)
    rows, operands, closed, now = [], [], [0, 0, 0], 1  # 0 is never
    written = dict.fromkeys(range(4), 0)
    for _ in range(60):
        now += rng.randrange(5)
        stream, read, write = rng.choice((1, 2)), rng.randrange(4), rng.randrange(4)
        least = max(now, closed[stream], written[read], written[write])
        closed[stream] = least + rng.randrange(1, 20)
        rows.append((KIND.OP_CALL, stream, now, closed[stream]))
        operands.append([(write, OPERAND.MUT), *([(read, OPERAND.CONST)] if read != write else [])])
        written[write] = closed[stream]
    started, ended, opened, _ = placed(rows, operands)
    for i, (_, stream, _, _) in enumerate(rows):
        assert opened[i] <= started[i] <= ended[i]
        before = [k for k in range(i) if rows[k][1] == stream]
        assert not before or started[i] >= ended[before[-1]]


def test_the_verifier_trusts_what_was_measured() -> None:
    """A device's own times can be in the wrong order; the host's times follow from it."""
    rows = [(0, KIND.OP_CALL, 1, 0, 10, 50), (1, KIND.OP_CALL, 2, 0, 20, 60)]
    run = of_rows(rows, [[(1, OPERAND.MUT)], [(1, OPERAND.CONST), (2, OPERAND.MUT)]])
    run.streams[1:3] = "cuda:0", "cuda:0 side"
    run.times[:, 4:6] *= 1000
    run.opened = run.time("started").copy()
    run.clock[:] = DEVICE
    with pytest.raises(ScheduleError, match="1 of 1"):
        Profile(run).verify()
    run.clock[:] = SEEN
    assert Profile(run).verify().pairs == 0
    run.clock[0], run.opened[0] = HOST, 0  # the host's result was waited for by the host
    with pytest.raises(ScheduleError):
        Profile(run).verify()


def test_what_is_said_of_times() -> None:
    run = of_rows([(0, KIND.OP_CALL, 1, 0, 10, 50)] * 2, [[(1, OPERAND.MUT)]] * 2)
    run.info["level"] = 1
    assert said_of(run) == ""
    run.clock[:] = SEEN
    assert "up to 16 at a look" in said_of(run)
    run.info |= {"level": 3, "clocks": {"cuda:0": {"within_ns": 7600}}}
    run.clock[:] = DEVICE
    assert said_of(run) == "their own (clock known to 8 µs)"


# --- the worker's part ----------------------------------------------------------------------------


class Driver:
    """cuEventElapsedTime of events that are moments in ns."""

    def __init__(self) -> None:
        def elapsed(out: int, start: int, end: int) -> int:
            ctypes.c_float.from_address(out).value = (self.at[end] - self.at[start]) / 1e6
            return self.code

        self.at: dict[int, int] = {}
        self.code = 0
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 3)
        self.function = kind(elapsed)
        self.call = np.zeros(CALL_AREA, np.int64)
        self.ring = np.zeros(REC.LENGTH * TIME.WORDS, np.int64)
        self.block = np.zeros(DEV.WORDS, np.int64)
        self.block[DEV.F_ELAPSED] = ctypes.cast(self.function, ctypes.c_void_p).value
        self.block[DEV.CALL] = self.call.ctypes.data
        self.block[DEV.TIMES] = self.ring.ctypes.data
        self.block[DEV.BASE] = 1
        self.events = np.array([0, 0, 2, 3, 1], np.int64)

    def noted(self, seq: int, began: int, ended: int) -> list[int]:
        """The row of an instruction that ran then."""
        self.at[int(self.events[EVENT.BEGIN])], self.at[int(self.events[EVENT.END])] = began, ended
        note_time(self.block, self.events, seq)
        place = (seq & REC.MASK) * TIME.WORDS
        row: list[int] = self.ring[place : place + TIME.WORDS].tolist()
        return row


def test_floats_of_the_driver_become_nanoseconds(seed: int) -> None:
    """Times are right also after minutes, when a float of milliseconds is no finer than 8 us."""
    rng, driver = random.Random(seed), Driver()
    driver.at[1], now = 0, 0
    for seq in range(400):
        now += rng.choice((0, 1, 700, 40_000, 3_000_000, 900_000_000))
        length = rng.choice((0, 1, 512, 25_000, 7_000_000, 300_000_000))
        mark, began, ended = driver.noted(seq, now, now + length)
        assert mark == seq + 1
        # a float has 24 bits: half of the last at what lies behind the base, and each base so far
        grain = 1 + 2 * FRESH * 2**-24 * (1 + now / FRESH)
        assert abs(began - now) <= grain
        assert abs(ended - began - length) <= 1 + length * 2**-23
        now += length
    assert now > 10 * FRESH
    assert sorted({int(driver.block[DEV.BASE]), *driver.events[2:4].tolist()}) == [1, 2, 3]


def test_what_the_driver_does_not_say_is_not_noted() -> None:
    driver = Driver()
    driver.at[1] = 0
    driver.code = 600
    assert driver.noted(0, 5, 9)[0] == 0
    driver.code = 0
    assert driver.noted(0, -5, 9)[0] == 0, "it began before the base: no time of ours"
    assert driver.noted(0, 5, 9) == [1, 5, 9]


# --- saved runs -----------------------------------------------------------------------------------


def test_a_run_of_another_version_says_which_and_what_to_do(tmp_path: Any) -> None:
    path = tmp_path / "old.flowtrace"
    Profile(synthetic(1)).save(path)
    with np.load(path) as file:
        columns = dict(file)
    header = json.loads(str(columns.pop("header")))
    assert header["version"] == VERSION
    for version, text in (("0.0.7", "pip install flowvm==0.0.7"), ("", "an older flowvm")):
        old = header | {"schema": "flowvm.trace/0", "version": version}
        if not version:
            del old["version"]
        with open(path, "wb") as out:
            np.savez_compressed(out, header=np.array(json.dumps(old)), **columns)
        with pytest.raises(ArgumentError, match=SCHEMA) as caught:
            load(path)
        assert text in str(caught.value)
        assert f"flowvm {VERSION} reads {SCHEMA}" in str(caught.value)
