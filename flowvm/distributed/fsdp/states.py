"""State of a `FullyShardedDataParallel`: hooks of state dicts, and whole parameters for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowvm.autograd.modes import no_grad
from flowvm.distributed.checkpoint.state_dict import cut_states
from flowvm.distributed.checkpoint.whole_tensors import held_as
from flowvm.distributed.fsdp.groups import ParameterGroup
from flowvm.distributed.fsdp.policies import StateDictSettings, StateDictType
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.files.shards import whole_of
from flowvm.nn.parameter import Parameter
from flowvm.ranks.world import rank

INNER = "_fsdp_wrapped_module"  # the name of the wrapped module in its wrapper


@contextmanager
def whole_params(
    groups: Sequence[ParameterGroup], writeback: bool, rank0_only: bool, with_grads: bool
) -> Iterator[None]:
    """Give modules whole parameters inside the with statement: see `summon_full_params`."""
    if rank0_only and writeback:
        raise ArgumentError("summon_full_params: rank0_only goes with writeback=False")
    changed = []
    for group in groups:
        whole = [Parameter(t.clone(), requires_grad=False) for t in group.whole()]
        for w, p in zip(whole, group.params, strict=True):
            w.requires_grad = p.requires_grad
            if with_grads and p.grad is not None:
                w.grad = whole_of(p.grad)
        group.reshard()
        if rank() == 0 or not rank0_only:
            changed.append((group, whole))
    for group, whole in changed:
        _put(group, whole)
    try:
        yield
    finally:
        for group, whole in changed:
            _put(group, group.params)
            if writeback:
                with no_grad():
                    for w, p in zip(whole, group.params, strict=True):
                        p.copy_(held_as(w.detach().to(p.dtype), p))


def _put(group: ParameterGroup, tensors: Sequence[object]) -> None:
    """Set these tensors as the modules' parameters, in their tables too."""
    for module, name, which in group.places:
        module._parameters[name] = tensors[which]
        object.__setattr__(module, name, tensors[which])


def rename_saved(module: Any, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    """The hook behind `state_dict`: names without the wrapper's, tensors whole where asked for."""
    settings: StateDictSettings = module._state_settings
    whole = settings.state_dict_type is StateDictType.FULL_STATE_DICT and not cut_states.now()
    config = settings.state_dict_config
    mine = [key for key in state if key.startswith(f"{prefix}{INNER}.")]
    for key in mine:
        value = state.pop(key)
        if whole and isinstance(value, Tensor):
            value = whole_of(value)
            if getattr(config, "rank0_only", False) and rank():
                continue
        if config is not None and config.offload_to_cpu and isinstance(value, Tensor):
            value = value.cpu()
        state[prefix + key.removeprefix(f"{prefix}{INNER}.")] = value


def rename_loaded(module: Any, state: dict[str, Any], prefix: str, *more: object) -> None:
    """The hook before `load_state_dict` takes the module's part."""
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}{INNER}.{key.removeprefix(prefix)}"] = state.pop(key)
    inner = module._modules[INNER]
    assert inner is not None
    for name, p in inner.named_parameters(remove_duplicate=False):
        key = f"{prefix}{INNER}.{name}"
        if key in state:
            state[key] = held_as(state[key], p)
