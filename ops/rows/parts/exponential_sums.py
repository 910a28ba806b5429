"""The logarithm of a sum of exponentials, element by element or part by part, without overflow.

Kernels of every device call these functions.  A state is the largest element and the sum of
exp(x - it), in float64.  -inf adds nothing, so a state of nothing else is that of nothing; inf
stays inf, and NaN stays NaN.  Nothing is jumped over, so loops of columns become vectors.
"""

from __future__ import annotations

import numpy as np

from flowvm.ops.rows.parts.fold_rules import choose
from flowvm.ops.scalar.decay import decay
from flowvm.ops.scalar.functions import log

INLINE_ALWAYS = True  # for flowvm.compiler.native: states then stay in registers
Sum = tuple[float, float]
LOWEST = float(np.finfo(np.float64).min)


def nothing() -> Sum:
    """The state of no element."""
    return LOWEST, 0.0


def element_sum(x: float) -> Sum:
    """The state of one element."""
    counts = x > -np.inf
    return choose(counts, x, LOWEST), choose(counts, 1.0, choose(x != x, x, 0.0))


def joined(a: Sum, b: Sum) -> Sum:
    """The state of both."""
    factor, more = turned(a[0], b)
    return choose(a[0] < b[0], b[0], a[0]), a[1] * factor + more


def turned(top: float, b: Sum) -> tuple[float, float]:
    """Return how a state whose largest element is `top` changes as the state `b` joins it.

    The answer is the factor of its sum, and the number to add to it.
    """
    below = top < b[0]
    share = decay(choose(top == b[0], 0.0, -abs(top - b[0])))
    return choose(below, share, 1.0), choose(below, b[1], b[1] * share)


def logarithm(a: Sum) -> float:
    """Return the logarithm of the sum of exp(x); -inf for no elements."""
    result: float = a[0] + log(a[1])
    return result
