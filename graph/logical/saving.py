"""Compiled graphs as plain data, for another process: nodes, operands, numbers.

Nothing here is code: an operator is a name or a recipe (`flowvm.graph.logical.plain`), a variable a
name that the reader finds its own tensor by, a live number its expression.

    number      {"number": k}: number k of the table of expressions
    entry       ["leaf", key, text] or [function, [operands]]
    operand     [place of its buffer, offset, meta, step]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from flowvm.eager.interpreter import Operator
from flowvm.eager.live import FUNCTIONS, Decisions, Leaf, Live
from flowvm.errors import ArgumentError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.graph.logical.plain import plain, read_operator, read_plain, saved_operator

_NODE = ("number", "into", "phase", "scope", "stream", "repeat", "region", "again")
_GRAPH = ("name", "order", "eager", "reuse", "regst_num")


# --- numbers ------------------------------------------------------------------------------------


class Numbers:
    """The table of a graph's live numbers, each expression once."""

    def __init__(self) -> None:
        self.table: list[Any] = []
        self._places: dict[int, int] = {}

    def saved(self, value: Any, what: str) -> Any:
        """A number as a place in the table, or itself."""
        if not isinstance(value, Live):
            return plain(value, what)
        if id(value) not in self._places:
            if isinstance(value, Leaf):
                if not value.key:
                    raise ArgumentError(f"{what} has a number {value!r} that is nobody's option")
                entry = ["leaf", plain(value.key, what), value.text]
            else:
                entry = [value.function, [self.saved(v, what) for v in value.operands]]
            self._places[id(value)] = len(self.table)
            self.table.append(entry)
        return {"number": self._places[id(value)]}


class ReadNumbers:
    """The numbers of a saved table; `owner` says where a leaf's number is by its key."""

    def __init__(
        self,
        table: Sequence[Any],
        guards: Decisions,
        owner: Callable[[tuple[Any, ...]], tuple[Any, tuple[Any, ...]]],
    ) -> None:
        self.values: list[Live] = []
        for function, *rest in table:
            if function == "leaf":
                key = read_plain(rest[0])
                found, names = owner(key)
                self.values.append(Leaf(found, names, guards, key, rest[1]))
            elif function in FUNCTIONS:
                operands = tuple(self.read(v) for v in rest[0])
                self.values.append(Live(function, operands, guards))
            else:
                raise ArgumentError(f"the saved graph is damaged: no function {function!r}")

    def read(self, saved: Any) -> Any:
        """A number of the table, or a plain one."""
        if isinstance(saved, dict) and "number" in saved:
            return self.values[saved["number"]]
        return read_plain(saved)


# --- graphs -------------------------------------------------------------------------------------


def saved_graph(
    graph: LogicalGraph, numbers: Numbers, variable: Callable[[Buffer, str], Any]
) -> dict[str, Any]:
    """The graph as plain data.

    `variable(buffer, line)` says what is saved for a variable that code at `line` uses first.
    """
    if {node.stream for node in graph.nodes} - {0}:
        raise ArgumentError(f"{graph.name}: a graph on several streams cannot be saved")
    lines: dict[Buffer, str] = {}
    for node in graph.nodes:
        for _, operand in node.accesses():
            lines.setdefault(operand.buffer, node.line)
    buffers = graph.buffers()
    places = {buffer: k for k, buffer in enumerate(buffers)}
    table: dict[Operator, int] = {}
    nodes = []
    for node in graph.nodes:
        what = f"{graph.name}: node {node.number} {node.operator.name}  {node.line}".rstrip()
        nodes.append(
            {
                **{name: getattr(node, name) for name in _NODE},
                "operator": table.setdefault(node.operator, len(table)),
                "inputs": [_saved_operand(o, places) for o in node.inputs],
                "outputs": [_saved_operand(o, places) for o in node.outputs],
                "attrs": plain(node.attrs, what),
                "scalars": [numbers.saved(s, what) for s in node.scalars],
                "line": node.line,
            }
        )
    return {
        **{name: getattr(graph, name) for name in _GRAPH},
        "buffers": [
            {
                "number": b.number,
                "kind": b.kind.value,
                "nbytes": b.nbytes,
                "name": b.name,
                "variable": variable(b, lines.get(b, ""))
                if b.kind is BufferKind.VARIABLE
                else None,
            }
            for b in buffers
        ],
        "operators": [saved_operator(operator) for operator in table],
        "nodes": nodes,
        "inputs": [_saved_operand(o, places) for o in graph.inputs],
        "outputs": [_saved_operand(o, places) for o in graph.outputs],
    }


def _saved_operand(operand: Operand, places: dict[Buffer, int]) -> list[Any]:
    return [places[operand.buffer], operand.offset, plain(operand.meta, "an operand"), operand.step]


def read_graph(
    saved: dict[str, Any], numbers: ReadNumbers, variable: Callable[[Any], Any]
) -> LogicalGraph:
    """The graph; `variable` gives the Storage of what was saved for a variable."""
    buffers = []
    for b in saved["buffers"]:
        kind = BufferKind(b["kind"])
        held = variable(b["variable"]) if kind is BufferKind.VARIABLE else None
        buffers.append(Buffer(b["number"], kind, b["nbytes"], b["name"], held))

    def operand(o: Sequence[Any]) -> Operand:
        return Operand(buffers[o[0]], o[1], read_plain(o[2]), o[3])

    made = [read_operator(o) for o in saved["operators"]]
    nodes = [
        OpNode(
            operator=made[n["operator"]],
            inputs=tuple(map(operand, n["inputs"])),
            outputs=tuple(map(operand, n["outputs"])),
            attrs=read_plain(n["attrs"]),
            scalars=tuple(numbers.read(s) for s in n["scalars"]),
            code=_code_at(n["line"]),
            last=2,
            **{name: n[name] for name in _NODE},
        )
        for n in saved["nodes"]
    ]
    return LogicalGraph(
        nodes=nodes,
        inputs=[operand(o) for o in saved["inputs"]],
        outputs=[operand(o) for o in saved["outputs"]],
        **{name: saved[name] for name in _GRAPH},
    )


def _code_at(line: str) -> CodeType | None:
    """A code object whose second instruction is at `file:line`, for messages."""
    path, _, number = line.rpartition(":")
    if not path:
        return None
    return compile("0", path, "eval").replace(co_firstlineno=int(number))
