"""A DCGAN that draws digits: a generator and a discriminator, trained against each other.

They are trained 20 steps, as eager code, as a graph and with PyTorch where that is installed: the
losses agree.

Radford, Metz and Chintala, "Unsupervised representation learning with deep convolutional generative
adversarial networks", 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from curves import Batch, compare, digits

NOISE, WIDTH = 16, 8


# %% The models and their training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The two models of a library."""
    nn = lib.nn

    def weights_init(module: Any) -> None:
        name = type(module).__name__
        if name.find("Conv") != -1:
            nn.init.normal_(module.weight.data, 0.0, 0.02)
        elif name.find("BatchNorm") != -1:
            nn.init.normal_(module.weight.data, 1.0, 0.02)
            nn.init.constant_(module.bias.data, 0)

    generator = nn.Sequential(
        nn.ConvTranspose2d(NOISE, WIDTH * 4, 4, 1, 0, bias=False),
        nn.BatchNorm2d(WIDTH * 4),
        nn.ReLU(True),
        nn.ConvTranspose2d(WIDTH * 4, WIDTH * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(WIDTH * 2),
        nn.ReLU(True),
        nn.ConvTranspose2d(WIDTH * 2, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(1, WIDTH, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(WIDTH, WIDTH * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(WIDTH * 2),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(WIDTH * 2, 1, 4, 1, 0, bias=False),
        nn.Sigmoid(),
    )
    generator.apply(weights_init)
    discriminator.apply(weights_init)
    return nn.ModuleDict({"generator": generator, "discriminator": discriminator})


def training(lib: Any, models: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step of each."""
    generator, discriminator = models["generator"], models["discriminator"]
    optimizer_d = lib.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_g = lib.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    criterion = lib.nn.BCELoss()

    @compiled
    def step(real: Any, noise: Any) -> Any:
        # the discriminator: log(D(x)) + log(1 - D(G(z))) is to grow
        discriminator.zero_grad()
        label = lib.full((real.size(0),), 1.0, dtype=real.dtype, device=real.device)
        loss_real = criterion(discriminator(real).view(-1), label)
        loss_real.backward()
        fake = generator(noise)
        label.fill_(0.0)
        loss_fake = criterion(discriminator(fake.detach()).view(-1), label)
        loss_fake.backward()
        optimizer_d.step()
        # the generator: log(D(G(z))) is to grow
        generator.zero_grad()
        label.fill_(1.0)
        loss_g = criterion(discriminator(fake).view(-1), label)
        loss_g.backward()
        optimizer_g.step()
        return loss_real + loss_fake + loss_g

    return step


def pairs(count: int, samples: int) -> list[Batch]:
    """(images from -1 to 1, noise)."""
    rng = np.random.default_rng(1)
    return [
        (x * 2 - 1, rng.normal(size=(samples, NOISE, 1, 1)).astype(np.float32))
        for x, _ in digits(count, samples, size=16)
    ]


# %% The same 20 steps, each way.
compare(make, training, pairs(20, samples=16), double=True)
