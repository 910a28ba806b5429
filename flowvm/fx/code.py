"""A graph as a function of Python."""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from flowvm.errors import GraphError
from flowvm.fx.node import Node

# functions that are written as operators
_WRITTEN = {
    getattr(operator, name): f"{{}} {sign} {{}}"
    for name, sign in (
        ("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("floordiv", "//"),
        ("mod", "%"), ("pow", "**"), ("matmul", "@"), ("and_", "&"), ("or_", "|"), ("xor", "^"),
        ("lshift", "<<"), ("rshift", ">>"), ("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="),
        ("gt", ">"), ("ge", ">="),
    )
} | {
    operator.neg: "-{}", operator.pos: "+{}", operator.invert: "~{}", operator.getitem: "{}[{}]"
}  # fmt: skip
_SPACES = (
    "flowvm", "flowvm.nn.functional", "flowvm.special", "flowvm.linalg", "flowvm.fft", "math",
    "operator",
)  # fmt: skip


class PythonCode(NamedTuple):
    """A function `forward`, and the objects that it names."""

    src: str
    globals: dict[str, Any]


class Calling:
    """The way to call a graph: its placeholders are the parameters, one for one."""

    by_name = True

    def inputs(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Sequence[object]:
        """The values of the placeholders, in their order."""
        return args

    def around(self) -> AbstractContextManager[object]:
        """Return a region in which the nodes run."""
        return nullcontext()


def path_of(function: object) -> str:
    """Return the path by which a function can be imported: flowvm.relu; "" if there is none."""
    name = getattr(function, "__name__", "")
    for space in (*_SPACES, getattr(function, "__module__", None) or ""):
        if name and getattr(sys.modules.get(space), name, None) is function:
            return f"{space}.{name}".removeprefix("builtins.")
    return ""


class _Writer:
    def __init__(self, graph: Any, root: str) -> None:
        self.graph, self.root = graph, root
        self.globals: dict[str, object] = {}
        self.used = {node.name for node in graph.nodes}

    def named(self, value: object, hint: str) -> str:
        """The name of an object from outside."""
        name = base = re.sub("[^0-9a-zA-Z_]+", "_", hint).strip("_") or "value"
        name = base = f"_{base}" if base[0].isdigit() else base
        number = 0
        while name in self.used or (name in self.globals and self.globals[name] is not value):
            number += 1
            name = f"{base}_{number}"
        self.globals[name] = value
        return name

    def function(self, function: object) -> str:
        path = path_of(function)
        space, _, name = path.rpartition(".")
        top = space.partition(".")[0]
        if path and not space:
            return name
        if path and top not in self.used:
            self.globals[top] = sys.modules[top]
            return path
        return self.named(function, getattr(function, "__name__", "function"))

    def value(self, value: object) -> str:
        if isinstance(value, Node):
            return value.name
        if isinstance(value, tuple):
            if hasattr(value, "_fields"):
                kind = self.named(type(value), type(value).__name__)
                return f"{kind}({', '.join(map(self.value, value))})"
            inside = ", ".join(map(self.value, value))
            return f"({inside},)" if len(value) == 1 else f"({inside})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.value, value))}]"
        if isinstance(value, dict):
            inside = ", ".join(f"{self.value(k)}: {self.value(v)}" for k, v in value.items())
            return f"{{{inside}}}"
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(map(self.value, parts))})"
        if type(value) in (int, str, bool, bytes, type(None)):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        if value is Ellipsis:
            return "..."
        if path_of(value):
            return self.function(value)
        return self.named(value, str(value) if len(str(value)) < 30 else type(value).__name__)

    def arguments(self, args: Iterable[object], kwargs: Mapping[str, object]) -> str:
        named = [f"{key}={self.value(v)}" for key, v in kwargs.items()]
        return ", ".join([*map(self.value, args), *named])

    def attribute(self, path: str) -> str:
        text = self.root
        for name in path.split("."):
            text = f"{text}.{name}" if name.isidentifier() else f'getattr({text}, "{name}")'
        return text

    def call(self, node: Node) -> str:
        args, kwargs = node.args, node.kwargs
        if node.op == "get_attr":
            return self.attribute(node.target)
        if node.op == "call_module":
            return f"{self.attribute(node.target)}({self.arguments(args, kwargs)})"
        if node.op == "call_method":
            first = self.value(args[0])
            first = first if isinstance(args[0], Node) else f"({first})"
            return f"{first}.{node.target}({self.arguments(args[1:], kwargs)})"
        form = _WRITTEN.get(node.target) if node.target.__hash__ else None
        if form is not None and form.count("{}") == len(args) and not kwargs:
            return form.format(*map(self.value, args))
        plain = node.target is getattr and len(args) == 2 and isinstance(args[0], Node)
        if plain and isinstance(args[1], str) and args[1].isidentifier():
            return f"{args[0].name}.{args[1]}"
        return f"{self.function(node.target)}({self.arguments(args, kwargs)})"


def python_code(graph: Any, root: str) -> PythonCode:
    """See `Graph.python_code`."""
    write = _Writer(graph, root)
    last = {used: node for node in graph.nodes for used in node.all_input_nodes}
    over: dict[Node, list[str]] = {}
    for used, node in last.items():
        over.setdefault(node, []).append(used.name)
    parameters, names, body = [root], [], []
    ended = False
    for node in graph.nodes:
        if node.op == "placeholder":
            default = f"={write.value(node.args[0])}" if node.args else ""
            parameters.append(node.target + default)
            names.append(node.name)
            if node.name != (source := node.target.lstrip("*")) and graph._calling.by_name:
                body.append(f"{node.name} = {source}")
            continue
        if node.op == "output":
            body.append(f"return {write.value(node.args[0])}")
            ended = True
            break
        gone = [*over.get(node, ()), *([] if node.users else [node.name])]
        rest = f";  {' = '.join(gone)} = None" if gone else ""
        body.append(f"{node.name} = {write.call(node)}{rest}")
    if not ended:
        raise GraphError("the graph has no output yet; Graph.output(result) makes it")
    if not graph._calling.by_name:
        parameters = [root, "*args", "**kwargs"]
        source = f"{root}.graph.process_inputs(*args, **kwargs)"
        body.insert(0, f"{', '.join(names)}, = {source}" if names else source)
    src = "\n".join([f"def forward({', '.join(parameters)}):", *(f"    {line}" for line in body)])
    return PythonCode(f"\n\n\n{src}\n", write.globals)
