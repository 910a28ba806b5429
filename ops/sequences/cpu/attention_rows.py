"""The steps of attention on a row of scores: its softmax so far, and its gradient.

A row's weights are exp(score - top) / total.  `top` is the largest score so far and `total` the sum
so far, so that a row can be gone through in blocks (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018).  LLVM may reorder the sums written here (`REASSOCIATE`); how a row
is summed depends on its length alone.
"""

from __future__ import annotations

from typing import Any

from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu.runs import rank, ranked
from flowvm.ops.scalar.functions import exp

REASSOCIATE = True  # for flowvm.compiler.native


def scaled(row: Array, scale: float) -> None:
    """Compute scores from products."""
    factor = row.dtype.type(scale)
    for j in range(len(row)):
        row[j] *= factor


def scaled_and_masked(row: Array, mask: Array, scale: float) -> None:
    """Compute scores from products, and add a mask."""
    factor = row.dtype.type(scale)
    for j in range(len(row)):
        row[j] = row[j] * factor + mask[j]


def fill(row: Array, value: object) -> None:
    for j in range(len(row)):
        row[j] = value


def largest(row: Array, least: object) -> Any:
    """The largest element, `least` at least.  NaN counts as the largest or is passed over."""
    top = rank(least)
    for j in range(len(row)):
        r = rank(row[j])
        top = r if r > top else top
    return ranked(top)


def weighed(row: Array, top: object) -> Any:
    """exp(x - top) in place, and their sum."""
    total = row.dtype.type(0)
    for j in range(len(row)):
        e = exp(row[j] - top)
        row[j] = e
        total += e
    return total


def times(row: Array, factor: object) -> None:
    for j in range(len(row)):
        row[j] *= factor


def stored(out: Array, row: Array, factor: object) -> None:
    """`row` times a factor, written elsewhere."""
    for j in range(len(row)):
        out[j] = row[j] * factor


def dot(x: Array, y: Array) -> Any:
    """The sum of products."""
    total = x.dtype.type(0)
    for j in range(len(x)):
        total += x[j] * y[j]
    return total


def back_to_scores(weights: Array, g: Array, level: object, mean: object, scale: float) -> None:
    """Turn scores into weights, exp(x - level), in place, and their gradient into the products'.

    g = weight * (g - mean) * scale
    """
    factor = weights.dtype.type(scale)
    for j in range(len(weights)):
        w = exp(weights[j] - level)
        weights[j] = w
        g[j] = w * (g[j] - mean) * factor
