"""Starting: import, first op, print, in a new process with a warm cache."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from tools.bench.measure import Result

OURS = "import flowvm as flow; print(flow.ones(2, 2) + 1)"
TORCH = "import torch; print(torch.ones(2, 2) + 1)"


def _seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def results(peers: dict[str, Any], rounds: int) -> Iterator[Result]:
    """One row; the interpreter's own start is in both."""
    with_torch = "torch" in peers
    _seconds(OURS)
    if with_torch:
        _seconds(TORCH)
    ours, torch = [], []
    for _ in range(rounds):
        ours.append(_seconds(OURS))
        if with_torch:
            torch.append(_seconds(TORCH))
    mine = statistics.median(ours)
    theirs = statistics.median(torch) if torch else None
    ratio = statistics.median(a / b for a, b in zip(ours, torch, strict=True)) if torch else None
    yield Result(
        "import, first op, print, warm cache",
        "s",
        mine,
        "torch" if torch else "",
        theirs,
        ratio,
        "at most 0.6 s",
        mine <= 0.6,
    )
