"""Reads and writes at positions that are data, and bags, on CUDA.

The bits are the CPU's, whichever thread is first; bad indices fail with the CPU's message.
"""

import numpy as np
import pytest
from on_device import answer, compiles, kernels, launch, like_cpu
from simulated import status

import flowvm as flow
from flowvm.errors import FlowError, exception_for
from flowvm.ops.places.cpu.index_kernels import ADD, AMAX, AMIN, MULTIPLY
from flowvm.ops.places.cuda import indexing as rules
from flowvm.ops.places.embedding_bag import _max as bag_max
from flowvm.ops.places.embedding_bag import _sum as bag_sum
from flowvm.ops.places.gather import (
    NONE,
    combine_elements,
    combine_slices,
    gather_elements,
    put_slices,
    scatter_elements,
    take_slices,
)
from flowvm.ops.places.indexing import _join_positions

DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
NUMBERS = tuple(d for d in DTYPES if d not in ("float16", "bool"))
SHAPES = [((5, 3), 0), ((2, 5, 4), 1), ((7,), 0), ((2, 70), 1)]
MODES = {"add": ADD, "multiply": MULTIPLY, "amax": AMAX, "amin": AMIN}
LENGTHS = [1, 6, 40]  # the last is too long to be walked through


def values(rng, shape, dtype):
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def resized(shape, dim, m):
    return (*shape[:dim], m, *shape[dim + 1 :])


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [0, *LENGTHS])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.product(4)
def test_reads(rng, dtype, shape, dim, m):
    n, x = shape[dim], values(rng, shape, dtype)
    signed, plain = rng.integers(-n, n, m), rng.integers(0, n, m)
    like_cpu(take_slices, [x, signed], (dim, -n, dim, NONE, NONE), exact=True)
    like_cpu(take_slices, [x, plain], (dim, 0, dim, 2, 2), exact=True)
    each = rng.integers(0, n, resized(shape, dim, m))
    like_cpu(gather_elements, [x, each], (dim,), exact=True)


