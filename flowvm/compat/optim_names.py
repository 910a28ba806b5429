"""`torch.optim.optimizer`: flowvm's, and what programs' own optimizers import beside it.

PyTorch's optimizers ask these which of their loops they take; here each step is one kernel anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowvm.autograd import set_grad_enabled
from flowvm.optim import optimizer as _optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence


def _use_grad_for_differentiable(func: Callable[..., object]) -> Callable[..., object]:
    """Return a `step` that is recorded if its optimizer's option `differentiable` says so."""

    @functools.wraps(func)
    def step(self: Any, *args: object, **kwargs: object) -> object:
        with set_grad_enabled(bool(self.defaults.get("differentiable", False))):
            return func(self, *args, **kwargs)

    return step


def _default_to_fused_or_foreach(
    params: Sequence[object], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """Return (False, False): a loop over single tensors, each of which is one instruction."""
    return False, False


def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
    """Return the types of devices whose steps a graph can hold."""
    return ["cpu", "cuda"]


def __getattr__(name: str) -> Any:
    return getattr(_optimizer, name)
