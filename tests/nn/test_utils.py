"""Gradient clipping and parameters as a vector."""

import math

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn.utils import (
    clip_grad_norm_,
    clip_grad_value_,
    parameters_to_vector,
    vector_to_parameters,
)


def with_grads(rng: np.random.Generator) -> tuple[list[nn.Parameter], np.ndarray]:
    params = [nn.Parameter(flow.zeros(3, 2)), nn.Parameter(flow.zeros(4))]
    drawn = [rng.normal(size=(3, 2)), rng.normal(size=4)]
    for param, grad in zip(params, drawn, strict=True):
        param.grad = flow.tensor(grad.astype(np.float32))
    params.append(nn.Parameter(flow.zeros(1)))  # has no gradient, and must not mind
    return params, np.concatenate([grad.ravel() for grad in drawn])


def grads_of(params: list[nn.Parameter]) -> np.ndarray:
    return np.concatenate([p.grad.numpy().ravel() for p in params if p.grad is not None])


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
def test_clip_grad_norm(order: float, rng: np.random.Generator) -> None:
    params, flat = with_grads(rng)
    norm = clip_grad_norm_(params, 0.5, order)
    expected = np.linalg.norm(flat, order)
    assert float(norm) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(grads_of(params), flat * 0.5 / expected, rtol=1e-5)


def test_small_gradients_are_left_alone(rng: np.random.Generator) -> None:
    params, flat = with_grads(rng)
    clip_grad_norm_(params, 1e6)
    np.testing.assert_array_equal(grads_of(params), flat.astype(np.float32))


def test_nonfinite_norm(rng: np.random.Generator) -> None:
    params, _ = with_grads(rng)
    params[1].grad = flow.full((4,), math.inf)
    with pytest.raises(RuntimeError, match=r"norm of order 2\.0 for gradients is inf"):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)


def test_clip_grad_value(rng: np.random.Generator) -> None:
    params, flat = with_grads(rng)
    clip_grad_value_(params, 0.3)
    np.testing.assert_allclose(grads_of(params), np.clip(flat, -0.3, 0.3), rtol=1e-6)


def test_parameters_as_a_vector() -> None:
    net = nn.Linear(3, 2)
    vector = parameters_to_vector(net.parameters())
    assert vector.shape == (8,)
    vector_to_parameters(vector.detach() * 0 + 2, net.parameters())
    np.testing.assert_array_equal(net.weight.detach().numpy(), np.full((2, 3), 2.0))
    with pytest.raises(RuntimeError, match=r"shape \(8,\), the parameters hold 6"):
        vector_to_parameters(vector, [net.weight])


@pytest.mark.parametrize("order", [0, -1.0, -math.inf, 0.5])
def test_unusual_orders_of_norms_are_pytorchs(order, rng):
    torch = pytest.importorskip("torch")
    results = []
    grads = [rng.normal(size=(3, 2)), np.zeros(4) if order == 0 else rng.normal(size=4)]
    for library in (flow, torch):
        params = [library.nn.Parameter(library.tensor(g)) for g in grads]
        for p, g in zip(params, grads, strict=True):
            p.grad = library.tensor(g)
        norm = library.nn.utils.clip_grad_norm_(params, 0.01, order)
        results.append([norm.item(), *(p.grad.numpy() for p in params)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-9, 1e-12)
