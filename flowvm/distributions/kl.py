"""Kullback-Leibler divergences, by the classes of both distributions.

The formulas are those of the distributions' textbooks; exponential families of gamma's kind as in
Penny, "KL-divergences of normal, gamma, Dirichlet and Wishart densities", 2001.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flowvm import ops
from flowvm.distributions.compositions import Independent, TransformedDistribution
from flowvm.distributions.continuous import Cauchy, Exponential, Gumbel, Laplace, Normal, Uniform
from flowvm.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    ContinuousBernoulli,
    Geometric,
    OneHotCategorical,
    Poisson,
)
from flowvm.distributions.distribution import Distribution
from flowvm.distributions.gamma import Beta, Dirichlet, Gamma
from flowvm.distributions.multivariate import (
    LowRankMultivariateNormal,
    MultivariateNormal,
    Wishart,
    digamma_multivariate,
    mahalanobis,
)
from flowvm.distributions.pushforwards import HalfNormal, Pareto
from flowvm.distributions.utils import (
    EULER,
    Value,
    log_gamma_multivariate,
    sum_rightmost,
    triangular_solve,
)
from flowvm.errors import ArgumentTypeError
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())

_known: dict[tuple[type, type], Callable[..., object]] = {}


# public: distributions
def register_kl(type_p: type, type_q: type) -> Callable[..., Any]:
    """A decorator: this function is KL(p || q) for p and q of these classes, or of subclasses.

    >>> from flowvm.distributions import Normal, kl_divergence, register_kl
    >>> class Mine(Normal):
    ...     pass
    >>> @register_kl(Mine, Mine)
    ... def kl_mine_mine(p, q):
    ...     return flow.tensor(0.0)
    >>> kl_divergence(Mine(0.0, 1.0), Mine(5.0, 1.0))
    tensor(0.)
    """
    for kind in (type_p, type_q):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise ArgumentTypeError(f"Expected a subclass of Distribution but got {kind!r}")

    def register(function: Callable[..., object]) -> Callable[..., object]:
        _known[type_p, type_q] = function
        return function

    return register


# public: distributions
def kl_divergence(p: Distribution, q: Distribution) -> Value:
    """KL(p || q), a number for each of the batch.  NotImplementedError for classes that nobody has
    registered.

    >>> from flowvm.distributions import Normal, kl_divergence
    >>> kl_divergence(Normal(0.0, 1.0), Normal(2.0, 1.0))  # 2 ** 2 / 2
    tensor(2.)
    """
    best = None
    for (a, b), function in _known.items():
        if isinstance(p, a) and isinstance(q, b):
            far = type(p).__mro__.index(a) + type(q).__mro__.index(b)
            if best is None or far < best[0]:
                best = (far, function)
    if best is None:
        raise NotImplementedError(
            f"No KL(p || q) is implemented for p type {type(p).__name__} and q type "
            f"{type(q).__name__}"
        )
    return best[1](p, q)


def _infinite(like: Value) -> Value:
    return ops.full_like(like, math.inf)


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Value:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Value:
    return _normal(p.base_dist, q.base_dist)


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Value:
    ratio, off = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + off / q.scale + ratio * (-off / p.scale).exp() - 1


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Value:
    both = (p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2
    return both.log() - (4 * p.scale * q.scale).log()


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Value:
    ratio = p.scale / q.scale
    off = (q.loc - p.loc) / q.scale
    return -off - ratio.log() + EULER * ratio + (off + (1 + ratio).lgamma()).exp() - (1 + EULER)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Value:
    divergence = ((q.high - q.low) / (p.high - p.low)).log()
    return ops.where((q.low > p.low) | (q.high < p.high), _infinite(divergence), divergence)


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Value:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Value:
    ratio = q.alpha / p.alpha
    divergence = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return ops.where(p.scale < q.scale, _infinite(divergence), divergence)


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Value:
    return (
        q.concentration * (p.rate / q.rate).log()
        + q.concentration.lgamma() - p.concentration.lgamma()
        + (p.concentration - q.concentration) * p.concentration.digamma()
        + (q.rate - p.rate) * (p.concentration / p.rate)
    )  # fmt: skip


@register_kl(Exponential, Gamma)
def _exponential_gamma(p: Exponential, q: Gamma) -> Value:
    ratio = q.rate / p.rate
    return (
        -q.concentration * ratio.log() + ratio + q.concentration.lgamma()
        + q.concentration * EULER - (1 + EULER)
    )  # fmt: skip


@register_kl(Gamma, Exponential)
def _gamma_exponential(p: Gamma, q: Exponential) -> Value:
    return -p.entropy() - q.rate.log() + q.rate * p.concentration / p.rate


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Value:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    return (
        total.lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
        + ((a - b) * (a.digamma() - total.digamma().unsqueeze(-1))).sum(-1)
    )  # fmt: skip


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Value:
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Value:
    ones = p.probs * (ops.softplus(-q.logits) - ops.softplus(-p.logits))
    ones = ops.where(p.probs == 0, 0 * ones, ops.where(q.probs == 0, _infinite(ones), ones))
    zeros = (1 - p.probs) * (ops.softplus(q.logits) - ops.softplus(p.logits))
    zeros = ops.where(p.probs == 1, 0 * zeros, ops.where(q.probs == 1, _infinite(zeros), zeros))
    return ones + zeros


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Value:
    return (
        p.mean * (p.logits - q.logits) + p._log_norm() - q._log_norm()
        + (-p.probs).log1p() - (-q.probs).log1p()
    )  # fmt: skip


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Value:
    if bool((p.total_count < q.total_count).any()):
        raise NotImplementedError(
            "KL between Binomials where q.total_count > p.total_count is not implemented"
        )
    divergence = p.total_count * (
        p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p()
    )
    return ops.where(p.total_count > q.total_count, _infinite(divergence), divergence)


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Value:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Value:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Value:
    each = p.probs * (p.logits - q.logits)
    each = ops.where((q.probs == 0).broadcast_to(tuple(each.shape)), _infinite(each), each)
    return ops.where((p.probs == 0).broadcast_to(tuple(each.shape)), 0 * p.probs, each).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Value:
    return _categorical(p._categorical, q._categorical)


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate(p: MultivariateNormal, q: MultivariateNormal) -> Value:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two Multivariate Normals with different event shapes cannot be "
            "computed"
        )
    half = q._lower.diagonal(0, -2, -1).log().sum(-1) - p._lower.diagonal(0, -2, -1).log().sum(-1)
    inner = (triangular_solve(q._lower, p._lower) ** 2).sum(-1).sum(-1)
    square = mahalanobis(q._lower, q.loc - p.loc)
    return half + 0.5 * (inner + square - p.event_shape[0])


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
@register_kl(MultivariateNormal, LowRankMultivariateNormal)
@register_kl(LowRankMultivariateNormal, MultivariateNormal)
def _low_rank(p: Any, q: Any) -> Value:
    whole = [
        MultivariateNormal(d.loc, covariance_matrix=d.covariance_matrix, validate_args=False)
        for d in (p, q)
    ]
    return _multivariate(*whole)


@register_kl(Wishart, Wishart)
def _wishart(p: Wishart, q: Wishart) -> Value:
    n = p.event_shape[-1]
    logs = [d._lower.diagonal(0, -2, -1).log().sum(-1) for d in (q, p)]
    inner = (triangular_solve(q._lower, p._lower) ** 2).sum(-1).sum(-1)
    return (
        q.df * (logs[0] - logs[1])
        + 0.5 * p.df * (inner - n)
        + log_gamma_multivariate(q.df / 2, n)
        - log_gamma_multivariate(p.df / 2, n)
        + 0.5 * (p.df - q.df) * digamma_multivariate(p.df / 2, n)
    )


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Value:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("KL of Independents that reinterpret other numbers of dimensions")
    divergence = kl_divergence(p.base_dist, q.base_dist)
    return sum_rightmost(divergence, p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Value:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("KL of distributions that are transformed differently")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Value:
    off = p.loc - q.loc
    ratio = off / p.scale
    near = math.sqrt(2 / math.pi) * p.scale * (-0.5 * ratio**2).exp()
    absolute = near + off * (math.sqrt(0.5) * ratio).erf()
    return -p.entropy() + absolute / q.scale + (2 * q.scale).log()


@register_kl(Laplace, Normal)
def _laplace_normal(p: Laplace, q: Normal) -> Value:
    spread = 2 * p.scale**2 + (p.loc - q.loc) ** 2
    return -p.entropy() + 0.5 * spread / q.scale**2 + 0.5 * (2 * math.pi * q.scale**2).log()


@register_kl(Uniform, Normal)
def _uniform_normal(p: Uniform, q: Normal) -> Value:
    width = p.high - p.low
    off = (p.high + p.low - 2 * q.loc) / 2
    return (
        -width.log()
        + (2 * math.pi * q.scale**2).log() / 2
        + (width**2 / 12 + off**2) / (2 * q.scale**2)
    )


@register_kl(Gamma, Normal)
def _gamma_normal(p: Gamma, q: Normal) -> Value:
    spread = p.variance + (p.mean - q.loc) ** 2
    return -p.entropy() + 0.5 * (2 * math.pi * q.scale**2).log() + spread / (2 * q.scale**2)


@register_kl(Exponential, Normal)
def _exponential_normal(p: Exponential, q: Normal) -> Value:
    spread = p.variance + (p.mean - q.loc) ** 2
    return -p.entropy() + 0.5 * (2 * math.pi * q.scale**2).log() + spread / (2 * q.scale**2)


__all__ = own_names(globals())
