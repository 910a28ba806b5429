"""A layer and the batch norm behind it as one layer, for evaluation."""

from __future__ import annotations

import copy
from typing import Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module
from flowvm.nn.modules.batchnorm import FusedBatchNorm1d, FusedBatchNorm2d, FusedBatchNorm3d
from flowvm.nn.parameter import Parameter

# public: nn.utils

__dir__ = listing(globals())


def _fused(
    weight: Tensor, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float,
    bn_weight: Tensor | None, bn_bias: Tensor | None, shape: tuple[int, ...],
) -> tuple[Parameter, Parameter]:  # fmt: skip
    trained = weight.requires_grad
    scale = ops.rsqrt(var + eps)
    scale = scale if bn_weight is None else scale * bn_weight
    shift = (-mean if bias is None else bias - mean) * scale
    shift = shift if bn_bias is None else shift + bn_bias
    new = (weight * scale.reshape(shape)).to(weight.dtype)
    return (
        Parameter(new.detach(), trained),
        Parameter(shift.to(weight.dtype).detach(), trained if bias is None else bias.requires_grad),
    )


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
    bn_w: Tensor | None, bn_b: Tensor | None, transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of a convolution with the batch norm behind it in them.

    >>> conv, bn = nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4)
    >>> weight, bias = nn.utils.fuse_conv_bn_weights(
    ...     conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias)
    >>> weight.shape, bias.shape
    (flow.Size([4, 3, 2, 2]), flow.Size([4]))
    """
    ones = (1,) * (conv_w.ndim - 2)
    shape = (1, -1, *ones) if transpose else (-1, 1, *ones)
    return _fused(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, shape)


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
    bn_w: Tensor | None, bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of a linear layer with the batch norm behind it in them.

    >>> linear, bn = nn.Linear(3, 4), nn.BatchNorm1d(4)
    >>> weight, bias = nn.utils.fuse_linear_bn_weights(
    ...     linear.weight, linear.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias)
    >>> weight.shape, bias.shape
    (flow.Size([4, 3]), flow.Size([4]))
    """
    return _fused(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, (-1, 1))


def _for_evaluation(layer: Module, bn: Any) -> Any:
    if isinstance(bn, (FusedBatchNorm1d, FusedBatchNorm2d, FusedBatchNorm3d)):
        raise ArgumentError(f"fusing is of batch norms alone: {type(bn).__name__} has a relu, too")
    if layer.training or bn.training:
        raise ArgumentError("fusing is for evaluation: call eval() on both layers first")
    if bn.running_mean is None or bn.running_var is None:
        raise ArgumentError("fusing needs a batch norm with running statistics")
    return copy.deepcopy(layer)


def fuse_conv_bn_eval(conv: Module, bn: Module, transpose: bool = False) -> Module:
    """A copy of `conv` that computes what `bn` makes of it; both are in evaluation mode.

    >>> conv, bn, x = nn.Conv2d(3, 4, 2).eval(), nn.BatchNorm2d(4).eval(), flow.ones(1, 3, 5, 5)
    >>> fused = nn.utils.fuse_conv_bn_eval(conv, bn)
    >>> flow.allclose(fused(x), bn(conv(x)), atol=1e-5)
    True
    """
    fused = _for_evaluation(conv, bn)
    norm: Any = bn
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight, fused.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight,
        norm.bias, transpose,
    )  # fmt: skip
    return fused  # type: ignore[no-any-return]


def fuse_linear_bn_eval(linear: Module, bn: Module) -> Module:
    """A copy of `linear` that computes what `bn` makes of it; both are in evaluation mode.

    >>> linear, bn, x = nn.Linear(3, 4).eval(), nn.BatchNorm1d(4).eval(), flow.ones(2, 3)
    >>> fused = nn.utils.fuse_linear_bn_eval(linear, bn)
    >>> flow.allclose(fused(x), bn(linear(x)), atol=1e-5)
    True
    """
    fused = _for_evaluation(linear, bn)
    norm: Any = bn
    if fused.out_features != norm.num_features and norm.num_features != 1:
        raise ArgumentError(
            f"the linear layer has {fused.out_features} features, the batch norm "
            f"{norm.num_features}"
        )
    fused.weight, fused.bias = fuse_linear_bn_weights(
        fused.weight, fused.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight,
        norm.bias,
    )  # fmt: skip
    return fused  # type: ignore[no-any-return]


__all__ = own_names(globals())
