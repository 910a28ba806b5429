"""Random tensors; `flowvm.ops.random.parts.philox` says which numbers they get."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.batched import check_refill, place_to_draw, spread_to_draw
from flowvm.eager.global_calls import placed_like, takes_placement
from flowvm.eager.keywords import spelled
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError
from flowvm.meta.device import as_device
from flowvm.meta.dtype import DType, as_dtype, float64, get_default_dtype, int64
from flowvm.meta.formats import accept, format_stride
from flowvm.meta.meta import TensorMeta, as_shape
from flowvm.ops.declare.composite import Recorded, need_tensor, whole
from flowvm.ops.declare.core import arranged, cast
from flowvm.ops.declare.outputs import dtype_for
from flowvm.ops.declare.rebase import replaced_grad
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.places.scatter import changed
from flowvm.ops.random.generator import Generator, drawn_from
from flowvm.ops.random.parts.philox import (
    exponential_into,
    integer_words,
    integers_into,
    normal_into,
    normal_words,
    uniform_into,
    uniform_words,
)
from flowvm.ops.random.parts.shuffle import permutation
from flowvm.ops.shapes.complex_parts import view_as_complex, view_as_real
from flowvm.ops.shapes.fill import finished, size_of

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


# --- uniform and normal numbers -----------------------------------------------------------------


def _float_dtype(name: str, dtype: DTypeLike) -> DType:
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    if not chosen.inexact:
        raise DTypeError(f"{name} makes floats, got dtype {chosen.name}; randint makes integers")
    return chosen


def _pairs_of(meta: TensorMeta) -> TensorMeta:
    return meta.with_shape((*meta.shape, 2), meta.dtype.real)


def uniform_of(meta: TensorMeta, generator: Generator | None) -> Tensor:
    if meta.dtype.is_complex:
        return view_as_complex(uniform_of(_pairs_of(meta), generator))
    drawn = drawn_from(generator)
    wide = meta.dense(meta.dtype.compute) if meta.dtype.reduced else meta
    out: Tensor = uniform_words(wide, _dropped(meta.dtype), 0.0, 1.0, *drawn)
    return cast(out, meta.dtype) if meta.dtype.reduced else out


def _dropped(dtype: DType) -> int:
    """The low bits of a word that a uniform number of this dtype has no room for."""
    return max(0, 32 - dtype.digits)


def normal_of(
    meta: TensorMeta, generator: Generator | None, mean: float = 0.0, std: float = 1.0
) -> Tensor:
    if meta.dtype.is_complex:  # the variance is that of both parts together
        parts = normal_of(_pairs_of(meta), generator, 0.0, std * math.sqrt(0.5))
        whole: Any = view_as_complex(parts)
        return whole + mean if mean else whole  # type: ignore[no-any-return]
    wide = meta.dense(meta.dtype.compute) if meta.dtype.reduced else meta
    out: Tensor = normal_words(wide, mean, std, *drawn_from(generator))
    return cast(out, meta.dtype) if meta.dtype.reduced else out


# public: flow
@takes_placement
def rand(
    *size: object,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) with uniform numbers from [0, 1).

    >>> flow.rand(2, 3).shape
    flow.Size([2, 3])
    """
    shape, kind = size_of(size, "rand", options), dtype_for("rand", out, dtype)
    meta = TensorMeta.of(shape, _float_dtype("rand", kind), place_to_draw(as_device(device)))
    return finished(uniform_of(meta, generator), requires_grad, out, "rand")


