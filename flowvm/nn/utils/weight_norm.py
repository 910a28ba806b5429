"""weight_norm of PyTorch's older kind: a hook that computes the weight in front of each call."""

from __future__ import annotations

from typing import Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing
from flowvm.nn.hooks import RemovableHandle
from flowvm.nn.module import Module
from flowvm.nn.parameter import Parameter
from flowvm.ops.declare.halves import in_float32

__all__ = ["remove_weight_norm", "weight_norm"]
__dir__ = listing(globals())


def norm_except_dim(v: Tensor, dim: int) -> Tensor:
    """The lengths of `v` over all dimensions but `dim`, which stay with size 1; of all of it, a 0-d
    tensor, for -1.
    """
    if dim == -1:
        return ops.vector_norm(v)
    others = tuple(d for d in range(v.ndim) if d != dim)
    return ops.vector_norm(v, 2, others, True) if others else ops.abs(v)


@in_float32
def directed(g: Tensor, v: Tensor, dim: int) -> Tensor:
    """Lengths times directions: `v` divided by its lengths over all dimensions but `dim`, times
    `g`.
    """
    return v / norm_except_dim(v, dim) * g  # first what no scale of v matters to


class WeightNorm:
    """The hook; `name` is the parameter, computed of `<name>_g` and `<name>_v`."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self.dim = -1 if dim is None else dim

    def compute_weight(self, module: Module) -> Tensor:
        """Lengths times directions."""
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return directed(g, v, self.dim)

    def __call__(self, module: Module, inputs: object) -> None:
        setattr(module, self.name, self.compute_weight(module))


def _hook_key(module: Module, kind: type, name: str) -> int | None:
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, kind) and getattr(hook, "name", None) == name:
            return key
    return None


# public: nn.utils
def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Have `module.<name>` computed as `<name>_g` times the directions of `<name>_v` in front of
    each call; see `nn.utils.parametrizations.weight_norm`, which is newer.

    >>> layer = nn.utils.weight_norm(nn.Linear(2, 3))
    >>> layer.weight_g.shape, layer.weight_v.shape
    (flow.Size([3, 1]), flow.Size([3, 2]))
    """
    if _hook_key(module, WeightNorm, name) is not None:
        raise RuntimeError(f"weight_norm is on {name!r} of this {type(module).__name__} already")
    hook = WeightNorm(name, dim)
    weight = getattr(module, name)
    delattr(module, name)
    g = norm_except_dim(weight.detach(), hook.dim)
    module.register_parameter(f"{name}_g", Parameter(g))
    module.register_parameter(f"{name}_v", Parameter(weight.detach()))
    hook(module, None)
    handle: RemovableHandle = module.register_forward_pre_hook(hook)
    del handle
    return module


# public: nn.utils
def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Undo `weight_norm`: the parameter has the value that was computed last.

    >>> layer = nn.utils.weight_norm(nn.Linear(2, 3))
    >>> sorted(nn.utils.remove_weight_norm(layer).state_dict())
    ['bias', 'weight']
    """
    key = _hook_key(module, WeightNorm, name)
    if key is None:
        raise ArgumentError(f"there is no weight_norm on {name!r} of this {type(module).__name__}")
    hook: Any = module._forward_pre_hooks.pop(key)
    weight = hook.compute_weight(module)
    delattr(module, name)
    delattr(module, f"{name}_g")
    delattr(module, f"{name}_v")
    module.register_parameter(name, Parameter(weight.detach()))
    return module
