"""An operator for several tensors at once: the operands and the results of each member."""

import numpy as np

import flowvm as flow
from flowvm.graph.passes.multi_tensor import Merged
from flowvm.graph.passes.updates import merged_operator
from flowvm.ops.pointwise.arithmetic import _add

ADD = _add.operator


def test_members_take_turns():
    pair = merged_operator(ADD, False, 2, "")
    assert isinstance(pair, Merged)
    assert (pair.base, pair.count, pair.ahead) == (ADD, 2, 0)
    assert [list(v) for v in pair.per_member("abcd")] == [["a", "b"], ["c", "d"]]
    # operands: both outputs, then the inputs of the first and of the second
    assert [pair.operands_of(k) for k in range(2)] == [[0, 2, 3], [1, 4, 5]]


def test_members_are_issued_one_by_one():
    pair = merged_operator(ADD, False, 2, "")
    a, b, c, d = (flow.full((n,), float(n)) for n in (1, 1, 3, 3))
    one, other = pair.call(a, b, c, d, ((), ()), ((), ()))
    assert (one.tolist(), other.tolist()) == ([2], [6, 6, 6])


def test_outputs_that_exist_are_written():
    into = merged_operator(ADD, True, 2, "")
    assert into.ahead == 1
    assert [into.operands_of(k) for k in range(2)] == [[0, 1, 2], [3, 4, 5]]
    outs = flow.zeros(2), flow.zeros(1)
    versions = [t._version for t in outs]
    a, b = flow.ones(2), flow.ones(1)
    assert into.call(outs[0], a, a, outs[1], b, b, ((), ()), ((), ())) == ()
    np.testing.assert_array_equal(outs[0].numpy(), [2, 2])
    np.testing.assert_array_equal(outs[1].numpy(), [2])
    assert [t._version - v for t, v in zip(outs, versions, strict=True)] == [1, 1]
