"""State dicts of models and optimizers by the names of parameters, whatever wraps the model: what
one number of ranks saves so, any other loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flowvm.autograd.modes import no_grad
from flowvm.distributed.checkpoint.whole_tensors import from_first, held_as
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.files.shards import whole_of
from flowvm.guards.regions import Mode
from flowvm.loading.listing import listing
from flowvm.nn.module import Module
from flowvm.nn.parallel.distributed import DistributedDataParallel
from flowvm.nn.state import IncompatibleKeys
from flowvm.ops.shapes.fill import zeros_like
from flowvm.optim.optimizer import Optimizer
from flowvm.ranks.world import rank

__all__ = [
    "StateDictOptions",
    "get_model_state_dict",
    "get_optimizer_state_dict",
    "get_state_dict",
    "set_model_state_dict",
    "set_optimizer_state_dict",
    "set_state_dict",
]
__dir__ = listing(globals())

# what wrappers put between names: see `FullyShardedDataParallel` and checkpointing wrappers
# inside, a `FullyShardedDataParallel` gives and takes global tensors, whatever it is set to
cut_states: Mode[bool] = Mode(False)
WRAPPED = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


@dataclass
class StateDictOptions:
    """Options of state dicts, for getting and setting them.

    full_state_dict               whole local tensors, and no global ones
    cpu_offload                   on the CPU; with full_state_dict, on the first rank alone, and the
                                  others get an empty dict
    ignore_frozen_params          without parameters that require no gradient
    strict                        taking one: names that are missing, or too many, are an error
    broadcast_from_rank0          taking a full one: the first rank's counts, the others may have {}
    flatten_optimizer_state_dict  an optimizer's as one dict: "state.<name>.exp_avg",
                                  "param_groups.<name>.lr"
    keep_submodule_prefixes       False: without the name of the one submodule that was asked for

    >>> from flowvm.distributed.checkpoint.state_dict import StateDictOptions
    >>> StateDictOptions(full_state_dict=True).strict
    True
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False
    dsd_fqn_modifiers: str = "_fqn_modifiers"

    def __post_init__(self) -> None:
        if self.broadcast_from_rank0 and not self.full_state_dict:
            raise ArgumentError("full_state_dict must be True when broadcast_from_rank0 is True")


def plain_name(model: Module, name: str) -> str:
    """The name of a parameter without what wrappers add to it."""
    for wrapped in WRAPPED:
        name = name.replace(wrapped, "")
    inner: object = model
    parts = []
    for part in name.split("."):
        if not (isinstance(inner, DistributedDataParallel) and part == "module"):
            parts.append(part)
        inner = getattr(inner, part, None)
    return ".".join(parts)


def _named(model: Module, options: StateDictOptions) -> dict[str, Any]:
    """The state dict of a model by plain names, its tensors as the model has them."""
    with cut_states.to(True):
        state = Module.state_dict(model)
    frozen = {
        plain_name(model, n)
        for n, p in model.named_parameters(remove_duplicate=False)
        if not p.requires_grad
    }
    left_out = frozen if options.ignore_frozen_params else set()
    named = {plain_name(model, n): v for n, v in state.items()}
    return {n: v for n, v in named.items() if n not in left_out}


def _state_of_rank(state: dict[str, object], options: StateDictOptions) -> dict[str, object]:
    """Return the state dict that a rank gets: whole tensors or parts, on the CPU if asked for."""
    if options.full_state_dict:
        state = _changed(state, whole_of)
        if options.cpu_offload and rank():
            return {}
    return _changed(state, lambda t: t.cpu()) if options.cpu_offload else state


