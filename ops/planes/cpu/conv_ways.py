"""The choice of a convolution's way: strips, windows, windows of turned weights, a plain product,
channels side by side, or Winograd's.

A way's time is what each kind of its work takes, added up; of the ways that a direction has, the
one is taken that takes least.  `COSTS` are nanoseconds on one thread, fitted to measurements of a
fifth of the grid of `tools/bench/convolutions.py` by all ways: another processor of a kind is
quicker or slower at all of them.

Annotations are evaluated, as in `conv_plan`.
"""

import math
from typing import NamedTuple

from flowvm.ops.declare.cpu.vector_code import registers
from flowvm.ops.planes.cpu.conv_plan import (
    DEPTHWISE,
    PRODUCT,
    STRIPS,
    TURNING,
    WINDOWS,
    WINOGRAD,
    Shape,
    strips_of,
    tiles_of,
)
from flowvm.ops.planes.cpu.depthwise_plan import Depthwise, depthwise_of
from flowvm.ops.planes.cpu.pixel_weights_plan import (
    PixelWeights,
    pixel_weights_of,
    pixel_weights_work,
)
from flowvm.ops.planes.cpu.windows_plan import (
    FORWARD,
    INPUT,
    TURNED,
    WEIGHT,
    WindowsLaunch,
    is_pixels,
    windows_of,
)
from flowvm.ops.planes.cpu.winograd_plan import (
    PLACES,
    Winograd,
    WinogradWeights,
    winograd_of,
    winograd_weights_of,
)
from flowvm.ops.products.cpu.tile_shape import tile_shape

ALONE = 5  # a way beside those of `conv_plan`: strips of channels that are groups of their own
READ = 0.25  # of what it takes to pack a weight, if it is read where it lies
WHOLE = 8  # rows and columns of a product that is multiplied by tiles, whatever its plan


class Work(NamedTuple):
    """The work of a way."""

    multiplied: float  # vectors that are multiplied and added
    moved: float  # elements of what is convolved, laid out, gathered or scattered
    weights: float  # elements of weights, packed or read, for each block that needs them
    stored: float  # elements of the result, for each time that they are written
    calls: float = 1.0


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def strips_work(s: Shape, dtype: str, direction: int) -> Work:
    """The work of strips, or of the tiles that sum the gradient by the weight."""
    if direction == WEIGHT:
        t = tiles_of(s, dtype)
        places = t.works * t.segments * t.span
        columns = t.kd * _up(t.channels * t.kh * t.kw, t.columns)
        laid = t.works * t.segments * t.groups * (
            t.kd * t.channels * t.sources_h * t.sources_w * t.pitch * t.blocks_o
            + t.outputs * t.span * t.units_c
        )  # fmt: skip
        multiplied = places * t.groups * _up(t.outputs, t.rows) * columns / t.lanes
        weights = t.groups * t.outputs * t.channels * t.kd * t.kh * t.kw
        sums = t.works * t.groups * _up(t.outputs, t.rows) * columns
        return Work(multiplied, laid, sums, weights)
    plan = strips_of(s, dtype, direction == INPUT)
    planes = plan.samples * plan.groups * plan.result_d * plan.blocks
    taps = plan.kd * plan.kh * plan.kw
    lines = plan.depth * plan.kd * plan.sources_h * plan.sources_w * plan.pitch
    phases = plan.results_h * plan.results_w
    return Work(
        planes * plan.padded * plan.depth * taps * plan.span / plan.lanes,
        planes * plan.parts * lines, plan.weights, planes * plan.rows * phases * plan.span,
    )  # fmt: skip


def windows_work(launch: WindowsLaunch, direction: int) -> Work:
    """The work of windows."""
    p = launch.plan
    across = p.channels * p.taps
    columns = p.groups * p.blocks * _up(p.segments * p.span, p.lanes)
    blocks = p.groups * p.blocks
    # pixels as they lie are copied, which takes a fifth; else a table is written by each unit
    table, part = (0, 0.2) if p.direct else (blocks * p.taps * p.width, 1.0)
    if direction == WEIGHT:
        depth = p.groups * p.samples * p.places
        return Work(
            depth * _up(p.outputs, 4) * _up(across, p.lanes) / p.lanes,
            blocks * across * p.width + table * p.down, depth * p.outputs,
            blocks * p.outputs * across,
        )  # fmt: skip
    if direction == INPUT:
        moved = 0 if p.direct else blocks * across * p.segments * p.span + table * p.down
        return Work(
            columns * _up(across, 4) * p.outputs / p.lanes, moved,
            blocks * p.outputs * across * (1.0 if p.packed else READ),
            p.samples * p.groups * p.channels * p.space,
        )  # fmt: skip
    return Work(
        columns * _up(p.outputs, 4) * across / p.lanes,
        part * blocks * across * p.width + table * (p.chunks if p.shared else 1),
        (blocks + p.turned * p.groups) * p.outputs * across,
        p.samples * p.groups * p.outputs * p.places,
    )  # fmt: skip


