"""`module.config.set_stage`: the moves it makes, the calls it refuses, and its effect on a graph.

Losses on several ranks, and the order of forward and backward: tests/ops/placed/test_processes.py.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError, ArgumentTypeError, CaptureError
from flowvm.nn.graph.gradients import Rows, micro_meta
from flowvm.nn.stages import in_flight
from tests.ops.helpers import ranks

B = flow.sbp.broadcast
HERE = flow.placement("cpu", [0])


def layer() -> nn.Module:
    return nn.Linear(2, 2).to_global(HERE, B)


def test_what_it_is_called_with_is_moved():
    class Looks(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.arguments = args, kwargs
            return args[0]

    def rank(k: int) -> None:
        first, second = flow.placement("cpu", [0]), flow.placement("cpu", [1])
        module = Looks()
        module.config.set_stage(1, second)
        x = flow.arange(3, placement=first, sbp=B)
        placed, local = flow.ones(2, placement=second, sbp=B), flow.ones(2)
        out = module(x, [placed, (x, local)], named={"x": x}, number=3)
        (_, (same, (moved, still))), kwargs = module.arguments
        assert same is placed
        assert still is local
        assert kwargs["number"] == 3
        for t in (out, moved, kwargs["named"]["x"]):
            assert t.placement is second
            if k == 1:
                assert t.tolist() == [0, 1, 2]

    ranks.run(2, rank)


def test_gradients_go_back_through_a_stage():
    one = layer()
    one.config.set_stage(0)
    assert one.config.stage.number == 0
    assert one.config.stage.placement is HERE
    assert repr(one.config.stage) == 'stage 0 on flow.placement(type="cpu", ranks=[0])'
    x = flow.ones(3, 2, placement=HERE, sbp=B, requires_grad=True)
    one(x).sum().backward()
    np.testing.assert_allclose(
        x.grad.numpy(), one.weight.detach().numpy().sum(0)[None].repeat(3, 0), rtol=1e-6
    )


def test_a_later_stage_takes_the_place_of_an_earlier_one():
    one = layer()
    one.config.set_stage(0)
    one.config.set_stage(1, HERE)
    assert one.config.stage.number == 1
    assert len(one._forward_pre_hooks) == 1
    twin = copy.deepcopy(one)
    assert twin.config.stage.number == 1


def test_a_module_s_own_config_comes_first():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = {"width": 3}

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = nn.Linear(1, 1)

    assert Model().config == {"width": 3}
    assert isinstance(Nested().config, nn.Linear)
    assert list(Nested().state_dict()) == ["config.weight", "config.bias"]


@pytest.mark.parametrize(
    ("args", "error", "says"),
    [
        (("0",), ArgumentTypeError, "stage_id is an int, got '0'"),
        ((True,), ArgumentTypeError, "stage_id is an int, got True"),
        ((-1,), ArgumentError, "count from 0, got -1"),
        ((0, "cpu"), ArgumentTypeError, "placement is a flow.placement, got 'cpu'"),
        ((0, [1]), ArgumentError, r"weight of Linear is on .*\[0\].*, and the stage on"),
    ],
)
def test_bad_stages(args, error, says):
    def rank(k: int) -> None:
        one = nn.Linear(2, 2).to_global(flow.placement("cpu", [0]), B)
        where = [flow.placement("cpu", a) if isinstance(a, list) else a for a in args]
        with pytest.raises(error, match=says):
            one.config.set_stage(*where)
        assert one.config.stage is None

    ranks.run(2, rank)


def test_a_stage_without_a_place():
    with pytest.raises(ArgumentError, match="weight of Linear is local"):
        nn.Linear(1, 1).config.set_stage(0)
    with pytest.raises(ArgumentError, match="ReLU has no parameters that say where"):
        nn.ReLU().config.set_stage(0)


def test_micro_batches_in_flight():
    def rank(k: int) -> None:
        stages = [nn.Identity() for _ in range(3)]
        assert in_flight(stages, "G") == 1
        for number, module in enumerate(stages):
            module.config.set_stage(number, flow.placement("cpu", [number, number + 3]))
        assert in_flight(stages, "G") == (3, 2, 1, 3, 2, 1, 1)[k]
        with pytest.raises(CaptureError, match=r"stages \[0, 2\] are set, and \[1\] are not"):
            in_flight([stages[0], stages[2]], "G")

    ranks.run(7, rank)


def test_a_graph_asks_again_when_stages_have_changed():
    one, two = layer(), layer()

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = one, two
            self.add_optimizer(flow.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1))
            self.config.set_gradient_accumulation_steps(2)

        def build(self, x: Any) -> Any:
            loss = self.two(self.one(x)).square().mean()
            loss.backward()
            return loss

    graph, x = Train(), flow.ones(4, 2, placement=HERE, sbp=B)
    graph(x)
    graph(x)
    assert graph.graphs[-1].in_flight == 1
    one.config.set_stage(0)
    two.config.set_stage(1)
    with pytest.warns(flow.errors.RecaptureWarning):
        graph(x)
    assert graph.graphs[0].in_flight == 2


def test_a_batch_that_ranks_cannot_cut_alike_is_refused():
    def rank(k: int) -> None:
        meta = flow.zeros(12, 3, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0))
        micro = micro_meta(meta._meta, 3, "G", 0)
        assert tuple(micro.shape) == (4, 3)
        assert tuple(micro.local.shape) == (2, 3)
        whole = flow.zeros(12, placement=flow.placement("cpu", [0, 1]), sbp=B)._meta
        assert Rows.of([meta._meta, meta._meta], 3, "G") == (2, {4})
        assert Rows.of([whole, flow.zeros(5)._meta], 3, "G") == (1, {4})
        with pytest.raises(CaptureError, match="input 0 are cut among 2 ranks and those of input"):
            Rows.of([meta._meta, whole], 3, "G")
        with pytest.raises(CaptureError, match=r"4 micro-batches on each of the 2 ranks .* of 8"):
            micro_meta(meta._meta, 4, "G", 0)

    ranks.run(2, rank)
