"""`Join`: ranks with different numbers of inputs.

A rank that still computes tells the others so, once a step, before it exchanges anything.  A rank
that is done answers these calls and makes the step's exchanges with zeros, until no rank computes.
Then the ranks agree on the result of a rank that was the last to compute.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Sequence
from typing import Any

from flowvm.errors import ArgumentError, CommunicationError
from flowvm.ops.collectives.collectives import all_reduce
from flowvm.ops.shapes.create import tensor as new_tensor
from flowvm.ranks.world import Group


# public: nn.parallel
class JoinHook:
    """Work of a rank that is done, for one object.

    main_hook   makes the exchanges of a step, with zeros
    post_hook   runs when all ranks are done; True on those that were the last to compute

    >>> nn.parallel.JoinHook().main_hook()
    """

    def main_hook(self) -> None:
        """Do nothing."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Do nothing."""


# public: nn.parallel
class Joinable(abc.ABC):
    """An object that exchanges something each step: it calls `Join.notify_join_context(self)`
    before it does.

    >>> ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    >>> isinstance(ddp, nn.parallel.Joinable)
    True
    """

    _join: Join | None = None

    @abc.abstractmethod
    def join_hook(self, **kwargs: object) -> JoinHook:
        """Return the hook for a rank that is done."""

    @property
    @abc.abstractmethod
    def join_process_group(self) -> Any:
        """The group whose ranks exchange."""

    @property
    def join_device(self) -> None:
        """The device of the exchange; that of the group's tensors."""
        return None


# public: nn.parallel
class Join:
    """A context manager: inside, a rank may have fewer inputs than the others.

    joinables                   objects that exchange each step, in their order: a
                                DistributedDataParallel, others with `join_hook`
    enable                      False: the region does nothing
    throw_on_early_termination  all ranks raise RuntimeError as soon as one is done

    Other arguments go to each `join_hook`.  ArgumentError for no object, one without `join_hook`,
    or several groups.

    >>> ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    >>> with nn.parallel.Join([ddp]):
    ...     for x in [flow.ones(3, 2), flow.ones(1, 2)]:
    ...         ddp(x).sum().backward()
    """

    def __init__(
        self,
        joinables: Sequence[Any],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        if not joinables:
            raise ArgumentError("Join: one object at least that exchanges, got none")
        wrong = [one for one in joinables if not isinstance(one, Joinable)]
        if wrong:
            raise ArgumentError(f"Join: {type(wrong[0]).__name__} has no join_hook")
        groups = {Group.of(one.join_process_group) for one in joinables}
        if len(groups) > 1:
            raise ArgumentError("Join: the objects exchange among different groups; one is needed")
        (self.group,) = groups
        self.joinables, self.enabled = list(joinables), enable
        self.throws = throw_on_early_termination
        self.hooks = [one.join_hook(**kwargs) for one in joinables]
        self.active: list[bool] = [True] * self.group.size
        self.last = self.authority  # of the last step

    def __enter__(self) -> Join:
        if self.enabled:
            for one in self.joinables:
                one._join = self
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self.enabled:
            return
        try:
            if kind is None and self.group.size > 1:
                self._follow()
        finally:
            for one in self.joinables:
                one._join = None

    def _follow(self) -> None:
        """Make the steps of the ranks that still compute."""
        steps, last = 0, True
        while self.tell(False):
            last = False
            steps += 1
            if steps == 1000:
                warnings.warn(
                    "Join: this rank has made 1,000 steps for others that still compute; give "
                    "ranks about as many inputs",
                    stacklevel=2,
                )
            for hook in self.hooks:
                hook.main_hook()
        for hook in self.hooks:
            hook.post_hook(last)

    def tell(self, computes: bool) -> int:
        """Tell the others if this rank computes.  Return the number of ranks that do."""
        size, own = self.group.size, self.group.rank
        flags = [float(computes and k == own) for k in range(size)]
        if self.throws:
            flags.append(float(not computes))
        known = all_reduce(new_tensor(flags), "sum", self.group).tolist()
        self.active = [flag > 0 for flag in known[:size]]
        if any(self.active):
            self.last = self.authority
        if self.throws and known[-1]:
            raise CommunicationError(
                "Join: a rank has no more inputs, and throw_on_early_termination is set"
            )
        return sum(self.active)

    @property
    def authority(self) -> int:
        """The last rank, by its number in the world, that computes."""
        place = max(k for k, active in enumerate(self.active) if active)
        return self.group.ranks[place]

    @staticmethod
    def notify_join_context(joinable: Any) -> None:
        """Tell the ranks that are done that this one makes a step: once a step, for the first of
        the objects.
        """
        join = joinable._join
        if join is not None and join.group.size > 1 and join.joinables[0] is joinable:
            join.tell(True)
