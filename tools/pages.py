"""The programs of the pages in docs/: blocks of Python that a reader may copy, with their output.

A page's ```python blocks are one program, run from top to bottom in a process of its own, in an
empty folder.  A ```text block behind one of them is what it prints; `...` stands for anything.  A
block below a line `<!-- not run: REASON -->` is left out.  The program's lines have the numbers
that they have on the page.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

__all__ = ["Block", "blocks", "pages", "program", "run"]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: [^\n]+ -->\s*\Z")
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
SEPARATOR = "\x1e"
TIMEOUT_S = 300
RUN_ELSEWHERE = {DOCS / "how-it-works" / "tour.md"}  # python -m tools.tour


class Block(NamedTuple):
    """A block of Python of a page: the line of its fence, its text, the output that it shows."""

    line: int
    text: str
    shown: str | None
    runs: bool


def pages() -> list[Path]:
    """Return the pages in docs/ that have a program to run."""
    paths = [page for page in sorted(DOCS.rglob("*.md")) if page not in RUN_ELSEWHERE]
    return [page for page in paths if any(block.runs for block in blocks(page.read_text()))]


def blocks(text: str) -> list[Block]:
    """Return the blocks of Python of a page, in order."""
    fences = list(FENCE.finditer(text))
    result = []
    for k, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        shown = None
        if k + 1 < len(fences) and fences[k + 1][1] == "text":
            behind = fences[k + 1]
            shown = None if text[fence.end() : behind.start()].strip() else behind[2]
        line = text.count("\n", 0, fence.start()) + 1
        runs = NOT_RUN.search(text[: fence.start()]) is None
        result.append(Block(line, fence[2], shown, runs))
    return result


def program(text: str) -> str:
    """Return the program of a page: each block at its lines, a separator printed in front of it."""
    lines = [""] * (text.count("\n") + 2)
    for block in blocks(text):
        if block.runs:
            lines[block.line - 1] = f"print({SEPARATOR!r}, flush=True)"
            lines[block.line : block.line + block.text.count("\n")] = block.text.splitlines()
    return "\n".join(lines)


def run(page: Path) -> tuple[int, list[str]]:
    """Run a page's program; return the number of its blocks and a text for each one that fails."""
    text = page.read_text()
    ran = [block for block in blocks(text) if block.runs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{page.stem}.py"
        path.write_text(program(text))
        process = subprocess.run(
            [sys.executable, path.name], cwd=folder, capture_output=True, text=True,
            timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
            env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        )  # fmt: skip
    failures = []
    if process.returncode:
        failures.append(f"{page}: exit code {process.returncode}\n{process.stderr}")
    printed = process.stdout.split(SEPARATOR + "\n")[1:]
    for block, output in zip(ran, printed, strict=False):
        want = block.shown
        if want is not None and not doctest.OutputChecker().check_output(want, output, FLAGS):
            failures.append(f"{page}:{block.line}: expected\n{want}but it printed\n{output}")
    return len(ran), failures
