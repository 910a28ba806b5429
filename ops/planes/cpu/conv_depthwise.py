"""The kernels of a depthwise convolution whose channels are side by side, and of both gradients.

`depthwise_plan` says what is computed, and in which order.  A unit of a convolution, or of its
input's gradient, is a block of channels of a sample; one of the weight's gradient, a block.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.compiler import jit
from flowvm.compiler.jit import llvm
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.declare.cpu.vector_code import lanes_of
from flowvm.ops.planes.cpu.conv_strips import fill_with
from flowvm.ops.planes.cpu.depthwise_plan import Depthwise
from flowvm.ops.products.cpu.tile import address, caller, tile_functions, transpose_block

if TYPE_CHECKING:
    from flowvm.ops.planes.cpu import depthwise_code
else:  # for a compilation only
    depthwise_code = lazy("flowvm.ops.planes.cpu.depthwise_code")

LOOPS_ONLY = True  # for flowvm.compiler.native: what takes time are the functions that it calls
OUTPUT, INPUT, WEIGHT = 0, 1, 2  # panels that products are added to

multiply_segments = caller(
    "iiiiiiii",
    """Products of two panels' vectors added to those of a third, inside a body.

multiply_segments(function, to, table, segments, x, x_step, y, y_step, w)

`to`: OUTPUT, y += x w; INPUT, x += y w; WEIGHT, w += x y.  Panels are addresses, steps are in
elements; a panel of weights stays at a vector for a segment.  A segment is four int32 of `table`:
where it begins in x, in y and in w, and how many vectors it has.
""",
)


@functools.cache
def _multiply(dtype: str) -> int:
    """The address of `multiply_segments` for a dtype."""
    make = functools.partial(_lowered, dtype, lanes_of(dtype))
    return jit.load(make, f"segments, {dtype}")


def _lowered(dtype: str, lanes: int) -> jit.Lowered:
    module = llvm.parse_assembly(str(depthwise_code.emit_segments(dtype, lanes)))
    return jit.Lowered([], "entry", written=(module,))


def with_addresses(p: Depthwise, dtype: str) -> Depthwise:
    """A plan with the addresses of what it calls, which is compiled if it was not yet."""
    transpose = tile_functions(dtype, {"transpose"}).transpose
    return p._replace(transpose=transpose, multiply=_multiply(dtype))


def _turn(
    to: Array, at: int, x: Array, begin: int, p: Depthwise, channels: int, count: int
) -> None:
    """`count` numbers of each of a block's channels, to as many vectors."""
    source, target = address(x) + begin * p.size, address(to) + at * p.size
    for k in range(0, count, p.lanes):
        transpose_block(
            p.transpose, source + k * p.size, count, channels, min(p.lanes, count - k),
            target + k * p.lanes * p.size, p.lanes, p.lanes,
        )  # fmt: skip


def _turn_back(
    out: Array, begin: int, x: Array, at: int, p: Depthwise, channels: int, count: int
) -> None:
    """`count` vectors, to as many numbers of each of a block's channels."""
    source, target = address(x) + at * p.size, address(out) + begin * p.size
    for k in range(0, count, p.lanes):
        rows = min(p.lanes, count - k)
        transpose_block(
            p.transpose, source + k * p.lanes * p.size, p.lanes, rows, channels,
            target + k * p.size, count, rows,
        )  # fmt: skip


def _write_table(arena: Array, p: Depthwise, segments: Array) -> Array:
    """The segments in the arena, as `multiply_segments` reads them."""
    table: Array = array_in(arena, 0, 4 * p.segments, np.int32)
    for k in range(4 * p.segments):
        table[k] = segments[k]
    return table


def _panels(arena: Array, p: Depthwise, like: Array) -> Array:
    """The panels in the arena: a vector, weights, then pixels and positions."""
    begin = (16 * p.segments + 63) // 64 * 64
    panels: Array = array_in(arena, begin, (1 + p.taps + p.space + p.places) * p.lanes, like)
    return panels


def _convolve(
    out: Array, x: Array, weight: Array, bias: Array, p: Depthwise, segments: Array, arena: Array,
    to: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute units [lo, hi) of a convolution, or of its input's gradient, of which x is read."""
    table, panels = _write_table(arena, p, segments), _panels(arena, p, out)
    lanes, size = p.lanes, p.size
    w = lanes
    pixels = w + p.taps * lanes
    places = pixels + p.space * lanes
    read, written, source, target = p.space, p.places, pixels, places
    if to == INPUT:
        read, written, source, target = p.places, p.space, places, pixels
    for unit in range(lo, hi):
        block, n = unit // p.samples, unit % p.samples
        c = block * lanes
        channels = min(lanes, p.groups - c)
        if unit == lo or n == 0:
            _turn(panels, w, weight, c * p.taps, p, channels, p.taps)
            for k in range(channels):
                panels[k] = bias[c + k] if len(bias) > 0 else out.dtype.type(0)
        _turn(panels, source, x, (n * p.groups + c) * read, p, channels, read)
        fill_with(panels[target : target + written * lanes], out.dtype.type(0))
        begin = address(panels)
        multiply_segments(
            p.multiply, to, address(table), p.segments, begin + pixels * size, p.x_step,
            begin + places * size, lanes, begin + w * size,
        )  # fmt: skip
        if len(bias) > 0:
            plus = panels[:lanes]
            for k in range(target, target + written * lanes, lanes):
                line = panels[k : k + lanes]
                for lane in range(lanes):
                    line[lane] += plus[lane]
        _turn_back(out, (n * p.groups + c) * written, panels, target, p, channels, written)


def depthwise_body(
    out: Array, x: Array, weight: Array, bias: Array, p: Depthwise, segments: Array, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute units [lo, hi) of a convolution."""
    to: Any = np.int64(OUTPUT)  # as a literal it is a type, and `_convolve` is compiled for each
    _convolve(out, x, weight, bias, p, segments, arena, to, lo, hi)


def depthwise_input_body(
    out: Array, g: Array, weight: Array, bias: Array, p: Depthwise, segments: Array, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute units [lo, hi) of the gradient by the input."""
    to: Any = np.int64(INPUT)
    _convolve(out, g, weight, bias, p, segments, arena, to, lo, hi)


def depthwise_weight_body(
    out: Array, g: Array, x: Array, p: Depthwise, segments: Array, arena: Array, lo: int, hi: int
) -> None:
    """Compute units [lo, hi) of the gradient by the weight."""
    table, panels = _write_table(arena, p, segments), _panels(arena, p, out)
    lanes, size = p.lanes, p.size
    w = lanes
    pixels = w + p.taps * lanes
    places = pixels + p.space * lanes
    begin = address(panels)
    for block in range(lo, hi):
        c = block * lanes
        channels = min(lanes, p.groups - c)
        fill_with(panels[w:pixels], out.dtype.type(0))
        for n in range(p.samples):
            _turn(panels, pixels, x, (n * p.groups + c) * p.space, p, channels, p.space)
            _turn(panels, places, g, (n * p.groups + c) * p.places, p, channels, p.places)
            multiply_segments(
                p.multiply, WEIGHT, address(table), p.segments, begin + pixels * size, p.x_step,
                begin + places * size, lanes, begin + w * size,
            )  # fmt: skip
        _turn_back(out, c * p.taps, panels, w, p, channels, p.taps)
