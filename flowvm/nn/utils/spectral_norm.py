"""spectral_norm of PyTorch's older kind: a hook that divides the weight in front of each call."""

from __future__ import annotations

from typing import Any

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules.conv import _ConvTransposeNd
from flowvm.nn.parameter import Parameter
from flowvm.nn.utils.weight_norm import _hook_key

__all__ = ["remove_spectral_norm", "spectral_norm"]
__dir__ = listing(globals())


class SpectralNorm:
    """The hook; `name` is the parameter, computed of `<name>_orig` with the singular vectors
    `<name>_u` and `<name>_v`, which power iteration follows (Miyato et al., 2018).
    """

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        if n_power_iterations <= 0:
            raise ArgumentError(
                f"spectral_norm: n_power_iterations is positive, got {n_power_iterations}"
            )
        self.name, self.n_power_iterations = name, n_power_iterations
        self.dim, self.eps = dim, eps

    def reshape_weight_to_matrix(self, weight: Tensor) -> Tensor:
        """`dim` by all else."""
        if self.dim != 0:
            weight = weight.permute(self.dim, *(d for d in range(weight.ndim) if d != self.dim))
        matrix: Tensor = weight.reshape(weight.shape[0], -1)
        return matrix

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """The weight by its largest singular value."""
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = self.reshape_weight_to_matrix(weight)
        if do_power_iteration:
            with no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(ops.mv(matrix.t(), u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(ops.mv(matrix, v), dim=0, eps=self.eps))
            u, v = u.clone(), v.clone()
        out: Tensor = weight / ops.dot(u, ops.mv(matrix, v))
        return out

    def __call__(self, module: Module, inputs: object) -> None:
        setattr(module, self.name, self.compute_weight(module, module.training))


# public: nn.utils
def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Have `module.<name>` divided by its largest singular value in front of each call; see
    `nn.utils.parametrizations.spectral_norm`, which is newer.

    >>> layer = nn.utils.spectral_norm(nn.Linear(2, 3))
    >>> "weight_orig" in layer.state_dict()
    True
    """
    if _hook_key(module, SpectralNorm, name) is not None:
        raise RuntimeError(f"spectral_norm is on {name!r} of this {type(module).__name__} already")
    if dim is None:
        dim = 1 if isinstance(module, _ConvTransposeNd) else 0
    hook = SpectralNorm(name, n_power_iterations, dim, eps)
    weight = getattr(module, name, None)
    if not isinstance(weight, Parameter):
        raise ArgumentError(f"{type(module).__name__} has no parameter {name!r}")
    with no_grad():
        matrix = hook.reshape_weight_to_matrix(weight.detach())
        u, v = (
            F.normalize(
                ops.empty(n, dtype=weight.dtype, device=weight.device).normal_(0, 1), dim=0, eps=eps
            )
            for n in matrix.shape
        )
    delattr(module, name)
    module.register_parameter(f"{name}_orig", weight)
    setattr(module, name, weight.detach())
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    module.register_forward_pre_hook(hook)
    return module


# public: nn.utils
def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Undo `spectral_norm`: the parameter has the divided value.

    >>> layer = nn.utils.spectral_norm(nn.Linear(2, 3))
    >>> list(nn.utils.remove_spectral_norm(layer).state_dict())
    ['bias', 'weight']
    """
    key = _hook_key(module, SpectralNorm, name)
    if key is None:
        raise ArgumentError(
            f"there is no spectral_norm on {name!r} of this {type(module).__name__}"
        )
    hook: Any = module._forward_pre_hooks.pop(key)
    with no_grad():
        weight = hook.compute_weight(module, False)
    delattr(module, name)
    for suffix in ("_u", "_v", "_orig"):
        delattr(module, name + suffix)
    module.register_parameter(name, Parameter(weight.detach()))
    return module
