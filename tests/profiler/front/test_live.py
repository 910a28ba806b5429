"""The view of a running VM by a watcher, from its own process and from another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

import flowvm as flow
from flowvm.compiler import jit
from flowvm.errors import ArgumentError, CompileError, RecaptureWarning, VMError
from flowvm.profiler import Profile, live
from flowvm.profiler.front.watcher import UNCOMPILED, Watcher
from flowvm.profiler.views.live import Live, StreamNow
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL
from flowvm.vm.watch.spaces import Space
from tests.vm.kernels import Gate, mix, tensor, update, wait_for_gate
from tests.vm.live import until


def stream(name="cpu", **changed):
    one = StreamNow(
        name, 0.74, 6, 1, "#76213 matmul_bwd", "", 0.0, (("dep", 0.18), ("host", 0.08)), 2790.0
    )
    return replace(one, **changed)


@pytest.fixture
def view():
    return Live(
        pid=4242, program="train.py", up=192.4, window=5.0, level=1, rate=4310.0,
        rates=(100.0, 4000.0, 4310.0), step=("step", 6.9),
        streams=(
            stream(),
            stream("side", util=0.004, seconds=2.5, running="#9 copy", line="a.py:7", causes=()),
        ),
        in_flight=118, room=1024, syncs=6.9, compiled=0.0, compiling=(), captured_again=0,
        errors=0, memory=(Space("cpu", 61 << 20, 62 << 20, 96 << 20),),
        lines=(("train.py:44", 0.31, 0.3), ("model.py:21", 0.22, 0.0)), sampled=0.2, idle=0.0,
        sched=StreamNow("sched", 0.21, 0, 3, "", "", 0.0, (), 4310.0),
    )  # fmt: skip


SCREEN = """
 train.py  pid 4242   up 00:03:12   step 6.9/s   4 310 instr/s ▁▇█   recorder 1
 stream  util 5 s          queue  running             idle because       instr/s
 sched   █▉          21 %      0  -                                        4 310
 cpu     ██████▋     74 %      6  #76213 matmul_bwd   dep 18 % host 8 %    2 790
 side               0.4 %      6  #9 copy  2.5 s  a…                       2 790
 in flight 118/1024   sync 6.9/s   compiled 0.0/s   jit queue 0   re-captures 0
 errors pending 0
 mem [█████▊   ] 61.0 MiB of 96.0 MiB reserved   peak 62.0 MiB
 hot lines   train.py:44 31 % ╳   model.py:21 22 % █"""


def test_the_screen(view):
    assert "\n" + view.screen(80).plain() == SCREEN
    assert "queue  waiting  running" in view.screen(100).plain()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_it_fits(view, width):
    many = (("a_long_file_name_of_a_model.py:1234", 0.3, 0.0),) * 3
    lines = replace(view, lines=many).screen(width).plain(ascii_only=True).split("\n")
    assert max(len(line) for line in lines[1:4]) <= max(width, 61)
    assert len(lines[-1]) <= width
    "\n".join(lines).encode("ascii")


def test_errors_and_standstill_are_said(view):
    text = replace(view, errors=2, idle=12.3, note="written").screen(100).plain()
    assert "errors pending 2" in text
    assert "nothing done for 12 s" in text
    assert text.endswith(" written")
    assert "NOTHING DONE for 12 s" in replace(view, idle=12.3).line()


def test_what_is_compiled_and_captured_again_is_said(view):
    busy = replace(view, compiling=("matmul", "relu"), captured_again=3)
    assert "jit queue 2 (matmul)   re-captures 3" in busy.screen(120).plain()


def test_a_line_for_logs(view):
    assert view.line() == (
        "flowvm pid 4242 | 4 310 instr/s | step 6.9/s | cpu 74 % dep 18 % host 8 % | side 0.4 % | "
        "in flight 118 | mem 61.0 MiB | train.py:44 31 %"
    )
    assert json.loads(json.dumps(asdict(view)))["streams"][0]["name"] == "cpu"


def test_a_planted_stuck_kernel_is_what_runs_and_all_of_the_time():
    flow.vm.sync()
    watcher = Watcher()
    x, y = tensor([1]), tensor([2])
    with Gate() as gate:
        wait_for_gate(x, x, gate.address)
        update(y, x, 1)
        until(lambda: gate.is_reached and len(flow.vm.pending()) == 2, "both are received")
        watcher.look()
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > 0.2, "time passes")
        snapshot = watcher.look()
    cpu = snapshot.streams[0]
    assert cpu.name == "cpu"
    assert cpu.running.endswith(" wait_for_gate")
    assert cpu.line.startswith("test_live.py:")
    assert cpu.seconds > 0.2
    assert cpu.util > 0.95
    assert cpu.queue == 2
    assert snapshot.in_flight == 2
    assert snapshot.idle > 0.15
    assert any("test_live.py:" in line and share > 0.9 for line, share, _ in snapshot.lines)
    engine.waits.wait_idle()


def test_an_idle_vm_waits_for_python():
    mix(tensor(), tensor(), 1).numpy()
    watcher = Watcher()
    watcher.look()
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 0.1, "time passes")
    snapshot = watcher.look()
    assert snapshot.streams[0].util == 0
    assert snapshot.streams[0].causes[0][0] == "host"
    assert snapshot.streams[0].causes[0][1] > 0.9
    assert (snapshot.rate, snapshot.in_flight, snapshot.idle) == (0.0, 0, 0.0)


def test_counts_are_exact_and_shares_are_of_everything(seed):
    rng = np.random.default_rng(seed)
    engine.waits.wait_idle()
    watcher = Watcher(most=64)  # so most of it is not sampled
    first = watcher.look()
    x = tensor([1])
    counts = rng.integers(1, 300, 3).tolist()
    issued = int(engine.words[CTL.RECEIVED])
    for count in counts:
        for k in range(count):
            update(x, x, k)
        engine.waits.wait_idle()  # a read of a finished value is no sync
        snapshot = watcher.look()
        cpu = snapshot.streams[0]
        total = cpu.util + sum(share for _, share in cpu.causes)
        assert 0.93 <= total <= 1.001  # causes below a hundredth are not named
    issued = int(engine.words[CTL.RECEIVED]) - issued
    assert snapshot.rate * (snapshot.up - first.up) == pytest.approx(issued, rel=0.01)
    assert len(snapshot.rates) == 3
    assert snapshot.syncs > 0


def test_the_window_forgets():
    watcher = Watcher()
    for _ in range(4):
        watcher.look()
    for k, look in enumerate(watcher._looks):
        look.now -= (4 - k) * 2_000_000_000
    watcher.look()
    assert len(watcher._looks) == 4


def test_names_are_right_after_entries_were_forgotten():
    watcher = Watcher()
    watcher.look()
    assert watcher._names == [getattr(i, "name", None) or "" for i, _ in engine.entries.info]
    watcher._names += ["old"] * 5  # as if the VM had had more, and begun again
    watcher._bytes += [0] * 5
    watcher.look()
    assert watcher._names == [getattr(i, "name", None) or "" for i, _ in engine.entries.info]


def test_steps_are_those_that_the_user_names():
    watcher = Watcher()
    for _ in range(5):
        with flow.profiler.span("live step"):
            mix(tensor(), tensor(), 1).numpy()
    name, often = watcher.look().step
    assert name == "live step"
    assert often > 0


def test_the_whole_ring_is_a_run_like_the_profilers():
    engine.waits.wait_idle()
    x = tensor([1])
    for k in range(40):
        update(x, x, k)
    x.numpy()
    mine, theirs = Watcher().ring(), flow.profiler.last().run
    common = np.intersect1d(mine.seq, theirs.seq)[-40:]
    assert len(common) == 40
    for a, b in zip(map(mine.index, common), map(theirs.index, common), strict=True):
        assert mine.names[mine.op[a]] == theirs.names[theirs.op[b]]
        assert mine.lines[mine.line[a]] == theirs.lines[theirs.line[b]]
        operands = [r.access[r.offsets[i] : r.offsets[i + 1]] for r, i in ((mine, a), (theirs, b))]
        assert np.array_equal(*operands)
        # both clocks are compared anew each time
        assert abs(mine.time("ended")[a] - theirs.time("ended")[b]) < 1_000_000
    assert str(Profile(mine).summary()).startswith("flow.profiler ")


def test_a_graphs_replays_are_seen():
    class Double(flow.nn.Graph):
        def build(self, x):
            return x * 2 + 1

    graph, x = Double(), flow.ones(8)
    graph(x).numpy()
    watcher = Watcher()
    watcher.look()
    for _ in range(20):
        graph(x).numpy()
    snapshot = watcher.look()
    assert snapshot.streams[0].util > 0
    names = watcher.ring().names
    assert any("Double" in name for name in names), names


def test_captures_that_are_not_the_first_are_counted():
    watcher = Watcher()
    before = watcher.look().captured_again
    graph = flow.compile(lambda t: t * 3)
    graph(flow.ones(2)).numpy()
    for rows in (3, 4):
        with pytest.warns(RecaptureWarning):
            graph(flow.ones(rows)).numpy()
    assert watcher.look().captured_again == before + 2


def test_what_a_thread_compiles_is_seen():
    reached, is_requested = threading.Event(), threading.Event()

    def make():
        reached.set()
        assert is_requested.wait(200)
        raise CompileError("that is all")

    def load():
        with pytest.raises(CompileError):
            jit.load(make, "slow_kernel")

    thread = threading.Thread(target=load)
    thread.start()
    assert reached.wait(200)
    try:
        assert Watcher().look().compiling == ("slow_kernel",)
    finally:
        is_requested.set()
        thread.join()
    assert Watcher().look().compiling == ()


def test_the_ring_knows_spans_and_bytes():
    engine.waits.wait_idle()
    with flow.profiler.span("a live step"):
        product = flow.ones(300) * 2
        product.numpy()
    run = Watcher().ring()
    part = Profile(run).part("a live step")
    assert "mul" in part.run.names
    assert {1200} <= set(part.run.size.tolist())
    assert max(part.memory_of().nbytes) >= 1200


def test_without_the_recorder_counters_are_left():
    level = flow.profiler.level
    try:
        flow.profiler.level = 0
        watcher = Watcher()
        watcher.look()
        x = tensor([1])
        for k in range(100):
            update(x, x, k)
        x.numpy()
        snapshot = watcher.look()
        assert snapshot.rate > 0
        assert snapshot.streams[0].rate > 0
        assert snapshot.streams[0].util == 0
        assert snapshot.streams[0].causes == ()
        assert "recorder 0 (no shares)" in snapshot.screen(80).plain()
    finally:
        flow.profiler.level = level


LOOP = """
import sys
import flowvm as flow
from kernels import *
x = tensor()
update(x, x, 1)
x.numpy()
print("ready", flush=True)
while not sys.stdin.closed:
    for k in range(50):
        update(x, x, k)
    x.numpy()
