"""`flow.fx`: the LogicalGraph of a call as nodes that a program can walk, with torch.fx's names.

    gm = flow.fx.symbolic_trace(model, x)       # examples are needed: a capture has real shapes
    for node in gm.graph.nodes:
        print(node.op, node.name, node.target, node.args, node.meta["shape"])
    gm(x)                                       # runs them, one after the other

Ops, in program order: "placeholder" (an input), "get_attr" (a parameter, or any tensor from
outside), "call_function" (an operator, or a view of a value), "output".  What torch.fx lists and
this does not: modules' calls (`meta["scope"]` is the path of the module that ran) and Python code
that made no op.  A value that a node changes in place is that node from then on.

A graph is a picture of what was captured: it cannot be edited, and every way of torch.fx to do so
is an error that says it.  Nodes run as eager calls, without gradients, on inputs of the shapes and
dtypes of the examples.

Not here: passes, and what replays fast (`flow.compile`).

Long because nodes, the graph of them, what builds it and what runs it are one small library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flowvm.autograd import no_grad
from flowvm.eager.autocasting import autocasting
from flowvm.eager.interpreter import Operator, call_into
from flowvm.eager.live import now
from flowvm.eager.tensor import Tensor, alias, new_tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, MissingNameError
from flowvm.graph.capture.trees import flatten, unflatten
from flowvm.graph.logical.nodes import Buffer, Operand, OpNode
from flowvm.loading.listing import listing
from flowvm.meta.dtype import DType
from flowvm.meta.meta import TensorMeta
from flowvm.nn.graph.tracing import Traced, traced
from flowvm.vm.callers.tracebacks import border
from flowvm.vm.machine.words import OPERAND

__all__ = ["Graph", "GraphModule", "Interpreter", "Node", "symbolic_trace"]
__dir__ = listing(globals())


class Call:
    """The target of a "call_function": an operator as a function of its operands, then its
    attributes, then its numbers; with `out`, of what it writes into.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.__name__ = operator.name

    def __call__(self, *args: Any, out: Sequence[Tensor] | None = None) -> Any:
        count = len(self.operator.inputs)
        tensors, rest = args[:count], args[count:]
        split = len(rest) - len(self.operator.scalars)
        attrs, numbers = rest[:split], [now(n) for n in rest[split:]]
        if out is not None:
            call_into(self.operator, tuple(out), tensors, attrs, tuple(numbers))
            for tensor in out:
                tensor.bump()
            return tuple(out) if len(out) > 1 else out[0]
        result = self.operator.call(*tensors, *attrs, *numbers)
        written = [
            t for n, t in zip(self.operator.inputs, tensors, strict=True)
            if n in self.operator.writes
        ]  # fmt: skip
        return written[0] if len(written) == 1 and not self.operator.outputs else result

    def __repr__(self) -> str:
        return f"<operator {self.__name__}>"


def view(value: Tensor, shape: Any, stride: Any, offset: int, dtype: DType) -> Tensor:
    """The elements of `value`'s memory in this shape, by these steps, from `offset` elements behind
    its first one on.
    """
    meta = TensorMeta.of(tuple(shape), dtype, value._meta.device, tuple(stride))
    return alias(value, meta, offset * dtype.itemsize)


def item(values: Sequence[Any], place: int) -> Any:
    """One of the results of a node that gives several."""
    return values[place]


