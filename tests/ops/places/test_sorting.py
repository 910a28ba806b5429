"""Order: sort, topk, kthvalue, mode, unique and searches against NumPy, for every dtype, with ties,
NaN of both signs and negative zeros; rows of every size at which another method begins.
"""

import numpy as np
import pytest
from op_calls import flow

from flowvm.errors import OutOfRangeError
from flowvm.ops.places.cpu.order import RANKED, ROW, key_of
from flowvm.ops.places.cpu.order import order_of as keys_of
from flowvm.ops.places.parts.nth import NTH_FROM

INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
FLOATS = ["float32", "float64", "float16"]
SHAPES = [(1,), (7,), (3, RANKED), (2, RANKED + 1), (5, 700), (2, ROW), (ROW + 1,), (2, 3 * ROW)]


def integers(rng, shape, dtype, few=False):
    limits = np.iinfo(dtype)
    low, high = (0, 5) if few else (limits.min, limits.max)
    return rng.integers(low, high, shape, dtype=dtype, endpoint=True)


def floats(rng, shape, dtype):
    """Few different values, all the special ones among them."""
    a = rng.integers(-3, 4, shape).astype(dtype)
    chosen = rng.random(shape)
    for k, special in enumerate([np.nan, -np.nan, -0.0, np.inf, -np.inf, np.finfo(dtype).tiny]):
        a[(k / 10 <= chosen) & (chosen < (k + 1) / 10)] = special
    return a


def order_of(a, descending):
    """The stable order of the last dimension, NaN being the largest."""
    number = np.where(np.isnan(a), 0, a) if a.dtype.kind == "f" else a.astype(np.int64)
    nan = np.isnan(a) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
    if descending:
        number, nan = -number if a.dtype.kind == "f" else ~number, ~nan
    places = np.broadcast_to(np.arange(a.shape[-1]), a.shape)
    return np.lexsort((places, number, nan), axis=-1)


