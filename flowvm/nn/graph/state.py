"""The state of a graph: its modules', by the names of its attributes as OneFlow has them, then what
its optimizers, schedules and gradient scaler keep.

    {"model": {"fc.weight": ...}, "optimizers": [...], "lr_schedulers": [...], "grad_scaler": {...}}

It is the state of the training, not of the compiled graph: it is there before the first call and
does not depend on how the graph is compiled.  `flow.save` and `flow.load` take it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.nn.graph.build import GraphBuild
from flowvm.nn.module import Module

OWN = ("optimizers", "lr_schedulers", "grad_scaler")


def graph_state(graph: GraphBuild) -> dict[str, Any]:
    """Return the state that `load_graph_state` takes.  ArgumentError if names of modules are
    taken.
    """
    state: dict[str, Any] = {}
    for name, keeper in _keepers(graph).items():
        state[name] = keeper.state_dict()
    optimizers = graph._optimizers
    if optimizers:
        state["optimizers"] = [optimizer.state_dict() for optimizer, _ in optimizers]
    if any(schedule is not None for _, schedule in optimizers):
        state["lr_schedulers"] = [None if s is None else s.state_dict() for _, s in optimizers]
    if graph._scaler is not None:
        state["grad_scaler"] = graph._scaler.state_dict()
    return state


def load_graph_state(graph: GraphBuild, state: Mapping[str, Any], strict: bool = True) -> None:
    """Take over what `graph_state` gave, of a graph that is built alike.

    Parameters keep their memory, so Plans stay; optimizers get state of their own, so a graph that
    trains is captured again.  Without `strict`, what one of the two lacks stays as it is.
    ArgumentTypeError unless it is a dict; ArgumentError for other names or another number of
    optimizers, before anything is changed; what a module or an optimizer raises about its part.
    """
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(f"a graph's state is a dict, not {type(state).__name__}")
    loads = {}
    for name, keeper in _keepers(graph).items():
        loads[name] = _loader(keeper, strict)
    optimizers = [optimizer for optimizer, _ in graph._optimizers]
    schedules = [schedule for _, schedule in graph._optimizers]
    if optimizers:
        loads["optimizers"] = _each(graph.name, "optimizers", optimizers, state)
    if any(schedule is not None for schedule in schedules):
        loads["lr_schedulers"] = _each(graph.name, "lr_schedulers", schedules, state)
    if graph._scaler is not None:
        loads["grad_scaler"] = graph._scaler.load_state_dict
    missing, unexpected = sorted(set(loads) - set(state)), sorted(set(state) - set(loads))
    if strict and (missing or unexpected):
        raise ArgumentError(
            f"{graph.name}: the state dict lacks {missing} and has {unexpected} for which the "
            f"graph has nothing; strict=False takes what both have"
        )
    for name, load in loads.items():
        if name in state:
            load(state[name])


def _keepers(graph: GraphBuild) -> dict[str, Any]:
    """Modules and graphs among the attributes, by name."""
    parts = {n: v for n, v in graph.named_attributes() if isinstance(v, (Module, GraphBuild))}
    reserved = [name for name in OWN if name in parts]
    if reserved:
        raise ArgumentError(
            f"{graph.name}: the state dict of a graph needs the names {reserved} itself"
        )
    return parts


def _loader(keeper: Any, strict: bool) -> Callable[[Any], Any]:
    return lambda value: keeper.load_state_dict(value, strict=strict)


def _each(
    graph: str, name: str, keepers: list[Any], state: Mapping[str, Any]
) -> Callable[[Any], None]:
    entry = state.get(name)
    if entry is not None and len(entry) != len(keepers):
        raise ArgumentError(
            f"{graph}: the state dict has {len(entry)} {name}, and the graph has {len(keepers)}"
        )

    def load(values: Any) -> None:
        for keeper, value in zip(keepers, values, strict=True):
            if keeper is not None and value is not None:
                keeper.load_state_dict(value)

    return load
