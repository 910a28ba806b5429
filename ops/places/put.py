"""Elements put at flat places, reduced into slices and segments, and places taken apart: `put`,
`index_reduce`, `segment_reduce`, `unravel_index`, `nonzero_static`; and `renorm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.dtype import int64
from flowvm.meta.meta import as_shape
from flowvm.ops.declare.composite import need_tensor, whole, wrap_dim
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import replaced, with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.places.repeats import repeat_interleave
from flowvm.ops.places.scatter import same_dtype
from flowvm.ops.places.scatter_reduce import scatter_reduce
from flowvm.ops.pointwise.compare import ne, where
from flowvm.ops.shapes.fill import full
from flowvm.ops.shapes.join import stack
from flowvm.ops.shapes.ranges import arange

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array

# public: flow


@method()
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return a copy of `input` with the elements of `source` at the places `index`.

    Places count elements in C order, negative ones from the end.  With `accumulate` elements are
    added.

    >>> flow.put(flow.zeros(2, 2), flow.tensor([3, 0]), flow.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 1.]])
    """
    x: Tensor = need_tensor("put", "input", input)
    places: Tensor = need_tensor("put", "index", index)
    same_dtype("put", x, need_tensor("put", "source", source), "source")
    if places.dtype is not int64:
        raise DTypeError(f"put: index is int64, got {places.dtype.name}")
    if places.numel() != source.numel():
        raise ShapeError(
            f"put: {places.numel()} places and {source.numel()} elements; there are as many"
        )
    flat = x.reshape(-1).index_put((places.reshape(-1),), source.reshape(-1), accumulate)
    out: Tensor = flat.reshape(x.shape)
    return out


replaced(put)


@method()
@with_out
@in_float32
def index_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """A copy of `input` in which the slices of `dim` that `index`, a vector, names are reduced with
    the slices of `source` for them.

    reduce         "prod", "mean", "amax" or "amin"
    include_self   whether what `input` has there takes part

    >>> index, source = flow.tensor([0, 0, 1]), flow.tensor([2.0, 3.0, 4.0])
    >>> flow.index_reduce(flow.ones(2), 0, index, source, "prod")
    tensor([6., 4.])
    """
    x: Tensor = need_tensor("index_reduce", "input", input)
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise ArgumentError(
            f"index_reduce: reduce is 'prod', 'mean', 'amax' or 'amin', not {reduce!r}"
        )
    at = wrap_dim("index_reduce", dim, x.ndim)
    places: Tensor = need_tensor("index_reduce", "index", index)
    theirs: Tensor = need_tensor("index_reduce", "source", source)
    if places.ndim > 1:
        raise ShapeError(f"index_reduce: index is a vector, got shape {tuple(places.shape)}")
    if x.ndim == 0:
        row: Tensor = index_reduce(
            x.reshape(1),
            0,
            places.reshape(-1),
            theirs.reshape(-1),
            reduce,
            include_self=include_self,
        )
        return row.reshape(())
    shape = (*x.shape[:at], places.numel(), *x.shape[at + 1 :])
    if tuple(theirs.shape) != shape:
        raise ShapeError(f"index_reduce: source has shape {tuple(theirs.shape)}, expected {shape}")
    wide = places.reshape([-1 if d == at else 1 for d in range(x.ndim)]).expand(shape)
    return scatter_reduce(x, at, wide, theirs, reduce, include_self=include_self)


replaced(index_reduce)


