"""The shape of the code base: imports point down and never in a circle, names are public on
purpose.

An import counts wherever it stands: at the head of a file, in a function, for the type checker
alone, or as a name in quotes that `flowvm.loading.lazy` or importlib is given.

Most of it is read from the syntax trees, so a violation is named by file and line even where the
module could not be imported.
"""

import ast
import functools
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tools import faces

ROOT = Path(__file__).resolve().parents[2]

# A layer may import from itself and from those below it.
# fmt: off
LAYERS = (
    (
        "compiler", "config", "errors", "files.bounds", "files.printable", "files.schema",
        "files.writer", "guards", "interop.capsules",
        "loading.missing_names", "loading.lazy", "loading.listing", "meta", "private", "version",
    ),
    ("vm",),
    ("eager", "memory", "profiler", "streams"),
    ("fields", "launch", "ranks", "return_types"),
    ("accelerator", "asyncs", "backends", "cuda", "interop", "mps", "ops", "random", "xpu"),
    ("autograd",),
    ("graph",),
    (
        "amp", "custom_ops", "distributions", "fft", "files", "foreach", "func", "futures", "fx",
        "jit", "lab", "library", "linalg", "masked", "methods", "natives", "nn", "onnx",
        "op_checks", "optim", "overrides", "sbp", "schemas", "serialization", "settings", "signal",
        "special", "testing", "utils",
    ),
    ("lowrank",),
    ("array_api", "comm", "cuda.amp", "distributed", "env", "hub", "multiprocessing", "sparse"),
    # "" is flowvm itself
    (
        "", "__main__", "commands", "compat", "datasets", "loading", "mock_torch", "torch_names",
    ),
)
# The same within a package: a room may import from itself and from those in front of it; rooms in
# one bracket leave each other alone.  A package's own files beside its rooms are above them all,
# but for those named here.
ROOMS = {
    "flowvm.vm": (("machine",), ("workers",), ("callers",), ("watch",), ("engine",)),
    "flowvm.ops": (
        ("scalar",), ("declare",), ("shapes",), ("pointwise",), ("places",), ("rows",),
        ("products",), ("collectives", "fourier", "linalg", "planes", "random", "updates"),
        ("sequences",), ("placed", "sparse"), ("batched",),
    ),
    "flowvm.graph": (("logical",), ("memory",), ("passes",), ("plan",), ("capture",)),
    "flowvm.profiler": (
        ("markup", "terminal"), ("grammar",), ("run",), ("analysis",), ("views",), ("export",),
        ("front",),
    ),
    "flowvm.cuda": (
        ("launch",), ("compiler",), ("driver",), ("simulator",),
    ),
}
# fmt: on
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


FILES = faces.modules()  # every module of the package by its dotted name
PUBLIC = [n for n in FILES if not any(p.startswith("_") for p in n.split("."))]


def layer_of(module: str) -> str:
    """Return the name in LAYERS under which `module` stands: its own, or its package's."""
    parts = module.split(".")
    if ".".join(parts[1:]) in RANK:
        return ".".join(parts[1:])
    return parts[1] if len(parts) > 1 else ""


class Import(NamedTuple):
    """One module that a file imports, in whatever way.

    `how`: "first", with the file; "inside" a function, when that runs; "types", for the type
    checker alone; "late", by `lazy` or importlib, with the name in quotes.
    """

    line: int
    target: str
    how: str


