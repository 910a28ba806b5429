"""Which kernel normalises a tensor, and in which pieces: one `Launch` for each call of `norm_ops`.

`kind` says what is averaged together: "layer", the last dimensions, whose shape is `size`; "batch",
each channel; "instance", each channel of each sample; "group", each of `size` groups of channels in
each sample.
"""

from __future__ import annotations

import math
from typing import Any

from flowvm.launch import Launch, View
from flowvm.meta import TensorMeta
from flowvm.ops.rows.cpu.norm_columns import (
    COEFFICIENTS,
    affine_columns,
    columns_backward,
    fixed_columns,
    moving_columns,
    plain_columns,
    plain_columns_backward,
)
from flowvm.ops.rows.cpu.norm_planes import (
    affine_planes,
    fixed_planes,
    moving_planes,
    plain_planes,
    plain_planes_backward,
    planes_backward,
)
from flowvm.ops.rows.cpu.row_launch import Rows, row_launch
from flowvm.ops.rows.parts.norm_programs import norm_backward, norm_forward
from flowvm.ops.rows.parts.row_program import RowProgram

Size = int | tuple[int, ...]
CHUNK = 1 << 15  # elements of a chunk of work
CACHED = 1 << 17  # elements of a group that stay in the cache of the core that reads them
BLOCK = 1 << 14  # elements of a block of columns
WIDE = 1024  # columns of a block at most
SMALL = 128  # elements of a plane from which on it is worth a visit of its own
# by how many inputs there are
_FORWARD: dict[str, dict[int, Any]] = {
    "planes": {1: plain_planes, 3: affine_planes, 5: moving_planes},
    "columns": {1: plain_columns, 3: affine_columns, 5: moving_columns},
}
_FIXED: dict[str, Any] = {"planes": fixed_planes, "columns": fixed_columns}
_BACKWARD: dict[str, dict[int, Any]] = {
    "planes": {3: plain_planes_backward, 4: planes_backward},
    "columns": {3: plain_columns_backward, 4: columns_backward},
}


def groups_of(x: TensorMeta, kind: str, size: Size) -> int:
    """How many means and variances there are."""
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
    if kind == "batch" and space < SMALL:
        return "columns"
    return "rows" if space == 1 else "planes"


def _row_sizes(x: TensorMeta, kind: str, size: Size) -> tuple[int, int]:
    """Elements of a row, and after how many rows the weights begin again."""
    if kind == "layer":
        return _elements(size), 1
    period = _per_sample(int(x.shape[1]), kind, size)
    return int(x.shape[1]) // period, period


def _plane_sizes(x: TensorMeta, kind: str, size: Size) -> tuple[int, ...]:
    """Channels, space, step, jump and count of `norm_planes`."""
    samples, channels, space = int(x.shape[0]), int(x.shape[1]), math.prod(x.shape[2:])
    if kind == "batch":
        return channels, space, 1, channels, samples
    each = channels // max(1, _per_sample(channels, kind, size))
    return channels, space, each, 1, each


def forward_launch(
    outputs: tuple[TensorMeta, TensorMeta],
    inputs: tuple[TensorMeta, ...],
    kind: str,
    size: Size,
    eps: float,
    center: bool,
    fixed: bool,
) -> Launch:
    """out and stats of x, maybe weight and bias, maybe a mean and variance: those to move, or, if
    `fixed`, those to use.
    """
    x, family = inputs[0], _family(inputs[0], kind)
    groups = groups_of(x, kind, size)
    if family == "rows":
        program = norm_forward(bool(center), len(inputs) - 1)
        return _row_launch(program, outputs, inputs, _row_sizes(x, kind, size), groups, eps)
    body = _FIXED[family] if fixed else _FORWARD[family][len(inputs)]
    views = _flat(*outputs, *inputs)
    if family == "columns":
        return _columns(outputs, body, views, x, (float(eps),), int(fixed))
    sizes = _plane_sizes(x, kind, size)
    space, planes = sizes[1], sizes[0] * int(x.shape[0])
    together = kind != "batch" and x.numel <= CACHED * groups
    consts = (*sizes, together, float(eps))
    steps = _plane_steps(planes, groups, space, together)[int(fixed) :]
    return _launch(outputs, body, views, consts, steps, 16 * planes)


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
    body, views = _BACKWARD[family][len(inputs)], _flat(*outputs, *inputs)
    if family == "columns":
        return _columns(outputs, body, views, x, (bool(fixed), float(eps)), 0)
    sizes = _plane_sizes(x, kind, size)
    channels, space = sizes[0], sizes[1]
    planes = channels * int(x.shape[0])
    together = kind != "batch" and x.numel <= CACHED * groups
    steps = _plane_steps(planes, groups, space, together)
    if full:
        steps = (*steps, (channels, _grain(int(x.shape[0]))))
    consts = (*sizes, together, bool(fixed), float(eps))
    return _launch(outputs, body, views, consts, steps, 16 * (planes + groups))


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


def _plane_steps(
    planes: int, groups: int, space: int, together: bool
) -> tuple[tuple[int, int], ...]:
    count = planes // max(1, groups)
    if together:
        return ((groups, _grain(count * space)),)
    each = planes, _grain(space)
    return each, (groups, _grain(count)), each


def _grain(n: int) -> int:
    """How many units of n elements are a chunk of work."""
    return max(1, CHUNK // max(1, n))


def _columns(
    outputs: tuple[TensorMeta, ...],
    body: Any,
    views: tuple[View, ...],
    x: TensorMeta,
    consts: tuple[float | bool, ...],
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
    sizes = rows, n, tall, width, space
    return _launch(outputs, body, views, (*sizes, *consts), steps, scratch, 16 * width)


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
