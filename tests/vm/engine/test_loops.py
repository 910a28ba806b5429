"""Until the VM is compiled the same machine runs as Python; then native loops take over."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.compiler import helpers, jit
from flowvm.guards import processes
from flowvm.vm.engine import loops as loops_file
from flowvm.vm.engine import natives
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.loops import Loops
from flowvm.vm.machine.lang import Uncompiled
from flowvm.vm.machine.words import CTL
from flowvm.vm.workers import shell

pytestmark = pytest.mark.skipif(
    os.environ.get("FLOWVM_TEST_LOOPS") == "python", reason="nothing takes over there"
)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The VM is as in a process whose cache is empty; [the issues after which it is compiled]."""
    flow.vm.sync()
    assert engine.threads.stop(20)
    native, budget = engine.loops.native.copy(), [1 << 60]
    devices = int(engine.words[CTL.DEVICES])  # other tests', which would have it compiled at once
    engine.words[CTL.DEVICES] = 0

    def ready(names: Any) -> bool:
        budget[0] -= 1
        if budget[0] > 0:
            return False
        engine.words[CTL.DEVICES] = devices
        if "read_clocks" not in engine.loops.native:
            engine.loops.native.update(native)
            loops_file.Loops._use(engine.loops, "read_clocks", _address(native["read_clocks"]))
        return True

    monkeypatch.setattr(engine.loops, "ready", ready)
    engine.loops.native.clear()
    Uncompiled.ticks = time.monotonic_ns
    engine.flight.change_clock()
    engine.flight.in_nanoseconds = 1 << 62
    try:
        yield budget
    finally:
        budget[0] = 0
        flow.vm.sync()
        flow.ones(1).item()
        assert engine.threads.running
        assert not engine.threads.uncompiled


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _program(rng: np.random.Generator, steps: int) -> None:
    """Random ops on a few tensors, views and in place, against NumPy."""
    ours = [flow.tensor(rng.normal(size=(4, 6))) for _ in range(4)]
    theirs = [t.numpy().copy() for t in ours]
    for _ in range(steps):
        i, j, k = rng.integers(4, size=3).tolist()
        match int(rng.integers(6)):
            case 0:
                ours[k], theirs[k] = ours[i] + ours[j], theirs[i] + theirs[j]
            case 1:
                ours[k], theirs[k] = ours[i].tanh(), np.tanh(theirs[i])
            case 2:
                ours[i][1:3].mul_(0.5)
                theirs[i][1:3] *= 0.5
            case 3:
                ours[k], theirs[k] = (
                    (ours[i] @ ours[j].t() @ ours[j]).tanh(),
                    np.tanh(theirs[i] @ theirs[j].T @ theirs[j]),
                )
            case 4:
                row = int(rng.integers(4))
                ours[i][row] = 1.25
                theirs[i][row] = 1.25
            case 5:
                assert len(ours[i].nonzero()) == np.count_nonzero(theirs[i])
        if rng.random() < 0.2:
            np.testing.assert_allclose(ours[k].numpy(), theirs[k], rtol=1e-12, atol=1e-12)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-12, atol=1e-12)


def test_programs_run_uncompiled(uncompiled: list[int], rng: np.random.Generator) -> None:
    _program(rng, 150)
    assert not engine.threads.running
    assert engine.threads.uncompiled


@pytest.mark.parametrize("round", range(4))
def test_the_native_loops_take_over_at_any_moment(
    uncompiled: list[int], rng: np.random.Generator, round: int
) -> None:
    before, begun = flow.vm.stats()["issued"], time.monotonic_ns()
    uncompiled[0] = int(rng.integers(1, 150))
    _program(rng, 150)
    assert engine.threads.running
    assert not engine.threads.uncompiled
    snapshot = engine.flight.look(before)
    assert snapshot.seq.tolist() == list(
        range(before, before + len(snapshot.seq))
    )  # nothing is lost
    times = snapshot.times[:, 4:6]  # started and ended, by one clock
    assert (times[:, 1] >= times[:, 0]).all()
    started = times[times[:, 0] > 0, 0]
    assert begun - 1_000_000 < started.min()
    assert started.max() < time.monotonic_ns() + 1_000_000


