"""Count docstrings that do not name their subject, and name them.

    python -m tools.prose              the count by room; the exit code is 1 if it exceeds the limit
    python -m tools.prose --list ops   each of a folder, with its file and line

A docstring begins with an imperative verb or a noun, and is understood alone.  One that begins with
a word of OPENINGS stands in the place of a noun: "What is raised" says less than "Return the
exception to raise".  LIMIT is what the house has; a change may lower it and never raise it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("flowvm", "ops", "graph", "autograd", "tools", "tests", "tutorials")
OPENINGS = frozenset(
    [
        *["What", "Whether", "How", "Where", "When", "Why", "Of", "Which", "Who", "Whose"],
        *["That", "Those", "These", "The-same", "It", "Its", "They", "Their", "Both"],
        *["Such", "So", "Likewise", "Do-it", "There-is", "There-are"],
    ]
)
LIMIT = 120
_FIRST = re.compile(r"\W*([A-Za-z']+)(?:\s+([A-Za-z']+))?")
_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Docstring(NamedTuple):
    """A docstring and where it stands."""

    path: Path
    line: int
    name: str
    text: str

    @property
    def room(self) -> str:
        """The folder of the file, two levels deep."""
        return "/".join(self.path.parts[:-1][:2])


def docstrings(path: Path) -> Iterator[Docstring]:
    """Yield the docstrings of a file: of its module, classes, functions and fields."""
    tree = ast.parse((ROOT / path).read_text())
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS):
            text = ast.get_docstring(node)
            if text:
                name = getattr(node, "name", path.stem)
                yield Docstring(path, getattr(node, "lineno", 1), name, text)


def is_riddle(text: str) -> bool:
    """Return True if a docstring begins with a word in the place of a noun."""
    match = _FIRST.match(text)
    if match is None:
        return False
    first, second = match.group(1), match.group(2) or ""
    return first in OPENINGS or f"{first}-{second}" in OPENINGS


def everything(folder: str = "") -> Iterator[Docstring]:
    """Yield all docstrings of the repository, or of a folder."""
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            own = path.relative_to(ROOT)
            if str(own).startswith(folder):
                yield from docstrings(own)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    parser.add_argument("--list", metavar="FOLDER", nargs="?", const="", help="name each")
    options = parser.parse_args(argv)
    texts = list(everything(options.list or ""))
    riddles = [text for text in texts if is_riddle(text.text)]
    if options.list is not None:
        for riddle in riddles:
            print(f"{riddle.path}:{riddle.line} {riddle.name}: {riddle.text.splitlines()[0]}")
        return 0
    for room, count in Counter(riddle.room for riddle in riddles).most_common():
        print(f"{count:6} {room}")
    share = len(riddles) / len(texts)
    print(f"{len(riddles)} of {len(texts)} docstrings ({share:.1%}), at most {LIMIT}")
    return 1 if len(riddles) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
