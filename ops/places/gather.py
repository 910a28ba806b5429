"""Elements at positions that are data: read with one index for whole slices (`index_select`) or one
for each element (`gather`), and the ops that write at such positions.

A tensor is seen as [outer, n, inner] around the indexed dimension, so the four kernels of
`flowvm.ops.places.cpu.index_kernels` serve all shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import DTypeError, ShapeError
from flowvm.launch import GRAIN, Launch, View, bits
from flowvm.meta.batched_meta import made_for
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor, record, wrap_dim
from flowvm.ops.declare.core import cast
from flowvm.ops.declare.kinds import Dim, Metas, Values, between
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, broadcast_shapes, op, operator_of, samples
from flowvm.ops.places.cpu.index_kernels import ADD as ADD  # indexing takes both from here
from flowvm.ops.places.cpu.index_kernels import NONE as NONE
from flowvm.ops.places.cpu.index_kernels import SET, Elements, Slices, Writing
from flowvm.ops.places.cpu.index_kernels import gather as gather_body
from flowvm.ops.places.cpu.index_kernels import put as put_body
from flowvm.ops.places.cpu.index_kernels import scatter as scatter_body
from flowvm.ops.places.cpu.index_kernels import take as take_body
from flowvm.ops.places.parts.place_letters import gathered, scattered, take_letters
from flowvm.ops.pointwise.compare import where
from flowvm.ops.shapes.complex_parts import imag, real
from flowvm.ops.shapes.slices import basic_view
from flowvm.ops.shapes.views import expand, reshape, unsqueeze

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


PUT_BLOCK = 2048  # elements of inner that are written at a time, at least


def split_at(meta: TensorMeta, dim: int) -> tuple[int, int, int]:
    """The sizes before, of, and after a dimension."""
    shape = meta.shape
    if not shape:
        return 1, 1, 1
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def positions_of(name: str, argument: str, index: Any) -> Tensor:
    """An index tensor as int64; DTypeError for floats and bools."""
    meta = need_tensor(name, argument, index)._meta
    if meta.dtype is int64:
        return index  # type: ignore[no-any-return]
    if meta.dtype.inexact or meta.dtype.is_bool:
        raise DTypeError(f"{name}: {argument} must hold integers, got {meta.dtype.name}")
    return cast(index, int64)


def _reaches(metas: Metas, values: Values) -> bool:
    """Tell whether indices count from the end no further than the dimension has elements."""
    low: int = values["low"]
    return -split_at(metas[0], values["dim"])[1] <= low <= 0


# --- ops ----------------------------------------------------------------------------------------


def _take_grad(c: Node, g: Tensor) -> tuple[Tensor, None]:
    (index,) = c.saved
    dim, low, shown, _, skip = c.attrs
    return spread(g, index, c.metas[0].shape, dim, low, shown, skip), None


@op(
    "x, index -> out", name="index_select", saves="index", grad=_take_grad, half="bits",
    complex=True, cuda="indexing:take", letters=take_letters, takes=_reaches,
)  # fmt: skip
def take_slices(
    x: TensorMeta,
    index: TensorMeta,
    dim: Dim,
    low: int,
    shown: Annotated[int, between(-64, 64)],
    zero: int,
    skip: int,
) -> Launch:
    """Replace dimension `dim` of `x` by the dimensions of `index`, which picks slices of it.

    Indices from `low` on are valid, negative ones count from the end; `shown` is the dimension that
    an error names.  Slices for the index `zero` are zeros; the gradient leaves out the index
    `skip`.
    """
    outer, n, inner = split_at(x, dim)
    m = index.numel
    out = x.with_shape((*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]))
    views = (bits(out, (out.numel,)), bits(x, (x.numel,)), View(int64, (m,)))
    grain = max(1, GRAIN // max(inner, 1))
    slices = Slices(outer, n, inner, low, shown, zero)
    return Launch((out,), take_body, views, (slices,), outer * m, grain)


def _blocks(outer: int, inner: int, m: int) -> tuple[int, int, int]:
    """(size of a block of inner, units, grain) of a write with m indices."""
    block = max(inner, 1) if outer >= 16 else max(64, -(-inner // 16))
    units = outer * -(-inner // block)
    return block, units, max(1, GRAIN // max(1, m * min(block, max(inner, 1))))


def _put(
    x: TensorMeta,
    index: TensorMeta,
    source: TensorMeta,
    dim: int,
    low: int,
    shown: int,
    skip: int,
    mode: int,
) -> Launch:
    outer, n, inner = split_at(x, dim)
    m = index.numel
    one = int(source.numel == 1 and outer * m * inner != 1)
    block, parts = max(inner, 1), 1
    if outer < 16 and inner >= 2 * PUT_BLOCK:
        block = max(PUT_BLOCK, -(-inner // 16))
    elif outer < 16 and inner >= 16:  # then passing over another part's index costs little
        parts = max(1, min(16, n, m * inner // (4 * GRAIN)))
    units = outer * parts * -(-inner // block)
    grain = max(1, GRAIN * parts // max(1, m * min(block, max(inner, 1))))
    view = bits if mode == SET else _flat_view
    views = (view(x, (x.numel,)), View(int64, (m,)), view(source, (source.numel,)))
    consts = Slices(outer, n, inner, low, shown, skip), Writing(mode, one, block, parts)
    return Launch((), put_body, views, consts, units, grain)


def _flat_view(meta: TensorMeta, shape: tuple[int]) -> View:
    return View(meta.dtype, shape)


@op(
    "x!, index, source -> ",
    name="index_copy_",
    half="bits",
    complex=True,
    cuda="indexing:put",
    letters=unsplit,
    takes=_reaches,
)
def put_slices(
    x: TensorMeta,
    index: TensorMeta,
    source: TensorMeta,
    dim: Dim,
    low: int,
    shown: Annotated[int, between(-64, 64)],
) -> Launch:
    """Write slices of `source` (or its one element) into `x` at `index` of dimension `dim`."""
    return _put(x, index, source, dim, low, shown, NONE, SET)


def _in_parts(write: Any, apart: Callable[[Tensor, int], bool]) -> None:
    """Have `write(x, index, source, ...)` called part by part where `apart(x, last argument)`."""
    operator = operator_of(write)
    others = operator.rules.fallback

    def fallback(x: Any, index: Any, source: Tensor, *rest: Any) -> Any:
        if not isinstance(x, Tensor) or not apart(x, rest[-1]):
            return others(x, index, source, *rest)
        write(real(x), index, real(source), *rest)
        write(imag(x), index, imag(source), *rest)
        return x

    operator.rules.fallback = fallback


def _of_16_bytes(x: Tensor, last: int) -> bool:
    return x._meta.dtype.itemsize == 16  # no integers are as large, of which the kernels are


def _adds_parts(x: Tensor, mode: int) -> bool:
    if x._meta.dtype.is_complex and mode != ADD:
        raise DTypeError(f"complex numbers at indices are added or replaced, got {x.dtype.name}")
    return x._meta.dtype.is_complex


@op(
    "x!, index, source -> ",
    name="index_reduce_",
    half="cuda",
    cuda="indexing:put",
    letters=unsplit,
    takes=_reaches,
)
def combine_slices(
    x: TensorMeta,
    index: TensorMeta,
    source: TensorMeta,
    dim: Dim,
    low: int,
    shown: Annotated[int, between(-64, 64)],
    skip: int,
    mode: Annotated[int, between(0, 15)],
) -> Launch:
    """Combine slices of `x` with slices of `source` at `index`: ADD, MULTIPLY, AMAX or AMIN."""
    return _put(x, index, source, dim, low, shown, skip, mode)


def _gather_grad(c: Node, g: Tensor) -> tuple[Tensor, None]:
    (index,) = c.saved
    return _back_to_places(g, index, c.metas[0], c.attrs[0]), None


@op(
    "x, index -> out", name="gather", saves="index", grad=_gather_grad, half="bits",
    complex=True, cuda="indexing:gather", letters=gathered,
)  # fmt: skip
def gather_elements(x: TensorMeta, index: TensorMeta, dim: Dim) -> Launch:
    """The elements of `x` at `index` in `dim`; the other dimensions are equal."""
    outer, n, inner = split_at(x, dim)
    m = split_at(index, dim)[1]
    out = x.with_shape(index.shape)
    views = (bits(out, (out.numel,)), bits(x, (x.numel,)), View(int64, (index.numel,)))
    grain = max(1, GRAIN // max(inner, 1))
    elements = Elements(outer, n, m, inner, dim)
    return Launch((out,), gather_body, views, (elements,), outer * m, grain)


def _scattered(x: TensorMeta, index: TensorMeta, source: TensorMeta, dim: int, mode: int) -> Launch:
    outer, n, inner = split_at(x, dim)
    m = split_at(index, dim)[1]
    one = int(source.numel == 1 and index.numel != 1)
    block, units, grain = _blocks(outer, inner, m)
    view = bits if mode == SET else _flat_view
    views = (view(x, (x.numel,)), View(int64, (index.numel,)), view(source, (source.numel,)))
    consts = Elements(outer, n, m, inner, dim), Writing(mode, one, block, 1)
    return Launch((), scatter_body, views, consts, units, grain)


@op(
    "x!, index, source -> ",
    name="scatter_",
    half="bits",
    complex=True,
    cuda="indexing:scatter",
    letters=scattered,
)
def scatter_elements(x: TensorMeta, index: TensorMeta, source: TensorMeta, dim: Dim) -> Launch:
    """Write the elements of `source` (or its one) into `x` at `index` in `dim`."""
    return _scattered(x, index, source, dim, SET)


@op(
    "x!, index, source -> ",
    name="scatter_reduce_",
    half="cuda",
    cuda="indexing:scatter",
    letters=scattered,
)
def combine_elements(
    x: TensorMeta,
    index: TensorMeta,
    source: TensorMeta,
    dim: Dim,
    mode: Annotated[int, between(0, 15)],
) -> Launch:
    """Combine elements of `x` with elements of `source` at `index`, by `mode`."""
    return _scattered(x, index, source, dim, mode)


for _write in (put_slices, scatter_elements):
    _in_parts(_write, _of_16_bytes)
for _write in (combine_slices, combine_elements):
    _in_parts(_write, _adds_parts)


def _spread_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    dim, low, shown, skip = c.attrs
    (index,) = c.saved
    out: Tensor = take_slices(g, index, dim, low, shown, skip, skip)
    return (out,)


_spread_op = Recorded("index_add", _spread_grad, ("g",))


def spread(
    g: Tensor, index: Tensor, shape: Sequence[int], dim: int, low: int, shown: int, skip: int = NONE
) -> Tensor:
    """Zeros of `shape` to which slices of `g` were added at `index` of dimension `dim`:
    `take_slices` backwards.
    """
    out = filled_of(made_for(g._meta.with_shape(shape), g._meta, index._meta))
    combine_slices(out, index, g.detach(), dim, low, shown, skip, ADD)
    return record(_spread_op, (g,), out, (dim, low, shown, skip), (index,))


_back_op = Recorded(
    "scatter_add", lambda c, g: (gather_elements(g, c.saved[0], c.attrs[0]),), ("g",)
)


def _back_to_places(g: Tensor, index: Tensor, meta: TensorMeta, dim: int) -> Tensor:
    """Zeros like `meta` to which the elements of `g` were added at `index` of dimension `dim`:
    `gather_elements` backwards.
    """
    out = filled_of(made_for(meta, g._meta, index._meta), 0, g._meta.dtype)
    if index._meta.numel:
        combine_elements(out, index, g.detach(), dim, ADD)
    return record(_back_op, (g,), out, (dim,), (index,))


# --- public -------------------------------------------------------------------------------------


# public: flow
@method()
@with_out
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of dimension `dim` at the positions `index` (1-d integers, not negative), as a
    copy.

    OutOfRangeError when the result is read, if an index is outside.

    >>> flow.index_select(flow.tensor([[1, 2], [3, 4]]), 1, flow.tensor([1, 1, 0]))
    tensor([[2, 2, 1],
            [4, 4, 3]])
    """
    x = need_tensor("index_select", "input", input)
    at = wrap_dim("index_select", dim, x._meta.ndim)
    positions = positions_of("index_select", "index", index)
    if positions._meta.ndim > 1:
        raise ShapeError(f"index_select: index must be 1-d, got shape {tuple(index.shape)}")
    if x._meta.ndim == 0:
        return reshape(
            take_slices(reshape(x, (1,)), reshape(positions, (-1,)), 0, 0, 0, NONE, NONE), ()
        )
    if positions._meta.ndim == 0:
        positions = unsqueeze(positions, 0)
    out: Tensor = take_slices(x, positions, at, 0, at, NONE, NONE)
    return out


