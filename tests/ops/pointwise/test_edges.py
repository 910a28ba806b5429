"""Gradients where a function has a corner, or none: PyTorch's, zeros, infinities and NaN."""

import numpy as np
import pytest

import flowvm as flow

torch = pytest.importorskip("torch")

NUMBERS = np.array([0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 1e20], np.float32)
ONE = {
    "hardtanh": lambda t, x: t.nn.functional.hardtanh(x),
    "relu6": lambda t, x: t.nn.functional.relu6(x),
    "softshrink": lambda t, x: t.nn.functional.softshrink(x),
    "hardshrink": lambda t, x: t.nn.functional.hardshrink(x),
    "leaky_relu": lambda t, x: t.nn.functional.leaky_relu(x),
    "relu": lambda t, x: t.relu(x),
    "clamp": lambda t, x: t.clamp(x, -1.5, 1.5),
    "logit": lambda t, x: t.logit(x),
    "abs": lambda t, x: t.abs(x),
    "sqrt": lambda t, x: t.sqrt(x),
    "prelu": lambda t, x: t.nn.functional.prelu(x, t.tensor([0.4])),
}
TWO = {
    "maximum": lambda t, x, y: t.maximum(x, y),
    "minimum": lambda t, x, y: t.minimum(x, y),
    "fmax": lambda t, x, y: t.fmax(x, y),
    "atan2": lambda t, x, y: t.atan2(x, y),
    "hypot": lambda t, x, y: t.hypot(x, y),
    "xlogy": lambda t, x, y: t.xlogy(x, y),
    "pow": lambda t, x, y: t.pow(x, y),
}


def gradients(t, function, arrays):
    inputs = [t.tensor(array).requires_grad_() for array in arrays]
    out = function(t, *inputs)
    seed = t.arange(1, out.numel() + 1, dtype=t.float32)
    return [g.numpy() for g in t.autograd.grad([out], inputs, [seed])]


@pytest.mark.parametrize("name", ONE)
def test_of_one_number(name):
    for ours, theirs in zip(
        *(gradients(t, ONE[name], [NUMBERS]) for t in (flow, torch)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, 1e-6)


@pytest.mark.parametrize("name", TWO)
def test_of_two_numbers(name):
    pairs = [m.ravel() for m in np.meshgrid(NUMBERS, NUMBERS)]
    for ours, theirs in zip(*(gradients(t, TWO[name], pairs) for t in (flow, torch)), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-6)


def test_prelu_by_its_weights_and_twice():
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    x[0, 0] = 0
    for w in (np.array(0.3), np.array([0.3]), np.array([0.1, 0.2, -0.3, 0.4])):
        results = []
        for t in (flow, torch):
            a, b = t.tensor(x, requires_grad=True), t.tensor(w, requires_grad=True)
            loss = t.nn.functional.prelu(a, b).pow(3).sum()
            (by_x,) = t.autograd.grad(loss, a, create_graph=True)
            results.append([g.numpy() for g in t.autograd.grad(by_x.square().sum(), [a, b])])
        for ours, theirs in zip(*results, strict=True):
            np.testing.assert_allclose(ours, theirs)
    with pytest.raises(TypeError, match="prelu"):
        flow.nn.functional.prelu(flow.tensor([1, 2]), flow.tensor([0.5]))
