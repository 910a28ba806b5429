"""Parameter: the Tensor that a Module registers and an optimizer updates.

A Parameter shares the storage of the tensor it was made from and is always a leaf. Whatever wants
to change its values does so in place under `no_grad` (or through an optimizer kernel), so its
identity, by which optimizers and hooks know it, never changes. Making an alias of another class,
which reaches below Tensor's public interface, is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from flowvm import ops
from flowvm.eager.native.install import take_parameters
from flowvm.eager.overrides import disabled, take_no_calls
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import ArgumentTypeError, DTypeError
from flowvm.loading.listing import listing
from flowvm.ops.declare.renewal import become
from flowvm.vm.watch.purposes import made_for

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DType
    from flowvm.meta.meta import Size

__all__ = ["Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter", "is_lazy"]
__dir__ = listing(globals())


# public: nn
class Parameter(Tensor):
    """A Tensor that becomes one of a Module's parameters when it is assigned as its attribute.

    Parameter(data, requires_grad=True) shares the data of `data`.

    >>> nn.Parameter(flow.tensor([1.0, 2.0]))
    Parameter containing:
    tensor([1., 2.], requires_grad=True)
    """

    __torch_function__ = disabled

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        if data is None:
            data = ops.empty(0)
        if not isinstance(data, Tensor):
            raise ArgumentTypeError(
                f"Parameter() needs a Tensor, got {type(data).__name__}; "
                "make one with flow.tensor(...)"
            )
        if requires_grad and not data.dtype.inexact:
            raise DTypeError(
                f"only floating point tensors can require gradients, got dtype {data.dtype}; "
                "pass requires_grad=False, or register_buffer() it"
            )
        return _alias(cls, data, requires_grad)

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        """Everything happens in __new__, which shares the data."""

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


take_parameters(Parameter)
take_no_calls(Parameter)


# public: nn
class Buffer(Tensor):
    """A Tensor that becomes one of a Module's buffers when it is assigned as its attribute.

    Buffer(data, persistent=True) shares the data of `data`; one that is not persistent is not
    saved.

    >>> layer = nn.Module()
    >>> layer.scale = nn.Buffer(flow.tensor(2.0))
    >>> layer.state_dict(), list(layer.parameters())
    (OrderedDict([('scale', tensor(2.))]), [])
    """

    __torch_function__ = disabled
    persistent: bool

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        if data is None:
            data = ops.empty(0)
        if not isinstance(data, Tensor):
            raise ArgumentTypeError(
                f"Buffer() needs a Tensor, got {type(data).__name__}; make one with "
                "flow.tensor(...)"
            )
        buffer = cast(Buffer, alias(data, data._meta, 0, cls))
        buffer.persistent = persistent
        return buffer

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        """Everything happens in __new__, which shares the data."""


class _Uninitialized:
    """A tensor without values, and without a shape until `materialize` gives it both."""

    cls_to_become: type[Tensor]

    @property
    def shape(self) -> Size:
        """Refuse: a parameter has no shape before it is materialized."""
        raise RuntimeError(
            f"an {type(self).__name__} has no shape before it is materialized: call the module once"
        )

    def materialize(
        self, shape: Sequence[int], device: Any = None, dtype: DType | None = None
    ) -> None:
        """Become a tensor of this shape, of no defined values."""
        own: Any = self
        data = ops.empty(
            tuple(shape),
            device=own.device if device is None else device,
            dtype=own.dtype if dtype is None else dtype,
        )
        own.__class__ = self.cls_to_become
        set_data(own, data)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


# public: nn
class UninitializedParameter(_Uninitialized, Parameter):
    """A Parameter whose shape is not known yet; see `nn.modules.lazy`.

    >>> weight = nn.UninitializedParameter()
    >>> weight.materialize((2, 3))
    >>> weight.shape
    flow.Size([2, 3])
    """

    cls_to_become = Parameter

    def __new__(
        cls,
        requires_grad: bool = True,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
    ) -> UninitializedParameter:
        data = ops.empty(0, device=device, dtype=dtype)
        return cast(UninitializedParameter, _alias(cls, data, requires_grad))

    def __init__(
        self,
        requires_grad: bool = True,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
    ) -> None:
        """Everything happens in __new__."""


# public: nn
class UninitializedBuffer(_Uninitialized, Tensor):
    """A Tensor whose shape is not known yet; see `nn.modules.lazy`.

    >>> nn.modules.lazy.is_lazy(nn.UninitializedBuffer())
    True
    """

    __torch_function__ = disabled
    cls_to_become = Buffer

    def __new__(
        cls,
        requires_grad: bool = False,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
        persistent: bool = True,
    ) -> UninitializedBuffer:
        data = ops.empty(0, device=device, dtype=dtype)
        buffer = cast(UninitializedBuffer, alias(data, data._meta, 0, cls))
        buffer.persistent = persistent  # type: ignore[attr-defined]
        return buffer

    def __init__(
        self,
        requires_grad: bool = False,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
        persistent: bool = True,
    ) -> None:
        """Everything happens in __new__."""


def is_lazy(tensor: object) -> bool:
    """Return True if a parameter or buffer has no shape yet."""
    return isinstance(tensor, _Uninitialized)


def _alias(cls: type[Parameter], data: Tensor, requires_grad: bool) -> Parameter:
    parameter = alias(data, data._meta, 0, cls)
    parameter.requires_grad_(requires_grad)
    made_for(parameter, "param", "")
    return cast(Parameter, parameter)


def set_data(tensor: Tensor, data: Tensor) -> None:
    """Let `tensor` be `data` from now on: same object, other storage, dtype or device."""
    become(tensor, data)
