"""Batch norm, and what it shares with instance norm: statistics that follow the batches.

running_mean and running_var follow the batches seen in training (running_var the unbiased
variance), and evaluation uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.meta.dtype import int64
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules._affine import Affine
from flowvm.nn.modules._check import channels, integer

# public: nn

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


class _NormBase(Affine):
    """Base of batch and instance norm: a weight for each channel, and running statistics.

    `_ndims` are the input ranks they accept; without any, a subclass has a `_check_input_dim` of
    its own.
    """

    _ndims: tuple[int, ...] = ()
    _version = 2
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
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
        self._make((n,), affine, affine and bias, device, dtype)

    def reset_parameters(self) -> None:
        """Forget the batches seen; weight to ones, bias to zeros."""
        self.reset_running_stats()
        super().reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget the batches seen."""
        if self.running_mean is None or self.running_var is None:
            return
        self.running_mean.zero_()
        self.running_var.fill_(1)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.zero_()

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in self._ndims:
            expected = " or ".join(f"{n}D" for n in self._ndims)
            raise ShapeError(
                f"{type(self).__name__}: expected {expected} input, got {input.ndim}D of shape "
                f"{tuple(input.shape)}"
            )

    def _count_batch(self) -> tuple[Tensor | None, Tensor | None, float]:
        """Note one more training batch: mean and variance to follow it, and its weight in them."""
        mean, var, counter = self.running_mean, self.running_var, self.num_batches_tracked
        if self.training and not self.track_running_stats:
            return None, None, 0.0  # they are kept, and do not follow
        if not self.training or counter is None or mean is None or var is None:
            return mean, var, self.momentum or 0.0
        counter.add_(1)
        if self.momentum is not None:
            return mean, var, self.momentum
        # None asks for the plain average of all batches.  The weight is 1 / count, which is known
        # to the VM and not to Python: the batch's own statistics first, `_average` does the rest.
        return ops.zeros_like(mean), ops.zeros_like(var), 1.0

    def _average(self, mean: Tensor | None, var: Tensor | None) -> None:
        """Update the running averages by the batch's statistics, where `_count_batch` gave any."""
        if mean is None or mean is self.running_mean:
            return
        with no_grad():
            for running, batch in ((self.running_mean, mean), (self.running_var, var)):
                if running is not None and batch is not None:
                    running.add_((batch - running) / self.num_batches_tracked)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        key = prefix + "num_batches_tracked"
        older = local_metadata.get("version") is None or local_metadata["version"] < 2
        if older and self.track_running_stats and key not in state_dict:
            state_dict[key] = self.num_batches_tracked  # which was not saved then
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_NormBase):
    """Base of BatchNorm1d, BatchNorm2d and BatchNorm3d."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
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
    """Normalises each channel of (N, C) or (N, C, L) over everything else.

    >>> layer = nn.BatchNorm1d(2)
    >>> layer(flow.tensor([[1.0, 10.0], [3.0, 30.0]])).detach()
    tensor([[-1.0000, -1.0000],
            [ 1.0000,  1.0000]])
    >>> layer.running_mean  # a tenth of the way to 2 and 20
    tensor([0.2000, 2.0000])
    """

    _ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalises each channel of (N, C, H, W) over everything else.

    >>> nn.BatchNorm2d(3)(flow.ones(2, 3, 4, 4)).shape
    flow.Size([2, 3, 4, 4])
    """

    _ndims = (4,)


class BatchNorm3d(_BatchNorm):
    """Normalises each channel of (N, C, D, H, W) over everything else.

    >>> nn.BatchNorm3d(3)(flow.ones(2, 3, 4, 4, 4)).shape
    flow.Size([2, 3, 4, 4, 4])
    """

    _ndims = (5,)


class _FusedBatchNorm(_BatchNorm):
    """Base of FusedBatchNorm1d, FusedBatchNorm2d and FusedBatchNorm3d."""

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """relu(batch norm of x + addend), the addend of x's shape."""
        if addend is not None and addend.shape != x.shape:
            raise ShapeError(
                f"{type(self).__name__}: x and addend have one shape, got {tuple(x.shape)} and "
                f"{tuple(addend.shape)}"
            )
        out = super().forward(x)
        return F.relu(out if addend is None else out + addend)


class FusedBatchNorm1d(_FusedBatchNorm):
    """OneFlow's: relu(BatchNorm1d of x + addend), for (N, C) or (N, C, L) and, if it is given, an
    addend of that shape.  A graph adds and takes the relu in one kernel.

    >>> layer = nn.FusedBatchNorm1d(1)
    >>> x = flow.tensor([[1.0], [3.0]])
    >>> layer(x).detach()
    tensor([[0.0000],
            [1.0000]])
    >>> layer(x, addend=flow.ones(2, 1)).detach()
    tensor([[5.0068e-06],
            [2.0000e+00]])
    """

    _ndims = (2, 3)


class FusedBatchNorm2d(_FusedBatchNorm):
    """OneFlow's: relu(BatchNorm2d of x + addend), for (N, C, H, W) and, if it is given, an addend
    of that shape; see FusedBatchNorm1d.

    >>> x = flow.ones(2, 3, 4, 4)
    >>> nn.FusedBatchNorm2d(3)(x, x).shape
    flow.Size([2, 3, 4, 4])
    """

    _ndims = (4,)


class FusedBatchNorm3d(_FusedBatchNorm):
    """OneFlow's: relu(BatchNorm3d of x + addend), for (N, C, D, H, W) and, if it is given, an
    addend of that shape; see FusedBatchNorm1d.

    >>> x = flow.ones(2, 3, 4, 4, 4)
    >>> nn.FusedBatchNorm3d(3)(x, x).shape
    flow.Size([2, 3, 4, 4, 4])
    """

    _ndims = (5,)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm of any (N, C, ...) over the batches of all processes; there is one process here, so
    over its own.

    process_group is taken and kept.

    >>> nn.SyncBatchNorm(2)(flow.tensor([[1.0, 10.0], [3.0, 30.0]])).detach()
    tensor([[-1.0000, -1.0000],
            [ 1.0000,  1.0000]])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: object = None,
        device: Device | str | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ShapeError(
                f"SyncBatchNorm: expected at least 2D input, got shape {tuple(input.shape)}"
            )

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: object = None) -> Module:
        """`module` with each batch norm in it, itself included, as a SyncBatchNorm with the same
        parameters and statistics; fused ones, which do more, stay.
        """
        result = module
        if isinstance(module, _BatchNorm) and not isinstance(module, _FusedBatchNorm):
            result = cls._like(module, process_group)
        for name, child in module.named_children():
            result.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return result

    @classmethod
    def _like(cls, module: _BatchNorm, process_group: object) -> SyncBatchNorm:
        layer = cls(
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
            process_group,
            bias=module.bias is not None,
        )
        layer.weight, layer.bias = module.weight, module.bias
        layer.running_mean, layer.running_var = module.running_mean, module.running_var
        layer.num_batches_tracked = module.num_batches_tracked
        layer.training = module.training
        return layer
