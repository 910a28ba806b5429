"""Invertible functions with the logarithm of how they stretch: y = t(x), x = t.inv(y)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import setitem
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.distributions import constraints
from flowvm.distributions.utils import Value, sum_rightmost
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.guards.exchange import exchange
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import finfo

if TYPE_CHECKING:
    from flowvm.distributions.constraints import cat, independent, stack


# public: distributions

__dir__ = listing(globals())


class Transform:
    """The base: a subclass defines _call, _inverse and log_abs_det_jacobian.

    domain, codomain   constraints; sign: of the slope, where there is one number
    bijective          whether each y has one x
    cache_size         1 keeps the newest x and y, so that inv(t(x)) is x itself

    >>> class Doubled(flow.distributions.Transform):
    ...     bijective = True
    ...     def _call(self, x):
    ...         return 2 * x
    ...     def _inverse(self, y):
    ...         return y / 2
    >>> Doubled()(flow.tensor(3.0)), Doubled().inv(flow.tensor(3.0))
    (tensor(6.), tensor(1.5000))
    """

    bijective = False
    domain: Any = constraints.real
    codomain: Any = constraints.real
    sign: Any = None

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ArgumentError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._kept: tuple[Any, Any] = (None, None)
        self._inverted: Transform | None = None

    @property
    def event_dim(self) -> int:
        """The dimensions of one event, which must be the same on both sides."""
        if self.domain.event_dim != self.codomain.event_dim:
            raise ArgumentError("Please use either .domain.event_dim or .codomain.event_dim")
        return int(self.domain.event_dim)

    @property
    def inv(self) -> Transform:
        """The inverse."""
        if self._inverted is None:
            now = map(vars(self).get, ("_inverted",))
            change = (setitem, (vars(self), "_inverted", _Inverse(self)))
            exchange(now, (None,), (change,))
        inverse: Transform = vars(self)["_inverted"]
        return inverse

    def with_cache(self, cache_size: int = 1) -> Transform:
        """This one with a cache of that size."""
        if self._cache_size == cache_size:
            return self
        new = object.__new__(type(self))
        vars(new).update(vars(self), _cache_size=cache_size, _kept=(None, None), _inverted=None)
        return new

    def __call__(self, x: Value) -> Value:
        """y, of x."""
        if not self._cache_size:
            return self._call(x)
        if x is not self._kept[0]:
            self._kept = (x, self._call(x))
        return self._kept[1]

    def _invert(self, y: Value) -> Value:
        if not self._cache_size:
            return self._inverse(y)
        if y is not self._kept[1]:
            self._kept = (self._inverse(y), y)
        return self._kept[0]

    def _call(self, x: Value) -> Value:
        raise NotImplementedError(f"{type(self).__name__} must define _call")

    def _inverse(self, y: Value) -> Value:
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        """log |dy/dx|, of an event."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def forward_shape(self, shape: Sequence[int]) -> Sequence[int]:
        """The shape of y, of x's."""
        return shape

    def inverse_shape(self, shape: Sequence[int]) -> Sequence[int]:
        """The shape of x, of y's."""
        return shape

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    """Another one, the other way round."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform._cache_size)
        self._inverted = transform
        self._of = transform

    @property
    def domain(self) -> Any:
        return self._of.codomain

    @property
    def codomain(self) -> Any:
        return self._of.domain

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return self._of.bijective

    @property
    def sign(self) -> Any:
        return self._of.sign

    @property
    def inv(self) -> Transform:
        return self._of

    def __call__(self, x: Value) -> Value:
        return self._of._invert(x)

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        return -self._of.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> Sequence[int]:
        return self._of.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Sequence[int]:
        return self._of.forward_shape(shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inverse) and self._of == other._of

    def __hash__(self) -> int:
        return hash(("inverse", self._of))

    def __repr__(self) -> str:
        return f"{self._of!r}.inv"


class _Plain(Transform):
    """Without parameters: all of a class are equal."""

    bijective = True

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


class ExpTransform(_Plain):
    """exp(x).

    >>> flow.distributions.ExpTransform()(flow.tensor([0.0, 1.0]))
    tensor([1.0000, 2.7183])
    """

    codomain = constraints.positive
    sign = 1

    def _call(self, x: Value) -> Value:
        return x.exp()

    def _inverse(self, y: Value) -> Value:
        return y.log()

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        return x


class PowerTransform(Transform):
    """x ** exponent, of positive numbers.

    >>> flow.distributions.PowerTransform(2.0)(flow.tensor([1.0, 3.0]))
    tensor([1., 9.])
    """

    bijective = True
    domain = constraints.positive
    codomain = constraints.positive

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent if isinstance(exponent, Tensor) else ops.tensor(float(exponent))

    @property
    def sign(self) -> Any:
        return self.exponent.sign()

    def _call(self, x: Value) -> Value:
        return x**self.exponent

    def _inverse(self, y: Value) -> Value:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        return (self.exponent * y / x).abs().log()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and _same(self.exponent, other.exponent)

    def __hash__(self) -> int:
        return hash(PowerTransform)


class SigmoidTransform(_Plain):
    """1 / (1 + exp(-x)).

    >>> flow.distributions.SigmoidTransform().inv(flow.tensor([0.5]))
    tensor([0.])
    """

    codomain = constraints.unit_interval
    sign = 1

    def _call(self, x: Value) -> Value:
        info = finfo(x.dtype)
        return ops.clamp(x.sigmoid(), min=info.tiny, max=1.0 - info.eps)

    def _inverse(self, y: Value) -> Value:
        info = finfo(y.dtype)
        y = ops.clamp(y, min=info.tiny, max=1.0 - info.eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        return -ops.softplus(-x) - ops.softplus(x)


class SoftplusTransform(_Plain):
    """log(1 + exp(x)).

    >>> flow.distributions.SoftplusTransform()(flow.zeros(1))  # log 2
    tensor([0.6931])
    """

    codomain = constraints.positive
    sign = 1

    def _call(self, x: Value) -> Value:
        return ops.softplus(x)

    def _inverse(self, y: Value) -> Value:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        return -ops.softplus(-x)


class TanhTransform(_Plain):
    """tanh(x).

    >>> flow.distributions.TanhTransform().inv(flow.zeros(1))
    tensor([0.])
    """

    codomain = constraints.interval(-1.0, 1.0)
    sign = 1

    def _call(self, x: Value) -> Value:
        return x.tanh()

    def _inverse(self, y: Value) -> Value:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        return 2.0 * (math.log(2.0) - x - ops.softplus(-2.0 * x))


class AbsTransform(_Plain):
    """|x|: no bijection; its inverse is the positive one.

    >>> flow.distributions.AbsTransform()(flow.tensor([-2.0, 3.0]))
    tensor([2., 3.])
    """

    bijective = False
    codomain = constraints.positive

    def _call(self, x: Value) -> Value:
        return x.abs()

    def _inverse(self, y: Value) -> Value:
        return y


class AffineTransform(Transform):
    """loc + scale * x.

    >>> move = flow.distributions.AffineTransform(1.0, 10.0)
    >>> move(flow.tensor([0.0, 2.0])), move.inv(flow.tensor([21.0]))
    (tensor([ 1., 21.]), tensor([2.]))
    """

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    @property
    def event_dim(self) -> int:
        return self._event_dim

    @property
    def domain(self) -> independent:
        return constraints.independent(constraints.real, self._event_dim)

    @property
    def codomain(self) -> independent:
        return self.domain

    @property
    def sign(self) -> Any:
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return 1 if float(self.scale) > 0 else -1 if float(self.scale) < 0 else 0

    def _call(self, x: Value) -> Value:
        return self.loc + self.scale * x

    def _inverse(self, y: Value) -> Value:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        shape = tuple(x.shape)
        if isinstance(self.scale, Tensor):
            log_det = self.scale.abs().log()
        else:
            log_det = ops.full_like(x, math.log(abs(self.scale)))
        if self._event_dim:
            lead = shape[: len(shape) - self._event_dim]
            log_det = log_det.broadcast_to(shape).reshape(*lead, -1).sum(-1)
            shape = lead
        return log_det.broadcast_to(shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AffineTransform) and all(
            _same(a, b) for a, b in ((self.loc, other.loc), (self.scale, other.scale))
        )

    def __hash__(self) -> int:
        return hash(AffineTransform)


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        alike: Any = a == b
        return a is b or bool(alike.all())
    return bool(a == b)


class SoftmaxTransform(_Plain):
    """exp(x), scaled to sum to 1: no bijection.

    >>> flow.distributions.SoftmaxTransform()(flow.zeros(2))
    tensor([0.5000, 0.5000])
    """

    bijective = False
    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Value) -> Value:
        return x.softmax(-1)

    def _inverse(self, y: Value) -> Value:
        return y.log()


class StickBreakingTransform(_Plain):
    """n numbers as n + 1 that sum to 1: each takes a share of what is left.

    >>> flow.distributions.StickBreakingTransform()(flow.zeros(1))
    tensor([0.5000, 0.5000])
    """

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Value) -> Value:
        z = self._shares(x)
        rest = (1 - z).cumprod(-1)
        ones = ops.ones((*x.shape[:-1], 1), dtype=x.dtype, device=x.device)
        return ops.cat([z, ones], -1) * ops.cat([ones, rest], -1)

    def _offset(self, x: Value) -> Value:
        n = x.shape[-1]
        return (ops.arange(n, 0, -1, device=x.device).to(x.dtype)).log()

    def _shares(self, x: Value) -> Value:
        info = finfo(x.dtype)
        return ops.clamp((x - self._offset(x)).sigmoid(), min=info.tiny, max=1 - info.eps)

    def _inverse(self, y: Value) -> Value:
        cut = y[..., :-1]
        rest = ops.clamp(1 - cut.cumsum(-1), min=finfo(y.dtype).tiny)
        return cut.log() - rest.log() + self._offset(cut)

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        moved = x - self._offset(x)
        return (-moved + ops.logsigmoid(moved) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> Sequence[int]:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> Sequence[int]:
        return (*shape[:-1], shape[-1] - 1)


class LowerCholeskyTransform(_Plain):
    """A matrix's lower triangle, with exp of the diagonal.

    >>> flow.distributions.LowerCholeskyTransform()(flow.tensor([[0.0, 5.0], [3.0, 0.0]]))
    tensor([[1., 0.],
            [3., 1.]])
    """

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Value) -> Value:
        return x.tril(-1) + ops.diag_embed(x.diagonal(0, -2, -1).exp())

    def _inverse(self, y: Value) -> Value:
        return y.tril(-1) + ops.diag_embed(y.diagonal(0, -2, -1).log())

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        return x.diagonal(0, -2, -1).sum(-1)


class PositiveDefiniteTransform(_Plain):
    """L L^T, L the LowerCholeskyTransform.

    >>> flow.distributions.PositiveDefiniteTransform()(flow.tensor([[0.0, 0.0], [2.0, 0.0]]))
    tensor([[1., 2.],
            [2., 5.]])
    """

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Value) -> Value:
        lower = LowerCholeskyTransform()(x)
        return lower @ lower.transpose(-2, -1)

    def _inverse(self, y: Value) -> Value:
        return LowerCholeskyTransform().inv(ops.cholesky(y))


class CorrCholeskyTransform(_Plain):
    """n (n - 1) / 2 numbers as the Cholesky factor of an n x n correlation matrix (Stan reference
    manual, 10.12).

    >>> L = flow.distributions.CorrCholeskyTransform()(flow.zeros(3))
    >>> L  # uncorrelated
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky

    def _call(self, x: Value) -> Value:
        eps = finfo(x.dtype).eps
        r = _lower_of(ops.clamp(x.tanh(), min=-1 + eps, max=1 - eps))
        rest = (1 - r * r).sqrt().cumprod(-1)
        n = r.shape[-1]
        r = r + ops.eye(n, dtype=r.dtype, device=r.device)
        ones = ops.ones((*rest.shape[:-1], 1), dtype=r.dtype, device=r.device)
        return r * ops.cat([ones, rest[..., :-1]], -1)

    def _inverse(self, y: Value) -> Value:
        rest = 1 - (y * y).cumsum(-1)
        ones = ops.ones((*y.shape[:-1], 1), dtype=y.dtype, device=y.device)
        shifted = ops.cat([ones, rest[..., :-1]], -1)
        t = _vector_of(y) / _vector_of(shifted).sqrt()
        return (t.log1p() - (-t).log1p()) / 2

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        rest = 1 - (y * y).cumsum(-1)
        log_det = 0.5 * _vector_of(rest, -2).log().sum(-1)
        steep = -2 * (x + ops.softplus(-2 * x) - math.log(2.0)).sum(-1)
        return log_det + steep

    def forward_shape(self, shape: Sequence[int]) -> Sequence[int]:
        n = round((0.25 + 2 * shape[-1]) ** 0.5 + 0.5)
        return (*shape[:-1], n, n)

    def inverse_shape(self, shape: Sequence[int]) -> Sequence[int]:
        n = shape[-1]
        return (*shape[:-2], n * (n - 1) // 2)


def _places(n: int, below: int) -> tuple[Value, Value]:
    rows = [(i, j) for i in range(n) for j in range(max(0, i + below + 1))]
    return ops.tensor([i for i, _ in rows]).long(), ops.tensor([j for _, j in rows]).long()


def _lower_of(x: Value) -> Value:
    """The strictly lower triangle with these elements, row by row."""
    m = x.shape[-1]
    n = round((0.25 + 2 * m) ** 0.5 + 0.5)
    if n * (n - 1) // 2 != m:
        raise ArgumentError(f"{m} is not a size of a strict lower triangle")
    rows, columns = _places(n, -1)
    flat = ops.zeros((*x.shape[:-1], n * n), dtype=x.dtype, device=x.device)
    place = (rows * n + columns).to(x.device)
    return ops.index_add(flat, -1, place, x).reshape(*x.shape[:-1], n, n)


def _vector_of(y: Value, below: int = -1) -> Value:
    """The elements below a diagonal, row by row."""
    rows, columns = _places(y.shape[-1], below)
    place = (rows * y.shape[-1] + columns).to(y.device)
    return y.reshape(*y.shape[:-2], -1).index_select(-1, place)


class ComposeTransform(Transform):
    """One after the other.

    >>> from flowvm.distributions import AffineTransform, ComposeTransform, ExpTransform
    >>> both = ComposeTransform([ExpTransform(), AffineTransform(0.0, 10.0)])
    >>> both(flow.tensor(0.0))
    tensor(10.)
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)

    @property
    def domain(self) -> Any:
        return self._side(True)

    @property
    def codomain(self) -> Any:
        return self._side(False)

    def _side(self, first: bool) -> Any:
        if not self.parts:
            return constraints.real
        parts = list(reversed(self.parts)) if first else self.parts
        end = parts[-1].domain if first else parts[-1].codomain
        dims = (parts[0].codomain if first else parts[0].domain).event_dim
        for part in parts:
            inner, outer = (part.domain, part.codomain) if first else (part.codomain, part.domain)
            dims = max(dims, outer.event_dim) + inner.event_dim - outer.event_dim
        return constraints.independent(end, dims - end.event_dim) if dims > end.event_dim else end

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(part.bijective for part in self.parts)

    @property
    def sign(self) -> int:
        sign: int = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    @property
    def inv(self) -> Transform:
        return ComposeTransform([part.inv for part in reversed(self.parts)])

    def __call__(self, x: Value) -> Value:
        for part in self.parts:
            x = part(x)
        return x

    def _invert(self, y: Value) -> Value:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        if not self.parts:
            return ops.zeros_like(x)
        points = [x]
        for part in self.parts[:-1]:
            points.append(part(points[-1]))
        points.append(y)
        total: int = 0
        dims = self.domain.event_dim
        for part, a, b in zip(self.parts, points[:-1], points[1:], strict=True):
            log_det = part.log_abs_det_jacobian(a, b)
            total = total + sum_rightmost(log_det, dims - part.domain.event_dim)
            dims += part.codomain.event_dim - part.domain.event_dim
        return total

    def forward_shape(self, shape: Sequence[int]) -> Sequence[int]:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Sequence[int]) -> Sequence[int]:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(tuple(self.parts))


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """A base transform whose last dimensions, reinterpreted, belong to an event.

    >>> from flowvm.distributions import ExpTransform, IndependentTransform
    >>> vectors = IndependentTransform(ExpTransform(), 1)
    >>> vectors.log_abs_det_jacobian(flow.tensor([1.0, 2.0]), None)  # of both together
    tensor(3.)
    """

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    @property
    def domain(self) -> independent:
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @property
    def codomain(self) -> independent:
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return self.base_transform.bijective

    @property
    def sign(self) -> Any:
        return self.base_transform.sign

    def _call(self, x: Value) -> Value:
        return self.base_transform(x)

    def _inverse(self, y: Value) -> Value:
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        log_det = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_rightmost(log_det, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> Sequence[int]:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Sequence[int]:
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """The last dimensions in another shape.

    >>> flow.distributions.ReshapeTransform((6,), (2, 3))(flow.arange(6))
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """

    bijective = True

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ArgumentError("in_shape, out_shape have different numbers of elements")

    @property
    def domain(self) -> independent:
        return constraints.independent(constraints.real, len(self.in_shape))

    @property
    def codomain(self) -> independent:
        return constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Value) -> Value:
        return x.reshape(self.forward_shape(tuple(x.shape)))

    def _inverse(self, y: Value) -> Value:
        return y.reshape(self.inverse_shape(tuple(y.shape)))

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        lead = tuple(x.shape)[: x.ndim - len(self.in_shape)]
        return ops.zeros(lead, dtype=x.dtype, device=x.device)

    def forward_shape(self, shape: Sequence[int]) -> Sequence[int]:
        return self._other(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> Sequence[int]:
        return self._other(shape, self.out_shape, self.in_shape)

    def _other(self, shape: Sequence[int], of: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
        cut = len(shape) - len(of)
        if cut < 0 or tuple(shape[cut:]) != of:
            raise ArgumentError(f"Shape mismatch: expected {tuple(shape)} to end with {of}")
        return (*shape[:cut], *to)


class _Several(Transform):
    """A transform for each part of a value, along `dim`."""

    dim: int
    transforms: list[Transform]

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(t.bijective for t in self.transforms)

    def _parts(self, x: Value) -> list[Value]:
        raise NotImplementedError

    def _join(self, parts: list[Value]) -> Value:
        raise NotImplementedError

    def _call(self, x: Value) -> Value:
        pairs = zip(self.transforms, self._parts(x), strict=True)
        return self._join([t(part) for t, part in pairs])

    def _inverse(self, y: Value) -> Value:
        pairs = zip(self.transforms, self._parts(y), strict=True)
        return self._join([t.inv(part) for t, part in pairs])

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        triples = zip(self.transforms, self._parts(x), self._parts(y), strict=True)
        return self._join([t.log_abs_det_jacobian(a, b) for t, a, b in triples])


class CatTransform(_Several):
    """Parts of these lengths (1) along `dim`, each with a transform of its own.

    >>> from flowvm.distributions import AffineTransform, CatTransform, ExpTransform
    >>> parts = CatTransform([AffineTransform(0.0, 10.0), ExpTransform()], lengths=[1, 1])
    >>> parts(flow.tensor([2.0, 0.0]))
    tensor([20.,  1.])
    """

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = list(tseq), dim
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)

    @property
    def domain(self) -> cat:
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @property
    def codomain(self) -> cat:
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)

    def _parts(self, x: Value) -> list[Value]:
        starts = [sum(self.lengths[:k]) for k in range(len(self.lengths))]
        pairs = zip(starts, self.lengths, strict=True)
        return [x.narrow(self.dim, start, length) for start, length in pairs]

    def _join(self, parts: list[Value]) -> Value:
        return ops.cat(parts, self.dim)


class StackTransform(_Several):
    """Slices along `dim`, each with a transform of its own.

    >>> from flowvm.distributions import AffineTransform, ExpTransform, StackTransform
    >>> StackTransform([AffineTransform(0.0, 10.0), ExpTransform()])(flow.tensor([[2.0], [0.0]]))
    tensor([[20.],
            [ 1.]])
    """

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = list(tseq), dim

    @property
    def domain(self) -> stack:
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @property
    def codomain(self) -> stack:
        return constraints.stack([t.codomain for t in self.transforms], self.dim)

    def _parts(self, x: Value) -> list[Value]:
        return [x.select(self.dim, i) for i in range(x.shape[self.dim])]

    def _join(self, parts: list[Value]) -> Value:
        return ops.stack(parts, self.dim)


class CumulativeDistributionTransform(Transform):
    """A distribution's cdf: its values as numbers in [0, 1].

    >>> normal = flow.distributions.Normal(0.0, 1.0)
    >>> flow.distributions.CumulativeDistributionTransform(normal)(flow.zeros(1))
    tensor([0.5000])
    """

    bijective = True
    codomain = constraints.unit_interval
    sign = 1

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Any:
        return self.distribution.support

    def _call(self, x: Value) -> Value:
        return self.distribution.cdf(x)

    def _inverse(self, y: Value) -> Value:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Value, y: Value) -> Value:
        return self.distribution.log_prob(x)


__all__ = own_names(globals())
