"""The plan of the weight's gradient of a convolution of single pixels, as a product of rows.

    out[o, c] = sum over samples and positions of g[o, q] * x[c, q]

Rows of one side are read where they lie, those of the other are packed into panels.  Either side
may be packed: the gradient's if it has so few channels that it is worth to turn the result back
(`swap`), else the input's.

A sum goes over samples, then positions, one multiply-add a step, so no cut changes a result.

Annotations are evaluated, as in `conv_plan`.
"""

import math
from typing import NamedTuple

from flowvm.ops.planes.cpu.conv_plan import CHUNK, Shape
from flowvm.ops.products.cpu.gemm_plan import SCRATCH
from flowvm.ops.products.cpu.tile_shape import tile_shape

DEEP = 512  # positions that are multiplied at a time, at most
STAGE = 192 << 10  # bytes of sums that are turned back at a time
UNITS = 4  # that are enough for several threads
MULTIPLIED, PACKED, TURNED = 0.27, 0.2, 0.5  # nanoseconds of a vector, of an element, about


class PixelWeights(NamedTuple):
    """The numbers of `pixel_weights`."""

    samples: int
    groups: int
    rows: int  # channels of a group of the side that is read where it lies
    columns: int  # and of the side that is packed
    places: int  # positions of a sample
    swap: int  # rows are the input's
    deep: int  # positions that are multiplied at a time
    tall: int  # rows of a unit
    down: int  # units of a group
    panels: int  # of columns
    mr: int  # the tile
    nr: int
    lanes: int
    size: int  # bytes of an element
    multiply: int  # addresses of functions
    transpose: int

    @property
    def depth(self) -> int:
        """Positions of all samples."""
        return self.samples * self.places

    @property
    def scratch(self) -> int:
        """Bytes of the panels."""
        return self.groups * self.panels * self.nr * self.depth * self.size

    @property
    def arena(self) -> int:
        """Bytes of the sums of a unit, if they are turned back."""
        return self.swap * self.tall * self.panels * self.nr * self.size

    @property
    def products(self) -> int:
        """Multiply-adds."""
        return self.groups * self.rows * self.columns * self.depth

    @property
    def first(self) -> tuple[int, int]:
        """Units of the first phase, and of a chunk."""
        units = self.groups * self.panels * self.samples
        return units, max(1, (CHUNK >> 4) // (self.places * self.nr))

    @property
    def second(self) -> tuple[int, int]:
        """Units of the second phase, and of a chunk."""
        units = self.groups * self.down
        return units, max(1, CHUNK // max(1, self.products // units))


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _plan(s: Shape, dtype: str, swap: bool) -> PixelWeights:
    tile, size = tile_shape(dtype), (4 if dtype == "float32" else 8)
    rows, columns = (s.channels, s.outputs) if swap else (s.outputs, s.channels)
    places, panels = math.prod(s.output), -(-columns // tile.columns)
    deep = -(-places // -(-places // DEEP))
    units = UNITS if s.groups * rows * columns * s.samples * places > 2 * CHUNK else 1
    tall = _up(-(-rows // max(1, -(-units // s.groups))), tile.rows)
    if swap:
        most = STAGE // (panels * tile.columns * size) // tile.rows * tile.rows
        tall = min(tall, max(tile.rows, most))
    return PixelWeights(
        s.samples, s.groups, rows, columns, places, int(swap), deep, tall, -(-rows // tall), panels,
        tile.rows, tile.columns, tile.lanes, size, 0, 0,
    )  # fmt: skip


def pixel_weights_work(p: PixelWeights) -> tuple[float, float, float, float]:
    """Vectors that are multiplied, elements that are packed, summed in memory, and turned back."""
    sums = p.groups * p.rows * p.columns
    return (
        p.groups * p.depth * _up(p.rows, 4) * _up(p.columns, p.lanes) / p.lanes,
        p.groups * p.depth * _up(p.columns, p.lanes), sums * p.samples * -(-p.places // p.deep),
        p.swap * sums,
    )  # fmt: skip


def _estimate(p: PixelWeights) -> float:
    multiplied, packed, _, turned = pixel_weights_work(p)
    return MULTIPLIED * multiplied + PACKED * packed + TURNED * turned


def pixel_weights_of(s: Shape, dtype: str) -> PixelWeights | None:
    """The plan; None if its memory is too much."""
    plan = min((_plan(s, dtype, swap) for swap in (False, True)), key=_estimate)
    return plan if plan.scratch <= SCRATCH else None
