"""`python -m tools.gpu_tests PARTS SECONDS ARGS...`: tests on a GPU, in PARTS processes at a time.

Part k of n takes every n-th test (FLOWVM_TEST_PART, see tests/cuda/conftest.py); ARGS are pytest's.
A part whose process dies, or in which the device was lost, is begun again behind the tests that it
has taken, so that one bad kernel does not hide the others.  After SECONDS what runs is interrupted
and says how far it came.  Prints what failed and, last, how many passed.
"""

from __future__ import annotations

import collections
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

AGAIN = 5  # how often a part is begun again
FINISHED = {0, 1, 5}  # pytest's exit codes: passed, failed, no tests
_COUNT = re.compile(r"(\d+) (passed|failed|error|skipped|deselected)")


@dataclass
class Part:
    """One of the processes, and its outcome."""

    number: int
    of: int
    folder: Path
    arguments: list[str]
    starts: int = 0
    lost: list[str] = field(default_factory=list)  # tests that took the process or the device along

    def start(self) -> None:
        self.starts += 1
        self.log = self.folder / f"{self.number}-{self.starts}.log"
        settings = os.environ | {
            "FLOWVM_TEST_PART": f"{self.number}/{self.of}",
            "FLOWVM_TEST_TAKEN": str(self.taken_file),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            env=settings,
        )

    @property
    def taken_file(self) -> Path:
        return self.folder / f"{self.number}.taken"

    def runs(self, in_time: bool) -> bool:
        """Return True if the part still runs; start it again where that helps."""
        code = self.process.poll()
        if code is None:
            return True
        if code in FINISHED or not in_time or self.starts > AGAIN or not self.taken_file.exists():
            return False
        self.lost.append(self.taken_file.read_text().split("\n")[-2])
        self.start()
        return True

    def text(self) -> str:
        logs = sorted(self.folder.glob(f"{self.number}-*.log"))
        return "".join(log.read_text(errors="replace") for log in logs)


def main() -> int:
    """Run the parts; exit code 1 if a test failed, or not all were taken."""
    count, seconds, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        parts = [Part(k, int(count), Path(folder), arguments) for k in range(int(count))]
        in_time = _run(parts, time.monotonic() + float(seconds))
        return _told(parts, in_time)


def _run(parts: list[Part], end: float) -> bool:
    """Run all parts; return True if they ended in time."""
    for part in parts:
        part.start()
    while sum(part.runs(True) for part in parts):  # each is asked, and begun again
        if time.monotonic() > end:
            _interrupt(parts)
            return False
        time.sleep(0.1)
    return True


def _interrupt(parts: list[Part]) -> None:
    for send, patience in ((signal.SIGINT, 10.0), (signal.SIGKILL, 5.0)):
        for part in parts:
            if part.runs(False):
                part.process.send_signal(send)
        end = time.monotonic() + patience
        while any(part.runs(False) for part in parts) and time.monotonic() < end:
            time.sleep(0.1)


def _told(parts: list[Part], in_time: bool) -> int:
    counts: collections.Counter[str] = collections.Counter()
    for part in parts:
        text = part.text()
        if part.process.returncode not in FINISHED or "failed" in text or "error" in text:
            print(f"\n=== part {part.number} of {part.of}, exit code {part.process.returncode}")
            print(text)
        for line in re.findall(r"^=*\s*(\d+ .* in [\d.]+s.*)$", text, re.MULTILINE):
            counts.update({kind: int(number) for number, kind in _COUNT.findall(line)})
        for test in part.lost:
            print(f"the process or the device was lost in {test}")
    counts["failed"] += sum(len(part.lost) for part in parts)
    if not in_time:
        print("not all tests were taken: the time was over")
    kinds = ("passed", "failed", "error", "skipped")
    print(", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts[kind]) or "0 passed")
    bad = counts["failed"] + counts["error"] or not in_time
    return int(bool(bad) or any(part.process.returncode not in FINISHED for part in parts))


if __name__ == "__main__":
    raise SystemExit(main())