# public: flow
@method()
@with_out
def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements of the flattened `input` at `index`, in the shape of `index`; negative ones
    count from the end.

    >>> flow.take(flow.tensor([[1, 2], [3, 4]]), flow.tensor([3, 0]))
    tensor([4, 1])
    """
    flat = (
        reshape(input, (-1,))
        if need_tensor("take", "input", input).numel()
        else reshape(input, (0,))
    )
    positions = positions_of("take", "index", index)
    out: Tensor = take_slices(flat, positions, 0, -flat._meta.numel, 0, NONE, NONE)
    return out


def narrowed_to(x: Tensor, shape: Sequence[int], dim: int | None) -> Tensor:
    """The corner of `x` that has `shape`, dimension `dim` kept whole."""
    sizes = x._meta.shape
    if all(n == s or d == dim for d, (n, s) in enumerate(zip(sizes, shape, strict=True))):
        return x
    return basic_view(
        x,
        tuple(
            (0, n if d == dim else s, 1) for d, (n, s) in enumerate(zip(sizes, shape, strict=True))
        ),
    )


def aligned(
    name: str, x: Tensor, dim: int, index: Any, source: Tensor | None = None
) -> tuple[int, Tensor]:
    """`dim` and `index` checked against `x` for gather and scatter: (dimension, int64 index)."""
    meta = need_tensor(name, "input", x)._meta
    at = wrap_dim(name, dim, meta.ndim)
    positions = positions_of(name, "index", index)
    shape = positions._meta.shape
    if len(shape) != meta.ndim and positions._meta.numel:
        raise ShapeError(
            f"{name}: index has {len(shape)} dimensions (shape {tuple(shape)}), the tensor has "
            f"{meta.ndim} "
            f"(shape {tuple(meta.shape)}); they must be equal"
        )
    if positions._meta.numel == 0:
        return at, positions
    for d, (n, most) in enumerate(zip(shape, meta.shape, strict=True)):
        if d != at and n > most:
            raise ShapeError(
                f"{name}: index of shape {tuple(shape)} is larger than the tensor of shape "
                f"{tuple(meta.shape)} "
                f"in dimension {d}"
            )
    if source is not None:
        have = source._meta.shape
        if len(have) != len(shape) or any(n > s for n, s in zip(shape, have, strict=True)):
            raise ShapeError(
                f"{name}: index of shape {tuple(shape)} is larger than src of shape {tuple(have)}"
            )
    return at, positions


# public: flow
@method()
@with_out
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """For each element of `index`, the element of `input` at the same place but with that number in
    `dim`.

    `index` has as many dimensions as `input` and is no larger, but in `dim`; the result has its
    shape.  None counts as one: a number may be gathered by a list, and the other way round.

    >>> flow.gather(flow.tensor([[1, 2], [3, 4]]), 1, flow.tensor([[1], [0]]))
    tensor([[2],
            [3]])
    """
    shapes = need_tensor("gather", "input", input)._meta.shape, getattr(index, "shape", (0, 0))
    if sorted(map(len, shapes)) == [0, 1]:
        one: Tensor = gather(reshape(input, (-1,)), dim, reshape(index, (-1,)))
        own: Tensor = one.reshape(index._meta.shape)
        return own
    at, positions = aligned("gather", input, dim, index)
    if positions._meta.numel == 0:
        nothing = filled_of(input._meta.with_shape(positions._meta.shape))
        return record(_gather_none, (input,), nothing)
    out: Tensor = gather_elements(narrowed_to(input, positions._meta.shape, at), positions, at)
    return out


_gather_none = Recorded("gather", lambda c, g: (filled_of(c.metas[0]),), ("x",))


def _from_the_end(positions: Tensor, size: int) -> Tensor:
    """Indices from 0 up, where negative ones counted from the end."""
    turned: Tensor = where(positions < 0, positions + size, positions)
    return turned


# public: flow
@method()
@with_out
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather`, after broadcasting both outside `dim`; without `dim`, of the flattened tensors.

    Negative indices count from the end of `dim`.

    >>> x = flow.tensor([[3, 1, 2]])
    >>> flow.take_along_dim(x, x.argsort(1), 1)
    tensor([[1, 2, 3]])
    """
    x = need_tensor("take_along_dim", "input", input)
    positions = positions_of("take_along_dim", "indices", indices)
    if dim is None:
        x, positions = reshape(x, (-1,)), reshape(positions, (-1,))
        return gather(x, 0, positions)
    if positions._meta.ndim != x._meta.ndim:
        raise ShapeError(
            "take_along_dim: input and indices must have as many dimensions, got shapes "
            f"{tuple(x.shape)} and "
            f"{tuple(indices.shape)}"
        )
    at = wrap_dim("take_along_dim", dim, x._meta.ndim)
    positions = _from_the_end(positions, x._meta.shape[at] if x._meta.ndim else 1)

    def outside(shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:at], 1, *shape[at + 1 :])

    common = broadcast_shapes(outside(x._meta.shape), outside(positions._meta.shape))

    def whole(t: Tensor) -> Tensor:
        return expand(t, (*common[:at], t._meta.shape[at], *common[at + 1 :]))

    return gather(whole(x), at, whole(positions)) if x._meta.ndim else gather(x, 0, positions)


