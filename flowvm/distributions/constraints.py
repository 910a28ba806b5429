"""Sets in which parameters and values of distributions lie: whether a value is in one.

`check(value)` gives a bool for each event; `event_dim` dimensions of a value are one event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from flowvm import ops
from flowvm.distributions.utils import Value
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


class Constraint:
    """A set of values."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Value) -> Value:
        """For each event whether it is in the set."""
        raise NotImplementedError(f"{type(self).__name__} must define check")

    def __repr__(self) -> str:
        return type(self).__name__.lstrip("_") + "()"


class _Dependent(Constraint):
    """A set that depends on other values: it cannot be asked."""

    def __init__(self, *, is_discrete: Any = None, event_dim: Any = None) -> None:
        if is_discrete is not None:
            self.is_discrete = is_discrete
        if event_dim is not None:
            self.event_dim = event_dim

    def __call__(self, *, is_discrete: object = None, event_dim: object = None) -> _Dependent:
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)

    def check(self, value: Value) -> Value:
        raise ValueError("Cannot determine validity of dependent constraint")


def is_dependent(constraint: object) -> bool:
    """Return True if a constraint depends on other values."""
    return isinstance(constraint, _Dependent)


class dependent_property(property, _Dependent):  # noqa: N801 - a decorator, as property is
    """A property that gives a constraint, and on the class is a dependent one."""

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        *,
        is_discrete: bool | None = None,
        event_dim: int | None = None,
    ) -> None:
        property.__init__(self, fn)
        _Dependent.__init__(self, is_discrete=is_discrete, event_dim=event_dim)

    def __call__(
        self, fn: object = None, *, is_discrete: object = None, event_dim: object = None
    ) -> Any:
        if not callable(fn):
            return _Dependent(is_discrete=is_discrete, event_dim=event_dim)
        return dependent_property(
            fn, is_discrete=self.__dict__.get("is_discrete"),
            event_dim=self.__dict__.get("event_dim"),
        )  # fmt: skip


class _Named(Constraint):
    """A set told by a function of a value."""

    def __init__(
        self, name: str, check: Callable[[Value], Value], event_dim: int = 0, discrete: bool = False
    ) -> None:
        self._name, self._check = name, check
        self.event_dim, self.is_discrete = event_dim, discrete

    def check(self, value: Value) -> Value:
        return self._check(value)

    def __repr__(self) -> str:
        return self._name


class _Bounded(_Named):
    """A set between bounds, which it keeps."""

    def __init__(
        self, name: str, check: Callable[[Value], Value], discrete: bool = False, **bounds: object
    ) -> None:
        super().__init__(name, check, 0, discrete)
        vars(self).update(bounds)

    def __getattr__(self, name: str) -> Any:  # for mypy: a bound
        raise AttributeError(f"{self._name} has no {name!r}")


def interval(lower_bound: object, upper_bound: object) -> Constraint:
    """[lower_bound, upper_bound]."""
    return _Bounded(
        f"Interval(lower_bound={lower_bound}, upper_bound={upper_bound})",
        lambda v: (v >= lower_bound) & (v <= upper_bound),
        lower_bound=lower_bound, upper_bound=upper_bound,
    )  # fmt: skip


def half_open_interval(lower_bound: object, upper_bound: object) -> Constraint:
    """[lower_bound, upper_bound)."""
    return _Bounded(
        f"HalfOpenInterval(lower_bound={lower_bound}, upper_bound={upper_bound})",
        lambda v: (v >= lower_bound) & (v < upper_bound),
        lower_bound=lower_bound, upper_bound=upper_bound,
    )  # fmt: skip


def integer_interval(lower_bound: object, upper_bound: object) -> Constraint:
    """The integers of [lower_bound, upper_bound]."""
    return _Bounded(
        f"IntegerInterval(lower_bound={lower_bound}, upper_bound={upper_bound})",
        lambda v: (v % 1 == 0) & (v >= lower_bound) & (v <= upper_bound),
        True, lower_bound=lower_bound, upper_bound=upper_bound,
    )  # fmt: skip


def greater_than(lower_bound: object) -> Constraint:
    """(lower_bound, inf]."""
    return _Bounded(
        f"GreaterThan(lower_bound={lower_bound})", lambda v: v > lower_bound,
        lower_bound=lower_bound,
    )  # fmt: skip


def greater_than_eq(lower_bound: object) -> Constraint:
    """[lower_bound, inf]."""
    return _Bounded(
        f"GreaterThanEq(lower_bound={lower_bound})", lambda v: v >= lower_bound,
        lower_bound=lower_bound,
    )  # fmt: skip


def less_than(upper_bound: object) -> Constraint:
    """[-inf, upper_bound)."""
    return _Bounded(
        f"LessThan(upper_bound={upper_bound})", lambda v: v < upper_bound, upper_bound=upper_bound
    )


def multinomial(upper_bound: object) -> Constraint:
    """Vectors of counts whose sum is upper_bound at most."""
    return _Named(
        f"Multinomial(upper_bound={upper_bound})",
        lambda v: (v >= 0).all(-1) & (v.sum(-1) <= upper_bound), 1, True,
    )  # fmt: skip


