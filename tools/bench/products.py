"""Matrix products of real models against PyTorch: `python -m tools.bench --groups products`.

A linear layer of a training step is three products, and so is each half of attention: x @ w.t(),
g @ w by the input, g.t() @ x by the weight.  A convolution of 1x1 is w @ x, w.t() @ g, g @ x.t(),
one of 3x3 is counted as the product of its windows.

A ratio is that of the lowest times of both (with `--cpu`, of CPU time, for machines that do more
than this), taken in turn, on as many threads as `--threads` says; the last rows are the geometric
mean, and how many shapes are slower than they may be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import flowvm as flow
from tools.bench.kernels import CPU
from tools.bench.measure import Result, lowest_in_turn

__all__ = ["GRID", "Shape", "results"]

SLICE = 0.012  # seconds that one measurement takes, about
EACH = 1 / 0.95  # times PyTorch's time that a product may take
MEAN = 1 / 1.05  # and all of them, in the geometric mean


class Shape(NamedTuple):
    """`batch` products (m, k) by (k, n) of a model; `ta`, `tb`: stored transposed."""

    model: str
    m: int
    n: int
    k: int
    ta: bool = False
    tb: bool = False
    batch: int = 1

    @property
    def name(self) -> str:
        """The row's name: "GPT-2 a.t() @ b 768x768, depth 512"."""
        a, b = "a.t()" if self.ta else "a", "b.t()" if self.tb else "b"
        many = f"{self.batch} times " if self.batch > 1 else ""
        return f"{self.model} {a} @ {b} {many}{self.m}x{self.n}, depth {self.k}"


def _linear(model: str, rows: int, *layers: tuple[int, int], training: bool = True) -> list[Shape]:
    """The products of linear layers (outputs, inputs) for `rows` samples."""
    shapes = []
    for outputs, inputs in layers:
        shapes.append(Shape(model, rows, outputs, inputs, tb=True))
        if training:
            shapes.append(Shape(model, rows, inputs, outputs))
            shapes.append(Shape(model, outputs, inputs, rows, ta=True))
    return shapes


def _attention(model: str, heads: int, length: int, width: int) -> list[Shape]:
    """Scores, values, and the gradient by keys, of `heads` heads in all."""
    return [
        Shape(model, length, length, width, tb=True, batch=heads),
        Shape(model, length, width, length, batch=heads),
        Shape(model, length, width, length, ta=True, batch=heads),
    ]


def _windows(model: str, *layers: tuple[int, int, int]) -> list[Shape]:
    """The products of convolutions (outputs, pixels, inputs times window) for one image."""
    shapes = []
    for outputs, pixels, inputs in layers:
        shapes.append(Shape(model, outputs, pixels, inputs))
        shapes.append(Shape(model, inputs, pixels, outputs, ta=True))
        shapes.append(Shape(model, outputs, inputs, pixels, tb=True))
    return shapes


def _transformer(width: int) -> tuple[tuple[int, int], ...]:
    return (3 * width, width), (width, width), (4 * width, width), (width, 4 * width)


