"""Compiled graphs as plain data, for another process: nodes, operands, numbers.

Nothing here is code: an operator is a name or a recipe (`flowvm.graph.logical.plain`), a variable a
name that the reader finds its own tensor by, a live number its expression.

    number      {"number": k}: number k of the table of expressions
    entry       ["leaf", key, text] or [function, [operands]]
    operand     [place of its buffer, offset, meta, step]

What is read is trusted in nothing: forms and ranges are held against NODE, BUFFER and the like,
places against what is there, extents against the memory that buffers have.  What operators make of
operands is asked of them again by `LogicalGraph.check`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from flowvm.eager.interpreter import Operator
from flowvm.eager.live import FUNCTIONS, Decisions, Leaf, Live
from flowvm.errors import ArgumentError
from flowvm.files.schema import (
    Check,
    anything,
    flag,
    integer,
    one_of,
    record,
    row,
    several,
    text,
    wrong,
)
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.graph.logical.plain import (
    OPERAND_META,
    plain,
    read_meta,
    read_operator,
    read_plain,
    reads_backwards,
    saved_operator,
)
from flowvm.vm.machine.words import OPERAND

_NODE = ("number", "into", "phase", "scope", "stream", "repeat", "region", "again")
_GRAPH = ("name", "order", "spared", "eager", "reuse", "regst_num")

# --- what is read ---------------------------------------------------------------------------------

_COUNT = integer(0, 1 << 40)
_BYTES = integer(0, 1 << 48)
_OPERAND = row(integer(0, 1 << 24), _BYTES, record(meta=OPERAND_META), _BYTES)
BUFFER: Check = record(
    number=_COUNT,
    kind=one_of(*(kind.value for kind in BufferKind)),
    nbytes=_BYTES,
    name=text(),
    variable=anything,  # whoever finds it looks
)
NODE: Check = record(
    number=_COUNT,
    into=flag,
    phase=one_of("forward", "backward", "optimizer"),
    scope=text(),
    stream=one_of(0),
    repeat=integer(1, 1 << 20),
    region=_COUNT,
    again=_COUNT,
    operator=integer(0, 1 << 24),
    inputs=several(_OPERAND, OPERAND.MAX),
    outputs=several(_OPERAND, OPERAND.MAX),
    attrs=anything,
    scalars=several(anything, OPERAND.MAX),
    line=text(pattern=r"([^\0]+:\d{1,9})?"),
)
GRAPH: Check = record(
    name=text(200),
    order=text(20),
    eager=_BYTES,
    reuse=flag,
    regst_num=integer(1, 1 << 16),
    spared=integer(0, 1 << 16),
    buffers=several(BUFFER),
    operators=several(anything),
    nodes=several(NODE),
    inputs=several(_OPERAND, OPERAND.MAX),
    outputs=several(_OPERAND, OPERAND.MAX),
)
LEAF: Check = row(one_of("leaf"), anything, text())
CALL: Check = row(text(20), several(anything, most=2, least=1))
MOST_TERMS = 1 << 12  # of an expression, written out
MOST_BITS = 1 << 10  # of a whole number that one gives


# --- numbers ------------------------------------------------------------------------------------


class Numbers:
    """The table of a graph's live numbers, each expression once."""

    def __init__(self) -> None:
        self.table: list[object] = []
        self._places: dict[int, int] = {}

    def saved(self, value: object, what: str) -> object:
        """A number as a place in the table, or itself."""
        if not isinstance(value, Live):
            return plain(value, what)
        if id(value) not in self._places:
            if isinstance(value, Leaf):
                if not value.key:
                    raise ArgumentError(
                        f"{what} has a live number {value!r} that is not an option of an optimizer"
                    )
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
        owner: Callable[[tuple[Any, ...]], tuple[object, tuple[object, ...]]],
    ) -> None:
        self.values: list[Live] = []
        self._now: dict[int, Any] = {}  # what each of them is now, by its id
        self._terms: list[int] = []
        for k, entry in enumerate(table):
            leaf = isinstance(entry, list) and entry[:1] == ["leaf"]
            (LEAF if leaf else CALL)(entry, f"numbers[{k}]")
            if leaf:
                key = read_plain(entry[1], f"numbers[{k}]")
                holder, names = owner(key)
                self._add(Leaf(holder, names, guards, key, entry[2]), 1)
            else:
                self._add_call(entry[0], entry[1], guards)

    def _add(self, value: Live, terms: int) -> None:
        number = value.find() if type(value) is Leaf else self._computed(value)
        if not isinstance(number, (int, float)) or terms > MOST_TERMS:
            wrong(f"numbers[{len(self.values)}]", number, f"a number of {MOST_TERMS} terms at most")
        self.values.append(value)
        self._now[id(value)] = number
        self._terms.append(terms)

    def _add_call(self, function: str, saved: Sequence[object], guards: Decisions) -> None:
        where = f"numbers[{len(self.values)}]"
        if function not in FUNCTIONS or len(saved) not in _ARITY.get(function, (1,)):
            raise ArgumentError(f"the saved graph is damaged: no function {function!r} of {where}")
        operands = tuple(self.read(v, where) for v in saved)
        terms = 1 + sum(self._terms[v["number"]] if isinstance(v, dict) and "number" in v else 1
                        for v in saved)  # fmt: skip
        self._add(Live(function, operands, guards), terms)

    def _computed(self, value: Live) -> object:
        """Compute the present value of a live number from its known operands."""
        numbers = [self._now.get(id(v), v) for v in value.operands]
        whole = value.function == "pow" and all(isinstance(n, int) for n in numbers)
        if whole and abs(numbers[0]).bit_length() * abs(numbers[1]) > MOST_BITS:
            wrong(f"numbers[{len(self.values)}]", value.function, "of a smaller number")
        number = FUNCTIONS[value.function][0](*numbers)
        if isinstance(number, int) and number.bit_length() > MOST_BITS:
            wrong(f"numbers[{len(self.values)}]", value.function, "of a smaller number")
        return number

    def read(self, saved: object, where: str = "a number of the saved graph") -> Any:
        """A number of the table, or a plain one."""
        if isinstance(saved, dict) and "number" in saved:
            record(number=integer(0, len(self.values) - 1))(saved, where)
            return self.values[saved["number"]]
        value = read_plain(saved, where)
        if not isinstance(value, (bool, int, float)):
            wrong(where, value, "a number")
        return value


