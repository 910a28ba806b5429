"""Gradient accumulation in a graph: unpack, repeat, acc and pack against the eager loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError, CaptureError
from flowvm.graph.logical.interpret import interpret
from flowvm.nn import functional as F

ROWS = np.random.default_rng(5).standard_normal((12, 6)).astype(np.float32)
LABELS = np.arange(12) % 3


def model() -> nn.Module:
    flow.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3)
    )


class Train(nn.Graph):
    def __init__(self, model: nn.Module, optimizer: Any, times: int) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(times)

    def build(self, x: Any, y: Any) -> Any:
        out = self.model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        return {"loss": loss, "out": out}


def eagerly(times: int, steps: int) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = flow.optim.AdamW(net.parameters(), lr=0.01)
    calls = []
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = flow.tensor(ROWS), flow.tensor(LABELS)
        losses, outs = [], []
        for a, b in zip(x.chunk(times), y.chunk(times), strict=True):
            out = net(a)
            loss = F.cross_entropy(out, b)
            (loss / times).backward()
            losses.append(loss.item())
            outs.append(out.numpy())
        optimizer.step()
        calls.append((losses, np.concatenate(outs)))
    return calls, net


@pytest.mark.parametrize("times", [2, 3, 4, 6])
def test_a_call_is_the_eager_loop_over_micro_batches(times):
    expected, net = eagerly(times, 4)
    own = model()
    graph = Train(own, flow.optim.AdamW(own.parameters(), lr=0.01), times)
    for losses, outs in expected:
        actual = graph(flow.tensor(ROWS), flow.tensor(LABELS))
        assert actual["loss"].shape == (times,)
        assert actual["out"].shape == (12, 3)
        np.testing.assert_allclose(actual["loss"].numpy(), losses, rtol=1e-5)
        np.testing.assert_allclose(actual["out"].numpy(), outs, rtol=1e-4, atol=1e-6)
    for (name, a), b in zip(net.state_dict().items(), own.state_dict().values(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    assert len(graph.plans) == 1
    assert {node.repeat for node in graph.graphs[0].nodes} == {1, times}


def test_without_fusion_every_bit_is_the_loop_s():
    expected, net = eagerly(4, 4)
    own = model()
    graph = Train(own, flow.optim.AdamW(own.parameters(), lr=0.01), 4)
    graph.config.disable(*graph.config.passes)
    for losses, outs in expected:
        actual = graph(flow.tensor(ROWS), flow.tensor(LABELS))
        assert actual["loss"].numpy().tolist() == np.float32(losses).tolist()
        assert (actual["out"].numpy() == outs).all()
    for a, b in zip(net.state_dict().values(), own.state_dict().values(), strict=True):
        assert (a.numpy() == b.numpy()).all()


def test_dropout_draws_anew_in_each_repetition():
    class Drop(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(flow.ones(1))
            self.add_optimizer(flow.optim.SGD([self.w], lr=0.0))
            self.config.set_gradient_accumulation_steps(3)

        def build(self, x: Any) -> Any:
            dropped = F.dropout(x * self.w, 0.5)
            dropped.sum().backward()
            return dropped

    graph = Drop()
    graph(flow.ones(3, 64))
    flow.manual_seed(11)
    rows = graph(flow.ones(3, 64)).numpy()
    assert len({row.tobytes() for row in rows}) == 3
    flow.manual_seed(11)
    for row in rows:
        assert (F.dropout(flow.ones(1, 64), 0.5).numpy() == row).all()


def test_strided_inputs_and_tensors_without_dimensions():
    x = flow.tensor(np.arange(48, dtype=np.float32).reshape(6, 8)).t()  # 8 rows, by columns
    w = nn.Parameter(flow.ones(6))

    class Scale(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.add_optimizer(flow.optim.SGD([w], lr=0.0))
            self.config.set_gradient_accumulation_steps(4)

        def build(self, x: Any, scale: Any) -> Any:
            y = x * w * scale
            y.sum().backward()
            return y, scale

    graph = Scale()
    for _ in range(3):
        y, scale = graph(x, flow.tensor(2.0))
        assert (y.numpy() == 2 * x.numpy()).all()
        assert scale.item() == 2.0


def test_the_oracle_repeats_too():
    own = model().eval()
    graph = Train(own, flow.optim.SGD(own.parameters(), lr=0.0), 3)
    for _ in range(2):
        actual = graph(flow.tensor(ROWS), flow.tensor(LABELS))
    outs = interpret(graph.graphs[0], [flow.tensor(ROWS), flow.tensor(LABELS)])
    np.testing.assert_allclose(outs[0].numpy(), actual["loss"].numpy(), rtol=1e-6)
    np.testing.assert_allclose(outs[1].numpy(), actual["out"].numpy(), rtol=1e-5, atol=1e-6)


def test_a_frozen_parameter_stays():
    own = model()
    own[0].weight.requires_grad_(False)
    graph = Train(own, flow.optim.SGD(own.parameters(), lr=0.1), 2)
    before = own[0].weight.numpy()
    for _ in range(3):
        graph(flow.tensor(ROWS), flow.tensor(LABELS))
    assert (own[0].weight.numpy() == before).all()


# --- what cannot be ------------------------------------------------------------------------------


def test_a_batch_that_cannot_be_split_is_refused():
    own = model()
    graph = Train(own, flow.optim.SGD(own.parameters(), lr=0.1), 5)
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"input 0 of shape \(12, 6\).* 5 micro-batches"):
            graph(flow.tensor(ROWS), flow.tensor(LABELS))
    graph.config.set_gradient_accumulation_steps(4)
    assert graph(flow.tensor(ROWS), flow.tensor(LABELS))["loss"].shape == (4,)


def test_an_input_that_requires_grad_is_refused():
    own = model()
    graph = Train(own, flow.optim.SGD(own.parameters(), lr=0.1), 2)
    graph(flow.tensor(ROWS), flow.tensor(LABELS))
    with pytest.raises(CaptureError, match="input 0 requires grad"):
        graph(flow.tensor(ROWS).requires_grad_(), flow.tensor(LABELS))


def test_a_leaf_that_no_optimizer_steps_is_refused():
    own = model()
    graph = Train(own, flow.optim.SGD(own[0].parameters(), lr=0.1), 2)
    graph(flow.tensor(ROWS), flow.tensor(LABELS))
    with pytest.raises(CaptureError, match="add the others to an optimizer"):
        graph(flow.tensor(ROWS), flow.tensor(LABELS))


def test_shapes_that_depend_on_values_are_refused():
    class Masked(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.config.set_gradient_accumulation_steps(2)

        def build(self, x: Any) -> Any:
            return x[x > 0].sum()

    with pytest.raises(CaptureError, match="without a break"):
        Masked()(flow.tensor(ROWS))


def test_several_streams_are_the_same_loop():
    side = flow.Stream("side")

    class Streams(Train):
        def build(self, x: Any, y: Any) -> Any:
            with flow.stream(side):
                first = self.model[:3](x)
            out = self.model[3:](first)
            loss = F.cross_entropy(out, y)
            loss.backward()
            return {"loss": loss, "out": out}

    expected, net = eagerly(4, 4)
    own = model()
    graph = Streams(own, flow.optim.AdamW(own.parameters(), lr=0.01), 4)
    results = [graph(flow.tensor(ROWS), flow.tensor(LABELS)) for _ in expected]
    for actual, (losses, outs) in zip(results, expected, strict=True):
        np.testing.assert_allclose(actual["loss"].numpy(), losses, rtol=1e-5)
        np.testing.assert_allclose(actual["out"].numpy(), outs, rtol=1e-4, atol=1e-6)
    for (name, a), b in zip(net.state_dict().items(), own.state_dict().values(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    (plan,) = graph.plans
    assert {(actor.stream > 0, actor.times) for actor in plan.actors} == {
        (False, 1), (False, 4), (True, 4)
    }  # fmt: skip
    assert "acts 4 times" in plan.dump()


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_bad_numbers_of_steps(steps):
    with pytest.raises((ArgumentError, TypeError)):
        nn.Graph().config.set_gradient_accumulation_steps(steps)
