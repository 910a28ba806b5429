"""`flow.random`: seeds and generators of random numbers, with PyTorch's names.

Not here: what draws (`flow.rand` and its family).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowvm import cuda
from flowvm.guards.regions import Switched
from flowvm.loading.listing import listing
from flowvm.meta.device import DeviceLike

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.ops.random.generator import (
    default_generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state,
)

__all__ = [
    "default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed",
    "set_rng_state",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())


class fork_rng(Switched):  # noqa: N801 - it is called as a function is
    """Restore the state of random generators at the end of a with statement.

    devices   CUDA devices whose generators are kept too; None: those in use
    enabled   False lets it do nothing

    >>> with flow.random.fork_rng():
    ...     flow.manual_seed(0)
    """

    def __init__(
        self,
        devices: Iterable[DeviceLike] | None = None,
        enabled: bool = True,
        _caller: str = "fork_rng",
        _devices_kw: str = "devices",
        device_type: str = "cuda",
    ) -> None:
        self.enabled = enabled
        if devices is None:
            devices = range(cuda.device_count()) if cuda.is_initialized() else ()
        self.devices = list(devices)
        self._states: list[Any] = []

    def _switch(self) -> None:
        if self.enabled:
            self._states = [get_rng_state(), *(cuda.get_rng_state(d) for d in self.devices)]

    def _undo(self) -> None:
        if self._states:
            set_rng_state(self._states[0])
            for device, state in zip(self.devices, self._states[1:], strict=True):
                cuda.set_rng_state(state, device)
