"""A variational autoencoder of digits.

It is trained 20 steps, as eager code, as a graph and with PyTorch where that is installed: the
losses agree.  Its noise comes with the data: generators of random numbers differ.

Kingma and Welling, "Auto-encoding variational Bayes", 2013.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from curves import Batch, compare, digits

LATENT = 4


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn, functional = lib.nn, lib.nn.functional

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(64, 64)
            self.fc21, self.fc22 = nn.Linear(64, LATENT), nn.Linear(64, LATENT)
            self.fc3, self.fc4 = nn.Linear(LATENT, 64), nn.Linear(64, 64)

        def encode(self, x: Any) -> Any:
            h1 = functional.relu(self.fc1(x))
            return self.fc21(h1), self.fc22(h1)

        def reparameterize(self, mu: Any, logvar: Any, eps: Any) -> Any:
            std = lib.exp(0.5 * logvar)
            return mu + eps * std

        def decode(self, z: Any) -> Any:
            return lib.sigmoid(self.fc4(functional.relu(self.fc3(z))))

        def forward(self, x: Any, eps: Any) -> Any:
            mu, logvar = self.encode(x.view(-1, 64))
            return self.decode(self.reparameterize(mu, logvar, eps)), mu, logvar

    return VAE()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    optimizer = lib.optim.Adam(model.parameters(), lr=1e-2)

    @compiled
    def step(x: Any, eps: Any) -> Any:
        optimizer.zero_grad()
        recon, mu, logvar = model(x, eps)
        bce = lib.nn.functional.binary_cross_entropy(recon, x.view(-1, 64), reduction="sum")
        kld = -0.5 * lib.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = (bce + kld) / len(x)
        loss.backward()
        optimizer.step()
        return loss

    return step


def with_noise(count: int, samples: int) -> list[Batch]:
    """(images, noise)."""
    rng = np.random.default_rng(1)
    return [
        (x, rng.normal(size=(samples, LATENT)).astype(np.float32))
        for x, _ in digits(count, samples)
    ]


# %% The same 20 steps, each way.
compare(make, training, with_noise(20, samples=64))