_ARITY = {
    **dict.fromkeys(
        ("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "truediv", "floordiv", "mod",
         "pow"), (2,),
    ),
    "round": (1, 2),
}  # fmt: skip


# --- graphs -------------------------------------------------------------------------------------


def saved_graph(
    graph: LogicalGraph, numbers: Numbers, variable: Callable[[Buffer, str], object]
) -> dict[str, object]:
    """The graph as plain data.

    `variable(buffer, line)` says what is saved for a variable that code at `line` uses first.
    """
    if {node.stream for node in graph.nodes} - {0}:
        raise ArgumentError(f"{graph.name}: a graph on several streams cannot be saved")
    if graph.placed:
        raise ArgumentError(f"{graph.name}: a graph of global tensors cannot be saved")
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


def _saved_operand(operand: Operand, places: dict[Buffer, int]) -> list[object]:
    return [places[operand.buffer], operand.offset, plain(operand.meta, "an operand"), operand.step]


def read_graph(
    saved: Any, numbers: ReadNumbers, variable: Callable[[object, int], object]
) -> LogicalGraph:
    """Read a graph; `variable` returns a saved variable's Storage, with a least number of bytes.

    ArgumentError if the data is no graph.
    """
    GRAPH(saved, "the graph")
    buffers = []
    for b in saved["buffers"]:
        kind = BufferKind(b["kind"])
        held = variable(b["variable"], b["nbytes"]) if kind is BufferKind.VARIABLE else None
        buffers.append(Buffer(b["number"], kind, b["nbytes"], b["name"], held))
    if len({b.number for b in buffers}) != len(buffers):
        raise ArgumentError("the saved graph is damaged: two of its buffers have one number")
    operators = [read_operator(o) for o in saved["operators"]]
    inputs = [_read_operand(o, buffers, f"inputs[{k}]") for k, o in enumerate(saved["inputs"])]
    outputs = [_read_operand(o, buffers, f"outputs[{k}]") for k, o in enumerate(saved["outputs"])]
    nodes = [_read_node(n, operators, buffers, numbers, k) for k, n in enumerate(saved["nodes"])]
    graph = LogicalGraph(
        nodes=nodes, inputs=inputs, outputs=outputs, **{name: saved[name] for name in _GRAPH}
    )
    _check_inputs(graph)
    return graph