def test_positions_in_two_dimensions(rng):
    a, b = rng.integers(-3, 3, (3, 14)), rng.integers(-5, 5, (3, 14))
    like_cpu(_join_positions, [a, b], (3, 5, 0, 1), exact=True)


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("m", [0, *LENGTHS])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
@pytest.mark.product(4)
def test_the_last_of_several_writes_wins(rng, dtype, shape, dim, m, one):
    n, x = shape[dim], values(rng, shape, dtype)
    source = values(rng, resized(shape, dim, m), dtype)
    if one:
        source = values(rng, (1,), dtype)
    like_cpu(put_slices, [x, rng.integers(-n, n, m), source], (dim, -n, dim), exact=True)
    each = rng.integers(0, n, resized(shape, dim, m))
    like_cpu(scatter_elements, [x, each, source], (dim,), exact=True)


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("m", LENGTHS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.product(4)
def test_writes_are_combined_in_the_order_of_the_indices(rng, shape, dim, m, mode, one):
    n, mode = shape[dim], MODES[mode]
    x, source = (values(rng, s, "float32") for s in (shape, resized(shape, dim, m)))
    x.reshape(-1)[::9], source.reshape(-1)[::13] = np.nan, np.inf
    source = source.reshape(-1)[:1] if one else source
    signed, plain = rng.integers(-n, n, m), rng.integers(0, n, m)
    like_cpu(combine_slices, [x, signed, source], (dim, -n, dim, NONE, mode), exact=True)
    like_cpu(combine_slices, [x, plain, source], (dim, 0, dim, 1, mode), exact=True)
    each = rng.integers(0, n, resized(shape, dim, m))
    like_cpu(combine_elements, [x, each, source], (dim, mode), exact=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_dtype_is_combined(rng, dtype, mode):
    x, source, mode = values(rng, (5, 3), dtype), values(rng, (40, 3), dtype), MODES[mode]
    like_cpu(combine_slices, [x, rng.integers(0, 5, 40), source], (0, 0, 0, NONE, mode), exact=True)
    each = rng.integers(0, 5, (40, 3))
    like_cpu(combine_elements, [x, each, source], (0, mode), exact=True)


def test_float16_is_summed_in_float32(rng):
    source = rng.standard_normal((400, 2)).astype("float16")
    x = np.zeros((3, 2), "float16")
    index = rng.integers(0, 3, 400)
    _, details = answer(combine_slices, [x, index, source], (0, 0, 0, NONE, ADD))
    assert status(details) == 0
    expected = np.zeros((3, 2))
    np.add.at(expected, index, source.astype("float64"))
    np.testing.assert_allclose(x, expected, rtol=2e-3, atol=2e-3)


def test_columns_that_are_many_enough_are_walked_through(rng, monkeypatch):
    x, index = np.zeros((2, 5)), rng.integers(0, 2, (50, 5))
    source = rng.standard_normal((50, 5))
    sorted_ = launch(combine_elements, [x, index, source], (0, ADD))
    assert len(kernels(sorted_)) > 3
    monkeypatch.setattr(rules, "COLUMNS", 5)
    like_cpu(combine_elements, [x, index, source], (0, ADD), exact=True)
    assert kernels(launch(combine_elements, [x, index, source], (0, ADD))) == ["scatter_walk"]


# --- bags -----------------------------------------------------------------------------------------

BOUNDS = [([0, 2, 2, 6], 6), ([0, 0], 0), ([0, 4, 6], 6), ([0], 0)]


@pytest.mark.parametrize("skip", [NONE, 1])
@pytest.mark.parametrize(("bounds", "m"), BOUNDS)
@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bags(rng, dtype, n, bounds, m, skip):
    weight = rng.standard_normal((5, n)).astype(dtype)
    weight[2, 0] = np.nan
    index, bounds = rng.integers(0, 5, m), np.array(bounds)
    scales = rng.standard_normal(m).astype(dtype)
    for mean in (False, True):
        like_cpu(bag_sum, [weight, index, bounds, scales], (skip, mean, False, False))
    like_cpu(bag_max, [weight, index, bounds], (skip,), exact=True)


# --- what is wrong with an index ------------------------------------------------------------------

X = np.zeros((4, 3), "float32")
LINE = np.zeros(4, "float32")


def wrong(value, m):
    index = np.zeros(m, np.int64)
    index[m // 2] = value
    return index


def cases():
    for m in (5, 50):
        rows, line = np.ones((m, 3), "float32"), np.ones(m, "float32")
        for value in (4, -5):
            index = wrong(value, m)
            yield take_slices, [X, index], (0, -4, 0, NONE, NONE)
            yield put_slices, [X, index, rows], (0, -4, 0)
            yield combine_slices, [X, index, rows], (0, -4, 0, NONE, ADD)
            yield gather_elements, [LINE, index], (0,)
            yield scatter_elements, [LINE, index, line], (0,)
            yield combine_elements, [LINE, index, line], (0, ADD)
    yield take_slices, [X[:0], wrong(0, 3)], (0, 0, 0, NONE, NONE)
    yield put_slices, [X[:0], wrong(0, 3), np.ones((3, 3), "float32")], (0, 0, 0)
    yield _join_positions, [wrong(3, 5), wrong(0, 5)], (3, 5, 0, 1)
    yield _join_positions, [wrong(0, 5), wrong(-6, 5)], (3, 5, 0, 1)
    for index, bounds in (
        ([0, 5, 1], [0, 1, 3]),
        ([0, 1, 1], [1, 2, 3]),
        ([0, 1, 1], [0, 2, 2]),
        ([0, 1, 1], [0, 7, 3]),
        ([0, 1, 1], [0, 2, 1, 3]),
    ):
        arrays = [np.zeros((5, 3), "float32"), np.array(index), np.array(bounds)]
        yield bag_sum, [*arrays, np.ones(3, "float32")], (NONE, True, False, False)
        yield bag_max, arrays, (NONE,)


@pytest.mark.parametrize("number", range(sum(1 for _ in cases())))
def test_a_bad_index_fails_as_on_the_cpu(number):
    function, arrays, attrs = list(cases())[number]
    result = function(*(flow.tensor(a) for a in arrays), *attrs)
    out = result[0] if isinstance(result, tuple) else result
    with pytest.raises(FlowError) as raised:
        out.numpy()
    for order in ("", "reversed"):
        _, details = answer(function, [a.copy() for a in arrays], attrs, order)
        error = exception_for(status(details), list(details[:6]))
        assert (type(error), str(error)) == (type(raised.value), str(raised.value))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool"])
def test_the_kernels_compile(ptx_of, dtype):
    x, rows = np.zeros((4, 3), dtype), np.zeros((50, 3), dtype)
    index, each, short = np.zeros(50, np.int64), np.zeros((50, 3), np.int64), np.zeros(2, np.int64)
    plans = [
        launch(take_slices, [x, index], (0, -4, 0, NONE, NONE)),
        launch(gather_elements, [x, each], (0,)),
        launch(put_slices, [x, index, rows], (0, -4, 0)),
        launch(scatter_elements, [x, each, rows], (0,)),
        launch(scatter_elements, [x, each[:2], rows[:2]], (0,)),
    ]
    if dtype != "bool":
        plans += [
            launch(combine_slices, [x, index, rows], (0, -4, 0, NONE, ADD)),
            launch(combine_slices, [x, short, rows[:2]], (0, -4, 0, NONE, ADD)),
            launch(combine_elements, [x, each, rows], (0, ADD)),
        ]
    if x.dtype.kind == "f":
        bounds, scales = np.array([0, 50]), np.zeros(50, dtype)
        plans.append(launch(bag_sum, [x, index, bounds, scales], (NONE, True, False, False)))
        plans.append(launch(bag_max, [x, index, bounds], (NONE,)))
    compiles(ptx_of, plans, dtype)
