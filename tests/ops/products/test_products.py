"""Matrix products in every layout and size that takes another path."""

import itertools

import numpy as np
import pytest
from layouts import LAYOUTS, laid_out, tensor

import flowvm as flow
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

RTOL = {"float32": 1e-4, "float64": 1e-10, "int64": 0, "int32": 0, "uint8": 0}


def check(a, b, dtype="float32", layouts=("rows", "rows")):
    actual = laid_out(a.astype(dtype), layouts[0]) @ laid_out(b.astype(dtype), layouts[1])
    want = a.astype(dtype).astype("float64") @ b.astype(dtype).astype("float64")
    assert actual.dtype.name == dtype
    assert tuple(actual.shape) == want.shape
    np.testing.assert_allclose(
        actual.numpy(), want.astype(dtype), rtol=RTOL[dtype], atol=RTOL[dtype]
    )


@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, LAYOUTS)), ids="-".join)
@pytest.mark.parametrize("sizes", [(2, 3, 4), (17, 23, 19)], ids=["loop", "blas"])
def test_layouts(rng, sizes, layouts):
    m, k, n = sizes
    check(rng.standard_normal((m, k)), rng.standard_normal((k, n)), layouts=layouts)
    check(rng.standard_normal((2, m, k)), rng.standard_normal((2, k, n)), layouts=layouts)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8"])
def test_dtypes(rng, dtype):
    check(rng.integers(0, 4, (5, 6)), rng.integers(0, 4, (6, 3)), dtype)
    check(rng.integers(0, 4, (2, 20, 30)), rng.integers(0, 4, (30, 20)), dtype)


@pytest.mark.parametrize(
    "shapes",
    [
        ((300, 200), (200, 100)),  # blocks of rows
        ((40, 300), (300, 700)),  # blocks of columns
        ((1, 400), (400, 300)),
        ((300, 400), (400, 1)),
        ((400,), (400, 20)),
        ((6, 1, 30, 20), (5, 20, 30)),
        ((2, 1, 3, 1, 20, 20), (1, 2, 1, 3, 20, 20)),  # more batch dimensions than the kernel walks
        ((1, 20, 30), (4, 30, 10)),
        ((4, 20, 30), (1, 30, 10)),
        ((3, 0), (0, 4)),
        ((0, 3), (3, 4)),
        ((5, 0, 3), (3, 4)),
    ],
    ids=str,
)
def test_sizes(rng, shapes):
    a, b = (rng.standard_normal(s) for s in shapes)
    check(a, b, "float64")


def test_expanded_operand(rng):
    a = rng.standard_normal((1, 40)).astype("float32")
    b = rng.standard_normal((40, 30)).astype("float32")
    actual = tensor(a).expand(30, 40) @ tensor(b)
    np.testing.assert_allclose(actual.numpy(), np.repeat(a @ b, 30, 0), rtol=1e-4, atol=1e-5)


def test_float16_sums_in_float32():
    a = flow.ones(1, 4096, dtype=flow.float16)
    actual = a @ a.t()
    assert actual.dtype is flow.float16
    assert actual.item() == 4096.0


def test_results_do_not_depend_on_threads(rng):
    a = tensor(rng.standard_normal((700, 300)).astype("float32"))
    b = tensor(rng.standard_normal((300, 500)).astype("float32"))
    shared = (a @ b).numpy()
    with flow.vm.sequential():
        alone = (a @ b).numpy()
    np.testing.assert_array_equal(shared, alone)


@pytest.mark.parametrize(
    "shapes", [((9, 40), (40, 30)), ((3, 9, 40), (40, 30)), ((3, 9, 40), (3, 40, 30))], ids=str
)
def test_gradients_through_blas(rng, shapes):
    a, b = (tensor(rng.standard_normal(s)).requires_grad_() for s in shapes)
    g = rng.standard_normal((*np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2]), 9, 30))
    (a @ b).backward(tensor(g))
    np.testing.assert_allclose(a.grad.numpy(), g @ np.swapaxes(b.numpy(), -1, -2), rtol=1e-10)
    want = np.swapaxes(a.numpy(), -1, -2) @ g
    np.testing.assert_allclose(
        b.grad.numpy(), want if b.ndim == a.ndim else want.sum(0), rtol=1e-10
    )


def test_matmul_refuses():
    ones = flow.ones(2, 3)
    with pytest.raises(ShapeError, match="3 columns meet 2 rows"):
        ones @ ones
    with pytest.raises(DTypeError, match="float32 and float64"):
        ones @ flow.ones(3, 2, dtype=flow.float64)
    with pytest.raises(DTypeError, match="float16 and float32"):
        ones.to(flow.float16) @ flow.ones(3, 2)
    with pytest.raises(DTypeError, match="bool"):
        ones.to(flow.bool) @ ones.to(flow.bool).t()
    with pytest.raises(ArgumentTypeError):
        ones @ np.ones((3, 2))


