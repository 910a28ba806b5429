"""Layer, batch, group, instance and RMS norm, and division by a norm: arguments and checks.

The first five are one op, in `norm_ops`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import widened
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import finfo, float32
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.rows.parts.norm_checks import check_channels
from flowvm.ops.rows.parts.norm_ops import _both, _fixed, _normalized, _tracking, _update
from flowvm.ops.rows.statistics import vector_norm
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


# public: flow, F


def _sizes(normalized_shape: Any) -> tuple[int, ...]:
    several = isinstance(normalized_shape, (tuple, list))
    sizes = normalized_shape if several else (normalized_shape,)
    return tuple(whole("normalized_shape", "a size", d) for d in sizes)


# public: F
@steady
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

    >>> F.layer_norm(flow.tensor([[1.0, 3.0], [10.0, 30.0]]), (2,))
    tensor([[-1.0000,  1.0000],
            [-1.0000,  1.0000]])
    """
    if hot["autocast"]:
        input, weight, bias = widened(input, weight, bias)
    shape = _sizes(normalized_shape)
    return _normalized(input, weight, bias, "layer", shape, eps, True)[0]


@steady
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight, the mean over the last dimensions; eps None is the
    dtype's, of float16 and bfloat16 that of float32, in which it is computed.

    >>> F.rms_norm(flow.tensor([[3.0, 3.0], [0.0, 2.0]]), (2,))
    tensor([[1.0000, 1.0000],
            [0.0000, 1.4142]])
    """
    if hot["autocast"]:
        input, weight = widened(input, weight)
    shape = _sizes(normalized_shape)
    need_tensor("rms_norm", "input", input)
    if eps is None and input._meta.dtype.inexact:
        dtype = input._meta.dtype
        eps = finfo(dtype if dtype.itemsize > 2 else float32).eps
    if input._meta.dtype.is_complex:
        return _complex_rms_norm(input, shape, weight, eps or 0.0)
    return _normalized(input, weight, None, "layer", shape, eps or 0.0, False)[0]


def _complex_rms_norm(
    x: Tensor, shape: tuple[int, ...], weight: Tensor | None, eps: float
) -> Tensor:
    """Normalise complex numbers as PyTorch does: by the mean of their complex squares."""
    if not shape or tuple(x._meta.shape[-len(shape) :]) != shape:
        raise ShapeError(
            f"rms_norm: normalized_shape {shape} is not the end of shape {tuple(x._meta.shape)}"
        )
    means = (x * x).mean(tuple(range(-len(shape), 0)), keepdim=True)
    normal: Tensor = x * (means + eps).rsqrt()
    return normal if weight is None else normal * weight


# public: F
@steady
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each sample of (N, C, ...) within `num_groups` groups of its channels; weight and
    bias are per channel.

    >>> F.group_norm(flow.tensor([[1.0, 3.0, 10.0, 30.0]]), 2)
    tensor([[-1.0000,  1.0000, -1.0000,  1.0000]])
    """
    if hot["autocast"]:
        input, weight, bias = widened(input, weight, bias)
    return _normalized(input, weight, bias, "group", num_groups, eps, True)[0]


# public: F
@steady
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
    variance unbiased; a batch without elements leaves them.

    >>> x = flow.tensor([[1.0, 10.0], [3.0, 30.0]])
    >>> F.batch_norm(x, None, None, training=True)
    tensor([[-1.0000, -1.0000],
            [ 1.0000,  1.0000]])
    """
    if not training:
        return _by_given("batch_norm", input, running_mean, running_var, weight, bias, eps)
    if eps <= 0:
        raise ArgumentError(f"batch_norm: eps must be positive in training, got {eps}")
    if running_mean is None or running_var is None or input._meta.numel == 0:
        return _normalized(input, weight, bias, "batch", 0, eps, True)[0]
    weight, bias = _both(input, weight, bias)
    out: Tensor = _tracking(input, weight, bias, running_mean, running_var, eps, momentum)[0]
    return out


def _by_given(
    name: str,
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    if mean is None or var is None:
        raise ArgumentError(f"{name}: running_mean and running_var are needed")
    weight, bias = _both(x, weight, bias)
    if mean._node is None and var._node is None:
        fixed: Tensor = _fixed(x, weight, bias, mean, var, eps)[0]
        return fixed
    check_channels(name, x._meta, weight=weight._meta, bias=bias._meta, mean=mean._meta)
    scale = (var + eps).rsqrt() * weight
    shape = (-1,) + (1,) * (x._meta.ndim - 2)
    shift = (bias - mean * scale).reshape(shape)
    out: Tensor = x * scale.reshape(shape).to(x._meta.dtype) + shift.to(x._meta.dtype)
    return out


# public: F
@steady
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

    >>> F.instance_norm(flow.tensor([[[1.0, 3.0], [10.0, 30.0]]]))
    tensor([[[-1.0000,  1.0000],
             [-1.0000,  1.0000]]])
    """
    if not use_input_stats:
        return _by_given("instance_norm", input, running_mean, running_var, weight, bias, eps)
    out, stats = _normalized(input, weight, bias, "instance", 0, eps, True)
    if running_mean is not None and running_var is not None:
        shape = input._meta.shape
        stats = stats.to(input._meta.dtype.compute)
        mean, var = stats.reshape((2, -1, shape[1])).mean(1).unbind()
        _update(running_mean, running_var, mean, var, math.prod(shape[2:]), momentum)
    return out


@with_out
@in_float32
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its p-norm over `dim`, or by eps where that is smaller.

    >>> F.normalize(flow.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    if hot["autocast"]:
        (input,) = widened(input)
    need_tensor("normalize", "input", input)
    norm: Tensor = vector_norm(input, p, dim, True)
    out: Tensor = input / norm.clamp(min=eps)
    return out


# --- samples
# -----------------------------------------------------------------------------------------


def _reference(
    x: Array, axes: tuple[int, ...], weight: object, bias: object, eps: float, center: bool = True
) -> Any:
    middle = x.mean(axes, keepdims=True) if center else 0.0
    out = (x - middle) / np.sqrt(((x - middle) ** 2).mean(axes, keepdims=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _channels(x: Any, w: Any) -> Any:
    return None if w is None else w.reshape((-1,) + (1,) * (x.ndim - 2))


def _layer_reference(
    x: Array,
    shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> object:
    n = 1 if isinstance(shape, int) else len(shape)
    return _reference(x, tuple(range(x.ndim - n, x.ndim)), weight, bias, eps)


def _group_reference(
    x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Any:
    flat = _reference(x.reshape(x.shape[0], groups, -1), (2,), None, None, eps).reshape(x.shape)
    flat = flat if weight is None else flat * _channels(x, weight)
    return flat if bias is None else flat + _channels(x, bias)


def _batch_reference(
    x: Array, mean: Any, var: Any, weight: Array, bias: Array, training: bool
) -> object:
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
            Sample((x((2, 3, 4)), (4,), x(4), x(4))),
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
        errors=((lambda flow: instance_norm(flow.ones(2, 3, 1)), ValueError),),
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
            (lambda flow: batch_norm(flow.ones(1, 3), None, None, training=True), ValueError),
            (lambda flow: batch_norm(flow.ones(2, 3), None, None), ValueError),
            (
                lambda flow: batch_norm(flow.ones(2, 3), None, None, flow.ones(2), training=True),
                RuntimeError,
            ),
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
