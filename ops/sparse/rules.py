"""The rules of functions that take sparse tensors, entered into `flowvm.ops.sparse.table`.

A rule takes what the function takes.  Functions that leave zeros zero work on the values; products
go to `flowvm.ops.sparse.products`; all else is made of dense ops on indices and values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

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
from flowvm.ops.places.search import searchsorted
from flowvm.ops.places.unique import unique
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.ranges import arange
from flowvm.ops.shapes.views import reshape
from flowvm.ops.sparse.conversion import coalesced, converted, flat_values, to_coo, to_dense
from flowvm.ops.sparse.pattern import COMPRESSED, Pattern, linear_of, places_of
from flowvm.ops.sparse.products import grouped, row_product, row_product_kept, row_samples
from flowvm.ops.sparse.table import OF_THE_FUNCTION, RULES, Rule
from flowvm.ops.sparse.tensor import LAYOUTS, SparseTensor, sparse

# f(0) is 0; the second ones are sums of what they do to each summand
_ZERO_PRESERVING: Final = (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor",
    "frac", "isinf", "isnan", "isneginf", "isposinf", "log1p", "nan_to_num", "rad2deg", "relu",
    "round", "sgn", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
)  # fmt: skip
_LINEAR: Final = ("conj", "conj_physical", "neg", "positive", "real", "imag", "resolve_conj")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter the decorated function into the table, under its name or these."""

    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return enter


def _apply(name: str, values: Any, args: Any, kwargs: Any) -> Any:
    return getattr(values, name)(*args, **kwargs)


