"""A step length that satisfies the strong Wolfe conditions.

Bracketing and zooming as in Nocedal and Wright, "Numerical optimization", algorithms 3.5 and 3.6,
with the cubic steps and safeguards of Schmidt's minFunc, which PyTorch's L-BFGS follows, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from flowvm.eager.tensor import Tensor


class Point(NamedTuple):
    """A point of the search: step length, value, gradient, slope along the direction."""

    t: float
    value: float
    gradient: Tensor
    slope: float


def cubic_minimum(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Return the minimum of the cubic through two points with slopes, within bounds (the
    points).
    """
    low, high = bounds or (min(a.t, b.t), max(a.t, b.t))
    if a.t > b.t:
        a, b = b, a
    d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.t - b.t)
    square = d1**2 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2.0
    d2 = math.sqrt(square)
    below = b.slope - a.slope + 2 * d2
    if below == 0 or below != below:
        return high if below == 0 else low
    return min(max(b.t - (b.t - a.t) * ((b.slope + d2 - d1) / below), low), high)


def strong_wolfe(
    evaluate: Callable[[float], Point],
    start: Point,
    t: float,
    reach: float,
    most: int,
    c1: float = 1e-4,
    c2: float = 0.9,
    tolerance: float = 1e-9,
) -> tuple[Point, int]:
    """The point that was found from step length `t` on, and how many were evaluated.

    start   the point at length 0; reach: the largest element of the direction, by absolute value
    most    evaluations at most, and one
    """
    new, previous = evaluate(t), start
    evaluated, steps, finished = 1, 0, False
    bracket: list[Point] = []
    while steps < most:
        too_high = new.value > start.value + c1 * new.t * start.slope
        if too_high or (steps > 1 and new.value >= previous.value):
            bracket = [previous, new]
            break
        if abs(new.slope) <= -c2 * start.slope:
            bracket, finished = [new], True
            break
        if new.slope >= 0:
            bracket = [previous, new]
            break
        bounds = (new.t + 0.01 * (new.t - previous.t), new.t * 10)
        t = cubic_minimum(previous, new, bounds)
        previous, new = new, evaluate(t)
        evaluated, steps = evaluated + 1, steps + 1
    if steps == most:
        bracket = [start, new]

    stuck = False
    low, high = _order(bracket)
    while not finished and steps < most:
        if abs(bracket[1].t - bracket[0].t) * reach < tolerance:
            break
        t = cubic_minimum(bracket[0], bracket[1])
        left, right = min(p.t for p in bracket), max(p.t for p in bracket)
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:  # too near to an end: the second time, away from it
            if stuck or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        new = evaluate(t)
        evaluated, steps = evaluated + 1, steps + 1
        if new.value > start.value + c1 * t * start.slope or new.value >= bracket[low].value:
            bracket[high] = new
            low, high = _order(bracket)
            continue
        if abs(new.slope) <= -c2 * start.slope:
            finished = True
        elif new.slope * (bracket[high].t - bracket[low].t) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = new
    return bracket[low], evaluated


def _order(bracket: list[Point]) -> tuple[int, int]:
    """Return the indices of the bracket's ends: of the lower value, then of the higher one."""
    return (0, 1) if bracket[0].value <= bracket[-1].value else (1, 0)
