"""Mixed precision in a graph: `build` under autocast, a loss that is scaled, steps that the scaler
takes or skips.

The same functions serve a capture and the eager step that an optimizer's state is made by, so both
do what a training loop with `autocast` and `GradScaler` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from flowvm.autograd.backward import scaled
from flowvm.dtype import DType
from flowvm.eager.autocasting import autocasting

if TYPE_CHECKING:
    from flowvm.amp import GradScaler
    from flowvm.optim import Optimizer


@contextmanager
def precision(amp: DType | None, scaler: GradScaler | None) -> Iterator[None]:
    """What `build` runs in: autocast to `amp`, if given; backward of the scaled loss."""
    with ExitStack() as regions:
        if amp is not None:
            regions.enter_context(autocasting(amp))
        if scaler is not None and scaler.is_enabled():
            regions.enter_context(scaled(scaler._scale))
        try:
            yield
        except BaseException:
            if scaler is not None:
                scaler.forget()
            raise


def step_all(optimizers: Sequence[tuple[Optimizer, Any]], scaler: GradScaler | None) -> None:
    """One step of each optimizer; with a scaler, one that it may skip, and its update."""
    if scaler is None:
        for optimizer, _ in optimizers:
            optimizer.step()
        return
    try:
        for optimizer, _ in optimizers:
            scaler.step(optimizer)
        if optimizers:
            scaler.update()
    finally:
        scaler.forget()  # what a capture found, or one that failed, has no value
