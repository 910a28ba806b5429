"""OneCycleLR, which drives momentum too, and ReduceLROnPlateau, which follows a measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.optim._schedule import LRScheduler, cosine, positive
from flowvm.optim.optimizer import Optimizer


class OneCycleLR(LRScheduler):
    """Up from max_lr / div_factor to max_lr, then far down; momentum goes the other way."""

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
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
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
        self._momenta = (base_momentum, max_momentum)
        self._final_div = final_div_factor
        up = pct_start * total_steps
        self._ends = (
            [up - 1, 2 * up - 2, total_steps - 1] if three_phase else [up - 1, total_steps - 1]
        )
        n = len(optimizer.param_groups)
        self.max_lrs = list(max_lr) if isinstance(max_lr, (list, tuple)) else [float(max_lr)] * n  # type: ignore[arg-type]
        if len(self.max_lrs) != n:
            raise ArgumentError(f"expected {n} values for max_lr, got {len(self.max_lrs)}")
        if last_epoch == -1:
            for group, highest in zip(optimizer.param_groups, self.max_lrs, strict=True):
                if cycle_momentum and not {"momentum", "betas"} & set(group):
                    raise ArgumentError(
                        "optimizer must support momentum or beta1 with `cycle_momentum` enabled"
                    )
                group["initial_lr"] = group["lr"] = highest / div_factor
        super().__init__(optimizer, last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        low, high = self.base_lrs[group], self.max_lrs[group]
        return self._at(t, [low, high, low, low / self._final_div])

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        if not self.cycle_momentum:
            return
        low, high = self._momenta
        momentum = self._at(self.last_epoch, [high, low, high, high])
        for group in self.optimizer.param_groups:
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum

    def _at(self, t: int, levels: list[float]) -> float:
        """The value at t of a curve through `levels`: start, top, (start again,) end."""
        if t >= self.total_steps:
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
        done = (t - begin) / (end - begin) if end != begin else 1.0
        a, b = levels[phase], levels[phase + 1]
        return a + (b - a) * done if self._linear else cosine(a, b, done)


class ReduceLROnPlateau(LRScheduler):
    """Multiplied by factor when what step() is given has not improved for `patience` steps."""

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
        """Whether `a` beats `best` by more than the threshold."""
        if math.isinf(best):
            return a < best if self.mode == "min" else a > best
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1.0)
        return a < best - margin if self.mode == "min" else a > best + margin

    def _reduce(self) -> None:
        for group, lowest in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            new = max(group["lr"] * self.factor, lowest)
            if group["lr"] - new > self.eps:
                group["lr"] = new
