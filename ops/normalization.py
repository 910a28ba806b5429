"""Layer, batch, group, instance and RMS norm, and division by a norm: arguments and checks.

The first five are one op, in `norm_ops`.

Long because the samples of six functions follow them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.dtype import finfo, float16, float32
from flowvm.errors import ArgumentError, ShapeError
from flowvm.ops.norm_ops import _normalized, _scale_shift, _update
from flowvm.ops.registry import Sample, samples
from flowvm.tensor import Tensor

__all__ = [
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
    "rms_norm",
]


def _size_of(
    name: str, x: Tensor, normalized_shape: int | Sequence[int], **weights: Tensor | None
) -> int:
    """The number of elements in `normalized_shape`, which must be x's last dimensions and the
    weights' shape.
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    have = tuple(x._meta.shape)
    if not shape or have[len(have) - len(shape) :] != shape:
        raise ShapeError(
            f"{name}: normalized_shape {shape} must be the last dimensions of the input's shape "
            f"{have}"
        )
    for which, w in weights.items():
        if w is not None and tuple(w._meta.shape) != shape:
            raise ShapeError(
                f"{name}: {which} must have normalized_shape {shape}, got {tuple(w.shape)}"
            )
    return math.prod(shape)


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias, with mean and variance over the last
    dimensions.

    `normalized_shape` names these dimensions and is the shape of `weight` and `bias`.
    """
    size = _size_of("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    return _normalized(input, weight, bias, "layer", size, eps, True)[0]


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight, the mean over the last dimensions; eps None is the
    dtype's.
    """
    size = _size_of("rms_norm", input, normalized_shape, weight=weight)
    eps = finfo(input._meta.dtype).eps if eps is None else eps
    return _normalized(input, weight, None, "layer", size, eps, False)[0]


def _check_channels(name: str, x: Tensor, **per_channel: Tensor | None) -> int:
    if x._meta.ndim < 2:
        raise ShapeError(f"{name}: input must be (N, C, ...), got shape {tuple(x.shape)}")
    channels: int = x._meta.shape[1]
    for which, t in per_channel.items():
        if t is not None and tuple(t._meta.shape) != (channels,):
            raise ShapeError(
                f"{name}: {which} has one number for each of {channels} channels, got shape "
                f"{tuple(t.shape)}"
            )
    return channels


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each sample of (N, C, ...) within `num_groups` groups of its channels; weight and
    bias are per channel.
    """
    channels = _check_channels("group_norm", input, weight=weight, bias=bias)
    if num_groups <= 0 or channels % num_groups:
        raise ShapeError(f"group_norm: {channels} channels do not divide into {num_groups} groups")
    return _normalized(input, weight, bias, "group", num_groups, eps, True)[0]


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of (N, C, ...), by the batch's mean and variance if `training`, else
    by the running ones.

    Training moves `running_mean` and `running_var` by `momentum` towards the batch's, in place, the
    variance unbiased.
    """
    channels = _check_channels(
        "batch_norm",
        input,
        running_mean=running_mean,
        running_var=running_var,
        weight=weight,
        bias=bias,
    )
    if not training:
        return _with_running(input, running_mean, running_var, weight, bias, eps)
    count = input._meta.numel // max(1, channels)
    if count == 1:
        raise ArgumentError(
            f"batch_norm: training needs more than one value per channel, got input of shape "
            f"{tuple(input.shape)}"
        )
    out, mean, var = _normalized(input, weight, bias, "batch", channels, eps, True)
    if running_mean is not None and running_var is not None:
        _update(running_mean, running_var, mean.detach(), var.detach(), count, float(momentum))
    return out


