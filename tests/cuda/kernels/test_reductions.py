"""Reductions on CUDA against NumPy in float64: sizes around the boundaries of warps and blocks, any
strides, NaN and infinities; and that no result depends on the order of threads.
"""

import numpy as np
import pytest
from played import named, play
from recipes import compile_op
from simulated import run

import flowvm as flow
from flowvm.cuda.compiler import compilation
from flowvm.ops.declare.cuda.lowering import launch_of
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.rows.cuda import fold_kernels
from flowvm.ops.rows.parts.folds import (
    add_up,
    count_up,
    every,
    largest,
    magnitude_up,
    multiply_up,
    smallest,
    some,
    square_up,
)

SIZES = [1, 31, 32, 33, 100]
FOLDS = [
    (add_up, np.sum),
    (multiply_up, np.prod),
    (largest, np.max),
    (smallest, np.min),
    (some, np.any),
    (every, np.all),
    (count_up, np.count_nonzero),
    (square_up, lambda x, axis: np.sum(x * x, axis=axis)),
    (magnitude_up, lambda x, axis: np.sum(np.abs(x), axis=axis)),
]


def wide(x):
    return x if x.dtype.kind == "b" else x.astype(np.float64 if x.dtype.kind == "f" else np.int64)


def fold(op, x, dims, divisor=1.0, order=""):
    (out,), _ = play(op.call, [x], (dims, False, divisor, None), order=order)
    return out


def values(rng, shape, dtype):
    x = rng.standard_normal(shape) * 1.5
    return (np.abs(x) if dtype == "uint8" else x).astype(dtype)


