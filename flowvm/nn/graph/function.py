"""Graphs of plain functions, of methods and of modules: `flow.compile`, `nn.Graph.trace`.

A function has no attributes to find modules under, so they go by the names of the variables that it
closes over; a module that is compiled, and the instance of a method, by no name at all: their
parameters are "fc.weight", as the module's own `named_parameters` has them.

`traced` captures one call for its LogicalGraph alone: nothing is compiled, no pass runs, no kernel
runs.  It is for those who read what a model computes (`flow.onnx`, `flow.fx`).  The call is
captured without gradients, in the order of the code, as `nn.Graph` captures it; its inputs are
contiguous.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from operator import setitem
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from flowvm.errors import ArgumentError, ArgumentTypeError, CaptureError
from flowvm.guards.exchange import exchange
from flowvm.nn.graph.environment import Environment
from flowvm.nn.graph.graph import Graph
from flowvm.nn.module import Module
from flowvm.vm.callers.tracebacks import border

if TYPE_CHECKING:
    from flowvm.optim import Optimizer
import inspect
from collections.abc import Sequence
from typing import NamedTuple

from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.graph.capture.capture import capturing
from flowvm.graph.capture.trees import flatten, unflatten
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, Operand
from flowvm.nn.graph.environment import capture_environment
from flowvm.nn.graph.steps import precisely

# --- graphs of functions ----------------------------------------------------------------------


class _FunctionGraph(Graph):
    """A graph of one function; found on an instance it is a graph of that instance's method."""

    has_copies = False
    reruns = True
    apart: ClassVar[list[bool]] = [False]  # a function writes where it says

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        name = getattr(function, "__qualname__", None) or type(function).__name__
        self.name = name.rpartition("<locals>.")[2]
        self.function = function

    def build(self, *args: object, **kwargs: object) -> Any:
        return self.function(*args, **kwargs)

    def _adopt(self, optimizer: Optimizer) -> None:
        """Nobody told the graph of optimizers: one that the function steps is met in a capture,
        which is then made again.
        """
        self._optimizers.append((optimizer, None))
        self._adopted.add(id(optimizer))
        raise CaptureError(f"{self.name} steps an optimizer that the capture did not know")

    def _surroundings(self) -> Environment:
        around = super()._surroundings()
        if isinstance(self.function, functools.partial):
            around.reads.read_partial(self.function)
        return around

    def __get__(self, instance: object, owner: object = None) -> Graph:
        if instance is None:
            return self
        graphs = instance.__dict__.setdefault("__graphs__", _Graphs())
        graph: _MethodGraph | None = graphs.get(self.function)
        if graph is None or graph.instance() is not instance:  # of what it was copied from
            bound = _MethodGraph(self.function, instance)
            now = map(graphs.get, (self.function,))
            exchange(now, (graph,), ((setitem, (graphs, self.function, bound)),))
            graph = graphs[self.function]
        return graph

    def named_attributes(self) -> Iterator[tuple[str, object]]:
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

    def __deepcopy__(self, memo: object) -> _Graphs:
        return _Graphs()

    def __reduce__(self) -> tuple[type[_Graphs], tuple[()]]:
        return _Graphs, ()


class _MethodGraph(_FunctionGraph):
    """A graph of a method, on one instance."""

    def __init__(self, function: Callable[..., object], instance: object) -> None:
        super().__init__(function)
        self.instance = weakref.ref(instance)

    def build(self, *args: object, **kwargs: object) -> Any:
        return self.function(self.instance(), *args, **kwargs)

    def named_attributes(self) -> Iterator[tuple[str, object]]:
        yield from super().named_attributes()
        yield "", self.instance()


class _ModuleGraph(Graph):
    """A graph of a module's call, which has the module's attributes besides its own."""

    differentiable = reruns = True
    apart: ClassVar[list[bool]] = [False]

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.name, self.module = type(module).__name__, module

    def build(self, *args: object, **kwargs: object) -> Any:
        return self.module(*args, **kwargs)

    def named_attributes(self) -> Iterator[tuple[str, object]]:
        yield "", self.module

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
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


_MODES = (
    None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs",
    "lite",
)  # fmt: skip


