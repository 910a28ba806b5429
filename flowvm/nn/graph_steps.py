"""Optimizers inside a capture: numbers that stay live, steps that become part of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowvm.graph.capture import Capture
from flowvm.live import Live, now
from flowvm.tensor import Tensor

if TYPE_CHECKING:
    from flowvm.optim import Optimizer

__all__ = ["LIVE_OPTIONS", "Steps", "WithoutGrads"]

LIVE_OPTIONS = ("lr",)  # of an optimizer's groups: those that schedules change


class Steps:
    """Optimizers inside a capture: their numbers are live, and their steps are captured.

    Numbers in an optimizer's state (step counts) become live cells; what the step makes of them is
    computed again, from the numbers of the moment, after each replay.
    """

    def __init__(self, optimizers: list[tuple[Optimizer, Any]], capture: Capture) -> None:
        self.optimizers, self.capture = optimizers, capture
        self.updates: list[tuple[dict[Any, Any], Any, Live]] = []
        self._saved: list[tuple[dict[Any, Any], Any, Any]] = []
        self._known: list[set[Any]] = []
        self.made_state = False

    def __enter__(self) -> Steps:
        for optimizer, _ in self.optimizers:
            self._known.append({(p, name) for p, e in optimizer.state.items() for name in e})
            for group in optimizer.param_groups:
                for name in LIVE_OPTIONS:
                    if isinstance(group.get(name), (int, float)):
                        self._make_live(group, name)
            for entry in optimizer.state.values():
                for name, value in entry.items():
                    if isinstance(value, (int, float)) and not isinstance(value, bool):
                        self._make_live(entry, name)
        return self

    def _make_live(self, owner: dict[Any, Any], name: Any) -> None:
        value = owner[name]
        self._saved.append((owner, name, value))

        def find() -> Any:
            found = owner[name]
            return value if isinstance(found, Live) else found  # while it is captured: as it was

        owner[name] = Live(find, self.capture.guards)

    def take(self) -> None:
        """Capture one step of each optimizer."""
        self.capture.phase = "optimizer"
        for optimizer, _ in self.optimizers:
            optimizer.step()

    def __exit__(self, *error: object) -> None:
        cells = [(owner, name, owner[name]) for owner, name, _ in self._saved]
        for owner, name, value in self._saved:
            owner[name] = value
        for (optimizer, _), known in zip(self.optimizers, self._known, strict=True):
            for param, entry in list(optimizer.state.items()):
                for name in [n for n in entry if (param, n) not in known]:
                    self.made_state = True
                    del entry[name]
                if not entry:
                    del optimizer.state[param]
        for owner, name, cell in cells:
            if isinstance(cell, Live) and name not in LIVE_OPTIONS:
                self.updates.append((owner, name, cell))

    def after_launch(self) -> None:
        """What the steps did to Python's numbers, and the schedules."""
        values = [now(cell) for _, _, cell in self.updates]
        for (owner, name, _), value in zip(self.updates, values, strict=True):
            owner[name] = value
        for _, schedule in self.optimizers:
            if schedule is not None:
                schedule.step()


class WithoutGrads:
    """Gradients put aside: a capture leaves none of its own behind."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters

    def __enter__(self) -> None:
        self.grads = [p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None

    def __exit__(self, *error: object) -> None:
        for p, grad in zip(self.parameters, self.grads, strict=True):
            p.grad = grad
