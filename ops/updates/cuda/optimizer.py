"""Optimizer updates on CUDA: one launch for each parameter, or in a graph for all of them.

What follows from the step's numbers alone (bias corrections and the like, in float64) is worked out
by one thread of each block; the elements' arithmetic is `flowvm.ops.updates.optimizer`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from flowvm.cuda.launch import CudaLaunch, KernelStep, Operand, Param, Scalar
from flowvm.launch import GRAIN, Launch
from flowvm.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import consts, elements_step, flat_step, operands
from flowvm.ops.scalar.functions import isfinite
from flowvm.ops.updates.optimizer import (
    adam_element,
    adam_numbers,
    amsgrad_element,
    momentum_element,
    momentum_numbers,
    nesterov_element,
    sgd_element,
)

__all__ = ["accumulate", "adam", "amsgrad", "momentum", "sgd", "unscale"]

Array = Any
Metas = tuple[TensorMeta, ...]


def _step(launch: Launch, part: Callable[..., None], kinds: str) -> CudaLaunch:
    """part(start, stride, operands..., consts..., dynamic scalars...), a thread for each element,
    or, in a graph, with those of other parameters (`flowvm.ops.updates.cuda.merging`).
    """
    scalars = tuple(Scalar(i, kind) for i, kind in enumerate(kinds))
    params: tuple[Param, ...] = (*operands(*launch.views), *consts(*launch.consts), *scalars)
    return CudaLaunch(launch.outputs, (elements_step(part, launch.views[0].shape[0], *params),))


# --- SGD ------------------------------------------------------------------------------------------


def _sgd(
    start: int, stride: int, p: Array, g: Array, sign: float, lr: float, weight_decay: float
) -> None:
    real = p.dtype.type
    rate, decay, direction = real(lr), real(weight_decay), real(sign)
    for i in range(start, len(p), stride):
        p[i] = sgd_element(p[i], g[i], rate, direction, decay)


def sgd(launch: Launch, metas: Metas, attrs: tuple[Any, ...]) -> CudaLaunch:
    """`sgd_step_`."""
    return _step(launch, _sgd, "ff")


def _momentum(
    start: int,
    stride: int,
    p: Array,
    g: Array,
    buf: Array,
    nesterov: int,
    sign: float,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    first: int,
) -> None:
    real = p.dtype.type
    rate, decay, direction = real(lr), real(weight_decay), real(sign)
    kept, taken = momentum_numbers(momentum, dampening, first)
    keep, take, ahead = real(kept), real(taken), real(momentum)
    for i in range(start, len(p), stride):
        if nesterov != 0:
            w, b = nesterov_element(p[i], g[i], buf[i], rate, direction, decay, keep, take, ahead)
        else:
            w, b = momentum_element(p[i], g[i], buf[i], rate, direction, decay, keep, take)
        p[i], buf[i] = w, b


def momentum(launch: Launch, metas: Metas, attrs: tuple[Any, ...]) -> CudaLaunch:
    """`sgd_momentum_step_`."""
    return _step(launch, _momentum, "ffffi")


# --- Adam -----------------------------------------------------------------------------------------


def _prepare(
    held: Array,
    decoupled: int,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    step: int,
) -> None:
    """The numbers of the step, in shared memory; all threads call it."""
    if cuda.threadIdx.x == 0:
        held[0], held[1], held[2], held[3], held[4], held[5], held[6] = adam_numbers(
            decoupled != 0, lr, beta1, beta2, weight_decay, step
        )
    cuda.syncthreads()


def _adam(
    start: int,
    stride: int,
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    decoupled: int,
    sign: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> None:
    held = cuda.shared.array(7, p.dtype)
    _prepare(held, decoupled, lr, beta1, beta2, weight_decay, step)
    direction, floor = p.dtype.type(sign), p.dtype.type(eps)
    shrink, decay, new1, keep2 = held[0], held[1], held[2], held[3]
    new2, size, spread = held[4], held[5], held[6]
    for i in range(start, len(p), stride):
        p[i], m[i], v[i] = adam_element(
            p[i], g[i], m[i], v[i],
            shrink, decay, new1, keep2, new2, size, spread, direction, floor,
        )  # fmt: skip


def adam(launch: Launch, metas: Metas, attrs: tuple[Any, ...]) -> CudaLaunch:
    """`adam_step_`."""
    return _step(launch, _adam, "fffffi")


def _amsgrad(
    start: int,
    stride: int,
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    top: Array,
    decoupled: int,
    sign: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> None:
    held = cuda.shared.array(7, p.dtype)
    _prepare(held, decoupled, lr, beta1, beta2, weight_decay, step)
    direction, floor = p.dtype.type(sign), p.dtype.type(eps)
    shrink, decay, new1, keep2 = held[0], held[1], held[2], held[3]
    new2, size, spread = held[4], held[5], held[6]
    for i in range(start, len(p), stride):
        p[i], m[i], v[i], top[i] = amsgrad_element(
            p[i], g[i], m[i], v[i], top[i],
            shrink, decay, new1, keep2, new2, size, spread, direction, floor,
        )  # fmt: skip


def amsgrad(launch: Launch, metas: Metas, attrs: tuple[Any, ...]) -> CudaLaunch:
    """`amsgrad_step_`."""
    return _step(launch, _amsgrad, "fffffi")


# --- gradients ------------------------------------------------------------------------------------


def _accumulate(start: int, stride: int, total: Array, g: Array) -> None:
    for i in range(start, len(total), stride):
        total[i] += g[i]


def accumulate(launch: Launch, metas: Metas, attrs: tuple[Any, ...]) -> CudaLaunch:
    """A gradient added to the one that is there."""
    return _step(launch, _accumulate, "")


def _clear(found: Array) -> None:
    for k in range(cuda.grid(1), len(found), cuda.gridsize(1)):
        found[k] = 0


def _unscale(found: Array, g: Array, scale: Array) -> None:
    """Threads that find an infinity all write the same number."""
    inverse = np.float32(1.0 / np.float64(scale[0]))
    for i in range(cuda.grid(1), len(g), cuda.gridsize(1)):
        x = g[i]
        if not isfinite(x):
            found[i // GRAIN] = 1
        g[i] = x * inverse


def unscale(launch: Launch, metas: Metas, attrs: tuple[Any, ...]) -> CudaLaunch:
    """A gradient divided by the scale, and where it was not finite."""
    found, g, scale = (Operand(k, view) for k, view in enumerate(launch.views))
    steps: tuple[KernelStep, ...] = (flat_step(_clear, found.view.shape[0], found),)
    if g.view.shape[0] > 0:
        steps += (flat_step(_unscale, g.view.shape[0], found, g, scale),)
    return CudaLaunch(launch.outputs, steps)
