"""`flow.masked`: reductions and normalizations of the elements that a mask selects, as
compositions.

Where the mask is False an element is as if it were not there: it is replaced by what changes
nothing, 0 in a sum, -inf in a maximum.  The mask is broadcast with the input; without one all
elements count.  What has no element gives that number, or NaN where it is divided by the count.
There is no MaskedTensor: these functions take the mask beside the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError
from flowvm.linalg import vector_norm
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing, own_names
from flowvm.loading.missing_names import other_names
from flowvm.meta.dtype import DType, bool_, iinfo, int64
from flowvm.meta.formats import strided

if TYPE_CHECKING:
    from flowvm.ops.sparse import reductions
    from flowvm.ops.sparse.tensor import SparseTensor
else:
    reductions = lazy("flowvm.ops.sparse.reductions")

__dir__ = listing(globals())
__getattr__ = other_names("masked", lambda: own_names(globals()))

Dims = int | Sequence[int] | None


# --- what they share ------------------------------------------------------------------------------


def _mask(name: str, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return the mask, as large as the input; None if all elements count."""
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"masked.{name}: input must be a Tensor, got {type(x).__name__}")
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype is not bool_:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise DTypeError(f"masked.{name}: mask is a bool tensor, got {kind}")
    if mask.ndim > x.ndim:
        raise ArgumentError(
            f"masked.{name}: the mask has {mask.ndim} dimensions, and input has {x.ndim}"
        )
    return ops.broadcast_to(mask.to_dense(), x.shape)


def _is_sparse(x: object) -> TypeGuard[SparseTensor]:
    """Return True for a sparse tensor: what it stores is reduced, to a sparse tensor."""
    return isinstance(x, Tensor) and x.layout is not strided


def _dims(name: str, x: Tensor, dim: Dims) -> tuple[int, ...]:
    """Return the dimensions: all for None and ()."""
    if dim is None or (not isinstance(dim, int) and len(tuple(dim)) == 0):
        return tuple(range(x.ndim))
    raw_dims = (dim,) if isinstance(dim, int) else tuple(dim)
    rank = x.ndim or 1
    for d in raw_dims:
        if not -rank <= d < rank:
            raise IndexError(f"masked.{name}: dim {d} of a tensor of {x.ndim} dimensions")
    dims = tuple(d % rank for d in raw_dims)
    if len(set(dims)) != len(dims):
        raise ArgumentError(f"masked.{name}: dim={raw_dims} has a dimension twice")
    return dims if x.ndim else ()


def _or(x: Tensor, mask: Tensor | None, other: float) -> Tensor:
    """Return `x` with `other` where the mask is False."""
    if mask is None:
        return x
    filled: Tensor = ops.where(mask, x, ops.full((), other, dtype=x.dtype, device=x.device))
    return filled


def _least(dtype: DType) -> float:
    return False if dtype is bool_ else -float("inf") if dtype.inexact else iinfo(dtype).min


def _most(dtype: DType) -> float:
    return True if dtype is bool_ else float("inf") if dtype.inexact else iinfo(dtype).max


def _summed_dtype(x: Tensor, dtype: DType | None) -> DType:
    """Return the dtype of a sum: int64 for integers."""
    if dtype is not None:
        return dtype
    return x.dtype if x.dtype.inexact else int64


def _scanned_dtype(x: Tensor, dtype: DType | None) -> DType:
    """Return the dtype of a scan: the input's dtype, but for bools."""
    if dtype is not None:
        return dtype
    return int64 if x.dtype is bool_ else x.dtype


# --- reductions -----------------------------------------------------------------------------------


