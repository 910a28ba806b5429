"""Loops over one row of memory that kernel bodies share: sums, products and maxima in eight parts
side by side.

LLVM keeps the order of a sum as written, which leaves one addition at a time; eight accumulators
fill the vector unit, round less, and always add in the same order.  Bodies pass slices: an index
into a slice that starts at 0 vectorizes, where `x[at + j]` does not.
"""

from __future__ import annotations

from typing import Any

__all__ = ["centered_dot", "squares_of", "sum_of", "top_of"]

Array = Any


def _larger(a: Any, b: Any) -> Any:
    return a if a > b else b


def top_of(x: Array) -> Any:
    """The largest element; x has one at least.  NaN is passed over unless it comes first."""
    a = b = c = d = e = f = g = h = x[0]
    whole = len(x) // 8
    for k in range(whole):
        j = 8 * k
        a, b = _larger(x[j], a), _larger(x[j + 1], b)
        c, d = _larger(x[j + 2], c), _larger(x[j + 3], d)
        e, f = _larger(x[j + 4], e), _larger(x[j + 5], f)
        g, h = _larger(x[j + 6], g), _larger(x[j + 7], h)
    top = _larger(_larger(_larger(a, b), _larger(c, d)), _larger(_larger(e, f), _larger(g, h)))
    for j in range(8 * whole, len(x)):
        top = _larger(x[j], top)
    return top


def sum_of(x: Array) -> Any:
    """The sum."""
    a = b = c = d = e = f = g = h = x.dtype.type(0)
    whole = len(x) // 8
    for k in range(whole):
        j = 8 * k
        a, b, c, d = a + x[j], b + x[j + 1], c + x[j + 2], d + x[j + 3]
        e, f, g, h = e + x[j + 4], f + x[j + 5], g + x[j + 6], h + x[j + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for j in range(8 * whole, len(x)):
        total += x[j]
    return total


def centered_dot(y: Array, x: Array, middle: Any) -> Any:
    """The sum of y * (x - middle)."""
    a = b = c = d = e = f = g = h = x.dtype.type(0)
    whole = len(x) // 8
    for k in range(whole):
        j = 8 * k
        a, b = a + y[j] * (x[j] - middle), b + y[j + 1] * (x[j + 1] - middle)
        c, d = c + y[j + 2] * (x[j + 2] - middle), d + y[j + 3] * (x[j + 3] - middle)
        e, f = e + y[j + 4] * (x[j + 4] - middle), f + y[j + 5] * (x[j + 5] - middle)
        g, h = g + y[j + 6] * (x[j + 6] - middle), h + y[j + 7] * (x[j + 7] - middle)
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for j in range(8 * whole, len(x)):
        total += y[j] * (x[j] - middle)
    return total


def squares_of(x: Array, middle: Any) -> Any:
    """The sum of (x - middle)²."""
    a = b = c = d = x.dtype.type(0)
    whole = len(x) // 4
    for k in range(whole):
        j = 4 * k
        p, q, r, s = x[j] - middle, x[j + 1] - middle, x[j + 2] - middle, x[j + 3] - middle
        a, b, c, d = a + p * p, b + q * q, c + r * r, d + s * s
    total = (a + b) + (c + d)
    for j in range(4 * whole, len(x)):
        p = x[j] - middle
        total += p * p
    return total
