"""Tensors put together, and one tensor repeated.

`cat` and `stack` are one instruction that writes each tensor's slice of the output, after
converting those of another dtype; the rest is views around them and around one copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.declaration import Invocation, Kernel, Origin, Rules, Signature
from flowvm.eager.interpreter import Operator, call_into
from flowvm.eager.keywords import spelled
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import ArgumentTypeError, DTypeError, ShapeError
from flowvm.files.schema import integer
from flowvm.guards.lru_cache import lru_cached
from flowvm.meta.dtype import result_type_of
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.assembly import Assembly, Piece
from flowvm.ops.declare.composite import (
    Recorded,
    empty_of,
    filled_of,
    need_tensor,
    record,
    wrap_dim,
)
from flowvm.ops.declare.core import cast
from flowvm.ops.declare.facts import facts_of
from flowvm.ops.declare.letters import Letters, Metas, all_inexact, numbered
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.recipes import maker
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.shapes.slices import _select, _slice, _slice_geometry
from flowvm.ops.shapes.views import _dims_of, _xs, expand, reshape, unsqueeze

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow

# tensors that one instruction joins: its operands have to fit into a record
MOST = 25


def _cat_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    dim, new = c.attrs
    at = wrap_dim("cat", dim, g._meta.ndim)
    out: list[Tensor | None] = []
    start = 0
    for meta, needed in zip(c.metas, c.needs, strict=True):
        if new:
            out.append(_select(g, at, start) if needed else None)
            start += 1
        elif _skipped(meta, g._meta):
            out.append(filled_of(meta, 0, g._meta.dtype) if needed else None)
        else:
            size = meta.shape[at]
            out.append(_slice(g, at, start, size, 1) if needed else None)
            start += size
    return tuple(out)


def _skipped(meta: TensorMeta, out: TensorMeta) -> bool:
    """Return True if `cat` skips the tensor: it is 1-d and empty, and the others are not 1-d."""
    return meta.shape == (0,) and out.ndim != 1


@lru_cached("views")
def _cat_meta(metas: tuple[TensorMeta, ...], dim: int, new: bool) -> tuple[TensorMeta, int]:
    """The joined tensor's meta and the dimension; ShapeError where the shapes do not fit."""
    parts = list(enumerate(metas))
    if not new:
        parts = [(i, m) for i, m in parts if m.shape != (0,)] or parts[:1]
    first = parts[0][1]
    if first.ndim == 0 and not new:
        raise ShapeError("cat: a 0-d tensor cannot be joined; use stack")
    name = "stack" if new else "cat"
    at = wrap_dim(name, dim, first.ndim + new)
    rest = (first.shape[:at], first.shape[at + 1 - new :])
    total = 0
    for i, m in parts:
        if new and m.shape != first.shape:
            raise ShapeError(
                f"stack: all tensors must have one shape, got {tuple(first.shape)} and "
                f"{tuple(m.shape)} (tensor {i})"
            )
        if not new and (m.ndim != first.ndim or (m.shape[:at], m.shape[at + 1 :]) != rest):
            raise ShapeError(
                f"cat: shapes {tuple(first.shape)} and {tuple(m.shape)} (tensor {i}) differ "
                f"outside dimension {at}"
            )
        total += 1 if new else m.shape[at]
    return TensorMeta.of((*rest[0], total, *rest[1]), first.dtype, first.device), at


def _cat_infer(count: int, metas: tuple[TensorMeta, ...], attrs: Attrs) -> Assembly:
    dim, new = attrs
    inputs = metas[len(metas) - count :]
    out, at = _cat_meta(inputs, dim, new)
    if any(m.dtype is not out.dtype for m in inputs):
        raise DTypeError(f"cat: {', '.join(m.dtype.name for m in inputs)} are several dtypes")
    if len(metas) > count:
        if (metas[0].shape, metas[0].dtype) != (out.shape, out.dtype):
            raise ShapeError(f"cat: {out!r} does not go into {metas[0]!r}")
        out = metas[0]
    pieces, start = [], 0
    for k, m in enumerate(inputs, 1):
        if new:
            shape: tuple[int, ...] = (*m.shape[:at], 1, *m.shape[at:])
            stride: tuple[int, ...] = (*m.stride[:at], 0, *m.stride[at:])
        elif _skipped(m, out):
            continue
        else:
            shape, stride = tuple(m.shape), m.stride
        pieces.append(Piece(k, shape, out.stride, start * out.stride[at], 0, stride))
        start += shape[at]
    return Assembly(out, tuple(pieces))


