"""Functions of functions: gradients of samples, Jacobians, Hessians, beside torch.func."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import flowvm as flow
from tools.bench.measure import Result, paired

Call = Callable[[], Any]


def _normal(*shape: int) -> Any:
    rng = np.random.default_rng(len(shape) * 1000 + sum(shape))
    return (rng.standard_normal(shape) * 0.3).astype(np.float32)


def _func(lib: Any) -> Any:
    return importlib.import_module(f"{lib.__name__}.func")


def per_sample(lib: Any) -> Call:
    """`vmap(grad)` of an MLP with two hidden layers, 256 samples."""
    sizes = (64, 32), (64,), (64, 64), (64,), (10, 64), (10,)
    params = tuple(lib.tensor(_normal(*s)) for s in sizes)
    x, y = lib.tensor(_normal(256, 32)), lib.tensor(_normal(256, 10))
    linear = lib.nn.functional.linear

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = lib.tanh(linear(lib.tanh(linear(x, p[0], p[1])), p[2], p[3]))
        return ((linear(h, p[4], p[5]) - y) ** 2).mean()

    run = _func(lib).vmap(_func(lib).grad(loss), (None, 0, 0))
    return lambda: run(params, x, y)


def images(lib: Any) -> Call:
    """Per-sample gradients of a CNN with two convolutions, 64 images of 10 x 10."""
    sizes = (8, 1, 3, 3), (8,), (16, 8, 3, 3), (16,), (10, 576), (10,)
    params = tuple(lib.tensor(_normal(*s)) for s in sizes)
    x, y = lib.tensor(_normal(64, 1, 10, 10)), lib.tensor(np.arange(64) % 10)
    f = lib.nn.functional

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = lib.relu(f.conv2d(lib.relu(f.conv2d(x[None], p[0], p[1])), p[2], p[3]))
        return f.cross_entropy(f.linear(h.flatten(1), p[4], p[5]), y[None])

    run = _func(lib).vmap(_func(lib).grad(loss), (None, 0, 0))
    return lambda: run(params, x, y)


def hessian(size: int) -> Callable[[Any], Call]:
    """`hessian` of a function of so many numbers."""

    def make(lib: Any) -> Call:
        w, x = lib.tensor(_normal(size, size)), lib.tensor(_normal(size))
        run = _func(lib).hessian(lambda x: (lib.tanh(w @ x) ** 2).sum() + (x**3).sum())
        return lambda: run(x)

    return make


def jacobian(name: str, size: int) -> Callable[[Any], Call]:
    """`jacrev` or `jacfwd` of a function of so many numbers to as many."""

    def make(lib: Any) -> Call:
        w, x = lib.tensor(_normal(size, size)), lib.tensor(_normal(size))
        run = getattr(_func(lib), name)(lambda x: lib.sin(lib.tanh(w @ x) * x))
        return lambda: run(x)

    return make


def jacobians(lib: Any) -> Call:
    """`vmap(jacrev)`: 64 Jacobians of 33 x 31."""
    w, x = lib.tensor(_normal(33, 31)), lib.tensor(_normal(64, 31))
    run = _func(lib).vmap(_func(lib).jacrev(lambda x: lib.tanh(w @ x)))
    return lambda: run(x)


CASES: tuple[tuple[str, Callable[[Any], Call], int], ...] = (
    ("vmap(grad), MLP, 256 samples", per_sample, 20),
    ("hessian, D = 16", hessian(16), 30),
    ("hessian, D = 64", hessian(64), 20),
    ("vmap(jacrev), 64 of 33x31", jacobians, 40),
    ("jacrev, D = 64", jacobian("jacrev", 64), 80),
    ("jacfwd, D = 64", jacobian("jacfwd", 64), 80),
    ("vmap(grad), CNN, 64 images", images, 15),
)
REACH = 0.8


def results(peers: dict[str, Any], rounds: int, only: str) -> Iterator[Result]:
    """A row for each case."""
    torch = peers.get("torch")
    for name, make, count in CASES:
        if only not in name:
            continue
        mine, peer, ratio = paired(
            _repeated(make(flow), flow.vm.sync),
            None if torch is None else _repeated(make(torch)),
            count,
            rounds,
        )
        met = None if ratio is None else ratio <= REACH
        yield Result(
            name, "us", mine * 1e6, "torch" if torch else "", peer and peer * 1e6, ratio,
            f"<= {REACH}", met,
        )  # fmt: skip


def _repeated(call: Call, end: Call | None = None) -> Callable[[int], None]:
    for _ in range(4):
        call()

    def run(count: int) -> None:
        for _ in range(count):
            call()
        if end is not None:
            end()

    return run
