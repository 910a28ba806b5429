"""The printed form of a graph: the user's modules as a tree, with the operators of each.

    (GRAPH:Train): 16 operators, chunk 40.2 KiB (
      (CONFIG: as it comes)
      (INPUT:%6 input 0 f32[32,64])
      (MODULE:model.0:Linear(in_features=64, out_features=64, bias=True)): (
        (PARAMETER:model.0.weight f32[64,64])
        (OPERATOR:%9 f32[32,64] = linear(%6 input 0, weight, bias)  train.py:12)

An operator stands under the module whose call issued it, a gradient's under the module of the call
that it is the gradient of, and one that a pass made of several under the first of theirs.  `print`
of a graph gives the form that runs, after all passes; `graph.plan.dump()` gives registers, memory
and tasks.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from flowvm.graph.logical.printer import listed, size_text
from flowvm.profiler import markup

if TYPE_CHECKING:
    from flowvm.graph.logical.logical import LogicalGraph
    from flowvm.graph.logical.nodes import Buffer, Operand, OpNode
    from flowvm.graph.plan.plan import Plan
    from flowvm.nn.graph.config import GraphConfig
    from flowvm.nn.module import Module
    from flowvm.optim import Optimizer

WIDTH = 100


def graph_tree(
    name: str,
    config: GraphConfig,
    modules: Iterable[tuple[str, Module]],
    optimizers: Sequence[tuple[Optimizer, object]],
    plans: Sequence[Plan],
) -> str:
    """The tree of a graph; `plans` are those of one kind of call, none before the first."""
    tree = _Tree(list(modules), [plan.graph for plan in plans])
    lines = [
        *_wrapped("", repr(config), 1, ""),
        *tree.inputs(),
        *tree.modules_in(None, 1),
        *tree.optimizers(optimizers),
        *tree.outputs(),
    ]
    return "\n".join([f"(GRAPH:{name}): {_summary(plans)} (", *lines, ")"])


def graph_html(text: str) -> str:
    """Return the text of `graph_tree` as a tree that opens and closes: without lines of closing
    brackets, broken rows joined to their first line.
    """
    rows: list[list[str]] = []
    for line in text.split("\n"):
        if line.lstrip().startswith(("(", "<")) or not rows:
            rows.append([line])
        elif line.strip() != ")":
            rows[-1].append(line.strip())
    shown = ("\n    ".join(lines).removesuffix(": (").removesuffix(" (") for lines in rows)
    return markup.indented(shown)


def _summary(plans: Sequence[Plan]) -> str:
    if not plans:
        return "not captured yet"
    nodes = sum(len(plan.graph.nodes) for plan in plans)
    chunk = max(plan.memory.nbytes for plan in plans)
    segments = f", {len(plans)} segments" if len(plans) > 1 else ""
    return f"{nodes} operator{'s' * (nodes != 1)}{segments}, chunk {size_text(chunk)}"


class _Tree:
    """Modules by path, and the operators of each."""

    def __init__(self, modules: list[tuple[str, Module]], graphs: list[LogicalGraph]) -> None:
        self.graphs = graphs
        self.module: dict[str, Module | None] = dict(modules)
        self.nodes: dict[str, list[OpNode]] = {}
        for node in (node for graph in graphs for node in graph.nodes):
            if node.phase == "optimizer":
                continue
            self.nodes.setdefault(node.scope, []).append(node)
            self.module.setdefault(node.scope, None)  # nobody's attribute
        self.children: dict[str | None, list[str]] = {}
        for path in self.module:
            if path or self.module[path] is not None:
                self.children.setdefault(self._parent(path), []).append(path)

    def _parent(self, path: str) -> str | None:
        """The path of the module that it stands in, None for one that stands in the graph."""
        above = path
        while above:
            above = above.rpartition(".")[0]
            if above and above in self.module:
                return above
        return "" if path and self.module.get("") is not None else None

    # --- lines --------------------------------------------------------------------------------

    def modules_in(self, path: str | None, depth: int) -> Iterator[str]:
        """The modules that stand in one, then its own operators; None: in the graph."""
        for child in self.children.get(path, ()):
            yield from self._module(child, depth)
        own = path if path is not None else ("" if self.module.get("") is None else None)
        for node in self.nodes.get(own, ()) if own is not None else ():
            yield from _operator(node, path or "", depth)

    def _module(self, path: str, depth: int) -> Iterator[str]:
        module = self.module[path]
        text = path
        if module is not None:
            text = f"{path}:{type(module).__name__}({module.extra_repr()})"
        inside = [*_tensors(module, path, depth + 1), *self.modules_in(path, depth + 1)]
        opened = _wrapped("(MODULE:", text, depth, ")" if not inside else "): (")
        yield from opened
        if inside:
            yield from inside
            yield "  " * depth + ")"

    def inputs(self) -> Iterator[str]:
        """Yield the rows of the call's inputs; for segments, of the first one's."""
        for operand in self.graphs[0].inputs if self.graphs else ():
            yield f"  (INPUT:{_place(operand)} {operand.meta!r})"

    def outputs(self) -> Iterator[str]:
        """Yield the rows of the call's outputs."""
        for operand in self.graphs[-1].outputs if self.graphs else ():
            yield f"  (OUTPUT:{_place(operand)} {operand.meta!r})"

    def optimizers(self, optimizers: Sequence[tuple[Optimizer, object]]) -> Iterator[str]:
        """Each optimizer with its schedule and its state, then what their steps run."""
        named = {b: b.name for g in self.graphs for b in g.variables()}
        for number, (optimizer, schedule) in enumerate(optimizers):
            states = _states_of(optimizer, named)
            kind = type(optimizer).__name__
            by = "" if schedule is None else f", lr by {type(schedule).__name__}"
            options = ", ".join(f"{k}={_short(v)}" for k, v in optimizer.defaults.items())
            last = number == len(optimizers) - 1
            nodes = [
                line
                for graph in self.graphs
                for node in graph.nodes
                if node.phase == "optimizer" and last
                for line in _operator(node, "", 2)
            ]
            inside = [*states, *nodes]
            yield from _wrapped(
                "(OPTIMIZER:", f"{kind}({options}{by})", 1, "): (" if inside else ")"
            )
            yield from inside
            if inside:
                yield "  )"


