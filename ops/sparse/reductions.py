"""Reductions of what a sparse tensor stores, and masks: `flow.masked`, `sum` with kept dimensions.

Elements that are not stored take no part.  A mask says which places do: where it is True and
nothing is stored, a zero does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, ModeError, ShapeError
from flowvm.meta.dtype import bool_, iinfo, int64
from flowvm.meta.formats import sparse_coo, sparse_csr, strided
from flowvm.meta.meta import TensorMeta, as_shape
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.places.gather import index_select
from flowvm.ops.places.put import index_reduce
from flowvm.ops.places.repeats import repeat_interleave
from flowvm.ops.places.scatter import index_add
from flowvm.ops.places.search import searchsorted
from flowvm.ops.places.unique import unique
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.ranges import arange
from flowvm.ops.shapes.views import reshape
from flowvm.ops.sparse.conversion import coalesced, converted, from_dense, to_coo
from flowvm.ops.sparse.pattern import Pattern, linear_of, places_of
from flowvm.ops.sparse.tensor import SparseTensor, sparse

if TYPE_CHECKING:
    from flowvm.meta.dtype import DType


def looked_up(keys: Tensor, values: Tensor, targets: Tensor) -> Tensor:
    """Return the value of each wanted key, zero where it is not among the sorted keys."""
    if not keys.shape[0]:
        zeros = filled_of(TensorMeta.of((targets.shape[0], *values.shape[1:]), values.dtype))
        return cat([values, zeros])
    at = searchsorted(keys, targets).clamp(max=keys.shape[0] - 1)
    present = index_select(keys, 0, at) == targets
    present = reshape(present, (-1, *[1] * (values.ndim - 1)))
    return index_select(values, 0, at).masked_fill(~present, 0)


def broadcast(x: SparseTensor, shape: Sequence[int]) -> SparseTensor:
    """Return coordinates with what is stored repeated along dimensions of size 1 and new ones."""
    x, shape = to_coo(x), as_shape(shape)
    p, values = x._pattern, x._data
    new = len(shape) - x.ndim
    pairs = zip(p.shape, shape[max(new, 0) :], strict=True) if new >= 0 else ()
    if new < 0 or any(n not in (1, size) for n, size in pairs):
        raise ShapeError(f"broadcast_to: shape {tuple(p.shape)} does not become {tuple(shape)}")
    lines = [filled_of(TensorMeta.of((1, p.entries), int64, x.device)) for _ in range(new)]
    places = cat([*lines, p.parts[0]]) if new else p.parts[0]
    for d in range(new + p.sparse_dim):
        size = shape[d]
        if d >= new and p.shape[d - new] == size:
            continue
        count = places.shape[1]
        entry = repeat_interleave(arange(count, device=x.device), size)
        places, values = index_select(places, 1, entry), index_select(values, 0, entry)
        line = arange(count * size, device=x.device) % max(size, 1)
        places = cat([places[:d], line.unsqueeze(0), places[d + 1 :]])
    dense = shape[new + p.sparse_dim :]
    if tuple(dense) != p.dense_shape:
        values = values.expand(values.shape[0], *dense)
    return sparse(Pattern(sparse_coo, (places,), shape, False), values)


def selected(x: SparseTensor, mask: Any) -> SparseTensor:
    """Return the elements of coordinates where a mask is True; those not stored are zeros."""
    p = x._pattern
    if mask.layout is strided:
        mask = from_dense(mask.expand(tuple(x.shape)), sparse_coo, sparse_dim=p.sparse_dim)
    elif mask.shape != x.shape:
        mask = broadcast(mask, x.shape)
    mask = coalesced(to_coo(mask))
    m = mask._pattern
    if m.sparse_dim != p.sparse_dim:
        raise ShapeError(
            f"a mask has {m.sparse_dim} sparse dimensions and the tensor {p.sparse_dim}; make the "
            f"mask with to_sparse({p.sparse_dim})"
        )
    chosen = mask._data
    if m.dense_shape:
        whole = reshape(chosen, (chosen.shape[0], -1)).any(1)
    else:
        whole = chosen
    chosen_places = whole.nonzero().squeeze(1)
    keys = index_select(m.linear(), 0, chosen_places)
    values = looked_up(p.linear(), x._data, keys)
    if m.dense_shape:
        values = values.masked_fill(~index_select(chosen, 0, chosen_places), 0)
    places = index_select(m.parts[0], 1, chosen_places)
    return sparse(Pattern(sparse_coo, (places,), x.shape), values)


def _extreme(dtype: DType, name: str) -> Any:
    largest = name == "amin"
    if dtype.is_bool:
        return largest
    if dtype.inexact:
        return math.inf if largest else -math.inf
    return iinfo(dtype).max if largest else iinfo(dtype).min


# a reduction's name -> the number that it has of nothing
_IDENTITY: Final[dict[str, Callable[[Any], Any]]] = {
    "sum": lambda dtype: 0, "mean": lambda dtype: math.nan, "prod": lambda dtype: 1,
    "amax": lambda dtype: _extreme(dtype, "amax"), "amin": lambda dtype: _extreme(dtype, "amin"),
}  # fmt: skip


def folded(name: str, values: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Return the reduction `name` of dense values over some dimensions; of none its identity."""
    for d in sorted(dims, reverse=True):
        if values.shape[d]:
            values = getattr(values, name)(d, keepdim)
        else:
            shape = list(values.shape)
            shape[d : d + 1] = [1] if keepdim else []
            other = _IDENTITY[name](values.dtype)
            values = filled_of(TensorMeta.of(shape, values.dtype, values.device), other)
    return values


