"""The weights of an axis's elements for the places of a resized one, as matrices (new, old).

With corners, the first and last places are the first and last elements.  Otherwise a place stands
for `step` elements around its middle; `step` is the distance from one place to the next.
"""

from __future__ import annotations

import numpy as np

from flowvm.meta.arrays import Array


def _cubic(far: Array, a: float) -> Array:
    """The cubic kernel of four elements, at distances; `a` is its slope at 1."""
    near = ((a + 2) * far - (a + 3)) * far * far + 1
    rest = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    return np.where(far < 1, near, np.where(far < 2, rest, 0))


def smoothing(n: int, m: int, step: float, cubic: bool, corners: bool) -> Array:
    """The kernel is as much wider as places are farther apart than elements; its sums are 1.  With
    corners nothing but `step` is another, as in PyTorch.
    """
    wide = max(step, 1.0)
    reach = (2.0 if cubic else 1.0) * wide
    centers = step * (np.arange(m) + 0.5)
    low = np.maximum((centers - reach + 0.5).astype(int), 0)
    high = np.minimum((centers + reach + 0.5).astype(int), n)
    places = np.arange(n)
    far = np.abs((places - centers[:, None] + 0.5) / wide)
    # the slope is not that of `sampling`
    shares = _cubic(far, -0.5) if cubic else np.maximum(1 - far, 0)
    shares = shares * ((places >= low[:, None]) & (places < high[:, None]))
    return np.asarray(shares / shares.sum(1, keepdims=True))


def sampling(n: int, m: int, step: float, cubic: bool, corners: bool) -> Array:
    """Return the kernel of two elements, or of four; an end counts for elements beyond it."""
    places = np.arange(m) * step if corners else (np.arange(m) + 0.5) * step - 0.5
    places = places if cubic else np.maximum(places, 0)
    low = np.minimum(np.floor(places).astype(int), n - 1)
    part = np.clip(places - low, 0, 1)
    out = np.zeros((m, n))
    for k in range(-1, 3) if cubic else range(2):
        far = np.abs(part - k)
        share = _cubic(far, -0.75) if cubic else np.maximum(1 - far, 0)
        np.add.at(out, (np.arange(m), np.clip(low + k, 0, n - 1)), share)
    return out