def test_an_error_is_raised_where_it_is_read(uncompiled: list[int]) -> None:
    bad = flow.index_select(flow.ones(4), 0, flow.tensor([9]))
    worse = bad * 2
    assert (flow.ones(2) + 1).tolist() == [2.0, 2.0]
    with pytest.raises(IndexError, match="9"):
        worse.tolist()
    with pytest.raises(IndexError):
        bad.numpy()


def test_a_profile_says_so(uncompiled: list[int]) -> None:
    with flow.profiler.profile() as p:
        (flow.ones(3) + 1).sum().item()
    assert p.summary().advice[0].startswith("the VM was being compiled")
    uncompiled[0] = 0
    flow.ones(1).item()
    with flow.profiler.profile() as p:
        (flow.ones(3) + 1).sum().item()
    assert "compiled" not in p.summary().advice[0]


def test_graphs_streams_and_training(uncompiled: list[int]) -> None:
    side = flow.Stream("loops")
    w = flow.ones(3, requires_grad=True)
    w.grad = flow.zeros(3)
    optimizer = flow.optim.SGD([w], lr=0.5)

    def step(x: flow.Tensor) -> flow.Tensor:
        with flow.stream(side):
            y = x * w
        loss = (y + 1).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    compiled = flow.compile(step)
    losses = []
    for k in range(6):
        losses.append(compiled(flow.ones(3)).item())
        if k == 3:
            assert not engine.threads.running
            uncompiled[0] = 0
    assert losses == [6.0, 4.5, 3.0, 1.5, 0.0, -1.5]
    assert engine.threads.running


def test_a_finalizer_may_compute(uncompiled: list[int]) -> None:
    class Late:
        def __del__(self) -> None:
            calls.append((flow.ones(2) + 1).sum().item())

    calls: list[float] = []
    for _ in range(50):
        late = Late()
        late.itself = late  # type: ignore[attr-defined]
        x = flow.ones(3) * 2
        del late
    gc.collect()
    assert calls == [4.0] * 50
    assert x.tolist() == [2.0] * 3


def test_a_finalizer_may_compute_wherever_it_strikes(uncompiled: list[int]) -> None:
    """Collect at every number of objects, so also while the lock is taken for another thread."""

    class Late:
        def __del__(self) -> None:
            calls.append(flow.ones(2).sum().item())

    calls: list[float] = []
    before = gc.get_threshold()
    try:
        for threshold in range(1, 60):
            gc.set_threshold(threshold)
            late = Late()
            late.itself = late  # type: ignore[attr-defined]
            del late
            assert (flow.ones(3) * 2).tolist() == [2.0] * 3
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert calls == [2.0] * 59


# --- who makes them -------------------------------------------------------------------------------


def _waited(loops: Loops, names: list[str]) -> None:
    until = time.monotonic() + 100
    while not loops.ready(names):
        assert time.monotonic() < until
        assert loops.needed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(jit, "_addresses", {})
    jit.set_cache_dir(tmp_path / "cache")
    yield tmp_path / "cache"
    jit.set_cache_dir(None)


NAMES = {name: natives.SIGNATURES[name] for name in ("nap", "publish_mark")}


def test_helpers_make_what_is_missing(folder: Path) -> None:
    loops = Loops(shell, NAMES, (), (), lambda: None, natives.JOB)
    assert loops.function("nap")(engine.base, 0) == 0  # Python's
    compiled = jit.stats().compiled
    assert not loops.ready(NAMES)
    assert len(loops.makers) == 1
    _waited(loops, list(NAMES))
    assert jit.stats().compiled == compiled
    assert loops.function("nap") is loops.native["nap"]
    assert loops.native["nap"](engine.base, 0) == 0
    assert [maker.process.wait(60) for maker in loops.makers] == [0]
    assert len(list(folder.glob("*.o"))) == 2


