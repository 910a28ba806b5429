"""The rules of functions that take sparse tensors, entered into `flowvm.ops.sparse.table`.

A rule takes what the function takes.  Functions that leave zeros zero work on the values; products
go to `flowvm.ops.sparse.products`; all else is made of dense ops on indices and values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ModeError, OutOfRangeError, ShapeError
from flowvm.meta.dtype import int64, result_type
from flowvm.meta.formats import Layout, sparse_coo, sparse_csr, strided
from flowvm.meta.meta import TensorMeta, as_shape
from flowvm.ops.declare.composite import filled_of, wrap_dim, wrap_dims
from flowvm.ops.places.gather import index_select
from flowvm.ops.places.put import index_reduce
from flowvm.ops.places.repeats import repeat_interleave
from flowvm.ops.places.scatter import index_add
from flowvm.ops.places.unique import unique
from flowvm.ops.random.random import rand_like, randint_like, randn_like
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.ranges import arange
from flowvm.ops.shapes.views import reshape
from flowvm.ops.sparse.conversion import coalesced, converted, flat_values, to_coo, to_dense
from flowvm.ops.sparse.gradients import add_to
from flowvm.ops.sparse.pattern import COMPRESSED, Pattern, linear_of, places_of
from flowvm.ops.sparse.products import grouped, row_product, row_product_kept, row_samples
from flowvm.ops.sparse.reductions import broadcast, by_group, looked_up, reduced
from flowvm.ops.sparse.table import OF_THE_FUNCTION, RULES, Rule
from flowvm.ops.sparse.tensor import LAYOUTS, SparseTensor, sparse

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


# f(0) is 0; the second ones are sums of what they do to each summand
_ZERO_PRESERVING: Final = (
    "abs", "angle", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv",
    "expm1", "floor", "frac", "isinf", "isnan", "isneginf", "isposinf", "log1p", "nan_to_num",
    "rad2deg", "relu", "round", "sgn", "sign", "signbit", "sin", "sinh", "sqrt", "square",
    "tan", "tanh", "trunc",
)  # fmt: skip
_LINEAR: Final = ("conj", "conj_physical", "neg", "positive", "real", "imag", "resolve_conj")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter the decorated function into the table, under its name or these."""

    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return enter


def _apply(name: str, values: Tensor, args: Iterable[object], kwargs: Mapping[str, object]) -> Any:
    return getattr(values, name)(*args, **kwargs)


def _of_values(name: str, linear: bool) -> Rule:
    def each(x: SparseTensor, *args: object, **kwargs: object) -> SparseTensor:
        if not linear and x._pattern.is_coo:
            x = coalesced(x)
        return sparse(x._pattern, _apply(name, x._data, args, kwargs))

    return each


def _in_place(name: str, linear: bool) -> Rule:
    def each(x: SparseTensor, *args: object, **kwargs: object) -> SparseTensor:
        if not linear and not x._pattern.coalesced:
            raise ModeError(f"{name}: in-place on an uncoalesced tensor; coalesce() first")
        _apply(name, x._data, args, kwargs)
        return x

    return each


for _name in (*_ZERO_PRESERVING, *_LINEAR):
    RULES[_name] = _of_values(_name, _name in _LINEAR)
    RULES[f"{_name}_"] = _in_place(f"{_name}_", _name in _LINEAR)


def changed(x: SparseTensor, other: SparseTensor) -> SparseTensor:
    """Let `x` be what `other` is, in place."""
    if x._data._node is not None and x._data._node.is_leaf and other._data is not x._data:
        raise ModeError("a leaf that requires grad is changed in place; work on a clone()")
    x._pattern, x._data, x._whole = other._pattern, other._data, other._whole
    return x


# --- the same values elsewhere --------------------------------------------------------------------


@rule("clone")
def _clone(x: SparseTensor, *, memory_format: object = None) -> SparseTensor:
    return sparse(x._pattern, x._data.clone())


@rule("detach", "alias", "_data.__get__")
def _detach(x: SparseTensor) -> SparseTensor:
    return sparse(x._pattern, x._data.detach())


@rule("detach_")
def _detach_in_place(x: SparseTensor) -> SparseTensor:
    x._data = x._data.detach()
    return x


@rule("contiguous", "pin_memory", "share_memory_")
def _itself(x: SparseTensor, *args: object, **kwargs: object) -> SparseTensor:
    return x


def _moved(x: SparseTensor, values: Tensor) -> SparseTensor:
    if values is x._data:
        return x
    p = x._pattern
    if values.device is not x.device:
        parts = [part.to(values.device) for part in p.parts]
        p = Pattern(p.layout, parts, p.shape, p.coalesced, p.block)
    return sparse(p, values)