"""


@pytest.fixture
def other():
    path = os.path.join(os.path.dirname(__file__), "..", "..", "vm")
    with subprocess.Popen(
        [sys.executable, "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_another_process_is_seen_as_it_runs_and_missed_when_it_ends(other):
    watcher = Watcher(other.pid)
    watcher.look()

    def runs():
        looks.append(watcher.look(dump=True))
        return looks[-1].rate > 100 < looks[-1].streams[0].rate

    looks = []
    until(runs, "it runs")
    assert looks[-1].pid == other.pid
    assert "in flight" in watcher.dump
    run = watcher.ring()
    assert "update" in run.names
    assert (np.diff(run.seq) > 0).all()
    other.kill()
    other.wait()
    with pytest.raises(VMError, match="there is no process"):
        watcher.look()


STUCK = """
from flowvm.vm.engine.loops import Loops
Loops.ready = lambda self, names: False  # the VM stays as it is while helpers compile it
from kernels import *
x = tensor()
with Gate() as gate:
    wait_for_gate(x, x, gate.address)
"""


def test_what_is_stuck_is_seen_before_the_vm_is_compiled():
    path = os.path.join(os.path.dirname(__file__), "..", "..", "vm")
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path, "FLOWVM_WATCHDOG": "0.4"},
    ) as process:  # fmt: skip
        try:
            assert any("no progress for 0.4 s" in line for line in process.stderr)
            view = Watcher(process.pid).look()
        finally:
            process.kill()
    assert view.note == UNCOMPILED
    assert view.in_flight == 1
    assert view.streams[0].running.endswith("wait_for_gate")


def test_live_prints_lines_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr("flowvm.profiler.front.live.LINE_S", 0.01)
    with live(hz=10) as shown:
        until(lambda: shown.looks >= 3, "three lines")
    err = capsys.readouterr().err
    assert err.count(f"flowvm pid {os.getpid()} | ") == shown.looks
    assert "\x1b" not in err
    with live(hz=10) as again:  # as often as one likes
        until(lambda: again.looks >= 1, "a line")


@pytest.mark.parametrize("hz", [0, 0.01, 11, -1, float("nan")])
def test_how_often_is_checked_at_the_call(hz):
    with pytest.raises(ArgumentError, match=r"0\.1 to 10"):
        flow.profiler.live(hz=hz)
