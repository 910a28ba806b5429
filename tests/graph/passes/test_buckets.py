"""Gradients that are summed over ranks together: which ones, and where."""

from dataclasses import replace

import pytest

import flowvm as flow
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.graph.passes.buckets import BUCKET, bucket_gradients
from flowvm.meta.meta import TensorMeta
from flowvm.ops.collectives.instructions import all_reduce_of, barrier_of
from flowvm.ops.declare.core import _cast
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.pointwise.arithmetic import _add

LANE = Operand(Buffer(0, BufferKind.VARIABLE, 8), 0, TensorMeta.of((1,), flow.int64))
EXCHANGE = {"stream": 1, "phase": "backward"}


class Graph:
    """A graph that is written down node by node."""

    def __init__(self):
        self.nodes, self.count = [], 0

    def new(self, *shape, dtype=flow.float32):
        self.count += 1
        meta = TensorMeta.of(shape, dtype)
        return Operand(Buffer(self.count, BufferKind.TEMPORARY, meta.nbytes), 0, meta)

    def add(self, operator, inputs, outputs, **options):
        node = OpNode(len(self.nodes), operator, inputs, outputs, phase="backward")
        self.nodes.append(replace(node, **options))

    def grad(self, *shape, dtype=flow.float32):
        x = self.new(*shape, dtype=dtype)
        self.add(_add.operator, (x, x), (x,))
        return x

    def reduced(self, x, ranks=(0, 1), **options):
        out = self.new(*x.meta.shape, dtype=x.meta.dtype)
        options = {**EXCHANGE, "attrs": ("sum", ranks), **options}
        self.add(operator_of(all_reduce_of), (x, LANE), (out,), **options)
        return out

    def copied(self, x):
        out = self.new(*x.meta.shape)
        self.add(_cast, (x,), (out,), attrs=(x.meta.dtype,))
        return out

    def run(self, *shown):
        return bucket_gradients(LogicalGraph("G", self.nodes, outputs=list(shown)))


def names(graph):
    return [node.operator.name for node in graph.nodes]


def test_a_run_of_gradients_is_one_exchange():
    g = Graph()
    a, b = g.grad(2, 3), g.grad(5)
    sums = [g.copied(g.reduced(a)), g.copied(g.reduced(b))]
    g.add(_add.operator, (sums[0], sums[0]), (sums[0],), into=True, phase="optimizer")
    after = g.run()
    assert names(after) == ["add", "add", "cat", "all_reduce", "cast", "cast", "add"]
    cat, exchange, *copies = after.nodes[2:6]
    assert [tuple(o.meta.shape) for o in cat.inputs] == [(6,), (5,)]
    assert cat.stream == exchange.stream == 1
    assert exchange.inputs == (cat.outputs[0], LANE)
    (whole,) = exchange.outputs
    assert tuple(whole.meta.shape) == (11,)
    assert whole.buffer.nbytes == 44
    for copy, start, old in zip(copies, (0, 24), (a, b), strict=True):
        assert copy.inputs[0] == Operand(whole.buffer, start, old.meta)


def test_it_goes_out_when_its_last_gradient_is_there():
    g = Graph()
    for _ in range(3):
        g.reduced(g.grad(4))
    assert names(g.run()) == ["add", "add", "add", "cat", "all_reduce"]


def test_a_bucket_has_at_most_so_many_bytes():
    g = Graph()
    for _ in range(5):
        g.reduced(g.grad(BUCKET // 8))  # half a bucket
    g.reduced(g.grad(BUCKET))  # too large for one
    assert names(g.run()).count("cat") == 2
    assert names(g.run()).count("all_reduce") == 4


def between(name):
    """Two gradients, and something between their exchanges."""
    g = Graph()
    first = g.grad(4)
    total = g.reduced(first)
    if name == "a reader":
        g.add(_add.operator, (total, total), (g.new(4),))
    elif name == "a copy that is read":
        copy = g.copied(total)
        g.add(_add.operator, (copy, copy), (g.new(4),))
    elif name == "a change":
        g.add(_add.operator, (first, first), (first,), into=True)
    elif name == "an exchange":
        g.add(operator_of(barrier_of), (LANE,), (), attrs=((0, 1),), **EXCHANGE)
    elif name == "another group":
        return g, [g.reduced(g.grad(4), ranks=(0, 2))]
    elif name == "another dtype":
        return g, [g.reduced(g.grad(4, dtype=flow.float64))]
    elif name == "another phase":
        return g, [g.reduced(g.grad(4), phase="forward")]
    second = g.reduced(g.grad(4))
    return g, [second]


@pytest.mark.parametrize(
    "name",
    ["a reader", "a copy that is read", "a change", "an exchange", "another group",
     "another dtype", "another phase"],
)  # fmt: skip
def test_what_must_stay_apart(name):
    g, _ = between(name)
    assert names(g.run()) == names(LogicalGraph("G", g.nodes))


def test_what_the_user_sees_stays_a_tensor_of_its_own():
    g, (second,) = between("nothing")
    assert "cat" in names(g.run())
    assert "cat" not in names(g.run(second))
