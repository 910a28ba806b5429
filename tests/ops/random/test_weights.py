"""Weights of random choices: the body that looks at them, as Python."""

import math

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import InvalidValueError
from flowvm.ops.random.parts import weights


def looked_at(rows, lo=0, hi=None):
    """(status, details, weights) of the body over some rows."""
    x = np.array(rows, np.float32)
    out, details = np.zeros(x.shape), np.zeros(2, np.int64)
    status = weights._weights_body(out, x, lo, len(x) if hi is None else hi, details)
    return status, details.tolist(), out


def test_weights_are_widened():
    status, _, out = looked_at([[0.0, 2.5], [1.0, 0.0]])
    assert status == 0
    np.testing.assert_array_equal(out, [[0, 2.5], [1, 0]])
    status, _, out = looked_at([[-1.0], [3.0]], 1)  # another unit's row is not looked at
    assert (status, out.tolist()) == (0, [[0], [3]])


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_the_first_bad_weight_is_named(bad):
    status, details, _ = looked_at([[1.0, 2.0], [3.0, bad], [bad, bad]])
    assert (status, details) == (68, [1, 1])
    with pytest.raises(InvalidValueError, match="weight 1 of row 1 is negative, infinite or NaN"):
        weights.checked_weights(flow.tensor([[1.0, 2.0], [3.0, bad]])).numpy()


def test_rows_need_a_weight_above_nought():
    status, details, _ = looked_at([[1.0, 0.0], [0.0, 0.0]])
    assert (status, details[0]) == (69, 1)
    with pytest.raises(InvalidValueError, match="row 0 has no weight above 0 to choose by"):
        weights.checked_weights(flow.zeros(3)).numpy()
