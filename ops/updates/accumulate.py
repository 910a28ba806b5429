"""Adding a gradient to the one that is there: backward issues this for every parameter.

The in-place form of `add` does the same for any dtypes, strides and broadcasting, and takes longer
to issue.
"""

from __future__ import annotations

from typing import Any

from flowvm.errors import ShapeError
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta import TensorMeta
from flowvm.ops.declare.registry import op

__all__ = ["accumulate_"]


def _body(total: Any, g: Any, lo: int, hi: int) -> None:
    # cut first, then count from 0: an index that may be negative would keep it from being
    # vectorized
    total, g = total[lo:hi], g[lo:hi]
    for i in range(len(total)):
        total[i] += g[i]


@op("total!, g -> ", cuda="optimizer:accumulate")
def accumulate_(total: TensorMeta, g: TensorMeta) -> Launch:
    """Add `g` to `total` in place; both have one shape and dtype.  Not recorded."""
    if total.shape != g.shape or total.dtype is not g.dtype:
        raise ShapeError(f"accumulate_: {total!r} and {g!r} are not alike")
    flat = View(total.dtype, (total.numel,))
    return Launch((), _body, (flat, flat), (), total.numel, GRAIN)
