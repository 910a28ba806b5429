"""Probability distributions with PyTorch's names: samples, densities, what is known of them.

    d = flow.distributions.Normal(loc, scale)
    x = d.rsample((100,))                      # with gradients by loc and scale
    d.log_prob(x), d.entropy(), flow.distributions.kl_divergence(d, other)

All are compositions of ops, so that they have gradients, work in graphs where they do not decide by
values, and on every device.
Not here: what draws random numbers (`flowvm.ops.random`).
"""

from flowvm.distributions import constraints, transforms
from flowvm.distributions.composed import Independent, MixtureSameFamily, TransformedDistribution
from flowvm.distributions.constraint_registry import biject_to, transform_to
from flowvm.distributions.continuous import (
    Cauchy,
    Exponential,
    Gumbel,
    Laplace,
    Normal,
    Uniform,
    VonMises,
)
from flowvm.distributions.derived import (
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    LogisticNormal,
    LogNormal,
    Pareto,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    Weibull,
)
from flowvm.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    ContinuousBernoulli,
    Geometric,
    Multinomial,
    NegativeBinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)
from flowvm.distributions.distribution import Distribution, ExponentialFamily
from flowvm.distributions.gamma import Beta, Chi2, Dirichlet, FisherSnedecor, Gamma, StudentT
from flowvm.distributions.kl import kl_divergence, register_kl
from flowvm.distributions.multivariate import (
    LKJCholesky,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Wishart,
)
from flowvm.distributions.transforms import *  # noqa: F403 - their names are pinned there
from flowvm.loading.listing import listing

__all__ = [
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ContinuousBernoulli",
    "Dirichlet", "Distribution", "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma",
    "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "InverseGamma",
    "Kumaraswamy", "LKJCholesky", "Laplace", "LogNormal", "LogisticNormal",
    "LowRankMultivariateNormal", "MixtureSameFamily", "Multinomial", "MultivariateNormal",
    "NegativeBinomial", "Normal", "OneHotCategorical", "OneHotCategoricalStraightThrough",
    "Pareto", "Poisson", "RelaxedBernoulli", "RelaxedOneHotCategorical", "StudentT",
    "TransformedDistribution", "Uniform", "VonMises", "Weibull", "Wishart", "biject_to",
    "constraints", "kl_divergence", "register_kl", "transform_to", "transforms",
]  # fmt: skip
__all__ += transforms.__all__
__all__.sort()
__dir__ = listing(globals())
