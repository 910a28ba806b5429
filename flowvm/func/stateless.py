"""Modules as functions of their parameters and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.ops.shapes.join import stack


def functional_call(
    module: Any,
    parameter_and_buffer_dicts: Any,
    args: object = None,
    kwargs: dict[str, object] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call `module(*args, **kwargs)` with other tensors in the places of its parameters and
    buffers.

    parameter_and_buffer_dicts   tensors by the names of `named_parameters` and `named_buffers`, or
                                 several dicts of them
    args          the arguments, a tuple or one of them
    tie_weights   a tensor goes to every name that its parameter has
    strict        every parameter and buffer is given, and no other name

    The module is unchanged afterwards.  A change in place of a buffer changes the tensor given for
    it.

    >>> layer = nn.Linear(2, 1)
    >>> others = {"weight": flow.ones(1, 2), "bias": flow.zeros(1)}
    >>> flow.func.functional_call(layer, others, (flow.tensor([[3.0, 4.0]]),))
    tensor([[7.]])
    """
    values: dict[str, object] = {}
    several = isinstance(parameter_and_buffer_dicts, (tuple, list))
    for table in parameter_and_buffer_dicts if several else (parameter_and_buffer_dicts,):
        if values.keys() & table.keys():
            raise ArgumentError(
                f"functional_call: {sorted(values.keys() & table.keys())} are given twice"
            )
        values |= table
    places = _places(module)
    if strict:
        unknown, absent = values.keys() - places.keys(), places.keys() - values.keys()
        if unknown or absent:
            raise ArgumentError(
                f"functional_call: unexpected {sorted(unknown)}, missing {sorted(absent)}"
            )
    replacements = {name: t for name, t in values.items() if name in places}
    if tie_weights:
        replacements = _tied(places, replacements)
    call_args = () if args is None else args if isinstance(args, tuple) else (args,)
    before = {name: places[name] for name in replacements}
    try:
        for name, value in replacements.items():
            owner, table, own, _ = places[name]
            if not isinstance(value, Tensor):
                raise ArgumentTypeError(
                    f"functional_call: {name} is a Tensor, got {type(value).__name__}"
                )
            owner._put(table, own, value)
        return module(*call_args, **(kwargs or {}))
    finally:
        for owner, table, own, value in before.values():
            owner._put(table, own, value)


def _places(module: Any) -> dict[str, tuple[Any, str, str, Any]]:
    """Return the place of each parameter and buffer by its whole name: owner, table, name and
    value.
    """
    places = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for table in ("_parameters", "_buffers"):
            for own, value in getattr(owner, table).items():
                if value is not None:
                    places[f"{prefix}.{own}" if prefix else own] = (owner, table, own, value)
    return places


def _tied(places: dict[str, Any], replacements: dict[str, object]) -> dict[str, object]:
    by_value: dict[int, object] = {}
    for name, value in replacements.items():
        own = id(places[name][3])
        if by_value.setdefault(own, value) is not value:
            raise ArgumentError(f"functional_call: {name} is tied to another that is given, too")
    return {
        name: by_value[id(place[3])] for name, place in places.items() if id(place[3]) in by_value
    }


def stack_module_state(models: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the buffers of modules of one class, each stacked in a new first
    dimension, for `functional_call` inside `vmap`.  Parameters are leaves that require grad.

    >>> params, buffers = flow.func.stack_module_state([nn.Linear(2, 1), nn.Linear(2, 1)])
    >>> params["weight"].shape
    flow.Size([2, 1, 2])
    """
    if not models:
        raise ArgumentError("stack_module_state: at least one model is needed")
    if any(type(m) is not type(models[0]) for m in models):
        raise ArgumentTypeError("stack_module_state: the models are of one class")
    if any(m.training is not models[0].training for m in models):
        raise ArgumentError("stack_module_state: the models are all in training, or none is")
    params, buffers = ([dict(getattr(m, kind)()) for m in models]
                       for kind in ("named_parameters", "named_buffers"))  # fmt: skip
    stacked: dict[str, object] = {}
    for name, first in params[0].items():
        if any(p[name].requires_grad is not first.requires_grad for p in params):
            raise ArgumentError(
                f"stack_module_state: the parameters {name} of all models have the same "
                f".requires_grad; set it before"
            )
        together: Tensor = stack([p[name].detach() for p in params])
        stacked[name] = together.requires_grad_(first.requires_grad)
    return stacked, {name: stack([b[name] for b in buffers]) for name in buffers[0]}