@rule("to")
def _to(x: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    args = tuple(a._data if isinstance(a, SparseTensor) else a for a in args)
    return _moved(x, x._data.to(*args, **kwargs))


def _converting(name: str) -> Rule:
    return lambda x, *args, **kwargs: _moved(x, _apply(name, x._data, args, kwargs))


for _name in (
    "bfloat16", "bool", "byte", "cdouble", "cfloat", "char", "cpu", "cuda", "double", "float",
    "half", "int", "long", "short",
):  # fmt: skip
    RULES[_name] = _converting(_name)
RULES["type_as"] = lambda x, other: x.to(other.dtype)


@rule("zero_")
def _zero_in_place(x: SparseTensor) -> SparseTensor:
    p = x._pattern
    if not p.is_coo:
        x._data.zero_()
        return x
    return changed(x, _nothing(p.shape, p.sparse_dim, x))


def _nothing(shape: Sequence[int], sparse_dim: int, like: Tensor) -> SparseTensor:
    """Return coordinates without values."""
    shape = as_shape(shape)
    places = filled_of(TensorMeta.of((sparse_dim, 0), int64, like.device))
    values = filled_of(TensorMeta.of((0, *shape[sparse_dim:]), like.dtype, like.device))
    return sparse(Pattern(sparse_coo, (places,), shape), values)


@rule("zeros_like", "empty_like")
def _zeros_like(x: SparseTensor, *, dtype: DTypeLike | None = None,
                device: DeviceLike | None = None, layout: Layout | None = None,
                requires_grad: bool = False, memory_format: object = None) -> Any:  # fmt: skip
    values = x._data.detach()
    if dtype is not None or device is not None:
        values = values.to(dtype=dtype, device=device)
    p = x._pattern
    zeros: Any = _nothing(p.shape, p.sparse_dim, values)
    if layout is strided:
        zeros = to_dense(zeros)
    elif not p.is_coo:
        zeros = converted(zeros, layout or p.layout, p.block, batch=len(p.batch))
    return zeros.requires_grad_() if requires_grad else zeros


def _random_like(function: Callable[..., Tensor]) -> Rule:
    def each(
        x: SparseTensor, *args: object, requires_grad: bool = False, **options: object
    ) -> Tensor:
        for option in ("layout", "memory_format"):
            options.pop(option, None)
        values = function(x._data.detach(), *args, **options)
        out = _moved(x, values)
        return out.requires_grad_() if requires_grad else out

    return each


for _function in (rand_like, randn_like, randint_like):
    RULES[_function.__name__] = _random_like(_function)


@rule("broadcast_to")
def _broadcast_to(x: SparseTensor, size: Sequence[int]) -> SparseTensor:
    return broadcast(x, size)


@rule("copy_")
def _copy_in_place(x: Tensor, src: SparseTensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(x, SparseTensor):
        return x.copy_(to_dense(src))
    if not isinstance(src, SparseTensor) or src.layout is not x.layout or src.shape != x.shape:
        raise ArgumentError(
            f"copy_: a sparse tensor takes one of its layout {x.layout!r} and shape "
            f"{tuple(x.shape)}"
        )
    return changed(x, src.to(x.dtype).to(x.device).clone())


# --- layouts --------------------------------------------------------------------------------------


@rule("to_dense")
def _to_dense(
    x: SparseTensor, dtype: DTypeLike | None = None, *, masked_grad: object = None
) -> Tensor:
    out: Tensor = to_dense(x)
    return out if dtype is None else out.to(dtype)


@rule("coalesce")
def _coalesce(x: SparseTensor) -> SparseTensor:
    return coalesced(x)


@rule("to_sparse")
def _to_sparse(
    x: SparseTensor, sparse_dim: int | Layout | None = None, *, layout: Layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:  # fmt: skip
    if isinstance(sparse_dim, Layout):
        layout, sparse_dim = sparse_dim, None
    if sparse_dim not in (None, x._pattern.sparse_dim):
        raise ArgumentError(
            f"to_sparse: this tensor has {x._pattern.sparse_dim} sparse dimensions, not "
            f"{sparse_dim}; go by to_dense()"
        )
    return converted(x, layout or sparse_coo, blocksize)


def _layout_rule(name: str, layout: Layout) -> Rule:
    if layout in COMPRESSED and COMPRESSED[layout].blocks:
        return lambda x, blocksize, dense_dim=None: converted(x, layout, blocksize, name)
    return lambda x, dense_dim=None: converted(x, layout, None, name)


for _layout in LAYOUTS.values():
    _name = f"to_{_layout.name}"
    RULES[_name] = _layout_rule(_name, _layout)


def _laid_as(x: SparseTensor, p: Pattern) -> SparseTensor:
    """Return coordinates in a pattern's layout, with blocks of its size and as much of a batch."""
    return converted(x, p.layout, p.block, batch=len(p.batch))


@rule("sparse_mask")
def sparse_mask(x: Tensor, mask: object) -> SparseTensor:
    """Return the values of a tensor at the places of a sparse one."""
    if not isinstance(mask, SparseTensor):
        raise ArgumentTypeError(
            f"sparse_mask: a sparse tensor is needed for mask, got {type(mask).__name__}"
        )
    if mask.shape != x.shape:
        raise ShapeError(
            f"sparse_mask: operands have incompatible sizes, {tuple(x.shape)} and "
            f"{tuple(mask.shape)}"
        )
    return sparse(mask._pattern, _at(x, mask._pattern))


def _at(x: Tensor, p: Pattern) -> Tensor:
    """Return the values of a tensor, dense or sparse, at the places of a pattern."""
    if isinstance(x, SparseTensor):
        if x._pattern is p:
            return x._data
        x = coalesced(to_coo(x))
        own, keys = x._pattern.linear(), p.linear()
        values = looked_up(own, x._data, keys)
    else:
        flat = reshape(x, (math.prod(p.sparse_shape), *p.dense_shape))
        values = index_select(flat, 0, p.linear())
    if p.block is not None or p.batch:
        values = reshape(values, (*p.batch, p.entries, *(p.block or ()), *p.dense_shape))
    return values


@rule("sparse_resize_")
def _resize_in_place(
    x: SparseTensor, size: Sequence[int], sparse_dim: int, dense_dim: int
) -> SparseTensor:
    p, shape = x._pattern, as_shape(size)
    if not p.is_coo or len(shape) != sparse_dim + dense_dim:
        raise ArgumentError(
            f"sparse_resize_: coordinates of {sparse_dim} + {dense_dim} dimensions are resized, "
            f"got size {tuple(shape)} and layout {p.layout!r}"
        )
    same = sparse_dim == p.sparse_dim and tuple(shape[sparse_dim:]) == p.dense_shape
    if p.entries and (not same or any(n < o for n, o in zip(shape, p.shape, strict=True))):
        raise ArgumentError(
            f"sparse_resize_: a tensor with values may only grow along its {p.sparse_dim} sparse "
            f"dimensions, {tuple(p.shape)} to {tuple(shape)}; use sparse_resize_and_clear_"
        )
    if not p.entries:
        return changed(x, _nothing(shape, sparse_dim, x))
    return changed(x, sparse(Pattern(p.layout, p.parts, shape, p.coalesced), x._data))


@rule("sparse_resize_and_clear_")
def _resize_and_clear(
    x: SparseTensor, size: Sequence[int], sparse_dim: int, dense_dim: int
) -> SparseTensor:
    shape = as_shape(size)
    if len(shape) != sparse_dim + dense_dim:
        raise ArgumentError(
            f"sparse_resize_and_clear_: {sparse_dim} + {dense_dim} dimensions of size "
            f"{tuple(shape)}"
        )
    return changed(x, _nothing(shape, sparse_dim, x))


# --- products -------------------------------------------------------------------------------------


def product(x: SparseTensor, dense: Tensor) -> Tensor:
    """Return the product of the matrix of `rows` with a dense one."""
    p = x._pattern
    rows = p.rows()
    values = flat_values(x)
    if rows.order is not None:
        values = index_select(values, 0, rows.order)
    if dense._node is not None or p.knows("turned"):
        result: Tensor = row_product_kept(values, rows.bounds, rows.col, dense, *p.turned())
        return result
    out: Tensor = row_product(values, rows.bounds, rows.col, dense)
    return out


def _check_matrix(name: str, x: Tensor, ndim: int = 2) -> None:
    if isinstance(x, SparseTensor) and (x._pattern.dense_shape or x._pattern.sparse_dim != ndim):
        raise ShapeError(
            f"{name}: a sparse factor has {ndim} sparse dimensions and no dense ones, got "
            f"{x._pattern.sparse_dim} and {len(x._pattern.dense_shape)}"
        )


@rule("mm", "smm", "spmm", "hspmm")
def mm(input: Tensor, mat2: Any = None, *, other: Any = None, reduce: str = "sum") -> Any:
    """Return the product of two matrices, one or both sparse."""
    mat2 = other if mat2 is None else mat2
    if reduce not in ("sum", "mean", "amax", "amin", "prod"):
        raise ArgumentError(f"mm: reduce is sum, mean, amax, amin or prod, got {reduce!r}")
    if reduce != "sum" and (isinstance(mat2, SparseTensor) or not isinstance(input, SparseTensor)):
        raise ArgumentTypeError(f"mm: reduce={reduce!r} is for a sparse matrix with a dense one")
    for x in (input, mat2):
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"mm: factors are Tensors, got {type(x).__name__}")
        _check_matrix("mm", x)
    if input.ndim != 2 or mat2.ndim != 2 or input.shape[1] != mat2.shape[0]:
        raise ShapeError(
            f"mm: matrices of shapes {tuple(input.shape)} and {tuple(mat2.shape)} cannot be "
            f"multiplied"
        )
    if not isinstance(input, SparseTensor):
        return product(_transposed(mat2, 0, 1), input.t()).t()
    if isinstance(mat2, SparseTensor):
        return _sparse_product(input, mat2)
    if reduce != "sum":
        return _reduced_product(input, mat2, reduce)
    return product(input, mat2)


def _reduced_product(x: SparseTensor, dense: Tensor, reduce: str) -> Any:
    """Return the mean, maximum or minimum of the products of a row's values, 0 of none."""
    x = coalesced(to_coo(x))
    row, col = x._pattern.parts[0]
    terms = x._data.unsqueeze(1) * index_select(dense, 0, col)
    return by_group(reduce, terms, row.contiguous(), x.shape[0])


def _sparse_product(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Return the product of two sparse matrices.  Waits for the number of products of values."""
    layout = sparse_coo if a._pattern.is_coo or b._pattern.is_coo else sparse_csr
    left, right = coalesced(to_coo(a)), coalesced(to_coo(b))
    row, inner = left._pattern.parts[0][0], left._pattern.parts[0][1]
    bounds, col, _ = right._pattern.rows()
    counts: Tensor = index_select(bounds[1:] - bounds[:-1], 0, inner)
    entry: Tensor = repeat_interleave(arange(inner.shape[0], device=a.device), counts)
    first = index_select(bounds, 0, inner) - (counts.cumsum(0) - counts)
    theirs = index_select(first, 0, entry) + arange(entry.shape[0], device=a.device)
    values = index_select(left._data, 0, entry) * index_select(right._data, 0, theirs)
    pair = cat(
        [index_select(row, 0, entry).unsqueeze(0), index_select(col, 0, theirs).unsqueeze(0)]
    )
    shape = (a.shape[0], b.shape[1])
    result = sparse(Pattern(sparse_coo, (pair,), shape, coalesced=False), values)
    return converted(coalesced(result), layout)


@rule("mv")
def _mv(input: SparseTensor, vec: Tensor) -> Tensor:
    if isinstance(vec, SparseTensor) or not isinstance(input, SparseTensor):
        raise ArgumentTypeError("mv: a sparse matrix is multiplied with a dense vector")
    _check_matrix("mv", input)
    if vec.ndim != 1 or vec.shape[0] != input.shape[1]:
        raise ShapeError(f"mv: shapes {tuple(input.shape)} and {tuple(vec.shape)}")
    return product(input, vec.unsqueeze(1)).squeeze(1)


@rule("bmm")
def _bmm(input: Tensor, mat2: Tensor) -> Tensor:
    if isinstance(input, SparseTensor) == isinstance(mat2, SparseTensor):
        raise ArgumentTypeError("bmm: sparse matrices are multiplied with dense ones")
    for x in (input, mat2):
        _check_matrix("bmm", x, 3)
    if input.ndim != 3 or mat2.ndim != 3 or mat2.shape[:2] != (input.shape[0], input.shape[2]):
        raise ShapeError(f"bmm: shapes {tuple(input.shape)} and {tuple(mat2.shape)}")
    out: Tensor = _of_batch(input, mat2)
    return out


def _of_batch(input: Tensor, other: Any) -> Any:
    """Return the product of a batch of sparse matrices with one dense matrix or with as many."""
    if not isinstance(input, SparseTensor):
        turned = _of_batch(_transposed(other, -2, -1), input.transpose(-2, -1))
        return turned.transpose(-2, -1)
    batch, (rows, inner) = tuple(input.shape[:-2]), input.shape[-2:]
    if isinstance(other, SparseTensor) or other.shape[-2] != inner:
        raise ShapeError(
            f"matmul: no product of a sparse tensor for shapes {tuple(input.shape)} and "
            f"{tuple(other.shape)}"
        )
    n = other.shape[-1]
    lines = reshape(other.expand(*batch, inner, n), (math.prod(batch) * inner, n))
    return reshape(product(input, lines), (*batch, rows, n))


@rule("baddbmm")
def _baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: Tensor | complex = 1,
    alpha: Tensor | complex = 1,
) -> Any:
    added = _scaled(_bmm(batch1, batch2), alpha)
    return added if isinstance(beta, (int, float)) and beta == 0 else _scaled(input, beta) + added


@rule("matmul")
def _matmul(input: Tensor, other: SparseTensor) -> Any:
    if input.ndim == 2 and other.ndim == 2:
        return mm(input, other)
    if input.ndim == 2 and other.ndim == 1:
        return _mv(input, other)
    if input.ndim == 3 and other.ndim == 3:
        return _bmm(input, other)
    if isinstance(input, SparseTensor) and input.ndim > 2 and 0 < other.ndim <= input.ndim:
        if other.ndim == 1:
            return _of_batch(input, other.unsqueeze(1)).squeeze(-1)
        return _of_batch(input, other)
    if isinstance(other, SparseTensor) and other.ndim > 2 and 1 < input.ndim <= other.ndim:
        return _of_batch(input, other)
    if input.ndim == 1 and other.ndim == 2:
        return _mv(_transposed(other, 0, 1), input)
    if isinstance(other, SparseTensor) and other.ndim == 2 and input.ndim > 2:
        lines = mm(reshape(input, (-1, input.shape[-1])), other)
        return reshape(lines, (*input.shape[:-1], other.shape[1]))
    raise ShapeError(
        f"matmul: no product of a sparse tensor for shapes {tuple(input.shape)} and "
        f"{tuple(other.shape)}"
    )


@rule("_rmatmul")
def _rmatmul(x: object, other: object) -> object:
    return _matmul(other, x)


def _scaled(x: Tensor, factor: object) -> Any:
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


@rule("addmm", "sspaddmm")
def _addmm(
    input: Tensor,
    mat1: object,
    mat2: object,
    *,
    beta: Tensor | complex = 1,
    alpha: Tensor | complex = 1,
    out: object = None,
) -> Any:
    """Return beta * input + alpha * (mat1 @ mat2)."""
    if out is not None:
        raise ArgumentError("addmm: no out= for sparse tensors")
    added = _scaled(mm(mat1, mat2), alpha)
    return added if isinstance(beta, (int, float)) and beta == 0 else _scaled(input, beta) + added


@rule("addmm_")
def _addmm_in_place(
    x: SparseTensor,
    mat1: object,
    mat2: object,
    *,
    beta: Tensor | complex = 1,
    alpha: Tensor | complex = 1,
) -> object:
    result = _addmm(x, mat1, mat2, beta=beta, alpha=alpha)
    return changed(x, result) if isinstance(x, SparseTensor) else x.copy_(result)


@rule("addmv")
def _addmv(
    input: Tensor,
    mat: object,
    vec: object,
    *,
    beta: Tensor | complex = 1,
    alpha: Tensor | complex = 1,
) -> object:
    added = _scaled(_mv(mat, vec), alpha)
    return added if isinstance(beta, (int, float)) and beta == 0 else _scaled(input, beta) + added


@rule("linear")
def _linear(input: Tensor, weight: Tensor, bias: object = None) -> object:
    out = _matmul(input, weight.t())
    return out if bias is None else out + bias


def sampled_addmm(
    input: SparseTensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: Tensor | complex = 1.0,
    alpha: Tensor | complex = 1.0,
) -> SparseTensor:
    """Return beta * input + alpha * (mat1 @ mat2) at input's places, which are by rows."""
    if not isinstance(input, SparseTensor) or input._pattern.layout is not sparse_csr:
        raise ArgumentTypeError(
            "sampled_addmm: input is a sparse tensor with layout flow.sparse_csr"
        )
    for m in (mat1, mat2):
        if isinstance(m, SparseTensor) or m.ndim != input.ndim:
            raise ShapeError(
                "sampled_addmm: mat1 and mat2 are dense matrices, or batches as input is"
            )
    batch = tuple(input.shape[:-2])
    if (
        mat1.shape[-1] != mat2.shape[-2]
        or (*mat1.shape[:-1], mat2.shape[-1]) != tuple(input.shape)
        or tuple(mat2.shape[:-2]) != batch
    ):
        raise ShapeError(
            f"sampled_addmm: the product of {tuple(mat1.shape)} and {tuple(mat2.shape)} has not "
            f"input's shape {tuple(input.shape)}"
        )
    rows = input._pattern.rows()
    left, right = (
        reshape(m, (math.prod(m.shape[:-1]), m.shape[-1])) for m in (mat1, mat2.transpose(-2, -1))
    )
    result = _scaled(row_samples(rows.bounds, rows.col, left, right), alpha)
    result = reshape(result, (*batch, input._pattern.entries))
    values = result if beta == 0 else _scaled(input._data, beta) + result
    return sparse(input._pattern, values)


# --- element by element ---------------------------------------------------------------------------


def _is_number(value: Tensor) -> bool:
    if isinstance(value, SparseTensor):
        return False
    return not isinstance(value, Tensor) or value.ndim == 0


@rule("mul", "mul_")
def _mul(input: Tensor, other: Tensor) -> Any:
    if _is_number(other):
        return sparse(input._pattern, input._data * other)
    if not isinstance(input, SparseTensor):
        return _mul(other, input)
    if _is_number(input):
        return _mul(other, input)
    if isinstance(other, SparseTensor):
        return _both(input, other)
    if other.ndim > input.ndim or any(
        o not in (1, i) for o, i in zip(other.shape[::-1], input.shape[::-1], strict=False)
    ):
        raise ShapeError(
            f"mul: a dense factor broadcasts to the sparse one's shape {tuple(input.shape)}, got "
            f"{tuple(other.shape)}"
        )
    return sparse(input._pattern, input._data * _at(other.expand(input.shape), input._pattern))


def _both(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Return the product element by element: at the places that both have."""
    if a.shape != b.shape:
        raise ShapeError(
            f"mul: sparse tensors of one shape are multiplied, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    if a._pattern is b._pattern and a._pattern.coalesced:
        return sparse(a._pattern, a._data * b._data)
    left, right = coalesced(to_coo(a)), coalesced(to_coo(b))
    keys: Tensor
    keys, counts = unique(
        cat([left._pattern.linear(), right._pattern.linear()]), return_counts=True
    )
    common = keys[counts == 2]
    places = places_of(common, left._pattern.sparse_shape)
    values = [looked_up(t._pattern.linear(), t._data, common) for t in (left, right)]
    result = sparse(Pattern(sparse_coo, (places,), a.shape), values[0] * values[1])
    return _laid_as(result, a._pattern)


def _dividing(name: str) -> Rule:
    def divide(input: Tensor, other: Tensor, **options: object) -> SparseTensor:
        if not isinstance(input, SparseTensor) or not _is_number(other):
            raise ModeError(
                f"{name}: a sparse tensor is divided by a number or a tensor with 0 dimensions"
            )
        x = coalesced(input) if input._pattern.is_coo and (options or name != "div") else input
        return sparse(x._pattern, _apply(name, x._data, (other,), options))

    return divide


for _name in ("div", "floor_divide", "remainder", "fmod", "true_divide"):
    RULES[_name] = _dividing(_name)


@rule("pow")
def _pow(input: SparseTensor, exponent: object) -> SparseTensor:
    if (
        not isinstance(input, SparseTensor)
        or not isinstance(exponent, (int, float))
        or exponent <= 0
    ):
        raise ModeError("pow: a sparse tensor is raised to the power of a positive number")
    x = coalesced(input) if input._pattern.is_coo else input
    return sparse(x._pattern, x._data**exponent)


@rule("add")
def _add(input: Any, other: Any, *, alpha: Tensor | complex = 1) -> Any:
    if not isinstance(input, Tensor):  # a number + a sparse tensor
        input, other = other, input
    if not isinstance(other, Tensor) or (_is_number(other) and input.ndim):
        raise ModeError(
            "add: a number is not added to a sparse tensor, which would have no zeros left; add it "
            "to x.values() or to x.to_dense()"
        )
    if not isinstance(other, SparseTensor):
        return to_dense(input) + _scaled(other, alpha)
    if not isinstance(input, SparseTensor):
        return _to_dense_added(input, other, alpha)
    if input.shape != other.shape:
        raise ShapeError(
            f"add: sparse tensors of one shape are added, got {tuple(input.shape)} and "
            f"{tuple(other.shape)}"
        )
    layout = input._pattern.layout
    if input._pattern is other._pattern:
        return sparse(input._pattern, input._data + _scaled(other._data, alpha))
    a, b = to_coo(input), to_coo(other)
    dtype = result_type(a._data, b._data)
    values = cat([a._data.to(dtype), _scaled(b._data, alpha).to(dtype)])
    joined = sparse(
        Pattern(sparse_coo, (cat([a._pattern.parts[0], b._pattern.parts[0]], 1),), a.shape, False),
        values,
    )
    if layout is sparse_coo and not (a._pattern.coalesced and b._pattern.coalesced):
        return joined
    return _laid_as(coalesced(joined), input._pattern)


def _to_dense_added(dense: Tensor, x: SparseTensor, alpha: Tensor | complex) -> Tensor:
    if dense.ndim > x.ndim or dense.shape == x.shape:
        base = dense.expand(dense.shape if dense.shape == x.shape else x.shape)
    else:
        base = dense.expand(x.shape)
    p = x._pattern
    dtype = result_type(dense, x._data)
    flat = reshape(base.to(dtype), (math.prod(p.sparse_shape), *p.dense_shape))
    added = _scaled(flat_values(x), alpha).to(dtype)
    return reshape(index_add(flat, 0, p.linear(), added), tuple(x.shape))


@rule("sub", "subtract")
def _sub(input: Tensor, other: Tensor, *, alpha: Tensor | complex = 1) -> object:
    return _add(input, other, alpha=-alpha)


@rule("__rsub__", "rsub")
def _rsub(input: object, other: object) -> object:
    return _add(other, input, alpha=-1)


def _add_in_place(x: Tensor, other: Any, *, alpha: Any = 1) -> Any:
    whole = not isinstance(x, SparseTensor) and isinstance(other, SparseTensor)
    alike = whole and x.shape == other.shape and x.dtype is other.dtype
    if alike and x._meta.contiguous and not (x.requires_grad and grad_enabled()):
        add_to(x, other, alpha)
        return x
    return _into(_add)(x, other, alpha=alpha)


def _into(function: Rule) -> Rule:
    def in_place(x: Tensor, *args: object, **kwargs: object) -> object:
        result = function(x, *args, **kwargs)
        if not isinstance(x, SparseTensor):
            return x.copy_(result)
        if not isinstance(result, SparseTensor):
            raise ModeError("the result is dense and does not go into a sparse tensor")
        return changed(x, result)

    return in_place


RULES["add_"] = _add_in_place
for _name, _function in (("sub_", _sub), ("mul_", _mul), ("pow_", _pow),
                         ("div_", RULES["div"])):  # fmt: skip
    RULES[_name] = _into(_function)


# --- shapes ---------------------------------------------------------------------------------------


def _transposed(x: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    p = x._pattern
    a, b = (wrap_dim("transpose", d, x.ndim) for d in (dim0, dim1))
    if a == b:
        return x
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    front = len(p.batch)
    if front and max(a, b) < front:  # of the batch alone
        parts = [part.transpose(a, b).contiguous() for part in p.parts]
        shape = tuple(p.shape[d] for d in order)
        values = x._data.transpose(a, b).contiguous()
        return sparse(Pattern(p.layout, parts, shape, True, p.block), values)
    if {a, b} != {front, front + 1} or p.sparse_dim != front + 2:
        if front:
            raise ShapeError(
                f"transpose: a batch of matrices turns two dimensions of the batch or the two of "
                f"the matrices, got {dim0} and {dim1} of {front} + 2"
            )
        return _permuted(x, order)
    pattern = p.keep("transposed", lambda: _turned(p))
    if p.block is None:
        return sparse(pattern.like(p.dense_shape), x._data)
    return sparse(pattern, x._data.transpose(front + 1, front + 2).contiguous())


_TURNED = {
    one: next(o for o, w in COMPRESSED.items() if w.axis != words.axis and w.blocks == words.blocks)
    for one, words in COMPRESSED.items()
}


def _turned(p: Pattern) -> Pattern:
    """Return the places of a transposed matrix, with the values in the order that they have."""
    front = len(p.batch)
    rows, columns = p.shape[front : front + 2]
    shape = (*p.batch, columns, rows, *p.shape[front + 2 :])
    if p.is_coo:
        return Pattern(sparse_coo, (p.parts[0].flip(0),), shape, p.coalesced and p.entries < 2)
    block = None if p.block is None else p.block[::-1]
    return Pattern(_TURNED[p.layout], p.parts, shape, True, block)


def _permuted(x: SparseTensor, order: Sequence[int]) -> SparseTensor:
    p = to_coo(x)._pattern
    values = to_coo(x)._data
    count = p.sparse_dim
    if sorted(order[:count]) != list(range(count)):
        raise ShapeError(
            f"permute: sparse and dense dimensions are not exchanged: {tuple(order)} of "
            f"{count} sparse ones"
        )
    if list(order) == list(range(len(order))):
        return x
    shape = tuple(p.shape[d] for d in order)
    places = index_select(p.parts[0], 0, _line(order[:count], x))
    inner = [d - count + 1 for d in order[count:]]
    moved: Any = values.permute(0, *inner) if inner else values
    return sparse(Pattern(sparse_coo, (places,), shape, p.entries < 2 and p.coalesced), moved)


def _line(numbers: Sequence[int], like: Tensor) -> Tensor:
    return cat([arange(n, n + 1, device=like.device) for n in numbers])


@rule("transpose")
def _transpose(x: SparseTensor, dim0: int = 0, dim1: int = 1) -> SparseTensor:
    return _transposed(x, dim0, dim1)


@rule("t")
def _t(x: SparseTensor) -> SparseTensor:
    if x.ndim > 2:
        raise ShapeError(f"t: a matrix is needed, got {x.ndim} dimensions")
    return x if x.ndim < 2 else _transposed(x, 0, 1)


RULES["_matrix_transpose.__get__"] = lambda x: _transposed(x, -2, -1)
RULES["_reversed.__get__"] = _t
for _name in ("adjoint", "adjoint.__get__", "_hermitian.__get__"):
    RULES[_name] = lambda x: _transposed(x.conj() if x.is_complex() else x, -2, -1)
RULES["real.__get__"], RULES["imag.__get__"] = RULES["real"], RULES["imag"]


@rule("permute", "_permute_method")
def _permute(x: SparseTensor, *dims: object) -> SparseTensor:
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    wrapped = wrap_dims("permute", tuple(order), x.ndim)
    if len(wrapped) != x.ndim:
        raise ShapeError(f"permute: {x.ndim} dimensions are needed, got {tuple(order)}")
    return _permuted(x, wrapped)


@rule("unsqueeze")
def _unsqueeze(x: SparseTensor, dim: int) -> SparseTensor:
    x = to_coo(x)
    p = x._pattern
    at = wrap_dim("unsqueeze", dim, x.ndim + 1)
    shape = (*p.shape[:at], 1, *p.shape[at:])
    if at > p.sparse_dim:
        values = x._data.unsqueeze(at - p.sparse_dim + 1)
        return sparse(Pattern(sparse_coo, p.parts, shape, p.coalesced), values)
    zeros = filled_of(TensorMeta.of((1, p.entries), int64, x.device))
    places = cat([p.parts[0][:at], zeros, p.parts[0][at:]])
    return sparse(Pattern(sparse_coo, (places,), shape, p.coalesced), x._data)


def _chosen(x: SparseTensor, mask: object) -> tuple[Tensor, Tensor]:
    """Return the indices and values where `mask` is True."""
    return x._pattern.parts[0][:, mask], x._data[mask]


@rule("select")
def _select(x: SparseTensor, dim: int, index: int) -> Tensor:
    at = wrap_dim("select", dim, x.ndim)
    front, p = len(x._pattern.batch), x._pattern
    if at >= front:
        x = to_coo(x)
        p = x._pattern
    size = p.shape[at]
    if not -size <= index < size:
        raise OutOfRangeError(f"select: index {index} is out of range for dim {at} of size {size}")
    index %= size
    shape = (*p.shape[:at], *p.shape[at + 1 :])
    if at < front:
        parts = [part.select(at, index) for part in p.parts]
        values = x._data.select(at, index)
        return sparse(Pattern(p.layout, parts, shape, True, p.block), values)
    if at >= p.sparse_dim:
        values = x._data.select(at - p.sparse_dim + 1, index)
        return sparse(Pattern(sparse_coo, p.parts, shape, p.coalesced), values)
    line: object = p.parts[0][at]
    places, values = _chosen(x, line == index)
    if p.sparse_dim == 1:
        return values.sum(0)
    other_places = cat([places[:at], places[at + 1 :]])
    return sparse(Pattern(sparse_coo, (other_places,), shape, p.coalesced), values)


@rule("narrow_copy", "narrow")
def narrowed(x: SparseTensor, dim: int, start: int, length: int) -> SparseTensor:
    """Return the part from `start` on, of this length."""
    x = to_coo(x)
    p = x._pattern
    at = wrap_dim("narrow", dim, x.ndim)
    if start < 0:
        start += p.shape[at]
    if length < 0 or start < 0 or start + length > p.shape[at]:
        raise OutOfRangeError(
            f"narrow: {start} to {start + length} is outside of dim {at} of size {p.shape[at]}"
        )
    shape = (*p.shape[:at], length, *p.shape[at + 1 :])
    if at >= p.sparse_dim:
        values = x._data.narrow(at - p.sparse_dim + 1, start, length)
        return sparse(Pattern(sparse_coo, p.parts, shape, p.coalesced), values)
    line: Tensor = p.parts[0][at]
    places, values = _chosen(x, (line >= start) & (line < start + length))
    moved = cat([places[:at], places[at : at + 1] - start, places[at + 1 :]])
    return sparse(Pattern(sparse_coo, (moved,), shape, p.coalesced), values)


@rule("index_select")
def _index_select(x: SparseTensor, dim: int, index: Tensor) -> SparseTensor:
    own = x._pattern
    x = coalesced(to_coo(x))
    p = x._pattern
    at = wrap_dim("index_select", dim, x.ndim)
    shape = (*p.shape[:at], index.shape[0], *p.shape[at + 1 :])
    if at >= p.sparse_dim:
        values = x._data.index_select(at - p.sparse_dim + 1, index)
        return sparse(Pattern(sparse_coo, p.parts, shape, True), values)
    if ((index < 0) | (index >= p.shape[at])).any():
        raise OutOfRangeError(
            f"index_select: an index is outside of dim {at} of size {p.shape[at]}"
        )
    bounds, order = grouped(p.parts[0][at].contiguous(), p.shape[at])
    counts: Tensor = index_select(bounds[1:] - bounds[:-1], 0, index)
    place: Tensor = repeat_interleave(arange(index.shape[0], device=x.device), counts)
    first = index_select(bounds, 0, index) - (counts.cumsum(0) - counts)
    entry = index_select(first, 0, place) + arange(place.shape[0], device=x.device)
    entry = index_select(order, 0, entry)
    places = index_select(p.parts[0], 1, entry)
    places = cat([places[:at], place.unsqueeze(0), places[at + 1 :]])
    pattern = Pattern(sparse_coo, (places,), shape, False)
    return _laid_as(coalesced(sparse(pattern, index_select(x._data, 0, entry))), own)


@rule("getitem")
def _getitem(x: SparseTensor, index: object) -> object:
    steps = index if isinstance(index, tuple) else (index,)
    count = sum(step is not None and step is not Ellipsis for step in steps)
    out, dim = x, 0
    for step in steps:
        if step is None:
            out = _unsqueeze(out, dim)
            dim += 1
        elif step is Ellipsis:
            dim += x.ndim - count
        elif isinstance(step, slice):
            start, stop, by = step.indices(out.shape[dim])
            if by != 1:
                raise ModeError("a slice of a sparse tensor has step 1; use index_select")
            if (start, stop) != (0, out.shape[dim]):
                out = narrowed(out, dim, start, max(0, stop - start))
            dim += 1
        elif isinstance(step, Tensor) and step.ndim == 1 and not step.dtype.is_bool:
            out = _index_select(out, dim, step)
            dim += 1
        elif isinstance(step, Tensor) and step.ndim == 1:
            out = _index_select(out, dim, step.nonzero().squeeze(1))
            dim += 1
        else:
            out = _select(out, dim, operator.index(step))
            if not isinstance(out, SparseTensor):
                return out
    return out


@rule("cat")
def _cat(tensors: Sequence[Any], dim: int = 0, **options: object) -> SparseTensor:
    if not all(isinstance(t, SparseTensor) for t in tensors):
        raise ArgumentTypeError("cat: all are sparse or none is")
    parts = [to_coo(t) for t in tensors]
    first = parts[0]._pattern
    at = wrap_dim("cat", dim, parts[0].ndim)
    for t in parts:
        same = [n for d, n in enumerate(t.shape) if d != at]
        if same != [n for d, n in enumerate(first.shape) if d != at] or (
            t._pattern.sparse_dim != first.sparse_dim
        ):
            raise ShapeError(
                f"cat: shapes {tuple(first.shape)} and {tuple(t.shape)} differ beside dim {at}"
            )
    shape = list(first.shape)
    shape[at] = sum(t.shape[at] for t in parts)
    places, values, before = [], [], 0
    for t in parts:
        line = t._pattern.parts[0]
        if at < first.sparse_dim:
            places.append(cat([line[:at], line[at : at + 1] + before, line[at + 1 :]]))
            values.append(t._data)
        else:
            places.append(line)
            wide = list(t._data.shape)
            inner = at - first.sparse_dim + 1
            sides = []
            for size in (before, shape[at] - before - t.shape[at]):
                wide[inner] = size
                sides.append(filled_of(TensorMeta.of(wide, t.dtype, t.device)))
            values.append(cat([sides[0], t._data, sides[1]], inner))
        before += t.shape[at]
    ordered = at == 0 and all(t._pattern.coalesced for t in parts)
    joined = sparse(Pattern(sparse_coo, (cat(places, 1),), shape, ordered), cat(values))
    return _laid_as(joined, tensors[0]._pattern)


@rule("stack")
def _stack(tensors: Sequence[Any], dim: int = 0, **options: object) -> object:
    at = wrap_dim("stack", dim, tensors[0].ndim + 1)
    return _cat([_unsqueeze(t, at) for t in tensors], at)


# --- reductions -----------------------------------------------------------------------------------


@rule("sum")
def _sum(
    input: SparseTensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Any:
    if dtype is not None:
        input = input.to(dtype)
    if dim is None or dim == () or dim == []:
        total = flat_values(input).sum()
        return reshape(total, (1,) * input.ndim) if keepdim else total
    layout = input._pattern.layout
    dims = wrap_dims("sum", dim, input.ndim)
    if layout is sparse_csr and keepdim and input.ndim == 2:
        return reduced("sum", input, dims, True)
    x = to_coo(input)
    p = x._pattern
    inner = tuple(d - p.sparse_dim + 1 for d in dims if d >= p.sparse_dim)
    values: Any = x._data.sum(inner) if inner else x._data
    other_dims = [d for d in range(p.sparse_dim) if d not in dims]
    shape = tuple(n for d, n in enumerate(p.shape) if d not in dims)
    if not other_dims:
        total = values.sum(0)
        if not keepdim:
            return total
        return reshape(total, tuple(1 if d in dims else n for d, n in enumerate(p.shape)))
    gone = len(other_dims) < p.sparse_dim
    places = index_select(p.parts[0], 0, _line(other_dims, x)) if gone else p.parts[0]
    out = coalesced(sparse(Pattern(sparse_coo, (places,), shape, not gone and p.coalesced), values))
    if keepdim:
        for d in sorted(dims):
            out = _unsqueeze(out, d)
        if layout is not sparse_coo and out._pattern.sparse_dim == 2:
            out = converted(out, sparse_csr)
    return out


@rule("any")
def _any(input: SparseTensor) -> Tensor:
    return input._data.any()


@rule("norm", "native_norm")
def _norm(
    input: SparseTensor,
    p: Any = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
) -> object:
    if dim not in (None, (), []):
        raise ModeError("norm: of a sparse tensor only over all dimensions")
    x = coalesced(input) if input._pattern.is_coo else input
    return flat_values(x).norm(2 if p is None or p == "fro" else p)


def _softmax_of(
    input: SparseTensor, dim: int, dtype: DTypeLike | None, logarithm: bool
) -> SparseTensor:
    x = coalesced(to_coo(input))
    if dtype is not None:
        x = x.to(dtype)
    if not x.dtype.inexact:
        raise ModeError(f"softmax: floats are needed, got {x.dtype.name}")
    p, values = x._pattern, x._data
    at = wrap_dim("softmax", dim, x.ndim)
    if at >= p.sparse_dim:
        name = "log_softmax" if logarithm else "softmax"
        return sparse(p, getattr(values, name)(at - p.sparse_dim + 1))
    if p.sparse_dim == 1:
        group: object = filled_of(TensorMeta.of((p.entries,), int64, x.device))
        count = 1
    else:
        other_dims = [d for d in range(p.sparse_dim) if d != at]
        sizes = [p.shape[d] for d in other_dims]
        group = linear_of(index_select(p.parts[0], 0, _line(other_dims, x)), sizes)
        count = math.prod(sizes)
        if count > 4 * p.entries:  # few of the rows have values
            keys, group = unique(group, return_inverse=True)
            count = keys.shape[0]
    rows = TensorMeta.of((count, *p.dense_shape), x.dtype, x.device)
    top = index_reduce(filled_of(rows, -math.inf), 0, group, values.detach(), "amax")
    moved = values - index_select(top, 0, group)
    whole = index_add(filled_of(rows), 0, group, moved.exp())
    if logarithm:
        out = moved - index_select(whole, 0, group).log()
    else:
        out = moved.exp() / index_select(whole, 0, group)
    return _laid_as(sparse(p, out), input._pattern)


@rule("softmax")
def softmax(
    input: SparseTensor, dim: int, dtype: DTypeLike | None = None, *args: object, **kwargs: object
) -> SparseTensor:
    """Return the softmax over a dimension of the values that are stored."""
    return _softmax_of(input, dim, dtype, logarithm=False)


@rule("log_softmax")
def log_softmax(
    input: SparseTensor, dim: int, dtype: DTypeLike | None = None, *args: object, **kwargs: object
) -> SparseTensor:
    """Return the logarithm of the softmax over a dimension of the values that are stored."""
    return _softmax_of(input, dim, dtype, logarithm=True)


# --- values to Python, and gradients --------------------------------------------------------------


def _refuse(name: str) -> Rule:
    def refuse(x: object, *args: object, **kwargs: object) -> object:
        raise ArgumentTypeError(
            f"{name}: a sparse tensor cannot become an array; use to_dense() first"
        )

    return refuse


for _name in ("numpy", "_array", "tolist", "_dlpack", "from_dlpack"):
    RULES[_name] = _refuse(_name.strip("_"))


@rule("item", "_float", "_int", "_bool")
def _item(x: SparseTensor) -> object:
    if x.numel() != 1:
        raise ArgumentError(f"item: a tensor with {x.numel()} elements cannot become one number")
    return to_dense(x).item()


@rule("equal")
def _equal(input: SparseTensor, other: SparseTensor) -> bool:
    both = isinstance(input, SparseTensor) and isinstance(other, SparseTensor)
    if not both or input.shape != other.shape or input.layout is not other.layout:
        return False
    a, b = coalesced(to_coo(input)), coalesced(to_coo(other))
    same = a._pattern.parts[0].equal(b._pattern.parts[0])
    return bool(same and a._data.equal(b._data))


def _value_of(x: object) -> object:
    return x._data if isinstance(x, SparseTensor) else x


def _gradient_of(x: object, g: Any) -> Any:
    """Return the gradient of a tensor as that of its values."""
    if isinstance(x, SparseTensor) and g is not None:
        return _at(g, x._pattern)
    return to_dense(g) if isinstance(g, SparseTensor) else g


def _listed(x: Any) -> list[Any]:
    return [x] if isinstance(x, Tensor) or x is None else list(x)


def _backward(
    func: Any, tensors: Any, gradient: object = None, retain_graph: object = None,
    create_graph: bool = False, inputs: object = None, **names: Any,
) -> None:  # fmt: skip
    """`backward`, a function or a method: of the values, from the values."""
    cotangents = names.pop("grad_tensors", gradient)
    targets = None if inputs is None else [_value_of(x) for x in _listed(inputs)]
    options = (retain_graph, create_graph, targets)
    if isinstance(tensors, SparseTensor):
        func(tensors._data, _gradient_of(tensors, cotangents), *options, **names)
        return
    if isinstance(tensors, Tensor):
        func(tensors, cotangents, *options, **names)
        return
    outs = list(tensors)
    grads = [None] * len(outs) if cotangents is None else _listed(cotangents)
    pairs = zip(outs, grads, strict=True)
    starts = None if cotangents is None else [_gradient_of(x, g) for x, g in pairs]
    func([_value_of(x) for x in outs], starts, *options, **names)


def _grad(
    func: Any, outputs: object, inputs: object, grad_outputs: Any = None, *args: Any, **names: Any
) -> tuple[SparseTensor | Any, ...]:
    """`autograd.grad` of the values by the values; a gradient by a sparse tensor is sparse."""
    outs, targets = _listed(outputs), _listed(inputs)
    cotangents = [None] * len(outs) if grad_outputs is None else _listed(grad_outputs)
    starts = [_gradient_of(x, g) for x, g in zip(outs, cotangents, strict=True)]
    sources, leaves = [_value_of(x) for x in outs], [_value_of(x) for x in targets]
    gradients = func(sources, leaves, None if grad_outputs is None else starts, *args, **names)
    return tuple(
        sparse(x._pattern, g) if isinstance(x, SparseTensor) and g is not None else g
        for x, g in zip(targets, gradients, strict=True)
    )


OF_THE_FUNCTION.update({"_tensor_backward": _backward, "backward": _backward, "grad": _grad})


def enter() -> None:
    """Do nothing: the import of this module has entered its rules."""
