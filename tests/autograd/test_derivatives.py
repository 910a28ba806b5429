"""Jacobians, Hessians, gradcheck, checkpoint and the search for NaN."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.autograd import detect_anomaly, gradcheck, gradgradcheck, set_detect_anomaly
from flowvm.autograd.gradcheck import GradcheckError
from flowvm.meta.dtype import float64
from flowvm.ops.random.generator import default_generator
from flowvm.ops.random.random import rand

X = np.array([0.5, 1.5, 2.0])
A = np.array([[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]])


def test_vjp_and_jvp(lib, check):
    m = lib.leaf(A, requires_grad=False)

    def f(x):
        return m @ (x * x)

    x = lib.leaf(X, requires_grad=False)
    jacobian = A * 2 * X
    v, u = np.array([1.0, -2.0]), np.array([0.5, 1.0, -1.0])
    out, product = lib.functional.vjp(f, x, lib.leaf(v, requires_grad=False))
    check(out, A @ (X * X))
    check(product, v @ jacobian)
    out, product = lib.functional.jvp(f, x, lib.leaf(u, requires_grad=False))
    check(product, jacobian @ u)
    assert not product.requires_grad


def test_jacobian(lib, check):
    m = lib.leaf(A, requires_grad=False)
    check(lib.functional.jacobian(lambda x: m @ (x * x), lib.leaf(X)), A * 2 * X)
    blocks = lib.functional.jacobian(lambda x, y: x * y, (lib.leaf(X), lib.leaf(2 * X)))
    check(blocks[0], np.diag(2 * X))
    check(blocks[1], np.diag(X))


def test_hessian_and_its_products(lib, check):
    def f(x):
        return (x * x * x).sum() + x[0] * x[1]

    hessian = np.diag(6 * X)
    hessian[0, 1] = hessian[1, 0] = 1
    v = np.array([1.0, 2.0, -1.0])
    check(lib.functional.hessian(f, lib.leaf(X)), hessian)
    check(lib.functional.vhp(f, lib.leaf(X), lib.leaf(v))[1], v @ hessian)
    check(lib.functional.hvp(f, lib.leaf(X), lib.leaf(v))[1], hessian @ v)


def test_strict_refuses_what_does_not_depend(lib):
    with pytest.raises(RuntimeError):
        lib.functional.jacobian(lambda x: x.detach(), lib.leaf(X), strict=True)


# --- gradcheck --------------------------------------------------------------------------------


def test_gradcheck_passes(lib):
    def f(x, y):
        return x * y.exp(), x + y

    inputs = (lib.leaf(X), lib.leaf(X[:1]))
    assert lib.autograd.gradcheck(f, inputs)
    assert lib.autograd.gradgradcheck(f, inputs)


def wrong(lib, first=1.0, second=1.0):
    class Square(lib.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with lib.no_grad():
                rest = x * (first - second)
            return 2 * g * (x * second + rest)

    return Square.apply


def test_gradcheck_finds_a_wrong_gradient(flow):
    with pytest.raises(GradcheckError, match=r"(?s)output 0 .* input 0.*numerical.*analytical"):
        gradcheck(wrong(flow, first=1.1), flow.leaf(X))
    assert not gradcheck(wrong(flow, first=1.1), flow.leaf(X), raise_exception=False)


def test_gradgradcheck_finds_a_wrong_second_gradient(flow):
    assert gradcheck(wrong(flow, second=1.1), flow.leaf(X))
    with pytest.raises(GradcheckError, match="mismatch"):
        gradgradcheck(wrong(flow, second=1.1), flow.leaf(X))


def test_gradcheck_wants_float64(flow):
    with pytest.raises(ValueError, match="float64"):
        gradcheck(lambda x: x * 2, flow.leaf(X, dtype=np.float32))


# --- checkpoint -------------------------------------------------------------------------------


def test_checkpoint(lib, check):
    x, w = lib.leaf(X), lib.leaf(X)
    calls = []

    def block(t):
        calls.append(1)
        return (t * w).exp()

    y = lib.checkpoint(block, x * 2)
    assert len(calls) == 1
    y.sum().backward()
    assert len(calls) == 2
    check(x.grad, 2 * X * np.exp(2 * X * X))
    check(w.grad, 2 * X * np.exp(2 * X * X))


def test_checkpoints_with_grad_and_inside_one_another(lib, check):
    x, w = lib.leaf(X), lib.leaf(X)

    def inner(t):
        return t.exp() * w

    def outer(t):
        return lib.checkpoint(inner, t) * lib.checkpoint(inner, t * 1)

    y = lib.checkpoint(outer, x).sum()
    gx, gw = lib.autograd.grad(y, [x, w])
    check(gx, 2 * np.exp(2 * X) * X**2)
    check(gw, 2 * np.exp(2 * X) * X)
    assert x.grad is None
    assert w.grad is None


def test_a_second_derivative_through_a_checkpoint(flow):
    x, w = flow.leaf(X), flow.leaf(X)
    y = flow.checkpoint(lambda t: (t * w).exp(), x)
    (first,) = flow.autograd.grad(y.sum(), x, create_graph=True)
    np.testing.assert_allclose(first.numpy(), X * np.exp(X * X))
    second, mixed = flow.autograd.grad(first.sum(), [x, w])
    np.testing.assert_allclose(second.numpy(), X**2 * np.exp(X * X))
    np.testing.assert_allclose(mixed.numpy(), (1 + X * X) * np.exp(X * X))


def test_a_checkpoint_repeats_its_random_numbers(flow):
    x = flow.leaf(np.ones(50))
    y = flow.checkpoint(lambda t: t * rand(50, dtype=float64), x)
    after = default_generator.get_state().numpy()
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())
    np.testing.assert_array_equal(default_generator.get_state().numpy(), after)


def test_a_checkpoint_of_what_needs_no_gradient(lib):
    x = lib.leaf(X, requires_grad=False)
    assert not lib.checkpoint(lambda t: t * 2, x).requires_grad


# --- anomalies --------------------------------------------------------------------------------


def test_a_nan_names_the_line(flow):
    x = flow.leaf([0.0, 4.0])
    with detect_anomaly():
        y = (x * 0).sqrt() * 0  # the line that is to blame
        with pytest.raises(RuntimeError, match=r"(?s)SqrtBackward.*nan.*to blame"):
            y.sum().backward()
    (x.sqrt() * 0).sum().backward()


def test_the_search_ends_with_its_block(flow):
    with set_detect_anomaly(True):
        assert flow.autograd.is_anomaly_enabled()
    assert not flow.autograd.is_anomaly_enabled()


def test_gradients_of_many_weights_at_once():
    x = flow.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y, z = x * x, x.sum()
    rows = flow.eye(3)
    (jacobian,) = flow.autograd.grad(y, x, rows, retain_graph=True, is_grads_batched=True)
    assert jacobian.tolist() == [[2, 0, 0], [0, 4, 0], [0, 0, 6]]
    weights = (rows, flow.arange(3.0))
    (both,) = flow.autograd.grad((y, z), x, weights, create_graph=True, is_grads_batched=True)
    assert both.tolist() == [[2, 0, 0], [1, 5, 1], [2, 2, 8]]
    (second,) = flow.autograd.grad(both.sum(), x, retain_graph=True)
    assert second.tolist() == [2, 2, 2]
    unused = flow.ones(2, requires_grad=True)
    _, none = flow.autograd.grad(
        y, (x, unused), rows, True, is_grads_batched=True, allow_unused=True
    )
    assert none is None
    _, zeros = flow.autograd.grad(
        y, (x, unused), rows, True, is_grads_batched=True, materialize_grads=True
    )
    assert zeros.tolist() == [[0, 0]] * 3
    for wrong in (None, flow.tensor(1.0), (rows, rows)):
        with pytest.raises(RuntimeError):
            flow.autograd.grad(y, x, wrong, True, is_grads_batched=True)


def test_only_inputs_is_taken_where_it_stands_in_pytorch():
    x = flow.tensor([3.0], requires_grad=True)
    (g,) = flow.autograd.grad(x * x, x, flow.ones(1), True, True, True, False)
    assert g.tolist() == [6]
    assert flow.autograd.grad(g, x, only_inputs=True)[0].tolist() == [2]
