"""Positions with several coordinates, against NumPy's indexing."""

import numpy as np
import pytest

import flowvm as flow


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rows", [(5,), (2, 3), (0,)])
@pytest.mark.parametrize("kind", [flow.int32, flow.int64])
def test_gather_nd(k, rows, kind, rng):
    x = rng.normal(size=(3, 4, 5))
    index = rng.integers(-3, 3, (*rows, k))
    ours = flow.tensor(x, requires_grad=True)
    out = flow.gather_nd(ours, flow.tensor(index, dtype=kind))
    at = tuple(np.moveaxis(index, -1, 0))
    np.testing.assert_array_equal(out.detach().numpy(), x[at])
    g = rng.normal(size=x[at].shape)
    out.backward(flow.tensor(g))
    expected = np.zeros_like(x)
    np.add.at(expected, at, g)
    np.testing.assert_allclose(ours.grad.numpy(), expected, 1e-12, 1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_scatter_nd(k, rng):
    shape = (3, 4, 5)
    index = rng.integers(0, 3, (2, 6, k))
    update = rng.normal(size=(2, 6, *shape[k:]))
    at = tuple(np.moveaxis(index, -1, 0))
    expected = np.zeros(shape)
    np.add.at(expected, at, update)
    inputs = flow.tensor(update, requires_grad=True)
    out = flow.scatter_nd(flow.tensor(index), inputs, shape)
    np.testing.assert_allclose(out.detach().numpy(), expected, 1e-12, 1e-12)
    g = rng.normal(size=shape)
    out.backward(flow.tensor(g))
    np.testing.assert_array_equal(inputs.grad.numpy(), g[at])


def test_tensor_scatter_nd_update(rng):
    x, new = rng.normal(size=(6, 3)), rng.normal(size=(2, 3))
    index = np.array([[4], [1]])
    ours, inputs = flow.tensor(x, requires_grad=True), flow.tensor(new, requires_grad=True)
    out = flow.tensor_scatter_nd_update(ours, flow.tensor(index), inputs)
    expected = x.copy()
    expected[[4, 1]] = new
    np.testing.assert_array_equal(out.detach().numpy(), expected)
    g = rng.normal(size=(6, 3))
    out.backward(flow.tensor(g))
    np.testing.assert_array_equal(inputs.grad.numpy(), g[[4, 1]])
    gradient = g.copy()
    gradient[[4, 1]] = 0
    np.testing.assert_array_equal(ours.grad.numpy(), gradient)
    np.testing.assert_array_equal(ours.detach().numpy(), x)


@pytest.mark.parametrize("rest", [(), (5,), (2, 3)])
def test_batch_gather(rest, rng):
    x = rng.normal(size=(2, 3, 4, *rest))
    index = rng.integers(0, 4, (2, 3, 7))
    out = flow.batch_gather(flow.tensor(x), flow.tensor(index))
    expected = np.stack([[x[a, b][index[a, b]] for b in range(3)] for a in range(2)])
    np.testing.assert_array_equal(out.numpy(), expected)
    first = flow.batch_gather(flow.tensor(x), flow.tensor([1, 0, 1], dtype=flow.int32))
    np.testing.assert_array_equal(first.numpy(), x[[1, 0, 1]])


def test_in_top_k(rng):
    scores, targets = rng.normal(size=(20, 6)), rng.integers(0, 6, 20)
    order = np.argsort(-scores, axis=1)
    for k in (1, 2, 6):
        result = flow.in_top_k(flow.tensor(targets, dtype=flow.int32), flow.tensor(scores), k)
        assert result.dtype is flow.bool
        expected = [t in o[:k] for t, o in zip(targets, order, strict=True)]
        np.testing.assert_array_equal(result.numpy(), expected)
    even = flow.ones(2, 3)
    even[1, 0] = float("inf")
    assert flow.in_top_k(flow.tensor([2, 1]), even, 1).tolist() == [True, False]


def test_slices():
    x = np.arange(60.0).reshape(3, 4, 5)
    ours = flow.tensor(x)
    places = [[None, None, None], (0, 4, 2), (1, 5, 3)]
    part = flow.slice(ours, slice_tup_list=places)
    np.testing.assert_array_equal(part.numpy(), x[:, 0:4:2, 1:5:3])
    same = flow.slice_update(ours, flow.zeros(3, 2, 2, dtype=flow.int64), places)
    assert same is ours
    x[:, 0:4:2, 1:5:3] = 0
    np.testing.assert_array_equal(ours.numpy(), x)


X = flow.zeros(3, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: flow.gather_nd(X, flow.zeros(2, 3).long()), ValueError, "1 to 2 coordinates"),
        (lambda: flow.gather_nd(X, flow.zeros(2, 0).long()), ValueError, "1 to 2 coordinates"),
        (lambda: flow.gather_nd(X, flow.zeros(2, 2)), TypeError, "must hold integers"),
        (lambda: flow.gather_nd(X, flow.tensor([[3]])).sum().item(), IndexError, "3"),
        (lambda: flow.gather_nd(3, X), TypeError, "int"),
        (
            lambda: flow.scatter_nd(flow.tensor([[1]]), flow.ones(2), [3]),
            ValueError,
            r"shape \(2,\), expected \(1,\)",
        ),
        (
            lambda: flow.tensor_scatter_nd_update(X, flow.tensor([[1]]), flow.ones(1, 4).long()),
            TypeError,
            "int64",
        ),
        (lambda: flow.batch_gather(X, flow.zeros(2, 1).long()), ValueError, "batch"),
        (lambda: flow.in_top_k(flow.zeros(2).long(), X, 1), ValueError, "targets are"),
        (lambda: flow.slice(X, [(0, 1, 1)] * 3), ValueError, "3 slices for 2 dimensions"),
        (lambda: flow.slice(X, [(0, 1)]), ValueError, "start, stop, step"),
        (lambda: flow.slice(X, 3), TypeError, "got int"),
        (lambda: flow.slice_update(X, flow.ones(9), [(0, 1, 1)]), ValueError, "9"),
        (lambda: flow.broadcast_like(flow.ones(2), flow.ones(3)), ValueError, "2"),
        (lambda: flow.broadcast_like(flow.ones(2), X, [2]), IndexError, "2"),
    ],
)
def test_misuse(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_broadcast_like():
    x = flow.tensor([[1], [2]])
    assert flow.broadcast_like(x, flow.ones(4, 2, 3)).shape == (4, 2, 3)
    result = flow.broadcast_like(flow.tensor([1, 2]), flow.ones(3, 2, 4), (0, -1))
    np.testing.assert_array_equal(result.numpy(), np.broadcast_to([[1], [2]], (3, 2, 4)))
    broadcast = flow.broadcast_like(flow.ones(3, 1, 1), flow.ones(3, 3, 3), broadcast_axes=(1, 2))
    assert broadcast.shape == (3, 3, 3)
