"""The plan of a convolution as a matrix product: its windows are the columns, of several samples.

Strips (`conv_plan`) pack the weights and compute a plane's padding too, which is little beside a
plane of a thousand pixels and most of the work beside one of four.  Here the matrix of windows is
built, a block of columns at a time, and multiplied by the tiles of matrix products, which read the
weights where they lie:

    forward     out[o, q]    = sum over (c, tap) of weight[o, (c, tap)] * windows[(c, tap), q]
    by input    w'[(c, tap), q] = sum over o of weight[o, (c, tap)] * g[o, q], each added to its
                pixel, tap after tap
    by weight   out[o, (c, tap)] = sum over q of g[o, q] * windows[(c, tap), q]
    turned      forward with the gradient's windows and the weights turned: by the input, too, where
                the stride is 1 and columns are so many that turning weights is little beside them

A column q is a position of a sample; a *block* of columns is `segments` whole samples or a part of
one.  Which pixel a window has for a tap is a table of a block: (taps, `width`) numbers.

Everything here depends on shapes alone, and so does every result.

Annotations are evaluated, as in `conv_plan`.
"""

import math
from typing import NamedTuple

from flowvm.launch import ARENA_BYTES
from flowvm.ops.declare.cpu.vector_code import registers
from flowvm.ops.planes.cpu.conv_plan import Shape
from flowvm.ops.products.cpu.gemm_kernels import TRANSPOSED
from flowvm.ops.products.cpu.gemm_plan import CHUNK, SCRATCH, cache_bytes, conflicts
from flowvm.ops.products.cpu.tile import tile_functions
from flowvm.ops.products.cpu.tile_shape import tile_shape

COLUMNS = 256  # of a block, about
DEEP = 512  # of a block's depth, at most
LARGE = 2 * CHUNK  # multiply-adds from which several threads take part
UNITS = 4  # that are enough for several threads
SOME = 64  # channels that are laid out by a unit of the first phase
STAGE = 192 << 10  # bytes of sums that wait for their place, and of weights packed for them
SUMS = 1 << 20  # bytes of forward sums that wait for their place
LINE = 24  # weights by the input are packed for as many panels as these have lines of the tile
NEAR = 64  # of the depth by the input, multiplied at a time if weights are read where they lie
FORWARD, INPUT, WEIGHT, TURNED = 0, 1, 2, 3  # directions


