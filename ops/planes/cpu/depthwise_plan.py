"""The plan of a depthwise convolution of small planes: channels side by side in vectors.

Strips (`conv_plan`) compute one channel's plane at a time, which for a plane of 3 by 3 is a step of
a chunk with nothing to do.  Here as many channels as a vector has lanes are turned together, so
that a position of a plane is one vector; then each tap is multiplied by the positions that it
meets, row by row, and the result is turned back.  Positions in the padding are left out.

A result's sum goes over its taps in order from zero, then the bias is added: bits are those of
strips, unless a weight that meets padding alone is infinite.  The gradient by the weight sums over
samples, then positions.

Everything here depends on shapes alone, and so does every result.

Annotations are evaluated, as in `conv_plan`.
"""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

from flowvm.launch import ARENA_BYTES
from flowvm.ops.declare.cpu.vector_code import lanes_of
from flowvm.ops.planes.cpu.conv_plan import CHUNK, Shape


class Depthwise(NamedTuple):
    """The numbers of `conv_depthwise`."""

    samples: int
    groups: int
    blocks: int  # of as many channels as a vector has lanes
    space: int  # pixels of a plane
    places: int  # positions of the result's
    taps: int
    segments: int  # rows of positions that a tap meets, of all taps
    products: int  # vectors that are multiplied, of a block
    x_step: int  # elements of a panel from a pixel to the next that a tap meets
    lanes: int
    size: int  # bytes of an element
    transpose: int  # addresses of functions
    multiply: int

    @property
    def unit(self) -> int:
        """The work of a block of a sample, in vectors."""
        return self.products + self.segments + self.lanes * (self.space + self.places) // 4

    @property
    def grain(self) -> int:
        """Units of a chunk."""
        return max(1, CHUNK // self.unit)

    @property
    def arena(self) -> int:
        """Bytes of the table of segments, and of panels of weights, pixels and positions."""
        panels = (self.taps + self.space + self.places + 1) * self.lanes
        return _up(16 * self.segments, 64) + panels * self.size


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _meeting(tap: int, size: int, out: int, step: int, pad: int, gap: int) -> range:
    """The positions at which a tap meets a pixel, in one dimension."""
    start = tap * gap - pad
    first = max(0, -(start // step))
    return range(first, max(first, min(out, (size - 1 - start) // step + 1)))


def _segments(s: Shape) -> Iterator[tuple[int, int, int, int]]:
    """The pixel and the position where a row that a tap meets begins, the tap, and its length."""
    (_, kh, kw), (_, sh, sw), (_, ph, pw), (_, dh, dw) = s.kernel, s.stride, s.padding, s.dilation
    h, w, oh, ow = *s.input[1:], *s.output[1:]
    for tap in range(kh * kw):
        ky, kx = divmod(tap, kw)
        across = _meeting(kx, w, ow, sw, pw, dw)
        if not across:
            continue
        for y in _meeting(ky, h, oh, sh, ph, dh):
            pixel = (y * sh + ky * dh - ph) * w + across.start * sw + kx * dw - pw
            yield pixel, y * ow + across.start, tap, len(across)


@functools.lru_cache(256)
def segments_of(s: Shape, lanes: int, back: bool) -> tuple[int, ...]:
    """Return four numbers for each segment: where it begins in the panels, and its length.

    Rows of positions come one after another, or, if `back`, rows of pixels: what is added to them
    stays in the first cache.  Those of a row are in the order of the taps.
    """
    width, out = s.input[2], s.output[2]
    segments = sorted(_segments(s), key=lambda one: one[0] // width if back else one[1] // out)
    return tuple(
        number
        for pixel, place, tap, count in segments
        for number in (pixel * lanes, place * lanes, tap * lanes, count)
    )


def depthwise_of(s: Shape, dtype: str) -> Depthwise | None:
    """The plan of all directions; None if channels are not apart, or planes are too large."""
    lanes, size = lanes_of(dtype), (4 if dtype == "float32" else 8)
    flat = s.input[0] == s.output[0] == s.kernel[0] == 1 and s.padding[0] == 0
    space, places = math.prod(s.input), math.prod(s.output)
    if not flat or not s.channels == s.outputs == 1 or s.groups < lanes // 2:
        return None
    if (space + places + s.taps) * lanes * size > ARENA_BYTES // 2:
        return None
    numbers = segments_of(s, lanes, False)
    return Depthwise(
        s.samples, s.groups, -(-s.groups // lanes), space, places, s.taps, len(numbers) // 4,
        sum(numbers[3::4]), s.stride[2] * lanes, lanes, size, 0, 0,
    )  # fmt: skip
