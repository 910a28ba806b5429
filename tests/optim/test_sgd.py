"""Stochastic gradient descent, step by step against the formula, for every option."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ModeError
from flowvm.optim import sgd


def stepped(params, grads, lr=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False,
            maximize=False):  # fmt: skip
    """The values after a step for each gradient."""
    p, b = params.astype(np.float64), None
    for g in grads:
        g = (-g if maximize else g) + weight_decay * p
        if momentum:
            b = g if b is None else momentum * b + (1 - dampening) * g
            g = g + momentum * b if nesterov else b
        p = p - lr * g
    return p


@pytest.mark.parametrize(
    "options",
    [
        {}, {"lr": 0.0}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}, {"maximize": True},
        {"momentum": 0.5, "weight_decay": 0.01, "maximize": True, "nesterov": True},
    ],
    ids=str,
)  # fmt: skip
def test_steps_are_the_formula(rng, options):
    values = rng.standard_normal((3, 4))
    grads = rng.standard_normal((4, 3, 4))
    p = flow.nn.Parameter(flow.tensor(values))
    idle = flow.nn.Parameter(flow.ones(2))  # without a gradient
    opt = sgd.SGD([p, idle], **{"lr": 0.1, **options})
    for g in grads:
        p.grad = flow.tensor(g)
        opt.step()
    np.testing.assert_allclose(p.detach().numpy(), stepped(values, grads, **options), rtol=1e-12)
    assert idle.tolist() == [1, 1]
    assert ("momentum_buffer" in opt.state[p]) == bool(options.get("momentum"))


def test_rates_may_change_and_be_tensors():
    p = flow.nn.Parameter(flow.tensor([1.0]))
    opt = sgd.SGD([p], lr=flow.tensor(0.5))
    for rate, expected in ((None, 0.5), (0.25, 0.25)):
        if rate is not None:
            opt.param_groups[0]["lr"] = rate
        p.grad = flow.tensor([1.0])
        opt.step()
        assert p.item() == expected


def test_wrong_options_are_errors():
    p = [flow.nn.Parameter(flow.ones(1))]
    for name in ("lr", "momentum", "weight_decay"):
        with pytest.raises(ArgumentError, match=name):
            sgd.SGD(p, **{name: -0.1})
    for wrong in ({"nesterov": True}, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}):
        with pytest.raises(ArgumentError, match="requires a momentum and zero dampening"):
            sgd.SGD(p, **wrong)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True},
                                     {"maximize": True}], ids=str)  # fmt: skip
def test_sparse_gradients_step_their_rows(options):
    table = flow.nn.Embedding(4, 2, sparse=True)
    values = table.weight.detach().numpy().astype(np.float64)
    opt = sgd.SGD(table.parameters(), lr=0.5, **options)
    grads = []
    for index in ([1, 3, 1], [0, 1, 1]):
        opt.zero_grad()
        table(flow.tensor(index)).sum().backward()
        dense = np.zeros((4, 2))
        np.add.at(dense, index, 1.0)
        grads.append(dense)
        opt.step()
    expected = stepped(values, grads, lr=0.5, **options)
    np.testing.assert_allclose(table.weight.detach().numpy(), expected, rtol=1e-6)
    decayed = sgd.SGD(table.parameters(), lr=0.5, weight_decay=0.1)
    with pytest.raises(ModeError, match="weight_decay is not for sparse gradients"):
        decayed.step()
