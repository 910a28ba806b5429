"""Whole training runs of three models, again and again: the same bits for 1, 2 and 3 workers, by
eager code and by a graph without the passes that round differently.

The first run of a process, eager and on one worker, is what the others are compared with: losses,
parameters and the optimizer's state.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from typing import Any

import numpy as np

import flowvm as flow
from flowvm import nn
from flowvm.graph.passes.passes import PASSES
from flowvm.nn import functional as F
from tools.campaign.graph import ROUNDING

BATCH = 60
AMOUNTS: Counter[str] = Counter()
STEPS = 3
WORKERS = (1, 2, 3)


class Mlp(nn.Module):
    """Large enough for products and rows to be shared among workers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(96, 256), nn.GELU(), nn.BatchNorm1d(256), nn.Dropout(0.1), nn.Linear(256, 10)
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x.reshape(len(x), -1)[:, :96])


class Cnn(nn.Module):
    """Convolutions, pooling, norms of planes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6 * 6, 10),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Transformer(nn.Module):
    """One block with attention over 24 places, and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 48), nn.Parameter(flow.zeros(24, 48))
        self.norm, self.qkv = nn.LayerNorm(48), nn.Linear(48, 144)
        self.mix = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
        self.head = nn.Linear(48, 10)

    def forward(self, x: Any) -> Any:
        tokens = (x.reshape(len(x), -1)[:, :24].abs() * 20).to(flow.int64) % 50
        h = self.embed(tokens) + self.places
        q, k, v = (
            t.reshape(len(x), 24, 4, 12).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, 2)
        )
        weights = (q @ k.transpose(2, 3) * 12**-0.5).softmax(3)
        h = h + (weights @ v).transpose(1, 2).reshape(len(x), 24, 48)
        return self.head((h + self.mix(h)).mean(1))


MODELS: dict[str, Any] = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer}


class Step(nn.Graph):
    """A training step as a graph, without the passes that may change a bit."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.disable(*(name for name in ROUNDING if name in PASSES))

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def trained(model: str, workers: int, by: str) -> list[bytes]:
    """The bits of losses, parameters, buffers and the optimizer's state after a few steps."""
    with flow.config(workers=workers):
        flow.manual_seed(3)
        net = MODELS[model]()
        optimizer = flow.optim.AdamW(net.parameters(), lr=0.01)
        graph = Step(net, optimizer) if by == "graph" else None
        numbers = np.random.default_rng(1)
        losses = []
        for _ in range(STEPS):
            x = flow.tensor(numbers.standard_normal((48, 3, 16, 16)).astype(np.float32))
            y = flow.tensor(numbers.integers(0, 10, 48))
            if graph is not None:
                losses.append(graph(x, y))
                continue
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        bits = [t.detach().numpy().tobytes() for t in (*losses, *net.state_dict().values())]
        for entry in optimizer.state_dict()["state"].values():
            bits += [v.numpy().tobytes() for v in entry.values() if isinstance(v, flow.Tensor)]
    return bits


@functools.cache
def reference(model: str) -> list[bytes]:
    """Return the result that every run must give."""
    return trained(model, 1, "eager")


def case(seed: int) -> list[Any]:
    """See `tools.campaign.__main__`."""
    rng = random.Random(seed)
    return [rng.choice(list(MODELS)), rng.choice(WORKERS), rng.choice(["eager", "graph"])]


def kind(case: Any) -> str:
    """See `tools.campaign.__main__`."""
    return f"{case[0]} by {case[2]}, {case[1]} workers"


def parts(case: Any) -> list[Any]:
    """Return no parts: nothing can be left out."""
    return []


def without(case: Any, k: int) -> Any:
    """See `parts`."""
    return case


def check(case: Any) -> str:
    """Train once more."""
    result, expected = trained(*case), reference(case[0])
    differ = [k for k, (a, b) in enumerate(zip(result, expected, strict=True)) if a != b]
    assert not differ, f"other bits in {differ} of {len(expected)}"
    AMOUNTS["training runs"] += 1
    return "the same"
