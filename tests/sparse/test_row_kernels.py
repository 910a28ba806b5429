"""Kernels over the rows of a sparse matrix, as Python, against dense products; wrong indices."""

import numpy as np
import pytest

from flowvm.ops.sparse.cpu import row_kernels
from flowvm.ops.sparse.cpu.row_kernels import Shape
from flowvm.ops.sparse.cpu.weighted_rows import BLOCKS, weighted_rows

DENSE = np.array([[0.0, 2.0, 0.0, 1.0], [0.0] * 4, [1.0, 0.0, -3.0, 0.0], [0.0, 4.0, 5.0, 6.0]])
ROW, COL = (a.astype(np.int64) for a in np.nonzero(DENSE))
BOUNDS = np.searchsorted(ROW, np.arange(5)).astype(np.int64)
VALUES = DENSE[ROW, COL]


def run(kernel, out, *args, units=4):
    details = np.zeros(6, np.int64)
    for lo, hi in ((units // 2, units), (0, units // 2)):
        status = kernel(out, *args, lo, hi, details)
        if status:
            return status, details[:3].tolist()
    return 0, None


@pytest.mark.parametrize("width", [0, 1, 3, 8])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_products(rng, width, plain, kept):
    x = rng.standard_normal((4, width))
    out = np.full(4 * width, np.nan)
    name = "multiply" + "_plainly" * plain + "_kept" * kept
    more = (BOUNDS, ROW, COL) if kept else ()
    shape = Shape(4, width)
    args = (VALUES, BOUNDS, COL, x.reshape(-1), *more, shape)
    assert run(getattr(row_kernels, name), out, *args) == (0, None)
    np.testing.assert_allclose(out.reshape(4, width), DENSE @ x, rtol=1e-13)


def test_products_of_many_rows_are_checked_in_parts(rng):
    n = 2 * row_kernels.CHECKED + 3
    bounds, col = np.arange(n + 1), rng.integers(0, 4, n)
    x, values = rng.standard_normal((4, 2)), rng.standard_normal(n)
    out = np.zeros(2 * n)
    args = (values, bounds, col, x.reshape(-1), Shape(4, 2))
    assert run(row_kernels.multiply, out, *args, units=n) == (0, None)
    np.testing.assert_allclose(out.reshape(n, 2), values[:, None] * x[col])
    col[-1] = 4
    assert run(row_kernels.multiply, out, *args, units=n) == (1, [4, 4, 1])


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("place", "value", "details"),
    [("col", (1, 4), [4, 4, 1]), ("col", (5, -1), [-1, 4, 1]), ("bounds", (4, 9), [9, 8, 0]),
     ("bounds", (2, 0), None), ("bounds", (0, -1), None)],
)  # fmt: skip
def test_indices_outside_stop_the_kernel(plain, place, value, details):
    bounds, col = BOUNDS.copy(), COL.copy()
    {"col": col, "bounds": bounds}[place][value[0]] = value[1]
    x, out = np.ones((4, 2)), np.zeros(8)
    kernel = row_kernels.multiply_plainly if plain else row_kernels.multiply
    status, told = run(kernel, out, VALUES, bounds, col, x.reshape(-1), Shape(4, 2))
    assert status == 1
    if details is not None:
        assert told == details


def test_samples_of_a_product(rng):
    a, b = rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
    out = np.zeros(len(COL))
    assert run(row_kernels.sample, out, BOUNDS, COL, a, b) == (0, None)
    np.testing.assert_allclose(out, (a @ b.T)[ROW, COL], rtol=1e-12)
    assert run(row_kernels.sample, out, BOUNDS, COL, a, b[:3])[0] == 1


def test_entries_are_grouped_by_rows_as_they_come(rng):
    row = rng.integers(0, 5, 30)
    bounds, order, details = np.full(6, 77), np.zeros(30, np.int64), np.zeros(6, np.int64)
    assert row_kernels.group(bounds, order, row, 0, 1, details) == 0
    np.testing.assert_array_equal(order, np.argsort(row, kind="stable"))
    np.testing.assert_array_equal(bounds, np.searchsorted(np.sort(row), np.arange(6)))
    for wrong in (-1, 5):
        row[7] = wrong
        assert row_kernels.group(bounds, order, row, 0, 1, details) == 1
        assert details[:3].tolist() == [wrong, 5, 0]


def test_rows_as_numbers():
    out = np.full(len(ROW), -1)
    assert run(row_kernels.number_rows, out, BOUNDS) == (0, None)
    np.testing.assert_array_equal(out, ROW)
    for place, value in ((0, 1), (4, 9), (4, 6), (2, -1), (2, 99)):
        bounds = BOUNDS.copy()
        bounds[place] = value
        assert run(row_kernels.number_rows, out, bounds)[0] == 1


def test_weighted_rows_add_rows_in_their_order(rng):
    x, out = rng.standard_normal((4, 3)), np.zeros(12)
    weighted_rows(out, VALUES, BOUNDS, COL, x.reshape(-1), 1, 4, 3)
    np.testing.assert_allclose(out.reshape(4, 3)[1:], (DENSE @ x)[1:], rtol=1e-13)
    assert not out[:3].any()
    assert list(BLOCKS) == sorted(BLOCKS, reverse=True)
    assert BLOCKS[-1] == 1