def by_group(name: str, values: Tensor, group: Tensor, count: int) -> Tensor:
    """Return the reduction `name` of the values of each of `count` groups; of none 0."""
    rows = TensorMeta.of((count, *values.shape[1:]), values.dtype, values.device)
    if name in ("sum", "mean"):
        total = index_add(filled_of(rows), 0, group, values)
        if name == "sum":
            return total
        ones = filled_of(TensorMeta.of((values.shape[0],), values.dtype, values.device), 1)
        flat = TensorMeta.of((count,), values.dtype, values.device)
        often = index_add(filled_of(flat), 0, group, ones).clamp(min=1)
        return total / reshape(often, (-1, *[1] * (values.ndim - 1)))
    return index_reduce(filled_of(rows), 0, group, values, name, include_self=False)


def reduced(
    name: str, x: SparseTensor, dims: Sequence[int], keepdim: bool, mask: Tensor | None = None
) -> SparseTensor:
    """Return the reduction of what is stored, where a mask is True, in the layout of `x`.

    name   "sum", "prod", "amax", "amin" or "mean"
    dims   the dimensions, each from 0 on
    """
    layout, ndim = x._pattern.layout, x.ndim
    if layout not in (sparse_coo, sparse_csr):
        raise ModeError(f"{name}: of coordinates or CSR, got {layout!r}; convert with to_sparse()")
    if layout is sparse_csr and (not keepdim or ndim != 2):
        raise ModeError(f"{name}: of CSR matrices with keepdim=True; convert with to_sparse()")
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype is not bool_):
        raise ArgumentTypeError(f"{name}: a mask is a bool tensor")
    x = coalesced(to_coo(x))
    if mask is not None:
        x = selected(x, mask)
    p, values = x._pattern, x._data
    inner = [d - p.sparse_dim + 1 for d in dims if d >= p.sparse_dim]
    values = folded(name, values, inner, keepdim)
    other_dims = [d for d in range(p.sparse_dim) if d not in dims]
    sizes = [1 if d in dims else n for d, n in enumerate(p.shape)]
    shape = sizes if keepdim else [n for d, n in enumerate(p.shape) if d not in dims]
    if not other_dims:
        out = folded(name, values, [0], False)
        if layout is sparse_csr:
            places = filled_of(TensorMeta.of((2, min(1, p.entries)), int64, x.device))
            one = reshape(out, (1,))[: places.shape[1]]
            return converted(sparse(Pattern(sparse_coo, (places,), shape), one), sparse_csr)
        whole: Any = from_dense(reshape(out, shape), sparse_coo)
        return whole  # type: ignore[no-any-return]
    narrow = [p.shape[d] for d in other_dims]
    keys, group = unique(linear_of(cat([p.parts[0][d : d + 1] for d in other_dims]), narrow),
                         return_inverse=True)  # fmt: skip
    values = by_group(name, values, group, keys.shape[0])
    places = places_of(keys, narrow)
    if keepdim:
        zeros = filled_of(TensorMeta.of((1, keys.shape[0]), int64, x.device))
        rows = dict(zip(other_dims, range(len(other_dims)), strict=True))
        places = cat(
            [places[rows[d] : rows[d] + 1] if d in rows else zeros for d in range(p.sparse_dim)]
        )
    result = sparse(Pattern(sparse_coo, (places,), shape), values)
    return converted(result, layout)
