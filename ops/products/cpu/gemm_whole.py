"""Products of integers: plain loops, which LLVM vectorizes.

They wrap around as integers do.  Rows are shared out among threads; a dot product is taken where
both operands are contiguous along the depth, else rows of B are added up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flowvm.ops.products.cpu.gemm_kernels import DOTS, NUMBERS, Plan

__all__ = ["whole_body"]

Array = Any


@functools.cache
def whole_body() -> Callable[..., None]:
    """The kernel body of a product of integers, which have no tile: loops that LLVM vectorizes."""
    source = (
        f"def whole(out, a, b, {NUMBERS}, lo, hi):\n    rows(Plan({NUMBERS}), out, a, b, lo, hi)\n"
    )
    scope: dict[str, Any] = {"Plan": Plan, "rows": _whole_rows}
    exec(compile(source, "<product of integers>", "exec"), scope)
    body: Callable[..., None] = scope["whole"]
    return body


def _whole_rows(p: Plan, out: Array, a: Array, b: Array, lo: int, hi: int) -> None:
    """Rows [lo, hi) of out = a @ b."""
    for unit in range(lo, hi):
        item, i = unit // p.m, unit % p.m
        i2, rest = item % p.d2, item // p.d2
        i1, i0 = rest % p.d1, rest // p.d1
        a_at = i0 * p.a0 + i1 * p.a1 + i2 * p.a2 + i * p.a_row
        b_at = i0 * p.b0 + i1 * p.b1 + i2 * p.b2
        line = out[unit * p.n : unit * p.n + p.n]
        if p.way == DOTS:
            left = a[a_at : a_at + p.k]
            for j in range(p.n):
                right = b[b_at + j * p.b_column : b_at + j * p.b_column + p.k]
                total = out.dtype.type(0)
                for k in range(p.k):
                    total += left[k] * right[k]
                line[j] = total
            continue
        for j in range(p.n):
            line[j] = 0
        for k in range(p.k):
            number, place = a[a_at + k * p.a_step], b_at + k * p.b_step
            if p.b_column == 1:
                row = b[place : place + p.n]
                for j in range(p.n):
                    line[j] += number * row[j]
            else:
                for j in range(p.n):
                    line[j] += number * b[place + j * p.b_column]
