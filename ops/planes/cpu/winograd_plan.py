"""The plan of a convolution by Winograd's F(2x2, 3x3): 16 products for 4 results, in place of 36.

A *tile* is four by four pixels, from which two by two results follow (Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks", 2016):

    Y = A' [ sum over channels of (G w G') * (B' x B) ] A

So tiles and kernels are transformed, 16 numbers each; for each of the 16 *places* there is one
matrix product, of (tiles, channels) by (channels, outputs); and these sums are transformed back.
Channels lie side by side in vectors while anything is transformed, whatever the size of a plane.

Two ways to cut it.  Of few tiles (`few`), all of them are transformed in a phase of their own, and
a unit, which is a panel of outputs, transforms its own weights, some of the depth at a time.  Of
many, the weights are transformed in a phase of their own, and a unit is a *block* of tiles.

A sum over channels is in order, one multiply-add a step, so no cut changes a result.

Annotations are evaluated, as in `conv_plan`.
"""

from typing import NamedTuple

from flowvm.launch import ARENA_BYTES
from flowvm.ops.planes.cpu.conv_plan import CHUNK, Shape
from flowvm.ops.products.cpu.gemm_plan import SCRATCH
from flowvm.ops.products.cpu.tile_shape import tile_shape

PLACES = 16  # of a tile
FEW = 192  # tiles that all units share
BLOCK = 96  # tiles of a block, about
NEAR = 3 << 18  # bytes of a block's transformed tiles, about
DEEP = 128  # of the depth, whose weights are transformed at a time if tiles are few


