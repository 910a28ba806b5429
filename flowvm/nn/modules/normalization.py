"""Normalisation over the last dimensions, over groups of channels, and across channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.nn import functional as F
from flowvm.nn.composites.norms import cross_map_norm
from flowvm.nn.module import Module
from flowvm.nn.modules._affine import Affine
from flowvm.nn.modules._check import channels, integer
from flowvm.nn.parameter import Parameter

# public: nn

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


class LayerNorm(Affine):
    """Normalises over the last dimensions, whose sizes are `normalized_shape`.

    >>> nn.LayerNorm(2)(flow.tensor([[1.0, 3.0], [10.0, 30.0]])).detach()
    tensor([[-1.0000,  1.0000],
            [-1.0000,  1.0000]])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(self, normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        affine = elementwise_affine
        self._make(self.normalized_shape, affine, affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class RMSNorm(Affine):
    """Divides by the root mean square over the last dimensions; for eps=None see `F.rms_norm`.

    >>> nn.RMSNorm(2)(flow.tensor([[3.0, 3.0]])).detach()
    tensor([[1., 1.]])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(self, normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._make(self.normalized_shape, elementwise_affine, False, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class RMSLayerNorm(Module):
    """OneFlow's: RMSNorm over a last dimension of `hidden_size`, which `variance_epsilon` is for.

    >>> nn.RMSLayerNorm(2)(flow.tensor([[3.0, 3.0]])).detach()
    tensor([[1.0000, 1.0000]])
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones(integer(self, "hidden_size", hidden_size)))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.rms_norm(
            hidden_states, tuple(self.weight.shape), self.weight, self.variance_epsilon
        )

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.variance_epsilon}"


class GroupNorm(Affine):
    """Normalises (N, C, ...) over groups of channels and everything behind them.

    >>> nn.GroupNorm(2, 4)(flow.tensor([[1.0, 3.0, 10.0, 30.0]])).detach()
    tensor([[-1.0000,  1.0000, -1.0000,  1.0000]])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_groups = integer(self, "num_groups", num_groups, 1)
        self.num_channels = integer(self, "num_channels", num_channels)
        if num_channels % num_groups:
            raise ArgumentError(
                f"GroupNorm: num_channels={num_channels} must be divisible by "
                f"num_groups={num_groups}"
            )
        self.eps = eps
        self.affine = affine
        self._make((self.num_channels,), affine, affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        channels(self, input, 1, self.num_channels, "num_channels")
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """x / (k + alpha * mean of x² over `size` channels around) ** beta, for (N, C, ...).

    >>> nn.LocalResponseNorm(1, alpha=1.0, beta=1.0)(flow.ones(1, 2, 1)).flatten()
    tensor([0.5000, 0.5000])
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(Module):
    """LocalResponseNorm of (N, C, H, W) as Torch 7 had it: the window is as wide on both sides, and
    what is beyond it of the first channel stays in the sums.

    Outputs are PyTorch's; the gradient is that of the output, which PyTorch's is not.

    >>> nn.CrossMapLRN2d(3, alpha=3.0, beta=1.0)(flow.ones(1, 2, 1, 1)).flatten()  # 1 / (1 + 2)
    tensor([0.3333, 0.3333])
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4:
            raise ShapeError(f"CrossMapLRN2d: expected 4D input, got shape {tuple(input.shape)}")
        return cross_map_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


def _shape(owner: Module, shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    return tuple(integer(owner, "normalized_shape", size) for size in sizes)
