"""Several Python threads that issue on tensors of their own and shared ones, each with its modes.

A case is a list of steps for each thread.  What a thread computes of its own is compared with plain
Python numbers; what it does to a shared tensor commutes with what the others do, so its value at
the end is known, too.  Then all threads use objects that nobody has used before, each at once
(`_firsts`), changing as often as CPython lets them.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from typing import Any

import flowvm as flow
from tools.campaign import _firsts

AMOUNTS: Counter[str] = Counter()
BATCH = 20
STEPS = (
    "add", "mul", "view", "shared", "stream", "no_grad", "backward", "fail", "delete", "shape",
    "read", "autocast", "graph", "sync", "error",
)  # fmt: skip
Case = dict[str, Any]


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    count = rng.randrange(2, 6)
    return {
        "threads": [
            [[rng.choice(STEPS), rng.randrange(1, 9)] for _ in range(rng.randrange(20, 120))]
            for _ in range(count)
        ],
        "firsts": [[rng.choice(list(_firsts.KINDS)), rng.randrange(2, 6)] for _ in range(8)],
    }


def kind(case: Case) -> str:
    """Return the kind of a case."""
    return f"{len(case['threads'])} threads"


def parts(case: Case) -> list[Any]:
    """Every thread's steps in runs of eight, and each kind of first use."""
    return [*(run for steps in case["threads"] for run in _runs(steps)), *case["firsts"]]


def _runs(steps: list[Any]) -> list[list[Any]]:
    return [steps[i : i + 8] for i in range(0, len(steps), 8)]


def without(case: Case, k: int) -> Case:
    """The case without a run."""
    threads = []
    for steps in case["threads"]:
        runs = _runs(steps)
        rest = [run for i, run in enumerate(runs) if i != k]
        k -= len(runs)
        threads.append([step for run in rest for step in run])
    return {"threads": threads, "firsts": [f for i, f in enumerate(case["firsts"]) if i != k]}


def check(case: Case) -> str:
    """Run the threads, and raise the error of one that fails."""
    shared = flow.zeros(16, dtype=flow.int64)
    issued = flow.vm.stats()["issued"]
    errors: list[BaseException] = []
    begin = threading.Barrier(len(case["threads"]))
    threads = [
        threading.Thread(target=_run, args=(steps, shared, begin, errors), daemon=True)
        for steps in case["threads"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    if errors:
        raise errors[0]
    total = sum(n for steps in case["threads"] for name, n in steps if name == "shared")
    assert shared.tolist() == [total] * 16, f"{shared.tolist()}, not {total} each"
    assert flow.is_grad_enabled(), "another thread's mode"
    y = flow.ones(2).requires_grad_() * 2
    assert y.requires_grad
    AMOUNTS["instructions"] += flow.vm.stats()["issued"] - issued
    AMOUNTS["threads"] += len(threads)
    for name, many in case["firsts"]:
        _firsts.run(name, many)
        AMOUNTS["first uses"] += many * _firsts.KINDS[name].objects
    return "well"


def _run(steps: Any, shared: Any, begin: threading.Barrier, errors: list[BaseException]) -> None:
    try:
        begin.wait(30)
        _steps(steps, shared)
    except BaseException as error:
        errors.append(error)


def _steps(steps: list[Any], shared: Any) -> None:
    x, value = flow.zeros(12), 0.0
    stream = flow.Stream("campaign")
    for name, n in steps:
        match name:
            case "add":
                x, value = x + n, value + n
            case "mul":
                x, value = x * 0.5, value * 0.5
            case "view":
                x[:6].add_(n)
                x[6:].add_(n)
                value += n
            case "shared":
                shared.add_(n)
            case "stream":
                with flow.stream(stream):
                    x, value = x - n, value - n
            case "no_grad":
                with flow.no_grad():
                    assert not (flow.ones(2).requires_grad_() * n).requires_grad
            case "backward":
                w = flow.ones(5).requires_grad_()
                (w * n).sum().backward()
                assert w.grad is not None
                assert w.grad.tolist() == [float(n)] * 5
            case "fail":
                bad = flow.index_select(x, 0, flow.tensor([99]))
                with contextlib.suppress(IndexError):
                    bad.numpy()
                    raise AssertionError("poison was read")
            case "error":
                with contextlib.suppress(RuntimeError, ValueError):
                    x.reshape(n, 99)
                    raise AssertionError("a wrong shape was taken")
            case "delete":
                held = [x + k for k in range(n)]
                del held
            case "shape":
                assert flow.ones(n, 3).sum().item() == 3 * n
            case "read":
                assert x.tolist() == [value] * 12, f"{x.tolist()}, not {value}"
            case "autocast":
                with flow.autocast("cpu", dtype=flow.bfloat16):
                    assert (flow.ones(2, 2) @ flow.ones(2, 2)).dtype is flow.bfloat16
            case "graph":
                assert flow.compile(lambda t: (t + 1).sum())(flow.ones(n)).item() == 2 * n
            case _:
                with contextlib.suppress(IndexError):  # that of another thread
                    flow.vm.sync()
    assert x.tolist() == [value] * 12, f"{x.tolist()}, not {value}"
