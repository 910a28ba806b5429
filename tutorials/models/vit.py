"""A small vision transformer that reads handwritten digits.

It is trained 20 steps, as eager code, as a graph and with PyTorch where that is installed: the
losses agree.

Dosovitskiy and others, "An image is worth 16x16 words", 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curves import compare, digits

SIZE, PATCH, WIDTH, HEADS, LAYERS = 32, 4, 48, 4, 2


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn = lib.nn

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, WIDTH, kernel_size=PATCH, stride=PATCH)
            self.cls_token = nn.Parameter(lib.zeros(1, 1, WIDTH))
            self.places = nn.Parameter(lib.empty(1, (SIZE // PATCH) ** 2 + 1, WIDTH))
            nn.init.trunc_normal_(self.places, std=0.02)
            layer = nn.TransformerEncoderLayer(
                d_model=WIDTH,
                nhead=HEADS,
                dim_feedforward=4 * WIDTH,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
            self.head = nn.Linear(WIDTH, 10)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = lib.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
            x = self.encoder(x + self.places)
            return self.head(self.norm(x)[:, 0])

    return ViT()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    optimizer = lib.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    criterion = lib.nn.CrossEntropyLoss(label_smoothing=0.1)

    @compiled
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


# %% The same 20 steps, each way.
compare(make, training, digits(20, samples=16, size=SIZE))
