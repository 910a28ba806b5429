"""The logarithm of a sum of exponentials, element by element or part by part, without overflow.

Kernels of every device call these functions.  A state is the largest element and the sum of
exp(x - it), in float64.  -inf adds nothing, so a state of nothing else is that of nothing; inf
stays inf, and NaN stays NaN.
"""

from __future__ import annotations

import math

import numpy as np

INLINE_ALWAYS = True  # for flowvm.compiler.native: states then stay in registers
Sum = tuple[float, float]
LOWEST = float(np.finfo(np.float64).min)


def nothing() -> Sum:
    """The state of no element."""
    return LOWEST, 0.0


def element_sum(x: float) -> Sum:
    """The state of one element."""
    if x > -np.inf:
        return x, 1.0
    return LOWEST, x - x if x != x else 0.0


def joined(a: Sum, b: Sum) -> Sum:
    """The state of both."""
    if a[0] < b[0]:
        return b[0], a[1] * math.exp(a[0] - b[0]) + b[1]
    if b[0] < a[0]:
        return a[0], a[1] + b[1] * math.exp(b[0] - a[0])
    return a[0], a[1] + b[1]


def logarithm(a: Sum) -> float:
    """That of the sum of exp(x); -inf for nothing."""
    result: float = a[0] + math.log(a[1]) if a[1] != 0.0 else -np.inf
    return result
