"""Mixed precision in a graph: `build` under autocast, a loss that is scaled, steps that the scaler
takes or skips.

The same functions serve a capture and the eager step that an optimizer's state is made by, so both
do what a training loop with `autocast` and `GradScaler` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.autograd.backward import scaled
from flowvm.eager.autocast import autocasting
from flowvm.meta.dtype import DType

if TYPE_CHECKING:
    from flowvm.amp import GradScaler
    from flowvm.optim import Optimizer

T = TypeVar("T")


def precisely(
    amp: DType | None,
    scaler: GradScaler | None,
    build: Callable[..., T],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> T:
    """What `build` returns under autocast to `amp`, if given; backward is of the scaled loss."""
    on = scaler is not None and scaler.is_enabled()
    try:
        with (
            nullcontext() if amp is None else autocasting(amp),
            scaled(scaler._scale) if scaler is not None and on else nullcontext(),
        ):
            return build(*args, **kwargs)
    except BaseException:
        if scaler is not None:
            scaler.forget()
        raise


def step_all(optimizers: Sequence[Optimizer], scaler: GradScaler | None) -> None:
    """One step of each optimizer; with a scaler, one that it may skip, and its update."""
    if scaler is None:
        for optimizer in optimizers:
            optimizer._graph_step(optimizer.step)
        return
    try:
        for optimizer in optimizers:
            if not scaler.has_unscaled(optimizer):
                scaler.unscale_(optimizer)  # clipping is of the gradients themselves
            optimizer._graph_step(partial(scaler.step, optimizer))
        if optimizers:
            scaler.update()
    finally:
        scaler.forget()  # what a capture found, or one that failed, has no value
