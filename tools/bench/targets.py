"""The targets of kernels and training steps, each row with the figure to reach.

Rows are ratios of one run, on one thread, against the fastest of the peers that a row names; the
rows "two workers" compare flowvm with itself.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import flowvm as flow
from tools.bench.kernels import (
    Remote,
    Runner,
    Timing,
    checkout,
    runners,
    time_arrays,
    time_functions,
)
from tools.bench.measure import Result, seconds_per_call
from tools.bench.models import MODELS

M = 1 << 20
Shapes = tuple[tuple[int, ...] | str, ...]


@dataclasses.dataclass(frozen=True)
class Target:
    """`expr` on arrays of these shapes ("name:shape" for numbers other than normal floats)."""

    name: str
    shapes: Shapes
    expr: str
    reach: float
    other: str = ""
    peers: tuple[str, ...] = ("torch", "jax")
    backward: bool = False


def _both(name: str, shapes: Shapes, expr: str, reach: float, **more: Any) -> list[Target]:
    """The row, forward, and the row with backward, which JAX is not asked for."""
    forward = Target(name, shapes, expr, reach, peers=("torch",), **more)
    return [forward, dataclasses.replace(forward, name=f"{name}, with backward", backward=True)]


TORCH = ("torch",)
TARGETS = [
    *(Target(f"{f} 1M", ((M,),), f"l.{f}(x)", 0.6) for f in ("exp", "tanh", "sin", "erf")),
    Target("log 1M", ("positive:1048576",), "l.log(x)", 0.6),
    *(Target(f"{f} 1M", ((M,),), f"F.{f}(x)", 0.7, peers=TORCH)
      for f in ("sigmoid", "gelu", "silu")),
    Target("relu 4M", ((4 * M,),), "l.relu(x)", 1.0, peers=TORCH),
    Target("add 4M", ((4 * M,), (4 * M,)), "x + y", 1.0, peers=TORCH),
    Target("broadcast add 4096x1024", ((4096, 1024), (1024,)), "x + y", 1.0, peers=TORCH),
    Target("sqrt 4M", ("positive:4194304",), "l.sqrt(x)", 1.0, peers=TORCH),
    Target("where 4M", ("bool:4194304", (4 * M,), (4 * M,)), "l.where(x, y, z)", 1.0, peers=TORCH),
    *_both("softmax 4096x1024", ((4096, 1024),), "F.softmax(x, -1)", 0.8),
    *_both("layer_norm 4096x1024", ((4096, 1024), (1024,), (1024,)),
           "F.layer_norm(x, (1024,), y, z)", 0.8),
    *(Target(f"{n} 2048x2048", ((2048, 2048),), e, 1.0, peers=TORCH)
      for n, e in (("sum", "x.sum()"), ("sum(0)", "x.sum(0)"), ("mean(1)", "x.mean(1)"),
                   ("max", "x.max()"), ("argmax", "l.argmax(x)"), ("cumsum", "l.cumsum(x, 1)"))),
    Target("transpose copy 2048x2048", ((2048, 2048),), "x.T.contiguous()", 0.7, peers=TORCH),
    Target("NCHW to NHWC 64x64x56x56", ((64, 64, 56, 56),), "x.permute(0, 2, 3, 1).contiguous()",
           0.7, peers=TORCH),
    Target("heads 32x128x8x64, 0 2 1 3", ((32, 128, 8, 64),),
           "x.permute(0, 2, 1, 3).contiguous()", 0.7, peers=TORCH),
    *(Target(f"GEMM {n}", ((n, n), (n, n)), "l.matmul(x, y)", 1 / 0.9, peers=("jax",))
      for n in (256, 512, 1024, 2048)),
    *(Target(f"GEMM {m}x{k}x{n}", ((m, k), (k, n)), "l.matmul(x, y)", 0.8)
      for m, k, n in ((32, 64, 64), (32, 784, 128), (1, 1024, 1024))),
    Target("bmm 64x128x128", ((64, 128, 128), (64, 128, 128)), "l.matmul(x, y)", 0.8),
    *_both("conv2d 32x16x28x28, 32x3x3", ((32, 16, 28, 28), (32, 16, 3, 3)),
           "F.conv2d(x, y, padding=1)", 1.0),
    *_both("conv2d 8x64x56x56, 64x3x3", ((8, 64, 56, 56), (64, 64, 3, 3)),
           "F.conv2d(x, y, padding=1)", 1.0),
    *_both("conv2d 8x64x56x56, 128x1x1", ((8, 64, 56, 56), (128, 64, 1, 1)), "F.conv2d(x, y)", 1.0),
    *_both("conv2d 8x64x56x56, depthwise 3x3", ((8, 64, 56, 56), (64, 1, 3, 3)),
           "F.conv2d(x, y, padding=1, groups=64)", 1.0),
    *_both("conv2d 8x64x56x56, 128x3x3, stride 2", ((8, 64, 56, 56), (128, 64, 3, 3)),
           "F.conv2d(x, y, stride=2, padding=1)", 1.0),
    Target("sort 1M", ((M,),), "l.sort(x)", 1.0, peers=TORCH),
    Target("topk 100 of 1M", ((M,),), "l.topk(x, 100)", 1.0, peers=TORCH),
    Target("unique 1M", ("int:1048576",), "l.unique(x)", 1.0, peers=TORCH),
    Target("gather 1M", ((1024, 1024), "int:1024x1024"), "l.gather(x, 1, y)", 1.0, peers=TORCH),
    Target("scatter_add 1M", ((M,), "int:1048576", (M,)), "l.scatter_add(x, 0, y, z)", 1.0,
           peers=TORCH),
    *_both("embedding 16k of 1024x64", ((1024, 64), "int:16384"), "F.embedding(y, x)", 1.0),
    Target("cumsum 1M", ((M,),), "l.cumsum(x, 0)", 1.0, peers=TORCH),
    Target("relu 8x8", ((8, 8),), "l.relu(x)", 0.3, peers=TORCH),
    *(Target(f"{name} 8x8", ((8, 8),), expr, 0.6, peers=TORCH)
      for name, expr in (("1 - x", "1 - x"), ("x + 0.1 y", "l.add(x, x, alpha=0.1)"),
                         ("clamp", "l.clamp(x, 0.0, 1.0)"), ("lerp", "l.lerp(x, x, 0.5)"),
                         ("where", "l.where(x > 0, x, 1.0)"), ("zeros_like", "l.zeros_like(x)"))),
    *(Target(f"{name} of 300", ((300,), "int:300"), expr, 1.0, peers=TORCH)
      for name, expr in (("sort", "l.sort(x)"), ("cumsum", "l.cumsum(x, 0)"),
                         ("gather", "l.gather(x, 0, y % 300)"))),
    Target("attention 8x8x256x64, causal, with backward", ((8, 8, 256, 64),) * 3,
           "F.scaled_dot_product_attention(x, y, z, is_causal=True)", 0.8, peers=TORCH,
           backward=True),
]  # fmt: skip


def _array(rng: np.random.Generator, shape: tuple[int, ...] | str) -> Any:
    if isinstance(shape, tuple):
        return rng.standard_normal(shape, np.float32)
    kind, _, text = shape.partition(":")
    size = tuple(map(int, text.split("x")))
    if kind == "int":
        return rng.integers(0, 1000, size)
    if kind == "bool":
        return rng.random(size) < 0.5
    return rng.uniform(0.05, 4, size).astype(np.float32)


def _result(row: Timing, reach: float) -> Result:
    peer = max(row.ratios, key=lambda name: row.ratios[name], default="")
    ratio = row.ratios.get(peer)
    ours = row.seconds["flowvm"] * 1e6
    other = row.seconds[peer] * 1e6 if peer else None
    met = None if ratio is None else ratio <= reach
    return Result(row.name, "us", ours, peer, other, ratio, f"at most {reach:.3g}x", met)


class Training(NamedTuple):
    """The parts of a training step; the loss is cross entropy."""

    model: Any
    optimizer: Any
    x: Any
    y: Any


def mlp(lib: Any) -> Training:
    """MLP 64-64-64-10, batch 32, SGD with momentum."""
    nn = lib.nn
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    x, y = lib.randn(32, 64), lib.randint(0, 10, (32,))
    return Training(model, lib.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), x, y)


def cnn(lib: Any) -> Training:
    """Two convolutions of 16 and 32 channels with pooling, images of 28x28, batch 64, SGD."""
    nn = lib.nn
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip
    x, y = lib.randn(64, 1, 28, 28), lib.randint(0, 10, (64,))
    return Training(model, lib.optim.SGD(model.parameters(), lr=0.01), x, y)


def transformer(
    lib: Any, blocks: int = 2, width: int = 128, batch: int = 4, length: int = 32
) -> Training:
    """Blocks (d 128, 4 heads) on 4 sequences of 32, vocabulary of 256, AdamW."""
    nn, functional = lib.nn, lib.nn.functional
    each = width // 4

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, 4, each)
            qkv = qkv.permute(2, 0, 3, 1, 4)
            scores = qkv[0] @ qkv[1].transpose(-2, -1) * each**-0.5
            mixed = functional.softmax(scores.masked_fill(mask, -1e9), -1) @ qkv[2]
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(256, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*[Block() for _ in range(blocks)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens) + self.place(places)
            return self.head(self.norm(self.blocks(x))).reshape(-1, 256)

    places = lib.arange(length)
    mask = lib.triu(lib.ones(length, length), 1) > 0
    model = Model()
    x, y = lib.randint(0, 256, (batch, length)), lib.randint(0, 256, (batch * length,))
    return Training(model, lib.optim.AdamW(model.parameters(), lr=1e-3), x, y)


def gpt(lib: Any) -> Training:
    """Four blocks (d 256, 4 heads) on 8 sequences of 128, vocabulary of 256, AdamW."""
    return transformer(lib, blocks=4, width=256, batch=8, length=128)


def resnet18(lib: Any) -> Training:
    """ResNet-18 (He and others, 2015) of full width, two images of 64x64, SGD with momentum."""
    nn, functional = lib.nn, lib.nn.functional

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
            self.short = nn.Sequential()
            if stride != 1 or inputs != outputs:
                self.short = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x: Any) -> Any:
            y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
            return functional.relu(y + self.short(x))

    layers, inputs = [], 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(512, 1000),
    )  # fmt: skip
    x, y = lib.randn(2, 3, 64, 64), lib.randint(0, 1000, (2,))
    return Training(model, lib.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), x, y)


def yolo(lib: Any) -> Training:
    """YOLOv3-tiny (Redmon and Farhadi, 2018) for 80 classes, two images of 160x160, SGD.

    The loss is cross entropy over the 85 numbers of each box: all layers learn, with no matching
    of boxes, which takes no time beside them.
    """
    nn = lib.nn

    def unit(inputs: int, outputs: int, size: int = 3) -> Any:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False),
            nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1),
        )  # fmt: skip

    def boxes(x: Any) -> Any:
        return x.reshape(x.shape[0], 3, 85, -1).transpose(2, 3).reshape(-1, 85)

    class Model(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            fine: list[Any] = []
            for inputs, outputs in ((3, 16), (16, 32), (32, 64), (64, 128)):
                fine += [unit(inputs, outputs), nn.MaxPool2d(2)]
            self.fine = nn.Sequential(*fine, unit(128, 256))
            self.coarse = nn.Sequential(
                nn.MaxPool2d(2), unit(256, 512), nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(2, 1),
                unit(512, 1024), unit(1024, 256, 1),
            )  # fmt: skip
            self.far = nn.Sequential(unit(256, 512), nn.Conv2d(512, 255, 1))
            self.up = nn.Sequential(unit(256, 128, 1), nn.Upsample(scale_factor=2))
            self.near = nn.Sequential(unit(384, 256), nn.Conv2d(256, 255, 1))

        def forward(self, x: Any) -> Any:
            fine = self.fine(x)
            coarse = self.coarse(fine)
            near = self.near(lib.cat([self.up(coarse), fine], 1))
            return lib.cat([boxes(self.far(coarse)), boxes(near)])

    model = Model()
    x, y = lib.randn(2, 3, 160, 160), lib.randint(0, 85, (2 * 3 * (25 + 100),))
    return Training(model, lib.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), x, y)


def stepping(make: Callable[[Any], Training]) -> Callable[[Any], Callable[[], Any]]:
    """A function that gives a library's eager training step."""

    def of_library(lib: Any) -> Callable[[], Any]:
        model, optimizer, x, y = make(lib)
        loss_of = lib.nn.CrossEntropyLoss()

        def step() -> None:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()

        return step

    return of_library


