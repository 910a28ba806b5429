"""The division of a scan's work on the CPU.

A device's rule finds the scan in `Launch.plan` (`Scanned`).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from flowvm.launch import Launch, View
from flowvm.meta.dtype import bool_, uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.rows.cpu import scan_kernels
from flowvm.ops.rows.parts.fold_walk import grain_of
from flowvm.ops.rows.parts.recurrence import split
from flowvm.ops.rows.parts.scan_programs import EXPONENTIALS, Maker

ROW_SEGMENT = 1 << 16  # elements
TILE = 512  # columns
_segments_body = functools.cache(scan_kernels.segments_body)
_rows_body = functools.cache(scan_kernels.rows_body)
_columns_body = functools.cache(scan_kernels.columns_body)


class Scanned(NamedTuple):
    """A scan, and the dimension along which it goes, `reverse` from its end."""

    scan: Maker
    dim: int
    reverse: bool = False


def scan_launch(plan: Scanned, outputs: tuple[TensorMeta, ...], x: TensorMeta) -> Launch:
    """The launch of a scan of a dense tensor."""
    (outer, n, inner), reverse = split(x, plan.dim), plan.reverse
    kinds = [uint8 if m.dtype is bool_ else m.dtype for m in (*outputs, x)]
    views = tuple(View(kind, (x.numel,)) for kind in kinds)
    scan = plan.scan(kinds[-1].numpy.type)
    if inner == 1 and scan.rule is not None:
        segments = max(1, -(-n // ROW_SEGMENT))
        length = ROW_SEGMENT if segments > 1 else n
        units, grain = outer * segments if n else 0, grain_of(max(length, 1))
        return Launch(
            outputs,
            _segments_body(scan.rule),
            views,
            (scan_kernels.Rows(n, length, segments, reverse),),
            units,
            grain,
            scratch=8 * units if segments > 1 else 8,
            phases=((units, grain),) if segments > 1 else (),
            plan=plan,
        )
    if inner == 1:
        units, grain = outer if n else 0, grain_of(max(n, 1))
        if scan is EXPONENTIALS and not reverse:
            arena = 32 * scan_kernels.RUN
            body = scan_kernels.exponential_rows
            return Launch(outputs, body, views, (n,), units, grain, arena=arena, plan=plan)
        return Launch(outputs, _rows_body(scan), views, (n, reverse), units, grain, plan=plan)
    tile = max(1, min(inner, TILE))
    return Launch(
        outputs,
        _columns_body(scan),
        views,
        (scan_kernels.Matrices(n, inner, tile, reverse),),
        units=outer * -(-inner // tile) if n else 0,
        grain=grain_of(max(n * tile, 1)),
        arena=8 * len(scan.kinds) * tile,
        plan=plan,
    )
