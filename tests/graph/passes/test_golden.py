"""Plans as text: the `plan.dump()` of ten programs.

The texts in golden/ change when capture, a pass or the memory plan does, so a change of these shows
in review as a change of text.  `FLOWVM_GOLDEN=write pytest tests/graph/passes/test_golden.py`
writes them anew; then look at the difference.

Nothing in a text depends on the machine or the run: files are named without their folder, there are
no addresses and no times.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flowvm as flow

nn, F = flow.nn, flow.nn.functional
GOLDEN = Path(__file__).parent / "golden"


def train(
    model: Any, optimizer: Any, loss: Callable[..., Any], *batch: Any, **settings: Any
) -> Any:
    """The last Plan of a graph that trains."""

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, *batch: Any) -> Any:
            value = loss(self.model, *batch)
            value.backward()
            return value

    graph = Train()
    for name in settings.get("without", ()):
        graph.config.disable(name)
    for _ in range(2):
        graph(*batch)
    return graph.plans[-1]


def forward(function: Callable[..., Any], *inputs: Any) -> Any:
    """The Plan of a function."""
    graph = flow.compile(function)
    with flow.no_grad():  # a module that is trained from outside of it runs eagerly
        graph(*inputs)
    return graph.plans[-1]


def classify(model: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x), y)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def labels(n: int) -> Any:
    return flow.zeros(n, dtype=flow.int64)


class Attention(nn.Module):
    """One head, with its residual and norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = (q @ k.transpose(-2, -1)) * (q.shape[-1] ** -0.5)
        return x + self.out(F.softmax(scores, dim=-1) @ v)


def recurrent(x: Any, h: Any) -> Any:
    weight = flow.ones(4, 4)
    for t in range(3):
        h = (x[t] + h @ weight).tanh()
    return h


def updates() -> Any:
    total = flow.zeros(4)

    def function(x: Any) -> Any:
        total.mul_(0.9).add_(x)
        total[:2].clamp_(0, 1)
        return total * 2, total.sum()

    return function


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + (0.7978845608 * (x + 0.044715 * x**3)).tanh())


PROGRAMS: dict[str, Callable[[], Any]] = {
    "forward": lambda: forward(mlp(), flow.ones(2, 8)),
    "gelu": lambda: forward(gelu, flow.ones(64)),
    "softmax by hand": lambda: forward(
        lambda x: (x - x.amax(-1, keepdim=True)).exp() / x.exp().sum(-1, keepdim=True),
        flow.ones(4, 8),
    ),
    "sgd": lambda: train(
        model := mlp(), flow.optim.SGD(model.parameters(), lr=0.1), classify,
        flow.ones(2, 8), labels(2),
    ),
    "momentum without passes": lambda: train(
        model := mlp(), flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), classify,
        flow.ones(2, 8), labels(2), without=tuple(flow.nn.Graph().config.passes),
    ),
    "adamw": lambda: train(
        model := nn.Linear(8, 4), flow.optim.AdamW(model.parameters(), lr=0.1), classify,
        flow.ones(2, 8), labels(2),
    ),
    "convolution": lambda: train(
        model := nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(18, 4),
        ),
        flow.optim.SGD(model.parameters(), lr=0.1), classify, flow.ones(2, 1, 8, 8), labels(2),
    ),
    "attention": lambda: forward(Attention(8), flow.ones(2, 4, 8)),
    "recurrent": lambda: forward(recurrent, flow.ones(3, 2, 4), flow.zeros(2, 4)),
    "updates": lambda: forward(updates(), flow.ones(4)),
}  # fmt: skip


def normalized(plan: Any) -> str:
    """A dump without folders, addresses and spaces at line ends; and without places in memory where
    tasks have scratch, whose size depends on the machine's vectors and caches.
    """
    text = plan.dump()
    if any(task.scratch is not None for task in plan.tasks):
        text = re.sub(r"\n  (?:chunk|memory).*", "", text)
        text = re.sub(r"chunk\+\d+", "chunk", text)
    text = re.sub(r"(?:[\w.~-]*/)+([\w-]+\.py)", r"\1", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_dump(name: str) -> None:
    text = normalized(PROGRAMS[name]())
    assert normalized(PROGRAMS[name]()) == text, "the second time it is another one"
    file = GOLDEN / f"{name.replace(' ', '_')}.txt"
    if os.environ.get("FLOWVM_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.read_text() == text, f"FLOWVM_GOLDEN=write pytest {__file__} writes {file.name}"


def test_no_text_is_left_over() -> None:
    names = {f"{name.replace(' ', '_')}.txt" for name in PROGRAMS}
    assert {file.name for file in GOLDEN.iterdir()} == names