# --- samples ------------------------------------------------------------------------------------


def _indexed(*calls: tuple[Any, ...]) -> Callable[[Any], list[Sample]]:
    """For each (shape, dim, indices) a sample."""
    return lambda rng: [
        Sample((np.asarray(rng.standard_normal(shape)), dim, np.array(index, np.int64)))
        for shape, dim, index in calls
    ]


def _numpy_gather(x: Array, dim: int, index: Array) -> Any:
    if x.ndim == 0 or index.size == 0:
        return np.broadcast_to(x, index.shape) if index.size else np.zeros(index.shape)
    corner = tuple(
        slice(None) if d == dim % x.ndim else slice(n) for d, n in enumerate(index.shape)
    )
    return np.take_along_axis(x[corner], index, dim)


samples(
    index_select,
    _indexed(
        ((3, 2), 0, [2, 0, 2]), ((2, 3, 2), 1, [1]), ((2, 3), -1, []), ((), 0, [0]), ((4,), 0, 1)
    ),
    lambda x, dim, index: np.take(x, np.atleast_1d(index), dim) if x.ndim else x,
    errors=(
        (lambda flow: flow.index_select(flow.ones(2), 0, flow.tensor([2])).numpy(), IndexError),
        (lambda flow: flow.index_select(flow.ones(2), 0, flow.tensor([-1])).numpy(), IndexError),
        (lambda flow: flow.index_select(flow.ones(2), 0, flow.tensor([[0]])), RuntimeError),
        (lambda flow: flow.index_select(flow.ones(2), 0, flow.tensor([0.0])), RuntimeError),
        (lambda flow: flow.index_select(flow.ones(2), 1, flow.tensor([0])), IndexError),
    ),
)
samples(
    take,
    lambda rng: [
        Sample((rng.standard_normal((2, 3)), np.array([[0, 5], [-1, 2]]))),
        Sample((rng.standard_normal((3,)), np.array(1))),
        Sample((rng.standard_normal((3,)), np.zeros(0, np.int64))),
    ],
    np.take,
    errors=((lambda flow: flow.take(flow.ones(2), flow.tensor([3])).numpy(), IndexError),),
)
samples(
    gather,
    _indexed(
        ((3, 2), 0, [[2, 0], [0, 0]]),
        ((2, 3, 2), 1, [[[1, 0]], [[2, 2]]]),
        ((3, 4), -1, [[3], [0]]),
        ((), 0, 0),
        ((2, 2), 0, [[]]),
    ),
    _numpy_gather,
    errors=(
        (lambda flow: flow.gather(flow.ones(2, 2), 0, flow.tensor([[2, 0]])).numpy(), IndexError),
        (lambda flow: flow.gather(flow.ones(2, 2), 0, flow.tensor([0])), RuntimeError),
        (lambda flow: flow.gather(flow.ones(2, 1), 0, flow.tensor([[0, 0]])), RuntimeError),
    ),
)


def _across(shape: Sequence[int], index: Sequence[int], dim: int) -> list[int]:
    return [m if d == dim else n for d, (n, m) in enumerate(zip(shape, index, strict=True))]


samples(
    take_along_dim,
    lambda rng: [
        Sample((rng.standard_normal((3, 2)), np.array([[2, 0], [1, 1]]), 0)),
        Sample((rng.standard_normal((3, 2)), np.array([[1]]), 1)),
        Sample((rng.standard_normal((3, 2)), np.array([5, 0]))),
    ],
    lambda x, index, dim=None: (
        np.take(x, index)
        if dim is None
        else np.take_along_axis(x, np.broadcast_to(index, _across(x.shape, index.shape, dim)), dim)
    ),
    errors=(
        (lambda flow: flow.take_along_dim(flow.ones(2, 2), flow.tensor([0]), 0), RuntimeError),
    ),
)
