"""Epilogues: nodes that join a matrix product, and others; no result changes."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes.passes import PASSES, optimize
from flowvm.graph.plan.plan import compile_plan
from flowvm.ops.declare.recipes import made_by
from tests.graph.passes.test_passes import captured, names

A, B, C = flow.randn(5, 7), flow.randn(7, 6), flow.randn(5, 6)

W, BIAS = flow.randn(6, 7), flow.randn(6)
F = flow.nn.functional


def joined(function, *inputs, rtol=2e-6):
    """Return names after the pass; check that the results are the same."""
    before = captured(function, *inputs)
    after = PASSES["epilogues"](before)
    after.check()
    plan = compile_plan(after)
    for _ in range(2):
        for ours, theirs in zip(plan.launch(list(inputs)), interpret(before, inputs), strict=True):
            scale = np.abs(theirs.numpy()[np.isfinite(theirs.numpy())]).max(initial=0)
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=rtol, atol=rtol * scale)
    return names(after)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "hardtanh", "hardswish", "abs"])
@pytest.mark.parametrize("dtype", [flow.float32, flow.float64])
def test_an_activation_joins_its_product(name, dtype):
    x, w, b = (t.to(dtype) for t in (A, W, BIAS))
    function = getattr(F, name, None) or getattr(flow, name)
    (joined_name,) = joined(lambda x: function(F.linear(x, w, b)), x)
    assert joined_name.startswith("linear[")


@pytest.mark.parametrize("name", ["gelu", "tanh", "sigmoid", "silu", "exp"])
def test_long_functions_keep_a_kernel_of_their_own(name):
    function = getattr(F, name, None) or getattr(flow, name)
    assert joined(lambda x: function(F.linear(x, W, BIAS)), A)[0] == "linear"


def test_what_the_sums_start_with():
    assert joined(lambda x: x @ B + BIAS, A) == ["matmul[add]"]
    assert joined(lambda x, c: c + x @ B, A, C) == ["matmul[add]"]
    assert joined(lambda x, c: (lambda y: y.relu() * 2 - y)(x @ B + c), A, C) == [
        "matmul[add,relu,mul,sub]"
    ]
    assert joined(lambda x, c: (x @ B + c).relu() * 2, A, C) == ["matmul[add,relu,mul]"]
    assert joined(lambda x: x @ B + x @ B.relu(), A)[-1] == "matmul[add]"


def test_one_more_operand_anywhere():
    assert joined(lambda x, c: x @ B * 0.3 + c, A, C) == ["matmul[mul,add]"]
    assert joined(lambda x, c: (x @ B) * (c > 0).float(), A, C) == ["matmul[gt,cast,mul]"]
    assert joined(lambda x, c: c - x @ B, A, C) == ["matmul[sub]"]
    assert joined(lambda x, c: x @ B - c[0], A, C) == ["matmul[sub]"]
    assert joined(lambda x, c: F.linear(x, B.t()) + c.t().contiguous().t(), A, C) != []


def test_batches():
    q, k, mask = flow.randn(2, 3, 16, 8), flow.randn(2, 3, 16, 8), flow.randn(16, 16)
    product = lambda q, k: q @ k.transpose(-1, -2)  # noqa: E731
    assert joined(lambda q, k: product(q, k) * 0.35 + mask, q, k) == ["matmul[mul,add]"]
    assert joined(lambda q, k: product(q, k) + flow.ones(3, 1, 1) * mask, q, k)[-1] == "matmul[add]"


def test_a_layer_with_a_bias_takes_no_other_operand():
    assert joined(lambda x, c: F.linear(x, W, BIAS) + c, A, C) == ["linear", "add"]
    assert joined(lambda x, c: F.linear(x, W, BIAS).relu() + c, A, C) == ["linear[relu]", "add"]


def test_vectors_are_not_added_to():
    assert joined(lambda x: x[0] @ B + BIAS, A) == ["matmul", "add"]
    assert joined(lambda x: (x @ B[:, 0] + x[:, 0]).relu(), A)[0] == "matmul"


def test_what_goes_into_the_product_stays_outside():
    assert joined(lambda x: (x * 2) @ B * 3, A) == ["mul", "matmul[mul]"]
    # the product's own input as the other operand
    square = flow.randn(5, 5)
    assert joined(lambda x: x @ square + x, flow.randn(5, 5)) == ["matmul[add]"]


def test_a_product_is_not_moved_past_a_change_of_what_it_reads():
    w = flow.ones(7, 6)

    def function(x, c):
        y = x @ w
        w.mul_(2)
        return y + c * w[:5, :6]

    before = captured(function, A, C)
    after = compile_plan(PASSES["epilogues"](before))
    ours = after.launch([A, C])[0].numpy()
    expected = A.numpy() @ np.ones((7, 6), np.float32) + C.numpy() * 2
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_a_product_with_an_epilogue_can_be_made_again():
    (node,) = PASSES["epilogues"](captured(lambda x, c: x @ B * 0.3 + c, A, C)).nodes
    name, arguments = node.operator.origin.recipe
    assert made_by(name, arguments) is node.operator
    hash(arguments)


def test_products_that_others_read_keep_their_result():
    def two_readers(x):
        y = F.linear(x, W, BIAS)
        return y.relu(), y.sum()

    def shown(x):
        y = F.linear(x, W, BIAS)
        return y, y.relu()

    def view(x):
        return F.linear(x, W, BIAS)[1:].relu()

    def changed(x):
        y = F.linear(x, W, BIAS)
        z = y.relu()
        z.add_(1)
        return z

    for function in (two_readers, shown, view, changed):
        before = captured(function, A)
        after = PASSES["epilogues"](before)
        assert "linear" in names(after), function.__name__
        for ours, theirs in zip(
            compile_plan(optimize(before)).launch([A]), interpret(before, [A]), strict=True
        ):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_nan_and_infinity_go_through_an_epilogue():
    x = flow.tensor([[float("nan")] * 7, [float("inf")] * 7, [-float("inf")] * 7])
    before = captured(lambda x: F.linear(x, W.abs(), BIAS).relu(), x)
    np.testing.assert_array_equal(
        compile_plan(optimize(before)).launch([x])[0].numpy(), interpret(before, [x])[0].numpy()
    )
