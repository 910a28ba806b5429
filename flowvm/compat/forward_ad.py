"""`torch.autograd.forward_ad`: no tensor is dual here; `flow.func.jvp` is forward mode."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from flowvm.eager.tensor import Tensor
from flowvm.errors import ModeError


class UnpackedDualTensor(NamedTuple):
    """What `unpack_dual` gives."""

    primal: Tensor
    tangent: Tensor | None


def unpack_dual(tensor: Tensor, *, level: Any = None) -> UnpackedDualTensor:
    """The tensor, without a tangent."""
    return UnpackedDualTensor(tensor, None)


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise ModeError(
        "forward_ad: tensors are not dual here; write flow.func.jvp(f, primals, tangents)"
    )


dual_level = make_dual = enter_dual_level = _refuse


def exit_dual_level(*, level: Any = None) -> None:
    """Nothing was entered."""
