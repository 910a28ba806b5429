"""A recurrent layer in one direction as one op: every step of a sequence, and its gradient.

The rows of x are the samples of each step, step by step, `sizes` many (see
`flowvm.ops.sequences.cpu.recurrent_kernels`).  `state` is (samples, size), for LSTM (samples, 2 *
size): h, then c.  The gradient is an instruction too.  Its own gradient, which few ask for, is that
of the same steps written in ops (`steps`): while gradients are recorded, backward computes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.launch import ARENA_BYTES, Launch
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import Kind, Metas, Values, computes, within
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.products.cpu.gemm_kernels import COPIED, TRANSPOSED
from flowvm.ops.products.cpu.tile import tile_functions
from flowvm.ops.products.cpu.tile_shape import tile_shape
from flowvm.ops.products.matmul import _matmul_tn
from flowvm.ops.sequences.cpu.recurrent_kernels import (
    GRU,
    LSTM,
    RELU,
    TANH,
    Recurrence,
    back_body,
    scan_body,
)
from flowvm.ops.sequences.parts.steps import steps_back

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


CELLS = {"tanh": TANH, "relu": RELU, "lstm": LSTM, "gru": GRU}
Cell = Annotated[str, Kind(f"one of {', '.join(CELLS)}", lambda v, metas, values: v in [*CELLS])]
GATES = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}
KEPT = {"tanh": 0, "relu": 0, "lstm": 5, "gru": 4}
BLOCK = 24  # samples of a unit at most: two tiles' rows, so that more can go to other threads

Sizes = tuple[int, ...]


def fits(dtype_size: int, gates: int) -> bool:
    """Return True if an arena has room for the gates of a sample; every unit takes at least one."""
    return gates * dtype_size <= ARENA_BYTES


def _recurrence(
    x: TensorMeta, weight: TensorMeta, samples: int, cell: str, reverse: bool, back: bool
) -> Recurrence:
    gates, size = weight.shape
    stored = x.dtype.itemsize
    units = max(1, -(-samples // BLOCK))
    block = min(-(-samples // units) + 3 & ~3, max(1, ARENA_BYTES // max(1, gates * stored)))
    tile, functions = (
        tile_shape(x.dtype.name),
        tile_functions(x.dtype.name, ("tile", "copy", "transpose")),
    )
    depth, columns = (gates, size) if back else (size, gates)
    b_step, b_column = (size, 1) if back else (1, size)
    return Recurrence(
        CELLS[cell], size, gates, 2 * size if cell == "lstm" else size, KEPT[cell] * size, samples,
        max(1, block), int(reverse), depth, columns, tile.rows, tile.columns, tile.lanes, b_step,
        b_column, COPIED if back else TRANSPOSED, stored, stored, functions.tile, functions.copy,
        functions.transpose,
    )  # fmt: skip


def _launch(
    outputs: tuple[TensorMeta, ...], body: Any, p: Recurrence, sizes: Sizes, arena: int
) -> Launch:
    starts = (0, *itertools.accumulate(sizes))
    blocks = -(-p.samples // p.block)
    return Launch(
        outputs, body, consts=(p, starts), units=p.panels, grain=max(1, p.panels),
        scratch=max(64, p.panels * p.nr * p.depth * p.stored), arena=arena, phases=((blocks, 1),),
    )  # fmt: skip


def _check(
    x: TensorMeta, weight: TensorMeta, bias: TensorMeta, state: TensorMeta, cell: str, sizes: Sizes
) -> None:
    gates, size = weight.shape
    width = 2 * size if cell == "lstm" else size
    fit = x.shape[1] == gates == GATES[cell] * size and x.shape[0] == sum(sizes)
    if not fit or bias.shape != (gates,) or state.shape != (max(sizes, default=0), width):
        raise ShapeError(
            f"{cell}: gates of shape {tuple(x.shape)}, weight {tuple(weight.shape)}, bias "
            f"{tuple(bias.shape)} and state {tuple(state.shape)} do not fit {len(sizes)} steps"
        )


def _scan_grad(c: Node, g: Tensor, dlast: Tensor) -> tuple[object, ...]:
    x, weight, bias, state, out, notes = c.saved
    cell, sizes, reverse = c.attrs
    if grad_enabled():
        return steps_back(x, weight, bias, state, g, dlast, cell, sizes, reverse)
    dx, dhidden, dstate, before = scan_back(weight, state, out, notes, g, dlast, *c.attrs)
    around = dhidden if cell == "gru" else dx
    return (
        dx,
        _matmul_tn(around, before) if c.needs[1] else None,
        around.sum(0) if c.needs[2] else None,
        dstate,
    )


def _steps(sizes: Sequence[int]) -> bool:
    """Tell whether so many samples take part in each step: none comes back that has left."""
    return list(sizes) == sorted(sizes, reverse=True) and within(sizes, 0)


def _takes(metas: Metas, values: Values) -> bool:
    x, weight, bias, state = metas
    ranks = x.ndim, weight.ndim, bias.ndim, state.ndim
    fit = ranks == (2, 2, 1, 2) and computes(*metas) and _steps(values["sizes"])
    return fit and fits(x.dtype.itemsize, weight.shape[0])  # its infer asks for the rest


def _takes_back(metas: Metas, values: Values) -> bool:
    weight, state, out, notes, g, dlast = metas
    if any(m.ndim != 2 for m in metas) or not computes(*metas) or not _steps(values["sizes"]):
        return False
    (gates, size), cell, sizes = weight.shape, values["cell"], values["sizes"]
    width, rows = 2 * size if cell == "lstm" else size, sum(sizes)
    samples = max(sizes, default=0)
    shapes = [tuple(m.shape) for m in (state, out, notes, g, dlast)]
    expected = [
        (samples, width), (rows, size), (rows, KEPT[cell] * size), (rows, size),
        (samples, width),
    ]  # fmt: skip
    fit = gates == GATES[cell] * size and fits(g.dtype.itemsize, gates)
    return fit and shapes == expected


@op(
    "x, weight, bias, state -> out, last, notes",
    name="recurrent",
    saves="x, weight, bias, state, out, notes",
    constants="notes",
    grad=_scan_grad,
    letters=unsplit,
    takes=_takes,
)
def scan(
    x: TensorMeta,
    weight: TensorMeta,
    bias: TensorMeta,
    state: TensorMeta,
    cell: Cell,
    sizes: Sizes,
    reverse: bool,
) -> Launch:
    """h of every row, and the state of each sample after its last step."""
    _check(x, weight, bias, state, cell, sizes)
    p = _recurrence(x, weight, state.shape[0], cell, reverse, False)
    rows = x.shape[0]
    outputs = (
        x.with_shape((rows, p.features)), x.with_shape(state.shape),
        x.with_shape((rows, p.note_width)),
    )  # fmt: skip
    return _launch(outputs, scan_body, p, sizes, max(64, p.block * p.gates * p.stored))


@op(
    "weight, state, out, notes, g, dlast -> dx, dhidden, dstate, before",
    name="recurrent_backward",
    letters=unsplit,
    takes=_takes_back,
)
def scan_back(
    weight: TensorMeta,
    state: TensorMeta,
    out: TensorMeta,
    notes: TensorMeta,
    g: TensorMeta,
    dlast: TensorMeta,
    cell: Cell,
    sizes: Sizes,
    reverse: bool,
) -> Launch:
    """See `back_body`."""
    p = _recurrence(g, weight, state.shape[0], cell, reverse, True)
    rows = g.shape[0]
    hidden = (rows if cell == "gru" else 0, p.gates)
    outputs = (
        g.with_shape((rows, p.gates)), g.with_shape(hidden), g.with_shape(state.shape),
        g.with_shape((rows, p.features)),
    )  # fmt: skip
    return _launch(outputs, back_body, p, sizes, 0)
