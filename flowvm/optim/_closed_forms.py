"""Schedules of one formula each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from flowvm.errors import ArgumentError
from flowvm.optim._schedule import LRScheduler, cosine, fraction, positive
from flowvm.optim.optimizer import Optimizer


class LambdaLR(LRScheduler):
    """base * lr_lambda(t); one function, or one a group."""

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
    """Multiplied by gamma every step_size steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = positive("step_size", step_size)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        return float(self.base_lrs[group] * self.gamma ** (t // self.step_size))


class MultiStepLR(LRScheduler):
    """Multiplied by gamma at each milestone."""

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
    """Multiplied by gamma at each step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        return float(self.base_lrs[group] * self.gamma**t)


class ConstantLR(LRScheduler):
    """base * factor for total_iters steps, then base."""

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
    """base times a factor that goes from start_factor to end_factor in total_iters steps."""

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
        done = min(t, self.total_iters) / self.total_iters
        return self.base_lrs[group] * (
            self.start_factor + (self.end_factor - self.start_factor) * done
        )


class PolynomialLR(LRScheduler):
    """base * (1 - t / total_iters) ** power, then 0."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = positive("total_iters", total_iters), power
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        left = 1.0 - min(t, self.total_iters) / self.total_iters
        return float(self.base_lrs[group] * left**self.power)


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from base down to eta_min in T_max steps, and up again after."""

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max, self.eta_min = positive("T_max", T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        return cosine(self.base_lrs[group], self.eta_min, t / self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing that starts afresh after T_0 steps, then T_0 * T_mult, ..."""

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
        while t >= period:
            t -= period
            period *= self.T_mult
        return cosine(self.base_lrs[group], self.eta_min, t / period)
