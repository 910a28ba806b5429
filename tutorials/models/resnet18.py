"""ResNet-18 for images of CIFAR's size, as narrow as its argument says.

It is trained on handwritten digits, 20 steps, as eager code, as a graph and with PyTorch where that
is installed: the losses agree.

He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curves import compare, digits


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any, width: int = 8) -> Any:
    """The model of a library; the paper's has width 64."""
    nn, functional = lib.nn, lib.nn.functional

    class BasicBlock(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.shortcut = nn.Sequential()
            if stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x: Any) -> Any:
            out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
            out = self.bn2(self.conv2(out))
            out += self.shortcut(x)
            return functional.relu(out)

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            blocks, inputs = [], width
            for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
                blocks += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
                inputs = outputs
            self.layers = nn.Sequential(*blocks)
            self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
            self.fc = nn.Linear(inputs, 10)
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

        def forward(self, x: Any) -> Any:
            x = functional.relu(self.bn1(self.conv1(x)))
            x = self.avgpool(self.layers(x))
            return self.fc(lib.flatten(x, 1))

    return ResNet()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    optimizer = lib.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
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
compare(make, training, digits(20, samples=8, size=32, channels=3), double=True)
