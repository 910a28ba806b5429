"""Private names of other packages are named in `flowvm.private` and nowhere else; and the packages
have bounds within which that was tested.
"""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from flowvm.private.cpython import CPYTHON
from flowvm.private.llvmlite import LLVMLITE
from flowvm.private.numba import NUMBA
from flowvm.private.numba_cuda import NUMBA_CUDA, SIMULATOR
from flowvm.private.numpy import NUMPY
from flowvm.private.scipy import SCIPY
from tests.house.test_layout import FILES, ROOT, where

# What the packages' documents promise: modules, and of these the names, or all.
PUBLIC = {
    "numba": {"config", "cuda", "types"},
    "numba.cuda": {"types"},
    "numba.cuda.extending": None,
    "numba.extending": None,
    "llvmlite": {"ir"},
    "llvmlite.binding": None,
    "scipy": {"special"},
    "scipy.special": None,
    "safetensors": {"SafetensorError"},
    "safetensors.numpy": None,
    "rich.console": None,
    "rich.live": None,
    "rich.progress": None,
    "rich.table": None,
    "rich.text": None,
    "cuda.bindings": {"nvvm"},
    "cuda.pathfinder": None,
    "IPython": None,
    "IPython.core.error": None,
    "IPython.display": None,
}
PACKAGES = {name.split(".")[0] for name in PUBLIC} | {"cupy", "numpy"}
# attributes with an underscore that documents promise: Numba's, collections', os's and sys's
DOCUMENTED = {
    "_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_getvalue", "_replace",
    "_xoptions",
    "_metadata",  # of a state dict: what PyTorch's programs read
}  # fmt: skip
SHORTCUTS = "flowvm.compiler.shortcuts"  # what they replace is named in flowvm.private.numba
TABLES = [CPYTHON, LLVMLITE, NUMBA, NUMBA_CUDA, NUMPY, SCIPY]


def ours(written=""):
    """Yield the modules that may name nothing private, with their syntax trees.

    With `written`, yield only modules whose text matches this expression.
    """
    for module, path in FILES.items():
        text = path.read_text()
        if not module.startswith("flowvm.private") and re.search(written, text):
            yield module, path, ast.parse(text)


def imported(node):
    """(module, name) of each import in a node."""
    if isinstance(node, ast.Import):
        return [(alias.name, "") for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [(node.module, alias.name) for alias in node.names]
    return []


def is_public(module, name):
    if module.split(".")[0] not in PACKAGES:
        return not module.startswith("_") or module in ("__future__", "_thread")
    if module.split(".")[0] == "numpy":
        return "._" not in module and ".core" not in module and not name.startswith("_")
    if name.startswith("_"):
        return False
    if name == "":  # import numba.cuda
        return module in PUBLIC or any(known.startswith(module + ".") for known in PUBLIC)
    return module in PUBLIC and (PUBLIC[module] is None or name in PUBLIC[module])


def test_nobody_imports_private_names():
    wrong = [
        f"{where(path, node.lineno)} takes {name or 'all'} of {module}"
        for _, path, tree in ours()
        for node in ast.walk(tree)
        for module, name in imported(node)
        if not is_public(module, name)
    ]
    assert not wrong, "name these in flowvm/private:\n" + "\n".join(wrong)


def defined():
    """Every name with an underscore that flowvm defines itself."""
    for path in FILES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                    yield node.attr
            elif isinstance(node, ast.Assign) and "__slots__" in ast.unparse(node.targets[0]):
                yield from ast.literal_eval(node.value)


def test_nobody_touches_private_attributes_of_others():
    known = {*defined(), *DOCUMENTED}
    wrong = [
        f"{where(path, node.lineno)} {ast.unparse(node)}"
        for module, path, tree in ours()
        if module != SHORTCUTS
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match(r"_(?!_)", node.attr)
        and node.attr not in known
    ]
    assert not wrong, "name these in flowvm/private:\n" + "\n".join(wrong)


def test_only_one_place_counts_references_or_reads_bytecode():
    ours_alone = {"getrefcount", "pythonapi", "dis"}
    wrong = [
        f"{where(path, node.lineno)} {ast.unparse(node)}"
        for _, path, tree in ours(r"\b(getrefcount|pythonapi|dis)\b")
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in ours_alone)
        or any(ours_alone & {*pair} for pair in imported(node) if "flowvm" not in pair[0])
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("table", [*TABLES, SIMULATOR], ids=lambda t: t.distribution)
def test_a_table_says_what_for(table):
    for use in table.uses.values():
        assert use.needed_for.split()[0].endswith("s") or use.needed_for.startswith("must"), use
        assert bool(use.replaces) == bool(use.sources), use
    assert table.tested == tuple(sorted(table.tested, key=numbers))


# --- bounds -----------------------------------------------------------------------------------


def numbers(version):
    return tuple(int(part) for part in version.split("."))


def bounds():
    """The lowest version and the first that is too high, of every dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for line in named:
        match = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<([\d.]+))?", line)
        assert match, line
        yield match[1], match[2], match[3]


def test_dependencies_have_upper_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    open_ended = [line for line in project["dependencies"] if ",<" not in line]
    assert not open_ended


@pytest.mark.parametrize("table", [NUMBA, NUMBA_CUDA, SCIPY], ids=lambda t: t.distribution)
def test_what_was_tested_is_within_the_bounds(table):
    ((low, high),) = [(low, high) for name, low, high in bounds() if name == table.distribution]
    for version in table.tested:
        assert numbers(low) <= numbers(version) < numbers(high)
    assert numbers(low)[:2] == numbers(table.tested[0])[:2], "the lowest was tried"
    assert numbers(table.tested[-1])[:2] >= (numbers(high)[0], numbers(high)[1] - 1), (
        "and the highest"
    )
