"""Distributions of vectors and matrices whose elements depend on each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flowvm import ops
from flowvm.distributions import constraints
from flowvm.distributions.distribution import Distribution, ExponentialFamily
from flowvm.distributions.formulas import formulas
from flowvm.distributions.gamma import Beta, standard_gamma
from flowvm.distributions.utils import (
    LOG_2PI,
    Value,
    holds,
    joined,
    log_gamma_multivariate,
    triangular_solve,
)
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import finfo, get_default_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowvm.distributions.constraints import Constraint


def _transposed(x: Value) -> Value:
    return x.transpose(-2, -1)


def _eye(like: Value) -> Value:
    return ops.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _inverse_of_lower(lower: Value) -> Value:
    return triangular_solve(lower, _eye(lower))


def _precision_to_tril(p: Value) -> Value:
    """The Cholesky factor of the inverse: of the matrix turned round, turned back."""
    turned = _transposed(ops.cholesky(p.flip(-2, -1)).flip(-2, -1))
    return triangular_solve(turned, _eye(p)).tril()


def _log_diagonal(lower: Value) -> Value:
    return lower.diagonal(0, -2, -1).log().sum(-1)


def mahalanobis(lower: Value, x: Value) -> Value:
    """x^T (L L^T)^-1 x, of vectors x."""
    solution = triangular_solve(lower, x.unsqueeze(-1)).squeeze(-1)
    return (solution**2).sum(-1)


# public: distributions
@formulas(mean="loc", mode="loc", variance="(scale_tril**2).sum(-1)")
class MultivariateNormal(Distribution):
    """The normal distribution of vectors: of `loc` and one of covariance_matrix, precision_matrix,
    scale_tril (L with covariance L L^T).

    >>> normal = flow.distributions.MultivariateNormal(flow.zeros(2), flow.eye(2))
    >>> normal.event_shape, normal.sample((5,)).shape
    (flow.Size([2]), flow.Size([5, 2]))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Value,
        covariance_matrix: object = None,
        precision_matrix: object = None,
        scale_tril: object = None,
        validate_args: bool | None = None,
    ) -> None:
        options = {
            "covariance_matrix": covariance_matrix,
            "precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        if loc.ndim < 1:
            raise ArgumentError("loc must be at least one-dimensional.")
        ((name, matrix),) = _only(options)
        if matrix.ndim < 2:
            raise ArgumentError(f"{name} must be at least two-dimensional, with batch dimensions")
        n = loc.shape[-1]
        batch = joined(matrix.shape[:-2], loc.shape[:-1])
        vars(self)[name] = matrix.broadcast_to((*batch, n, n))
        self.loc = loc.broadcast_to((*batch, n))
        super().__init__(batch, (n,), validate_args=validate_args)
        if name == "covariance_matrix":
            self._lower = ops.cholesky(matrix)
        else:
            self._lower = matrix if name == "scale_tril" else _precision_to_tril(matrix)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        new = self._expanded(
            batch_shape, loc=1, covariance_matrix=2, precision_matrix=2, scale_tril=2
        )
        new._lower = self._lower
        return new

    @cached_property
    def scale_tril(self) -> Value:
        """L."""
        return self._lower.broadcast_to((*self.batch_shape, *self.event_shape, *self.event_shape))

    @cached_property
    def covariance_matrix(self) -> Value:
        """L L^T."""
        return self.scale_tril @ _transposed(self.scale_tril)

    @cached_property
    def precision_matrix(self) -> Value:
        """The covariance's inverse."""
        inverse = _inverse_of_lower(self.scale_tril)
        return _transposed(inverse) @ inverse

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        drawn = ops.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self.scale_tril @ drawn.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Value) -> Value:
        off = self._checked(value) - self.loc
        n = self.event_shape[0]
        return -0.5 * (n * LOG_2PI + mahalanobis(self._lower, off)) - _log_diagonal(self._lower)

    def entropy(self) -> Value:
        n = self.event_shape[0]
        entropy = 0.5 * n * (1.0 + LOG_2PI) + _log_diagonal(self._lower)
        return entropy.broadcast_to(tuple(self.batch_shape))


