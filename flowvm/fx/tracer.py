"""Code run with proxies in the place of tensors: `symbolic_trace`."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, TraceError
from flowvm.fx.graph import Graph
from flowvm.fx.graph_module import GraphModule
from flowvm.fx.node import Node, map_aggregate
from flowvm.fx.proxy import Attribute, Proxy
from flowvm.fx.recorder import Tracing, alone
from flowvm.loading.listing import listing
from flowvm.nn.module import Module
from flowvm.vm.callers.tracebacks import border

__all__ = ["GraphAppendingTracer", "Tracer", "symbolic_trace"]
__dir__ = listing(globals())


# public: fx
class Tracer:
    """Makes the graph of a module or a function.  Subclass it and define the leaves.

    autowrap_modules, autowrap_functions   whose calls are nodes as well, beside flowvm's own
    param_shapes_constant                  taken: shapes of parameters are always known

    >>> class Whole(flow.fx.Tracer):
    ...     def is_leaf_module(self, m, module_qualified_name):
    ...         return False
    >>> print(Whole().trace(nn.Sequential(nn.ReLU())))
    graph():
        %input_1 : [num_users=1] = placeholder[target=input]
        %relu : [num_users=1] = call_function[target=relu](args = (%input_1, False), kwargs = {})
        return %relu
    """

    def __init__(
        self,
        autowrap_modules: tuple[object, ...] = (math,),
        autowrap_functions: tuple[Callable[..., object], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        inside = [f for m in autowrap_modules for k, f in vars(m).items() if not k.startswith("_")]
        functions = [f for f in inside if callable(f) and not isinstance(f, type)]
        self.autowrapped = (*functions, *autowrap_functions)
        self.graph: Graph = Graph()
        self.root: Any = None
        self._paths: dict[int, str] = {}
        self._constants: dict[int, tuple[str, object]] = {}

    # --- what a subclass may say otherwise

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """Return True if a call of a module is one node: for flowvm's own modules, except for
        Sequential and the like.
        """
        own = type(m).__module__.startswith("flowvm.nn.")
        return own and type(m).__name__ not in ("Sequential", "ModuleList", "ModuleDict",
                                                "ParameterList", "ParameterDict")  # fmt: skip

    def call_module(
        self,
        m: Module,
        forward: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Any:
        """Return the result of a module's call: a node for a leaf, else the result of its code."""
        path = self.path_of_module(m)
        if self.is_leaf_module(m, path):
            return self.create_proxy("call_module", path, args, kwargs)
        return forward(*args, **kwargs)

    def iter(self, obj: Proxy) -> Iterator[object]:
        """Refuse to iterate over a proxy."""
        raise TraceError(
            "Proxy object cannot be iterated.  This can be attempted when the Proxy is used in a "
            "loop or as a *args or **kwargs function argument; trace it for examples with make_fx"
        )

    def to_bool(self, obj: Proxy) -> bool:
        """Refuse to decide by a proxy's value."""
        raise TraceError(
            f"symbolically traced variables cannot be used as inputs to control flow: an `if`, "
            f"`while`, `and`, `or`, `not` or assert asks for the truth of {obj.node.name}; compute "
            f"both sides and take flow.where, or say what it is by concrete_args"
        )

    def keys(self, obj: Proxy) -> NoReturn:
        """Refuse to take a proxy apart by **."""
        raise TraceError(f"{obj.node.name} is not known, and ** needs its keys")

    def getattr(self, obj: Proxy, name: str) -> Attribute:
        """An attribute of a proxy."""
        return Attribute(obj, name)

    def proxy(self, node: Node) -> Proxy:
        """Return the proxy of a node's result."""
        return Proxy(node, self)

    def create_node(
        self, kind: str, target: object, args: tuple[object, ...], kwargs: dict[str, object],
        name: str | None = None, type_expr: object = None,
    ) -> Node:  # fmt: skip
        """Add a node."""
        return self.graph.create_node(kind, target, args, kwargs, name, type_expr)

    # --- what is recorded

    def create_proxy(
        self, kind: str, target: object, args: tuple[object, ...], kwargs: dict[str, object],
        name: str | None = None, type_expr: object = None,
    ) -> Proxy:  # fmt: skip
        """Add a node, and return its proxy."""
        arguments, named = self.create_arg(args), self.create_arg(kwargs)
        return self.proxy(self.create_node(kind, target, arguments, named, name, type_expr))

    def create_arg(self, a: object) -> Any:
        """Return a value as an argument of nodes: proxies become nodes, the root's tensors become
        attributes of it.
        """
        return map_aggregate(a, self._leaf)

    def _leaf(self, value: object) -> object:
        if isinstance(value, Proxy):
            return value.node
        if isinstance(value, (Tensor, Module)):
            return self.create_node("get_attr", self._path_of(value), (), {})
        if isinstance(value, np.ndarray):
            raise TraceError(
                "a NumPy array cannot be an argument of a node; make it a tensor by flow.from_numpy"
            )
        return value

    def _path_of(self, value: Tensor | Module) -> str:
        """Return the path of an object in the root.  An object without a path becomes an attribute
        of it.
        """
        if isinstance(value, Module):
            return self.path_of_module(value)
        if isinstance(self.root, Module):
            for path, module in self.root.named_modules():
                for table in (module._parameters, module._buffers, module.__dict__):
                    for name, tensor in table.items():
                        if tensor is value:
                            return f"{path}.{name}".lstrip(".")
        if id(value) not in self._constants:
            name = self.get_fresh_qualname("_tensor_constant")
            self._constants[id(value)] = name, value
            setattr(self.root, name, value)
        return self._constants[id(value)][0]

    def get_fresh_qualname(self, prefix: str) -> str:
        """A name that the root has no attribute of."""
        number = 0
        while hasattr(self.root, f"{prefix}{number}"):
            number += 1
        return f"{prefix}{number}"

    def path_of_module(self, mod: Module) -> str:
        """The path of a module below the root; NameError where it is not below it."""
        if id(mod) not in self._paths:
            self._paths = {}
            if isinstance(self.root, Module):
                for path, module in self.root.named_modules():
                    self._paths.setdefault(id(module), path)
        if id(mod) not in self._paths:
            raise NameError(
                f"{type(mod).__name__} is called while {type(self.root).__name__} is traced, and "
                f"is not below it; make it an attribute of the module"
            )
        return self._paths[id(mod)]

    # --- tracing

    @border
    def trace(self, root: Any, concrete_args: Mapping[str, object] | None = None) -> Graph:
        """The graph of a module or a function; `concrete_args` has values of parameters that are
        not left open.
        """
        if not callable(root) or isinstance(root, type):
            raise ArgumentTypeError(f"fx traces a module or a function, not {root!r}")
        if concrete_args is not None and not isinstance(concrete_args, dict):
            raise ArgumentTypeError(
                f"concrete_args is a dict of values by parameter, got "
                f"{type(concrete_args).__name__}; for a call on examples see flow.fx.make_fx"
            )
        module = isinstance(root, Module)
        function = type(root).forward if module else root
        self.root = root if module else Module()
        self.graph = Graph(tracer_cls=type(self))
        self._paths, self._constants = {}, {}
        bound = functools.partial(function, root) if module else function
        args, kwargs = self._parameters(bound, concrete_args or {})
        with alone, Tracing(self, root):
            result = bound(*args, **kwargs)
            self.graph.output(self.create_arg(result))
        return self.graph

    def _parameters(
        self, bound: Callable[..., object], concrete: Mapping[str, object]
    ) -> tuple[list[object], dict[str, object]]:
        """Return the arguments for the code: a proxy for each parameter."""
        args = []
        kwargs = {}
        parameters = inspect.signature(bound).parameters
        unknown = sorted(set(concrete) - set(parameters))
        if unknown:
            raise ArgumentError(
                f"concrete_args names {', '.join(unknown)}, and the parameters are "
                f"{', '.join(parameters)}"
            )
        for name, p in parameters.items():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue  # there are none
            default = () if p.default is p.empty else (p.default,)
            if name in concrete:
                default = (concrete[name],)
            proxy = self.create_proxy("placeholder", name, default, {})
            value: object = proxy
            if name in concrete:
                self.create_node(
                    "call_function", specialized, (proxy.node, concrete[name], name), {}
                )
                value = concrete[name]
            if p.kind is p.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        return args, kwargs


