"""A U-Net that finds the ink of handwritten digits under noise.

It is trained 20 steps, as eager code, as a graph and with PyTorch where that is installed: the
losses agree.

Ronneberger, Fischer and Brox, "U-Net: convolutional networks for biomedical image segmentation",
2015.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from curves import Batch, compare, digits


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any, width: int = 8) -> Any:
    """The model of a library; the paper's has width 64."""
    nn = lib.nn

    class DoubleConv(nn.Sequential):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__(
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
                nn.Conv2d(outputs, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            )

    class Up(nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(inputs, inputs // 2, kernel_size=2, stride=2)
            self.conv = DoubleConv(inputs, inputs // 2)

        def forward(self, x: Any, skip: Any) -> Any:
            return self.conv(lib.cat([skip, self.up(x)], dim=1))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inc = DoubleConv(1, width)
            self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, 2 * width))
            self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2 * width, 4 * width))
            self.up1, self.up2 = Up(4 * width), Up(2 * width)
            self.outc = nn.Conv2d(width, 1, kernel_size=1)

        def forward(self, x: Any) -> Any:
            x1 = self.inc(x)
            x2 = self.down1(x1)
            x3 = self.down2(x2)
            return self.outc(self.up2(self.up1(x3, x2), x1))

    return UNet()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    optimizer = lib.optim.RMSprop(model.parameters(), lr=1e-3, weight_decay=1e-8, momentum=0.9)
    criterion = lib.nn.BCEWithLogitsLoss()

    @compiled
    def step(x: Any, ink: Any) -> Any:
        scores = model(x)
        inner, union = (lib.sigmoid(scores) * ink).sum(), (lib.sigmoid(scores) + ink).sum()
        loss = criterion(scores, ink) + 1 - (2 * inner + 1) / (union + 1)  # and Dice's
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        lib.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def noisy(count: int, samples: int) -> list[Batch]:
    """(images under noise, where the ink is), each (samples, 1, 32, 32)."""
    rng = np.random.default_rng(1)
    batches = []
    for x, _ in digits(count, samples, size=32):
        noise = rng.normal(0, 0.3, x.shape)
        batches.append(((x + noise).astype(np.float32), (x > 0.5).astype(np.float32)))
    return batches


# %% The same 20 steps, each way.
compare(make, training, noisy(20, samples=8), double=True)
