"""Products of vectors, powers and diagonals, against NumPy."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ShapeError
from flowvm.ops.linalg import vectors


@pytest.mark.parametrize(
    ("a", "b", "dim"), [((3,), (3,), -1), ((2, 3), (1, 3), 1), ((3, 4), (3, 1), 0)]
)
def test_cross_products(rng, a, b, dim):
    x, y = rng.standard_normal(a), rng.standard_normal(b)
    shape = np.broadcast_shapes(a, b)
    expected = np.cross(np.broadcast_to(x, shape), np.broadcast_to(y, shape), axis=dim)
    ours = vectors.cross(flow.tensor(x), flow.tensor(y), dim=dim)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12)
    # both are at right angles to it
    np.testing.assert_allclose((ours.numpy() * x).sum(dim), 0, atol=1e-12)


def test_cross_products_are_of_three_elements():
    with pytest.raises(ShapeError, match="dimension -1 must have 3 elements"):
        vectors.cross(flow.ones(2), flow.ones(2))
    with pytest.raises(ShapeError, match="both must have as many dimensions"):
        vectors.cross(flow.ones(3), flow.ones(1, 3))
    with pytest.raises(ShapeError, match="must have 3 elements"):
        vectors.cross(flow.tensor(1.0), flow.tensor(1.0), dim=0)


def test_dot_products_conjugate_the_first(rng):
    x = rng.standard_normal((2, 4)) + 1j * rng.standard_normal((2, 4))
    y = rng.standard_normal((1, 4)) + 1j * rng.standard_normal((1, 4))
    ours = vectors.vecdot(flow.tensor(x), flow.tensor(y))
    np.testing.assert_allclose(ours.numpy(), (x.conj() * y).sum(-1), rtol=1e-12)
    whole = vectors.vecdot(flow.tensor([[1, 2], [3, 4]]), flow.tensor([[5, 6]]), dim=0)
    assert (whole.tolist(), whole.dtype) == ([20, 36], flow.int64)


@pytest.mark.parametrize("N", [None, 2, 5])
def test_powers_are_ascending(rng, N):
    x = rng.standard_normal((2, 3))
    ours = vectors.vander(flow.tensor(x), N=N).numpy()
    np.testing.assert_allclose(ours, [np.vander(r, N, increasing=True) for r in x], rtol=1e-12)
    assert vectors.vander(flow.tensor(3)).tolist() == [[1]]
    assert vectors.vander(flow.zeros(2, 0)).shape == (2, 0, 0)
    assert vectors.vander(flow.tensor([True, False]), N=3).tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize("N", [1, 0, -2])
def test_powers_are_two_at_least(N):
    with pytest.raises(ShapeError, match=f"N is at least 2, got {N}"):
        vectors.vander(flow.ones(3), N=N)


def test_diagonals_are_views():
    x = flow.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(
        vectors.diagonal(x, offset=1).numpy(), np.diagonal(x.numpy(), 1, -2, -1)
    )
    vectors.diagonal(x, dim1=0, dim2=1).zero_()
    assert x[0, 0].sum().item() == x[1, 1].sum().item() == 0
