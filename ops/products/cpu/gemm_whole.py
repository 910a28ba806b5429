"""Products of integers: plain loops, which LLVM vectorizes.

They wrap around as integers do.  Rows are shared out among threads; a dot product is taken where
both operands are contiguous along the depth, else rows of B are added up.
"""

from __future__ import annotations

from flowvm.meta.arrays import Array
from flowvm.ops.products.cpu.gemm_kernels import DOTS, Plan, item_offsets


def whole_body(out: Array, a: Array, b: Array, p: Plan, lo: int, hi: int) -> None:
    """Rows [lo, hi) of a product of integers, which have no tile."""
    m, n, depth, a_step, b_column = p.m, p.n, p.k, p.a_step, p.b_column
    dots, b_step = p.way == DOTS, p.b_step
    for unit in range(lo, hi):
        item, i = unit // m, unit % m
        a_at, b_at, _ = item_offsets(p, item)
        a_at += i * p.a_row
        line = out[unit * n : unit * n + n]
        if dots:
            left = a[a_at : a_at + depth]
            for j in range(n):
                right = b[b_at + j * b_column : b_at + j * b_column + depth]
                total = out.dtype.type(0)
                for k in range(depth):
                    total += left[k] * right[k]
                line[j] = total
            continue
        for j in range(n):
            line[j] = 0
        for k in range(depth):
            number, place = a[a_at + k * a_step], b_at + k * b_step
            if b_column == 1:
                row = b[place : place + n]
                for j in range(n):
                    line[j] += number * row[j]
            else:
                for j in range(n):
                    line[j] += number * b[place + j * b_column]
