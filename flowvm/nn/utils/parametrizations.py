"""The usual parametrizations: a weight by its direction and length, one of spectral norm 1, one
with orthogonal rows or columns.
"""

from __future__ import annotations

from typing import Any

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules.conv import _ConvTransposeNd
from flowvm.nn.utils.parametrize import register_parametrization
from flowvm.nn.utils.weight_norm import norm_except_dim

__all__ = ["spectral_norm", "weight_norm"]


class _WeightNorm(Module):
    """Direction and length (Salimans and Kingma, 2016)."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / norm_except_dim(weight_v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Its lengths, and itself."""
        return norm_except_dim(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Have `module.<name>` computed as lengths (`original0`) times directions (`original1` divided
    by its lengths), one for each index of `dim`, or one in all if that is None.

    State dicts of the older `nn.utils.weight_norm` load.
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def older(state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        old, new = (f"{prefix}{name}_g", f"{prefix}{name}_v"), f"{prefix}parametrizations.{name}."
        if all(key in state_dict for key in old):
            for i, key in enumerate(old):
                state_dict[f"{new}original{i}"] = state_dict.pop(key)

    module._register_load_state_dict_pre_hook(older)
    return module


class _SpectralNorm(Module):
    """A weight divided by its largest singular value, which power iteration follows (Miyato et al.,
    2018).
    """

    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        if not -weight.ndim <= dim < weight.ndim:
            raise IndexError(f"dim {dim} is out of range for a weight of {weight.ndim} dimensions")
        if n_power_iterations <= 0:
            raise ArgumentError(
                f"spectral_norm: n_power_iterations is positive, got {n_power_iterations}"
            )
        self.dim = dim if dim >= 0 else dim + weight.ndim
        self.eps = eps
        if weight.ndim > 1:
            self.n_power_iterations = n_power_iterations
            matrix = self._matrix(weight).detach()
            h, w = matrix.shape
            self.register_buffer("_u", F.normalize(_drawn(matrix, h), dim=0, eps=eps))
            self.register_buffer("_v", F.normalize(_drawn(matrix, w), dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        if self.dim != 0:
            others = (d for d in range(weight.ndim) if d != self.dim)
            weight = weight.permute(self.dim, *others)
        return ops.flatten(weight, 1)

    def _iterate(self, matrix: Tensor, times: int) -> None:
        with no_grad():
            for _ in range(times):
                self._u.copy_(F.normalize(ops.mv(matrix, self._v), dim=0, eps=self.eps))
                self._v.copy_(F.normalize(ops.mv(matrix.t(), self._u), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        return weight / ops.dot(u, ops.mv(matrix, v))

    def right_inverse(self, value: Tensor) -> Tensor:
        """Itself: what has the norm already stays."""
        return value


def _drawn(like: Tensor, n: int) -> Tensor:
    out: Tensor = ops.empty(n, dtype=like.dtype, device=like.device).normal_(0, 1)
    return out


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Have `module.<name>` divided by its largest singular value, as a matrix of `dim` (by default
    0, or 1 for transposed convolutions) by all else.

    In training, each call takes n_power_iterations steps towards it.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"{type(module).__name__} has no parameter or buffer {name!r}")
    if dim is None:
        dim = 1 if isinstance(module, _ConvTransposeNd) else 0
    made = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return register_parametrization(module, name, made)
