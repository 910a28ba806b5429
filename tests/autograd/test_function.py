"""Custom operations."""

import numpy as np
import pytest

X = np.array([0.5, 1.5, 2.0])


def cube(lib, once=False):
    class Cube(lib.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            ctx.scale = scale
            return x * x * x * scale

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert ctx.needs_input_grad == (True, False)
            return g * x * x * (3 * ctx.scale), None

    if once:
        Cube.backward = staticmethod(lib.once_differentiable(Cube.backward))
    return Cube


def test_forward_and_backward(lib, check):
    x = lib.leaf(X)
    y = cube(lib).apply(x, 2.0)
    check(y, 2 * X**3)
    assert y.grad_fn.name() == "CubeBackward"
    y.sum().backward()
    check(x.grad, 6 * X**2)


def test_a_second_derivative(lib, check):
    x = lib.leaf(X)
    (g,) = lib.autograd.grad(cube(lib).apply(x, 1.0).sum(), x, create_graph=True)
    check(lib.autograd.grad(g.sum(), x)[0], 6 * X)


def test_once_differentiable(lib):
    x = lib.leaf(X)
    y = cube(lib, once=True).apply(x, 1.0)
    (g,) = lib.autograd.grad(y, x, lib.leaf(np.ones(3)), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_setup_context(lib, check):
    class Exp(lib.Function):
        @staticmethod
        def forward(x):
            return x.exp()

        @staticmethod
        def setup_context(ctx, inputs, output):
            (x,) = inputs
            assert x.shape == output.shape
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    x = lib.leaf(X)
    (first,) = lib.autograd.grad(Exp.apply(x).sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    check(first, np.exp(X))
    check(second, np.exp(X))


def two(lib, materialize=True):
    class Two(lib.Function):
        saved = None

        @staticmethod
        def forward(ctx, x, y):
            ctx.set_materialize_grads(materialize)
            return x * y, x + y

        @staticmethod
        def backward(ctx, a, b):
            Two.saved = (a, b)
            return (a, a * 2) if b is None else (a + b, b)

    return Two


def test_several_outputs(lib, check):
    x, y = lib.leaf(X), lib.leaf(X)
    p, s = two(lib).apply(x, y)
    (p.sum() + (s * 3).sum()).backward()
    check(x.grad, np.full(3, 4.0))
    check(y.grad, np.full(3, 3.0))


def test_a_missing_gradient_is_zeros(lib, check):
    x = lib.leaf(X)
    Two = two(lib)
    Two.apply(x, lib.leaf(X))[0].sum().backward()
    check(Two.saved[1], np.zeros(3))
    check(x.grad, np.ones(3))


def test_a_missing_gradient_is_none_if_asked(lib, check):
    y = lib.leaf(X)
    Two = two(lib, materialize=False)
    Two.apply(lib.leaf(X), y)[0].sum().backward()
    assert Two.saved[1] is None
    check(y.grad, np.full(3, 2.0))


def test_outputs_without_gradients(lib):
    class Split(lib.Function):
        @staticmethod
        def forward(ctx, x):
            y, mask = x * 2, x * 0
            ctx.mark_non_differentiable(mask)
            return y, mask

        @staticmethod
        def backward(ctx, g, unused):
            return g * 2

    y, mask = Split.apply(lib.leaf(X))
    assert y.requires_grad
    assert not mask.requires_grad


def test_an_argument_changed_in_place(lib, check):
    class Double(lib.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = lib.leaf(X)
    y = x * 1
    z = Double.apply(y)
    assert z is y
    (z * 1).sum().backward()
    check(x.grad, np.full(3, 2.0))
    with pytest.raises(RuntimeError, match="leaf"):
        Double.apply(lib.leaf(X))


def test_an_argument_passed_through(lib, check):
    class Same(lib.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 5

    x = lib.leaf(X)
    y = Same.apply(x)
    assert y is not x
    assert x.is_leaf
    y.sum().backward()
    check(x.grad, np.full(3, 5.0))


def test_a_wrong_number_of_gradients(lib):
    class Wrong(lib.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        Wrong.apply(lib.leaf(X), lib.leaf(X)).sum().backward()


def test_saved_tensors_are_freed_and_watched(lib):
    x = lib.leaf(X) * 1
    y = cube(lib).apply(x, 1.0).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        y.backward()
    z = cube(lib).apply(x, 1.0).sum()
    with lib.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="version"):
        z.backward()


def test_nothing_is_recorded_without_need(lib):
    assert not cube(lib).apply(lib.leaf(X, requires_grad=False), 1.0).requires_grad
    with lib.no_grad():
        assert not cube(lib).apply(lib.leaf(X), 1.0).requires_grad
