"""Places where a Ctrl-C may not come: each such function is known by its code, and no other one."""

from __future__ import annotations

import ast
import dis
import multiprocessing.util
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import flowvm as flow
from flowvm.eager import overrides
from flowvm.eager.interpreter import operators
from flowvm.eager.tensor import Storage, Tensor
from flowvm.graph.plan import launch_code
from flowvm.private import cpython
from flowvm.vm.callers import interrupt
from flowvm.vm.callers.interrupt import is_protected, is_waiting
from flowvm.vm.engine.callbacks import Callbacks
from flowvm.vm.engine.records import Records
from flowvm.vm.engine.storages import Storages
from flowvm.vm.engine.threads import Threads
from flowvm.vm.engine.waits import Waits
from tests.house.test_layout import walked

ROOT = Path(flow.__file__).resolve().parent
FOLDERS = [ROOT, *(ROOT.parent / name for name in ("ops", "autograd", "graph"))]

# between taking a number, a block or a storage and making it known
PROTECTED = [
    Records.publish, Records.write, Storages.refill, Storages.release_dead, Storages.reclaim,
    Callbacks.run, Threads.start, Threads.stop, Storage.__del__, Tensor.__del__,
    launch_code._Blocks.__del__,
]  # fmt: skip
WAITING = [Records.make_room, Waits._wait]


@pytest.mark.parametrize("function", PROTECTED, ids=lambda f: f.__qualname__)
def test_who_must_not_be_interrupted_says_so(function):
    assert is_protected(function.__code__)


@pytest.mark.parametrize("function", WAITING, ids=lambda f: f.__qualname__)
def test_who_waits_says_so(function):
    assert is_waiting(function.__code__)


def test_no_finalizer_is_forgotten():
    bare = [
        f"{path.name}:{node.lineno}"
        for folder in FOLDERS
        for path in folder.rglob("*.py")
        if path.name != "small.py"  # which has no threads, and no handler
        for node in walked(path, "__del__")
        if isinstance(node, ast.FunctionDef)
        and node.name == "__del__"
        and "protected" not in [ast.unparse(d) for d in node.decorator_list]
    ]
    assert not bare, f"a Ctrl-C in these would be swallowed: {bare}"


def test_who_takes_sequence_numbers_is_protected_or_writes_at_once():
    """`for seq in counter: break`, as written in flowvm's own functions."""
    takers = [
        (path, node)
        for folder in FOLDERS
        for path in folder.rglob("*.py")
        for node in walked(path, "counter:")
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(n, ast.For) and ast.unparse(n.iter).endswith("counter")
            for n in ast.walk(node)
        )
        and path.parent.name != "private"
    ]
    assert [node.name for _, node in takers] == ["write"]
    assert all("protected" in map(ast.unparse, n.decorator_list) for _, n in takers)


def codes_of(handled):
    """The generated functions that ran, by their name."""
    values = {}

    def look(frame, event, argument):
        if frame.f_code.co_filename.startswith("<flowvm"):
            values.setdefault(frame.f_code.co_name, set()).add(frame.f_code)

    sys.setprofile(look)
    try:
        handled()
    finally:
        sys.setprofile(None)
    return values


