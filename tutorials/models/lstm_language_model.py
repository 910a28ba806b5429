"""A language model of characters: an embedding, two LSTM layers, a linear layer.

It is trained on the LICENSE, 20 steps, as eager code, as a graph and with PyTorch where that is
installed: the losses agree.  Then it writes, keeping its state from character to character.
"""

from __future__ import annotations

from typing import Any

from curves import (
    CHARACTERS,
    batches,
    compare,
    decoded,
    eager,
    encoded,
    like,
    next_character,
    trained,
)

import flowvm as flow


# %% The model, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn = lib.nn

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(len(CHARACTERS), 24)
            self.lstm = nn.LSTM(24, 48, num_layers=2, batch_first=True)
            self.head = nn.Linear(48, len(CHARACTERS))

        def forward(self, x: Any, state: Any = None, keep: bool = False) -> Any:
            out, state = self.lstm(self.embed(x), state)
            scores = self.head(out)
            return (scores, state) if keep else scores

    return LanguageModel()


# %% The same 20 steps, each way.
model, theirs = compare(make, next_character, batches(20, samples=16, length=32))

# %% More of them, so that what it writes are words.
step = next_character(flow, model, eager)
losses = trained(flow, step, batches(200, samples=16, length=32))
print(f"loss after {len(losses)} more: {losses[-1]:.2f}")
if theirs is not None:
    like(model, theirs)


# %% Writing: the most likely character, then that one's most likely follower, and so on.
def written(lib: Any, model: Any, start: str, count: int) -> str:
    """`start` and `count` more characters."""
    x, state = lib.tensor(encoded(start)).unsqueeze(0), None
    letters = []
    with lib.no_grad():
        for _ in range(count):
            scores, state = model(x, state, keep=True)
            x = scores[:, -1:].argmax(-1)
            letters.append(x.item())
    return start + decoded(letters)


text = written(flow, model, "Licensed", 24)
print(repr(text))
if theirs is not None:
    import torch

    if text != written(torch, theirs, "Licensed", 24):
        raise SystemExit("PyTorch writes something else")
    print("PyTorch writes the same")