class Node:
    """One step of a graph.

    op      "placeholder", "get_attr", "call_function" or "output"
    target  the input's or the parameter's name, or the function that is called
    args    what it is called with: nodes, and values that are no tensors; `kwargs` likewise
    users   nodes that name this one, in their order (a dict whose values are None)
    meta    "shape", "dtype", "stride" and "tensor_meta" of its tensor; "line", the user's file and
            line; "scope", the path of the module that ran; "phase"

    >>> traced = flow.fx.symbolic_trace(lambda x: flow.relu(x) + 1, flow.ones(2))
    >>> [(node.name, node.target) for node in traced.graph.nodes][:2]
    [('x', 'x'), ('relu', <operator relu>)]
    """

    def __init__(
        self, graph: Graph, name: str, op: str, target: Any, args: tuple[Any, ...],
        kwargs: Mapping[str, Any], meta: Mapping[str, Any],
    ) -> None:  # fmt: skip
        own = {
            "graph": graph, "name": name, "op": op, "target": target, "args": args,
            "kwargs": dict(kwargs), "meta": dict(meta), "users": {},
        }  # fmt: skip
        self.__dict__.update(own)
        for node in self.all_input_nodes:
            node.users.setdefault(self)

    graph: Graph
    name: str
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: dict[str, Any]
    users: dict[Node, None]

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes that it names, each once."""
        found: dict[Node, None] = {}
        for value in (*self.args, *self.kwargs.values()):
            found.update(dict.fromkeys(_nodes_in(value)))
        return list(found)

    def format_node(self) -> str:
        """One line: %y : [num_users=1] = call_function[target=relu](args = (%x,), kwargs = {})."""
        if self.op == "output":
            return f"return {_text(self.args[0])}"
        head = f"%{self.name} : [num_users={len(self.users)}] = {self.op}[target={_name(self)}]"
        if self.op != "call_function":
            return head
        return f"{head}(args = {_text(self.args)}, kwargs = {_text(self.kwargs)})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise ArgumentError(f"fx.Node.{name} cannot be set: {_NO_EDITS}")

    @border
    def __getattr__(self, name: str) -> Any:
        _refuse("Node", name)

    def __repr__(self) -> str:
        return self.name


_NO_EDITS = (
    "a graph of flow.fx shows what was captured, and is not edited; change the code that was "
    "traced, or write a pass of flowvm.graph.passes"
)
_EDITS = frozenset(
    (
        "add_submodule", "append", "call_function", "call_method", "call_module", "create_node",
        "delete_all_unused_submodules", "delete_submodule", "eliminate_dead_code", "erase_node",
        "get_attr", "graph_copy", "insert_arg", "inserting_after", "inserting_before", "node_copy",
        "on_generate_code", "output", "placeholder", "prepend", "recompile",
        "replace_all_uses_with", "replace_input_with", "set_codegen", "update_arg", "update_kwarg",
    )
)  # fmt: skip


def _refuse(kind: str, name: str) -> None:
    if name in _EDITS:
        raise ArgumentError(f"fx.{kind}.{name}: {_NO_EDITS}")
    raise MissingNameError(f"fx.{kind} has no {name!r}", name)


def _nodes_in(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from _nodes_in(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _nodes_in(inner)


def _mapped(value: Any, of: Callable[[Node], Any]) -> Any:
    """`value` with what `of` says of each node in it."""
    if isinstance(value, Node):
        return of(value)
    if isinstance(value, (tuple, list)):
        items = [_mapped(inner, of) for inner in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _mapped(inner, of) for key, inner in value.items()}
    return value


def _text(value: Any) -> str:
    if isinstance(value, Node):
        return f"%{value.name}"
    if type(value) in (tuple, list):
        inside = ", ".join(map(_text, value))
        if type(value) is list:
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if type(value) is dict:
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in value.items()) + "}"
    return value.__name__ if isinstance(value, type) else repr(value)


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


class Graph:
    """Nodes in program order; `symbolic_trace` makes it.

    >>> traced = flow.fx.symbolic_trace(lambda x: flow.relu(x) + 1, flow.ones(2))
    >>> [node.op for node in traced.graph.nodes]
    ['placeholder', 'call_function', 'call_function', 'output']
    """

    def __init__(self, trace: Traced) -> None:
        self._nodes: list[Node] = []
        self._names: dict[str, int] = {}
        self._held: dict[Node, Tensor] = {}  # what "get_attr" gives
        _Build(self, trace)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of them; the last one is the output."""
        return tuple(self._nodes)

    def find_nodes(self, *, op: str, target: Any = None) -> list[Node]:
        """Those of an op and, if one is given, a target: a name, or a function's name."""
        return [
            n for n in self._nodes
            if n.op == op and (target is None or target in (n.target, _name(n)))
        ]  # fmt: skip

    def lint(self) -> None:
        """Nothing: what cannot be edited is as it was made."""

    def print_tabular(self) -> None:
        """Print a table: opcode, name, target, args, kwargs, and what torch.fx has not: the result
        and the user's line.
        """
        rows: list[tuple[str, ...]] = [
            ("opcode", "name", "target", "args", "kwargs", "result", "line")
        ]
        for node in self._nodes:
            meta = node.meta.get("tensor_meta")
            rows.append(
                (
                    node.op, node.name, _name(node), _text(node.args), _text(node.kwargs),
                    repr(meta) if meta else "", node.meta["line"],
                )
            )  # fmt: skip
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        rows.insert(1, tuple("-" * width for width in widths))
        for row in rows:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print(line.rstrip())

    def __str__(self) -> str:
        return "\n".join(["graph():", *(f"    {node.format_node()}" for node in self._nodes)])

    @border
    def __getattr__(self, name: str) -> Any:
        _refuse("Graph", name)

    def _add(self, wanted: str, op: str, target: Any, args: Any, kwargs: Any, meta: Any) -> Node:
        wanted = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted).strip("_") or "v"
        wanted = f"_{wanted}" if wanted[0].isdigit() else wanted
        count = self._names[wanted] = self._names.get(wanted, -1) + 1
        name = f"{wanted}_{count}" if count else wanted
        if count:
            self._names.setdefault(name, 0)
        node = Node(self, name, op, target, args, kwargs, meta)
        self._nodes.append(node)
        return node


