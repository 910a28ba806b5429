"""Random numbers on CUDA.

There is one default generator for all devices: a seed gives the same numbers on the CPU and on any
CUDA device.  So each function here is the one of `flow`, under PyTorch's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.cuda.devices import device_count
from flowvm.eager.tensor import Tensor
from flowvm.loading.listing import listing, own_names
from flowvm.ops.random import generator

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


# public: cuda

__dir__ = listing(globals())


def manual_seed(seed: int) -> None:
    """Start the default generator's numbers of `seed`, as `flow.manual_seed` does."""
    generator.manual_seed(seed)


def seed() -> None:
    """Start from a seed that the operating system draws."""
    generator.seed()


manual_seed_all, seed_all = manual_seed, seed  # public: cuda


def initial_seed() -> int:
    """The seed that the numbers started from."""
    return generator.initial_seed()


def get_rng_state(device: DeviceLike | None = None) -> Tensor:
    """The default generator's state."""
    return generator.get_rng_state()


def set_rng_state(new_state: Tensor, device: DeviceLike | None = None) -> None:
    """Go on from where `get_rng_state` was called."""
    generator.set_rng_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    """The state, once for each device: they share it."""
    return [get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states: list[Tensor]) -> None:
    """Go on from where `get_rng_state_all` was called."""
    for state in new_states[:1]:
        set_rng_state(state)


__all__ = own_names(globals())
