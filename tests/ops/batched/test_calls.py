"""Calls on tensors with levels: written tensors, made tensors, `out=`, and random numbers."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import func
from flowvm.errors import UnbatchableError
from flowvm.meta.batched_meta import axes_of
from flowvm.ops.batched import calls, loop
from flowvm.ops.batched.levels import Level, entered, level_as_dim
from flowvm.ops.declare import core
from flowvm.ops.pointwise.arithmetic import _add
from tests.ops.batched.levels import examples, of

X = np.arange(12.0).reshape(4, 3)


def test_a_shared_operand_is_one_for_all_examples():
    one = Level(4)
    y = flow.tensor([10.0, 20.0, 30.0]).double()
    out = of(X, one) + y
    np.testing.assert_array_equal(examples(out, one), X + y.numpy())
    assert not axes_of((y + y)._meta)


def test_levels_of_two_maps_make_both_dimensions():
    outer, inner = Level(4), Level(2)
    a, b = of(X, outer), of(np.array([[1.0], [2.0]]), inner)
    out = a * b
    assert [a.level for a in axes_of(out._meta)] == sorted([outer.number, inner.number])
    both = level_as_dim(level_as_dim(out, inner, 0), outer, 0).numpy()
    np.testing.assert_array_equal(both, X[:, None] * [[[1.0], [2.0]]])


def test_writes_reach_each_example():
    one = Level(4)
    whole = flow.tensor(X)
    x = entered(whole, one, 0)
    version = x._version
    x.mul_(of(np.array([1.0, 2.0, 3.0, 4.0]), one))
    assert x._version == version + 1
    np.testing.assert_array_equal(whole.numpy(), X * [[1], [2], [3], [4]])


def test_a_tensor_of_all_examples_is_not_changed_by_one():
    one = Level(4)
    shared = flow.zeros(3, dtype=flow.float64)
    with pytest.raises(UnbatchableError, match="changes a tensor in place that is one for all"):
        shared.add_(of(X, one))
    assert shared.tolist() == [0, 0, 0]


def test_results_go_into_tensors_with_levels():
    one = Level(4)
    out = of(np.zeros((4, 3)), one)
    seq = calls.into(_add.operator, (out,), (of(X, one), flow.ones(3).double()), (), ())
    assert seq >= 0
    np.testing.assert_array_equal(examples(out, one), X + 1)
    with pytest.raises(UnbatchableError, match="one for all examples"):
        calls.into(_add.operator, (flow.zeros(3).double(),), (of(X, one), of(X, one)), (), ())


def test_numbers_of_zero_dimensions_have_no_say_in_the_dtype():
    """Each example is a number: float32 beside float64 numbers stays float32, as in a loop."""
    one = Level(4)
    x = of(np.ones((4, 3), np.float32), one)
    factor = of(np.array([1.0, 2.0, 3.0, 4.0]), one)
    out = x * factor
    assert out.dtype is flow.float32
    np.testing.assert_array_equal(examples(out, one), np.ones((4, 3)) * [[1], [2], [3], [4]])


def test_tensors_are_made_for_each_example():
    def made(x):
        return flow.zeros_like(x), flow.full_like(x, 7), x.new_ones(2), flow.empty_like(x).shape[0]

    zeros, sevens, ones, size = func.vmap(made, out_dims=(0, 0, 0, None))(flow.tensor(X))
    np.testing.assert_array_equal(zeros.numpy(), np.zeros((4, 3)))
    np.testing.assert_array_equal(sevens.numpy(), np.full((4, 3), 7))
    np.testing.assert_array_equal(ones.numpy(), np.ones((4, 2)))
    assert size == 3


def test_draws_are_one_or_each_examples_own():
    x = flow.zeros(4, 300)
    own = func.vmap(lambda x: flow.rand_like(x), randomness="different")(x).numpy()
    assert len({row.tobytes() for row in own}) == 4
    one = func.vmap(lambda x: flow.rand_like(x), randomness="same")(x).numpy()
    assert len({row.tobytes() for row in one}) == 1


def test_permutations_are_drawn_for_one_example_after_the_other(monkeypatch):
    monkeypatch.setattr(loop, "looped", {})
    x = flow.zeros(4, 30)
    with pytest.warns(UserWarning, match="a permutation is drawn for one example at a time"):
        drawn = func.vmap(lambda x: x + flow.randperm(30), randomness="different")(x).numpy()
    np.testing.assert_array_equal(np.sort(drawn), np.tile(np.arange(30.0), (4, 1)))
    assert len({row.tobytes() for row in drawn}) == 4


def test_copies_write_through_levels():
    one = Level(4)
    to = of(np.zeros((4, 3)), one)
    core.copy_(to, of(X[:, ::-1].copy(), one))
    np.testing.assert_array_equal(examples(to, one), X[:, ::-1])
