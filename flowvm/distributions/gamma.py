"""The gamma distribution, and those made of it: chi-squared, beta, Dirichlet, Student, Fisher.

Gamma numbers are drawn by Marsaglia and Tsang, "A simple method for generating gamma variables",
2000; what happens to them when the shape changes is known from the distribution function
(`flowvm.ops.random.parts.gamma`), so samples have gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flowvm import ops
from flowvm.autograd import Function
from flowvm.distributions import constraints
from flowvm.distributions.distribution import Distribution, ExponentialFamily, uniform_in
from flowvm.distributions.formulas import formulas
from flowvm.distributions.utils import Value, broadcast_all
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import finfo
from flowvm.ops.random.parts.gamma import gamma_lower, gamma_moves

if TYPE_CHECKING:
    from flowvm.distributions.constraints import Constraint


# public: distributions


class _StandardGamma(Function):
    """Numbers of rate 1, one for each shape."""

    @staticmethod
    def forward(ctx: Any, a: Value) -> Value:
        shape = tuple(a.shape)
        boosted = ops.where(a < 1, a + 1, a)
        d = boosted - 1 / 3
        c = 1 / (9 * d).sqrt()
        sample, accepted = ops.zeros_like(a), a != a  # of NaN nothing is drawn
        while not bool(accepted.all()):
            x = ops.randn(shape, dtype=a.dtype, device=a.device)
            v = (1 + c * x) ** 3
            u = uniform_in(a, shape)
            safe = ops.where(v > 0, v, ops.ones_like(v))
            good = (v > 0) & (u.log() < 0.5 * x * x + d - d * v + d * safe.log())
            sample = ops.where(good & ~accepted, d * v, sample)
            accepted = accepted | good
        small = uniform_in(a, shape) ** (1 / a)
        sample = ops.where(a < 1, sample * small, sample)
        sample = ops.clamp(sample, min=finfo(a.dtype).tiny)
        ctx.save_for_backward(a, sample)
        return sample

    @staticmethod
    def backward(ctx: Any, g: Value) -> Value:
        a, sample = ctx.saved_tensors
        moves = gamma_moves(a.contiguous().reshape(-1), sample.contiguous().reshape(-1))
        return g * moves.reshape(tuple(a.shape))


# not public
def standard_gamma(a: Value) -> Value:
    """One gamma number of rate 1 for each shape, with gradients by the shapes."""
    if not a.numel():
        return ops.zeros_like(a)
    return _StandardGamma.apply(a.contiguous())


@formulas(
    mean="concentration / rate",
    mode="ops.clamp((concentration - 1) / rate, min=0)",
    variance="concentration / rate**2",
)
class Gamma(ExponentialFamily):
    """The gamma distribution of shape `concentration` and `rate`.

    >>> gamma = flow.distributions.Gamma(2.0, 4.0)
    >>> gamma.mean, gamma.variance
    (tensor(0.5000), tensor(0.1250))
    >>> gamma.sample((3,)).shape
    flow.Size([3])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.positive, "rate": constraints.positive,
    }  # fmt: skip
    support = constraints.nonnegative
    has_rsample = True

    def __init__(
        self, concentration: object, rate: object, validate_args: bool | None = None
    ) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, concentration=0, rate=0)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        return standard_gamma(self.concentration.broadcast_to(shape)) / self.rate

    def log_prob(self, value: Value) -> Value:
        a, rate = self.concentration, self.rate
        value = self._checked(value)
        return ops.xlogy(a, rate) + ops.xlogy(a - 1, value) - rate * value - a.lgamma()

    def cdf(self, value: Value) -> Value:
        a, x = ops.broadcast_tensors(self.concentration, self.rate * self._checked(value))
        probabilities = gamma_lower(a.contiguous().reshape(-1), x.contiguous().reshape(-1))
        return probabilities.reshape(tuple(a.shape))

    def entropy(self) -> Value:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()


class Chi2(Gamma):
    """The chi-squared distribution of `df` degrees of freedom.

    >>> flow.distributions.Chi2(3.0).mean
    tensor(3.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (df,) = broadcast_all(df)
        if validate_args is not False and self._validate_args:
            self._check_parameter("df", constraints.positive, df)
        super().__init__(0.5 * df, 0.5, validate_args=validate_args)

    @property
    def df(self) -> Value:
        """The degrees of freedom."""
        return self.concentration * 2


class Dirichlet(ExponentialFamily):
    """The Dirichlet distribution on vectors that sum to 1, of concentration (*, n).

    >>> flow.distributions.Dirichlet(flow.tensor([1.0, 3.0])).mean
    tensor([0.2500, 0.7500])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.independent(constraints.positive, 1)
    }
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Value, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ArgumentError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        shape = tuple(concentration.shape)
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, concentration=1)

    @property
    def mean(self) -> Value:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def mode(self) -> Value:
        a = ops.clamp(self.concentration - 1, min=0.0)
        mode = a / a.sum(-1, keepdim=True)
        n = self.concentration.shape[-1]
        flat = (self.concentration < 1).all(-1, keepdim=True)
        corner = ops.one_hot(mode.nan_to_num().argmax(-1), n).to(mode.dtype)
        return ops.where(flat, corner, mode)

    @property
    def variance(self) -> Value:
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        drawn = standard_gamma(self.concentration.broadcast_to(shape))
        return drawn / drawn.sum(-1, keepdim=True)

    def log_prob(self, value: Value) -> Value:
        a = self.concentration
        powers = ops.xlogy(a - 1.0, self._checked(value)).sum(-1)
        return powers + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Value:
        a, n = self.concentration, self.concentration.shape[-1]
        total = a.sum(-1)
        return (
            a.lgamma().sum(-1) - total.lgamma() - (n - total) * total.digamma()
            - ((a - 1.0) * a.digamma()).sum(-1)
        )  # fmt: skip


