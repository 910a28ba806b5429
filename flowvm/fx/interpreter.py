"""Graphs run node by node."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.files.printable import printable
from flowvm.fx.graph import Graph
from flowvm.fx.graph_module import GraphModule
from flowvm.fx.node import Node, map_arg
from flowvm.fx.proxy import Proxy
from flowvm.fx.recorder import Tracing, alone
from flowvm.fx.tracer import Tracer
from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module

__dir__ = listing(globals())


# public: fx
class Interpreter:
    """Runs a GraphModule node by node.  Subclass it and override methods to change a node's work.

    env   the values of nodes that others still need; of all, with garbage_collect_values=False

    >>> class Loud(flow.fx.Interpreter):
    ...     def call_function(self, target, args, kwargs):
    ...         print(target.__name__)
    ...         return super().call_function(target, args, kwargs)
    >>> traced = flow.fx.symbolic_trace(lambda x: flow.relu(x) + 1)
    >>> Loud(traced).run(flow.tensor([-1.0, 2.0]))
    relu
    add
    tensor([1., 3.])
    """

    def __init__(
        self, module: Module, garbage_collect_values: bool = True, graph: Graph | None = None
    ) -> None:
        if graph is None and not isinstance(module, GraphModule):
            raise ArgumentTypeError(
                f"fx.Interpreter takes what flow.fx.symbolic_trace gives, not a "
                f"{type(module).__name__}"
            )
        self.module: Any = module
        self.graph: Graph = graph if graph is not None else self.module.__dict__["_graph"]
        self.garbage_collect_values = garbage_collect_values
        self.extra_traceback = True
        self.env: dict[Node, object] = {}
        self.args_iter: Iterator[object] = iter(())

    def run(
        self, *args: object, initial_env: Mapping[Node, object] | None = None,
        enable_io_processing: bool = True, **kwargs: object,
    ) -> Any:  # fmt: skip
        """The results for these arguments.  `initial_env` has values of nodes that do not run.

        For a graph of `make_fx`: ArgumentError unless the arguments are like the examples.
        """
        self.env = dict(initial_env or {})
        process = enable_io_processing or kwargs
        self.args_iter = iter(self.graph.process_inputs(*args, **kwargs) if process else args)
        last = {used: node for node in self.graph.nodes for used in node.all_input_nodes}
        ends: dict[Node, list[Node]] = {}
        for used, node in last.items():
            ends.setdefault(node, []).append(used)
        with self.graph._calling.around():
            for node in self.graph.nodes:
                if node in self.env:
                    continue
                try:
                    self.env[node] = self.run_node(node)
                except Exception as error:
                    if self.extra_traceback:
                        error.add_note(printable(f"While executing {node.format_node()}"))
                    raise
                if self.garbage_collect_values:
                    for used in ends.get(node, ()):
                        self.env.pop(used, None)
                if node.op == "output":
                    result = self.env[node]
                    return self.graph.process_outputs(result) if enable_io_processing else result
        return None

    def boxed_run(self, args_list: list[Any]) -> Any:
        """Run the graph as `run` does, and take the arguments out of a list."""
        args = list(args_list)
        args_list.clear()
        return self.run(*args)

    def run_node(self, n: Node) -> Any:
        """The value of one node."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n.op)(n.target, args, kwargs)

    def placeholder(self, target: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Return the value of an input: the next argument, all remaining ones for *args, or a
        default value.
        """
        if target.startswith("*"):
            return list(self.args_iter)
        try:
            return next(self.args_iter)
        except StopIteration:
            if args:
                return args[0]
            raise ArgumentTypeError(
                f"Expected positional argument for parameter {target}, but one was not passed in!"
            ) from None

    def get_attr(self, target: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Return the present value of an attribute of the module."""
        return self.fetch_attr(target)

    def call_function(
        self, target: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        """Call a function; return its result."""
        return target(*args, **kwargs)

    def call_method(self, target: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Call a method of the first argument; return its result."""
        return getattr(args[0], target)(*args[1:], **kwargs)

    def call_module(self, target: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Call a module; return its result."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """The results, in the structure in which the code gave them."""
        return args[0]

    def fetch_attr(self, target: str) -> Any:
        """An attribute of the module, by its path."""
        value = self.module
        for name in target.split("."):
            if not hasattr(value, name):
                raise ArgumentError(f"a node names {target!r}, and the module has no {name!r}")
            value = getattr(value, name)
        return value

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return a node's arguments as values."""
        return (
            _plain(map_arg(n.args, self.env.__getitem__)),
            {k: _plain(map_arg(v, self.env.__getitem__)) for k, v in n.kwargs.items()},
        )

    def map_nodes_to_values(self, args: object, n: Node) -> Any:
        """`args` with values in the place of nodes."""
        return _plain(map_arg(args, self.env.__getitem__))


def _plain(value: Any) -> Any:
    """Return mutable copies of lists and dicts."""
    if isinstance(value, tuple):
        items = [_plain(inner) for inner in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if type(value).__name__ == "immutable_dict":
        return {key: _plain(inner) for key, inner in value.items()}
    return value


# public: fx
class Transformer(Interpreter):
    """An Interpreter that makes a new graph: it records the methods' results and computes nothing.

    >>> class Negative(flow.fx.Transformer):
    ...     def call_function(self, target, args, kwargs):
    ...         return -super().call_function(target, args, kwargs)
    >>> traced = flow.fx.symbolic_trace(lambda x: flow.relu(x))
    >>> Negative(traced).transform()(flow.tensor([-1.0, 2.0]))
    tensor([-0., -2.])
    """

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.new_graph = Graph()
        self.tracer = Tracer()
        self.tracer.graph, self.tracer.root = self.new_graph, module

    def placeholder(
        self, target: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Proxy:
        """An input of the new graph."""
        default = args[0] if args else inspect.Signature.empty
        return Proxy(self.new_graph.placeholder(target, default_value=default), self.tracer)

    def get_attr(self, target: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Proxy:
        """An attribute."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_function(
        self, target: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Proxy:
        """A call of a function."""
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def call_method(
        self, target: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Proxy:
        """A call of a method."""
        return self.tracer.create_proxy("call_method", target, args, kwargs)

    def call_module(
        self, target: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Proxy:
        """A call of a module."""
        return self.tracer.create_proxy("call_module", target, args, kwargs)

    def transform(self) -> GraphModule:
        """The new graph, as a module of the same attributes."""
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        with alone, Tracing(self.tracer, self.module):
            env = {n: self.run_node(n) for n in inputs}
            result = super().run(initial_env=env, enable_io_processing=False)
        self.new_graph.output(self.tracer.create_arg(result))
        self.new_graph._calling = self.graph._calling
        return GraphModule(self.module, self.new_graph)


__all__ = own_names(globals())
