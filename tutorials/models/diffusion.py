"""A diffusion model: a U-Net that is told the time takes noise away, until digits are left.

It is trained 20 steps, as eager code, as a graph and with PyTorch where that is installed: the
losses agree.  Then it is trained on, and draws digits from noise in 20 steps.

Ho, Jain and Abbeel, "Denoising diffusion probabilistic models", 2020; Song, Meng and Ermon,
"Denoising diffusion implicit models", 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from curves import Batch, compare, digits, trained

import flowvm as flow

TIMES, SIZE = 100, 16
signal = np.cos(0.5 * np.pi * (np.arange(TIMES) + 1) / (TIMES + 1)) ** 2  # how much is left of x


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any, width: int = 16) -> Any:
    """The model of a library."""
    nn, functional = lib.nn, lib.nn.functional

    def embedded(time: Any) -> Any:
        rates = lib.exp(lib.arange(width // 2) * (-math.log(1e4) / (width // 2)))
        angles = time.unsqueeze(1) * rates
        return lib.cat([angles.sin(), angles.cos()], dim=1)

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
            self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
            self.time = nn.Linear(4 * width, outputs)
            self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            h = self.conv1(functional.silu(self.norm1(x)))
            h = h + self.time(time)[:, :, None, None]
            return self.skip(x) + self.conv2(functional.silu(self.norm2(h)))

    class Attention(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(4, channels)
            self.qkv, self.out = (
                nn.Conv2d(channels, 3 * channels, 1),
                nn.Conv2d(channels, channels, 1),
            )

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, dim=2)
            mixed = functional.scaled_dot_product_attention(q, k, v)
            return x + self.out(mixed.transpose(1, 2).reshape(x.shape))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(),
                                      nn.Linear(4 * width, 4 * width), nn.SiLU())  # fmt: skip
            self.first = nn.Conv2d(1, width, 3, padding=1)
            self.down1, self.down2 = Block(width, width), Block(width, 2 * width)
            self.shrink1 = nn.Conv2d(width, width, 3, stride=2, padding=1)
            self.shrink2 = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
            self.middle, self.attention = Block(2 * width, 2 * width), Attention(2 * width)
            self.up2, self.up1 = Block(4 * width, width), Block(2 * width, width)
            self.norm, self.last = nn.GroupNorm(4, width), nn.Conv2d(width, 1, 3, padding=1)

        def forward(self, x: Any, time: Any) -> Any:
            t = self.time(embedded(time))
            x1 = self.down1(self.first(x), t)
            x2 = self.down2(self.shrink1(x1), t)
            x = self.attention(self.middle(self.shrink2(x2), t))
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = self.up2(lib.cat([x, x2], dim=1), t)
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = self.up1(lib.cat([x, x1], dim=1), t)
            return self.last(functional.silu(self.norm(x)))

    return UNet()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    optimizer = lib.optim.AdamW(model.parameters(), lr=2e-3)

    @compiled
    def step(x: Any, time: Any, noise: Any) -> Any:
        loss = lib.nn.functional.mse_loss(model(x, time), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def noisy(count: int, samples: int, seed: int) -> list[Batch]:
    """(images under noise, how long they were, the noise)."""
    rng = np.random.default_rng(seed)
    rows = []
    for x, _ in digits(count, samples, size=SIZE):
        time = rng.integers(0, TIMES, samples)
        share = signal[time].reshape(-1, 1, 1, 1)
        noise = rng.standard_normal(x.shape)
        mixed = np.sqrt(share) * (2 * x - 1) + np.sqrt(1 - share) * noise
        rows.append(tuple(a.astype(np.float32) for a in (mixed, time, noise)))
    return rows


# %% The same 20 steps, each way.
model, _ = compare(make, training, noisy(20, samples=8, seed=1))

# %% More of them, as a graph: nothing known is a loss of 1.
losses = trained(flow, training(flow, model, flow.compile), noisy(150, samples=16, seed=2))
loss = float(np.mean(losses[-20:]))
print(f"loss after {len(losses)} more: {loss:.2f}")
if loss > 0.4:
    raise SystemExit("it has not learned what noise is")


# %% Digits from noise: what is left is guessed, and a little less noise put on the guess.
@flow.compile
def denoised(x: flow.Tensor, time: flow.Tensor) -> flow.Tensor:
    """The noise that the model sees."""
    return model(x, time)


flow.manual_seed(0)
x = flow.randn(4, 1, SIZE, SIZE)
with flow.no_grad():
    for at in range(TIMES - 1, -1, -5):
        now, after = signal[at], signal[at - 5] if at >= 5 else 1.0
        noise = denoised(x, flow.full((4,), float(at)))
        guess = ((x - math.sqrt(1 - now) * noise) / math.sqrt(now)).clamp(-1, 1)
        x = math.sqrt(after) * guess + math.sqrt(1 - after) * noise
for row in x[:, 0, ::2, ::2].permute(1, 0, 2).reshape(SIZE // 2, -1).tolist():
    print("".join(" .:*#"[min(4, int((v + 1) * 2.5))] for v in row))
