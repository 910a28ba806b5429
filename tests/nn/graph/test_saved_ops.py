"""Every op: a graph of it and of its gradients is saved and loaded into another graph object.

The bits are the same.  Some ops have samples, others do not.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import numpy as np
import pytest

import flowvm as flow
from flowvm.commands.warmup import as_tensors
from flowvm.eager.interpreter import operators
from flowvm.errors import ArgumentError, ArgumentTypeError, CaptureError, FlowError
from flowvm.ops.declare.kinds import Count, Dim, Dims, Inferred
from flowvm.ops.declare.registry import SAMPLES

nn, F, linalg = flow.nn, flow.nn.functional, flow.linalg

# what cannot be saved, and why
SEGMENTS = "segments"  # the shape of the result is data, so what is behind it is another graph
VALUE = "has no value"  # code decides by a value, which a graph of one piece does not have
LEFT_OUT = {
    **dict.fromkeys(
        ("argwhere", "bincount", "masked_select", "nms", "nonzero", "unique", "unique_consecutive"),
        SEGMENTS,
    ),
    **dict.fromkeys(("histogram", "histogramdd", "matrix_exp", "segment_reduce"), VALUE),
}


def tensors_of(value: Any) -> list[Any]:
    if isinstance(value, flow.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors_of(v)] if isinstance(value, (list, tuple)) else []


def mapped(value: Any, function: Any) -> Any:
    """`value` with `function` of its tensors in their place."""
    if isinstance(value, flow.Tensor):
        return function(value)
    if type(value) is dict:
        return {k: mapped(v, function) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped(v, function) for v in value)
    return value


def narrowed(t: Any) -> Any:
    """Convert double precision to single."""
    if t.dtype is flow.float64:
        return t.float()
    return t.to(flow.complex64) if t.dtype is flow.complex128 else t


def size_of(t: Any) -> Any:
    """A number whose gradient needs all of `t`."""
    return (t.abs() if t.dtype.is_complex else t).pow(2).sum()


class Calls(nn.Graph):
    """A call, and the gradients of all that it gives by all that it takes."""

    def __init__(self, function: Any, args: Any, kwargs: Any, differentiate: bool) -> None:
        super().__init__()
        self.function, self.args, self.kwargs = function, args, kwargs
        self.differentiate = differentiate

    def build(self, *inputs: Any) -> Any:
        tensors = iter(inputs)
        if not self.differentiate:
            args, kwargs = mapped((self.args, self.kwargs), lambda _: next(tensors))
            return self.function(*args, **kwargs)
        leaves = []

        def leaf(_: Any) -> Any:
            t = next(tensors)
            if t.dtype.is_floating_point:
                t = t.detach().requires_grad_()
                leaves.append(t)
            return t

        with flow.enable_grad():
            args, kwargs = mapped((self.args, self.kwargs), leaf)
            results = self.function(*args, **kwargs)
            ends = [size_of(t) for t in tensors_of(results) if t.requires_grad]
            if not ends:
                return results
            total = sum(ends[1:], ends[0])
            gradients = flow.autograd.grad(total, leaves, allow_unused=True)
        return results, [g for g in gradients if g is not None]


def bits(value: Any) -> list[Any]:
    return [(tuple(t.shape), t.dtype, t.detach().numpy().tobytes()) for t in tensors_of(value)]


def goes_round(function: Any, args: Any, kwargs: Any, differentiate: bool) -> None:
    args, kwargs = mapped((as_tensors(args, False), kwargs), narrowed)
    inputs = tensors_of((args, kwargs))
    first, second = (Calls(function, args, kwargs, differentiate) for _ in range(2))
    flow.manual_seed(5)
    expected = bits(first(*inputs))
    second.load_runtime_state_dict(first.runtime_state_dict())
    flow.manual_seed(5)
    assert bits(second(*inputs)) == expected
    assert len(second.plans) == 1, "captured again"


def check(name: str, *call: Any) -> None:
    if name not in LEFT_OUT:
        goes_round(*call)
        return
    with pytest.raises((CaptureError, FlowError), match=LEFT_OUT[name]):
        goes_round(*call)


@pytest.mark.parametrize("known", SAMPLES, ids=lambda known: known.name)
@pytest.mark.product(4)
def test_an_op_with_samples(known: Any) -> None:
    sample = next(iter(known.generate(np.random.default_rng(0))))
    kwargs = {k: as_tensors(v, False) for k, v in sample.kwargs.items()}
    check(known.name, known.function, sample.args, kwargs, known.grad)


def matrix(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def positive(n: int) -> Any:
    a = matrix(n, n)
    return a @ a.T + 4 * np.eye(n, dtype=np.float32)


IMAGE, SQUARES, TALL = matrix(2, 4, 7, 6), matrix(2, 4, 4), matrix(2, 5, 3)
OTHERS: dict[str, Any] = {
    "fft": (flow.fft.fft, matrix(3, 8)),
    "fft of a prime": (flow.fft.fft, matrix(2, 67)),
    "irfft": (flow.fft.irfft, matrix(3, 5)),
    "stft": (lambda x: flow.stft(x, 8, return_complex=True).abs(), matrix(64)),
    "qr": (linalg.qr, TALL),
    "svd": (linalg.svd, TALL),
    "eigh": (linalg.eigh, positive(4)),
    "eigvalsh": (linalg.eigvalsh, positive(4)),
    "eig": (linalg.eig, SQUARES),
    "lstsq": (lambda a, b: linalg.lstsq(a, b, driver="gels"), TALL, matrix(2, 5, 2)),
    "lu": (linalg.lu, TALL),
    "lu_solve": (lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b), SQUARES, matrix(2, 4, 2)),
    "inv_ex": (linalg.inv_ex, SQUARES),
    "cholesky_ex": (linalg.cholesky_ex, positive(4)),
    "ldl_factor": (linalg.ldl_factor, positive(4)),
    "ldl_solve": (
        lambda a, b: linalg.ldl_solve(*linalg.ldl_factor(a), b), positive(4), matrix(4, 2)
    ),
    "solve_triangular": (
        lambda a, b: linalg.solve_triangular(a, b, upper=True), positive(4), matrix(4, 2)
    ),
    "householder_product": (lambda a: linalg.householder_product(*flow.geqrf(a)), TALL),
    "rnn": (nn.RNN(3, 4, 2, bidirectional=True), matrix(5, 2, 3)),
    "gru": (nn.GRU(3, 4, 2), matrix(5, 2, 3)),
    "lstm": (nn.LSTM(3, 4, 2, bidirectional=True), matrix(5, 2, 3)),
    "bernoulli": (lambda x: flow.bernoulli(x.sigmoid()), matrix(4)),
    "multinomial": (lambda x: flow.multinomial(x.exp(), 2), matrix(4)),
    "random": (lambda x: x + flow.rand(4) + flow.randn(4) + flow.randint(0, 5, (4,)), matrix(4)),
    "randperm": (lambda x: x[flow.randperm(4)], matrix(4)),
    "poisson": (lambda x: flow.poisson(x.exp()), matrix(4)),
    "dropout": (lambda x: F.dropout(x, 0.3), matrix(4, 9)),
    "embedding_bag": (
        lambda w: F.embedding_bag(flow.tensor([0, 2, 1]), w, flow.tensor([0, 1])), matrix(4, 3)
    ),
    "max_unpool": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), IMAGE),
    "fractional": (lambda x: F.fractional_max_pool2d(x, 2, output_size=2), IMAGE),
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q, flow.ones(5, 5).tril().bool()),
        matrix(2, 2, 5, 8),
    ),
    "a transformer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), matrix(2, 5, 8)),
    "conv same": (lambda x, w: F.conv2d(x, w, padding="same", dilation=(1, 3)), IMAGE,
                  matrix(6, 4, 2, 2)),
    "conv groups": (lambda x, w, b: F.conv2d(x, w, b, 2, 1, 1, 2), IMAGE, matrix(6, 2, 3, 3),
                    matrix(6)),
    "conv_transpose": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 2, 2, 3), IMAGE, matrix(4, 3, 3, 3),
        matrix(6),
    ),
    "twice a gradient": (
        lambda x, w: flow.autograd.grad(
            F.max_pool2d(F.conv2d(x, w).pow(3), 2).sum(), x, create_graph=True
        ),
        IMAGE, matrix(2, 4, 2, 2),
    ),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGE),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=2), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), IMAGE),
    "bicubic": (lambda x: F.interpolate(x, (3, 9), mode="bicubic", align_corners=True), IMAGE),
    "nearest-exact": (lambda x: F.interpolate(x, (3, 9), mode="nearest-exact"), IMAGE),
    "roi_align": (
        lambda x: flow.roi_align(x, flow.tensor([[1.0, 2, 1, 9, 12]]), 0.5, 2, 3, -1, True), IMAGE
    ),
    "flips": (lambda x: flow.cat([x.flip(0) + 1, x.flip(1), x.rot90(2)]), matrix(5, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_another_call(name: str) -> None:
    function, *args = OTHERS[name]
    check(name, function, args, {}, True)


def test_every_attribute_is_of_some_kind() -> None:
    """Or its first call is an error: a file could say anything."""
    count = 0
    for operator in list(operators):
        if isinstance(operator.kernel.infer, Inferred):
            assert len(operator.kernel.infer.kinds) == len(operator.kernel.infer.attrs)
            count += len(operator.kernel.infer.kinds)
    assert count > 100


def test_an_attribute_of_no_kind_is_an_error() -> None:
    def infer(x: Any, how: dict[str, int], much: int) -> Any:
        raise AssertionError("not asked")

    with pytest.raises(ArgumentTypeError, match=r"dict\[str, int\] of how is not a kind"):
        Inferred(infer, "odd", ("how", "much"), False, None)((flow.ones(1)._meta,), ({}, 1))


KINDS: tuple[tuple[Any, tuple[Any, ...], tuple[Any, ...]], ...] = (
    (bool, (True,), (1, None)),
    (int, (-(1 << 63), 3), (True, 3.0, 1 << 63)),
    (float, (1, 0.5, True), ("1", None)),
    (Dim, (0, 1), (2, -1, 1.0)),
    (Any, (None, "x"), ()),
    (Dims, ((), (1, 0)), ((0, 0), (2,), [0], 0)),
    (Count, (0, 1 << 48), (-1, (1 << 48) + 1)),
    (Literal["mean", "sum"], ("mean",), ("none", None)),
    (tuple[int, ...], ((), (3, 0)), ((-1,), [3], (1.0,))),
    (tuple[int, int], ((3, 0),), ((3,), (1, 2, 3))),
    (flow.dtype | None, (flow.int8, None), ("int8",)),
    (Count | tuple[int, ...], (0, (1,)), (-1, (-1,))),
)  # fmt: skip


@pytest.mark.parametrize(("message", "right", "wrong"), KINDS)
def test_a_kind_holds_for_its_values_alone(message: Any, right: Any, wrong: Any) -> None:
    def infer(x: Any, value: Any) -> str:
        return "asked"

    infer.__annotations__["value"] = message
    inferred = Inferred(infer, "odd", ("value",), False, None)
    metas = (flow.ones(2, 3)._meta,)
    assert [inferred(metas, (value,)) for value in right] == ["asked"] * len(right)
    for value in wrong:
        with pytest.raises(ArgumentError, match="odd: value must be"):
            inferred(metas, (value,))


def test_a_fresh_process_has_declared_every_operator() -> None:
    """Modules that only some programs import are imported before a graph is read."""
    program = """
import importlib, pkgutil
import flowvm.nn.graph.plan_file
from flowvm.eager.interpreter import operators
known = set(operators)
for module in pkgutil.walk_packages(flowvm.ops.__path__, "flowvm.ops."):
    importlib.import_module(module.name)
print(*sorted({o.name for o in operators if o not in known}))
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == [
        "unscale_",
        "update_scale_",
    ]  # a GradScaler's, refused by name
