"""Models cut into stages by `pipeline`."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.distributed.pipelining import SplitPoint, pipe_split, pipeline


class Skipping(nn.Module):
    """A value of the first stage, and an argument, are wanted by later ones."""

    def __init__(self):
        super().__init__()
        self.up, self.across = nn.Linear(4, 4), nn.Linear(4, 4)
        self.down = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.scale = nn.Parameter(flow.ones(4))

    def forward(self, x, mask):
        hidden = self.up(x).tanh()
        return self.down(self.across(hidden) * mask) + hidden * self.scale


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.first(x).relu()
        pipe_split()
        return self.second(hidden)


def test_values_travel_through_stages(seed):
    flow.manual_seed(seed)
    model, inputs = Skipping(), (flow.randn(3, 4), flow.randn(3, 4))
    spec = {"up": SplitPoint.END, "down.0": SplitPoint.BEGINNING}
    pipe = pipeline(model, inputs, split_spec=spec)
    names = [[n for n, _ in stage.named_parameters()] for stage in pipe.stages]
    assert names == [["up.weight", "up.bias"], ["across.weight", "across.bias"],
                     ["scale", "down.0.weight", "down.0.bias"]]  # fmt: skip
    np.testing.assert_array_equal(pipe(*inputs).numpy(), model(*inputs).numpy())
    assert pipe.get_stage_module(0).up.weight is model.up.weight


def test_marks_cut_a_model(seed):
    flow.manual_seed(seed)
    model, x = Marked(), flow.randn(3, 4)
    pipe = pipeline(model)
    assert pipe.num_stages == 2
    np.testing.assert_array_equal(pipe(x).numpy(), model(x).numpy())


def test_a_name_of_no_module_is_an_error():
    with pytest.raises(flow.errors.ArgumentError, match="up2 is no module"):
        pipeline(Skipping(), split_spec={"up2": SplitPoint.END})
