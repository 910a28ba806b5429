"""Distributions of counts and choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.distributions import constraints
from flowvm.distributions.distribution import Distribution, ExponentialFamily, uniform_in
from flowvm.distributions.formulas import formulas
from flowvm.distributions.gamma import Gamma
from flowvm.distributions.utils import (
    Value,
    broadcast_all,
    clamp_probs,
    holds,
    is_number,
    logits_to_probs,
    probs_to_logits,
)
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import finfo
from flowvm.meta.meta import Size

if TYPE_CHECKING:
    from flowvm.distributions.constraints import Constraint


# public: distributions


def _one_of(probs: object, logits: object) -> None:
    if (probs is None) == (logits is None):
        raise ArgumentError("Either `probs` or `logits` must be specified, but not both.")


class _ByEither(Distribution):
    """By probabilities or by their logarithms; which were given is in the instance's own dict."""

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        return Size(self._parameter.shape)

    @property
    def _parameter(self) -> Value:
        own = vars(self)
        return own["probs"] if "probs" in own else own["logits"]


class _Binary(_ByEither):
    """Base of distributions with a probability, given itself or by its log odds."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.unit_interval, "logits": constraints.real,
    }  # fmt: skip

    def _take(self, probs: object, logits: object) -> Value:
        _one_of(probs, logits)
        if probs is not None:
            (self.probs,) = broadcast_all(probs)
            return self.probs
        (self.logits,) = broadcast_all(logits)
        return self.logits

    @cached_property
    def logits(self) -> Value:
        """The logarithms of the odds."""
        return probs_to_logits(self.probs, is_binary=True)

    @cached_property
    def probs(self) -> Value:
        """The probabilities."""
        return logits_to_probs(self.logits, is_binary=True)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, probs=0, logits=0, total_count=0)


@formulas(
    mean="probs", variance="probs * (1 - probs)", entropy="ops.softplus(logits) - logits * probs"
)
class Bernoulli(_Binary, ExponentialFamily):
    """1 with probability `probs`, or sigmoid(logits), else 0.

    >>> coin = flow.distributions.Bernoulli(0.25)
    >>> coin.mean, coin.log_prob(flow.tensor(1.0)).exp()
    (tensor(0.2500), tensor(0.2500))
    """

    support = constraints.boolean
    has_enumerate_support = True

    def __init__(
        self, probs: object = None, logits: object = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(self._take(probs, logits).shape, validate_args=validate_args)

    @property
    def mode(self) -> Value:
        p = self.probs
        return ops.where(p == 0.5, ops.full_like(p, float("nan")), (p >= 0.5).to(p.dtype))

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        with no_grad():
            return self.probs.broadcast_to(tuple(self._extended_shape(sample_shape))).bernoulli()

    def log_prob(self, value: Value) -> Value:
        value = self._checked(value)
        return value * self.logits - ops.softplus(self.logits)

    def enumerate_support(self, expand: bool = True) -> Value:
        like = self._parameter
        values = ops.arange(2, device=like.device).to(like.dtype)
        return _along_batch(values, self._batch_shape, expand)


def _along_batch(values: Value, batch: Size, expand: bool) -> Value:
    values = values.reshape(-1, *(1,) * len(batch))
    return values.broadcast_to((values.shape[0], *batch)) if expand else values


@formulas(
    mean="1.0 / probs - 1.0", mode="ops.zeros_like(probs)", variance="(1.0 / probs - 1.0) / probs"
)
class Geometric(_Binary):
    """The number of failures in front of the first success, of probability `probs`: 0, 1, 2, ...

    >>> coin = flow.distributions.Geometric(0.25)
    >>> coin.mean, coin.log_prob(flow.tensor(1.0)).exp()  # 3, 0.75 * 0.25
    (tensor(3.), tensor(0.1875))
    """

    support = constraints.nonnegative_integer

    def __init__(
        self, probs: object = None, logits: object = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(self._take(probs, logits).shape, validate_args=validate_args)
        if self._validate_args and probs is not None and not holds(ops.gt, self.probs, 0):
            raise ArgumentError(
                f"Expected parameter probs of distribution {self!r} to be positive but found "
                f"invalid values:\n{self.probs}"
            )

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        with no_grad():
            u = uniform_in(self.probs, self._extended_shape(sample_shape))
            return (u.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Value) -> Value:
        pair: Any = ops.broadcast_tensors(self._checked(value), self.probs)
        value, probs = pair
        failed = ops.where((probs == 1) & (value == 0), ops.zeros_like(probs), probs)
        return value * (-failed).log1p() + self.probs.log()

    def entropy(self) -> Value:
        logits, p = self.logits, self.probs
        return (ops.softplus(logits) - logits * p) / p


@formulas(
    mean="total_count * probs",
    mode="ops.minimum(((total_count + 1) * probs).floor(), total_count)",
    variance="total_count * probs * (1 - probs)",
)
class Binomial(_Binary):
    """The number of successes, of probability `probs` each, in total_count trials.

    >>> throws = flow.distributions.Binomial(4, 0.5)
    >>> throws.mean, throws.log_prob(flow.tensor(4.0)).exp()  # 2, 1 / 16
    (tensor(2.), tensor(0.0625))
    """

    has_enumerate_support = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "total_count": constraints.nonnegative_integer,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }

    def __init__(
        self,
        total_count: object = 1,
        probs: object = None,
        logits: object = None,
        validate_args: bool | None = None,
    ) -> None:
        parameter = self._take(probs, logits)
        self.total_count, parameter = broadcast_all(total_count, parameter)
        self.total_count = self.total_count.to(parameter.dtype)
        vars(self)["probs" if probs is not None else "logits"] = parameter
        super().__init__(parameter.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Constraint:
        """The integers of [0, total_count]."""
        return constraints.integer_interval(0, self.total_count)

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        with no_grad():
            most = int(self.total_count.max()) if self.total_count.numel() else 0
            probs = self.probs.broadcast_to(shape)
            count = ops.zeros(shape, dtype=probs.dtype, device=probs.device)
            for throw in range(most):
                thrown = probs.bernoulli()
                count = count + ops.where(self.total_count > throw, thrown, 0 * thrown)
            return count

    def log_prob(self, value: Value) -> Value:
        value, n, z = self._checked(value), self.total_count, self.logits
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return ways + value * z - n * ops.softplus(z)

    def entropy(self) -> Value:
        n = int(self.total_count.max())
        if not bool((self.total_count == n).all()):
            raise NotImplementedError("Inhomogeneous total count not supported by `entropy`.")
        log_prob = self.log_prob(self.enumerate_support(False))
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Value:
        n = int(self.total_count.max())
        if not bool((self.total_count == n).all()):
            raise NotImplementedError(
                "Inhomogeneous total count not supported by `enumerate_support`."
            )
        values = ops.arange(1 + n, device=self._parameter.device).to(self._parameter.dtype)
        return _along_batch(values, self._batch_shape, expand)


@formulas(
    mean="total_count * logits.exp()",
    mode="ops.clamp(((total_count - 1) * logits.exp()).floor(), min=0.0)",
    variance="mean / (-logits).sigmoid()",
)
class NegativeBinomial(_Binary):
    """The number of successes, of probability `probs` each, in front of failure total_count.

    >>> flow.distributions.NegativeBinomial(2.0, 0.5).mean
    tensor(2.)
    """

    support = constraints.nonnegative_integer
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }

    def __init__(
        self,
        total_count: object,
        probs: object = None,
        logits: object = None,
        validate_args: bool | None = None,
    ) -> None:
        parameter = self._take(probs, logits)
        self.total_count, parameter = broadcast_all(total_count, parameter)
        self.total_count = self.total_count.to(parameter.dtype)
        vars(self)["probs" if probs is not None else "logits"] = parameter
        super().__init__(parameter.shape, validate_args=validate_args)

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        with no_grad():
            rate = Gamma(self.total_count, (-self.logits).exp(), validate_args=False)
            return ops.poisson(rate.sample(sample_shape))

    def log_prob(self, value: Value) -> Value:
        value, n = self._checked(value), self.total_count
        unnormalized = n * ops.logsigmoid(-self.logits) + value * ops.logsigmoid(self.logits)
        ways = -(n + value).lgamma() + (1.0 + value).lgamma() + n.lgamma()
        return unnormalized - ops.where(n + value == 0.0, ops.zeros_like(ways), ways)


@formulas(mean="rate", mode="rate.floor()", variance="rate")
class Poisson(ExponentialFamily):
    """Counts of what happens at `rate`.

    >>> counts = flow.distributions.Poisson(2.0)
    >>> counts.mean, counts.variance
    (tensor(2.), tensor(2.))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: object, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, rate=0)

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        with no_grad():
            shape = tuple(self._extended_shape(sample_shape))
            return ops.poisson(self.rate.broadcast_to(shape).contiguous())

    def log_prob(self, value: Value) -> Value:
        value, rate = broadcast_all(self._checked(value), self.rate)
        return ops.xlogy(value, rate) - rate - (value + 1).lgamma()


