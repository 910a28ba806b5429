"""Capturing one call for its LogicalGraph alone: nothing is compiled, no pass runs, no kernel runs.

For those who read what a model computes (`flow.onnx`, `flow.fx`).  The call is captured without
gradients, in the order of the code, as `nn.Graph` captures it; its inputs are contiguous.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.graph.capture.capture import capturing
from flowvm.graph.capture.trees import flatten, unflatten
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, Operand
from flowvm.nn.graph.function import compile
from flowvm.nn.graph.precision import precisely
from flowvm.nn.graph.watching import watching


class Traced(NamedTuple):
    """What a call computes.

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


def traced(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], asker: str) -> Traced:
    """What `model` (a module, a function or an nn.Graph) computes of these examples.

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
    made: list[Tensor] = []
    whole: dict[Buffer, Operand] = {}
    with no_grad(), capturing(graph.name) as capture, watching(capture, paths, around):
        for name, tensor in graph._named_tensors():
            capture.name_variable(tensor, name)
            place = capture.buffers.place(tensor)
            whole.setdefault(place.buffer, place)
        names = _names(model, args, kwargs)
        metas = [t._meta.dense() for t in leaves]
        inputs = [capture.placeholder(m, n) for m, n in zip(metas, names, strict=True)]
        given, named = unflatten(arguments, iter(inputs))
        built = precisely(graph.config.amp_dtype, None, graph.build, given, named)
        results = flatten(built, made)
        for tensor in made:
            capture.output(tensor)
    for label, tensor, *_ in around.modules.tensors.values():
        capture.name_reached(tensor, label)
    return Traced(capture.graph, arguments, names, results, whole, capture.draws)


def _names(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """A name for each tensor of a call: its parameter's, with a number where one holds several."""
    found: list[str] = []
    names = parameter_names(model, len(args))
    for name, value in (*zip(names, args, strict=True), *kwargs.items()):
        leaves: list[Tensor] = []
        flatten(value, leaves)
        alone = isinstance(value, Tensor)
        found += [name if alone else f"{name}_{k}" for k in range(len(leaves))]
    return [n if found.count(n) == 1 else f"{n}_{k}" for k, n in enumerate(found)]


def parameter_names(model: Any, count: int) -> list[str]:
    """The names of the first `count` positional parameters."""
    function: Callable[..., Any] = getattr(model, "forward", None) or (
        model.build if hasattr(model, "build") else model
    )
    function = getattr(model, "function", function)
    try:
        kinds = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say
        kinds = ()  # type: ignore[assignment]
    names = [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (names + [f"input_{k}" for k in range(len(names), count)])[:count]
