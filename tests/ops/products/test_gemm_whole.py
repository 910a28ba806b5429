"""Products of integers, the body as Python: both ways, any strides, batches, wrapping around."""

import numpy as np
import pytest

from flowvm.ops.products.cpu.gemm_kernels import DOTS, STREAM, Plan
from flowvm.ops.products.cpu.gemm_whole import whole_body


def plan(way, m, n, k, a, b, items=(1, 1, 1)):
    """A plan of operands with strides (batch, row, column) in elements."""
    known = {
        "way": way, "m": m, "n": n, "k": k, "a_row": a[1], "a_step": a[2], "b_step": b[1],
        "b_column": b[2], "d1": items[1], "d2": items[2], "a2": a[0], "b2": b[0],
        "a1": a[0] * items[2], "b1": b[0] * items[2],
    }  # fmt: skip
    return Plan(**{f: known.get(f, 0) for f in Plan._fields})


@pytest.mark.parametrize("kind", [np.int64, np.int8])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_any_strides(rng, kind, turned):
    m, n, k = 3, 4, 5
    a = rng.integers(-100, 100, (2, m, k)).astype(kind)
    b = rng.integers(-100, 100, (2, k, n)).astype(kind)
    right = np.ascontiguousarray(b.transpose(0, 2, 1)) if turned else b
    strides = (n * k, 1, k) if turned else (n * k, n, 1)
    p = plan(DOTS if turned else STREAM, m, n, k, (m * k, k, 1), strides, (1, 1, 2))
    out = np.zeros(2 * m * n, kind)
    with np.errstate(over="ignore"):
        for lo, hi in ((4, 6), (0, 4)):
            whole_body(out, a.reshape(-1), right.reshape(-1), p, lo, hi)
        expected = (a.astype(np.int64) @ b.astype(np.int64)).astype(kind)  # as integers wrap
    np.testing.assert_array_equal(out.reshape(2, m, n), expected)


def test_columns_with_gaps_are_added_one_by_one(rng):
    m, n, k = 2, 3, 4
    a, b = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, 2 * n))
    p = plan(STREAM, m, n, k, (0, k, 1), (0, 2 * n, 2))
    out = np.zeros(m * n, np.int64)
    whole_body(out, a.reshape(-1), b.reshape(-1), p, 0, m)
    np.testing.assert_array_equal(out.reshape(m, n), a @ b[:, ::2])
    empty = plan(STREAM, m, n, 0, (0, 0, 1), (0, n, 1))
    whole_body(out, a.reshape(-1), b.reshape(-1), empty, 0, m)
    assert not out.any()
