"""Matrix products on CUDA: cuBLAS (played by NumPy) gets the operands where and as they lie."""

import numpy as np
import pytest
from on_device import answer, close, compiles, kernels, launch
from simulated import status

from flowvm.cuda import options
from flowvm.graph.passes.epilogues import product_operator
from flowvm.ops.products.cuda import products
from flowvm.ops.products.matmul import _affine, _matmul_nt, _matmul_tn, matmul
from flowvm.ops.products.products import _added_product

GEMM = "cublasGemmStridedBatchedEx"
FLOATS = ("float64", "float32", "float16")
SHAPES = [
    ((3, 4), (4, 2)),
    ((1, 1), (1, 1)),
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 3)),
    ((2, 3, 4), (4, 2)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 2, 3), (3, 3, 2)),
    ((2, 3, 1, 5, 4), (3, 1, 4, 2)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
    ((2, 0, 3), (2, 3, 4)),
]


def check(function, arrays, reference, attrs=()):
    """The product, compared with a reference in float64."""
    (out,), details = answer(function, arrays, attrs)
    assert status(details) == 0
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    expected = np.asarray(reference(*wide))
    close(
        out.astype(expected.dtype), expected, {"float16": 2e-2, "float32": 1e-4}.get(out.dtype.name)
    )
    return launch(function, arrays, attrs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_shapes(rng, dtype, a, b):
    x, y = (rng.standard_normal(shape).astype(dtype) for shape in (a, b))
    check(matmul, [x, y], np.matmul)


@pytest.mark.parametrize("dtype", FLOATS)
def test_transposes_are_read_in_place(rng, dtype):
    a, b = rng.standard_normal((4, 3)).astype(dtype), rng.standard_normal((5, 4)).astype(dtype)
    for plan in (
        check(matmul, [a.T, b.T], np.matmul),
        check(_matmul_nt, [a.T, b], lambda x, y: x @ y.T),
        check(_matmul_tn, [a, b.T], lambda x, y: x.T @ y),
    ):
        assert kernels(plan) == [GEMM]
        assert plan.scratch == 0


def test_rows_apart_are_read_in_place(rng):
    a, b = rng.standard_normal((6, 8)), rng.standard_normal((9, 7))
    plan = check(matmul, [a[::2, :4], b[1:5, 2:]], np.matmul)
    assert kernels(plan) == [GEMM]


def test_what_cublas_cannot_read_is_copied(rng):
    a, b = rng.standard_normal((6, 8)), rng.standard_normal((4, 3))
    assert kernels(check(matmul, [a[:, ::2], b], np.matmul)) == ["copied", GEMM]
    repeated = np.broadcast_to(rng.standard_normal((1, 4)), (5, 4))
    assert kernels(check(matmul, [repeated, b], np.matmul)) == ["copied", GEMM]


def test_a_batch_of_one_matrix_is_more_rows(rng):
    a, b = rng.standard_normal((5, 3, 4)), rng.standard_normal((4, 2))
    assert kernels(check(matmul, [a, b], np.matmul)) == [GEMM]


def test_several_batches_are_calls_or_are_copied(rng, monkeypatch):
    a = rng.standard_normal((4, 6, 2, 3))[:, ::2]
    b = rng.standard_normal((3, 3, 2))
    assert kernels(check(matmul, [a, b], np.matmul)) == [GEMM] * 3
    monkeypatch.setattr(products, "CALLS", 2)
    assert kernels(check(matmul, [a, b], np.matmul)) == ["copied", "copied", GEMM]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (4,), (0, 4), (3, 0)])
def test_linear(rng, dtype, shape):
    x = rng.standard_normal(shape).astype(dtype)
    w = rng.standard_normal((5, shape[-1])).astype(dtype)
    b = rng.standard_normal(5).astype(dtype)
    check(_affine, [x, w, b], lambda x, w, b: x @ w.T + b)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 5), (5,), (3, 1), (1,), ()])
@pytest.mark.parametrize("depth", [4, 0])
def test_addend(rng, dtype, shape, depth):
    a = rng.standard_normal((3, depth)).astype(dtype)
    b = rng.standard_normal((depth, 5)).astype(dtype)
    c = np.asarray(rng.standard_normal(shape)).astype(dtype)
    check(_added_product, [a, b, c], lambda a, b, c: 2.0 * (a @ b) + 0.5 * c, (0.5, 2.0))


def test_addend_of_a_batch(rng):
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 2))
    c = rng.standard_normal((4, 3)).T[:, :2][None]
    check(_added_product, [a, b, c], lambda a, b, c: a @ b + c, (1.0, 1.0))


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("joins", [False, True])
def test_epilogues_of_graphs(rng, added, joins):
    if joins and not added:
        pytest.skip("a function of two arguments has an addend")
    text = "t0 = x0 * x1\nmaximum(t0, 0)" if joins else "t0 = x0 * 2\nmaximum(t0, 0)"
    operator = product_operator("matmul", False, True, text, added, joins)
    x, w, c = (rng.standard_normal(s).astype("float32") for s in ((3, 4), (5, 4), (5,)))

    def reference(x, w, c=0.0):
        product = x @ w.T
        return np.maximum(product * c if joins else 2 * (product + c), 0)

    check(operator.call, [x, w, c] if added else [x, w], reference)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize(("a", "b"), [*SHAPES, ((20, 17), (17, 33)), ((2, 16, 3), (3, 16))])
def test_integers_wrap_around(rng, dtype, a, b):
    x, y = (rng.integers(0, 100, shape).astype(dtype) for shape in (a, b))
    check(matmul, [x, y], np.matmul)


def test_integers_of_any_strides(rng):
    a, b = rng.integers(-9, 9, (6, 8)), rng.integers(-9, 9, (6, 10))
    check(matmul, [a.T, b[:, ::3]], np.matmul)


def test_tf32_where_it_is_allowed(rng):
    a, b = rng.standard_normal((2, 64)).astype("float32"), np.ones((64, 2), "float32")
    (exact,), _ = answer(matmul, [a, b])
    options.matmul.allow_tf32 = True
    try:
        (rough,), _ = answer(matmul, [a, b])
    finally:
        options.matmul.allow_tf32 = False
    assert 0 < np.abs(exact - rough).max() < 0.1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64"])
def test_the_kernels_compile(ptx_of, dtype):
    a = np.zeros((6, 8), dtype)[:, ::2]
    b, c = np.zeros((4, 4), dtype), np.zeros(4, dtype)
    plans = [launch(matmul, [a, b])]
    if np.dtype(dtype).kind == "f":
        plans.append(launch(_affine, [a, b, c]))
    compiles(ptx_of, plans, dtype)
