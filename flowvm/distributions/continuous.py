"""Distributions of one real number with a location, a scale or bounds: their formulas are short."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from flowvm import ops
from flowvm.distributions import constraints
from flowvm.distributions.distribution import Distribution, ExponentialFamily, uniform_in
from flowvm.distributions.formulas import formulas
from flowvm.distributions.utils import LOG_2PI, Value, broadcast_all, holds
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import finfo

if TYPE_CHECKING:
    from flowvm.distributions.constraints import Constraint


# public: distributions


class _LocScale(Distribution):
    """Base of the distributions of loc + scale * a standard number."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: object, scale: object, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, loc=0, scale=0)

    def _standard(self, value: Value) -> Value:
        return (self._checked(value) - self.loc) / self.scale


@formulas(
    mean="loc",
    mode="loc",
    stddev="scale",
    variance="scale**2",
    entropy="0.5 + LOG_2PI / 2 + scale.log()",
)
class Normal(_LocScale, ExponentialFamily):
    """The normal distribution of mean `loc` and standard deviation `scale`.

    >>> flow.distributions.Normal(0.0, 1.0).log_prob(flow.tensor(0.0))
    tensor(-0.9189)
    """

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = self._extended_shape(sample_shape)
        drawn = ops.randn(tuple(shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + drawn * self.scale

    def log_prob(self, value: Value) -> Value:
        z = self._standard(value)
        return -(z**2) / 2 - self.scale.log() - LOG_2PI / 2

    def cdf(self, value: Value) -> Value:
        return (1 + (self._standard(value) / math.sqrt(2)).erf()) / 2

    def icdf(self, value: Value) -> Value:
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)


@formulas(
    mean="loc",
    mode="loc",
    variance="2 * scale**2",
    stddev="math.sqrt(2) * scale",
    entropy="1 + (2 * scale).log()",
)
class Laplace(_LocScale):
    """The Laplace distribution: density exp(-|x - loc| / scale) / (2 scale).

    >>> laplace = flow.distributions.Laplace(0.0, 1.0)
    >>> laplace.cdf(flow.tensor(0.0)), laplace.variance
    (tensor(0.5000), tensor(2.))
    """

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        u = uniform_in(self.loc, self._extended_shape(sample_shape)) * 2 - 1
        u = ops.clamp(u, min=finfo(u.dtype).eps - 1, max=1 - finfo(u.dtype).eps)
        return self.loc - self.scale * u.sign() * (-u.abs()).log1p()

    def log_prob(self, value: Value) -> Value:
        return -(2 * self.scale).log() - self._standard(value).abs()

    def cdf(self, value: Value) -> Value:
        z = self._standard(value)
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def icdf(self, value: Value) -> Value:
        t = value - 0.5
        return self.loc - self.scale * t.sign() * (-2 * t.abs()).log1p()


@formulas(
    mean="ops.full_like(loc, math.nan)",
    mode="loc",
    variance="ops.full_like(loc, math.inf)",
    entropy="math.log(4 * math.pi) + scale.log()",
)
class Cauchy(_LocScale):
    """The Cauchy distribution of median `loc` and half width `scale`; it has no mean.

    >>> flow.distributions.Cauchy(0.0, 1.0).cdf(flow.tensor(0.0))
    tensor(0.5000)
    """

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        u = uniform_in(self.loc, self._extended_shape(sample_shape))
        return self.loc + self.scale * (math.pi * (u - 0.5)).tan()

    def log_prob(self, value: Value) -> Value:
        return -math.log(math.pi) - self.scale.log() - (self._standard(value) ** 2).log1p()

    def cdf(self, value: Value) -> Value:
        return self._standard(value).atan() / math.pi + 0.5

    def icdf(self, value: Value) -> Value:
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc


@formulas(
    mean="loc + scale * EULER",
    mode="loc",
    stddev="math.pi / math.sqrt(6) * scale",
    variance="stddev**2",
    entropy="scale.log() + (1 + EULER)",
)
class Gumbel(_LocScale):
    """The Gumbel distribution: of the largest of many numbers.

    >>> flow.distributions.Gumbel(0.0, 1.0).sample((3,)).shape
    flow.Size([3])
    """

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        u = uniform_in(self.loc, self._extended_shape(sample_shape))
        u = ops.clamp(u, max=1 - finfo(u.dtype).eps)
        return self.loc - self.scale * (-u.log()).log()

    def log_prob(self, value: Value) -> Value:
        y = -self._standard(value)
        return y - y.exp() - self.scale.log()

    def cdf(self, value: Value) -> Value:
        return (-(-self._standard(value)).exp()).exp()

    def icdf(self, value: Value) -> Value:
        return self.loc - self.scale * (-value.log()).log()


@formulas(
    mean="(high + low) / 2",
    mode="mean * math.nan",
    stddev="(high - low) / math.sqrt(12)",
    variance="(high - low) ** 2 / 12",
    entropy="(high - low).log()",
)
class Uniform(Distribution):
    """The uniform distribution on [low, high).

    >>> even = flow.distributions.Uniform(0.0, 4.0)
    >>> even.mean, even.log_prob(flow.tensor(1.0)).exp()
    (tensor(2.), tensor(0.2500))
    """

    has_rsample = True

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "low": constraints.dependent, "high": constraints.dependent,
    }  # fmt: skip

    def __init__(self, low: object, high: object, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)
        if self._validate_args and not holds(ops.lt, self.low, self.high):
            raise ArgumentError("Uniform is not defined when low>= high")

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """[low, high]."""
        return constraints.interval(self.low, self.high)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, low=0, high=0)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        drawn = ops.rand(shape, dtype=self.low.dtype, device=self.low.device)
        return self.low + drawn * (self.high - self.low)

    def log_prob(self, value: Value) -> Value:
        value = self._checked(value)
        inside = ((self.low <= value) & (self.high > value)).to(self.low.dtype)
        return inside.log() - (self.high - self.low).log()

    def cdf(self, value: Value) -> Value:
        return ops.clamp((self._checked(value) - self.low) / (self.high - self.low), min=0, max=1)

    def icdf(self, value: Value) -> Value:
        return value * (self.high - self.low) + self.low


