"""The formulas of norms by channel for a group or a channel, said once for every device.

The kernels of each call these functions:

    M(h), M(h * (x - mean)) of a group, h = g * weight      `base_and_slope`
    what distances from the mean are multiplied by first    `lifting`
    the gradient of a channel's weight                      `weight_gradient`
    running means and variances                             `moved`, `unbiasing`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flowvm.ops.scalar.functions import sqrt

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

INLINE_ALWAYS = True  # for flowvm.compiler.native: they stand in loops that become vectors
LEAST, MOST = 1e-20, 1e20  # variances between these leave slopes that float32 has


def lifting(variance: float) -> float:
    """Return a factor for distances in a group of this variance.

    It is 1, unless the variance is very large or small; then it brings distances near to 1.
    """
    if variance > LEAST and variance < MOST:
        return 1.0
    lift: float = 1.0 / sqrt(variance)
    return lift


def base_and_slope(
    plain: float, slanted: float, spread: Number, share: float, eps: float
) -> tuple[float, float]:
    """rstd * M(h) and rstd**3 * M(h * (x - mean)) / lifting, from the sums of h and h * (x - mean)
    over a group of 1 / share elements; `share` is 0 where mean and variance do not depend on x.
    """
    variance = np.float64(spread) + eps
    scale = 1.0 / sqrt(variance)
    return plain * share * scale, slanted * share / variance * scale / lifting(variance)


def weight_gradient(slanted: float, spread: Number, eps: float) -> float:
    """Return the gradient of the weight from `slanted`, the sum of g * (x - mean)."""
    gradient: float = slanted / sqrt(np.float64(spread) + eps)
    return gradient


def unbiasing(count: int) -> float:
    """Return the factor that makes the variance of `count` elements an unbiased estimate."""
    return count / max(1, count - 1)


def moved(running: Number, to: Number, momentum: float) -> Number:
    """Move a running mean or variance towards a batch's."""
    return running + momentum * (to - running)
