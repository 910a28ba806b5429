"""Reductions beyond the samples: long ones, split ones, digits kept, ties, NaN."""

import itertools
import math

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.rows.cpu.scan_blocks import blocks_of
from flowvm.ops.rows.parts import fold_walk
from flowvm.ops.rows.parts.fold_rules import ADD, MULTIPLY
from flowvm.vm.engine.engine import engine

SHAPES = [
    ((200_001,), None),
    ((200_001,), 0),
    ((3, 70_000), 1),
    ((70_000, 3), 0),
    ((2, 700, 5), 1),
    ((2, 700, 5), (0, 1)),
    ((600, 2, 600), (0, 2)),
    ((1, 70_000), (0, 1)),
]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
def test_long_reductions(name, shape, dim, keepdim, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    result = getattr(flow, name)(flow.tensor(x), () if dim is None else dim, keepdim)
    numpy_name = {"amax": "max", "amin": "min"}.get(name, name)
    expected = getattr(x.astype(np.float64), numpy_name)(axis=dim, keepdims=keepdim)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("name", ["sum", "amax", "std", "prod", "any", "argmax", "cumsum"])
def test_splitting_changes_no_bit(name, shape, dim, rng):
    if name in ("prod", "argmax", "cumsum") and not isinstance(dim, int):
        dim = 0
    x = flow.tensor(rng.uniform(0.9, 1.1, shape).astype(np.float32))
    threaded = (
        getattr(flow, name)(x, dim).numpy() if dim is not None else getattr(flow, name)(x).numpy()
    )
    with engine.sequential.region():
        plain = (
            getattr(flow, name)(x, dim).numpy()
            if dim is not None
            else getattr(flow, name)(x).numpy()
        )
    np.testing.assert_array_equal(threaded, plain)


# --- any walk through memory --------------------------------------------------------------------


def reversed_dims(x):
    return x.permute(*range(x.ndim - 1, -1, -1))


LOOKS = {
    "as it is": lambda x: x,
    "transposed": reversed_dims,
    "a part": lambda x: x[:, 1:],
    "every second": lambda x: x[..., ::2],
    "columns": lambda x: x[..., x.shape[-1] // 2 :],
    "expanded": lambda x: x[:1].expand(7, *x.shape[1:]),
    "one number": lambda x: x.flatten()[:1].reshape((1,) * x.ndim).expand(x.shape),
}
WALKED = {
    "sum": np.sum,
    "amax": np.max,
    "amin": np.min,
    "all": np.all,
    "count_nonzero": np.count_nonzero,
    "var": lambda x, axis: np.var(x, axis=axis, ddof=1),
    "norm": lambda x, axis: np.sqrt(np.sum(x * x, axis=axis)),
}
# rows, columns, few, rows taken together, more dimensions than a walk has
# and a part whose reduced elements are as many as lie between two results, but not there
SIZES = [(40, 3000), (5, 70, 33), (600, 5, 7), (1001, 4), (3001, 3), (70, 12), (3, 4, 5, 6, 7),
         (2, 3, 4)]  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", WALKED)
def test_any_dimensions_of_any_strides(name, look, rng):
    for shape in SIZES:
        x = LOOKS[look](flow.tensor(rng.integers(-3, 4, shape).astype(np.float32)))
        values = x.numpy().astype(np.float64)
        dims = [d for k in range(1, x.ndim + 1) for d in itertools.combinations(range(x.ndim), k)]
        for dim in dims:
            options = {"dim": dim} if name != "norm" else {"p": 2, "dim": dim}
            result = getattr(x, name)(**options)
            expected = WALKED[name](values, axis=dim)
            np.testing.assert_allclose(
                result.numpy(), expected, rtol=1e-5, err_msg=f"{shape} {dim}"
            )


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8"])
def test_the_first_extreme_is_found_along_any_dimension(dtype, look, rng):
    for shape in [*SIZES, (2, 140_000), (140_000, 2), (300, 700)]:
        x = LOOKS[look](flow.tensor(rng.integers(0, 9, shape).astype(dtype)))
        for dim in range(x.ndim):
            for name in ("max", "min"):
                values, indices = getattr(x, name)(dim)
                expected = getattr(np, f"arg{name}")(x.numpy(), dim)
                np.testing.assert_array_equal(indices.numpy(), expected, f"{shape} {dim}")
                np.testing.assert_array_equal(values.numpy(), getattr(x.numpy(), name)(dim))


# --- digits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(10_000_000,), (10_000_000, 1), (1_000_000, 10), (10, 1_000_000)]
)
def test_a_float32_sum_of_many_keeps_its_digits(shape, rng):
    x = rng.random(shape, dtype=np.float32)
    total = flow.from_numpy(x).sum(0).numpy()
    np.testing.assert_allclose(total, x.sum(0, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("values", [(1.0,), (1.0 + 2.0**-23,), (3e7, 1.0), (1e8, 0.3, -1e8, 0.3)])
def test_sums_that_lose_digits_one_by_one(values):
    n = 12_000_000
    x = np.resize(np.float32(values), n)
    exact, size = math.fsum(x[: len(values)]) * (n // len(values)), np.abs(x).sum(dtype=np.float64)
    assert abs(flow.from_numpy(x).sum().item() - exact) <= 1e-6 * size
    assert abs(flow.from_numpy(x.reshape(-1, 8)).sum(0).sum().item() - exact) <= 1e-6 * size
    last = flow.from_numpy(x).cumsum(0)[-1].item()
    assert abs(last - exact) <= 1e-7 * size


@pytest.mark.parametrize("shape", [(300_000,), (300, 1000), (1000, 300), (100_000, 3)])
@pytest.mark.parametrize("first", [0.0, 1e6])
@pytest.mark.parametrize("middle", [0.0, 1e4])
def test_variance_keeps_its_digits(shape, first, middle, rng):
    x = (rng.standard_normal(shape) + middle).astype(np.float32)
    x[0] += first
    tensor = flow.from_numpy(x).var(0)
    np.testing.assert_allclose(tensor.numpy(), x.astype(np.float64).var(0, ddof=1), rtol=1e-6)


def test_a_dtype_says_what_is_added():
    x = flow.full((1000,), 16_777_217, dtype=flow.int64)
    assert x.sum(dtype=flow.float64).item() == 16_777_217_000
    assert flow.full((3,), 2.7).sum(dtype=flow.int64).item() == 6
    y = flow.ones(4, requires_grad=True)
    y.sum(dtype=flow.float64).backward()
    assert y.grad.dtype is flow.float32
    assert y.grad.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", ["int32", "int16", "int8", "uint8", "int64", "float64"])
@pytest.mark.parametrize("source", ["int32", "float32", "bool"])
@pytest.mark.parametrize("name", ["sum", "nansum", "prod", "cumsum", "cumprod"])
@pytest.mark.product(4)
def test_a_dtype_is_what_comes_out(name, source, dtype):
    torch = pytest.importorskip("torch")
    results = []
    for lib in (flow, torch):
        for values in ([[3, 1, 2], [3, 100, 90]], 5):
            x = lib.tensor(values).to(getattr(lib, source))
            results.append(getattr(lib, name)(x, -1, dtype=getattr(lib, dtype)))
    for mine, theirs in zip(results[:2], results[2:], strict=True):
        assert mine.dtype.name == str(theirs.dtype)[6:]
        assert mine.tolist() == theirs.tolist()


def test_float16_sums_do_not_overflow_on_the_way():
    x = flow.full((70_000,), 8.0, dtype=flow.float16)
    assert x.mean().item() == 8.0


@pytest.mark.parametrize("name", ["sum", "amax", "argmax", "var"])
def test_a_segment_of_narrow_columns_begins_with_a_whole_row(name, monkeypatch, rng):
    monkeypatch.setattr(fold_walk, "COLUMN_SEGMENT", 8 * 16 * 43)
    data = rng.standard_normal((300, 43)).astype(np.float32)
    data[257:] = 1e6  # which nobody may look at
    actual = getattr(flow.tensor(data)[:257], name)(0).numpy()
    more = {"ddof": 1} if name == "var" else {}
    want = getattr(np, name)(data[:257].astype(np.float64), axis=0, **more)
    np.testing.assert_allclose(actual, want, rtol=1e-5, atol=1e-5)


def test_integer_sums_are_exact():
    x = flow.tensor([2**62, 2**62 - 1, -6, 5])
    assert x.sum().item() == 2**63 - 2
    assert flow.full((300,), 255, dtype=flow.uint8).sum().item() == 76_500
    assert flow.ones(5, dtype=flow.bool).sum().dtype is flow.int64


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "argmax", "cumsum"])
def test_strided_inputs(name, rng):
    x = rng.standard_normal((4, 6)).astype(np.float32)
    result = getattr(flow, name)(flow.tensor(x).t()[::2], 1).numpy()
    numpy_name = {"amax": "max"}.get(name, name)
    expected = getattr(np, numpy_name)(x.T[::2], axis=1)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


# --- scans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "bool"])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((200_001,), 0), ((2, 140_003), 1), ((33, 1000), 0), ((33, 1000), 1), ((5, 1), 1), ((1,), 0)]
    + [((100, n), 1) for n in (2, 3, 4, 5, 6, 7, 8, 9)],
)
def test_running_sums(shape, dim, dtype, rng):
    x = rng.integers(0, 2, shape).astype(dtype)
    wide = x.astype(np.int64)
    tensor = flow.tensor(x).cumsum(dim).numpy()
    np.testing.assert_array_equal(tensor, np.cumsum(wide, dim))
    if tensor.dtype.kind == "f":
        y = flow.tensor(x, requires_grad=True)
        weights = rng.integers(0, 3, shape).astype(dtype)
        y.cumsum(dim).backward(flow.tensor(weights))
        backwards = np.flip(np.cumsum(np.flip(weights, dim), dim), dim)
        np.testing.assert_array_equal(y.grad.numpy(), backwards)


@pytest.mark.parametrize(("shape", "dim"), [((70_001,), 0), ((40, 3), 1), ((3, 40), 0)])
def test_running_products(shape, dim, rng):
    x = rng.uniform(0.999, 1.001, shape)
    tensor = flow.tensor(x).cumprod(dim).numpy()
    np.testing.assert_allclose(tensor, np.cumprod(x, dim), rtol=1e-11)


def test_the_python_twins_of_eight_at_a_time(rng):
    x = rng.integers(1, 4, 8)
    for (_, rule), function in ((ADD, np.cumsum), (MULTIPLY, np.cumprod)):
        integers = blocks_of(rule)
        out, start = np.zeros(8, np.int64), np.int64(rule.neutral)
        assert integers.forward(out, x, 0, start) == function(x)[-1]
        np.testing.assert_array_equal(out, function(x))
        assert integers.backward(out, x, 0, start) == function(x)[-1]
        np.testing.assert_array_equal(out, function(x[::-1])[::-1])
        integers.lines(out, x, 0, start, 4)
        np.testing.assert_array_equal(out.reshape(2, 4), function(x.reshape(2, 4), axis=1))
        integers.lines_back(out, x, 0, start, 4)
        backwards = function(x.reshape(2, 4)[:, ::-1], axis=1)[:, ::-1]
        np.testing.assert_array_equal(out.reshape(2, 4), backwards)


@pytest.mark.parametrize("dim", [0, 1])
def test_running_extremes_take_the_last_of_equals_and_every_nan(dim):
    x = flow.tensor([1.0, 3.0, 3.0, 2.0, math.nan, 5.0, math.nan, 1.0])
    x = x.reshape(1, 8) if dim else x.reshape(8, 1).expand(8, 3).contiguous()
    values, indices = x.cummax(dim)
    assert (indices[0] if dim else indices[:, 1]).tolist() == [0, 1, 2, 2, 4, 4, 6, 6]
    result = (values[0] if dim else values[:, 1]).numpy()
    np.testing.assert_array_equal(result, [1, 3, 3, 3] + [math.nan] * 4)


# --- ties and NaN -------------------------------------------------------------------------------


def grad_of(function, values):
    x = flow.tensor(values, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


def test_equal_extremes_share_the_gradient():
    assert grad_of(lambda x: x.max(), [1.0, 3.0, 3.0]) == [0, 0.5, 0.5]
    assert grad_of(lambda x: x.amin(0), [1.0, 1.0, 3.0]) == [0.5, 0.5, 0]


def test_with_an_index_the_first_gets_the_gradient():
    assert grad_of(lambda x: x.max(0).values, [1.0, 3.0, 3.0]) == [0, 1, 0]
    assert grad_of(lambda x: x.min(0)[0], [1.0, 1.0, 3.0]) == [1, 0, 0]


def test_norm_of_zeros_has_no_gradient():
    assert grad_of(lambda x: x.norm(), [0.0, 0.0]) == [0, 0]
    assert grad_of(lambda x: x.std(), [2.0, 2.0]) == [0, 0]


def test_products_with_zeros_have_gradients():
    assert grad_of(lambda x: x.prod(), [2.0, 0.0, 3.0]) == [0, 6, 0]
    assert grad_of(lambda x: x.prod(), [0.0, 0.0, 3.0]) == [0, 0, 0]
    assert grad_of(lambda x: x.cumprod(0), [2.0, 0.0, 3.0]) == [1, 8, 0]


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min", "median"])
def test_nan_wins(name):
    x = flow.tensor([1.0, math.nan, 3.0])
    assert math.isnan(getattr(flow, name)(x).item())


@pytest.mark.parametrize("n", [3, 40, 5000, 200_000])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_first_nan_beats_every_number(n, dim, rng):
    for width in (1, 3, 100):
        if n * width > 1_000_000:
            continue
        x = rng.standard_normal((n, width)).astype(np.float32)
        places = rng.integers(0, n, width)
        x[places, range(width)] = math.nan
        x[n - 1] = math.nan
        x[0] = math.inf
        x[0, places == 0] = math.nan
        t = flow.tensor(x if dim == 0 else x.T)
        expected = np.argmax(np.isnan(x), 0)
        assert t.argmax(dim).tolist() == t.argmin(dim).tolist() == expected.tolist()
        assert np.isnan(t.amax(dim).numpy()).all()
        assert np.isnan(t.amin(dim).numpy()).all()
        assert np.isnan(t.max(dim)[0].numpy()).all()
        assert math.isnan(t.min().item())


def test_arg_extremes_find_the_first():
    x = flow.tensor([[2.0, 5.0, 5.0], [math.nan, 7.0, math.nan]])
    assert x.argmax(1).tolist() == [1, 0]
    assert flow.tensor([3, 1, 1]).argmin().item() == 1


def test_empty_reductions():
    x = flow.zeros(2, 0)
    assert x.sum(1).tolist() == [0, 0]
    assert x.prod(1).tolist() == [1, 1]
    assert x.all(1).tolist() == [True, True]
    assert x.any(1).tolist() == [False, False]
    assert math.isnan(x.mean().item())
    assert x.amax(0).shape == (0,)
    assert flow.logsumexp(x, 1).tolist() == [-math.inf] * 2


def test_logsumexp_of_infinities():
    assert flow.logsumexp(flow.tensor([-math.inf, -math.inf]), 0).item() == -math.inf
    assert flow.logsumexp(flow.tensor([math.inf, 1.0]), 0).item() == math.inf


def test_max_has_three_forms():
    x, y = flow.tensor([1.0, 5.0]), flow.tensor([2.0, 3.0])
    assert flow.max(x).item() == 5
    assert flow.max(x, y).tolist() == [2, 5]
    assert x.max(other=y).tolist() == [2, 5]
    values, indices = x.max(dim=0)
    assert (values.item(), indices.item()) == (5, 1)


@pytest.mark.parametrize(
    ("shape", "dim"), [((7, 5), 1), ((6, 3), 0), ((2, 5, 300), 1), ((4, 0), 1), ((1, 1), 0)]
)
def test_the_gradient_of_a_product_is_that_of_all_others(rng, shape, dim):
    x = rng.standard_normal(shape)
    x.flat[:1] = 0
    leaf = flow.tensor(x, requires_grad=True)
    leaf.prod(dim).sum().backward()
    others = [np.delete(x, k, dim).prod(dim) for k in range(shape[dim])]
    expected = np.stack(others, dim) if others else x
    np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=1e-12)
