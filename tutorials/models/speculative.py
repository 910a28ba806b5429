"""Speculative decoding: a small model drafts characters, and a large one checks them all at once.

Both are trained on the LICENSE, 20 steps each, as eager code, as graphs and with PyTorch where that
is installed: the losses agree.  They are trained on, and write together.  What is written is what
the large one writes alone, and it is asked less often.

Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding", 2023.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from curves import CHARACTERS, batches, compare, decoded, encoded, like, next_character, trained

import flowvm as flow

LENGTH, DRAFTED, COUNT = 48, 4, 60


# %% The models, for flowvm or PyTorch: only the library differs.
def make_target(lib: Any, width: int = 64) -> Any:
    """A transformer."""
    nn = lib.nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(len(CHARACTERS), width)
            self.place = nn.Embedding(128, width)
            layer = nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                norm_first=True,
            )  # fmt: skip
            self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = nn.Linear(width, len(CHARACTERS))

        def forward(self, x: Any) -> Any:
            length = x.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(length)
            h = self.embed(x) + self.place(lib.arange(length))
            return self.head(self.layers(h, mask=mask, is_causal=True))

    return Transformer()


def make_draft(lib: Any, width: int = 48) -> Any:
    """A recurrent network."""
    nn = lib.nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(len(CHARACTERS), width)
            self.gru = nn.GRU(width, width, batch_first=True)
            self.head = nn.Linear(width, len(CHARACTERS))

        def forward(self, x: Any, state: Any = None) -> Any:
            h, _ = self.gru(self.embed(x), state)
            return self.head(h)

        def draft(self, x: Any, count: int) -> list[int]:
            """The characters that it expects next."""
            h, state = self.gru(self.embed(x))
            numbers = [self.head(h[:, -1]).argmax().item()]
            for _ in range(count - 1):
                h, state = self.gru(self.embed(lib.tensor([numbers[-1:]])), state)
                numbers.append(self.head(h[:, -1]).argmax().item())
            return numbers

    return Recurrent()


# %% The same 20 steps, each way; then more of them, as graphs.
models: dict[str, tuple[Any, Any]] = {}
for name, make in (("target", make_target), ("draft", make_draft)):
    print(name)
    model, theirs = compare(make, next_character, batches(20, samples=8, length=LENGTH))
    step = next_character(flow, model, flow.compile)
    losses = trained(flow, step, batches(200, samples=8, length=LENGTH))
    print(f"loss after {len(losses)} more: {losses[-1]:.2f}")
    models[name] = model, None if theirs is None else like(model, theirs)


# %% Writing: alone, and together.
def alone(lib: Any, target: Any, start: list[int], _: Any) -> tuple[list[int], int]:
    """The text, each character the most likely one, and how often the target was asked."""
    numbers = list(start)
    for _ in range(COUNT):
        numbers.append(target(lib.tensor([numbers]))[0, -1].argmax().item())
    return numbers, COUNT


def together(lib: Any, target: Any, start: list[int], draft: Any) -> tuple[list[int], int]:
    """Write the text by drafts: the target keeps what it would have written, and adds one more."""
    numbers, count = list(start), 0
    while len(numbers) < len(start) + COUNT:
        drafted = draft.draft(lib.tensor([numbers]), DRAFTED)
        scores = target(lib.tensor([numbers + drafted]))[0, len(numbers) - 1 :]
        count += 1
        for own, guess in zip(scores.argmax(1).tolist(), [*drafted, None], strict=True):
            numbers.append(own)
            if own != guess:
                break
    return numbers[: len(start) + COUNT], count


Writer = Callable[..., tuple[list[int], int]]


def written(lib: Any, which: int, writer: Writer) -> list[int]:
    """The text of a library's models; how long that took."""
    start = encoded("Licensed ").tolist()
    target, draft = models["target"][which], models["draft"][which]
    with lib.no_grad():
        writer(lib, target, start, draft)  # each length is met for the first time
        began = time.perf_counter()
        numbers, count = writer(lib, target, start, draft)
        seconds = time.perf_counter() - began
    print(f"{lib.__name__} {writer.__name__}: {count} times asked, {seconds * 1e3:.0f} ms")
    return numbers


texts = [written(flow, 0, alone), written(flow, 0, together)]
if models["target"][1] is not None:
    import torch

    texts += [written(torch, 1, alone), written(torch, 1, together)]
print(repr(decoded(texts[0])))
if any(text != texts[0] for text in texts):
    raise SystemExit("together, or with PyTorch, something else is written")
print("all write the same")