class _Build:
    """Nodes of a capture: `whole` has the node that stands for what is in a buffer now."""

    def __init__(self, graph: Graph, trace: Traced) -> None:
        self.graph, self.own = graph, trace.whole
        self.whole: dict[Buffer, tuple[Node, Operand]] = {}
        self.views: dict[tuple[Node, int, TensorMeta], Node] = {}
        for name, operand in zip(trace.names, trace.graph.inputs, strict=True):
            node = graph._add(name, "placeholder", name, (), {}, _meta(operand.meta))
            self.whole[operand.buffer] = node, operand
        for step in trace.graph.nodes:
            self.add(step)
        ends: list[Any] = [self.place(o, {"line": "", "scope": ""}) for o in trace.graph.outputs]
        result = unflatten(trace.results, iter(ends))
        graph._add("output", "output", "output", (result,), {}, {"line": "", "scope": ""})

    def add(self, node: OpNode) -> None:
        operator = node.operator
        facts = {"line": node.line, "scope": node.scope, "phase": node.phase}
        inputs = [self.place(o, facts) for o in node.inputs]
        args = (*inputs, *node.attrs, *node.scalars)
        if node.into:
            into = [self.place(o, facts) for o in node.outputs]
            made = self.call(operator, args, {"out": tuple(into)}, facts, node.outputs[0].meta)
            for operand in node.outputs:
                self.changed(operand, made)
            return
        only = node.outputs[0].meta if len(node.outputs) == 1 else None
        made = self.call(operator, args, {}, facts, only)
        for access, operand in node.accesses():
            if access == "mut" and operand in node.inputs:
                self.changed(operand, made)
        for place, operand in enumerate(node.outputs):
            own = made
            if only is None:
                meta = {**_meta(operand.meta), **facts}
                own = self.graph._add("item", "call_function", item, (made, place), {}, meta)
            self.whole[operand.buffer] = own, operand

    def call(
        self, operator: Operator, args: Any, kwargs: Any, facts: Any, meta: TensorMeta | None
    ) -> Node:
        seen = _meta(meta) if meta else {}
        name = operator.name
        return self.graph._add(
            name, "call_function", Call(operator), args, kwargs, {**seen, **facts}
        )

    def changed(self, operand: Operand, by: Node) -> None:
        """Whole contents that were written are what was written; else the value that was there,
        which this node has changed.
        """
        _, before = self.whole[operand.buffer]
        if (before.offset, before.meta) == (operand.offset, operand.meta):
            self.whole[operand.buffer] = by, operand

    def place(self, operand: Operand, facts: Mapping[str, Any]) -> Node:
        """The node of what an operand names."""
        buffer = operand.buffer
        if buffer not in self.whole:
            name, own = buffer.name or "tensor", self.own.get(buffer, operand)
            node = self.graph._add(name, "get_attr", name, (), {}, _meta(own.meta))
            ref = buffer.held.id + (own.offset << OPERAND.STORAGE_BITS)
            self.graph._held[node] = new_tensor(ref, own.meta, buffer.held)
            self.whole[buffer] = node, own
        node, whole = self.whole[buffer]
        if (whole.offset, whole.meta) == (operand.offset, operand.meta):
            return node
        key = node, operand.offset, operand.meta
        if key not in self.views:
            dtype = operand.meta.dtype
            offset = (operand.offset - whole.offset) // dtype.itemsize
            args = (node, tuple(operand.meta.shape), operand.meta.stride, offset, dtype)
            meta = {**_meta(operand.meta), **facts}
            self.views[key] = self.graph._add("view", "call_function", view, args, {}, meta)
        return self.views[key]


def _meta(meta: TensorMeta) -> dict[str, Any]:
    return {
        "shape": meta.shape, "dtype": meta.dtype, "stride": meta.stride, "tensor_meta": meta,
        "line": "", "scope": "",
    }  # fmt: skip


# --- running it -----------------------------------------------------------------------------------


class GraphModule:
    """A traced call: `graph`, and a function of arguments like the examples, which runs the nodes.

    Parameters are the model's own: where they change, so do the results.  What the code decided
    while it was traced stays decided.

    >>> traced = flow.fx.symbolic_trace(lambda x: flow.relu(x) + 1, flow.ones(2))
    >>> traced(flow.tensor([-1.0, 2.0]))
    tensor([1., 3.])
    """

    def __init__(self, trace: Traced) -> None:
        self._trace = trace
        self.graph = Graph(trace)

    @border
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results, by `Interpreter`."""
        return Interpreter(self).run(*args, **kwargs)

    @property
    def code(self) -> str:
        """The nodes in print: for reading, it is no Python."""
        return str(self.graph)

    def print_readable(self, print_output: bool = True) -> str:
        """The nodes in print, each with its result and the user's line."""
        lines = [f"{self._trace.graph.name}:"]
        for node in self.graph.nodes:
            meta, line = node.meta.get("tensor_meta"), node.meta["line"]
            facts = "  ".join(filter(None, (repr(meta) if meta else "", line)))
            lines.append(f"    {node.format_node()}" + (f"  # {facts}" if facts else ""))
        text = "\n".join(lines)
        if print_output:
            print(text)
        return text

    @border
    def __getattr__(self, name: str) -> Any:
        _refuse("GraphModule", name)

    def __repr__(self) -> str:
        return f"GraphModule({self._trace.graph.name}, {len(self.graph.nodes)} nodes)"


