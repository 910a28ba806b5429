"""Optimizer: parameter groups, the state kept for each parameter, and their saved form.

Invariants:
- a parameter is in exactly one group;
- every group has every option, the constructor's defaults filling what it did not set;
- `state` is keyed by the Parameter object and is empty until the parameter's first step.

A subclass says in `_step_group` what one step does to a group of parameters. The saved form is
PyTorch's: groups name parameters by number, in order, so it loads into an optimizer over equally
shaped parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar

from flowvm.autograd import enable_grad
from flowvm.eager.modes import current_recorder, set_grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, CaptureError
from flowvm.nn.module import clear_grads
from flowvm.vm.callers.tracebacks import border

Group = dict[str, Any]
Params = Iterable[Tensor] | Iterable[Mapping[str, Any]] | Iterable[tuple[str, Tensor]]


class Optimizer:
    """The base of every optimizer.

    `params` is an iterable of parameters, of (name, parameter), or of dicts, one a group, with
    "params" and the options in which the group differs.

    `live_options` names the options whose numbers a graph reads anew for each replay, so that a
    schedule may change them without another capture; a number in a tuple counts. In a capture they
    are `flowvm.eager.live.Live`: the step may compute with them and decide by them, which is asked
    again at each replay, but cannot make plain numbers of them. Other options are fixed by the
    capture; where one has changed, the graph is captured again.
    """

    live_options: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise ArgumentTypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                "but got a Tensor; wrap it in a list"
            )
        self.defaults = defaults
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[Group] = []
        self._members: set[int] = set()
        given = list(params)
        if not given:
            raise ArgumentError("optimizer got an empty parameter list")
        groups = given if isinstance(given[0], Mapping) else [{"params": given}]
        for group in groups:
            self.add_param_group(group)  # type: ignore[arg-type]

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Take on one more group: {"params": [...], options...}."""
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            raise ArgumentTypeError(
                f"a parameter group must be a dict with 'params', got {param_group!r}"
            )
        unknown = set(param_group) - set(self.defaults) - {"params", "initial_lr", "param_names"}
        if unknown:
            raise ArgumentError(
                f"{type(self).__name__} has no option {sorted(unknown)}; it has "
                f"{sorted(self.defaults)}"
            )
        params = _parameters(param_group["params"])
        repeated = self._members & {id(p) for p in params} or len({id(p) for p in params}) < len(
            params
        )
        if repeated:
            raise ArgumentError("some parameters appear in more than one parameter group, or twice")
        group = {**self.defaults, **param_group, "params": params}
        self._check(group)
        self._members.update(id(p) for p in params)
        self.param_groups.append(group)

    @border
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what closure, run first, returns."""
        recorder = current_recorder()
        if recorder is not None and recorder.phase != "optimizer":
            raise CaptureError(
                f"{type(self).__name__}.step() in a graph's build: give the optimizer to the graph "
                f"with add_optimizer(), which steps it after build"
            )
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        before = set_grad_enabled(False)  # what no_grad does, at a third of its cost
        try:
            for group in self.param_groups:
                self._step_group(group)
        finally:
            set_grad_enabled(before)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every parameter's gradient, or fill it with zeros."""
        if not set_to_none:
            clear_grads(self._all_params(), set_to_none)
            return
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None

    def _step_group(self, group: Group) -> None:
        """Update the parameters of one group. Runs without autograd."""
        raise NotImplementedError(f"{type(self).__name__} must define _step_group")

    def _check(self, group: Group) -> None:
        """Raise if an option of the group cannot be."""

    def _all_params(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    # ---- saved form

    def state_dict(self) -> dict[str, Any]:
        """{"state": {number: state}, "param_groups": [options and parameter numbers]}."""
        numbers = {id(param): i for i, param in enumerate(self._all_params())}
        return {
            "state": {numbers[id(param)]: dict(entry) for param, entry in self.state.items()},
            "param_groups": [
                {**group, "params": [numbers[id(param)] for param in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state_dict(), copying its tensors; options that it lacks keep their value."""
        saved = state_dict["param_groups"]
        mine = [len(group["params"]) for group in self.param_groups]
        if [len(group["params"]) for group in saved] != mine:
            raise ArgumentError(
                "loaded state dict contains parameter groups that don't match the optimizer's: "
                f"sizes {[len(group['params']) for group in saved]} against {mine}"
            )
        numbers = chain.from_iterable(group["params"] for group in saved)
        by_number = dict(zip(numbers, self._all_params(), strict=True))
        state = {
            by_number[int(number)]: _adopted(entry, by_number[int(number)])
            for number, entry in state_dict["state"].items()
            if int(number) in by_number
        }
        self.state = state
        for group, old in zip(saved, self.param_groups, strict=True):
            known = {key: _plain(value) for key, value in group.items() if key in _kept(old)}
            old.update(known)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def _parameters(given: Any) -> list[Tensor]:
    items = [given] if isinstance(given, Tensor) else list(given)
    params = [item[1] if isinstance(item, tuple) else item for item in items]
    for param in params:
        if not isinstance(param, Tensor):
            raise ArgumentTypeError(
                f"optimizer can only optimize Tensors, got {type(param).__name__}"
            )
        if not param.is_leaf:
            raise ArgumentError("can't optimize a non-leaf Tensor")
    return params


def _kept(group: Group) -> set[str]:
    return (set(group) | {"initial_lr"}) - {"params"}


def _plain(value: Any) -> Any:
    """An option as it is kept: JSON has no tuples, PyTorch may have put a number in a tensor."""
    if isinstance(value, list):
        return tuple(value)
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 else value


def _adopted(entry: Mapping[str, Any], param: Tensor) -> dict[str, Any]:
    """A copy of the saved state of one parameter, with the parameter's dtype and device."""
    adopted: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, Tensor):
            if tuple(value.shape) == tuple(param.shape) and key != "step":
                value = value.detach().to(device=param.device, dtype=param.dtype).clone()
            else:
                value = value.item() if value.numel() == 1 else value.detach().clone()
        adopted[key] = int(value) if key == "step" else value
    return adopted


def at_least(name: str, value: float, minimum: float = 0.0) -> None:
    """Refuse an option below `minimum`, NaN included."""
    if not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name} must be a number, got {value!r}")
    if not value >= minimum:
        raise ArgumentError(f"Invalid {name}: {value}, must be at least {minimum}")