@method()
@with_out
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` places that are not zero, as rows, and rows of `fill_value` where there are
    fewer: (size, dimensions), int64.  Nothing waits for the values.

    >>> flow.nonzero_static(flow.tensor([0, 1, 2]), size=3)
    tensor([[ 1],
            [ 2],
            [-1]])
    """
    x = need_tensor("nonzero_static", "input", input)
    count = whole("nonzero_static", "size", size)
    if count < 0:
        raise ArgumentError(f"nonzero_static: size is not negative, got {count}")
    device = x._meta.device
    flat: Any = ne(x, 0).reshape(-1)
    nth = flat.cumsum(0) - 1  # of what is not zero; the rest go to a row that nobody sees
    row = where(flat & (nth < count), nth, count)
    indices = full((count + 1,), -1, dtype=int64, device=device)
    indices = indices.scatter(0, row, arange(flat.numel(), device=device))[:count].unsqueeze(-1)
    if not flat.numel() or not x._meta.ndim:  # there are no places, or they have no numbers
        return full((count, x._meta.ndim), fill_value, dtype=int64, device=device)
    places = stack(unravel_index(indices.squeeze(-1), tuple(x.shape)), -1)
    return where(indices < 0, fill_value, places)  # type: ignore[no-any-return]


def unravel_index(indices: Tensor, shape: object) -> tuple[Tensor, ...]:
    """The indices in a tensor of `shape` of elements `indices` in C order: a tensor of int64 for
    each dimension.

    >>> flow.unravel_index(flow.tensor([4, 1]), (2, 3))
    (tensor([1, 0]), tensor([1, 1]))
    """
    flat: Any = need_tensor("unravel_index", "indices", indices)
    if flat.dtype.inexact or flat.dtype.is_bool:
        raise DTypeError(f"unravel_index: indices are integers, got {flat.dtype.name}")
    if isinstance(shape, Tensor):
        shape = shape.tolist()
    if not isinstance(shape, (int, Sequence)):
        raise ArgumentTypeError(f"unravel_index: shape is ints, got {type(shape).__name__}")
    out: list[Any] = []
    flat = flat.to(int64)
    for n in reversed(as_shape(shape)):
        out.append(flat % n)
        flat = flat // n
    return tuple(reversed(out))


_SEGMENT = {"sum": 0.0, "mean": 0.0, "max": float("-inf"), "min": float("inf"), "prod": 1.0}
_SCATTER = {"sum": "sum", "mean": "sum", "max": "amax", "min": "amin", "prod": "prod"}


@in_float32
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Each run of `data` along `axis`, reduced to one.

    reduce    "sum", "mean", "max", "min" or "prod"
    lengths   how long each run is, (*, runs), with the dimensions in front of `axis`
    offsets   instead: where each begins, and where the last ends
    initial   what a run begins with, and an empty one is; else 0, NaN, -inf, inf or 1
    unsafe    the lengths need not be looked at

    >>> data = flow.tensor([1.0, 2.0, 3.0, 4.0])
    >>> flow.segment_reduce(data, "sum", lengths=flow.tensor([1, 3]))
    tensor([1., 9.])
    """
    x: Any = need_tensor("segment_reduce", "data", data)
    if reduce not in _SEGMENT:
        raise ArgumentError(
            f"segment_reduce: reduce is one of {', '.join(_SEGMENT)}, got {reduce!r}"
        )
    if indices is not None or (lengths is None) is (offsets is None):
        raise ArgumentError("segment_reduce takes lengths or offsets, one of them")
    at = wrap_dim("segment_reduce", axis, x.ndim)
    if lengths is None:
        marks: Any = offsets
        lengths = marks[..., 1:] - marks[..., :-1]
    sizes: Any = lengths
    if sizes.ndim != at + 1 or tuple(sizes.shape[:at]) != tuple(x.shape[:at]):
        raise ShapeError(
            f"segment_reduce: lengths have shape {tuple(x.shape[:at])} and the runs, got "
            f"{tuple(sizes.shape)}"
        )
    if not unsafe and (bool((sizes < 0).any()) or bool((sizes.sum(-1) != x.shape[at]).any())):
        raise ArgumentError(
            f"segment_reduce: lengths are not negative and sum to {x.shape[at]} along the axis"
        )
    runs = sizes.shape[-1]
    start = _SEGMENT[reduce] if initial is None else initial
    base = full((*x.shape[:at], runs, *x.shape[at + 1 :]), start, dtype=x.dtype, device=x.device)
    whose = _runs(sizes, runs, x.shape[at])
    wide = whose.reshape((*whose.shape, *(1,) * (x.ndim - at - 1))).expand(x.shape)
    out: Any = scatter_reduce(base, at, wide, x, _SCATTER[reduce])
    if reduce == "mean":
        count = sizes.reshape((*sizes.shape, *(1,) * (x.ndim - at - 1))).to(x.dtype)
        empty = start if initial is not None else float("nan")
        out = (out / count.clamp(min=1)).masked_fill(count == 0, empty)
    return out  # type: ignore[no-any-return]


def _runs(sizes: Any, runs: int, length: int) -> Tensor:
    """The number of the run of each element along the axis."""
    rows = sizes.reshape((-1, runs))
    total = repeat_interleave(arange(rows.numel(), device=sizes.device), rows.reshape(-1))
    return (total % max(runs, 1)).reshape((*sizes.shape[:-1], length))


@method()
@with_out
@in_float32
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """`input` with each slice along `dim` whose norm of order `p` is over `maxnorm` scaled down to
    that.

    >>> flow.renorm(flow.tensor([[3.0, 4.0], [0.0, 1.0]]), 2, 0, 2.5)
    tensor([[1.5000, 2.0000],
            [0.0000, 1.0000]])
    """
    x: Tensor = need_tensor("renorm", "input", input)
    if x.ndim < 2:
        raise ShapeError(f"renorm: input has 2 dimensions or more, got shape {tuple(x.shape)}")
    if p <= 0 or maxnorm < 0:
        raise ArgumentError(
            f"renorm: p is positive and maxnorm not negative, got {p} and {maxnorm}"
        )
    at, x = wrap_dim("renorm", dim, x.ndim), x.contiguous()
    others = [d for d in range(x.ndim) if d != at]
    lengths = x.norm(p, others, True)
    over = lengths > maxnorm
    factor = (maxnorm / (lengths + 1e-7)).masked_fill(~over, 1)
    out: Tensor = x * factor
    return out


replaced(renorm)


samples(
    put,
    lambda rng: [
        Sample((rng.standard_normal((2, 3)), np.array([[4, -6]]), rng.standard_normal((1, 2)))),
        Sample((rng.standard_normal(4), np.array([1, 1]), rng.standard_normal(2), True)),
    ],
    lambda x, i, s, add=False: _numpy_put(x, i, s, add),
    errors=(
        (lambda flow: flow.put(flow.ones(2), flow.tensor([0, 1]), flow.ones(1)), RuntimeError),
        (lambda flow: flow.put(flow.ones(2), flow.ones(1), flow.ones(1)), RuntimeError),
    ),
)


def _numpy_put(x: Array, index: Array, source: Array, add: bool) -> Any:
    out = x.copy()
    if add:
        np.add.at(out.reshape(-1), index.reshape(-1), source.reshape(-1))
    else:
        out.reshape(-1)[index.reshape(-1)] = source.reshape(-1)
    return out


def _numpy_index_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str) -> object:
    out = np.moveaxis(x.copy(), dim, 0)
    f = {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[reduce]
    f.at(out, index, np.moveaxis(source, dim, 0))
    return np.moveaxis(out, 0, dim)


samples(
    index_reduce,
    lambda rng: [
        Sample(
            (
                rng.uniform(0.5, 2, (3, 2)), 0, np.array([2, 0, 2]), rng.uniform(0.5, 2, (3, 2)),
                reduce,
            )
        )
        for reduce in ("prod", "amax")
    ],
    _numpy_index_reduce,
    grad2=False,
    errors=(
        (
            lambda flow: flow.index_reduce(flow.ones(2), 0, flow.arange(2), flow.ones(2), "sum"),
            ValueError,
        ),
    ),
)  # fmt: skip
samples(
    nonzero_static,
    lambda rng: [Sample((np.array([[0, 1], [2, 0]]),), {"size": 3})],
    lambda x, size: np.concatenate([np.argwhere(x), np.full((1, 2), -1)]),
    grad=False,
    errors=((lambda flow: flow.nonzero_static(flow.ones(2), size=-1), ValueError),),
)
samples(
    unravel_index,
    lambda rng: [Sample((np.array([[0, 5], [3, 2]]), (2, 3)))],
    np.unravel_index,
    grad=False,
    errors=((lambda flow: flow.unravel_index(flow.ones(2), (2,)), RuntimeError),),
)
samples(
    segment_reduce,
    lambda rng: [
        Sample((rng.standard_normal((5, 2)), how), {"lengths": np.array([2, 1, 2])})
        for how in ("sum", "max")
    ],
    lambda x, how, lengths: np.stack(
        [
            getattr(np, how)(part, axis=0, initial=_SEGMENT[how])
            for part in np.split(x, np.cumsum(lengths)[:-1])
        ]
    ),
    grad2=False,
    errors=(
        (
            lambda flow: flow.segment_reduce(flow.ones(3), "sum", lengths=flow.tensor([1])),
            ValueError,
        ),
        (lambda flow: flow.segment_reduce(flow.ones(3), "sum"), ValueError),
    ),
)
samples(
    renorm,
    lambda rng: [Sample((rng.standard_normal((3, 4)) * np.array([[0.1], [1.0], [2.0]]), 2, 0, 1))],
    lambda x, p, dim, most: x * np.minimum(1, most / np.linalg.norm(x, axis=1, keepdims=True)),
    atol=1e-6,
    errors=((lambda flow: flow.renorm(flow.ones(2), 2, 0, 1), RuntimeError),),
)
