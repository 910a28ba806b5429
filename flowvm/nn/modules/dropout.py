"""Dropout layers: in training each element, or channel, is zeroed with probability p."""

from __future__ import annotations

from flowvm.eager.tensor import Tensor
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules._check import probability
from flowvm.nn.modules.layer import layer
from flowvm.ops.random.generator import Generator

# public: nn


@layer(p=probability, shown="p={self.p}, inplace={self.inplace}")
class _Dropout(Module):
    p: float = 0.5
    inplace: bool = False


class Dropout(_Dropout):
    """Zeroes elements with probability p and scales the others by 1 / (1 - p), in training only.

    generator   where random numbers are drawn from, OneFlow's; by default as everywhere

    >>> layer = nn.Dropout(0.5)
    >>> layer.eval()(flow.ones(3))
    tensor([1., 1., 1.])
    >>> layer.train()(flow.ones(100)).unique()
    tensor([0., 2.])
    """

    generator: Generator | None = None  # of the class: layers saved before had none

    def __init__(
        self, p: float = 0.5, inplace: bool = False, generator: Generator | None = None
    ) -> None:
        super().__init__(p, inplace)
        if generator is not None:
            self.generator = generator

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return input
        return F.dropout(input, self.p, True, self.inplace, generator=self.generator)


@layer(F.dropout1d)
class Dropout1d(_Dropout):
    """Zeroes channels of (N, C, L) or (C, L).

    >>> nn.Dropout1d(0.5).eval()(flow.ones(1, 2, 3)).shape
    flow.Size([1, 2, 3])
    """


@layer(F.dropout2d)
class Dropout2d(_Dropout):
    """Zeroes channels of (N, C, H, W); three dimensions are (N, C, L), as in PyTorch.

    >>> x = nn.Dropout2d(0.5)(flow.ones(1, 8, 2, 2))
    >>> bool((x.amax((2, 3)) == x.amin((2, 3))).all())  # whole channels
    True
    """


@layer(F.dropout3d)
class Dropout3d(_Dropout):
    """Zeroes channels of (N, C, D, H, W) or (C, D, H, W).

    >>> nn.Dropout3d(0.5).eval()(flow.ones(1, 2, 3, 3, 3)).shape
    flow.Size([1, 2, 3, 3, 3])
    """


@layer(F.alpha_dropout)
class AlphaDropout(_Dropout):
    """Dropout towards SELU's negative limit, keeping mean and variance.

    >>> nn.AlphaDropout(0.5).eval()(flow.ones(3))
    tensor([1., 1., 1.])
    """


@layer(F.feature_alpha_dropout)
class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels of (N, C, ...).

    >>> nn.FeatureAlphaDropout(0.5).eval()(flow.ones(1, 2, 3)).shape
    flow.Size([1, 2, 3])
    """
