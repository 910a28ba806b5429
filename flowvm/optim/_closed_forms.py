"""Schedules of one formula each."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from flowvm.errors import ArgumentError
from flowvm.optim._schedule import LRScheduler, cosine, fraction, positive
from flowvm.optim.optimizer import Optimizer, number

# public: optim.lr_scheduler


class LambdaLR(LRScheduler):
    """base * lr_lambda(t); one function, or one a group.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t))
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 4.0, 2.67, 2.0]
    """

    _overwrites = True

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        n = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * n if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != n:
            raise ArgumentError(f"Expected {n} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        return self.base_lrs[group] * self.lr_lambdas[group](t)


class StepLR(LRScheduler):
    """Multiplied by gamma every step_size steps.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 8.0, 4.0, 4.0]
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = positive("step_size", step_size)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        return float(self.base_lrs[group] * self.gamma ** (t // self.step_size))


class MultiStepLR(LRScheduler):
    """Multiplied by gamma at each milestone.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.MultiStepLR(opt, milestones=[1, 3], gamma=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 4.0, 4.0, 2.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        return float(self.base_lrs[group] * self.gamma ** bisect_right(self.milestones, t))


class ExponentialLR(LRScheduler):
    """Multiplied by gamma at each step.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 4.0, 2.0, 1.0]
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        return float(self.base_lrs[group] * self.gamma**t)


class ConstantLR(LRScheduler):
    """base * factor for total_iters steps, then base.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.ConstantLR(opt, factor=0.5, total_iters=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [4.0, 4.0, 8.0, 8.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        fraction("factor", factor)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        return self.base_lrs[group] * (self.factor if t < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """base times a factor that goes from start_factor to end_factor in total_iters steps.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.LinearLR(opt, start_factor=0.25, total_iters=3)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [2.0, 4.0, 6.0, 8.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        fraction("start_factor", start_factor)
        if not 0 <= end_factor <= 1:
            raise ArgumentError(f"end_factor must be in [0, 1], got {end_factor}")
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = positive("total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        share = min(t, self.total_iters) / self.total_iters
        return self.base_lrs[group] * (
            self.start_factor + (self.end_factor - self.start_factor) * share
        )


class MultiplicativeLR(LRScheduler):
    """The rate of the moment times lr_lambda(t), from t = 1 on; one function, or one a group.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.MultiplicativeLR(opt, lambda t: 0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 4.0, 2.0, 1.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        n = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * n if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != n:
            raise ArgumentError(f"Expected {n} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        rates = [number(group["lr"]) for group in self.optimizer.param_groups]
        if self._is_initial:
            return rates
        pairs = zip(rates, self.lr_lambdas, strict=True)
        return [rate * factor(self.last_epoch) for rate, factor in pairs]


class PolynomialLR(LRScheduler):
    """base * (1 - t / total_iters) ** power, then 0.

    With OneFlow's `steps` (or `decay_batch`) instead of total_iters it ends at end_learning_rate
    (0.0001), and with `cycle` starts again at each multiple of steps:
    (base - end) * (1 - t / n) ** power + end, n being steps, or its next multiple.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.PolynomialLR(opt, total_iters=4)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 6.0, 4.0, 2.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
        *,
        steps: int | None = None,
        decay_batch: int | None = None,
        end_learning_rate: float | None = None,
        cycle: bool = False,
    ) -> None:
        steps_or_batch = steps if steps is not None else decay_batch
        name = "total_iters" if steps_or_batch is None else "steps"
        self.total_iters = positive(name, total_iters if steps_or_batch is None else steps_or_batch)
        ends = end_learning_rate is not None or steps_or_batch is not None
        self.end_learning_rate = (1e-4 if end_learning_rate is None else end_learning_rate) * ends
        self.power, self.cycle = power, cycle
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        whole, end = self.total_iters, self.end_learning_rate
        if self.cycle:
            t = max(t, 1)
            whole *= math.ceil(t / whole)
        share_left = 1.0 - min(t, whole) / whole
        return float((self.base_lrs[group] - end) * share_left**self.power + end)


class CosineDecayLR(LRScheduler):
    """OneFlow's: half a cosine from base down to base * alpha in decay_steps steps, and that.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.CosineDecayLR(opt, decay_steps=2, alpha=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 6.0, 4.0, 4.0]
    """

    def __init__(
        self, optimizer: Optimizer, decay_steps: int, alpha: float = 0.0, last_step: int = -1
    ) -> None:
        self.decay_steps, self.alpha = positive("decay_steps", decay_steps), alpha
        super().__init__(optimizer, last_step)

    def lr_at(self, group: int, t: int) -> float:
        base = self.base_lrs[group]
        return cosine(base, base * self.alpha, min(t, self.decay_steps) / self.decay_steps)


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from base down to eta_min in T_max steps, and up again after.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 6.83, 4.0, 1.17]
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max, self.eta_min = positive("T_max", T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        return cosine(self.base_lrs[group], self.eta_min, t / self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing that starts afresh after T_0 steps, then T_0 * T_mult, ...

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 4.0, 8.0, 4.0]
    """

    _overwrites = True

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.T_0, self.T_mult = positive("T_0", T_0), positive("T_mult", T_mult)
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        period = self.T_0
        if self.T_mult == 1:
            t %= period
        while t >= period:
            t -= period
            period *= self.T_mult
        return cosine(self.base_lrs[group], self.eta_min, t / period)