@pytest.mark.parametrize(("op", "reference"), FOLDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool"])
def test_every_fold_of_every_dtype(rng, op, reference, dtype):
    if op in (square_up, magnitude_up) and dtype not in ("float32", "float64", "float16"):
        return
    for shape, dims in (((37,), (0,)), ((4, 5), (0,)), ((3, 2, 5), (0, 2))):
        x = values(rng, shape, dtype)
        close = {"rtol": 2e-6, "atol": 1e-6} if dtype != "float64" else {"rtol": 1e-13}
        np.testing.assert_allclose(fold(op, x, dims), reference(wide(x), axis=dims), **close)


@pytest.mark.parametrize("n", SIZES)
def test_rows_and_columns_of_any_size(rng, n):
    for shape, dims in (((3, n), (1,)), ((n, 3), (0,)), ((n, 33), (0,)), ((2, n, 3), (0, 2))):
        x = values(rng, shape, "float32")
        np.testing.assert_allclose(fold(add_up, x, dims), wide(x).sum(dims), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("shape", "dims"), [((3000,), (0,)), ((900, 3), (0,)), ((2, 2100), (1,))])
def test_few_long_results_have_segments(rng, shape, dims):
    x = values(rng, shape, "float32")
    launch = launch_of(operator_of(add_up.call), (flow.tensor(x)._meta,), (dims, False, 1.0, None))
    assert len(launch.steps) == 2
    np.testing.assert_allclose(fold(add_up, x, dims), wide(x).sum(dims), rtol=1e-6, atol=2e-5)
    np.testing.assert_array_equal(fold(largest, x, dims), x.max(dims))
    (variance, mean), _ = play(named("moments"), [x], (dims, False, 10.0, False, False))
    np.testing.assert_allclose(mean, wide(x).mean(dims), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        variance * 10, wide(x).var(dims) * np.prod([shape[d] for d in dims]), rtol=1e-5
    )


@pytest.mark.parametrize("threads", [64, 128])
def test_teams_of_several_warps(rng, threads, monkeypatch):
    monkeypatch.setattr(fold_kernels, "threads", lambda n: threads)
    x = values(rng, (2, 1100), "float32")
    np.testing.assert_allclose(fold(add_up, x, (1,)), wide(x).sum(1), rtol=1e-6, atol=2e-5)
    (_, at), _ = play(named("max"), [x], (1, False))
    assert (at == x.argmax(1)).all()
    y = values(rng, (70, 33), "float32")
    np.testing.assert_allclose(fold(add_up, y, (0,)), wide(y).sum(0), rtol=1e-6, atol=1e-6)


def test_a_result_does_not_depend_on_the_order_of_threads(rng):
    for shape, dims in (((3000,), (0,)), ((900, 3), (0,)), ((5, 100), (1,)), ((40, 33), (0,))):
        x = values(rng, shape, "float32")
        forward, backward = (fold(add_up, x, dims, order=o) for o in ("", "reversed"))
        assert forward.tobytes() == backward.tobytes()


def test_a_long_float32_sum_keeps_its_digits(rng):
    x = rng.uniform(0, 1, 20000).astype(np.float32)
    x[0] = 1e8
    assert abs(float(fold(add_up, x, (0,))) - wide(x).sum()) <= 8  # a unit in the last place


@pytest.mark.parametrize(
    ("view", "dims"),
    [
        (lambda x: x.transpose(0, 2), (0,)),
        (lambda x: x.transpose(0, 1), (1,)),
        (lambda x: x[:, ::2], (2,)),
        (lambda x: x.transpose(1, 2), (0, 1)),
        (lambda x: x[0, 0].expand(3, 6), (0,)),
        (lambda x: x[0, 0].expand(3, 6), (0, 1)),
    ],
)
def test_strides(rng, view, dims):
    base = values(rng, (4, 5, 6), "float32")
    part = view(flow.tensor(base))
    launch = launch_of(operator_of(add_up.call), (part._meta,), (dims, False, 1.0, None))
    out = np.empty(launch.outputs[0].shape, np.float32)
    run(launch, [out, base])
    np.testing.assert_allclose(out, wide(part.numpy()).sum(dims), rtol=1e-6, atol=1e-6)


def test_a_mean_divides_and_nan_and_infinities_stay(rng):
    x = values(rng, (4, 40), "float32")
    np.testing.assert_allclose(fold(add_up, x, (1,), 40.0), wide(x).mean(1), rtol=1e-5, atol=1e-6)
    x[0, 17], x[1, 3], x[2, 5] = np.nan, np.inf, -np.inf
    for op, reference in ((add_up, np.sum), (largest, np.max), (smallest, np.min)):
        np.testing.assert_allclose(
            fold(op, x, (1,)), reference(wide(x), axis=1), rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(
            fold(op, np.ascontiguousarray(x.T), (0,)), reference(wide(x), 1), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("name", "place"), [("max", np.argmax), ("min", np.argmin)])
def test_places_of_extremes(rng, name, place, n):
    for x in (
        rng.integers(0, 5, (3, n)).astype(np.float32),
        rng.integers(0, 5, (3, n)),
        rng.integers(0, 2, (3, n)) > 0,
    ):
        for array, dim in ((x, 1), (np.ascontiguousarray(x.T), 0)):
            (values, at), _ = play(named(name), [array], (dim, False))
            np.testing.assert_array_equal(at, place(array, axis=dim))  # the first of equals
            np.testing.assert_array_equal(values, place_values(x, at))


def place_values(x, at):
    return np.take_along_axis(x, at[:, None], 1)[:, 0]


def test_the_first_nan_is_the_extreme(rng):
    x = values(rng, (2, 100), "float32")
    x[0, [40, 70]] = np.nan
    x[1, 99] = np.inf
    (extremes, at), _ = play(named("max"), [x], (1, False))
    assert at.tolist() == [40, 99]
    assert np.isnan(extremes[0])
    (extremes, at), _ = play(named("min"), [x], (1, False))
    assert at[0] == 40
    assert np.isnan(extremes[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("n", [2, 31, 33, 100])
def test_moments(rng, dtype, n):
    for shape, dims in (((3, n), (1,)), ((n, 5), (0,)), ((2, n, 3), (0, 2))):
        x = (rng.standard_normal(shape) + 100).astype(dtype)
        freedom = float(np.prod([shape[d] for d in dims]) - 1)
        (variance, mean), _ = play(named("moments"), [x], (dims, True, freedom, False, False))
        close = 1e-12 if dtype == "float64" else 1e-6
        np.testing.assert_allclose(mean, wide(x).mean(dims, keepdims=True), rtol=close)
        expected = wide(x).var(dims, ddof=1, keepdims=True)
        np.testing.assert_allclose(variance, expected, rtol=close * 100, atol=close)


def test_moments_of_what_is_not_finite():
    x = np.array([[1, np.inf, 2], [np.inf, 1, 2], [1, np.nan, 2], [-np.inf, np.inf, 0]])
    (variance, mean), _ = play(named("moments"), [x], ((1,), False, 0.0, False, False))
    np.testing.assert_array_equal(mean, [np.inf, np.inf, np.nan, np.nan])
    assert np.isnan(variance).all()
    (variance, _), _ = play(named("moments"), [np.ones((1, 1))], ((1,), False, 0.0, False, False))
    assert np.isnan(variance).all()  # no degree of freedom is left


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool"])
@pytest.mark.parametrize(
    ("shape", "dims"), [((100, 5), (1,)), ((100, 5), (0,)), ((3, 4, 5), (0, 2)), ((1 << 24,), (0,))]
)
def test_the_kernels_compile(ptx_of, dtype, shape, dims, monkeypatch):
    monkeypatch.setattr(compilation, "simulated", lambda: False)
    inputs = [(shape, dtype)]
    for name in ["add_up"] if dtype == "float16" else ["add_up", "largest", "every"]:
        path, attrs = f"flowvm.ops.rows.parts.folds:{name}.call", (dims, False, 1.0, None)
        compile_op(ptx_of, path, inputs, attrs)
    if len(dims) == 1:
        compile_op(ptx_of, "flowvm.ops.rows.extremes:_largest", inputs, (dims[0], False))
    if dtype != "bool":
        compile_op(
            ptx_of, "flowvm.ops.rows.moments:_moments_of", inputs, (dims, False, 2.0, True, True)
        )
