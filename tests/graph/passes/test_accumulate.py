"""The passes `sums` and `accumulate`: gradients that are added up in one place."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes.accumulate import accumulate_in_place, values_of_sums
from flowvm.graph.passes.passes import optimize
from flowvm.graph.plan.plan import compile_plan
from tests.graph.helpers import captured, names


def compared(function, *inputs, make=accumulate_in_place, exact=False):
    """Return names of the nodes after the pass; check that the results are the same."""
    before = captured(function, *inputs)
    after = make(before)
    after.check()
    plan = compile_plan(after)
    expected = [t.numpy() for t in interpret(before, inputs)]
    for results in (plan.launch(list(inputs)), interpret(after, inputs), plan.launch(list(inputs))):
        for ours, theirs in zip(results, expected, strict=True):
            bound = 0 if exact else 1e-5 if theirs.dtype == np.float32 else 1e-13
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=bound, atol=bound)
    return names(after)


A, B = flow.randn(6, 6), flow.randn(6, 6)


def test_a_weight_used_many_times_has_one_gradient_at_a_time():
    """Each product begins with the sum of the products before it."""
    w = flow.randn(64, 64, requires_grad=True)

    def function(x):
        h = x
        for _ in range(8):
            h = h @ w
        h.sum().backward()
        g, w.grad = w.grad, None
        return g * 1

    x = flow.randn(4, 64) * 0.1
    graph = optimize(captured(function, x))
    assert "add" not in names(graph)
    plan = compile_plan(graph)
    assert plan.memory.nbytes < 3 * w.numel() * 4
    (expected,) = interpret(captured(function, x), [x])
    np.testing.assert_allclose(plan.launch([x])[0].numpy(), expected.numpy(), rtol=1e-3, atol=1e-2)


def test_a_table_used_as_embedding_and_as_output_layer():
    table = flow.randn(11, 6, requires_grad=True)
    index = flow.randint(0, 11, (4, 5))

    def function(index):
        x = flow.nn.functional.embedding(index, table)
        flow.nn.functional.linear(x, table).square().sum().backward()
        g, table.grad = table.grad, None
        return g * 1

    names = compared(function, index)
    assert "fill" not in names[names.index("_matmul_tn") :]
    assert names[names.index("index_reduce_") :] == ["index_reduce_", "cast", "mul"]


def test_scatters_into_zeros_add_to_what_there_is():
    def function(a, i):
        return a * 2 + flow.zeros(6, 6).scatter_add_(0, i, a)

    index = flow.randint(0, 6, (6, 6))
    assert compared(function, A, index) == ["mul", "scatter_reduce_"]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, i: (lambda z: (z + b, z))(flow.zeros(6, 6).index_add_(0, i, a)),
        lambda a, b, i: (lambda z: z + z)(flow.zeros(6, 6).index_add_(0, i, a)),
        lambda a, b, i: b + flow.zeros(6, 6).index_add_(0, i, a),
        lambda a, b, i: (lambda c: (c + flow.zeros(6, 6).index_add_(0, i, a), c))(b * 2),
        lambda a, b, i: (b * 2)[:, :1] + flow.zeros(6, 6).index_add_(0, i, a),
        lambda a, b, i: (b * 2).t() + flow.zeros(6, 6).index_add_(0, i, a),
        lambda a, b, i: b * 2 + flow.ones(6, 6).index_add_(0, i, a),
        lambda a, b, i: b * 2 + flow.zeros(6, 6).index_copy_(0, i, a),
        lambda a, b, i: (lambda c: c + flow.zeros(6, 6).index_add_(0, i, c))(b * 2),
        lambda a, b, i: b * 2 + flow.zeros(6, 6).index_add_(0, i, a).index_add_(0, i, a),
        lambda a, b, i: (lambda c, z: (c.mul_(3), b * 2 + z)[1])(
            *(lambda c: (c, flow.zeros(6, 6).index_add_(0, i, c)))(a * 1)
        ),
    ],
    ids=[
        "needed elsewhere", "with itself", "to an input", "other is needed", "broadcast", "a view",
        "ones", "not a sum", "scatters the other", "twice", "source changes",
    ],
)  # fmt: skip
def test_other_sums_stay(function):
    index = flow.tensor([0, 3, 3, 1, 5, 0])
    before = names(captured(function, A, B, index))
    assert compared(function, A, B, index, exact=True) == before


def test_in_place_sums_become_values():
    w = flow.randn(6, 6, requires_grad=True)

    def function(x):
        (x @ w).sum().backward()
        (x @ w * 2).square().sum().backward()
        first = w.grad * 1
        (x @ w).square().sum().backward()
        g, w.grad = w.grad, None
        return first, g, g * 1

    before = captured(function, A)
    assert names(before).count("accumulate_") == 2
    ops = compared(function, A, make=values_of_sums, exact=True)
    assert "accumulate_" not in ops
    assert not {"accumulate_", "add"} & set(names(optimize(before)))
    compared(function, A, make=optimize)


def test_what_is_kept_in_variables_is_added_in_place():
    total = flow.zeros(6, 6)

    def function(x):
        flow.ops.updates.accumulate.accumulate_(total, x)
        flow.ops.updates.accumulate.accumulate_((x * 2)[1:], x[1:])
        return x + 1

    graph = values_of_sums(captured(function, A))
    assert names(graph).count("accumulate_") == 2
    compile_plan(graph).launch([A])
    np.testing.assert_array_equal(total.numpy(), A.numpy())


def test_what_repetitions_add_to_is_not_renamed():
    def function(x):
        total = x * 1
        flow.ops.updates.accumulate.accumulate_(total, x)
        return total * 1

    graph = captured(function, A)
    graph.nodes[1].repeat = 3
    assert "accumulate_" in names(values_of_sums(graph))


@pytest.mark.parametrize("seed", range(40))
def test_random_sums(seed):
    rng = np.random.default_rng(seed)
    index = flow.randint(0, 4, (4,))

    def function(a, b):
        pool = [a * 1, b * 1]
        for _ in range(8):
            x, y = (pool[int(rng.integers(len(pool)))] for _ in range(2))
            kind = int(rng.integers(6))
            if kind == 0:
                pool.append(x @ y + pool[int(rng.integers(len(pool)))])
            elif kind == 1:
                pool.append(x @ y)
            elif kind == 2:
                pool.append(x + y)
            elif kind == 3:
                flow.ops.updates.accumulate.accumulate_(x, y * 0.5)
            elif kind == 4:
                pool.append(flow.zeros(4, 4, dtype=flow.float64).index_add(0, index, x) + y)
            else:
                pool.append(flow.zeros(4, 4, dtype=flow.float64).index_add_(0, index, x) + y.tanh())
        return tuple(pool[int(k)] for k in rng.integers(len(pool), size=3))

    values = [flow.tensor(rng.standard_normal((4, 4)) / 3) for _ in range(2)]
    compared(function, *values, make=lambda g: accumulate_in_place(values_of_sums(g)))
