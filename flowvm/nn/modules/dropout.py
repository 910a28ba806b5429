"""Dropout layers: in training each element, or channel, is zeroed with probability p."""

from __future__ import annotations

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules._check import probability


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        self.p = probability(self, "p", p)
        self.inplace = inplace

    def _finish(self, input: Tensor, out: Tensor) -> Tensor:
        return input.copy_(out) if self.inplace and self.training else out

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Zeroes elements with probability p and scales the others by 1 / (1 - p), in training only."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return input
        return self._finish(input, F.dropout(input, self.p, True))


class _ChannelDropout(_Dropout):
    """Zeroes whole channels; `_ndim` is the number of spatial dimensions behind the channel."""

    _ndim: int

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return input
        kept = input.shape[: max(1, input.ndim - self._ndim)]
        ones = ops.ones(kept + (1,) * self._ndim, dtype=input.dtype, device=input.device)
        return self._finish(input, input * F.dropout(ones, self.p, True))


class Dropout1d(_ChannelDropout):
    """Zeroes channels of (N, C, L) or (C, L)."""

    _ndim = 1


class Dropout2d(_ChannelDropout):
    """Zeroes channels of (N, C, H, W) or (C, H, W)."""

    _ndim = 2


class AlphaDropout(_Dropout):
    """Dropout towards SELU's negative limit, keeping mean and variance."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return input
        if self.p == 1.0:
            return self._finish(input, input * 0)
        limit = -1.7580993408473766  # SELU as x goes to minus infinity: -scale * alpha
        keep = 1.0 - self.p
        a = (keep + limit * limit * keep * self.p) ** -0.5
        mask = F.dropout(ops.ones_like(input.detach()), self.p, True) * keep
        return self._finish(input, (input * mask + (1 - mask) * limit) * a - a * limit * self.p)