# public: flow
@takes_placement
def randn(
    *size: object,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) with numbers of mean 0 and variance 1,
    normally distributed.

    >>> flow.randn(2, 3).shape
    flow.Size([2, 3])
    """
    shape, kind = size_of(size, "randn", options), dtype_for("randn", out, dtype)
    meta = TensorMeta.of(shape, _float_dtype("randn", kind), place_to_draw(as_device(device)))
    return finished(normal_of(meta, generator), requires_grad, out, "randn")


def _laid_like(name: str, drawn: Tensor, meta: TensorMeta, memory_format: object) -> Tensor:
    """Numbers in C order with the strides of a copy of `meta`: the same numbers at the same places,
    however they lie.
    """
    stride = format_stride(name, meta, memory_format)
    return drawn if stride is None else arranged(drawn, drawn._meta.dtype, stride)


# public: flow
@placed_like
def rand_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """`rand` of `input`'s shape, and dtype unless one is given.

    >>> flow.rand_like(flow.ones(2, 3)).shape
    flow.Size([2, 3])
    """
    meta = need_tensor("rand_like", "input", input)._meta
    kind = meta.dtype if dtype is None else dtype
    place = meta.device if device is None else device
    form = options.pop("memory_format", None)
    options |= {"dtype": kind, "device": place}
    drawn = rand(meta.shape, generator=generator, **options)
    return finished(_laid_like("rand_like", drawn, meta, form), requires_grad)


# public: flow
@placed_like
def randn_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """`randn` of `input`'s shape, and dtype unless one is given.

    >>> flow.randn_like(flow.ones(2, 3)).shape
    flow.Size([2, 3])
    """
    meta = need_tensor("randn_like", "input", input)._meta
    kind = meta.dtype if dtype is None else dtype
    place = meta.device if device is None else device
    form = options.pop("memory_format", None)
    options |= {"dtype": kind, "device": place}
    drawn = randn(meta.shape, generator=generator, **options)
    return finished(_laid_like("randn_like", drawn, meta, form), requires_grad)


# public: flow
@takes_placement
def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """Normally distributed numbers of means `mean` and standard deviations `std`: tensors that
    broadcast, or numbers.

    Two numbers need `size`.  ArgumentError if the number `std` is negative.

    >>> flow.normal(flow.tensor([1.0, 2.0]), 0.0)
    tensor([1., 2.])
    """
    accept("normal", options)
    place, dtype = place_to_draw(as_device(device)), dtype_for("normal", out, dtype)
    if not isinstance(std, Tensor) and std < 0:
        raise ArgumentError(f"normal: a standard deviation is not negative, got {std}")
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    if size is None:
        if not tensors:
            raise ArgumentTypeError("normal of two numbers needs size")
        meta = spread_to_draw(mean + std)._meta.dense()
    else:
        if tensors:
            raise ArgumentTypeError("normal takes size, or tensors for mean or std, not both")
        meta = TensorMeta.of(as_shape(size), _float_dtype("normal", dtype), place)
    if tensors:
        with_spread = normal_of(meta, generator) * std + mean
    else:
        with_spread = normal_of(meta, generator, float(mean), float(std))
    return finished(with_spread, requires_grad, out, "normal")


# --- integers ---------------------------------------------------------------------------------


# public: flow
@takes_placement
def randint(
    low: Any = 0,
    high: Any = None,
    size: object = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """Integers from `low` (0 if `randint(high, size)`) up to, not including, `high`; int64 unless
    `dtype` is given.

    >>> x = flow.randint(0, 10, (5,))
    >>> x.dtype, bool(((x >= 0) & (x < 10)).all())
    (flow.int64, True)
    """
    accept("randint", options)
    place, dtype = place_to_draw(as_device(device)), dtype_for("randint", out, dtype)
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if size is None:
        raise ArgumentTypeError(
            "randint needs size: randint(high, size) or randint(low, high, size)"
        )
    low, high = (_bound("randint", b) for b in (low, high))
    if not low < high:
        raise ArgumentError(f"randint: low must be less than high, got {low} and {high}")
    if not (-(1 << 63) <= low and high <= 1 << 63 and high - low < 1 << 63):
        raise ArgumentError(f"randint: from {low} to {high} is more than int64 has room for")
    chosen = int64 if dtype is None else as_dtype(dtype)
    if chosen.category == 1:
        limits = np.iinfo(chosen.numpy)
        if low < limits.min or high - 1 > limits.max:
            raise ArgumentError(
                f"randint: numbers from {low} to {high - 1} do not fit {chosen.name}"
            )
    meta = TensorMeta.of(as_shape(size), chosen.compute, place)
    words: Tensor = integer_words(meta, low, high - low, *drawn_from(generator))
    return finished(words.to(chosen), requires_grad, out, "randint")


def _bound(name: str, value: object) -> int:
    """An int, or the value of an integer tensor of one element, which is waited for."""
    if isinstance(value, bool):
        raise ArgumentTypeError(f"{name}: bounds are ints, got bool")
    return whole(name, "a bound", value)


# public: flow
@placed_like
def randint_like(
    input: Tensor,
    low: Any = 0,
    high: Any = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """`randint` of `input`'s shape, and dtype unless one is given; `randint_like(x, high)` starts
    at 0.

    >>> flow.randint_like(flow.ones(2, 3), 10).shape
    flow.Size([2, 3])
    """
    meta = need_tensor("randint_like", "input", input)._meta
    if high is None:
        low, high = 0, low
    kind = meta.dtype if dtype is None else dtype
    place = meta.device if device is None else device
    form = options.pop("memory_format", None)
    options |= {"dtype": kind, "device": place}
    drawn = randint(low, high, tuple(meta.shape), generator=generator, **options)
    return finished(_laid_like("randint_like", drawn, meta, form), requires_grad)


# public: flow
@takes_placement
def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """The integers from 0 to `n` - 1 in random order.

    >>> flow.randperm(4).sort().values
    tensor([0, 1, 2, 3])
    """
    accept("randperm", options)
    place, dtype = place_to_draw(as_device(device)), dtype_for("randperm", out, dtype)
    if not isinstance(n, (int, np.integer)) or n < 0:
        raise ArgumentError(f"randperm: n is a non-negative int, got {n!r}")
    order = permutation(int(n), place, *drawn_from(generator))
    chosen = order.to(int64 if dtype is None else as_dtype(dtype))
    return finished(chosen, requires_grad, out, "randperm")


# --- in place ---------------------------------------------------------------------------------

DRAWN = Recorded("drawn", lambda c, g: (replaced_grad(c.metas[0], g),), ("x",))


def _refilled(name: str, x: Tensor, write: Callable[[Tensor], object]) -> Tensor:
    """`x`, a tensor of floats that `write` has filled, or of pairs of them."""
    check_refill(name, x)
    if _float_dtype(name, need_tensor(name, "input", x)._meta.dtype).is_complex:
        return changed(DRAWN, x, (), (), lambda out: write(view_as_real(out)))
    return changed(DRAWN, x, (), (), write)


@method()
@spelled(**{"from": "from_"})
def uniform_(
    x: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill `x` with uniform numbers from [from_, to), both parts of complex ones.

    >>> x = flow.empty(5).uniform_(2.0, 3.0)
    >>> bool(((x >= 2) & (x < 3)).all())
    True
    """
    if not from_ <= to:
        raise ArgumentError(f"uniform_: from_ must not exceed to, got {from_} and {to}")
    numbers = (float(from_), float(to - from_), *drawn_from(generator))
    drop = _dropped(x._meta.dtype.real)
    return _refilled("uniform_", x, lambda out: uniform_into(out, drop, *numbers))


