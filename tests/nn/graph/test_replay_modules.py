"""Replay against eager for every module and loss: results, gradients of inputs and parameters,
buffers and the state of the random generator, over three calls with other values each.

Bits are demanded where the passes leave the kernels as they are, closeness with all passes.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from tests.graph.helpers import arrays_in, close, exact, same_bits
from tests.nn.test_layers_against_torch import LAYERS, LOSSES

nn = flow.nn
CALLS = 3

# what the comparison with torch cannot have: random numbers, state, containers, in-place forms
MORE: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "dropout": (lambda nn: nn.Dropout(0.4), ((6, 7),)),
    "dropout1d": (lambda nn: nn.Dropout1d(0.4), ((3, 4, 5),)),
    "dropout2d": (lambda nn: nn.Dropout2d(0.4), ((3, 4, 5, 2),)),
    "alphadropout": (lambda nn: nn.AlphaDropout(0.4), ((6, 7),)),
    "crossmaplrn2d": (lambda nn: nn.CrossMapLRN2d(4, alpha=0.1), ((2, 6, 3, 2),)),
    "dropout3d": (lambda nn: nn.Dropout3d(0.4), ((3, 4, 2, 2, 2),)),
    "featurealphadropout": (lambda nn: nn.FeatureAlphaDropout(0.4), ((6, 7, 2),)),
    "rrelu": (lambda nn: nn.RReLU(), ((6, 7),)),
    "fractional": (
        lambda nn: nn.Sequential(
            nn.FractionalMaxPool3d(2, 3), nn.Flatten(0, 1), nn.FractionalMaxPool2d(2, 2)
        ),
        ((2, 3, 4, 5, 4),),
    ),
    "unpooled": (lambda nn: _Unpooled(), ((2, 2, 4, 4, 4),)),
    "inplace": (
        lambda nn: nn.Sequential(
            nn.Linear(4, 6), nn.Dropout(0.3, inplace=True), nn.ReLU(inplace=True), nn.Linear(6, 2)
        ),
        ((5, 4),),
    ),
    "instancenorm1d-tracking": (
        lambda nn: nn.InstanceNorm1d(3, momentum=0.3, track_running_stats=True),
        ((4, 3, 5),),
    ),
    "batchnorms": (
        lambda nn: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3, momentum=None),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(12, 2), nn.BatchNorm1d(2),
        ),
        ((4, 2, 4, 4),),
    ),
    **{
        f"fusedbatchnorm{n}d": (
            lambda nn, n=n: getattr(nn, f"FusedBatchNorm{n}d")(3), ((4, 3, *(2, 3, 4)[:n]),) * 2
        )
        for n in (1, 2, 3)
    },
    "modulelist": (lambda nn: _Listed(), ((3, 4),)),
    "rnn": (lambda nn: _First(nn.RNN(3, 4, 2)), ((5, 2, 3),)),
    "lstm": (lambda nn: _First(nn.LSTM(3, 4, 2, dropout=0.2)), ((5, 2, 3),)),
    "gru": (lambda nn: _First(nn.GRU(3, 4, bidirectional=True)), ((5, 2, 3),)),
    "rnncell": (lambda nn: nn.RNNCell(3, 4, nonlinearity="relu"), ((2, 3), (2, 4))),
    "lstmcell": (lambda nn: _First(nn.LSTMCell(3, 4)), ((2, 3),)),
    "grucell": (lambda nn: nn.GRUCell(3, 4), ((2, 3), (2, 4))),
    "attention": (
        lambda nn: _First(nn.MultiheadAttention(4, 2)), ((3, 2, 4), (5, 2, 4), (5, 2, 4)),
    ),
    "transformer": (
        lambda nn: nn.Transformer(4, 2, 1, 1, 6, dropout=0.1), ((3, 2, 4), (5, 2, 4)),
    ),
    "tied": (lambda nn: _Tied(), (np.array([[0, 2, 1], [3, 3, 0]]),)),
    "linear_cross_entropy": (
        lambda nn: nn.LinearCrossEntropyLoss(3, 4, bias=True), ((5, 3), np.array([0, 2, 1, 3, 3])),
    ),
}  # fmt: skip


class _Unpooled(nn.Module):
    """Maxima, and back to where they were, in one dimension after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.pools = nn.ModuleList(
            [
                nn.MaxPool1d(2, return_indices=True),
                nn.MaxPool2d(2, return_indices=True),
                nn.MaxPool3d(2, return_indices=True),
            ]
        )
        self.unpools = nn.ModuleList([nn.MaxUnpool1d(2), nn.MaxUnpool2d(2), nn.MaxUnpool3d(2)])

    def forward(self, x: Any) -> Any:
        parts = []
        for n, (pool, unpool) in enumerate(zip(self.pools, self.unpools, strict=True), 1):
            flat = x.reshape((-1, *x.shape[-n:]))
            parts.append(unpool(*pool(flat)).reshape(x.shape))
        return parts[0] + parts[1] * parts[2]


