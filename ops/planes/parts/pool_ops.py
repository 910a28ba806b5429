"""The ops of pooling: the maximum or the average of windows, of fixed size or adaptive.

Inputs are planes (all leading dimensions together) of height and width; one dimension has height 1.
Max pooling notes where each maximum is; its gradient adds to these places, and that one's gradient
reads from them.  Average pooling is linear: it and its gradient are each other's gradients.  The
kernels are in `pool_kernels`.
"""

from __future__ import annotations

import math

from flowvm.errors import DTypeError
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.registry import op
from flowvm.ops.planes.cpu.conv_plan import axis_of
from flowvm.ops.planes.cpu.pool_kernels import (
    Divisor,
    Lines,
    Spread,
    Windows,
    any_average_back_body,
    any_average_body,
    any_max_body,
    average_back_body,
    average_body,
    gather_body,
    max_body,
    scatter_body,
)
from flowvm.ops.planes.cpu.pool_rows import STRIDES
from flowvm.ops.planes.parts import plane_checks
from flowvm.ops.planes.parts.plane_letters import planes

ABREAST, GATHERED = 2, 4  # windows of a row that are worth a vector, by STRIDES or by any other
POSITIONS = 2048  # of a block: what a few lines of them take stays in the nearest cache
TAPS = 36  # of a window that is laid out: one loop over all positions for each
MOST = 1 << 20  # bytes laid out


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _planes(meta: TensorMeta, n: int) -> tuple[int, int]:
    """Return the number of planes of n dimensions, and of their elements."""
    space = math.prod(meta.shape[-n:])
    return math.prod(meta.shape[:-n]), space


