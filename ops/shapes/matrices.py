"""Matrices by formula: identity, triangles, diagonals, grids."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from flowvm.eager.global_calls import elsewhere, takes_placement
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.launch import GRAIN, Launch, bits
from flowvm.meta.arrays import Array
from flowvm.meta.device import as_device
from flowvm.meta.dtype import as_dtype, get_default_dtype, int64
from flowvm.meta.formats import accept
from flowvm.meta.meta import TensorMeta, as_shape
from flowvm.ops.declare.composite import filled_of, need_tensor, whole, wrap_dim
from flowvm.ops.declare.kinds import between
from flowvm.ops.declare.letters import matrices, unsplit
from flowvm.ops.declare.outputs import dtype_for, with_out
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import finished
from flowvm.ops.shapes.join import stack

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


# public: flow


# --- triangles --------------------------------------------------------------------------------


def _triangle_body(
    out: Array, x: Array, columns: int, rows: int, k: int, lower: bool, lo: int, hi: int
) -> None:
    for r in range(lo, hi):
        edge = r % rows + k  # the diagonal's column in this row
        start = r * columns
        for j in range(columns):
            keep = j <= edge if lower else j >= edge
            out[start + j] = x[start + j] if keep else 0


def _triangle(x: TensorMeta, k: int, lower: bool) -> Launch:
    rows, columns = x.shape[-2:]
    flat = bits(x, (x.numel,))
    lines = x.numel // columns if columns else 0
    return Launch(
        (x.dense(),),
        _triangle_body,
        (flat, flat),
        (columns, max(rows, 1), k, lower),
        units=lines,
        grain=GRAIN // (columns + 1) + 1,
    )


@op(
    "x -> out",
    name="tril",
    half="bits",
    complex=True,
    grad=lambda c, g: (_tril(g, *c.attrs),),
    cuda="matrices:triangle",
    letters=matrices,
)
def _tril(x: TensorMeta, k: Annotated[int, between(-(1 << 31), 1 << 31)]) -> Launch:
    return _triangle(x, k, True)


@op(
    "x -> out",
    name="triu",
    half="bits",
    complex=True,
    grad=lambda c, g: (_triu(g, *c.attrs),),
    cuda="matrices:triangle",
    letters=matrices,
)
def _triu(x: TensorMeta, k: Annotated[int, between(-(1 << 31), 1 << 31)]) -> Launch:
    return _triangle(x, k, False)


def _matrices(name: str, input: Any) -> Tensor:
    if need_tensor(name, "input", input)._meta.ndim < 2:
        raise ShapeError(
            f"{name} needs a matrix or a batch of them, got shape {tuple(input.shape)}"
        )
    return input  # type: ignore[no-any-return]


@with_out
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of each matrix, 0 above diagonal number `diagonal` (0: the main one, 1:
    the one above it).

    >>> flow.tril(flow.ones(2, 3))
    tensor([[1., 0., 0.],
            [1., 1., 0.]])
    """
    out: Tensor = _tril(_matrices("tril", input), whole("tril", "diagonal", diagonal))
    return out