def _with_running(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    if mean is None or var is None:
        raise ArgumentError("batch_norm: without training, running_mean and running_var are needed")
    scale = (var + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -(mean * scale) if bias is None else bias - mean * scale
    shape = (-1,) + (1,) * (x._meta.ndim - 2)
    dtype = x._meta.dtype
    scale, shift = scale.reshape(shape).to(dtype), shift.reshape(shape).to(dtype)
    out: Tensor = _scale_shift.call(x, scale, shift)
    return out


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each sample of (N, C, ...) by its own mean and variance.

    With running statistics, these move by `momentum` towards the average over the samples; without
    `use_input_stats` they are what normalises.
    """
    channels = _check_channels(
        "instance_norm",
        input,
        running_mean=running_mean,
        running_var=running_var,
        weight=weight,
        bias=bias,
    )
    if not use_input_stats:
        return _with_running(input, running_mean, running_var, weight, bias, eps)
    space = math.prod(input._meta.shape[2:])
    if space == 1:
        raise ArgumentError(
            f"instance_norm needs more than one element per channel, got input of shape "
            f"{tuple(input.shape)}"
        )
    out, mean, var = _normalized(input, weight, bias, "group", channels, eps, True)
    if running_mean is not None and running_var is not None:
        mean, var = (s.detach().reshape((-1, channels)).mean(0) for s in (mean, var))
        _update(running_mean, running_var, mean, var, space, float(momentum))
    return out


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its p-norm over `dim`, or by eps where that is smaller."""
    if input._meta.dtype is float16:
        found: Tensor = normalize(input.to(float32), p, dim, eps).to(float16)
        return found
    if p == 2:
        # The clamp comes before the root: at 0 it lets no gradient through, where the root's is
        # infinite.
        squares = (input * input).sum(dim, keepdim=True)
        result: Tensor = input / squares.clamp(min=eps * eps).sqrt()
        return result
    size = input.abs()
    if p == math.inf:
        norm = size.amax(dim, keepdim=True)
    elif p == 1:
        norm = size.sum(dim, keepdim=True)
    else:
        norm = (size**p).sum(dim, keepdim=True) ** (1 / p)
    out: Tensor = input / norm.clamp(min=eps)
    return out


# --- samples
# -----------------------------------------------------------------------------------------


def _reference(
    x: Any, axes: tuple[int, ...], weight: Any, bias: Any, eps: float, center: bool = True
) -> Any:
    middle = x.mean(axes, keepdims=True) if center else 0.0
    out = (x - middle) / np.sqrt(((x - middle) ** 2).mean(axes, keepdims=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _channels(x: Any, w: Any) -> Any:
    return None if w is None else w.reshape((-1,) + (1,) * (x.ndim - 2))


def _layer_reference(
    x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    n = 1 if isinstance(shape, int) else len(shape)
    return _reference(x, tuple(range(x.ndim - n, x.ndim)), weight, bias, eps)


def _group_reference(
    x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    flat = _reference(x.reshape(x.shape[0], groups, -1), (2,), None, None, eps).reshape(x.shape)
    flat = flat if weight is None else flat * _channels(x, weight)
    return flat if bias is None else flat + _channels(x, bias)


def _batch_reference(x: Any, mean: Any, var: Any, weight: Any, bias: Any, training: bool) -> Any:
    if training:
        axes = (0, *range(2, x.ndim))
        return _reference(x, axes, _channels(x, weight), _channels(x, bias), 1e-5)
    mean, var, weight, bias = (_channels(x, v) for v in (mean, var, weight, bias))
    return (x - mean) / np.sqrt(var + 1e-5) * weight + bias


def _register() -> None:
    def layer(rng: np.random.Generator) -> list[Sample]:
        x = rng.standard_normal
        return [
            Sample((x((3, 4)), 4, x(4), x(4))),
            Sample((x((2, 3, 4)), (3, 4), x((3, 4)), x((3, 4)))),
            Sample((x((3, 4)), (4,))),
            Sample((x((3, 4)), (4,), x(4))),
            Sample((x((0, 4)), (4,), x(4), x(4))),
        ]

    samples(
        layer_norm,
        layer,
        _layer_reference,
        errors=((lambda flow: flow.layer_norm(flow.ones(2, 3), (2,)), RuntimeError),),
    )
    samples(
        rms_norm,
        lambda rng: [
            Sample((rng.standard_normal((3, 4)), (4,), rng.standard_normal(4), 1e-5)),
            Sample((rng.standard_normal((2, 3, 4)), (3, 4), None, 1e-5)),
        ],
        lambda x, shape, weight, eps: _reference(
            x, tuple(range(x.ndim - len(shape), x.ndim)), weight, None, eps, False
        ),
    )
    samples(
        group_norm,
        lambda rng: [
            Sample(
                (rng.standard_normal((2, 4, 3)), 2, rng.standard_normal(4), rng.standard_normal(4))
            ),
            Sample(
                (rng.standard_normal((3, 4)), 2, rng.standard_normal(4), rng.standard_normal(4))
            ),
            Sample((rng.standard_normal((2, 4, 2)), 4)),
        ],
        _group_reference,
        errors=((lambda flow: flow.group_norm(flow.ones(2, 3), 2), RuntimeError),),
    )
    samples(
        instance_norm,
        lambda rng: [
            Sample(
                (rng.standard_normal((2, 3, 4)),),
                {"weight": rng.standard_normal(3), "bias": rng.standard_normal(3)},
            ),
            Sample((rng.standard_normal((2, 2, 2, 2)),)),
        ],
        lambda x, weight=None, bias=None: _group_reference(x, x.shape[1], weight, bias),
        errors=((lambda flow: flow.instance_norm(flow.ones(2, 3, 1)), ValueError),),
    )

    def batch(rng: np.random.Generator) -> list[Sample]:
        x = rng.standard_normal
        return [
            Sample((x((4, 3)), None, None, x(3), x(3), True)),
            Sample((x((2, 2, 3)), None, None, x(2), x(2), True)),
            Sample((x((2, 3, 2)), x(3), rng.uniform(1, 2, 3), x(3), x(3), False)),
        ]

    samples(
        batch_norm,
        batch,
        _batch_reference,
        errors=(
            (lambda flow: flow.batch_norm(flow.ones(1, 3), None, None, training=True), ValueError),
            (lambda flow: flow.batch_norm(flow.ones(2, 3), None, None), ValueError),
            (lambda flow: flow.batch_norm(flow.ones(2, 3), None, None, flow.ones(2)), RuntimeError),
        ),
    )
    samples(
        normalize,
        lambda rng: [
            Sample((rng.standard_normal((3, 4)),)),
            Sample((rng.standard_normal((3, 4)), 3.0, 0)),
            Sample((rng.standard_normal((3, 4)), 1.0, -1)),
        ],
        lambda x, p=2.0, dim=1: x / np.linalg.norm(x, p, dim, keepdims=True),
    )


_register()
