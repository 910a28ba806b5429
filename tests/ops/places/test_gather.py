"""Reading and writing at positions that are data, against NumPy: shapes that are split in every way
that the kernels split them, duplicates, every dtype, any number of workers, and indices outside.
"""

import numpy as np
import pytest
from op_calls import flow

from flowvm.errors import OutOfRangeError
from flowvm.nn import functional as F

# (shape, dim, indices): elements, rows, wide rows, columns, a dimension in the middle
LAYOUTS = [
    ((50,), 0, 120),
    ((300_000,), 0, 70_000),
    ((40, 30), 0, 90),
    ((40, 30), 1, 90),
    ((9000, 100), 0, 9000),
    ((6, 5000), 0, 11),
    ((20, 7, 33), 1, 12),
    ((3, 4, 1), 1, 5),
    ((2, 3, 5000), 1, 40),
]
DTYPES = ["float32", "float64", "int64", "int32", "uint8", "int8"]


def values_of(rng, shape, dtype="float64"):
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 100, shape).astype(dtype)


def along(shape, dim, m):
    return (*shape[:dim], m, *shape[dim + 1 :])


def at_elements(index, dim):
    """The full index of NumPy for an index of elements in `dim`."""
    grid = list(np.indices(index.shape, sparse=True))
    grid[dim] = index
    return tuple(grid)


@pytest.fixture(params=LAYOUTS, ids=lambda p: f"{p[0]}-{p[1]}")
def layout(request, rng):
    shape, dim, m = request.param
    return (
        shape,
        dim,
        rng.integers(0, shape[dim], m),
        rng.integers(0, shape[dim], along(*request.param)),
    )


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "float16", "bool"])
def test_index_select(layout, dtype, rng):
    shape, dim, index, _ = layout
    x = values_of(rng, shape, dtype)
    actual = flow.index_select(flow.tensor(x), dim, flow.tensor(index)).numpy()
    np.testing.assert_array_equal(actual, np.take(x, index, dim))


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "float16"])
def test_gather(layout, dtype, rng):
    shape, dim, _, index = layout
    x = values_of(rng, shape, dtype)
    actual = flow.gather(flow.tensor(x), dim, flow.tensor(index)).numpy()
    np.testing.assert_array_equal(actual, np.take_along_axis(x, index, dim))


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_add_and_copy(layout, dtype, rng):
    shape, dim, index, _ = layout
    x, source = values_of(rng, shape, dtype), values_of(rng, along(shape, dim, len(index)), dtype)
    added = np.moveaxis(x.copy(), dim, 0)
    np.add.at(added, index, np.moveaxis(source, dim, 0))
    args = (flow.tensor(x), dim, flow.tensor(index), flow.tensor(source))
    np.testing.assert_array_equal(flow.index_add(*args).numpy(), np.moveaxis(added, 0, dim))
    copied = np.moveaxis(x.copy(), dim, 0)
    for i, j in enumerate(index):  # of several for one place the last stays
        copied[j] = np.moveaxis(source, dim, 0)[i]
    np.testing.assert_array_equal(flow.index_copy(*args).numpy(), np.moveaxis(copied, 0, dim))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_add(layout, dtype, rng):
    shape, dim, _, index = layout
    x, source = values_of(rng, shape, dtype), values_of(rng, index.shape, dtype)
    expected = x.copy()
    np.add.at(expected, at_elements(index, dim), source)
    actual = flow.scatter_add(flow.tensor(x), dim, flow.tensor(index), flow.tensor(source))
    np.testing.assert_array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("reduce", ["amax", "amin", "prod"])
def test_scatter_reduce(layout, reduce, rng):
    shape, dim, _, index = layout
    x, source = values_of(rng, shape), values_of(rng, index.shape)
    rule = {"amax": np.maximum, "amin": np.minimum, "prod": np.multiply}[reduce]
    expected = x.copy()
    rule.at(expected, at_elements(index, dim), source)
    actual = flow.scatter_reduce(
        flow.tensor(x), dim, flow.tensor(index), flow.tensor(source), reduce
    )
    np.testing.assert_array_equal(actual.numpy(), expected)


