"""Bodies of reductions as Python: sums, searches and moments, by rows and columns, in segments."""

from dataclasses import replace

import numpy as np
import pytest
from python_launches import python_outputs

import flowvm as flow
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.rows import extremes, moments
from flowvm.ops.rows.cpu import (
    fold_kernels,
    fold_launch,
    moment_kernels,
    search_kernels,
    states,
    sum_kernels,
)
from flowvm.ops.rows.parts import folds
from flowvm.ops.rows.parts.fold_programs import MOMENTS, total_of
from flowvm.ops.rows.parts.fold_rules import ADD, MULTIPLY
from flowvm.ops.rows.parts.fold_walk import Columns, walk_of
from flowvm.ops.rows.parts.orders import LARGEST, SMALLEST

CASES = [((7,), 0), ((3, 5), 1), ((5, 3), 0), ((2, 4, 3), 1), ((1, 40), 1), ((40, 1), 0),
         ((2, 3, 50), 2), ((50, 6), 0), ((70, 40), 0)]  # fmt: skip


@pytest.mark.parametrize(("shape", "dim"), CASES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_searches_find_the_first_best(rng, shape, dim, keepdim):
    x = rng.integers(-3, 3, shape).astype(np.float32)
    x.reshape(-1)[x.size // 2] = np.nan
    meta = TensorMeta.of(shape, flow.float32)
    for order, value, place in ((LARGEST, np.max, np.argmax), (SMALLEST, np.min, np.argmin)):
        launch = extremes._launch(order, meta, dim, keepdim)
        for backwards in (False, True):
            values, places = python_outputs(launch, x, backwards=backwards)
            np.testing.assert_array_equal(values, value(x, dim, keepdims=keepdim))
            np.testing.assert_array_equal(places, place(x, dim, keepdims=keepdim))


@pytest.mark.parametrize("n", [search_kernels.SHORT, search_kernels.SHORT + 1, 100])
@pytest.mark.parametrize("lost", [False, True])
def test_rows_are_searched_block_by_block(rng, monkeypatch, n, lost):
    monkeypatch.setattr(search_kernels, "BLOCK", 8)
    x = rng.integers(0, 9, (4, n)).astype(np.float64)
    if lost:
        x[1, n - 2] = x[2, 3] = x[2, 20] = np.nan
    body = search_kernels.rows_body(LARGEST, np.float64, lambda v: v)
    launch = extremes._launch(LARGEST, TensorMeta.of(x.shape, flow.float64), 1, False)
    values, places = python_outputs(replace(launch, body=body), x)
    np.testing.assert_array_equal(values, x.max(1))
    np.testing.assert_array_equal(places, x.argmax(1))


@pytest.mark.parametrize(("shape", "dim"), CASES[1:])
@pytest.mark.parametrize("freedom", [0.0, 1.0])
def test_moments_are_numpys(rng, shape, dim, freedom):
    x = rng.standard_normal(shape) + 1e4
    meta = TensorMeta.of(shape, flow.float64)
    infer = operator_of(moments._moments_of).kernel.infer
    for root in (False, True):
        launch = infer((meta,), ((dim,), False, shape[dim] - freedom, root, False))
        for backwards in (False, True):
            spread, mean = python_outputs(launch, x, backwards=backwards)
            expected = x.var(dim, ddof=freedom)
            np.testing.assert_allclose(spread, expected**0.5 if root else expected, rtol=1e-7)
            np.testing.assert_allclose(mean, x.mean(dim), rtol=1e-13)


def test_moments_go_twice_through_a_segment(rng):
    """The squares are of distances from the mean of the segment: no digits cancel."""
    x = rng.standard_normal(20) + 1e9
    body = moment_kernels.rows_body(MOMENTS, lambda v: v)
    meta = TensorMeta.of((20,), flow.float64)
    launch = operator_of(moments._moments_of).kernel.infer(
        (meta,), ((0,), False, 19.0, False, False)
    )
    spread, mean = python_outputs(replace(launch, body=body), x)
    np.testing.assert_allclose([spread, mean], [x.var(ddof=1), x.mean()], rtol=1e-9)


SUMMED = [*CASES, ((4, 3), 1), ((5, 2), 1), ((6, 8), 1), ((3, 4, 5), (0, 2)), ((3, 4, 5), (1, 2)),
          ((3, 4, 5), (0, 1, 2))]  # fmt: skip


@pytest.mark.parametrize(("shape", "dims"), SUMMED)
@pytest.mark.parametrize("kind", ["float64", "float32", "int64"])
def test_sums_and_products(rng, shape, dims, kind):
    x = rng.integers(-3, 4, shape).astype(kind) + (0.5 if kind.startswith("float") else 0)
    x = x.astype(kind)
    dtype = getattr(flow, kind)
    dims = dims if isinstance(dims, tuple) else (dims,)
    walk = walk_of(TensorMeta.of(shape, dtype), dims)
    left = tuple(n for d, n in enumerate(shape) if d not in dims)
    out = TensorMeta.of(left, dtype)
    for rules, function in ((ADD, np.sum), (MULTIPLY, np.prod)):
        for divisor in (1.0, 4.0) if rules is ADD and kind != "int64" else (1.0,):
            launch = folds._launch(out, walk, (dtype, dtype), rules, lambda v: v, divisor)
            for backwards in (False, True):
                (got,) = python_outputs(launch, x, backwards=backwards)
                wide = x.astype(np.float64) if kind != "int64" else x
                expected = function(wide, dims) / (divisor if kind != "int64" else 1)
                np.testing.assert_allclose(got, expected, rtol=1e-5 if kind == "float32" else 1e-11)


def test_bodies_are_of_rows_columns_and_few():
    """Bodies get their dtype by their parts; none has one of its own."""
    p = total_of(ADD[0], np.float64, False)
    bodies = [make(ADD[0], p, lambda v: v) for make in
              (sum_kernels.rows_body, sum_kernels.columns_body, sum_kernels.few_body)]  # fmt: skip
    assert len({body.__qualname__ for body in bodies}) >= 2
    assert not fold_kernels._none_are_few(1, 2, 3, 4)


def test_blocks_are_what_a_unit_touches():
    rows = walk_of(TensorMeta.of((6, 40), flow.float32), (1,))
    assert fold_launch.blocks_of(rows) == (1, 40)
    columns = walk_of(TensorMeta.of((6, 40), flow.float32), (0,))
    assert columns.in_columns
    cut = Columns.of(columns)
    assert fold_launch.blocks_of(columns) in ((), (0, cut.length * cut.width))
    apart = walk_of(TensorMeta.of((4, 6, 40), flow.float32), (0, 2))
    assert fold_launch.blocks_of(apart) == ()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_states_lie_one_behind_the_other(count):
    kinds = (np.float64, np.int64, np.float32)[:count]
    memory = np.zeros(24 * 5, np.uint8)
    arrays = states.memory_of(kinds)(memory, 5)
    assert [a.dtype for a in arrays] == [np.dtype(k) for k in kinds]
    assert [len(a) for a in arrays] == [5] * count
    for k, a in enumerate(arrays):
        a[:] = k + 1
    assert [set(a.tolist()) for a in arrays] == [{k + 1} for k in range(count)]
    part = states.cut_of(count)(arrays, 1, 3)
    for own, whole in zip(part, arrays, strict=True):
        own[:] = 9
        assert whole.tolist()[1:4] == [9, 9, 9]
        assert whole[0] != 9
