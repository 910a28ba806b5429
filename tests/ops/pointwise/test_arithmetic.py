"""Sums with a factor: one instruction, rounded once."""

import numpy as np
import pytest

import flowvm as flow


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("alpha", [0.3, -7, 2])
def test_a_sum_with_a_factor_is_rounded_once(dtype, alpha):
    rng = np.random.default_rng(3)
    kind = getattr(flow, dtype)
    x, y = (flow.tensor(rng.standard_normal((33, 5)), dtype=kind) for _ in range(2))
    wide = np.longdouble if dtype == "float64" else np.float64
    factor = np.float32(alpha) if dtype != "float64" else np.float64(alpha)
    a, b = (t.double().numpy().astype(wide) for t in (x, y))
    for result, want in (
        (flow.add(x, y, alpha=alpha), a + wide(factor) * b),
        (flow.sub(x, y, alpha=alpha), a - wide(factor) * b),
        (x.clone().add_(y, alpha=alpha), a + wide(factor) * b),
    ):
        assert result.dtype is kind
        got = result.double().numpy().astype(wide)
        # half a unit of the last place, and what float32 loses where its result is rounded again
        unit = flow.finfo(kind).eps * np.exp2(np.floor(np.log2(np.abs(want))))
        slack = 1.01 if dtype in ("float16", "bfloat16") else 1.0001
        assert (np.abs(got - want) <= slack * unit / 2).all()


def test_a_sum_with_a_factor_is_one_instruction():
    x, y = flow.ones(3), flow.ones(3)
    with flow.profiler.profile() as profile:
        flow.add(x, y, alpha=0.5)
        flow.vm.sync()
    assert [row.name for row in profile.table("op")].count("add_scaled") == 1
    assert "mul" not in [row.name for row in profile.table("op")]


@pytest.mark.parametrize("kinds", [("float32", "float64"), ("int64", "float32"), ("int64",) * 2])
def test_factors_of_mixed_dtypes_are_products(kinds):
    x, y = (flow.tensor([1, 2, 3], dtype=getattr(flow, kind)) for kind in kinds)
    expected = x + y * 2
    assert flow.add(x, y, alpha=2).dtype is expected.dtype
    assert flow.add(x, y, alpha=2).tolist() == expected.tolist() == [3, 6, 9]