class Interpreter:
    """Runs a GraphModule node by node; subclass it and override what is to be otherwise.

    env   the values of nodes that others still need

    >>> traced = flow.fx.symbolic_trace(lambda x: flow.relu(x) + 1, flow.ones(2))
    >>> flow.fx.Interpreter(traced).run(flow.tensor([-1.0, 2.0]))
    tensor([1., 3.])
    """

    def __init__(self, module: GraphModule) -> None:
        if not isinstance(module, GraphModule):
            raise ArgumentTypeError(
                f"fx.Interpreter takes what flow.fx.symbolic_trace gives, not a "
                f"{type(module).__name__}"
            )
        self.module = module
        self.env: dict[Node, Any] = {}
        self._given: dict[Node, Tensor] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The results for these arguments; ArgumentError unless they are like the examples: the
        same structure and numbers, and tensors of the same shapes and dtypes.
        """
        trace, graph = self.module._trace, self.module.graph
        leaves: list[Tensor] = []
        structure = flatten((args, kwargs), leaves)
        wanted = [o.meta for o in trace.graph.inputs]
        if structure != trace.arguments or [t._meta.dense() for t in leaves] != wanted:
            raise ArgumentError(
                f"{trace.graph.name} was traced for tensors {wanted}, and is called with "
                f"{[t._meta for t in leaves]}, or with other arguments that are no tensors"
            )
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self._given = {n: t.detach() for n, t in zip(inputs, leaves, strict=True)}
        for generator, drawn in trace.draws:
            drawn[0] = generator.draw_now()
        last = {used: node for node in graph.nodes for used in node.all_input_nodes}
        ends: dict[Node, list[Node]] = {}
        for used, node in last.items():
            ends.setdefault(node, []).append(used)
        result = None
        with no_grad(), autocasting(None):
            for node in graph.nodes:
                result = self.env[node] = self.run_node(node)
                for used in ends.get(node, ()):
                    del self.env[used]
        self.env.clear()
        return result

    def run_node(self, n: Node) -> Any:
        """The value of one node."""
        args, kwargs = (_mapped(v, self.env.__getitem__) for v in (n.args, n.kwargs))
        return getattr(self, n.op)(n.target if n.op == "call_function" else n, args, kwargs)

    def placeholder(self, target: Node, args: Any, kwargs: Any) -> Tensor:
        """An input."""
        given: Tensor = self._given[target].contiguous()
        return given

    def get_attr(self, target: Node, args: Any, kwargs: Any) -> Tensor:
        """A tensor from outside, as it is now."""
        return self.module.graph._held[target]

    def call_function(self, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What `target` gives."""
        return target(*args, **kwargs)

    def output(self, target: Node, args: Any, kwargs: Any) -> Any:
        """The results, in the structure in which the code gave them."""
        return args[0]


@border
def symbolic_trace(root: Any, *example_inputs: Any, **example_kwargs: Any) -> GraphModule:
    """What `root` (a module, a function, an nn.Graph) computes of these examples.

    torch.fx needs no examples; here shapes are real while code is captured, so at least one tensor
    has to be given unless the code takes none.  CaptureError where code reads a value of a tensor.

    >>> traced = flow.fx.symbolic_trace(nn.Linear(2, 3), flow.ones(4, 2))
    >>> traced(flow.ones(4, 2)).shape
    flow.Size([4, 3])
    """
    if type(root) is type or not callable(root):
        raise ArgumentTypeError(
            f"fx.symbolic_trace takes a module, a function or an nn.Graph, not {root!r}"
        )
    try:
        if not example_inputs and not example_kwargs:
            _asks_nothing(root)
    except TypeError as error:
        raise ArgumentTypeError(
            f"fx.symbolic_trace needs example inputs here, with which the code is run once: "
            f"symbolic_trace(model, x) ({error})"
        ) from None
    return GraphModule(traced(root, example_inputs, example_kwargs, "fx.symbolic_trace"))


def _asks_nothing(root: Any) -> None:
    """TypeError where a call without arguments has too few."""
    function = root.forward if hasattr(root, "forward") else getattr(root, "build", root)
    inspect.signature(function).bind()