GRID = [
    *_linear("GPT-2", 128, *_transformer(768)),
    *_linear("GPT-2", 1024, *_transformer(768)),
    *_linear("GPT-2", 1, *_transformer(768), (50257, 768), training=False),
    *_linear("GPT-2", 8, *_transformer(768), training=False),
    *_linear("GPT-2", 64, (50257, 768)),
    *_attention("GPT-2", 12, 128, 64),
    *_attention("GPT-2", 12, 512, 64),
    *_linear("BERT", 64, *_transformer(768)),
    *_linear("BERT", 384, *_transformer(768)),
    *_linear("BERT", 8, (768, 768), (2, 768)),
    *_linear("BERT", 20, (30522, 768)),
    *_attention("BERT", 48, 64, 64),
    *_attention("BERT", 12, 384, 64),
    *_windows(
        "ResNet-50", (64, 3136, 64), (256, 3136, 64), (64, 3136, 256), (128, 784, 256),
        (512, 784, 128), (128, 784, 512), (256, 196, 512), (1024, 196, 256), (256, 196, 1024),
        (512, 49, 1024), (2048, 49, 512), (512, 49, 2048),
    ),
    *_windows(
        "ResNet-18", (64, 3136, 576), (128, 784, 1152), (256, 196, 2304), (512, 49, 4608),
        (64, 12544, 147),
    ),
    *_linear("ResNet-50", 1, (1000, 2048)),
    *_linear("ResNet-50", 32, (1000, 2048)),
    *_linear("ResNet-18", 128, (1000, 512)),
    *_linear("gpt.py", 384, *_transformer(48), (36, 48)),
    *_attention("gpt.py", 32, 48, 12),
    *_linear("bert_tiny.py", 512, *_transformer(48)[:3]),
    *_attention("bert_tiny.py", 64, 32, 12),
    *_linear("vit.py", 1040, *_transformer(48)[:3]),
    *_attention("vit.py", 64, 65, 12),
    *_linear("mlp.py", 64, (128, 64), (64, 128), (10, 64)),
    *_linear("vae.py", 64, (64, 64), (4, 64), (64, 4)),
    *_linear("dqn.py", 32, (64, 4), (64, 64), (2, 64)),
    *_linear("lstm_language_model.py", 16, (192, 24), (192, 48)),
    *_linear("lstm_language_model.py", 512, (192, 48), (36, 48)),
    *_linear("graph_attention.py", 34, (32, 34), (2, 32)),
    *(Shape("square", n, n, n, ta, tb) for n in (256, 512, 1024)
      for ta in (False, True) for tb in (False, True)),
    *(Shape("tall", m, n, k, ta)
      for m, n, k in ((1024, 256, 1024), (4096, 64, 64), (2048, 2048, 16))
      for ta in (False, True)),
    *(Shape("deep", n, n, k, True) for n, k in ((64, 8192), (128, 16384), (32, 65536))),
]  # fmt: skip


def _operands(lib: Any, shape: Shape, arrays: list[Any]) -> list[Any]:
    maker = flow.tensor if lib is flow else lib.from_numpy
    turned = (shape.ta, shape.tb)
    return [
        maker(x).transpose(-1, -2) if t else maker(x) for x, t in zip(arrays, turned, strict=True)
    ]


def _multiplied(lib: Any, shape: Shape, arrays: list[Any]) -> Callable[[int], float]:
    """A function that multiplies so many times and gives the seconds of one."""
    a, b = _operands(lib, shape, arrays)

    clock = time.process_time if CPU else time.perf_counter

    def run(count: int) -> float:
        start = clock()
        for _ in range(count):
            a @ b
        if lib is flow:
            flow.vm.sync()
        return (clock() - start) / count

    return run


def _seconds(shape: Shape, libraries: list[Any], rounds: int) -> list[float]:
    """The lowest seconds of a product by each library, in turn."""
    rng = np.random.default_rng(0)
    batch = (shape.batch,) if shape.batch > 1 else ()
    arrays = [
        rng.standard_normal((*batch, *(side[::-1] if turned else side)), np.float32)
        for side, turned in (((shape.m, shape.k), shape.ta), ((shape.k, shape.n), shape.tb))
    ]
    runs = [_multiplied(lib, shape, arrays) for lib in libraries]
    for run in runs:
        run(1)
    return lowest_in_turn(runs, rounds, SLICE)


def results(
    peers: dict[str, Any], rounds: int, only: str = "", threads: int = 1
) -> Iterator[Result]:
    """Every shape of the grid against PyTorch, then what the grid is held to."""
    peer = peers.get("torch")
    libraries = [flow] if peer is None else [flow, peer]
    before = flow.get_num_threads()
    flow.set_num_threads(threads)
    if peer is not None:
        peer.set_num_threads(threads)
    ratios = []
    for shape in GRID:
        if only not in shape.name:
            continue
        ours, *theirs = _seconds(shape, libraries, rounds)
        rate = 2e-9 * shape.batch * shape.m * shape.n * shape.k
        row = Result(shape.name, "us", ours * 1e6, note=f"{rate / ours:.1f} GFLOP/s")
        if theirs:
            ratio = ours / theirs[0]
            ratios.append(ratio)
            row.peer_name, row.peer, row.ratio = "torch", theirs[0] * 1e6, ratio
            row.reach, row.met = f"at most {EACH:.3g}x", ratio <= EACH
        yield row
    flow.set_num_threads(before)
    if peer is not None:
        peer.set_num_threads(1)
    if ratios and not only:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        yield Result(
            f"products: geometric mean of {len(ratios)} shapes", "x", mean, ratio=mean,
            reach=f"at most {MEAN:.3g}x", met=mean <= MEAN,
        )  # fmt: skip
        slow = sum(ratio > EACH for ratio in ratios)
        yield Result("products: slower than they may be", "", slow, reach="none", met=slow == 0)
