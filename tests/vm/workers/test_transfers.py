"""Copies to and from a device, as Python, by a driver that copies in the host's memory."""

import ctypes

import numpy as np
import pytest

from flowvm.vm.machine.device_words import CALL, DEV
from flowvm.vm.machine.words import ARG
from flowvm.vm.workers import transfers
from flowvm.vm.workers.steps import CALL_AREA, DEVICE_FAILED

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * CALL.WORDS)
STREAM = 77


class Driver:
    """A stream's block whose functions note their calls, and copy at once."""

    def __init__(self, stages=2, nbytes=8):
        self.calls, self.kept, self.fails = [], [], {}
        self.block = np.zeros(DEV.WORDS, np.int64)
        self.buffers = [np.zeros(nbytes, np.uint8) for _ in range(DEV.STAGE_COUNT)]
        pairs = np.array([[b.ctypes.data, 500 + k] for k, b in enumerate(self.buffers)], np.int64)
        self.area = np.zeros(CALL_AREA, np.int64)
        self.block[DEV.STAGES], self.block[DEV.STAGE_BYTES] = pairs.ctypes.data, nbytes
        self.block[DEV.CALL], self.block[DEV.STREAM] = self.area.ctypes.data, STREAM
        self.kept.append(pairs)
        for name in ("F_MEMCPY", "F_COPY_IN", "F_COPY_OUT", "F_RECORD", "F_SYNCHRONIZE_EVENT",
                     "F_COPY_PEER"):  # fmt: skip
            self.block[getattr(DEV, name)] = self.function(name)
        self.args = np.zeros(ARG.WORDS, np.int64)
        self.args[ARG.BLOCK] = self.block.ctypes.data

    def function(self, name):
        def call(a, b, c, d, *rest):
            self.calls.append((name, a, b, c, d))
            if name in ("F_MEMCPY", "F_COPY_IN", "F_COPY_OUT"):
                ctypes.memmove(a, b, c)
            return self.fails.get(name, 0)

        function = FUNCTION(call)
        self.kept.append(function)
        return ctypes.cast(function, ctypes.c_void_p).value

    def run(self, kernel, to, source, *layout):
        self.args[ARG.HEADER], self.args[ARG.HEADER + 1] = to, source
        words = np.array(layout, np.int64)
        return kernel(self.args.ctypes.data, words.ctypes.data, 0, 1, 0)

    def named(self, name):
        return [call for call in self.calls if call[0] == name]


@pytest.mark.parametrize("count", [0, 1, 8, 9, 8 * DEV.STAGE_COUNT + 3])
def test_bytes_go_in_by_the_pinned_buffers(count):
    driver = Driver()
    source = np.arange(count, dtype=np.uint8)
    to = np.zeros(count, np.uint8)
    assert driver.run(transfers.copy_in, to.ctypes.data, source.ctypes.data, count) == 0
    np.testing.assert_array_equal(to, source)
    pieces = -(-count // 8)
    assert driver.block[DEV.STAGED] == pieces
    assert [c[3] for c in driver.named("F_COPY_IN")] == [8] * (count // 8) + [count % 8] * (
        count % 8 > 0
    )
    assert {c[4] for c in driver.named("F_COPY_IN")} <= {STREAM}
    # a buffer is filled again behind the event of its last use
    waited = [c[1] for c in driver.named("F_SYNCHRONIZE_EVENT")]
    assert waited == [500 + k % DEV.STAGE_COUNT for k in range(max(0, pieces - DEV.STAGE_COUNT))]
    assert [c[1] for c in driver.named("F_RECORD")] == [
        500 + k % DEV.STAGE_COUNT for k in range(pieces)
    ]


def test_a_failed_copy_ends_with_the_drivers_answer():
    driver = Driver()
    driver.fails["F_COPY_IN"] = 700
    data = np.zeros(24, np.uint8)
    assert driver.run(transfers.copy_in, data.ctypes.data, data.ctypes.data, 24) == DEVICE_FAILED
    assert driver.args[:2].tolist() == [700, -1]
    assert len(driver.named("F_COPY_IN")) == 1
    assert not driver.named("F_RECORD")


def test_bytes_come_out_in_one_call():
    driver = Driver()
    source, to = np.arange(20, dtype=np.uint8), np.zeros(20, np.uint8)
    assert driver.run(transfers.copy_out, to.ctypes.data, source.ctypes.data, 20) == 0
    np.testing.assert_array_equal(to, source)
    assert driver.calls == [("F_COPY_OUT", to.ctypes.data, source.ctypes.data, 20, STREAM)]
    assert driver.run(transfers.copy_out, 0, 0, 0) == 0
    assert len(driver.calls) == 1


def test_bytes_go_across_with_both_contexts():
    driver = Driver()
    assert driver.run(transfers.copy_across, 1000, 2000, 64, 11, 22) == 0
    assert driver.calls == [("F_COPY_PEER", 1000, 11, 2000, 22)]
    assert driver.area[4:6].tolist() == [64, STREAM]
    assert driver.run(transfers.copy_across, 1000, 2000, 0, 11, 22) == 0
    assert len(driver.calls) == 1
