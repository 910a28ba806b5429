"""Kernels of gradients are made by a helper while this process makes the kernels of calls."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import flowvm as flow
from flowvm.compiler import cache, helpers, jit
from flowvm.config import config
from flowvm.eager import interpreter
from flowvm.graph.capture import ahead

# each in a process whose cache is empty
COMPILE = """
import flowvm as flow
import flowvm.nn.functional as F
from flowvm.compiler import helpers, jit
jobs = []
helpers.ahead = jobs.append
x = flow.ones(2, 1, 4, 4, requires_grad=True)
y = F.max_pool2d(x.tanh() * 2, 2)
z = F.cross_entropy(y.flatten(1), flow.tensor([0, 1]))
flow.vm.sync()
before = jit.stats().compiled
for job in jobs:
    helpers._do(job, "ahead")
made = jit.stats().compiled - before
assert x.grad is None
z.backward()
flow.vm.sync()
print(len(jobs), made, jit.stats().compiled - before - made, x.grad.abs().sum().item() > 0)
"""
HELPED = """
import time
import flowvm as flow
from flowvm.compiler import helpers, jit, progress
x = flow.ones(8, requires_grad=True)
y = flow.nn.functional.gelu(x)
until = time.monotonic() + 60
while not any("gelu_backward" in name for name in progress.measured()):
    assert helpers._assistant.is_at_work() and time.monotonic() < until
before = jit.stats()
y.backward(flow.ones(8))
flow.vm.sync()
after = jit.stats()
print(after.compiled - before.compiled, after.loaded > before.loaded, x.grad.tolist())
"""


def _printed(program: str, folder: Path) -> list[str]:
    settings = {"FLOWVM_CACHE_DIR": str(folder), "FLOWVM_CALLS": "python", "FLOWVM_AHEAD": "1"}
    process = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | settings, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def test_backward_finds_what_was_made_ahead(tmp_path: Path) -> None:
    jobs, count, left, right = _printed(COMPILE, tmp_path)
    assert int(jobs) >= 3
    assert int(count) >= 3
    assert (left, right) == ("0", "True")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: there is no such helper")
def test_a_helper_makes_it(tmp_path: Path) -> None:
    compiled, loaded, *gradient = _printed(HELPED, tmp_path)
    assert (compiled, loaded) == ("0", "True")
    assert len(gradient) == 8


def test_nothing_is_asked_where_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gradient, or nothing compiled, or it is turned off, or an attribute of the user's own."""
    jobs: list[str] = []
    monkeypatch.setattr(helpers, "ahead", jobs.append)
    results: list[str] = []
    monkeypatch.setattr(interpreter, "on_recorded", [lambda op, *facts: results.append(op.name)])
    monkeypatch.setattr(jit, "_addresses", {})
    x = flow.ones(3, 5, requires_grad=True)
    (flow.ones(3, 5) * 7).tanh()
    with flow.no_grad():
        x.tanh()
    assert results == []
    meta = x._meta
    op = next(o for o in interpreter.operators if o.name == "tanh" and o.grad)
    with config(ahead=False):
        ahead.foretell(op, (meta,), (), (True,))
    with config(ahead=True):
        ahead.foretell(op, (meta,), (lambda: None,), (True,))
        ahead.foretell(op, (flow.ones(2, device="meta")._meta,), (), (True,))
        assert jobs == []
        ahead.foretell(op, (meta,), (), (True,))
    assert len(jobs) == 1


def test_a_guess_that_is_wrong_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs come one by one; a failed one ends nothing, and a full pipe does not block."""
    (tmp_path / "some_jobs.py").write_text(
        "from pathlib import Path\n"
        "def fail(text): raise ValueError(text)\n"
        "def note(path): Path(path).write_text('done')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(helpers, "_assistant", None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    helpers.ahead("some_jobs:fail:x:y")
    helpers.ahead("no_module:fail")
    helpers.ahead(f"some_jobs:fail:{'x' * 5000}")  # is not sent
    helper = helpers._assistant
    assert helper is not None
    helpers.ahead(f"some_jobs:note:{tmp_path}/note")
    until = time.monotonic() + 60
    while not (tmp_path / "note").exists():
        assert helper.is_at_work()
        assert time.monotonic() < until
    assert helper is helpers._assistant
    while helper.send("some_jobs:fail:" + "x" * 2000):  # it does them all, but not as quickly
        assert time.monotonic() < until
    assert helper.process.stdin is not None
    helper.process.stdin.close()
    helper.process.wait(60)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    helpers.ahead("some_jobs:fail:x")
    assert helpers._assistant is helper
    helpers.bury()


def test_one_makes_what_several_want(tmp_path: Path) -> None:
    order: list[str] = []
    inside, expected = threading.Event(), threading.Event()

    def first() -> None:
        with cache.alone(tmp_path, "it") as waited:
            order.append(f"first {waited}")
            inside.set()
            assert expected.wait(60)
            while not cache.queues:
                pass
            order.append("first is done")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    assert cache.is_locked(tmp_path, "it")
    assert not cache.is_locked(tmp_path, "another")
    expected.set()
    with cache.alone(tmp_path, "it") as waited:
        order.append(f"second {waited}")
    thread.join(60)
    assert order == ["first False", "first is done", "second True"]
    assert not cache.queues
    assert not cache.is_locked(tmp_path, "it")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with cache.alone(tmp_path / "file", "it") as waited:  # there can be no lock
        assert not waited
