"""Reading values as a prompt and a loop of decisions do: finished ones, and ones just issued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import flowvm as flow
from tools.bench.measure import Result, paired

Runner = Callable[[int], None]
Call = Callable[[], Any]


def _finished(lib: Any) -> Any:
    """An 8x8 tensor whose writer is done."""
    y = lib.ones(8, 8) + 1
    y.sum().item()
    return y


def item(lib: Any) -> Call:
    """`.item()` of a finished sum."""
    total = _finished(lib).sum()
    total.item()
    return lambda: total.item()


def numpy(lib: Any) -> Call:
    """`.numpy()` of a finished 8x8."""
    y = _finished(lib)
    return lambda: y.numpy()


def tolist(lib: Any) -> Call:
    """`.tolist()` of a finished 8x8."""
    y = _finished(lib)
    return lambda: y.tolist()


def element(lib: Any) -> Call:
    """`x[0, 0].item()`."""
    y = _finished(lib)
    return lambda: y[0, 0].item()


def total(lib: Any) -> Call:
    """`(y + 1).sum().item()`."""
    y = _finished(lib)
    return lambda: (y + 1).sum().item()


def branch(lib: Any) -> Call:
    """`bool((y > 0).all())`."""
    y = _finished(lib)
    return lambda: bool((y > 0).all())


def equal(lib: Any) -> Call:
    """`equal(x, y)`."""
    x, y = _finished(lib), _finished(lib)
    return lambda: lib.equal(x, y)


def close(lib: Any) -> Call:
    """`allclose(x, y)`."""
    x, y = _finished(lib), _finished(lib)
    return lambda: lib.allclose(x, y)


def array(lib: Any) -> Call:
    """`np.asarray(x)`."""
    x = _finished(lib)
    return lambda: np.asarray(x)


def dlpack(lib: Any) -> Call:
    """`np.from_dlpack(x)`."""
    x = _finished(lib)
    return lambda: np.from_dlpack(x)


def made_of(data: Any) -> Callable[[Any], Call]:
    """`tensor(data)`."""
    return lambda lib: lambda: lib.tensor(data)


def zeros(lib: Any) -> Call:
    """`zeros(3)`."""
    return lambda: lib.zeros(3)


def arange(lib: Any) -> Call:
    """`arange(10)`."""
    return lambda: lib.arange(10)


def numbers(count: int) -> Callable[[Any], Call]:
    """`tensor(list)` of so many floats."""
    values = [0.5 * k for k in range(count)]
    return lambda lib: lambda: lib.tensor(values)


def agent(lib: Any) -> Call:
    """A DQN-like step: act by `argmax().item()`, push, and learn from a batch of what was seen."""
    lib.manual_seed(0)
    nn = lib.nn
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = lib.optim.Adam(model.parameters(), lr=1e-3)
    memory: list[tuple[list[float], int, float]] = []
    state = [0.1, 0.2, 0.3, 0.4]

    def step() -> None:
        with lib.no_grad():
            action = model(lib.tensor(state)).argmax().item()
        memory.append((state, action, 1.0))
        if len(memory) > 64:
            memory.pop(0)
        batch = memory[-32:]
        states = lib.tensor([s for s, _, _ in batch])
        actions = lib.tensor([a for _, a, _ in batch])
        targets = lib.tensor([r for _, _, r in batch])
        chosen = model(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = nn.functional.mse_loss(chosen, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


CASES: tuple[tuple[str, Callable[[Any], Call], int, float], ...] = (
    ("item() of a finished sum", item, 5_000, 1.0),
    ("numpy() of a finished 8x8", numpy, 5_000, 1.0),
    ("tolist() of a finished 8x8", tolist, 5_000, 1.0),
    ("x[0, 0].item()", element, 5_000, 1.0),
    ("(y + 1).sum().item()", total, 2_000, 0.8),
    ("bool((y > 0).all())", branch, 2_000, 0.8),
    ("equal(x, y), 8x8", equal, 2_000, 0.8),
    ("allclose(x, y), 8x8", close, 2_000, 0.8),
    ("np.asarray(x), 8x8", array, 5_000, 1.0),
    ("np.from_dlpack(x), 8x8", dlpack, 2_000, 1.0),
    ("tensor(3.0)", made_of(3.0), 2_000, 0.8),
    ("tensor(list of 3)", numbers(3), 2_000, 0.8),
    ("tensor(list of 10)", numbers(10), 2_000, 0.8),
    ("tensor(10 ints)", made_of(list(range(10))), 2_000, 0.8),
    ("tensor(2x3 floats)", made_of([[0.0, 0.5, 1.0], [1.5, 2.0, 2.5]]), 2_000, 0.8),
    ("tensor(list of 100)", numbers(100), 2_000, 0.8),
    ("tensor(list of 1,000)", numbers(1_000), 500, 0.8),
    ("tensor(list of 10,000)", numbers(10_000), 50, 0.8),
    ("zeros(3)", zeros, 2_000, 1.0),
    ("arange(10)", arange, 2_000, 1.0),
    ("a DQN-like step", agent, 200, 0.5),
)


def _repeated(call: Call) -> Runner:
    def run(count: int) -> None:
        for _ in range(count):
            call()

    return run


def _synced(run: Runner) -> Runner:
    """Ours may have issued what nobody read: wait at the end, inside the measured time."""

    def whole(count: int) -> None:
        run(count)
        flow.vm.sync()

    return whole


def results(peers: dict[str, Any], rounds: int, only: str) -> Iterator[Result]:
    """A row for each case."""
    torch = peers.get("torch")
    for name, make, count, reach in CASES:
        if only not in name:
            continue
        ours = _synced(_repeated(make(flow)))
        theirs = None if torch is None else _repeated(make(torch))
        mine, peer, ratio = paired(ours, theirs, count, rounds)
        yield Result(
            name,
            "us",
            mine * 1e6,
            "" if torch is None else "torch",
            None if peer is None else peer * 1e6,
            ratio,
            f"at most {reach}x",
            None if ratio is None else ratio <= reach,
        )
