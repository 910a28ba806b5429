"""Training steps to record: `name` of MODELS, or `module:function` of a program's own."""

from __future__ import annotations

import importlib
from typing import Any

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError

F = nn.functional
WORDS, LENGTH = 512, 32


class Step(nn.Graph):
    """A step of a network that a loss trains, by AdamW."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.add_optimizer(flow.optim.AdamW(network.parameters(), lr=0.001))

    def build(self, x: Any, y: Any) -> Any:
        """The loss, with its backward."""
        out = self.network(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        return loss


class Block(nn.Module):
    """Attention, and two layers behind it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Apply the block as in a transformer that looks back."""
        h = self.norm1(x)
        q, k, v = (
            f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def network(name: str, width: int, layers: int) -> nn.Module:
    """One of MODELS."""
    flow.manual_seed(0)
    if name == "transformer":
        blocks = [Block(width, max(1, width // 32)) for _ in range(layers)]
        head = nn.Linear(width, WORDS, bias=False)
        return nn.Sequential(nn.Embedding(WORDS, width), *blocks, nn.LayerNorm(width), head)
    hidden = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def batch(name: str, width: int, size: int) -> tuple[Any, Any]:
    """Inputs of such a network."""
    if name == "transformer":
        words = flow.randint(0, WORDS, (size, LENGTH + 1))
        return words[:, :-1].contiguous(), words[:, 1:].contiguous()
    return flow.randn(size, width), flow.randint(0, 10, (size,))


MODELS = ("transformer", "mlp")


def program(name: str, width: int, layers: int, size: int) -> tuple[Any, tuple[Any, ...]]:
    """Return a graph that trains, and its inputs.  ArgumentError: there is no such model."""
    if name in MODELS:
        return Step(network(name, width, layers)), batch(name, width, size)
    module, _, function = name.partition(":")
    if not function:
        raise ArgumentError(
            f"--model is one of {', '.join(MODELS)}, or module:function, got {name!r}"
        )
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"--model {name}: {error}") from error
    graph, *inputs = make()
    return graph, tuple(inputs)
