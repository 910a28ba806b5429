"""The kernels of attention: softmax(Q K' scale + mask) V without the matrix of all weights.

Blocks of queries meet blocks of keys, as in Dao et al., "FlashAttention" (2022) and
"FlashAttention-2" (2023): a block of scores is products of register tiles
(`flowvm.ops.products.cpu.tile`), becomes weights row by row, and is multiplied with the values
while it is in the cache.  Forward keeps of each row `level`, the logarithm of the sum of
exp(score), from which backward makes the weights again.

A unit is a block of queries of one head forward, and one head backward: the gradients of its keys
and values are sums over all of its queries, in their order.  What a unit computes does not depend
on threads.  In a causal call a tile of rows computes the columns that its last row sees, rounded up
to a panel, and no others; what is behind a row's own place weighs nothing.

Operands are flat arrays with the strides of (batch, head, place) in the record; features are
contiguous.  `out`, its gradient and the gradients are dense.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.products.cpu.tile import (
    START_NONE,
    START_ROWS,
    address,
    copy_panel,
    multiply_tile,
    transpose_block,
)
from flowvm.ops.scalar.functions import exp, log
from flowvm.ops.sequences.cpu.attention_rows import (
    back_to_scores,
    dot,
    fill,
    largest,
    scaled,
    scaled_and_masked,
    stored,
    times,
    weighed,
)


class Attention(NamedTuple):
    """The numbers of a kernel; strides are in elements, `size` is the bytes of one."""

    heads: int
    queries: int
    keys: int
    features: int  # of queries and keys
    width: int  # of values
    block: int  # queries of a block
    across: int  # keys of a block, a multiple of nr
    causal: int
    q_batch: int
    q_head: int
    q_row: int
    k_batch: int
    k_head: int
    k_row: int
    v_batch: int
    v_head: int
    v_row: int
    m_batch: int
    m_head: int
    m_row: int
    mr: int
    nr: int
    lanes: int
    size: int
    tile: int  # addresses
    copy: int
    transpose: int
    scale: float

    def panels(self, columns: int) -> int:
        """Round a number of columns up to panels."""
        return -(-columns // self.nr) * self.nr

    def forward_elements(self) -> int:
        """The elements of the arena: panels of keys and values, scores, sums, two numbers a row."""
        return (
            self.across * self.features + self.panels(self.width) * self.across
            + self.block * (self.across + self.width + 2)
        )  # fmt: skip

    def backward_elements(self) -> int:
        """Panels of keys (both ways), values, queries and gradients; scores, their gradients, and
        two numbers a row.
        """
        wide = self.panels(self.features) + self.panels(self.width)
        return (
            self.across * (self.features + self.width + self.panels(self.features))
            + self.block * (wide + 2 * self.across + 2)
        )  # fmt: skip


# --- panels and products ------------------------------------------------------------------------


def _pack(p: Attention, x: int, row: int, depth: int, columns: int, to: int) -> None:
    """Rows as they are: B[k, j] = x[k * row + j], panel by panel."""
    for first in range(0, columns, p.nr):
        copy_panel(
            p.copy, x + first * p.size, row, 1, depth, min(p.nr, columns - first),
            to + first * depth * p.size, p.nr, p.nr,
        )  # fmt: skip


def _pack_turned(p: Attention, x: int, row: int, depth: int, columns: int, to: int) -> None:
    """Rows as columns: B[k, j] = x[j * row + k]."""
    for first in range(0, columns, p.nr):
        width, panel = min(p.nr, columns - first), to + first * depth * p.size
        for j in range(0, p.nr, p.lanes):
            count = max(0, min(p.lanes, width - j))
            for k in range(0, depth, p.lanes):
                transpose_block(
                    p.transpose, x + ((first + j) * row + k) * p.size, row, count,
                    min(p.lanes, depth - k), panel + (k * p.nr + j) * p.size, p.nr, p.lanes,
                )  # fmt: skip


def _multiply(
    p: Attention, a: int, a_row: int, a_step: int, packed: int, whole: int, begin: int, depth: int,
    c: int, c_row: int, start: int, rows: int, columns: int,
) -> None:  # fmt: skip
    """A tile's rows of C: A times steps [begin, begin + depth) of packed panels `whole` deep."""
    for j in range(0, columns, p.nr):
        to = c + j * p.size
        multiply_tile(
            p.tile, depth, a + begin * a_step * p.size, a_row, a_step,
            packed + (j * whole + begin * p.nr) * p.size, p.nr, 1, to, c_row, start, to, c_row,
            rows, min(p.nr, columns - j),
        )  # fmt: skip


