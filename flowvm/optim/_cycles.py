"""OneCycleLR and CyclicLR, which drive momentum too, and ReduceLROnPlateau, which follows a
measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.optim._schedule import LRScheduler, cosine, each_group, positive, set_rate
from flowvm.optim.optimizer import Optimizer, number

# public: optim.lr_scheduler


class _Momenta(LRScheduler):
    """A schedule of momentum (or beta1), too, where `cycle_momentum` says so."""

    cycle_momentum: bool

    def momentum_at(self, group: int, t: int) -> float:
        """The momentum of parameter group number `group` after t steps."""
        raise NotImplementedError(f"{type(self).__name__} must define momentum_at")

    def step(self, epoch: int | None = None) -> None:
        """Move on by one, or to `epoch`, and set learning rates and momenta."""
        super().step(epoch)
        if not self.cycle_momentum:
            return
        for i, group in enumerate(self.optimizer.param_groups):
            momentum = self.momentum_at(i, self.last_epoch)
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum

    def _begin_at(self, rates: Sequence[float]) -> None:
        """Set where the optimizer begins."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if self.cycle_momentum and not {"momentum", "betas"} & set(group):
                raise ArgumentError(
                    "optimizer must support momentum or beta1 with `cycle_momentum` enabled"
                )
            set_rate(group, rate)
            group["initial_lr"] = rate


class CyclicLR(_Momenta):
    """Up from base_lr to max_lr in step_size_up steps and down again in step_size_down, over and
    over; momentum goes the other way.

    The height of a cycle is scaled: mode "triangular" not, "triangular2" by half each cycle,
    "exp_range" by gamma ** t; or by scale_fn of the cycle's number (scale_mode "cycle", from 1) or
    of t ("iterations").  Smith, "Cyclical learning rates for training neural networks", 2017.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=1.0)
    >>> sched = flow.optim.lr_scheduler.CyclicLR(opt, base_lr=1.0, max_lr=3.0, step_size_up=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [1.0, 2.0, 3.0, 2.0]
    """

    _overwrites = True

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ArgumentError(f"mode is invalid and scale_fn is None: {mode!r}")
        self.optimizer, self.cycle_momentum = optimizer, cycle_momentum
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        self.mode, self.gamma, self.scale_fn = mode, gamma, scale_fn
        self.scale_mode = scale_mode
        self.max_lrs = each_group("max_lr", optimizer, max_lr)
        self.base_momentums = each_group("base_momentum", optimizer, base_momentum)
        self.max_momentums = each_group("max_momentum", optimizer, max_momentum)
        low = each_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            self._begin_at(low)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = low

    def lr_at(self, group: int, t: int) -> float:
        low = self.base_lrs[group]
        return low + (self.max_lrs[group] - low) * self._height(t)

    def momentum_at(self, group: int, t: int) -> float:
        high = self.max_momentums[group]
        return high - (high - self.base_momentums[group]) * self._height(t)

    def _height(self, t: int) -> float:
        """Return the height of the curve at t: 0 at base_lr, 1 at max_lr."""
        cycle = math.floor(1 + t / self.total_size)
        x = 1.0 + t / self.total_size - cycle
        ratio = self.step_ratio
        height = x / ratio if x <= ratio else (x - 1) / (ratio - 1)
        if self.scale_fn is not None:
            return height * self.scale_fn(cycle if self.scale_mode == "cycle" else t)
        scales = {"triangular2": 1 / 2.0 ** (cycle - 1), "exp_range": self.gamma**t}
        return float(height * scales.get(self.mode, 1.0))