@formulas(
    mean="concentration1 / (concentration1 + concentration0)",
    mode="_dirichlet.mode[..., 0]",
    entropy="_dirichlet.entropy()",
)
class Beta(ExponentialFamily):
    """The beta distribution on [0, 1], of concentration1 (of x) and concentration0 (of 1 - x).

    >>> flow.distributions.Beta(1.0, 3.0).mean
    tensor(0.2500)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration1": constraints.positive, "concentration0": constraints.positive,
    }  # fmt: skip
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self, concentration1: object, concentration0: object, validate_args: bool | None = None
    ) -> None:
        both = ops.stack(broadcast_all(concentration1, concentration0), -1)
        self._dirichlet = Dirichlet(both, validate_args=validate_args)
        super().__init__(self._dirichlet.batch_shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._new(batch_shape, _dirichlet=self._dirichlet.expand(batch_shape))

    @property
    def concentration1(self) -> Value:
        """The concentration of x."""
        return self._dirichlet.concentration[..., 0]

    @property
    def concentration0(self) -> Value:
        """The concentration of 1 - x."""
        return self._dirichlet.concentration[..., 1]

    @property
    def variance(self) -> Value:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total**2 * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        return self._dirichlet.rsample(sample_shape)[..., 0]

    def log_prob(self, value: Value) -> Value:
        value = self._checked(value)
        return self._dirichlet.log_prob(ops.stack([value, 1.0 - value], -1))


@formulas(mean="ops.where(df > 1, loc, ops.full_like(loc, math.nan))", mode="loc")
class StudentT(Distribution):
    """Student's t distribution of `df` degrees of freedom, loc and scale.

    >>> flow.distributions.StudentT(3.0).variance
    tensor(3.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "df": constraints.positive, "loc": constraints.real, "scale": constraints.positive,
    }  # fmt: skip
    support = constraints.real
    has_rsample = True

    def __init__(
        self, df: object, loc: object = 0.0, scale: object = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        super().__init__(self.df.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, df=0, loc=0, scale=0)

    @property
    def variance(self) -> Value:
        df = self.df
        finite = self.scale**2 * df / ops.where(df > 2, df - 2, ops.ones_like(df))
        some = ops.where(df > 1, ops.full_like(df, math.inf), ops.full_like(df, math.nan))
        return ops.where(df > 2, finite, some)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        x = ops.randn(shape, dtype=self.df.dtype, device=self.df.device)
        z = Chi2(self.df, validate_args=False).rsample(sample_shape)
        return self.loc + self.scale * x / (z / self.df).sqrt()

    def _log_norm(self) -> Value:
        df = self.df
        return (
            self.scale.log() + 0.5 * df.log() + 0.5 * math.log(math.pi)
            + (0.5 * df).lgamma() - (0.5 * (df + 1.0)).lgamma()
        )  # fmt: skip

    def log_prob(self, value: Value) -> Value:
        y = (self._checked(value) - self.loc) / self.scale
        return -0.5 * (self.df + 1.0) * (y**2 / self.df).log1p() - self._log_norm()

    def entropy(self) -> Value:
        df = self.df
        log_beta = (0.5 * df).lgamma() + math.lgamma(0.5) - (0.5 * (df + 1)).lgamma()
        moves = (0.5 * (df + 1)).digamma() - (0.5 * df).digamma()
        return self.scale.log() + 0.5 * (df + 1) * moves + 0.5 * df.log() + log_beta


class FisherSnedecor(Distribution):
    """Fisher's F distribution: the ratio of chi-squared numbers, each over its df.

    >>> flow.distributions.FisherSnedecor(3.0, 4.0).mean
    tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "df1": constraints.positive,
        "df2": constraints.positive,
    }
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: object, df2: object, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        super().__init__(self.df1.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, df1=0, df2=0)

    @property
    def mean(self) -> Value:
        df2 = ops.where(self.df2 > 2, self.df2, ops.full_like(self.df2, math.nan))
        return df2 / (df2 - 2)

    @property
    def mode(self) -> Value:
        mode = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return ops.where(self.df1 > 2, mode, ops.full_like(mode, math.nan))

    @property
    def variance(self) -> Value:
        df2 = ops.where(self.df2 > 4, self.df2, ops.full_like(self.df2, math.nan))
        return 2 * df2**2 * (self.df1 + df2 - 2) / (self.df1 * (df2 - 2) ** 2 * (df2 - 4))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        one, two = (
            standard_gamma((df * 0.5).broadcast_to(shape)) / df for df in (self.df1, self.df2)
        )
        tiny = finfo(self.df1.dtype).tiny
        return ops.clamp(one / ops.clamp(two, min=tiny), min=tiny)

    def log_prob(self, value: Value) -> Value:
        value = self._checked(value)
        a, b = self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        front = (a + b).lgamma() - a.lgamma() - b.lgamma()
        return front + a * ratio.log() + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()
