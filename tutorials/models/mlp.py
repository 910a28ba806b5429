"""A multilayer perceptron that reads handwritten digits.

It is trained 20 steps, as eager code, as a graph and with PyTorch where that is installed: the
losses agree.  Then it is trained on, and tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curves import compare, digits, eager, trained

import flowvm as flow
from flowvm.datasets import load_digits


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn = lib.nn
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    optimizer = lib.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    criterion = lib.nn.CrossEntropyLoss()

    @compiled
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


# %% The same 20 steps, each way.
model, _ = compare(make, training, digits(20, samples=64))

# %% More of them, and how many digits of those it has not seen it reads.
trained(flow, training(flow, model, eager), digits(300, samples=64))
images, labels = load_digits("test")
with flow.no_grad():
    right = (model(images).argmax(1) == labels).float().mean().item()
print(f"test accuracy {right:.1%}")
if right < 0.9:
    raise SystemExit("it has not learned to read")