@method()
def normal_(
    x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill `x` with normally distributed numbers; each part of complex ones has half the variance,
    and `mean`.

    >>> flow.empty(3).normal_(5.0, 0.0)
    tensor([5., 5., 5.])
    """
    if std < 0:
        raise ArgumentError(f"normal_: a standard deviation is not negative, got {std}")
    spread = float(std) * (math.sqrt(0.5) if x._meta.dtype.is_complex else 1.0)
    numbers = (float(mean), spread, *drawn_from(generator))
    return _refilled("normal_", x, lambda out: normal_into(out, *numbers))


@method()
def exponential_(x: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill `x` with waiting times of rate `lambd`.

    >>> flow.empty(3).exponential_().shape
    flow.Size([3])
    """
    if lambd <= 0:
        raise ArgumentError(f"exponential_: lambd must be positive, got {lambd}")
    numbers = (float(lambd), *drawn_from(generator))
    return _refilled("exponential_", x, lambda out: exponential_into(out, *numbers))


@method()
@spelled(**{"from": "from_"})
def random_(
    x: Tensor,
    from_: int | None = None,
    to: int | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Fill `x` with integers from `from_` up to, not including, `to`; by default all that its dtype
    counts.  `x.random_(to)` begins at 0.

    >>> x = flow.empty(5).random_(0, 10)
    >>> bool(((x >= 0) & (x < 10)).all())
    True
    """
    dtype = x._meta.dtype
    if to is None and from_ is not None:
        from_, to = 0, from_
    from_ = from_ or 0
    if to is None and dtype.is_floating_point:
        to = 1 << dtype.digits
    elif to is None:
        to = 2 if dtype.is_bool else min(int(np.iinfo(dtype.numpy).max), (1 << 63) - 1)
    if not from_ < to:
        raise ArgumentError(f"random_: from_ must be less than to, got {from_} and {to}")
    if not (-(1 << 63) <= from_ and to <= 1 << 63 and to - from_ < 1 << 63):
        raise ArgumentError(f"random_: from {from_} to {to} is more than int64 has room for")
    numbers = (int(from_), int(to) - int(from_), *drawn_from(generator))
    return changed(DRAWN, x, (), (), lambda out: integers_into(out, *numbers))


def _transformed(
    name: str, x: Tensor, generator: Generator | None, make: Callable[[Any], Tensor]
) -> Tensor:
    """Fill `x` with the result of `make` on uniform numbers of float64, in (0, 1]."""
    meta = need_tensor(name, "input", x)._meta
    drawn = make(1.0 - uniform_of(meta.dense(float64), generator))
    return changed(DRAWN, x, (), (), lambda out: out.copy_(drawn))


@method()
def cauchy_(
    x: Tensor, median: float = 0, sigma: float = 1, *, generator: Generator | None = None
) -> Tensor:
    """Fill `x` with numbers of the Cauchy distribution about `median`, of scale `sigma`.

    >>> flow.empty(3).cauchy_().shape
    flow.Size([3])
    """
    if sigma <= 0:
        raise ArgumentError(f"cauchy_: sigma is positive, got {sigma}")
    _float_dtype("cauchy_", x._meta.dtype)
    return _transformed(
        "cauchy_", x, generator, lambda u: ((u - 0.5) * math.pi).tan() * sigma + median
    )


@method()
def log_normal_(
    x: Tensor, mean: float = 1, std: float = 2, *, generator: Generator | None = None
) -> Tensor:
    """Fill `x` with numbers whose logarithms are normally distributed.

    >>> bool((flow.empty(3).log_normal_() > 0).all())
    True
    """
    if std <= 0:
        raise ArgumentError(f"log_normal_: std is positive, got {std}")
    _float_dtype("log_normal_", x._meta.dtype)
    meta = x._meta.dense(float64)
    drawn: Tensor = normal_of(meta, generator, float(mean), float(std))
    return changed(DRAWN, x, (), (), lambda out: out.copy_(drawn.exp()))


@method()
def geometric_(x: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Fill `x` with counts of trials up to the first success, each of probability `p`.

    >>> flow.empty(3).geometric_(0.5).shape
    flow.Size([3])
    """
    if not 0 < p < 1:
        raise ArgumentError(f"geometric_: p is between 0 and 1, got {p}")
    rate = math.log1p(-p)
    return _transformed("geometric_", x, generator, lambda u: (u.log() / rate).ceil().clamp(min=1))


samples(
    rand_like,
    lambda rng: [Sample((np.zeros((2, 0)),))],
    lambda x: x,
    grad=False,
    errors=(
        (lambda flow: flow.rand(2, dtype=flow.int64), RuntimeError),
        (lambda flow: flow.randint(3, 3, (2,)), ValueError),
        (lambda flow: flow.randint(0, 300, (2,), dtype=flow.uint8), ValueError),
        (lambda flow: flow.randperm(-1), ValueError),
        (lambda flow: flow.normal(0.0, -1.0, (2,)), ValueError),
        (lambda flow: flow.manual_seed(None), TypeError),
    ),
)