def _grain(space: int) -> int:
    return max(1, GRAIN // max(1, space))


def _up(count: int) -> int:
    return -(-count // 16) * 16


def _cut(count: int, reach: int) -> tuple[int, int]:
    """Positions of a block, and blocks of a plane."""
    blocks = max(1, -(-count // max(POSITIONS, 4 * reach)))
    span = _up(-(-count // blocks))
    return span, -(-count // span)


def _forward(t: Windows) -> Lines:
    if not 0 < t.kh * t.kw <= TAPS:
        return Lines(1, 1, 1, 0, 0, 0)
    h = axis_of(t.h, t.oh, t.kh, t.sh, t.ph, t.dh)
    w = axis_of(t.w, t.ow, t.kw, t.sw, t.pw, t.dw)
    reach = h.reach * w.wide + w.reach
    span, blocks = _cut((t.oh - 1) * w.wide + t.ow, reach)
    return Lines(h.sources, w.sources, w.wide, span, blocks, _up(span + reach))


@op(
    "input -> out, indices",
    name="max_pool",
    saves="indices",
    grad=lambda c, g, _: (
        _pool_scatter(g, c.saved[0], tuple(c.metas[0].shape[-c.attrs[1] :]), c.attrs[0])
        if g is not None
        else None,
    ),
    half="cuda",
    cuda="pooling:largest",
    letters=planes(),
    takes=plane_checks.max_pool,
)
def _max(input: TensorMeta, windows: Windows, n: Count) -> Launch:
    planes, space = _planes(input, n)
    size = (windows.oh, windows.ow)[-n:]
    out = input.with_shape((*input.shape[:-n], *size))
    indices = input.with_shape(out.shape, int64)
    views = _flat(out, indices, input)
    least = ABREAST if windows.sw in STRIDES else GATHERED
    body = max_body if windows.kh and windows.ow >= least else any_max_body
    return Launch((out, indices), body, views, (windows,), planes, _grain(space))


@op(
    "g, indices -> out",
    name="max_pool_backward",
    saves="indices",
    grad=lambda c, v: (_pool_gather(v, c.saved[0], c.attrs[1], len(c.attrs[0])), None),
    half="cuda",
    cuda="pooling:spread",
    letters=planes(lambda attrs: len(attrs[0])),
    takes=plane_checks.max_pool_backward,
)
def _pool_scatter(
    g: TensorMeta, indices: TensorMeta, size: tuple[int, ...], windows: Windows
) -> Launch:
    """g added to the places that the indices name, in planes of `size`, each in its window."""
    n = len(size)
    planes, places = _planes(g, n)
    out = g.with_shape((*g.shape[:-n], *size))
    space = math.prod(size)
    views = _flat(out, g, indices)
    return Launch((out,), scatter_body, views, (space, places), planes, _grain(space))


@op(
    "input, indices -> out",
    name="max_pool_gather",
    saves="indices",
    grad=lambda c, g: (
        _pool_scatter(g, c.saved[0], tuple(c.metas[0].shape[-c.attrs[1] :]), c.attrs[0]),
        None,
    ),
    half="cuda",
    cuda="pooling:picked",
    letters=planes(),
    takes=plane_checks.max_pool_gather,
)
def _pool_gather(input: TensorMeta, indices: TensorMeta, windows: Windows, n: Count) -> Launch:
    planes, space = _planes(input, n)
    out = input.with_shape(indices.shape)
    places = math.prod(indices.shape[-n:])
    views = _flat(out, input, indices)
    return Launch((out,), gather_body, views, (space, places), planes, _grain(space))


@op(
    "input -> out",
    name="avg_pool",
    grad=lambda c, g: (_average_back(g, tuple(c.metas[0].shape), *c.attrs),),
    half="cuda",
    cuda="pooling:average",
    letters=planes(linear=True),
    takes=plane_checks.avg_pool,
)
def _average(input: TensorMeta, windows: Windows, n: Count, padded: bool, divisor: int) -> Launch:
    if not input.dtype.is_floating_point:
        raise DTypeError(f"avg_pool needs a floating point input, got {input.dtype.name}")
    planes, space = _planes(input, n)
    size = (windows.oh, windows.ow)[-n:]
    out = input.with_shape((*input.shape[:-n], *size))
    views, itemsize, grain = _flat(out, input), out.dtype.itemsize, _grain(space)
    consts, cut = (windows, Divisor(padded, divisor)), _forward(windows)
    arena = (cut.elements + 2 * cut.span) * itemsize
    if not cut.blocks or arena > MOST:
        line = min(itemsize * max(1, windows.w), MOST)
        return Launch((out,), any_average_body, views, consts, planes, grain, arena=line)
    return Launch((out,), average_body, views, (*consts, cut), planes, grain, arena=arena)


@op(
    "g -> out",
    name="avg_pool_backward",
    grad=lambda c, v: (_average(v, *c.attrs[1:]),),
    half="cuda",
    cuda="pooling:average_back",
    letters=planes(lambda attrs: attrs[2], linear=True),
    shaped="shape",
    takes=plane_checks.avg_pool_backward,
)
def _average_back(
    g: TensorMeta, shape: tuple[int, ...], windows: Windows, n: Count, padded: bool, divisor: int
) -> Launch:
    out = g.with_shape(shape)
    planes, space = _planes(out, n)
    views, itemsize, grain = _flat(out, g), out.dtype.itemsize, _grain(space)
    t, consts = windows, (windows, Divisor(padded, divisor))
    if 0 < t.kh * t.kw <= TAPS:
        h = axis_of(t.h, t.oh, t.kh, t.sh, t.ph, 1, back=True)
        w = axis_of(t.w, t.ow, t.kw, t.sw, t.pw, 1, back=True)
        reach = h.reach * w.wide + w.reach
        span, blocks = _cut((h.places - 1) * w.wide + w.places, reach)
        pitch = _up(span + reach)
        cut = Spread(h.base, w.base, h.places, w.places, w.wide, span, blocks, pitch)
        arena = itemsize * (2 * pitch + t.sw * span)
        if arena <= MOST:
            return Launch(
                (out,), average_back_body, views, (*consts, cut), planes, grain, arena=arena
            )
    line = min(itemsize * max(1, t.w), MOST)
    return Launch((out,), any_average_back_body, views, consts, planes, grain, arena=line)