@with_out
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of each matrix, 0 below diagonal number `diagonal` (0: the main one, 1:
    the one above it).

    >>> flow.triu(flow.ones(2, 3))
    tensor([[1., 1., 1.],
            [0., 1., 1.]])
    """
    out: Tensor = _triu(_matrices("triu", input), whole("triu", "diagonal", diagonal))
    return out


def _indices(
    name: str, pick: Any, row: int, col: int, offset: int, dtype: Any, device: Any
) -> Tensor:
    if row < 0 or col < 0:
        raise ArgumentError(f"{name}: a matrix has no {row} rows and {col} columns")
    kind = int64 if dtype is None else dtype
    return tensor(np.stack(pick(row, offset, col)), dtype=kind, device=device)


def tril_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    **options: object,
) -> Tensor:
    """The rows and the columns of the lower triangle's elements, a tensor of shape (2, n).

    >>> flow.tril_indices(2, 2)
    tensor([[0, 1, 1],
            [0, 0, 1]])
    """
    accept("tril_indices", options)
    return _indices("tril_indices", np.tril_indices, row, col, offset, dtype, device)


def triu_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    **options: object,
) -> Tensor:
    """The rows and the columns of the upper triangle's elements, a tensor of shape (2, n).

    >>> flow.triu_indices(2, 2)
    tensor([[0, 0, 1],
            [0, 1, 1]])
    """
    accept("triu_indices", options)
    return _indices("triu_indices", np.triu_indices, row, col, offset, dtype, device)


# --- diagonals --------------------------------------------------------------------------------


def _embed_body(out: Array, x: Array, n: int, size: int, k: int, lo: int, hi: int) -> None:
    """A unit is a row of one of the size x size matrices."""
    for r in range(lo, hi):
        row = r % size
        for j in range(size):
            out[r * size + j] = 0
        place = row + min(k, 0)  # in the diagonal
        if 0 <= place < n:
            out[r * size + row + k] = x[r // size * n + place]


@op(
    "x -> out",
    name="diag_embed",
    half="bits",
    complex=True,
    grad=lambda c, g: (g.diagonal(c.attrs[0], -2, -1),),
    cuda="matrices:diag_embed",
    letters=unsplit,
)
def _embed(x: TensorMeta, k: Annotated[int, between(-(1 << 31), 1 << 31)]) -> Launch:
    n = x.shape[-1]
    size = n + abs(k)
    out = x.with_shape((*x.shape[:-1], size, size))
    return Launch(
        (out,),
        _embed_body,
        (bits(out, (out.numel,)), bits(x, (x.numel,))),
        (n, size, k),
        units=out.numel // size if size else 0,
        grain=GRAIN // (size + 1) + 1,
    )


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices whose diagonal number `offset` is the last dimension of `input`, 0 elsewhere, in
    dimensions `dim1` and `dim2`.

    >>> flow.diag_embed(flow.tensor([[1, 2], [3, 4]])).shape
    flow.Size([2, 2, 2])
    """
    x = need_tensor("diag_embed", "input", input)
    if x._meta.ndim == 0:
        raise ShapeError("diag_embed needs at least one dimension, got a 0-d tensor")
    d1, d2 = (wrap_dim("diag_embed", d, x._meta.ndim + 1) for d in (dim1, dim2))
    if d1 == d2:
        raise ShapeError(f"diag_embed: dim1 and dim2 are the same, {dim1} and {dim2}")
    out: Tensor = _embed(x, int(offset) if d1 < d2 else -int(offset))
    if {d1, d2} == {x._meta.ndim - 1, x._meta.ndim}:
        return out
    return out.movedim((-2, -1), (min(d1, d2), max(d1, d2)))


@with_out
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A vector's matrix with it on diagonal number `diagonal`, or a copy of that diagonal of a
    matrix.

    >>> flow.diag(flow.tensor([1, 2])), flow.diag(flow.tensor([[1, 2], [3, 4]]))
    (tensor([[1, 0],
            [0, 2]]), tensor([1, 4]))
    """
    x = need_tensor("diag", "input", input)
    if x._meta.ndim == 1:
        return diag_embed(x, diagonal)
    if x._meta.ndim != 2:
        raise ShapeError(f"diag needs a vector or a matrix, got shape {tuple(x.shape)}")
    copy: Tensor = x.diagonal(diagonal).clone()
    return copy


@partial(steady, elsewhere=elsewhere)
@takes_placement
def eye(
    n: int,
    m: int | None = None,
    *,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """The matrix of `n` rows and `m` (default `n`) columns with ones on its diagonal, zeros
    elsewhere.

    >>> flow.eye(2, 3)
    tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """
    accept("eye", options)
    shape, dtype = as_shape((n, n if m is None else m)), dtype_for("eye", out, dtype)
    kind = get_default_dtype() if dtype is None else as_dtype(dtype)
    meta = TensorMeta.of(shape, kind, as_device(device))
    matrix = filled_of(meta, 0)
    if meta.numel:
        matrix.diagonal().copy_(filled_of(meta.with_shape((min(shape),)), 1))
    return finished(matrix, requires_grad, out, "eye")


# --- grids ------------------------------------------------------------------------------------


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of a grid whose axes are the given vectors; with indexing="xy" the first two
    axes are swapped.

    >>> x, y = flow.meshgrid(flow.tensor([1, 2]), flow.tensor([10, 20, 30]))
    >>> x + y
    tensor([[11, 21, 31],
            [12, 22, 32]])
    """
    axes = (
        list(tensors[0])
        if len(tensors) == 1 and isinstance(tensors[0], (list, tuple))
        else list(tensors)
    )
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f'meshgrid: indexing is "ij" or "xy", got {indexing!r}')
    if not axes:
        raise ArgumentTypeError("meshgrid needs at least one tensor")
    for axis in axes:
        if need_tensor("meshgrid", "tensors", axis)._meta.ndim > 1:
            raise ShapeError(f"meshgrid: axes are vectors, got shape {tuple(axis.shape)}")
        if axis._meta.dtype is not axes[0]._meta.dtype:
            raise DTypeError(
                f"meshgrid: all axes have one dtype, got {axes[0].dtype} and {axis.dtype}"
            )
    swap = indexing == "xy" and len(axes) > 1
    if swap:
        axes[:2] = axes[1::-1]
    lengths = [axis._meta.numel for axis in axes]
    grids = [
        axis.reshape([-1 if i == k else 1 for i in range(len(axes))]).expand(lengths)
        for k, axis in enumerate(axes)
    ]
    if swap:
        grids[:2] = grids[1::-1]
    return tuple(grids)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Every combination of one element of each vector, a row for each.

    >>> flow.cartesian_prod(flow.tensor([1, 2]), flow.tensor([3, 4]))
    tensor([[1, 3],
            [1, 4],
            [2, 3],
            [2, 4]])
    """
    if len(tensors) == 1:
        return tensors[0]
    grids = [g.reshape(-1) for g in meshgrid(*tensors)]
    return stack(grids, 1)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The matrix whose columns are the powers of the vector `x`, falling from N - 1 to 0, or
    rising.

    >>> flow.vander(flow.tensor([1, 2, 3]))
    tensor([[1, 1, 1],
            [4, 2, 1],
            [9, 3, 1]])
    """
    if need_tensor("vander", "x", x)._meta.ndim != 1:
        raise ShapeError(f"vander needs a vector, got shape {tuple(x.shape)}")
    count = x._meta.numel if N is None else whole("vander", "N", N)
    if count > 1 << 31:
        raise ArgumentError(f"vander: at most {1 << 31} columns, got {count}")
    powers = np.arange(count) if increasing else np.arange(count)[::-1]
    exponents = tensor(np.ascontiguousarray(powers), dtype=x._meta.dtype, device=x._meta.device)
    return x.reshape((-1, 1)) ** exponents


