"""Distributions that are a transform of another one, with what is known of them besides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flowvm import ops
from flowvm.distributions import constraints
from flowvm.distributions.compositions import TransformedDistribution
from flowvm.distributions.continuous import Cauchy, Exponential, Normal, Uniform
from flowvm.distributions.discrete import _Binary, _OfCategorical
from flowvm.distributions.distribution import uniform_in
from flowvm.distributions.formulas import formulas
from flowvm.distributions.gamma import Gamma
from flowvm.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
    StickBreakingTransform,
)
from flowvm.distributions.utils import EULER, Value, broadcast_all, clamp_probs
from flowvm.meta.dtype import finfo

if TYPE_CHECKING:
    from flowvm.distributions.constraints import Constraint
    from flowvm.distributions.transforms import Transform


# public: distributions


@formulas(
    mean="(loc + scale**2 / 2).exp()",
    mode="(loc - scale**2).exp()",
    entropy="base_dist.entropy() + loc",
)
class LogNormal(TransformedDistribution):
    """exp of a normal number.

    >>> flow.distributions.LogNormal(0.0, 1.0).mode.log()
    tensor(-1.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.positive
    has_rsample = True

    def __init__(self, loc: object, scale: object, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale, validate_args), ExpTransform(), validate_args)

    @property
    def loc(self) -> Value:
        """The mean of the logarithm."""
        return self.base_dist.loc  # type: ignore[attr-defined]

    @property
    def scale(self) -> Value:
        """The standard deviation of the logarithm."""
        return self.base_dist.scale  # type: ignore[attr-defined]

    @property
    def variance(self) -> Value:
        square = self.scale**2
        return square.expm1() * (2 * self.loc + square).exp()