class Windows(NamedTuple):
    """The numbers of `conv_windows`: the geometry of a convolution, its blocks, the tile."""

    samples: int
    groups: int
    channels: int
    outputs: int
    d: int
    h: int
    w: int
    od: int
    oh: int
    ow: int
    kd: int
    kh: int
    kw: int
    sd: int
    sh: int
    sw: int
    pd: int
    ph: int
    pw: int
    dd: int
    dh: int
    dw: int
    taps: int
    space: int  # pixels of a plane, all its depth
    places: int  # positions of a sample
    segments: int  # samples of a block of columns
    span: int  # positions of each
    parts: int  # blocks that a sample's positions are cut into
    blocks: int  # of columns, in all
    width: int  # columns of a block, filled up to whole panels
    pitch: int  # elements from a row of windows or sums to the next, if they are no panels
    shared: int  # windows are built in a phase of their own
    packed: int  # weights are copied or packed
    turned: int  # weights' input and output channels are exchanged, in a phase of its own
    staged: int  # sums are not made where they belong
    direct: int  # a window is a pixel, and the next one the pixel behind it
    deep: int  # of the depth, multiplied at a time
    high: int  # rows of the left side that stay in the second cache while columns pass
    some: int  # rows that a unit of the first phase lays out
    tall: int  # rows of weights (forward), channels of them (by input), columns (by weight) of a
    down: int  # unit, and how many units these are
    mr: int  # the tile
    nr: int
    lanes: int
    size: int  # bytes of an element; then as `gemm_kernels.Plan` has them
    stored: int
    pack_b: int
    b_step: int
    b_column: int
    tile: int
    copy: int
    transpose: int

    @property
    def chunks(self) -> int:
        """Units of the first phase that lay out windows or gradients, for each of their blocks."""
        rows = self.channels if self.shared else self.outputs
        return -(-rows // self.some)

    @property
    def turns(self) -> int:
        """Units of the first phase that turn weights."""
        return self.groups * -(-self.outputs // self.some) if self.turned else 0

    @property
    def weights(self) -> int:
        """Bytes of turned weights, with which scratch begins."""
        return self.turned * _up(
            self.groups * self.outputs * self.channels * self.taps * self.size, 64
        )


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _pitch(elements: int, lanes: int, size: int) -> int:
    """Elements from a row to the next: rows do not share the sets of a cache."""
    return elements + (lanes if elements * size % 512 == 0 else 0)


def is_pixels(s: Shape) -> bool:
    """Return True if windows are the input's pixels as they lie."""
    return s.kernel == s.stride == (1, 1, 1) and s.padding == (0, 0, 0)


def _turned(s: Shape) -> Shape:
    """The convolution of the gradient that is the gradient by the input; the stride is 1."""
    pad_d, pad_h, pad_w = s.padding
    gap_d, gap_h, gap_w = s.dilation
    return s._replace(
        channels=s.outputs, outputs=s.channels, input=s.output, output=s.input,
        padding=(-pad_d, -pad_h, -pad_w), dilation=(-gap_d, -gap_h, -gap_w),
    )  # fmt: skip


class WindowsLaunch(NamedTuple):
    """The facts of a launch beside its body and operands."""

    plan: Windows
    phases: tuple[tuple[int, int], ...]  # (units, grain)
    scratch: int
    arena: int


def _cut(s: Shape, way: int, columns: int) -> tuple[int, int, int, int]:
    """Samples of a block, positions of each, blocks of a sample, blocks in all."""
    places = math.prod(s.output)
    if 2 * places > columns and way != INPUT:
        parts = -(-places // columns)
        return 1, -(-places // parts), parts, s.samples * parts
    segments = max(1, min(s.samples, columns // places))
    blocks = -(-s.samples // segments)
    return -(-s.samples // blocks), places, 1, blocks


def windows_of(s: Shape, dtype: str, way: int) -> WindowsLaunch | None:
    """The plan of a direction; None if it has nothing to do, or its memory is too much."""
    tile, size = tile_shape(dtype), (4 if dtype == "float32" else 8)
    turned = way == TURNED
    if turned:
        s, way = _turned(s), FORWARD
    taps, space, places = (math.prod(x) for x in (s.kernel, s.input, s.output))
    products = s.samples * s.groups * s.outputs * s.channels * taps * places
    if products == 0 or min(*s.output, *s.input) < 1:
        return None
    if s.samples * s.groups * s.channels * space >= 1 << 31:
        return None
    segments, span, parts, blocks = _cut(s, way, COLUMNS if size == 4 else COLUMNS // 2)
    width = _up(segments * span, tile.columns)
    pitch = _pitch(width, tile.lanes, size)
    narrow = tile.columns if registers().bytes < 64 else tile.rows
    depth = {FORWARD: s.channels * taps, INPUT: s.outputs, WEIGHT: segments * span}[way]
    deep = max(8, min(cache_bytes(1) * 3 // 4 // (narrow * size), DEEP) // 8 * 8)
    deep = _up(-(-depth // -(-depth // deep)), 4) if way != WEIGHT else depth
    packed = int(way == INPUT and segments * span > LINE // tile.rows * tile.columns)
    if way == FORWARD and width >= 4 * tile.columns:  # as products copy theirs
        packed = int(conflicts(depth * size, tile.rows))
    high = max(tile.rows, cache_bytes(2) // 4 // (deep * size) // tile.rows * tile.rows)
    if way == INPUT and not packed:
        deep = min(deep, NEAR)
    rows = {FORWARD: s.outputs, INPUT: s.channels, WEIGHT: s.channels * taps}[way]
    step = {FORWARD: tile.rows, INPUT: 1, WEIGHT: tile.columns}[way]
    alone = s.groups * (1 if way == WEIGHT else blocks)
    if way == FORWARD:
        most = rows if segments == 1 else max(step, SUMS // (pitch * size) // step * step)
    elif way == INPUT:
        most = max(1, STAGE // (taps * (pitch + packed * deep) * size))
    else:
        most = max(step, STAGE // (pitch * size) // step * step)
    units = UNITS if products > LARGE else 1
    tall = min(rows, most, _up(-(-rows // max(1, -(-units // alone))), step))
    down = -(-rows // tall)
    tall = min(rows, _up(-(-rows // down), step))
    down = -(-rows // tall)
    shared = int(way == FORWARD and down > 1)
    tile_numbers = tile.rows, tile.columns, tile.lanes
    plan = Windows(
        *s.flat, taps, space, places, segments, span, parts, blocks, width, pitch, shared,
        packed, int(turned), int(segments > 1), int(is_pixels(s)), deep, high, SOME, tall, down,
        *tile_numbers, size, size, TRANSPOSED, 1, pitch, 0, 0, 0,
    )  # fmt: skip
    return _launched(plan, way, alone * down, products)


def with_functions(p: Windows, dtype: str, way: int) -> Windows:
    """A plan with the addresses of what it calls, which is compiled if it was not yet."""
    more = {INPUT: {"copy"}, WEIGHT: {"transpose"}}.get(way, set())
    functions = tile_functions(dtype, {"tile", *more})
    return p._replace(tile=functions.tile, copy=functions.copy, transpose=functions.transpose)


def table_bytes(p: Windows) -> int:
    """Bytes of a block's table in the arena."""
    return _up(4 * p.taps * p.width, 64)


def _launched(p: Windows, way: int, units: int, products: int) -> WindowsLaunch | None:
    """The memory and the phases of a plan."""
    own = units, max(1, CHUNK // max(1, products // units))
    arena = table_bytes(p)
    if way == FORWARD:
        arena += (0 if p.shared else p.deep * p.width * p.size) + 128
        arena += p.tall * p.pitch * p.size if p.staged else 0
        arena += p.high * p.deep * p.size if p.packed else 0
        blocks = p.groups * p.blocks if p.shared else 0
        scratch = p.weights + blocks * p.channels * p.taps * p.width * p.size
        first = p.turns + blocks * p.chunks, p.channels * p.taps * max(p.width, p.some)
    elif way == INPUT:
        arena += _input_bytes(p)
        scratch = p.groups * p.blocks * p.outputs * p.pitch * p.size
        first = p.groups * p.blocks * p.chunks, p.outputs * p.width
    else:
        arena += 2 * _up(p.tall, p.nr) * p.pitch * p.size + 128
        scratch = p.groups * p.outputs * depth_pitch(p) * p.size
        first = p.groups * p.chunks, p.outputs * p.samples * p.places
    if arena > ARENA_BYTES or scratch > SCRATCH:
        return None
    if not scratch:
        return WindowsLaunch(p, (own,), 0, arena)
    grain = max(1, (CHUNK >> 4) * p.chunks // max(1, first[1]))
    return WindowsLaunch(p, ((first[0], grain), own), scratch, arena)


def depth_pitch(p: Windows) -> int:
    """Elements from a row of gradients to the next, which has all samples' positions."""
    return _pitch(_up(p.samples * p.places, p.lanes), p.lanes, p.size)


def _input_bytes(p: Windows) -> int:
    """Bytes of packed weights, products and a plane of sums for each sample and some to spare."""
    packed = _up(p.tall * p.taps, p.mr) * p.deep if p.packed else 0
    sums = p.segments * p.space + p.width
    return (packed + p.tall * p.taps * p.pitch + sums) * p.size + 192
