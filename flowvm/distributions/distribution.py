"""Distribution: the base of all, with its shapes, its checks and what follows from the rest.

A sample has shape sample_shape + batch_shape + event_shape: batch dimensions are distributions
side by side, event dimensions belong to one value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.distributions import constraints
from flowvm.distributions.utils import Value, holds
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.meta.meta import Size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.distributions.constraints import Constraint


# public: distributions
class Distribution:
    """The base of every distribution.

    arg_constraints   where its parameters lie, by name; checked when it is made
    support           where its values lie; checked by log_prob and the like
    has_rsample       whether samples have gradients by the parameters

    validate_args=False leaves the checks out; `set_default_validate_args` for all.

    >>> normal = flow.distributions.Normal(flow.zeros(3), 1.0)
    >>> isinstance(normal, flow.distributions.Distribution), normal.batch_shape
    (True, flow.Size([3]))
    """

    _has_watched_state = True  # captured code that uses it depends on its attributes
    has_rsample: bool = False
    has_enumerate_support: bool = False
    _validate_args: bool = __debug__
    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    support: Any = None

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Set whether distributions without `validate_args` check their arguments."""
        if value not in (True, False):
            raise ArgumentError(f"validate_args is True or False, got {value!r}")
        Distribution._validate_args = value

    def __init__(
        self,
        batch_shape: Iterable[int] = (),
        event_shape: Iterable[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            for name, constraint in self.arg_constraints.items():
                if constraints.is_dependent(constraint) or name not in vars(self):
                    continue  # of other parameters, or computed from one that is checked
                self._check_parameter(name, constraint, getattr(self, name))

    def _check_parameter(self, name: str, constraint: Constraint, value: Tensor) -> None:
        if isinstance(value, Tensor) and not holds(constraint.check, value):
            raise ArgumentError(
                f"Expected parameter {name} ({type(value).__name__} of shape "
                f"{tuple(value.shape)}) of distribution {self!r} to satisfy the constraint "
                f"{constraint!r}, but found invalid values:\n{value}"
            )

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        """The distribution with its parameters broadcast to `batch_shape`."""
        raise NotImplementedError(f"{type(self).__name__} has no expand")

    def _new(
        self, batch_shape: Iterable[int], event_shape: Iterable[int] | None = None, **values: object
    ) -> Self:
        """One of this class with these attributes, unchecked, as checked as this one."""
        new = type(self).__new__(type(self))
        vars(new).update(values)
        event = self._event_shape if event_shape is None else event_shape
        Distribution.__init__(new, batch_shape, event, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _expanded(self, batch_shape: Iterable[int], **event_dims: int) -> Self:
        """This distribution with the named parameters broadcast: those it has, of so many event
        dimensions each.
        """
        values = {}
        for name, dims in event_dims.items():
            own = vars(self).get(name)
            if own is not None:
                tail = tuple(own.shape[own.ndim - dims :]) if dims else ()
                values[name] = own.broadcast_to((*batch_shape, *tail))
        return self._new(batch_shape, **values)

    @property
    def batch_shape(self) -> Size:
        """The shape over which parameters are batched."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one value."""
        return self._event_shape

    @property
    def mean(self) -> Value:
        """The mean."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def mode(self) -> Value:
        """The most likely value."""
        raise NotImplementedError(f"{type(self).__name__} has no mode")

    @property
    def variance(self) -> Value:
        """The variance."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Value:
        """The standard deviation."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        """Values without gradients, of shape sample_shape + batch_shape + event_shape."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        """Values with gradients by the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample")

    def sample_n(self, n: int) -> Value:
        """sample((n,))."""
        return self.sample((n,))

    def log_prob(self, value: Value) -> Value:
        """The logarithm of the density, or of the probability, at `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def cdf(self, value: Value) -> Value:
        """The probability of a value not above `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value: Value) -> Value:
        """Return the inverse of `cdf` at `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    def enumerate_support(self, expand: bool = True) -> Value:
        """All values, along a new first dimension; expand: for the whole batch."""
        raise NotImplementedError(f"{type(self).__name__} has no enumerate_support")

    def entropy(self) -> Value:
        """The entropy, in nats."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def perplexity(self) -> Value:
        """exp(entropy)."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _validate_sample(self, value: Value) -> None:
        """ArgumentError for what is no value of this distribution."""
        if not isinstance(value, Tensor):
            raise ArgumentError("The value argument to log_prob must be a Tensor")
        event = len(self._event_shape)
        if value.ndim < event:
            raise ArgumentError(
                f"a value has {event} event dimensions at least, got shape {tuple(value.shape)}"
            )
        expected = tuple(self._batch_shape) + tuple(self._event_shape)
        for i, j in zip(reversed(tuple(value.shape)), reversed(expected), strict=False):
            if i != 1 and j != 1 and i != j:
                raise ArgumentError(
                    f"Value is not broadcastable with batch_shape+event_shape: "
                    f"{tuple(value.shape)} vs {expected}."
                )
        support = self.support
        if support is None or constraints.is_dependent(support):
            return
        if not holds(support.check, value):
            raise ArgumentError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) "
                f"to be within the support ({support!r}) of the distribution {self!r}, but found "
                f"invalid values:\n{value}"
            )

    def _checked(self, value: Value) -> Value:
        """The value, checked if this distribution checks."""
        if self._validate_args:
            self._validate_sample(value)
        return value

    def __repr__(self) -> str:
        shown = []
        for name in self.arg_constraints:
            value = vars(self).get(name)
            if isinstance(value, Tensor):
                size = tuple(value.shape)
                shown.append(f"{name}: {value.item() if value.numel() == 1 else size}")
        return f"{type(self).__name__}({', '.join(shown)})"


# public: distributions
class ExponentialFamily(Distribution):
    """A distribution whose density is exp(t(x) . theta - F(theta)) h(x).

    >>> issubclass(flow.distributions.Gamma, flow.distributions.ExponentialFamily)
    True
    """


def uniform_in(like: Value, shape: Iterable[object]) -> Value:
    """Numbers drawn evenly from (0, 1), of a tensor's dtype and device; 0 becomes the smallest."""
    drawn = ops.rand(tuple(shape), dtype=like.dtype, device=like.device)
    return ops.clamp(drawn, min=1e-38 if like.dtype.itemsize > 2 else 1e-7)
