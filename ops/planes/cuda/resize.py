"""The rules and kernels of `interpolate`: a thread for each element of the result.

As on the CPU an axis is two tables, in scratch memory: for each place of the result its taps'
places in the input, and their weights.  Backward, the places of the result that have one place of
the input as their tap k lie together, because places grow along an axis; `begins` says where.

    places, weights   [taps][out], one axis behind the other
    begins            [taps][in + 1], likewise
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from flowvm.cuda.launch import CudaLaunch, KernelStep, Operand, Param
from flowvm.launch import Launch, View
from flowvm.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import consts, flat_step, operands, reserve, row_step, wide
from flowvm.ops.planes.cpu.resize_kernels import Sizes, write_place

__all__ = ["nearest", "resize", "resize_back"]

Array = Any
Metas = tuple[TensorMeta, ...]
Attrs = tuple[Any, ...]


# --- kernels ------------------------------------------------------------------------------------


def _tables(
    places: Array, weights: Array, d: int, h: int, w: int, od: int, oh: int, ow: int,
    step_d: float, step_h: float, step_w: float, taps_d: int, taps_h: int, taps_w: int, kind: int,
    corners: int, single: int,
) -> None:  # fmt: skip
    i, nd = cuda.grid(1), taps_d * od
    nh = nd + taps_h * oh
    while i < od + oh + ow:
        if i < od:
            write_place(places, weights, i, d, od, step_d, taps_d, kind, corners, single)
        elif i < od + oh:
            write_place(
                places[nd:], weights[nd:], i - od, h, oh, step_h, taps_h, kind, corners, single
            )
        else:
            write_place(
                places[nh:], weights[nh:], i - od - oh, w, ow, step_w, taps_w, kind, corners,
                single,
            )  # fmt: skip
        i += cuda.gridsize(1)


def _first(places: Array, start: int, m: int, j: int) -> int:
    """The first of m places from `start` on, which grow, that is j or more."""
    low, high = 0, m
    while low < high:
        middle = (low + high) // 2
        if places[start + middle] < j:
            low = middle + 1
        else:
            high = middle
    return low


def _turn(
    begins: Array, places: Array, d: int, h: int, w: int, od: int, oh: int, ow: int, taps_d: int,
    taps_h: int, taps_w: int,
) -> None:  # fmt: skip
    i = cuda.grid(1)
    ends_d = taps_d * (d + 1)
    ends_h = ends_d + taps_h * (h + 1)
    while i < len(begins):
        if i < ends_d:
            e, n, m, start = i, d, od, 0
        elif i < ends_h:
            e, n, m, start = i - ends_d, h, oh, taps_d * od
        else:
            e, n, m, start = i - ends_h, w, ow, taps_d * od + taps_h * oh
        begins[i] = _first(places, start + e // (n + 1) * m, m, e % (n + 1))
        i += cuda.gridsize(1)


def _nearest(
    out: Array, x: Array, places: Array, rows: int, d: int, h: int, w: int, od: int, oh: int,
    ow: int, lanes: int,
) -> None:  # fmt: skip
    lane, row = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    columns = places[od + oh :]
    while row < rows:
        plane, z, y = row // (od * oh), row // oh % od, row % oh
        line = ((plane * d + places[z]) * h + places[od + y]) * w
        for k in range(lane, ow, lanes):
            out[row * ow + k] = x[line + columns[k]]
        row += cuda.gridsize(1) // lanes


def _resize(
    out: Array, x: Array, places: Array, weights: Array, rows: int, d: int, h: int, w: int,
    od: int, oh: int, ow: int, taps_d: int, taps_h: int, taps_w: int, lanes: int,
) -> None:  # fmt: skip
    lane, row = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    nd = taps_d * od
    nh = nd + taps_h * oh
    while row < rows:
        plane, z, y = row // (od * oh), row // oh % od, row % oh
        for k in range(lane, ow, lanes):
            total = wide(out.dtype.type(0))
            for a in range(taps_d):
                for b in range(taps_h):
                    share = weights[a * od + z] * weights[nd + b * oh + y]
                    line = (plane * d + places[a * od + z]) * h + places[nd + b * oh + y]
                    part = wide(out.dtype.type(0))
                    for c in range(taps_w):
                        e = nh + c * ow + k
                        part += weights[e] * wide(x[line * w + places[e]])
                    total += share * part
            out[row * ow + k] = out.dtype.type(total)
        row += cuda.gridsize(1) // lanes


def _resize_back(
    out: Array, g: Array, weights: Array, begins: Array, rows: int, d: int, h: int, w: int,
    od: int, oh: int, ow: int, taps_d: int, taps_h: int, taps_w: int, lanes: int,
) -> None:  # fmt: skip
    lane, row = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    nd, to_h = taps_d * od, taps_d * (d + 1)
    nh, to_w = nd + taps_h * oh, to_h + taps_h * (h + 1)
    while row < rows:
        plane, z, y = row // (d * h), row // h % d, row % h
        for k in range(lane, w, lanes):
            total = wide(out.dtype.type(0))
            for a in range(taps_d):
                at = a * (d + 1) + z
                for i in range(begins[at], begins[at + 1]):
                    for b in range(taps_h):
                        up = to_h + b * (h + 1) + y
                        for j in range(begins[up], begins[up + 1]):
                            share = weights[a * od + i] * weights[nd + b * oh + j]
                            line = ((plane * od + i) * oh + j) * ow
                            part = wide(out.dtype.type(0))
                            for c in range(taps_w):
                                to = to_w + c * (w + 1) + k
                                for e in range(begins[to], begins[to + 1]):
                                    part += weights[nh + c * ow + e] * wide(g[line + e])
                            total += share * part
            out[row * w + k] = out.dtype.type(total)
        row += cuda.gridsize(1) // lanes


# --- rules --------------------------------------------------------------------------------------


class _Tables:
    """The tables in scratch memory, and the step that fills them."""

    def __init__(self, t: Sizes, dtype: str) -> None:
        entries = t.taps_d * t.od + t.taps_h * t.oh + t.taps_w * t.ow
        turned = t.taps_d * (t.d + 1) + t.taps_h * (t.h + 1) + t.taps_w * (t.w + 1)
        real = "float64" if dtype == "float64" else "float32"
        made, self.scratch = reserve((real, entries), ("int32", entries), ("int32", turned))
        self.weights, self.places, self.begins = made
        self.fill = flat_step(_tables, t.od + t.oh + t.ow, self.places, self.weights, *consts(*t))
        self.turned = turned


def _arrays(out: TensorMeta, x: TensorMeta) -> tuple[Operand, Operand]:
    return Operand(0, View(out.dtype, (out.numel,))), Operand(1, View(x.dtype, (x.numel,)))


def _launched(launch: Launch, made: _Tables, *steps: KernelStep) -> CudaLaunch:
    if not launch.outputs[0].numel:
        return CudaLaunch(launch.outputs, ())
    return CudaLaunch(launch.outputs, (made.fill, *steps), made.scratch)


def nearest(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """One element each, as it is."""
    t: Sizes = attrs[0]._replace(taps_d=1, taps_h=1, taps_w=1, corners=0)
    made = _Tables(t, "float32")
    rows = launch.outputs[0].numel // t.ow
    arrays: tuple[Param, ...] = (*operands(*launch.views), made.places)
    step = row_step(_nearest, rows, t.ow, *arrays, *consts(rows, *t[:6]))
    return _launched(launch, made, step)


def resize(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Weighted sums of the taps."""
    (out,), t = launch.outputs, attrs[0]
    made = _Tables(t, out.dtype.name)
    rows = out.numel // t.ow
    arrays: tuple[Param, ...] = *_arrays(out, metas[0]), made.places, made.weights
    numbers = consts(rows, *t[:6], t.taps_d, t.taps_h, t.taps_w)
    return _launched(launch, made, row_step(_resize, rows, t.ow, *arrays, *numbers))


def resize_back(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The gradient of both."""
    (out,), t = launch.outputs, attrs[0]
    made = _Tables(t, out.dtype.name)
    rows, taps = out.numel // t.w, (t.taps_d, t.taps_h, t.taps_w)
    arrays: tuple[Param, ...] = *_arrays(out, metas[0]), made.weights, made.begins
    turn = flat_step(_turn, made.turned, made.begins, made.places, *consts(*t[:6], *taps))
    back = row_step(_resize_back, rows, t.w, *arrays, *consts(rows, *t[:6], *taps))
    return _launched(launch, made, turn, back)
