"""Images of bytes resized by weights: in whole numbers, along the width first, as PyTorch does it.

Weights are multiples of a power of two, as fine as 16 bits hold, sums are rounded, kept from 0 to
255, and bytes again before the height's turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import int32, uint8
from flowvm.ops.places.gather import index_select
from flowvm.ops.pointwise.clamp import clamp
from flowvm.ops.shapes.create import tensor

FINEST = 22  # bits behind the point, at most
LARGEST = 1 << 15  # no weight reaches it


def resized_bytes(x: Tensor, weights: Sequence[Array]) -> Tensor:
    """Resize `x` (N, C, H, W) of uint8 by `weights`.

    They are matrices (new, old) for the height and the width; with None, the size stays.
    """
    for axis, matrix in ((3, weights[1]), (2, weights[0])):
        x = _along(x, axis, matrix)
    return x


def _along(x: Tensor, axis: int, matrix: Array) -> Tensor:
    point = 0
    while point < FINEST and int(0.5 + matrix.max() * (1 << (point + 1))) < LARGEST:
        point += 1
    scaled = matrix * (1 << point)
    whole = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32)
    first = (whole != 0).argmax(1)
    reach = whole.shape[1] - (whole != 0)[:, ::-1].argmax(1) - first
    total: Any = 1 << (point - 1)
    shape = [-1 if d == axis else 1 for d in range(x.ndim)]
    for k in range(int(reach.max())):
        places = np.minimum(first + k, whole.shape[1] - 1)
        share = np.where(k < reach, whole[np.arange(len(whole)), places], 0)
        values: object = index_select(x, axis, tensor(places, device=x.device)).to(int32)
        total = total + values * tensor(share, device=x.device).reshape(shape)
    pixels: Tensor = clamp(total >> point, 0, 255).to(uint8)
    return pixels
