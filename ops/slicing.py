"""Views of some of the elements: slices, diagonals, windows, pieces; and the basic half of indexing.

Each is a geometry, (meta, attributes) -> (meta, offset).  Where no element is seen twice its gradient is made by the same
geometry: zeros of the whole shape, and the gradient copied through the view.  `split` and its kin are one node with
an edge for each piece, so that their gradient is one `cat`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowvm.errors import (
    ArgumentError,
    ArgumentTypeError,
    AutogradError,
    OutOfRangeError,
    ShapeError,
)
from flowvm.interpreter import Node, OutputEdge, grad_enabled
from flowvm.meta import Size, TensorMeta
from flowvm.ops.core import copy_, view_of
from flowvm.ops.recording import Recorded, filled_of, need_tensor, record, wrap_dim
from flowvm.ops.views import _given, movedim
from flowvm.reading import adopt_array
from flowvm.tensor import Tensor, alias, method

__all__ = [
    "as_strided",
    "basic_view",
    "chunk",
    "diagonal",
    "dsplit",
    "hsplit",
    "narrow",
    "select",
    "split",
    "split_with_sizes",
    "tensor_split",
    "unbind",
    "unfold",
    "vsplit",
]

Geometry = Callable[..., tuple[TensorMeta, int]]


def _strided_view(name: str, geometry: Geometry) -> Callable[..., Tensor]:
    """The view function of a geometry that shows no element twice."""
    cached = functools.lru_cache(1 << 14)(geometry)

    def backward(c: Any, g: Tensor) -> tuple[Tensor]:
        return (embed(g, c.metas[0], *c.attrs),)

    def embed(g: Tensor, whole: TensorMeta, *attrs: Any) -> Tensor:
        out = filled_of(whole, 0, g._meta.dtype)
        meta, offset = cached(out._meta, *attrs)
        copy_(alias(out, meta, offset * meta.dtype.itemsize), g.detach())
        return record(embedded, (g,), out, attrs)

    def view(x: Tensor, *attrs: Any) -> Tensor:
        meta, offset = cached(x._meta, *attrs)
        return view_of(x, name, meta, offset, backward, attrs)

    embedded = Recorded(f"{name}_backward", lambda c, g: (view(g, *c.attrs),), ("g",))
    return view


def _select_geometry(meta: TensorMeta, dim: int, index: int) -> tuple[TensorMeta, int]:
    if meta.ndim == 0:
        raise OutOfRangeError("a 0-d tensor cannot be indexed; use .item() for its value")
    at = wrap_dim("select", dim, meta.ndim)
    size, step = meta.shape[at], meta.stride[at]
    if not -size <= index < size:
        raise OutOfRangeError(f"index {index} is out of bounds for dimension {at} with size {size}")
    shape = Size(meta.shape[:at] + meta.shape[at + 1 :])
    stride = meta.stride[:at] + meta.stride[at + 1 :]
    offset = (index + size if index < 0 else index) * step
    return TensorMeta.of(shape, meta.dtype, meta.device, stride), offset


def _slice_geometry(
    meta: TensorMeta, at: int, start: int, length: int, step: int
) -> tuple[TensorMeta, int]:
    shape, stride = list(meta.shape), list(meta.stride)
    offset = start * stride[at] if length else 0
    shape[at], stride[at] = length, stride[at] * step
    return TensorMeta.of(Size(shape), meta.dtype, meta.device, tuple(stride)), offset


_select = _strided_view("select", _select_geometry)
_slice = _strided_view("slice", _slice_geometry)


@method()
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """A view of the elements with `index` in dimension `dim`, which it no longer has."""
    return _select(need_tensor("select", "input", input), dim, index)


@method()
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A view of `length` elements of dimension `dim` from `start` on."""
    x = need_tensor("narrow", "input", input)
    if x._meta.ndim == 0:
        raise ShapeError("narrow: a 0-d tensor has no dimension to narrow")
    at = wrap_dim("narrow", dim, x._meta.ndim)
    size = x._meta.shape[at]
    first = start + size if start < 0 else start
    if not 0 <= first <= size:
        raise OutOfRangeError(f"narrow: start {start} is outside dimension {dim} of size {size}")
    if length < 0 or first + length > size:
        raise ShapeError(
            f"narrow: start {start} and length {length} go beyond dimension {dim} of size {size}"
        )
    return _slice(x, at, first, length, 1)


