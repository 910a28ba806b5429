"""Selection and counts on CUDA: masks, distinct values, counts, searches, triangles.

The bits are the CPU's, which tests/ops compares with NumPy.

Sizes are around a thread's share, a tile (256 elements in the simulator) and the sizes that one
block sums alone.
"""

import numpy as np
import pytest
from played import agree, launch, named, play

import flowvm as flow
from flowvm.cuda.compiler import compilation
from flowvm.ops.places.counts import NEGATIVE
from flowvm.ops.places.masks import TOO_FEW
from flowvm.ops.places.search import NO_RANGE

ENDS = ((7, 0), (10, 0))  # tools/check_ptx.py has those between
SIZES = (0, 1, 31, 32, 33, 256, 257, 1000, 5000)
ORDERS = ("", "reversed")
assert flow.eye(1).numel() == 1  # all ops are declared


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", SIZES)
def test_masks(rng, n, order):
    mask, x = rng.random(n) < 0.4, rng.standard_normal(n)
    agree(named("true_positions"), [mask], order=order)
    agree(named("masked_select"), [x, mask], order=order)
    agree(named("masked_collect"), [x, mask], (n // 3,), order=order)
    agree(named("masked_scatter_"), [x, mask, rng.standard_normal(n)], order=order)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bool", "uint8", "int64"])
def test_masks_move_every_dtype(rng, dtype):
    x, mask = rng.integers(0, 2, 100).astype(dtype), rng.random(100) < 0.5
    agree(named("masked_select"), [x, mask])
    agree(named("masked_scatter_"), [x, mask, x])


def test_masked_scatter_with_too_few_elements(rng):
    x, mask = np.zeros(100), np.arange(100) % 3 == 0
    _, details = play(named("masked_scatter_"), [x, mask, np.ones(30)])
    assert (details[0], details[6]) == (30, TOO_FEW)
    assert x.sum() == 30


@pytest.mark.parametrize("shape", [(), (0,), (7,), (5, 7, 3), (2, 0, 3), (300, 2)])
def test_nonzero(rng, shape):
    mask = np.asarray(rng.random(shape) < 0.3)
    agree(named("nonzero"), [mask, np.array(shape, np.int64)])


@pytest.mark.parametrize("n", SIZES)
def test_distinct_elements(rng, n):
    x, order = np.sort(rng.integers(0, n // 3 + 1, n)), rng.permutation(n)
    agree(named("unique"), [x, order], (True, True))
    agree(named("unique"), [x, np.zeros(0, np.int64)], (True, False), order="reversed")
    agree(named("unique"), [x.astype(np.float32), order], (False, True))


def test_every_nan_is_different():
    agree(named("unique"), [np.array([1, 1, np.nan, np.nan]), np.arange(4)], (True, True))


@pytest.mark.parametrize("n", [1, 2, 40, 300])
def test_distinct_slices(rng, n):
    x = rng.integers(0, 2, (n, 2))
    agree(named("unique_dim"), [x, np.lexsort((x[:, 1], x[:, 0]))])
    agree(named("unique_dim"), [x / 2, np.arange(n)], order="reversed")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", SIZES[:-1])
def test_bincount(rng, n, order):
    x = rng.integers(0, 9, n)
    agree(named("bincount"), [x, x], (False, 4), order=order)
    if n in (1, 257):  # more than a block counts
        agree(named("bincount"), [x * 1000, x], (False, 0), order=order)
    for dtype in ("float32", "float64"):  # weights whose sums have no rounding
        weights = (rng.integers(-9, 9, n) / 4).astype(dtype)
        agree(named("bincount"), [x, weights], (True, 12), order=order)


def test_what_is_negative_is_told(rng):
    x = np.array([1, 2, -5, -6] * 20)
    for op, arrays, attrs in (("bincount", [x, x], (False, 0)), ("repeated_positions", [x], ())):
        for order in ORDERS:
            outputs, details = play(named(op), arrays, attrs, order=order)
            assert not outputs
            assert (details[0], details[1], details[6]) == (2, -5, NEGATIVE)


@pytest.mark.parametrize("n", SIZES)
def test_repeats(rng, n):
    agree(named("repeated_positions"), [rng.integers(0, 4, n)])


@pytest.mark.parametrize("n", SIZES)
def test_histograms(rng, n):
    x = rng.standard_normal(n)
    agree(named("histc"), [x], (7, -1.0, 1.0))
    agree(named("histc"), [x], (5, 0.0, 0.0))
    agree(named("histc"), [x.astype(np.float32)], (3, 1.0, 1.0), order="reversed")


def test_histograms_leave_out_nan(rng):
    x = np.array([1, np.nan, 2, 3, np.nan, 3])
    agree(named("histc"), [x], (4, 0.0, 0.0))
    agree(named("histc"), [x[1:]], (4, 0.0, 0.0))
    agree(named("histc"), [np.full(3, 2.0)], (4, 0.0, 0.0))
    agree(named("histc"), [np.full(3, np.nan)], (4, 0.0, 0.0))


def test_histograms_need_a_finite_range():
    for x in ([1.0, np.inf], [-np.inf, np.inf], [np.inf], [-1e308, 1e308]):
        _, details = play(named("histc"), [np.array(x * 40)], (4, 0.0, 0.0))
        assert details[6] == NO_RANGE
    agree(named("histc"), [np.array([1.0, np.inf, 2.0])], (4, 0.0, 2.0))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("n", SIZES[:-1])
def test_searches(rng, n, right):
    boundaries, x = np.sort(rng.integers(0, 9, 33) / 2), rng.integers(-1, 20, n) / 4
    agree(named("searchsorted"), [boundaries, x], (right,))
    boundaries[-3:] = np.nan
    x[::7] = np.nan
    agree(named("searchsorted"), [boundaries, x], (right,))
    agree(named("isin"), [rng.integers(0, 9, n), np.array([1, 4, 5])], (right,))
    agree(named("isin"), [x, np.zeros(0)], (right,))


def test_searches_in_rows(rng):
    rows = np.sort(rng.integers(0, 9, (3, 5)), -1)
    agree(named("searchsorted"), [rows, rng.integers(0, 9, (3, 40))], (True,))


@pytest.mark.parametrize("k", [-9, -2, 0, 1, 9])
def test_triangles_and_diagonals(rng, k):
    for dtype in ("float64", "float16", "bool"):
        x = rng.integers(0, 2, (2, 4, 5)).astype(dtype)
        agree(named("tril"), [x], (k,))
        agree(named("triu"), [x], (k,))
        agree(named("diag_embed"), [x[0]], (k,))
    agree(named("tril"), [np.zeros((3, 0))], (k,))


def test_one_hot(rng):
    agree(named("one_hot"), [rng.integers(0, 4, 200)], (4,))
    agree(named("one_hot"), [np.zeros(0, np.int64)], (4,))
    for bad in (4, -1):
        _, details = play(named("one_hot"), [np.array([1, bad, 2])], (4,))
        assert (details[0], details[1], details[2], details[6]) == (bad, 4, -1, 1)


def test_sizes_that_only_the_device_knows(device, rng):
    x = rng.integers(0, 40, 700)
    t = flow.tensor(x, device=device)
    np.testing.assert_array_equal(flow.nonzero(t > 20).numpy(), np.argwhere(x > 20))
    np.testing.assert_array_equal(t[t > 20].numpy(), x[x > 20])
    np.testing.assert_array_equal(t[t > 99].numpy(), x[:0])
    np.testing.assert_array_equal(flow.bincount(t).numpy(), np.bincount(x))
    for actual, expected in zip(
        flow.unique(t, return_inverse=True, return_counts=True),
        np.unique(x, return_inverse=True, return_counts=True),
        strict=True,
    ):
        np.testing.assert_array_equal(actual.numpy(), expected)
    np.testing.assert_array_equal(flow.repeat_interleave(t, t).numpy(), np.repeat(x, x))


def test_what_a_kernel_finds_is_raised_where_it_is_read(device):
    t = flow.tensor([3, -1, 2], device=device)
    counts = flow.bincount(t)
    with pytest.raises(ValueError, match="element 1 is -1"):
        counts.numpy()
    with pytest.raises(ValueError, match="more than 1 true"):
        flow.zeros(3, device=device).masked_scatter(t > -5, flow.ones(1, device=device)).numpy()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_the_kernels_compile(ptx_of, dtype, monkeypatch):
    monkeypatch.setattr(compilation, "simulated", lambda: False)
    n = 1 << 16
    x, mask, places = np.zeros(n, dtype), np.zeros(n, bool), np.zeros(n, np.int64)
    plans = [
        launch(named("true_positions"), [mask]),
        launch(named("nonzero"), [mask, np.zeros(1, np.int64)]),
        launch(named("masked_select"), [x, mask]),
        launch(named("masked_scatter_"), [x, mask, x]),
        launch(named("masked_collect"), [x, mask], (20,)),
        launch(named("unique"), [x, places], (True, True)),
        launch(named("unique_dim"), [x.reshape(-1, 2), places[: n // 2]]),
        launch(named("bincount"), [places, places], (False, 0)),
        launch(named("repeated_positions"), [places]),
        launch(named("searchsorted"), [x, x], (True,)),
        launch(named("isin"), [x, x], (True,)),
        launch(named("tril"), [x.reshape(-1, 2)], (0,)),
        launch(named("diag_embed"), [x[:9]], (0,)),
        launch(named("one_hot"), [places[:9]], (4,)),
    ]
    if x.dtype.kind == "f":
        plans.append(launch(named("histc"), [x], (5, 0.0, 0.0)))
        plans.append(launch(named("bincount"), [places, x], (True, 0)))
    for one in plans:
        assert all(".entry" in text for text in ptx_of.launch(one, ENDS))
