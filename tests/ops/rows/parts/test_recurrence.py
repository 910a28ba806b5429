"""First-order recurrences and products of all others: bodies as Python, against loops by NumPy."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.meta.meta import TensorMeta
from flowvm.ops.rows.parts import recurrence

SHAPES = [(5,), (3, 4), (2, 5, 3), (2, 1, 3), (4, 0)]
SHAPED = [(shape, dim) for shape in SHAPES for dim in range(len(shape))]


def body(function, x, *more, dim):
    """The result of a body that goes over the units in two parts."""
    outer, n, inner = recurrence.split(TensorMeta.of(x.shape, flow.float64), dim)
    out = np.full(x.size, np.nan)
    flat = [a.reshape(-1) for a in (x, *more)]
    middle = outer * inner // 2
    for lo, hi in ((0, middle), (middle, outer * inner)):
        function(out, *flat, n, inner, lo, hi)
    return out.reshape(x.shape)


def by_hand(a, b, dim, back):
    """y[k] = a[k] + b[k] y[k-1]; behind, y[k] = a[k] + b[k+1] y[k+1]."""
    a, b = np.moveaxis(a, dim, 0), np.moveaxis(b, dim, 0)
    out = np.zeros_like(a)
    n = len(a)
    for k in reversed(range(n)) if back else range(n):
        before = k + 1 if back else k - 1
        factor = b[k + 1] if back and k + 1 < n else b[k]
        out[k] = a[k] + (factor * out[before] if 0 <= before < n else 0)
    return np.moveaxis(out, 0, dim)


@pytest.mark.parametrize(("shape", "dim"), SHAPED)
@pytest.mark.parametrize("back", [False, True])
def test_recurrences(rng, shape, dim, back):
    a, b = rng.standard_normal(shape), rng.standard_normal(shape)
    function = recurrence._backward_body if back else recurrence._forward_body
    np.testing.assert_allclose(body(function, a, b, dim=dim), by_hand(a, b, dim, back), rtol=1e-12)


def test_recurrences_are_each_others_transposes(rng):
    """<F a, g> = <a, B g>, where F goes forward and B back by the same factors."""
    a, b, g = rng.standard_normal((3, 4, 6))
    there = (body(recurrence._forward_body, a, b, dim=1) * g).sum()
    back = (a * body(recurrence._backward_body, g, b, dim=1)).sum()
    np.testing.assert_allclose(there, back, rtol=1e-12)


def others(x, dim):
    n = x.shape[dim]
    kept = [np.delete(np.arange(n), k) for k in range(n)]
    return np.stack([np.take(x, at, dim).prod(dim) for at in kept], dim) if n else x


@pytest.mark.parametrize(("shape", "dim"), [*SHAPED, ((9, 3), 1), ((1, 3, 300), 1)])
def test_products_of_all_others(rng, shape, dim):
    x = rng.standard_normal(shape)
    x.reshape(-1)[::4] = 0.0  # where a division would fail
    arena = np.zeros(8 * recurrence.ABREAST, np.uint8)

    def function(out, x, n, inner, lo, hi):
        recurrence._others_body(out, x, n, inner, arena, lo, hi)

    np.testing.assert_allclose(body(function, x, dim=dim), others(x, dim), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_elements_move_one_place(first):
    x = flow.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert recurrence.later(x, 1, first).tolist() == [[first, 1, 2], [first, 4, 5]]
    assert recurrence.later(x, 0, first).tolist() == [[first] * 3, [1, 2, 3]]
    empty = flow.zeros(2, 0)
    assert recurrence.later(empty, 1, first) is empty


def test_gradients_of_recurrences_are_recurrences(rng):
    a, b = (flow.tensor(rng.standard_normal((2, 4)), requires_grad=True) for _ in range(2))
    for function in (recurrence.recurrence, recurrence.recurrence_back):
        assert flow.autograd.gradcheck(lambda a, b, f=function: f(a, b, 1), (a, b))
