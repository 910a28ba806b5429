"""Mixed precision: `flow.autocast` computes what is safe in 16 bits, GradScaler keeps small
gradients from vanishing in it.

    scaler = flow.amp.GradScaler()
    with flow.autocast(dtype=flow.float16):  # bfloat16, the CPU's default, needs no scaler
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

In a graph: `graph.config.enable_amp(True)` and `graph.set_grad_scaler(scaler)`.
"""

from __future__ import annotations

from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.amp.autocast_mode import autocast, custom_bwd, custom_fwd, is_autocast_available
from flowvm.amp.grad_scaler import GradScaler, StaticGradScaler

__all__ = [
    "GradScaler", "StaticGradScaler", "autocast", "custom_bwd", "custom_fwd",
    "is_autocast_available",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
