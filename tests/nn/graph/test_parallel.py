"""`config.enable_auto_parallel`: groups, prices and words.

What it finds on several ranks, and that losses stay: tests/ops/placed/test_processes.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError, ArgumentTypeError, CaptureError
from flowvm.graph.capture.capture import capturing
from flowvm.nn.graph import parallel
from flowvm.nn.graph.parallel import Price, Rates, Search, exchange_price
from flowvm.ops.collectives import instructions
from flowvm.ops.declare.registry import operator_of
from tests.ops.helpers import ranks

B, S = flow.sbp.broadcast, flow.sbp.split
RATES = Rates(flops=1e9, memory=1e9, bandwidth=1e8, latency=1e-5)


def test_kernels_are_no_exchanges():
    a = flow.ones(100, 100)
    with capturing("priced") as capture:
        capture.output(a @ a)
    assert exchange_price(capture.graph.nodes[0], RATES) is None


@pytest.mark.parametrize(
    ("declared", "count", "seconds"),
    [
        (instructions.all_reduce_of, 4, 2e-5 + 1.5 * 4000 / 1e8),
        (instructions.all_gather_of, 4, 1e-5 + 0.75 * 4000 / 1e8),
        (instructions.recv_of, 2, 1e-5 + 4000 / 1e8),
    ],
    ids=["all_reduce", "all_gather", "recv"],
)
def test_exchanges_are_priced_by_messages_and_bytes(declared, count, seconds):
    meta, order = flow.ones(1000)._meta, flow.ones(1)._meta
    operands = [SimpleNamespace(meta=m) for m in (meta, order)]
    node: Any = SimpleNamespace(
        operator=operator_of(declared),
        outputs=operands[:1],
        inputs=operands,
        attrs=("sum", tuple(range(count))),
    )
    np.testing.assert_allclose(exchange_price(node, RATES), seconds)


def test_groups_are_of_layers_alike_and_of_inputs_alike():
    def rank(k: int) -> None:
        where = flow.placement("cpu", [[0, 1], [2, 3]])
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)]).to_global(where, (B, B))
        named = {f"m.{name}": p for name, p in model.named_parameters()}
        x, y = (flow.zeros(8, 2, placement=where, sbp=(B, B)) for _ in range(2))
        z = flow.zeros(6, 2, placement=where, sbp=(B, B))  # not to be cut by all four
        search = Search("G", lambda value: None, [x, z, y, flow.ones(8)], named, [], 2, 16)
        weights, two, one = search.groups
        assert weights.name == "m.#.weight (3 of 8x8)"
        assert weights.members == [layer.weight for layer in model]
        cut = {(B, B), (B, S(0)), (B, S(1)), (S(0), B), (S(1), B), (S(0), S(1)), (S(1), S(0))}
        assert {*weights.ways} == cut  # and no dimension twice
        assert (two.name, two.members) == ("inputs 0, 2", [0, 2])
        assert two.ways == [(B, B), (S(0), B), (B, S(0))]
        assert (one.name, one.ways) == ("input 1", [(B, B)])

    ranks.run(4, rank)


def test_it_goes_down_and_out_of_a_hollow(monkeypatch):
    """Two groups that have to change together, as layers behind each other do."""

    def rank(k: int) -> None:
        where = flow.placement("cpu", [0, 1])
        named = {
            name: nn.Parameter(flow.zeros(n, 4, placement=where, sbp=B))
            for name, n in (("up", 4), ("down", 6))
        }
        search = Search("G", lambda value: None, [], named, [], 1, 1)
        computing = {B: 8.0, S(0): 4.0, S(1): 4.0}

        def price() -> Price:
            search.captures += 1
            (down,), (up,) = (group.now for group in search.groups)
            together = up is S(0) and down is S(1)
            whole = up is down is B
            exchanging = 0.0 if whole else 3.0 if together else 20.0
            return Price(computing[up] + computing[down], exchanging)

        monkeypatch.setattr(search, "_price", price)
        search.rates = RATES
        result = search.run()
        assert result is not None
        assert [group.now for group in result.groups] == [(S(1),), (S(0),)]
        assert result.before == Price(16.0, 0.0)
        assert result.after == Price(8.0, 3.0)
        head, measured, down, up = result.lines()
        assert head.startswith("auto parallel: 1.1e+04 ms (8e+03 computing, 3e+03 exchanging) a ")
        assert "1 GFLOP/s, 1 GB/s; exchanges 10 us and 0.1 GB/s" in measured
        assert (down, up) == ("  down (1 of 6x4): B -> S(1)", "  up (1 of 4x4): B -> S(0)")

    monkeypatch.setattr(parallel, "_measured", [RATES])
    ranks.run(2, rank)


def test_build_that_steps_an_optimizer_is_refused(monkeypatch):
    monkeypatch.setattr(parallel, "_measured", [RATES])

    def rank(k: int) -> None:
        where = flow.placement("cpu", [0, 1])
        p = nn.Parameter(flow.zeros(4, 4, placement=where, sbp=B))
        optimizer = flow.optim.SGD([p], lr=0.1)

        def build(value: Any) -> None:
            p.sum().backward()
            optimizer.step()

        before = p.storage()
        with pytest.raises(CaptureError, match="build steps an optimizer itself"):
            Search("G", build, [], {"p": p}, [p], 1, 1).run()
        assert p.storage() is before
        assert p.grad is None

    ranks.run(2, rank)


@pytest.mark.parametrize(
    ("kwargs", "error", "says"),
    [
        ({"mode": 1}, ArgumentTypeError, "mode must be bool"),
        ({"min_size": 2.0}, ArgumentTypeError, "min_size is an int, got 2.0"),
        ({"min_size": 0}, ArgumentError, "min_size is 1 or more, got 0"),
    ],
)
def test_bad_settings(kwargs, error, says):
    with pytest.raises(error, match=says):
        nn.Graph().config.enable_auto_parallel(**kwargs)


def test_local_tensors_leave_nothing_to_search():
    class Twice(nn.Graph):
        def build(self, x: Any) -> Any:
            return x * 2

    graph = Twice()
    graph.config.enable_auto_parallel()
    assert "auto parallel" in repr(graph.config)
    assert graph(flow.ones(2)).tolist() == [2, 2]
    assert "auto parallel:" not in graph.explain()
    graph.config.enable_auto_parallel(False)
    assert graph.config.auto_parallel == 0
