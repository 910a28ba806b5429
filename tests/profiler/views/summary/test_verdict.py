"""Each cause of slowness, planted: the verdict names it first, with its line.

The advice predicts the gain that following it brings.

A machine that gives the program no core for a while has the cause planted again.
"""

from __future__ import annotations

import inspect
import threading
import time

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.private import frames
from flowvm.profiler.views.summary.verdict import WORDS
from flowvm.utils.data import DataLoader, Dataset
from flowvm.vm.watch import cores, sampling
from tests.profiler.analysis.test_stalls import again, spin
from tests.vm.kernels import tensor

pytestmark = pytest.mark.skipif(bool(frames.why_not()), reason=frames.why_not())
WAIT_S = 0.004


@pytest.fixture(autouse=True)
def compiled():
    """Compile the code of the tests, the sampler too, so that only planted causes are seen."""
    sampling.make()
    step(flow.ones(8, 8), flow.ones(8, 8))
    spin(tensor(), tensor(), 1)
    with flow.profiler.profile():
        flow.vm.sync()


def step(x, w):
    return (x @ w).relu().sum()


def first(p, function, mark="# here"):
    """Return the first cause, True if its line is the marked one, and the screen's lines.

    Causes that a busy machine gives every program are skipped: they were not planted.
    """
    part = next(
        part for part in p.summary().parts if part.cause not in ("gil", "own", "core", "sched")
    )
    lines, start = inspect.getsourcelines(function)
    number = next(k for k, line in enumerate(lines, start) if mark in line)
    text = p.summary().screen(160).plain().splitlines()
    top = p.summary().parts[0]
    assert text[1].startswith(f"bound by   {WORDS[top.cause][1]} "), text
    assert text[2].startswith(f"mostly     {top.where} has ") or not top.where, text
    return part.cause, part.line == f"{__file__.rsplit('/', 1)[-1]}:{number}", text[:4]


def without_core():
    """Nanoseconds that this thread and the VM's were ready to run so far, and had no core."""
    own = threading.get_native_id()
    mine = [t for t in threading.enumerate() if t.name.startswith(("flowvm-sched", "flowvm-w:"))]
    return {n: cores.scheduled(n)[1] for n in (own, *(t.native_id for t in mine))}


def measured(function):
    """Seconds that it takes, the least of three."""
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    return min(times)


def predicted(p):
    """Return the share of its time that the run keeps, by the first advice."""
    words = next(text for text in p.summary().advice if "→" in text)
    before, after = words.split("→")
    return float(after.split("ms")[0].replace(",", "")) / float(before.split()[-1].replace(",", ""))


# --- the host -------------------------------------------------------------------------------------


def sleeping(x, w, seconds=WAIT_S):
    for _ in range(20):
        step(x, w)
        time.sleep(seconds)  # here
    flow.vm.sync()


@again
def test_a_sleep():
    x = flow.ones(8, 8)
    with flow.profiler.profile() as p:
        sleeping(x, x)
    assert first(p, sleeping)[:2] == ("asleep", True), first(p, sleeping)
    part = p.summary().parts[0]
    assert part.cause == "asleep"
    assert "time.sleep(seconds)" in part.where
    assert part.share > 0.5
    assert "a graph would not help" in p.summary().advice[0]
    assert not any("nn.Graph replays" in text for text in p.summary().advice)
    row = p.table("line")[0]
    assert row.name == part.line
    assert row.host >= 20 * WAIT_S * 0.9e9
    assert "host ms" in str(p.summary("line"))
    pieces = p.critical_path().pieces
    assert any(k.op == "asleep" and part.line in k.line for k in pieces)
    gaps = [gap.text for gap in p.timeline().gaps]
    assert all(part.line in text for text in gaps), gaps
    # without it: as it was predicted, or nearly
    slow, quick = measured(lambda: sleeping(x, x)), measured(lambda: sleeping(x, x, 0.0))
    assert predicted(p) == pytest.approx(quick / slow, abs=0.25)


def looping(x, w, count=20_000):
    for _ in range(10):
        step(x, w)
        total = sum(k * k for k in range(count))  # here
    flow.vm.sync()
    return total


@again
def test_python_in_a_loop():
    x = flow.ones(8, 8)
    with flow.profiler.profile() as p:
        looping(x, x)
    assert first(p, looping)[:2] == ("python", True), first(p, looping)
    assert "a graph would not help" in p.summary().advice[0]
    slow, quick = measured(lambda: looping(x, x)), measured(lambda: looping(x, x, 1))
    assert predicted(p) == pytest.approx(quick / slow, abs=0.25)


