"""Gradients, and where they go."""

import gc
import threading
import weakref

import numpy as np
import pytest

X = np.array([0.5, 1.5, 2.0])


def test_gradient_of_an_expression(lib, check):
    x = lib.leaf(X)
    (x * x + x.exp()).sum().backward()
    check(x.grad, 2 * X + np.exp(X))


def test_gradients_of_several_backwards_add_up(lib, check):
    x = lib.leaf(X)
    for _ in range(3):
        (x * 2).sum().backward()
    check(x.grad, np.full(3, 6.0))


def test_a_leaf_used_many_times(lib, check):
    x = lib.leaf(X)
    (x * x * x + x + x).sum().backward()
    check(x.grad, 3 * X**2 + 2)


def test_diamond_waits_for_both_sides(lib, check):
    x = lib.leaf(X)
    y = x * x
    z = y.exp() + y
    (z * y).sum().backward()
    y = X**2
    check(x.grad, ((np.exp(y) + 1) * y + np.exp(y) + y) * 2 * X)


def test_broadcast_operands_get_their_own_shape(lib, check):
    x, y = lib.leaf(X), lib.leaf([[1.0], [2.0]])
    (x * y).sum().backward()
    check(x.grad, np.full(3, 3.0))
    check(y.grad, np.full((2, 1), X.sum()))


def test_matrix_product_and_relu(lib, check):
    a, b = np.array([[1.0, -2.0], [3.0, 0.5]]), np.array([[0.5, 1.0], [-1.0, 2.0]])
    x, w = lib.leaf(a), lib.leaf(b)
    (x @ w).relu().sum().backward()
    mask = (a @ b > 0).astype(float)
    check(x.grad, mask @ b.T)
    check(w.grad, a.T @ mask)


def test_views(lib, check):
    x = lib.leaf(np.arange(6.0).reshape(2, 3))
    (x.t()[1] * x.reshape(-1)[:2]).sum().backward()
    check(x.grad, [[1.0, 4, 0], [0, 1, 0]])


def test_gradient_argument(lib, check):
    x = lib.leaf(X)
    (x * x).backward(lib.leaf([1.0, 10.0, 100.0], requires_grad=False))
    check(x.grad, 2 * X * [1, 10, 100])


def test_a_tensor_without_a_scalar_needs_a_gradient(lib):
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        (lib.leaf(X) * 2).backward()


def test_a_gradient_of_another_shape_is_refused(lib):
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (lib.leaf(X) * 2).backward(lib.leaf([1.0, 2.0]))


def test_backward_of_a_constant_is_refused(lib):
    with pytest.raises(RuntimeError, match="does not require grad"):
        lib.leaf([1.0], requires_grad=False).backward()


def test_backward_of_a_leaf(lib, check):
    x = lib.leaf(2.0)
    x.backward()
    check(x.grad, 1.0)


def test_backward_of_several_tensors(lib, check):
    x = lib.leaf(X)
    y = x * x
    lib.autograd.backward([y.sum(), y.exp()], [None, lib.leaf([1.0, 0, 0])])
    check(x.grad, 2 * X * (1 + np.exp(X**2) * [1, 0, 0]))


def test_one_output_that_another_is_computed_from(lib, check):
    x = lib.leaf(X)
    y = x * 3
    z = y * y
    gx, gy = lib.autograd.grad([y.sum(), z.sum()], [x, y])
    check(gx, 3 + 18 * X)
    check(gy, 1 + 6 * X)


def test_backward_twice_says_what_to_do(lib):
    y = lib.leaf(X).exp().sum()
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()


def test_retain_graph(lib, check):
    x = lib.leaf(X)
    y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    check(x.grad, 2 * np.exp(X))


def test_inputs_get_gradients_alone(lib, check):
    x, w = lib.leaf(X), lib.leaf(X)
    (x * w).sum().backward(inputs=[x])
    check(x.grad, X)
    assert w.grad is None


