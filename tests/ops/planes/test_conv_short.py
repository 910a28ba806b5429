"""The stand-in that a first small convolution runs while a helper compiles its kernel.

The bits are the same, and one of the two runs an instruction from its first phase to its last.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import flowvm as flow
from flowvm.config import config
from flowvm.launch import PHASE_BITS
from flowvm.meta.device import cpu
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cpu import stand_in
from flowvm.ops.declare.cpu.body_kernel import (
    SCRATCH_AT,
    Operand,
    body_layout,
    body_of,
    kernel_of,
    kind_of,
)
from flowvm.ops.declare.cpu.walk import OPERANDS_AT
from flowvm.ops.planes.cpu.conv_plan import Shape, strips_of
from flowvm.ops.planes.cpu.conv_strips import strips_body
from flowvm.ops.planes.parts import conv_ops

CALL = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 5)


def a_shape(rng: np.random.Generator) -> Shape:
    """A convolution of few products, of one to three dimensions, often with nothing inside."""

    def three(low: int, high: int) -> tuple[int, int, int]:
        return tuple(int(n) for n in rng.integers(low, high, 3))  # type: ignore[return-value]

    while True:
        deep = rng.random() < 0.4
        size, kernel, stride = three(1, 24), three(1, 5), three(1, 4)
        padding, dilation = three(0, 4), three(1, 3)
        if not deep:
            size, kernel, stride = (1, *size[1:]), (1, *kernel[1:]), (1, *stride[1:])
            padding, dilation = (0, *padding[1:]), (1, *dilation[1:])
        out = tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(size, padding, dilation, kernel, stride, strict=True)
        )
        samples, channels, outputs, groups = (int(n) for n in rng.integers(1, (4, 9, 20, 4)))
        if min(out) < 1:
            continue
        return Shape(
            samples, channels, outputs, groups, size, out, kernel, stride, padding, dilation
        )  # type: ignore[arg-type]


def launched(shape: Shape, back: bool, dtype: str, biased: bool):
    """The Launch of a convolution or, `back`, its input's gradient, and the sizes of its arrays."""
    sizes = [
        (shape.samples, shape.groups * shape.channels, *shape.input),
        (shape.samples, shape.groups * shape.outputs, *shape.output),
    ]
    source, result = sizes[back], sizes[not back]
    weight = (shape.groups * shape.outputs, shape.channels, *shape.kernel)
    metas = [TensorMeta.of(s, dtype_named(dtype), cpu) for s in (source, weight, (result[1],))]
    out = TensorMeta.of(result, dtype_named(dtype), cpu)
    launch = conv_ops._strips(out, shape, back, *metas[: 2 + biased])
    return launch, [result, source, weight, (result[1],)][: 3 + biased]


def run(kernel: int, launch, arrays, between=lambda: None):
    """The result of the kernel, `between` its phases something happens."""
    layout = body_layout(launch.views, launch.consts, launch.scratch)
    scratch, arena = np.full(launch.scratch, 255, np.uint8), np.full(1 << 21, 255, np.uint8)
    out = np.full_like(arrays[0], 7)
    words = np.zeros(OPERANDS_AT + 4, np.int64)
    words[SCRATCH_AT] = scratch.ctypes.data
    words[OPERANDS_AT : OPERANDS_AT + len(arrays)] = [v.ctypes.data for v in (out, *arrays[1:])]
    ((units, _),) = launch.phases
    ranges = [(0, launch.units), (1 << PHASE_BITS, (1 << PHASE_BITS) + units)]
    for k, (lo, hi) in enumerate(ranges):
        if k:
            between()
        at = (words.ctypes.data, layout.ctypes.data, lo, hi, arena.ctypes.data)
        assert CALL(kernel)(*at) == 0
    return out


def bodies(launch, monkeypatch):
    """Return the kernel, its stand-in, the jobs of helpers, and the work behind a job."""
    body = body_of(
        launch.body, [Operand.of(v) for v in launch.views], [kind_of(c) for c in launch.consts]
    )
    jobs = []
    monkeypatch.setattr(stand_in.jit, "load_if_cached", lambda *args: None)
    monkeypatch.setattr(stand_in.helpers, "can_help", lambda: True)
    monkeypatch.setattr(stand_in.helpers, "later", lambda *job, pressing: jobs.append(job))
    stand_in._short.cache_clear()
    for cell in stand_in._cells.values():
        cell.value = 0
    with config(ahead=True):
        short = stand_in.short_kernel(body, launch.stand_in)
    return kernel_of(body), short, jobs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("back", [False, True], ids=["forward", "back"])
