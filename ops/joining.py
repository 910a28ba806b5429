"""Tensors put together, and one tensor repeated.

`cat` copies each tensor into its slice of one fresh output, converting on the way, and is one node
for autograd; the rest is views around `cat` and around one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.dtype import result_type_of
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError, ShapeError
from flowvm.interpreter import call_into
from flowvm.meta import TensorMeta
from flowvm.ops.core import _copy, cast
from flowvm.ops.recording import Recorded, empty_of, need_tensor, record, wrap_dim
from flowvm.ops.registry import Sample, samples
from flowvm.ops.slicing import _slice, _slice_geometry
from flowvm.ops.views import _given, _xs, expand, flatten, reshape, unsqueeze
from flowvm.tensor import Tensor, alias, method

__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "cat",
    "column_stack",
    "concat",
    "concatenate",
    "dstack",
    "hstack",
    "repeat_interleave",
    "row_stack",
    "stack",
    "tile",
    "vstack",
]


def _cat_grad(c: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    (at,) = c.attrs
    out: list[Tensor | None] = []
    start = 0
    for meta, needed in zip(c.metas, c.needs, strict=True):
        size = meta.shape[at]
        piece = _slice(g, at, start, size, 1) if needed else None
        if piece is not None and piece._meta.dtype is not meta.dtype:
            piece = cast(piece, meta.dtype)
        out.append(piece)
        start += size
    return tuple(out)


_cat_op = Recorded("cat", _cat_grad)


def _listed(name: str, tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise ArgumentTypeError(
            f"{name}: argument 'tensors' is a list or tuple of tensors, got "
            f"{type(tensors).__name__}"
        )
    if not tensors:
        raise ShapeError(f"{name}: needs at least one tensor, got an empty list")
    return [need_tensor(name, f"tensors[{i}]", t) for i, t in enumerate(tensors)]


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after the other along `dim`; the other dimensions must agree.

    The dtype is the one they promote to.  1-d tensors without elements are skipped, whatever the
    others' shape. ShapeError when shapes do not fit.

    >>> flow.cat([flow.zeros(1, 2), flow.ones(2, 2)]).shape
    flow.Size([3, 2])
    """
    listed = _listed("cat", tensors)
    metas = [t._meta for t in listed]
    dtype = metas[0].dtype
    if any(m.dtype is not dtype for m in metas):
        dtype = result_type_of(*((m.dtype, False) for m in metas))
    kept = [t for t in listed if t._meta.shape != (0,)]
    parts = kept or listed[:1]
    first = parts[0]._meta
    if first.ndim == 0:
        raise ShapeError("cat: a 0-d tensor cannot be joined; use stack")
    at = wrap_dim("cat", dim, first.ndim)
    total, rest = 0, (first.shape[:at], first.shape[at + 1 :])
    for i, t in enumerate(parts):
        m = t._meta
        if m.ndim != first.ndim or (m.shape[:at], m.shape[at + 1 :]) != rest:
            raise ShapeError(
                f"cat: shapes {tuple(first.shape)} and {tuple(m.shape)} (tensor {i}) differ "
                f"outside dimension {at}"
            )
        if m.device != first.device:
            raise DeviceError(f"cat: tensors are on {first.device} and {m.device}")
        total += m.shape[at]
    out = empty_of(TensorMeta.of((*rest[0], total, *rest[1]), dtype, first.device))
    start = 0
    for t in parts:
        size = t._meta.shape[at]
        meta, offset = _slice_geometry(out._meta, at, start, size, 1)
        if meta.numel:
            call_into(_copy, (alias(out, meta, offset * dtype.itemsize),), (t,))
        start += size
    return record(_cat_op, parts, out, (at,))


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors, all of one shape, along a new dimension `dim`."""
    listed = _listed("stack", tensors)
    shape = listed[0]._meta.shape
    for i, t in enumerate(listed):
        if t._meta.shape != shape:
            raise ShapeError(
                f"stack: all tensors must have one shape, got {tuple(shape)} and "
                f"{tuple(t.shape)} (tensor {i})"
            )
    at = wrap_dim("stack", dim, len(shape) + 1)
    return cat([unsqueeze(t, at) for t in listed], at)


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
    """Views with at least 1 dimension."""
    return _at_least(1, tensors)


def atleast_2d(*tensors: Tensor) -> Any:
    """Views with at least 2 dimensions, new ones in front."""
    return _at_least(2, tensors)


def atleast_3d(*tensors: Tensor) -> Any:
    """Views with at least 3 dimensions: (n) becomes (1, n, 1) and (m, n) becomes (m, n, 1)."""
    return _at_least(3, tensors)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors side by side: along dimension 1, or 0 if they are 1-d."""
    grown = [_grown(1, t) for t in _listed("hstack", tensors)]
    return cat(grown, 0 if grown[0]._meta.ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors on top of each other: along dimension 0, 1-d ones as rows."""
    return cat([_grown(2, t) for t in _listed("vstack", tensors)], 0)


row_stack = vstack


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors behind each other: along dimension 2."""
    return cat([_grown(3, t) for t in _listed("dstack", tensors)], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors side by side, 0-d and 1-d ones as columns."""
    columns = [
        reshape(t, (-1, 1)) if t._meta.ndim <= 1 else t for t in _listed("column_stack", tensors)
    ]
    return cat(columns, 1)


# --- repetition ---------------------------------------------------------------------------------


@method()
def repeat(x: Tensor, *repeats: Any) -> Tensor:
    """A copy with the whole tensor `repeats[d]` times along each dimension; more numbers than
    dimensions add some.

    >>> flow.tensor([1, 2]).repeat(2, 2).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    times = _given(repeats)
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
def tile(input: Tensor, *dims: Any) -> Tensor:
    """`repeat`, where missing numbers in front are 1."""
    x = need_tensor("tile", "input", input)
    times = _given(dims)
    return repeat(x, (1,) * (x._meta.ndim - len(times)) + times)


@method()
def repeat_interleave(
    input: Tensor,
    repeats: int | Tensor,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Tensor:
    """Each element (or each slice of `dim`) `repeats` times in place; without `dim` of the
    flattened tensor.

    `repeats` may be a tensor with a number for each slice; then the result's size is known when it
    has run.
    """
    x = need_tensor("repeat_interleave", "input", input)
    if dim is None:
        x, dim = flatten(x), 0
    at = wrap_dim("repeat_interleave", dim, x._meta.ndim)
    if x._meta.ndim == 0:
        x = unsqueeze(x, 0)
    size = x._meta.shape[at]
    if isinstance(repeats, Tensor):
        from flowvm.ops.counting import repeated_positions
        from flowvm.ops.gathering import index_select

        if repeats._meta.dtype.is_floating_point or repeats._meta.shape not in ((), (1,), (size,)):
            raise ShapeError(
                f"repeat_interleave: repeats must be integers, one or {size} of them, got "
                f"{repeats._meta}"
            )
        counts = expand(reshape(repeats, (-1,)), (size,))
        return index_select(x, at, repeated_positions(counts))
    (times,) = _given((repeats,))
    if times < 0:
        raise ArgumentError(f"repeat_interleave: repeats cannot be negative, got {times}")
    shape = x._meta.shape
    spread = expand(unsqueeze(x, at + 1), (*shape[: at + 1], times, *shape[at + 1 :]))
    return reshape(spread.clone(), (*shape[:at], size * times, *shape[at + 1 :]))


# --- samples ------------------------------------------------------------------------------------


def _lists(*calls: tuple[Any, ...]) -> Any:
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
samples(
    repeat_interleave,
    lambda rng: [
        *_xs(rng, ((2, 3), 2), ((2, 3), 3, 1), ((2,), 0)),
        Sample((rng.standard_normal((3, 2)), np.array([2, 0, 1]), 0)),
        Sample((rng.standard_normal((2, 2)), np.array([3]), 1)),
    ],
    np.repeat,
    errors=(
        (lambda flow: flow.repeat_interleave(flow.ones(2), -1), ValueError),
        (lambda flow: flow.repeat_interleave(flow.ones(2), flow.ones(2)), RuntimeError),
    ),
)
