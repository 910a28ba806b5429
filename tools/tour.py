"""Make the outputs of the guided tour by running its programs.

    python -m tools.tour [page]     docs/how-it-works/tour.md by default

A fenced block ```python whose first line is `# NAME.py` is a program. A ```console block behind it
begins with `$ FLOWVM_DEBUG=2 python NAME.py`; what stands below that line is replaced by what the
program prints. Each program runs several times, and the run that took least is kept.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PAGE", "main", "printed", "programs", "settled"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-it-works" / "tour.md"
TRIES = 5
# a busy machine: an instruction is waited for as long as it takes
STARTER = "from flowvm.vm.watch import narrate\n\nnarrate.PATIENCE = 60\n"
BLOCK = re.compile(
    r"```python\n(# (\w+\.py)\n.*?)```\n(.*?```console\n)(\$ [^\n]*\n)(.*?)```", re.S
)
TOOK = re.compile(r"(\d+\.\d+) ms")


def programs(text: str) -> Iterator[re.Match[str]]:
    """Return the programs of a page: groups source, name, the text between, command, output."""
    return BLOCK.finditer(text)


def printed(source: str, name: str, command: str) -> str:
    """Return the output of a program, on both streams, with the settings of the command line."""
    settings = dict(re.findall(r"(FLOWVM_\w+)=(\S+)", command))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(source)
        (Path(folder) / "sitecustomize.py").write_text(STARTER)  # Python imports it first
        process = subprocess.run(
            [sys.executable, "-u", name], cwd=folder, text=True, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": folder, "FLOWVM_WORKERS": "2", **settings},
        )  # fmt: skip
    lines = [line.rstrip() for line in process.stdout.splitlines()]
    return "\n".join(line for line in lines if ": compiled " not in line) + "\n"


def settled(shown: str) -> str:
    """Return the part of the output that does not change from run to run.

    Times and rates are replaced, and storages that one line releases are sorted: their order
    changes.
    """
    shown = re.sub(
        r"storage \d+( storage \d+)+",
        lambda match: " ".join(sorted(re.findall(r"storage \d+", match[0]))),
        shown,
    )
    shown = re.sub(r" +\d+\.\d+ ms +\d+\.\d+ G[BF]/s", " TIME RATE", shown)
    return re.sub(r" +\d+\.\d+ ms", " TIME", shown)


def _remade(match: re.Match[str]) -> str:
    source, name, between, command, _ = match.groups()
    tries = [printed(source, name, command) for _ in range(TRIES)]
    best = min(tries, key=lambda shown: sum(map(float, TOOK.findall(shown))))
    return f"```python\n{source}```\n{between}{command}{best}```"


def main(arguments: list[str] | None = None) -> int:
    """Write the page anew."""
    parser = argparse.ArgumentParser(prog="python -m tools.tour", description=__doc__)
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    page: Path = parser.parse_args(arguments).page
    page.write_text(BLOCK.sub(_remade, page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
