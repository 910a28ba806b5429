"""Hooks on tensors, leaves and nodes."""

import numpy as np
import pytest

import flowvm as flow

X = np.array([0.5, 1.5, 2.0])


def test_a_hook_sees_the_gradient(lib, check):
    x = lib.leaf(X)
    y = x * x
    calls = []
    y.register_hook(lambda g: calls.append(g))
    (y * 3).sum().backward()
    check(calls[0], np.full(3, 3.0))
    check(x.grad, 6 * X)


def test_a_hook_replaces_the_gradient(lib, check):
    x = lib.leaf(X)
    y = x * x
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    y.sum().backward()
    check(x.grad, 20 * X + 1)


def test_hooks_run_in_order_until_removed(lib, check):
    x = lib.leaf(X)
    first = x.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: g + 1)
    (x * 1).sum().backward()
    first.remove()
    first.remove()
    (x * 1).sum().backward()
    check(x.grad, np.full(3, 5.0))


def test_a_leaf_s_hook_sees_the_sum(lib, check):
    x = lib.leaf(X)
    calls = []
    x.register_hook(lambda g: calls.append(g))
    (x + x * 2 + x * x).sum().backward()
    assert len(calls) == 1
    check(calls[0], 3 + 2 * X)


def test_a_hook_s_gradient_must_fit(lib):
    x = lib.leaf(X)
    x.register_hook(lambda g: g[:1])
    with pytest.raises(RuntimeError):
        x.sum().backward()


def test_hooks_need_a_gradient(lib):
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        lib.leaf(X, requires_grad=False).register_hook(lambda g: g)


def test_hooks_are_differentiated(lib, check):
    x = lib.leaf(X)
    y = x * x
    y.register_hook(lambda g: g * x)
    (g,) = lib.autograd.grad(y.sum(), x, create_graph=True)  # x * 2 x
    check(lib.autograd.grad(g.sum(), x)[0], 4 * X)


def test_grad_runs_hooks_too(lib, check):
    x = lib.leaf(X)
    x.register_hook(lambda g: g * 7)
    check(lib.autograd.grad((x * 1).sum(), x)[0], np.full(3, 7.0))


def test_post_accumulate_hooks(lib, check):
    x = lib.leaf(X)
    calls = []

    def step(t):
        calls.append(lib.value(t.grad).copy())
        t.grad = None

    x.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        (x * x + x).sum().backward()
    assert x.grad is None
    assert len(calls) == 2
    np.testing.assert_allclose(calls[1], 2 * X + 1)
    with pytest.raises(RuntimeError, match="non-leaf"):
        (x * 2).register_post_accumulate_grad_hook(step)


def test_retain_grad(lib, check):
    x = lib.leaf(X)
    y = x * x
    assert not y.retains_grad
    y.retain_grad()
    y.retain_grad()
    assert y.retains_grad
    (y * 3).sum().backward(retain_graph=True)
    check(y.grad, np.full(3, 3.0))
    x.retain_grad()
    assert not x.retains_grad


def test_retain_grad_is_after_the_hooks(lib, check):
    y = lib.leaf(X) * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 5)
    y.sum().backward()
    check(y.grad, np.full(3, 5.0))


def test_node_hooks(lib, check):
    x = lib.leaf(X)
    y = x * 4
    calls = []
    y.grad_fn.register_prehook(lambda out: (out[0] * 2,))
    y.grad_fn.register_hook(lambda into, out: calls.append((into, out)))
    y.sum().backward()
    check(x.grad, np.full(3, 8.0))
    check(calls[0][0][0], np.full(3, 8.0))
    check(calls[0][1][0], np.full(3, 2.0))


def test_a_node_hook_replaces_what_goes_on(lib, check):
    x = lib.leaf(X)
    y = x.exp()
    y.grad_fn.register_hook(lambda into, out: (into[0] * 0 + 1,))
    y.sum().backward()
    check(x.grad, np.ones(3))


def test_hooks_on_one_of_several_outputs(lib, check):
    x = lib.leaf(X)
    a, b, _ = x.unbind(0)
    b.register_hook(lambda g: g * 3)
    (a + b).backward()
    check(x.grad, [1.0, 3, 0])


def test_what_is_saved_can_be_packed():
    x = flow.tensor([0.5, 1.0, 2.0], requires_grad=True)
    packed, unpacked = [], []

    def pack(t):
        packed.append(t.tolist())
        return len(packed) - 1

    def unpack(k):
        unpacked.append(k)
        return flow.tensor(packed[k])

    with flow.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x * x).exp()
    assert [0.5, 1.0, 2.0] in packed
    assert not unpacked
    z = y.sum()
    (g,) = flow.autograd.grad(z, x, create_graph=True)
    assert sorted(unpacked) == list(range(len(packed)))
    values = x.detach().numpy()
    np.testing.assert_allclose(g.detach().numpy(), 2 * values * np.exp(values**2), rtol=1e-6)
    (second,) = flow.autograd.grad(g.sum(), x)
    want = (2 + 4 * values**2) * np.exp(values**2)
    np.testing.assert_allclose(second.numpy(), want, rtol=1e-6)


def test_packing_of_a_layer_and_of_a_custom_function():
    class Cube(flow.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    layer, x = flow.nn.Linear(3, 2), flow.randn(4, 3)
    Cube.apply(layer(x)).sum().backward()
    want = [p.grad.numpy().copy() for p in layer.parameters()]
    layer.zero_grad()
    with flow.autograd.graph.save_on_cpu(pin_memory=True):
        loss = Cube.apply(layer(x)).sum()
    loss.backward()
    for p, g in zip(layer.parameters(), want, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), g)


