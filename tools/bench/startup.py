"""Starting: import, first op, print, in new processes, with a warm cache and with an empty one.

The interpreter's own start is in all rows.  On an empty cache nothing of flowvm was compiled
before; helper processes that go on are not waited for, and end with their parent.  The wheel is
made here, with the VM and a few kernels for this processor's highest level (`tools.wheel`).

A row's note has the seconds of a processor that the process itself took, which other programs on
the machine change less than the time that passed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flowvm.commands.warmup import NUMBERS
from flowvm.compiler.target import levels_here
from tools import wheel
from tools.bench.measure import Result

WARM, EMPTY, WHEEL = "warm cache", "empty cache", "from a wheel, empty cache"

IMPORT = "import flowvm", "import torch"
FIRST = (
    "import flowvm as flow; print(flow.ones(2, 2) + 1)",
    "import torch; print(torch.ones(2, 2) + 1)",
)
USUAL = """
import flowvm as flow
import flowvm.nn.functional as F
x, y = flow.ones(4, 4), flow.ones(4, 4)
image, kernel, classes = flow.ones(1, 1, 4, 4), flow.ones(1, 1, 3, 3), flow.tensor([0, 1, 2, 3])
x + y; x * 2.0; flow.relu(x); flow.exp(x); flow.tanh(x); flow.sigmoid(x); x.sum(); x.mean(1)
x.max(); F.softmax(x, 1); x @ y; F.linear(x, y); F.conv2d(image, kernel); F.max_pool2d(image, 2)
F.cross_entropy(x, classes); F.layer_norm(x, (4,)); flow.randn(4, 4); x[classes]; x.sort()
flow.cat([x, y]); flow.where(x > 0, x, y); x.argmax(1)
flow.vm.sync()
"""
# issues only now and then, as who thinks at a prompt: the helpers that compile have the cores
NATIVE = """
import time
import flowvm as flow
from flowvm.vm.engine.engine import engine
x = flow.ones(2, 2)
while not engine.threads.running:
    time.sleep(0.05)
    x + 1
"""
CNN = """
import flowvm as flow
from flowvm.commands.demo import build_model, train_step
model = build_model()
optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
train_step(model, optimizer, flow.randn(64, 1, 8, 8), flow.randint(0, 10, (64,))).item()
flow.vm.sync()
"""
TRANSFORMER = f"""
import sys
sys.path.append({str(Path(__file__).parents[2])!r})
import flowvm as flow
from tools.bench.targets import stepping, transformer
stepping(transformer)(flow)()
flow.vm.sync()
"""
RESIDENT = "print(open('/proc/self/statm').read().split()[1])"


class Row(NamedTuple):
    """A program of ours, PyTorch's if there is one, and the targets."""

    name: str
    ours: str
    torch: str | None
    start: str
    seconds: float | None  # at most
    ratio: float | None  # at most


ROWS = (
    Row("import", *IMPORT, WARM, None, 0.25),
    Row(f"import, first op, print, {WARM}", *FIRST, WARM, None, 0.3),
    Row(f"import, first op, print, {EMPTY}", *FIRST, EMPTY, 2.5, 1.3),
    Row(f"import, first op, print, {WHEEL}", *FIRST, WHEEL, None, 0.6),
    Row(f"the demo's first training step, {WHEEL}", wheel.STEP, None, WHEEL, 1.5, None),
    Row(f"VM native, {EMPTY}", NATIVE, None, EMPTY, 12.0, None),
    Row(f"22 usual ops on 4x4, {EMPTY}", USUAL, None, EMPTY, 10.0, None),
    Row(f"the demo's CNN, a training step, {EMPTY}", CNN, None, EMPTY, 8.0, None),
    Row(
        f"a transformer of 2 blocks, a training step, {EMPTY}", TRANSFORMER, None, EMPTY, 10.0, None
    ),
)


class Taken(NamedTuple):
    """Seconds that passed, and processor seconds of the process, without its helpers."""

    passed: float
    busy: float


def _seconds(code: str, start: str = WARM, installed: Path | None = None) -> Taken:
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or every import would compile Python
        if start != WARM:
            environment["FLOWVM_CACHE_DIR"] = folder
        if start == WHEEL:
            environment["PYTHONPATH"] = str(installed)
        began = time.perf_counter()
        command = [sys.executable, "-P", "-c", code]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        passed = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return Taken(passed, used.ru_utime + used.ru_stime)


def _resident(code: str) -> float:
    """MiB."""
    program = [sys.executable, "-c", f"{code}\n{RESIDENT}"]
    output = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    return int(output.split()[-1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def results(peers: dict[str, Any], rounds: int) -> Iterator[Result]:
    """A row each, ours and PyTorch's in turn."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _results("torch" in peers, rounds, Path(folder))


def _results(with_torch: bool, rounds: int, folder: Path) -> Iterator[Result]:
    levels = levels_here()[:1]
    installed = wheel.unpacked(
        wheel.build_wheel(folder, levels, [NUMBERS, wheel.DEMO], folder), folder
    )
    for code in (*IMPORT, *FIRST)[:: 1 if with_torch else 2]:
        _seconds(code)
    _seconds(FIRST[0], WHEEL, installed)
    for row in ROWS:
        if row.start == WHEEL and not levels:
            continue
        ours, torch = [], []
        for _ in range(rounds):
            ours.append(_seconds(row.ours, row.start, installed))
            if with_torch and row.torch is not None:
                torch.append(_seconds(row.torch))
        mine = statistics.median(t.passed for t in ours)
        theirs = statistics.median(t.passed for t in torch) if torch else None
        ratios = [a.passed / b.passed for a, b in zip(ours, torch, strict=False)]
        ratio = statistics.median(ratios) if ratios else None
        busy = f"{statistics.median(t.busy for t in ours):.2f} s of a processor"
        if torch:
            busy += f", torch {statistics.median(t.busy for t in torch):.2f}"
        yield _result(row, "s", mine, theirs, ratio, busy)
    mine = _resident(FIRST[0])
    theirs = _resident(FIRST[1]) if with_torch else None
    row = Row("resident memory after that", *FIRST, WARM, None, 0.6)
    yield _result(row, "MiB", mine, theirs, mine / theirs if theirs else None)


def _result(
    row: Row, unit: str, mine: float, theirs: float | None, ratio: float | None, note: str = ""
) -> Result:
    reach = [] if row.seconds is None else [f"{row.seconds:g} s"]
    reach += [] if row.ratio is None else [f"{row.ratio:g}x"]
    met = row.seconds is None or mine <= row.seconds
    met = met and (row.ratio is None or ratio is None or ratio <= row.ratio)
    peer = "torch" if theirs is not None else ""
    reached = f"at most {', '.join(reach)}"
    return Result(row.name, unit, mine, peer, theirs, ratio, reached, met, note=note)
