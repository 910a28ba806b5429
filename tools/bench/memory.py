"""Peak memory of a training step, as the VM's allocator counts it: a Plan against eager code."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import flowvm as flow
from tools.bench.measure import Result
from tools.bench.targets import Training, transformer

STEPS = 5
REACH = 0.7


def _eager(training: Training) -> Callable[[], None]:
    model, optimizer, x, y = training
    loss_of = flow.nn.CrossEntropyLoss()

    def step() -> None:
        loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _graph(training: Training, order: str) -> Callable[[], None]:
    loss_of = flow.nn.CrossEntropyLoss()

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = training.model
            self.add_optimizer(training.optimizer)
            self.config.order = order

        def build(self, x: Any, y: Any) -> Any:
            loss = loss_of(self.model(x), y)
            loss.backward()
            return loss

    graph = Train()

    def step() -> None:
        graph(training.x, training.y)

    return step


def _peak(step: Callable[[], None]) -> tuple[int, int]:
    """Bytes of tensors between steps, and the most during one."""
    for _ in range(2):  # the optimizer's state, and the capture
        step()
    gc.collect()
    flow.vm.reset_peak()
    live = flow.vm.stats()["live_bytes"]
    for _ in range(STEPS):
        step()
        flow.vm.sync()
    return live, flow.vm.stats()["peak_bytes"]


def _measured(make: Callable[[Any], Training], order: str) -> tuple[int, int]:
    """(parameters and state, what a step needs beside them); order "" for eager code."""
    gc.collect()
    flow.vm.sync()
    before = flow.vm.stats()["live_bytes"]
    training = make(flow)
    live, peak = _peak(_graph(training, order) if order else _eager(training))
    return live - before, peak - live


def peak_rows() -> Iterator[Result]:
    """A step's peak beside parameters and optimizer state, and in all."""
    _, eager = _measured(transformer, "")
    for order, what in (("auto", ", as it comes"), ("speed", ", order speed")):
        fixed, ours = _measured(transformer, order)
        for extra, name in ((0, "beside parameters and their state"), (fixed, "in all")):
            ratio = (ours + extra) / (eager + extra)
            yield Result(
                f"graph: peak memory of the transformer step{what}, {name}", "KiB",
                (ours + extra) / 1024, "flowvm eager", (eager + extra) / 1024, ratio,
                f"at most {REACH}x", ratio <= REACH,
            )  # fmt: skip
