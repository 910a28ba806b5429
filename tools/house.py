"""Print the figures of the house: lines, files and folders by room, and functions a call passes.

    python -m tools.house                 the tables
    python -m tools.house --json FILE     the same as JSON, to compare with another commit's
    python -m tools.house --against FILE  each figure beside the one in FILE

Lines of product are those of flowvm, ops, graph and autograd.  A call's functions are those of
Python that run on the calling thread, with calls made by Python functions (FLOWVM_CALLS=python), so
that the path of a warm call is seen; native calls make the same steps in compiled code.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tools import changed

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("flowvm", "ops", "graph", "autograd")
OTHERS = ("tests", "tools", "tutorials")

PASSED = """
import json, sys
import flowvm as flow

def passed(call):
    seen = set()
    def note(frame, event, arg):
        if event == "call":
            code = frame.f_code
            if "flowvm" in frame.f_globals.get("__name__", "") or "<flowvm" in code.co_filename:
                seen.add((code.co_filename, code.co_qualname))
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {"functions": len(seen), "files": len({file for file, _ in seen})}

x = flow.ones(8, 8)
w = flow.ones(8, 8, requires_grad=True)
(x + 1).numpy()
first = passed(lambda: flow.relu(x))
for _ in range(5):
    flow.relu(x)
    (w * 2).sum().backward()
warm = passed(lambda: flow.relu(x))
loss = (w * 2).sum()
back = passed(loss.backward)
print(json.dumps({"first relu": first, "warm relu": warm, "warm backward": back}))
"""


def room_of(path: Path) -> str:
    """Return the room of a file: its folder, at most two levels deep."""
    return "/".join(path.parts[:-1][:2])


def sizes() -> dict[str, dict[str, int]]:
    """Return lines, files and folders by room."""
    rooms: dict[str, Counter[str]] = {}
    folders: dict[str, set[Path]] = {}
    for top in (*PRODUCT, *OTHERS):
        for path in sorted((ROOT / top).rglob("*.py")):
            own = path.relative_to(ROOT)
            room = room_of(own)
            counts = rooms.setdefault(room, Counter())
            counts["lines"] += len(path.read_text().splitlines())
            counts["files"] += 1
            folders.setdefault(room, set()).add(own.parent)
    return {
        room: {**counts, "folders": len(folders[room])} for room, counts in sorted(rooms.items())
    }


def annotations_of_any() -> int:
    """Return the number of times that product code says `Any`."""
    count = 0
    for top in PRODUCT:
        for path in (ROOT / top).rglob("*.py"):
            tree = ast.walk(ast.parse(path.read_text()))
            count += sum(isinstance(node, ast.Name) and node.id == "Any" for node in tree)
    return count


def fields_of(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class: names annotated in its body, and what its methods set on
    `self`.  A name that ClassVar or Final says is none.
    """
    names = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and not any(word in ast.unparse(item.annotation) for word in ("ClassVar", "Final"))
    }
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            names |= {
                inner.attr
                for inner in ast.walk(item)
                if isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == "self"
            }
    return names


def most_fields(count: int = 12) -> dict[str, int]:
    """Return the numbers of fields of the classes of product that have the most of their own."""
    counts = {}
    for top in PRODUCT:
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    counts[f"{path.relative_to(ROOT)} {node.name}"] = len(fields_of(node))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ranked[:count])


def modules_by_tests() -> dict[str, int]:
    """Count modules of product: all, those that no test imports or has the name of, and those of
    the latter none of whose own names a test names, so that only `tests/modules.txt` leads there.
    """
    modules = [p for p in changed.python_files(*PRODUCT) if p.stem != "__init__"]
    indirect = [p for p in modules if not changed.has_direct_test(p)]
    return {
        "all": len(modules),
        "not imported by a test": len(indirect),
        "in the table": sum(not changed.tests_by_names(p) for p in indirect),
    }


def total(rooms: dict[str, dict[str, int]], tops: tuple[str, ...], what: str) -> int:
    """Return the sum of a figure over the rooms of some top folders."""
    return sum(counts[what] for room, counts in rooms.items() if room.split("/")[0] in tops)


def figures() -> dict[str, Any]:
    """Return all figures, by name."""
    rooms = sizes()
    env = {**os.environ, "FLOWVM_CALLS": "python"}
    process = subprocess.run(
        [sys.executable, "-c", PASSED],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "rooms": rooms,
        "product": {what: total(rooms, PRODUCT, what) for what in ("lines", "files", "folders")},
        "tests": {what: total(rooms, ("tests",), what) for what in ("lines", "files", "folders")},
        "Any in product": {"count": annotations_of_any()},
        "modules": modules_by_tests(),
        "fields": most_fields(),
        **json.loads(process.stdout.splitlines()[-1]),
    }


def flattened(tree: dict[str, Any], prefix: str = "") -> dict[str, int]:
    """Return the figures of a tree by their paths."""
    rows: dict[str, int] = {}
    for name, value in tree.items():
        path = f"{prefix} {name}".strip()
        rows |= flattened(value, path) if isinstance(value, dict) else {path: value}
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--against", type=Path, help="a file that --json has written")
    options = parser.parse_args(argv)
    now = figures()
    if options.json:
        options.json.write_text(json.dumps(now, indent=1))
    before = flattened(json.loads(options.against.read_text())) if options.against else {}
    for path, value in flattened(now).items():
        beside = f"{before.get(path, 0):>10,}" if options.against else ""
        print(f"{beside}{value:>10,}  {path.removeprefix('rooms ')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