def lstm(lib: Any) -> Callable[[], Any]:
    """Two layers of 128 over 64 steps of 32 samples, forward and backward."""
    model, x = lib.nn.LSTM(128, 128, 2), lib.randn(64, 32, 128).requires_grad_()

    def step() -> None:
        model.zero_grad()
        model(x)[0].sum().backward()

    return step


STEPS = (
    ("MLP step, batch 32, SGD momentum", stepping(mlp), 0.7),
    ("CNN step, batch 64, SGD", stepping(cnn), 0.8),
    ("transformer step, 2 blocks, AdamW", stepping(transformer), 0.7),
    ("LSTM 64x32x128, two layers, with backward", lstm, 0.8),
    *MODELS,
)
SHARED = (
    ("GEMM 1024", ((1024, 1024), (1024, 1024)), "x @ y"),
    ("conv2d 8x64x56x56, 64x3x3", ((8, 64, 56, 56), (64, 64, 3, 3)), "F.conv2d(x, y, padding=1)"),
    ("tanh 4M", ((4 * M,),), "l.tanh(x)"),
    ("softmax 4096x1024", ((4096, 1024),), "F.softmax(x, -1)"),
)


def two_workers(rounds: int) -> Iterator[Result]:
    """Yield how many times faster two workers are than one, both in turn in one run."""
    before = flow.get_num_threads()
    rng = np.random.default_rng(0)
    for name, shapes, expr in SHARED:
        tensors = [flow.tensor(_array(rng, shape)) for shape in shapes]
        space = {"l": flow, "F": flow.nn.functional}
        code = eval(f"lambda x, y=None: {expr}", space)

        def run(count: int, code: Callable[..., Any] = code, tensors: list[Any] = tensors) -> None:
            for _ in range(count):
                code(*tensors)
            flow.vm.sync()

        gains = []
        for _ in range(rounds + 1):
            seconds = []
            for workers in (1, 2):
                flow.set_num_threads(workers)
                run(2)
                seconds.append(seconds_per_call(run, 8))
            gains.append(seconds[0] / seconds[1])
        gain = statistics.median(gains[1:])
        yield Result(
            f"two workers against one, {name}", "x faster", gain, reach="at least 1.8",
            met=gain >= 1.8,
        )  # fmt: skip
    flow.set_num_threads(before)


