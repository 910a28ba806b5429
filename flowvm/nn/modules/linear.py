"""Affine layers, and the two that only reshape between them.

Weights start as in PyTorch: uniform within 1 / sqrt(fan_in), which is what kaiming_uniform_ with
a = sqrt(5) comes to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.nn import functional as F
from flowvm.nn import init
from flowvm.nn.module import Module
from flowvm.nn.modules._check import channels, integer, probability
from flowvm.nn.parameter import Parameter

# public: nn

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType


class Linear(Module):
    """y = x @ weight.T + bias, over the last dimension of x.

    >>> nn.Linear(20, 30)(flow.randn(128, 20)).shape
    flow.Size([128, 30])
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in_features = integer(self, "in_features", in_features)
        self.out_features = integer(self, "out_features", out_features)
        self.weight = Parameter(
            ops.empty((self.out_features, self.in_features), device=device, dtype=dtype)
        )
        self.register_parameter(
            "bias",
            Parameter(ops.empty(self.out_features, device=device, dtype=dtype)) if bias else None,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class FusedMLP(Module):
    """OneFlow's: affine layers with relu behind each, then dropout; relu behind the last unless
    `skip_final_activation`.  `weight_0`, `bias_0`, ... are the parameters; a graph fuses what can
    be.

    hidden_features       the sizes between in_features and out_features
    hidden_dropout_rate   a probability for each of them, 0 by default; ArgumentError for another
                          number of them

    >>> mlp = nn.FusedMLP(8, [16, 4], 2, skip_final_activation=True)
    >>> mlp(flow.ones(3, 8)).shape
    flow.Size([3, 2])
    >>> [tuple(w.shape) for w in mlp.weights()]
    [(16, 8), (4, 16), (2, 4)]
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: Sequence[int],
        out_features: int,
        hidden_dropout_rate: Sequence[float] | None = None,
        out_dropout_rate: float = 0.0,
        skip_final_activation: bool = False,
    ) -> None:
        super().__init__()
        self.in_features = integer(self, "in_features", in_features)
        self.hidden_features = [integer(self, "hidden_features", n) for n in hidden_features]
        self.out_features = integer(self, "out_features", out_features)
        self.skip_final_activation = skip_final_activation
        rates = hidden_dropout_rate or [0.0] * len(self.hidden_features)
        if len(rates) != len(self.hidden_features):
            raise ArgumentError(
                f"FusedMLP: {len(self.hidden_features)} hidden_features and {len(rates)} "
                f"hidden_dropout_rate"
            )
        self.dropout_rate_list = [probability(self, "p", p) for p in (*rates, out_dropout_rate)]
        sizes = [self.in_features, *self.hidden_features, self.out_features]
        for k, (before, after) in enumerate(pairwise(sizes)):
            self.register_parameter(f"weight_{k}", Parameter(ops.empty((after, before))))
            self.register_parameter(f"bias_{k}", Parameter(ops.empty(after)))
        self.reset_parameters()

    def weights(self) -> list[Parameter]:
        """The layers' weights, first to last."""
        return [getattr(self, f"weight_{k}") for k in range(len(self.dropout_rate_list))]

    def biases(self) -> list[Parameter]:
        """The biases of all layers."""
        return [getattr(self, f"bias_{k}") for k in range(len(self.dropout_rate_list))]

    def reset_parameters(self) -> None:
        """Draw new weights, as Linear does."""
        for weight, bias in zip(self.weights(), self.biases(), strict=True):
            bound = 1 / math.sqrt(weight.shape[1]) if weight.shape[1] else 0.0
            init.uniform_(weight, -bound, bound)
            init.uniform_(bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        layers = list(zip(self.weights(), self.biases(), self.dropout_rate_list, strict=True))
        for k, (weight, bias, rate) in enumerate(layers):
            x = F.linear(x, weight, bias)
            if k < len(layers) - 1 or not self.skip_final_activation:
                x = F.relu(x)
            x = F.dropout(x, rate, self.training)
        return x

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, hidden_features={self.hidden_features}, "
            f"out_features={self.out_features}, skip_final_activation={self.skip_final_activation}"
        )


class Bilinear(Module):
    """y_k = x1 @ weight_k @ x2 + bias_k, over the last dimensions of x1 and x2.

    >>> nn.Bilinear(2, 3, 4)(flow.ones(5, 2), flow.ones(5, 3)).shape
    flow.Size([5, 4])
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in1_features = integer(self, "in1_features", in1_features, 1)
        self.in2_features = integer(self, "in2_features", in2_features)
        self.out_features = integer(self, "out_features", out_features)
        shape = (self.out_features, self.in1_features, self.in2_features)
        self.weight = Parameter(ops.empty(shape, device=device, dtype=dtype))
        self.register_parameter(
            "bias",
            Parameter(ops.empty(self.out_features, device=device, dtype=dtype)) if bias else None,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        channels(self, input1, -1, self.in1_features, "in1_features")
        channels(self, input2, -1, self.in2_features, "in2_features")
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


class Flatten(Module):
    """One dimension in place of start_dim..end_dim; by default everything after the batch.

    >>> nn.Flatten()(flow.ones(2, 3, 4)).shape
    flow.Size([2, 12])
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = ops.flatten(input, self.start_dim, self.end_dim)
        return out

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Dimension `dim` spread over the sizes `unflattened_size`, one of which may be -1.

    >>> nn.Unflatten(1, (2, -1))(flow.ones(4, 6)).shape
    flow.Size([4, 2, 3])
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = tuple(integer(self, "size", s, -1) for s in unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        dim = self.dim % max(1, input.ndim)
        shape = tuple(input.shape)
        return ops.reshape(input, (*shape[:dim], *self.unflattened_size, *shape[dim + 1 :]))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
