"""LRScheduler: the base of every learning rate schedule.

A schedule is a closed form, `lr_at(group, t)`: the learning rate of a parameter group after t
steps. That is what lets SequentialLR and WarmupLR put schedules one after the other, and what makes
a resumed run exact. step() moves t on and writes the value into the optimizer. If the group's rate
is not what this schedule wrote last, somebody else (another schedule, the user) scaled it, and the
new value is scaled likewise; so schedules stepped side by side multiply, as in PyTorch.

A schedule that goes on from the rates of the moment defines `get_lr` instead, as PyTorch's
subclasses do: the rates of all groups at `last_epoch`. Its value is written as it is.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.optim.optimizer import Group, Optimizer, number


# public: optim.lr_scheduler
class LRScheduler:
    """The base of every schedule; a subclass defines lr_at, or get_lr.

    >>> class Halved(flow.optim.lr_scheduler.LRScheduler):
    ...     def lr_at(self, group, t):
    ...         return self.base_lrs[group] / 2**t
    >>> opt = flow.optim.SGD([nn.Parameter(flow.zeros(1))], lr=8.0)
    >>> sched = Halved(opt)
    >>> opt.step(); sched.step()
    >>> opt.param_groups[0]["lr"]
    4.0
    """

    _has_watched_state = True  # captured code that uses it depends on its attributes
    _overwrites = False  # a rate that somebody else has set is lost, as in PyTorch's of that name
    _step_count = 0
    _is_initial = False  # in the step that the constructor takes

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        groups = optimizer.param_groups
        for i, group in enumerate(groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", number(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming "
                    "an optimizer; load the optimizer's state_dict first"
                )
        self.base_lrs: list[float] = [number(group["initial_lr"]) for group in groups]
        self.last_epoch = last_epoch
        # invariant: _own[i] is what this schedule alone would have made of group i at last_epoch
        self._own: list[float] = []
        if self.has_closed_form:
            self._own = list(self.base_lrs) if last_epoch < 0 else self._closed(last_epoch)
        self._last_lr: list[float] = []
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count, self._is_initial = 0, True
        self.step()
        self._is_initial = False

    @property
    def has_closed_form(self) -> bool:
        """True if the schedule is defined by `lr_at`."""
        return type(self).get_lr is LRScheduler.get_lr

    def get_lr(self) -> list[float]:
        """The learning rates of all groups at `last_epoch`, if nobody else changes them."""
        return self._closed(self.last_epoch)

    def lr_at(self, group: int, t: int) -> float:
        """The learning rate of parameter group number `group` after t steps."""
        raise NotImplementedError(f"{type(self).__name__} must define lr_at")

    def step(self, epoch: int | None = None) -> None:
        """Move on by one, or to `epoch`, and set the learning rates."""
        self._step_count += 1
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        groups = self.optimizer.param_groups
        if not self.has_closed_form:
            for group, new in zip(groups, self.get_lr(), strict=True):
                set_rate(group, new)
        else:
            closed = self._closed(self.last_epoch)
            for group, own, new in zip(groups, self._own, closed, strict=True):
                rate = number(group["lr"])
                scale = rate / own if rate != own and own != 0 and not self._overwrites else 1.0
                set_rate(group, new * scale)
            self._own = closed
        self._note()

    def get_last_lr(self) -> list[float]:
        """The learning rates set by the last step."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer; of functions given to the constructor, what objects that
        are called keep in themselves.
        """
        return {k: _saved(v) for k, v in vars(self).items() if k != "optimizer"}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Take over a state_dict(); load the optimizer's too, it holds the current rates."""
        for name, value in state_dict.items():
            own = vars(self).get(name)
            if _has_function(own):
                _restore(own, value)
            else:
                setattr(self, name, value)
        # PyTorch's has no such thing
        is_foreign = "_own" in vars(self) and "_own" not in state_dict
        if is_foreign and self.has_closed_form and "last_epoch" in state_dict:
            self._own = self._closed(self.last_epoch)

    def _closed(self, t: int) -> list[float]:
        return [self.lr_at(i, t) for i in range(len(self.base_lrs))]

    def _note(self) -> None:
        self._last_lr = [number(group["lr"]) for group in self.optimizer.param_groups]


LrScheduler = LRScheduler  # public: optim.lr_scheduler (unlisted)


# public: optim.lr_scheduler
class _LRScheduler(LRScheduler):
    """LRScheduler by the name that PyTorch's had, for programs that derive from that."""


def set_rate(group: Group, value: object) -> None:
    """Write a group's learning rate, into the tensor if it is one."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(number(value))
    else:
        group["lr"] = number(value)


def each_group(name: str, optimizer: Optimizer, value: Any) -> list[float]:
    """An argument that is one number for all groups, or a list with one for each."""
    n = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [float(value)] * n
    if len(value) != n:
        raise ArgumentError(f"expected {n} values for {name}, got {len(value)}")
    return [float(item) for item in value]


def _has_function(value: object) -> bool:
    return callable(value) or (isinstance(value, list) and any(callable(item) for item in value))


def _saved(value: object) -> Any:
    """A value as it is saved: of what is called, its own attributes; of a function None."""
    if isinstance(value, list) and _has_function(value):
        return [_saved(item) for item in value]
    if not callable(value):
        return value
    plain = isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType))
    return None if plain or not hasattr(value, "__dict__") else dict(vars(value))


def _restore(own: object, saved: object) -> None:
    """Give what is called the attributes that were saved of it."""
    if isinstance(own, list) and isinstance(saved, (list, tuple)):
        for item, entry in zip(own, saved, strict=True):
            _restore(item, entry)
    elif isinstance(saved, Mapping):
        vars(own).update(saved)


def cosine(start: float, end: float, share: float) -> float:
    """Half a cosine from start (done = 0) to end (done = 1)."""
    return end + (start - end) * (1.0 + math.cos(math.pi * share)) / 2


def rewind(optimizer: Optimizer) -> None:
    """Undo what the constructors of inner schedules did to the rates."""
    for group in optimizer.param_groups:
        set_rate(group, group["initial_lr"])


def positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ArgumentError(f"{name} must be a positive int, got {value!r}")
    return value


def fraction(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ArgumentError(f"{name} must be in (0, 1], got {value}")