class OneCycleLR(_Momenta):
    """Up from max_lr / div_factor to max_lr, then far down; momentum goes the other way.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=1.0, momentum=0.9)
    >>> sched = flow.optim.lr_scheduler.OneCycleLR(
    ...     opt, 8.0, total_steps=8, div_factor=8, pct_start=0.375, anneal_strategy="linear")
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(opt.param_groups[0]["lr"], 2))
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [1.0, 4.5, 8.0, 6.4]
    """

    _overwrites = True

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ArgumentError("give total_steps, or both epochs and steps_per_epoch")
            total_steps = positive("epochs", epochs) * positive("steps_per_epoch", steps_per_epoch)
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(
                f'anneal_strategy must be "cos" or "linear", got {anneal_strategy!r}'
            )
        if not 0 <= pct_start <= 1:
            raise ArgumentError(f"pct_start must be in [0, 1], got {pct_start}")
        self.total_steps = positive("total_steps", total_steps)
        self._linear = anneal_strategy == "linear"
        self.cycle_momentum = cycle_momentum
        self.optimizer = optimizer
        self.base_momentums = each_group("base_momentum", optimizer, base_momentum)
        self.max_momentums = each_group("max_momentum", optimizer, max_momentum)
        self._final_div = final_div_factor
        up = pct_start * total_steps
        self._ends = (
            [up - 1, 2 * up - 2, total_steps - 1] if three_phase else [up - 1, total_steps - 1]
        )
        self.max_lrs = each_group("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            self._begin_at([highest / div_factor for highest in self.max_lrs])
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        low, high = self.base_lrs[group], self.max_lrs[group]
        return self._at(t, [low, high, low, low / self._final_div])

    def momentum_at(self, group: int, t: int) -> float:
        low, high = self.base_momentums[group], self.max_momentums[group]
        return self._at(t, [high, low, high, high])

    def _at(self, t: int, levels: list[float]) -> float:
        """The value at t of a curve through `levels`: start, top, (start again,) end."""
        if t > self.total_steps:  # PyTorch's: a program that steps so often ends with a step
            raise ArgumentError(
                f"Tried to step {t} times. "
                f"The specified number of total steps is {self.total_steps}"
            )
        if len(self._ends) == 2:
            levels = [levels[0], levels[1], levels[3]]
        begin = 0.0
        for phase, end in enumerate(self._ends):
            if t <= end or phase == len(self._ends) - 1:
                break
            begin = end
        share = (t - begin) / (end - begin) if end != begin else 1.0
        a, b = levels[phase], levels[phase + 1]
        return a + (b - a) * share if self._linear else cosine(a, b, share)


class ReduceLROnPlateau(LRScheduler):
    """Multiplied by factor when what step() is given has not improved for `patience` steps.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)
    >>> for loss in (3.0, 2.0, 2.0, 2.0):
    ...     sched.step(loss)
    >>> opt.param_groups[0]["lr"]
    4.0
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if not factor < 1.0:
            raise ArgumentError(f"factor must be below 1.0, got {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ArgumentError(
                f"mode must be min or max, threshold_mode rel or abs; got {mode}, {threshold_mode}"
            )
        n = len(optimizer.param_groups)
        self.min_lrs = list(min_lr) if isinstance(min_lr, (list, tuple)) else [min_lr] * n
        if len(self.min_lrs) != n:
            raise ArgumentError(f"expected {n} min_lrs, got {len(self.min_lrs)}")
        self.optimizer = optimizer
        self.mode, self.threshold_mode = mode, threshold_mode
        self.factor, self.patience, self.cooldown = factor, patience, cooldown
        self.threshold, self.eps = threshold, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._note()

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Note the quantity's newest value (a number or a 0-d tensor)."""
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(current, self.best):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._note()

    def is_better(self, a: float, best: float) -> bool:
        """Return True if `a` beats `best` by more than the threshold."""
        if math.isinf(best):
            return a < best if self.mode == "min" else a > best
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1.0)
        return a < best - margin if self.mode == "min" else a > best + margin

    def _reduce(self) -> None:
        for group, lowest in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            rate = number(group["lr"])
            new = max(rate * self.factor, lowest)
            if rate - new > self.eps:
                set_rate(group, new)
