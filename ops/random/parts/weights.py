"""Weights and chances that random choices are made by, looked at before they are used."""

from __future__ import annotations

import math

from flowvm.errors import InvalidValueError, declare_status
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import float64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op

NO_WEIGHT = declare_status(
    68, InvalidValueError, "weight {1} of row {0} is negative, infinite or NaN"
)
NO_CHOICE = declare_status(69, InvalidValueError, "row {0} has no weight above 0 to choose by")


def _weights_body(out: Array, x: Array, lo: int, hi: int, details: Array) -> int:
    for row in range(lo, hi):
        total = 0.0
        for k in range(x.shape[1]):
            weight = float(x[row, k])
            if not 0.0 <= weight < math.inf:
                details[0], details[1] = row, k
                return 68  # NO_WEIGHT
            out[row, k] = weight
            total += weight
        if not total > 0.0:
            details[0] = row
            return 69  # NO_CHOICE
    return 0


@op("x -> out", name="multinomial", letters=unsplit)
def checked_weights(x: TensorMeta) -> Launch:
    """The rows of a vector or a matrix as float64.

    InvalidValueError where a weight is negative or not finite, or a row sums to 0.
    """
    columns = x.shape[-1]
    rows = x.numel // columns
    views = (View(float64, (rows, columns)), View(x.dtype, (rows, columns)))
    return Launch((x.dense(float64),), _weights_body, views, (), rows, max(1, 4096 // columns))
