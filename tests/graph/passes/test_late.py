"""Readers of sums over ranks go behind nodes that do not need the sums."""

from dataclasses import replace

import numpy as np

from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import OpNode
from flowvm.graph.passes.late import read_sums_late, sums_awaited
from flowvm.graph.passes.updates import merge_updates
from flowvm.ops.collectives.instructions import all_gather_of
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.updates.optimizer import sgd_step_
from tests.graph.passes.test_buckets import EXCHANGE, LANE, Graph


class Program(Graph):
    """A graph whose nodes have names of their own, to ask for their places."""

    def __init__(self):
        super().__init__()
        self.named = {}

    def step(self, name, *inputs, **options):
        """A node of backward that reads these and makes a new tensor."""
        gradients = self.grad(4)
        node = replace(self.nodes[-1], inputs=(inputs * 2)[:2] or self.nodes[-1].inputs, **options)
        self.nodes[-1] = node
        self.named[id(node.outputs[0].buffer)] = name
        return gradients

    def summed(self, name, x, **options):
        out = self.reduced(x, **options)
        self.named[id(out.buffer)] = name
        return out

    def order(self, *shown):
        graph = read_sums_late(LogicalGraph("G", self.nodes, outputs=list(shown)))
        return [self.named[id(node.outputs[0].buffer)] for node in graph.nodes]


def test_readers_of_a_sum_wait_until_backward_is_over():
    p = Program()
    a = p.summed("sum a", p.step("a"))
    mean = p.step("mean of a", a)
    b = p.step("b")
    p.step("update of a", mean)
    p.step("update of b", p.summed("sum b", b))
    assert p.order() == [
        "a", "sum a", "b", "sum b", "mean of a", "update of a", "update of b"
    ]  # fmt: skip


def test_readers_of_the_first_sums_come_first():
    p = Program()
    a = p.summed("sum a", p.step("a"))
    b = p.summed("sum b", p.step("b"))
    p.step("update of b", b)
    p.step("update of a", a)
    both = p.step("norm", a, b)
    p.step("update of a again", both, a)
    assert p.order() == [
        "a", "sum a", "b", "sum b", "update of a", "update of b", "norm", "update of a again"
    ]  # fmt: skip
    assert sums_awaited(LogicalGraph("G", p.nodes)) == [0, 0, 0, 0, 2, 1, 2, 2]


def test_updates_of_different_sums_stay_apart():
    p = Program()
    sums = [p.summed(name, p.step(name)) for name in "ab"]
    weights = [p.new(4) for _ in range(4)]
    for k, weight in enumerate(weights):
        p.add(operator_of(sgd_step_), (weight, sums[k % 2]), (), phase="optimizer",
              scalars=(0.0, 0.1, 0.0))  # fmt: skip
    nodes = merge_updates(read_sums_late(LogicalGraph("G", p.nodes))).nodes
    first, second = (node for node in nodes if node.phase == "optimizer")
    assert {o.buffer for o in first.inputs} == {
        weights[0].buffer,
        weights[2].buffer,
        sums[0].buffer,
    }
    assert {o.buffer for o in second.inputs} == {
        weights[1].buffer,
        weights[3].buffer,
        sums[1].buffer,
    }


def test_an_exchange_that_needs_them_is_not_kept_waiting():
    p = Program()
    a = p.step("half of a", p.summed("sum a", p.step("a")))
    p.step("b")
    c = p.summed("sum c", p.step("c", a))
    p.step("of c", c)
    p.step("d")
    assert p.order() == ["a", "sum a", "b", "half of a", "c", "sum c", "d", "of c"]


def test_who_writes_what_they_read_stays_behind_them():
    p = Program()
    x = p.step("x")
    a = p.summed("sum a", p.step("a"))
    p.step("of a and x", a, x)
    p.add(p.nodes[0].operator, (a, a), (x,), into=True)  # x again
    p.named[id(x.buffer)] = "x"
    p.step("b")
    assert p.order() == ["x", "a", "sum a", "b", "of a and x", "x"]


def test_what_is_gathered_and_what_forward_sums_is_used_where_it_is():
    p = Program()
    out = p.new(8)
    p.step("a")
    options = {**EXCHANGE, "attrs": ((4, 4), (0, 1))}
    p.add(operator_of(all_gather_of), (p.nodes[-1].outputs[0], LANE), (out,), **options)
    p.named[id(out.buffer)] = "gathered"
    p.step("of all", out)
    forward = p.summed("sum", p.step("b"), phase="forward")
    p.step("of the sum", forward)
    p.step("c")
    expected = [p.named[id(node.outputs[0].buffer)] for node in p.nodes]
    assert p.order() == expected


def test_random_graphs_keep_conflicting_accesses_in_their_order(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        p = Program()
        known = [p.step("0")]
        for k in range(1, 25):
            x = known[rng.integers(len(known))]
            if rng.random() < 0.3:
                known.append(p.summed(str(k), x))
            elif rng.random() < 0.2:
                target = known[rng.integers(len(known))]
                p.add(p.nodes[0].operator, (x, x), (target,), into=True)
            else:
                known.append(p.step(str(k), x, known[rng.integers(len(known))]))
        nodes = [replace(node, scope=str(k)) for k, node in enumerate(p.nodes)]
        after = [int(n.scope) for n in read_sums_late(LogicalGraph("G", nodes)).nodes]
        assert sorted(after) == [*range(len(nodes))], seed
        exchanges = [k for k in after if "order" in nodes[k].operator.signature.writes]
        assert exchanges == sorted(exchanges), seed
        for at, k in enumerate(after):
            for before in after[:at]:
                assert before < k or not _conflict(nodes[before], nodes[k]), seed


def _conflict(first: OpNode, second: OpNode) -> bool:
    written = [{o.buffer for o in node.written()} for node in (first, second)]
    touched = [{o.buffer for _, o in node.accesses()} for node in (first, second)]
    return bool(written[0] & touched[1] or written[1] & touched[0])