def _read_operand(
    saved: Sequence[Any], buffers: Sequence[Buffer], where: str, backwards: bool = False
) -> Operand:
    place, offset, meta, step = saved
    if place >= len(buffers):
        wrong(where, place, f"the place of one of {len(buffers)} buffers")
    if not backwards and min(meta["meta"][3], default=0) < 0:
        wrong(where, meta["meta"][3], "of strides that are not negative")
    return Operand(buffers[place], offset, read_meta(meta["meta"]), step)


def _read_node(
    saved: dict[str, Any],
    operators: Sequence[Operator],
    buffers: Sequence[Buffer],
    numbers: ReadNumbers,
    place: int,
) -> OpNode:
    where = f"nodes[{place}]"
    if saved["operator"] >= len(operators):
        wrong(f"{where}.operator", saved["operator"], f"one of {len(operators)} operators")
    operator = operators[saved["operator"]]
    inputs, outputs = (
        tuple([_read_operand(o, buffers, f"{where}.{name}", backwards) for o in saved[name]])
        for name, backwards in (("inputs", reads_backwards(operator)), ("outputs", False))
    )
    attrs = read_plain(saved["attrs"], f"{where}.attrs")
    scalars = tuple([numbers.read(s, f"{where}.scalars") for s in saved["scalars"]])
    for name, actual, expected in (
        ("inputs", inputs, operator.signature.inputs),
        ("outputs", outputs, operator.signature.outputs),
        ("attrs", attrs, operator.signature.attrs),
        ("scalars", scalars, operator.signature.scalars),
    ):
        if type(actual) is not tuple or len(actual) != len(expected):
            wrong(f"{where}.{name}", actual, f"the {len(expected)} of {operator.name}")
    if "order" in operator.signature.writes:
        wrong(f"{where}.operator", operator.name, "an operator of one rank")
    return OpNode(
        operator=operator,
        inputs=inputs,
        outputs=outputs,
        attrs=attrs,
        scalars=scalars,
        code=_code_at(saved["line"]),
        last=2,
        **{name: saved[name] for name in _NODE},
    )


def _check_inputs(graph: LogicalGraph) -> None:
    """Raise ArgumentError unless each input is a buffer of its own, and nodes stay inside of it.

    The memory before and behind it is other memory in the next call.
    """
    inputs = {operand.buffer: operand for operand in graph.inputs}
    if len(inputs) != len(graph.inputs) or any(o.step for o in graph.inputs):
        raise ArgumentError("the saved graph is damaged: two of its inputs are one buffer")
    if any(buffer.kind is not BufferKind.INPUT for buffer in inputs):
        raise ArgumentError(
            "the saved graph is damaged: an operand in its list of inputs is not an input"
        )
    used = [(operand, 1) for operand in graph.outputs]
    for node in graph.nodes:
        used += [(operand, node.repeat) for _, operand in node.accesses()]
    for operand, times in used:
        if operand.buffer.kind is not BufferKind.INPUT or not operand.meta.numel:
            continue
        whole = inputs.get(operand.buffer)
        end = operand.end + (times - 1) * operand.step
        if whole is None or operand.begin < whole.offset or end > whole.end:
            raise ArgumentError(
                f"the saved graph is damaged: {operand!r} is not inside an input of the graph"
            )


def _code_at(line: str) -> CodeType | None:
    """A code object whose second instruction is at `file:line`, for messages."""
    path, _, number_in_it = line.rpartition(":")
    if not path:
        return None
    return compile("0", path, "eval").replace(co_firstlineno=int(number_in_it))
