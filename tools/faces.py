"""Writes the lists of public names: who imports them, `__all__`, and the packages that are built.

    python -m tools.faces          write what has changed
    python -m tools.faces --check  print what differs, and fail if anything does

A public name is said to be public where it is defined, by a comment in front of the definition or
at the end of its line, which says the faces where users meet it:

    # public: flow, F
    def relu(input, inplace=False): ...

    absolute = abs  # public: flow

The same comment on a line of its own, with an empty line behind it, is of all functions, classes
and calls' results of the file but for names that begin with an underscore and constants in upper
case; `# not public` takes one out.  `each of flow` is of the names that a literal lists.
`flow (late)` is imported when it is first asked for; `(unlisted)` is not in `__all__`.

A face is a module with a part between the lines BEGIN and END.  What else it defines, and what it
imports `as` its own name, is public there too.  Nothing here is imported, all is read.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MOVED = ("ops", "autograd", "graph")  # top-level folders that are imported as flowvm.<name>
ROOM = "torch_names"  # a folder of flowvm whose files are imported as flowvm.<name>
BEGIN = "# --- public names, by `python -m tools.faces`"
END = "# --- by hand"
SHORT = {"flow": "flowvm", "F": "flowvm.nn.functional"}
MARK = re.compile(r"(?:^|  )# (?:public: (?P<faces>.+)|(?P<none>not public))$")
ONE_FACE = re.compile(r"(each of )?([A-Za-z_.]+)(?: \((late|unlisted|late, unlisted)\))?")


class Public(NamedTuple):
    """One name in one face."""

    name: str
    module: str
    face: str
    late: bool = False
    listed: bool = True
    typed: bool = True  # a type checker finds the name in the module


class FacesError(Exception):
    """A comment that cannot be followed."""


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of flowvm by its dotted name."""
    module_names = {}
    for folder, prefix in ((root / "flowvm", ""), *((root / name, name + ".") for name in MOVED)):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[0] == ROOM and parts[-1] != "__init__":
                parts = parts[1:]
            dotted = (prefix + ".".join(parts)).removesuffix("__init__").rstrip(".")
            module_names[f"flowvm.{dotted}" if dotted else "flowvm"] = path
    return module_names


def static(module: str) -> str:
    """Return the name by which type checkers find a module: they do not read `__path__`."""
    package, _, name = module.rpartition(".")
    inside = package == "flowvm" and (ROOT / "flowvm" / ROOM / f"{name}.py").exists()
    return f"flowvm.{ROOM}.{name}" if inside else module