def test_the_same_bits(rng, monkeypatch, dtype, back):
    monkeypatch.setattr(conv_ops, "GAIN", np.inf)  # no other way takes the place of strips
    tried = 0
    while tried < 40:
        shape = a_shape(rng)
        if tried == 0:  # more channels than are laid out at a time
            shape = Shape(
                1, 100, 100, 1, (2, 36, 36), (1, 36, 36), (2, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)
            )._replace(**{"channels" if back else "outputs": 1})
        launch, sizes = launched(shape, back, dtype, bool(rng.random() < 0.5))
        if launch.stand_in is None:
            continue
        plan = strips_of(shape, dtype, back)
        assert tried > 0 or plan.channels < plan.depth
        arrays = [rng.standard_normal(size).astype(dtype) for size in sizes]
        for array in arrays[1:]:  # and what adding nothing does not leave alone
            flat = array.reshape(-1)
            flat[rng.random(len(flat)) < 0.1] = -0.0
            if rng.random() < 0.2:
                flat[rng.integers(0, len(flat))] = rng.choice([np.inf, np.nan, 1e-40])
        kernel, short, jobs = bodies(launch, monkeypatch)
        assert kernel != short
        assert len(jobs) == 1
        exact, actual = (run(k, launch, arrays) for k in (kernel, short))
        bits = f"int{8 * exact.itemsize}"
        same = (exact.view(bits) == actual.view(bits)) | (np.isnan(exact) & np.isnan(actual))
        assert same.all(), (shape, exact[~same][:4], actual[~same][:4])
        tried += 1


def test_one_does_an_instruction(rng, monkeypatch):
    """The kernel comes between the phases: it would read weights that nobody packed."""
    three = (1, 1, 1)
    shape = Shape(2, 3, 20, 1, (1, 9, 9), (1, 7, 7), (1, 3, 3), three, (0, 0, 0), three)
    monkeypatch.setattr(conv_ops, "GAIN", np.inf)
    launch, sizes = launched(shape, False, "float32", True)
    arrays = [rng.standard_normal(size).astype("float32") for size in sizes]
    kernel, short, ((job, work),) = bodies(launch, monkeypatch)
    exact = run(kernel, launch, arrays)
    assert (run(short, launch, arrays, work) == exact).all()  # the short one goes on
    called = []
    monkeypatch.setattr(stand_in, "kernel_of", called.append)
    module, name, text = job.split(":")
    getattr(sys.modules[module], name)(text)  # what the helper does
    assert called[0].function is launch.body
    (cell,) = [c for c in stand_in._cells.values() if c.value == kernel]
    assert (run(short, launch, arrays) == exact).all()  # and now the kernel, from the start

    def gone() -> None:
        cell.value = 0

    assert (run(short, launch, arrays, gone) == exact).all()


PROGRAM = """
import sys
import numpy as np
import flowvm as flow
from flowvm.compiler import jit
from flowvm.ops.declare.cpu.stand_in import _cells

names = []
jit.listeners.append(lambda name, begun: names.append(name))
x = flow.arange(2 * 3 * 9 * 9).reshape(2, 3, 9, 9) / 7
weight = flow.arange(4 * 3 * 3 * 3).reshape(4, 3, 3, 3) / 3
first = flow.conv2d(x, weight, padding=1).numpy()
short = [name for name in names if "sums_body" in name]
assert (len(short), len(_cells)) == ((1, 1) if sys.argv[1] == "cold" else (0, 0)), names
while not all(cell.value for cell in _cells.values()):
    assert (flow.conv2d(x, weight, padding=1).numpy() == first).all()
assert (flow.conv2d(x, weight, padding=1).numpy() == first).all()
large = flow.conv2d(flow.ones(4, 8, 40, 40), flow.ones(16, 8, 3, 3)).numpy()
assert (large == 72).all()
print(first.sum())
"""


def test_until_a_helper_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWVM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FLOWVM_AHEAD", "1")
    if not stand_in.helpers.can_help():
        pytest.skip("a helper needs a second core")

    def text(when: str) -> str:
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM, when], capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    assert text("cold") == text("warm")


@pytest.mark.parametrize(("samples", "short"), [(64, True), (80, False)])
def test_large_ones_wait_for_the_kernel(samples, short):
    """Seven channels are too few for Winograd's way, which has no short body."""
    x, weight = (TensorMeta.of(s, flow.float32, cpu) for s in ((samples, 7, 32, 32), (7, 7, 3, 3)))
    shape = conv_ops._shape(
        x.shape, weight.shape, (32, 32), conv_ops.How((1, 1, 1), (0, 1, 1), (1, 1, 1), 1)
    )
    launch = conv_ops._strips(x, shape, False, x, weight)
    assert launch.body is strips_body
    assert (launch.stand_in is not None) == short
