"""Gradients unscaled on CUDA."""

from __future__ import annotations

import numpy as np
from numba import cuda

from flowvm.cuda.launch import CudaLaunch, KernelStep, Operand
from flowvm.launch import GRAIN, Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import flat_step
from flowvm.ops.scalar.functions import isfinite

Metas = tuple[TensorMeta, ...]


def _clear(overflow: Array) -> None:
    for k in range(cuda.grid(1), len(overflow), cuda.gridsize(1)):
        overflow[k] = 0


def _unscale(overflow: Array, g: Array, scale: Array) -> None:
    """Threads that find an infinity all write the same number."""
    inverse = np.float32(1.0 / np.float64(scale[0]))
    for i in range(cuda.grid(1), len(g), cuda.gridsize(1)):
        x = g[i]
        if not isfinite(x):
            overflow[i // GRAIN] = 1
        g[i] = x * inverse


def unscale(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """A gradient divided by the scale, and where it was not finite."""
    overflow, g, scale = (Operand(k, view) for k, view in enumerate(launch.views))
    steps: tuple[KernelStep, ...] = (flat_step(_clear, overflow.view.shape[0], overflow),)
    if g.view.shape[0] > 0:
        steps += (flat_step(_unscale, g.view.shape[0], overflow, g, scale),)
    return CudaLaunch(launch.outputs, steps)