# --- choices --------------------------------------------------------------------------------------


@formulas(mode="probs.argmax(-1)", variance="mean")
class Categorical(_ByEither):
    """One of 0 .. n - 1, by `probs` (*, n), which are scaled to sum to 1, or by logits.

    >>> choice = flow.distributions.Categorical(flow.tensor([1.0, 3.0]))
    >>> choice.probs
    tensor([0.2500, 0.7500])
    >>> choice.log_prob(flow.tensor(1)).exp()
    tensor(0.7500)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.simplex, "logits": constraints.real_vector,
    }  # fmt: skip
    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        _one_of(probs, logits)
        parameter = probs if probs is not None else logits
        if parameter.ndim < 1:
            name = "probs" if probs is not None else "logits"
            raise ArgumentError(f"`{name}` parameter must be at least one-dimensional.")
        if probs is not None:
            self.probs = probs / probs.sum(-1, keepdim=True)
        else:
            self.logits = logits - logits.logsumexp(-1, keepdim=True)
        self._num_events = int(parameter.shape[-1])
        super().__init__(parameter.shape[:-1], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        new = self._expanded(batch_shape, probs=1, logits=1)
        new._num_events = self._num_events
        return new

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Constraint:
        """0 .. n - 1."""
        return constraints.integer_interval(0, self._num_events - 1)

    @cached_property
    def logits(self) -> Value:
        """The logarithms of the probabilities."""
        return probs_to_logits(self.probs)

    @cached_property
    def probs(self) -> Value:
        """The probabilities."""
        return logits_to_probs(self.logits)

    @property
    def mean(self) -> Value:
        like = self.probs
        return ops.full(
            tuple(self._extended_shape()), float("nan"), dtype=like.dtype, device=like.device
        )

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        with no_grad():
            shape = tuple(sample_shape)
            count = 1
            for n in shape:
                count *= n
            rows = self.probs.detach().reshape(-1, self._num_events)
            if not count or not rows.shape[0]:
                return ops.zeros(tuple(self._extended_shape(shape)), device=rows.device).long()
            drawn = ops.multinomial(rows, count, True).t()
            return drawn.reshape(*self._extended_shape(shape))

    def log_prob(self, value: Value) -> Value:
        index = self._checked(value).long().unsqueeze(-1)
        shape = ops.broadcast_tensors(index[..., 0], self.logits[..., 0])[0].shape
        logits = self.logits.broadcast_to((*shape, self._num_events))
        return logits.gather(-1, index.broadcast_to((*shape, 1))).squeeze(-1)

    def entropy(self) -> Value:
        logits = ops.clamp(self.logits, min=finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Value:
        values = ops.arange(self._num_events, device=self._parameter.device)
        return _along_batch(values, self._batch_shape, expand)


class _OfCategorical(Distribution):
    """Base of distributions of vectors, with the properties of a Categorical."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.simplex, "logits": constraints.real_vector,
    }  # fmt: skip

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._categorical = Categorical(probs, logits, validate_args=validate_args)
        super().__init__(
            self._categorical.batch_shape, self._categorical.param_shape[-1:],
            validate_args=validate_args,
        )  # fmt: skip

    def _expanded_with(self, batch_shape: Iterable[int], **more: Any) -> Self:
        return self._new(batch_shape, _categorical=self._categorical.expand(batch_shape), **more)

    @property
    def probs(self) -> Value:
        """The probabilities."""
        return self._categorical.probs

    @property
    def logits(self) -> Value:
        """The logarithms of the probabilities."""
        return self._categorical.logits

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        return self._categorical.param_shape


