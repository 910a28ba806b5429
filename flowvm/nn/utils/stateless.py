"""A module called with other parameters and buffers than its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.guards.regions import reverting
from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module

__dir__ = listing(globals())


def _tied(module: Module) -> dict[int, list[str]]:
    """The paths of each tensor."""
    paths: dict[int, list[str]] = {}
    for named in (module.named_parameters, module.named_buffers):
        for path, tensor in named(remove_duplicate=False):
            paths.setdefault(id(tensor), []).append(path)
    return paths


def _place(module: Module, path: str) -> tuple[Module, str]:
    below, _, name = path.rpartition(".")
    return module.get_submodule(below), name


def _replaced(module: Module, tensors: Mapping[str, Tensor], tie: bool) -> reverting:
    """Inside, `module` has these tensors; what it has put there itself stays in `tensors`' place
    only as long.
    """
    replaced = dict(tensors)
    if tie:
        for paths in _tied(module).values():
            shared = [path for path in paths if path in tensors]
            if shared:
                if any(tensors[path] is not tensors[shared[0]] for path in shared):
                    raise ArgumentError(
                        f"functional_call: {shared} are one tensor, and given are two"
                    )
                replaced |= dict.fromkeys(paths, tensors[shared[0]])
    own = []  # the dict that it is in, its name there
    put = []
    for path, tensor in replaced.items():
        owner, name = _place(module, path)
        table = owner._table_of(name)
        if table not in ("_parameters", "_buffers"):
            raise ArgumentError(
                f"functional_call: {type(module).__name__} has no parameter or buffer {path!r}"
            )
        for held in (owner.__dict__[table], owner.__dict__):
            if name not in held:  # a table that the program has put there: no attribute
                continue
            own.append((held, name, owner.__dict__[table][name]))
            put.append((held, name, tensor))

    def write(places: list[tuple[dict[str, Any], str, Any]]) -> None:
        for held, name, tensor in places:
            held[name] = tensor

    return reverting(partial(write, own), partial(write, put))


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor],
    args: object = None,
    kwargs: Mapping[str, object] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """module(*args, **kwargs) with these tensors, by path, in place of its own, through which
    gradients flow to them.

    tie_weights  a tensor that stands under several paths is replaced under all of them
    strict       there is a tensor for each path, and none besides
    """
    if strict:
        own = [path for paths in _tied(module).values() for path in paths]
        missing = sorted(set(own) - set(parameters_and_buffers))
        strange = sorted(set(parameters_and_buffers) - set(own))
        if missing or strange:
            raise ArgumentError(f"functional_call: missing are {missing}, unexpected {strange}")
    arguments = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, parameters_and_buffers, tie_weights):
        return module(*arguments, **(kwargs or {}))


__all__ = own_names(globals())
