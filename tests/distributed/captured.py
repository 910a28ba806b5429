"""Checks that graphs of global tensors give the results of eager code.

They are beside local ones, have parts without elements, or are written by the graph. `checks.py`
runs them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import flowvm as flow
from flowvm.errors import FlowError
from flowvm.ranks.world import world_size

F = flow.nn.functional
WHERE = flow.placement("cpu", list(range(world_size())))
BROADCAST, ROWS, COLUMNS = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)


def held(shape: tuple[int, ...], sbp: Any) -> Any:
    """Whole numbers as a global tensor."""
    size = int(np.prod(shape))
    whole = flow.arange(size).reshape(shape).float()
    return whole.to_global(WHERE, BROADCAST, check_meta=False).to_global(WHERE, sbp)


def outcome(call: Any, *args: Any) -> Any:
    """Return the outcome of a call: its values and sbp, and its arguments afterwards; or its error.

    The outcome is this rank's.
    """
    try:
        result = call(*args)
    except FlowError as error:
        return type(error), str(error).split(": ", 1)[-1].split("\n")[0]
    return [
        (str(t.sbp) if t.is_global else "", (t.to_local() if t.is_global else t).tolist())
        for t in (result, *args)
    ]


def alike(name: str, function: Any, make: Any) -> None:
    """A graph's call, and a replay, are the eager call."""
    expected = outcome(function, *make())
    graph = flow.compile(function)
    for _ in range(2):
        actual = outcome(graph, *make())
        assert actual == expected, f"{name}: {actual}, eagerly {expected}"


LOCAL = flow.ones(4, 4)
MIXED: dict[str, Any] = {
    "add": lambda g, x: g + x,
    "add to a local one": lambda g, x: x + g,
    "product": lambda g, x: g @ x,
    "cat": lambda g, x: flow.cat([g, x]),
    "stack": lambda g, x: flow.stack([x, g]),
    "into a global one": lambda g, x: g.add_(x),
    "into a local one": lambda g, x: x.add_(g),
    "where": lambda g, x: flow.where(g > 0, g, x),
    "a mask": lambda g, x: g.masked_fill(x > 0, 1.0),
    "a number": lambda g, x: g * 2 + float(x.shape[0]),
    "a tensor of a number": lambda g, x: g * flow.tensor(2.0),
    "an index": lambda g, x: g[flow.tensor([0])],
    "linear": lambda g, x: F.linear(g, x),
    "norm": lambda g, x: F.layer_norm(g, (4,), x[0], x[0]),
    "sums": lambda g, x: g.sum() + x.sum(),
    "local ones into a global one": lambda g, x: flow.add(x, x, out=g),
    "global ones into a local one": lambda g, x: flow.add(g, g, out=x),
    "copied into a local one": lambda g, x: x.copy_(g),
    "copied into a global one": lambda g, x: g.copy_(x),
    "from outside": lambda g, x: g + LOCAL,
    "made global": lambda g, x: g + x.to_global(WHERE, BROADCAST),
    "made local": lambda g, x: g.to_local() * 2,
}


def check_local_and_global_tensors_in_a_graph():
    for sbp in (BROADCAST, ROWS):
        for name, function in MIXED.items():
            alike(name, function, lambda: (held((4, 4), sbp), flow.ones(4, 4) * 3))  # noqa: B023


def check_parts_without_elements_in_a_graph():
    for shape in ((4, 1), (1, 4), (1, 1), (0, 3), (3, 0)):
        for sbp in (BROADCAST, ROWS, COLUMNS):
            one = lambda: (held(shape, sbp),)  # noqa: B023, E731
            alike("pad", lambda x: F.pad(x.tile(2, 1), (1, 2)), one)
            alike("softmax", lambda x: F.softmax(x, -1) @ x.t(), one)
            alike("rows", lambda x: flow.cat([x[:1], x * 2]), one)
            for of in (BROADCAST, ROWS):
                alike("mv", flow.mv, lambda: (held(shape, sbp), held(shape[1:], of)))  # noqa: B023


def check_global_arguments_that_a_graph_writes():
    for sbp in (BROADCAST, ROWS, COLUMNS):
        two = lambda: (held((5, 3), sbp), held((5, 3), sbp))  # noqa: B023, E731
        alike("add_", lambda x, y: x.add_(y).mul_(2), two)
        alike("copy_", lambda x, y: y.copy_(x * 3), two)


class Staged(flow.nn.Graph):
    """A step of two stages, a batch in two micro-batches."""

    def __init__(self, *stages: flow.nn.Module) -> None:
        super().__init__()
        self.first, self.second = stages
        parameters = [p for stage in stages for p in stage.parameters()]
        self.add_optimizer(flow.optim.SGD(parameters, lr=0.1))
        self.config.set_gradient_accumulation_steps(2)

    def build(self, x: Any, y: Any) -> Any:
        x = self.first(x).to_global(placement=self.second.config.stage.placement)
        loss = (self.second(x) - y).square().mean()
        loss.backward()
        return loss


def check_a_pipeline_trains_as_one_rank_does():
    flow.manual_seed(0)
    stages = [flow.nn.Linear(4, 6), flow.nn.Sequential(flow.nn.Tanh(), flow.nn.Linear(6, 2))]
    whole = [flow.nn.Parameter(p.detach().clone()) for stage in stages for p in stage.parameters()]
    x, y = flow.randn(4, 4), flow.randn(4, 2)
    places = [flow.placement("cpu", [k]) for k in (0, world_size() - 1)]
    for k, stage in enumerate(stages):
        stage.to_global(places[k], BROADCAST).config.set_stage(k)
    graph = Staged(*stages)
    inputs = [t.to_global(WHERE, BROADCAST, check_meta=False).to_global(place, BROADCAST)
             for t, place in zip((x, y), places, strict=True)]  # fmt: skip
    optimizer = flow.optim.SGD(whole, lr=0.1)
    for _ in range(3):
        graph(*inputs)
        optimizer.zero_grad()
        hidden = F.linear(x, *whole[:2]).tanh()
        (F.linear(hidden, *whole[2:]) - y).square().mean().backward()
        optimizer.step()
    own = [p for stage in stages for p in stage.parameters()]
    for p, expected in zip(own, whole, strict=True):
        array = p.to_global(WHERE, BROADCAST).to_local().detach().numpy()
        np.testing.assert_allclose(array, expected.detach().numpy(), 1e-5, 1e-6)