def test_where_the_cache_cannot_be_written_they_write_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helpers, "_may_write", lambda folder: False)
    loops = Loops(shell, {"nap": NAMES["nap"]}, (), (), lambda: None, natives.JOB)
    assert not loops.ready(["nap"])
    own = helpers._own
    assert own is not None
    assert own.stat().st_mode & 0o777 == 0o700
    _waited(loops, ["nap"])
    assert [maker.process.wait(60) for maker in loops.makers] == [0]
    helpers.stop()
    assert not own.exists()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [(sys, "executable", "/nowhere/python"), (processes, "_START", "raise SystemExit(3)")],
    ids=["no processes", "processes that fail"],
)
def test_without_helpers_a_thread_makes_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, value: str
) -> None:
    monkeypatch.setattr(where, name, value)
    loops = Loops(shell, {"nap": NAMES["nap"]}, (), (), lambda: None, natives.JOB)
    _waited(loops, ["nap"])
    assert loops.thread is not None


def test_helpers_end_with_their_parent(tmp_path: Path) -> None:
    program = """
import contextlib
import flowvm as flow
from flowvm.vm.engine.engine import engine
print(flow.ones(2).tolist(), end="", flush=True)
for maker in engine.loops.makers:
    while not maker.process.pid:
        with contextlib.suppress(TimeoutError):  # what it tells of its beginning is read there
            raise AssertionError(maker.process.wait(0.1))
    print("", maker.process.pid, end="")
print(flush=True)
import sys; sys.stdin.read()
"""
    cache = tmp_path / "cache"
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "FLOWVM_CACHE_DIR": str(cache)},
    )  # fmt: skip
    assert parent.stdin is not None
    assert parent.stdout is not None
    text = parent.stdout.readline()
    assert text.startswith("[1.0, 1.0]"), text
    helpers = [int(word) for word in text.split()[2:]]
    assert helpers, "the first answer came uncompiled"
    for helper in helpers:
        assert Path(f"/proc/{helper}").exists()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    until = time.monotonic() + 30
    while any(_lives(helper) for helper in helpers):
        assert time.monotonic() < until, "a helper outlives its parent"


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def test_the_control_words_say_nothing_is_in_flight(uncompiled: list[int]) -> None:
    x = flow.ones(3) + 1
    words = engine.words
    assert words[CTL.HEAD] == words[CTL.RECEIVED] == flow.vm.stats()["issued"]
    assert x.tolist() == [2.0] * 3


def test_cached_memory_is_given_back(uncompiled: list[int]) -> None:
    flow.ones(100).sum().item()
    before = int(engine.words[CTL.N_TRIMMED])
    flow.vm.empty_cache()
    assert int(engine.words[CTL.N_TRIMMED]) > before


def test_a_thread_never_runs_a_loop_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread in a Python loop would poll with the interpreter's lock held.

    A device came to a running VM, whose loop nobody had compiled; the whole process was thirty
    times slower.
    """
    flow.ones(1).item()
    started: list[Any] = []
    monkeypatch.setattr(engine.threads, "begin", lambda name, target, *args: started.append(target))
    monkeypatch.delitem(engine.loops.native, "worker_loop")
    flow.Stream("loops")
    engine.streams._start_worker(engine.streams.count - 1)
    assert started
    assert all(target is engine.loops.native["worker_loop"] for target in started)


STARVED = """
import os, threading
from pathlib import Path
def note(folder):
    # which uses no core, as one that other programs leave none
    path = Path(folder, "notes")
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}{os.getpid()} {os.nice(0)}\\n")
    if not before:
        threading.Event().wait(60)
"""


def test_a_helper_that_gets_no_core_begins_anew_with_a_higher_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starved_job.py").write_text(STARVED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(helpers, "_is_busy", lambda: False)
    helper = helpers.Helper([f"starved_job:note:{tmp_path}"])
    assert helper.process.wait(timeout=250) == 0
    helpers.bury()  # unless the watch thread has
    assert helper not in helpers._helpers
    (first, lowest), (second, low) = map(str.split, (tmp_path / "notes").read_text().splitlines())
    assert int(first) == int(second) == helper.process.pid
    assert (int(lowest), int(low)) == (
        min(19, os.nice(0) + helpers.LOWEST),
        min(19, os.nice(0) + helpers.LOW),
    )
