"""`torch.distributed.algorithms.join`: ranks with different numbers of inputs.  They do not exist
here: each exchange needs all ranks, and a missing one is an error that names it.
"""

from __future__ import annotations

from typing import Any

from flowvm.errors import ModeError


class Joinable:
    """A class for annotations and as a base; it has no methods."""


class JoinHook:
    """A class for annotations and as a base; it has no methods."""


class Join:
    """Raise ModeError: give each rank as many batches, by DistributedSampler or `drop_last`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ModeError(
            "Join: ranks have as many batches each here; use flow.utils.data.DistributedSampler, "
            "or drop_last=True"
        )
