"""`flow.jit`: PyTorch's words for compiling programs, with what they mean here.

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

ScriptModule = Module
ScriptFunction = Graph


def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
    """The function, class or module itself: it runs as the Python that it is."""
    return obj


def trace(func: Any, example_inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`flow.compile(func)`, called once with the example (a tensor, or a tuple of arguments, or
    the keyword example_kwarg_inputs).  What check_trace and its tolerances ask is so by
    construction: a replay's results are the eager ones, and a call of another kind is captured
    anew.
    """
    graph = compile(func)
    named = kwargs.get("example_kwarg_inputs")
    if named is not None:
        graph(**named)
    elif example_inputs is not None:
        graph(*(example_inputs if type(example_inputs) in (tuple, list) else (example_inputs,)))
    return graph


def trace_module(mod: Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Module:
    """The module with each method in `inputs` compiled and called once with its example."""
    for name, example in inputs.items():
        graph = trace(mod if name == "forward" else getattr(mod, name), example)
        if name == "forward":
            return graph  # type: ignore[no-any-return]
        object.__setattr__(mod, name, graph)
    return mod


def _itself(drop: Any = False, **kwargs: Any) -> Any:
    """A decorator with or without arguments that changes nothing."""
    return drop if callable(drop) else lambda function: function


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """The function itself, with or without arguments of the decorator."""
    return _itself(drop)


def unused(fn: Any) -> Any:
    """The function itself."""
    return fn


def export(fn: Any) -> Any:
    """The function itself."""
    return fn


def interface(obj: Any) -> Any:
    """The class itself."""
    return obj


def script_if_tracing(fn: Any) -> Any:
    """The function itself."""
    return fn


def freeze(mod: Any, *args: Any, **kwargs: Any) -> Any:
    """The module itself: a graph's constants are folded when it is captured."""
    return mod


def optimize_for_inference(mod: Any, *args: Any, **kwargs: Any) -> Any:
    """The module itself: passes run when a graph is captured."""
    return mod


def enable_onednn_fusion(enabled: bool) -> None:
    """Taken: graphs fuse by themselves."""


def is_scripting() -> bool:
    """Whether code is being compiled from its text: never."""
    return False


def is_tracing() -> bool:
    """Whether what runs now is being captured."""
    return current_recorder() is not None


def annotate(the_type: Any, the_value: Any) -> Any:
    """The value."""
    return the_value


def Attribute(value: Any, type: Any = None) -> Any:  # noqa: N802 - PyTorch's name
    """The value."""
    return value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Python's, with the arguments of generic types left out."""
    kinds = target_type if type(target_type) is tuple else (target_type,)
    plain: Any = tuple(getattr(kind, "__origin__", kind) for kind in kinds)
    return issubclass(type(obj), plain)


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The call's result: what it computes is not waited for before it is read."""
    return func(*args, **kwargs)


def wait(future: Any) -> Any:
    """What fork gave."""
    return future


def save(m: Any, f: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """ArgumentError: there is no file of code."""
    raise ArgumentError(
        "flow.jit.save: there is no file of code here; save the weights (flow.save(m.state_dict(), "
        "path)), or a graph with all that it captured (Graph.save)"
    )


def load(f: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """ArgumentError: TorchScript files hold code, which flowvm does not run."""
    raise ArgumentError(
        "flow.jit.load: TorchScript files hold code, which flowvm does not run; save the "
        "state_dict with PyTorch, and read that with flow.load(path)"
    )
