"""Translations of gathers, scatters, counts and searches, run by ONNX's reference beside NumPy."""

import numpy as np
import pytest

import flowvm as flow

pytest.importorskip("onnx")

from flowvm.onnx import places
from flowvm.onnx.expressions import Untranslated
from flowvm.ops.places.cpu.index_kernels import ADD, AMAX, AMIN, MULTIPLY, NONE, SET
from tests.onnx_files.calls import call, run, translated

X = np.arange(12.0).reshape(3, 4)


def test_rows_are_selected():
    index = np.array([2, 0, 2])
    out = [((3, 4), flow.float64)]
    got = translated(places.index_select, [X, index], {"dim": 0, "zero": NONE}, out)
    np.testing.assert_array_equal(got, X[index])
    got = translated(places.index_select, [X, index], {"dim": 0, "zero": 0}, out)
    np.testing.assert_array_equal(got, X[index] * [[1], [0], [1]])  # the padding's row is 0
    index = np.array([1, 1, 3, 0, 2])
    got = translated(
        places.index_select, [X, index], {"dim": 1, "zero": 3}, [((3, 5), flow.float64)]
    )
    np.testing.assert_array_equal(got, X[:, index] * (index != 3))


def test_elements_are_gathered():
    index = np.array([[0, 3], [1, 1], [2, 0]])
    got = translated(places.gather, [X, index], {"dim": 1}, [((3, 2), flow.float64)])
    np.testing.assert_array_equal(got, np.take_along_axis(X, index, 1))
    one = translated(places.gather, [np.array(5.0), np.array(0)], {"dim": 0}, [((), flow.float64)])
    assert one == 5


COMBINED = {SET: None, ADD: np.add, MULTIPLY: np.multiply, AMAX: np.maximum, AMIN: np.minimum}


@pytest.mark.parametrize("mode", COMBINED)
@pytest.mark.parametrize("source", ["as wide", "wider", "one"])
def test_elements_are_scattered(mode, source):
    index = np.array([[0, 2], [1, 3], [3, 0]])
    values = {"as wide": np.full((3, 2), 2.5), "wider": np.arange(15.0).reshape(3, 5) - 4,
              "one": np.array(-1.5)}[source]  # fmt: skip
    got = translated(places.scatter, [X, index, values], {"dim": 1, "mode": mode})
    expected = X.copy()
    each = np.broadcast_to(values, index.shape) if source == "one" else values[:, :2]
    for row in range(3):
        for k in range(2):
            at, value = (row, index[row, k]), each[row, k]
            expected[at] = value if mode == SET else COMBINED[mode](expected[at], value)
    np.testing.assert_array_equal(got, expected)


def test_a_tensor_of_no_dimensions_is_not_scattered_into():
    c = call([((), flow.float32), ((), flow.int64), ((), flow.float32)], {"dim": 0})
    with pytest.raises(Untranslated, match="no dimensions"):
        places.scatter(c)


@pytest.mark.parametrize("dim", [0, 1])
def test_slices_are_put(dim):
    index = np.array([2, 0])
    shape = (2, 4) if dim == 0 else (3, 2)
    values = -np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    expected, whole = X.copy(), X.copy()
    at = (index,) if dim == 0 else (slice(None), index)
    expected[at], whole[at] = values, 7
    got = translated(places.put, [X, index, values], {"dim": dim, "mode": SET})
    np.testing.assert_array_equal(got, expected)
    got = translated(places.put, [X, index, np.array(7.0)], {"dim": dim})
    np.testing.assert_array_equal(got, whole)
    with pytest.raises(Untranslated, match="left out"):
        translated(places.put, [X, index, values], {"dim": dim, "skip": 1})


def test_two_indices_are_joined():
    a, b = np.array([0, -1, 2]), np.array([3, 0, -4])
    got = translated(places.join_positions, [a, b], {"na": 3, "nb": 4})
    assert got.tolist() == [3, 8, 8]


def test_classes_are_marked():
    got = translated(
        places.one_hot, [np.array([[1, 0]])], {"classes": 3}, [((1, 2, 3), flow.int64)]
    )
    np.testing.assert_array_equal(got, np.eye(3)[[[1, 0]]])


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("members", [[3.0, 5.0], [[0.0], [11.0]], []])
def test_members_are_found(invert, members):
    members = np.array(members)
    got = translated(places.isin, [X, members], {"invert": invert}, [((3, 4), flow.bool)])
    np.testing.assert_array_equal(got, np.isin(X, members, invert=invert))


@pytest.mark.parametrize("mask", [X % 3 == 1, np.zeros((3, 4), bool), np.array([1, 0, 1, 1], bool)])
def test_masked_places_take_the_source_in_order(mask):
    source = -np.arange(1.0, 13.0)
    got = translated(places.masked_scatter, [X, mask, source])
    expected = X.copy()
    wide = np.broadcast_to(mask, X.shape)
    expected[wide] = source[: wide.sum()]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("right", [False, True])
def test_boundaries_are_searched(right):
    edges, values = np.array([1.0, 3.0, 3.0, 8.0]), np.array([[0.0, 3.0], [8.0, 9.0]])
    got = translated(places.searchsorted, [edges, values], {"right": right}, [((2, 2), flow.int64)])
    np.testing.assert_array_equal(got, np.searchsorted(edges, values, "right" if right else "left"))
    rows = np.stack([edges, edges * 2])
    got = translated(places.searchsorted, [rows, values], {"right": right}, [((2, 2), flow.int64)])
    for k in range(2):
        side = "right" if right else "left"
        np.testing.assert_array_equal(got[k], np.searchsorted(rows[k], values[k], side))


BAGS = np.array([0, 2, 2, 5])  # the second is empty
ROWS = np.array([0, 2, 1, 1, 2])
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, -1.0])


def bag(translation, attrs, skip=-1, read=()):
    arrays = [X, ROWS, BAGS, WEIGHTS]
    inputs = [((3, 4), flow.float64), ((5,), flow.int64), ((4,), flow.int64), ((5,), flow.float64)]
    outs = [((3, 4), flow.float64), ((3,), flow.int64)]
    c = call(inputs, {**attrs, "skip": skip}, outs, read=read)
    return run(c, translation(c)[0], arrays)


@pytest.mark.parametrize("skip", [-1, 2])
@pytest.mark.parametrize("mean", [False, True])
def test_bags_are_summed(mean, skip):
    expected = np.zeros((3, 4))
    for k in range(3):
        inside = [j for j in range(BAGS[k], BAGS[k + 1]) if ROWS[j] != skip]
        expected[k] = sum((WEIGHTS[j] * X[ROWS[j]] for j in inside), np.zeros(4))
        expected[k] /= max(1, len(inside)) if mean else 1
    np.testing.assert_allclose(bag(places.embedding_bag, {"mean": mean}, skip), expected)


@pytest.mark.parametrize("skip", [-1, 1])
def test_bags_have_a_largest_element(skip):
    got = bag(places.embedding_bag_max, {}, skip)
    for k in range(3):
        inside = [ROWS[j] for j in range(BAGS[k], BAGS[k + 1]) if ROWS[j] != skip]
        np.testing.assert_array_equal(got[k], X[inside].max(0) if inside else np.zeros(4))


def test_the_numbers_of_bags_are_not_translated():
    with pytest.raises(Untranslated, match="more is asked"):
        bag(places.embedding_bag, {"mean": False}, read=[1])
