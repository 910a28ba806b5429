"""flow.func: derivatives of functions, alone, nested and of each other; maps; modules."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import func


def f(x):
    return (x * x * x).sum()


X = flow.tensor([1.0, -2.0, 0.5])


def test_grad_of_grad():
    np.testing.assert_allclose(func.grad(f)(X).numpy(), 3 * X.numpy() ** 2)
    second = func.grad(lambda x: func.grad(f)(x).sum())(X)
    np.testing.assert_allclose(second.numpy(), 6 * X.numpy())
    assert not second.requires_grad
    assert not X.requires_grad


def test_several_arguments_trees_and_aux():
    def g(p, x):
        return (p["w"] * x).sum() + p["b"], x

    (gradient,), (value, aux) = func.grad_and_value(g, (0,), has_aux=True)(
        {"w": X, "b": flow.tensor(2.0)}, X + 1
    )
    np.testing.assert_allclose(gradient["w"].numpy(), X.numpy() + 1)
    assert gradient["b"].item() == 1.0
    assert value.item() == pytest.approx(float((X * (X + 1)).sum() + 2))
    assert aux.shape == X.shape
    both = func.grad(lambda a, b: (a * b).sum(), (0, 1))(X, X + 1)
    np.testing.assert_allclose(both[1].numpy(), X.numpy())


def test_an_argument_that_requires_grad_gets_one():
    w = X.clone().requires_grad_()
    func.grad(f)(w).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 6 * X.numpy())


def test_vjp_and_jvp():
    value, back = func.vjp(lambda x: x.exp(), X)
    np.testing.assert_allclose(value.numpy(), np.exp(X.numpy()), rtol=1e-6)
    np.testing.assert_allclose(back(flow.ones(3))[0].numpy(), np.exp(X.numpy()), rtol=1e-6)
    value, slope = func.jvp(lambda x: x.sin(), (X,), (flow.tensor([1.0, 0.0, 2.0]),))
    np.testing.assert_allclose(slope.numpy(), np.cos(X.numpy()) * [1, 0, 2], rtol=1e-6)
    _, forward = func.linearize(lambda x: x * x, X)
    np.testing.assert_allclose(forward(flow.ones(3)).numpy(), 2 * X.numpy())


def test_jacobians_and_the_hessian():
    j = func.jacrev(lambda x: flow.outer(x, x))(X)
    want = np.einsum("ik,j->ijk", np.eye(3), X.numpy()) + np.einsum(
        "jk,i->ijk", np.eye(3), X.numpy()
    )
    np.testing.assert_allclose(j.numpy(), want)
    np.testing.assert_allclose(func.jacfwd(lambda x: flow.outer(x, x))(X).numpy(), want)
    np.testing.assert_allclose(func.hessian(f)(X).numpy(), np.diag(6 * X.numpy()))


def test_vmap():
    a, b = flow.arange(6.0).reshape(2, 3), flow.ones(3, 2)
    np.testing.assert_allclose(func.vmap(flow.dot, in_dims=(0, 1))(a, b).numpy(), a.numpy().sum(1))
    both = func.vmap(lambda x: (x, {"s": x.sum()}), out_dims=(1, 0))(a)
    assert both[0].shape == (3, 2)
    assert both[1]["s"].tolist() == [3.0, 12.0]
    per_example = func.vmap(func.grad(lambda w, x: (w * x).sum() ** 2), in_dims=(None, 0))
    w = flow.ones(3)
    want = 2 * a.numpy().sum(1, keepdims=True) * a.numpy()
    np.testing.assert_allclose(per_example(w, a).numpy(), want)
    nested = func.vmap(func.vmap(lambda x: x * 2))(a)
    np.testing.assert_allclose(nested.numpy(), 2 * a.numpy())
    assert flow.vmap is func.vmap


def test_vmap_and_random_numbers():
    x = flow.zeros(2, 50)
    with pytest.raises(ValueError, match="randomness"):
        func.vmap(lambda r: r + flow.rand(50))(x)
    same = func.vmap(lambda r: r + flow.rand(50), randomness="same")(x).numpy()
    np.testing.assert_array_equal(same[0], same[1])
    other = func.vmap(lambda r: r + flow.rand(50), randomness="different")(x).numpy()
    assert (other[0] != other[1]).any()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: func.grad(lambda x: x)(X), RuntimeError),
        (lambda: func.grad(f)(flow.arange(3)), TypeError),
        (lambda: func.grad(f, 2)(X), RuntimeError),
        (lambda: func.vmap(f, in_dims=3)(X), ValueError),
        (lambda: func.vmap(lambda a, b: a, in_dims=(0,))(X, X), ValueError),
        (lambda: func.vmap(lambda a, b: a)(flow.ones(2), flow.ones(3)), RuntimeError),
        (lambda: func.jvp(f, X, X), RuntimeError),
        (lambda: func.grad(f, (0, 0))(X), RuntimeError),
        (lambda: func.jacrev(f, chunk_size=0)(X), ValueError),
        (lambda: func.jacrev(lambda x: ())(X), RuntimeError),
        (lambda: func.jvp(lambda x: (x, X), (X,), (X,), strict=True), RuntimeError),
        (lambda: func.vjp(lambda x: (x, x), X)[1](X), RuntimeError),
        (lambda: func.vmap(f)(), ValueError),
        (lambda: func.vmap(lambda x: 3.14)(X), ValueError),
        (lambda: func.vmap(lambda x: x, out_dims=2)(X), IndexError),
        (lambda: func.vmap(f, in_dims=[0])(X), ValueError),
    ],
)
def test_what_is_refused(wrong, error):
    with pytest.raises(error):
        wrong()


def test_a_derivative_without_grad_is_constant():
    def shifted(x):
        with flow.no_grad():
            shift = func.grad(lambda x: 0.25 * x**4)(x)
        return x**3 - shift

    x = flow.tensor(1.5, requires_grad=True)
    slope = func.grad(shifted)(x)
    assert slope.item() == 6.75
    slope.backward()
    assert x.grad.item() == 9.0


def test_inputs_may_be_changed_in_place():
    x = flow.tensor([1.0, 2.0])
    value, slope = func.jvp(lambda x: x.mul_(3.0), (x,), (flow.ones(2),))
    assert (value.tolist(), slope.tolist(), x.tolist()) == ([3.0, 6.0], [3.0, 3.0], [3.0, 6.0])


def test_chunks_draw_the_same_numbers():
    draw = func.vmap(lambda r: r + flow.rand(4), randomness="same", chunk_size=2)
    rows = draw(flow.zeros(5, 1)).numpy()
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))


def test_results_of_a_map_are_views():
    x = flow.ones(2, 3, requires_grad=True) * 1.0
    y = func.vmap(lambda row: row.unsqueeze(0))(x)
    assert y._base is x
    y.mul_(2.0)
    assert x.tolist() == [[2.0] * 3] * 2
    (slope,) = flow.autograd.grad((x * x).sum(), x)
    assert slope.tolist() == [[4.0] * 3] * 2


def test_a_function_with_its_own_map():
    class Scaled(flow.autograd.Function):
        @staticmethod
        def forward(x, factor):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

        @staticmethod
        def vmap(info, in_dims, x, factor):
            calls.append((info.batch_size, info.randomness, in_dims))
            return Scaled.apply(x, factor), in_dims[0]

    calls = []
    x = flow.arange(6.0).reshape(2, 3)
    result = func.vmap(lambda r: Scaled.apply(r, 3.0), in_dims=1)(x)
    assert result.tolist() == (3 * x.t()).tolist()
    assert calls == [(3, "error", (1, None))]


def test_functional_call():
    model = flow.nn.Sequential(flow.nn.Linear(3, 2), flow.nn.BatchNorm1d(2))
    x = flow.rand(4, 3)
    before = {k: v.detach().clone() for k, v in model.state_dict().items()}
    params = {k: flow.zeros_like(p) for k, p in model.named_parameters()}
    assert not func.functional_call(model, params, (x,)).numpy().any()
    for key in dict(model.named_parameters()):
        np.testing.assert_array_equal(model.state_dict()[key].numpy(), before[key].numpy())
    gradients = func.grad(lambda p: (func.functional_call(model, p, x) ** 2).sum())(
        {k: p.detach() for k, p in model.named_parameters()}
    )
    assert gradients.keys() == params.keys()
    with pytest.raises(ValueError, match="missing"):
        func.functional_call(model, {}, x, strict=True)
    tied = flow.nn.Module()
    tied.a, tied.b = flow.nn.Linear(2, 2), flow.nn.Linear(2, 2)
    tied.b.weight = tied.a.weight
    tied.forward = lambda x: tied.b(tied.a(x))
    zeros = func.functional_call(tied, {"a.weight": flow.zeros(2, 2)}, flow.ones(1, 2))
    np.testing.assert_allclose(zeros.detach().numpy()[0], tied.b.bias.detach().numpy())


def test_an_ensemble():
    models = [flow.nn.Linear(3, 2) for _ in range(3)]
    params, buffers = func.stack_module_state(models)
    assert params["weight"].shape == (3, 2, 3)
    x = flow.rand(4, 3)
    out = (
        func.vmap(lambda p, b: func.functional_call(models[0], (p, b), (x,)), in_dims=(0, 0))(
            params, buffers
        )
        if buffers
        else func.vmap(lambda p: func.functional_call(models[0], p, (x,)))(params)
    )
    for model, mine in zip(models, out, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), model(x).detach().numpy(), 1e-6, 1e-7)
