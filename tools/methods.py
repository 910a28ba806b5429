"""The types of Tensor's methods: writes `flowvm/eager/tensor_methods.pyi`.

    python -m tools.methods          write the file if it has changed
    python -m tools.methods --check  say if it differs, and fail then

`flowvm.ops` and others attach methods to Tensor, where no type checker sees them; the file has
their signatures, of the functions themselves.  A parameter whose type lies above `flowvm.eager` is
an `object` there, a result of such a type an `Any`.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import flowvm  # noqa: F401 - which attaches the methods
from flowvm.eager.tensor import Fields, Tensor

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "flowvm" / "eager"
FILE = HOME / "tensor_methods.pyi"
HEAD = '''"""The methods that other rooms attach to Tensor, by `python -m tools.methods`."""
# fmt: off
# ruff: noqa: N802 - names are PyTorch's

import builtins
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, Generic, Self, TypeVar

from flowvm.meta.arrays import Array
from flowvm.meta.device import Device, DeviceLike
from flowvm.meta.dtype import DType, DTypeLike

Own = TypeVar("Own")  # Tensor, which lies above this

class TensorMethods(Generic[Own]):
'''
# words of annotations that the file has too, and what is written for some
SAME = ("Array", "Callable", "Device", "DeviceLike", "DType", "DTypeLike", "Iterable", "ModuleType")
SPELLED = {
    **{name: name for name in (*SAME, "None", "Sequence")},
    **{name: f"builtins.{name}" for name in ("bool", "complex", "dict", "float", "int", "list")},
    **{name: f"builtins.{name}" for name in ("object", "str", "tuple", "type")},
    "Dims": "builtins.int | Sequence[builtins.int] | None",
    "Number": "builtins.complex",
    "Scalar": "builtins.float",
    "Tensor": "Own",
}
COMPARED = {"__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"}
OBJECTS = set(dir(object)) - {*COMPARED, "__new__"}  # whose types Python itself has
OTHERS = frozenset(("__copy__", "__class_getitem__", "__deepcopy__", "__torch_function__"))


def typed(annotation: object, unknown: str) -> str:
    """Return an annotation in the words of the file; `unknown` if a word is not among them."""
    if annotation is None or annotation == "None":
        return "None"
    if not isinstance(annotation, str):
        return unknown
    tree = ast.parse(annotation, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id not in SPELLED:
                return unknown
            node.id = SPELLED[node.id]
        elif isinstance(node, ast.Attribute):
            return unknown
    return ast.unparse(tree)


def in_place(name: str) -> bool:
    """Return True if a method's name says that it returns its own tensor."""
    if name.endswith("__"):
        return name.startswith("__i") and f"__{name[3:]}" in vars(Tensor)
    return name.endswith("_")


def result(name: str, signature: inspect.Signature) -> str:
    """Return the type of a method's result."""
    kind = typed(signature.return_annotation, "Any")
    if signature.return_annotation is signature.empty:  # an elementwise op
        kind = "Own"
    if kind == "Any" and name.startswith("__") and name != "__dlpack__":
        return "Own"  # or NotImplemented
    return "Self" if kind == "Own" and (in_place(name) or name == "__new__") else kind


def parameters(name: str, signature: inspect.Signature) -> list[str]:
    """Return the parameters of a method behind its tensor, as they are written."""
    written: list[str] = []
    kinds = inspect.Parameter
    named = False
    rest = list(signature.parameters.values())[1:]
    positional = [p for p in rest if p.kind is kinds.POSITIONAL_ONLY]
    for p in rest:
        if p.default is not p.empty and callable(p.default):
            continue  # bound by the loop that defines the method
        if name.endswith("__") and p.kind is kinds.KEYWORD_ONLY and p.name == "out":
            continue  # which an operator cannot say
        if p.kind is kinds.KEYWORD_ONLY and not named:
            written.append("*")
        named |= p.kind in (kinds.KEYWORD_ONLY, kinds.VAR_POSITIONAL)
        stars = "*" * (1 if p.kind is kinds.VAR_POSITIONAL else 2 * (p.kind is kinds.VAR_KEYWORD))
        default = "" if p.default is p.empty else " = ..."
        kind = typed(p.annotation, "builtins.object")
        written.append(f"{stars}{p.name}: {kind}{default}")
        if positional and p is positional[-1]:
            written.append("/")
    return written


def method(name: str, function: Callable[..., object]) -> str:
    """Return the lines of a method."""
    signature = inspect.signature(function)
    first = "cls" if name == "__new__" else "self"
    inside = ", ".join([first, *parameters(name, signature)])
    comment = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""
    returned = result(name, signature)
    line = f"    def {name}({inside}) -> {returned}: ...{comment}"
    if len(line) <= 100:
        return line
    body = textwrap.fill(inside, 92, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return f"    def {name}(\n{body}\n    ) -> {returned}: ...{comment}"


def refuses(function: Callable[..., object]) -> bool:
    """Return True if it only says that tensors of another layout have the method."""
    signature = inspect.signature(function)
    rest = list(signature.parameters)[1:]
    return rest == ["args", "kwargs"] and typed(signature.return_annotation, "Any") == "None"


def members() -> Iterator[tuple[str, object]]:
    """Yield the name and value of each method and property that is attached to Tensor."""
    tree = ast.parse((HOME / "tensor.py").read_text())
    own = {
        statement.name if isinstance(statement, ast.FunctionDef) else ast.unparse(target)
        for kind in tree.body
        if isinstance(kind, ast.ClassDef) and kind.name in (Tensor.__name__, Fields.__name__)
        for statement in kind.body
        for target in getattr(statement, "targets", [ast.Constant(None)])
        if isinstance(statement, (ast.FunctionDef, ast.Assign))
    }
    for name in sorted(vars(Tensor)):
        if name not in own | OBJECTS | OTHERS:
            yield name, vars(Tensor)[name]


def text() -> str:
    """Return what the file is to be."""
    lines = []
    for name, value in members():
        if isinstance(value, property):
            kind = inspect.signature(value.fget).return_annotation if value.fget else "Any"
            unknown = "builtins.bool" if name.startswith("is_") else "Any"
            lines += ["    @property", f"    def {name}(self) -> {typed(kind, unknown)}: ..."]
            if value.fset is not None:
                lines.append(f"    @{name}.setter")
                lines.append(f"    def {name}(self, value: builtins.object) -> None: ...")
        else:
            if callable(value) and not refuses(value):
                lines.append(method(name, value))
    return HEAD + "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Run the tool; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.methods", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    new = text()
    if FILE.exists() and FILE.read_text() == new:
        return 0
    if options.check:
        print(f"{FILE.relative_to(ROOT)} is not what the methods are: python -m tools.methods")
        return 1
    FILE.write_text(new)
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
