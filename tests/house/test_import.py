"""`import flowvm` is cheap and has no effects, and a first op in a warm cache needs no compiler.

Each test looks at a process of its own, whose compiled Python files are in a folder of the test.
"""

import gc
import inspect
import json
import os
import subprocess
import sys
import threading
import traceback
import weakref
from pathlib import Path
from typing import Any

import pytest

import flowvm as flow
from flowvm.config import config
from flowvm.eager.declaration import Kernel, Signature
from flowvm.eager.interpreter import Operator
from flowvm.errors import ShapeError
from flowvm.guards.interpreter import need_global_lock

HEAVY = ("IPython", "cupy", "numba", "rich", "safetensors", "scipy", "torch")
# calls and returns while it is imported, NumPy's not counted; the dataclasses of 3.14 have more
BUDGET = 514_000 if sys.version_info < (3, 14) else 545_000


FREE_THREADED = """
import sys
sys._is_gil_enabled = lambda: False
try:
    import flowvm
except ImportError as error:
    result = type(error).__name__, str(error)
"""


def test_free_threaded_python_is_refused(folder):
    kind, text = run(FREE_THREADED, folder)
    assert kind == "InterpreterError"
    assert "free-threaded Python" in text
    assert "PYTHON_GIL=1" in text


def test_python_with_the_lock_on_is_not():
    need_global_lock(lambda: True)
    with pytest.raises(flow.errors.InterpreterError, match="with the lock off"):
        need_global_lock(lambda: False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("import")


def run(program: str, folder: Path, **environ: str) -> Any:
    """Return the `result` of `program`; check that nothing else is printed."""
    out = folder / "result.json"
    out.unlink(missing_ok=True)
    program += f"\nimport json; json.dump(result, open({str(out)!r}, 'w'))"
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("FLOWVM_", "PYTHONDONT"))}
    keep["FLOWVM_CACHE_DIR"] = str(config.cache_dir)
    own = {"PYTHONPYCACHEPREFIX": str(folder / "pyc")}
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=keep | own | environ,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    return json.loads(out.read_text())


LOADED = f"result = [n for n in sys.modules if n.partition('.')[0] in {HEAVY!r}]"


def test_it_loads_nothing_heavy(folder: Path) -> None:
    assert run(f"import sys, flowvm\n{LOADED}", folder) == []


def test_it_starts_no_thread_and_leaves_no_trace(folder: Path) -> None:
    program = """
import gc, os, signal, sys, threading, warnings
import numpy
def state():
    return [
        gc.isenabled(),
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
    before, after = run(program, folder, FLOWVM_CACHE_DIR=str(folder / "untouched"))
    assert after == before
    assert not (folder / "untouched").exists()


def test_it_is_quick(folder: Path) -> None:
    """Counted, not timed: the same on a busy machine."""
    program = """
import sys
import numpy
result = 0
def count(frame, event, argument):
    global result
    result += 1
sys.setprofile(count)
import flowvm
sys.setprofile(None)
"""
    run(program, folder)  # compiles the Python files
    assert run(program, folder) < BUDGET


def test_a_warm_start_computes_and_prints_without_the_compiler(folder: Path) -> None:
    program = """
import sys
import flowvm as flow
x = flow.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
y = x * 2 + 1
flow.vm.sync()
text = repr(y)
"""
    cold = run(program + "result = text", folder)
    warm = run(program + LOADED + "\nresult = [text, result]", folder)
    assert cold == "tensor([[3., 5.],\n        [7., 9.]], grad_fn=<AddBackward>)"
    assert warm == [cold, []]


# --- functions that issue calls are written when they are first called ----------------------------


def fresh(**more: Any) -> Any:
    """An operator that nobody has called."""
    return Operator(
        "fresh", Signature(("x", "y"), ("out",), attrs=("dim",)), Kernel(no_lowering), **more
    )


def no_lowering(metas: Any, attrs: Any) -> Any:
    raise ShapeError(f"no such dim: {attrs[0]}")


def test_a_call_function_is_the_same_before_and_after_it_is_written() -> None:
    call = fresh().twin
    before = call.__code__, inspect.signature(call), call.__name__
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dim'"):
        call(flow.ones(1), flow.ones(1))
    for _ in range(2):  # what writes it has nothing in the traceback, either
        with pytest.raises(ShapeError, match="no such dim: 7") as caught:
            call(flow.ones(1), flow.ones(1), 7)
        files = [f.f_code.co_filename for f, _ in traceback.walk_tb(caught.value.__traceback__)]
        assert {*files} == {__file__}
    assert call.__code__ is not before[0]
    assert (inspect.signature(call), call.__name__) == before[1:]
    assert "_e = cache[" in inspect.getsource(call), "tracebacks and pdb show its text"


def test_many_threads_may_be_the_first_to_call() -> None:
    count, errors = 8, []
    ready = threading.Barrier(count)
    call = fresh().call

    def first() -> None:
        x = flow.ones(1)
        ready.wait()
        try:
            call(x, x, 7)
        except ShapeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=first) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["no such dim: 7"] * count


def test_an_operator_that_is_never_called_is_not_kept() -> None:
    call = weakref.ref(fresh().call)
    gc.collect()
    assert call() is None
