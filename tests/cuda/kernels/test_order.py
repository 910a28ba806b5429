"""Sorting and selecting on CUDA: the bits are the CPU's, which tests/ops compares with NumPy.

In the simulator a block sorts 128 elements, so longer rows take the ways of long ones.
"""

import numpy as np
import pytest
from played import agree, launch, play, same

import flowvm as flow
from flowvm.cuda.compiler import compilation
from flowvm.ops.places.cpu.order import ordered_rows
from flowvm.ops.places.parts.nth import nth_of_rows
from flowvm.ops.places.sort import _mode_rows, _row_order, _topk_rows

ENDS = ((7, 0), (10, 0))  # tools/check_ptx.py has those between
DTYPES = ("float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")


def values(rng, dtype, shape):
    """Return elements with many equal ones, and NaN, infinities, -0 and the extremes."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    kind = np.dtype(dtype)
    if kind.kind == "f":
        x = (rng.integers(-4, 5, shape) / 2).astype(kind)
        special = [np.nan, np.inf, -np.inf, -0.0, np.finfo(kind).tiny]
        return np.where(rng.random(shape) < 0.3, rng.choice(special, shape), x).astype(kind)
    limits = np.iinfo(kind)
    x = rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    return np.where(rng.random(shape) < 0.5, rng.integers(0, 4, shape), x).astype(kind)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(3, 1), (2, 5), (70, 2), (3, 31), (2, 33), (3, 100), (1, 128)])
def test_short_rows(rng, dtype, shape, descending):
    agree(ordered_rows, [values(rng, dtype, shape)], (0, shape[1], descending))


@pytest.mark.parametrize("dtype", DTYPES)
def test_short_rows_of_every_dtype(rng, dtype):
    agree(ordered_rows, [values(rng, dtype, (2, 40))], (3, 20, True), order="reversed")


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("int8", (2, 300)),
        ("uint8", (1, 600)),
        ("bool", (2, 129)),
        ("int16", (1, 257)),
        ("float32", (2, 300)),
        ("int64", (1, 300)),
    ],
)
def test_long_rows(rng, dtype, shape, descending):
    agree(ordered_rows, [values(rng, dtype, shape)], (3, shape[1] - 5, descending))


def test_long_rows_in_another_order_of_threads(rng):
    agree(ordered_rows, [values(rng, "int32", (1, 700))], (0, 700, False), order="reversed")


def test_long_rows_without_any_difference(rng):
    agree(ordered_rows, [np.full((2, 200), 7)], (0, 200, True))


def test_rows_without_elements():
    for shape in ((0, 3), (3, 0), (0, 300)):
        agree(ordered_rows, [np.zeros(shape)], (0, shape[1], False))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "bool", "int8"])
def test_one_element_of_long_rows(rng, dtype):
    x = values(rng, dtype, (2, 300))
    for nth in (0, 150, 299):
        agree(nth_of_rows, [x], (nth,))


def test_one_element_of_short_rows(rng):
    agree(nth_of_rows, [values(rng, "float64", (3, 40))], (17,))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_the_first_of_long_rows(rng, dtype, largest):
    x = values(rng, dtype, (2, 600))
    for k in (1, 33):
        agree(_topk_rows, [x], (k, largest))


def test_the_first_of_short_rows_and_more_than_a_block_sorts(rng):
    agree(_topk_rows, [values(rng, "float32", (3, 50))], (4, True))
    agree(_topk_rows, [values(rng, "int16", (1, 700))], (140, False))
    agree(_topk_rows, [values(rng, "float32", (3, 50))], (0, True))


@pytest.mark.parametrize("n", [1, 2, 33, 300])
def test_the_most_frequent(rng, n):
    x = np.sort(values(rng, "float32", (3, n)), -1)
    agree(_mode_rows, [x, np.argsort(rng.random((3, n)), -1)])


@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 100])
def test_slices_in_order(rng, n):
    agree(_row_order, [rng.integers(0, 3, (n, 3))], outputs=1)
    agree(_row_order, [values(rng, "float32", (n, 2))], outputs=1, order="reversed")


def test_places_of_very_long_rows_have_64_bits():
    from flowvm.ops.places.cuda.radix import sorting

    assert sorting(1, 1 << 20, 32, True).place_kind == "int32"
    assert sorting(1, (1 << 31) + 1, 32, True).place_kind == "int64"


def test_an_element_keeps_its_bits(rng):
    x = rng.integers(0, 1 << 32, (1, 200), np.uint32).view(np.float32)
    (sorted_, places), _ = play(ordered_rows, [x], (0, 200, False))
    same(sorted_, np.take_along_axis(x, places, 1))


def test_gradients_go_where_values_came_from(device, rng):
    x = rng.permutation(300).astype(np.float32)
    results = []
    for place in (flow.device("cpu"), device):
        t = flow.tensor(x, device=place, requires_grad=True)
        (flow.sort(t).values[:9].sum() + flow.topk(t, 3).values.sum() * 2).backward()
        flow.kthvalue(t, 150).values.backward()
        results.append(t.grad.cpu().numpy())
    same(*results)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_the_kernels_compile(ptx_of, dtype, monkeypatch):
    monkeypatch.setattr(compilation, "simulated", lambda: False)  # as large as they are on a GPU
    for n in (100, 5000, 1 << 26):
        x = np.empty(0, dtype if dtype != "bool" else np.bool_)
        x = np.lib.stride_tricks.as_strided(
            np.zeros(1, x.dtype), (2, n), (n * x.itemsize, x.itemsize)
        )
        for plan in (
            launch(ordered_rows, [x], (0, n, False)),
            launch(_topk_rows, [x], (5, True)),
            launch(nth_of_rows, [x], (5,)),
        ):
            assert all(".entry" in text for text in ptx_of.launch(plan, ENDS))
    for plan in (launch(_mode_rows, [x, np.zeros((2, 3), np.int64)]), launch(_row_order, [x])):
        assert all(".entry" in text for text in ptx_of.launch(plan, ENDS))
