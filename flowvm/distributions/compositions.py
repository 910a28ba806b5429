"""Distributions of other distributions: independent ones, transformed ones, mixtures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.distributions import constraints
from flowvm.distributions.discrete import Categorical
from flowvm.distributions.distribution import Distribution
from flowvm.distributions.formulas import formulas
from flowvm.distributions.transforms import ComposeTransform, Transform
from flowvm.distributions.utils import Value, sum_rightmost
from flowvm.errors import ArgumentError

if TYPE_CHECKING:
    from flowvm.distributions.constraints import Constraint, MixtureSameFamilyConstraint


# public: distributions


@formulas(
    mean="base_dist.mean",
    mode="base_dist.mode",
    variance="base_dist.variance",
    entropy="sum_rightmost(base_dist.entropy(), reinterpreted_batch_ndims)",
)
class Independent(Distribution):
    """A distribution whose last batch dimensions, reinterpreted, belong to an event.

    >>> from flowvm.distributions import Independent, Normal
    >>> vectors = Independent(Normal(flow.zeros(3), flow.ones(3)), 1)
    >>> vectors.event_shape  # one vector, and not three numbers
    flow.Size([3])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        batch = base_distribution.batch_shape
        if reinterpreted_batch_ndims > len(batch):
            raise ArgumentError(
                f"Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), "
                f"actual {reinterpreted_batch_ndims} vs {len(batch)}"
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        shape = (*batch, *base_distribution.event_shape)
        cut = len(batch) - reinterpreted_batch_ndims
        super().__init__(shape[:cut], shape[cut:], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        inner = tuple(self.event_shape)[: self.reinterpreted_batch_ndims]
        return self._new(
            batch_shape, base_dist=self.base_dist.expand((*batch_shape, *inner)),
            reinterpreted_batch_ndims=self.reinterpreted_batch_ndims,
        )  # fmt: skip

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        return self.reinterpreted_batch_ndims == 0 and self.base_dist.has_enumerate_support

    @property
    def support(self) -> Any:
        """The base's, with its dimensions."""
        codomain = self.base_dist.support
        n = self.reinterpreted_batch_ndims
        return constraints.independent(codomain, n) if n else codomain

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Value) -> Value:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Value:
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """A distribution of a base distribution's values behind a chain of transforms.

    >>> from flowvm.distributions import AffineTransform, TransformedDistribution, Uniform
    >>> wide = TransformedDistribution(Uniform(0.0, 1.0), [AffineTransform(0.0, 4.0)])
    >>> wide.log_prob(flow.tensor(1.0)).exp()
    tensor(0.2500)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        if not all(isinstance(t, Transform) for t in self.transforms):
            raise ArgumentError(f"transforms must be a Transform or a list, but was {transforms}")
        whole = ComposeTransform(self.transforms)
        base = base_distribution
        shape = (*base.batch_shape, *base.event_shape)
        needs = whole.domain.event_dim if self.transforms else 0
        if len(shape) < needs:
            raise ArgumentError(
                f"base_distribution needs to have shape with size at least {needs}, but got {shape}"
            )
        forward = whole.forward_shape(shape)
        widened = whole.inverse_shape(forward)
        if tuple(widened) != tuple(shape):
            base = base.expand(widened[: len(widened) - len(base.event_shape)])
        more = needs - len(base.event_shape)
        if more > 0:
            base = Independent(base, more)
        self.base_dist = base
        gained = (whole.codomain.event_dim - needs) if self.transforms else 0
        event_dim = len(base.event_shape) + gained if self.transforms else len(base.event_shape)
        event_dim = max(event_dim, whole.codomain.event_dim if self.transforms else 0)
        cut = len(forward) - event_dim
        super().__init__(forward[:cut], forward[cut:], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        shape: Sequence[int] = (*batch_shape, *self.event_shape)
        for transform in reversed(self.transforms):
            shape = transform.inverse_shape(shape)
        base_batch = shape[: len(shape) - len(self.base_dist.event_shape)]
        return self._new(
            batch_shape, base_dist=self.base_dist.expand(base_batch), transforms=self.transforms
        )

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def support(self) -> Any:
        """The set of possible values: the codomain of the last transform."""
        if not self.transforms:
            return self.base_dist.support
        codomain = self.transforms[-1].codomain
        more = len(self.event_shape) - codomain.event_dim
        return constraints.independent(codomain, more) if more > 0 else codomain

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        with no_grad():
            x = self.base_dist.sample(sample_shape)
            for transform in self.transforms:
                x = transform(x)
            return x

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        x = self.base_dist.rsample(sample_shape)
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Value) -> Value:
        event_dim = len(self.event_shape)
        total: float = 0.0
        y = self._checked(value)
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            event_dim += transform.domain.event_dim - transform.codomain.event_dim
            log_det = transform.log_abs_det_jacobian(x, y)
            total = total - sum_rightmost(log_det, event_dim - transform.domain.event_dim)
            y = x
        base = self.base_dist.log_prob(y)
        return total + sum_rightmost(base, event_dim - len(self.base_dist.event_shape))

    def _falling(self, value: Value) -> Value:
        """A probability, or 1 less it where the transforms turn the order round."""
        sign: int = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        return value if isinstance(sign, int) and sign == 1 else sign * (value - 0.5) + 0.5

    def cdf(self, value: Value) -> Value:
        value = self._checked(value)
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        return self._falling(self.base_dist.cdf(value))

    def icdf(self, value: Value) -> Value:
        value = self.base_dist.icdf(self._falling(value))
        for transform in self.transforms:
            value = transform(value)
        return value


class MixtureSameFamily(Distribution):
    """A mixture: which component of the last batch dimension, says a Categorical.

    >>> from flowvm.distributions import Categorical, MixtureSameFamily, Normal
    >>> which = Categorical(flow.tensor([0.5, 0.5]))
    >>> MixtureSameFamily(which, Normal(flow.tensor([0.0, 4.0]), flow.ones(2))).mean
    tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    has_rsample = False

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ArgumentError(
                " The Mixture distribution needs to be an instance of distributions.Categorical"
            )
        if not isinstance(component_distribution, Distribution):
            raise ArgumentError(
                "The Component distribution need to be an instance of distributions.Distribution"
            )
        mixed, own = mixture_distribution.batch_shape, component_distribution.batch_shape
        for a, b in zip(reversed(tuple(mixed)), reversed(tuple(own[:-1])), strict=False):
            if a != 1 and b != 1 and a != b:
                raise ArgumentError(
                    f"`mixture_distribution.batch_shape` ({tuple(mixed)}) is not compatible with "
                    f"`component_distribution.batch_shape`({tuple(own)})"
                )
        if mixture_distribution.param_shape[-1] != own[-1]:
            raise ArgumentError(
                f"`mixture_distribution component` ({mixture_distribution.param_shape[-1]}) does "
                f"not equal `component_distribution.batch_shape[-1]` ({own[-1]})"
            )
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        self._num_component = own[-1]
        super().__init__(own[:-1], component_distribution.event_shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._new(
            batch_shape,
            _component_distribution=self._component_distribution.expand(
                (*batch_shape, self._num_component)
            ),
            _mixture_distribution=self._mixture_distribution.expand(batch_shape),
            _num_component=self._num_component,
        )

    @property
    def support(self) -> MixtureSameFamilyConstraint:
        """The components'."""
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    @property
    def mixture_distribution(self) -> Categorical:
        """The distribution of the component's index."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The components."""
        return self._component_distribution

    @property
    def _weights(self) -> Value:
        probs = self._mixture_distribution.probs
        return probs.reshape(*probs.shape, *(1,) * len(self.event_shape))

    @property
    def _dim(self) -> int:
        return -1 - len(self.event_shape)

    @property
    def mean(self) -> Value:
        return (self._weights * self._component_distribution.mean).sum(self._dim)

    @property
    def variance(self) -> Value:
        own = self._component_distribution
        inner = (self._weights * own.variance).sum(self._dim)
        off = own.mean - self.mean.unsqueeze(self._dim)
        return inner + (self._weights * off**2).sum(self._dim)

    def cdf(self, x: Value) -> Value:
        probabilities = self._component_distribution.cdf(self._checked(x).unsqueeze(self._dim))
        return (probabilities * self._mixture_distribution.probs).sum(-1)

    def log_prob(self, x: Value) -> Value:
        each = self._component_distribution.log_prob(self._checked(x).unsqueeze(self._dim))
        return (each + self._mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        with no_grad():
            chosen = self._mixture_distribution.sample(sample_shape)
            each = self._component_distribution.sample(sample_shape)
            dim = each.ndim + self._dim
            event = tuple(self.event_shape)
            index = chosen.reshape(*chosen.shape, 1, *(1,) * len(event))
            index = index.broadcast_to((*each.shape[:dim], 1, *event))
            return ops.gather(each, dim, index).squeeze(dim)

    def __repr__(self) -> str:
        return (
            f"MixtureSameFamily({self._mixture_distribution!r}, {self._component_distribution!r})"
        )
