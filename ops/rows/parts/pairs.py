"""What an op answers that finds both a value and where it is."""

from __future__ import annotations

from typing import NamedTuple

from flowvm.eager.tensor import Tensor


class Extremes(NamedTuple):
    """What max, min and median give along a dimension: the values, and where they are (int64)."""

    values: Tensor
    indices: Tensor
