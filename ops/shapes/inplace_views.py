"""Tensors that change how they show their memory, or which memory they show: `t_`, `squeeze_`,
`resize_`, `set_`.

The tensor stays the object that it is; what else looks at the memory is left as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowvm.eager.keywords import spelled
from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.eager.values import wait_for
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError
from flowvm.meta.formats import accept
from flowvm.meta.meta import as_shape, dense_stride
from flowvm.ops.declare.composite import empty_of, need_tensor
from flowvm.ops.declare.core import copy_
from flowvm.ops.declare.renewal import become
from flowvm.ops.shapes.fill import number_for, size_of
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND

if TYPE_CHECKING:
    from flowvm.meta.device import Device


def _shown_as(name: str) -> None:
    """`Tensor.<name>`: the tensor becomes the view of it that its method of that name makes."""
    viewed = name.removesuffix("_")

    def method_(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        if x._node is not None and x._node.is_leaf and grad_enabled():
            raise AutogradError(
                f"{name}: a leaf tensor that requires grad cannot be changed in place; do it "
                f"under flow.no_grad()"
            )
        shown = getattr(x, viewed)(*args, **kwargs)
        if shown is not x:
            node = shown._node
            become(x, shown)
            if node is not None:
                x._node = node
        return x

    method_.__name__ = method_.__qualname__ = name
    method_.__doc__ = f"In-place `{viewed}`: `x` shows its memory so from now on; `x`."
    method(name)(method_)


for _name in (
    "as_strided_", "contiguous_",
    "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_",
):  # fmt: skip
    _shown_as(_name)


# --- memory ---------------------------------------------------------------------------------------


def _no_grad_wanted(name: str, x: Tensor) -> None:
    if x._node is not None:
        raise AutogradError(f"{name}: a tensor that requires grad cannot be resized; detach() it")


@method()
def resize_(x: Tensor, *sizes: object, **options: object) -> Tensor:
    """Give `x` another shape, in place.

    It keeps its first elements in C order; further elements have any values.

    AutogradError if it requires grad.

    >>> flow.arange(6).resize_(2, 2)
    tensor([[0, 1],
            [2, 3]])
    """
    _no_grad_wanted("resize_", x)
    shape = size_of(sizes, "resize_", options)
    meta = x._meta.with_shape(shape)
    if meta is x._meta:
        return x
    if meta.numel <= x._meta.numel and x._meta.contiguous:
        return become(x, alias(x, meta))
    grown = empty_of(meta)
    count = min(meta.numel, x._meta.numel)
    copy_(grown.reshape(-1)[:count], x.detach().reshape(-1)[:count])
    return become(x, grown)


@method()
@spelled(the_template="other")
def resize_as_(x: Tensor, other: Tensor, **options: object) -> Tensor:
    """`x.resize_(other.shape)`."""
    accept("resize_as_", options)
    resized: Tensor = resize_(x, need_tensor("resize_as_", "the template", other)._meta.shape)
    return resized


@method()
def set_(
    x: Tensor,
    source: Any = None,
    storage_offset: int = 0,
    size: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
) -> Tensor:
    """`x` on the memory of `source`, a tensor of its dtype: with `source`'s shape, or with `size`,
    `stride` (in C order if none is given) and `storage_offset`, in elements; empty without one.

    >>> flow.empty(0).set_(flow.ones(3))
    tensor([1., 1., 1.])
    """
    _no_grad_wanted("set_", x)
    if source is None:
        return become(x, empty_of(x._meta.with_shape((0,))))
    if isinstance(source, UntypedStorage):
        source = source.tensor
    if need_tensor("set_", "source", source)._meta.dtype is not x._meta.dtype:
        raise ArgumentTypeError(
            f"set_: source is {source.dtype.name} and the tensor {x.dtype.name}"
        )
    if size is None:
        return become(x, source.detach())
    shape = as_shape(size)
    steps = dense_stride(shape) if stride is None else tuple(stride)
    shown = source.detach()
    return become(x, shown.as_strided(shape, steps, storage_offset))


# public: flow
class UntypedStorage:
    """The memory that a tensor and its views share, to compare and to measure: the result of
    `x.untyped_storage()`.  Its values are the tensors'.

    >>> x = flow.ones(3)
    >>> x.untyped_storage() == x[1:].untyped_storage(), x.untyped_storage().nbytes()
    (True, 12)
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def device(self) -> Device:
        """The device of the memory."""
        return self.tensor._meta.device

    def data_ptr(self) -> int:
        """Return the address of the first byte.  Waits for the tensor."""
        wait_for(self.tensor)
        return engine.storages.pointer(self.tensor._ref & ((1 << OPERAND.STORAGE_BITS) - 1))

    def nbytes(self) -> int:
        """Bytes up to the end of the tensor that it was asked of."""
        return (self.tensor._ref >> OPERAND.STORAGE_BITS) + self.tensor._meta.span

    size = __len__ = nbytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UntypedStorage) and self.tensor.storage() is other.tensor.storage()

    def __hash__(self) -> int:
        return id(self.tensor.storage())

    def __repr__(self) -> str:
        return f"UntypedStorage({self.nbytes()} bytes on {self.device})"


@method()
def untyped_storage(x: Tensor) -> UntypedStorage:
    """The memory that `x` and its views share.

    >>> flow.ones(2, 3).untyped_storage().nbytes()
    24
    """
    return UntypedStorage(x.detach())


@method()
def is_set_to(x: Tensor, tensor: Tensor) -> bool:
    """Return True if both tensors show the same memory in the same way.

    >>> x = flow.ones(2)
    >>> x.is_set_to(x.view(2)), x.is_set_to(x.clone())
    (True, False)
    """
    other = need_tensor("is_set_to", "tensor", tensor)
    same = x.storage() is other.storage() and x._ref == other._ref
    return same and x._meta is other._meta


@method()
def fill_diagonal_(x: Tensor, fill_value: object, wrap: bool = False) -> Tensor:
    """Fill the diagonal of `x`, of two dimensions or of more that are all of one length, with a
    number; with `wrap`, again below it where a matrix has more rows than columns.

    >>> flow.zeros(2, 2).fill_diagonal_(7)
    tensor([[7., 0.],
            [0., 7.]])
    """
    meta = need_tensor("fill_diagonal_", "input", x)._meta
    if meta.ndim < 2 or (meta.ndim > 2 and len(set(meta.shape)) > 1):
        raise ArgumentError(
            f"fill_diagonal_: a matrix, or dimensions of one length, got {tuple(meta.shape)}"
        )
    value = number_for(fill_value, meta.dtype)
    step, side = sum(meta.stride), min(meta.shape)
    offset = x.storage_offset()
    shown: Tensor = x
    shown.as_strided((side,), (step,), offset).fill_(value)
    rows, columns = meta.shape[0], meta.shape[1]
    if wrap and meta.ndim == 2 and rows > columns + 1:
        for top in range(columns + 1, rows, columns + 1):
            part: Tensor = x[top:]
            count = min(rows - top, columns)
            part.as_strided((count,), (step,), part.storage_offset()).fill_(value)
    return x


@method()
def record_stream(x: Tensor, stream: object) -> None:
    """Do nothing: the VM knows which instructions read the memory, on all streams.

    >>> flow.ones(2).record_stream(flow.current_stream())
    """