def small_ops(x):
    for _ in range(3000):
        x = x + 1  # here
    flow.vm.sync()
    return x


@again
def test_many_small_ops():
    """flowvm's own: here a graph helps, and does as is said, or better.

    Issuing is over while a VM without a core has not begun: then that is what has the time, and the
    verdict is held against what the system counts.
    """
    x = flow.ones(2)
    small_ops(x)
    with flow.profiler.profile() as p:
        before = without_core()
        small_ops(x)
        lacked = sum(t - before[n] for n, t in without_core().items())
    top = p.summary().parts[0]
    if top.cause in ("sched", "gil"):
        assert lacked >= 0.5 * top.share * p.run.wall, (lacked, p.run.wall, p.summary().parts)
        assert "a core" in p.summary().advice[0] or "no core" in p.summary().advice[0]
    else:
        cause, is_line_right, text = first(p, small_ops)
        assert (cause, is_line_right) == ("flowvm", True), text
        assert "nn.Graph" in p.summary().advice[0]
        graph = flow.compile(small_body)
        graph(x).numpy()

        def replayed():
            for _ in range(60):
                y = graph(x)
            y.numpy()

        gained = measured(replayed) / measured(lambda: small_ops(x))
        assert gained <= predicted(p) + 0.3


def small_body(x):
    for _ in range(50):
        x = x + 1
    return x


class Slow(Dataset):
    """A dataset whose samples take their time."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(WAIT_S)
        return flow.ones(4)


def loading(workers):
    for batch in DataLoader(Slow(), batch_size=2, num_workers=workers):  # here
        batch.sum()
    flow.vm.sync()


@again
def test_a_loader():
    loading(1)
    with flow.profiler.profile() as p:
        loading(1)
    assert first(p, loading)[:2] == ("loader", True), first(p, loading)
    assert "num_workers" in p.summary().advice[0]


def places(function):
    """Return the lines of a function, as the profiler names them."""
    lines, start = inspect.getsourcelines(function)
    name = __file__.rsplit("/", 1)[-1]
    return [f"{name}:{k}" for k, _ in enumerate(lines, start)]


def held(x, w, leave):
    for _ in range(300_000):  # here
        pass
    step(x, w)
    leave.append(1)
    flow.vm.sync()


@again
def test_the_gil():
    x, leave = flow.ones(8, 8), []

    def hog():
        while not leave:
            sum(range(1000))

    others = [threading.Thread(target=hog) for _ in range(2)]
    for other in others:
        other.start()
    try:
        with flow.profiler.profile() as p:
            held(x, x, leave)
    finally:
        leave.append(1)
        for other in others:
            other.join()
    part = p.summary().parts[0]
    assert part.cause == "gil", p.summary().parts
    assert part.line in places(hog), part
    assert "hog" in part.where
    assert part.where in p.summary().advice[0]
    assert "had the GIL or a core" in p.summary().advice[0]


# --- waiting --------------------------------------------------------------------------------------


def reading(x, y):
    for _ in range(5):
        spin(x, y, 5_000_000)
        x.item()  # here
    flow.vm.sync()


@again
def test_reading_values():
    """The awaited instruction has most of the time, and the line that waits is in the advice."""
    x, y = tensor([1]), tensor([2])
    with flow.profiler.profile() as p:
        reading(x, y)
    part = p.summary().parts[0]
    assert (part.cause, part.op) == ("run", "spin"), p.summary().parts
    assert any("waited for a value 5x" in text for text in p.summary().advice)


def one_large(x):
    x = x @ x  # here
    flow.vm.sync()
    return x


@again
def test_one_large_op():
    x = flow.ones(700, 700)
    one_large(x)
    with flow.profiler.profile() as p:
        one_large(x)
    cause, is_line_right, text = first(p, one_large)
    assert (cause, is_line_right) == ("run", True), text
    assert p.summary().parts[0].op == "matmul"
    assert "matmul" in " ".join(p.summary().advice)


class Doubled(nn.Graph):
    """Captured anew for each size."""

    def build(self, x):
        for _ in range(30):
            x = (x * 2).tanh() + x.mean()
        return x


def recaptured(graph, sizes):
    for size in sizes:
        graph(flow.ones(size))  # here
    flow.vm.sync()


@again
@pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")
def test_capturing_again():
    graph = Doubled()
    recaptured(graph, [3, 4])
    with flow.profiler.profile() as p:
        recaptured(graph, range(5, 11))
    cause, is_line_right, text = first(p, recaptured)
    assert (cause, is_line_right) in (("capture", True), ("jit", False)), text
    advice = " ".join(p.summary().advice)
    assert "graph.explain() says" in advice or p.summary().parts[0].cause != "capture"
