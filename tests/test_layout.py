"""The shape of the code base: imports point down, names are public on purpose, files stay small.

Most of it is read from the syntax trees, so a violation is named by file and line even where the
module could not be imported.
"""

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 350

# A layer may import from itself and from those below it.
# fmt: off
LAYERS = (
    (
        "capsules", "compiler", "config", "device", "dtype", "errors", "meta", "schema", "version",
    ),
    ("vm",),
    ("eager", "memory", "profiler", "streams"),
    ("launch",),
    ("backends", "cuda", "interop", "ops", "printing"),
    ("autograd",),
    ("graph",),
    ("amp", "nn", "optim", "serialization", "utils"),
    ("", "__main__", "commands", "datasets"),  # "" is flowvm itself
)
# fmt: on
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MOVED = ("ops", "autograd", "graph")  # top-level folders that are imported as flowvm.<name>


def package_files() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for folder, prefix in ((ROOT / "flowvm", ""), *((ROOT / name, name + ".") for name in MOVED)):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            dotted = prefix + ".".join(parts).removesuffix("__init__").rstrip(".")
            found["flowvm." + dotted.rstrip(".") if dotted else "flowvm"] = path
    return found


FILES = package_files()
PUBLIC = [n for n in FILES if not any(p.startswith("_") for p in n.split("."))]
USED = [n for n in PUBLIC if not n.startswith("flowvm.vm.")]  # the VM's modules are its own matter


def layer_of(module: str) -> str:
    """The name in LAYERS under which `module` stands."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """(line, module) of each import in a file, but not those for the type checker alone."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, node.module or ""]).rstrip(".") if node.level else node.module
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in FILES else str(base)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_module_has_a_layer() -> None:
    strays = [n for n in FILES if layer_of(n) not in RANK]
    assert not strays, f"give these a place in LAYERS: {strays}"


def test_imports_point_down() -> None:
    wrong = {
        f"{where(path, line)} imports {target}, which is above it"
        for module, path in FILES.items()
        for line, target in imports(path, module)
        if target.split(".")[0] == "flowvm" and above(layer_of(target), layer_of(module))
    }
    assert not wrong, "\n".join(sorted(wrong))


def above(layer: str, other: str) -> bool:
    return layer in RANK and other in RANK and RANK[layer] > RANK[other]


def test_no_file_imports_a_moved_package_by_its_folder() -> None:
    others = [p for name in ("tests", "tools", "tutorials") for p in (ROOT / name).rglob("*.py")]
    wrong = [
        f"{where(path, line)} imports {target}: write flowvm.{target}"
        for path in (*FILES.values(), *others)
        for line, target in imports(path, "")
        if target.split(".")[0] in MOVED
    ]
    assert not wrong, "\n".join(wrong)


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_everything_imports_no_moved_package_by_its_folder() -> None:
    names = [n for n in PUBLIC if n != "flowvm.__main__"]
    program = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(run_python(program))
    assert not set(MOVED) & set(loaded)


def test_importing_flowvm_is_light_and_starts_nothing() -> None:
    program = (
        "import json, sys, threading, flowvm\n"
        "print(json.dumps([sorted(sys.modules), threading.active_count()]))"
    )
    loaded, threads = json.loads(run_python(program))
    heavy = {"numba", "scipy", "rich", "IPython", "cupy", "torch", "safetensors", "asyncio"}
    assert not heavy & set(loaded)
    assert threads == 1


@pytest.mark.parametrize("module", USED)
def test_public_names_are_listed_and_exist(module: str) -> None:
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None)
    if names is None:
        assert not public_definitions(module), "a public module lists its names in __all__"
        return
    missing = [name for name in names if not hasattr(loaded, name)]
    assert not missing
    orders = (sorted(set(names), key=name_order), sorted(set(names)))  # written, or computed
    assert list(names) in orders


def public_definitions(module: str) -> list[str]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    body = ast.parse(FILES[module].read_text()).body
    return [n.name for n in body if isinstance(n, kinds) and not n.name.startswith("_")]


def name_order(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    """Ruff's order for __all__: constants, classes, the rest; digits in a name are numbers."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    pieces = [p for p in re.split(r"(\d+)", name) if p]
    return kind, [(0, int(p)) if p.isdigit() else (1, p) for p in pieces]


@pytest.mark.parametrize("module", FILES)
def test_a_long_file_says_why(module: str) -> None:
    text = FILES[module].read_text()
    count = len(text.splitlines())
    reason = "long because" in " ".join((ast.get_docstring(ast.parse(text)) or "").lower().split())
    assert count <= MAX_LINES or reason, (
        f"{count} lines, more than {MAX_LINES}: split it, or write 'Long because ...' at its top"
    )


@pytest.mark.parametrize("module", FILES)
def test_a_module_begins_with_why_it_exists(module: str) -> None:
    text = FILES[module].read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "a module wants a docstring"


def test_there_is_one_exception_tree() -> None:
    elsewhere = [
        f"{where(path, node.lineno)} {node.name}"
        for module, path in FILES.items()
        if module != "flowvm.errors"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and re.search(r"(Error|Exception)$", node.name)
    ]
    assert not elsewhere, f"exceptions belong in flowvm/errors.py: {elsewhere}"


def test_the_build_lists_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name for name, path in FILES.items() if path.name == "__init__.py"}
    assert set(project["tool"]["setuptools"]["packages"]) == packages | {"flowvm.data"}


def test_the_version_is_one() -> None:
    import flowvm

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert flowvm.__version__ == project["project"]["version"]