def test_inputs_that_are_no_leaves(lib, check):
    x = lib.leaf(X)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward(inputs=[y])
    check(y.grad, 4 * X)
    assert x.grad is None


def test_grad_leaves_dot_grad_alone(lib, check):
    x, w = lib.leaf(X), lib.leaf(X)
    gx, gw = lib.autograd.grad((x * x * w).sum(), [x, w])
    check(gx, 2 * X * X)
    check(gw, X * X)
    assert x.grad is None
    assert w.grad is None


def test_grad_of_an_inner_tensor_and_its_source(lib, check):
    x = lib.leaf(X)
    y = x.exp()
    gx, gy = lib.autograd.grad((y * y).sum(), [x, y])
    check(gx, 2 * np.exp(2 * X))
    check(gy, 2 * np.exp(X))


def test_unused_inputs(lib, check):
    x, w = lib.leaf(X), lib.leaf(X)
    y = (x * 2).sum()
    with pytest.raises(RuntimeError, match="not have been used"):
        lib.autograd.grad(y, [x, w], retain_graph=True)
    assert lib.autograd.grad(y, [x, w], retain_graph=True, allow_unused=True)[1] is None
    check(lib.autograd.grad(y, [x, w], materialize_grads=True)[1], np.zeros(3))


def test_gradients_of_gradients(lib, check):
    x = lib.leaf(X)
    (first,) = lib.autograd.grad((x.exp() * x).sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = lib.autograd.grad(second.sum(), x)
    for n, g in enumerate((first, second, third), 1):
        check(g, np.exp(X) * (X + n))


def test_backward_through_a_gradient(lib, check):
    x = lib.leaf(X)
    (g,) = lib.autograd.grad((x * x * x).sum(), x, create_graph=True)
    (g * g).sum().backward()
    check(x.grad, 36 * X**3)


def test_accumulating_with_create_graph(lib, check):
    x = lib.leaf(X)
    (x * x).sum().backward(create_graph=True)
    (x * x * x).sum().backward(create_graph=True)
    check(x.grad, 2 * X + 3 * X**2)
    assert x.grad.requires_grad
    check(lib.autograd.grad(x.grad.sum(), x)[0], 2 + 6 * X)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_gradient_has_its_leaf_s_dtype(lib, dtype):
    x, w = lib.leaf([1, 2], dtype=dtype), lib.leaf([3.0, 4.0])
    (x * w).sum().backward()
    assert lib.value(x.grad).dtype == dtype
    assert lib.value(w.grad).dtype == np.float64


def test_gradients_do_not_share_memory(lib, check):
    x, y = lib.leaf(X), lib.leaf(X)
    start = lib.leaf([1.0, 1, 1], requires_grad=False)
    (x + y).backward(start)
    with lib.no_grad():
        x.grad.mul_(5)
    check(y.grad, np.ones(3))
    check(start, np.ones(3))


def test_a_kept_gradient_is_not_changed_by_grad(lib, check):
    x = lib.leaf(X)
    (g,) = lib.autograd.grad((x * x).sum(), x)
    (x * x).sum().backward()
    (x * x).sum().backward()
    check(g, 2 * X)


def test_large_gradients_add_up_in_place_without_harm(lib, check):
    x = lib.leaf(np.ones((200, 200)))
    y = x * 2
    (y * 3 + y * 4 + y + y).sum().backward()
    check(x.grad, np.full((200, 200), 18.0))
    start = lib.leaf(np.ones((200, 200)), requires_grad=False)
    x.grad = None
    (x + x + x).backward(start)
    check(x.grad, np.full((200, 200), 3.0))
    check(start, np.ones((200, 200)))


def test_a_multi_output_op_with_one_output_used(lib, check):
    x = lib.leaf([[3.0, 1.0], [2.0, 5.0]])
    x.max(dim=1)[0].sum().backward()
    check(x.grad, [[1.0, 0], [0, 1]])
    a, _, c = lib.leaf(X).unbind(0)
    assert a.requires_grad
    assert c.requires_grad


# --- leaves -----------------------------------------------------------------------------------


def test_leaves_and_nodes(lib):
    x = lib.leaf(X)
    y = x * 2
    assert (x.is_leaf, x.grad_fn, x.requires_grad) == (True, None, True)
    assert (y.is_leaf, y.requires_grad) == (False, True)
    assert y.grad_fn.name().startswith("MulBackward")
    assert y.detach().is_leaf
    assert y.grad_fn.next_functions[0][0].name().endswith("AccumulateGrad")


def test_integers_cannot_require_grad(lib):
    with pytest.raises(RuntimeError, match="floating point"):
        lib.leaf([1, 2], requires_grad=False, dtype=np.int64).requires_grad_()


def test_a_result_cannot_stop_requiring_grad(lib):
    with pytest.raises(RuntimeError, match="leaf variables"):
        (lib.leaf(X) * 2).requires_grad_(False)


def test_a_frozen_leaf_gets_no_gradient(lib, check):
    x, w = lib.leaf(X), lib.leaf(X)
    x.requires_grad_(False)
    y = (x * w).sum()
    x.requires_grad = True
    y.backward()
    assert x.grad is None
    check(w.grad, X)


def test_a_leaf_that_is_gone(lib):
    y = (lib.leaf(X) * lib.leaf(X)).sum()
    y.backward()


def test_the_graph_is_freed_with_its_output(flow):
    x = flow.leaf(X)
    held = x * 2
    y = held.exp()
    gone = weakref.ref(held)
    del held
    assert gone() is None or gc.collect() >= 0
    gc.disable()
    try:
        a = flow.leaf(X)
        b = a.exp()
        watched = weakref.ref(b)
        (b * b).sum().backward()
        del b
        assert watched() is None, "a reference cycle keeps a graph that backward has gone through"
    finally:
        gc.enable()
    assert y.requires_grad


# --- deep and wide graphs -----------------------------------------------------------------------


def test_a_chain_of_100_000_operations(flow):
    x = flow.leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y + x
    y.backward()
    assert x.grad.item() == 100_001.0


@pytest.mark.parametrize("backward", [False, True])
def test_a_chain_of_100_000_operations_is_dropped(flow, backward):
    x = flow.leaf(1.0)
    y = x
    for _ in range(50_000):
        y = (y * x).relu()  # both save an operand, so tensors and nodes alternate
    if backward:
        y.backward()
        assert x.grad.item() == 50_001.0  # x ** 50_001, at 1
    del y


def test_many_paths_are_not_walked_one_by_one(lib, check):
    x = lib.leaf(1.0)
    y = x
    for _ in range(40):
        y = y + y  # 2**40 paths
    y.backward()
    check(x.grad, 2.0**40)


# --- threads ------------------------------------------------------------------------------------


def test_threads_run_their_own_backward(flow):
    results = {}

    def work(n):
        x = flow.leaf(X)
        for _ in range(20):
            (x * float(n)).sum().backward()
        results[n] = flow.value(x.grad)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n in range(4):
        np.testing.assert_allclose(results[n], np.full(3, 20.0 * n))


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_in_a_hook_leaves_everything_usable(lib, check):
    x = lib.leaf(X)
    y = x * 2

    def hook(g):
        raise ZeroDivisionError("in a hook")

    handle = y.register_hook(hook)
    z = y.exp().sum()
    with pytest.raises(ZeroDivisionError, match="in a hook"):
        z.backward(retain_graph=True)
    assert lib.is_grad_enabled()
    handle.remove()
    (x * 2).exp().sum().backward()
    check(x.grad, 2 * np.exp(2 * X))


def test_an_error_of_a_gradient_names_the_operation(flow):
    class Wrong(flow.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g[:2].exp()

    with pytest.raises(RuntimeError, match=r"Wrong .*shape \(2,\).*shape \(3,\)"):
        Wrong.apply(flow.leaf(X)).sum().backward()