def test_linear_takes_any_strides(rng):
    x, w, b = (rng.standard_normal(s) for s in ((5, 4, 30), (20, 30), 20))
    actual = flow.linear(tensor(x.transpose(1, 0, 2)).transpose(0, 1), tensor(w.T).t(), tensor(b))
    np.testing.assert_allclose(actual.numpy(), x @ w.T + b, rtol=1e-10)
    no_bias = flow.linear(tensor(x.transpose(1, 0, 2)).transpose(0, 1), tensor(w))
    np.testing.assert_allclose(no_bias.numpy(), x @ w.T, rtol=1e-10)


def test_einsum_labels(rng):
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((4, 3))
    for equation in (
        "abc,cb->ab",
        "abc,cb->",
        "abc,cd->dab",
        "abc,cd",
        "...c,cd->d...",
        "abc,ef->fea",
    ):
        np.testing.assert_allclose(
            flow.einsum(equation, tensor(a), tensor(b)).numpy(),
            np.einsum(equation, a, b),
            rtol=1e-10,
        )
    np.testing.assert_allclose(
        flow.einsum("iij->j", tensor(np.ones((3, 3, 2)))).numpy(), np.full(2, 3.0)
    )
    assert flow.einsum("i,i->i", flow.tensor([1, 2]), flow.tensor([3, 4])).tolist() == [3, 8]
    with pytest.raises(ShapeError, match="sizes 2 and 3"):
        flow.einsum("ii", flow.ones(2, 3))


def test_einsum_broadcasts_dots(rng):
    a, b = rng.standard_normal((3, 1, 2, 4)), rng.standard_normal((5, 4, 2))
    actual = flow.einsum("...ij,...jk->...ik", tensor(a), tensor(b))
    np.testing.assert_allclose(actual.numpy(), a @ b, rtol=1e-10)


def test_addmm_without_beta_ignores_input():
    a = flow.ones(2, 2)
    assert flow.addmm(a * float("nan"), a, a, beta=0).tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_linear_of_integers(rng, dtype):
    x, w, b = (rng.integers(0, 9, s).astype(dtype) for s in ((2, 3, 4), (5, 4), 5))
    actual = flow.linear(tensor(x), tensor(w), tensor(b))
    assert actual.dtype.name == dtype
    np.testing.assert_array_equal(actual.numpy(), x @ w.T + b)
    np.testing.assert_array_equal(flow.linear(tensor(x), tensor(w)).numpy(), x @ w.T)
    with pytest.raises(DTypeError, match="bias"):
        flow.linear(tensor(x), tensor(w), flow.ones(5))
    with pytest.raises(DTypeError, match="one dtype"):
        flow.linear(tensor(x), flow.ones(5, 4))


def test_sums_with_products_of_integers_stay_integers():
    ones = flow.ones(1, 2, 2, dtype=flow.int64)
    actual = flow.baddbmm(ones, ones, ones, beta=1.9, alpha=2.5)
    assert actual.dtype is flow.int64
    assert actual.tolist() == [[[5, 5], [5, 5]]]
    assert flow.addmm(ones[0], ones[0], ones[0], alpha=0.5).tolist() == [[1, 1], [1, 1]]
    assert flow.addmv(ones[0, 0], ones[0], ones[0, 0], alpha=2.5, beta=1.9).tolist() == [5, 5]
    with pytest.raises(DTypeError, match="ints"):
        flow.addr(ones[0], ones[0, 0], ones[0, 0], alpha=0.5)


def test_einsum_of_operands_with_lists_of_labels():
    a, b = flow.arange(24.0).reshape(2, 3, 4), flow.arange(8.0).reshape(4, 2)
    want = flow.einsum("bij,jk->kb", a, b).numpy()
    other = flow.einsum(a, (51, 7, 0), b, (0, 9), (9, 51))
    for actual in (flow.einsum(a, [0, 1, 2], b, [2, 3], [3, 0]), other):
        np.testing.assert_array_equal(actual.numpy(), want)
    spread = flow.einsum(a, [..., 0], b, [0, 1], [..., 1])
    np.testing.assert_array_equal(spread.numpy(), (a @ b).numpy())
    # without a list for the output, labels that come once, in the order of their numbers
    np.testing.assert_array_equal(flow.einsum(b, [30, 2]).numpy(), flow.einsum("eC->Ce", b).numpy())
    for wrong in ([52], [-1], ["a"], [True], 3):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            flow.einsum(b[0], wrong)
