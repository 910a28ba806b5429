"""Convolutions of real models against PyTorch: `python -m tools.bench --groups convolutions`.

Every layer that differs, forward, by the input and by the weight, for one, two and eight images.
Images are as large as the models' users train on small machines, so many planes are of few pixels.

A ratio is that of the lowest times of both (with `--cpu`, of CPU time), taken in turn, on as many
threads as `--threads` says; the last rows are the geometric means, and how many are slower than
they may be.  `python -m tools.bench.convolutions FILE.svg` draws the grid.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import flowvm as flow
from flowvm.ops.planes.parts.conv_ops import How, _conv, _conv_input, _conv_weight
from tools.bench.heatmap import colour
from tools.bench.kernels import CPU
from tools.bench.measure import Result, lowest_in_turn

__all__ = ["GRID", "Layer", "results"]

SLICE = 0.008  # seconds that one measurement takes, about
EACH = 1.1  # times PyTorch's time that a convolution may take
MEAN = 0.9  # and all of them, in the geometric mean
WAYS = ("forward", "by input", "by weight")


class Layer(NamedTuple):
    """A layer of a model, with square planes and kernels."""

    model: str
    inputs: int
    size: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    padding: int = -1  # that of "same", if it is -1

    @property
    def pad(self) -> int:
        """Zeros at every edge."""
        return self.kernel // 2 if self.padding < 0 else self.padding

    @property
    def out(self) -> int:
        """Rows of the result's plane."""
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def name(self) -> str:
        """The row's name: "ResNet-18 64x16x16 to 128 by 3x3 / 2"."""
        more = f" / {self.stride}" if self.stride > 1 else ""
        more += f" in {self.groups} groups" if self.groups > 1 else ""
        plane = f"{self.inputs}x{self.size}x{self.size}"
        return f"{self.model} {plane} to {self.outputs} by {self.kernel}x{self.kernel}{more}"


def _layers(model: str, *layers: tuple[int, ...]) -> list[Layer]:
    return [Layer(model, *layer) for layer in layers]