# public: flow (late, unlisted)
def compile(
    model: Callable[..., object] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str = "inductor",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
) -> Any:
    """A graph of a plain function, a method or a module, or a decorator: `@flow.compile`.

    Called with tensors it captures what the function does, once for each kind of call, and replays
    it.  Modules that it calls are watched; tensors that it reaches are variables; optimizers may
    step in it, and gradients end in `.grad` as eager code leaves them.  A compiled
    module has its attributes too (`parameters()`, `eval()`, `state_dict()`); a method compiled in
    its class is a graph for each instance.  ArgumentTypeError for what cannot be called.

    Where a module's results have gradients that code outside may ask for (grad mode is on,
    parameters require grad), its calls are made by eager code, so that `backward()` of a loss
    works: compile the function of a whole training step to have that replayed, and evaluate under
    `flow.no_grad()`.  Backward through a result of a compiled function is an AutogradError.

    A function whose arguments are functions of the moment (`flex_attention`) is left as it is: a
    graph of it would serve one call, and captures around it take it in.

    disable     True: `model` as it is
    fullgraph, dynamic, backend, options, mode   PyTorch's, taken and without meaning: there is one
                way to compile, for the shapes of each call.  ArgumentError for a mode that PyTorch
                does not have, ArgumentTypeError for a backend that is a function.

    >>> double = flow.compile(lambda x: x + x)
    >>> double(flow.tensor([1.0, 2.0]))
    tensor([2., 4.])
    """
    if mode not in _MODES:
        raise ArgumentError(f"compile: mode is one of {', '.join(map(str, _MODES))}, got {mode!r}")
    if not isinstance(backend, str):
        raise ArgumentTypeError(
            f"compile: backend is the name of a backend, a str, got {backend!r}; flowvm hands no "
            f"graphs to functions"
        )
    if model is None:
        return functools.partial(compile, mode=mode, disable=disable)
    function = model
    if disable or isinstance(function, Graph) or getattr(function, "takes_functions", False):
        return function
    if isinstance(function, Module):
        return _ModuleGraph(function)
    if not callable(function):
        raise ArgumentTypeError(f"compile takes a function or a module, not {function!r}")
    graph = _FunctionGraph(function)
    if isinstance(function, (FunctionType, MethodType)):
        functools.update_wrapper(graph, function, updated=())
    return graph


Graph.trace = staticmethod(compile)


# --- one call for its LogicalGraph ------------------------------------------------------------


class Traced(NamedTuple):
    """The captured computation of one call.

    arguments   the structure of (args, kwargs), its tensors being the graph's inputs
    names       of the inputs: those of the parameters they were given for
    results     the structure of what the call gives, its tensors being the graph's outputs
    whole       where the model's own parameters and buffers lie, as the model has them
    draws       of random ops: a generator, and the list that holds what it drew
    """

    graph: LogicalGraph
    arguments: Any
    names: list[str]
    results: Any
    whole: dict[Buffer, Operand]
    draws: list[tuple[Any, list[Any]]]


def traced(model: object, args: Sequence[Any], kwargs: Mapping[str, Any], asker: str) -> Traced:
    """Capture the computation of `model` (a module, a function or an nn.Graph) on these examples.

    ArgumentTypeError for what is none of these, ArgumentError for a graph that trains, and
    CaptureError where code reads a value.  `asker` is who says so.
    """
    if not callable(model):
        raise ArgumentTypeError(
            f"{asker} takes a module, a function or an nn.Graph, not a {type(model).__name__}"
        )
    graph = compile(model)
    if graph._optimizers:
        raise ArgumentError(
            f"{asker}: {graph.name} steps an optimizer; give the module that it trains instead"
        )
    leaves: list[Tensor] = []
    arguments = flatten((tuple(args), dict(kwargs)), leaves)
    paths: dict[int, str] = {}
    for path, module in graph._modules():
        paths.setdefault(id(module), path)
    around = graph._surroundings()
    draws: list[Tensor] = []
    whole: dict[Buffer, Operand] = {}
    with no_grad(), capturing(graph.name) as capture, capture_environment(capture, paths, around):
        for name, tensor in graph._named_tensors():
            capture.name_variable(tensor, name)
            place = capture.buffers.place(tensor)
            whole.setdefault(place.buffer, place)
        names = _names(model, args, kwargs)
        metas = [t._meta.dense() for t in leaves]
        inputs = [capture.placeholder(m, n) for m, n in zip(metas, names, strict=True)]
        positional, named = unflatten(arguments, iter(inputs))
        built = precisely(graph.config.amp_dtype, None, graph.build, positional, named)
        results = flatten(built, draws)
        for tensor in draws:
            capture.output(tensor)
    for label, tensor in around.tensors():
        capture.name_reached(tensor, label)
    return Traced(capture.graph, arguments, names, results, whole, capture.draws)


def _names(model: object, args: Sequence[object], kwargs: Mapping[str, object]) -> list[str]:
    """A name for each tensor of a call: its parameter's, with a number where one holds several."""
    path_names: list[str] = []
    names = parameter_names(model, len(args))
    for name, value in (*zip(names, args, strict=True), *kwargs.items()):
        leaves: list[Tensor] = []
        flatten(value, leaves)
        alone = isinstance(value, Tensor)
        path_names += [name if alone else f"{name}_{k}" for k in range(len(leaves))]
    return [n if path_names.count(n) == 1 else f"{n}_{k}" for k, n in enumerate(path_names)]


def parameter_names(model: Any, count: int) -> list[str]:
    """The names of the first `count` positional parameters."""
    function: Callable[..., object] = getattr(model, "forward", None) or (
        model.build if hasattr(model, "build") else model
    )
    function = getattr(model, "function", function)
    try:
        kinds = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say
        kinds = ()  # type: ignore[assignment]
    names = [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (names + [f"input_{k}" for k in range(len(names), count)])[:count]