@formulas(mode="ops.zeros_like(scale)", entropy="base_dist.entropy() - math.log(2)")
class _Half(TransformedDistribution):
    """The absolute value of a number around 0."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    @property
    def scale(self) -> Value:
        """The scale of the whole."""
        return self.base_dist.scale  # type: ignore[attr-defined]

    def log_prob(self, value: Value) -> Value:
        value = self._checked(value)
        whole = self.base_dist.log_prob(value) + math.log(2)
        return ops.where(value >= 0, whole, ops.full_like(whole, -math.inf))

    def cdf(self, value: Value) -> Value:
        return 2 * self.base_dist.cdf(self._checked(value)) - 1

    def icdf(self, prob: Value) -> Value:
        return self.base_dist.icdf((prob + 1) / 2)


@formulas(mean="scale * math.sqrt(2 / math.pi)", variance="scale**2 * (1 - 2 / math.pi)")
class HalfNormal(_Half):
    """The absolute value of a normal number around 0.

    >>> bool((flow.distributions.HalfNormal(1.0).sample((9,)) >= 0).all())
    True
    """

    def __init__(self, scale: object, validate_args: bool | None = None) -> None:
        base = Normal(0, scale, validate_args=False)
        if validate_args is not False and self._validate_args:
            self._check_parameter("scale", constraints.positive, base.scale)
        super().__init__(base, AbsTransform(), validate_args)


@formulas(mean="ops.full_like(scale, math.inf)", variance="base_dist.variance")
class HalfCauchy(_Half):
    """The absolute value of a Cauchy number around 0.

    >>> flow.distributions.HalfCauchy(1.0).cdf(flow.tensor(1.0))
    tensor(0.5000)
    """

    def __init__(self, scale: object, validate_args: bool | None = None) -> None:
        base = Cauchy(0, scale, validate_args=False)
        if validate_args is not False and self._validate_args:
            self._check_parameter("scale", constraints.positive, base.scale)
        super().__init__(base, AbsTransform(), validate_args)


@formulas(mode="scale", entropy="(scale / alpha).log() + (1 + 1 / alpha)")
class Pareto(TransformedDistribution):
    """Density alpha scale**alpha / x**(alpha + 1), from scale on.

    >>> flow.distributions.Pareto(1.0, 3.0).mean
    tensor(1.5000)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "alpha": constraints.positive, "scale": constraints.positive,
    }  # fmt: skip

    def __init__(self, scale: object, alpha: object, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args=validate_args)
        parts = [ExpTransform(), AffineTransform(0, self.scale)]
        super().__init__(base, parts, validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        new = super().expand(batch_shape)
        new.scale, new.alpha = (
            v.broadcast_to(tuple(batch_shape)) for v in (self.scale, self.alpha)
        )
        new.transforms = [ExpTransform(), AffineTransform(0, new.scale)]
        return new

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """From scale on."""
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Value:
        a = ops.clamp(self.alpha, min=1)
        return a * self.scale / (a - 1)

    @property
    def variance(self) -> Value:
        a = ops.clamp(self.alpha, min=2)
        return self.scale**2 * a / ((a - 1) ** 2 * (a - 2))


class Weibull(TransformedDistribution):
    """scale * an exponential number ** (1 / concentration).

    >>> flow.distributions.Weibull(2.0, 1.0).mean
    tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "scale": constraints.positive, "concentration": constraints.positive,
    }  # fmt: skip
    support = constraints.positive
    has_rsample = True

    def __init__(
        self, scale: object, concentration: object, validate_args: bool | None = None
    ) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        self.concentration_reciprocal = 1 / self.concentration
        base = Exponential(ops.ones_like(self.scale), validate_args=validate_args)
        super().__init__(base, self._way(), validate_args)

    def _way(self) -> list[Transform]:
        return [
            PowerTransform(exponent=self.concentration_reciprocal),
            AffineTransform(0, self.scale),
        ]

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        new = super().expand(batch_shape)
        for name in ("scale", "concentration", "concentration_reciprocal"):
            setattr(new, name, getattr(self, name).broadcast_to(tuple(batch_shape)))
        new.transforms = new._way()
        return new

    @property
    def mean(self) -> Value:
        return self.scale * (1 + self.concentration_reciprocal).lgamma().exp()

    @property
    def mode(self) -> Value:
        k = self.concentration
        return self.scale * ((k - 1) / k) ** (1 / k)

    @property
    def variance(self) -> Value:
        r = self.concentration_reciprocal
        return self.scale**2 * ((1 + 2 * r).lgamma().exp() - (2 * (1 + r).lgamma()).exp())

    def entropy(self) -> Value:
        r = self.concentration_reciprocal
        return EULER * (1 - r) + (self.scale * r).log() + 1


@formulas(mean="_moment(1)", variance="_moment(2) - _moment(1) ** 2")
class Kumaraswamy(TransformedDistribution):
    """(1 - (1 - u) ** (1 / b)) ** (1 / a) of even numbers u: of concentration1 a and 0 b.

    >>> flow.distributions.Kumaraswamy(1.0, 1.0).mean
    tensor(0.5000)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration1": constraints.positive, "concentration0": constraints.positive,
    }  # fmt: skip
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self, concentration1: object, concentration0: object, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        like = self.concentration0
        base = Uniform(ops.zeros_like(like), ops.ones_like(like), validate_args=False)
        super().__init__(base, self._way(), validate_args)

    def _way(self) -> list[Transform]:
        return [
            PowerTransform(exponent=1 / self.concentration0),
            AffineTransform(1.0, -1.0),
            PowerTransform(exponent=1 / self.concentration1),
        ]

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        new = super().expand(batch_shape)
        for name in ("concentration1", "concentration0"):
            setattr(new, name, getattr(self, name).broadcast_to(tuple(batch_shape)))
        new.transforms = new._way()
        return new

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        u = uniform_in(self.concentration0, self._extended_shape(sample_shape))
        x = ops.clamp(u, max=1 - finfo(u.dtype).eps)
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        return self.rsample(sample_shape).detach()

    def _moment(self, n: int) -> Value:
        a, b = self.concentration1, self.concentration0
        one = 1 + n / a
        return (b.log() + one.lgamma() + b.lgamma() - (one + b).lgamma()).exp()

    @property
    def mode(self) -> Value:
        a, b = self.concentration1, self.concentration0
        log = ((a - 1) / (a * b - 1)).log() / a
        outside = (a < 1) | (b < 1)
        return ops.where(outside, ops.full_like(a, math.nan), log.exp())

    def entropy(self) -> Value:
        a, b = self.concentration1, self.concentration0
        t1, t0 = 1 - 1 / a, 1 - 1 / b
        return t0 + t1 * ((b + 1).digamma() + EULER) - a.log() - b.log()


