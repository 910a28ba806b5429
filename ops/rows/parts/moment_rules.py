"""Number, mean and sum of squared distances from it: how sets of elements are joined to one.

Kernels of every device call this function.
"""

from __future__ import annotations

import numpy as np

Moments = tuple[float, float, float]


def joined(a: Moments, b: Moments) -> Moments:
    """Join two sets to one, by the formula of Chan, Golub and LeVeque (1979).

    No digits cancel, however far from 0 the means are.  A set with infinite elements has an
    infinite mean, or NaN.
    """
    if b[0] == 0.0:
        return a
    if a[0] == 0.0:
        return b
    both = a[0] + b[0]
    apart = b[1] - a[1]
    mean = a[1] + apart * (b[0] / both)
    if not abs(apart) < np.inf:
        mean = a[1] + b[1]
    return both, mean, a[2] + b[2] + apart * apart * (a[0] * b[0] / both)
