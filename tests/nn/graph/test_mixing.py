"""Graphs and eager code mixed: from several threads, on several streams, around each other.

The bits are the ones of one thread alone.
"""

from __future__ import annotations

import gc
import random
import threading
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from tests.graph.helpers import arrays_in, exact, same_bits
from tests.vm.live import Background

nn, F = flow.nn, flow.nn.functional


class Worker:
    """A training with a train graph, an eval graph and eager steps, in random turns."""

    def __init__(self, seed: int, captured: bool = True) -> None:
        self.rng, self.captured = random.Random(seed), captured
        numbers = np.random.default_rng(seed)
        draw = numbers.standard_normal
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        with flow.no_grad():
            for p in self.model.parameters():
                p.copy_(flow.tensor(draw(tuple(p.shape)).astype(np.float32)))
        self.optimizer = flow.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.batches = [
            (flow.tensor(draw((5, 6)).astype(np.float32)), flow.tensor(numbers.integers(0, 3, 5)))
            for _ in range(4)
        ]
        worker = self

        class Train(nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.model = worker.model
                self.add_optimizer(worker.optimizer)

            def build(self, x: Any, y: Any) -> Any:
                loss = F.cross_entropy(self.model(x), y)
                loss.backward()
                return loss

        class Predict(nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.model = worker.model

            def build(self, x: Any) -> Any:
                return self.model(x).argmax(1), self.model(x).sum()

        self.train, self.predict = exact(Train()), exact(Predict())

    def step(self, x: Any, y: Any, captured: bool) -> Any:
        if captured:
            return self.train(x, y)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, turns: int) -> list[np.ndarray]:
        """Return the values seen on the way, then parameters and buffers."""
        calls = []
        for _ in range(turns):
            x, y = self.rng.choice(self.batches)
            what = self.rng.randrange(6)
            if what < 2:
                calls.append(self.step(x, y, self.captured))
            elif what == 2:
                calls.append(self.step(x, y, False))
            elif what == 3:
                self.model.eval()
                with flow.no_grad():
                    both = self.predict(x) if self.captured else None
                    calls += both or (self.model(x).argmax(1), self.model(x).sum())
                self.model.train()
            elif what == 4:
                with flow.no_grad():
                    self.model[0].weight.mul_(0.99)
            else:
                self.optimizer.param_groups[0]["lr"] *= 0.9
        return arrays_in(calls) + arrays_in(dict(self.model.state_dict()))


def test_graph_turns_are_eager_turns(seed: int) -> None:
    for i in range(3):
        same_bits(Worker(seed + i).run(25), Worker(seed + i, False).run(25), f"seed {seed + i}")


def test_two_threads_with_graphs_and_eager_code(seed: int) -> None:
    """Each thread's bits equal the bits of one thread alone."""
    alone = [Worker(seed + k).run(30) for k in range(2)]
    start = threading.Barrier(2)

    def work(k: int) -> list[np.ndarray]:
        worker = Worker(seed + k)
        start.wait()
        return worker.run(30)

    threads = [Background(work, k) for k in range(2)]
    for k, thread in enumerate(threads):
        same_bits(thread.result(), alone[k], f"thread {k}, seed {seed}")


def test_threads_on_streams_of_their_own(seed: int) -> None:
    alone = [Worker(seed + k).run(20) for k in range(3)]

    def work(k: int) -> list[np.ndarray]:
        with flow.stream(flow.Stream(f"mixing{k}")):
            return Worker(seed + k).run(20)

    threads = [Background(work, k) for k in range(3)]
    for k, thread in enumerate(threads):
        same_bits(thread.result(), alone[k], f"thread {k}, seed {seed}")


def test_two_graphs_share_a_variable_with_eager_code_in_any_order(seed: int) -> None:
    """Updates that do not commute, by two graphs and by eager code, on two streams."""
    rng = random.Random(seed)
    start = np.random.default_rng(seed).integers(-5, 5, (8, 8))

    def doubled(w: Any, x: Any) -> Any:
        return w.mul_(2).add_(x).remainder_(1001).sum()

    def turned(w: Any, x: Any) -> Any:
        return w.copy_(w.t().clone() + x).remainder_(997).max()

    plan = [(rng.randrange(3), rng.randrange(2), rng.randrange(-9, 9)) for _ in range(60)]
    results = []
    for captured in (False, True):
        w = flow.tensor(start)
        first, second = (lambda x, w=w, f=f: f(w, x) for f in (doubled, turned))
        if captured:
            first, second = flow.compile(first), flow.compile(second)
        streams, values = [flow.current_stream(), flow.Stream("other")], []
        for who, where, k in plan:
            x = flow.full((8, 8), k, dtype=flow.int64)
            with flow.stream(streams[where]):
                if who == 2:
                    w[k % 8].sub_(x[0])
                else:
                    values.append((first, second)[who](x))
        results.append(arrays_in([*values, w]))
    same_bits(results[1], results[0], f"seed {seed}")


def test_one_thread_changes_the_mode_while_another_replays() -> None:
    """Grad mode and streams are a thread's own."""
    w = nn.Parameter(flow.full((2,), 2.0))

    def function(x: Any) -> Any:
        y = (w * x).sum()
        return flow.autograd.grad(y, w)[0] if y.requires_grad else y

    graph = flow.compile(function)

    def without() -> list[Any]:
        with flow.no_grad():
            return [graph(flow.full((2,), float(k))).tolist() for k in range(30)]

    def recording() -> list[Any]:
        return [graph(flow.full((2,), float(k))).tolist() for k in range(30)]

    threads = [Background(without), Background(recording), Background(without)]
    assert threads[0].result() == threads[2].result() == [4.0 * k for k in range(30)]
    assert threads[1].result() == [[float(k)] * 2 for k in range(30)]
    assert len(graph.plans) == 2


def test_graphs_come_and_go_while_others_run(seed: int) -> None:
    x = flow.ones(50, 50)
    function = flow.compile(lambda x: x @ x / 50)
    out = function(x)
    for k in range(8):
        w = flow.full((50, 50), 0.02)
        graph = flow.compile(lambda a, w=w: (a @ w).relu())
        results = [graph(out) for _ in range(3)]
        out = function(results[-1])
        del graph, w, results
        if k % 3 == 0:
            gc.collect()
    np.testing.assert_allclose(out.numpy(), np.ones((50, 50)), rtol=1e-2)


@pytest.mark.parametrize("inner", ["no_grad", "enable_grad", "stream", "sequential"])
def test_a_graph_inside_contexts(inner: str) -> None:
    contexts = {
        "no_grad": flow.no_grad,
        "enable_grad": flow.enable_grad,
        "stream": lambda: flow.stream(flow.Stream("inside")),
        "sequential": flow.vm.sequential,
    }
    w = flow.full((3,), 2.0)
    graph = flow.compile(lambda x: x * w + 1)
    calls = []
    for k in range(3):
        calls.append(graph(flow.full((3,), float(k))).tolist())
        with contexts[inner]():
            calls.append(graph(flow.full((3,), float(k))).tolist())
        w.add_(1)
    assert calls == [[(2 + k) * k + 1] * 3 for k in range(3) for _ in range(2)]


def test_more_launches_in_flight_than_the_ring_has_room(seed: int) -> None:
    w = flow.zeros(4, dtype=flow.int64)

    def function(x: Any) -> Any:
        w.mul_(3).add_(x).remainder_(1009)
        return w + 0

    graph = flow.compile(function)
    outs = [graph(flow.full((4,), k % 7, dtype=flow.int64)) for k in range(6000)]
    value, expected = 0, []
    for k in range(6000):
        value = (3 * value + k % 7) % 1009
        expected.append(value)
    assert [int(t[0]) for t in outs[::500]] == expected[::500]
    assert outs[-1].tolist() == [value] * 4
