"""Graphs of plain functions, of methods and of modules: `flow.compile`, `nn.Graph.trace`.

A function has no attributes to find modules under, so they go by the names of the variables that it
closes over; a module that is compiled, and the instance of a method, by no name at all: their
parameters are "fc.weight", as the module's own `named_parameters` has them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from flowvm.errors import ArgumentTypeError, CaptureError
from flowvm.nn.graph.graph import Graph
from flowvm.nn.module import Module
from flowvm.vm.callers.tracebacks import border

if TYPE_CHECKING:
    from flowvm.optim import Optimizer


class _FunctionGraph(Graph):
    """A graph of one function; found on an instance it is a graph of that instance's method."""

    has_copies = False

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        name = getattr(function, "__qualname__", None) or type(function).__name__
        self.name = name.rpartition("<locals>.")[2]
        self.function = function

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def _adopt(self, optimizer: Optimizer) -> None:
        """Nobody told the graph of optimizers: one that the function steps is met in a capture,
        which is then made again.
        """
        self._optimizers.append((optimizer, None))
        self._adopted.add(id(optimizer))
        raise CaptureError(f"{self.name} steps an optimizer that the capture did not know")

    def __get__(self, instance: Any, owner: Any = None) -> Graph:
        if instance is None:
            return self
        graphs = instance.__dict__.setdefault("__graphs__", _Graphs())
        graph: _MethodGraph | None = graphs.get(self.function)
        if graph is None or graph.instance() is not instance:  # of what it was copied from
            graph = graphs[self.function] = _MethodGraph(self.function, instance)
        return graph

    def named_attributes(self) -> Iterator[tuple[str, Any]]:
        function = self.function
        code = getattr(function, "__code__", None)
        cells = getattr(function, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
            try:
                yield name, cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
        if isinstance(function, MethodType) and isinstance(function.__self__, Module):
            yield "", function.__self__


class _Graphs(dict[Any, Any]):
    """The graphs of an instance's methods, by function, kept by the instance; a copy has none."""

    def __deepcopy__(self, memo: Any) -> _Graphs:
        return _Graphs()

    def __reduce__(self) -> Any:
        return _Graphs, ()


class _MethodGraph(_FunctionGraph):
    """A graph of a method, on one instance."""

    def __init__(self, function: Callable[..., Any], instance: Any) -> None:
        super().__init__(function)
        self.instance = weakref.ref(instance)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.instance(), *args, **kwargs)

    def named_attributes(self) -> Iterator[tuple[str, Any]]:
        yield from super().named_attributes()
        yield "", self.instance()


class _ModuleGraph(Graph):
    """A graph of a module's call, which has the module's attributes besides its own."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.name, self.module = type(module).__name__, module

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def named_attributes(self) -> Iterator[tuple[str, Any]]:
        yield "", self.module

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        return self.module.load_state_dict(*args, **kwargs)

    @border
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "module" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.module, name)


def compile(function: Callable[..., Any]) -> Graph:
    """A graph of a plain function, a method or a module, or a decorator: `@flow.compile`.

    Called with tensors it captures what the function does, once for each kind of call, and replays
    it.  Modules that it calls are watched; tensors that it reaches are variables; optimizers may
    step in it, and gradients end in `.grad` as eager code leaves them.  A compiled
    module has its attributes too (`parameters()`, `eval()`, `state_dict()`); a method compiled in
    its class is a graph for each instance.  ArgumentTypeError for what cannot be called.
    """
    if isinstance(function, Module):
        return _ModuleGraph(function)
    if isinstance(function, Graph):
        return function
    if not callable(function):
        raise ArgumentTypeError(f"compile takes a function or a module, not {function!r}")
    graph = _FunctionGraph(function)
    if isinstance(function, (FunctionType, MethodType)):
        functools.update_wrapper(graph, function, updated=())
    return graph


Graph.trace = staticmethod(compile)
