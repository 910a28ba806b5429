"""Planted causes of slowness: what the verdict calls each, and the gain that its advice predicts
beside the one that mending brings.

A cause is a program with a line marked `# planted`.  The program runs as it is and mended in turn,
so the machine's other programs matter to both alike; figures are medians over the rounds.

    python -m tools.bench --groups verdicts --rounds 5
"""

from __future__ import annotations

import inspect
import json
import linecache
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import flowvm as flow
from flowvm import nn
from flowvm.profiler.views.summary.verdict import WORDS
from flowvm.utils.data import DataLoader, Dataset
from tools.bench.measure import Result

STEPS = 40
NEAR = 0.25  # of the gain that mending brings


def step(x: Any, w: Any) -> Any:
    """Issue a little work: about 0.1 ms."""
    return flow.relu(x @ w).mean()


def sleep(mended: bool) -> None:
    """Sleep in every step."""
    x = flow.ones(64, 64)
    for _ in range(STEPS):
        if not mended:
            time.sleep(0.003)  # planted
        step(x, x)
    flow.vm.sync()


def python(mended: bool) -> None:
    """Compute in Python in every step."""
    x = flow.ones(64, 64)
    for _ in range(STEPS):
        if not mended:
            sum(i * i for i in range(30_000))  # planted
        step(x, x)
    flow.vm.sync()


def gil(mended: bool) -> None:
    """Issue beside a thread that computes in Python."""
    x, over = flow.ones(64, 64), threading.Event()

    def burn() -> None:
        while not over.is_set():
            sum(range(1000))  # planted

    other = threading.Thread(target=burn)
    if not mended:
        other.start()
    for _ in range(20 * STEPS):
        step(x, x)
        sum(range(1000))
    flow.vm.sync()
    over.set()
    if not mended:
        other.join()


class Samples(Dataset[Any]):
    """Samples that take their time, or not."""

    def __init__(self, mended: bool) -> None:
        self.mended = mended

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        if not self.mended:
            time.sleep(0.004)  # planted
        return flow.ones(64, 64)


def loader(mended: bool) -> None:
    """Wait for a slow data set."""
    x = flow.ones(64, 64)
    for batch in DataLoader(Samples(mended), batch_size=None):
        step(batch, x)
    flow.vm.sync()


def item(mended: bool) -> None:
    """Read a value behind every small op."""
    x, total = flow.ones(8), flow.zeros(())
    for _ in range(10 * STEPS):
        y = x.sum()
        if mended:
            total += y
        else:
            y.item()  # planted
    total.item()


def tiny(mended: bool) -> None:
    """Issue many tiny ops one by one; a graph has them in one."""
    x = flow.ones(8)
    for _ in range(STEPS):
        x = _plus_50(x) if mended else _issued(x)
    flow.vm.sync()


def _issued(x: Any) -> Any:
    for _ in range(50):
        x = x + 1  # planted
    return x


@flow.compile
def _plus_50(x: Any) -> Any:
    for _ in range(50):
        x = x + 1
    return x


def large(mended: bool) -> None:
    """Run four large products; two when mended."""
    x = y = flow.full((700, 700), 1e-3)
    for _ in range(2 if mended else 4):
        y = y @ x  # planted
    flow.vm.sync()


class Doubled(nn.Graph):
    """A graph that is captured anew for each size."""

    def build(self, x: Any) -> Any:
        """Compute something."""
        for _ in range(5):
            x = (x * 2).tanh()
        return x


doubled, sizes = Doubled(), iter(range(5, 10**9))


def recapture(mended: bool) -> None:
    """Capture a graph in every step."""
    for _ in range(4):
        doubled(flow.ones(4 if mended else next(sizes)))  # planted
    flow.vm.sync()


