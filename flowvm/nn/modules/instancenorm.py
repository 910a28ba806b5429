"""Instance norm: each channel of each sample by itself."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from flowvm.eager.tensor import Tensor
from flowvm.nn import functional as F
from flowvm.nn.modules._check import channels
from flowvm.nn.modules.batchnorm import _NormBase

# public: nn

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


class _InstanceNorm(_NormBase):
    """Base of InstanceNorm1d, 2d and 3d; the last of `_ndims` is the rank with a batch."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Device | str | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        batched = input if input.ndim == self._ndims[-1] else input.unsqueeze(0)
        if batched.shape[1] != self.num_features and not self.affine:
            warnings.warn(
                f"{type(self).__name__}: the input has {batched.shape[1]} channels and the layer "
                f"{self.num_features}, which it does not need: affine is False",
                stacklevel=2,
            )
        else:
            channels(self, batched, 1, self.num_features, "num_features")
        out = F.instance_norm(
            batched,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum or 0.0,
            self.eps,
        )
        return out if batched is input else out.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Normalises each channel of each sample of (N, C, L) or (C, L) over L.

    >>> nn.InstanceNorm1d(2)(flow.tensor([[[1.0, 3.0], [10.0, 30.0]]]))
    tensor([[[-1.0000,  1.0000],
             [-1.0000,  1.0000]]])
    """

    _ndims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Normalises each channel of each sample of (N, C, H, W) or (C, H, W) over H and W.

    >>> nn.InstanceNorm2d(3)(flow.ones(2, 3, 4, 4)).shape
    flow.Size([2, 3, 4, 4])
    """

    _ndims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Normalises each channel of each sample of (N, C, D, H, W) or (C, D, H, W) over D, H and W.

    >>> nn.InstanceNorm3d(3)(flow.ones(2, 3, 4, 4, 4)).shape
    flow.Size([2, 3, 4, 4, 4])
    """

    _ndims = (4, 5)
