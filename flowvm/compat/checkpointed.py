"""`torch.distributed.algorithms._checkpoint.checkpoint_wrapper`: modules whose activations are
computed again in backward.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from flowvm.nn.module import Module
from flowvm.utils.checkpoint import checkpoint


class CheckpointImpl(enum.Enum):
    """PyTorch's two ways; here both are `flow.utils.checkpoint.checkpoint`."""

    REENTRANT = enum.auto()
    NO_REENTRANT = enum.auto()


class CheckpointWrapper(Module):
    """A module that forgets what `mod` computes, and computes it again in backward."""

    def __init__(
        self,
        mod: Module,
        checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
        checkpoint_fn: Callable[..., object] | None = None,
        **checkpoint_fn_kwargs: Any,
    ) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = mod
        self.checkpoint_fn = checkpoint if checkpoint_fn is None else checkpoint_fn
        self.options = checkpoint_fn_kwargs
        if checkpoint_fn is None:
            self.options.setdefault("use_reentrant", checkpoint_impl is CheckpointImpl.REENTRANT)

    def forward(self, *args: object, **kwargs: Any) -> Any:
        return self.checkpoint_fn(self._checkpoint_wrapped_module, *args, **self.options, **kwargs)


def checkpoint_wrapper(
    module: Module,
    checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
    checkpoint_fn: Callable[..., object] | None = None,
    **checkpoint_fn_kwargs: object,
) -> Module:
    """The module as a CheckpointWrapper."""
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **checkpoint_fn_kwargs)


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Module] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] = lambda _: True,
    auto_wrap_policy: object = None,
) -> None:
    """Put a wrapper around each module below `model` that `check_fn` names."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if check_fn(child) and not isinstance(parent, CheckpointWrapper):
                setattr(parent, name, checkpoint_wrapper_fn(child))