class independent(Constraint):  # noqa: N801 - it is called as a function is
    """A base constraint whose last dimensions, reinterpreted, belong to an event."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Value) -> Value:
        valid = self.base_constraint.check(value)
        n = self.reinterpreted_batch_ndims
        if valid.ndim < n:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.ndim}")
        return valid.reshape(*valid.shape[: valid.ndim - n], -1).all(-1) if n else valid

    def __repr__(self) -> str:
        return f"Independent({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """Values that are in the support of every component."""

    def __init__(self, base_constraint: Constraint) -> None:
        self.base_constraint = base_constraint
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim

    def check(self, value: Value) -> Value:
        valid = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        return valid.all(-1)


class cat(Constraint):  # noqa: N801 - it is called as a function is
    """A constraint for each part of a value, cut along `dim`."""

    def __init__(
        self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        self.is_discrete = any(c.is_discrete for c in self.cseq)
        self.event_dim = max(c.event_dim for c in self.cseq)

    def check(self, value: Value) -> Value:
        valid, start = [], 0
        for constraint, length in zip(self.cseq, self.lengths, strict=True):
            valid.append(constraint.check(value.narrow(self.dim, start, length)))
            start += length
        return ops.cat(valid, self.dim)


class stack(Constraint):  # noqa: N801 - it is called as a function is
    """A constraint for each slice of a value along `dim`."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.is_discrete = any(c.is_discrete for c in self.cseq)
        inner = max(c.event_dim for c in self.cseq)
        self.event_dim = inner + 1 if self.dim + inner < 0 else inner

    def check(self, value: Value) -> Value:
        parts = [value.select(self.dim, i) for i in range(value.shape[self.dim])]
        valid = [c.check(part) for c, part in zip(self.cseq, parts, strict=True)]
        return ops.stack(valid, self.dim)


def _near(a: Value, b: Value, tolerance: float = 1e-6) -> Value:
    return (a - b).abs() <= tolerance


def _is_one_hot(v: Value) -> Value:
    return ((v == 0) | (v == 1)).all(-1) & (v.sum(-1) == 1)


def _is_lower(v: Value) -> Value:
    return (v.tril() == v).flatten(-2).all(-1)


def _is_lower_cholesky(v: Value) -> Value:
    return _is_lower(v) & (v.diagonal(0, -2, -1) > 0).all(-1)


def _is_corr_cholesky(v: Value) -> Value:
    eps = 10 * v.shape[-1] * 1.2e-7
    rows = (v * v).sum(-1)
    return _near(rows, 1.0, eps).all(-1) & _is_lower_cholesky(v)


def _is_square(v: Value) -> Value:
    return ops.full(v.shape[:-2], v.shape[-2] == v.shape[-1], device=v.device)


def _is_symmetric(v: Value) -> Value:
    if v.shape[-2] != v.shape[-1]:
        return _is_square(v)
    return (_near(v, v.transpose(-2, -1), 1e-6)).flatten(-2).all(-1)


def _eigenvalues(v: Value, ask: Callable[[Any], object]) -> Value:
    """Apply a condition to the smallest eigenvalue, which NumPy computes, as for all checks."""
    least = np.linalg.eigvalsh(v.detach().cpu().numpy())[..., 0]
    return ops.tensor(ask(least), device=v.device)


dependent: Final = _Dependent()
boolean: Final = _Named("Boolean()", lambda v: (v == 0) | (v == 1), 0, True)
one_hot: Final = _Named("OneHot()", _is_one_hot, 1, True)
nonnegative_integer: Final = _Bounded(
    "IntegerGreaterThan(lower_bound=0)", lambda v: (v % 1 == 0) & (v >= 0), True, lower_bound=0
)
positive_integer: Final = _Bounded(
    "IntegerGreaterThan(lower_bound=1)", lambda v: (v % 1 == 0) & (v >= 1), True, lower_bound=1
)
real: Final = _Named("Real()", lambda v: v == v)  # NaN is none
real_vector: Final = independent(real, 1)
positive: Final = greater_than(0.0)
nonnegative: Final = greater_than_eq(0.0)
unit_interval: Final = interval(0.0, 1.0)
simplex: Final = _Named("Simplex()", lambda v: (v >= 0).all(-1) & _near(v.sum(-1), 1.0), 1)
lower_triangular: Final = _Named("LowerTriangular()", _is_lower, 2)
lower_cholesky: Final = _Named("LowerCholesky()", _is_lower_cholesky, 2)
corr_cholesky: Final = _Named("CorrCholesky()", _is_corr_cholesky, 2)
square: Final = _Named("Square()", _is_square, 2)
symmetric: Final = _Named("Symmetric()", _is_symmetric, 2)
positive_semidefinite: Final = _Named(
    "PositiveSemidefinite()", lambda v: _is_symmetric(v) & _eigenvalues(v, lambda e: e >= 0), 2
)
positive_definite: Final = _Named(
    "PositiveDefinite()", lambda v: _is_symmetric(v) & _eigenvalues(v, lambda e: e > 0), 2
)

__all__ = own_names(globals())
