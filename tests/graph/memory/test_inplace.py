"""In-place reuse: results that may take the memory of an input, and others; no result changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import flowvm as flow
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.memory.inplace import reuse_memory
from flowvm.graph.passes.passes import optimize
from flowvm.graph.plan.plan import compile_plan
from tests.graph.helpers import captured


def pairs(function, *inputs):
    """Count the buffers that share another's memory; results have the bits of those before."""
    before = captured(function, *inputs)
    after = reuse_memory(before)
    plan, plain = compile_plan(after), compile_plan(before)
    plan.memory.check()
    assert plan.memory.nbytes <= plain.memory.nbytes
    expected = [t.numpy() for t in interpret(before, inputs)]
    for _ in range(3):
        for ours, theirs in zip(plan.launch(list(inputs)), expected, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)
    return len(after.shared())


F = flow.nn.functional
X, Y, ROW = flow.randn(40, 50), flow.randn(40, 50), flow.randn(50)


def test_a_chain_lies_in_one_place():
    graph = reuse_memory(captured(lambda x: (x * 2).exp().tanh().sum(), X))
    plan = compile_plan(graph)
    assert len(graph.shared()) == 2
    assert len({id(r.block) for r in plan.registers.values() if r.block is not None}) == 1
    assert plan.memory.nbytes < 2 * X.numel() * 4
    assert pairs(lambda x: (x * 2).exp().tanh().sum(), X) == 2


def test_nothing_is_shared_unless_permitted():
    graph = captured(lambda x: (x * 2).exp().tanh().sum(), X)
    assert not graph.shared()
    assert reuse_memory(graph).shared()


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x, y: ((x * 2) + y).sum(), 1),
        (lambda x, y: ((x * 2) + (y * 3)).sum(), 1),
        (lambda x, y: ((x * 2) * (x * 2)).sum(), 1),
        (lambda x, y: (lambda z: (z * z).sum())(x * 2), 1),
        (lambda x, y: (lambda z: (z.exp() + z).sum())(x * 2), 1),
        (lambda x, y: (x + 1).sum(), 0),
        (lambda x, y: (x * 2).exp(), 0),
        (lambda x, y: (lambda z: (z.exp().sum(), z))(x * 2), 0),
        (lambda x, y: (lambda z: z.exp().sum() + z.sum())(x * 2), 0),
        (lambda x, y: (lambda z: (z + z.flip(1)).sum())(x * 2), 1),
        (lambda x, y: (lambda z: (z[:40, :40] + z[:40, :40].t()).sum())(x * 2), 0),
        (lambda x, y: ((x * 2).t() * 3).sum(), 1),
        (lambda x, y: ((x[0] * 2) + y).sum(), 0),
        (lambda x, y: ((x * 2) > y).sum(), 0),
        (lambda x, y: ((x * 2).double() * 2).sum(), 1),
        (lambda x, y: ((x * 2)[1:] * 3).sum(), 0),
        (lambda x, y: ((x * 2).softmax(-1) * 3).sum(), 1),
        (lambda x, y: (lambda z: z[0].add_(z[1].exp()) + z[2] * 2)(x * 2), 0),
    ],
)
def test_what_dies_elementwise_is_reused(function, count):
    assert pairs(function, X, Y) == count


def test_values_of_other_dtypes_of_one_size():
    assert pairs(lambda x: ((x * 2).round() > 0).logical_not().sum(), X) == 2
    assert pairs(lambda x: ((x * 100).int() // 3).sum(), X) <= 2


def test_several_results_of_one_kernel_lie_where_several_inputs_lay():
    def function(x, y):
        a, b = x @ x.t(), y @ y.t()
        c = (a * b).exp()
        return (c + 1).sum(0), (c * a).sum(0)

    graph = optimize(captured(function, X * 0.1, Y * 0.1))
    fused = next(n for n in graph.nodes if "fused" in n.operator.name and len(n.outputs) == 2)
    places = graph.shared()
    roots = [places[o.buffer] for o in fused.outputs]
    assert len(set(roots)) == 2
    inputs = [X * 0.1, Y * 0.1]
    for ours, theirs in zip(compile_plan(graph).launch(inputs), function(*inputs), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)


def test_streams_and_repetitions_share_nothing():
    def nodes():
        return reuse_memory(captured(lambda x: (x * 2).exp().sum(), X))

    graph = nodes()
    assert len(graph.shared()) == 1
    graph.nodes[1].stream = 3
    assert not graph.shared()
    graph = nodes()
    graph.nodes[0].repeat = 2
    assert not graph.shared()


def test_it_is_in_print_and_can_be_switched_off():
    graph = captured(lambda x: (x * 2).exp().sum() + 0, X)
    assert "  same %1 and then %2" in str(optimize(graph, ["fusion"]))
    assert "  same " not in str(optimize(graph, ["fusion", "inplace"]))


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    unary = [flow.exp, flow.tanh, flow.neg, flow.abs, lambda t: t * 0.5, lambda t: t.clone()]

    def function(x, y):
        pool = [x * 2, y * 2]
        for _ in range(14):
            a, b = (pool[int(rng.integers(len(pool)))] for _ in range(2))
            kind = int(rng.integers(6))
            if kind < 2:
                pool.append(unary[int(rng.integers(len(unary)))](a))
            elif kind == 2:
                pool.append((a + b).clamp(-3, 3))
            elif kind == 3:
                pool.append(a[:, :1] * b)
            elif kind == 4:
                a.clamp_(-1, 1)
            else:
                pool.append(flow.where(a > b, a, b.t().contiguous().t()))
            if len(pool) > 4:
                pool.pop(int(rng.integers(len(pool))))
        return tuple(t.sum(0) for t in pool)

    values = [flow.tensor(rng.standard_normal((3, 5)).astype(np.float32)) for _ in range(2)]
    pairs(function, *values)


def test_a_program_on_rows_writes_over_what_its_elementwise_part_reads():
    """A gradient of GELU and the sum of it: nobody else reads what it is made of."""
    x, y = flow.randn(1024, 512), flow.randn(1024, 512)

    def function(x, y):
        z = (x @ flow.eye(512)) * y
        return z.sum(0), (z @ flow.eye(512)).sum()

    before = optimize(captured(function, x, y), ("epilogues",))
    (node,) = [
        n
        for n in before.nodes
        if n.operator.origin.recipe and n.operator.origin.recipe[0] == "rows"
    ]
    product = node.inputs[0].buffer
    assert before.shared()[node.outputs[0].buffer] is product
    plan = compile_plan(before)
    expected = [t.numpy() for t in interpret(replace(before, reuse=False), [x, y])]
    for ours, theirs in zip(plan.launch([x, y]), expected, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_a_program_on_rows_keeps_what_a_reduction_reads():
    """Softmax reads its rows several times: the mask behind it may not lie where they lay."""
    x, y = flow.randn(1024, 512), flow.randn(1024, 512)

    def function(x, y):
        z = x @ flow.eye(512)
        p = F.softmax(z, -1) * y
        return (p @ flow.eye(512)).sum() + (p * 2).sum()

    before = optimize(captured(function, x, y), ("epilogues",))
    rows = [
        n
        for n in before.nodes
        if n.operator.origin.recipe and n.operator.origin.recipe[0] == "rows"
    ]
    softmax = next(n for n in rows if "softmax" in n.operator.name)
    assert all(place != 0 for _, place in softmax.operator.kernel.aliases)