def _diagonal_geometry(
    meta: TensorMeta, offset: int, dim1: int, dim2: int
) -> tuple[TensorMeta, int]:
    a, b = wrap_dim("diagonal", dim1, meta.ndim), wrap_dim("diagonal", dim2, meta.ndim)
    if a == b:
        raise ShapeError(f"diagonal: dim1 and dim2 are both dimension {a} of shape {tuple(meta.shape)}")
    rows, columns = meta.shape[a], meta.shape[b]
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = offset * meta.stride[b] if offset >= 0 else -offset * meta.stride[a]
    keep = [i for i in range(meta.ndim) if i not in (a, b)]
    shape = Size([*(meta.shape[i] for i in keep), length])
    stride = (*(meta.stride[i] for i in keep), meta.stride[a] + meta.stride[b])
    return TensorMeta.of(shape, meta.dtype, meta.device, stride), start if length else 0


_diagonal = _strided_view("diagonal", _diagonal_geometry)


@method()
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonals of `dim1` and `dim2`, as the last dimension; `offset` > 0 is above the main one."""
    return _diagonal(need_tensor("diagonal", "input", input), offset, dim1, dim2)


# --- basic indexing -------------------------------------------------------------------------------------

# A basic index is one item for each dimension: an int, (start, length, step), or None for a new dimension.


def _basic_geometry(meta: TensorMeta, items: tuple[Any, ...]) -> tuple[TensorMeta, int]:
    shape, stride, offset, d = [], [], 0, 0
    for item in items:
        if item is None:
            shape.append(1)
            stride.append(meta.shape[d] * meta.stride[d] if d < meta.ndim else 1)
        elif type(item) is tuple:
            start, length, step = item
            shape.append(length)
            stride.append(meta.stride[d] * step)
            offset += start * meta.stride[d]
            d += 1
        else:
            offset += item * meta.stride[d]
            d += 1
    out = TensorMeta.of(Size(shape), meta.dtype, meta.device, tuple(stride))
    return out, offset if out.numel else 0


basic_view = _strided_view("getitem", _basic_geometry)


# --- pieces ---------------------------------------------------------------------------------------------


def _pieces_grad(c: Any, *gradients: Tensor | None) -> tuple[Tensor]:
    from flowvm.ops.joining import cat, stack

    given = next(g for g in gradients if g is not None)
    dtype = given._meta.dtype
    parts = [
        filled_of(m, 0, dtype) if g is None else g
        for g, m in zip(gradients, c.out_metas, strict=True)
    ]
    (dim, removed) = c.attrs
    return (stack(parts, dim) if removed else cat(parts, dim),)


_split_op = Recorded("split", _pieces_grad, ("x",))


def _pieces(x: Tensor, at: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Views of consecutive pieces that cover dimension `at`; each piece of size 0 in `sizes` selects."""
    plain = x.detach() if x._node is not None else x
    out, start = [], 0
    for size in sizes:
        out.append(_slice(plain, at, start, size, 1))
        start += size
    return _joined(x, out, (at, False))


def _joined(x: Tensor, out: list[Tensor], attrs: tuple[int, bool]) -> tuple[Tensor, ...]:
    base = x.extra().get("base", x) if x._storage is not None else x
    if x._node is not None:
        for piece in out:
            piece._extra["base"] = base
        if out and grad_enabled():
            metas = tuple(piece._meta for piece in out)
            node = Node(_split_op, (x._node,), (), (), (x._meta,), attrs, metas)
            for i, piece in enumerate(out):
                piece._node = OutputEdge(node, i) if len(out) > 1 else node
    return tuple(out)


