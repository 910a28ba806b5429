"""Memory that runs out: the VM's at each of its allocations, and Python's at each call.

A case is programs and how memory runs out: the bytes that the VM's process may take
(`resource.setrlimit`); sizes that no machine has; the n-th block that the VM asks the system for,
for every n that a program comes to; or the n-th call of a function of flowvm, for every n, made to
raise MemoryError.  Afterwards the VM computes, everybody hears of what failed, and live bytes are
what they were.

The VM's own loops call the C library's `aligned_alloc`.  In a process in which they are not loaded
yet they are given another one instead, which counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import random
import resource
import sys
from collections import Counter
from types import FrameType
from typing import Any

import flowvm as flow
from flowvm.autograd.backward import _ones
from flowvm.compiler import jit
from flowvm.vm.engine.engine import engine

AMOUNTS: Counter[str] = Counter()
BATCH = 10
PATIENCE = 300  # a case is some hundred to a thousand runs of programs
PROGRAMS = ("eager", "graph", "backward", "views", "shapes", "many", "stream", "release")
HOWS = ("limit", "huge", "system", "python")
Case = dict[str, Any]


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    how = rng.choice(HOWS)
    most = 2 if how in ("system", "python") else 5
    programs = [[rng.choice(PROGRAMS), rng.randrange(2, 40)] for _ in range(rng.randint(1, most))]
    return {"how": how, "at": rng.randrange(1, 1 << 12), "programs": programs}


def kind(case: Case) -> str:
    """Return the kind of a case."""
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
    """Run out of memory, and check the state that is left."""
    if not engine.threads.running:
        _counting()
    for name, n in case["programs"]:
        with contextlib.suppress(Exception):
            _program(name, n)  # kernels are compiled, caches are filled
    before = _live()
    how = {"limit": _limited, "huge": _huge, "system": _system, "python": _python}[case["how"]]
    failed = how(case)
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
    _ones.clear()  # kept for the next step
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
    elif name == "release":
        for k in range(n):
            flow.ones(k + 1)
            engine.storages.release_dead()  # by Python: native calls release on their own
    else:
        with flow.stream(_stream):
            assert (flow.ones(1 << 14) * n).sum().item() == n << 14


_graph = flow.compile(lambda x: (x * 2 + 1).sum())
_large_graph = flow.compile(lambda x: (x.cumsum(0) * 2)[-1] + 2)
_stream = flow.Stream("memory")


def _limited(case: Case) -> int:
    """Run the programs, and large ones, with little more address space than is taken."""
    failed = 0
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (case["at"] << 12), hard))
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
    """Allocate more memory than any machine has, between the programs."""
    failed = 0
    for name, n in case["programs"]:
        try:
            flow.ones(1 << 20, 1 << 20, n).sum().item()
        except MemoryError:
            failed += 1
        _program(name, n)
    assert failed == len(case["programs"]), "that much memory?"
    return failed


# --- each allocation of the VM's ------------------------------------------------------------------

LARGE = 1 << 19  # elements: the system is asked for each such tensor


class Counting:
    """An `aligned_alloc` that fails once."""

    def __init__(self) -> None:
        self.requests, self.fails_at = 0, -1
        real = ctypes.CDLL(None).aligned_alloc
        real.restype, real.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]
        self.real = real
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
        self.function = kind(self)  # kept: the VM calls it as long as there is one

    def __call__(self, alignment: int, size: int) -> int | None:
        self.requests += 1
        if self.requests == self.fails_at:
            return None
        block: int | None = self.real(alignment, size)
        return block


@functools.cache
def _counting() -> Counting:
    assert not engine.threads.running, (
        "the VM of this process runs already, with its own aligned_alloc"
    )
    counting = Counting()
    jit.provide("aligned_alloc", ctypes.cast(counting.function, ctypes.c_void_p).value or 0)
    return counting


def _system(case: Case) -> int:
    """The n-th block fails, for every n."""
    counting, failed = _counting(), 0
    for name, n in case["programs"]:
        fails_at = 0
        while True:
            fails_at += 1
            flow.vm.empty_cache()
            counting.requests, counting.fails_at = 0, fails_at
            try:
                _large(name, n)
                flow.vm.sync()  # what was poisoned need not have been read
            except MemoryError:
                failed += 1
            else:
                assert counting.requests < fails_at, f"nobody heard that block {fails_at} failed"
                break
            finally:
                flow.vm.empty_cache()  # behind what is in flight
                counting.fails_at = -1
            assert counting.requests >= fails_at
        assert fails_at > 1, f"{name} asks the system for nothing"
    return failed


def _large(name: str, n: int) -> None:
    """A program whose tensors are large."""
    x = flow.ones(LARGE)
    if name == "graph":
        assert _large_graph(x).item() == 2 * LARGE + 2
    elif name == "backward":
        w = x.requires_grad_()
        (w * w * n).sum().backward()
        assert w.grad is not None
        assert w.grad[-1].item() == 2 * n
    elif name == "views":
        x[1:].add_(n)
        total = (x.view(2, -1).t() * 2).sum(dtype=flow.float64)  # float32 has not all such numbers
        assert total.item() == 2 * (LARGE + n * (LARGE - 1))
    elif name == "shapes":
        assert flow.nonzero(x).sum().item() == LARGE * (LARGE - 1) // 2
    elif name == "stream":
        with flow.stream(_stream):
            assert (x * n).sum().item() == LARGE * n
    else:
        held = [x + k for k in range(n % 5 + 1)]
        assert [h[-1].item() for h in held] == [1 + k for k in range(n % 5 + 1)]


# --- each call in Python --------------------------------------------------------------------------


def _python(case: Case) -> int:
    """MemoryError at the n-th call of a function of flowvm, where a frame is allocated: for every
    n.
    """
    failed = 0
    for name, n in case["programs"]:
        failed += _each_call(name, n % 5 + 2)  # calls of a first use among them
        _settle(name, n % 5 + 2)
        failed += _each_call(name, n % 5 + 2)  # behind them, all calls of a later one
    return failed


def _each_call(name: str, n: int) -> int:
    """Run a program with a failure at its first call, at its second, and on to its last one."""
    live, failed, fails_at = _live(), 0, 0
    while True:
        fails_at += 1
        called, raised = _called(name, n, fails_at)
        failed += raised
        flow.vm.sync()
        if flow.vm.stats()["live_bytes"] > live:
            assert _live() <= live, f"call {fails_at} of {name}: more bytes are live"
        if called < fails_at:
            return failed


def _settle(name: str, n: int) -> None:
    """Run a program until two runs make the same number of calls: caches are filled."""
    counts = [-1]
    while counts.count(counts[-1]) < 2 and len(counts) < 20:
        counts.append(_called(name, n, 0)[0])


def _called(name: str, n: int, fails_at: int) -> tuple[int, bool]:
    """Run a program until one of its calls of flowvm's functions fails.

    Return the number of calls, and True if one failed.
    """
    called = 0

    def tracer(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal called
        place = frame.f_code.co_filename
        if event == "call" and ("flowvm" in place or "/ops/" in place):
            called += 1
            if called == fails_at and frame.f_code.co_name not in _SILENT:
                raise MemoryError("injected")

    sys.setprofile(tracer)
    try:
        _program(name, n)
    except MemoryError:
        return called, True
    finally:
        sys.setprofile(None)
    return called, False


# finalizers, where it would be printed and not raised
_SILENT = ("__del__", "_close", "_drop", "remove")
