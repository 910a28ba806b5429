"""Probability distributions with PyTorch's names: samples, densities, what is known of them.

    d = flow.distributions.Normal(loc, scale)
    x = d.rsample((100,))                      # with gradients by loc and scale
    d.log_prob(x), d.entropy(), flow.distributions.kl_divergence(d, other)

All are compositions of ops, so that they have gradients, work in graphs where they do not decide by
values, and on every device.
Not here: what draws random numbers (`flowvm.ops.random`).
"""

from flowvm.distributions import constraints as constraints
from flowvm.distributions import transforms as transforms
from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.distributions.compositions import (
    Independent, MixtureSameFamily, TransformedDistribution,
)
from flowvm.distributions.constraint_registry import biject_to, transform_to
from flowvm.distributions.continuous import (
    Cauchy, Exponential, Gumbel, Laplace, Normal, Uniform, VonMises,
)
from flowvm.distributions.discrete import (
    Bernoulli, Binomial, Categorical, ContinuousBernoulli, Geometric, Multinomial, NegativeBinomial,
    OneHotCategorical, OneHotCategoricalStraightThrough, Poisson,
)
from flowvm.distributions.distribution import Distribution, ExponentialFamily
from flowvm.distributions.gamma import Beta, Chi2, Dirichlet, FisherSnedecor, Gamma, StudentT
from flowvm.distributions.kl import kl_divergence, register_kl
from flowvm.distributions.multivariate import (
    LKJCholesky, LowRankMultivariateNormal, MultivariateNormal, Wishart,
)
from flowvm.distributions.pushforwards import (
    HalfCauchy, HalfNormal, InverseGamma, Kumaraswamy, LogNormal, LogisticNormal, Pareto,
    RelaxedBernoulli, RelaxedOneHotCategorical, Weibull,
)
from flowvm.distributions.transforms import (
    AbsTransform, AffineTransform, CatTransform, ComposeTransform, CorrCholeskyTransform,
    CumulativeDistributionTransform, ExpTransform, IndependentTransform, LowerCholeskyTransform,
    PositiveDefiniteTransform, PowerTransform, ReshapeTransform, SigmoidTransform, SoftmaxTransform,
    SoftplusTransform, StackTransform, StickBreakingTransform, TanhTransform, Transform,
    identity_transform,
)

__all__ = [
    "AbsTransform", "AffineTransform", "Bernoulli", "Beta", "Binomial", "CatTransform",
    "Categorical", "Cauchy", "Chi2", "ComposeTransform", "ContinuousBernoulli",
    "CorrCholeskyTransform", "CumulativeDistributionTransform", "Dirichlet", "Distribution",
    "ExpTransform", "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma", "Geometric",
    "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "IndependentTransform", "InverseGamma",
    "Kumaraswamy", "LKJCholesky", "Laplace", "LogNormal", "LogisticNormal",
    "LowRankMultivariateNormal", "LowerCholeskyTransform", "MixtureSameFamily", "Multinomial",
    "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical",
    "OneHotCategoricalStraightThrough", "Pareto", "Poisson", "PositiveDefiniteTransform",
    "PowerTransform", "RelaxedBernoulli", "RelaxedOneHotCategorical", "ReshapeTransform",
    "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform", "StackTransform",
    "StickBreakingTransform", "StudentT", "TanhTransform", "Transform", "TransformedDistribution",
    "Uniform", "VonMises", "Weibull", "Wishart", "biject_to", "constraints", "identity_transform",
    "kl_divergence", "register_kl", "transform_to", "transforms",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