def _only(options: Mapping[str, object]) -> list[tuple[str, Any]]:
    matrices = [(name, value) for name, value in options.items() if value is not None]
    if len(matrices) != 1:
        raise ArgumentError(
            "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
        )
    return matrices


# public: distributions
@formulas(mean="loc", mode="loc", variance="(cov_factor**2).sum(-1) + cov_diag")
class LowRankMultivariateNormal(Distribution):
    """The normal distribution of covariance W W^T + diag(D): W is cov_factor (*, n, k), D is
    cov_diag (*, n).

    >>> W, D = flow.tensor([[1.0], [2.0]]), flow.ones(2)
    >>> flow.distributions.LowRankMultivariateNormal(flow.zeros(2), W, D).covariance_matrix
    tensor([[2., 2.],
            [2., 5.]])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, loc: Value, cov_factor: Value, cov_diag: Value, validate_args: bool | None = None
    ) -> None:
        if loc.ndim < 1:
            raise ArgumentError("loc must be at least one-dimensional.")
        n = loc.shape[-1]
        if cov_factor.ndim < 2 or cov_factor.shape[-2] != n:
            raise ArgumentError(f"cov_factor must be a batch of matrices with shape {n} x m")
        if cov_diag.ndim < 1 or cov_diag.shape[-1] != n:
            raise ArgumentError(f"cov_diag must be a batch of vectors with shape {n}")
        batch = joined(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        self.loc = loc.broadcast_to((*batch, n))
        self.cov_factor = cov_factor.broadcast_to((*batch, *cov_factor.shape[-2:]))
        self.cov_diag = cov_diag.broadcast_to((*batch, n))
        super().__init__(batch, (n,), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        return self._expanded(batch_shape, loc=1, cov_factor=2, cov_diag=1)

    @cached_property
    def _capacitance(self) -> Value:
        """The Cholesky factor of I + W^T D^-1 W."""
        scaled = _transposed(self.cov_factor) / self.cov_diag.unsqueeze(-2)
        small = scaled @ self.cov_factor
        return ops.cholesky(small + _eye(small))

    @property
    def covariance_matrix(self) -> Value:
        """W W^T + diag(D)."""
        return self.cov_factor @ _transposed(self.cov_factor) + ops.diag_embed(self.cov_diag)

    @property
    def scale_tril(self) -> Value:
        """The covariance's Cholesky factor."""
        return ops.cholesky(self.covariance_matrix)

    @property
    def precision_matrix(self) -> Value:
        """The covariance's inverse (Woodbury)."""
        scaled = _transposed(self.cov_factor) / self.cov_diag.unsqueeze(-2)
        a = triangular_solve(self._capacitance, scaled)
        return ops.diag_embed(1 / self.cov_diag) - _transposed(a) @ a

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        k = self.cov_factor.shape[-1]
        options = {"dtype": self.loc.dtype, "device": self.loc.device}
        low = ops.randn((*shape[:-1], k), **options)
        own = ops.randn(shape, **options)
        return (
            self.loc
            + (self.cov_factor @ low.unsqueeze(-1)).squeeze(-1)
            + (self.cov_diag.sqrt() * own)
        )

    def _log_det(self) -> Value:
        return 2 * _log_diagonal(self._capacitance) + self.cov_diag.log().sum(-1)

    def log_prob(self, value: Value) -> Value:
        off = self._checked(value) - self.loc
        difference = (
            (_transposed(self.cov_factor) / self.cov_diag.unsqueeze(-2)) @ off.unsqueeze(-1)
        ).squeeze(-1)
        square = (off**2 / self.cov_diag).sum(-1) - mahalanobis(self._capacitance, difference)
        return -0.5 * (self.event_shape[0] * LOG_2PI + self._log_det() + square)

    def entropy(self) -> Value:
        return 0.5 * (self.event_shape[0] * (1.0 + LOG_2PI) + self._log_det())


