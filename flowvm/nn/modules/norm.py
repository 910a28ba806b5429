"""Normalisation layers.

BatchNorm, and InstanceNorm where it is asked to, have state beyond their parameters: running_mean
and running_var follow the batches seen in training (running_var the unbiased variance), and
evaluation uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.dtype import int64
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules._check import channels, integer
from flowvm.nn.parameter import Parameter

if TYPE_CHECKING:
    from flowvm.device import Device
    from flowvm.dtype import DType


class _Affine(Module):
    """A module with an optional weight of ones and an optional bias of zeros."""

    weight: Parameter | None
    bias: Parameter | None

    def _make(
        self,
        shape: Sequence[int],
        weight: bool,
        bias: bool,
        device: Device | str | None,
        dtype: DType | None,
    ) -> None:
        for name, wanted in (("weight", weight), ("bias", bias)):
            empty = ops.empty(tuple(shape), device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, None if empty is None else Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight to ones, bias to zeros."""
        with no_grad():
            if self.weight is not None:
                self.weight.fill_(1)
            if self.bias is not None:
                self.bias.zero_()


class _Tracking(_Affine):
    """What batch and instance norm share: a weight for each channel, and running statistics.

    `_ndims` are the input ranks they accept.
    """

    _ndims: tuple[int, ...]
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def _build(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: Device | str | None,
        dtype: DType | None,
    ) -> None:
        self.num_features = integer(self, "num_features", num_features)
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        n = self.num_features
        track = track_running_stats
        self.register_buffer(
            "running_mean", ops.zeros(n, device=device, dtype=dtype) if track else None
        )
        self.register_buffer(
            "running_var", ops.ones(n, device=device, dtype=dtype) if track else None
        )
        self.register_buffer(
            "num_batches_tracked", ops.zeros((), device=device, dtype=int64) if track else None
        )
        self._make((n,), affine, affine, device, dtype)

    def reset_running_stats(self) -> None:
        """Forget the batches seen."""
        if self.running_mean is None or self.running_var is None:
            return
        self.running_mean.zero_()
        self.running_var.fill_(1)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.zero_()

    def _check(self, input: Tensor) -> None:
        if input.ndim not in self._ndims:
            wanted = " or ".join(f"{n}D" for n in self._ndims)
            raise ShapeError(
                f"{type(self).__name__}: expected {wanted} input, got {input.ndim}D of shape "
                f"{tuple(input.shape)}"
            )

    def _count_batch(self) -> tuple[Tensor | None, Tensor | None, float]:
        """Note one more training batch: mean and variance to follow it, and its weight in them."""
        mean, var, counter = self.running_mean, self.running_var, self.num_batches_tracked
        if not self.training or counter is None or mean is None or var is None:
            return mean, var, self.momentum or 0.0
        counter.add_(1)
        if self.momentum is not None:
            return mean, var, self.momentum
        # None asks for the plain average of all batches.  The weight is 1 / count, which is known
        # to the VM and not to Python: the batch's own statistics first, `_average` does the rest.
        return ops.zeros_like(mean), ops.zeros_like(var), 1.0

    def _average(self, mean: Tensor | None, var: Tensor | None) -> None:
        """What the batch's own statistics do to the averages, where `_count_batch` gave such."""
        if mean is self.running_mean:
            return
        with no_grad():
            for running, batch in ((self.running_mean, mean), (self.running_var, var)):
                if running is not None and batch is not None:
                    running.add_((batch - running) / self.num_batches_tracked)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Tracking):
    """What BatchNorm1d and BatchNorm2d share."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self._build(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        channels(self, input, 1, self.num_features, "num_features")
        mean, var, momentum = self._count_batch()
        out = F.batch_norm(
            input,
            mean,
            var,
            self.weight,
            self.bias,
            self.training or mean is None,
            momentum,
            self.eps,
        )
        self._average(mean, var)
        return out


class BatchNorm1d(_BatchNorm):
    """Normalises each channel of (N, C) or (N, C, L) over everything else."""

    _ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalises each channel of (N, C, H, W) over everything else."""

    _ndims = (4,)


class _InstanceNorm(_Tracking):
    """What InstanceNorm1d and InstanceNorm2d share; the last of `_ndims` is the batched one."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self._build(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        batched = input if input.ndim == self._ndims[-1] else input.unsqueeze(0)
        channels(self, batched, 1, self.num_features, "num_features")
        mean, var, momentum = self._count_batch()
        out = F.instance_norm(
            batched,
            mean,
            var,
            self.weight,
            self.bias,
            self.training or mean is None,
            momentum,
            self.eps,
        )
        self._average(mean, var)
        return out if batched is input else out.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Normalises each channel of each sample of (N, C, L) or (C, L) over L."""

    _ndims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Normalises each channel of each sample of (N, C, H, W) or (C, H, W) over H and W."""

    _ndims = (3, 4)


class LayerNorm(_Affine):
    """Normalises over the last dimensions, whose sizes are `normalized_shape`."""

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
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class RMSNorm(_Affine):
    """Divides by the root mean square over the last dimensions; eps=None is the dtype's own."""

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


class GroupNorm(_Affine):
    """Normalises (N, C, ...) over groups of channels and everything behind them."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
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
        self._make((self.num_channels,), affine, affine, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        channels(self, input, 1, self.num_channels, "num_channels")
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


def _shape(owner: Module, shape: int | Sequence[int]) -> tuple[int, ...]:
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    return tuple(integer(owner, "normalized_shape", size) for size in wanted)
