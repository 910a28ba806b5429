"""The rules and kernels of `interpolate`: a thread for each element of the result.

As on the CPU an axis is two tables, in scratch memory: for each place of the result its taps'
places in the input, and their weights.  Backward, the places of the result that have one place of
the input as their tap k lie together, because places grow along an axis; `begins` says where.

    places, weights   [taps][out], one axis behind the other
    begins            [taps][in + 1], likewise
"""

from __future__ import annotations

from numba import cuda

from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Operand, Param
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import consts, flat_step, operands, reserve, row_step, wide
from flowvm.ops.planes.cpu.resize_kernels import Sizes, write_place

Metas = tuple[TensorMeta, ...]


# --- kernels ------------------------------------------------------------------------------------


def _tables(places: Array, weights: Array, t: Sizes) -> None:
    i, nd = cuda.grid(1), t.taps_d * t.od
    nh = nd + t.taps_h * t.oh
    while i < t.od + t.oh + t.ow:
        if i < t.od:
            write_place(places, weights, i, (t.d, t.od), t.step_d, t.taps_d, t)
        elif i < t.od + t.oh:
            k, size = i - t.od, (t.h, t.oh)
            write_place(places[nd:], weights[nd:], k, size, t.step_h, t.taps_h, t)
        else:
            k, size = i - t.od - t.oh, (t.w, t.ow)
            write_place(places[nh:], weights[nh:], k, size, t.step_w, t.taps_w, t)
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


def _turn(begins: Array, places: Array, t: Sizes) -> None:
    d, h, w, od, oh, ow = t.d, t.h, t.w, t.od, t.oh, t.ow
    taps_d, taps_h = t.taps_d, t.taps_h
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


def _nearest(out: Array, x: Array, places: Array, rows: int, t: Sizes, lanes: int) -> None:
    d, h, w, od, oh, ow = t.d, t.h, t.w, t.od, t.oh, t.ow
    lane, row = cuda.threadIdx.x % lanes, cuda.grid(1) // lanes
    columns = places[od + oh :]
    while row < rows:
        plane, z, y = row // (od * oh), row // oh % od, row % oh
        line = ((plane * d + places[z]) * h + places[od + y]) * w
        for k in range(lane, ow, lanes):
            out[row * ow + k] = x[line + columns[k]]
        row += cuda.gridsize(1) // lanes


def _resize(
    out: Array, x: Array, places: Array, weights: Array, rows: int, t: Sizes, lanes: int
) -> None:
    d, h, w, od, oh, ow = t.d, t.h, t.w, t.od, t.oh, t.ow
    taps_d, taps_h, taps_w = t.taps_d, t.taps_h, t.taps_w
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
    out: Array, g: Array, weights: Array, begins: Array, rows: int, t: Sizes, lanes: int
) -> None:
    d, h, w, od, oh, ow = t.d, t.h, t.w, t.od, t.oh, t.ow
    taps_d, taps_h, taps_w = t.taps_d, t.taps_h, t.taps_w
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
        arrays, self.scratch = reserve((real, entries), ("int32", entries), ("int32", turned))
        self.weights, self.places, self.begins = arrays
        self.fill = flat_step(_tables, t.od + t.oh + t.ow, self.places, self.weights, Const(t))
        self.turned = turned


def _arrays(out: TensorMeta, x: TensorMeta) -> tuple[Operand, Operand]:
    return Operand(0, View(out.dtype, (out.numel,))), Operand(1, View(x.dtype, (x.numel,)))


def _launched(launch: Launch, tables: _Tables, *steps: KernelStep) -> CudaLaunch:
    if not launch.outputs[0].numel:
        return CudaLaunch(launch.outputs, ())
    return CudaLaunch(launch.outputs, (tables.fill, *steps), tables.scratch)


def nearest(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """One element each, as it is."""
    t: Sizes = attrs[0]
    tables = _Tables(t, "float32")
    rows = launch.outputs[0].numel // t.ow
    arrays: tuple[Param, ...] = (*operands(*launch.views), tables.places)
    step = row_step(_nearest, rows, t.ow, *arrays, *consts(rows, t))
    return _launched(launch, tables, step)


def resize(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Weighted sums of the taps."""
    (out,), t = launch.outputs, attrs[0]
    tables = _Tables(t, out.dtype.name)
    rows = out.numel // t.ow
    arrays: tuple[Param, ...] = *_arrays(out, metas[0]), tables.places, tables.weights
    return _launched(launch, tables, row_step(_resize, rows, t.ow, *arrays, *consts(rows, t)))


def resize_back(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The gradient of both."""
    (out,), t = launch.outputs, attrs[0]
    tables = _Tables(t, out.dtype.name)
    rows = out.numel // t.w
    arrays: tuple[Param, ...] = *_arrays(out, metas[0]), tables.weights, tables.begins
    turn = flat_step(_turn, tables.turned, tables.begins, tables.places, Const(t))
    back = row_step(_resize_back, rows, t.w, *arrays, *consts(rows, t))
    return _launched(launch, tables, turn, back)
