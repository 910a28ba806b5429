"""A tiny BERT: it finds masked characters from the ones around them.

It is trained on the LICENSE, 20 steps, as eager code, as a graph and with PyTorch where that is
installed: the losses agree.

Devlin, Chang, Lee and Toutanova, "BERT: pre-training of deep bidirectional transformers for
language understanding", 2018: of the places that are to be found, 80% are masked, 10% have another
character and 10% their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from curves import CHARACTERS, Batch, batches, compare

WIDTH, HEADS, LAYERS, LENGTH = 48, 4, 2, 32
MASK, PAD = len(CHARACTERS), len(CHARACTERS) + 1
IGNORED = -100  # the label of a place that is not to be found


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn, functional = lib.nn, lib.nn.functional

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(PAD + 1, WIDTH, padding_idx=PAD)
            self.places = nn.Embedding(LENGTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation=functional.gelu, batch_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.transform = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
            self.decoder = nn.Linear(WIDTH, PAD + 1)
            self.decoder.weight = self.words.weight
            self.register_buffer("ids", lib.arange(LENGTH).expand((1, -1)), persistent=False)
            self.apply(self.init_weights)

        def init_weights(self, module: Any) -> None:
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.data.normal_(mean=0.0, std=0.02)

        def forward(self, x: Any) -> Any:
            hidden = self.norm(self.words(x) + self.places(self.ids[:, : x.size(1)]))
            hidden = self.encoder(hidden, src_key_padding_mask=x.eq(PAD))
            return self.decoder(self.transform(hidden))

    return Bert()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    undecayed = ("bias", "norm")
    named = list(model.named_parameters())
    groups = [
        {
            "params": [p for n, p in named if not any(k in n for k in undecayed)],
            "weight_decay": 0.01,
        },
        {"params": [p for n, p in named if any(k in n for k in undecayed)], "weight_decay": 0.0},
    ]
    optimizer = lib.optim.AdamW(groups, lr=2e-3)
    criterion = lib.nn.CrossEntropyLoss(ignore_index=IGNORED)

    @compiled
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = criterion(model(x).view(-1, PAD + 1), y.view(-1))
        loss.backward()
        lib.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def masked(count: int, samples: int) -> list[Batch]:
    """(characters, labels), each (samples, LENGTH), rows of unlike lengths."""
    rng, rows = np.random.default_rng(1), []
    for x, _ in batches(count, samples, LENGTH):
        ends = rng.integers(LENGTH // 2, LENGTH + 1, (samples, 1))
        inside = np.arange(LENGTH) < ends
        chosen = inside & (rng.random(x.shape) < 0.15)
        chosen[:, 0] = True
        how, other = rng.random(x.shape), rng.integers(0, len(CHARACTERS), x.shape)
        y = np.where(chosen, x, IGNORED)
        x = np.where(chosen & (how < 0.8), MASK, np.where(chosen & (how < 0.9), other, x))
        rows.append((np.where(inside, x, PAD), y))
    return rows


# %% The same 20 steps, each way.
compare(make, training, masked(20, samples=16))