def memory(mended: bool) -> None:
    """Have two streams that take turns, for only one at a time has memory in flight; or not, by the
    process's settings.
    """
    flow.set_num_threads(1)
    x, side = flow.full((400, 400), 1e-3), flow.Stream("side")
    y = x + 0
    for _ in range(STEPS // 2):
        with flow.stream(side):
            y = y @ y  # planted
        x = x @ x  # planted
    flow.vm.sync()


def uneven(mended: bool) -> None:
    """Run independent products on one of two streams."""
    x, side = flow.full((450, 450), 1e-3), flow.Stream("side")
    for k in range(24):
        with flow.stream(side if mended and k % 2 else flow.current_stream()):
            x @ x  # planted
        with flow.stream(side):
            flow.ones(8) * 2
    flow.vm.sync()


def lock(mended: bool) -> None:
    """Wait for a lock that another thread holds while it sleeps."""
    x, held = flow.ones(64, 64), threading.Lock()
    told, is_locked, over = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        while told.wait() and not over.is_set():
            told.clear()
            with held:
                is_locked.set()
                time.sleep(0.005)

    other = threading.Thread(target=hold)
    if not mended:
        other.start()
    for _ in range(STEPS // 2):
        if not mended:
            is_locked.clear()
            told.set()
            is_locked.wait()
        with held:  # planted
            step(x, x)
    flow.vm.sync()
    over.set()
    told.set()
    if not mended:
        other.join()


class Cause(NamedTuple):
    """A planted cause: the words of the verdict that name it, what its advice says, and a setting
    of processes of their own with its values, planted and mended.
    """

    program: Callable[[bool], None]
    words: tuple[str, ...]
    advice: str
    setting: tuple[str, str, str] | None = None


CAUSES = (
    Cause(sleep, ("asleep",), "sleeps or waits"),
    Cause(python, ("python",), "is your own Python"),
    Cause(gil, ("gil",), "had the GIL or a core"),
    Cause(loader, ("loader",), "DataLoader's next batch"),
    Cause(item, ("sync",), "waited for a value"),
    Cause(tiny, ("flowvm", "sched", "host"), "nn.Graph"),
    Cause(large, ("run",), "in half the time"),
    Cause(recapture, ("capture",), "captured a graph"),
    Cause(memory, ("memory",), "for memory in flight", ("FLOWVM_RUN_AHEAD_BYTES", "700K", "256M")),
    Cause(uneven, ("run",), "on stream cpu do not wait"),
    Cause(lock, ("asleep",), "sleeps or waits"),
)


def planted() -> set[int]:
    """Return the marked lines of this file."""
    lines = linecache.getlines(__file__)
    return {k for k, text in enumerate(lines, 1) if text.rstrip().endswith("# planted")}


def own_lines(cause: Cause) -> set[str]:
    """Return the marked lines of a cause as the profiler names them: of its program, or of what
    that calls.
    """
    of: dict[Any, tuple[Any, ...]] = {loader: (Samples,), tiny: (_issued,)}
    numbers = set()
    for part in of.get(cause.program, (cause.program,)):
        lines, first = inspect.getsourcelines(part)
        numbers |= set(range(first, first + len(lines))) & planted()
    return {f"verdicts.py:{k}" for k in numbers}


class Seen(NamedTuple):
    """A round: the verdict's first cause and line, the share of the time that goes by the advice,
    and nanoseconds planted and mended.
    """

    cause: str
    line: str
    predicted: float
    planted: int
    mended: int


def look(cause: Cause) -> Seen:
    """Profile a cause, planted and mended."""
    with flow.profiler.profile() as p:
        cause.program(False)
    with flow.profiler.profile() as q:
        cause.program(True)
    summary = p.summary()
    first = summary.parts[0]
    matches = [text for text in summary.advice if cause.advice in text and "→" in text]
    predicted = 0.0
    if matches:
        before, after = matches[0].split("→")
        milliseconds = float(after.split("ms")[0].replace(",", ""))
        predicted = 1 - milliseconds / float(before.split()[-1].replace(",", ""))
    return Seen(first.cause, first.line, predicted, p.run.wall, q.run.wall)


def warm(cause: Cause) -> None:
    """Run a cause until its kernels are compiled."""
    warnings.simplefilter("ignore", flow.errors.RecaptureWarning)
    for mended in (False, True, False, True):
        cause.program(mended)


def looks(cause: Cause, rounds: int) -> list[Seen]:
    """Look at a cause so many times."""
    warm(cause)
    return [look(cause) for _ in range(rounds)]


def _looks_elsewhere(cause: Cause, rounds: int) -> list[Seen]:
    """Look in two processes in turn, of which each has a value of the setting."""
    command = [sys.executable, "-m", "tools.bench.verdicts", cause.program.__name__]
    assert cause.setting is not None
    name, *values = cause.setting
    with ExitStack() as stack:
        both = [
            stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env=os.environ | {name: value},
                )
            )
            for value in values
        ]  # fmt: skip
        turns = [[_asked(process) for process in both] for _ in range(rounds)]
    return [a._replace(mended=b.planted) for a, b in turns]


def _asked(process: subprocess.Popen[str]) -> Seen:
    """Let a process look once."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return Seen(*json.loads(process.stdout.readline()))


def results(rounds: int, only: str) -> Iterator[Result]:
    """Yield a row a cause: predicted and measured gain in percent of the time; met where word,
    line and gain are right.
    """
    for cause in CAUSES:
        name = cause.program.__name__
        if only not in f"verdict, {name}":
            continue
        outcomes = (_looks_elsewhere if cause.setting else looks)(cause, rounds)
        right = sum(s.cause in cause.words and s.line in own_lines(cause) for s in outcomes)
        predicted = statistics.median(s.predicted for s in outcomes)
        measured = statistics.median(1 - s.mended / s.planted for s in outcomes)
        near = abs(predicted - measured) <= NEAR * max(abs(measured), 0.1)
        words = ", ".join(sorted({WORDS[s.cause][0] for s in outcomes}))
        yield Result(
            f"verdict, {name}: {words}; word and line {right} of {rounds}",
            "%", 100 * predicted, "mended", 100 * measured,
            predicted / measured if measured > 0.02 else None, "0.75 to 1.25",
            near and right == rounds,
        )  # fmt: skip


if __name__ == "__main__":  # in a process with settings of its own, for `results`
    chosen = next(c for c in CAUSES if c.program.__name__ == sys.argv[1])
    warm(chosen)
    for _ in sys.stdin:
        print(json.dumps(look(chosen)), flush=True)
