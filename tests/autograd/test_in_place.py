"""Changes in place: recorded rightly, or refused."""

import numpy as np
import pytest

X = np.array([0.5, 1.5, 2.0])


def test_a_leaf_cannot_be_changed(lib):
    x = lib.leaf(X)
    with pytest.raises(RuntimeError, match=r"in.place"):
        x.mul_(2)
    with lib.no_grad():
        x.mul_(2)
    np.testing.assert_allclose(lib.value(x), 2 * X)


def test_a_change_is_part_of_the_graph(lib, check):
    x = lib.leaf(X)
    y = x * 3
    y.mul_(x)
    y.add_(1)
    y.sum().backward()
    check(x.grad, 6 * X)


def test_a_constant_that_becomes_part_of_the_graph(lib, check):
    x, y = lib.leaf(X), lib.leaf(np.ones(3), requires_grad=False)
    y.mul_(x)
    assert y.requires_grad
    (y * 5).sum().backward()
    check(x.grad, np.full(3, 5.0))


def test_gradients_of_gradients_of_a_change(lib, check):
    x = lib.leaf(X)
    y = x * x
    y.mul_(x)
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    check(first, 3 * X**2)
    check(lib.autograd.grad(first.sum(), x)[0], 6 * X)


def test_a_saved_operand_that_was_changed(lib):
    x = lib.leaf(X)
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="version"):
        z.sum().backward()


def test_a_saved_result_that_was_changed(lib):
    y = lib.leaf(X).exp()
    z = y.sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="version"):
        z.backward()


def test_a_saved_leaf_that_was_changed(lib):
    x, w = lib.leaf(X), lib.leaf(X)
    z = (x * w).sum()
    with lib.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="version"):
        z.backward()


def test_a_change_through_a_view_counts(lib):
    x = lib.leaf(X)
    y = x * 2
    z = y * y
    with lib.no_grad():
        y[0].add_(1)
    with pytest.raises(RuntimeError, match="version"):
        z.sum().backward()


def test_a_change_of_what_nothing_saved_is_harmless(lib, check):
    x = lib.leaf(X)
    y = x + 1
    z = y + 2
    y.add_(5)
    z.sum().backward()
    check(x.grad, np.ones(3))


def test_a_detached_tensor_shares_memory_and_version(lib):
    x = lib.leaf(X)
    y = x * 1
    z = y.exp()
    z.detach().mul_(0)
    with pytest.raises(RuntimeError, match="version"):
        z.sum().backward()


# --- views and their bases ----------------------------------------------------------------------


def test_a_changed_view_changes_its_base_s_gradient(lib, check):
    x, w = lib.leaf(X), lib.leaf(2.0)
    y = x * 1
    y[1:].mul_(w)
    (y * y).sum().backward()
    check(x.grad, [2 * X[0], 8 * X[1], 8 * X[2]])
    check(w.grad, 2 * 2 * (X[1:] ** 2).sum())


def test_a_view_sees_a_change_of_its_base(lib, check):
    x = lib.leaf(X)
    y = x * 1
    view = y[:2]
    y.mul_(3)
    (view * view).sum().backward()
    check(x.grad, [18 * X[0], 18 * X[1], 0])


def test_a_view_sees_a_change_of_another(lib, check):
    x = lib.leaf(np.arange(6.0).reshape(2, 3))
    y = x * 1
    row, column = y[0], y.t()[1]
    row.mul_(10)
    column.sum().backward()
    check(x.grad, [[0, 10.0, 0], [0, 1, 0]])


def test_a_buffer_is_filled_part_by_part(lib, check):
    x = lib.leaf(X)
    out = lib.leaf(np.zeros(6), requires_grad=False)
    whole = out.reshape(2, 3)
    out[:3].add_(x)
    whole[1].copy_(x * x)
    assert out.requires_grad
    assert whole.requires_grad
    (whole * whole).sum().backward()
    check(x.grad, 2 * X + 4 * X**3)


def test_views_of_views_and_second_derivatives(lib, check):
    x = lib.leaf(X)
    y = x * x
    y.reshape(3, 1)[1:][0].mul_(x[1])
    (first,) = lib.autograd.grad((y * y).sum(), x, create_graph=True)
    check(first, [4 * X[0] ** 3, 6 * X[1] ** 5, 4 * X[2] ** 3])
    (second,) = lib.autograd.grad(first.sum(), x)
    check(second, [12 * X[0] ** 2, 30 * X[1] ** 4, 12 * X[2] ** 2])


def test_an_assignment_through_a_view(lib, check):
    x = lib.leaf(X)
    y = x * 2
    y.reshape(1, 3)[0, 1] = x[0]
    y.sum().backward()
    check(x.grad, [3.0, 0, 2])


def test_a_view_of_a_leaf_cannot_be_changed(lib):
    x = lib.leaf(X)
    with pytest.raises(RuntimeError, match="view of a leaf"):
        x[0].mul_(2)


def test_a_view_made_under_no_grad_cannot_be_changed_outside(lib):
    y = lib.leaf(X) * 1
    with lib.no_grad():
        view = y[1:]
    with pytest.raises(RuntimeError, match="no_grad"):
        view.mul_(2)


@pytest.mark.parametrize("use", ["mul", "div", "matmul", "lerp"])
def test_an_operand_that_no_gradient_needs_may_change(lib, check, use):
    """The other operand has no gradient, for which alone this one's values would count."""
    x, c = lib.leaf(np.ones((3, 3))), lib.leaf(np.full((3, 3), 2.0), requires_grad=False)
    y = x * 3
    calls = {
        "mul": lambda: (c * y, 6.0),
        "div": lambda: (y / c, 1.5),
        "matmul": lambda: (y @ c, 18.0),
        "lerp": lambda: (y.lerp(c, 0.25), 2.25),
    }
    z, slope = calls[use]()
    y.add_(1)
    z.sum().backward()
    check(x.grad, np.full((3, 3), slope))


def test_a_function_that_reads_a_changed_operand_is_told(lib):
    class Square(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return None if x is None else g  # it does not read the values

    y = lib.leaf(X) * 2
    z = Square.apply(y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="version"):
        z.sum().backward()


WRITES = {
    "copy_": lambda lib, y: y.copy_(lib.leaf(np.ones(3), requires_grad=False)),
    "a part": lambda lib, y: y[1:].copy_(lib.leaf(np.ones(2), requires_grad=False)),
    "normal_": lambda lib, y: y.normal_(),
    "bernoulli_": lambda lib, y: y.bernoulli_(0.5),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_over_has_a_gradient_of_zeros(lib, check, write):
    x = lib.leaf(X)
    y = x * 3
    WRITES[write](lib, y)
    y.sum().backward()
    check(x.grad, [3.0, 0.0, 0.0] if write == "a part" else [0.0, 0.0, 0.0])
