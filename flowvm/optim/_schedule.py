"""LRScheduler: the base of every learning rate schedule.

A schedule is a closed form, `lr_at(group, t)`: the learning rate of a parameter group after t
steps. That is what lets SequentialLR and WarmupLR put schedules one after the other, and what makes
a resumed run exact. step() moves t on and writes the value into the optimizer. If the group's rate
is not what this schedule wrote last, somebody else (another schedule, the user) scaled it, and the
new value is scaled likewise; so schedules stepped side by side multiply, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.optim.optimizer import Optimizer


class LRScheduler:
    """The base of every schedule; a subclass defines lr_at."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        groups = optimizer.param_groups
        for i, group in enumerate(groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming "
                    "an optimizer; load the optimizer's state_dict first"
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in groups]
        self.last_epoch = last_epoch
        # invariant: _own[i] is what this schedule alone would have made of group i at last_epoch
        self._own = list(self.base_lrs) if last_epoch < 0 else self._closed(last_epoch)
        self._last_lr: list[float] = []
        self.step()

    def lr_at(self, group: int, t: int) -> float:
        """The learning rate of parameter group number `group` after t steps."""
        raise NotImplementedError(f"{type(self).__name__} must define lr_at")

    def step(self, epoch: int | None = None) -> None:
        """Move on by one, or to `epoch`, and set the learning rates."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed = self._closed(self.last_epoch)
        for group, own, new in zip(self.optimizer.param_groups, self._own, closed, strict=True):
            scale = group["lr"] / own if group["lr"] != own and own != 0 else 1.0
            group["lr"] = new * scale
        self._own = closed
        self._note()

    def get_last_lr(self) -> list[float]:
        """The learning rates set by the last step."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer, and functions given to the constructor."""
        return {k: v for k, v in vars(self).items() if k != "optimizer" and not _has_function(v)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state_dict(); load the optimizer's too, it holds the current rates."""
        vars(self).update(state_dict)

    def _closed(self, t: int) -> list[float]:
        return [self.lr_at(i, t) for i in range(len(self.base_lrs))]

    def _note(self) -> None:
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


def _has_function(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(callable(item) for item in value))


def cosine(start: float, end: float, done: float) -> float:
    """Half a cosine from start (done = 0) to end (done = 1)."""
    return end + (start - end) * (1.0 + math.cos(math.pi * done)) / 2


def rewind(optimizer: Optimizer) -> None:
    """Undo what the constructors of inner schedules did to the rates."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"]


def positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ArgumentError(f"{name} must be a positive int, got {value!r}")
    return value


def fraction(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ArgumentError(f"{name} must be in (0, 1], got {value}")
