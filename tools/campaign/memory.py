"""Memory that runs out: the VM's, at a random allocation; and Python's, at a random one.

A case is a program and where it runs out: the bytes that the VM's process may take
(`resource.setrlimit`), sizes that no machine has, or the n-th look of a call path at an allocation
of Python's, made to raise MemoryError.  Afterwards the VM computes, everybody hears of what failed,
and live bytes are what they were.
"""

from __future__ import annotations

import contextlib
import gc
import random
import resource
import sys
from collections import Counter
from types import FrameType
from typing import Any

import flowvm as flow

AMOUNTS: Counter[str] = Counter()
BATCH = 20
PROGRAMS = ("eager", "graph", "backward", "views", "shapes", "many", "stream")
HOWS = ("limit", "huge", "python")
Case = dict[str, Any]


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    programs = [[rng.choice(PROGRAMS), rng.randrange(2, 40)] for _ in range(rng.randrange(1, 6))]
    how = rng.choice(HOWS)
    return {"how": how, "at": rng.randrange(1, 1 << 12), "programs": programs}


def kind(case: Case) -> str:
    """What a case is of."""
    name: str = case["how"]
    return name


def parts(case: Case) -> list[Any]:
    """The programs."""
    programs: list[Any] = case["programs"]
    return programs


def without(case: Case, k: int) -> Case:
    """The case without a program."""
    return {**case, "programs": case["programs"][:k] + case["programs"][k + 1 :]}


def check(case: Case) -> str:
    """Run out of memory, and look at what is left."""
    for name, n in case["programs"]:
        with contextlib.suppress(Exception):
            _program(name, n)  # kernels are compiled, caches are filled
    before = _live()
    failed = {"limit": _limited, "huge": _huge, "python": _python}[case["how"]](case)
    AMOUNTS["failures"] += failed
    after = _live()
    assert after <= before, f"{after - before} bytes more are live than were"
    for name, n in case["programs"]:
        _program(name, n)
    assert (flow.arange(10) * 2).sum().item() == 90
    assert flow.is_grad_enabled()
    return "failed" if failed else "went well"


def _live() -> int:
    with contextlib.suppress(Exception):  # what nobody looked at
        flow.vm.sync()
    for failure in flow.vm.errors():  # the frames of a remembered error hold the user's tensors
        failure.exception.__traceback__ = failure.traceback = None
    gc.collect()
    flow.vm.sync()
    return flow.vm.stats()["live_bytes"]


def _program(name: str, n: int) -> None:
    if name == "eager":
        x = flow.ones(n, 1024)
        assert ((x * 2 + 1).sum(1) + 0).tolist() == [3072.0] * n
    elif name == "graph":
        assert _graph(flow.ones(n, 64)).item() == 192 * n
    elif name == "backward":
        w = flow.ones(n, 32).requires_grad_()
        (w * w).sum().backward()
        assert w.grad is not None
        assert w.grad.sum().item() == 64 * n
    elif name == "views":
        x = flow.zeros(n, 8)
        x[1:].add_(1)
        assert x.t().sum().item() == 8 * (n - 1)
    elif name == "shapes":
        assert [flow.ones(k, n).sum().item() for k in range(1, n)] == [k * n for k in range(1, n)]
    elif name == "many":
        held = [flow.ones(1 << 14) + k for k in range(n)]
        assert [h[0].item() for h in held] == [1 + k for k in range(n)]
    else:
        with flow.stream(_stream):
            assert (flow.ones(1 << 14) * n).sum().item() == n << 14


_graph = flow.compile(lambda x: (x * 2 + 1).sum())
_stream = flow.Stream("memory")


def _limited(case: Case) -> int:
    """Run the programs, and large ones, with little more address space than is taken."""
    failed = 0
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + (case["at"] << 12), hard))
    try:
        for name, n in case["programs"]:
            try:
                _program(name, n)
                x = flow.ones(n, 1 << 19)
                assert (x + 1)[0, 0].item() == 2
            except MemoryError:
                failed += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return failed


def _huge(case: Case) -> int:
    """What no machine has, between the programs."""
    failed = 0
    for name, n in case["programs"]:
        try:
            flow.ones(1 << 20, 1 << 20, n).sum().item()
        except MemoryError:
            failed += 1
        _program(name, n)
    assert failed == len(case["programs"]), "that much memory?"
    return failed


def _python(case: Case) -> int:
    """MemoryError at the n-th call of a function of flowvm: where a frame is allocated."""
    left = case["at"] % 400 + 1

    def tracer(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal left
        name = frame.f_code.co_filename
        if event == "call" and ("flowvm" in name or "/ops/" in name):
            left -= 1
            if left == 0 and frame.f_code.co_name not in _SILENT:
                raise MemoryError("injected")

    failed = 0
    for name, n in case["programs"]:
        sys.setprofile(tracer)
        try:
            _program(name, n)
        except MemoryError:
            failed += 1
        finally:
            sys.setprofile(None)
    return failed


# finalizers, where it would be printed and not raised
_SILENT = ("__del__", "_close", "_drop", "remove")
