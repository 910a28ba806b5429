"""Arguments that distributions refuse, and their messages."""

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import distributions as d


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda: d.Normal(0.0, -1.0), r"parameter scale .* satisfy the constraint GreaterThan"),
        (lambda: d.Normal(float("nan"), 1.0), "parameter loc .* constraint Real"),
        (lambda: d.Bernoulli(), "Either `probs` or `logits` must be specified"),
        (lambda: d.Bernoulli(1.5), "parameter probs"),
        (lambda: d.Uniform(1.0, 0.0), "not defined when low>= high"),
        (lambda: d.Categorical(flow.tensor(0.5)), "at least one-dimensional"),
        (lambda: d.Exponential(1.0).log_prob(flow.tensor(-1.0)), "within the support"),
        (lambda: d.Normal(0.0, 1.0).log_prob(1.0), "must be a Tensor"),
        (lambda: d.Normal(flow.zeros(3), 1.0).log_prob(flow.zeros(2)), "not broadcastable"),
        (lambda: d.Categorical(flow.ones(3)).log_prob(flow.tensor(3)), "within the support"),
        (lambda: d.Chi2(-1.0), "parameter df"),
        (lambda: d.HalfNormal(0.0), "parameter scale"),
        (lambda: d.Independent(d.Normal(0.0, 1.0), 1), "reinterpreted_batch_ndims"),
        (lambda: d.MultivariateNormal(flow.zeros(2)), "Exactly one of"),
        (lambda: d.LKJCholesky(1), "greater than or equal to 2"),
    ],
)
def test_what_cannot_be_says_so(do: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        do()


def test_checks_can_be_left_out() -> None:
    normal = d.Normal(0.0, -1.0, validate_args=False)
    assert float(normal.scale) == -1.0
    d.Distribution.set_default_validate_args(False)
    try:
        d.Exponential(-1.0)
    finally:
        d.Distribution.set_default_validate_args(True)


def test_divergences_of_ones_own() -> None:
    class Mine(d.Normal):
        pass

    @d.register_kl(Mine, Mine)
    def _mine(p: Any, q: Any) -> Any:
        return p.loc * 0 + 42.0

    assert float(d.kl_divergence(Mine(0.0, 1.0), Mine(0.0, 1.0))) == 42.0
    assert float(d.kl_divergence(Mine(0.0, 1.0), d.Normal(0.0, 1.0))) == 0.0
    with pytest.raises(NotImplementedError, match="No KL"):
        d.kl_divergence(d.Normal(0.0, 1.0), d.Poisson(1.0))


def test_how_they_are_shown() -> None:
    assert repr(d.Normal(0.0, 1.0)) == "Normal(loc: 0.0, scale: 1.0)"
    assert repr(d.Normal(flow.zeros(2), 1.0)) == "Normal(loc: (2,), scale: (2,))"


def test_arguments_are_checked_inside_maps_and_not_in_captures():
    def chance(scores, action):
        return flow.distributions.Categorical(logits=scores).log_prob(action)

    scores, action = flow.randn(3, 4), flow.tensor([0, 3, 1])
    expected = scores.log_softmax(1).gather(1, action.unsqueeze(1)).squeeze(1).numpy()
    np.testing.assert_allclose(flow.compile(chance)(scores, action).numpy(), expected, rtol=1e-5)
    flow.func.explain().clear()
    np.testing.assert_allclose(flow.func.vmap(chance)(scores, action).numpy(), expected, rtol=1e-5)
    assert "chance" not in flow.func.explain()
    with pytest.raises(ValueError, match="scale"):
        flow.func.vmap(lambda s: flow.distributions.Normal(0.0, s).log_prob(s))(
            flow.tensor([1.0, -1.0])
        )
