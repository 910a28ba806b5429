"""The graph: nodes in program order, and every way to change it."""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn

from flowvm.errors import ArgumentError, ArgumentTypeError, GraphError
from flowvm.files.printable import printable
from flowvm.fx.code import Calling, PythonCode, python_code
from flowvm.fx.node import Node, map_arg, target_name, text
from flowvm.guards.regions import reverting
from flowvm.loading.listing import listing

__all__ = ["Graph"]
__dir__ = listing(globals())

_NUMBERED = re.compile(r"(.*)_(\d+)$")
_TAKEN = frozenset((*keyword.kwlist, *dir(builtins), "self", "flowvm", "operator", "inf", "nan"))


class Names:
    """A table of unique names."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self._counts: dict[str, int] = {}

    def create_name(self, candidate: str, obj: object = None) -> str:
        """`candidate`, made a name of Python, with a number where it is taken."""
        candidate_name = re.sub("[^0-9a-zA-Z_]+", "_", candidate) or "_unnamed"
        candidate_name = f"_{candidate_name}" if candidate_name[0].isdigit() else candidate_name
        numbered = _NUMBERED.match(candidate_name)
        base, number = (numbered[1], int(numbered[2])) if numbered else (candidate_name, None)
        name = candidate_name
        if name in self.used or name in _TAKEN:
            number = max(number or 0, self._counts.get(base, 0))
            while name in self.used or name in _TAKEN:
                number += 1
                name = f"{base}_{number}"
        if number is not None:
            self._counts[base] = number
        self.used.add(name)
        return name


class NodeList:
    """The nodes of a graph in their order, which may change while it is gone through."""

    def __init__(self, graph: Graph, back: bool = False) -> None:
        self._graph, self._back = graph, back

    def __len__(self) -> int:
        return self._graph._count

    def __iter__(self) -> Iterator[Node]:
        root = self._graph._root
        node = root._prev if self._back else root._next
        while node is not root:
            if not node._erased:
                yield node
            node = node._prev if self._back else node._next

    def __reversed__(self) -> Iterator[Node]:
        return iter(NodeList(self._graph, not self._back))

    def __repr__(self) -> str:
        return repr(list(self))


# public: fx
class Graph:
    """Nodes in program order; `symbolic_trace` makes one, or a program node by node.

    >>> graph = flow.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> y = graph.call_function(flow.relu, (x,))
    >>> _ = graph.output(y)
    >>> print(graph)
    graph():
        %x : [num_users=1] = placeholder[target=x]
        %relu : [num_users=1] = call_function[target=relu](args = (%x,), kwargs = {})
        return %relu
    """

    def __init__(
        self, owning_module: object = None, tracer_cls: object = None, tracer_extras: object = None
    ) -> None:
        self._names = Names()
        self._count = 0
        self._root = Node(self, "", "output", "root", (), {})
        self._put: Callable[[Node], None] = self._root.prepend
        self._calling = Calling()
        self.owning_module = owning_module

    @property
    def nodes(self) -> NodeList:
        """All nodes; the last one is the output."""
        return NodeList(self)

    def output_node(self) -> Node:
        """The output node; GraphError if there is none yet."""
        for node in reversed(self.nodes):
            if node.op == "output":
                return node
        raise GraphError("the graph has no output yet; Graph.output(result) makes it")

    def find_nodes(self, *, op: str, target: object = None, sort: bool = True) -> list[Node]:
        """Return the nodes of an op and, if it is given, of a target: a function, or a name."""
        return [
            n for n in self.nodes
            if n.op == op and (target is None or target in (n.target, target_name(n)))
        ]  # fmt: skip

    # --- nodes made

    def create_node(
        self, op: str, target: object, args: tuple[object, ...] | None = None,
        kwargs: Mapping[str, object] | None = None, name: str | None = None,
        type_expr: object = None,
    ) -> Node:  # fmt: skip
        """Add a node at the current place: the end, or the place that `inserting_before` sets."""
        hint = name if name is not None else _name_of(op, target)
        node = Node(self, "", op, target, args or (), kwargs or {}, type_expr)
        node.name = self._names.create_name(hint)
        self._put(node)
        self._count += 1
        return node

    def placeholder(
        self, name: str, type_expr: object = None, default_value: object = inspect.Signature.empty
    ) -> Node:
        """Add an input."""
        args = () if default_value is inspect.Signature.empty else (default_value,)
        return self.create_node("placeholder", name, args, type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: object = None) -> Node:
        """Add a node for an attribute of the module, by its path."""
        if self.owning_module is not None and not _has(self.owning_module, qualified_name):
            warnings.warn(
                f"the module of this graph has no attribute {qualified_name!r} yet; add it before "
                f"the graph is run",
                stacklevel=2,
            )
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_module(
        self, module_name: str, args: tuple[object, ...] | None = None,
        kwargs: Mapping[str, object] | None = None, type_expr: object = None,
    ) -> Node:  # fmt: skip
        """Add a call of a module below the graph's module, by its path."""
        if self.owning_module is not None and not _has(self.owning_module, module_name):
            warnings.warn(
                f"the module of this graph has no module {module_name!r} yet; add_submodule before "
                f"the graph is run",
                stacklevel=2,
            )
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(
        self, method_name: str, args: tuple[object, ...] | None = None,
        kwargs: Mapping[str, object] | None = None, type_expr: object = None,
    ) -> Node:  # fmt: skip
        """Add a call of a method of the first of `args`."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(
        self, the_function: Callable[..., object], args: tuple[object, ...] | None = None,
        kwargs: Mapping[str, object] | None = None, type_expr: object = None,
        name: str | None = None,
    ) -> Node:  # fmt: skip
        """Add a call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def output(self, result: object, type_expr: object = None) -> Node:
        """Add the output node: nodes in any structure of tuples, lists and dicts."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    def node_copy(self, node: Node, arg_transform: Callable[[Node], object] = lambda x: x) -> Node:
        """Add a copy of a node of another graph.  `arg_transform` maps the nodes in its arguments
        to nodes of this graph.
        """
        args = map_arg(node.args, arg_transform)
        kwargs = map_arg(dict(node.kwargs), arg_transform)
        copied = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copied.meta = dict(node.meta)
        return copied

    def graph_copy(
        self, g: Graph, val_map: dict[Node, Any], return_output_node: bool = False
    ) -> Any:
        """Copy all nodes of another graph but its output, and record them in `val_map`.  Return the
        other graph's result, in nodes of this graph.
        """
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                result = map_arg(node.args[0], val_map.__getitem__)
                return (result, node) if return_output_node else result
            val_map[node] = self.node_copy(node, val_map.__getitem__)
        return None

    def __deepcopy__(self, memo: object = None) -> Graph:
        copy = Graph()
        copies: dict[Node, object] = {}
        result = copy.graph_copy(self, copies, return_output_node=True)
        copy._calling = self._calling
        if result is not None:
            copy.output(result[0], result[1].type).meta = dict(result[1].meta)
        return copy

    # --- where nodes are put

    def inserting_before(self, n: Node | None = None) -> AbstractContextManager[object]:
        """Put new nodes in front of `n` inside the with statement; None: in front of all."""
        return self._putting(self._root._next.prepend if n is None else self._mine(n).prepend)

    def inserting_after(self, n: Node | None = None) -> AbstractContextManager[object]:
        """Put each new node right behind `n` inside the with statement; None: in front of all."""
        return self._putting(self._root.append if n is None else self._mine(n).append)

    def _mine(self, n: Node) -> Node:
        if n.graph is not self or n._erased:
            raise GraphError(f"node {n.name} is not in this graph")
        return n

    def _putting(self, put: Callable[[Node], None]) -> reverting:
        return reverting(partial(setattr, self, "_put", self._put),
                         partial(setattr, self, "_put", put))  # fmt: skip

    # --- nodes taken out

    def erase_node(self, to_erase: Node) -> None:
        """Remove a node without users."""
        if to_erase.users:
            raise GraphError(
                f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} users in "
                f"the graph: {to_erase.users}!  replace_all_uses_with first"
            )
        if to_erase.graph is not self:
            raise GraphError(f"Attempting to remove {to_erase} from wrong graph")
        if to_erase._erased:
            warnings.warn(f"erase_node({to_erase}) on an already erased node", stacklevel=2)
            return
        to_erase._named((), {})
        to_erase._unlink()
        to_erase._erased = True
        self._count -= 1

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Remove nodes that have no users and change nothing.  Return True if there were any."""
        self.lint()
        impure, before = is_impure_node or Node.is_impure, self._count
        for node in reversed(self.nodes):
            if not node.users and not impure(node):
                self.erase_node(node)
        return self._count < before

    def lint(self) -> None:
        """Check the graph.  GraphError for an argument that is not an earlier node, a repeated
        name, or a placeholder behind other nodes.  GraphError, too, for a name that the module does
        not have.
        """
        visited: set[Node] = set()
        names: set[str] = set()
        for node in self.nodes:
            if node.graph is not self:
                raise GraphError(f"Node '{node}' does not belong to this Graph")
            if node._erased:
                raise GraphError(f"Node '{node}' is erased")
            for used in node.all_input_nodes:
                if used not in visited:
                    raise GraphError(
                        f"Argument '{used}' of Node '{node}' was used before it has been defined!  "
                        f"Please check that Nodes in the graph are topologically ordered\n{self}"
                    )
            if node.name in names:
                raise GraphError(f"Node redefined name {node.name}!")
            visited.add(node)
            names.add(node.name)
            module, named = self.owning_module, node.op in ("call_module", "get_attr")
            if module is not None and named and not _has(module, node.target):
                raise GraphError(
                    f"Node {node} target {node.target} references nonexistent attribute of "
                    f"{type(module).__name__}"
                )

    # --- calls

    def process_inputs(self, *args: object, **kwargs: object) -> Sequence[object]:
        """Return the values of the placeholders for a call's arguments."""
        return self._calling.inputs(args, kwargs)

    def process_outputs(self, out: Any) -> Any:
        """Return the result of a call: the output node's value unchanged."""
        return out

    def python_code(self, root_module: str) -> PythonCode:
        """The graph as a function of Python: `src`, and the `globals` that it needs."""
        return python_code(self, root_module)

    # --- in print

    def print_tabular(self) -> None:
        """Print a table: opcode, name, target, args, kwargs, and the result and the user's line
        where they are known.
        """
        rows = [("opcode", "name", "target", "args", "kwargs", "result", "line")]
        for node in self.nodes:
            meta = node.meta.get("tensor_meta")
            rows.append(
                (
                    node.op, node.name, target_name(node), text(node.args), text(node.kwargs),
                    repr(meta) if meta else "", node.meta.get("line", ""),
                )
            )  # fmt: skip
        shown = [k for k in range(7) if k < 5 or any(row[k] for row in rows[1:])]
        widths = {k: max(len(row[k]) for row in rows) for k in shown}
        rows.insert(1, tuple("-" * widths.get(k, 0) for k in range(7)))  # type: ignore[arg-type]
        for row in rows:
            print(printable("  ".join(row[k].ljust(widths[k]) for k in shown).rstrip()))

    def __str__(self) -> str:
        return "\n".join(["graph():", *(f"    {node.format_node()}" for node in self.nodes)])

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "a graph of flow.fx is not pickled; save the state_dict, and trace the model again"
        )

    def on_generate_code(self, make_transformer: object) -> NoReturn:
        """Raise ArgumentError: this hook does not exist here."""
        raise ArgumentError("fx.Graph.on_generate_code: the code that is generated is not changed")

    set_codegen = on_generate_code


def _name_of(op: str, target: object) -> str:
    """Return a node's name, made of its target."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "function")
    if op == "placeholder":
        return name.lstrip("*")
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition("*")[2]).lower()


def _has(module: object, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True