@formulas(
    mean="probs",
    mode="_hot(probs.argmax(-1))",
    variance="probs * (1 - probs)",
    entropy="_categorical.entropy()",
)
class OneHotCategorical(_OfCategorical):
    """A vector of n with one 1, by `probs` (*, n) or logits.

    >>> flow.distributions.OneHotCategorical(flow.tensor([0.0, 1.0])).sample()
    tensor([0., 1.])
    """

    support = constraints.one_hot
    has_enumerate_support = True

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded_with(batch_shape)

    def _hot(self, index: Value) -> Value:
        return ops.one_hot(index, self._categorical._num_events).to(self.probs.dtype)

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        return self._hot(self._categorical.sample(sample_shape))

    def log_prob(self, value: Value) -> Value:
        return self._categorical.log_prob(self._checked(value).argmax(-1))

    def enumerate_support(self, expand: bool = True) -> Value:
        n = self.event_shape[0]
        values = ops.eye(n, dtype=self.probs.dtype, device=self.probs.device)
        values = values.reshape(n, *(1,) * len(self.batch_shape), n)
        return values.broadcast_to((n, *self.batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """OneHotCategorical whose samples have the gradient of the probabilities (Bengio et al.,
    2013).

    >>> probs = flow.tensor([0.25, 0.75], requires_grad=True)
    >>> flow.distributions.OneHotCategoricalStraightThrough(probs).rsample().requires_grad
    True
    """

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        drawn, probs = self.sample(sample_shape), self.probs
        return drawn + (probs - probs.detach())


@formulas(mean="probs * total_count", variance="total_count * probs * (1 - probs)")
class Multinomial(_OfCategorical):
    """The number of times that each of n values comes in total_count draws, by `probs` (*, n) or
    logits.

    >>> draws = flow.distributions.Multinomial(10, flow.tensor([0.5, 0.5]))
    >>> draws.mean, draws.sample().sum()
    (tensor([5., 5.]), tensor(10.))
    """

    def __init__(
        self,
        total_count: int = 1,
        probs: object = None,
        logits: object = None,
        validate_args: bool | None = None,
    ) -> None:
        if not is_number(total_count):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded_with(batch_shape, total_count=self.total_count)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Constraint:
        """Counts with the sum total_count."""
        return constraints.multinomial(self.total_count)

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        drawn = self._categorical.sample((self.total_count, *sample_shape))
        return ops.one_hot(drawn, self.event_shape[0]).sum(0).to(self.probs.dtype)

    def log_prob(self, value: Value) -> Value:
        pair = ops.broadcast_tensors(self.logits, self._checked(value))
        logits, value = pair
        ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        zero = (value == 0) & (logits == float("-inf"))
        return ways + (ops.where(zero, 0 * value, logits) * value).sum(-1)

    def entropy(self) -> Value:
        n = ops.tensor(float(self.total_count), dtype=self.probs.dtype, device=self.probs.device)
        each = n * self._categorical.entropy() - (n + 1).lgamma()
        counts = ops.arange(1, self.total_count + 1).to(self.probs.dtype)
        counts = counts.reshape(-1, *(1,) * self.probs.ndim)
        chance = Binomial(self.total_count, probs=self.probs, validate_args=False)
        weights = chance.log_prob(counts).exp()
        return each + (weights * (counts + 1).lgamma()).sum(0).sum(-1)


class ContinuousBernoulli(_Binary, ExponentialFamily):
    """Density proportional to probs**x * (1 - probs)**(1 - x) on [0, 1] (Loaiza-Ganem and
    Cunningham, 2019); within `lims` of probs by Taylor series around 1/2.

    >>> flow.distributions.ContinuousBernoulli(0.5).mean
    tensor(0.5000)
    """

    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self,
        probs: object = None,
        logits: object = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        parameter = self._take(probs, logits)
        if probs is not None:
            if validate_args is not False and not holds(constraints.unit_interval.check, parameter):
                raise ArgumentError("The parameter probs has invalid values")
            self.probs = clamp_probs(self.probs)
        self._lims = lims
        super().__init__(parameter.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        new = super().expand(batch_shape)
        new._lims = self._lims
        return new

    def _outside(self) -> Value:
        return (self.probs <= self._lims[0]) | (self.probs > self._lims[1])

    def _cut(self) -> Value:
        """The probabilities, those near 1/2 moved away."""
        return ops.where(self._outside(), self.probs, ops.full_like(self.probs, self._lims[0]))

    def _log_norm(self) -> Value:
        cut = self._cut()
        below = ops.where(cut <= 0.5, cut, ops.zeros_like(cut))
        above = ops.where(cut >= 0.5, cut, ops.ones_like(cut))
        exact = ((-cut).log1p() - cut.log()).abs().log() - ops.where(
            cut <= 0.5, (-2.0 * below).log1p(), (2.0 * above - 1.0).log()
        )
        x = (self.probs - 0.5) ** 2
        near = float(ops.tensor(2.0).log()) + (4.0 / 3.0 + 104.0 / 45.0 * x) * x
        return ops.where(self._outside(), exact, near)

    @property
    def mean(self) -> Value:
        cut = self._cut()
        exact = cut / (2.0 * cut - 1.0) + 1.0 / ((-cut).log1p() - cut.log())
        x = self.probs - 0.5
        near = 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * x**2) * x
        return ops.where(self._outside(), exact, near)

    @property
    def variance(self) -> Value:
        cut = self._cut()
        exact = cut * (cut - 1.0) / (1.0 - 2.0 * cut) ** 2 + 1.0 / ((-cut).log1p() - cut.log()) ** 2
        x = (self.probs - 0.5) ** 2
        near = 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * x) * x
        return ops.where(self._outside(), exact, near)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        return self.icdf(uniform_in(self.probs, self._extended_shape(sample_shape)))

    def log_prob(self, value: Value) -> Value:
        value = self._checked(value)
        return value * self.logits - ops.softplus(self.logits) + self._log_norm()

    def cdf(self, value: Value) -> Value:
        value, cut = self._checked(value), self._cut()
        exact = (cut**value * (1.0 - cut) ** (1.0 - value) + cut - 1.0) / (2.0 * cut - 1.0)
        cdf = ops.where(self._outside(), exact, value)
        return ops.clamp(cdf, min=0.0, max=1.0)

    def icdf(self, value: Value) -> Value:
        cut = self._cut()
        exact = ((-cut + value * (2.0 * cut - 1.0)).log1p() - (-cut).log1p()) / (
            cut.log() - (-cut).log1p()
        )
        return ops.where(self._outside(), exact, value)

    def entropy(self) -> Value:
        log0, log1 = (-self.probs).log1p(), self.probs.log()
        return self.mean * (log0 - log1) - self._log_norm() - log0
