"""Bodies translated without Numba give the bits of Numba's kernels, in all that they write."""

from __future__ import annotations

import ctypes
import functools
import inspect
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flowvm as flow
import flowvm.nn.functional as F
from flowvm.compiler import jit
from flowvm.errors import CompileError
from flowvm.launch import PHASE_BITS, Launch
from flowvm.meta.device import cpu
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare import registry
from flowvm.ops.declare.cpu.body_kernel import (
    SCRATCH_AT,
    Body,
    Operand,
    body_layout,
    body_of,
    kind_of,
    lowered_by_numba,
    lowered_without_numba,
)
from flowvm.ops.declare.cpu.walk import OPERANDS_AT
from flowvm.ops.planes.cpu.pool_kernels import max_body
from flowvm.ops.random.parts import philox
from flowvm.ops.rows.cpu.norm_launch import backward_launch, forward_launch
from flowvm.ops.rows.parts import class_loss_ops
from flowvm.ops.rows.parts.folds import add_up, largest, square_up

SCALARS = 4  # at most
INTEGERS = {"seed", "call", "low", "size"}  # scalars that are no floats
CALL = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 5)


def meta(shape: tuple[int, ...], dtype: str = "float32") -> TensorMeta:
    return TensorMeta.of(shape, dtype_named(dtype), cpu)


def body_in(launch: Launch) -> Body:
    """The body of a Launch as a call compiles it; what it has no const for is a scalar."""
    operands, kinds = [*map(Operand.of, launch.views)], [*map(kind_of, launch.consts)]
    own = {"scratch", "arena", "lo", "hi", "details"}
    names = [n for n in inspect.signature(launch.body).parameters if n not in own]
    scalars = ["i" if n in INTEGERS else "f" for n in names[len(operands) + len(kinds) :]]
    return body_of(launch.body, operands, kinds, scalars, reassociate=launch.reassociate)


@functools.cache
def kernels(body: Body) -> tuple[int, int]:
    """The kernel by Numba and the one without it."""
    ways = lowered_by_numba, lowered_without_numba
    return tuple(jit.load(functools.partial(way, body), way.__name__) for way in ways)  # type: ignore[return-value]