@method()
def split(
    tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Views of consecutive pieces of dimension `dim`: of this size (the last may be smaller), or of these sizes."""
    x = need_tensor("split", "tensor", tensor)
    if x._meta.ndim == 0:
        raise ShapeError("split: a 0-d tensor has no dimension to split")
    at = wrap_dim("split", dim, x._meta.ndim)
    size = x._meta.shape[at]
    if isinstance(split_size_or_sections, (tuple, list)):
        sizes = _given((split_size_or_sections,))
        if sum(sizes) != size or any(s < 0 for s in sizes):
            raise ShapeError(f"split: sizes {sizes} do not add up to dimension {dim} of size {size}")
        return _pieces(x, at, sizes)
    (step,) = _given((split_size_or_sections,))
    if step < 0 or (step == 0 and size > 0):
        raise ArgumentError(f"split: split_size must be positive, got {step}")
    if size == 0:
        return _pieces(x, at, (0,))
    return _pieces(x, at, [min(step, size - i) for i in range(0, size, step)])


@method()
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """`split` with a list of sizes."""
    return split(input, list(split_sizes), dim)


@method()
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of equal size, the last maybe smaller: ceil(size / chunks) each."""
    x = need_tensor("chunk", "input", input)
    if chunks <= 0:
        raise ArgumentError(f"chunk: chunks must be positive, got {chunks}")
    if x._meta.ndim == 0:
        raise ShapeError("chunk: a 0-d tensor has no dimension to split")
    at = wrap_dim("chunk", dim, x._meta.ndim)
    size = x._meta.shape[at]
    if size == 0:
        return _pieces(x, at, [0] * chunks)
    return split(x, -(-size // chunks), at)


@method()
def tensor_split(
    input: Tensor, indices_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Pieces cut at these indices, or this many whose sizes differ by at most one (NumPy's array_split)."""
    x = need_tensor("tensor_split", "input", input)
    if x._meta.ndim == 0:
        raise ShapeError("tensor_split: a 0-d tensor has no dimension to split")
    at = wrap_dim("tensor_split", dim, x._meta.ndim)
    size = x._meta.shape[at]
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, (tuple, list)):
        cuts = [slice(None, i).indices(size)[1] for i in _given((indices_or_sections,))]
        edges = [0, *cuts, size]
        spans = [(a, max(0, b - a)) for a, b in zip(edges, edges[1:], strict=False)]
        if all(a <= b for a, b in zip(edges, edges[1:], strict=False)):
            return _pieces(x, at, [n for _, n in spans])
        return tuple(_slice(x, at, a, n, 1) for a, n in spans)
    (sections,) = _given((indices_or_sections,))
    if sections <= 0:
        raise ArgumentError(f"tensor_split: sections must be positive, got {sections}")
    each, more = divmod(size, sections)
    return _pieces(x, at, [each + (i < more) for i in range(sections)])


def _even_split(name: str, x: Tensor, sections: Any, dim: int, least: int) -> tuple[Tensor, ...]:
    if need_tensor(name, "input", x)._meta.ndim < least:
        raise ShapeError(f"{name}: needs at least {least} dimensions, got shape {tuple(x.shape)}")
    if isinstance(sections, int) and (sections <= 0 or x._meta.shape[dim] % sections):
        raise ShapeError(
            f"{name}: dimension {dim} of size {x._meta.shape[dim]} does not split into {sections} "
            f"equal pieces; tensor_split makes unequal ones"
        )
    return tensor_split(x, sections, dim)


@method()
def hsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Pieces along dimension 1 (0 of a 1-d tensor); an int must divide its size."""
    one = isinstance(input, Tensor) and input._meta.ndim == 1
    return _even_split("hsplit", input, indices_or_sections, 0 if one else 1, 1)


@method()
def vsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Pieces along dimension 0 of a tensor of at least 2."""
    return _even_split("vsplit", input, indices_or_sections, 0, 2)


@method()
def dsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Pieces along dimension 2 of a tensor of at least 3."""
    return _even_split("dsplit", input, indices_or_sections, 2, 3)


@method()
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """A view for each index of dimension `dim`, without it."""
    x = need_tensor("unbind", "input", input)
    if x._meta.ndim == 0:
        raise ShapeError("unbind: a 0-d tensor has no dimension to take apart")
    at = wrap_dim("unbind", dim, x._meta.ndim)
    plain = x.detach() if x._node is not None else x
    out = [_select(plain, at, i) for i in range(x._meta.shape[at])]
    return _joined(x, out, (at, True))


# --- views that may show an element twice --------------------------------------------------------------


def _windows_geometry(meta: TensorMeta, at: int, size: int, step: int) -> TensorMeta:
    length = meta.shape[at] if meta.ndim else 1
    if not 0 <= size <= length or step <= 0:
        raise ShapeError(
            f"unfold: size {size} and step {step} do not fit dimension {at} of size {length}"
        )
    shape = [*meta.shape, size]
    stride = [*meta.stride, meta.stride[at] if meta.ndim else 1]
    if meta.ndim:
        shape[at] = (length - size) // step + 1
        stride[at] *= step
    return TensorMeta.of(Size(shape), meta.dtype, meta.device, tuple(stride))


def _unfold_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    from flowvm.ops.gathering import index_add

    (meta,), (at, size, step) = c.metas, c.attrs
    if meta.ndim == 0:
        return (g.reshape(()),)
    count = g._meta.shape[at]
    positions = np.arange(count)[:, None] * step + np.arange(size)
    rows = movedim(g, -1, at + 1).flatten(at, at + 1)
    zeros = filled_of(meta, 0, g._meta.dtype)
    return (index_add(zeros, at, adopt_array(positions.reshape(-1)), rows),)


@method()
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """A view of all windows of `size` elements of a dimension, `step` apart; a window is the new last dimension."""
    at = wrap_dim("unfold", dimension, x._meta.ndim)
    meta = _windows_geometry(x._meta, at, size, step)
    return view_of(x, "unfold", meta, 0, _unfold_grad, (at, size, step))


def _as_strided_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    from flowvm.ops.gathering import index_add

    (meta,), (size, stride, offset) = c.metas, c.attrs
    positions = np.lib.stride_tricks.as_strided(
        np.arange(meta.numel)[offset:], size, [8 * s for s in stride]
    )
    zeros = filled_of(meta.with_shape((meta.numel,)), 0, g._meta.dtype)
    flat = adopt_array(np.array(positions.reshape(-1)))
    return (index_add(zeros, 0, flat, g.reshape(-1)).reshape(meta.shape),)


@method()
def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A view with these sizes and strides, `storage_offset` elements into the storage (default: the tensor's own).

    Every element must lie in the tensor that `input` is a view of, or in `input` itself if that is no view;
    OutOfRangeError otherwise.
    """
    x = need_tensor("as_strided", "input", input)
    size, stride = _given((size,)), _given((stride,))
    if len(size) != len(stride) or any(v < 0 for v in (*size, *stride)):
        raise ArgumentError(
            f"as_strided: needs one size and one stride, not negative, for each dimension, got {size} and {stride}"
        )
    own = x.storage_offset()
    start = own if storage_offset is None else storage_offset
    base = x.extra().get("base", x)
    first = base.storage_offset()
    end = first + base._meta.span // base._meta.dtype.itemsize
    meta = TensorMeta.of(Size(size), x._meta.dtype, x._meta.device, tuple(stride))
    last = start + meta.span // meta.dtype.itemsize
    if meta.numel and (start < first or last > end):
        raise OutOfRangeError(
            f"as_strided: size {size}, stride {stride} and offset {start} reach elements {start} to "
            f"{last - 1}; the tensor has {first} to {end - 1}"
        )
    offset = start - own
    if x._node is not None and grad_enabled():
        inside = offset >= 0 and offset + last - start <= x._meta.numel
        if not x._meta.contiguous or not inside:
            raise AutogradError(
                "as_strided: has a gradient only for a contiguous tensor and within it; use contiguous() first"
            )
    return view_of(x, "as_strided", meta, offset, _as_strided_grad, (size, stride, offset))