class _First(nn.Module):
    """The first of the two things that a layer gives."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        return self.layer(*inputs)[0]


class _Listed(nn.Module):
    """Containers that have no forward of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.acts = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.scales = nn.ParameterList([flow.ones(4), flow.full((4,), 0.5)])
        self.named = nn.ParameterDict({"shift": flow.ones(4)})

    def forward(self, x: Any) -> Any:
        for layer, act, scale in zip(self.layers, self.acts.values(), self.scales, strict=True):
            x = act(layer(x)) * scale + self.named["shift"]
        return x


class _Tied(nn.Module):
    """One weight in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(4, 3), nn.Linear(3, 4)
        self.head.weight = self.table.weight

    def forward(self, index: Any) -> Any:
        return self.head(self.table(index))


ALL = {**LAYERS, **LOSSES, **MORE}
# forms whose all-passes run would only repeat another one's
PLAIN = {name for name in ALL if "-" not in name}


def inputs_of(rng: np.random.Generator, shapes: Any) -> list[np.ndarray]:
    return [s if isinstance(s, np.ndarray) else rng.normal(size=s) for s in shapes]


def function_of(module: Any) -> Callable[..., Any]:
    """Output, gradients of inputs, gradients of parameters."""

    def function(*inputs: Any) -> Any:
        out = module(*inputs)
        expected = [t for t in inputs if t.requires_grad] + list(module.parameters())
        if not out.requires_grad:
            return [out]
        weight = flow.arange(1, out.numel() + 1, dtype=out.dtype).reshape(out.shape)
        grads = flow.autograd.grad((out * weight).sum(), expected, allow_unused=True)
        return [out.detach(), *[g for g in grads if g is not None]]

    return function


def run(
    module: Any, function: Callable[..., Any], batches: list[list[np.ndarray]], seed: int
) -> Iterator[np.ndarray]:
    """Yield the results of each call, then its traces: buffers, and the next random number."""
    flow.manual_seed(seed)
    for batch in batches:
        inputs = [flow.tensor(a) for a in batch]
        for t in inputs:
            t.requires_grad_(t.is_floating_point())
        yield from arrays_in(function(*inputs))
    yield from arrays_in(list(module.buffers()))
    yield from arrays_in([flow.rand(2)])


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.product(4)
def test_module(name: str, training: bool, seed: int, rng: np.random.Generator) -> None:
    make, shapes = ALL[name]
    flow.manual_seed(seed)
    module = make(nn).double().train(training)
    batches = [inputs_of(rng, shapes) for _ in range(CALLS)]
    expected = list(run(twin := copy.deepcopy(module), function_of(twin), batches, seed))
    forms = {"bits": (exact, same_bits)}
    if training and name in PLAIN:
        forms["all passes"] = (lambda graph: graph, close)
    for form, (configure, compare) in forms.items():
        twin = copy.deepcopy(module)
        graph = configure(flow.compile(function_of(twin)))
        compare(list(run(twin, graph, batches, seed)), expected, f"{name}, {form}, seed {seed}")
        assert len(graph.plans) == 1


def test_every_module_is_here() -> None:
    """Every module is in the cases, or is a part of one, by name of class."""
    modules = [module for make, _ in ALL.values() for module in make(nn).modules()]
    covered = {type(module).__name__ for module in modules}
    covered |= {name for name in vars(nn) if name.startswith("Lazy")}  # they become others
    covered |= {"DataParallel"}  # which only calls another
    covered |= {"RNNBase", "RNNCellBase"}  # of which the others are
    # of others, by OneFlow's names: tests/nn/test_oneflow_layers.py
    covered |= {"CombinedMarginLoss", "FusedMLP", "QuickGELU", "RMSLayerNorm", "SquareReLU"}
    covered.add("AdaptiveLogSoftmaxWithLoss")  # which reads its targets: no capture can
    public = {
        name
        for name, value in vars(nn).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and value is not nn.Module
    }
    assert not public - covered
