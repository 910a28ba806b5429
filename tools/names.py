"""Lists the names of PyTorch and OneFlow that programs use and flowvm has not.

    python -m tools.names FOLDER...          a table of what is missing, most used first
    python -m tools.names FOLDER... --all    and of what is there

A name is dotted, from an import on: `nn.functional.relu` behind `from torch import nn` is
`torch.nn.functional.relu`.  It is looked up as `import torch` finds it under
`flowvm.compat.torch`; modules, classes and their attributes count, and what instances have does
not.  Programs are read and never run.  A missing name has a sentence that says why and what to use,
if `flowvm.loading.missing_names` has one.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flowvm import mock_torch
from flowvm.compat import torch as compat
from flowvm.loading.missing_names import ABSENT


class Use(NamedTuple):
    """The uses of a name."""

    name: str
    uses: int
    programs: int  # folders directly below those that were given, or these themselves
    place: str  # of the first one
    why: str  # "" for a name that is there


def names_in(text: str) -> Iterator[tuple[str, int]]:
    """The dotted names that a program's text uses, with lines; nothing of what cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strange escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    known: dict[str, str] = {}  # what a name of the program means
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in compat.ROOTS:
                    yield alias.name, node.lineno
                    root = alias.name.partition(".")[0]
                    known[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            if module.partition(".")[0] not in compat.ROOTS:
                continue
            yield module, node.lineno
            for alias in node.names:
                if alias.name != "*":
                    known[alias.asname or alias.name] = f"{module}.{alias.name}"
                    yield f"{module}.{alias.name}", node.lineno
    inner = {id(n.value) for n in nodes if isinstance(n, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            parts, value = [node.attr], node.value
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id in known:
                yield ".".join([known[value.id], *reversed(parts)]), node.lineno


def files_of(folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """The Python files, each with the program that it is of."""
    for folder in folders:
        for path in sorted([folder] if folder.is_file() else folder.rglob("*.py")):
            inside = path.relative_to(folder).parts if folder.is_dir() else ()
            yield str(folder / inside[0] if len(inside) > 1 else folder), path


def missing_part(name: str) -> str:
    """The shortest beginning of a dotted name that is not there; "" if all of it is."""
    parts = name.split(".")
    place_now: Any = importlib.import_module(parts[0])
    for k, part in enumerate(parts[1:], 2):
        prefix = ".".join(parts[:k])
        if not isinstance(place_now, (types.ModuleType, type)):
            return ""  # an instance's attributes are its own
        try:
            place_now = getattr(place_now, part)
        except AttributeError:
            try:
                place_now = importlib.import_module(prefix)
            except ImportError:
                return prefix
        except ImportError:
            return prefix
    return ""


def why(name: str) -> str:
    """The sentence on a name, or on a beginning or an end of it."""
    inner = name.partition(".")[2]
    parts = inner.split(".")
    ways = [".".join(parts[:k]) for k in range(len(parts), 0, -1)]
    return next((ABSENT[way] for way in (*ways, parts[-1]) if way in ABSENT), "not known")


def uses(folders: Iterable[Path]) -> list[Use]:
    """The names that the programs in these folders use, most used first."""
    counts: Counter[str] = Counter()
    programs: dict[str, set[str]] = defaultdict(set)
    places: dict[str, str] = {}
    for program, path in files_of(folders):
        for name, line in names_in(path.read_text(errors="replace")):
            counts[name] += 1
            programs[name].add(program)
            places.setdefault(name, f"{path}:{line}")
    with mock_torch.enable():
        missing = {name: missing_part(name) for name in counts}
    rows: dict[str, Use] = {}
    for name, count in counts.items():
        gone = missing[name]
        key = gone or name
        before = rows.get(key)
        programs[key] |= programs[name]
        reason = why(gone) if gone else ""
        first = before.place if before else places[name]
        total = count + (before.uses if before else 0)
        rows[key] = Use(key, total, len(programs[key]), first, reason)
    return sorted(rows.values(), key=lambda u: (-u.programs, -u.uses, u.name))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--all", action="store_true", help="names that are there, too")
    options = parser.parse_args()
    for folder in options.folders:
        if not folder.exists():
            parser.error(f"there is no {folder}")
    names_used = uses(options.folders)
    missing = [use for use in names_used if use.why]
    for use in names_used if options.all else missing:
        print(f"{use.programs:4d} {use.uses:5d}  {use.name}  ({use.place})")
        if use.why:
            print(f"{'':12s}{use.why}")
    print(f"{len(missing)} of {len(names_used)} names are missing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
