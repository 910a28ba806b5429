"""The computations of a gradient scaler: gradients divided by the scale, and its next value.

Scale, growth count and "was there an infinity" are tensors: nothing waits for them but the decision
whether to step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.errors import DTypeError, ShapeError
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import float32, int32
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.scalar.functions import isfinite


def _unscale_body(overflow: Array, g: Array, scale: Array, lo: int, hi: int) -> None:
    inverse = np.float32(1.0 / np.float64(scale[0]))
    for block in range(lo, hi):
        part = g[block * GRAIN : (block + 1) * GRAIN]
        bad = 0
        for i in range(len(part)):
            bad |= not np.isfinite(part[i])
            part[i] *= inverse
        overflow[block] = bad


def _one_number(name: str, meta: TensorMeta, dtype: Any) -> View:
    if meta.numel != 1 or meta.dtype is not dtype:
        raise ShapeError(f"{name} must be one {dtype.name}, got {meta!r}")
    return View(dtype, (1,))


@op("grad!, scale -> overflow", cuda="loss_scaling:unscale", letters=unsplit)
def unscale_(grad: TensorMeta, scale: TensorMeta) -> Launch:
    """unscale_(grad, scale): divide `grad` by `scale`, in place; for each block of it, 1.0 if an
    element was infinite or NaN, else 0.0.
    """
    if not grad.dtype.is_floating_point:
        raise DTypeError(f"unscale_: a gradient of floating-point dtype, got {grad.dtype.name}")
    blocks = max(1, -(-grad.numel // GRAIN))
    overflow = TensorMeta.of((blocks,), float32, grad.device)
    views = (
        View(float32, (blocks,)),
        View(grad.dtype, (grad.numel,)),
        _one_number("unscale_: scale", scale, float32),
    )
    return Launch((overflow,), _unscale_body, views, (), blocks, 1)


def _update_body(
    scale: Array,
    tracker: Array,
    overflow: Array,
    growth: float,
    backoff: float,
    interval: int,
    lo: int,
    hi: int,
) -> None:
    for i in range(lo, hi):
        if overflow[i] != 0.0:
            scale[i] *= np.float32(backoff)
            tracker[i] = 0
        elif tracker[i] + 1 == interval:
            grown = scale[i] * np.float32(growth)
            if isfinite(grown):  # else it stays as large as it can be
                scale[i] = grown
            tracker[i] = 0
        else:
            tracker[i] += 1


@op(
    "scale!, tracker!, overflow -> ",
    scalars="growth: float, backoff: float, interval: int",
    letters=unsplit,
)
def update_scale_(scale: TensorMeta, tracker: TensorMeta, overflow: TensorMeta) -> Launch:
    """update_scale_(scale, tracker, overflow, growth, backoff, interval): after a step, in place.

    An infinity was found: scale *= backoff.  Else `tracker` counts, and with `interval` steps in a
    row scale *= growth, as long as that is finite.
    """
    views = (
        _one_number("update_scale_: scale", scale, float32),
        _one_number("update_scale_: tracker", tracker, int32),
        _one_number("update_scale_: overflow", overflow, float32),
    )
    return Launch((), _update_body, views)
