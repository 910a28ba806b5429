"""`strips_body` in a few lines: what a first convolution runs while a helper compiles that one.

One result at a time, and of each the same sums in the same order, padding included: of a plane of
depth and a block of channels from zero, one multiplied and added after the other; then those sums;
then the bias.  So the bits are the same (`tests/ops/planes/test_conv_short.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.planes.cpu.conv_plan import Strips
from flowvm.ops.planes.cpu.conv_strips import PHASE_MASK, plane_of, positions_of
from flowvm.ops.scalar.intrinsics import llvm_intrinsic

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

WORDS_ONLY = True  # for flowvm.compiler.native
LOOPS_ONLY = True


def _rounded_twice(x: Number, y: Number, z: Number) -> object:
    return x * y + z


multiply_add = llvm_intrinsic("fmuladd", _rounded_twice, 3)  # as in vectors: `Emitter.fma`


def _sum(
    x: Array, weight: Array, t: Strips, taps: Array, phase: int, task: int, row: int, z: int,
    y: int, column: int,
) -> Any:  # fmt: skip
    """One result without its bias: of a group of a sample (`task`), at (z, y, column)."""
    begin, plane = t.results_h * t.results_w, t.kh * t.kw
    for before in range(phase):
        begin += taps[before]
    per_row, per_channel = t.depth * t.kd * plane, t.kd * plane
    if t.back:
        per_row, per_channel = per_channel, t.rows * per_channel
    weights = task % t.groups * t.rows * t.depth * t.kd * plane + row * per_row
    none = x.dtype.type(0)
    total, some = none, False
    for a in range(t.kd):
        source = plane_of(t, z, a)
        if source < 0:
            continue
        for c0 in range(0, t.depth, t.channels):
            part = none
            for c in range(c0, min(c0 + t.channels, t.depth)):
                of = ((task * t.depth + c) * t.source_d + source) * t.source_h
                for k in range(taps[phase]):
                    tap = taps[begin + k]
                    down, across = tap // t.kw * t.gap_h, tap % t.kw * t.gap_w
                    if t.back:
                        i, j = (y + t.pad_h - down) // t.stride_h, column + t.pad_w - across
                        j //= t.stride_w
                    else:
                        i, j = y * t.stride_h - t.pad_h + down, column * t.stride_w - t.pad_w
                        j += across
                    value = none
                    if 0 <= i < t.source_h and 0 <= j < t.source_w:
                        value = x[(of + i) * t.source_w + j]
                    times = weight[weights + c * per_channel + a * plane + tap]
                    part = multiply_add(times, value, part)
            total, some = total + part if some else part, True
    return total


def sums_body(
    out: Array, x: Array, weight: Array, bias: Array, t: Strips, taps: Array, scratch: Array,
    arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute units [lo, hi) of either phase; this body does not need the first one's packing."""
    if lo >> PHASE_BITS == 0:
        return
    for unit in range(lo & PHASE_MASK, hi & PHASE_MASK):
        z = unit // t.blocks % t.result_d
        part = unit // (t.blocks * t.result_d) % t.parts
        task = unit // (t.blocks * t.result_d * t.parts)
        q0, count = positions_of(t, unit)
        for row in range(part * t.part, min((part + 1) * t.part, t.rows)):
            plus = bias[task % t.groups * t.rows + row] if len(bias) > 0 else x.dtype.type(0)
            at = ((task * t.rows + row) * t.result_d + z) * t.result_h
            for phase in range(t.results_h * t.results_w):
                for q in range(q0, q0 + count):
                    y = q // t.wide * t.results_h + phase // t.results_w
                    column = q % t.wide * t.results_w + phase % t.results_w
                    if y < t.result_h and column < t.result_w:
                        total = _sum(x, weight, t, taps, phase, task, row, z, y, column)
                        out[(at + y) * t.result_w + column] = total + plus
