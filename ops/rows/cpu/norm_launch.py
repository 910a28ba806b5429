"""The choice of the kernel that normalises a tensor, and of its pieces: a `Launch` for each call.

`kind` says what is averaged together: "layer", the last dimensions, whose shape is `size`; "batch",
each channel; "instance", each channel of each sample; "group", each of `size` groups of channels in
each sample.
"""

from __future__ import annotations

import math
from typing import Any

from flowvm.launch import Launch, View
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import Count
from flowvm.ops.rows.cpu.norm_columns import (
    COEFFICIENTS,
    FIXED,
    UNUSED,
    Columns,
    backward_columns,
    forward_columns,
    full_backward_columns,
    moving_columns,
)
from flowvm.ops.rows.cpu.norm_planes import (
    Planes,
    backward_planes,
    forward_planes,
    full_backward_planes,
    moving_planes,
)
from flowvm.ops.rows.cpu.row_launch import Rows, row_launch
from flowvm.ops.rows.parts.norm_programs import norm_backward, norm_forward
from flowvm.ops.rows.parts.row_program import RowProgram

Size = Count | tuple[int, ...]
CHUNK = 1 << 15  # elements of a chunk of work
CACHED = 1 << 17  # elements of a group that stay in the cache of the core that reads them
BLOCK = 1 << 14  # elements of a block of columns
WIDE = 1024  # columns of a block at most
SMALL = 128  # elements of a plane from which on it is worth a visit of its own
FEW = (
    8  # the same for each sample, if these are few: a column's numbers take more than its elements
)
# forward, forward that moves a mean and variance, backward, backward with a weight
_PLANES = forward_planes, moving_planes, backward_planes, full_backward_planes
_COLUMNS = forward_columns, moving_columns, backward_columns, full_backward_columns


def groups_of(x: TensorMeta, kind: str, size: Size) -> int:
    """Return the number of means and variances."""
    if kind == "layer":
        return x.numel // max(1, _elements(size))
    channels = int(x.shape[1])
    return channels if kind == "batch" else int(x.shape[0]) * _per_sample(channels, kind, size)


def _elements(size: Size) -> int:
    return size if isinstance(size, int) else math.prod(size)


def _per_sample(channels: int, kind: str, size: Size) -> int:
    return channels if kind == "instance" else _elements(size)