def product_work(s: Shape, dtype: str, back: bool) -> Work:
    """The work of plain products, one for each group of each sample."""
    lanes, places = tile_shape(dtype).lanes, math.prod(s.output)
    items = s.samples * s.groups
    rows, depth = (s.channels, s.outputs) if back else (s.outputs, s.channels)
    return Work(
        items * _up(places, lanes) * _up(rows, 4) * depth / lanes, items * depth * places,
        items * rows * depth, items * rows * places,
    )  # fmt: skip


def depthwise_work(p: Depthwise) -> Work:
    """The work of channels side by side."""
    units = p.blocks * p.samples
    return Work(
        units * p.products, units * p.lanes * p.space, units * p.segments,
        units * p.lanes * p.places,
    )  # fmt: skip


def winograd_work(p: Winograd) -> Work:
    """The work of Winograd's way."""
    blocks, full = p.groups * p.blocks, _up(p.outputs, p.lanes)
    tiles = p.groups * p.samples * p.down * p.across
    return Work(
        blocks * PLACES * _up(p.tiles, 4) * p.channels * full / p.lanes,
        tiles * PLACES * _up(p.channels, p.lanes), p.groups * full * p.channels,
        tiles * 4 * full,
    )  # fmt: skip


def winograd_weights_work(p: WinogradWeights) -> Work:
    """The work of Winograd's way by the weight."""
    tiles = p.samples * p.down * p.across * PLACES
    units_o, units_c = -(-p.outputs // p.tall), -(-p.channels // p.wide)
    return Work(
        p.groups * tiles * _up(p.outputs, 4) * _up(p.channels, p.lanes) / p.lanes,
        p.groups * tiles * (units_o * _up(p.channels, p.lanes) + units_c * _up(p.outputs, p.lanes)),
        p.groups * p.outputs * p.channels, p.groups * p.outputs * p.channels * p.blocks,
    )  # fmt: skip


Costs = tuple[float, float, float, float, float]

# by bytes of a vector, way and direction: of a `Work`'s numbers
COSTS: dict[tuple[int, int, int], Costs] = {
    (64, STRIPS, FORWARD): (0.235, 0.228, 0.805, 0.057, 10700),
    (64, STRIPS, INPUT): (0.219, 0.449, 1.26, 0.0, 210),
    (64, STRIPS, WEIGHT): (0.269, 0.167, 0.0, 5.61, 21800),
    (64, WINDOWS, FORWARD): (0.289, 0.418, 0.134, 0.159, 150),
    (64, WINDOWS, INPUT): (0.3, 0.5, 0.706, 0.092, 0.0),
    (64, WINDOWS, WEIGHT): (0.271, 0.517, 0.102, 0.122, 0.0),
    (64, PRODUCT, FORWARD): (0.283, 0.145, 0.015, 0.012, 0.0),
    (64, PRODUCT, WEIGHT): (0.281, 0.167, 0.053, 1.36, 2490),
    (64, TURNING, INPUT): (0.328, 0.442, 0.341, 0.0, 15100),
    (64, WINOGRAD, FORWARD): (0.366, 0.155, 1.72, 0.285, 0.0),
    (64, WINOGRAD, INPUT): (0.361, 0.056, 3.43, 0.386, 0.0),
    (64, WINOGRAD, WEIGHT): (0.278, 0.227, 1.36, 3.29, 0.0),
    (64, ALONE, FORWARD): (0.0, 0.328, 2.15, 0.255, 115),
    (64, ALONE, INPUT): (0.0, 0.0, 2.39, 0.746, 111),
    (64, ALONE, WEIGHT): (0.493, 0.39, 0.0, 30.5, 36),
    (64, DEPTHWISE, FORWARD): (0.0, 0.2, 1.92, 0.5, 400),
    (64, DEPTHWISE, INPUT): (0.0, 0.3, 0.57, 0.6, 1270),
    (64, DEPTHWISE, WEIGHT): (0.228, 0.128, 1.92, 0.269, 340),
    (32, STRIPS, FORWARD): (0.164, 0.242, 0.907, 0.108, 2000),
    (32, STRIPS, INPUT): (0.147, 0.233, 2.72, 0.191, 0.0),
    (32, STRIPS, WEIGHT): (0.193, 0.16, 1.82, 3.12, 28500),
    (32, WINDOWS, FORWARD): (0.167, 0.228, 0.072, 0.059, 5920),
    (32, WINDOWS, INPUT): (0.186, 0.288, 0.813, 0.061, 8280),
    (32, WINDOWS, WEIGHT): (0.13, 0.499, 0.223, 0.14, 0.0),
    (32, PRODUCT, FORWARD): (0.186, 0.096, 0.037, 0.0, 1680),
    (32, WINOGRAD, WEIGHT): (0.188, 0.16, 1.98, 2.65, 990),
    (32, PRODUCT, WEIGHT): (0.154, 0.385, 0.059, 0.751, 3490),
    (32, WINOGRAD, FORWARD): (0.186, 0.219, 2.28, 0.049, 0.0),
    (32, WINOGRAD, INPUT): (0.203, 0.075, 5.97, 0.422, 0.0),
    (32, TURNING, INPUT): (0.198, 0.2, 0.697, 0.0, 13700),
}  # fmt: skip


Plan = WindowsLaunch | Depthwise | Winograd | WinogradWeights | PixelWeights


class Way(NamedTuple):
    """A way, and its plan; strips and plain products of pixels have theirs elsewhere."""

    way: int
    plan: Plan | None = None


def _cost(way: int, direction: int, work: Work) -> float:
    wide = max(32, registers().bytes)  # of vectors of 16 bytes for a guess
    if way in (ALONE, DEPTHWISE):
        wide = 64  # those of shorter vectors for a guess, too
    if way == PRODUCT and direction == INPUT:
        direction = FORWARD
    costs = COSTS[wide, way, direction]
    return sum(cost * number for cost, number in zip(costs, work, strict=True))


def ways_of(s: Shape, dtype: str, direction: int) -> dict[Way, float]:
    """The ways of a direction, and about how many nanoseconds they take."""
    strips = strips_work(s, dtype, direction)
    depthwise = depthwise_of(s, dtype)
    if depthwise is not None:  # windows of single channels are never quicker
        strips = strips._replace(calls=s.samples * s.groups)
        return {
            Way(STRIPS): _cost(ALONE, direction, strips),
            Way(DEPTHWISE, depthwise): _cost(DEPTHWISE, direction, depthwise_work(depthwise)),
        }
    ways = {Way(STRIPS): _cost(STRIPS, direction, strips)}
    windows = windows_of(s, dtype, direction)
    if windows is not None:
        ways[Way(WINDOWS, windows)] = _cost(WINDOWS, direction, windows_work(windows, direction))
    if direction == INPUT and s.stride == (1, 1, 1):
        turned = windows_of(s, dtype, TURNED)
        if turned is not None:
            ways[Way(TURNING, turned)] = _cost(TURNING, INPUT, windows_work(turned, TURNED))
    tiles = winograd_of(s, dtype, direction == INPUT) if direction != WEIGHT else None
    if tiles is not None:
        work = winograd_work(tiles)
        ways[Way(WINOGRAD, tiles)] = _cost(WINOGRAD, direction, work)
    rows = s.channels if direction == INPUT else s.outputs
    if direction != WEIGHT and is_pixels(s) and min(rows, math.prod(s.output)) >= WHOLE:
        work = product_work(s, dtype, direction == INPUT)
        ways[Way(PRODUCT)] = _cost(PRODUCT, direction, work)
    weights = winograd_weights_of(s, dtype) if direction == WEIGHT else None
    if weights is not None:
        work = winograd_weights_work(weights)
        ways[Way(WINOGRAD, weights)] = _cost(WINOGRAD, WEIGHT, work)
    pixels = pixel_weights_of(s, dtype) if direction == WEIGHT and is_pixels(s) else None
    if pixels is not None:
        work = Work(*pixel_weights_work(pixels))
        ways[Way(PRODUCT, pixels)] = _cost(PRODUCT, WEIGHT, work)
    return ways


def best_way(s: Shape, dtype: str, direction: int, gain: float = 1.0) -> Way:
    """The way that takes least; strips if there is nothing to do, or if none is `gain` times as
    quick as they are.
    """
    if 0 in (s.samples, s.groups, s.channels, s.outputs, *s.input, *s.output, *s.kernel):
        return Way(STRIPS)
    ways = ways_of(s, dtype, direction)
    return min(ways, key=lambda way: ways[way] / (gain if way.way == STRIPS else 1.0))