@functools.cache
def imports(path: Path, module: str) -> tuple[Import, ...]:
    """All that a file imports."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return tuple(_imports(ast.parse(path.read_text()), package, "first"))


def _imports(node: ast.AST, package: str, how: str) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inner = how
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            inner = "inside"
        elif isinstance(child, ast.If) and _name(child.test) == "TYPE_CHECKING":
            for statement in child.body:
                yield from _imports(ast.Module([statement], []), package, "types")
            for statement in child.orelse:
                yield from _imports(ast.Module([statement], []), package, how)
            continue
        elif isinstance(child, ast.Import):
            yield from (Import(child.lineno, alias.name, how) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - child.level + 1]
            base = ".".join([*above, child.module or ""]).rstrip(".")
            base = base if child.level else str(child.module)
            for alias in child.names:
                name = f"{base}.{alias.name}"
                yield Import(child.lineno, name if name in FILES else base, how)
        elif isinstance(child, ast.Call) and (name := _named_late(child)):
            yield Import(child.lineno, name, "late")
        yield from _imports(child, package, inner)


def _named_late(call: ast.Call) -> str:
    """The module that a call of `lazy` or `import_module` names; "" where it is another call."""
    if _name(call.func).lstrip("_") not in ("lazy", "Lazy", "import_module") or not call.args:
        return ""
    name = call.args[0]
    return name.value if isinstance(name, ast.Constant) else ""


def _name(node: ast.expr) -> str:
    """The last name of `a` or `x.a`; "" where it is something else."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def own_imports() -> Iterator[tuple[str, Path, Import]]:
    """Yield each import of a file of flowvm by another: importing module, path, import."""
    for module, path in FILES.items():
        for one in imports(path, module):
            if one.target in FILES and one.target != module:
                yield module, path, one


def walked(path: Path, written: str) -> Iterator[ast.AST]:
    """All nodes of a file; none if this expression is not found in it, which is sooner known."""
    text = path.read_text()
    return ast.walk(ast.parse(text)) if re.search(written, text) else iter(())


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_module_has_a_layer() -> None:
    strays = [n for n in FILES if layer_of(n) not in RANK]
    assert not strays, f"give these a place in LAYERS: {strays}"


def test_imports_point_down() -> None:
    wrong = {
        f"{where(path, one.line)} imports {one.target}, which is above it"
        for module, path, one in own_imports()
        if RANK[layer_of(one.target)] > RANK[layer_of(module)]
    }
    assert not wrong, "\n".join(sorted(wrong))


def room_of(package: str, module: str) -> tuple[int, str]:
    """The rank of a module's room in its package, and the room; "" beside the rooms."""
    ranks = {name: rank for rank, names in enumerate(ROOMS[package]) for name in names}
    room = module.removeprefix(package).lstrip(".").partition(".")[0]
    return (ranks[room], room) if room in ranks else (len(ranks), "")


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_point_down(package: str) -> None:
    wrong = set()
    for module, path, one in own_imports():
        if module.startswith(package) and one.target.startswith(package):
            (room, own), (target_room, other) = (
                room_of(package, module),
                room_of(package, one.target),
            )
            if own != other and target_room >= room:
                wrong.add(f"{where(path, one.line)} imports {one.target}, whose room is not below")
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_has_its_place(package: str) -> None:
    folder = FILES[package].parent
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert rooms <= {name for names in ROOMS[package] for name in names}


