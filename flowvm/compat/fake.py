"""`torch._subclasses.fake_tensor`: tensors without values.  They are on the meta device here; in a
FakeTensorMode all tensors are.
"""

from __future__ import annotations

from typing import Any

from flowvm.eager.overrides import ALL, unasked
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError
from flowvm.fx import make_fx as make_fx
from flowvm.meta.device import Device
from flowvm.overrides import TorchFunctionMode
from flowvm.utils._pytree import tree_map


class _Fakes(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value._meta.device.type == "meta"


class FakeTensor(metaclass=_Fakes):
    """The class of tensors on the meta device: they have a shape, and no values."""


class FakeTensorMode(TorchFunctionMode):
    """Inside, functions make tensors without values on any device, and compute shapes and dtypes.
    `from_tensor` makes such a tensor like another one.

    allow_non_fake_inputs   tensors with values may be arguments, and count as fakes of them; else
                            they are a TypeError
    The other arguments are taken: there are no symbolic shapes.
    """

    def __init__(self, *, allow_non_fake_inputs: bool = False, **options: object) -> None:
        self.allow_non_fake_inputs = allow_non_fake_inputs

    def from_tensor(self, tensor: Tensor, **options: object) -> Tensor:
        """Return a tensor of equal shape and dtype without values."""
        with unasked.within(ALL):
            fake: Tensor = tensor.to("meta")
        return fake

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Make the call with fake tensors."""
        if getattr(func, "__name__", "") in ("__get__", "__repr__"):
            return func(*args, **(kwargs or {}))

        def fake(value: Tensor) -> object:
            if not isinstance(value, Tensor) or value._meta.device.type == "meta":
                return value
            if not self.allow_non_fake_inputs:
                raise ArgumentTypeError(
                    f"{getattr(func, '__name__', func)}: FakeTensorMode takes tensors of its own; "
                    f"make them by mode.from_tensor(x), or the mode with "
                    f"allow_non_fake_inputs=True"
                )
            return self.from_tensor(value)

        args, kwargs = tree_map(fake, (args, dict(kwargs or {})))
        if kwargs.get("device") is not None:
            kwargs["device"] = Device("meta")
        with Device("meta"):
            return func(*args, **kwargs)


def get_proxy_mode() -> None:
    """Return None: make_fx records calls without a mode."""
    return


def is_fake(x: object) -> bool:
    """Return True if `x` is a tensor without values."""
    return isinstance(x, FakeTensor)
