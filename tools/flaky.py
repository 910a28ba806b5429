"""Run tests several times on a busy machine and list the ones that failed at least once.

    python -m tools.flaky                       the suite, three times, a busy process a core
    python -m tools.flaky --times 10 tests/vm   some tests, ten times
    python -m tools.flaky --load 0 -- -k storm  other options go to pytest

Each run has the same seed, so that what differs is the machine alone.  A test that failed in one
run is a fault of the product or of the test; its name and its last report are printed.  The exit
code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as Tree
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUSY = "while True: sum(range(100_000))"


class Report(NamedTuple):
    """The failure of one test in one run."""

    name: str
    run: int
    text: str


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep `processes` other processes computing."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def failures(results: Path, run: int) -> Iterator[Report]:
    """Yield the failures in pytest's JUnit file."""
    for case in Tree.parse(results).iter("testcase"):
        for part in (*case.iterfind("failure"), *case.iterfind("error")):
            name = f"{case.get('classname', '')}::{case.get('name', '')}"
            yield Report(name, run, part.text or str(part.get("message")))


def run_once(run: int, args: list[str], folder: Path) -> list[Report]:
    """Run pytest once; return the failures."""
    results = folder / f"{run}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={results}", *args]
    began = time.monotonic()
    # tests send Ctrl-C to processes that inherit how this one takes it
    process = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    last = process.stdout.strip().splitlines()[-1:] or ["no output"]
    print(f"run {run}: {last[0]} ({time.monotonic() - began:.0f} s)", flush=True)
    if not results.exists():
        raise SystemExit(process.stdout[-4000:])
    return list(failures(results, run))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.flaky", description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="runs (default 3)")
    parser.add_argument(
        "--load",
        type=int,
        default=os.cpu_count() or 1,
        help="busy processes beside (default: cores)",
    )
    options, args = parser.parse_known_args(argv)
    args = [arg for arg in args if arg != "--"]
    if not any(arg.startswith("--seed") for arg in args):
        args.append(f"--seed={time.strftime('%Y%m%d')}")
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as folder, busy(options.load):
        for run in range(1, options.times + 1):
            reports += run_once(run, args, Path(folder))
    counts = Counter(report.name for report in reports)
    for name, count in counts.most_common():
        last = next(report for report in reversed(reports) if report.name == name)
        print(f"\n{name}: failed in {count} of {options.times} runs\n{last.text[-1500:]}")
    print(f"\n{len(counts)} tests did not always pass in {options.times} runs")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