def names_of(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module binds, other than by an import."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    pieces = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return [piece.id for piece in pieces if isinstance(piece, ast.Name)]


def _covered(statement: ast.stmt) -> bool:
    """True where the file's own comment is also of this statement."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return True
    value = getattr(statement, "value", None)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or not isinstance(value, ast.Call):
        return False
    return ast.unparse(value.func) not in ("TypeVar", "ParamSpec", "lazy", "_lazy")


def marks(module: str, path: Path) -> Iterator[Public]:
    """The public names that a file defines."""
    text = path.read_text()
    if "# public: " not in text:
        return
    lines = text.splitlines()
    comments = {n: m for n, line in enumerate(lines, 1) if (m := MARK.search(line))}
    of_file = ""
    for number, match in list(comments.items()):
        if match.start() == 0 and not "".join(lines[number : number + 1]).strip():
            of_file = match["faces"] or ""
            del comments[number]
    for statement in ast.parse(text).body:
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        last = statement.end_lineno or first
        # in front of it, or at the end of a line of a short statement
        ends = range(first, last + 1) if isinstance(statement, (ast.Assign, ast.AnnAssign)) else ()
        number = next((n for n in (first - 1, *ends) if n in comments), 0)
        names = names_of(statement)
        if number:
            faces = comments.pop(number)["faces"] or ""
        elif of_file and _covered(statement):
            constant = isinstance(statement, (ast.Assign, ast.AnnAssign))
            faces = of_file
            names = [n for n in names if n[0] != "_" and not (constant and n.isupper())]
        else:
            continue
        yield from _published(module, f"{path}:{first}", statement, names, faces)
    if comments:
        raise FacesError(f"{path}:{min(comments)}: no definition stands behind this comment")


def _published(
    module: str, where: str, statement: ast.stmt, names: list[str], faces: str
) -> Iterator[Public]:
    for part in filter(None, re.split(r", (?!unlisted)", faces)):
        match = ONE_FACE.fullmatch(part)
        if match is None:
            raise FacesError(f"{where}: {part!r} is no face; write 'flow', 'each of flow', ...")
        each, face, kind = match.groups("")
        if each:
            value = ast.literal_eval(getattr(statement, "value", ast.Constant("")))
            names = value.split() if isinstance(value, str) else list(value)
        for name in names:
            home = SHORT.get(face, f"flowvm.{face}")
            if home == "flowvm" and module.startswith("flowvm.ops.") and "late" not in kind:
                home = "flowvm.ops"  # all of which flowvm has too
            yield Public(name, module, home, "late" in kind, "unlisted" not in kind, not each)


def order(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    """Ruff's order: constants, classes, the rest; digits in a name are numbers."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    pieces = [p for p in re.split(r"(\d+)", name) if p]
    return kind, [(0, int(p)) if p.isdigit() else (1, p) for p in pieces]


def _list(head: str, items: Iterable[str], tail: str, margin: str = "") -> str:
    """`head`, the items with commas, and `tail`, in one line where they fit."""
    text = ", ".join(items)
    if len(margin + head + text + tail) <= 100:
        return f"{margin}{head}{text}{tail}"
    inner = margin + "    "
    body = textwrap.fill(text + ",", 100, initial_indent=inner, subsequent_indent=inner,
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return f"{margin}{head}\n{body}\n{margin}{tail}"


def _imports(names: Iterable[Public], margin: str = "") -> Iterator[str]:
    """The imports of these names; those that are not listed are exported by `as`."""
    by_module = defaultdict(list)
    for one in names:
        by_module[one.module].append(one)
    for module, group in sorted(by_module.items()):
        module = static(module) if margin else module
        exported = {one.name: one.listed for one in group if one.typed}
        typed = [n if exported[n] else f"{n} as {n}" for n in sorted(exported, key=order)]
        untyped = sorted({one.name for one in group if not one.typed}, key=order)
        if typed:
            line = f"{margin}from {module} import {', '.join(typed)}"
            yield line if len(line) <= 100 else _list(f"from {module} import (", typed, ")", margin)
        if untyped:
            yield _list(
                f"from {module} import (  # type: ignore[attr-defined]", untyped, ")", margin
            )


def part(module: str, path: Path, names: list[Public]) -> str:
    """The lines of a face between BEGIN and END."""
    before, after = _cut(path)
    own, modules_of_it = _by_hand(before + after)
    late = [one for one in names if one.late]
    lines = ["# isort: off", "# fmt: off", *_imports(one for one in names if not one.late)]
    shown = {one.name for one in names if one.listed} | own
    if late or modules_of_it:
        lines += ["", "if TYPE_CHECKING:"]
        by_home = defaultdict(list)
        for name in modules_of_it:
            home = static(f"{module}.{name}").rpartition(".")[0]
            by_home[home].append(f"{name} as {name}")
        for home, exported in sorted(by_home.items()):
            lines.append(_list(f"from {home} import (", exported, ")", "    "))
        lines += _imports([one for one in late if one.typed], "    ")
    if late:
        lines += ["", *_late(late)]
    quoted = [f'"{name}"' for name in sorted(shown, key=order)]
    return "\n".join([*lines, "", _list("__all__ = [", quoted, "]"), "# fmt: on", "# isort: on"])


def _late(names: list[Public]) -> Iterator[str]:
    by_module = defaultdict(list)
    for one in names:
        by_module[one.module].append(one.name)
    yield "_LATE: dict[str, str] = {"
    for module, group in sorted(by_module.items()):
        listed = [f'"{name}"' for name in sorted(set(group), key=order)]
        if len(listed) == 1:
            yield f'    {listed[0]}: "{module}",'
        else:
            yield _list("**dict.fromkeys((", listed, f'), "{module}"),', "    ")
    yield "}"


def _by_hand(text: str) -> tuple[set[str], list[str]]:
    """The public names that a face itself binds, and its modules that are imported when named."""
    own, late = set(), []
    for statement in ast.parse(text).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            own |= {a.name for a in statement.names if a.asname == a.name}
        for name in names_of(statement):
            if name in ("_LATE_MODULES", "_UNLISTED_MODULES"):
                listed = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
                late += listed
                own |= set(listed) if name == "_LATE_MODULES" else set()
            elif not name.startswith("_"):
                own.add(name)
    return own, sorted(late)


def _cut(path: Path) -> tuple[str, str]:
    """Return the text in front of the part, and the text behind it."""
    text = path.read_text()
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not begin or not end:
        raise FacesError(f"{path}: a face has the lines {BEGIN!r} and {END!r}")
    return before, after


def _build(root: Path, packages: list[str]) -> tuple[Path, str]:
    """pyproject.toml, and what it is to be: its list of packages is that of the folders."""
    path = root / "pyproject.toml"
    rows = "".join(f'    "{name}",\n' for name in packages)
    pattern = r"(?<=\npackages = \[\n)(?:    .*\n)*"
    return path, re.sub(pattern, lambda _: rows, path.read_text(), count=1)


def written(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Each file with a part that is written here, and what it is to be."""
    files = modules(root)
    by_face = defaultdict(list)
    for module, path in files.items():
        for one in marks(module, path):
            by_face[one.face].append(one)
    known = {name: path for name, path in files.items() if BEGIN in path.read_text()}
    for face, names in by_face.items():
        if face not in known:
            one = names[0]
            raise FacesError(f"{files[one.module]}: {one.name} is public in {face}, no face")
    for face, path in known.items():
        before, after = _cut(path)
        inside = f"{BEGIN}\n{part(face, path, by_face[face])}\n{END}\n"
        yield path, before + inside + after
    packages = [name for name, path in files.items() if path.name == "__init__.py"]
    yield _build(root, sorted([*packages, "flowvm.data"]))


def main(arguments: list[str]) -> int:
    """Runs the tool; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.faces", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and say what differs")
    options = parser.parse_args(arguments)
    wrong = 0
    try:
        for path, text in written():
            old = path.read_text()
            if old != text and options.check:
                name = str(path.relative_to(ROOT))
                wrong = 1
                print(*difflib.unified_diff(old.splitlines(), text.splitlines(), name, name,
                                            lineterm="", n=0), sep="\n")  # fmt: skip
            elif old != text:
                path.write_text(text)
                print(f"wrote {path.relative_to(ROOT)}")
    except FacesError as error:
        print(error, file=sys.stderr)
        return 1
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
