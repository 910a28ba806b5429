"""Calls on global tensors: results, writes, made tensors and `out=`, whatever ranks hold."""

import numpy as np
import pytest
import ranks

import flowvm as flow
from flowvm.errors import DeviceError
from flowvm.meta.placements import broadcast, partial_sum, split
from flowvm.ops.placed import calls
from flowvm.ops.pointwise.arithmetic import _add

B, P, S = broadcast, partial_sum, split
X = np.arange(12.0).reshape(4, 3)


def on_ranks(function, size=2):
    """The results of each rank, as arrays, which must be alike."""

    def rank(k):
        return function(flow.placement("cpu", list(range(size))))

    results = ranks.run(size, rank)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    return results[0]


@pytest.mark.parametrize("first", [S(0), S(1), B, P])
@pytest.mark.parametrize("second", [S(0), S(1), B, P])
def test_operands_may_be_held_differently(first, second):
    def function(where):
        a, b = ranks.held(X, where, (first,)), ranks.held(X + 1, where, (second,))
        once = (a * b).numpy()
        np.testing.assert_array_equal((a * b).numpy(), once)  # by the entry that it has now
        return once

    np.testing.assert_allclose(on_ranks(function), X * (X + 1), rtol=1e-12)


@pytest.mark.parametrize("sbp", [S(0), S(1), B])
def test_writes_stay_where_they_are_held(sbp):
    def function(where):
        a = ranks.held(X, where, (sbp,))
        version = a._version
        a.add_(ranks.held(X, where, (S(0),)))
        assert a.sbp == (sbp,)
        assert a._version > version
        return a.numpy()

    np.testing.assert_array_equal(on_ranks(function), 2 * X)


def test_ranks_without_elements_take_part():
    def function(where):
        row = ranks.held(X[:1], where, (S(0),))  # the second rank has nothing of it
        return np.concatenate([(row + 1).numpy().reshape(-1), row.sum().numpy().reshape(1),
                               (row @ row.t()).numpy().reshape(-1)])  # fmt: skip

    np.testing.assert_array_equal(on_ranks(function), [1, 2, 3, 3, 5])


def test_results_go_into_global_tensors():
    def function(where):
        out = ranks.held(np.zeros((4, 3)), where, (S(1),))
        a = ranks.held(X, where, (S(0),))
        flow.add(a, a, out=out)
        assert out.sbp == (S(1),)
        return out.numpy()

    np.testing.assert_array_equal(on_ranks(function), 2 * X)


def test_local_tensors_do_not_mix():
    def function(where):
        a = ranks.held(X, where, (S(0),))
        with pytest.raises(DeviceError):
            calls.into(_add.operator, (flow.zeros(4, 3).double(),), (a, a), (), ())
        return a.numpy()

    on_ranks(function)


def test_tensors_are_made_in_parts():
    def function(where):
        a = flow.full((4, 3), 2.0, placement=where, sbp=S(0))
        b = flow.arange(12, placement=where, sbp=S(0)).reshape((4, 3))
        return (a * b).numpy()

    np.testing.assert_array_equal(on_ranks(function), 2 * np.arange(12).reshape(4, 3))


def test_random_numbers_do_not_depend_on_who_holds_them():
    def drawn(sbp):
        def function(where):
            own = flow.Generator().manual_seed(3)  # ranks are threads here
            x = flow.rand(4, 6, placement=where, sbp=sbp, generator=own)
            y = ranks.held(np.zeros((4, 6)), where, (sbp,)).normal_(generator=own)
            return np.stack([x.numpy().astype(np.float64), y.numpy()])

        return on_ranks(function)

    whole = drawn(B)
    np.testing.assert_array_equal(drawn(S(0)), whole)
    np.testing.assert_array_equal(drawn(S(1)), whole)
