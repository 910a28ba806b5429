"""Activation checkpointing where PyTorch has it; see flowvm.autograd.checkpoint."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowvm.autograd.checkpoint import checkpoint, checkpoint_sequential
from flowvm.eager.tensor import Tensor
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing

if TYPE_CHECKING:
    from flowvm.cuda import random as cuda_random
    from flowvm.utils import _pytree
else:
    _pytree = lazy("flowvm.utils._pytree")
    cuda_random = lazy("flowvm.cuda.random")

__all__ = ["checkpoint", "checkpoint_sequential", "get_device_states", "set_device_states"]
__dir__ = listing(globals())


def get_device_states(*args: object) -> tuple[list[int], list[Tensor]]:
    """The numbers of the CUDA devices that the arguments are on, and their generators' states.

    >>> flow.utils.checkpoint.get_device_states(flow.ones(2))
    ([], [])
    """
    devices = [
        v for v in _pytree.tree_leaves(args) if isinstance(v, Tensor) and v.device.type == "cuda"
    ]
    numbers = sorted({int(v.device.index or 0) for v in devices})
    return numbers, [cuda_random.get_rng_state(number) for number in numbers]


def set_device_states(
    devices: Sequence[int], states: Sequence[Tensor], *, device_type: str | None = None
) -> None:
    """Let the generators of these CUDA devices go on from these states.

    >>> flow.utils.checkpoint.set_device_states([], [])
    """
    for number, state in zip(devices, states, strict=True):
        cuda_random.set_rng_state(state, number)
