"""A graph as a module: the attributes that its nodes name, and a `forward` made of it."""

from __future__ import annotations

import copy
import functools
import itertools
import linecache
import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, MissingNameError
from flowvm.fx.code import PythonCode
from flowvm.fx.graph import Graph
from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module
from flowvm.nn.parameter import Parameter

__dir__ = listing(globals())

_files = itertools.count()


# public: fx
class GraphModule(Module):
    """GraphModule(root, graph, class_name="GraphModule"): a module that runs a graph.

    Attributes that the nodes name are taken from `root`, a module or a dict of paths.  Parameters
    are the same tensors, not copies.  Call `recompile()` after a change of the graph.

    graph   may be set, which recompiles
    code    the `forward` that was made of it

    >>> traced = flow.fx.symbolic_trace(lambda x: flow.relu(x) + 1)
    >>> for node in traced.graph.find_nodes(op="call_function", target=flow.relu):
    ...     node.target = flow.neg
    >>> print(traced.recompile().src.strip())
    def forward(self, x):
        relu = flowvm.neg(x);  x = None
        add = relu + 1;  relu = None
        return add
    >>> traced(flow.tensor([-1.0, 2.0]))
    tensor([ 2., -1.])
    """

    def __new__(cls, *args: object, **kwargs: object) -> GraphModule:
        """Make an instance with a class of its own, which has the `forward`."""
        for base in cls.__mro__:
            if "_of_a_graph" not in base.__dict__:
                kind = type(base.__name__, (base,), {"_of_a_graph": True})
                instance: GraphModule = super().__new__(kind)
                return instance
        raise AssertionError

    def __init__(
        self, root: Module | Mapping[str, object], graph: Graph, class_name: str = "GraphModule"
    ) -> None:
        super().__init__()
        if not isinstance(graph, Graph):
            raise ArgumentTypeError(f"fx.GraphModule takes a fx.Graph, got {type(graph).__name__}")
        type(self).__name__ = type(self).__qualname__ = class_name
        if isinstance(root, Module):
            self.training = root.training
        elif not isinstance(root, Mapping):
            raise ArgumentTypeError(
                f"fx.GraphModule takes a module or a dict of what its nodes name, got "
                f"{type(root).__name__}"
            )
        paths = {n.target: None for n in graph.nodes if n.op in ("get_attr", "call_module")}
        for path in sorted(paths, key=lambda path: path.count(".")):  # outer modules first
            self._take(path, _attribute_at(root, path))
        self.graph = graph

    def _take(self, path: str, value: object) -> None:
        """Copy an attribute, and make missing modules on the way to it."""
        *way, name = path.split(".")
        module: Module = self
        for step in way:
            if step not in module._modules:
                module.add_module(step, Module())
            module = module._modules[step]
        if isinstance(value, Module):
            if module._modules.get(name) is None:
                module.add_module(name, value)
        elif isinstance(value, Tensor) and not isinstance(value, Parameter):
            module.register_buffer(name, value)
        else:
            setattr(module, name, value)

    @property
    def graph(self) -> Graph:
        """The graph."""
        graph: Graph = self.__dict__["_graph"]
        return graph

    @graph.setter
    def graph(self, graph: Graph) -> None:
        if not isinstance(graph, Graph):
            raise ArgumentTypeError(f"GraphModule.graph is a fx.Graph, got {type(graph).__name__}")
        self.__dict__["_graph"] = graph
        graph.owning_module = self
        self.recompile()

    def recompile(self) -> PythonCode:
        """Make `forward` anew from the present graph."""
        code = self.graph.python_code("self")
        if "_file" not in self.__dict__:
            self.__dict__["_file"] = f"<flow.fx graph {next(_files)}>"
            weakref.finalize(self, linecache.cache.pop, self.__dict__["_file"], None)
        name = self.__dict__["_file"]
        space = dict(code.globals)
        exec(compile(code.src, name, "exec"), space)
        linecache.cache[name] = (len(code.src), None, code.src.splitlines(True), name)
        calling, forward = self.graph._calling, space["forward"]

        def around(self: Module, *args: object, **kwargs: object) -> Any:
            with calling.around():
                return forward(self, *args, **kwargs)

        type(self).forward = forward if calling.by_name else around
        self.__dict__["_code"] = code.src
        return code

    @property
    def code(self) -> str:
        """The source of `forward`."""
        code: str = self.__dict__["_code"]
        return code

    def print_readable(self, print_output: bool = True, **options: object) -> str:
        """The class with its `forward`, in print."""
        lines = [f"class {type(self).__name__}(nn.Module):"]
        lines += [f"    {line}".rstrip() for line in self.code.strip().splitlines()]
        text = "\n".join(lines) + "\n"
        if print_output:
            print(text)
        return text

    # --- what is below it

    def add_submodule(self, target: str, m: Module) -> bool:
        """Add a module under a path.  Return False if another object is in the way."""
        *way, name = target.split(".")
        module: Module = self
        for step in way:
            below = module._modules.get(step)
            if below is None:
                if hasattr(module, step):
                    return False
                below = Module()
                module.add_module(step, below)
            module = below
        module.add_module(name, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Remove a module.  Return False if there is none under that path."""
        way, _, name = target.rpartition(".")
        try:
            module = self.get_submodule(way)
        except MissingNameError:
            return False
        if not isinstance(module._modules.get(name), Module):
            return False
        delattr(module, name)
        return True

    def delete_all_unused_submodules(self) -> None:
        """Remove the modules that no node names."""
        used: set[str] = set()
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                steps = node.target.split(".")
                used.update(".".join(steps[: k + 1]) for k in range(len(steps)))
                if node.op == "call_module":
                    inner = self.get_submodule(node.target).named_modules(prefix=node.target)
                    used.update(path for path, _ in inner)
        for path, _ in list(self.named_modules()):
            if path and path not in used:
                self.delete_submodule(path)

    # --- copies

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        bare = Module()
        own = {k: v for k, v in self.__dict__.items() if k not in ("_graph", "_code", "_file")}
        bare.__dict__.update(copy.deepcopy(own, memo))
        return GraphModule(bare, copy.deepcopy(self.graph), type(self).__name__)

    def __copy__(self) -> GraphModule:
        return GraphModule(self, copy.deepcopy(self.graph), type(self).__name__)

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "a GraphModule is not pickled; save its state_dict, and trace the model again"
        )


def _attribute_at(root: Any, path: str) -> Any:
    if isinstance(root, Mapping):
        steps = path.split(".")
        for count in range(len(steps), 0, -1):
            if (known := ".".join(steps[:count])) in root:
                return functools.reduce(getattr, steps[count:], root[known])
        raise MissingNameError(f"fx.GraphModule: a node names {path!r}, which root does not have")
    for name in path.split("."):
        if not hasattr(root, name):
            raise MissingNameError(
                f"fx.GraphModule: a node names {path!r}, and {type(root).__name__} has no {name!r}"
            )
        root = getattr(root, name)
    return root


__all__ = own_names(globals())