def sum(
    input: Tensor, dim: Dims = None, *, keepdim: bool | None = False, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The sum of the elements that count; 0 of none.

    >>> flow.masked.sum(flow.tensor([1.0, 2.0, 4.0]), mask=flow.tensor([True, False, True]))
    tensor(5.)
    """
    if _is_sparse(input):
        kind = _summed_dtype(input, dtype)
        return reductions.reduced(
            "sum", input.to(kind), _dims("sum", input, dim), bool(keepdim), mask
        )  # fmt: skip
    held = _mask("sum", input, mask)
    x = _or(input.to(_summed_dtype(input, dtype)), held, 0)
    dims = _dims("sum", input, dim)
    total: Tensor = x.sum(dims, keepdim=bool(keepdim)) if dims else x.clone()
    return total


def prod(
    input: Tensor, dim: Dims = None, *, keepdim: bool | None = False, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The product of the elements that count; 1 of none.

    >>> flow.masked.prod(flow.tensor([1.0, 2.0, 4.0]), mask=flow.tensor([True, False, True]))
    tensor(4.)
    """
    if _is_sparse(input):
        kind = _summed_dtype(input, dtype)
        return reductions.reduced(
            "prod", input.to(kind), _dims("prod", input, dim), bool(keepdim), mask
        )  # fmt: skip
    held = _mask("prod", input, mask)
    x = _or(input.to(_summed_dtype(input, dtype)), held, 1)
    for d in sorted(_dims("prod", input, dim), reverse=True):
        x = x.prod(d, keepdim=bool(keepdim))
    return x


def amax(
    input: Tensor, dim: Dims = None, *, keepdim: bool | None = False, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The greatest of the elements that count; -inf, or the least integer, of none.

    >>> flow.masked.amax(flow.tensor([1.0, 9.0, 4.0]), mask=flow.tensor([True, False, True]))
    tensor(4.)
    """
    x: Tensor = input if dtype is None else input.to(dtype)
    if _is_sparse(x):
        return reductions.reduced("amax", x, _dims("amax", x, dim), bool(keepdim), mask)
    largest: Tensor = _or(x, _mask("amax", input, mask), _least(x.dtype)).amax(
        _dims("amax", input, dim), keepdim=bool(keepdim)
    )
    return largest


def amin(
    input: Tensor, dim: Dims = None, *, keepdim: bool | None = False, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The least of the elements that count; inf, or the greatest integer, of none.

    >>> flow.masked.amin(flow.tensor([1.0, 0.0, 4.0]), mask=flow.tensor([True, False, True]))
    tensor(1.)
    """
    x: Tensor = input if dtype is None else input.to(dtype)
    if _is_sparse(x):
        return reductions.reduced("amin", x, _dims("amin", x, dim), bool(keepdim), mask)
    least: Tensor = _or(x, _mask("amin", input, mask), _most(x.dtype)).amin(
        _dims("amin", input, dim), keepdim=bool(keepdim)
    )
    return least


def argmax(
    input: Tensor, dim: int | None = None, *, keepdim: bool | None = False,
    dtype: DType | None = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the index of the greatest element among the ones that count. int64 for integers, else
    of the input's dtype, as PyTorch's.

    >>> flow.masked.argmax(flow.tensor([1, 9, 4]), mask=flow.tensor([True, False, True]))
    tensor(2)
    """
    kind = input.dtype if dtype is None else dtype
    filled = _or(input, _mask("argmax", input, mask), _least(input.dtype))
    index: Tensor = ops.argmax(filled, dim, keepdim=bool(keepdim)).to(kind)
    return index


def argmin(
    input: Tensor, dim: int | None = None, *, keepdim: bool | None = False,
    dtype: DType | None = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the index of the least element among the ones that count. int64 for integers, else of
    the input's dtype, as PyTorch's.

    >>> flow.masked.argmin(flow.tensor([1, 0, 4]), mask=flow.tensor([True, False, True]))
    tensor(0)
    """
    kind = input.dtype if dtype is None else dtype
    filled = _or(input, _mask("argmin", input, mask), _most(input.dtype))
    index: Tensor = ops.argmin(filled, dim, keepdim=bool(keepdim)).to(kind)
    return index


def _count(x: Tensor, mask: Tensor | None, dims: tuple[int, ...], kind: DType) -> Tensor:
    whole = ops.ones(x.shape, dtype=kind, device=x.device) if mask is None else mask.to(kind)
    return whole.sum(dims, keepdim=True) if dims else whole


def mean(
    input: Tensor, dim: Dims = None, *, keepdim: bool | None = False, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The mean of the elements that count; NaN of none.  DTypeError for integers without `dtype`.

    >>> flow.masked.mean(flow.tensor([1.0, 2.0, 4.0]), mask=flow.tensor([True, False, True]))
    tensor(2.5000)
    """
    kind = input.dtype if dtype is None else dtype
    if not kind.inexact:
        raise DTypeError(f"masked.mean of {kind.name}: give dtype=, a floating point one")
    if _is_sparse(input):
        dims = _dims("mean", input, dim)
        return reductions.reduced("mean", input.to(kind), dims, bool(keepdim), mask)
    held, dims = _mask("mean", input, mask), _dims("mean", input, dim)
    average = (
        sum(input, dims, keepdim=True, dtype=kind, mask=mask)
        if dims
        else _or(input.to(kind), held, 0)
    )
    average = average / _count(input, held, dims, kind)
    return average if keepdim or not dims else average.squeeze(dims)


def _deviation(
    name: str, input: Tensor, dim: Dims, unbiased: bool | None, correction: float | None,
    keepdim: bool | None, dtype: DType | None, mask: Tensor | None,
) -> Tensor:  # fmt: skip
    if unbiased is not None and correction is not None:
        raise ArgumentError(f"masked.{name}: unbiased and correction are one argument; give one")
    less = 1.0 if correction is None and unbiased is not False else float(correction or 0.0)
    kind = dtype if dtype is not None else input.dtype
    if not kind.inexact:
        kind = ops.ones(()).dtype
    held, dims = _mask(name, input, mask), _dims(name, input, dim)
    x, count = input.to(kind), _count(input, held, dims, kind)
    total = _or(x, held, 0)
    middle = (total.sum(dims, keepdim=True) if dims else total) / count
    apart = _or(x - middle, held, 0)
    squares = (apart * apart.conj()).real if kind.is_complex else apart * apart
    deviation = squares.sum(dims, keepdim=True) if dims else squares
    count = count.real if kind.is_complex else count
    deviation = (deviation / ops.maximum(count - less, ops.zeros_like(count))).to(kind)
    result: Tensor = deviation if keepdim or not dims else deviation.squeeze(dims)
    return result


def var(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, *,
    correction: float | None = None, keepdim: bool | None = False, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The variance of the elements that count, divided by their count less `correction` (1).

    >>> flow.masked.var(flow.tensor([1.0, 9.0, 3.0]), mask=flow.tensor([True, False, True]))
    tensor(2.)
    """
    return _deviation("var", input, dim, unbiased, correction, keepdim, dtype, mask)


def std(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, *,
    correction: float | None = None, keepdim: bool | None = False, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The root of `var`.

    >>> flow.masked.std(flow.tensor([1.0, 9.0, 3.0]), mask=flow.tensor([True, False, True]))
    tensor(1.4142)
    """
    deviation: Tensor = _deviation(
        "std", input, dim, unbiased, correction, keepdim, dtype, mask
    ).sqrt()
    return deviation


def median(
    input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the lower middle element along `dim` among the ones that count.  NaN if there is none,
    which is an error for integers.

    >>> flow.masked.median(flow.tensor([1.0, 9.0, 3.0]), mask=flow.tensor([True, True, False]))
    tensor(1.)
    """
    x = input if dtype is None else input.to(dtype)
    held = _mask("median", input, mask)
    if held is None:
        middle: Tensor = ops.nanmedian(x, dim, keepdim)[0]
        return middle
    if x.dtype.inexact:
        result: Tensor = ops.nanmedian(_or(x, held, float("nan")), dim, keepdim)[0]
        return result
    count = held.sum(dim, keepdim=True)
    if bool((count == 0).any()):
        raise ArgumentError("masked.median: a row of integers has no element that counts")
    ordered = ops.sort(_or(x, held, _most(x.dtype)), dim=dim)[0]
    middle = ops.gather(ordered, dim, (count - 1) // 2)
    return middle if keepdim else middle.squeeze(dim)


def logsumexp(
    input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The logarithm of the sum of the exponentials of the elements that count; -inf of none.

    >>> flow.masked.logsumexp(flow.tensor([0.0, 9.0, 0.0]), mask=flow.tensor([True, False, True]))
    tensor(0.6931)
    """
    x = input if dtype is None else input.to(dtype)
    filled = _or(x, _mask("logsumexp", input, mask), _least(x.dtype))
    dims = _dims("logsumexp", input, dim)
    total: Tensor = ops.logsumexp(filled, dims, keepdim=keepdim).to(x.dtype)
    return total


def norm(
    input: Tensor, ord: float | None = 2.0, dim: Dims = None, *, keepdim: bool | None = False,
    dtype: DType | None = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The norm of the elements that count; 0 of none, inf where `ord` is -inf.

    >>> flow.masked.norm(flow.tensor([3.0, 9.0, 4.0]), mask=flow.tensor([True, False, True]))
    tensor(5.)
    """
    x = input if dtype is None else input.to(dtype)
    order = 2.0 if ord is None else ord
    nothing = float("inf") if order < 0 else 0
    filled = _or(x, _mask("norm", input, mask), nothing)
    dims = _dims("norm", input, dim)
    return vector_norm(filled, order, dims or None, bool(keepdim))


# --- of the same shape ----------------------------------------------------------------------------


def softmax(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """`flow.softmax` of the elements that count, 0 at the others; NaN where none does.

    >>> flow.masked.softmax(flow.tensor([0.0, 9.0, 0.0]), 0, mask=flow.tensor([True, False, True]))
    tensor([0.5000, 0.0000, 0.5000])
    """
    x = input if dtype is None else input.to(dtype)
    return ops.softmax(_or(x, _mask("softmax", input, mask), _least(x.dtype)), dim)


def log_softmax(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """`flow.log_softmax` of the elements that count, -inf at the others.

    >>> flow.masked.log_softmax(flow.tensor([0.0, 9.0]), 0, mask=flow.tensor([True, False]))
    tensor([0., -inf])
    """
    x = input if dtype is None else input.to(dtype)
    return ops.log_softmax(_or(x, _mask("log_softmax", input, mask), _least(x.dtype)), dim)


def softmin(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """`softmax` of the negatives.

    >>> flow.masked.softmin(flow.tensor([0.0, -9.0, 0.0]), 0, mask=flow.tensor([True, False, True]))
    tensor([0.5000, 0.0000, 0.5000])
    """
    x = input if dtype is None else input.to(dtype)
    return ops.softmax(-_or(x, _mask("softmin", input, mask), _most(x.dtype)), dim)


def cumsum(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """Return the sums of the counting elements up to each place.

    >>> flow.masked.cumsum(flow.tensor([1.0, 2.0, 4.0]), 0, mask=flow.tensor([True, False, True]))
    tensor([1., 1., 5.])
    """
    kind = _scanned_dtype(input, dtype)
    return ops.cumsum(_or(input, _mask("cumsum", input, mask), 0), dim, dtype=kind)


def cumprod(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """Return the products of the counting elements up to each place.

    >>> flow.masked.cumprod(flow.tensor([3.0, 2.0, 4.0]), 0, mask=flow.tensor([True, False, True]))
    tensor([ 3.,  3., 12.])
    """
    kind = _scanned_dtype(input, dtype)
    return ops.cumprod(_or(input, _mask("cumprod", input, mask), 1), dim, dtype=kind)


def normalize(
    input: Tensor, ord: float, dim: int, *, eps: float = 1e-12, dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The elements that count divided by their norm, which is at least `eps`; 0 at the others.

    >>> flow.masked.normalize(flow.tensor([3.0, 9.0]), 2.0, 0, mask=flow.tensor([True, False]))
    tensor([1., 0.])
    """
    x = input if dtype is None else input.to(dtype)
    length = norm(x, ord, dim, keepdim=True, mask=mask)
    held = _mask("normalize", input, mask)
    return _or(x, held, 0) / ops.clamp(length, min=eps)


def logaddexp(
    input: Tensor, other: Tensor, *, dtype: DType | None = None, input_mask: Tensor | None = None,
    other_mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`flow.logaddexp`, where what does not count is -inf.

    >>> flow.masked.logaddexp(flow.zeros(2), flow.zeros(2), other_mask=flow.tensor([True, False]))
    tensor([0.6931, 0.0000])
    """
    x, y = (input, other) if dtype is None else (input.to(dtype), other.to(dtype))
    x = _or(x, _mask("logaddexp", x, input_mask), _least(x.dtype))
    y = _or(y, _mask("logaddexp", y, other_mask), _least(y.dtype))
    total: Tensor = ops.logaddexp(x, y)
    return total


__all__ = own_names(globals())
