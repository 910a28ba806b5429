"""Children forked at random moments, while threads issue, fail, compile, replay and go backward.

A case is what the threads do and, for each child, how long after the last one it is forked, what
is pending then, and how it ends.  A child reads what was pending, computes and compares; it must
end with 0, in time, and print nothing.  Afterwards the parent computes, too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from typing import Any

import flowvm as flow
from flowvm.compiler import cache, jit

warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
AMOUNTS: Counter[str] = Counter()
BATCH = 5
PATIENCE_S = 90.0  # for one child, which takes some milliseconds
THREADS = ("issue", "stream", "fail", "compile", "graph", "backward", "delete", "read")
PENDING = ("product", "chain", "nothing", "views", "stream", "replay")
ENDS = ("_exit", "exit", "fork")
Case = dict[str, Any]


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    threads = [rng.choice(THREADS) for _ in range(rng.randrange(4))]
    children = [
        [round(rng.expovariate(200), 5), rng.choice(PENDING), rng.choice(ENDS), rng.randrange(100)]
        for _ in range(rng.randrange(1, 12))
    ]
    return {"threads": threads, "children": children}


def kind(case: Case) -> str:
    """Return the kind of a case."""
    return "beside " + (" ".join(sorted(set(case["threads"]))) or "nothing")


def parts(case: Case) -> list[Any]:
    """Threads, then children."""
    return [*case["threads"], *case["children"]]


def without(case: Case, k: int) -> Case:
    """The case without a thread or a child."""
    threads, children = list(case["threads"]), list(case["children"])
    del (threads if k < len(threads) else children)[k if k < len(threads) else k - len(threads)]
    return {"threads": threads, "children": children}


def check(case: Case) -> str:
    """Fork; whatever a child prints or ends with otherwise is raised."""
    stop = threading.Event()
    _warm()
    threads = [
        threading.Thread(target=_work, args=(name, stop), daemon=True) for name in case["threads"]
    ]
    write, cache.write = cache.write, lambda *args: None  # what is compiled here is of no use later
    try:
        for thread in threads:
            thread.start()
        for pause, pending, end, number in case["children"]:
            time.sleep(pause)
            _child(pending, end, number)
            AMOUNTS["forks"] += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        cache.write = write
    assert not any(t.is_alive() for t in threads), "a thread of the parent hangs"
    assert (flow.arange(100) * 2).sum().item() == 9900
    return "well"


@functools.cache
def _warm() -> None:
    """Compile the kernels that all cases need, for a child has little time."""
    for pending in PENDING:
        value, expected = _pending(pending, 3)
        _compute(value, expected, 3)


# --- what threads do ------------------------------------------------------------------------------


def _work(name: str, stop: threading.Event) -> None:
    stream = flow.Stream(f"of {name}") if name == "stream" else None
    twice = flow.compile(lambda x: (x * 2).sum() + 1)
    x, w = flow.ones(16), flow.ones(16).requires_grad_()
    turn = 0
    while not stop.is_set():
        turn += 1
        if name == "fail":
            with contextlib.suppress(IndexError):
                flow.index_select(x, 0, flow.tensor([turn + 99])).numpy()
        elif name == "compile":
            jit.native(_plus, "int64(int64)", facts=(threading.get_ident(), turn))
        elif name == "graph":
            assert twice(x).item() == 33
        elif name == "backward":
            (w * x).sum().backward()
            w.grad = None
        elif name == "delete":
            held = [x + k for k in range(20)]
            del held
        elif name == "read":
            assert x.sum().item() == 16
        else:
            with flow.stream(stream) if stream is not None else contextlib.nullcontext():
                y = (x * 2 + turn).sum()
            if turn % 50 == 0:
                assert y.item() == 32 + 16 * turn


def _plus(x: int) -> int:
    return x + 1


# --- children -------------------------------------------------------------------------------------


def _pending(what: str, number: int) -> tuple[Any, float]:
    """A tensor on whose value work is pending, and the value."""
    if what == "nothing":
        return flow.ones(3).sum(), 3.0
    if what == "product":
        a = flow.ones(150, 150)
        return (a @ a).sum() + number, 150.0**3 + number
    if what == "chain":
        x = flow.zeros(4)
        for _ in range(200):
            x = x + 1
        return x.sum(), 800.0
    if what == "views":
        x = flow.zeros(8, 8)
        x[2:4].add_(number)
        return x.sum(), 16.0 * number
    if what == "replay":
        return flow.compile(lambda x: (x * 3 + 1).sum())(flow.ones(5)), 20.0
    with flow.stream(flow.Stream("pending")):
        return (flow.ones(100) * number).sum(), 100.0 * number


def _child(pending: str, end: str, number: int) -> None:
    value, expected = _pending(pending, number)
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            _compute(value, expected, number)
            if end == "fork":
                inner = os.fork()
                if inner == 0:
                    _compute(value, expected, number)
                    os._exit(0)
                code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
            else:
                code = 0
            if end == "exit":
                _leave()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(writer)
    output, late = _output_of(reader, pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    what = f"a child beside pending {pending} that ends by {end}"
    assert not late, f"{what} hangs: {output}"
    assert code == 0, f"{what} ended with {code}: {output}"
    assert not output, f"{what} said: {output}"


def _leave() -> None:
    """Leave flowvm as the end of Python does, without the functions that the frame registered."""
    from flowvm.vm.engine.engine import engine

    engine.exit()


def _compute(value: Any, expected: float, number: int) -> None:
    assert value.item() == expected, f"{value.item()} is not {expected}"
    x = flow.arange(50) + number
    assert x.sum().item() == 1225 + 50 * number
    assert flow.ones(7, 3).matmul(flow.ones(3, 7)).sum().item() == 147
    w = flow.ones(3).requires_grad_()
    (w * number).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [float(number)] * 3
    flow.vm.sync()


def _output_of(reader: int, pid: int) -> tuple[str, bool]:
    """Return the text that a child printed, and True if the child did not end in time."""
    output, until = b"", time.monotonic() + PATIENCE_S
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGKILL)
                return output.decode(errors="replace"), True
            more = pipe.read(1 << 16)
            if not more:
                return output.decode(errors="replace"), False
            output += more
