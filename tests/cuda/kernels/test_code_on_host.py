"""Kernels' compiled code, run on the host (`on_host`): the simulator runs only their Python.

The reference is NumPy, over dtypes, strides, alignments and sizes around a thread's share.
"""

import numpy as np
import pytest
from played import named, on_cpu, same

NONE = 1 << 62


def random_array(rng, dtype, *shape):
    """Numbers that every operation below keeps exact."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.integers(0 if dtype == "uint8" else -9, 10, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_vectors_and_what_is_left_of_them(ptx_of, rng, dtype):
    many = 8 * 16 * 256
    for n in (1, 5, 3000, many + int(rng.integers(0, 40))):
        x, y = random_array(rng, dtype, n + 1), random_array(rng, dtype, n + 1)
        for a, b in ((x[:-1], y[:-1]), (x[1:], y[:-1])):  # the second is aligned nowhere
            (out,), _ = ptx_of.played("add", [a, b])
            np.testing.assert_array_equal(out, a + b)
        (out,), _ = ptx_of.played("copy", [np.empty_like(x), x], into=0)
        np.testing.assert_array_equal(out, x)


def test_strides_of_all_kinds(ptx_of, rng):
    x = random_array(rng, "float32", 9, 12, 11)
    for a, b in (
        (x.transpose(2, 1, 0)[::2], random_array(rng, "float32", 12, 1)),
        (x[::-1, :, ::-1], x[0]),
        (np.broadcast_to(x[:, :1], x.shape), x),
    ):
        (out,), _ = ptx_of.played("mul", [a, b])
        np.testing.assert_array_equal(out, a * b)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16"])
def test_casts(ptx_of, rng, dtype):
    from flowvm.meta.dtype import dtype_named

    x = random_array(rng, dtype, 517)
    for to in ("float32", "int64", "bool", "float16"):
        if to != dtype:
            (out,), _ = ptx_of.played("cast", [x], (dtype_named(to),))
            np.testing.assert_array_equal(out, x.astype(to))


def test_which_elements_and_errors(ptx_of, rng):
    which, x, y = (
        random_array(rng, "bool", 333),
        random_array(rng, "float32", 333),
        random_array(rng, "float32", 333),
    )
    (out,), _ = ptx_of.played("where", [which, x, y])
    np.testing.assert_array_equal(out, np.where(which, x, y))
    a, b = random_array(rng, "int64", 300), np.maximum(1, abs(random_array(rng, "int64", 300)))
    (out,), details = ptx_of.played("floor_divide", [a, b])
    assert not details.any()
    np.testing.assert_array_equal(out, a // b)
    b[rng.integers(300)] = 0
    assert ptx_of.played("floor_divide", [a, b])[1].any()


def test_rows_by_indices(ptx_of, rng):
    x, index = random_array(rng, "float32", 7, 33), rng.integers(-7, 7, 40)
    (out,), details = ptx_of.played("index_select", [x, index], (0, -7, 0, NONE, NONE))
    assert not details.any()
    np.testing.assert_array_equal(out, x[index])
    each = rng.integers(0, 7, (5, 33))
    (out,), _ = ptx_of.played("gather", [x, each], (0,))
    np.testing.assert_array_equal(out, np.take_along_axis(x, each, 0))
    each[2, 3] = 7
    assert ptx_of.played("gather", [x, each], (0,))[1].any()


def test_dropout_draws_the_cpus_words(ptx_of, rng):
    x = random_array(rng, "float32", 1031)
    for part in (x, x[1:], x[:3]):
        (expected,), _ = on_cpu(named("dropout"), [part], (), (0.3, 12345, 6))
        (out,), _ = ptx_of.played("dropout", [part], (), (0.3, 12345, 6))
        same(out, expected)
