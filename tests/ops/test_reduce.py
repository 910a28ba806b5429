"""Reductions beyond the samples: long ones, split ones, digits kept, ties, NaN."""

import math

import numpy as np
import pytest

import flowvm as flow
from flowvm.vm.engine import engine

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
    made = getattr(flow, name)(flow.tensor(x), () if dim is None else dim, keepdim)
    numpy_name = {"amax": "max", "amin": "min"}.get(name, name)
    wanted = getattr(x.astype(np.float64), numpy_name)(axis=dim, keepdims=keepdim)
    assert made.shape == wanted.shape
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("name", ["sum", "amax", "std", "prod"])
def test_splitting_changes_no_bit(name, shape, dim, rng):
    if name == "prod" and isinstance(dim, tuple):
        pytest.skip("prod reduces one dimension or all")
    x = flow.tensor(rng.uniform(0.9, 1.1, shape).astype(np.float32))
    threaded = (
        getattr(flow, name)(x, dim).numpy() if dim is not None else getattr(flow, name)(x).numpy()
    )
    with engine.run_sequentially():
        plain = (
            getattr(flow, name)(x, dim).numpy()
            if dim is not None
            else getattr(flow, name)(x).numpy()
        )
    np.testing.assert_array_equal(threaded, plain)


@pytest.mark.parametrize("shape", [(10_000_000,), (10_000_000, 1), (1_000_000, 10)])
def test_a_float32_sum_of_many_keeps_its_digits(shape, rng):
    x = rng.random(shape, dtype=np.float32)
    total = flow.from_numpy(x).sum(0).numpy()
    np.testing.assert_allclose(total, x.sum(0, dtype=np.float64), rtol=1e-6)


def test_float16_sums_do_not_overflow_on_the_way():
    x = flow.full((70_000,), 8.0, dtype=flow.float16)
    assert x.mean().item() == 8.0


def test_integer_sums_are_exact():
    x = flow.tensor([2**62, 2**62 - 1, -6, 5])
    assert x.sum().item() == 2**63 - 2
    assert flow.full((300,), 255, dtype=flow.uint8).sum().item() == 76_500
    assert flow.ones(5, dtype=flow.bool).sum().dtype is flow.int64


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "argmax", "cumsum"])
def test_strided_inputs(name, rng):
    x = rng.standard_normal((4, 6)).astype(np.float32)
    made = getattr(flow, name)(flow.tensor(x).t()[::2], 1).numpy()
    numpy_name = {"amax": "max"}.get(name, name)
    np.testing.assert_allclose(made, getattr(np, numpy_name)(x.T[::2], axis=1), rtol=1e-5)


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
