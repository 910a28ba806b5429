"""`flow.summary`: shapes and parameters of a model, which is as before; formats change nothing."""

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentTypeError
from flowvm.nn.utils import model_summary
from flowvm.nn.utils.memory_format import (
    convert_conv2d_weight_memory_format,
    convert_conv3d_weight_memory_format,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.spare = nn.Linear(9, 9)  # is not called
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = self.body(x)
        return y, [y.sum()], None


def branches(tree):
    """All branches below, by their last name."""
    found, left = {}, list(tree.branches)
    while left:
        one = left.pop()
        found[one.path.rpartition(".")[2]] = one
        left += getattr(one, "branches", ())
    return found


def test_models_are_as_before():
    model = Net().train()
    model.spare.eval()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    flow.manual_seed(3)
    expected = flow.rand(2)
    flow.manual_seed(3)
    model_summary.summary(model, flow.rand(5, 3).detach())
    flow.manual_seed(3)
    assert flow.equal(flow.rand(2), expected)
    assert model.calls == 2
    assert (model.training, model.body.training, model.spare.training) == (True, True, False)
    assert all(flow.equal(v, state[k]) for k, v in model.state_dict().items())
    assert not model._forward_hooks
    assert not model.body[0]._forward_hooks


def test_errors_of_the_model_leave_it_as_before():
    model = Net().train()
    with pytest.raises(flow.errors.ShapeError):
        model_summary.summary(model, flow.rand(5, 7))
    assert model.training
    assert not model._forward_hooks
    with pytest.raises(ArgumentTypeError, match=r"model is an nn\.Module, got function"):
        model_summary.summary(lambda x: x, flow.rand(1))


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (None, "None"), (3, "int"), ((), ""), ([None, "x"], "None, str"),
    ],
)  # fmt: skip
def test_results_are_shapes_or_classes(out, text):
    assert model_summary._shape(out) == text
    assert model_summary._shape((flow.ones(2, 3), flow.ones(()))) == "[2, 3], []"


def test_parameters_are_counted():
    text = str(flow.summary(Net(), flow.rand(5, 3)))
    assert "Linear" in text
    assert "[5, 4]" in text
    assert "16" in text  # 3 * 4 + 4


def test_memory_formats_leave_a_module():
    conv = nn.Conv2d(2, 3, 2)
    before = conv.weight.stride()
    assert convert_conv2d_weight_memory_format(conv, flow.channels_last) is conv
    assert conv.weight.stride() == before
    deep = nn.Conv3d(2, 3, 2)
    assert convert_conv3d_weight_memory_format(deep, flow.channels_last_3d) is deep
