"""The rules of convolution: a matrix of windows, made in scratch memory, and cuBLAS.

    output             weight (O, C k) times windows (C k, P), for each sample and group
    input's gradient   windows = weight' (C k, O) times g (O, P), then added up into the input
    weight's gradient  g (O, N P) times windows' (N P, C k): one long product for each group

The matrix is made for as many samples at a time as fit in WINDOWS bytes; for less than one sample,
for some positions or some channels.  A kernel of one element needs no matrix, and one channel a
group is computed directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from flowvm.cuda import options
from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Step, blocks_for
from flowvm.launch import Launch
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import BLOCK, consts, flat_step, most_blocks, row_step, threads
from flowvm.ops.planes.cpu.conv_plan import Shape
from flowvm.ops.planes.cuda.conv_kernels import (
    Columns,
    biased,
    direct,
    direct_back,
    direct_weight,
    gathered,
    regrouped,
    unrolled,
)
from flowvm.ops.products.cuda.gemm import Matrices, Place, Size, multiply, zeros

WINDOWS = 256 << 20  # bytes of the matrix of windows


class _Sizes:
    """The sizes of a convolution, the places of its operands and scratch, and its steps."""

    def __init__(self, s: Shape, launch: Launch, metas: tuple[TensorMeta, ...]) -> None:
        self.s = s
        self.dtype = metas[0].dtype
        self.inputs, self.outputs = s.groups * s.channels, s.groups * s.outputs
        self.taps = math.prod(s.kernel)
        self.space, self.places = math.prod(s.input), math.prod(s.output)
        self.depth = s.channels * self.taps  # rows of a group's windows
        self.most = max(1, WINDOWS // self.dtype.itemsize)
        (out,) = launch.outputs
        self.operands = [Place(self.dtype, k) for k in range(1 + len(metas))]
        self.sizes = [m.numel for m in (out, *metas)]
        self.windows = Place(self.dtype, None)
        self.steps: list[Step] = []
        self.scratch = 0

    @property
    def pointwise(self) -> bool:
        """True if the input itself is the matrix of windows."""
        s = self.s
        return self.taps == 1 and set(s.stride) == {1} and set(s.padding) == {0}

    @property
    def single(self) -> bool:
        """True if each of several groups has one channel."""
        return self.s.channels == 1 and self.s.groups > 1

    def array(self, k: int) -> Any:
        """Operand k, whole."""
        return self.operands[k].array(self.sizes[k])

    @property
    def bias(self) -> Any:
        """Return the bias; an array of no elements if there is none."""
        return self.array(3) if len(self.sizes) > 3 else self.operands[0].array(0)

    def reserve(self, elements: int) -> Place:
        """Reserve scratch memory."""
        place = Place(self.dtype, None, self.scratch)
        self.scratch += -(-elements * self.dtype.itemsize // 256) * 256
        return place

    def finish(self, launch: Launch) -> CudaLaunch:
        """The launch of the steps so far."""
        return CudaLaunch(launch.outputs, tuple(self.steps), self.scratch)


def windows_step(s: Shape, to: Place, x: Place, samples: int, part: Columns) -> KernelStep:
    """Make some columns of the matrix of windows of some samples."""
    inputs, taps = s.groups * s.channels, math.prod(s.kernel)
    rows = samples * inputs * taps
    last = (samples - 1) * part.sample_pitch + (inputs * taps - 1) * part.row_pitch
    arrays = to.array(last + part.length), x.array(samples * inputs * math.prod(s.input))
    return row_step(unrolled, rows, part.length, *arrays, *consts(s.flat, part, rows))


def _begin(c: _Sizes, channels: int, length: int) -> float:
    """Give the output its bias, if there is one; return the output's factor for added products."""
    if len(c.sizes) < 4:
        return 0.0
    rows = c.sizes[0] // max(1, length)
    numbers = consts(rows, length)
    c.steps.append(row_step(biased, rows, length, c.array(0), c.operands[3].array(channels),
                            *numbers))  # fmt: skip
    return 1.0


def _nothing(c: _Sizes, channels: int, length: int) -> None:
    """The result where there is nothing to multiply."""
    if _begin(c, channels, length) == 0.0:
        c.steps.append(zeros(c.operands[0], c.sizes[0]))