def same_bits(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == np.ascontiguousarray(expected).tobytes()


def check_sorted(a):
    for descending in (False, True):
        values, indices = flow.sort(flow.tensor(a), descending=descending)
        order = order_of(a, descending)
        np.testing.assert_array_equal(indices.numpy(), order)
        same_bits(values.numpy(), np.take_along_axis(a, order, -1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_sort_integers(shape, dtype, rng):
    check_sorted(integers(rng, shape, dtype))
    check_sorted(integers(rng, shape, dtype, few=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_sort_floats(shape, dtype, rng):
    check_sorted(floats(rng, shape, dtype))
    check_sorted(rng.standard_normal(shape).astype(dtype))


@pytest.mark.parametrize("n", [5, 1000, ROW + 1])
def test_sort_bools(n, rng):
    check_sorted(rng.random(n) < 0.5)


def test_sort_of_one_number():
    check_sorted(np.full(300, 2.5))
    check_sorted(np.full(ROW + 5, -1))


def test_sort_of_the_widest_range(rng):
    limits = np.iinfo(np.int64)
    check_sorted(np.array([limits.max, 0, limits.min, -1, limits.max, limits.min] * 40))
    check_sorted(np.append(rng.integers(0, 3, ROW), [limits.min, limits.max]))


def test_sort_empty():
    for shape in ((0,), (0, 3), (3, 0)):
        values, indices = flow.sort(flow.zeros(shape))
        assert values.shape == indices.shape == shape


def test_sort_strided_and_along_any_dimension(rng):
    a = rng.standard_normal((6, 5, 8))
    x = flow.tensor(a)[::2, :, 1::3]
    for dim in range(3):
        values, indices = flow.sort(x, dim)
        view = a[::2, :, 1::3]
        np.testing.assert_array_equal(indices.numpy(), np.argsort(view, dim, kind="stable"))
        np.testing.assert_array_equal(values.numpy(), np.sort(view, dim))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_keys_have_the_order_of_numbers(dtype, rng):
    """The Python twin of the kernels, on every kind of number."""
    a = np.unique(floats(rng, 500, dtype))
    numbers = np.sort(np.append(a[~np.isnan(a)], rng.standard_normal(100).astype(dtype)))
    order = keys_of(flow.tensor(numbers)._meta)
    bits = numbers.view(f"i{numbers.itemsize}")
    keys = [key_of(b, order) for b in bits]
    for i in range(1, len(keys)):
        assert (keys[i - 1] < keys[i]) == (numbers[i - 1] < numbers[i])
    assert key_of(np.array(-np.nan, dtype).view(f"i{numbers.itemsize}"), order) == order.flip


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_long_row_sorted_by_several_workers(workers, dtype, rng):
    n = 9 * ROW + 11
    a = rng.integers(0, 1 << 30, n).astype(dtype)
    with flow.config(workers=workers):
        values, indices = flow.sort(flow.tensor(a))
        third = flow.kthvalue(flow.tensor(a), n // 3 + 1)
        order = np.argsort(a, kind="stable")
        np.testing.assert_array_equal(indices.numpy(), order)
        np.testing.assert_array_equal(values.numpy(), a[order])
        assert third.indices.item() == order[n // 3]


# --- the first k, the k-th, the most frequent ---------------------------------------------------


@pytest.mark.parametrize("n", [4, 100, 1000, 2 * ROW + 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_topk_is_the_beginning_of_sort(n, dtype, rng):
    a = floats(rng, n, dtype) if dtype.startswith("f") else integers(rng, n, dtype)
    for largest in (True, False):
        order = order_of(a, largest)
        for k in {0, 1, 3, n // 9, n // 2, n}:
            values, indices = flow.topk(flow.tensor(a), k, largest=largest)
            np.testing.assert_array_equal(indices.numpy(), order[:k])
            np.testing.assert_array_equal(values.numpy(), a[order[:k]])


def test_topk_of_what_gets_better_and_better():
    a = np.arange(5000.0)
    np.testing.assert_array_equal(
        flow.topk(flow.tensor(a), 20).indices.numpy(), range(4999, 4979, -1)
    )


@pytest.mark.parametrize("n", [1, NTH_FROM - 1, NTH_FROM, 700, 5 * ROW])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_kthvalue_is_that_of_sort(n, dtype, rng):
    rows = 1 if n > ROW else 3
    a = floats(rng, (rows, n), dtype) if dtype.startswith("f") else integers(rng, (rows, n), dtype)
    order = order_of(a, False)
    for k in {1, n // 3 + 1, n // 2 + 1, n}:
        values, indices = flow.kthvalue(flow.tensor(a), k, 1)
        np.testing.assert_array_equal(indices.numpy(), order[:, k - 1])
        same_bits(values.numpy(), np.take_along_axis(a, order[:, k - 1 : k], 1)[:, 0])


def test_kthvalue_keepdim_and_gradient():
    x = flow.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]], requires_grad=True)
    values, indices = flow.kthvalue(x, 2, 0, keepdim=True)
    assert values.tolist() == [[3.0, 5.0, 4.0]]
    assert indices.tolist() == [[0, 1, 1]]
    values.sum().backward()
    assert x.grad.tolist() == [[1, 0, 0], [0, 1, 1]]


def test_mode_is_the_smallest_of_the_most_frequent_and_its_last_place():
    x = flow.tensor([[1, 2, 1, 2, 0], [3, 3, 3, 1, 1]])
    values, indices = flow.mode(x)
    assert values.tolist() == [1, 3]
    assert indices.tolist() == [2, 2]
    nan = float("nan")
    assert flow.mode(flow.tensor([nan, 1.0, nan])).indices.item() == 2
    assert flow.mode(flow.tensor([nan, 1.0])).values.item() == 1.0


def test_mode_gradient():
    x = flow.tensor([1.0, 2.0, 2.0], requires_grad=True)
    flow.mode(x).values.backward()
    assert x.grad.tolist() == [0, 0, 1]


def test_what_is_out_of_range():
    for call in (
        lambda: flow.topk(flow.ones(3), 4),
        lambda: flow.kthvalue(flow.ones(3), 4),
        lambda: flow.kthvalue(flow.ones(3), 0),
        lambda: flow.mode(flow.ones(2, 0)),
    ):
        with pytest.raises(OutOfRangeError):
            call()


# --- different elements -------------------------------------------------------------------------


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_unique(inverse, counts, dtype, rng):
    a = rng.integers(0, 40 if dtype != "bool" else 2, (31, 70)).astype(dtype)
    actual = flow.unique(flow.tensor(a), return_inverse=inverse, return_counts=counts)
    expected = np.unique(a, return_inverse=True, return_counts=True)
    chosen = [expected[0], *([expected[1].reshape(a.shape)] * inverse), *([expected[2]] * counts)]
    for one, other in zip(actual if inverse or counts else [actual], chosen, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)


def test_every_nan_is_unique():
    nan = float("nan")
    values, counts = flow.unique(flow.tensor([nan, 1.0, nan, 1.0]), return_counts=True)
    assert counts.tolist() == [2, 1, 1]
    assert np.isnan(values.numpy()).tolist() == [False, True, True]


def test_unique_consecutive(rng):
    a = np.repeat(rng.integers(0, 3, 500), rng.integers(1, 6, 500))
    values, back, counts = flow.unique_consecutive(flow.tensor(a), True, True)
    np.testing.assert_array_equal(values.numpy()[back.numpy()], a)
    np.testing.assert_array_equal(np.repeat(values.numpy(), counts.numpy()), a)
    assert not (values.numpy()[1:] == values.numpy()[:-1]).any()


# --- searches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 9, 1000])
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(n, right, rng):
    row = np.sort(np.append(rng.integers(-5, 6, n) / 2.0, [np.nan, np.inf] * (n > 2)))
    values = np.append(rng.integers(-12, 13, 777) / 4.0, [np.nan, np.inf, -np.inf, -0.0])
    actual = flow.searchsorted(flow.tensor(row), flow.tensor(values), right=right)
    np.testing.assert_array_equal(
        actual.numpy(), np.searchsorted(row, values, "right" if right else "left")
    )


def test_searchsorted_in_rows(rng):
    rows = np.sort(rng.integers(0, 50, (40, 30)), -1)
    values = rng.integers(0, 50, (40, 700))
    expected = [np.searchsorted(r, v) for r, v in zip(rows, values, strict=True)]
    np.testing.assert_array_equal(
        flow.searchsorted(flow.tensor(rows), flow.tensor(values)).numpy(), expected
    )


def test_isin(rng):
    x, tests = rng.integers(0, 100, (30, 40)), rng.integers(0, 100, 20)
    np.testing.assert_array_equal(
        flow.isin(flow.tensor(x), flow.tensor(tests)).numpy(), np.isin(x, tests)
    )
