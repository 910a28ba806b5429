"""`associative_scan`: scans by functions of a program's own, against loops over the elements."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.compat import scans
from flowvm.errors import ArgumentError, ShapeError


def looped(combine, xs, reverse=False):
    """The scan of a list, an element at a time; behind, each element stands in front."""
    xs = xs[::-1] if reverse else xs
    out = xs[:1]
    for x in xs[1:]:
        out.append(combine(out[-1], x))
    return out[::-1] if reverse else out


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_of_matrix_products_are_loops(rng, length, reverse):
    """Products do not commute: what came first must stand at the left."""
    matrices = rng.integers(-2, 3, (length, 2, 2)).astype(np.float64)
    out = scans.associative_scan(
        lambda a, b: a @ b, flow.tensor(matrices), dim=0, reverse=reverse, combine_mode="generic"
    )
    expected = looped(np.matmul, list(matrices), reverse)
    np.testing.assert_array_equal(out.numpy(), np.stack(expected))


@pytest.mark.parametrize("dim", [1, -1])
def test_scans_of_trees_keep_their_shape(rng, dim):
    """First-order recurrences x = a x + b, by pairs (a, b)."""
    a, b = rng.standard_normal((2, 3, 9))

    def combine(first, then):
        return {"a": first["a"] * then["a"], "b": then["a"] * first["b"] + then["b"]}

    out = scans.associative_scan(combine, {"a": flow.tensor(a), "b": flow.tensor(b)}, dim)
    state = np.zeros(3)
    for k in range(9):
        state = a[:, k] * state + b[:, k]
        np.testing.assert_allclose(out["b"].numpy()[:, k], state, atol=1e-12)
    np.testing.assert_allclose(out["a"].numpy(), np.cumprod(a, 1), atol=1e-12)


def test_scans_of_nothing_are_empty():
    assert scans.associative_scan(flow.add, flow.zeros(2, 0), 1).shape == (2, 0)


def test_scans_name_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"lengths along dim 0 differ: \[2, 3\]"):
        scans.associative_scan(lambda a, b: a, (flow.zeros(2), flow.zeros(3)), 0)
    with pytest.raises(ArgumentError, match="'pointwise' or 'generic', got 'other'"):
        scans.associative_scan(flow.add, flow.zeros(2), 0, combine_mode="other")
    with pytest.raises(ArgumentError, match="at least one tensor"):
        scans.associative_scan(flow.add, [], 0)
