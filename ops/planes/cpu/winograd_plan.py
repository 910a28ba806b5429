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


def winograd_of(s: Shape, dtype: str, back: bool) -> Winograd | None:
    """The plan of a convolution, or of its input's gradient; None if it has no such way."""
    flat = s.input[0] == s.output[0] == s.stride[0] == 1 and s.padding[0] == 0
    if not flat or s.kernel != (1, 3, 3) or dtype != "float32":
        return None
    if s.stride != (1, 1, 1) or s.dilation[1:] != (1, 1) or max(s.padding) > 2:
        return None
    (h, w), (oh, ow), (ph, pw) = s.input[1:], s.output[1:], s.padding[1:]
    channels, outputs = s.channels, s.outputs
    if back:
        (h, w), (oh, ow), (ph, pw) = (oh, ow), (h, w), (2 - ph, 2 - pw)
        channels, outputs = outputs, channels
    if (oh, ow) != (h + 2 * ph - 2, w + 2 * pw - 2):
        return None
    shape, size = tile_shape(dtype), 4
    lanes = shape.lanes
    if min(s.samples, s.groups, h, w, oh, ow) < 1 or min(channels, outputs) < lanes:
        return None
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