class InverseGamma(TransformedDistribution):
    """1 / a gamma number.

    >>> flow.distributions.InverseGamma(3.0, 4.0).mean  # 4 / (3 - 1)
    tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.positive, "rate": constraints.positive,
    }  # fmt: skip
    support = constraints.positive
    has_rsample = True

    def __init__(
        self, concentration: object, rate: object, validate_args: bool | None = None
    ) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        minus = -ops.ones((), dtype=base.rate.dtype, device=base.rate.device)
        super().__init__(base, PowerTransform(minus), validate_args)

    @property
    def concentration(self) -> Value:
        """The gamma number's shape."""
        return self.base_dist.concentration  # type: ignore[attr-defined]

    @property
    def rate(self) -> Value:
        """The gamma number's rate."""
        return self.base_dist.rate  # type: ignore[attr-defined]

    @property
    def mean(self) -> Value:
        a = self.concentration
        mean = self.rate / (a - 1)
        return ops.where(a > 1, mean, ops.full_like(mean, math.inf))

    @property
    def mode(self) -> Value:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Value:
        a = self.concentration
        variance = self.rate**2 / ((a - 1) ** 2 * (a - 2))
        return ops.where(a > 2, variance, ops.full_like(variance, math.inf))

    def entropy(self) -> Value:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class LogisticNormal(TransformedDistribution):
    """Vectors that sum to 1, of normal numbers.

    >>> sample = flow.distributions.LogisticNormal(flow.zeros(2), flow.ones(2)).sample()
    >>> sample.shape, flow.allclose(sample.sum(), flow.tensor(1.0))
    (flow.Size([3]), True)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.simplex
    has_rsample = True

    def __init__(self, loc: object, scale: object, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        if not base.batch_shape:
            base = base.expand((1,))
        super().__init__(base, StickBreakingTransform(), validate_args)

    @property
    def loc(self) -> Value:
        """The means of the normal numbers."""
        return self.base_dist.base_dist.loc  # type: ignore[attr-defined]

    @property
    def scale(self) -> Value:
        """The standard deviations of the normal numbers."""
        return self.base_dist.base_dist.scale  # type: ignore[attr-defined]


# --- relaxed choices ------------------------------------------------------------------------------


# not public
class LogitRelaxedBernoulli(_Binary):
    """The log odds of a relaxed Bernoulli number (Maddison, Mnih and Teh, 2017)."""

    support = constraints.real
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: object = None,
        logits: object = None,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature = temperature
        super().__init__(self._take(probs, logits).shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        new = super().expand(batch_shape)
        new.temperature = self.temperature
        return new

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        probs = clamp_probs(self.probs.broadcast_to(tuple(self._extended_shape(sample_shape))))
        u = clamp_probs(uniform_in(self.probs, probs.shape))
        odds = u.log() - (-u).log1p() + probs.log() - (-probs).log1p()
        return odds / self.temperature

    def log_prob(self, value: Value) -> Value:
        difference = self.logits - self._checked(value) * self.temperature
        log = (
            ops.tensor(self.temperature).log()
            if not hasattr(self.temperature, "log")
            else (self.temperature.log())
        )
        return log + difference - 2 * ops.softplus(difference)


class _Relaxed(TransformedDistribution):
    """Base of the relaxed distributions: properties of the one that they transform."""

    @property
    def temperature(self) -> Any:
        """The temperature: near 0 samples are almost discrete."""
        return self.base_dist.temperature  # type: ignore[attr-defined]

    @property
    def logits(self) -> Value:
        """The log odds, or the logarithms of the probabilities."""
        return self.base_dist.logits  # type: ignore[attr-defined]

    @property
    def probs(self) -> Value:
        """The probabilities."""
        return self.base_dist.probs  # type: ignore[attr-defined]


class RelaxedBernoulli(_Relaxed):
    """A Bernoulli number made continuous, in (0, 1); exact at temperature 0.

    >>> x = flow.distributions.RelaxedBernoulli(flow.tensor(0.5), 0.5).sample((9,))
    >>> bool(((x > 0) & (x < 1)).all())
    True
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.unit_interval, "logits": constraints.real,
    }  # fmt: skip
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self,
        temperature: object,
        probs: object = None,
        logits: object = None,
        validate_args: bool | None = None,
    ) -> None:
        base = LogitRelaxedBernoulli(temperature, probs, logits, validate_args)
        super().__init__(base, SigmoidTransform(), validate_args)


# not public
class ExpRelaxedCategorical(_OfCategorical):
    """The logarithms of a relaxed one-hot vector."""

    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: object = None,
        logits: object = None,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded_with(batch_shape, temperature=self.temperature)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        u = clamp_probs(uniform_in(self.logits, self._extended_shape(sample_shape)))
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(-1, keepdim=True)

    def log_prob(self, value: Value) -> Value:
        n = self.event_shape[-1]
        logits, value = ops.broadcast_tensors(self.logits, self._checked(value))
        t = (
            self.temperature
            if hasattr(self.temperature, "log")
            else ops.tensor(float(self.temperature), dtype=logits.dtype)
        )
        front = math.lgamma(n) + t.log() * (n - 1)
        score = logits - value * t
        return (score - score.logsumexp(-1, keepdim=True)).sum(-1) + front


class RelaxedOneHotCategorical(_Relaxed):
    """A one-hot vector made continuous; exact at temperature 0 (Jang, Gu and Poole, 2017).

    >>> relaxed = flow.distributions.RelaxedOneHotCategorical(flow.tensor(0.5), flow.ones(3) / 3)
    >>> flow.allclose(relaxed.sample().sum(), flow.tensor(1.0))
    True
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.simplex, "logits": constraints.real_vector,
    }  # fmt: skip
    support = constraints.simplex
    has_rsample = True

    def __init__(
        self,
        temperature: object,
        probs: object = None,
        logits: object = None,
        validate_args: bool | None = None,
    ) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args)
        super().__init__(base, ExpTransform(), validate_args)
