"""`.grad` that captured code reads and that was there before the call: an input of its Plan."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn.utils import clip_grad_norm_


def test_a_step_written_by_hand_follows_the_gradients():
    """Each step has another gradient tensor; one Plan serves them."""
    rates, p = (0.5, 1.0, 100.0, 3.0), flow.ones(2, requires_grad=True)
    expected = np.ones(2, np.float32)

    @flow.compile
    def step():
        with flow.no_grad():
            p.sub_(p.grad * 0.1)

    for rate in rates:
        (rate * p).sum().backward()
        step()
        p.grad = None
        expected = expected - np.float32(rate) * np.float32(0.1)
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-6)
    assert len(step.plans) == 1


def test_a_branch_on_a_gradient_is_taken_anew():
    p = flow.ones(2, requires_grad=True)

    @flow.compile
    def doubled(x):
        return x * 2 if p.grad is not None else x + 0

    x = flow.ones(2)
    assert doubled(x).tolist() == [1, 1]
    p.sum().backward()
    with pytest.warns(UserWarning, match="was captured again"):
        assert doubled(x).tolist() == [2, 2]
    p.grad = None
    assert doubled(x).tolist() == [1, 1]


def test_an_inputs_gradient_is_its_own():
    @flow.compile
    def total(x):
        return x.detach() + (0 if x.grad is None else x.grad)

    for value in (3.0, 5.0):
        x = flow.ones(2, requires_grad=True)
        (value * x).sum().backward()
        assert total(x).tolist() == [1 + value] * 2


def test_gradients_that_flowvms_own_code_reads_are_followed(rng):
    """Clipping, whose code is no user's."""
    model = nn.Linear(3, 2)
    x = flow.tensor(rng.standard_normal((4, 3)), dtype=flow.float32)

    @flow.compile
    def clip():
        return clip_grad_norm_(model.parameters(), 0.5)

    for scale in (1.0, 10.0, 0.1):
        (scale * model(x)).square().sum().backward()
        grads = [p.grad.numpy().astype(np.float64) for p in model.parameters()]
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        np.testing.assert_allclose(clip().item(), norm, rtol=1e-5)
        for p, g in zip(model.parameters(), grads, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), g * min(1, 0.5 / (norm + 1e-6)), rtol=1e-5)
            p.grad = None