def _reach(p: Attention, last: int, first_key: int, count: int) -> int:
    """Count the keys that query `last` sees in a block of `count` keys from `first_key` on."""
    return max(0, min(count, last + 1 - first_key)) if p.causal else count


def _mask_row(mask: Array, p: Attention, head: int, i: int, j: int, count: int) -> Array:
    at = head // p.heads * p.m_batch + head % p.heads * p.m_head + i * p.m_row + j
    return mask[at : at + count]


def _score_row(row: Array, mask: Array, p: Attention, head: int, i: int, j: int) -> None:
    """Products of query i with the keys from j on become scores."""
    if len(mask) > 0:
        scaled_and_masked(row, _mask_row(mask, p, head, i, j, len(row)), p.scale)
    else:
        scaled(row, p.scale)


# --- forward --------------------------------------------------------------------------------------


def forward_body(
    out: Array, levels: Array, q: Array, k: Array, v: Array, mask: Array, p: Attention,
    arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Units are blocks of queries, head by head."""
    size, width = p.size, p.width
    real = out.dtype.type
    blocks = (p.queries + p.block - 1) // p.block
    keys_at = 0
    values_at = keys_at + p.across * p.features * size
    scores_at = values_at + (width + p.nr - 1) // p.nr * p.nr * p.across * size
    sums_at = scores_at + p.block * p.across * size
    scores = array_in(arena, scores_at, p.block * p.across, out)
    sums = array_in(arena, sums_at, p.block * width, out)
    tops = array_in(arena, sums_at + p.block * width * size, p.block, out)
    totals = array_in(arena, sums_at + p.block * (width + 1) * size, p.block, out)
    base = address(arena)
    for unit in range(lo, hi):
        head, i0 = unit // blocks, unit % blocks * p.block
        b, h = head // p.heads, head % p.heads
        rows = min(p.block, p.queries - i0)
        query = address(q) + (b * p.q_batch + h * p.q_head + i0 * p.q_row) * size
        key = address(k) + (b * p.k_batch + h * p.k_head) * size
        value = address(v) + (b * p.v_batch + h * p.v_head) * size
        fill(sums, real(0))
        fill(totals, real(0))
        fill(tops, real(-np.inf))
        visible = min(p.keys, i0 + rows) if p.causal else p.keys
        for j0 in range(0, visible, p.across):
            count = min(p.across, visible - j0)
            _pack_turned(p, key + j0 * p.k_row * size, p.k_row, p.features, count, base + keys_at)
            _pack(p, value + j0 * p.v_row * size, p.v_row, count, width, base + values_at)
            for i in range(0, rows, p.mr):
                high = min(p.mr, rows - i)
                reach = _reach(p, i0 + i + high - 1, j0, count)
                if reach == 0:
                    continue
                _multiply(
                    p, query + i * p.q_row * size, p.q_row, 1, base + keys_at, p.features, 0,
                    p.features, base + scores_at + i * p.across * size, p.across, START_NONE, high,
                    reach,
                )  # fmt: skip
                for r in range(i, i + high):
                    own = _reach(p, i0 + r, j0, count)
                    row = scores[r * p.across : r * p.across + own]
                    fill(scores[r * p.across + own : r * p.across + reach], real(0))
                    _score_row(row, mask, p, head, i0 + r, j0)
                    top = largest(row, tops[r])
                    if top == -np.inf:  # nothing is seen so far
                        fill(row, real(0))
                        continue
                    if tops[r] != top:
                        shrunk = exp(tops[r] - top)
                        totals[r] *= shrunk
                        times(sums[r * width : (r + 1) * width], shrunk)
                        tops[r] = top
                    totals[r] += weighed(row, top)
                _multiply(
                    p, base + scores_at + i * p.across * size, p.across, 1, base + values_at,
                    count, 0, reach, base + sums_at + i * width * size, width, START_ROWS, high,
                    width,
                )  # fmt: skip
        for r in range(rows):
            at = head * p.queries + i0 + r
            blind = tops[r] == -np.inf
            levels[at] = real(np.inf) if blind else tops[r] + log(totals[r])
            factor = real(0) if blind else real(1) / totals[r]
            stored(out[at * width : (at + 1) * width], sums[r * width : (r + 1) * width], factor)


# --- backward -------------------------------------------------------------------------------------


def backward_body(
    dq: Array, dk: Array, dv: Array, q: Array, k: Array, v: Array, out: Array, levels: Array,
    g: Array, mask: Array, p: Attention, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Units are heads."""
    size, width, features = p.size, p.width, p.features
    real = dq.dtype.type
    turned_keys = 0  # in bytes of the arena, one behind the other
    turned_values = turned_keys + p.across * features * size
    keys_at = turned_values + p.across * width * size
    queries_at = keys_at + (features + p.nr - 1) // p.nr * p.nr * p.across * size
    grads_at = queries_at + (features + p.nr - 1) // p.nr * p.nr * p.block * size
    weights_at = grads_at + (width + p.nr - 1) // p.nr * p.nr * p.block * size
    slopes_at = weights_at + p.block * p.across * size
    weights = array_in(arena, weights_at, p.block * p.across, dq)
    slopes = array_in(arena, slopes_at, p.block * p.across, dq)
    base = address(arena)
    for head in range(lo, hi):
        b, h = head // p.heads, head % p.heads
        query = address(q) + (b * p.q_batch + h * p.q_head) * size
        key = address(k) + (b * p.k_batch + h * p.k_head) * size
        value = address(v) + (b * p.v_batch + h * p.v_head) * size
        grad = address(g) + head * p.queries * width * size
        to_q = address(dq) + head * p.queries * features * size
        to_k = address(dk) + head * p.keys * features * size
        to_v = address(dv) + head * p.keys * width * size
        fill(dq[head * p.queries * features : (head + 1) * p.queries * features], real(0))
        fill(dk[head * p.keys * features : (head + 1) * p.keys * features], real(0))
        fill(dv[head * p.keys * width : (head + 1) * p.keys * width], real(0))
        for j0 in range(0, p.keys, p.across):
            count = min(p.across, p.keys - j0)
            from_key = key + j0 * p.k_row * size
            from_value = value + j0 * p.v_row * size
            _pack_turned(p, from_key, p.k_row, features, count, base + turned_keys)
            _pack_turned(p, from_value, p.v_row, width, count, base + turned_values)
            _pack(p, from_key, p.k_row, count, features, base + keys_at)
            begin = j0 // p.block * p.block if p.causal else 0
            for i0 in range(begin, p.queries, p.block):
                rows = min(p.block, p.queries - i0)
                from_query = query + i0 * p.q_row * size
                from_grad = grad + i0 * width * size
                _pack(p, from_query, p.q_row, rows, features, base + queries_at)
                _pack(p, from_grad, width, rows, width, base + grads_at)
                for i in range(0, rows, p.mr):
                    high = min(p.mr, rows - i)
                    reach = _reach(p, i0 + i + high - 1, j0, count)
                    line = i * p.across * size
                    if reach > 0:
                        _multiply(
                            p, from_query + i * p.q_row * size, p.q_row, 1, base + turned_keys,
                            features, 0, features, base + weights_at + line, p.across, START_NONE,
                            high, reach,
                        )  # fmt: skip
                        _multiply(
                            p, from_grad + i * width * size, width, 1, base + turned_values, width,
                            0, width, base + slopes_at + line, p.across, START_NONE, high, reach,
                        )  # fmt: skip
                    for r in range(i, i + high):
                        own, at = _reach(p, i0 + r, j0, count), head * p.queries + i0 + r
                        row = weights[r * p.across : r * p.across + own]
                        slope = slopes[r * p.across : r * p.across + own]
                        _score_row(row, mask, p, head, i0 + r, j0)
                        mean = dot(
                            g[at * width : (at + 1) * width], out[at * width : (at + 1) * width]
                        )
                        back_to_scores(row, slope, levels[at], mean, p.scale)
                        fill(weights[r * p.across + own : r * p.across + count], real(0))
                        fill(slopes[r * p.across + own : r * p.across + count], real(0))
                    if reach > 0:
                        _multiply(
                            p, base + slopes_at + line, p.across, 1, base + keys_at, count, 0,
                            reach, to_q + (i0 + i) * features * size, features, START_ROWS, high,
                            features,
                        )  # fmt: skip
                for c in range(0, count, p.mr):
                    high = min(p.mr, count - c)
                    first = max(0, min(rows, j0 + c - i0)) if p.causal else 0
                    if first == rows:
                        continue
                    _multiply(
                        p, base + weights_at + c * size, 1, p.across, base + grads_at, rows, first,
                        rows - first, to_v + (j0 + c) * width * size, width, START_ROWS, high,
                        width,
                    )  # fmt: skip
                    _multiply(
                        p, base + slopes_at + c * size, 1, p.across, base + queries_at, rows, first,
                        rows - first, to_k + (j0 + c) * features * size, features, START_ROWS,
                        high, features,
                    )  # fmt: skip