# public: distributions
class Wishart(ExponentialFamily):
    """The Wishart distribution of matrices: of `df` and one of covariance_matrix, precision_matrix,
    scale_tril.  Sampled by Bartlett's decomposition.

    >>> flow.distributions.Wishart(3.0, flow.eye(2)).mean
    tensor([[3., 0.],
            [0., 3.]])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
        "df": constraints.greater_than(0),
    }
    support = constraints.positive_definite
    has_rsample = True

    def __init__(
        self,
        df: Any,
        covariance_matrix: object = None,
        precision_matrix: object = None,
        scale_tril: object = None,
        validate_args: bool | None = None,
    ) -> None:
        options = {
            "covariance_matrix": covariance_matrix,
            "precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        ((name, matrix),) = _only(options)
        if matrix.ndim < 2:
            raise ArgumentError("scale_tril must be at least two-dimensional")
        df = df if hasattr(df, "ndim") else ops.tensor(float(df), dtype=matrix.dtype)
        n = matrix.shape[-1]
        batch = joined(df.shape, matrix.shape[:-2])
        self.df = df.broadcast_to(tuple(batch))
        vars(self)[name] = matrix.broadcast_to((*batch, n, n))
        super().__init__(batch, (n, n), validate_args=validate_args)
        if self._validate_args and not holds(ops.gt, self.df, n - 1):
            raise ArgumentError(
                f"Value of df={self.df} expected to be greater than ndim - 1 = {n - 1}."
            )
        if name == "covariance_matrix":
            self._lower = ops.cholesky(matrix)
        else:
            self._lower = matrix if name == "scale_tril" else _precision_to_tril(matrix)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        new = self._expanded(
            batch_shape, df=0, covariance_matrix=2, precision_matrix=2, scale_tril=2
        )
        new._lower = self._lower
        return new

    @cached_property
    def scale_tril(self) -> Value:
        """L."""
        return self._lower.broadcast_to((*self.batch_shape, *self.event_shape))

    @cached_property
    def covariance_matrix(self) -> Value:
        """L L^T."""
        return self.scale_tril @ _transposed(self.scale_tril)

    @cached_property
    def precision_matrix(self) -> Value:
        """The inverse of the covariance matrix."""
        inverse = _inverse_of_lower(self.scale_tril)
        return _transposed(inverse) @ inverse

    @property
    def mean(self) -> Value:
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Value:
        factor = self.df - self.covariance_matrix.shape[-1] - 1
        factor = ops.where(factor > 0, factor, ops.full_like(factor, math.nan))
        return factor[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Value:
        v = self.covariance_matrix
        d = v.diagonal(0, -2, -1)
        return self.df[..., None, None] * (v**2 + d.unsqueeze(-1) * d.unsqueeze(-2))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Value:
        shape = tuple(self._extended_shape(sample_shape))
        n = shape[-1]
        options = {"dtype": self.df.dtype, "device": self.df.device}
        halves = (self.df.unsqueeze(-1) - ops.arange(n, **options)) / 2
        chi = 2 * standard_gamma(halves.broadcast_to((*shape[:-2], n)))
        noise = ops.randn(shape, **options).tril(-1) + ops.diag_embed(chi.sqrt())
        lower = self.scale_tril @ noise
        return lower @ _transposed(lower)

    def log_prob(self, value: Value) -> Value:
        value = self._checked(value)
        nu, p = self.df, self.event_shape[-1]
        whole = (_solved(self._lower, value)).diagonal(0, -2, -1).sum(-1)
        return (
            -nu * (p * math.log(2.0) / 2.0 + _log_diagonal(self._lower))
            - log_gamma_multivariate(nu / 2.0, p)
            + (nu - p - 1) / 2.0 * _log_det(value) - whole / 2.0
        )  # fmt: skip

    def entropy(self) -> Value:
        nu, p = self.df, self.event_shape[-1]
        return (
            (p + 1) * (p * math.log(2.0) / 2.0 + _log_diagonal(self._lower))
            + log_gamma_multivariate(nu / 2.0, p)
            - (nu - p - 1) / 2.0 * digamma_multivariate(nu / 2.0, p)
            + nu * p / 2.0
        )  # fmt: skip


def _log_det(matrix: Value) -> Value:
    return 2 * _log_diagonal(ops.cholesky(matrix))


def _solved(lower: Value, value: Value) -> Value:
    """(L L^T)^-1 value."""
    inner = triangular_solve(lower, value)
    turned = _transposed(lower)
    return triangular_solve(turned, inner)


def digamma_multivariate(a: Value, p: int) -> Value:
    """The derivative of log_gamma_multivariate."""
    total: int = 0
    for j in range(p):
        total = total + (a - j / 2).digamma()
    return total


# public: distributions
class LKJCholesky(Distribution):
    """Cholesky factors of dim x dim correlation matrices, of density det ** (concentration - 1).

    Sampled by the onion method (Lewandowski, Kurowicka and Joe, 2009).

    >>> L = flow.distributions.LKJCholesky(3).sample()
    >>> flow.allclose((L @ L.T).diagonal(), flow.ones(3), atol=1e-5)
    True
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(
        self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        if dim < 2:
            raise ArgumentError(
                f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}."
            )
        self.dim = dim
        if not hasattr(concentration, "ndim"):
            concentration = ops.tensor(float(concentration), dtype=get_default_dtype())
        self.concentration = concentration
        super().__init__(concentration.shape, (dim, dim), validate_args=validate_args)
        self._beta = self._beta_of(self.concentration)

    def _beta_of(self, concentration: Value) -> Beta:
        marginal = concentration + 0.5 * (self.dim - 2)
        options = {"dtype": concentration.dtype, "device": concentration.device}
        offset = ops.cat([ops.zeros(1, **options), ops.arange(self.dim - 1, **options)])
        return Beta(offset + 0.5, marginal.unsqueeze(-1) - 0.5 * offset, validate_args=False)

    def expand(self, batch_shape: Iterable[int], _instance: object = None) -> Self:
        wide = self.concentration.broadcast_to(tuple(batch_shape))
        return self._new(batch_shape, dim=self.dim, concentration=wide, _beta=self._beta_of(wide))

    def sample(self, sample_shape: Sequence[int] = ()) -> Value:
        y = self._beta.sample(sample_shape).detach().unsqueeze(-1)
        options = {"dtype": y.dtype, "device": y.device}
        u = ops.randn(tuple(self._extended_shape(sample_shape)), **options).tril(-1)
        length = ops.clamp((u * u).sum(-1, keepdim=True).sqrt(), min=finfo(y.dtype).tiny)
        on_sphere = u / length
        first = ops.arange(self.dim).reshape(-1, 1) == 0
        w = ops.where(first.to(y.device), ops.zeros_like(on_sphere), y.sqrt() * on_sphere)
        rest = ops.clamp(1 - (w**2).sum(-1), min=finfo(w.dtype).tiny).sqrt()
        return w + ops.diag_embed(rest)

    def log_prob(self, value: Value) -> Value:
        value = self._checked(value)
        options = {"dtype": self.concentration.dtype, "device": self.concentration.device}
        diagonal = value.diagonal(0, -2, -1)[..., 1:]
        order = ops.arange(2, self.dim + 1, **options)
        order = 2 * (self.concentration - 1).unsqueeze(-1) + self.dim - order
        unnormalized = (order * diagonal.log()).sum(-1)
        less = self.dim - 1
        alpha = self.concentration + 0.5 * less
        return unnormalized - (
            0.5 * less * math.log(math.pi) + log_gamma_multivariate(alpha - 0.5, less)
            - alpha.lgamma() * less
        )  # fmt: skip