def specialized(value: object, expected: object, name: str) -> None:
    """ArgumentError unless a parameter has the value that the code was traced for."""
    if type(value) is not type(expected) or value != expected:
        raise ArgumentError(f"{name} was {expected!r} when this was traced, and is {value!r} now")


specialized.is_impure = True  # type: ignore[attr-defined]


# public: fx
class GraphAppendingTracer(Tracer):
    """A Tracer whose proxies add their nodes to a graph that is there.

    >>> graph = flow.fx.Graph()
    >>> tracer = flow.fx.GraphAppendingTracer(graph)
    >>> total = flow.fx.Proxy(graph.placeholder("x"), tracer) + 1
    >>> [node.op for node in graph.nodes]
    ['placeholder', 'call_function']
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph


# public: fx
@border
def symbolic_trace(root: object, concrete_args: Mapping[str, object] | None = None) -> GraphModule:
    """The graph of a module's or a function's code, which runs once with proxies in the place of
    tensors: no examples, no shapes.

    Calls of flowvm's modules are one node each, and calls of its functions.  TraceError where code
    decides by a value or a shape; `concrete_args` fixes parameters, and `make_fx` traces a call on
    examples.  Of *args and **kwargs there are none.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(4, 5)
    ...     def forward(self, x):
    ...         return self.layer(x).clamp(min=0.0)
    >>> print(flow.fx.symbolic_trace(Net()).code.strip())
    def forward(self, x):
        layer = self.layer(x);  x = None
        clamp = layer.clamp(min=0.0);  layer = None
        return clamp
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, Module) else getattr(root, "__name__", "forward")
    return GraphModule(tracer.root, graph, name)
