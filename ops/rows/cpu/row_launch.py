"""The choice of a row program's body on the CPU, and of its pieces.

A device's rule finds the program and its sizes in `Launch.plan` (`Rows`).
"""

from __future__ import annotations

from typing import NamedTuple

from flowvm.launch import Launch, View
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.registry import power_below
from flowvm.ops.rows.cpu.row_bodies import FEW, SHORT, STRIPE, rows_body, short_body, short_map
from flowvm.ops.rows.cpu.row_stripes import parts_body, parts_bytes, stripes_body
from flowvm.ops.rows.parts.row_program import RowProgram

CHUNK = 1 << 15  # elements of a chunk of work
LONG = 1 << 16  # elements of a row from which on it is split
TALL = 256  # elements of a row from which on it is split where rows lie side by side
PART = 1 << 14  # elements of a part


class Rows(NamedTuple):
    """A program and its rows: element e of row (o, i) is at (o * n + e) * inner + i.  The weights
    of row r begin at r % period * n.
    """

    program: RowProgram
    outer: int
    n: int
    inner: int = 1
    period: int = 1
    numbers: tuple[float, ...] = ()


def row_launch(
    rows: Rows, outputs: tuple[TensorMeta, ...], inputs: tuple[TensorMeta, ...]
) -> Launch:
    """The launch of a program on dense operands."""
    p, outer, n, inner, *_ = rows
    views = tuple(View(m.dtype, (m.numel,)) for m in (*outputs, *inputs))
    if not p.is_plain:
        assert inner == 1
        return _weighted(rows, outputs, views)
    if inputs[0].numel == 0:
        outer, n, inner = 0, max(n, 1), 1
    size = inputs[0].dtype.itemsize
    if inner <= 1 and (n <= LONG or not p.result):
        short = n <= FEW and short_map(p) != ""
        body, every = short_body(p) if short else rows_body(p), (n,) * len(views)
        if not p.result:
            every = (int(len(p.notes) == 1), *every[1:])
        arena = SHORT * size if short else 0
        return Launch(
            outputs, body, views, (n,), outer, _grain(n), arena=arena, blocks=every, plan=rows
        )
    if n <= TALL or not p.result:
        width = _lines(inner, 4096 // n)
        units = outer * -(-inner // width)
        arena = (len(p.folds) + len(p.after)) * width * size
        consts = n, inner, width
        return Launch(
            outputs, stripes_body(p), views, consts, units, _grain(n * width), arena=arena,
            plan=rows,
        )  # fmt: skip
    width = _lines(inner, 512)
    tall = PART if inner == 1 else min(TALL, PART // width)
    stripes, parts = -(-inner // width), -(-n // tall)
    pieces = outer * parts * stripes, _grain(tall * width)
    return Launch(
        outputs,
        parts_body(p),
        views,
        (n, inner, width, tall),
        *pieces,
        scratch=parts_bytes(p, outer * inner, parts, size),
        phases=((outer * stripes, 1), pieces),
        plan=rows,
    )


def _weighted(rows: Rows, outputs: tuple[TensorMeta, ...], views: tuple[View, ...]) -> Launch:
    """Return the Launch of rows that have numbers and weights of their own."""
    p, outer, n, _, period, numbers = rows
    body, consts = rows_body(p), (n, *[period] * bool(p.weights))
    first = len(outputs)
    cut = [int(k == 0 or first <= k < first + len(p.rows)) for k in range(len(views))]
    if not p.down:
        blocks = tuple(n * c for c in cut)
        return Launch(
            outputs, body, views, (*consts, *numbers), outer, _grain(n), blocks=blocks, plan=rows
        )
    # each block leaves two numbers for each weight: little next to its rows if they are many
    tall = max(16, power_below(min(256, 4 * CHUNK // max(1, n))))
    units, weights = -(-outer // tall), outputs[1].numel
    return Launch(
        outputs,
        body,
        views,
        (*consts, tall, *numbers),
        units,
        scratch=max(8, len(p.down) * units * weights * outputs[0].dtype.itemsize),
        arena=8 * len(p.down) * STRIPE,
        phases=((-(-weights // STRIPE), _grain(STRIPE * units)),),
        blocks=tuple(tall * n * c for c in cut),
        plan=rows,
    )


def _grain(n: int) -> int:
    """Return the number of units of n elements in a chunk of work."""
    return max(1, CHUNK // max(1, n))


def _lines(inner: int, target: int) -> int:
    """About `target` of `inner` neighbours, in whole cache lines, 64 at least."""
    return min(inner, max(64, min(target, 512) // 16 * 16))