def _grouped(
    c: _Sizes, samples: int, out: Matrices, a: Matrices, b: Matrices, size: tuple[int, int, int],
    beta: float, group_steps: tuple[int, int, int],
) -> None:  # fmt: skip
    """The products of `samples` samples (the matrices' steps) and all groups: calls for the fewer
    of both, each with the others as its batch.
    """
    groups, sides = c.s.groups, (out, a, b)
    by_group = samples >= groups
    for index in range(groups if by_group else samples):
        placed = []
        for side, group_step in zip(sides, group_steps, strict=True):
            apart, inside = (group_step, side.step) if by_group else (side.step, group_step)
            placed.append(side._replace(place=side.place.moved(index * apart), step=inside))
        count = samples if by_group else groups
        to, x, y = placed
        c.steps.append(_product(to, x, y, Size(*size, count), beta))


def _product(out: Matrices, a: Matrices, b: Matrices, size: Size, beta: float) -> Step:
    return multiply(out, a, b, size, 1.0, beta, tf32=options.convolution.allow_tf32)


# --- output -------------------------------------------------------------------------------------


def conv(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """input, weight and perhaps bias to output."""
    s: Shape = launch.plan
    c = _Sizes(s, launch, metas)
    if not c.sizes[0]:
        return c.finish(launch)
    if not c.sizes[1] or not c.depth:
        _nothing(c, c.outputs, c.places)
    elif c.single:
        _direct(c, direct, c.sizes[0] // s.output[2], s.output[2])
    else:
        beta = _begin(c, c.outputs, c.places)
        for first, samples, at, count in _parts(c):
            _forward(c, first, samples, at, count, beta)
    return c.finish(launch)


def _direct(c: _Sizes, kernel: Callable[..., object], rows: int, length: int) -> None:
    arrays = *(c.array(k) for k in (0, 1, 2)), c.bias
    c.steps.append(row_step(kernel, rows, length, *arrays, *consts(c.s.flat, rows)))


def _parts(c: _Sizes) -> Iterator[tuple[int, int, int, int]]:
    """Samples (first, how many) and positions (first, how many) whose windows are made together."""
    rows = c.inputs * c.taps
    if c.pointwise:
        yield 0, c.s.samples, 0, c.places
    elif rows * c.places <= c.most:
        each = min(c.s.samples, c.most // (rows * c.places))
        c.scratch = -(-each * rows * c.places * c.dtype.itemsize // 256) * 256
        for first in range(0, c.s.samples, each):
            yield first, min(each, c.s.samples - first), 0, c.places
    else:
        each = max(1, c.most // rows)
        c.scratch = -(-rows * each * c.dtype.itemsize // 256) * 256
        for first in range(c.s.samples):
            for at in range(0, c.places, each):
                yield first, 1, at, min(each, c.places - at)


def _forward(c: _Sizes, first: int, samples: int, at: int, count: int, beta: float) -> None:
    s, rows = c.s, c.inputs * c.taps
    x = c.operands[1].moved(first * c.inputs * c.space)
    windows = x
    if not c.pointwise:
        windows = c.windows
        c.steps.append(
            windows_step(s, windows, x, samples, Columns(at, count, count, rows * count))
        )
    out = c.operands[0].moved(first * c.outputs * c.places + at)
    _grouped(
        c, samples, Matrices(out, c.places, 1, c.outputs * c.places),
        Matrices(c.operands[2], c.depth, 1), Matrices(windows, count, 1, rows * count),
        (s.outputs, count, c.depth), beta,
        (s.outputs * c.places, s.outputs * c.depth, c.depth * count),
    )  # fmt: skip


# --- the input's gradient -------------------------------------------------------------------------


def conv_input(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """The output's gradient, weight and perhaps a bias to the input's gradient."""
    s: Shape = launch.plan
    c = _Sizes(s, launch, metas)
    if not c.sizes[0]:
        return c.finish(launch)
    if not c.sizes[1] or not c.sizes[2]:
        _nothing(c, c.inputs, c.space)
    elif c.single:
        _direct(c, direct_back, c.sizes[0] // s.input[2], s.input[2])
    elif c.pointwise:
        beta = _begin(c, c.inputs, c.space)
        _spread(c, c.operands[0], 0, s.samples, 0, c.inputs, beta)
    else:
        for first, samples, channel, channels in _channel_parts(c):
            _spread(c, c.windows, first, samples, channel, channels, 0.0)
            _gather(c, first, samples, channel, channels)
    return c.finish(launch)


def _channel_parts(c: _Sizes) -> Iterator[tuple[int, int, int, int]]:
    """Samples and channels whose windows are made together: all channels, or some of one group."""
    one = c.taps * c.places
    if c.inputs * one <= c.most:
        each = min(c.s.samples, c.most // (c.inputs * one))
        c.scratch = -(-each * c.inputs * one * c.dtype.itemsize // 256) * 256
        for first in range(0, c.s.samples, each):
            yield first, min(each, c.s.samples - first), 0, c.inputs
    else:
        each = min(c.s.channels, max(1, c.most // one))
        c.scratch = -(-each * one * c.dtype.itemsize // 256) * 256
        for first in range(c.s.samples):
            for group in range(c.s.groups):
                for channel in range(0, c.s.channels, each):
                    channels = min(each, c.s.channels - channel)
                    yield first, 1, group * c.s.channels + channel, channels


def _spread(
    c: _Sizes, to: Place, first: int, samples: int, channel: int, channels: int, beta: float
) -> None:
    """weight' times g: the windows of the input's gradient."""
    s, one = c.s, c.taps * c.places
    group, inside = divmod(channel, s.channels)
    g = c.operands[1].moved((first * s.groups + group) * s.outputs * c.places)
    weight = c.operands[2].moved(group * s.outputs * c.depth + inside * c.taps)
    each = min(channels, s.channels)
    out = Matrices(to, c.places, 1, channels * one)
    a = Matrices(weight, 1, c.depth)
    b = Matrices(g, c.places, 1, c.outputs * c.places)
    size = each * c.taps, c.places, s.outputs
    if channels == c.inputs:
        steps = each * one, s.outputs * c.depth, s.outputs * c.places
        _grouped(c, samples, out, a, b, size, beta, steps)
    else:
        c.steps.append(_product(out, a, b, Size(*size, samples), beta))


def _gather(c: _Sizes, first: int, samples: int, channel: int, channels: int) -> None:
    total = samples * channels * c.space
    to = c.operands[0].moved((first * c.inputs + channel) * c.space)
    reach = ((samples - 1) * c.inputs + channels) * c.space
    columns = c.windows.array(samples * channels * c.taps * c.places)
    arrays = to.array(reach), columns, c.bias
    numbers = consts(c.s.flat, total, channels, channel)
    c.steps.append(flat_step(gathered, total, *arrays, *numbers))


# --- the weight's gradient ------------------------------------------------------------------------


def conv_weight(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """The output's gradient and the input to the weight's gradient."""
    s: Shape = launch.plan
    c = _Sizes(s, launch, metas)
    if not c.sizes[0]:
        return c.finish(launch)
    if not c.sizes[1] or not c.sizes[2]:
        c.steps.append(zeros(c.operands[0], c.sizes[0]))
    elif c.single:
        c.steps.append(_direct_weight(c))
    else:
        _weight(c)
    return c.finish(launch)


def _direct_weight(c: _Sizes) -> KernelStep:
    s, block = c.s, threads(BLOCK)
    dtype = "float64" if c.dtype.name == "float64" else "float32"
    params = (*(c.array(k) for k in range(3)), Const(s.flat))
    grid = blocks_for(c.outputs * c.taps, 1, most_blocks())
    return KernelStep(direct_weight(dtype), params, grid, (block, 1, 1))


def _weight(c: _Sizes) -> None:
    s, rows = c.s, c.inputs * c.taps
    each = max(1, min(s.samples, c.most // max(1, rows * c.places)))
    plain = c.pointwise and s.samples == 1
    whole = plain or rows * c.places <= c.most
    count = c.places if whole else max(1, c.most // rows)
    windows = c.operands[2] if plain else c.reserve(each * rows * count)
    g = c.reserve(each * c.outputs * c.places) if each > 1 else c.operands[1]
    beta = 0.0
    for first in range(0, s.samples, each):
        samples = min(each, s.samples - first)
        source = c.operands[1].moved(first * c.outputs * c.places)
        if each > 1:
            _regroup(c, g, source, samples)
        for at in range(0, c.places, count):
            length = samples * min(count, c.places - at)
            if not plain:
                x = c.operands[2].moved(first * c.inputs * c.space)
                part = Columns(at, length // samples, length, length // samples)
                c.steps.append(windows_step(s, windows, x, samples, part))
            own, pitch = (g if each > 1 else source).moved(at), samples * c.places
            out = Matrices(c.operands[0], c.depth, 1, s.outputs * c.depth)
            a = Matrices(own, pitch, 1, s.outputs * pitch)
            b = Matrices(windows, 1, length, c.depth * length)
            size = Size(s.outputs, c.depth, length, s.groups)
            c.steps.append(_product(out, a, b, size, beta))
            beta = 1.0


def _regroup(c: _Sizes, to: Place, source: Place, samples: int) -> None:
    """Samples of channels as channels of samples."""
    lines = samples * c.outputs
    arrays = to.array(lines * c.places), source.array(lines * c.places)
    numbers = consts(lines, c.outputs, c.places)
    c.steps.append(row_step(regrouped, lines, c.places, *arrays, *numbers))