for _f in (tril, triu, diag, diag_embed):
    method()(_f)
for _f in (tril, triu):

    def _in_place(x: Tensor, diagonal: int = 0, f: Any = _f) -> Tensor:
        """The in-place form: the result replaces the values of `x`.

        >>> flow.ones(2, 2).tril_()
        tensor([[1., 0.],
                [1., 1.]])
        """
        changed: Tensor = x.copy_(f(x, diagonal))
        return changed

    setattr(Tensor, f"{_f.__name__}_", _in_place)


# --- samples ----------------------------------------------------------------------------------


def _triangles(rng: np.random.Generator) -> list[Sample]:
    return [
        Sample((rng.standard_normal((3, 4)),)),
        Sample((rng.standard_normal((2, 4, 3)), 1)),
        Sample((rng.standard_normal((3, 3)), -2)),
        Sample((np.zeros((0, 3)),)),
    ]


_vector_error = ((lambda flow: flow.tril(flow.ones(3)), RuntimeError),)
samples(tril, _triangles, np.tril, errors=_vector_error)
samples(triu, _triangles, np.triu)
samples(
    diag,
    lambda rng: [
        Sample((rng.standard_normal(3),)),
        Sample((rng.standard_normal(3), -1)),
        Sample((rng.standard_normal((3, 4)), 1)),
    ],
    np.diag,
    errors=((lambda flow: flow.diag(flow.ones(2, 2, 2)), RuntimeError),),
)


def _embedded(x: Any, offset: int = 0) -> Array:
    flat = x.reshape(-1, x.shape[-1])
    matrices = np.stack([np.diag(row, offset) for row in flat])
    return matrices.reshape(*x.shape[:-1], *matrices.shape[1:])


samples(
    diag_embed,
    lambda rng: [
        Sample((rng.standard_normal((2, 3)),)),
        Sample((rng.standard_normal((2, 2, 2)), 1)),
    ],
    _embedded,
)
samples(
    meshgrid,
    lambda rng: [
        Sample((rng.standard_normal(3), rng.standard_normal(2))),
        Sample((rng.standard_normal(3), rng.standard_normal(2)), {"indexing": "xy"}),
    ],
    lambda *axes, indexing="ij": tuple(np.meshgrid(*axes, indexing=indexing)),
    errors=((lambda flow: flow.meshgrid(flow.ones(2), indexing="no"), ValueError),),
)
samples(
    cartesian_prod,
    lambda rng: [Sample((rng.standard_normal(3), rng.standard_normal(2)))],
    lambda *axes: np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], 1),
)
samples(
    vander,
    lambda rng: [Sample((rng.uniform(0.5, 2.0, 3),)), Sample((rng.uniform(0.5, 2.0, 3), 2, True))],
    np.vander,
)
