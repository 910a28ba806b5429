"""Elementwise fusion: nodes that become one kernel, and others; no result changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.live import Leaf
from flowvm.graph.capture.capture import capturing
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes.passes import PASSES, optimize
from flowvm.graph.plan.plan import compile_plan
from flowvm.ops.declare.recipes import made_by
from tests.graph.passes.test_passes import captured, names

X = flow.ones(3)


def fused(function, *inputs):
    """The graph after fusion, checked against eager code, and how many kernels it has left."""
    before = captured(function, *inputs)
    after = PASSES["fusion"](before)
    after.check()
    plan = compile_plan(after)
    for _ in range(2):
        for ours, theirs in zip(plan.launch(list(inputs)), interpret(before, inputs), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=2e-6, atol=1e-6)
    return names(after)


A, B, ROW = flow.randn(5, 7), flow.randn(5, 7), flow.randn(7)


def test_a_chain_is_one_kernel():
    assert len(fused(lambda x: 0.5 * x * (1 + (0.8 * (x + 0.04 * x * x * x)).tanh()), A)) == 1


def test_results_needed_outside_are_written_too():
    def function(x):
        y = x.exp() + 1
        z = y * 2
        return z.sum(0), y, z.sigmoid()

    assert fused(function, A) == ["fused[exp,add,mul,sigmoid]", "sum"]


def test_broadcast_inputs_and_strided_ones():
    assert len(fused(lambda x, r: (x * r + r).relu() - r.expand(5, 7) * x, A, ROW)) == 1
    assert len(fused(lambda x: (x.t().exp() * 2).neg(), A)) == 1
    assert len(fused(lambda x: (x[:, ::2] * 3 + 1).abs(), A)) == 1


def test_conditions_go_along():
    assert len(fused(lambda x, y: flow.where((x > 0) & (y < x), x * 2, y - 1), A, B)) == 1


def test_what_has_another_shape_or_dtype_stays_apart():
    assert len(fused(lambda x, r: (r * 2).exp() + x, A, ROW)) == 2
    assert len(fused(lambda x: (x * 2).double() * 3, A)) == 3
    assert len(fused(lambda x: (x * 2).sum() * 3 + 1, A)) == 3


def test_views_of_what_is_fused_stay_views_of_memory():
    names_after = fused(lambda x: (x * 2 + 1).t() + 3, flow.randn(4, 4))
    assert len(names_after) == 2


def test_writes_in_between_are_respected():
    w = flow.ones(3)

    def function(x):
        a = w * 2
        w.add_(x)
        return a.exp() + x

    graph = optimize(captured(function, X))
    np.testing.assert_allclose(interpret(graph, [X])[0].numpy(), np.exp([2.0] * 3) + 1, rtol=1e-6)
    np.testing.assert_allclose(
        compile_plan(graph).launch([X])[0].numpy(), np.exp([4.0] * 3) + 1, rtol=1e-6
    )


def test_numbers_inside_and_out():
    assert len(fused(lambda x: (x + 1.5) * 1e-30 - 3 * x**2 + float("inf"), A)) <= 2
    box = [2.0]
    with capturing("live", [(A, "x")]) as capture:
        rate = Leaf(box, (0,))
        out = flow.empty_like(A)
        flow.ops.sgd_step_(out.zero_(), (A * 2).exp() + 1, False, rate, 0.0)
        capture.output(out)
    plan = compile_plan(optimize(capture.graph))
    for box[0] in (2.0, 3.0):
        expected = -box[0] * (np.exp(2 * A.numpy()) + 1)
        np.testing.assert_allclose(plan.launch([A])[0].numpy(), expected, rtol=1e-5)


def test_equal_structure_is_compiled_once():
    def layers(x):
        for _ in range(6):
            x = (x * 1.25).exp().sum(0) + x.sigmoid() * x
        return x

    graph = PASSES["fusion"](captured(layers, A))
    kinds = {node.operator for node in graph.nodes if node.operator.name.startswith("fused")}
    assert len(kinds) < sum(node.operator.name.startswith("fused") for node in graph.nodes)


def test_nan_and_infinity_pass_through():
    x = flow.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40])
    graph = PASSES["fusion"](captured(lambda x: flow.maximum(x * 0 + x, x.neg()).relu(), x))
    expected = flow.maximum(x * 0 + x, x.neg()).relu().numpy()
    np.testing.assert_array_equal(compile_plan(graph).launch([x])[0].numpy(), expected)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.product(3)
def test_random_elementwise_programs(seed):
    rng = np.random.default_rng(seed)
    unary = ["exp", "tanh", "sigmoid", "relu", "neg", "abs", "sin"]

    def program(x, y):
        local = np.random.default_rng(seed + 1000)
        pool = [x, y]
        for _ in range(10):
            a, b = (pool[local.integers(len(pool))] for _ in range(2))
            kind = local.integers(5)
            if kind == 0:
                pool.append(getattr(a.clamp(-2, 2), unary[local.integers(len(unary))])())
            elif kind == 1:
                pool.append((a + b) * 0.5)
            elif kind == 2:
                pool.append(a.clamp(-2, 2) * b.clamp(-2, 2))
            elif kind == 3:
                pool.append(flow.where(a > b, a, b * 0.25))
            else:
                pool.append(a - b.mean())
        return tuple(pool[-3:])

    x, y = (flow.tensor(rng.standard_normal((4, 6)).astype(np.float32)) for _ in range(2))
    graph = captured(program, x, y)
    plan = compile_plan(optimize(graph))
    assert len(plan.tasks) < len(graph.nodes)
    for ours, theirs in zip(plan.launch([x, y]), program(x, y), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-5)


# --- float16 ------------------------------------------------------------------------------------


def test_float16_is_rounded_where_eager_code_rounds():
    """Each result that eager code stores is a float16, or sums and overflows would differ."""

    def function(x):
        y = (x.half() * 3.1 + 0.7).relu() * 60000
        return y.float() * 0.5, y

    x = flow.randn(1000) * 2
    before = captured(function, x)
    after = PASSES["fusion"](before)
    assert names(after) == ["fused[cast,mul,add,relu,mul,cast,1 more]"]
    for ours, theirs in zip(compile_plan(after).launch([x]), interpret(before, [x]), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert np.isinf(ours.numpy()).any()


def test_masks_become_numbers_inside():
    def function(x, y):
        return (x > y).float() * x + (x == 0).double().float()

    assert len(fused(lambda x, y: (x > y).float() * x, A, B)) == 1
    assert len(fused(function, A, B)) > 1  # a float64 is another arithmetic


def test_numbers_that_are_bools_stay_bools():
    def function(x, y):
        return flow.where((x > y) | False, x, y) * flow.where((x > 0) ^ True, x, 0.0)

    assert len(fused(function, A, B)) == 1
    assert len(fused(lambda x: ((x > 0) & True).float() + x, A)) == 1


def test_float64_and_float32_do_not_mix():
    assert "fused" not in "".join(fused(lambda x: x.double() * 2, A))


def test_what_nobody_reads_stays_as_it_is():
    assert fused(lambda x: ((x * 2).exp(), x + 1)[1], A) == ["mul", "exp", "add"]


# --- places -------------------------------------------------------------------------------------


def changed(graph, **fields):
    """The graph with fields of some nodes set: {name: {place: value}}."""
    for name, values in fields.items():
        for place, value in values.items():
            graph.nodes[place] = replace(graph.nodes[place], **{name: value})
    return graph


def test_nodes_of_two_streams_stay_apart():
    graph = captured(lambda x: ((x * 2).exp() + 1).tanh(), A)
    assert len(PASSES["fusion"](graph).nodes) == 1
    after = PASSES["fusion"](changed(graph, stream={2: 1, 3: 1}))
    assert [node.stream for node in after.nodes] == [0, 1]


def test_what_is_repeated_stays_together_and_nothing_else_gets_in():
    graph = captured(lambda x: ((x * 2).exp(), ((x + 1).tanh() * 3).exp(), (x - 1).exp()), A)
    assert names(graph) == ["mul", "exp", "add", "tanh", "mul", "exp", "sub", "exp"]
    repeats = {2: 4, 3: 4, 4: 4}
    after = PASSES["fusion"](changed(graph, repeat=repeats))
    counts = [node.repeat for node in after.nodes]
    assert counts.count(4) == 1
    # a group that could run inside of the section runs in front of it
    graph = captured(lambda x: (lambda a: ((a + 1).tanh() + a).sum())((x * 2).exp()), A)
    after = PASSES["fusion"](changed(graph, repeat={2: 4, 3: 4, 4: 4, 5: 4}))
    assert [node.repeat for node in after.nodes] == [1, 4, 4]


# --- kernels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 15, 16, 63, 64, 65, 127, 1000])
def test_every_length_of_a_row(size):
    """Loops take four vectors, then single ones of fewer lanes, then elements."""
    x = flow.linspace(-3, 3, size)
    y = flow.linspace(1, 2, size)
    fused(lambda x: 0.5 * x * (1 + (0.8 * (x + 0.04 * x**3)).tanh()), x)
    fused(lambda x, y: (x * y + 1).exp() - x.reshape(-1, 1) * y, x, y)


def test_a_fused_operator_can_be_made_again():
    graph = PASSES["fusion"](captured(lambda x: (x * 2).exp() + x.sigmoid(), A))
    (node,) = graph.nodes
    name, arguments = node.operator.origin.recipe
    assert made_by(name, arguments) is node.operator
    hash(arguments)


def test_other_sizes_use_the_same_kernel():
    def operator(n):
        return PASSES["fusion"](captured(lambda x: (x * 2).exp() + x, flow.ones(n))).nodes[0]

    one, other = operator(5), operator(700)
    assert one.operator is other.operator
    launches = [n.operator.kernel.lower((n.inputs[0].meta,), n.attrs) for n in (one, other)]
    assert launches[0].kernel == launches[1].kernel
