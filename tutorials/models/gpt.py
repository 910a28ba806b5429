"""A small GPT of characters, and generation with cached keys and values.

It is trained on the LICENSE, 20 steps, as eager code, as a graph and with PyTorch where that is
installed: the losses agree.  Then it writes, one place at a time: keys and values of the places
before are kept, so a step costs one row of attention and not all of them.
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

WIDTH, HEADS, BLOCKS, LENGTH = 48, 4, 2, 48


# %% The model, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn, functional = lib.nn, lib.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any, cache: Any) -> Any:
            samples, length, _ = x.shape
            qkv = self.qkv(self.norm1(x)).reshape(samples, length, 3, HEADS, WIDTH // HEADS)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            if cache is not None and cache.get(self) is not None:
                k = lib.cat([cache[self][0], k], 2)
                v = lib.cat([cache[self][1], v], 2)
            if cache is not None:
                cache[self] = k, v
            # one query at the end sees all keys; a whole text sees what is before
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
            x = x + self.out(mixed.transpose(1, 2).reshape(samples, length, WIDTH))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(len(CHARACTERS), WIDTH)
            self.place = nn.Embedding(2 * LENGTH, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, len(CHARACTERS), bias=False)

        def forward(self, x: Any, cache: Any = None, first: int = 0) -> Any:
            x = self.embed(x) + self.place(lib.arange(first, first + x.shape[1]))
            for block in self.blocks:
                x = block(x, cache)
            return self.head(self.norm(x))

    return GPT()


# %% The same 20 steps, each way.
model, theirs = compare(make, next_character, batches(20, samples=8, length=LENGTH))

# %% More of them, so that what it writes are words.
step = next_character(flow, model, eager)
losses = trained(flow, step, batches(200, samples=8, length=LENGTH))
print(f"loss after {len(losses)} more: {losses[-1]:.2f}")
if theirs is not None:
    like(model, theirs)


# %% Writing, with and without the cache.
def written(lib: Any, model: Any, start: str, count: int, cached: bool) -> str:
    """`start` and `count` more characters, each the most likely one."""
    numbers = list(encoded(start))
    cache: Any = {} if cached else None
    cached_length = 0  # places whose keys and values the cache has
    with lib.no_grad():
        for _ in range(count):
            scores = model(lib.tensor(numbers[cached_length:]).unsqueeze(0), cache, cached_length)
            cached_length = len(numbers) if cached else 0
            numbers.append(scores[0, -1].argmax().item())
    return decoded(numbers)


text = written(flow, model, "Licensed", 40, cached=True)
print(repr(text))
if text != written(flow, model, "Licensed", 40, cached=False):
    raise SystemExit("without the cache it writes something else")
print("the same without the cache")
if theirs is not None:
    import torch

    if text != written(torch, theirs, "Licensed", 40, cached=True):
        raise SystemExit("PyTorch writes something else")
    print("PyTorch writes the same")