def _of_values(name: str, linear: bool) -> Rule:
    def each(x: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        if not linear and x._pattern.is_coo:
            x = coalesced(x)
        return sparse(x._pattern, _apply(name, x._data, args, kwargs))

    return each


def _in_place(name: str, linear: bool) -> Rule:
    def each(x: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
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
def _clone(x: SparseTensor, *, memory_format: Any = None) -> SparseTensor:
    return sparse(x._pattern, x._data.clone())


@rule("detach", "alias", "_data.__get__")
def _detach(x: SparseTensor) -> SparseTensor:
    return sparse(x._pattern, x._data.detach())


@rule("detach_")
def _detach_in_place(x: SparseTensor) -> SparseTensor:
    x._data = x._data.detach()
    return x


@rule("contiguous", "pin_memory", "share_memory_")
def _itself(x: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
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
def _zeros_like(x: SparseTensor, *, dtype: Any = None, device: Any = None, layout: Any = None,
                requires_grad: bool = False, memory_format: Any = None) -> Any:  # fmt: skip
    values = x._data.detach()
    if dtype is not None or device is not None:
        values = values.to(dtype=dtype, device=device)
    p = x._pattern
    zeros: Any = _nothing(p.shape, p.sparse_dim, values)
    if layout is strided:
        zeros = to_dense(zeros)
    elif not p.is_coo:
        zeros = converted(zeros, layout or p.layout, p.block)
    return zeros.requires_grad_() if requires_grad else zeros


@rule("copy_")
def _copy_in_place(x: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    if not isinstance(x, SparseTensor):
        return x.copy_(to_dense(src))  # type: ignore[no-any-return]
    if not isinstance(src, SparseTensor) or src.layout is not x.layout or src.shape != x.shape:
        raise ArgumentError(
            f"copy_: a sparse tensor takes one of its layout {x.layout!r} and shape "
            f"{tuple(x.shape)}"
        )
    return changed(x, src.to(x.dtype).to(x.device).clone())


# --- layouts --------------------------------------------------------------------------------------


@rule("to_dense")
def _to_dense(x: SparseTensor, dtype: Any = None, *, masked_grad: Any = None) -> Any:
    out: Any = to_dense(x)
    return out if dtype is None else out.to(dtype)


@rule("coalesce")
def _coalesce(x: SparseTensor) -> SparseTensor:
    return coalesced(x)


@rule("to_sparse")
def _to_sparse(
    x: SparseTensor, sparse_dim: Any = None, *, layout: Any = None, blocksize: Any = None,
    dense_dim: Any = None,
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


@rule("sparse_mask")
def sparse_mask(x: Any, mask: Any) -> SparseTensor:
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


def _at(x: Any, p: Pattern) -> Tensor:
    """Return the values of a tensor, dense or sparse, at the places of a pattern."""
    if isinstance(x, SparseTensor):
        if x._pattern is p:
            return x._data
        x = coalesced(to_coo(x))
        own, wanted = x._pattern.linear(), p.linear()
        values = _looked_up(own, x._data, wanted)
    else:
        flat = reshape(x, (math.prod(p.sparse_shape), *p.dense_shape))
        values = index_select(flat, 0, p.linear())
    if p.block is not None:
        values = reshape(values, (p.entries, *p.block, *p.dense_shape))
    return values


def _looked_up(keys: Any, values: Any, wanted: Any) -> Tensor:
    """Return the value of each wanted key, zero where it is not among the sorted keys."""
    count = keys.shape[0]
    if not count:
        return filled_of(TensorMeta.of((wanted.shape[0], *values.shape[1:]), values.dtype))
    at = searchsorted(keys, wanted).clamp(max=count - 1)
    present = index_select(keys, 0, at) == wanted
    present = reshape(present, (-1, *[1] * (values.ndim - 1)))
    return index_select(values, 0, at).masked_fill(~present, 0)  # type: ignore[no-any-return]


@rule("sparse_resize_")
def _resize_in_place(x: SparseTensor, size: Any, sparse_dim: int, dense_dim: int) -> SparseTensor:
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
def _resize_and_clear(x: SparseTensor, size: Any, sparse_dim: int, dense_dim: int) -> SparseTensor:
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
        kept: Tensor = row_product_kept(values, rows.bounds, rows.col, dense, *p.turned())
        return kept
    out: Tensor = row_product(values, rows.bounds, rows.col, dense)
    return out


def _check_matrix(name: str, x: Any, ndim: int = 2) -> None:
    if isinstance(x, SparseTensor) and (x._pattern.dense_shape or x._pattern.sparse_dim != ndim):
        raise ShapeError(
            f"{name}: a sparse factor has {ndim} sparse dimensions and no dense ones, got "
            f"{x._pattern.sparse_dim} and {len(x._pattern.dense_shape)}"
        )


@rule("mm", "smm", "spmm", "hspmm")
def mm(input: Any, mat2: Any = None, *, other: Any = None, reduce: str = "sum") -> Any:
    """Return the product of two matrices, one or both sparse."""
    mat2 = other if mat2 is None else mat2
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
    return product(input, mat2)


def _sparse_product(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Return the product of two sparse matrices.  Waits for the number of products of values."""
    layout = sparse_coo if a._pattern.is_coo or b._pattern.is_coo else sparse_csr
    left, right = coalesced(to_coo(a)), coalesced(to_coo(b))
    row, inner = left._pattern.parts[0][0], left._pattern.parts[0][1]
    bounds, col, _ = right._pattern.rows()
    counts: Any = index_select(bounds[1:] - bounds[:-1], 0, inner)
    entry: Any = repeat_interleave(arange(inner.shape[0], device=a.device), counts)
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
def _mv(input: Any, vec: Any) -> Any:
    if isinstance(vec, SparseTensor) or not isinstance(input, SparseTensor):
        raise ArgumentTypeError("mv: a sparse matrix is multiplied with a dense vector")
    _check_matrix("mv", input)
    if vec.ndim != 1 or vec.shape[0] != input.shape[1]:
        raise ShapeError(f"mv: shapes {tuple(input.shape)} and {tuple(vec.shape)}")
    return product(input, vec.unsqueeze(1)).squeeze(1)


@rule("bmm")
def _bmm(input: Any, mat2: Any) -> Any:
    if not isinstance(input, SparseTensor) or isinstance(mat2, SparseTensor):
        raise ArgumentTypeError("bmm: sparse matrices are multiplied with dense ones")
    _check_matrix("bmm", input, 3)
    if mat2.ndim != 3 or mat2.shape[:2] != (input.shape[0], input.shape[2]):
        raise ShapeError(f"bmm: shapes {tuple(input.shape)} and {tuple(mat2.shape)}")
    count, n = input.shape[0], mat2.shape[2]
    out = product(input, reshape(mat2, (count * mat2.shape[1], n)))
    return reshape(out, (count, input.shape[1], n))


@rule("matmul")
def _matmul(input: Any, other: Any) -> Any:
    if input.ndim == 2 and other.ndim == 2:
        return mm(input, other)
    if input.ndim == 2 and other.ndim == 1:
        return _mv(input, other)
    if input.ndim == 3 and other.ndim == 3:
        return _bmm(input, other)
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
def _rmatmul(x: Any, other: Any) -> Any:
    return _matmul(other, x)


def _scaled(x: Any, factor: Any) -> Any:
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


@rule("addmm", "sspaddmm")
def _addmm(
    input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> Any:
    """Return beta * input + alpha * (mat1 @ mat2)."""
    if out is not None:
        raise ArgumentError("addmm: no out= for sparse tensors")
    added = _scaled(mm(mat1, mat2), alpha)
    return added if isinstance(beta, (int, float)) and beta == 0 else _scaled(input, beta) + added


@rule("addmm_")
def _addmm_in_place(x: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    result = _addmm(x, mat1, mat2, beta=beta, alpha=alpha)
    return changed(x, result) if isinstance(x, SparseTensor) else x.copy_(result)


@rule("addmv")
def _addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    added = _scaled(_mv(mat, vec), alpha)
    return added if isinstance(beta, (int, float)) and beta == 0 else _scaled(input, beta) + added


@rule("linear")
def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    out = _matmul(input, weight.t())
    return out if bias is None else out + bias


def sampled_addmm(
    input: SparseTensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1.0, alpha: Any = 1.0
) -> SparseTensor:
    """Return beta * input + alpha * (mat1 @ mat2) at input's places, which are by rows."""
    if not isinstance(input, SparseTensor) or input._pattern.layout is not sparse_csr:
        raise ArgumentTypeError(
            "sampled_addmm: input is a sparse tensor with layout flow.sparse_csr"
        )
    for m in (mat1, mat2):
        if isinstance(m, SparseTensor) or m.ndim != 2:
            raise ShapeError("sampled_addmm: mat1 and mat2 are dense matrices")
    if mat1.shape[1] != mat2.shape[0] or (mat1.shape[0], mat2.shape[1]) != tuple(input.shape):
        raise ShapeError(
            f"sampled_addmm: the product of {tuple(mat1.shape)} and {tuple(mat2.shape)} has not "
            f"input's shape {tuple(input.shape)}"
        )
    rows = input._pattern.rows()
    result = _scaled(row_samples(rows.bounds, rows.col, mat1, mat2.t()), alpha)
    values = result if beta == 0 else _scaled(input._data, beta) + result
    return sparse(input._pattern, values)


# --- element by element ---------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    if isinstance(value, SparseTensor):
        return False
    return not isinstance(value, Tensor) or value.ndim == 0


@rule("mul", "mul_")
def _mul(input: Any, other: Any) -> Any:
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
    layout = a._pattern.layout
    if a._pattern is b._pattern and a._pattern.coalesced:
        return sparse(a._pattern, a._data * b._data)
    left, right = coalesced(to_coo(a)), coalesced(to_coo(b))
    keys: Any
    keys, counts = unique(
        cat([left._pattern.linear(), right._pattern.linear()]), return_counts=True
    )
    common = keys[counts == 2]
    places = places_of(common, left._pattern.sparse_shape)
    values = [_looked_up(t._pattern.linear(), t._data, common) for t in (left, right)]
    result = sparse(Pattern(sparse_coo, (places,), a.shape), values[0] * values[1])
    return converted(result, layout, a._pattern.block)


def _dividing(name: str) -> Rule:
    def divide(input: Any, other: Any, **options: Any) -> Any:
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
def _pow(input: Any, exponent: Any) -> Any:
    if (
        not isinstance(input, SparseTensor)
        or not isinstance(exponent, (int, float))
        or exponent <= 0
    ):
        raise ModeError("pow: a sparse tensor is raised to the power of a positive number")
    x = coalesced(input) if input._pattern.is_coo else input
    return sparse(x._pattern, x._data**exponent)


@rule("add")
def _add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
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
    layout, block = input._pattern.layout, input._pattern.block
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
    return converted(coalesced(joined), layout, block)


def _to_dense_added(dense: Any, x: SparseTensor, alpha: Any) -> Tensor:
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
def _sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return _add(input, other, alpha=-alpha)


@rule("__rsub__", "rsub")
def _rsub(input: Any, other: Any) -> Any:
    return _add(other, input, alpha=-1)


def _into(function: Rule) -> Rule:
    def in_place(x: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(x, *args, **kwargs)
        if not isinstance(x, SparseTensor):
            return x.copy_(result)
        if not isinstance(result, SparseTensor):
            raise ModeError("the result is dense and does not go into a sparse tensor")
        return changed(x, result)

    return in_place


for _name, _function in (("add_", _add), ("sub_", _sub), ("mul_", _mul), ("pow_", _pow),
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
    if {a, b} != {0, 1} or p.sparse_dim != 2:
        return _permuted(x, order)
    pattern = p.keep("transposed", lambda: _turned(p))
    if p.block is None:
        return sparse(pattern.like(p.dense_shape), x._data)
    return sparse(pattern, x._data.transpose(1, 2).contiguous())


_TURNED = {
    one: next(o for o, w in COMPRESSED.items() if w.axis != words.axis and w.blocks == words.blocks)
    for one, words in COMPRESSED.items()
}


def _turned(p: Pattern) -> Pattern:
    """Return the places of a transposed matrix, with the values in the order that they have."""
    shape = (p.shape[1], p.shape[0], *p.shape[2:])
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
    from_python: Any = cat([arange(n, n + 1, device=like.device) for n in numbers])
    return from_python  # type: ignore[no-any-return]


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
def _permute(x: SparseTensor, *dims: Any) -> SparseTensor:
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


def _chosen(x: SparseTensor, mask: Any) -> tuple[Any, Any]:
    """Return the indices and values where `mask` is True."""
    return x._pattern.parts[0][:, mask], x._data[mask]


@rule("select")
def _select(x: SparseTensor, dim: int, index: int) -> Any:
    x = to_coo(x)
    p = x._pattern
    at = wrap_dim("select", dim, x.ndim)
    size = p.shape[at]
    if not -size <= index < size:
        raise OutOfRangeError(f"select: index {index} is out of range for dim {at} of size {size}")
    index %= size
    shape = (*p.shape[:at], *p.shape[at + 1 :])
    if at >= p.sparse_dim:
        values = x._data.select(at - p.sparse_dim + 1, index)
        return sparse(Pattern(sparse_coo, p.parts, shape, p.coalesced), values)
    line: Any = p.parts[0][at]
    places, values = _chosen(x, line == index)
    if p.sparse_dim == 1:
        return values.sum(0)
    kept = cat([places[:at], places[at + 1 :]])
    return sparse(Pattern(sparse_coo, (kept,), shape, p.coalesced), values)


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
    line: Any = p.parts[0][at]
    places, values = _chosen(x, (line >= start) & (line < start + length))
    moved = cat([places[:at], places[at : at + 1] - start, places[at + 1 :]])
    return sparse(Pattern(sparse_coo, (moved,), shape, p.coalesced), values)


@rule("index_select")
def _index_select(x: SparseTensor, dim: int, index: Any) -> SparseTensor:
    layout = x._pattern.layout
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
    counts: Any = index_select(bounds[1:] - bounds[:-1], 0, index)
    place: Any = repeat_interleave(arange(index.shape[0], device=x.device), counts)
    first = index_select(bounds, 0, index) - (counts.cumsum(0) - counts)
    entry = index_select(first, 0, place) + arange(place.shape[0], device=x.device)
    entry = index_select(order, 0, entry)
    places = index_select(p.parts[0], 1, entry)
    places = cat([places[:at], place.unsqueeze(0), places[at + 1 :]])
    pattern = Pattern(sparse_coo, (places,), shape, False)
    return converted(
        coalesced(sparse(pattern, index_select(x._data, 0, entry))), layout, x._pattern.block
    )


@rule("getitem")
def _getitem(x: SparseTensor, index: Any) -> Any:
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
def _cat(tensors: Sequence[Any], dim: int = 0, **options: Any) -> Any:
    if not all(isinstance(t, SparseTensor) for t in tensors):
        raise ArgumentTypeError("cat: all are sparse or none is")
    layout = tensors[0]._pattern.layout
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
    return converted(joined, layout, tensors[0]._pattern.block)


@rule("stack")
def _stack(tensors: Sequence[Any], dim: int = 0, **options: Any) -> Any:
    at = wrap_dim("stack", dim, tensors[0].ndim + 1)
    return _cat([_unsqueeze(t, at) for t in tensors], at)


# --- reductions -----------------------------------------------------------------------------------


@rule("sum")
def _sum(input: SparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if dtype is not None:
        input = input.to(dtype)
    if dim is None or dim == () or dim == []:
        total = flat_values(input).sum()
        return reshape(total, (1,) * input.ndim) if keepdim else total
    layout = input._pattern.layout
    x = to_coo(input)
    dims = wrap_dims("sum", dim, x.ndim)
    p = x._pattern
    inner = tuple(d - p.sparse_dim + 1 for d in dims if d >= p.sparse_dim)
    values: Any = x._data.sum(inner) if inner else x._data
    kept = [d for d in range(p.sparse_dim) if d not in dims]
    shape = tuple(n for d, n in enumerate(p.shape) if d not in dims)
    if not kept:
        total = values.sum(0)
        if not keepdim:
            return total
        return reshape(total, tuple(1 if d in dims else n for d, n in enumerate(p.shape)))
    gone = len(kept) < p.sparse_dim
    places = index_select(p.parts[0], 0, _line(kept, x)) if gone else p.parts[0]
    out = coalesced(sparse(Pattern(sparse_coo, (places,), shape, not gone and p.coalesced), values))
    if keepdim:
        for d in sorted(dims):
            out = _unsqueeze(out, d)
        if layout is not sparse_coo and out._pattern.sparse_dim == 2:
            out = converted(out, sparse_csr)
    return out


@rule("any")
def _any(input: SparseTensor) -> Any:
    return input._data.any()


@rule("norm", "native_norm")
def _norm(
    input: SparseTensor, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    if dim not in (None, (), []):
        raise ModeError("norm: of a sparse tensor only over all dimensions")
    x = coalesced(input) if input._pattern.is_coo else input
    return flat_values(x).norm(2 if p is None or p == "fro" else p)


def _softmax_of(input: SparseTensor, dim: int, dtype: Any, logarithm: bool) -> SparseTensor:
    layout = input._pattern.layout
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
        group: Any = filled_of(TensorMeta.of((p.entries,), int64, x.device))
        count = 1
    else:
        kept = [d for d in range(p.sparse_dim) if d != at]
        sizes = [p.shape[d] for d in kept]
        group = linear_of(index_select(p.parts[0], 0, _line(kept, x)), sizes)
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
    return converted(sparse(p, out), layout, input._pattern.block)


@rule("softmax")
def softmax(
    input: SparseTensor, dim: int, dtype: Any = None, *args: Any, **kwargs: Any
) -> SparseTensor:
    """Return the softmax over a dimension of the values that are stored."""
    return _softmax_of(input, dim, dtype, logarithm=False)


@rule("log_softmax")
def log_softmax(
    input: SparseTensor, dim: int, dtype: Any = None, *args: Any, **kwargs: Any
) -> SparseTensor:
    """Return the logarithm of the softmax over a dimension of the values that are stored."""
    return _softmax_of(input, dim, dtype, logarithm=True)


# --- values to Python, and gradients --------------------------------------------------------------


def _refuse(name: str) -> Rule:
    def refuse(x: Any, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentTypeError(
            f"{name}: a sparse tensor cannot become an array; use to_dense() first"
        )

    return refuse


for _name in ("numpy", "_array", "tolist", "_dlpack", "from_dlpack"):
    RULES[_name] = _refuse(_name.strip("_"))


@rule("item", "_float", "_int", "_bool")
def _item(x: SparseTensor) -> Any:
    if x.numel() != 1:
        raise ArgumentError(f"item: a tensor with {x.numel()} elements cannot become one number")
    return to_dense(x).item()


@rule("equal")
def _equal(input: Any, other: Any) -> bool:
    both = isinstance(input, SparseTensor) and isinstance(other, SparseTensor)
    if not both or input.shape != other.shape or input.layout is not other.layout:
        return False
    a, b = coalesced(to_coo(input)), coalesced(to_coo(other))
    same = a._pattern.parts[0].equal(b._pattern.parts[0])
    return bool(same and a._data.equal(b._data))


def _value_of(x: Any) -> Any:
    return x._data if isinstance(x, SparseTensor) else x


def _gradient_of(x: Any, g: Any) -> Any:
    """Return the gradient of a tensor as that of its values."""
    if isinstance(x, SparseTensor) and g is not None:
        return _at(g, x._pattern)
    return to_dense(g) if isinstance(g, SparseTensor) else g


def _listed(x: Any) -> list[Any]:
    return [x] if isinstance(x, Tensor) or x is None else list(x)


def _backward(
    func: Any, tensors: Any, gradient: Any = None, retain_graph: Any = None,
    create_graph: bool = False, inputs: Any = None, **names: Any,
) -> None:  # fmt: skip
    """`backward`, a function or a method: of the values, from the values."""
    given = names.pop("grad_tensors", gradient)
    wanted = None if inputs is None else [_value_of(x) for x in _listed(inputs)]
    options = (retain_graph, create_graph, wanted)
    if isinstance(tensors, SparseTensor):
        func(tensors._data, _gradient_of(tensors, given), *options, **names)
        return
    if isinstance(tensors, Tensor):
        func(tensors, given, *options, **names)
        return
    outs = list(tensors)
    grads = [None] * len(outs) if given is None else _listed(given)
    pairs = zip(outs, grads, strict=True)
    starts = None if given is None else [_gradient_of(x, g) for x, g in pairs]
    func([_value_of(x) for x in outs], starts, *options, **names)


def _grad(
    func: Any, outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **names: Any
) -> Any:
    """`autograd.grad` of the values by the values; a gradient by a sparse tensor is sparse."""
    outs, wanted = _listed(outputs), _listed(inputs)
    given = [None] * len(outs) if grad_outputs is None else _listed(grad_outputs)
    starts = [_gradient_of(x, g) for x, g in zip(outs, given, strict=True)]
    sources, leaves = [_value_of(x) for x in outs], [_value_of(x) for x in wanted]
    gradients = func(sources, leaves, None if grad_outputs is None else starts, *args, **names)
    return tuple(
        sparse(x._pattern, g) if isinstance(x, SparseTensor) and g is not None else g
        for x, g in zip(wanted, gradients, strict=True)
    )


OF_THE_FUNCTION.update({"_tensor_backward": _backward, "backward": _backward, "grad": _grad})


def enter() -> None:
    """Do nothing: the import of this module has entered its rules."""
