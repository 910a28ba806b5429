"""The kernels of softmax and log_softmax and of their gradients.

A row is what is normalised together: the tensor is seen as (outer, n, inner), and row (o, i) has
its n elements `inner` apart.  There is a kernel for each way a row can lie:

    rows      inner is 1: a row is a run of memory, and a visit ends before the next begins
    columns   rows side by side, `width` of them together, so that memory is read along its lines
    split     rows too long for the cache: parts of rows, in three phases (the parts' maxima and
              sums; the rows'; the result), which also lets several workers share one row

A row of -inf alone, or with NaN or +inf in it, gives NaN, as in PyTorch.

Long because each kernel stands with its gradient's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.launch import PHASE_BITS, Launch, View
from flowvm.meta import TensorMeta
from flowvm.ops.rows.cpu.runs import dot_of, exps_of, put_exps, sum_of, top_of
from flowvm.ops.scalar.decay import decay
from flowvm.ops.scalar.functions import log

__all__ = ["FEW", "column_tops", "column_totals", "softmax_launch"]

Array = Any
CHUNK = 1 << 15  # elements of a chunk of work
FEW = 48  # elements of a row up to which it is short
SHORT = 2048  # elements of short rows whose exponentials are computed together
LONG = 1 << 16  # elements of a row from which on it is split
TALL = 256  # elements of a row from which on it is split where rows lie side by side
PART = 1 << 14  # elements of a part


def _rows(out: Array, x: Array, n: int, logarithm: bool, arena: Array, lo: int, hi: int) -> None:
    real = out.dtype.type
    if n > FEW:
        for row in range(lo, hi):
            xs, ys = x[row * n : row * n + n], out[row * n : row * n + n]
            top = top_of(xs)
            if logarithm:
                total = log(exps_of(xs, top))
                for j in range(n):
                    ys[j] = (xs[j] - top) - total
            else:
                scale = real(1) / put_exps(ys, xs, top)
                for j in range(n):
                    ys[j] *= scale
        return
    # exp is most of the work, and a row alone would not fill the vector unit
    tall = SHORT // n
    for first in range(lo, hi, tall):
        rows = min(tall, hi - first)
        block, ys = x[first * n : (first + rows) * n], out[first * n : (first + rows) * n]
        es = arena.view(out.dtype)[: rows * n]
        for r in range(rows):
            xs, shifted = block[r * n : r * n + n], ys[r * n : r * n + n]
            top = xs[0]
            for j in range(1, n):
                top = xs[j] if xs[j] > top else top  # exp finds a NaN that this passes over
            for j in range(n):
                shifted[j] = xs[j] - top
        for j in range(rows * n):
            es[j] = decay(ys[j])
        for r in range(rows):
            part, os = es[r * n : r * n + n], ys[r * n : r * n + n]
            total = sum_of(part)
            if logarithm:
                total = log(total)
                for j in range(n):
                    os[j] -= total
            else:
                scale = real(1) / total
                for j in range(n):
                    os[j] = part[j] * scale


def _rows_backward(
    out: Array, g: Array, y: Array, n: int, logarithm: bool, lo: int, hi: int
) -> None:
    for row in range(lo, hi):
        gs, ys = g[row * n : row * n + n], y[row * n : row * n + n]
        os = out[row * n : row * n + n]
        if logarithm:
            total = sum_of(gs)
            for j in range(n):
                os[j] = gs[j] - decay(ys[j]) * total
        else:
            total = dot_of(gs, ys)
            for j in range(n):
                os[j] = (gs[j] - total) * ys[j]


# --- rows side by side: each of these works on n elements of len(top) neighbouring rows -----------


def column_tops(top: Array, x: Array, at: int, n: int, inner: int) -> None:
    """The maxima, at least the lowest finite number: the exponentials of a part that is -inf alone
    are then 0 next to others that are not, and 0 / 0 in a row of nothing else.  NaN is passed over;
    the exponentials find it.
    """
    width = len(top)
    for i in range(width):
        top[i] = np.finfo(top.dtype).min
    for j in range(n):
        xs = x[at + j * inner : at + j * inner + width]
        for i in range(width):
            top[i] = xs[i] if xs[i] > top[i] else top[i]


def column_totals(total: Array, top: Array, x: Array, at: int, n: int, inner: int) -> None:
    """total = the sum of exp(x - top)."""
    width = len(top)
    for i in range(width):
        total[i] = 0
    for j in range(n):
        xs = x[at + j * inner : at + j * inner + width]
        for i in range(width):
            total[i] += decay(xs[i] - top[i])


def _put_totals(
    out: Array, total: Array, top: Array, x: Array, at: int, n: int, inner: int
) -> None:
    """The same, and out = exp(x - top)."""
    width = len(top)
    for i in range(width):
        total[i] = 0
    for j in range(n):
        here = at + j * inner
        xs, ys = x[here : here + width], out[here : here + width]
        for i in range(width):
            e = decay(xs[i] - top[i])
            ys[i] = e
            total[i] += e


def _finish(out: Array, x: Array, top: Array, total: Array, at: int, n: int, inner: int) -> None:
    """out = x - top - total."""
    width = len(top)
    for j in range(n):
        here = at + j * inner
        xs, ys = x[here : here + width], out[here : here + width]
        for i in range(width):
            ys[i] = (xs[i] - top[i]) - total[i]


def _scale(out: Array, factor: Array, at: int, n: int, inner: int) -> None:
    width = len(factor)
    for j in range(n):
        ys = out[at + j * inner : at + j * inner + width]
        for i in range(width):
            ys[i] *= factor[i]


def _columns(
    out: Array, x: Array, n: int, inner: int, width: int, logarithm: bool, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    stats, stripes = arena.view(out.dtype), (inner + width - 1) // width
    for unit in range(lo, hi):
        first = unit % stripes * width
        count, at = min(width, inner - first), unit // stripes * n * inner + first
        top, total = stats[:count], stats[width : width + count]
        column_tops(top, x, at, n, inner)
        if logarithm:
            column_totals(total, top, x, at, n, inner)
            for i in range(count):
                total[i] = log(total[i])
            _finish(out, x, top, total, at, n, inner)
        else:
            _put_totals(out, total, top, x, at, n, inner)
            for i in range(count):
                total[i] = out.dtype.type(1) / total[i]
            _scale(out, total, at, n, inner)


def _slopes(total: Array, g: Array, y: Array, at: int, n: int, inner: int, logarithm: bool) -> None:
    """total = the sum of g, or of g * y."""
    width = len(total)
    for i in range(width):
        total[i] = 0
    for j in range(n):
        here = at + j * inner
        gs, ys = g[here : here + width], y[here : here + width]
        if logarithm:
            for i in range(width):
                total[i] += gs[i]
        else:
            for i in range(width):
                total[i] += gs[i] * ys[i]


def _finish_backward(
    out: Array, g: Array, y: Array, total: Array, at: int, n: int, inner: int, logarithm: bool
) -> None:
    width = len(total)
    for j in range(n):
        here = at + j * inner
        gs, ys, os = g[here : here + width], y[here : here + width], out[here : here + width]
        if logarithm:
            for i in range(width):
                os[i] = gs[i] - decay(ys[i]) * total[i]
        else:
            for i in range(width):
                os[i] = (gs[i] - total[i]) * ys[i]


def _columns_backward(
    out: Array, g: Array, y: Array, n: int, inner: int, width: int, logarithm: bool, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    stats, stripes = arena.view(out.dtype), (inner + width - 1) // width
    for unit in range(lo, hi):
        first = unit % stripes * width
        count, at = min(width, inner - first), unit // stripes * n * inner + first
        total = stats[:count]
        _slopes(total, g, y, at, n, inner, logarithm)
        _finish_backward(out, g, y, total, at, n, inner, logarithm)


# --- parts of rows --------------------------------------------------------------------------------
# A part is `tall` elements of `width` neighbouring rows; parts are numbered (outer, part, stripe).
# scratch: each part's maxima, each row's, each part's sums, each row's.


def _split(
    out: Array, x: Array, n: int, inner: int, width: int, tall: int, logarithm: bool,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """A part's exponentials are those of its distance from its own maximum: `out` holds them until
    the row's is known, and one factor corrects them.
    """
    real = out.dtype.type
    phase, first_unit = lo >> PHASE_BITS, lo & ((1 << PHASE_BITS) - 1)
    stripes, parts = (inner + width - 1) // width, (n + tall - 1) // tall
    stats = scratch.view(out.dtype)
    rows = len(x) // n
    tops, totals = stats[: rows * (parts + 1)], stats[rows * (parts + 1) :]
    for k in range(hi - lo):
        unit = first_unit + k
        first = unit % stripes * width
        count = min(width, inner - first)
        outer = unit // stripes if phase == 1 else unit // stripes // parts
        whole = rows * parts + outer * inner + first
        row_top, row_total = tops[whole : whole + count], totals[whole : whole + count]
        if phase == 1:
            _combine(row_top, row_total, tops, totals, outer * parts * inner + first, parts, inner)
            for i in range(count):
                s = row_total[i]
                row_total[i] = log(s) if logarithm else real(1) / s
            continue
        part = unit // stripes % parts
        height, at = min(tall, n - part * tall), (outer * n + part * tall) * inner + first
        here = (outer * parts + part) * inner + first
        top, total = tops[here : here + count], totals[here : here + count]
        xs, ys = x[at : at + height], out[at : at + height]
        if phase == 0:
            if inner == 1:
                top[0] = np.finfo(out.dtype).min
                highest = top_of(xs)
                top[0] = highest if highest > top[0] else top[0]
                total[0] = exps_of(xs, top[0]) if logarithm else put_exps(ys, xs, top[0])
            else:
                column_tops(top, x, at, height, inner)
                if logarithm:
                    column_totals(total, top, x, at, height, inner)
                else:
                    _put_totals(out, total, top, x, at, height, inner)
        elif logarithm:
            if inner == 1:
                for j in range(height):
                    ys[j] = (xs[j] - row_top[0]) - row_total[0]
            else:
                _finish(out, x, row_top, row_total, at, height, inner)
        else:
            for i in range(count):
                total[i] = decay(top[i] - row_top[i]) * row_total[i]
            if inner == 1:
                for j in range(height):
                    ys[j] *= total[0]
            else:
                _scale(out, total, at, height, inner)


def _combine(
    top: Array, total: Array, tops: Array, totals: Array, at: int, parts: int, inner: int
) -> None:
    """The rows' maxima and sums from their parts' at `at`."""
    width = len(top)
    column_tops(top, tops, at, parts, inner)
    for i in range(width):
        total[i] = 0
    for p in range(parts):
        start = at + p * inner
        ts, ss = tops[start : start + width], totals[start : start + width]
        for i in range(width):
            total[i] += ss[i] * decay(ts[i] - top[i])


def _split_backward(
    out: Array, g: Array, y: Array, n: int, inner: int, width: int, tall: int, logarithm: bool,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    phase, first_unit = lo >> PHASE_BITS, lo & ((1 << PHASE_BITS) - 1)
    stripes, parts = (inner + width - 1) // width, (n + tall - 1) // tall
    totals = scratch.view(out.dtype)
    rows = len(y) // n
    for k in range(hi - lo):
        unit = first_unit + k
        first = unit % stripes * width
        count = min(width, inner - first)
        if phase == 1:
            outer = unit // stripes
            here = rows * parts + outer * inner + first
            total = totals[here : here + count]
            _slopes(total, totals, totals, outer * parts * inner + first, parts, inner, True)
            continue
        part = unit // stripes % parts
        outer = unit // stripes // parts
        height, at = min(tall, n - part * tall), (outer * n + part * tall) * inner + first
        gs, ys, os = g[at : at + height], y[at : at + height], out[at : at + height]
        if phase == 0:
            here = (outer * parts + part) * inner + first
            if inner == 1:
                totals[here] = sum_of(gs) if logarithm else dot_of(gs, ys)
            else:
                _slopes(totals[here : here + count], g, y, at, height, inner, logarithm)
        else:
            here = rows * parts + outer * inner + first
            total = totals[here : here + count]
            if inner == 1:
                _finish_run_backward(os, gs, ys, total[0], logarithm)
            else:
                _finish_backward(out, g, y, total, at, height, inner, logarithm)


def _finish_run_backward(out: Array, g: Array, y: Array, total: Any, logarithm: bool) -> None:
    if logarithm:
        for j in range(len(g)):
            out[j] = g[j] - decay(y[j]) * total
    else:
        for j in range(len(g)):
            out[j] = (g[j] - total) * y[j]


# --- which of them --------------------------------------------------------------------------------


def softmax_launch(
    x: TensorMeta, sizes: tuple[int, int, int], logarithm: bool, backward: bool
) -> Launch:
    """The kernel for a tensor like `x` seen as (outer, n, inner)."""
    outer, n, inner = sizes
    views = (View(x.dtype, (x.numel,)),) * (3 if backward else 2)
    outputs, size = (x.dense(),), x.dtype.itemsize
    if x.numel == 0:
        outer, n, inner = 0, 1, 1
    if inner <= 1 and n <= LONG:
        grain = max(1, CHUNK // max(n, 1))
        if backward:
            consts, rows = (n, logarithm), (n, n, n)
            return Launch(outputs, _rows_backward, views, consts, outer, grain, blocks=rows)
        arena = SHORT * size
        return Launch(
            outputs, _rows, views, (n, logarithm), outer, grain, arena=arena, blocks=(n, n)
        )
    if n <= TALL:
        width = _lines(inner, 4096 // n)
        units = outer * -(-inner // width)
        return Launch(
            outputs,
            _columns_backward if backward else _columns,
            views,
            (n, inner, width, logarithm),
            units,
            max(1, CHUNK // (n * width)),
            arena=2 * width * size,
        )
    width = _lines(inner, 512)
    tall = PART if inner == 1 else min(TALL, PART // width)
    stripes, parts = -(-inner // width), -(-n // tall)
    numbers = outer * (parts + 1) * inner
    pieces = outer * parts * stripes, max(1, CHUNK // (tall * width))
    return Launch(
        outputs,
        _split_backward if backward else _split,
        views,
        (n, inner, width, tall, logarithm),
        *pieces,
        scratch=numbers * size * (1 if backward else 2),
        phases=((outer * stripes, 1), pieces),
    )


def _lines(inner: int, wanted: int) -> int:
    """About `wanted` of `inner` neighbours, in whole cache lines, 64 at least."""
    return min(inner, max(64, min(wanted, 512) // 16 * 16))
