"""Eager dispatch: small tensors, for which the framework takes the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import flowvm as flow
from tools.bench.measure import Result, paired

Runner = Callable[[int], None]


def add(lib: Any) -> Runner:
    """`a + b` on 8x8."""
    a, b = lib.ones(8, 8), lib.ones(8, 8)

    def run(count: int) -> None:
        for _ in range(count):
            a + b

    return run


def step_8x8(lib: Any) -> Runner:
    """matmul, relu, sum, backward on 8x8."""
    x = lib.rand(8, 8)
    w = lib.rand(8, 8, requires_grad=True)

    def run(count: int) -> None:
        for _ in range(count):
            w.grad = None
            lib.relu(x @ w).sum().backward()

    return run


CASES = (
    ("a + b, 8x8, issue to issue", add, 20_000, 1.2),
    ("matmul, relu, sum, backward, 8x8", step_8x8, 2_000, 0.8),
)


def _synced(run: Runner) -> Runner:
    """Ours is not done when it is issued: wait at the end, inside the measured time."""

    def whole(count: int) -> None:
        run(count)
        flow.vm.sync()

    return whole


def results(peers: dict[str, Any], rounds: int) -> Iterator[Result]:
    """A row for each case and peer."""
    torch = peers.get("torch")
    for name, make, count, reach in CASES:
        ours = _synced(make(flow))
        mine, theirs, ratio = paired(ours, None if torch is None else make(torch), count, rounds)
        yield Result(
            name,
            "us",
            mine * 1e6,
            "torch" if torch is not None else "",
            None if theirs is None else theirs * 1e6,
            ratio,
            f"at most {reach}x",
            None if ratio is None else ratio <= reach,
        )
    numpy = peers.get("numpy")
    if numpy is not None:
        a = b = numpy.ones((8, 8), numpy.float32)

        def run(count: int) -> None:
            for _ in range(count):
                a + b

        mine, theirs, ratio = paired(_synced(add(flow)), run, 20_000, rounds)
        yield Result("a + b, 8x8", "us", mine * 1e6, "numpy", theirs and theirs * 1e6, ratio)
