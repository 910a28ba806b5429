"""`python -m flowvm launch -n 2 --threads 1 -m tools.bench.auto_parallel [--rounds 30]`: what the
search for sbp chooses for three models, and its predicted against its measured time.

Each model trains as a graph of global tensors, all held whole at first.  One twin keeps that, one
has `enable_auto_parallel`.  They run by turns; a time is the least of rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import flowvm as flow
from flowvm import nn
from flowvm.ranks.world import rank

F = nn.functional


class Train(nn.Graph):
    """A training step: forward, backward, SGD."""

    def __init__(self, model: nn.Module, auto: bool) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.01))
        self.config.enable_auto_parallel(auto)

    def build(self, x: Any, y: Any) -> Any:
        """The loss."""
        loss = F.cross_entropy(self.model(x).flatten(0, -2), y)
        loss.backward()
        return loss


def wide() -> tuple[nn.Module, Any, Any]:
    """Layers of many columns, and few rows: weights cost more to exchange than values."""
    layers = [nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), flow.randn(8, 512), flow.arange(8) % 10


def transformer() -> tuple[nn.Module, Any, Any]:
    """Two encoder layers and a head."""
    layers = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
              for _ in range(2)]  # fmt: skip
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    return model, flow.randn(16, 16, 64), flow.arange(256) % 10


def convolutions() -> tuple[nn.Module, Any, Any]:
    """Few weights, and many values."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 10),
    )  # fmt: skip
    return model, flow.randn(32, 3, 16, 16), flow.arange(32) % 10


def graph_of(make: Callable[[], tuple[nn.Module, Any, Any]], auto: bool) -> tuple[Train, Any, Any]:
    """A graph on all ranks, and what it takes."""
    where, whole = flow.placement.all("cpu"), flow.sbp.broadcast
    flow.manual_seed(0)
    model, x, y = make()
    inputs = [t.to_global(where, whole, check_meta=False) for t in (x, y)]
    return Train(model.to_global(where, whole), auto), inputs[0], inputs[1]


def timed(graph: Train, x: Any, y: Any, times: int) -> float:
    """Milliseconds of a call."""
    begin = time.perf_counter()
    for _ in range(times):
        out = graph(x, y)
    out.item()
    return (time.perf_counter() - begin) / times * 1e3


def main() -> None:
    """Print what was chosen, and times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    for make in (wide, transformer, convolutions):
        twins = [graph_of(make, auto) for auto in (False, True)]
        least = [1e9, 1e9]
        for _ in range(rounds):
            for k, (graph, x, y) in enumerate(twins):
                least[k] = min(least[k], timed(graph, x, y, 5))
        losses = [graph(x, y).item() for graph, x, y in twins]
        if rank() == 0:
            print(f"{make.__name__}: measured {least[1]:.2f} ms, {least[0]:.2f} as it was; losses "
                  f"{losses[1]:.6f}, {losses[0]:.6f}")  # fmt: skip
            result = twins[1][0]._search_result
            print("  no search" if result is None else "\n".join(result.lines()), flush=True)


if __name__ == "__main__":
    main()
