"""The shared code of the scripts beside this one: batches of data, and loss curves side by side.

A model and its training are written once, for a library that is given, which is flowvm or PyTorch:
`make(lib)` gives the model, `training(lib, model, compiled)` a function that takes a step and gives
its loss.  `compare` trains from the same weights as eager code (`compiled` changes nothing), as a
graph (`compiled` is `flow.compile`), and with PyTorch where that is installed.  It shows losses and
times beside each other and ends the program if the losses part.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.datasets import digits_arrays

try:
    import torch
except ImportError:
    torch = None

TEXT = (Path(__file__).resolve().parents[2] / "LICENSE").read_text()
CHARACTERS = sorted(set(TEXT))
WARM = 4  # steps before the times that count: captures, and what PyTorch sets up
Batch = tuple[np.ndarray, ...]
Step = Callable[..., Any]
Training = Callable[[Any, Any, Callable[[Step], Step]], Step]


def encoded(text: str) -> np.ndarray:
    """The number of each character."""
    places = {c: i for i, c in enumerate(CHARACTERS)}
    return np.array([places[c] for c in text])


def decoded(numbers: Any) -> str:
    """The text of numbers."""
    return "".join(CHARACTERS[i] for i in numbers)


def batches(count: int, samples: int, length: int) -> list[Batch]:
    """(characters, the ones that follow them), each (samples, length), from seed 0."""
    rng, whole = np.random.default_rng(0), encoded(TEXT)
    result = []
    for _ in range(count):
        starts = rng.integers(0, len(whole) - length - 1, samples)
        rows = np.stack([whole[s : s + length + 1] for s in starts])
        result.append((rows[:, :-1].copy(), rows[:, 1:].copy()))
    return result


def digits(count: int, samples: int, size: int = 8, channels: int = 1) -> list[Batch]:
    """(images, labels) of handwritten digits from seed 0, images (samples, channels, size, size).

    The images are 8x8 and grey; each pixel becomes a square, the same in each channel.
    """
    rng, (images, labels) = np.random.default_rng(0), digits_arrays("train")
    result = []
    for _ in range(count):
        rows = rng.integers(0, len(labels), samples)
        x = images[rows].repeat(size // 8, 2).repeat(size // 8, 3).repeat(channels, 1)
        result.append((x, labels[rows]))
    return result


def next_character(lib: Any, model: Any, compiled: Callable[[Step], Step]) -> Step:
    """Steps by the cross entropy of each next character."""
    optimizer = lib.optim.AdamW(model.parameters(), lr=1e-2)

    @compiled
    def step(x: Any, y: Any) -> Any:
        scores = model(x)
        loss = lib.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def eager(step: Step) -> Step:
    """Return the step unchanged: the `compiled` of eager code."""
    return step


def like(model: Any, other: Any) -> Any:
    """PyTorch's model `other` with the weights of `model`."""
    state = {name: torch.tensor(value.numpy()) for name, value in model.state_dict().items()}
    other.load_state_dict(state)
    return other


def trained(lib: Any, step: Step, data: list[Batch]) -> list[float]:
    """The loss of each step."""
    return [step(*map(lib.tensor, batch)).item() for batch in data]


def compare(
    make: Callable[[Any], Any], training: Training, data: list[Batch], double: bool = False
) -> tuple[Any, Any]:
    """Train each way, show losses and times, and give (flowvm's model, PyTorch's or None).

    The ways take turns step by step, so that what else the machine does slows all of them; a time
    is the least of a way's steps.  Models in which rounding grows from step to step are compared in
    `double`, float64.
    """
    flow.manual_seed(0)
    model, theirs = make(flow), None
    if double:
        model = model.double()
        data = [tuple(a.astype(float) if a.dtype == np.float32 else a for a in b) for b in data]
    ways = {
        "eager": (flow, training(flow, model, eager)),
        "graph": (flow, training(flow, copy.deepcopy(model), flow.compile)),
    }
    if torch is not None:
        theirs = like(model, make(torch).to(torch.float64 if double else torch.float32))
        ways["PyTorch"] = (torch, training(torch, theirs, eager))
    times: dict[str, list[float]] = {name: [] for name in ways}
    apart = dict.fromkeys(ways, 0.0)
    print(f"{'step':>6}", *(f"{name:>10}" for name in ways))
    for i, batch in enumerate(data):
        losses = {}
        for name, (lib, step) in ways.items():
            inputs = [lib.tensor(array) for array in batch]
            began = time.perf_counter()
            losses[name] = step(*inputs).item()
            flow.vm.sync()  # the loss is there before the step is taken
            times[name].append(time.perf_counter() - began)
            apart[name] = max(apart[name], abs(losses[name] - losses["eager"]))
        print(f"{i:>6}", *(f"{loss:>10.5f}" for loss in losses.values()))
    print(f"{'ms':>6}", *(f"{min(seconds[WARM:]) * 1e3:>10.2f}" for seconds in times.values()))
    for name, distance in apart.items():
        if not distance <= 1e-3:  # nor is NaN
            raise SystemExit(f"{name} is {distance:.2g} away from eager code")
    print(f"{len(ways)} curves agree over {len(data)} steps")
    return model, theirs
