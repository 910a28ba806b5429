"""Layouts and memory formats: PyTorch's words for the order of elements in memory.

A tensor has the layout `strided`, or a sparse one (`flowvm.ops.sparse`).  A memory format is taken
wherever PyTorch takes one.  Copies and tensors like others lie as PyTorch's do (`format_stride`),
results as their operands (`result_stride`); strides change no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowvm.errors import ArgumentTypeError, ShapeError

if TYPE_CHECKING:
    from flowvm.meta.meta import TensorMeta


class Layout:
    """The memory layout of a tensor: `flow.strided`, or one such as `flow.sparse_coo`.

    >>> flow.ones(2).layout
    flow.strided
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"flow.{self.name}"

    def __reduce__(self) -> str:
        return self.name


class MemoryFormat(Layout):
    """The order of a new tensor's dimensions in memory, such as `flow.contiguous_format`.

    >>> flow.channels_last
    flow.channels_last
    """

    __slots__ = ()


strided = Layout("strided")  # public: flow
sparse_coo, sparse_csr = Layout("sparse_coo"), Layout("sparse_csr")  # public: flow
# public: flow
sparse_csc, sparse_bsr, sparse_bsc = (
    Layout("sparse_csc"),
    Layout("sparse_bsr"),
    Layout("sparse_bsc"),
)
contiguous_format = MemoryFormat("contiguous_format")  # public: flow
preserve_format = MemoryFormat("preserve_format")  # public: flow
channels_last = MemoryFormat("channels_last")  # public: flow
channels_last_3d = MemoryFormat("channels_last_3d")  # public: flow

_MEANINGLESS = ("layout", "memory_format", "names", "non_blocking", "pin_memory")


def accept(name: str, options: dict[str, object]) -> None:
    """Accept PyTorch's keywords that have no meaning here.  ArgumentTypeError for other keywords,
    and for values that PyTorch does not have.
    """
    for key, value in options.items():
        if key not in _MEANINGLESS:
            raise ArgumentTypeError(f"{name}() got an unknown argument {key!r}")
        if key == "layout" and value is not None and value is not strided:
            raise ArgumentTypeError(
                f"{name}: layout is flow.strided, the only one there is, got {value!r}"
            )
        if key == "memory_format" and not isinstance(value, (MemoryFormat, type(None))):
            raise ArgumentTypeError(
                f"{name}: memory_format is one such as flow.contiguous_format, got {value!r}"
            )
        if key == "names" and value is not None:
            raise ArgumentTypeError(f"{name}: dimensions have no names here")


# --- strides --------------------------------------------------------------------------------------

Strides = tuple[int, ...]


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return True if elements have no gaps between them and share no memory."""
    step = 1
    for s, d in sorted(zip(stride, shape, strict=True)):
        if d != 1 and s != step:
            return False
        step *= d
    return True


def result_stride(shape: Sequence[int], operands: Sequence[TensorMeta]) -> Strides | None:
    """Return the strides of a result of `shape` computed element by element; None is C order.
    Dense operands with equal strides pass them on.  Otherwise the result is dense, in the order of
    the first operand that orders two dimensions.  PyTorch's TensorIterator follows this rule too.
    """
    first = operands[0]
    if 0 in shape or all(m.contiguous and m.shape == shape for m in operands):
        return None
    if all(m.stride == first.stride and m.shape == shape for m in operands) and is_dense(
        shape, first.stride
    ):
        return first.stride
    count = len(shape)
    steps = []
    for m in operands:
        sizes = zip(m.shape, shape[count - m.ndim :], m.stride, strict=True)
        own = [0 if n == 1 and d != 1 else s for n, d, s in sizes]
        steps.append((*[0] * (count - m.ndim), *own))
    order = list(range(count))[::-1]  # dimensions, the innermost first
    for i in range(1, count):
        place = i
        for k in range(i - 1, -1, -1):
            inner = _compared(order[k], order[place], steps, shape)
            if inner > 0:
                order[k], order[place] = order[place], order[k]
                place = k
            elif inner < 0:
                break
    return _of_order(shape, order)


def _compared(a: int, b: int, steps: Sequence[Strides], shape: Sequence[int]) -> int:
    """Below 0 if dimension `a` is to lie inside `b`, above 0 if outside, 0 if nobody says so."""
    for stride in steps:
        if stride[a] == 0 or stride[b] == 0:
            continue
        if stride[a] != stride[b]:
            return -1 if stride[a] < stride[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0


def _of_order(shape: Sequence[int], order: Sequence[int]) -> Strides:
    """Dense strides of dimensions in this order, the innermost first."""
    stride, step = [0] * len(shape), 1
    for d in order:
        stride[d] = step
        step *= shape[d]
    return tuple(stride)


def format_stride(name: str, meta: TensorMeta, memory_format: object) -> Strides | None:
    """Return the strides of a copy of `meta` in a memory format, None for C order.  With None or
    `preserve_format` they are the strides of `meta`.  Errors name the call `name`.

    >>> flow.ones(2, 3, 4, 5).contiguous(memory_format=flow.channels_last).stride()
    (60, 1, 15, 3)
    """
    accept(name, {"memory_format": memory_format})
    if memory_format is None or memory_format is preserve_format:
        return None if meta.contiguous else result_stride(meta.shape, (meta,))
    if memory_format is contiguous_format:
        return None
    rank = 4 if memory_format is channels_last else 5
    if meta.ndim != rank:
        raise ShapeError(
            f"{name}: {memory_format!r} is of tensors with {rank} dimensions, this one has shape "
            f"{tuple(meta.shape)}"
        )
    return _of_order(meta.shape, (1, *range(rank - 1, 1, -1), 0))