def cube_of(x: TensorMeta, kind: str, size: Size) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """The shape in which groups are a dimension, and the dimensions that are averaged."""
    if kind == "batch":
        return (int(x.shape[0]), int(x.shape[1]), math.prod(x.shape[2:])), (0, 2)
    groups = groups_of(x, kind, size)
    return (groups, 1, x.numel // max(1, groups)), (2,)


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _family(x: TensorMeta, kind: str) -> str:
    if kind == "layer":
        return "rows"
    space = math.prod(x.shape[2:])
    if kind == "batch" and space < min(SMALL, FEW * max(1, int(x.shape[0]))):
        return "columns"
    return "rows" if space == 1 else "planes"


def _row_sizes(x: TensorMeta, kind: str, size: Size) -> tuple[int, int]:
    """Elements of a row, and after how many rows the weights begin again."""
    if kind == "layer":
        return _elements(size), 1
    period = _per_sample(int(x.shape[1]), kind, size)
    return int(x.shape[1]) // period, period


def _planes_of(x: TensorMeta, kind: str, size: Size, measured: bool = True) -> Planes:
    samples, channels, space = int(x.shape[0]), int(x.shape[1]), math.prod(x.shape[2:])
    if kind == "batch":
        together = measured and space * samples <= CACHED
        return Planes(channels, space, 1, channels, samples, together)
    each = channels // max(1, _per_sample(channels, kind, size))
    return Planes(channels, space, each, 1, each, space * each <= CACHED)


def forward_launch(
    outputs: tuple[TensorMeta, TensorMeta],
    inputs: tuple[TensorMeta, ...],
    kind: str,
    size: Size,
    eps: float,
    center: bool,
    fixed: bool,
) -> Launch:
    """Return the Launch for out and stats of x, maybe with weight and bias.

    A mean and variance, if given, are moved or, with `fixed`, used.
    """
    x, family = inputs[0], _family(inputs[0], kind)
    groups = groups_of(x, kind, size)
    if family == "rows":
        program = norm_forward(bool(center), len(inputs) - 1)
        return _row_launch(program, outputs, inputs, _row_sizes(x, kind, size), groups, eps)
    views = _flat(*outputs, *inputs)
    consts: tuple[float, ...] = (float(eps),)
    forward, moving, _, _ = _COLUMNS if family == "columns" else _PLANES
    body = moving if len(inputs) == 5 and not fixed else forward
    if body is forward:
        absent = (View.optional(None, x.dtype),) * (5 - len(inputs))
        views = (*views[:3], *(View.optional(view, x.dtype) for view in views[3:]), *absent)
        consts = (FIXED if fixed else UNUSED, float(eps))
    if family == "columns":
        return _columns(outputs, body, views, x, consts, int(fixed))
    t = _planes_of(x, kind, size, not fixed)
    planes = t.channels * int(x.shape[0])
    steps = _plane_steps(planes, groups, t)[int(fixed) :]
    return _launch(outputs, body, views, (t, *consts), steps, 16 * planes)


def backward_launch(
    outputs: tuple[TensorMeta, ...],
    inputs: tuple[TensorMeta, ...],
    kind: str,
    size: Size,
    eps: float,
    center: bool,
    fixed: bool,
) -> Launch:
    """dx of (g, x, stats), or dx, dw and db of these and a weight; `fixed`: stats were given."""
    x, family = inputs[1], _family(inputs[1], kind)
    groups, full = groups_of(x, kind, size), len(inputs) == 4
    if family == "rows":
        program = norm_backward(bool(center), full)
        return _row_launch(program, outputs, inputs, _row_sizes(x, kind, size), groups, eps)
    views, consts = _flat(*outputs, *inputs), (bool(fixed), float(eps))
    body = (_COLUMNS if family == "columns" else _PLANES)[2 + full]
    if family == "columns":
        return _columns(outputs, body, views, x, consts, 0)
    t = _planes_of(x, kind, size)
    planes = t.channels * int(x.shape[0])
    steps = _plane_steps(planes, groups, t)
    if full:
        steps = (*steps, (t.channels, _grain(int(x.shape[0]))))
    return _launch(outputs, body, views, (t, *consts), steps, 16 * (planes + groups))


def _row_launch(
    program: RowProgram,
    outputs: tuple[TensorMeta, ...],
    inputs: tuple[TensorMeta, ...],
    sizes: tuple[int, int],
    groups: int,
    eps: float,
) -> Launch:
    n, period = sizes
    return row_launch(Rows(program, groups, n, 1, period, (float(eps),)), outputs, inputs)


def _plane_steps(planes: int, groups: int, t: Planes) -> tuple[tuple[int, int], ...]:
    if t.together:
        return ((groups, _grain(t.members * t.space)),)
    each = planes, _grain(t.space)
    return each, (groups, _grain(t.members)), each


def _grain(n: int) -> int:
    """Return the number of units of n elements in a chunk of work."""
    return max(1, CHUNK // max(1, n))


def _columns(
    outputs: tuple[TensorMeta, ...],
    body: Any,
    views: tuple[View, ...],
    x: TensorMeta,
    consts: tuple[float, ...],
    skip: int,
) -> Launch:
    """Three phases, or, with the first skipped, two."""
    rows, space = int(x.shape[0]), max(1, math.prod(x.shape[2:]))
    n = int(x.shape[1]) * space
    width = max(space, min(n, WIDE // space * space))
    tall = max(8, BLOCK // width)
    stripes, blocks = -(-n // width), -(-rows // tall)
    pieces = blocks * stripes, max(1, CHUNK // (width * tall))
    steps = (pieces, (stripes, 1), pieces)[skip:]
    scratch = (2 * blocks + COEFFICIENTS) * n * x.dtype.itemsize
    t = Columns(rows, n, tall, width, space)
    return _launch(outputs, body, views, (t, *consts), steps, scratch, 16 * width)


def _launch(
    outputs: tuple[TensorMeta, ...],
    body: Any,
    views: tuple[View, ...],
    consts: tuple[Any, ...],
    steps: tuple[tuple[int, int], ...],
    scratch: int,
    arena: int = 0,
) -> Launch:
    """`steps`: units and grain of each phase."""
    (units, grain), *phases = steps
    return Launch(
        outputs,
        body,
        views,
        consts,
        units,
        grain,
        scratch=max(8, scratch),
        arena=arena,
        phases=tuple(phases),
    )
