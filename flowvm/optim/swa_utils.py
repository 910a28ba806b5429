"""Averages of a model's weights along the way: SWA and exponential moving averages.

Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import int64
from flowvm.nn.module import Module
from flowvm.optim._schedule import LRScheduler, cosine, each_group
from flowvm.optim.optimizer import Optimizer, number

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


__dir__ = listing(globals())

Average = Callable[[Tensor, Tensor, Any], Tensor]
MultiAverage = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ArgumentError(
            f"Invalid decay value {decay} provided. Please provide a value in [0,1]"
        )


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAverage:
    """f(averages, currents, n) that moves each average, in place: decay * a + (1 - decay) * c.

    >>> averages = [flow.tensor([4.0])]
    >>> flow.optim.swa_utils.get_ema_multi_avg_fn(0.75)(averages, [flow.tensor([0.0])], 1)
    >>> averages
    [tensor([3.])]
    """
    _check_decay(decay)

    def move(averages: Sequence[Tensor], currents: Sequence[Tensor], _n: object) -> None:
        with no_grad():
            for average, current in zip(averages, currents, strict=True):
                if average.dtype.inexact:
                    average.lerp_(current, 1 - decay)
                else:
                    average.copy_(average * decay + current * (1 - decay))

    return move


def get_swa_multi_avg_fn() -> MultiAverage:
    """f(averages, currents, n) that takes an (n + 1)-th value into each average, in place.

    >>> averages = [flow.tensor([4.0])]
    >>> flow.optim.swa_utils.get_swa_multi_avg_fn()(averages, [flow.tensor([0.0])], 3)
    >>> averages
    [tensor([3.])]
    """

    def move(averages: Sequence[Tensor], currents: Sequence[Tensor], n: Tensor) -> None:
        count = int(n) + 1
        with no_grad():
            for average, current in zip(averages, currents, strict=True):
                average.copy_(average + (current - average) / count)

    return move


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """f(average, current, n): decay * average + (1 - decay) * current.

    >>> move = flow.optim.swa_utils.get_ema_avg_fn(0.75)
    >>> move(flow.tensor(4.0), flow.tensor(0.0), 1)
    tensor(3.)
    """
    _check_decay(decay)

    def moved(average: Tensor, current: Tensor, _n: object) -> Tensor:
        with no_grad():
            return decay * average + (1 - decay) * current

    return moved


def get_swa_avg_fn() -> Average:
    """f(average, current, n): the average of n values and one more.

    >>> move = flow.optim.swa_utils.get_swa_avg_fn()
    >>> move(flow.tensor(4.0), flow.tensor(0.0), 3)  # (3 * 4 + 0) / 4
    tensor(3.)
    """

    def moved(average: Tensor, current: Tensor, n: Any) -> Tensor:
        with no_grad():
            new: Tensor = average + (current - average) / (n + 1)
            return new

    return moved


class AveragedModel(Module):
    """A copy of `model` whose parameters are averages of those given to update_parameters.

    avg_fn(average, current, n) gives a new average, multi_avg_fn(averages, currents, n) changes all
    in place; without one of them they are equally weighted. n, the buffer `n_averaged`, counts.
    use_buffers averages buffers too; otherwise they are the newest model's.

    >>> model = nn.Linear(1, 1)
    >>> swa = flow.optim.swa_utils.AveragedModel(model)
    >>> for value in (1.0, 3.0):
    ...     _ = nn.init.constant_(model.weight, value)
    ...     swa.update_parameters(model)
    >>> swa.module.weight.item()
    2.0
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: MultiAverage | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", ops.tensor(0, dtype=int64, device=device))
        self.avg_fn, self.multi_avg_fn = avg_fn, multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: object, **kwargs: object) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the parameters of `model` into the averages."""
        averages = [t.detach() for t in self._averaged(self.module)]
        currents = [
            new.detach().to(old.device)
            for new, old in zip(self._averaged(model), averages, strict=True)
        ]
        n = int(self.n_averaged)
        with no_grad():
            if n == 0:
                for average, current in zip(averages, currents, strict=True):
                    average.copy_(current)
            elif self.avg_fn is None:
                (self.multi_avg_fn or get_swa_multi_avg_fn())(averages, currents, self.n_averaged)
            else:
                for average, current in zip(averages, currents, strict=True):
                    average.copy_(self.avg_fn(average, current, self.n_averaged))
            if not self.use_buffers:
                for old, new in zip(self.module.buffers(), model.buffers(), strict=True):
                    old.copy_(new.detach().to(old.device))
            self.n_averaged.add_(1)

    def _averaged(self, model: Module) -> Iterable[Tensor]:
        own = model.module if isinstance(model, AveragedModel) else model
        return chain(own.parameters(), own.buffers()) if self.use_buffers else own.parameters()


def update_bn(loader: Iterable[Any], model: Module, device: DeviceLike | None = None) -> None:
    """Make batch norms' running statistics anew: the averages over the batches of `loader`.

    The model is called with each batch, or its first item where that is a list or tuple, in
    training mode, once for each; modes and momenta are what they were afterwards.

    >>> bn = nn.BatchNorm1d(1)
    >>> batches = [flow.tensor([[0.0], [2.0]]), flow.tensor([[4.0], [6.0]])]
    >>> flow.optim.swa_utils.update_bn(batches, bn)
    >>> bn.running_mean
    tensor([3.])
    """
    momenta: dict[Any, float | None] = {}
    modules: Iterable[Any] = model.modules()
    for module in modules:
        if getattr(module, "track_running_stats", False) and hasattr(module, "momentum"):
            momenta[module] = module.momentum
            module.reset_running_stats()
    if not momenta:
        return
    was_training = model.training
    model.train()
    try:
        for module in momenta:
            module.momentum = None
        with no_grad():
            for batch in loader:
                input = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(input if device is None else input.to(device))
    finally:
        for module, momentum in momenta.items():
            module.momentum = momentum
        model.train(was_training)


class SWALR(LRScheduler):
    """From the rates of the moment to swa_lr in anneal_epochs steps ("cos" or "linear"), and
    that.

    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = flow.optim.swa_utils.SWALR(opt, 4.0, anneal_epochs=2, anneal_strategy="linear")
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(opt.param_groups[0]["lr"])
    ...     opt.step()
    ...     sched.step()
    >>> rates
    [8.0, 6.0, 4.0, 4.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy!r}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ArgumentError(
                f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}"
            )
        for group, rate in zip(
            optimizer.param_groups, each_group("swa_lr", optimizer, swa_lr), strict=True
        ):
            group["swa_lr"] = rate
        self.anneal_epochs, self._linear = anneal_epochs, anneal_strategy == "linear"
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's rate; its first rate is computed from the present one."""
        t = self._step_count - 1
        if self.anneal_epochs == 0:
            t = max(1, t)
        before, now = self._share(t - 1), self._share(t)
        rates = []
        for group in self.optimizer.param_groups:
            end = group["swa_lr"]
            start = end if before == 1 else (number(group["lr"]) - before * end) / (1 - before)
            rates.append(end * now + start * (1 - now))
        return rates

    def _share(self, t: int) -> float:
        """Return the share of the annealing that is done after t steps."""
        x = max(0.0, min(1.0, t / max(1, self.anneal_epochs)))
        return x if self._linear else cosine(0.0, 1.0, x)


__all__ = own_names(globals())
