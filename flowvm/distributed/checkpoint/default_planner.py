"""Planners: the choice of entries of a state dict to save and to load.  There is one choice;
`DefaultLoadPlanner` may let a checkpoint lack entries.
"""

from __future__ import annotations

from flowvm.loading.listing import listing

# public: distributed.checkpoint

__all__ = ["DefaultLoadPlanner", "DefaultSavePlanner"]
__dir__ = listing(globals())


class SavePlanner:
    """The base class of the argument `save(planner=)`.

    >>> from flowvm.distributed.checkpoint import DefaultSavePlanner, SavePlanner
    >>> issubclass(DefaultSavePlanner, SavePlanner)
    True
    """


class LoadPlanner:
    """The base class of the argument `load(planner=)`.

    >>> from flowvm.distributed.checkpoint import DefaultLoadPlanner, LoadPlanner
    >>> issubclass(DefaultLoadPlanner, LoadPlanner)
    True
    """


class DefaultSavePlanner(SavePlanner):
    """Save the whole state dict: each part of a tensor once, by the first rank that has it.

    >>> from flowvm.distributed.checkpoint import DefaultSavePlanner
    >>> _ = DefaultSavePlanner()
    """

    def __init__(
        self,
        flatten_state_dict: bool = True,
        flatten_sharded_tensors: bool = True,
        dedup_replicated_tensors: bool | None = None,
        dedup_save_to_lowest_rank: bool = False,
        enable_plan_caching: bool = False,
    ) -> None:
        self.flatten_state_dict = flatten_state_dict


class DefaultLoadPlanner(LoadPlanner):
    """Load all entries that the state dict names.

    allow_partial_load   what the checkpoint lacks stays as it is; else that is an error

    >>> from flowvm.distributed.checkpoint import DefaultLoadPlanner
    >>> DefaultLoadPlanner(allow_partial_load=True).allow_partial_load
    True
    """

    def __init__(
        self,
        flatten_state_dict: bool = True,
        flatten_sharded_tensors: bool = True,
        allow_partial_load: bool = False,
        **more: object,
    ) -> None:
        self.allow_partial_load = allow_partial_load
