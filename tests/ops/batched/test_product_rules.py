"""Products and convolutions of all examples at once, against loops by NumPy."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.meta.batched_meta import Axis, with_axes
from flowvm.meta.meta import TensorMeta
from flowvm.ops.batched import product_rules
from flowvm.ops.batched.levels import Level
from flowvm.ops.products.matmul import _matmul, _matmul_nt, _matmul_tn
from tests.ops.batched.levels import examples, of

pytestmark = pytest.mark.filterwarnings("error:vmap")
COUNT = 4
SHAPES = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 5)), ((2, 3), (3, 5)), ((6, 2, 3), (3, 5)),
          ((2, 3), (6, 3, 5)), ((3,), (6, 3, 5)), ((6, 2, 3), (3,))]  # fmt: skip
KINDS = {"plain": _matmul, "nt": _matmul_nt, "tn": _matmul_tn}


def turned(shape, turn):
    return (*shape[:-2], shape[-1], shape[-2]) if turn and len(shape) > 1 else shape


@pytest.mark.parametrize("alone", ["a", "b", "neither"])
@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [
        (kind, left, right) for kind in KINDS for left, right in SHAPES
        if len({"nt": right, "tn": left}.get(kind, (2, 2))) > 1  # what is turned is a matrix
    ],
)  # fmt: skip
def test_products(rng, kind, alone, left, right):
    """Every pair of ranks; operands may be turned, and one of them shared."""
    ta, tb = kind == "tn", kind == "nt"
    one = Level(COUNT)
    a = rng.standard_normal((COUNT, *turned(left, ta)))
    b = rng.standard_normal((COUNT, *turned(right, tb)))
    xs = [flow.tensor(x[0]) if alone == name else of(x, one) for name, x in (("a", a), ("b", b))]
    if alone == "a":
        a = np.broadcast_to(a[:1], a.shape)
    if alone == "b":
        b = np.broadcast_to(b[:1], b.shape)
    out = KINDS[kind](*xs)
    wide_a = np.swapaxes(a, -1, -2) if ta and len(left) > 1 else a
    wide_b = np.swapaxes(b, -1, -2) if tb and len(right) > 1 else b
    expected = np.stack([np.matmul(x, y) for x, y in zip(wide_a, wide_b, strict=True)])
    got = examples(out, one)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


def test_rows_of_all_examples_are_one_product():
    """A shared matrix at the right: no product for each example."""
    rule = product_rules._product(False, False)
    axis = Axis(1, COUNT, 6)
    a = with_axes(TensorMeta.of((2, 3), flow.float32), [axis])
    b = TensorMeta.of((3, 5), flow.float32)
    plan = rule(None, (a, b), (), (), (axis,), ())
    assert [m.shape for m in plan.metas] == [(8, 3), (3, 5)]
    plan = rule(None, (TensorMeta.of((5, 2), flow.float32), a), (), (), (axis,), ())
    assert [m.ndim for m in plan.metas] == [2, 3]  # columns do not lie side by side


def test_vectors_are_seen_as_rows_or_columns():
    meta = TensorMeta.of((3,), flow.float32, flow.device("cpu"), (2,))
    row, column = product_rules._widened(meta, 0), product_rules._widened(meta, 1)
    assert (row.shape, column.shape) == ((1, 3), (3, 1))
    assert (row.stride[1], column.stride[0]) == (2, 2)
    matrix = TensorMeta.of((2, 3), flow.float32)
    assert product_rules._widened(matrix, 0) is matrix


@pytest.mark.parametrize("large", [False, True])
def test_one_matrix_times_each_vector(rng, large):
    n = product_rules.SMALL // COUNT if large else 2
    one = Level(COUNT)
    a, v = rng.standard_normal((n, 3)), rng.standard_normal((COUNT, 3))
    out = flow.matmul(flow.tensor(a), of(v, one))
    np.testing.assert_allclose(examples(out, one), v @ a.T, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rank", [1, 2])
def test_layers_with_weights_of_each_example(rng, rank):
    one = Level(COUNT)
    x = rng.standard_normal((COUNT, 2, 3) if rank == 2 else (COUNT, 3))
    w, b = rng.standard_normal((COUNT, 5, 3)), rng.standard_normal((COUNT, 5))
    out = flow.nn.functional.linear(of(x, one), of(w, one), of(b, one))
    expected = np.stack([p @ q.T + r for p, q, r in zip(x, w, b, strict=True)])
    np.testing.assert_allclose(examples(out, one), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2), (0, 1)])
def test_products_are_added(rng, beta, alpha):
    one = Level(COUNT)
    a, b = rng.standard_normal((COUNT, 2, 3)), rng.standard_normal((COUNT, 3, 4))
    c = rng.standard_normal((COUNT, 2, 4))
    out = flow.addmm(of(c, one), of(a, one), of(b, one), beta=beta, alpha=alpha)
    np.testing.assert_allclose(examples(out, one), beta * c + alpha * (a @ b), rtol=1e-12)


def correlated(x, w):
    """A convolution of one dimension without padding, by hand: x (n, c, l), w (o, c, k)."""
    k = w.shape[2]
    windows = np.stack([x[:, :, j : j + k] for j in range(x.shape[2] - k + 1)], 2)
    return np.einsum("nclk,ock->nol", windows, w)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_convolutions_with_weights_of_each_example(rng, bias, shared):
    one = Level(COUNT)
    x, w = rng.standard_normal((COUNT, 2, 3, 6)), rng.standard_normal((COUNT, 4, 3, 2))
    b = rng.standard_normal((COUNT, 4))
    given = flow.tensor(x[0]) if shared else of(x, one)
    out = flow.nn.functional.conv1d(given, of(w, one), of(b, one) if bias else None)
    xs = np.broadcast_to(x[:1], x.shape) if shared else x
    expected = np.stack([correlated(p, q) for p, q in zip(xs, w, strict=True)])
    expected = expected + b[:, None, :, None] if bias else expected
    np.testing.assert_allclose(examples(out, one), expected, rtol=1e-12, atol=1e-13)
