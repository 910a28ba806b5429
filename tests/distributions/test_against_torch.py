"""Distributions against PyTorch's: densities, distribution functions, entropies, moments, KL; and
samples of both, by their distribution functions.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import distributions as ours
from flowvm.ops.random.parts.gamma import gamma_moves

torch = pytest.importorskip("torch")
theirs = torch.distributions

_rng = np.random.default_rng(7)


def above(*shape: int) -> np.ndarray:
    return np.asarray(_rng.uniform(0.5, 2.5, shape))


def share(*shape: int) -> np.ndarray:
    return np.asarray(_rng.uniform(0.1, 0.9, shape))


def real(*shape: int) -> np.ndarray:
    return np.asarray(_rng.normal(size=shape))


_factor = real(3, 3)
COVARIANCE = _factor @ _factor.T + np.eye(3)
SAMPLES: dict[str, tuple[Any, ...]] = {
    "Normal": (real(3), above(3)),
    "Laplace": (real(3), above(3)),
    "Cauchy": (real(3), above(3)),
    "Gumbel": (real(3), above(3)),
    "Uniform": (-above(3), above(3)),
    "Exponential": (above(3),),
    "VonMises": (real(3), above(3)),
    "LogNormal": (real(3), share(3)),
    "HalfNormal": (above(3),),
    "HalfCauchy": (above(3),),
    "Pareto": (above(3), above(3) + 2),
    "Weibull": (above(3), above(3) + 1),
    "Kumaraswamy": (above(3) + 1, above(3) + 1),
    "InverseGamma": (above(3) + 2, above(3)),
    "Bernoulli": (share(3),),
    "Geometric": (share(3),),
    "Poisson": (above(3),),
    "ContinuousBernoulli": (share(3),),
    "Categorical": (share(2, 4),),
    "OneHotCategorical": (share(2, 4),),
    "OneHotCategoricalStraightThrough": (share(4),),
    "Gamma": (above(3), above(3)),
    "Chi2": (above(3),),
    "Dirichlet": (above(2, 3),),
    "Beta": (above(3), above(3)),
    "StudentT": (above(3) + 2, real(3), above(3)),
    "FisherSnedecor": (above(3) + 4, above(3) + 4),
    "MultivariateNormal": (real(3), COVARIANCE),
    "LowRankMultivariateNormal": (real(3), real(3, 2), above(3)),
    "Wishart": (np.asarray(above() + 4), COVARIANCE),
    "NegativeBinomial": (above(3), share(3)),
    "Binomial": (5, share(3)),
    "Multinomial": (5, share(4)),
    "LKJCholesky": (3, above()),
    "RelaxedBernoulli": (np.asarray(0.7), share(3)),
    "RelaxedOneHotCategorical": (np.asarray(0.7), share(4)),
    "LogisticNormal": (real(3), above(3)),
}
# what PyTorch answers otherwise: NaN where a formula of its takes the logarithm of a negative one
OTHERWISE = {("Kumaraswamy", "mode")}


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    flow.set_default_dtype(flow.float64)
    torch.set_default_dtype(torch.float64)
    yield
    flow.set_default_dtype(flow.float32)
    torch.set_default_dtype(torch.float32)


def distribution(lib: Any, module: Any, name: str, args: tuple[Any, ...]) -> Any:
    return getattr(module, name)(*(lib.tensor(a) if isinstance(a, np.ndarray) else a for a in args))


def both(name: str, args: tuple[Any, ...] | None = None) -> tuple[Any, Any]:
    args = SAMPLES[name] if args is None else args
    return distribution(flow, ours, name, args), distribution(torch, theirs, name, args)


def alike(name: str, what: str, ask: Callable[[Any, Any], Any], pair: tuple[Any, Any]) -> None:
    """Check that both libraries give the same, where PyTorch has it."""
    try:
        expected = ask(pair[1], torch)
    except NotImplementedError:
        return
    if (name, what) in OTHERWISE:
        return
    actual = ask(pair[0], flow).detach()
    assert tuple(actual.shape) == tuple(expected.shape), what
    tolerance = 1e-6 if name == "VonMises" else 1e-9
    np.testing.assert_allclose(
        actual.numpy(), expected.detach().numpy(), tolerance, tolerance, err_msg=what
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_numbers(name: str) -> None:
    pair = both(name)
    torch.manual_seed(7)
    for which in ("batch_shape", "event_shape"):
        assert tuple(getattr(pair[0], which)) == tuple(getattr(pair[1], which))
    assert pair[0].has_rsample == pair[1].has_rsample
    x = pair[1].sample((5,)).numpy()
    alike(name, "log_prob", lambda d, lib: d.log_prob(lib.tensor(x)), pair)
    alike(name, "cdf", lambda d, lib: d.cdf(lib.tensor(x)), pair)
    if not pair[1].event_shape:
        u = share(5, *pair[1].batch_shape)
        alike(name, "icdf", lambda d, lib: d.icdf(lib.tensor(u)), pair)
    alike(name, "entropy", lambda d, lib: d.entropy(), pair)
    for moment in ("mean", "mode", "variance", "stddev"):
        alike(name, moment, lambda d, lib, m=moment: getattr(d, m), pair)  # type: ignore[misc]
    if pair[1].has_enumerate_support:
        alike(name, "enumerate_support", lambda d, lib: d.enumerate_support(), pair)
    wide = tuple(d.expand((2, *d.batch_shape)) for d in pair)
    alike(name, "expand", lambda d, lib: d.log_prob(lib.tensor(x[:, None])), wide)  # type: ignore[arg-type]
    assert tuple(wide[0].sample((4,)).shape) == tuple(wide[1].sample((4,)).shape)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_spread_as_its(name: str, rng: np.random.Generator) -> None:
    """The empirical distribution functions of 20,000 samples of each, coordinate by coordinate."""
    ours_, theirs_ = both(name)
    flow.manual_seed(int(rng.integers(1 << 31)))
    torch.manual_seed(int(rng.integers(1 << 31)))
    n = 20000
    x = ours_.sample((n,)).numpy().astype(np.float64).reshape(n, -1)
    y = theirs_.sample((n,)).numpy().astype(np.float64).reshape(n, -1)
    # the chance that two samples of one distribution lie farther apart is under 1e-11, and less
    # where values repeat (Smirnov's bound: 2 exp(-n d^2) for n and n samples)
    bound = np.sqrt(np.log(2 / 1e-11) / n)
    for a, b in zip(np.sort(x.T), np.sort(y.T), strict=True):
        places = np.concatenate((a, b))
        apart = np.searchsorted(a, places, "right") - np.searchsorted(b, places, "right")
        assert np.abs(apart).max() / n < bound


@pytest.mark.parametrize("name", SAMPLES)
def test_divergences(name: str) -> None:
    fixed = ("Bernoulli", "Geometric", "ContinuousBernoulli", "Binomial", "Uniform")
    args = SAMPLES[name]
    other = tuple(
        np.asarray(a * 1.1) if isinstance(a, np.ndarray) and name not in fixed else a for a in args
    )
    try:
        expected = theirs.kl_divergence(both(name)[1], both(name, other)[1])
    except NotImplementedError:
        with pytest.raises(NotImplementedError):
            ours.kl_divergence(both(name)[0], both(name, other)[0])
        return
    divergence = ours.kl_divergence(both(name)[0], both(name, other)[0])
    np.testing.assert_allclose(divergence.detach().numpy(), expected.detach().numpy(), 1e-8, 1e-9)


def test_how_gamma_numbers_move_with_their_shape() -> None:
    a = np.array([0.1, 0.5, 1.0, 3.0, 20.0, 300.0])
    x = np.array([0.05, 1.2, 0.3, 5.0, 18.0, 310.0])
    expected = torch._standard_gamma_grad(torch.tensor(a), torch.tensor(x)).numpy()
    np.testing.assert_allclose(gamma_moves(flow.tensor(a), flow.tensor(x)).numpy(), expected, 2e-3)


def test_gradients_of_samples() -> None:
    a = flow.full((4000,), 2.5, requires_grad=True)
    flow.manual_seed(3)
    ours.Gamma(a, flow.tensor(2.0)).rsample().sum().backward()
    assert a.grad is not None
    assert float(a.grad.mean()) == pytest.approx(0.5, rel=0.05)  # the mean is a / 2
    loc = flow.tensor([1.0], requires_grad=True)
    (ours.Normal(loc, 2.0).rsample((5,)) ** 1).sum().backward()
    assert loc.grad is not None
    assert loc.grad.tolist() == [5.0]


@pytest.mark.parametrize("name", ["real", "positive", "unit_interval", "simplex", "corr_cholesky"])
def test_transforms_to_constraints(name: str) -> None:
    x = real(2, 3)
    results = []
    for lib, module in ((flow, ours), (torch, theirs)):
        transform = module.transform_to(getattr(module.constraints, name))
        inputs = lib.tensor(x)
        y = transform(inputs)
        back = transform.inv(y)
        results.append((y.numpy(), back.numpy()))
        assert bool(getattr(module.constraints, name).check(y).all())
    np.testing.assert_allclose(results[0][0], results[1][0], 1e-9, 1e-12)
    np.testing.assert_allclose(results[0][1], results[1][1], 1e-7, 1e-7)
    t, u = (m.biject_to(getattr(m.constraints, name)) for m in (ours, theirs))
    inputs, other = flow.tensor(x), torch.tensor(x)
    np.testing.assert_allclose(
        t.log_abs_det_jacobian(inputs, t(inputs)).numpy(),
        u.log_abs_det_jacobian(other, u(other)).numpy(), 1e-8, 1e-9,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["lower_cholesky", "positive_definite"])
def test_transforms_to_matrices(name: str) -> None:
    constraint = getattr(ours.constraints, name)
    transform = ours.transform_to(constraint)
    y = transform(flow.tensor(real(2, 3, 3)))
    assert bool(constraint.check(y).all())
    np.testing.assert_allclose(transform(transform.inv(y)).numpy(), y.numpy(), 1e-8, 1e-8)


def test_composed() -> None:
    results = []
    loc, scale, weights = real(2, 3), above(2, 3), share(2, 3)
    x = real(5, 2)
    for lib, m in ((flow, ours), (torch, theirs)):
        t = lib.tensor
        mixture = m.MixtureSameFamily(m.Categorical(t(weights)), m.Normal(t(loc), t(scale)))
        independent = m.Independent(m.Normal(t(loc), t(scale)), 1)
        moved = m.TransformedDistribution(
            m.Normal(t(loc), t(scale)),
            [m.AffineTransform(1.0, -2.0), m.TanhTransform(), m.AbsTransform()][:2],
        )
        results.append(
            [
                mixture.log_prob(t(x)), mixture.mean, mixture.variance, mixture.cdf(t(x)),
                independent.log_prob(t(loc)), independent.entropy(),
                moved.log_prob(t(np.tanh(loc) * 0.9)), moved.cdf(t(np.tanh(loc) * 0.9)),
                moved.icdf(t(share(2, 3) * 0 + 0.3)),
            ]
        )  # fmt: skip
        assert tuple(mixture.sample((7,)).shape) == (7, 2)
        assert tuple(independent.event_shape) == (3,)
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-9, 1e-12)
