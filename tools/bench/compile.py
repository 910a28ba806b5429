"""The cost of capturing and compiling a graph, each in a process of its own.

"Warm" finds every kernel in the cache of another process; "cold" starts with a cache in which only
the VM's own code is.  A graph that trains makes its optimizer's state in a first, eager step; the
second call captures, compiles and runs.  Warm rows are of the second call, cold ones of both.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from tools.bench.measure import Result

MODELS = ("mlp", "transformer of 12 blocks")
ROWS = (  # model, cache, what of it counts, unit, reach
    ("mlp", "warm", "capture", "ms", 50.0),
    ("transformer of 12 blocks", "warm", "capture", "s", 2.0),
    ("transformer of 12 blocks", "cold", "both", "s", 10.0),
)


def measure(model: str) -> dict[str, float]:
    """Seconds of the capture and of both calls, and kernels compiled; in this process."""
    import flowvm as flow
    from flowvm.compiler import jit
    from tools.bench import targets
    from tools.bench.graph import _ours_step

    make: Callable[[Any], Any] = targets.mlp
    if model != "mlp":
        make = lambda lib: targets.transformer(lib, 12)  # noqa: E731
    flow.ones(1).item()  # the VM runs
    step, seconds = _ours_step(make), []
    before, busy = jit.stats().compiled, []
    for _ in range(2):
        start, thread = time.perf_counter(), time.thread_time()
        step()
        flow.vm.sync()
        seconds.append(time.perf_counter() - start)
        busy.append(time.thread_time() - thread)
    compiled = jit.stats().compiled - before
    return {
        "capture": seconds[1],
        "both": sum(seconds),
        "busy capture": busy[1],
        "busy both": sum(busy),
        "kernels": compiled,
    }


def _elsewhere(model: str, cache: str) -> dict[str, float]:
    environment = {**os.environ, "FLOWVM_CACHE_DIR": cache}
    command = [sys.executable, "-m", "tools.bench.compile", model]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return seconds


def results() -> Iterator[Result]:
    """Every row."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        only_vm = f"{folder}/vm"
        _elsewhere("nothing", only_vm)
        for model in MODELS:
            cache = shutil.copytree(only_vm, f"{folder}/{model}")
            for state in ("cold", "warm"):
                seconds[model, state] = _elsewhere(model, cache)
    for model, state, what, unit, reach in ROWS:
        one = seconds[model, state]
        ours = one[what] * (1000 if unit == "ms" else 1)
        yield Result(
            f"graph: capture and compile, {model}, {state}", unit, ours,
            reach=f"at most {reach:g} {unit}", met=ours <= reach,
            note=f"{one['kernels']:.0f} kernels compiled; the thread was busy for "
            f"{one[f'busy {what}']:.2g} s",
        )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "nothing":
        import flowvm

        print(json.dumps({"sum": flowvm.ones(1).item()}))
    else:
        print(json.dumps(measure(sys.argv[1])))
