"""Graphs on a device: captured as CUDA graphs, launched with other inputs, updated and given up."""

import gc

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import CaptureError, OutOfRangeError


class Step(flow.nn.Graph):
    """A training step; `schedule` changes the learning rate at each."""

    def __init__(self, place, optimizer=flow.optim.SGD, **options):
        super().__init__()
        flow.manual_seed(0)
        layers = flow.nn.Linear(5, 8), flow.nn.ReLU(), flow.nn.Linear(8, 3)
        self.model = flow.nn.Sequential(*layers).to(place)
        self.optimizer = optimizer(self.model.parameters(), **options)
        self.add_optimizer(self.optimizer)

    def build(self, x, y):
        loss = flow.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def batches(rng, place, count=8):
    return [
        (
            flow.tensor(rng.standard_normal((4, 5)).astype(np.float32), device=place),
            flow.tensor(rng.integers(0, 3, 4), device=place),
        )
        for _ in range(count)
    ]


def test_training_is_the_same_as_on_the_cpu(device, seed):
    def losses(place):
        step = Step(place, lr=0.1, momentum=0.9)
        found = [step(*b).item() for b in batches(np.random.default_rng(seed), place)]
        return found, step

    (found, step), (wanted, _) = losses(device), losses("cpu")
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert step.plan.device_graph.text == "a CUDA graph, launched 6 times"  # of the second plan
    assert "a CUDA graph" in step.explain()


def test_outputs_of_launches_in_flight_are_apart(device):
    @flow.compile
    def double(x):
        return x * 2 + 1

    found = [double(flow.full((3,), float(k), device=device)) for k in range(6)]
    assert [f.tolist() for f in found] == [[2.0 * k + 1] * 3 for k in range(6)]


def test_numbers_that_change_now_and_then_update_the_graph(device):
    step = Step(device, lr=0.1)
    eager = Step("cpu", lr=0.1)
    rng = np.random.default_rng(3)
    data = batches(rng, "cpu", 9)
    for k, (x, y) in enumerate(data):
        for one in (step, eager):
            one.optimizer.param_groups[0]["lr"] = 0.1 / (1 + k // 3)
        loss = step(x.to(device), y.to(device)).item()
        np.testing.assert_allclose(loss, eager(x, y).item(), rtol=1e-5)
    assert step.plan.device_graph.text.startswith("a CUDA graph")


def test_numbers_that_always_change_give_it_up(device):
    step = Step(device, flow.optim.Adam, lr=0.01)
    plain = Step("cpu", flow.optim.Adam, lr=0.01)
    for x, y in batches(np.random.default_rng(4), "cpu", 14):
        loss = step(x.to(device), y.to(device)).item()
        np.testing.assert_allclose(loss, plain(x, y).item(), rtol=1e-5)
    assert "differ at each launch" in step.explain()


def test_what_a_graphs_kernel_finds_is_that_launchs(device):
    @flow.compile
    def pick(table, index):
        return table[index] + 1

    table = flow.arange(12, device=device).float().reshape(4, 3)
    found = [pick(table, flow.tensor([k], device=device)) for k in (0, 1, 9, 2, 3)]
    for k in (0, 1, 3, 4):
        row = k if k < 2 else k - 1
        assert found[k].tolist() == [[3.0 * row + 1 + i for i in range(3)]]
    with pytest.raises(OutOfRangeError, match="index 9 is out of bounds"):
        found[2].numpy()


def test_on_another_stream_it_goes_task_by_task(device):
    @flow.compile
    def add(x):
        return x + 1

    with flow.cuda.stream(flow.cuda.Stream()):
        for k in range(3):
            assert add(flow.full((2,), float(k), device=device)).tolist() == [k + 1.0] * 2


def test_a_graph_of_two_devices_is_refused(device):
    @flow.compile
    def both(x):
        return x.cpu() + 1

    with pytest.raises(CaptureError, match=r"computes on one device.*cpu, cuda:0"):
        both(flow.ones(3, device=device))
    assert flow.ones(2, device=device).sum().item() == 2


def test_dropped_graphs_give_their_memory_back(device):
    from flowvm.cuda.streams import streams
    from flowvm.vm import layout as w
    from flowvm.vm.engine import engine

    def use():
        graph = flow.compile(lambda x: (x @ x).relu() + x)
        for _ in range(3):
            assert graph(flow.ones(16, 16, device=device)).sum().item() == 17 * 256

    def settle():
        gc.collect()
        flow.vm.sync()
        flow.compile(lambda x: x + 1)(flow.ones(1, device=device))  # lets go of what is dropped
        gc.collect()
        engine.release_dead()
        engine.wait_idle()

    use()
    settle()
    before = int(streams(0).counters[w.LIVE_BYTES])
    for _ in range(3):
        use()
    settle()
    assert int(streams(0).counters[w.LIVE_BYTES]) <= before + 4096
