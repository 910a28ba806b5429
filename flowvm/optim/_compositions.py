"""Schedules made of schedules: one after another, behind a warm-up, or side by side.

They evaluate the closed forms of the inner schedules, whose own step() is never called. Where one
of them has no closed form, SequentialLR and ChainedScheduler step them all instead, as PyTorch's
do.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from flowvm.errors import ArgumentError
from flowvm.optim._cycles import ReduceLROnPlateau
from flowvm.optim._schedule import LRScheduler, rewind, set_rate
from flowvm.optim.optimizer import Optimizer, number

# public: optim.lr_scheduler


class _Combined(LRScheduler):
    """Base of combined schedules: its state dict holds those of the inner schedules."""

    _schedulers: list[LRScheduler]

    @property
    def has_closed_form(self) -> bool:
        """True if all inner schedules have a closed form."""
        return all(inner.has_closed_form for inner in self._schedulers)

    def state_dict(self) -> dict[str, Any]:
        own = {k: v for k, v in super().state_dict().items() if k != "_schedulers"}
        return {**own, "_schedulers": [inner.state_dict() for inner in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for inner, saved in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            inner.load_state_dict(saved)


class SequentialLR(_Combined):
    """One schedule after the other: each begins, at its own 0, at its milestone.

    >>> from flowvm.optim.lr_scheduler import ConstantLR, ExponentialLR, SequentialLR
    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = SequentialLR(opt, [ConstantLR(opt, 0.5), ExponentialLR(opt, 0.5)], milestones=[2])
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(opt.param_groups[0]["lr"])
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [4.0, 4.0, 8.0, 4.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        check_inner(self, optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ArgumentError(
                f"{len(schedulers)} schedulers need {len(schedulers) - 1} milestones, "
                f"got {len(milestones)}"
            )
        self._schedulers = list(schedulers)
        self._milestones = list(milestones)
        for inner in self._schedulers if not self.has_closed_form else ():
            inner.last_epoch -= 1
        rewind(optimizer)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Step the one whose turn it is, and say what it made of the rates."""
        if self.has_closed_form:
            return super().get_lr()
        i = bisect_right(self._milestones, self.last_epoch)
        inner = self._schedulers[i]
        if self._step_count == 1 or (i and self._milestones[i - 1] == self.last_epoch):
            _begin(inner)
        else:
            inner.step()
        return [number(group["lr"]) for group in self.optimizer.param_groups]

    def lr_at(self, group: int, t: int) -> float:
        i = bisect_right(self._milestones, t)
        return self._schedulers[i].lr_at(group, t - (self._milestones[i - 1] if i else 0))


class WarmupLR(_Combined):
    """OneFlow's warm-up in front of a schedule, or of the constant rate of an optimizer.

    For warmup_iters steps the rate is base * warmup_factor ("constant"), or goes from there
    straight to where the schedule is at that time ("linear"). With warmup_prefix the schedule
    starts after the warm-up instead of running underneath it.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.WarmUpLR(opt, warmup_factor=0.5, warmup_iters=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [4.0, 6.0, 8.0, 8.0]
    """

    def __init__(
        self,
        scheduler_or_optimizer: LRScheduler | Optimizer,
        warmup_factor: float = 1.0 / 3,
        warmup_iters: int = 5,
        warmup_method: str = "linear",
        warmup_prefix: bool = False,
        last_step: int = -1,
    ) -> None:
        if warmup_method not in ("linear", "constant"):
            raise ArgumentError(
                f"'warmup_method' must be 'linear' or 'constant', but got {warmup_method!r}"
            )
        self._schedulers = []
        if isinstance(scheduler_or_optimizer, LRScheduler):
            self._schedulers = [scheduler_or_optimizer]
            optimizer = scheduler_or_optimizer.optimizer
            check_inner(self, optimizer, self._schedulers)
            if not scheduler_or_optimizer.has_closed_form:
                raise ArgumentError(
                    f"WarmupLR needs to know where {type(scheduler_or_optimizer).__name__} is at a "
                    f"later time: a schedule that defines lr_at, and not get_lr"
                )
            rewind(optimizer)
        else:
            optimizer = scheduler_or_optimizer
        self.warmup_factor = warmup_factor
        self.warmup_iters = warmup_iters
        self.warmup_method = warmup_method
        self.warmup_prefix = warmup_prefix
        super().__init__(optimizer, last_step)

    def lr_at(self, group: int, t: int) -> float:
        if t >= self.warmup_iters:
            return self._after(group, t)
        start = self.base_lrs[group] * self.warmup_factor
        if self.warmup_method == "constant":
            return start
        end = self._after(group, self.warmup_iters)
        return start + (end - start) * t / self.warmup_iters

    def _after(self, group: int, t: int) -> float:
        if not self._schedulers:
            return self.base_lrs[group]
        return self._schedulers[0].lr_at(
            group, t - (self.warmup_iters if self.warmup_prefix else 0)
        )


class ChainedScheduler(_Combined):
    """Several schedules stepped together; their factors multiply.

    One that computes rates from the base rates alone (`LambdaLR`, `CyclicLR`, `OneCycleLR`,
    `CosineAnnealingWarmRestarts`) sets them anew at each step: what those before it made is lost.

    >>> from flowvm.optim.lr_scheduler import ChainedScheduler, ConstantLR, ExponentialLR
    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = ChainedScheduler([ConstantLR(opt, 0.5, total_iters=2), ExponentialLR(opt, 0.5)])
    >>> for _ in range(4):
    ...     print(opt.param_groups[0]["lr"])
    ...     opt.step()
    ...     sched.step()
    4.0
    2.0
    2.0
    1.0
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if not schedulers:
            raise ArgumentError("ChainedScheduler expects at least one scheduler to be chained")
        owner = optimizer or schedulers[0].optimizer
        check_inner(self, owner, schedulers)
        self._schedulers = list(schedulers)
        if self.has_closed_form:
            rewind(owner)
        super().__init__(owner, schedulers[0].last_epoch - 1)

    def get_lr(self) -> list[float]:
        """Step them all, and say what they made of the rates."""
        if self.has_closed_form:
            return super().get_lr()
        if self._step_count > 1:  # their constructors took the first
            for inner in self._schedulers:
                inner.step()
        return [number(group["lr"]) for group in self.optimizer.param_groups]

    def lr_at(self, group: int, t: int) -> float:
        base = self._schedulers[0].base_lrs[group]
        anew = [k for k, inner in enumerate(self._schedulers) if inner._overwrites]
        if anew:
            rate, later = (
                self._schedulers[anew[-1]].lr_at(group, t),
                self._schedulers[anew[-1] + 1 :],
            )
            for inner in later:  # each by its factor of this step
                before = inner.lr_at(group, t - 1) if t > 0 else base
                rate *= inner.lr_at(group, t) / before if before else 0.0
            return rate
        factors = [inner.lr_at(group, t) / base if base else 0.0 for inner in self._schedulers]
        return base * math.prod(factors)


def _begin(inner: LRScheduler) -> None:
    """Start a schedule at its own 0, from its base rates if it has a closed form."""
    if inner.has_closed_form:
        inner._own = list(inner.base_lrs)
        for group, base in zip(inner.optimizer.param_groups, inner.base_lrs, strict=True):
            set_rate(group, base)
    inner.step(0)


# not public
def check_inner(
    owner: LRScheduler, optimizer: Optimizer, schedulers: Sequence[LRScheduler]
) -> None:
    if not schedulers:
        raise ArgumentError(f"{type(owner).__name__} expects at least one scheduler")
    for scheduler in schedulers:
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ArgumentError(f"{type(owner).__name__} does not support ReduceLROnPlateau")
        if scheduler.optimizer is not optimizer:
            raise ArgumentError(f"{type(owner).__name__}: all schedulers must share one optimizer")