def test_scatter_of_a_number(layout, rng):
    shape, dim, _, index = layout
    x = values_of(rng, shape)
    expected = x.copy()
    expected[at_elements(index, dim)] = 7.0
    actual = flow.scatter(flow.tensor(x), dim, flow.tensor(index), 7.0)
    np.testing.assert_array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("workers", [2, 3])
def test_writes_come_in_the_order_of_the_indices(layout, workers, rng):
    shape, dim, index, each = layout
    x = flow.zeros(shape)
    source = flow.tensor(values_of(rng, along(shape, dim, len(index)), "float32"))
    sources = flow.tensor(values_of(rng, each.shape, "float32"))

    def results():
        return (
            flow.index_add(x, dim, flow.tensor(index), source).numpy(),
            flow.scatter_add(x, dim, flow.tensor(each), sources).numpy(),
        )

    with flow.config(workers=1):
        alone = results()
    with flow.config(workers=workers):
        together = results()
    for one, other in zip(alone, together, strict=True):
        assert one.tobytes() == other.tobytes()


def test_embedding_and_its_gradient(rng):
    weight = flow.tensor(values_of(rng, (70, 90)), requires_grad=True)
    index = rng.integers(0, 70, (40, 200))
    out = F.embedding(flow.tensor(index), weight, padding_idx=3)
    np.testing.assert_array_equal(out.detach().numpy(), weight.detach().numpy()[index])
    g = values_of(rng, (40, 200, 90))
    out.backward(flow.tensor(g))
    expected = np.zeros((70, 90))
    np.add.at(expected, index, g)
    expected[3] = 0
    np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_negative_zero_and_nan_are_moved_as_they_are():
    x = np.array([0.0, -0.0, np.nan, -np.nan])
    actual = flow.index_select(flow.tensor(x), 0, flow.tensor([1, 3, 0, 2])).numpy()
    assert actual.tobytes() == x[[1, 3, 0, 2]].tobytes()


# --- nothing and outside ------------------------------------------------------------------------


def test_no_indices():
    none = flow.zeros(0, dtype=flow.int64)
    assert flow.index_select(flow.ones(3, 2), 0, none).shape == (0, 2)
    assert flow.index_add(flow.ones(3), 0, none, flow.zeros(0)).tolist() == [1, 1, 1]
    assert flow.gather(flow.ones(3), 0, none).shape == (0,)
    assert flow.scatter(flow.ones(3), 0, none, 5.0).tolist() == [1, 1, 1]
    assert flow.index_select(flow.ones(0, 2), 1, flow.tensor([1, 0])).shape == (0, 2)


def _calls(bad, n):
    index = np.zeros(n, np.int64)
    index[-2] = bad
    flat, rows = flow.tensor(index), flow.tensor(np.stack([index, index]))
    return {
        "index_select": (lambda: flow.index_select(flow.ones(2, 5), 1, flat), 1),
        "rows": (lambda: flow.index_select(flow.ones(5, 3), 0, flat), 0),
        "gather": (lambda: flow.gather(flow.ones(2, 5), 1, rows), 1),
        "gather rows": (lambda: flow.gather(flow.ones(5, n), 0, rows), 0),
        "index_add": (lambda: flow.index_add(flow.ones(5), 0, flat, flow.ones(n)), 0),
        "index_add rows": (lambda: flow.index_add(flow.ones(5, 90), 0, flat, flow.ones(n, 90)), 0),
        "scatter": (lambda: flow.scatter(flow.ones(2, 5), 1, rows, 1.0), 1),
        "scatter_add": (lambda: flow.scatter_add(flow.ones(5, n), 0, rows, flow.ones(2, n)), 0),
    }


@pytest.mark.parametrize("bad", [5, -1, 1 << 40])
@pytest.mark.parametrize("n", [3, 9000])
@pytest.mark.parametrize("name", _calls(0, 3))
def test_an_index_outside_is_named(name, n, bad):
    call, dim = _calls(bad, n)[name]
    with pytest.raises(OutOfRangeError, match=f"index {bad} .*{dim}.*5"):
        call().numpy()
