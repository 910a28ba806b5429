"""The rules and kernels of pooling.

There is a thread for each window, or for each element of the input; a warp for each window of many
elements to average.

The gradient of a maximum is added up by the elements of the input, each of which looks through the
windows that it lies in, in their order; so nothing is added by two threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from flowvm.cuda.launch import CudaLaunch, Details, KernelStep, Param, blocks_for
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.error_report import OUTSIDE, report
from flowvm.ops.declare.cuda.steps import (
    BLOCK,
    consts,
    flat_step,
    most_blocks,
    operands,
    threads,
    wide,
)
from flowvm.ops.planes.cpu.pool_kernels import Divisor, Windows, _bounds

Metas = tuple[TensorMeta, ...]
WARP, EVERY_LANE = 32, 0xFFFFFFFF
LARGE = 128  # elements of a window that are worth a warp


# --- kernels ------------------------------------------------------------------------------------


def _inside(i: int, size: int, out: int, k: int, s: int, p: int, d: int) -> tuple[int, int]:
    """Window i as [start, end) without its padding, in steps of d."""
    start, end = _bounds(i, size, out, (k - 1) * d + 1 if k != 0 else 0, s, p)
    if start < 0:
        start += (d - 1 - start) // d * d
    return start, min(end, size)


def _windows_of(y: int, size: int, out: int, k: int, s: int, p: int, d: int) -> tuple[int, int]:
    """The windows [first, last) that reach over element y."""
    if k == 0:
        return y * out // size, ((y + 1) * out + size - 1) // size
    first = max(0, y + p - (k - 1) * d + s - 1) // s
    return first, min(out, (y + p) // s + 1)


def _largest(out: Array, index: Array, x: Array, t: Windows) -> None:
    h, w, oh, ow, dh, dw = t.h, t.w, t.oh, t.ow, t.dh, t.dw
    unit = cuda.grid(1)
    while unit < len(out):
        plane, i, j = unit // (oh * ow), unit // ow % oh, unit % ow
        top, bottom = _inside(i, h, oh, t.kh, t.sh, t.ph, dh)
        left, right = _inside(j, w, ow, t.kw, t.sw, t.pw, dw)
        at = top * w + left
        best = wide(x[plane * h * w + at])
        for y in range(top, bottom, dh):
            for z in range(left, right, dw):
                v = wide(x[(plane * h + y) * w + z])
                if v > best or v != v:
                    best, at = v, y * w + z
        out[unit] = out.dtype.type(best)
        index[unit] = at
        unit += cuda.gridsize(1)


def _spread(out: Array, g: Array, index: Array, t: Windows) -> None:
    """For each element of the input the sum of g over the windows whose maximum it is."""
    h, w, oh, ow = t.h, t.w, t.oh, t.ow
    unit = cuda.grid(1)
    while unit < len(out):
        plane, y, z = unit // (h * w), unit // w % h, unit % w
        top, bottom = _windows_of(y, h, oh, t.kh, t.sh, t.ph, t.dh)
        left, right = _windows_of(z, w, ow, t.kw, t.sw, t.pw, t.dw)
        total = wide(out.dtype.type(0))
        for i in range(top, bottom):
            for j in range(left, right):
                k = (plane * oh + i) * ow + j
                if index[k] == y * w + z:
                    total += wide(g[k])
        out[unit] = out.dtype.type(total)
        unit += cuda.gridsize(1)


def _picked(out: Array, x: Array, index: Array, details: Array, size: int, places: int) -> None:
    unit = cuda.grid(1)
    while unit < len(out):
        at = index[unit]
        if at < 0 or at >= size:
            report(details, OUTSIDE, at, size, -1)
        else:
            out[unit] = x[unit // places * size + at]
        unit += cuda.gridsize(1)


def _count(i: int, j: int, t: Windows, by: Divisor) -> int:
    """Return the divisor of a window's sum."""
    if by.fixed != 0:
        return by.fixed
    top, bottom = _bounds(i, t.h, t.oh, t.kh, t.sh, t.ph)
    left, right = _bounds(j, t.w, t.ow, t.kw, t.sw, t.pw)
    if by.padded == 0:
        top, bottom, left, right = max(top, 0), min(bottom, t.h), max(left, 0), min(right, t.w)
    return max(1, bottom - top) * max(1, right - left)