def test_no_imports_go_in_a_circle() -> None:
    """No imports of any kind go in a circle: two files share a third one below."""
    graph: dict[str, set[str]] = {}
    for module, _, one in own_imports():
        graph.setdefault(module, set()).add(one.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


# imported where they are needed, and not for a file's sake: they are large, or may be missing
PACKAGES = {
    "IPython", "cuda", "cupy", "greenlet", "llvmlite", "numba", "rich", "safetensors", "scipy",
    "traitlets",
}  # fmt: skip


def test_no_import_stands_in_a_function() -> None:
    """Modules that start-up must not pay for are imported by `lazy`, at the head of a file."""
    wrong = [
        f"{where(path, one.line)} imports {one.target}"
        for module, path in FILES.items()
        for one in imports(path, module)
        if one.how == "inside" and one.target.partition(".")[0] not in PACKAGES
        if module != "flowvm.private.cpython"  # which tries how such imports are compiled
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_imports_a_moved_package_by_its_folder() -> None:
    others = [p for name in ("tests", "tools", "tutorials") for p in (ROOT / name).rglob("*.py")]
    named = re.compile(rf"(from|import|[\"',])\s*({'|'.join(faces.MOVED)})\b")
    wrong = [
        f"{where(path, line)} imports {target}: write flowvm.{target}"
        for path in (*FILES.values(), *others)
        if named.search(path.read_text())  # sooner found than each import
        for line, target, _ in imports(path, "")
        if target.split(".")[0] in faces.MOVED
    ]
    assert not wrong, "\n".join(wrong)


def run_python(program: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_importing_everything_imports_no_moved_package_by_its_folder() -> None:
    names = [n for n in PUBLIC if n != "flowvm.__main__"]
    program = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(run_python(program))
    assert not set(faces.MOVED) & set(loaded)


def test_importing_flowvm_is_light_and_starts_nothing() -> None:
    program = (
        "import json, sys, threading, flowvm\n"
        "print(json.dumps([sorted(sys.modules), threading.active_count()]))"
    )
    loaded, threads = json.loads(run_python(program))
    heavy = {"numba", "scipy", "rich", "IPython", "cupy", "torch", "safetensors", "asyncio"}
    assert not heavy & set(loaded)
    assert threads == 1


# whose names a user meets: what they list is shown, and found
LISTED = [n for n in PUBLIC if re.search(r"^__all__\b", FILES[n].read_text(), re.MULTILINE)]


@pytest.mark.parametrize("module", LISTED)
def test_all_of_a_module_is_there(module: str) -> None:
    loaded = importlib.import_module(module)
    names = loaded.__all__
    missing = [name for name in names if not hasattr(loaded, name)]
    assert not missing
    orders = (sorted(set(names), key=faces.order), sorted(set(names)))  # written, or computed
    assert list(names) in orders


@pytest.mark.parametrize("module", [n for n in LISTED if ".ops" not in n])
def test_completion_shows_what_is_listed(module: str) -> None:
    """And neither what a module is made with, nor files of its own that list nothing."""
    loaded = importlib.import_module(module)
    names = loaded.__all__
    shown = {name for name in dir(loaded) if not name.startswith("_")}
    assert {name for name in names if not name.startswith("_")} <= shown
    strays = [
        name for name in shown - set(names) if not isinstance(getattr(loaded, name), ModuleType)
    ]
    lazily = module == "flowvm"  # what is found by its `__getattr__` is no part of `*`
    assert lazily or not strays


@pytest.mark.parametrize("module", FILES)
def test_a_module_begins_with_why_it_exists(module: str) -> None:
    text = FILES[module].read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "a module wants a docstring"


def test_there_is_one_exception_tree() -> None:
    elsewhere = [
        f"{where(path, node.lineno)} {node.name}"
        for module, path in FILES.items()
        if module != "flowvm.errors"
        for node in walked(path, r"class \w+(Error|Exception)\b")
        if isinstance(node, ast.ClassDef) and re.search(r"(Error|Exception)$", node.name)
    ]
    assert not elsewhere, f"exceptions belong in flowvm/errors.py: {elsewhere}"


def test_lists_of_names_are_those_of_the_definitions() -> None:
    """The lists of the faces, and of the packages that are built, follow from the definitions."""
    old = [
        str(path.relative_to(ROOT)) for path, text in faces.written() if text != path.read_text()
    ]
    assert not old, "run python -m tools.faces"


def test_tests_lie_in_rooms() -> None:
    """Tests mirror the rooms of what they test; nothing lies beside them but pytest's hooks."""
    flat = {path.name for path in (ROOT / "tests").glob("*.py")}
    assert flat == {"conftest.py"}


def test_helpers_imported_by_bare_name_have_one_file() -> None:
    """Folders of helpers share `sys.path`: of two files of one name, the import order picks one."""
    files: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        files.setdefault(path.stem, []).append(str(path.relative_to(ROOT)))
    bare = {
        match
        for path in (ROOT / "tests").rglob("*.py")
        for match in re.findall(r"^(?:from|import) (\w+)\b(?!\.)", path.read_text(), re.M)
    }
    shared = {name: files[name] for name in bare & files.keys() if len(files[name]) > 1}
    assert not shared, f"give these helpers different names: {shared}"


def test_the_version_is_one() -> None:
    import flowvm

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert flowvm.__version__ == project["project"]["version"]
