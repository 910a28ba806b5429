"""`Variable`: a leaf on the same memory."""

import pytest

import flowvm as flow
from flowvm.autograd.variable import Variable


def test_variable_is_a_leaf_on_the_same_memory():
    x = flow.ones(2)
    v = Variable(x, requires_grad=True)
    (3 * v).sum().backward()
    assert v.grad.tolist() == [3.0, 3.0]
    assert isinstance(x, Variable)
    assert v.data_ptr() == x.data_ptr()
    with pytest.raises(flow.errors.ArgumentTypeError, match="list"):
        Variable([1.0])