def run(kernel: int, launch: Launch, arrays: list[np.ndarray[Any, Any]], cuts: int) -> list[Any]:
    """The status, and all memory that the kernel may write, each phase in `cuts` parts."""
    memory = [array.copy() for array in arrays]
    layout = body_layout(launch.views, launch.consts, launch.scratch)
    scratch = np.zeros(max(1, launch.scratch), np.uint8)
    words = np.full(OPERANDS_AT + len(memory) + SCALARS, np.float64(0.1).view(np.int64))
    words[:OPERANDS_AT] = 0
    words[SCRATCH_AT] = scratch.ctypes.data
    words[OPERANDS_AT:-SCALARS] = [array.ctypes.data for array in memory]
    status = []
    for phase, (units, _) in enumerate(((launch.units, launch.grain), *launch.phases)):
        edges = [units * k // cuts for k in range(cuts + 1)]
        for lo, hi in itertools.pairwise(edges):
            if lo < hi:
                arena, first = np.zeros(1 << 21, np.uint8), phase << PHASE_BITS
                at = words.ctypes.data, layout.ctypes.data, first + lo, first + hi
                status.append(CALL(kernel)(*at, arena.ctypes.data))
    return [*(array.view(np.uint8) for array in (*memory, scratch, words[:SCRATCH_AT])), status]


def compare(launch: Launch, arrays: list[np.ndarray[Any, Any]]) -> None:
    """Assert that both kernels of a Launch leave the same bits."""
    body = body_in(launch)
    for cuts in (1, 3):
        exact, actual = (run(kernel, launch, arrays, cuts) for kernel in kernels(body))
        for one, other in zip(exact, actual, strict=True):
            assert np.array_equal(one, other), (body.function.__qualname__, launch.consts)


def filled(launch: Launch, rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """An array for each view of a Launch that a call has, of any numbers."""
    arrays = []
    for view in launch.views:
        if view.given is False:
            continue
        size, dtype = int(np.prod(view.shape)), view.dtype.numpy
        if dtype.kind == "f":
            array = rng.standard_normal(size) * rng.choice([1e-3, 1.0, 100.0]) + rng.choice([0, 5])
        else:
            array = rng.integers(0, 3, size)
        arrays.append(np.ascontiguousarray(array.astype(dtype)))
    return arrays


def norms() -> Iterator[Launch]:
    """Batch norms, forward and backward, of channels of few elements."""
    for dtype in ("float32", "float64"):
        for shape in [(2, 3), (7, 5, 3), (64, 16, 8, 8), (5, 33, 2, 3)]:
            x, channels = meta(shape, dtype), meta((shape[1],), dtype)
            stats = meta((2 * shape[1],), "float64")
            outs, inputs = (x, stats), (x, channels, channels, channels, channels)
            for count in (1, 3, 5):
                yield forward_launch(outs, inputs[:count], "batch", 0, 1e-5, True, False)
            yield forward_launch(outs, inputs, "batch", 0, 1e-5, True, True)
            for fixed in (False, True):
                yield backward_launch((x,), (x, x, stats), "batch", 0, 1e-5, True, fixed)
                full = (x, channels, channels), (x, x, stats, channels)
                yield backward_launch(*full, "batch", 0, 1e-5, True, fixed)


def folds() -> Iterator[Launch]:
    """Reductions of rows and of columns."""
    for fold, dtype in (add_up, "float32"), (largest, "int32"), (square_up, "bfloat16"):
        for shape, dims in [
            ((3, 700), (1,)), ((2, 5), (0,)), ((64, 10), (0,)), ((64, 16, 8, 8), (0, 2, 3)),
            ((2, 70000), (1,)), ((300, 1000), (0,)), ((5, 7, 33), (1,)), ((1100, 3), (0,)),
        ]:  # fmt: skip
            launch = fold.launch(meta(shape, dtype), dims, False)
            if launch.body.__globals__.get("WORDS_ONLY"):
                yield launch


def numbers() -> Iterator[Launch]:
    """Random numbers of each kind."""
    for size, dtype in (5, "float32"), (5000, "float32"), (5000, "float64"):
        x, wide = meta((size,), dtype), dtype == "float64"
        yield philox._launch(philox._uniform_body, x, 1 + wide, (0 if wide else 8,))
        yield philox._launch(philox._normal_body(wide), x, 1 + wide)
    yield philox._launch(philox._integer_body, meta((1030,), "int64"), 2)


def losses() -> Iterator[Launch]:
    """Cross entropy and its gradient, of short rows, long ones and stripes."""
    for shape, weights, smoothing in ((64, 10), 0, 0.0), ((3, 5, 9), 1, 0.1), ((2, 300), 0, 0.0):
        x, target = meta(shape), meta((shape[0], *shape[2:]), "int64")
        weight = (meta((shape[1],)),) * weights
        launch = class_loss_ops._entropy_launch(x, target, weight, "mean", -100, smoothing)
        yield launch
        rest = (target, launch.outputs[1], weight, -100, smoothing)
        yield class_loss_ops._entropy_backward_launch(meta((1,)), x, *rest)


def planes() -> Iterator[Launch]:
    """Convolutions with their gradients, and pooling, as calls launch them."""
    launches = []

    def kept(views: Any, consts: Any = (), scratch: int = 0) -> Any:
        launch = sys._getframe(1).f_locals["launch"]
        alone = launch.body.__globals__.get("WORDS_ONLY") and ".planes." in launch.body.__module__
        if alone and launch.body is not max_body:  # Numba has no such rows: see test_pool_rows
            launches.append(launch)
        return body_layout(views, consts, scratch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "body_layout", kept)
        x = flow.randn(8, 16, 9, 9, requires_grad=True)
        y = F.conv2d(x, flow.randn(32, 16, 3, 3, requires_grad=True), padding=1)
        pooled = F.max_pool2d(y, 2), F.avg_pool2d(y, 3, 2, 1), F.adaptive_max_pool2d(y, 3)
        flow.cat([p.reshape(-1) for p in pooled]).sum().backward()
        flow.vm.sync()
    yield from launches


FAMILIES: dict[str, Callable[[], Iterator[Launch]]] = {
    "norms": norms,
    "folds": folds,
    "numbers": numbers,
    "losses": losses,
    "planes": planes,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_are_numbas(rng, family):
    count = 0
    for launch in FAMILIES[family]():
        arrays = filled(launch, rng)
        compare(launch, arrays)
        for array in arrays:  # and what is none, too small or too large
            if array.dtype.kind == "f" and len(array) > 4:
                array[rng.integers(0, len(array), 2)] = rng.choice([np.inf, 1e-40, -0.0, 1e25], 2)
        compare(launch, arrays)
        count += 1
    assert count > 5


# --- what a body may say --------------------------------------------------------------------------


def _negative_body(out, x, lo, hi):
    for i in range(lo, hi):
        out[i] = x[-1]


def _kinds_body(out, x, lo, hi):
    total = 0
    for i in range(lo, hi):
        total = total + x[i]
    out[lo] = total


def _text_body(out, x, lo, hi):
    out[lo] = len("abc")


def _stepped_body(out, x, lo, hi):
    out[lo] = len(x[lo:hi:2])


REFUSED = {
    _negative_body: r"x\[-1\]",
    _kinds_body: "double in place of i64",
    _text_body: r"len\('abc'\)",
    _stepped_body: r"x\[lo:hi:2\]",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_a_body_may_not_say_is_named_with_its_line(body):
    one = Operand("float32", 1, True)
    with pytest.raises(CompileError, match=REFUSED[body]) as error:
        lowered_without_numba(body_of(body, [one, one]))
    line = body.__code__.co_firstlineno
    (said,) = re.findall(r"test_bodies.py:(\d+)", str(error.value))
    assert line < int(said) <= line + 4


def test_arrays_of_two_dimensions_are_refused():
    operands = [Operand("float32", 2, True), Operand("float32", 1, True)]
    with pytest.raises(CompileError, match="one dimension"):
        lowered_without_numba(body_of(_stepped_body, operands))


FIRST_STEP = """
import sys
sys.modules["numba"] = None  # an import of it is an error
import flowvm as flow
from flowvm import nn
F = nn.functional
x = flow.tensor([float(i * i % 17) for i in range(1152)]).reshape(8, 4, 6, 6)
x.requires_grad_()
norm = nn.BatchNorm2d(4)
y = F.max_pool2d(norm(x), 2)
F.cross_entropy(y.flatten(1), flow.tensor([0, 1, 2, 3, 4, 5, 35, 7])).backward()
print(y.sum((0, 2, 3)).shape, x.grad.shape, norm.weight.grad.shape)
"""


@pytest.mark.timeout(600)
def test_kernels_of_a_first_step_need_no_numba(tmp_path):
    """From an empty cache, with their gradients."""
    environment = {**os.environ, "FLOWVM_CACHE_DIR": str(tmp_path), "FLOWVM_AHEAD": "0"}
    command = [sys.executable, "-c", FIRST_STEP]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("flow.Size") == 3
