"""Count docstrings that do not name their subject, and names that are verbs; list them.

    python -m tools.prose              the count by room; the exit code is 1 if it exceeds the limit
    python -m tools.prose --list ops   each of a folder, with its file and line

A docstring begins with an imperative verb or a noun, and is understood alone.  One that begins with
a word of OPENINGS stands in the place of a noun: "What is raised" says less than "Return the
exception to raise".  LIMIT is what the house has; a change may lower it and never raise it.

A variable, parameter, attribute or function of the product is named by a noun.  None of VERBS is
such a name; NAMES_THAT_STAY are public or saved fields.
"""

from __future__ import annotations

import argparse
import ast
import re
import symtable
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
LIMIT = 20
PRODUCT = ("flowvm", "ops", "graph", "autograd")
VERBS = frozenset(
    [
        *["found", "made", "told", "there", "given", "kept", "left", "seen", "wanted", "done"],
        *["said", "here", "taken", "asked", "got", "meant", "heard"],
    ]
)
SIDES = {"left": "right"}  # an operand's side beside the other one
NAMES_THAT_STAY = {
    "flowvm/amp/grad_scaler.py:_found": "a pickle of a GradScaler has it",
    "flowvm/distributions/transforms.py:_kept": "a pickle of a Transform has it",
    "flowvm/lab/machines.py:Machine.here": "public, of flow.lab",
    "flowvm/lab/simulation.py:asked": "public, of a simulated schedule",
    "flowvm/launch.py:View.given": "public, of an op's launch",
    "flowvm/profiler/views/explanation.py:Explanation.made": "public, of flow.explain",
    "flowvm/profiler/views/explanation.py:Source.made": "public, of flow.explain",
    "flowvm/profiler/views/instruction.py:Used.made": "public, of a profile's instruction",
    "flowvm/profiler/views/memory/memory.py:Place.kept": "public, of a profile's memory",
    "flowvm/profiler/views/memory/memory.py:Place.made": "public, of a profile's memory",
    "flowvm/profiler/views/passes.py:PassText.made": "public, of a profile's passes",
    "flowvm/ranks/watcher.py:seen": "a write of Failure.seen",
    "flowvm/torch_names/futures.py:Future.done": "PyTorch's name",
    "flowvm/vm/engine/cancel.py:Cancelled.kept": "public, of flow.vm.cancel",
    "flowvm/vm/engine/failures.py:Failure.seen": "public, of flow.errors",
    "flowvm/vm/engine/failures.py:seen": "a write of Failure.seen",
    "flowvm/vm/engine/scheduling.py:Scheduling.asked": "public, of flow.vm.schedule",
    "graph/passes/changes.py:PassChange.made": "public, of a graph's passes",
    "ops/linalg/classic.py:ormqr.left": "PyTorch's name",
    "ops/linalg/decompositions.py:lu_solve.left": "PyTorch's name",
    "ops/linalg/decompositions.py:solve_triangular.left": "PyTorch's name",
    "ops/linalg/solvers.py:_system.left": "PyTorch's name",
    "ops/linalg/solvers.py:lambda.left": "PyTorch's name",
    "ops/linalg/solvers.py:solve.left": "PyTorch's name",
    "ops/linalg/solvers.py:solve_ex.left": "PyTorch's name",
}
_FIRST = re.compile(r"\W*([A-Za-z']+)(?:\s+([A-Za-z']+))?")
_VERB = re.compile(rf"\b_?(?:{'|'.join(sorted(VERBS))})\b")
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


def is_verb(name: str, scope: symtable.SymbolTable) -> bool:
    """Return True if a name of a scope is one of VERBS; `left` beside `right` is a side."""
    plain = name.lstrip("_")
    return plain in VERBS and SIDES.get(plain) not in scope.get_identifiers()


def verbs_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield a line and a name for each of VERBS that a scope binds: `scope.name`, or an attribute
    of an object: `name`.
    """
    if not _VERB.search(source):
        return
    tables = [symtable.symtable(source, "<source>", "exec")]
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if is_verb(symbol.get_name(), table) and symbol.is_local():
                yield table.get_lineno(), f"{table.get_name()}.{symbol.get_name()}"
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()) if name.lstrip("_") in VERBS:
                yield node.lineno, name


def verbs_of_product() -> Iterator[str]:
    """Yield a line for each name of the product that is one of VERBS, but NAMES_THAT_STAY."""
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("*.py")):
            own = path.relative_to(ROOT)
            for line, name in verbs_in(path.read_text()):
                if f"{own}:{name}" not in NAMES_THAT_STAY:
                    yield f"{own}:{line} {name}"


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
    verbs = list(verbs_of_product())
    for verb in verbs:
        print(f"{verb}: a name is a noun")
    return 1 if verbs or len(riddles) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