def _average(out: Array, x: Array, t: Windows, by: Divisor) -> None:
    h, w, oh, ow = t.h, t.w, t.oh, t.ow
    unit = cuda.grid(1)
    while unit < len(out):
        plane, i, j = unit // (oh * ow), unit // ow % oh, unit % ow
        top, bottom = _inside(i, h, oh, t.kh, t.sh, t.ph, 1)
        left, right = _inside(j, w, ow, t.kw, t.sw, t.pw, 1)
        total = wide(out.dtype.type(0))
        for y in range(top, bottom):
            for z in range(left, right):
                total += wide(x[(plane * h + y) * w + z])
        count = _count(i, j, t, by)
        out[unit] = out.dtype.type(total / np.float32(count))
        unit += cuda.gridsize(1)


def _average_warps(out: Array, x: Array, t: Windows, by: Divisor) -> None:
    """Average as `_average` does, with a warp for each window."""
    h, w, oh, ow = t.h, t.w, t.oh, t.ow
    lane, unit = cuda.threadIdx.x % WARP, cuda.grid(1) // WARP
    while unit < len(out):  # the same for all threads of a warp
        plane, i, j = unit // (oh * ow), unit // ow % oh, unit % ow
        top, bottom = _inside(i, h, oh, t.kh, t.sh, t.ph, 1)
        left, right = _inside(j, w, ow, t.kw, t.sw, t.pw, 1)
        across = max(right - left, 0)
        total = wide(out.dtype.type(0))
        for e in range(lane, max(bottom - top, 0) * across, WARP):
            total += wide(x[(plane * h + top + e // across) * w + left + e % across])
        apart = WARP // 2
        while apart > 0:
            total += cuda.shfl_xor_sync(EVERY_LANE, total, apart)
            apart //= 2
        if lane == 0:
            count = _count(i, j, t, by)
            out[unit] = out.dtype.type(total / np.float32(count))
        unit += cuda.gridsize(1) // WARP


def _average_back(out: Array, g: Array, t: Windows, by: Divisor) -> None:
    h, w, oh, ow = t.h, t.w, t.oh, t.ow
    unit = cuda.grid(1)
    while unit < len(out):
        plane, y, z = unit // (h * w), unit // w % h, unit % w
        top, bottom = _windows_of(y, h, oh, t.kh, t.sh, t.ph, 1)
        left, right = _windows_of(z, w, ow, t.kw, t.sw, t.pw, 1)
        total = wide(out.dtype.type(0))
        for i in range(top, bottom):
            for j in range(left, right):
                count = _count(i, j, t, by)
                total += wide(g[(plane * oh + i) * ow + j]) / np.float32(count)
        out[unit] = out.dtype.type(total)
        unit += cuda.gridsize(1)


# --- rules --------------------------------------------------------------------------------------


def _each(launch: Launch, kernel: Callable[..., object], *numbers: Any) -> CudaLaunch:
    """A thread for each element of the first output."""
    units = launch.outputs[0].numel
    step = flat_step(kernel, units, *operands(*launch.views), *consts(*numbers))
    return CudaLaunch(launch.outputs, (step,) if units else ())


def _area(t: Windows) -> int:
    """Return the approximate number of elements of a window."""
    return t.kh * t.kw or t.h * t.w // (t.oh * t.ow)


def largest(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The maximum of each window, and where it is."""
    return _each(launch, _largest, attrs[0])


def spread(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The gradient of `largest`."""
    windows: Windows = attrs[1]
    return _each(launch, _spread, windows)


def picked(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The elements that the indices name, and the gradient of `spread`."""
    x, index = metas
    n, units = attrs[1], launch.outputs[0].numel
    numbers = consts(math.prod(x.shape[-n:]), math.prod(index.shape[-n:]))
    step = flat_step(_picked, units, *operands(*launch.views), Details(), *numbers)
    return CudaLaunch(launch.outputs, (step,) if units else ())


def average(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The average of each window."""
    windows, _, padded, divisor = attrs
    numbers, units = (windows, Divisor(padded, divisor)), launch.outputs[0].numel
    if not units or _area(windows) < LARGE:
        return _each(launch, _average, *numbers)
    block = threads(BLOCK)
    grid = blocks_for(units, block // WARP, most_blocks())
    params: tuple[Param, ...] = (*operands(*launch.views), *consts(*numbers))
    return CudaLaunch(launch.outputs, (KernelStep(_average_warps, params, grid, (block, 1, 1)),))


def average_back(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The gradient of `average`."""
    _, windows, _, padded, divisor = attrs
    return _each(launch, _average_back, windows, Divisor(padded, divisor))