def _cat_lower(count: int, metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
    return _cat_infer(count, metas, attrs).on_cpu()


def _cat_letters(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
    """Name the dimensions that are not joined; the result is linear in all operands together."""
    dim, new = attrs
    out = outs[0]
    at = dim % out.ndim
    if any(m.ndim + new != out.ndim for m in metas):
        return None
    names = numbered(out, (at,))
    inner = tuple(n for i, n in enumerate(names) if not (new and i == at))
    linear = (tuple(range(len(metas))),) if all_inexact(*metas, *outs) else ()
    return Letters((inner,) * len(metas), (names,), linear=linear)


@maker("cat", integer(1, MOST))
@functools.cache
def _cat_of(count: int) -> Operator:
    return Operator(
        "cat",
        Signature(tuple(f"x{i}" for i in range(count)), ("out",), attrs=("dim", "stacked")),
        Kernel(
            functools.partial(_cat_lower, count),
            functools.partial(_cat_infer, count),
            complex=True,
            minifloats=True,
        ),
        grad=_cat_grad,
        rules=Rules(letters=_cat_letters),
        origin=Origin(recipe=("cat", (count,))),
        facts=facts_of(_cat_of),
    )


_many = Recorded("cat", _cat_grad)


def _joined(tensors: list[Tensor], dim: int, new: bool) -> Tensor:
    """One or more tensors of one dtype along `dim`, a `new` one or theirs."""
    if len(tensors) <= MOST:
        joined: Tensor = _cat_of(len(tensors)).call(*tensors, dim, new)
        return joined
    meta, at = _cat_meta(tuple(t._meta for t in tensors), dim, new)
    out = empty_of(meta)
    start = 0
    for first in range(0, len(tensors), MOST):
        group = tuple(tensors[first : first + MOST])
        part, _ = _cat_meta(tuple(t._meta for t in group), dim, new)
        if part.ndim == meta.ndim:
            view, offset = _slice_geometry(meta, at, start, part.shape[at], 1)
            target = alias(out, view, offset * meta.dtype.itemsize)
            call_into(_cat_of(len(group)), (target,), group, (dim, new))
            start += part.shape[at]
    return record(_many, tensors, out, (dim, new))


def _alike(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors in the dtype that they promote to."""
    metas = [t._meta for t in tensors]
    dtype = metas[0].dtype
    if all(m.dtype is dtype for m in metas):
        return tensors
    dtype = result_type_of(*((m.dtype, False) for m in metas))
    return [t if t._meta.dtype is dtype else cast(t, dtype) for t in tensors]


def _listed(name: str, tensors: object) -> list[Tensor]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise ArgumentTypeError(
            f"{name}: argument 'tensors' is a list or tuple of tensors, got "
            f"{type(tensors).__name__}"
        )
    if not tensors:
        raise ShapeError(f"{name}: needs at least one tensor, got an empty list")
    return [need_tensor(name, f"tensors[{i}]", t) for i, t in enumerate(tensors)]


@with_out
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after the other along `dim`; the other dimensions must agree.

    The dtype is the one they promote to.  1-d tensors without elements are skipped, whatever the
    others' shape. ShapeError when shapes do not fit.

    >>> flow.cat([flow.zeros(1, 2), flow.ones(2, 2)]).shape
    flow.Size([3, 2])
    """
    return _joined(_alike(_listed("cat", tensors)), dim, False)


concat = concatenate = cat  # public: flow


@with_out
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors, all of one shape, along a new dimension `dim`.

    >>> flow.stack((flow.tensor([1, 2]), flow.tensor([3, 4])), dim=1)
    tensor([[1, 3],
            [2, 4]])
    """
    return _joined(_alike(_listed("stack", tensors)), dim, True)


def _at_least(ndim: int, tensors: tuple[Any, ...]) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        return tuple(_grown(ndim, t) for t in tensors[0])
    grown = tuple(_grown(ndim, t) for t in tensors)
    return grown[0] if len(grown) == 1 else grown


def _grown(ndim: int, x: Tensor) -> Tensor:
    if need_tensor(f"atleast_{ndim}d", "tensors", x)._meta.ndim == 0:
        x = unsqueeze(x, 0)
    if ndim > 1 and x._meta.ndim == 1:
        x = unsqueeze(x, 0)
    if ndim > 2 and x._meta.ndim == 2:
        x = unsqueeze(x, -1)
    return x


def atleast_1d(*tensors: Tensor) -> Any:
    """Views with at least 1 dimension.

    >>> flow.atleast_1d(flow.tensor(5))
    tensor([5])
    """
    return _at_least(1, tensors)


def atleast_2d(*tensors: Tensor) -> Any:
    """Views with at least 2 dimensions, new ones in front.

    >>> flow.atleast_2d(flow.tensor([1, 2]))
    tensor([[1, 2]])
    """
    return _at_least(2, tensors)


def atleast_3d(*tensors: Tensor) -> Any:
    """Views with at least 3 dimensions: (n) becomes (1, n, 1) and (m, n) becomes (m, n, 1).

    >>> flow.atleast_3d(flow.ones(4)).shape
    flow.Size([1, 4, 1])
    """
    return _at_least(3, tensors)


@with_out
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors side by side: along dimension 1, or 0 if they are 1-d.

    >>> flow.hstack((flow.tensor([1, 2]), flow.tensor([3])))
    tensor([1, 2, 3])
    """
    grown = [_grown(1, t) for t in _listed("hstack", tensors)]
    return cat(grown, 0 if grown[0]._meta.ndim == 1 else 1)


@with_out
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors on top of each other: along dimension 0, 1-d ones as rows.

    >>> flow.row_stack((flow.tensor([1, 2]), flow.tensor([3, 4])))
    tensor([[1, 2],
            [3, 4]])
    """
    return cat([_grown(2, t) for t in _listed("vstack", tensors)], 0)


row_stack = vstack  # public: flow


@with_out
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors behind each other: along dimension 2.

    >>> flow.dstack((flow.tensor([1, 2]), flow.tensor([3, 4]))).shape
    flow.Size([1, 2, 2])
    """
    return cat([_grown(3, t) for t in _listed("dstack", tensors)], 2)


@with_out
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors side by side, 0-d and 1-d ones as columns.

    >>> flow.column_stack((flow.tensor([1, 2]), flow.tensor([3, 4])))
    tensor([[1, 3],
            [2, 4]])
    """
    columns = [
        reshape(t, (-1, 1)) if t._meta.ndim <= 1 else t for t in _listed("column_stack", tensors)
    ]
    return cat(columns, 1)


# --- repetition ---------------------------------------------------------------------------------


# not public
@method()
@spelled(repeats="*")
def repeat(x: Tensor, *repeats: Any) -> Tensor:
    """A copy with the whole tensor `repeats[d]` times along each dimension; more numbers than
    dimensions add some.

    >>> flow.tensor([1, 2]).repeat(2, 2).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    need_tensor("repeat", "x", x)
    times = _dims_of(repeats)
    lead = len(times) - x._meta.ndim
    if lead < 0:
        raise ShapeError(
            f"repeat: {times} has fewer numbers than the tensor has dimensions (shape "
            f"{tuple(x.shape)})"
        )
    if any(n < 0 for n in times):
        raise ShapeError(f"repeat: cannot repeat a negative number of times: {times}")
    shape = (1,) * lead + tuple(x._meta.shape)
    spread = reshape(x, [d for size in shape for d in (1, size)])
    spread = expand(spread, [d for n, size in zip(times, shape, strict=True) for d in (n, size)])
    return reshape(spread.clone(), [n * size for n, size in zip(times, shape, strict=True)])


@method()
@spelled(dims="*")
def tile(input: Tensor, *dims: object) -> Tensor:
    """`repeat`, where missing numbers in front are 1.

    >>> flow.tile(flow.tensor([1, 2]), (2, 2))
    tensor([[1, 2, 1, 2],
            [1, 2, 1, 2]])
    """
    x = need_tensor("tile", "input", input)
    times = _dims_of(dims)
    return repeat(x, (1,) * (x._meta.ndim - len(times)) + times)


# --- samples ------------------------------------------------------------------------------------


def _lists(*calls: tuple[Any, ...]) -> Callable[[Any], list[Sample]]:
    """For each (shapes, arguments...) a sample of tensors of these shapes in a list."""
    return lambda rng: [
        Sample(([np.asarray(rng.standard_normal(s)) for s in shapes], *rest))
        for shapes, *rest in calls
    ]


samples(
    cat,
    _lists(
        (((2, 3), (1, 3)),),
        (((2, 1, 2), (2, 3, 2), (2, 0, 2)), 1),
        (((2,), (3,)), -1),
        (((2, 2),),),
        (((0,), (0,)),),
    ),
    np.concatenate,
    errors=(
        (lambda flow: flow.cat([flow.ones(2, 2), flow.ones(2, 3)]), RuntimeError),
        (lambda flow: flow.cat([]), RuntimeError),
        (lambda flow: flow.cat([flow.ones(())]), RuntimeError),
        (lambda flow: flow.cat(flow.ones(2)), TypeError),
        (lambda flow: flow.cat([flow.ones(2), 1.0]), TypeError),
        (lambda flow: flow.cat([flow.ones(2)], 1), IndexError),
    ),
)
samples(
    cat,
    lambda rng: [
        Sample(([np.arange(3), rng.standard_normal(2)],)),
        Sample(([np.arange(3, dtype=np.uint8), np.array([True, False])],)),
    ],
    np.concatenate,
    name="concat",
    grad=False,
)
samples(
    stack,
    _lists((((2, 3), (2, 3)),), (((2,), (2,), (2,)), -1), (((), ()),), (((2, 0), (2, 0)), 1)),
    np.stack,
    errors=((lambda flow: flow.stack([flow.ones(2), flow.ones(3)]), RuntimeError),),
)
samples(
    hstack, _lists((((2, 1), (2, 3)),), (((2,), (3,)),), (((), (2,)),)), lambda ts: np.hstack(ts)
)
samples(vstack, _lists((((1, 2), (3, 2)),), (((2,), (2,)),)), lambda ts: np.vstack(ts))
samples(dstack, _lists((((2, 2), (2, 2)),), (((2,), (2,)),), (((1, 2, 1), (1, 2, 3)),)), np.dstack)
samples(column_stack, _lists((((2, 2), (2,)),), (((3,), (3,)),)), np.column_stack)
samples(atleast_1d, lambda rng: _xs(rng, ((),), ((2,),)), np.atleast_1d)
samples(atleast_2d, lambda rng: _xs(rng, ((),), ((2,),), ((1, 2, 1),)), np.atleast_2d)
samples(atleast_3d, lambda rng: _xs(rng, ((),), ((2,),), ((2, 3),)), np.atleast_3d)
samples(
    repeat,
    lambda rng: _xs(rng, ((2, 3), 2, 1), ((2,), 2, 3), ((), 2), ((2, 2), 1, 0)),
    lambda x, *times: np.tile(x, times),
    errors=(
        (lambda flow: flow.ones(2, 2).repeat(2), RuntimeError),
        (lambda flow: flow.ones(2).repeat(-1), RuntimeError),
    ),
)
samples(tile, lambda rng: _xs(rng, ((2, 3), (2,)), ((2,), (2, 2)), ((), (3,))), np.tile)
