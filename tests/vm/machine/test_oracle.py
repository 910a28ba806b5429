"""One program, many engines, the same bits: NumPy, the sequential engine, the VM with 1, 2 and 4
streams.

A program is made first and knows nothing of where it runs.  Its updates do not commute, so an order
that is not program order where it matters gives other numbers.
"""

from __future__ import annotations

import random
from contextlib import nullcontext

import numpy as np
import pytest

from flowvm.eager.modes import use_stream
from flowvm.eager.tensor import alias
from flowvm.eager.values import memory_of
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.lang import words_at
from flowvm.vm.machine.words import CTL, OPERAND, RING
from tests.vm.kernels import SIZE, mix, odd, tensor, update, update_in_chunks
from tests.vm.live import streams, word

NAMES = "abcdefgh"
HALF = SIZE // 2


def random_steps(rng, length):
    """(what, names, number, which stream): `length` steps over tensors that come and go."""
    whats = (
        ["mix"] * 4 + ["update"] * 5 + ["chunks"] * 2 + ["view", "odd", "callback", "free", "read"]
    )
    steps = []
    for _ in range(length):
        names = [rng.choice(NAMES) for _ in range(3)]
        steps.append((rng.choice(whats), names, rng.randrange(-9, 9), rng.randrange(64)))
    return steps


def on_numpy(steps, start):
    """Return the meaning of a program, and the values that its reads see."""
    t, values = {name: start[name].copy() for name in NAMES}, []
    for what, (x, y, z), k, _ in steps:
        if what == "mix":
            t[z] = 3 * t[x] - t[y][::-1] + k
        elif what in ("update", "chunks"):
            t[x] = 5 * t[x] + t[y] + k
        elif what == "view":  # the second half of x from the first half of y
            t[x][HALF:] = 5 * t[x][HALF:] + t[y][:HALF] + k
        elif what == "odd":
            odd_values = t[x][t[x] % 2 == 1]
            t[y][: len(odd_values)] = 5 * t[y][: len(odd_values)] + odd_values + k
        elif what == "callback":
            t[x] = t[x] - 3 * t[y]
        elif what == "free":
            t[x] = np.full(SIZE, k)
        else:
            values.append(int(t[x][k]))
    return [t[name].tolist() for name in NAMES], values


def on_flowvm(steps, start, numbers):
    """Run the steps on tensors; step s runs on stream numbers[s % len(numbers)]."""
    t, values = {name: tensor(start[name]) for name in NAMES}, []
    for what, (x, y, z), k, s in steps:
        stream = numbers[s % len(numbers)]
        with use_stream(stream) if stream else nullcontext():
            if what == "mix":
                t[z] = mix(t[x], t[y], k)
            elif what == "update":
                update(t[x], t[y], k)
            elif what == "chunks":
                update_in_chunks(t[x], t[y], k)
            elif what == "view":
                update(part(t[x], HALF, HALF), part(t[y], 0, HALF), k)
            elif what == "odd":
                odd_values = odd(t[x])
                rows = odd_values.shape[0]
                if rows:
                    update(part(t[y], 0, rows), odd_values, k)
            elif what == "callback":
                engine.callbacks.issue(
                    subtract, [t[x]._ref, t[y]._ref], [OPERAND.MUT, OPERAND.CONST]
                )
            elif what == "free":
                t[x] = tensor(np.full(SIZE, k))
            else:
                values.append(int(memory_of(t[x])[k]))
    return [memory_of(t[name]).tolist() for name in NAMES], values


def part(t, first, count):
    return alias(t, TensorMeta.of((count,), int64), 8 * first)


def subtract(x, y):
    mine = words_at(x, SIZE)
    mine[:] = mine - 3 * words_at(y, SIZE)


def check_program(seed, length, engines):
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    start = {name: numbers.integers(-9, 9, SIZE) for name in NAMES}
    steps = random_steps(rng, length)
    with np.errstate(over="ignore"):
        expected = on_numpy(steps, start)
    for name in engines:
        if name == "sequential":
            with engine.sequential.region():
                actual = on_flowvm(steps, start, [0])
        else:
            actual = on_flowvm(steps, start, streams(name))
        assert actual == expected, f"{name}: differs from NumPy, seed {seed}"


@pytest.mark.parametrize("which", ["sequential", 1, 2, 4])
def test_the_same_bits_as_numpy(which, seed):
    for i in range(6):
        check_program(seed + i, 150, [which])


def test_long_programs_on_all_engines(seed):
    """Long enough that issuing waits for room, and changing engines on the way."""
    check_program(seed, 3 * RING.SLOTS // 2, [4, "sequential", 2])


def test_streams_really_ran_beside_each_other(seed):
    """Else the tests above would say little: edges across streams that must be waited for."""
    before = [word(i) for i in (CTL.N_RAW, CTL.N_WAR, CTL.N_WAW, CTL.N_PRESCHEDULED)]
    check_program(seed, 300, [4])
    raw, war, waw, prescheduled = (
        word(i) - b
        for i, b in zip((CTL.N_RAW, CTL.N_WAR, CTL.N_WAW, CTL.N_PRESCHEDULED), before, strict=True)
    )
    assert raw > 0
    assert war > 0
    assert waw > 0
    assert raw + war + waw - prescheduled > 50


def test_programs_differ_when_steps_are_swapped(seed):
    """The oracle's own check: swapping two conflicting neighbours gives other numbers."""
    rng = random.Random(seed)
    start = {name: np.arange(SIZE) + i for i, name in enumerate(NAMES)}
    for _ in range(20):
        steps = [("update", rng.sample(NAMES, 3), rng.randrange(1, 9), 0) for _ in range(8)]
        steps[4] = ("update", [*steps[3][1][1::-1], "h"], 2, 0)  # writes what step 3 reads
        swapped = [*steps[:3], steps[4], steps[3], *steps[5:]]
        assert on_numpy(steps, start) != on_numpy(swapped, start)
