"""Elements at places that are data: rules for all examples at once, against loops by NumPy."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.batched import place_rules
from flowvm.ops.batched.levels import Level
from flowvm.ops.places import gather
from flowvm.ops.places.cpu.index_kernels import ADD
from tests.ops.batched.levels import examples, of, stacked

pytestmark = pytest.mark.filterwarnings("error:vmap")  # no example is computed by itself
COUNT = 4


@pytest.fixture
def one():
    return Level(COUNT)


@pytest.fixture
def x(rng):
    return rng.standard_normal((COUNT, 5, 3))


def test_parts_that_an_index_reaches():
    x = flow.zeros(5, 3, 4)
    assert place_rules._cut(x, (5, 9, 4), 1) is x
    assert place_rules._cut(x, (2, 9, 3), 1).shape == (2, 3, 3)
    assert place_rules._cut(x, (2, 2, 3), 1, 2).shape == (2, 2, 3)


def test_indices_of_slices_are_repeated():
    index = flow.tensor([2, -1])
    assert place_rules._along(index, 3, 1).shape == (2, 1)
    places = place_rules._repeated(index, (2, 4, 3), 1)
    np.testing.assert_array_equal(places.numpy(), np.broadcast_to([[[2], [3]]], (2, 2, 3)))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("alone", ["x", "index", "none"])
def test_slices_are_taken(one, x, rng, dim, alone):
    index = rng.integers(-x.shape[1 + dim], x.shape[1 + dim], (COUNT, 6))
    given = flow.tensor(x[0]) if alone == "x" else of(x, one)
    at = flow.tensor(index[0]) if alone == "index" else of(index, one)
    xs = np.broadcast_to(x[0], x.shape) if alone == "x" else x
    indices = np.broadcast_to(index[0], index.shape) if alone == "index" else index
    out = flow.index_select(given, dim, at % x.shape[1 + dim])
    expected = stacked(lambda x, i: np.take(x, i, dim, mode="wrap"), xs, indices)
    np.testing.assert_array_equal(examples(out, one), expected)


def test_padding_rows_are_zeros_in_each_example(one, x, rng):
    index = rng.integers(0, 5, (COUNT, 6))
    out = flow.nn.functional.embedding(of(index, one), of(x, one), padding_idx=2)
    np.testing.assert_array_equal(examples(out, one), stacked(lambda x, i: x[i], x, index))


def test_elements_are_gathered_where_the_index_is_smaller(one, x, rng):
    index = rng.integers(0, 5, (COUNT, 2, 2))
    out = flow.gather(of(x, one), 0, of(index, one))
    expected = stacked(lambda x, i: np.take_along_axis(x[:, :2], i, 0), x, index)
    np.testing.assert_array_equal(examples(out, one), expected)


def test_elements_are_scattered_where_the_index_is_smaller(one, x, rng):
    index = np.stack([rng.permutation(5)[:4].reshape(2, 2) for _ in range(COUNT)])
    index[:, 1] = (index[:, 0] + 1) % 5
    values = rng.standard_normal((COUNT, 3, 3))
    out = flow.scatter(of(x, one), 0, of(index, one), of(values, one))

    def by_hand(x, index, values):
        x = x.copy()
        np.put_along_axis(x[:, :2], index, values[:2, :2], 0)
        return x

    np.testing.assert_array_equal(examples(out, one), stacked(by_hand, x, index, values))
    added = flow.scatter_add(of(x, one), 0, of(index, one), of(values, one))

    def sums(x, index, values):
        x = x.copy()
        for r in range(2):
            for c in range(2):
                x[index[r, c], c] += values[r, c]
        return x

    np.testing.assert_allclose(examples(added, one), stacked(sums, x, index, values))


@pytest.mark.parametrize("alone", ["index", "none"])
@pytest.mark.parametrize("source", ["slices", "one"])
def test_slices_are_put(one, x, rng, alone, source):
    index = np.stack([rng.permutation(5)[:2] for _ in range(COUNT)])
    values = rng.standard_normal((COUNT, 2, 3) if source == "slices" else (COUNT, 1, 1))
    at = flow.tensor(index[0]) if alone == "index" else of(index, one)
    indices = np.broadcast_to(index[0], index.shape) if alone == "index" else index
    to = of(x.copy(), one)
    gather.put_slices(to, at, of(values, one), 0, -5, 0)

    def put(x, index, values):
        x = x.copy()
        x[index] = values
        return x

    np.testing.assert_array_equal(examples(to, one), stacked(put, x, indices, values))


@pytest.mark.parametrize("skip", [place_rules.NONE, 1])
def test_slices_are_added_but_for_one_index(one, x, rng, skip):
    index = rng.integers(0, 5, (COUNT, 6))
    values = rng.standard_normal((COUNT, 6, 3))
    to = of(x.copy(), one)
    gather.combine_slices(to, of(index, one), of(values, one), 0, 0, 0, skip, ADD)

    def added(x, index, values):
        x = x.copy()
        for k, row in enumerate(index):
            x[row] += values[k] * (row != skip)
        return x

    np.testing.assert_allclose(examples(to, one), stacked(added, x, index, values))


@pytest.mark.parametrize("right", [False, True])
def test_places_are_searched_in_one_row(one, rng, right):
    edges = np.sort(rng.standard_normal(7))
    values = rng.standard_normal((COUNT, 2, 3))
    out = flow.searchsorted(flow.tensor(edges), of(values, one), right=right)
    side = "right" if right else "left"
    np.testing.assert_array_equal(examples(out, one), np.searchsorted(edges, values, side))