def test_calls_of_graphs_are_protected():
    layer = flow.nn.Linear(2, 2)

    class Double(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def build(self, x):
            return self.layer(x) * 2

    graph = Double()
    x = flow.ones(1, 2)
    graph(x)
    result = codes_of(lambda: [graph(x) for _ in range(3)])
    assert "replay_plan" in result
    for name in result.keys() - {"<module>", "make"}:  # which make the functions
        assert all(map(is_protected, result[name])), name


def test_what_a_plan_leaves_is_protected_no_more_and_its_twin_is():
    def new_graph():
        namespace = {}
        exec(compile("def launch(x):\n    return x", "<flowvm twin>", "exec"), namespace)
        return interrupt.protected(namespace.pop("launch"))

    one, two = new_graph(), new_graph()
    assert one.__code__ == two.__code__
    before = len(interrupt._protected)
    del one
    assert len(interrupt._protected) == before - 1
    assert is_protected(two.__code__)


def test_another_function_of_a_protected_name_is_not():
    def publish():
        """Not the engine's."""

    assert not is_protected(publish.__code__)
    assert not is_waiting(publish.__code__)


@pytest.mark.parametrize("name", ["add", "relu", "sum", "matmul"])
def test_generated_calls_let_no_signal_between_number_and_record(name):
    """Check the Python functions, whoever makes calls: compiled code looks at no signal."""
    x = flow.ones(2, 2)
    for op in [op for op in list(operators) if op.name == name and not op.signature.scalars]:
        op.twin(*[x] * len(op.signature.inputs), *ATTRS.get(name, ())[: len(op.signature.attrs)])
        code = overrides._given_way.get(op.twin, op.twin).__code__
        assert "_seq" in code.co_varnames
        assert cpython.checks_for_signals(code, "_seq", "_write") == []


ATTRS = {"sum": ((0,), False, 1.0, None)}  # of those that reduce some dims


def test_a_call_in_between_would_be_seen():
    def careless(counter, write, look):
        for _seq in counter:
            break
        look()
        write(_seq)

    code = careless.__code__
    assert cpython.checks_for_signals(code, "_seq", "write")
    with pytest.raises(ValueError, match="does not store"):
        cpython.checks_for_signals(code, "other", "write")


def _looking(monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[[], int], list[int], list[bool]]:
    """A function whose caller an interrupt comes to; the signals that are put off, and whether one
    was raised.
    """
    again: list[int] = []
    monkeypatch.setattr(interrupt._thread, "start_new_thread", lambda _, args: again.extend(args))
    raised: list[bool] = []

    def look() -> int:
        try:
            interrupt.interrupt(signal.SIGINT, sys._getframe(1))
        except KeyboardInterrupt:
            raised.append(True)
        return 0

    return look, again, raised


@pytest.mark.parametrize("dies", [True, False])
def test_a_finalizer_of_multiprocessings_is_put_off_where_something_ends(
    monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """A process that goes closes its pipe there; who calls it in so many words may be stopped."""
    look, again, raised = _looking(monkeypatch)  # from Finalize.__call__

    class Process:
        pass

    process = Process()
    multiprocessing.util.Finalize(process, look, exitpriority=1)
    if dies:
        del process
    else:
        multiprocessing.util._run_finalizers(1)
    assert (again, raised) == (([signal.SIGINT], []) if dies else ([], [True]))


@pytest.mark.parametrize("dies", [True, False])
def test_a_dataclass_made_in_a_finalizer_is_as_the_finalizer(
    monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """CPython ignores what comes in it, wherever that was made; elsewhere it comes at once."""
    look, again, raised = _looking(monkeypatch)  # from the __init__

    @dataclass
    class Small:
        number: int = field(default_factory=look)

    class Dies:
        def __del__(self) -> None:
            Small()

    if dies:
        Dies()
    else:
        Small()
    assert (again, raised) == (([signal.SIGINT], []) if dies else ([], [True]))


# --- blocks -----------------------------------------------------------------------------------


def test_where_a_block_is_entered_is_known():
    """As of CPython 3.14 an `__enter__` is called as anything is; before, in no instruction behind
    which a signal's handler runs.
    """

    def enters(lock):
        with lock:
            str(lock)

    code = enters.__code__
    at = [i.offset for i in dis.get_instructions(code) if cpython.enters_block(code, i.offset)]
    assert len(at) == (sys.version_info >= (3, 14))


def test_a_lock_is_released_whenever_ctrl_c_comes():
    """On CPython 3.14 one in some hundred interrupts of this loop left the lock taken."""
    process = subprocess.run(
        [sys.executable, "-c", LOCKS], capture_output=True, text=True, timeout=250
    )
    assert process.stdout == "free\n", process.stderr


LOCKS = """
import signal, threading
import flowvm as flow
(flow.ones(1) + 1).item()
lock, pause, over = threading.RLock(), threading.Event(), False
def send():
    for _ in range(1000):
        pause.wait(0.0002)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    global over
    over = True
sender = threading.Thread(target=send)
def loop():
    while not over:
        with lock:
            pass
def handler(number, frame):
    if frame.f_code is loop.__code__:
        flow.vm.callers.interrupt.interrupt(number, frame)
signal.signal(signal.SIGINT, handler)
sender.start()
while not over:
    try:
        loop()
    except KeyboardInterrupt:
        pass
sender.join()
print("taken" if "count=0" not in repr(lock) else "free")
"""
