"""State dicts: names that differ."""

from typing import get_args

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn.common_types import _size_2_t, _tensor_list_t
from flowvm.nn.parameter import Parameter
from flowvm.nn.state import EXTRA, IncompatibleKeys


def test_state_that_differs_is_said_by_name():
    layer = nn.Linear(2, 1)
    keys = layer.load_state_dict({"weight": flow.ones(1, 2), "more": flow.ones(1)}, strict=False)
    assert keys == IncompatibleKeys(["bias"], ["more"])
    assert layer.weight.tolist() == [[1.0, 1.0]]
    assert repr(IncompatibleKeys([], [])) == "<All keys matched successfully>"


def test_state_has_what_get_extra_state_gives():
    class Counted(nn.Module):
        count = 3

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    state = Counted().state_dict()
    assert state[EXTRA] == {"count": 3}
    other = Counted()
    other.count = 0
    other.load_state_dict(state)
    assert other.count == 3


def test_parameter_is_a_leaf_that_modules_find():
    module = nn.Module()
    module.weight = Parameter(flow.ones(2))
    assert [name for name, _ in module.named_parameters()] == ["weight"]
    assert module.weight.requires_grad
    with pytest.raises(TypeError):
        module.weight = flow.ones(2)


def test_common_types_say_what_layers_take():
    assert get_args(_size_2_t) == (int, tuple[int, int])
    assert get_args(_tensor_list_t)[0] is flow.Tensor
