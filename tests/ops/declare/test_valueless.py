"""The meta device: what a call there comes to, and calls that need values."""

import pytest

import flowvm as flow
from flowvm.eager.declaration import Kernel, Signature
from flowvm.eager.interpreter import Operator
from flowvm.errors import ShapeError, ValuelessError
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare import valueless
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.pointwise.arithmetic import _add
from flowvm.ops.products.matmul import _matmul

NOWHERE = flow.device("meta")


def meta(*shape, dtype=flow.float32):
    return TensorMeta.of(shape, dtype, NOWHERE)


def test_calls_have_outputs_and_compute_nothing():
    made = valueless.lower(operator_of(_matmul), (meta(2, 3), meta(3, 4)), ())
    assert [(tuple(m.shape), m.device) for m in made.outputs] == [((2, 4), NOWHERE)]
    assert made.kernel == valueless.invocation(()).kernel
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        valueless.lower(_add.operator, (meta(2, 3), meta(4)), ())


def test_calls_that_need_values_say_so():
    x = flow.empty(3, device="meta")
    with pytest.raises(ValuelessError, match="as many elements as values say"):
        flow.nonzero(x)

    mine = Operator("mine", Signature(("x",), ("out",)), Kernel(lambda metas, attrs: None))
    with pytest.raises(ValuelessError, match="mine has no rule for output shapes"):
        valueless.lower(mine, (meta(2),), ())


def test_order_and_gradients_are_as_elsewhere():
    w = flow.ones(3, 4, device="meta", requires_grad=True)
    y = (w @ w.t()).relu().sum()
    y.backward()
    assert (w.grad.shape, w.grad.device, y.shape) == ((3, 4), NOWHERE, ())
    assert (w.detach().add_(1)).shape == (3, 4)
