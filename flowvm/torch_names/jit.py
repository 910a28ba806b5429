"""`flow.jit`: PyTorch's words for compiling programs, and their meaning here.

script(f)       f itself: eager code is the program, and nothing of Python is left out
trace(f, x)     flow.compile(f), called once with x: captured, and replayed from then on;
                Python that decides by values is looked at again where a capture depends on it
ignore, export, unused, script_if_tracing, interface, freeze, optimize_for_inference
                what they are given: there is nothing that they could leave out or change
fork, wait      the call itself: calls are asynchronous by themselves
save, load      a clear error: save a state_dict (flow.save), or a graph (Graph.save)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from flowvm.eager.modes import current_recorder
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing
from flowvm.nn.graph.function import compile
from flowvm.nn.graph.graph import Graph
from flowvm.nn.module import Module

__all__ = [
    "Attribute",
    "Final",
    "ScriptFunction",
    "ScriptModule",
    "annotate",
    "enable_onednn_fusion",
    "export",
    "fork",
    "freeze",
    "ignore",
    "interface",
    "is_scripting",
    "is_tracing",
    "isinstance",
    "load",
    "optimize_for_inference",
    "save",
    "script",
    "script_if_tracing",
    "trace",
    "trace_module",
    "unused",
    "wait",
]
__dir__ = listing(globals())

ScriptModule = Module
ScriptFunction = Graph


def script(obj: object, *args: object, **kwargs: object) -> Any:
    """Return the function, class or module itself: it runs as Python.

    >>> model = nn.Linear(2, 3)
    >>> flow.jit.script(model) is model
    True
    """
    return obj


def trace(
    func: Callable[..., Any] | None, example_inputs: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Return `flow.compile(func)`, called once with the example (a tensor, a tuple of arguments, or
    the keyword example_kwarg_inputs).  The checks of check_trace hold by construction: a replay's
    results are the eager ones, and a call of another kind is captured anew.

    >>> doubled = flow.jit.trace(lambda x: 2 * x, flow.ones(2))
    >>> doubled(flow.tensor([1.0, 3.0]))
    tensor([2., 6.])
    """
    graph = compile(func)
    named = kwargs.get("example_kwarg_inputs")
    if named is not None:
        graph(**named)
    elif example_inputs is not None:
        graph(*(example_inputs if type(example_inputs) in (tuple, list) else (example_inputs,)))
    return graph


def trace_module(mod: Module, inputs: dict[str, object], *args: object, **kwargs: object) -> Module:
    """The module with each method in `inputs` compiled and called once with its example.

    >>> model = flow.jit.trace_module(nn.Linear(2, 3), {"forward": flow.ones(4, 2)})
    >>> model(flow.ones(4, 2)).shape
    flow.Size([4, 3])
    """
    for name, example in inputs.items():
        graph = trace(mod if name == "forward" else getattr(mod, name), example)
        if name == "forward":
            return graph  # type: ignore[no-any-return]
        object.__setattr__(mod, name, graph)
    return mod


def _itself(drop: object = False, **kwargs: object) -> Callable[[object], object]:
    """Return a decorator, with or without arguments, that changes nothing."""
    return drop if callable(drop) else lambda function: function


def ignore(drop: object = False, **kwargs: object) -> Callable[[Any], Any]:
    """Return the function itself; the decorator may have arguments.

    >>> flow.jit.ignore(len) is len
    True
    """
    return _itself(drop)


def unused(fn: object) -> Any:
    """Return the function itself.

    >>> flow.jit.unused(len) is len
    True
    """
    return fn


def export(fn: object) -> Any:
    """Return the function itself.

    >>> flow.jit.export(len) is len
    True
    """
    return fn


def _overload(fn: object) -> object:
    return fn


_overload_method = _overload


def interface(obj: object) -> Any:
    """Return the class itself.

    >>> flow.jit.interface(int) is int
    True
    """
    return obj


def script_if_tracing(fn: object) -> Any:
    """Return the function itself.

    >>> flow.jit.script_if_tracing(len) is len
    True
    """
    return fn


def freeze(mod: object, *args: object, **kwargs: object) -> Any:
    """Return the module itself: a graph's constants are folded when it is captured.

    >>> model = nn.Linear(2, 3).eval()
    >>> flow.jit.freeze(model) is model
    True
    """
    return mod


def optimize_for_inference(mod: object, *args: object, **kwargs: object) -> Any:
    """Return the module itself: passes run when a graph is captured.

    >>> model = nn.Linear(2, 3).eval()
    >>> flow.jit.optimize_for_inference(model) is model
    True
    """
    return mod


def enable_onednn_fusion(enabled: bool) -> None:
    """Accept and ignore: graphs fuse by themselves.

    >>> flow.jit.enable_onednn_fusion(True)
    """


def is_scripting() -> bool:
    """Return False: no code is ever compiled from its text.

    >>> flow.jit.is_scripting()
    False
    """
    return False


def is_tracing() -> bool:
    """Return True if the running code is being captured.

    >>> flow.jit.is_tracing()
    False
    """
    return current_recorder() is not None


def annotate(the_type: object, the_value: object) -> Any:
    """Return the value.

    >>> flow.jit.annotate(list, [1, 2])
    [1, 2]
    """
    return the_value


def Attribute(value: object, type: object = None) -> Any:  # noqa: N802 - PyTorch's name
    """Return the value.

    >>> flow.jit.Attribute(3, int)
    3
    """
    return value


def isinstance(obj: object, target_type: object) -> bool:
    """Do as Python's isinstance, without the arguments of generic types.

    >>> flow.jit.isinstance([1, 2], list[int])
    True
    """
    kinds = target_type if type(target_type) is tuple else (target_type,)
    plain: tuple[Any | Any, ...] = tuple(getattr(kind, "__origin__", kind) for kind in kinds)
    return issubclass(type(obj), plain)


def fork(func: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Call the function and return its result; the computation is waited for when the result is
    read.

    >>> flow.jit.wait(flow.jit.fork(flow.add, flow.ones(2), 1))
    tensor([2., 2.])
    """
    return func(*args, **kwargs)


def wait(future: object) -> Any:
    """Return fork's result.

    >>> flow.jit.wait(flow.jit.fork(flow.add, flow.ones(2), 1))
    tensor([2., 2.])
    """
    return future


def save(m: object, f: object, *args: object, **kwargs: object) -> NoReturn:
    """Raise ArgumentError: there is no file of code.

    >>> try:
    ...     flow.jit.save(nn.Linear(2, 3), "model.pt")
    ... except flow.FlowError as error:
    ...     print(type(error).__name__)
    ArgumentError
    """
    raise ArgumentError(
        "flow.jit.save: there is no file of code here; save the weights (flow.save(m.state_dict(), "
        "path)), or a graph with all that it captured (Graph.save)"
    )


def load(f: object, *args: object, **kwargs: object) -> NoReturn:
    """Raise ArgumentError: TorchScript files hold code, which flowvm does not run.

    >>> try:
    ...     flow.jit.load("model.pt")
    ... except flow.FlowError as error:
    ...     print(type(error).__name__)
    ArgumentError
    """
    raise ArgumentError(
        "flow.jit.load: TorchScript files hold code, which flowvm does not run; save the "
        "state_dict with PyTorch, and read that with flow.load(path)"
    )


_script_if_tracing = script_if_tracing
