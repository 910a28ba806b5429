"""`import flowvm` is cheap and has no effects, and a first op in a warm cache needs no compiler.

Each test looks at a process of its own, whose compiled Python files and kernels are in folders of
the test.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = ("IPython", "cupy", "numba", "rich", "safetensors", "scipy", "torch")
BUDGET = 3.0  # times what NumPy takes, on top of NumPy: 1.8 to 2.4 alone, 2.6 beside other tests
RUNS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("import")


def run(program: str, folder: Path, cache: str = "cache") -> Any:
    """What `program` leaves in `result`; nothing else may be printed."""
    out = folder / "result.json"
    out.unlink(missing_ok=True)
    program += f"\nimport json; json.dump(result, open({str(out)!r}, 'w'))"
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("FLOWVM_", "PYTHONDONT"))}
    own = {"PYTHONPYCACHEPREFIX": str(folder / "pyc"), "FLOWVM_CACHE_DIR": str(folder / cache)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=keep | own,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return json.loads(out.read_text())


LOADED = f"result = [n for n in sys.modules if n.partition('.')[0] in {HEAVY!r}]"


def test_it_loads_nothing_heavy(folder: Path) -> None:
    assert run(f"import sys, flowvm\n{LOADED}", folder) == []


def test_it_starts_no_thread_and_leaves_no_trace(folder: Path) -> None:
    program = """
import os, signal, sys, threading, warnings
import numpy
def state():
    return [
        threading.active_count(),
        len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0,
        len(warnings.filters), str(signal.getsignal(signal.SIGINT)), sorted(os.environ),
        os.getcwd(), sys.getrecursionlimit(), sys.getswitchinterval(), str(sys.excepthook),
        sorted(numpy.geterr().items()),
    ]
before = state()
import flowvm
result = [before, state()]
"""
    before, after = run(program, folder, cache="untouched")
    assert after == before
    assert not (folder / "untouched").exists()


def test_it_is_quick(folder: Path) -> None:
    program = """
from time import process_time as now
start = now()
import numpy
middle = now()
import flowvm
result = [middle - start, now() - middle]
"""
    run(program, folder)  # compiles the Python files
    runs = [run(program, folder) for _ in range(RUNS)]
    numpy, flowvm = (min(column) for column in zip(*runs, strict=True))
    assert flowvm < BUDGET * numpy, f"{flowvm * 1e3:.0f} ms on top of NumPy's {numpy * 1e3:.0f} ms"


def test_a_warm_start_computes_and_prints_without_the_compiler(folder: Path) -> None:
    program = """
import sys
import flowvm as flow
x = flow.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
text = repr(x * 2 + 1)
"""
    cold = run(program + "result = text", folder)
    warm = run(program + LOADED + "\nresult = [text, result]", folder)
    assert cold == "tensor([[3., 5.],\n        [7., 9.]], grad_fn=<AddBackward>)"
    assert warm == [cold, []]
