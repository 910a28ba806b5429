"""Physical metas: which memory they show, by the places of all elements."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.meta.batched_meta import Axis, axes_of, example_of, with_axes
from flowvm.meta.meta import TensorMeta
from flowvm.ops.batched import physical

CPU = flow.device("cpu")


def batched(shape, stride, *axes):
    """The meta of an example with levels of (number, size, stride)."""
    return with_axes(TensorMeta.of(shape, flow.float32, CPU, stride), [Axis(*a) for a in axes])


def places(meta):
    """The place in memory of each element: of a batched meta, with the levels in front."""
    shape = (*(a.size for a in axes_of(meta)), *meta.shape)
    stride = (*(a.stride for a in axes_of(meta)), *meta.stride)
    out = np.zeros(shape, np.int64)
    for d, (n, s) in enumerate(zip(shape, stride, strict=True)):
        out += (np.arange(n) * s).reshape([-1 if k == d else 1 for k in range(len(shape))])
    return out


X = batched((2, 3), (3, 1), (1, 4, 6), (2, 5, 24))
SHARED = batched((3,), (1,), (1, 4, 0), (2, 5, 3))
AXES = axes_of(X)


def test_levels_at_which_something_differs():
    plain = TensorMeta.of((3,), flow.float32, CPU)
    alike = batched((3,), (1,), (1, 4, 0))
    assert [a.level for a in physical.batched_axes([plain, SHARED])] == [2]
    assert [a.level for a in physical.batched_axes([SHARED, X])] == [1, 2]
    assert physical.batched_axes([plain, alike]) == ()
    assert physical.steps(SHARED, AXES) == (0, 3)
    assert physical.steps(plain, AXES) == (0, 0)
    assert physical.is_shared(alike, AXES)
    assert not physical.is_shared(SHARED, AXES)
    assert physical.is_shared(SHARED, AXES[:1])


def test_levels_stand_in_front():
    meta = physical.in_front(X, AXES)
    assert meta.shape == (4, 5, 2, 3)
    np.testing.assert_array_equal(places(meta), places(X))
    wide = physical.in_front(SHARED, AXES, 3)
    assert wide.shape == (4, 5, 1, 1, 3)
    np.testing.assert_array_equal(places(wide).reshape(4, 5, 3), places(SHARED))
    ones = physical.in_front_of_ones(SHARED, AXES, 2)
    assert ones.shape == (1, 5, 1, 3)
    np.testing.assert_array_equal(
        np.broadcast_to(places(ones).reshape(1, 5, 3), (4, 5, 3)), places(SHARED)
    )


@pytest.mark.parametrize("at", [0, 1, 2])
def test_levels_stand_in_front_of_a_dimension(at):
    meta = physical.ahead_of(X, AXES, at)
    expected = np.moveaxis(places(X), (0, 1), (at, at + 1))
    np.testing.assert_array_equal(places(meta), expected)


def test_results_are_seen_without_their_levels():
    out = physical.in_front(X, AXES).dense()
    more = Axis(3, 7, 0)
    meta = physical.behind(AXES, [more])(0, out)
    assert meta.shape == (2, 3)
    assert [a.level for a in axes_of(meta)] == [1, 2, 3]
    np.testing.assert_array_equal(places(meta)[:, :, 0], places(out))
    assert places(meta).shape == (4, 5, 7, 2, 3)
    assert example_of(physical.behind(())(0, out)) == out


def test_levels_are_folded_into_a_dimension_where_memory_has_them_so():
    outer = batched((6, 3), (3, 1), (1, 4, 18))  # examples one behind the other
    meta = physical.folded_meta(outer, axes_of(outer), 0)
    assert meta.shape == (24, 3)
    np.testing.assert_array_equal(places(meta).reshape(4, 6, 3), places(outer))
    assert physical.folded_meta(outer, axes_of(outer), 1) is None
    one = batched((1, 3), (99, 1), (1, 4, 5))  # of one row: rows are as far apart as examples
    meta = physical.folded_meta(one, axes_of(one), 0)
    np.testing.assert_array_equal(places(meta).reshape(4, 1, 3), places(one))
    both = batched((2, 3), (3, 1), (1, 4, 30), (2, 5, 6))
    meta = physical.folded_meta(both, axes_of(both), 0)
    np.testing.assert_array_equal(places(meta).reshape(4, 5, 2, 3), places(both))
    assert physical.folded_meta(X, AXES, 0) is None  # the outer level is the inner in memory


@pytest.mark.parametrize("at", [0, 1])
def test_folded_results_are_unfolded(at):
    axes = [Axis(1, 4, 1), Axis(2, 5, 1)]
    shape = [3, 3]
    shape[at] *= 20
    out = TensorMeta.of(tuple(shape), flow.float32, CPU)
    meta = physical.unfolded_meta(out, axes, at, 3)
    assert meta.shape == (3, 3)
    split = places(out).reshape((4, 5, 3, 3) if at == 0 else (3, 4, 5, 3))
    np.testing.assert_array_equal(places(meta), np.moveaxis(split, (at, at + 1), (0, 1)))
