"""Poisson counts, each from words that belong to its place.

Element i takes Philox counters i, i + 2**40, i + 2 * 2**40, ...: as many as its method wants, and
none that another element takes.  A small mean is counted down through the distribution, a larger
one drawn by transformed rejection (Hörmann, "The transformed rejection method for generating
Poisson random variables", 1993).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from flowvm.errors import InvalidValueError, declare_status
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.random.parts.philox import ARENA, LOW, STEP, draw_words, philox
from flowvm.ops.scalar import functions as scalar

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

NO_MEAN = declare_status(66, InvalidValueError, "element {0} is no mean of a Poisson distribution")
SMALL = 12.0  # means up to here are counted through
NEXT = 1 << 40  # from one counter of an element to its next


def _fraction(high: int, low: int) -> float:
    """Return a number between 0 and 1, never one of them."""
    return (((high << 21) | (low >> 11)) + 0.5) * 2.0**-53


def _counted(mean: float, u: float) -> float:
    """Count the terms of the distribution that `u` exceeds."""
    term, k = float(scalar.exp(-mean)), 0.0
    while u > term and k < 1000.0:
        u -= term
        k += 1.0
        term *= mean / k
    return k


def _log_factorial(k: float) -> Number:
    """Stirling's series, to 1e-10, where it has that; the product before."""
    if k >= 10.0:
        z = 1.0 / (k * k)
        rest = (1 / 12 - z * (1 / 360 - z / 1260)) / k
        return (k + 0.5) * scalar.log(k) - k + 0.9189385332046727 + rest
    product = 1.0
    for i in range(2, int(k) + 1):
        product *= i
    return scalar.log(product)


def _rejected(mean: float, u: float, v: float, place: int, seed: int, call: int) -> Number:
    """Hörmann's PTRS, with his constants; u and v are the first two numbers of this place."""
    root, log_mean = scalar.sqrt(mean), scalar.log(mean)
    b = 0.931 + 2.53 * root
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    most = 0.9277 - 3.6224 / (b - 2.0)
    while True:
        s = 0.5 - abs(u - 0.5)
        k = scalar.floor((2.0 * a / s + b) * (u - 0.5) + mean + 0.43)
        if s >= 0.07 and v <= most:
            return k
        if k >= 0.0 and (s >= 0.013 or v <= s):
            chance = k * log_mean - mean - _log_factorial(k)
            if scalar.log(v * inverse / (a / (s * s) + b)) <= chance:
                return k
        place += NEXT
        first, second, third, fourth = philox(place, call, seed)
        u, v = _fraction(first, second), _fraction(third, fourth)


def _poisson_body(
    out: Array, x: Array, seed: int, call: int, arena: Array, lo: int, hi: int, details: Array
) -> int:
    words = arena.view(np.int32)
    for start in range(lo, hi, STEP // 4):
        count = min(STEP // 4, hi - start)
        draw_words(words, start, 4 * count, seed, call)
        for k in range(count):
            mean = float(x[start + k])
            if not 0.0 <= mean < math.inf:
                details[0] = start + k
                return 66  # NO_MEAN
            u = _fraction(words[4 * k] & LOW, words[4 * k + 1] & LOW)
            if mean < SMALL:
                out[start + k] = _counted(mean, u)
            else:
                v = _fraction(words[4 * k + 2] & LOW, words[4 * k + 3] & LOW)
                out[start + k] = _rejected(mean, u, v, start + k, seed, call)
    return 0


@op(
    "x -> out",
    name="poisson",
    scalars="seed: int, call: int",
    cuda="random:poisson",
    letters=unsplit,
)
def poisson_counts(x: TensorMeta) -> Launch:
    view = View(x.dtype, (x.numel,))
    return Launch((x.dense(),), _poisson_body, (view, view), (), x.numel, 4096, arena=ARENA)