def _mobile(*blocks: tuple[int, int, int, int, int]) -> list[Layer]:
    """The three convolutions of blocks (inputs, size, inner, outputs, stride) of MobileNetV2."""
    layers = []
    for inputs, size, inner, outputs, stride in blocks:
        layers.append(Layer("MobileNetV2", inputs, size, inner, 1))
        layers.append(Layer("MobileNetV2", inner, size, inner, 3, stride, inner))
        layers.append(Layer("MobileNetV2", inner, -(-size // stride), outputs, 1))
    return layers


GRID = [
    *_layers(
        "ResNet-18", (3, 64, 64, 7, 2), (64, 16, 64), (64, 16, 128, 3, 2), (64, 16, 128, 1, 2),
        (128, 8, 128), (128, 8, 256, 3, 2), (128, 8, 256, 1, 2), (256, 4, 256),
        (256, 4, 512, 3, 2), (256, 4, 512, 1, 2), (512, 2, 512),
    ),
    *_layers(
        "ResNet-50", (64, 56, 64), (64, 56, 256, 1), (256, 56, 64, 1), (256, 56, 512, 1, 2),
        (128, 28, 128), (128, 28, 512, 1), (512, 28, 128, 1), (256, 14, 256), (256, 14, 1024, 1),
        (1024, 14, 256, 1), (1024, 14, 2048, 1, 2), (512, 7, 512), (512, 7, 2048, 1),
        (2048, 7, 512, 1), (128, 28, 128, 3, 2),
    ),
    *_layers(
        "VGG-11", (3, 32, 64), (64, 16, 128), (128, 8, 256), (256, 8, 256), (256, 4, 512),
        (512, 4, 512), (512, 2, 512),
    ),
    *_mobile(
        (16, 48, 96, 24, 2), (24, 24, 144, 32, 2), (32, 12, 192, 64, 2), (64, 6, 384, 96, 1),
        (96, 6, 576, 160, 2), (160, 3, 960, 320, 1),
    ),
    *_layers(
        "YOLOv3-tiny", (3, 160, 16), (16, 80, 32), (32, 40, 64), (64, 20, 128), (128, 10, 256),
        (256, 5, 512), (512, 5, 1024), (1024, 5, 256, 1), (256, 5, 512), (512, 5, 255, 1),
        (384, 10, 256),
    ),
    *_layers(
        "U-Net", (1, 64, 64), (64, 64, 64), (64, 32, 128), (128, 32, 128), (128, 16, 256),
        (256, 16, 256), (256, 8, 512), (512, 8, 512), (512, 16, 256), (256, 32, 128),
    ),
]  # fmt: skip
BATCHES = (1, 2, 8)


class Case(NamedTuple):
    """A layer's direction at a number of images."""

    layer: Layer
    batch: int
    way: str

    @property
    def name(self) -> str:
        """The row's name."""
        return f"{self.layer.name}, {self.batch} images, {self.way}"

    @property
    def products(self) -> int:
        """Multiply-adds, padding included."""
        s = self.layer
        taps = s.inputs // s.groups * s.kernel**2
        return self.batch * s.outputs * s.out**2 * taps


def _cases() -> list[Case]:
    return [
        Case(layer, batch, way)
        for layer in dict.fromkeys(GRID)
        for batch in BATCHES
        if layer.size < 56 or batch < 8
        for way in WAYS
    ]


def _arrays(case: Case) -> list[Any]:
    s, rng = case.layer, np.random.default_rng(0)
    shapes = (
        (case.batch, s.inputs, s.size, s.size),
        (s.outputs, s.inputs // s.groups, s.kernel, s.kernel),
        (case.batch, s.outputs, s.out, s.out),
    )
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def _ours(case: Case, arrays: list[Any]) -> Callable[[], Any]:
    s = case.layer
    x, w, g = map(flow.tensor, arrays)
    how = How((1, s.stride, s.stride), (0, s.pad, s.pad), (1, 1, 1), s.groups)
    if case.way == "forward":
        return lambda: _conv(x, w, how, (s.out, s.out))
    if case.way == "by input":
        return lambda: _conv_input(g, w, how, tuple(x.shape))
    return lambda: _conv_weight(g, x, how, tuple(w.shape))


def _theirs(torch: Any, case: Case, arrays: list[Any]) -> Callable[[], Any]:
    s = case.layer
    x, w, g = map(torch.from_numpy, arrays)
    stride, pad = [s.stride] * 2, [s.pad] * 2
    if case.way == "forward":
        return lambda: torch.nn.functional.conv2d(x, w, None, stride, pad, 1, s.groups)
    mask = [case.way == "by input", case.way == "by weight", False]
    return lambda: torch.ops.aten.convolution_backward(
        g, x, w, None, stride, pad, [1, 1], False, [0, 0], s.groups, mask
    )


def _timed(call: Callable[[], Any], sync: Callable[[], Any]) -> Callable[[int], float]:
    """A function that makes so many calls and gives the seconds of one."""
    clock = time.process_time if CPU else time.perf_counter

    def run(count: int) -> float:
        start = clock()
        for _ in range(count):
            call()
        sync()
        return (clock() - start) / count

    return run


def _seconds(case: Case, torch: Any, rounds: int) -> list[float]:
    """The lowest seconds of ours and, if it is there, PyTorch's, in turn."""
    arrays = _arrays(case)
    runs = [_timed(_ours(case, arrays), flow.vm.sync)]
    if torch is not None:
        runs.append(_timed(_theirs(torch, case, arrays), lambda: None))
    with flow.config(ahead=False):  # a short body would run while a helper compiles the long one
        for run in runs:
            run(1)
    return lowest_in_turn(runs, rounds, SLICE)


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _measured(torch: Any, rounds: int, only: str) -> Iterator[tuple[Case, list[float]]]:
    for case in _cases():
        if only in case.name:
            yield case, _seconds(case, torch, rounds)


def results(
    peers: dict[str, Any], rounds: int, only: str = "", threads: int = 1
) -> Iterator[Result]:
    """Every layer of the grid against PyTorch, then what the grid is held to."""
    torch = peers.get("torch")
    before = flow.get_num_threads()
    flow.set_num_threads(threads)
    if torch is not None:
        torch.set_num_threads(threads)
    ratios: dict[str, list[float]] = {}
    for case, (ours, *theirs) in _measured(torch, rounds, only):
        rate = 2e-9 * case.products / ours
        row = Result(case.name, "us", ours * 1e6, note=f"{rate:.1f} GFLOP/s")
        if theirs:
            ratio = ours / theirs[0]
            for of in (case.way, case.layer.model):
                ratios.setdefault(of, []).append(ratio)
            row.peer_name, row.peer, row.ratio = "torch", theirs[0] * 1e6, ratio
            row.reach, row.met = f"at most {EACH:.3g}x", ratio <= EACH
        yield row
    flow.set_num_threads(before)
    if torch is not None:
        torch.set_num_threads(1)
    every = [ratio for way in WAYS for ratio in ratios.get(way, [])]
    if not every:
        return
    for of, some in [*ratios.items(), ("all", every)]:
        mean, slow = _mean(some), sum(ratio > EACH for ratio in some)
        yield Result(
            f"{only} convolutions, {of}: geometric mean of {len(some)}, {slow} over {EACH}x", "x",
            mean, ratio=mean, reach=f"at most {MEAN:.3g}x", met=mean <= MEAN,
        )  # fmt: skip


CELL, HEIGHT, LABEL = 44, 15, 290


def save_svg(rows: dict[Case, float], path: str, title: str) -> None:
    """A picture of the ratios: a line for each layer, a column for each direction and batch."""
    layers = list(dict.fromkeys(case.layer for case in rows))
    columns = [(way, batch) for way in WAYS for batch in BATCHES]
    ratios = list(rows.values())
    width, height = LABEL + CELL * len(columns) + 16, 76 + HEIGHT * len(layers)
    summary = f"geometric mean {_mean(ratios):.2f}x of the time of PyTorch, "
    summary += f"{sum(r > EACH for r in ratios)} of {len(ratios)} over {EACH}x"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="10.5" fill="#1f2328">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="8" y="18" font-size="14">{title}</text>',
        f'<text x="8" y="34">{summary}</text>',
    ]
    for i, (way, batch) in enumerate(columns):
        at = LABEL + (i + 0.5) * CELL
        if i % len(BATCHES) == 1:
            parts.append(f'<text x="{at}" y="52" text-anchor="middle">{way}</text>')
        parts.append(f'<text x="{at}" y="65" text-anchor="middle">{batch}</text>')
    for line, layer in enumerate(layers):
        y = 70 + line * HEIGHT
        parts.append(f'<text x="8" y="{y + 11}">{layer.name}</text>')
        for i, (way, batch) in enumerate(columns):
            ratio = rows.get(Case(layer, batch, way))
            if ratio is None:
                continue
            at = LABEL + i * CELL
            parts.append(
                f'<rect x="{at}" y="{y}" width="{CELL - 1}" height="{HEIGHT - 1}" '
                f'fill="{colour(ratio)}"/><text x="{at + CELL / 2}" y="{y + 11}" '
                f'text-anchor="middle">{ratio:.2f}</text>'
            )
    with open(path, "w") as file:
        file.write("\n".join([*parts, "</svg>"]))


def main() -> int:
    """Draw the grid to the file that is named: CPU seconds if --cpu is given, one thread."""
    import torch

    flow.set_num_threads(1)
    torch.set_num_threads(1)
    path = next(arg for arg in sys.argv[1:] if arg.endswith(".svg"))
    title = " ".join(arg for arg in sys.argv[1:] if arg not in (path, "--cpu"))
    measured = _measured(torch, 5, "")
    save_svg({case: ours / theirs for case, (ours, theirs) in measured}, path, title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