def _changed(value: object, change: Callable[[Tensor], Tensor] | Callable[[Any], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: _changed(v, change) for k, v in value.items()}
    if isinstance(value, list):
        return [_changed(v, change) for v in value]
    return value


def _optimizers(optimizers: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    listed = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    for one in listed:
        if not isinstance(one, Optimizer):
            raise ArgumentTypeError(f"an Optimizer is needed, got {type(one).__name__}")
    return listed


def get_model_state_dict(
    model: Module, *, submodules: set[Module] | None = None, options: StateDictOptions | None = None
) -> dict[str, Any]:
    """Return a model's state dict, by names without `DistributedDataParallel` and other wrappers.
    A sharded model gives global tensors.

    submodules   of these alone

    >>> from flowvm.distributed.checkpoint.state_dict import get_model_state_dict
    >>> list(get_model_state_dict(nn.parallel.DistributedDataParallel(nn.Linear(1, 1))))
    ['weight', 'bias']
    """
    how = StateDictOptions() if options is None else options
    state = _named(model, how)
    if submodules is not None:
        state = dict(_below(model, state, submodules, how.keep_submodule_prefixes))
    return _state_of_rank(state, how)


def _below(
    model: Module, state: Mapping[str, object], submodules: set[Module], keep: bool
) -> Iterator[tuple[str, object]]:
    for name, module in model.named_modules():
        if module in submodules:
            prefix = f"{plain_name(model, name)}." if name else ""
            for key, value in state.items():
                if key.startswith(prefix):
                    yield key if keep else key.removeprefix(prefix), value


def get_optimizer_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: set[Module] | None = None,
    options: StateDictOptions | None = None,
) -> dict[str, Any]:
    """Return the state of a model's optimizers, by parameters' names instead of numbers.

    An optimizer that has not stepped yet gets the state that a first step makes, without a change
    of its parameters.  So there is a state to load into.

    >>> from flowvm.distributed.checkpoint.state_dict import get_optimizer_state_dict
    >>> model = nn.Linear(1, 1)
    >>> state = get_optimizer_state_dict(model, flow.optim.Adam(model.parameters()))
    >>> list(state["state"]), state["param_groups"][0]["params"]
    (['weight', 'bias'], ['weight', 'bias'])
    """
    how = StateDictOptions() if options is None else options
    names = _names(model, how, submodules)
    state_dict: dict[str, Any] = {"state": {}, "param_groups": []}
    for optimizer in _optimizers(optimizers):
        _begin(optimizer)
        for p, entry in optimizer.state.items():
            if isinstance(p, Tensor) and id(p) in names:
                state_dict["state"][names[id(p)]] = dict(entry)
        for group in optimizer.param_groups:
            own = [names[id(p)] for p in group["params"] if id(p) in names]
            state_dict["param_groups"].append({**group, "params": own})
    if how.flatten_optimizer_state_dict:
        state_dict = _flat(state_dict)
    return _state_of_rank(state_dict, how)


def _names(
    model: Module, how: StateDictOptions, submodules: set[Module] | None = None
) -> dict[int, str]:
    """Return the plain name of each parameter by its id, for all modules or for `submodules`."""
    among = None
    if submodules is not None:
        among = {id(p) for module in submodules for p in module.parameters()}
    return {
        id(p): plain_name(model, name)
        for name, p in model.named_parameters()
        if (p.requires_grad or not how.ignore_frozen_params) and (among is None or id(p) in among)
    }


def _flat(state: dict[str, Any]) -> dict[str, Any]:
    entries = {}
    for name, entry in state["state"].items():
        entries.update({f"state.{name}.{key}": value for key, value in entry.items()})
    for group in state["param_groups"]:
        for name in group["params"]:
            for key, value in group.items():
                if key != "params":
                    entries[f"param_groups.{name}.{key}"] = value
    return entries


def _begin(optimizer: Optimizer) -> None:
    """Make the state that an optimizer's first step would make."""
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if optimizer.state or any(p.grad is not None for p in params):
        return
    rates = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
    with no_grad():
        values = [p.detach().clone() for p in params]
        for p in params:
            p.grad = zeros_like(p)
        for group, lr in rates:
            group["lr"] = zeros_like(lr) if isinstance(lr, Tensor) else 0.0
        optimizer.step()
        for group, lr in rates:
            group["lr"] = lr
        for p, value in zip(params, values, strict=True):
            p.copy_(value)
            p.grad = None


def get_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: set[Module] | None = None,
    options: StateDictOptions | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (`get_model_state_dict`, `get_optimizer_state_dict`).

    >>> from flowvm.distributed.checkpoint.state_dict import get_state_dict
    >>> model = nn.Linear(1, 1)
    >>> state, steps = get_state_dict(model, flow.optim.SGD(model.parameters(), lr=0.5))
    >>> list(state), steps["param_groups"][0]["lr"]
    (['weight', 'bias'], 0.5)
    """
    model_state = get_model_state_dict(model, submodules=submodules, options=options)
    state = get_optimizer_state_dict(model, optimizers, submodules=submodules, options=options)
    return model_state, state


# --- taking ---------------------------------------------------------------------------------------


def set_model_state_dict(
    model: Module,
    model_state_dict: Mapping[str, object],
    *,
    options: StateDictOptions | None = None,
) -> IncompatibleKeys:
    """Let a model take a state dict of plain names, of global tensors or of whole local ones, which
    are cut as its parameters are.  Names that are missing, and unexpected ones.

    >>> from flowvm.distributed.checkpoint.state_dict import set_model_state_dict
    >>> model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    >>> set_model_state_dict(model, {"weight": flow.ones(1, 1)})
    <All keys matched successfully>
    >>> model.module.weight.item()
    1.0
    """
    how = StateDictOptions() if options is None else options
    values = from_first(model_state_dict) if how.broadcast_from_rank0 else dict(model_state_dict)
    with cut_states.to(True):
        state = Module.state_dict(model)
    names = {plain_name(model, name): name for name in state}
    for name, own in names.items():
        if name in values and isinstance(state[own], Tensor):
            values[name] = held_as(values[name], state[own])
    renamed = {names.get(name, name): value for name, value in values.items()}
    if how.ignore_frozen_params:
        for name, p in model.named_parameters(remove_duplicate=False):
            if not p.requires_grad:
                renamed.setdefault(name, p.detach())
    return Module.load_state_dict(model, renamed, strict=how.strict)


def set_optimizer_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    optim_state_dict: Mapping[str, object],
    *,
    options: StateDictOptions | None = None,
) -> None:
    """Let optimizers take what `get_optimizer_state_dict` gave, flat or not: each parameter finds
    its state by its name.  Whole tensors of a parameter's shape are cut as it is.

    ArgumentError where a parameter's group, or with `strict` its state, is not there.

    >>> from flowvm.distributed.checkpoint.state_dict import (
    ...     get_optimizer_state_dict, set_optimizer_state_dict,
    ... )
    >>> model = nn.Linear(1, 1)
    >>> old = flow.optim.SGD(model.parameters(), lr=0.5)
    >>> new = flow.optim.SGD(model.parameters(), lr=0.1)
    >>> set_optimizer_state_dict(model, new, get_optimizer_state_dict(model, old))
    >>> new.param_groups[0]["lr"]
    0.5
    """
    how = StateDictOptions() if options is None else options
    state = from_first(optim_state_dict) if how.broadcast_from_rank0 else optim_state_dict
    for optimizer in _optimizers(optimizers):
        optimizer.load_state_dict(loadable(model, optimizer, state, how))


def loadable(
    model: Module, optimizer: Optimizer, saved_state: Mapping[str, object], how: StateDictOptions
) -> dict[str, Any]:
    """Return the argument of an optimizer's own `load_state_dict`, by numbers, from a state by
    names.
    """
    names = _names(model, how)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = {id(p): i for i, p in enumerate(params)}
    state = {}
    groups = []
    for group in optimizer.param_groups:
        known = [p for p in group["params"] if id(p) in names]
        saved = _group_of([names[id(p)] for p in known], saved_state, group)
        groups.append({**saved, "params": [numbers[id(p)] for p in group["params"]]})
        for p in known:
            entry = _entry_of(names[id(p)], saved_state)
            if entry is None:
                continue
            state[numbers[id(p)]] = {k: held_as(v, p) for k, v in entry.items()}
    return {"state": state, "param_groups": groups}


def _entry_of(name: str, state: Mapping[str, Any]) -> dict[str, Any] | None:
    if "state" in state:
        entry = state["state"].get(name)
        return None if entry is None else dict(entry)
    prefix = f"state.{name}."
    entries = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    return {k: v for k, v in entries.items() if "." not in k} or None


def _group_of(
    names: list[str], state: Mapping[str, Any], group: Mapping[str, object]
) -> dict[str, Any]:
    """Return the saved options of the group that has these parameters."""
    if not names:
        return {k: v for k, v in group.items() if k != "params"}
    if "param_groups" in state:
        for saved in state["param_groups"]:
            if names[0] in saved["params"]:
                return {k: v for k, v in saved.items() if k != "params"}
    else:
        keys = [k for k in group if k != "params" and f"param_groups.{names[0]}.{k}" in state]
        if keys:
            return {k: state[f"param_groups.{names[0]}.{k}"] for k in keys}
    raise ArgumentError(f"set_optimizer_state_dict: nothing was saved of a group with {names[0]!r}")


def set_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    model_state_dict: Mapping[str, object],
    optim_state_dict: Mapping[str, object],
    options: StateDictOptions | None = None,
) -> IncompatibleKeys:
    """`set_model_state_dict` and `set_optimizer_state_dict`; what the first gives.

    >>> from flowvm.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    >>> model = nn.Linear(1, 1)
    >>> optimizer = flow.optim.SGD(model.parameters(), lr=0.5)
    >>> state, steps = get_state_dict(model, optimizer)
    >>> set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=steps)
    <All keys matched successfully>
    """
    keys = set_model_state_dict(model, model_state_dict, options=options)
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return keys
