"""Views that may show an element more than once: `unfold`'s windows and `as_strided`.

Their gradients add up what came back for an element, by `index_add`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowvm.eager.tensor import Tensor, base_of, method
from flowvm.eager.values import adopt_array
from flowvm.errors import ArgumentError, OutOfRangeError, ShapeError
from flowvm.meta.batched_meta import made_for
from flowvm.meta.meta import Size, TensorMeta
from flowvm.ops.declare.composite import filled_of, need_tensor, whole, wrap_dim
from flowvm.ops.declare.core import view_of
from flowvm.ops.declare.rebase import strided_grad
from flowvm.ops.declare.registry import samples
from flowvm.ops.shapes.views import _dims_of, _xs, movedim

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


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


def _unfold_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (meta,), (at, size, step) = c.metas, c.attrs
    if meta.ndim == 0:
        return (g.reshape(()),)
    count = g._meta.shape[at]
    positions = np.arange(count)[:, None] * step + np.arange(size)
    rows = movedim(g, -1, at + 1).flatten(at, at + 1)
    zeros = filled_of(made_for(meta, g._meta), 0, g._meta.dtype)
    places = adopt_array(positions.reshape(-1)).to(device=meta.device)
    return (zeros.index_add(at, places, rows),)


@method()
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """A view of all windows of `size` elements of a dimension, `step` apart; a window is the new
    last dimension.

    >>> flow.arange(5).unfold(0, 3, 1)
    tensor([[0, 1, 2],
            [1, 2, 3],
            [2, 3, 4]])
    """
    need_tensor("unfold", "x", x)
    at = wrap_dim("unfold", dimension, x._meta.ndim)
    size, step = whole("unfold", "size", size), whole("unfold", "step", step)
    meta = _windows_geometry(x._meta, at, size, step)
    return view_of(x, "unfold", meta, 0, _unfold_grad, (at, size, step))


# public: flow
@method()
def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A view with these sizes and strides, `storage_offset` elements into the storage (default: the
    tensor's own).

    Every element must lie in the tensor that `input` is a view of, or in `input` itself if that is
    no view; OutOfRangeError otherwise.

    >>> flow.as_strided(flow.arange(6), (2, 3), (1, 2))
    tensor([[0, 2, 4],
            [1, 3, 5]])
    """
    x = need_tensor("as_strided", "input", input)
    size, stride = _dims_of((size,)), _dims_of((stride,))
    if storage_offset is not None:
        storage_offset = whole("as_strided", "storage_offset", storage_offset)
    if len(size) != len(stride) or any(v < 0 for v in (*size, *stride)):
        raise ArgumentError(
            "as_strided: needs one size and one stride, not negative, for each dimension, got "
            f"{size} and {stride}"
        )
    own = x.storage_offset()
    start = own if storage_offset is None else storage_offset
    base = base_of(x)
    first = base.storage_offset()
    end = first + base._meta.span // base._meta.dtype.itemsize
    meta = TensorMeta.of(Size(size), x._meta.dtype, x._meta.device, tuple(stride))
    last = start + meta.span // meta.dtype.itemsize
    if meta.numel and (start < first or last > end):
        raise OutOfRangeError(
            f"as_strided: size {size}, stride {stride} and offset {start} reach elements {start} "
            "to "
            f"{last - 1}; the tensor has {first} to {end - 1}"
        )
    offset = start - own
    return view_of(x, "as_strided", meta, offset, strided_grad, (size, stride, offset))


samples(
    as_strided,
    lambda rng: _xs(
        rng, ((3, 4), (2, 2), (4, 1)), ((6,), (3, 3), (1, 1), 1), ((4,), (2, 3), (0, 1))
    ),
    lambda x, size, stride, offset=0: np.lib.stride_tricks.as_strided(
        np.ascontiguousarray(x).reshape(-1)[offset:], size, [x.itemsize * s for s in stride]
    ),
    errors=(
        (lambda flow: flow.as_strided(flow.ones(4), (5,), (1,)), IndexError),
        (lambda flow: flow.as_strided(flow.ones(4), (2,), (1, 1)), ValueError),
    ),
)
samples(
    unfold,
    lambda rng: _xs(rng, ((2, 7), 1, 3, 2), ((6,), 0, 2, 1), ((4, 2), 0, 2, 2), ((4, 2), 0, 1, 3)),
    lambda x, dim, size, step: np.lib.stride_tricks.sliding_window_view(x, size, dim)[
        (slice(None),) * (dim % x.ndim) + (slice(None, None, step),)
    ],
    errors=((lambda flow: flow.ones(3).unfold(0, 4, 1), RuntimeError),),
)
