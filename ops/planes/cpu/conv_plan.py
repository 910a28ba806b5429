"""The plan of a convolution: its geometry, the sizes of blocks and chunks, the layout of memory.

A convolution reads *planes* (the last two dimensions of space) and never builds the matrix of
windows.  A plane is laid out as rows of `wide` elements, its padding included, so that every tap of
the kernel is the same plane shifted, and the outputs of a plane are one line of `count` positions.
Some of these lie in the padding (`wide` - `across` of a row): they are computed and left out.
A stride splits a plane into phases, every stride-th row and column of it, which are laid out one by
one; then taps are shifts again.  Depth, the first of three dimensions, is a loop over planes.

The gradient by the input, and the transposed convolution, read the same way, each result phase for
itself: rows and columns a stride apart take part in the same taps.

The zeros at the end of a row serve as those at the start of the next.

Everything here depends on shapes alone, and so does every result (`Launch`).

Annotations are evaluated: a NamedTuple of this many fields is made faster of types than of names.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from flowvm.ops.declare.cpu.vector_code import lanes_of
from flowvm.ops.planes.cpu.conv_tile import strip_rows, tile_of

Triple = tuple[int, int, int]
STRIPS, WINDOWS, PRODUCT, TURNING, DEPTHWISE, WINOGRAD = 0, 1, 2, 3, 4, 6  # ways; see `conv_ways`
LINES = 480 << 10  # bytes of laid out planes at a time: they stay in a core's own cache
RESULTS = 192 << 10  # bytes of results that are added to
ROWS = 128  # result channels of a chunk: as many uses of what it lays out
CHUNK = 200_000  # multiply-adds of vectors that are worth a hand-over between workers
CHUNKS = 16  # chunks that are enough for several workers
NEAREST = 40 << 10  # bytes that a tile of `correlate_tile` reads: about the nearest cache
PARTIAL = 8 << 20  # bytes of partial sums of the weight's gradient


class Shape(NamedTuple):
    """A convolution from `input` to `output`, both in three dimensions of space."""

    samples: int
    channels: int  # of the input, in a group
    outputs: int  # channels of the output, in a group
    groups: int
    input: Triple
    output: Triple
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple

    @property
    def taps(self) -> int:
        """Taps in a plane."""
        return self.kernel[1] * self.kernel[2]

    @property
    def flat(self) -> "Geometry":
        """Return the geometry's numbers in the form that kernels take."""
        return Geometry(
            self.samples, self.groups, self.channels, self.outputs, *self.input, *self.output,
            *self.kernel, *self.stride, *self.padding, *self.dilation,
        )  # fmt: skip


class Geometry(NamedTuple):
    """The numbers of a `Shape`: sizes of input, output and kernel, stride, padding, dilation."""

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


def shift_of(tap: int, phase: int, stride: int, pad: int, gap: int, back: int, base: int) -> int:
    """The shift of a tap in one dimension, times the stride, for this phase of the result.

    Forward, what dividing it by the stride leaves is the phase that is read.
    """
    if back:
        return phase + pad - tap * gap - base * stride
    return tap * gap


def takes_part(shift: int, stride: int, back: int) -> bool:
    """Return True if the tap of this shift counts; a gradient's phase misses some of them."""
    return not back or shift % stride == 0


class Axis(NamedTuple):
    """One dimension of a plane: where it starts, its phases, positions and how far taps reach."""

    base: int
    results: int  # phases of the result
    sources: int  # phases of what is read
    places: int  # positions
    reach: int
    wide: int  # positions from a row to the next, if this is across a plane


