"""Run the tests that a change needs.

    python -m tools.changed                  of what differs from the last commit
    python -m tools.changed --since main     of what differs from where this branch left main
    python -m tools.changed --list           name them only

A changed test file runs whole.  A changed module is followed to

- the test files that import it, or a helper of tests that is changed;
- the test file of its name in the room of its name (`ops/rows/sort.py`: `tests/ops/rows/
  test_sort.py`);
- if it has none of these, the test files that name what it alone defines; else those that the
  table `tests/modules.txt` says;
- the products (`tests/conftest.py`) of the ops that it defines, or whose module imports it: all
  dtypes and checks of at most OPS ops;
- the structure of the house (`tests/house/test_layout.py`).

What imports more than WIDE test files is a base of the house: the quick tier (`tests/quick.txt`)
takes the place of its importers, and `make test` is due before it lands.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("flowvm", "ops", "graph", "autograd", "tools")
PRODUCT = ("flowvm", "ops", "graph", "autograd")
MOVED = PRODUCT[1:]  # `flowvm.ops` is the folder `ops`
WIDE = 12
OPS = 12
SHORT = 4
CHECKS = "tests/ops/test_generated.py"


def changed_files(since: str | None) -> list[Path]:
    """Return the files that differ from a commit, and the files that git does not know yet."""
    base = "HEAD" if since is None else _git("merge-base", since, "HEAD").strip()
    names = _git("diff", "--name-only", base).split()
    names += _git("ls-files", "--others", "--exclude-standard").split()
    return [Path(name) for name in dict.fromkeys(names)]


def _git(*args: str) -> str:
    return subprocess.run(
        ["git", *args], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def module_of(path: Path) -> str:
    """Return the dotted name of a file's module."""
    parts = path.with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    if parts[:2] == ("flowvm", "torch_names") and len(parts) == 3:
        parts = (parts[0], parts[2])  # which are on the path of flowvm
    return ".".join(("flowvm", *parts) if parts[0] in MOVED else parts)


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules that a file names: by import, and in quotes for a late one."""
    try:
        tree = ast.parse((ROOT / path).read_text())
    except (SyntaxError, FileNotFoundError):
        return frozenset()
    return frozenset(_imports(tree))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and _is_module(node.value):
            yield str(node.value)


def _is_module(value: object) -> bool:
    return isinstance(value, str) and value.startswith("flowvm.") and " " not in value


def python_files(*tops: str) -> list[Path]:
    """Return the Python files below folders of the repository."""
    return [p.relative_to(ROOT) for top in tops for p in sorted((ROOT / top).rglob("*.py"))]


def is_test(path: Path) -> bool:
    """Return True for a file of tests, not a helper."""
    return path.parts[0] == "tests" and path.name.startswith("test_")


def tests_of_helper(path: Path) -> Iterator[Path]:
    """Yield the test files that import a helper of tests, by the last part of its name."""
    for test in filter(is_test, python_files("tests")):
        if any(name.rpartition(".")[2] == path.stem for name in imports(test)):
            yield test


def tests_of_module(path: Path) -> list[Path]:
    """Return the test files of a module, each once."""
    tests = [*_importers(path), *_of_its_name(path)]
    return [*dict.fromkeys(tests or tests_by_names(path) or _in_table(path))]


def has_direct_test(path: Path) -> bool:
    """Return True if a test imports a module, or has its name."""
    return bool(_importers(path)) or any(_of_its_name(path))


def _importers(path: Path) -> list[Path]:
    return _tests_by("imports").get(module_of(path), [])


@cache
def _tests_by(what: str) -> dict[str, list[Path]]:
    """Map modules, or names, to the test files that import, or use, them."""
    tests: dict[str, list[Path]] = {}
    for test in filter(is_test, python_files("tests")):
        for name in imports(test) if what == "imports" else used(test):
            tests.setdefault(name, []).append(test)
    return tests


def _of_its_name(path: Path) -> Iterator[Path]:
    room = path.parts[1:-1] if path.parts[0] == "flowvm" else path.parts[:-1]
    for length in range(len(room), -1, -1):
        test = Path("tests", *room[:length], f"test_{path.stem.strip('_')}.py")
        if (ROOT / test).exists():
            yield test
            return


def tests_by_names(path: Path) -> list[Path]:
    """List the test files that use a public name which only this module defines, of SHORT letters
    or more.
    """
    names = {
        name
        for name in defined(path)
        if len(name) >= SHORT and name[0] != "_" and _definitions()[name] == 1
    }
    tests = {test for name in names for test in _tests_by("names").get(name, ())}
    return sorted(tests)


@cache
def _definitions() -> Counter[str]:
    """Count the product modules that define each name."""
    return Counter(name for path in python_files(*PRODUCT) for name in defined(path))


@cache
def defined(path: Path) -> frozenset[str]:
    """Return the names that a module binds at its top level, without imports."""
    names = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(names)


@cache
def used(path: Path) -> frozenset[str]:
    """Return the names that a file uses: variables, attributes, and texts that are one name."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if node.value.isidentifier() else set()
    return frozenset(names)