@formulas(
    mean="1 / rate",
    mode="ops.zeros_like(rate)",
    stddev="1 / rate",
    variance="rate**-2",
    entropy="1 - rate.log()",
)
class Exponential(ExponentialFamily):
    """The exponential distribution: density rate * exp(-rate x).

    >>> waiting = flow.distributions.Exponential(2.0)
    >>> waiting.mean, waiting.cdf(flow.tensor(0.0))
    (tensor(0.5000), tensor(0.))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, rate: object, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, rate=0)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        drawn = ops.empty(shape, dtype=self.rate.dtype, device=self.rate.device)
        return drawn.exponential_() / self.rate

    def log_prob(self, value: Value) -> Value:
        return self.rate.log() - self.rate * self._checked(value)

    def cdf(self, value: Value) -> Value:
        return -(-self.rate * self._checked(value)).expm1()

    def icdf(self, value: Value) -> Value:
        return -(-value).log1p() / self.rate


class VonMises(Distribution):
    """The von Mises distribution of angles in [-pi, pi) around `loc`.

    Sampled by Best and Fisher, "Efficient simulation of the von Mises distribution", 1979; the
    Bessel functions by Abramowitz and Stegun, 9.8.1 to 9.8.4.

    >>> flow.distributions.VonMises(0.5, 4.0).mean
    tensor(0.5000)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real, "concentration": constraints.positive,
    }  # fmt: skip
    support = constraints.real

    def __init__(
        self, loc: object, concentration: object, validate_args: bool | None = None
    ) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, loc=0, concentration=0)

    @property
    def mean(self) -> Value:
        """The circular mean."""
        return self.loc

    @property
    def mode(self) -> Value:
        return self.loc

    @property
    def variance(self) -> Value:
        """The circular variance."""
        k = self.concentration
        return 1 - (_log_bessel(k, 1) - _log_bessel(k, 0)).exp()

    def log_prob(self, value: Value) -> Value:
        k = self.concentration
        return (
            k * (self._checked(value) - self.loc).cos() - math.log(2 * math.pi) - _log_bessel(k, 0)
        )

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        k = self.concentration.detach().double()
        tau = 1 + (1 + 4 * k**2).sqrt()
        rho = (tau - (2 * tau).sqrt()) / (2 * k)
        precise = (1 + rho**2) / (2 * rho)
        r = ops.where(k < 1e-5, 1 / k + k, precise).broadcast_to(shape)
        k = k.broadcast_to(shape)
        angles = ops.zeros(shape, dtype=k.dtype, device=k.device)
        accepted = angles > 1
        while not bool(accepted.all()):
            u1, u2, u3 = (uniform_in(k, shape) for _ in range(3))
            z = (math.pi * u1).cos()
            f = (1 + r * z) / (r + z)
            c = k * (r - f)
            good = ((c * (2 - c) - u2) > 0) | (((c / u2).log() + 1 - c) >= 0)
            angle = (u3 - 0.5).sign() * ops.clamp(f, min=-1, max=1).acos()
            angles = ops.where(good & ~accepted, angle, angles)
            accepted = accepted | good
        turned = (angles + math.pi + self.loc.detach().double()) % (2 * math.pi) - math.pi
        return turned.to(self.loc.dtype)


_SMALL = (
    (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.360768e-1, 0.45813e-2),
    (0.5, 0.87890594, 0.51498869, 0.15084934, 0.2658733e-1, 0.301532e-2, 0.32411e-3),
)
_LARGE = (
    (0.39894228, 0.1328592e-1, 0.225319e-2, -0.157565e-2, 0.916281e-2, -0.2057706e-1,
     0.2635537e-1, -0.1647633e-1, 0.392377e-2),
    (0.39894228, -0.3988024e-1, -0.362018e-2, 0.163801e-2, -0.1031555e-1, 0.2282967e-1,
     -0.2895312e-1, 0.1787654e-1, -0.420059e-2),
)  # fmt: skip


def _polynomial(y: Value, coefficients: tuple[float, ...]) -> Value:
    total = 0 * y + coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = c + y * total
    return total


def _log_bessel(x: Value, order: int) -> Value:
    """The logarithm of the modified Bessel function of order 0 or 1, for x >= 0."""
    small = _polynomial((x / 3.75) ** 2, _SMALL[order])
    if order == 1:
        small = x * small
    large = x - 0.5 * x.log() + _polynomial(3.75 / x, _LARGE[order]).log()
    return ops.where(x < 3.75, small.log(), large)