def axis_of(
    size: int, out: int, kernel: int, step: int, pad: int, gap: int, back: bool = False
) -> Axis:
    """The dimension of a convolution or pooling from `size` to `out`, or of its gradient."""
    phases = range(step if back else 1)
    shifts = [
        shift_of(tap, phase, step, pad, gap, int(back), 0)
        for tap in range(kernel)
        for phase in phases
    ]
    if back:
        shifts = [shift // step for shift in shifts if takes_part(shift, step, 1)]
        base, results, sources, apart = min(shifts), step, 1, 1
        count, reach, size = -(-size // step), max(shifts) - min(shifts), out
    else:
        base, results, sources, apart = -pad, 1, 1 + max(shift % step for shift in shifts), step
        count, reach = out, (kernel - 1) * gap // step
    shared = reach  # zeros at the end of a row that are those at the start of the next
    for offset in range(base, base + sources):
        first, last = max(0, -(offset // apart)), (size - 1 - offset) // apart + 1
        shared = min(shared, first, count + reach - last)
    return Axis(base, results, sources, count, reach, count + reach - max(0, shared))


def _axis(s: Shape, dim: int, back: bool) -> Axis:
    return axis_of(
        s.input[dim], s.output[dim], s.kernel[dim], s.stride[dim], s.padding[dim],
        s.dilation[dim], back,
    )  # fmt: skip


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


class Strips(NamedTuple):
    """The numbers of `conv_strips`: sums over channels and taps for strips of positions."""

    samples: int
    groups: int
    depth: int  # channels of a group of what is read
    rows: int  # channels of a group of the result
    source_d: int
    source_h: int
    source_w: int
    result_d: int
    result_h: int
    result_w: int
    kd: int
    kh: int
    kw: int
    stride_d: int
    stride_h: int
    stride_w: int
    pad_d: int
    pad_h: int
    pad_w: int
    gap_d: int
    gap_h: int
    gap_w: int
    back: int  # whether it is the gradient by the input
    base_h: int
    base_w: int
    results_h: int
    results_w: int
    sources_h: int
    sources_w: int
    down: int  # positions of a plane: rows
    across: int  # and columns
    wide: int  # from a row to the next
    span: int  # positions of a chunk
    blocks: int  # chunks of a plane
    pitch: int  # elements laid out for a channel and phase
    channels: int  # laid out at a time
    part: int  # rows of a chunk
    parts: int  # chunks of rows
    tall: int  # rows of a panel of weights
    padded: int  # rows of a group's packed weights
    high: int  # rows of results that a chunk keeps: all, or a panel's if that is done at once
    placed: int  # whether results are stored under masks, where they belong
    lanes: int  # of a vector
    table: int  # bytes of the table of offsets

    @property
    def units(self) -> int:
        return self.samples * self.groups * self.parts * self.result_d * self.blocks

    @property
    def products(self) -> int:
        """Numbers that are multiplied, padding included."""
        places = self.samples * self.result_d * self.result_h * self.result_w
        taps = self.kd * self.kh * self.kw // (self.results_h * self.results_w)
        return places * self.groups * self.rows * self.depth * max(1, taps)

    @property
    def panels(self) -> int:
        return self.groups * -(-self.rows // self.tall)

    @property
    def panel_grain(self) -> int:
        """Panels of a chunk."""
        return max(1, CHUNK // max(1, 2 * self.tall * self.depth * self.kd * self.kh * self.kw))

    @property
    def weights(self) -> int:
        """Elements of the packed weights."""
        return self.groups * self.padded * self.depth * self.kd * self.kh * self.kw

    @property
    def arena(self) -> int:
        """Elements that a chunk lays out, its results included."""
        lines = self.channels * self.sources_h * self.sources_w * self.pitch
        results = self.results_h * self.results_w * self.high * self.span
        return _up(lines, 64) + _up(results, 64) + self.tall

    @property
    def spots(self) -> int:
        """Bytes in the arena of where the vectors of a strip go, and under which masks."""
        return _up(12 * self.span // self.lanes, 64)

    @property
    def grain(self) -> int:
        """Units of a chunk."""
        phases = self.results_h * self.results_w
        sums = self.part * self.depth * self.kd * self.kh * self.kw * self.span // 16
        moved = (self.part * phases + self.depth * self.kd) * self.span // 4
        return max(1, CHUNK // max(1, sums + moved))


def packed_rows(rows: int, tall: int) -> int:
    """Rows of weights when the last panel is one that a strip can be high."""
    rest = rows % tall
    return rows - rest + min(h for h in (0, *strip_rows()) if h >= rest)


def strips_of(s: Shape, dtype: str, back: bool) -> Strips:
    """The plan of a convolution, or of its input's gradient."""
    size, lanes = (4 if dtype == "float32" else 8), lanes_of(dtype)
    h, w = _axis(s, 1, back), _axis(s, 2, back)
    depth, rows = (s.outputs, s.channels) if back else (s.channels, s.outputs)
    source, result = (s.output, s.input) if back else (s.input, s.output)
    count, reach = max(1, (h.places - 1) * w.wide + w.places), h.reach * w.wide + w.reach
    tall = max(strip_rows())
    phases, lines = h.results * w.results, h.sources * w.sources

    step = lanes * strip_rows()[tall][0]
    part = min(ROWS, max(1, rows))
    fits = LINES // (max(1, depth) * lines * size) - reach  # of all channels
    once = s.kernel[0] == 1 and fits >= min(count, max(step, reach))
    if not once:
        fits = min(
            RESULTS // (phases * part * size),
            LINES // (max(1, min(depth, 16)) * lines * size) - reach,
        )
    blocks = -(-count // max(step, fits // step * step))
    span = _up(-(-count // blocks), step)
    blocks = -(-count // span)
    while s.samples * s.groups * result[0] * blocks * -(-rows // part) < CHUNKS and part > 32:
        part = _up(part // 2, tall)
    pitch = _up(span + reach, lanes)
    most = max(1, LINES // (lines * pitch * size))
    channels = max(1, depth if once else -(-depth // max(1, -(-depth // most))))
    return Strips(
        s.samples, s.groups, depth, rows, *source, *result, *s.kernel, *s.stride, *s.padding,
        *s.dilation, int(back), h.base, w.base, h.results, w.results, h.sources, w.sources,
        h.places, w.places, w.wide, span, blocks, pitch, channels, part, -(-rows // part), tall,
        packed_rows(rows, tall), tall if once else _up(part, tall),
        int(once and phases == 1 and w.wide >= lanes and lanes * size == 64),
        lanes, _up(4 * channels * s.taps, 64),
    )  # fmt: skip


def taps_of(t: Strips) -> tuple[int, ...]:
    """Return the taps of each phase of the result, in three lists one behind the other.

    First the number of taps of each phase; then the taps' numbers in the kernel's plane, phase
    after phase; then where their shifts begin, from a channel's first line.
    """
    counts: list[int] = []
    numbers: list[int] = []
    shifts: list[int] = []
    for phase in range(t.results_h * t.results_w):
        before = len(numbers)
        for tap in range(t.kh * t.kw):
            down, right = (
                shift_of(k, p, stride, pad, gap, t.back, base)
                for k, p, stride, pad, gap, base in (
                    (tap // t.kw, phase // t.results_w, t.stride_h, t.pad_h, t.gap_h, t.base_h),
                    (tap % t.kw, phase % t.results_w, t.stride_w, t.pad_w, t.gap_w, t.base_w),
                )
            )
            if takes_part(down, t.stride_h, t.back) and takes_part(right, t.stride_w, t.back):
                numbers.append(tap)
                plane = down % t.stride_h * t.sources_w + right % t.stride_w
                shift = down // t.stride_h * t.wide + right // t.stride_w
                shifts.append(plane * t.pitch + shift)
        counts.append(len(numbers) - before)
    return (*counts, *numbers, *shifts)


class Tiles(NamedTuple):
    """The numbers of `conv_weight`: sums over samples and positions, in tiles."""

    samples: int
    groups: int
    channels: int
    outputs: int
    input_d: int
    input_h: int
    input_w: int
    output_d: int
    output_h: int
    output_w: int
    kd: int
    kh: int
    kw: int
    stride_d: int
    stride_h: int
    stride_w: int
    pad_d: int
    pad_h: int
    pad_w: int
    gap_d: int
    gap_h: int
    gap_w: int
    sources_h: int
    sources_w: int
    wide: int
    places: int  # positions of a plane
    span: int  # positions of a block
    blocks: int  # of a plane
    segments: int  # samples of a block
    pitch: int  # elements laid out for a channel, phase and sample
    unit_c: int  # input channels of a unit
    units_c: int
    block_c: int  # of these, laid out at a time
    block_o: int  # output channels of a unit
    blocks_o: int
    parts: int  # of the samples and positions
    rows: int  # of a tile
    columns: int
    slots: int  # elements of a tile in memory
    lanes: int  # of a vector

    @property
    def works(self) -> int:
        """Blocks of samples and positions, which the parts share."""
        return -(-self.samples // self.segments) * self.output_d * self.blocks

    @property
    def across(self) -> int:
        """Tiles of one block of input channels and one row of tiles."""
        return -(-self.block_c * self.kh * self.kw // self.columns)

    @property
    def tiles(self) -> int:
        """Tiles of a unit."""
        blocks = self.kd * -(-self.unit_c // self.block_c)
        return -(-self.block_o // self.rows) * blocks * self.across

    @property
    def units(self) -> int:
        return self.parts * self.groups * self.blocks_o * self.units_c

    @property
    def partial(self) -> int:
        """Elements of all partial sums."""
        return self.units * self.tiles * self.slots

    @property
    def table(self) -> int:
        """Bytes of offsets, then of masks, in the arena."""
        return _up(4 * self.across * self.columns, 64) + _up(2 * self.span, 64)

    @property
    def arena(self) -> int:
        """Elements that a unit lays out."""
        lines = self.block_c * self.sources_h * self.sources_w
        return self.segments * (lines * self.pitch + (self.block_o + self.rows) * self.span)

    @property
    def grain(self) -> int:
        sums = self.tiles * self.rows * self.columns * self.segments * self.span // 16
        moved = (self.unit_c + self.block_o) * self.segments * self.span // 4
        return max(1, CHUNK // max(1, (sums + moved) * -(-self.works // self.parts)))


def tiles_of(s: Shape, dtype: str) -> Tiles:
    """The plan of the weight's gradient."""
    size, lanes = (4 if dtype == "float32" else 8), lanes_of(dtype)
    h, w = _axis(s, 1, False), _axis(s, 2, False)
    count, reach = max(1, (h.places - 1) * w.wide + w.places), h.reach * w.wide + w.reach
    rows, columns = tile_of(1 if s.outputs == 1 else 2)
    read = min(columns, -(-columns // s.taps) + (s.taps > 1))  # channels of a tile
    positions = NEAREST // (size * (rows + read))
    blocks = -(-count // positions)
    span = _up(-(-count // blocks), lanes)
    blocks = -(-count // span)
    segments = max(1, min(s.samples, positions // span)) if blocks == 1 else 1
    pitch = _up(span + reach, lanes)
    lines = h.sources * w.sources
    block_o = _up(min(64, max(1, s.outputs)), rows)
    weight = s.groups * s.outputs * s.channels * s.kernel[0] * s.taps * size
    works = -(-s.samples // segments) * s.output[0] * blocks
    blocks_o = -(-s.outputs // block_o)
    each = s.groups * blocks_o
    parts = max(1, min(works, -(-2 * CHUNKS // max(1, each)), PARTIAL // max(1, weight)))
    units_c = max(1, min(s.channels // 32, CHUNKS // max(1, each * parts)))
    unit_c = max(1, -(-s.channels // units_c))
    fits = max(1, LINES // 3 // (segments * lines * pitch * size))
    block_c = -(-unit_c // -(-unit_c // fits))
    whole = columns // math.gcd(columns, s.taps)  # channels of whole tiles
    if whole <= block_c < unit_c:
        block_c -= block_c % whole
    slots = _up(rows * columns, lanes)
    return Tiles(
        s.samples, s.groups, s.channels, s.outputs, *s.input, *s.output, *s.kernel, *s.stride,
        *s.padding, *s.dilation, h.sources, w.sources, w.wide, count, span, blocks, segments, pitch,
        unit_c, -(-s.channels // unit_c), block_c, block_o, blocks_o, parts, rows, columns, slots,
        lanes,
    )  # fmt: skip


def shifts_of(t: Tiles) -> tuple[int, ...]:
    """Return where the shift of each tap begins, from a channel's first line."""
    shifts = []
    for tap in range(t.kh * t.kw):
        down, right = tap // t.kw * t.gap_h, tap % t.kw * t.gap_w
        plane = down % t.stride_h * t.sources_w + right % t.stride_w
        shift = down // t.stride_h * t.wide + right // t.stride_w
        shifts.append(plane * t.segments * t.pitch + shift)
    return tuple(shifts)


def three_of(values: Sequence[int], filling: int) -> Triple:
    """One to three numbers, with `filling` in front."""
    filled = ((filling,) * 3 + tuple(values))[-3:]
    return filled[0], filled[1], filled[2]
