"""Copies and pickles of single objects, and of objects that hold them."""

import copy
import pickle

import pytest

import flowvm as flow
from flowvm import nn

ROOMS = {
    "flow": flow,
    "F": nn.functional,
    "linalg": flow.linalg,
    "special": flow.special,
    "fft": flow.fft,
}


def functions(room):
    members = {name: getattr(room, name) for name in dir(room) if not name.startswith("__")}
    return [
        f for f in members.values() if callable(f) and not isinstance(f, type | type(flow.config))
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_functions_are_copied_and_pickled_as_pythons_are(room):
    """A copied op once had tables that named the first one's memory, and crashed."""
    for f in functions(ROOMS[room]):
        assert copy.copy(f) is copy.deepcopy(f) is f
        assert pickle.loads(pickle.dumps(f)) is f


def test_methods_are_copied_and_pickled():
    assert copy.deepcopy(flow.Tensor.tanh) is flow.Tensor.tanh
    assert pickle.loads(pickle.dumps(flow.Tensor.tanh)) is flow.Tensor.tanh


def test_a_module_with_an_op_is_copied():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.act = nn.Linear(3, 3), flow.tanh

        def forward(self, x):
            return self.act(self.layer(x))

    net = Net()
    other, again = copy.deepcopy(net), copy.copy(net)
    assert other.act is again.act is net.act
    assert other.layer is not net.layer
    x = flow.randn(2, 3)
    assert flow.equal(other(x), net(x))


def test_an_op_of_the_users_own_is_pickled_as_the_one_that_it_is():
    ops = [flow.elementwise("thrice", f"x * {k}") for k in (3.0, 3.5)]
    for op in ops:
        assert pickle.loads(pickle.dumps(op)) is op
    with pytest.raises(flow.errors.ArgumentError, match="'never' was declared in this process"):
        flow.ops.declare.elementwise.declared("never", 0)


def test_a_generator_is_copied_with_its_state():
    g = flow.Generator().manual_seed(3)
    flow.rand(2, generator=g)
    for other in (copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert other is not g
        assert other.position() == g.position()
        flow.rand(2, generator=other)
        assert other.position() != g.position()


def test_a_stream_is_itself():
    s = flow.Stream("one")
    assert copy.deepcopy([s]) == [s]


def test_a_grad_fn_is_not_copied():
    y = flow.ones(2, requires_grad=True) * 2
    with pytest.raises(flow.errors.ArgumentTypeError, match="detach the tensor"):
        copy.deepcopy(y.grad_fn)