def test_hooks_of_what_is_saved_that_are_wrong():
    x = flow.ones(2, requires_grad=True)
    with flow.autograd.graph.saved_tensors_hooks(lambda t: None, lambda saved: saved):
        y = (x * x).sum()
    with pytest.raises(TypeError, match="unpack hook gives a Tensor"):
        y.backward()
    with pytest.raises(TypeError, match="callable"):
        flow.autograd.graph.saved_tensors_hooks(1, 2)
    with flow.autograd.graph.save_on_cpu():
        y = x.exp()
        y.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()
    with (
        flow.autograd.graph.disable_saved_tensors_hooks("not now"),
        pytest.raises(RuntimeError, match="not now"),
        flow.autograd.graph.save_on_cpu(),
    ):
        pass


# --- one hook for several tensors -----------------------------------------------------------------


def values_of(lib, gradients):
    return [None if g is None else lib.value(g).tolist() for g in gradients]


def test_a_joint_hook_is_called_once_with_all_gradients(lib):
    a, b = lib.leaf([1.0, 2.0]), lib.leaf([3.0, 4.0])
    c, d = a * b, a * b
    calls = []
    handle = lib.autograd.graph.register_multi_grad_hook(
        (a, b, c, d), lambda gradients: calls.append(values_of(lib, gradients))
    )
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    (c + 2 * d).sum().backward(retain_graph=True)
    handle.remove()
    c.sum().backward()
    assert calls == [
        [[3, 4], [1, 2], [1, 1], None],
        [[3, 4], None, [1, 1], None],
        [[9, 12], [3, 6], [1, 1], [2, 2]],
    ]


def test_a_joint_hook_is_called_with_the_first_gradient(lib, check):
    a, outside = lib.leaf(X), lib.leaf(X, requires_grad=False)
    b = a * 2
    calls = []
    handle = lib.autograd.graph.register_multi_grad_hook((a, b, outside), calls.append, mode="any")
    for _ in range(2):
        b.sum().backward(retain_graph=True)
    (a * 5).sum().backward()
    handle.remove()
    b.sum().backward()
    assert len(calls) == 3
    for g, want in zip(calls, (1.0, 1.0, 5.0), strict=True):
        check(g, np.full(3, want))


def test_a_joint_hook_and_gradients_that_do_not_come(lib):
    class Left(lib.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a + b

        @staticmethod
        def backward(ctx, g):
            return g, None

    x, y = lib.leaf([[1.0], [2.0]]), lib.leaf([5.0])
    (u, v), z = (x * 1).unbind(0), y * 1
    calls = []
    lib.autograd.graph.register_multi_grad_hook(
        (u, v, x, y, z, u), lambda gradients: calls.append(values_of(lib, gradients))
    )
    Left.apply(u, z).backward()
    assert calls == [[[1], None, [[1], [0]], None, None, [1]]]


def test_joint_hooks_in_a_backward_inside_another(lib):
    x = lib.leaf([2.0])
    calls = []

    class Again(lib.Function):
        @staticmethod
        def forward(ctx, y):
            return y * 1

        @staticmethod
        def backward(ctx, g):
            with lib.enable_grad():
                inner = x * 7
            inner.backward(g)
            return g

    y = x * 3
    lib.autograd.graph.register_multi_grad_hook((x, y), lambda g: calls.append(values_of(lib, g)))
    Again.apply(y).backward()
    assert calls == [[[7], None], [[3], [1]]]


def test_a_joint_hook_that_is_made_in_a_backward_and_one_that_fails(lib):
    x = lib.leaf(X)
    y = x * x
    calls, results = [], []

    def late(g):
        if not results:
            joint = lib.autograd.graph.register_multi_grad_hook(
                (x,), lambda g: calls.append(len(g))
            )
            results.append(joint)

    y.register_hook(late)
    y.sum().backward(retain_graph=True)
    assert calls == [1]

    def fail(gradients):
        raise KeyError(len(gradients))

    failing = lib.autograd.graph.register_multi_grad_hook((x, y), fail)
    with pytest.raises(KeyError, match="2"):
        y.sum().backward(retain_graph=True)
    failing.remove()
    y.sum().backward()
    assert calls == [1, 1, 1]


def test_joint_hooks_of_gradients_that_are_computed(flow):
    x = flow.leaf(X)
    y = x * x
    calls = []
    flow.autograd.graph.register_multi_grad_hook((x, y), calls.append)
    (_,) = flow.autograd.grad(y.sum(), x, create_graph=True)
    ((mine, _),) = calls
    assert mine.requires_grad
    np.testing.assert_allclose(flow.autograd.grad(mine.sum(), x)[0].numpy(), np.full(3, 2.0))


def test_joint_hooks_that_are_wrong():
    hook, x = flow.autograd.graph.register_multi_grad_hook, flow.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="got 'some'"):
        hook((x,), print, mode="some")
    with pytest.raises(RuntimeError, match=r"tensors\[1\] of shape \(3,\)"):
        hook((x, flow.ones(3)), print)
    with pytest.raises(TypeError, match=r"tensors\[0\] is a int"):
        hook((3,), print)
    with pytest.raises(TypeError, match="callable"):
        hook((x,), None)
