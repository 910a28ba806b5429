"""Training with differential privacy: each sample's gradient is clipped, and noise is added.

A small CNN learns handwritten digits. `vmap(grad)` gives a gradient for each sample.  It is trained
20 steps, as eager code, as a graph and with PyTorch where that is installed: the losses agree.
Then it is trained on, and says how much of it a single sample can have told.

Abadi and others, "Deep learning with differential privacy", 2016; Mironov, "Renyi differential
privacy", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from curves import Batch, compare, digits, trained

import flowvm as flow
from flowvm.datasets import digits_arrays

CLIP, NOISE, SAMPLES, RATE = 1.0, 1.0, 64, 0.5


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    func = lib.func
    optimizer = lib.optim.SGD(model.parameters(), lr=RATE)
    names = [name for name, _ in model.named_parameters()]

    def loss_of_one(weights: Any, x: Any, y: Any) -> Any:
        scores = func.functional_call(model, weights, (x.unsqueeze(0),))
        return lib.nn.functional.cross_entropy(scores, y.unsqueeze(0))

    per_sample = func.vmap(func.grad_and_value(loss_of_one), in_dims=(None, 0, 0))

    @compiled
    def step(x: Any, y: Any, noise: Any) -> Any:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        grads, losses = per_sample(weights, x, y)
        squares = sum((grads[name] ** 2).flatten(1).sum(1) for name in names)
        scale = (CLIP / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        optimizer.zero_grad()
        first = 0
        for name, p in model.named_parameters():
            total = lib.einsum("i,i...->...", scale, grads[name])
            own = noise[first : first + p.numel()].reshape(p.shape)
            p.grad = (total + NOISE * CLIP * own) / SAMPLES
            first += p.numel()
        optimizer.step()
        return losses.mean()

    return step


def drawn(count: int) -> list[Batch]:
    """(images, labels, the noise of a step)."""
    rng = np.random.default_rng(1)
    size = sum(p.numel() for p in make(flow).parameters())
    noise = [rng.standard_normal(size).astype(np.float32) for _ in range(count)]
    return [(*b, n) for b, n in zip(digits(count, SAMPLES), noise, strict=True)]


# %% The same 20 steps, each way.
model, _ = compare(make, training, drawn(20))

# %% More of them, as a graph.
trained(flow, training(flow, model, flow.compile), drawn(200))
images, labels = digits_arrays("test")
with flow.no_grad():
    right = (model(flow.tensor(images)).argmax(1) == flow.tensor(labels)).float().mean().item()


# %% What a sample can have told: the moments of a step by a sampled batch, over all steps.
def epsilon(steps: int, rate: float, delta: float = 1e-4) -> float:
    """The privacy lost, by Renyi's divergence of integer orders."""
    best = math.inf
    for order in range(2, 64):
        terms = [
            math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
            + k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / (2 * NOISE**2)
            for k in range(order + 1)
        ]  # fmt: skip
        divergence = float(np.logaddexp.reduce(terms)) / (order - 1)
        best = min(best, steps * divergence + math.log(1 / delta) / (order - 1))
    return best


lost = epsilon(200, SAMPLES / len(digits_arrays("train")[1]))
print(f"{right:.0%} of the test's digits are right; epsilon {lost:.1f} at delta 1e-4")
if right < 0.7:
    raise SystemExit("it has not learned the digits")