def results(names: list[str], rounds: int, only: str = "", folder: str = "") -> Iterator[Result]:
    """Every row; `names` are the peers to ask, `only` a text that rows must have.

    With a `folder`, a checkout of flowvm, what is there is the only peer, and it is not to be more
    than 3 % quicker.
    """
    libraries = {on.name: on for on in runners([] if folder else names)}
    if folder:
        libraries["checkout"] = checkout(folder)
    rng = np.random.default_rng(0)
    for target in TARGETS:
        if only not in target.name:
            continue
        row = Timing(target.name, "", 0)
        peers = ("checkout",) if folder else target.peers
        compared = [libraries[n] for n in ("flowvm", *peers) if n in libraries]
        arrays = [_array(rng, shape) for shape in target.shapes]
        if time_arrays(row, target.expr, target.other, arrays, compared, rounds, target.backward):
            yield _result(row, 1.03 if folder else target.reach)
    for name, make, reach in STEPS:
        if only not in name:
            continue
        row = Timing(name, "", 0)
        ready: list[tuple[Runner, Callable[[], Any]]] = [(libraries["flowvm"], make(flow))]
        if "torch" in libraries:
            import torch

            ready.append((libraries["torch"], make(torch)))
        if folder:
            owner = libraries["checkout"].space["checkout"]
            if owner.ask("step", name):
                ready.append((libraries["checkout"], Remote(owner)))
        time_functions(row, ready, rounds)
        yield _result(row, 1.03 if folder else reach)
    if not folder and (not only or "two workers" in only):
        yield from two_workers(rounds)