class Winograd(NamedTuple):
    """The numbers of `conv_winograd`."""

    samples: int
    groups: int
    channels: int
    outputs: int
    h: int
    w: int
    oh: int
    ow: int
    ph: int
    pw: int
    turned: int  # weights' inputs and outputs are exchanged, and the kernel is rotated
    down: int  # tiles of a column of a plane
    across: int  # and of a row
    few: int
    segments: int  # samples of a block
    high: int  # rows of tiles of a block, of each sample
    parts: int  # blocks that a sample is cut into
    blocks: int
    tiles: int  # of a block, at most
    depth: int  # channels, filled up to whole vectors: elements from a tile to the next
    deep: int  # of them, multiplied at a time
    tile_place: int  # elements from a place to the next: of tiles,
    weight_place: int  # weights
    sum_place: int  # and sums
    panels: int  # of outputs, of a group
    mr: int  # the tile of products
    nr: int
    lanes: int
    size: int  # bytes of an element
    multiply: int  # addresses of functions
    transpose: int
    of_weights: int
    of_tiles: int
    of_sums: int

    @property
    def scratch(self) -> int:
        """Bytes of what the first phase transforms."""
        each = self.tile_place if self.few else self.panels * self.weight_place
        return self.groups * PLACES * each * self.size

    @property
    def arena(self) -> int:
        """Bytes of what a unit of either phase needs."""
        return self.size * (self.own + self.margins + self.sums + self.turned_back)

    @property
    def own(self) -> int:
        """Elements of the tiles or weights that a unit transforms for itself."""
        return PLACES * (self.weight_place if self.few else self.tile_place)

    @property
    def margins(self) -> int:
        """Elements of kernels, or of a plane's rows and of the same with a margin."""
        rows = 2 * self.high + 2
        plane = rows * (2 * self.across + 2 + self.w)
        return self.lanes * max(9 * self.lanes, plane)

    @property
    def sums(self) -> int:
        """Elements of the sums of a block and a panel."""
        return PLACES * self.sum_place

    @property
    def turned_back(self) -> int:
        """Elements of a block's results of one sample, a row and a vector more, bias and flags."""
        return self.lanes * ((2 * self.high + 1) * self.ow + 4)

    @property
    def products(self) -> int:
        """Multiply-adds."""
        tiles = self.samples * self.down * self.across
        return PLACES * tiles * self.groups * self.channels * self.outputs

    @property
    def first(self) -> tuple[int, int]:
        """Units of the first phase, and of a chunk."""
        if self.few:
            units = self.groups * -(-self.channels // self.lanes)
            work = self.samples * self.down * self.across * self.lanes * PLACES
        else:
            units, work = self.groups * self.panels, self.channels * self.nr * PLACES
        return units, max(1, (CHUNK >> 2) // work)

    @property
    def second(self) -> tuple[int, int]:
        """Units of the second phase, and of a chunk."""
        units = self.groups * (self.panels if self.few else self.blocks)
        return units, max(1, CHUNK // max(1, self.products // units))


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _cut(samples: int, down: int, across: int, few: bool, most: int) -> tuple[int, int, int]:
    """Samples of a block, rows of tiles of each, blocks of a sample."""
    if few:
        return samples, down, 1
    if 2 * down * across > most:
        parts = -(-down // max(1, most // across))
        high = -(-down // parts)
        return 1, high, -(-down // high)
    segments = min(samples, most // (down * across))
    blocks = -(-samples // segments)
    return -(-samples // blocks), down, 1


def is_winograd(s: Shape, dtype: str) -> bool:
    """Return True if the way has a plan for these kernels, strides, padding and dtype."""
    flat = s.input[0] == s.output[0] == s.stride[0] == 1 and s.padding[0] == 0
    if not flat or s.kernel != (1, 3, 3) or dtype != "float32":
        return False
    if s.stride != (1, 1, 1) or s.dilation[1:] != (1, 1) or max(s.padding) > 2:
        return False
    if min(s.samples, s.groups, *s.input, *s.output) < 1:
        return False
    (h, w), (ph, pw) = s.input[1:], s.padding[1:]
    whole = s.output[1:] == (h + 2 * ph - 2, w + 2 * pw - 2)
    return whole and min(s.channels, s.outputs) >= tile_shape(dtype).lanes


def winograd_of(s: Shape, dtype: str, back: bool) -> Winograd | None:
    """The plan of a convolution, or of its input's gradient; None if it has no such way."""
    if not is_winograd(s, dtype):
        return None
    (h, w), (oh, ow), (ph, pw) = s.input[1:], s.output[1:], s.padding[1:]
    channels, outputs = s.channels, s.outputs
    if back:
        (h, w), (oh, ow), (ph, pw) = (oh, ow), (h, w), (2 - ph, 2 - pw)
        channels, outputs = outputs, channels
    shape, size = tile_shape(dtype), 4
    lanes = shape.lanes
    down, across, depth = -(-oh // 2), -(-ow // 2), _up(channels, lanes)
    few = s.samples * down * across <= FEW
    most = max(shape.rows, min(BLOCK, NEAR // (PLACES * size * depth)))
    segments, high, parts = _cut(s.samples, down, across, few, most)
    tiles, deep = segments * high * across, min(channels, DEEP if few else channels)
    if depth * size % 512 == 0:
        depth += lanes  # rows of tiles do not share the sets of a cache; nor do places, below
    plan = Winograd(
        s.samples, s.groups, channels, outputs, h, w, oh, ow, ph, pw, int(back), down, across,
        int(few), segments, high, parts, -(-s.samples // segments) * parts, tiles, depth, deep,
        tiles * depth + lanes, deep * shape.columns + lanes, tiles * shape.columns + lanes,
        -(-outputs // shape.columns), shape.rows, shape.columns, lanes, size, 0, 0, 0, 0, 0,
    )  # fmt: skip
    return plan if plan.arena <= ARENA_BYTES and plan.scratch <= SCRATCH else None


# --- by the weight ------------------------------------------------------------------------------

TALL, WIDE = 96, 64  # outputs and channels of a unit, about: its sums stay in the second cache
HELD = 7 << 17  # bytes of sums, and of a block's tiles and gradients, about
UNITS = 2  # for several threads, where one would transform tiles less often


class WinogradWeights(NamedTuple):
    """The numbers of `winograd_weights`: the same geometry, and what a unit sums.

    The gradient is G' [ sum over tiles of (A g A') * (B' x B) ] G.  A unit has some outputs and
    some channels; it transforms both sides of them, a block of tiles at a time.
    """

    samples: int
    groups: int
    channels: int
    outputs: int
    h: int
    w: int
    oh: int
    ow: int
    ph: int
    pw: int
    down: int
    across: int
    segments: int
    high: int
    parts: int
    blocks: int
    tiles: int
    tall: int  # outputs of a unit
    wide: int  # channels of a unit, and their elements from a tile to the next
    depth: int  # the same, as `Winograd` has it
    tile_place: int
    gradient_place: int
    sum_place: int
    mr: int
    nr: int
    lanes: int
    size: int
    multiply: int
    transpose: int
    of_tiles: int
    of_gradients: int
    of_kernels: int

    @property
    def units(self) -> int:
        """Units, of all groups."""
        return self.groups * -(-self.outputs // self.tall) * -(-self.channels // self.wide)

    @property
    def products(self) -> int:
        """Multiply-adds."""
        tiles = self.samples * self.down * self.across
        return PLACES * tiles * self.groups * self.channels * self.outputs

    @property
    def margins(self) -> int:
        """Elements of a plane's rows and of the same with a margin."""
        return self.lanes * (2 * self.high + 2) * (2 * self.across + 2 + max(self.w, self.ow))

    @property
    def arena(self) -> int:
        """Bytes of what a unit needs."""
        places = self.tile_place + self.gradient_place + self.sum_place
        kernels = 9 * self.wide + 2 * self.lanes
        return self.size * (PLACES * places + 2 * self.margins + kernels)


def winograd_weights_of(s: Shape, dtype: str) -> WinogradWeights | None:
    """The plan of the gradient by the weight; None if it has no such way."""
    if not is_winograd(s, dtype):
        return None
    shape, size = tile_shape(dtype), 4
    (oh, ow), lanes = s.output[1:], shape.lanes
    down, across = -(-oh // 2), -(-ow // 2)
    tall, wide = (
        _up(-(-count // -(-count // most)), step)
        for count, most, step in (
            (s.outputs, TALL, shape.rows),
            (s.channels, WIDE // shape.columns * shape.columns, shape.columns),
        )
    )
    products = PLACES * s.samples * down * across * s.groups * s.channels * s.outputs
    each = s.groups * -(-s.channels // wide)
    while products > 2 * CHUNK and each * -(-s.outputs // tall) < UNITS and tall > shape.rows:
        tall = _up(tall // 2, shape.rows)
    fits = HELD // (PLACES * size) - tall * wide
    segments, high, parts = _cut(s.samples, down, across, False, max(16, fits // (tall + wide)))
    tiles, blocks = segments * high * across, -(-s.samples // segments) * parts
    plan = WinogradWeights(
        s.samples, s.groups, s.channels, s.outputs, *s.input[1:], oh, ow, *s.padding[1:], down,
        across, segments, high, parts, blocks, tiles, tall, wide, wide, tiles * wide + 2 * lanes,
        tiles * _up(tall, lanes) + lanes, tall * wide + lanes, shape.rows, shape.columns, lanes,
        size, 0, 0, 0, 0, 0,
    )  # fmt: skip
    return plan if plan.arena <= ARENA_BYTES else None
