"""Images of bytes resized by weights: whole numbers, against sums in float64."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.planes.parts import byte_resize
from flowvm.ops.planes.parts.byte_resize import resized_bytes


def linear(new, old):
    """Weights of the two nearest, each row adding up to 1."""
    matrix = np.zeros((new, old))
    for k in range(new):
        at = min(max((k + 0.5) * old / new - 0.5, 0), old - 1)
        low = int(at)
        matrix[k, low] += 1 - (at - low)
        matrix[k, min(low + 1, old - 1)] += at - low
    return matrix


@pytest.mark.parametrize(("new", "old"), [((4, 6), (8, 3)), ((5, 5), (2, 7)), ((1, 1), (3, 4))])
def test_sums_of_weights_are_rounded(rng, new, old):
    x = rng.integers(0, 256, (2, 3, *old), dtype=np.uint8)
    weights = [linear(n, o) for n, o in zip(new, old, strict=True)]
    ours = resized_bytes(flow.tensor(x), weights).numpy().astype(int)
    rows = np.rint(x @ weights[1].T)  # bytes again before the height's turn
    expected = np.rint(weights[0] @ rows)
    assert ours.shape == (2, 3, *new)
    assert np.abs(ours - expected).max() <= 1  # a tie may be rounded either way


def test_weights_that_choose_give_the_bytes_themselves():
    x = np.arange(24, dtype=np.uint8).reshape(1, 1, 4, 6) * 10
    rows, columns = np.eye(4)[[3, 0, 0]], np.eye(6)[[5, 1]]
    ours = resized_bytes(flow.tensor(x), [rows, columns]).numpy()
    np.testing.assert_array_equal(ours[0, 0], x[0, 0][[3, 0, 0]][:, [5, 1]])


def test_bytes_stay_from_0_to_255():
    x = np.array([[[[0, 255]]]], np.uint8)
    sharp = np.array([[2.0, -1.0], [-1.0, 2.0]])
    assert resized_bytes(flow.tensor(x), [np.eye(1), sharp]).tolist() == [[[[0, 255]]]]
    assert byte_resize.LARGEST == 1 << 15