def _tensors(module: Module | None, path: str, depth: int) -> Iterator[str]:
    if module is None:
        return
    for kind, table in (("PARAMETER", module._parameters), ("BUFFER", module._buffers)):
        for name, tensor in table.items():
            if tensor is not None:
                full = f"{path}.{name}" if path else name
                frozen = ", no grad" if kind == "PARAMETER" and not tensor.requires_grad else ""
                yield f"{'  ' * depth}({kind}:{full} {tensor._meta!r}{frozen})"


def _states_of(optimizer: Optimizer, named: dict[Buffer, str]) -> Iterator[str]:
    """The optimizer's state tensors, as the Plan's variables name them."""
    held = {b.held.id: name for b, name in named.items() if b.held is not None}
    for entry in optimizer.state.values():
        for name, value in entry.items():
            storage = getattr(value, "_ref", None)
            if storage is not None:
                buffer = held.get(value.storage().id) or name
                yield f"    (BUFFER:{buffer} {value._meta!r})"


def _operator(node: OpNode, path: str, depth: int) -> Iterator[str]:
    """(OPERATOR:%9 f32[32,64] = linear(%6 input 0, weight, bias)  train.py:12)"""
    results = [f"{_place(o, path)} {o.meta!r}" for o in node.outputs]
    names = node.operator.signature.inputs
    operands = [
        _place(o, path) + "!" * (name in node.operator.signature.writes)
        for name, o in zip(names, node.inputs, strict=True)
    ]
    plain = [v for v in node.attrs if not hasattr(v, "_fields")]  # the others: how a kernel goes
    extra = listed([_short(v) for v in (*plain, *node.scalars)])
    text = f"{node.operator.name}({listed(operands)}{'; ' * bool(extra)}{extra})"
    if results:
        text = f"{listed(results)} = {text}"
    phase = " backward" if node.phase == "backward" else ""
    head = f"(OPERATOR{phase}:"
    where = _where(node)
    yield from _wrapped(head, text, depth, (f"  {where}" if where else "") + ")")


def _where(node: OpNode) -> str:
    file, _, line = node.line.rpartition(":")
    return f"{os.path.basename(file)}:{line}" if file else ""


def _place(operand: Operand, path: str = "") -> str:
    """%3, %3+64 or, for memory that has a name, that name, short inside its own module."""
    name = operand.buffer.name
    if not name or name == "constant" or name.startswith("input "):
        return f"{operand!r} {name}" if name else repr(operand)
    offset = f"+{operand.offset}" if operand.offset else ""
    return (name.removeprefix(f"{path}.") if path else name) + offset


def _short(value: object) -> str:
    text = value.__name__ if isinstance(value, type) else repr(value)
    if len(text) <= 40:
        return text
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, (tuple, str)) else kind


def _wrapped(head: str, text: str, depth: int, tail: str = ")") -> list[str]:
    """`head``text``tail`, broken at spaces where it is wider than a line."""
    indent = "  " * depth
    line = f"{indent}{head}{text}{tail}"
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(
        line,
        WIDTH,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
