"""Issuing from native code: the rate of scheduler and worker when Python is not the limit."""

from __future__ import annotations

import ctypes
import itertools
import time

import numpy as np

from flowvm.compiler import jit
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.entries import no_op
from flowvm.vm.machine.lang import address_of, load_acquire, sched_yield, store_release, words_at
from flowvm.vm.machine.words import ARRAY, CTL, KIND, OPERAND, RING


def issue_many(base: int, first: int, count: int, entry: int, operands: int, width: int) -> int:
    """Issue `count` instructions from sequence number `first`, of `width` words of `operands`."""
    m = words_at(base, ARRAY.WORDS)
    table = words_at(operands, count * width)
    for i in range(count):
        seq = first + i
        while seq >= load_acquire(m, CTL.LIMIT):
            sched_yield()
        at = RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS
        m[at + RING.ENTRY] = entry
        for k in range(width):
            m[at + RING.OPERANDS - k] = table[i * width + k]
        store_release(m, at + RING.MARK, seq + 1)
    return 0


def run(operands: np.ndarray, access: list[int]) -> float:
    """Seconds an instruction for a program: one row of storage ids an instruction."""
    count, width = map(int, operands.shape)
    kernel = jit.native(no_op, "int32(int64, int64, int64, int64)")
    entry = engine.entries.new(KIND.OP_CALL, access, kernel=kernel, info="bench")
    address = address_of(issue_many, "int64(int64, int64, int64, int64, int64, int64)")
    call = ctypes.CFUNCTYPE(ctypes.c_int64, *([ctypes.c_int64] * 6))(address)
    engine.waits.sync()
    words = np.ascontiguousarray(operands, np.int64)
    first = next(iter(hot["counter"]))
    hot["counter"] = itertools.count(first + count)
    start = time.perf_counter()
    call(engine.base, first, count, entry, words.ctypes.data, width)
    engine.waits.wait_idle()
    seconds = time.perf_counter() - start
    return seconds / count


def chain(count: int) -> np.ndarray:
    """Each instruction changes the same storage."""
    return np.full((count, 1), free_ids(1)[0])


def free_ids(count: int) -> list[int]:
    """Ids of `count` storages that nothing else uses."""
    return [engine.storages.refill() for _ in range(count)]


def random_dag(count: int, live: int, seed: int) -> np.ndarray:
    """Each instruction writes one of `live` storages and reads two."""
    ids = np.array(free_ids(live))
    return ids[np.random.default_rng(seed).integers(0, live, (count, 3))]


def sliding_dag(count: int, live: int, seed: int) -> np.ndarray:
    """Return a DAG whose instructions draw from 100 neighbours, which slide over all `live`.

    The hazards are the same for every `live`, so what is left is the cost of having many.
    """
    ids = np.array(free_ids(live))
    first = np.arange(count) * max(live - 100, 0) // max(count - 1, 1)
    near = np.random.default_rng(seed).integers(0, min(live, 100), (count, 3))
    operands: np.ndarray = ids[first[:, None] + near]
    return operands


def main() -> None:
    """Print nanoseconds an instruction."""
    for _ in range(3):
        print(f"chain            {run(chain(1_000_000), [OPERAND.MUT]) * 1e9:6.0f} ns")
        for live in (100, 1000, 10_000, 100_000):
            seconds = run(
                random_dag(1_000_000, live, 0), [OPERAND.MUT, OPERAND.CONST, OPERAND.CONST]
            )
            print(f"random, {live:6d} live {seconds * 1e9:6.0f} ns")
        for count in (1000, 10_000, 100_000):
            access = [OPERAND.MUT, OPERAND.CONST, OPERAND.CONST]
            seconds = min(run(random_dag(count, 100, 0), access) for _ in range(5))
            print(f"random, count {count:6d} {seconds * 1e9:6.0f} ns")


if __name__ == "__main__":
    main()