@cache
def table() -> dict[str, str]:
    """Return the table: a module, and a pattern of tests."""
    lines = (ROOT / "tests" / "modules.txt").read_text().splitlines()
    rows = [line.split(maxsplit=2) for line in lines if line and line[0] != "#"]
    return {module: tests for module, tests, _ in rows}


def _in_table(path: Path) -> list[Path]:
    pattern = table().get(str(path))
    tests = sorted(ROOT.glob(pattern)) if pattern else []
    return [test.relative_to(ROOT) for test in tests if is_test(test.relative_to(ROOT))]


def cases_of_ops(modules: set[str]) -> list[str]:
    """Return the generated checks of the ops that modules define or whose module imports them."""
    samples = dict(_op_calls().all_samples())
    near = {
        module_of(path) for path in python_files("ops") if modules & imports(path)
    } | modules  # fmt: skip
    names = [name for name, op in samples.items() if op.function.__module__ in near]
    own = [name for name, op in samples.items() if op.function.__module__ in modules]
    chosen = [*dict.fromkeys([*own, *names])][:OPS]
    cases = [(name, *case) for name in chosen for case in _checks(samples[name])]
    return [f"{CHECKS}::{check}[{name}{end}]" for name, check, end in cases]


@cache
def _op_calls() -> Any:
    """Return the tests' module of samples."""
    sys.path.insert(0, str(ROOT / "tests" / "ops" / "helpers"))
    return importlib.import_module("op_calls")


def _checks(op: Any) -> Iterator[tuple[str, str]]:
    yield from (("test_forward", f"-{dtype}") for dtype in op.floats)
    yield "test_sequential", ""
    if op.grad:
        yield "test_gradcheck", ""


def tests_of(files: Iterable[Path]) -> list[str]:
    """Return the arguments of pytest for these files, in order, each once."""
    paths: dict[str, None] = {}
    modules: set[str] = set()
    for path in files:
        if path.suffix != ".py":
            if path.parts[0] in ("docs", "README.md", "CONTRIBUTING.md", "mkdocs.yml"):
                paths["tests/docs/test_docs.py"] = None
            if path.name == "README.md" and len(path.parts) == 1:
                paths["tests/docs/test_readme.py"] = None
        elif is_test(path):
            if (ROOT / path).exists():
                paths[str(path)] = None
        elif path.parts[0] == "tests":
            paths |= dict.fromkeys(map(str, tests_of_helper(path)))
        elif path.parts[0] in TOPS:
            modules.add(module_of(path))
            tests = [*map(str, tests_of_module(path))] if (ROOT / path).exists() else []
            if len(tests) > WIDE:
                print(f"{path}: {len(tests)} test files import it: the quick tier instead")
                tests = quick()
            paths |= dict.fromkeys(tests)
            paths["tests/house/test_layout.py"] = None
    if any(module.startswith("flowvm.ops.") for module in modules):
        paths |= dict.fromkeys(cases_of_ops(modules))
    return list(paths)


def quick() -> list[str]:
    """Return the names in the quick tier."""
    lines = (ROOT / "tests" / "quick.txt").read_text().splitlines()
    return [line for line in lines if line and line[0] != "#"]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.changed", description=__doc__)
    parser.add_argument("--since", help="a commit or branch (default: the last commit)")
    parser.add_argument("--list", action="store_true", help="name the tests and run none")
    options, args = parser.parse_known_args(argv)
    files = changed_files(options.since)
    tests = tests_of(files)
    if options.list or not tests:
        print("\n".join(tests) or f"no test follows from {len(files)} changed files")
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *args, *tests]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
