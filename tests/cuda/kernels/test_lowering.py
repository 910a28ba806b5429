"""The lowering of an op to the words of the VM's steps, and bodies as kernels."""

import struct
from typing import NamedTuple

import numpy as np
import pytest
from numba import cuda
from simulated import Play, run, status

import flowvm as flow
from flowvm.cuda.driver.runtime import Runtime
from flowvm.cuda.launch import (
    Const,
    Details,
    KernelStep,
    LibraryStep,
    Operand,
    Scalar,
    Scratch,
    StreamWord,
)
from flowvm.cuda.simulator.grid import run_grid
from flowvm.eager.declaration import Kernel, Signature
from flowvm.eager.interpreter import Operator
from flowvm.errors import DeviceError
from flowvm.launch import PHASE_BITS, Launch, View
from flowvm.meta.device import Device
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.assembly import NUMBER, Assembly, Piece
from flowvm.ops.declare.cuda import steps
from flowvm.ops.declare.cuda.bodies import adapted
from flowvm.ops.declare.cuda.copies import assembly
from flowvm.ops.declare.cuda.lowering import _Words, launch_of
from flowvm.ops.shapes.join import _cat_of
from flowvm.ops.shapes.padding import _border, _constant, _roll
from flowvm.vm.machine.device_words import DEV, SOURCE, STEP


class _Handles(Runtime):
    """A device whose kernels have the number 77."""

    def __init__(self):
        self.calls = []

    def function(self, kernel, signature, shared=0):
        self.calls.append((kernel, signature, shared))
        return 77


def kernel():
    pass


# --- words ----------------------------------------------------------------------------------------


def test_the_words_of_a_kernel_step():
    device = _Handles()
    view = View(dtype_named("float32"), (2, 3), (1, 2))
    params = (
        Operand(1, view, 16), Scratch(8, "int16", (4,)), Details(), Const(5), Const(0.5),
        Scalar(1, "f"),
    )  # fmt: skip
    step = KernelStep(kernel, params, (2, 3, 4), (32, 1, 1), 1000, counts=True)
    words = _Words(device, 3, "test").of([step]).tolist()
    assert words[0] == 1
    step_words = words[1:]
    assert step_words[STEP.LENGTH] == len(step_words)
    assert step_words[STEP.KIND] == STEP.KERNEL
    assert step_words[STEP.COUNTS] == 1
    assert step_words[STEP.FUNCTION] == 77
    assert step_words[STEP.GRID : STEP.GRID + 3] == [2, 3, 4]
    assert step_words[STEP.BLOCK : STEP.BLOCK + 3] == [32, 1, 1]
    assert step_words[STEP.SHARED] == 1000
    half = struct.unpack("<q", struct.pack("<d", 0.5))[0]
    template = [
        0, 0, 6, 4, 0, 2, 3, 4, 8,  # the operand: its strides in bytes
        0, 0, 4, 2, 0, 4, 2,  # scratch
        0, 0, 8, 8, 0, 8, 8,  # details
        5, half, 0,
    ]  # fmt: skip
    count = step_words[STEP.TEMPLATE_WORDS]
    assert step_words[STEP.TEMPLATE : STEP.TEMPLATE + count] == template
    patches = [
        4, SOURCE.ARG | 1 << SOURCE.SHIFT, 16,
        13, SOURCE.SCRATCH, 8,
        20, SOURCE.LINE, 0,
        25, SOURCE.ARG | 4 << SOURCE.SHIFT, 0,  # behind three operands
    ]  # fmt: skip
    assert step_words[STEP.TEMPLATE + count :] == patches
    assert device.calls[0][1] == (
        ("float32", 2, "A"), ("int16", 1, "C"), ("int64", 1, "C"), "int64", "float64", "float64",
    )  # fmt: skip


def test_numbers_that_a_library_takes_by_address_lie_behind_the_steps(monkeypatch):
    monkeypatch.setattr("flowvm.cuda.driver.driver.table", lambda: np.arange(100, 300))
    params = (
        StreamWord("stream"), Operand(0, View(dtype_named("int8"), (1,))), ("&f64", 1.0),
        Scratch(4, "int8", (1,)), ("&f32", 2.0), Const(3),
    )  # fmt: skip
    steps = [LibraryStep("cuMemsetD8Async", params), LibraryStep("cuMemsetD8Async", params)]
    words = _Words(_Handles(), 1, "test").of(steps)
    at, single = 1, struct.unpack("<i", struct.pack("<f", 2.0))[0]
    for _ in steps:
        assert words[at + STEP.KIND] == STEP.FUNCTION_CALL
        assert words[at + STEP.FUNCTION] >= 100
        first = at + STEP.TEMPLATE
        assert words[first : first + 6].tolist() == [0, 0, 0, 0, 0, 3]
        sources = words[first + 6 + 1 : first + 6 + 15 : 3]
        assert sources[0] == SOURCE.BLOCK | DEV.STREAM << SOURCE.SHIFT
        for source, bits in ((sources[2], np.float64(1).view(np.int64)), (sources[4], single)):
            assert source & 255 == SOURCE.HERE
            assert words[source >> SOURCE.SHIFT] == bits
        at += words[at + STEP.LENGTH]
    assert at == len(words) - 4


def test_too_many_words_and_missing_kernels_are_errors():
    view = View(dtype_named("int8"), (1,) * 30)
    step = KernelStep(kernel, tuple(Operand(k, view) for k in range(9)), (1, 1, 1), (1, 1, 1))
    with pytest.raises(DeviceError, match="words"):
        _Words(_Handles(), 9, "test").of([step])
    alone = Operator("lonely", Signature(("x",), ("out",)), Kernel(lambda metas, attrs: None))
    with pytest.raises(DeviceError, match=r"lonely has no CUDA kernel yet"):
        launch_of(alone, (TensorMeta.of((1,), flow.float32),), ())


# --- bodies ---------------------------------------------------------------------------------------


def _squares(out, x, factor, twice, lo, hi):
    for i in range(lo, hi):
        out[i] = x[i] * x[i] * factor * (2 if twice else 1)


class _Sizes(NamedTuple):
    factor: float
    twice: bool


def _chosen(out, x, more, sizes, order, lo, hi):
    for i in range(lo, hi):
        out[i] = x[order[i % 3]] * sizes.factor * (2 if sizes.twice else 1) + len(more)


def _two_phases(out, x, scratch, lo, hi):
    for u in range(lo, hi):
        if u < 1 << PHASE_BITS:
            scratch[u] = x[u] + 1
        else:
            out[u - (1 << PHASE_BITS)] = scratch[u - (1 << PHASE_BITS)] * 2


def _with_arena(out, x, arena, lo, hi):
    for i in range(lo, hi):
        for k in range(10):
            arena[k] = x[i]
        for k in range(10):
            out[i] += arena[k]


def _picky(out, x, lo, hi, details):
    for i in range(lo, hi):
        if x[i] < 0:
            details[0], details[1] = x[i], i
            return 1
        out[i] = x[i]
    return None


def _positive(out, x, lo, hi, details):
    count = 0
    for i in range(len(x)):
        if x[i] > 0:
            if lo >= 0:
                out[count] = x[i]
            count += 1
    details[0] = count


def _operator(**more):
    signature = Signature(("x",), ("out",), **more)
    return Operator("test", signature, Kernel(lambda metas, attrs: None))


def _launch(body, x, **more):
    metas = (TensorMeta.of(x.shape, dtype_named(x.dtype.name)),) * 2
    launch = Launch(metas[:1], body, units=x.size, **more)
    return adapted(_operator(), launch, metas[1:])


_FLAT = View(flow.float64, (1000,))
_CHOSEN = {
    "consts": (_Sizes(3.0, True), (2, 0, 1)),
    "views": (_FLAT, _FLAT, View.optional(None, flow.float64)),
}


@pytest.mark.parametrize("order", ["", "reversed"])
def test_a_body_runs_for_every_unit(order, rng):
    x = rng.standard_normal(1000)
    out = np.zeros_like(x)
    run(_launch(_squares, x, consts=(3.0, True)), [out, x], order=order)
    np.testing.assert_array_equal(out, x * x * 3.0 * 2)
    picked = x[np.array([2, 0, 1])[np.arange(1000) % 3]]
    run(_launch(_chosen, x, **_CHOSEN), [out, x], order=order)
    np.testing.assert_array_equal(out, picked * 3.0 * 2)
    n = rng.integers(0, 100, 300).astype(np.uint8)
    out = np.zeros_like(n)
    run(_launch(_two_phases, n, scratch=300, phases=((300, 10),)), [out, n], order=order)
    np.testing.assert_array_equal(out, (n + 1) * 2)
    n = np.arange(200, dtype=np.uint8) % 25
    out = np.zeros_like(n)
    run(_launch(_with_arena, n, arena=16), [out, n], order=order)
    np.testing.assert_array_equal(out, n * 10)


def test_a_body_reports_what_it_finds_wrong():
    x = np.arange(100)
    launch = _launch(_picky, x)
    out = np.zeros_like(x)
    assert status(run(launch, [out, x])) == 0
    np.testing.assert_array_equal(out, x)
    x[41] = -3
    details = run(launch, [out, x])
    assert details.tolist() == [-3, 41, 0, 0, 0, 0, 1]


def test_a_body_that_counts_does_so_first():
    x = np.array([3, -1, 5, 0, 7])
    metas = (TensorMeta.of(x.shape, flow.int64),) * 2
    launch = Launch(metas[:1], _positive)
    plan = adapted(_operator(unsized=frozenset({"out"})), launch, metas[1:])
    play = Play(plan, [np.zeros(5, np.int64), x])
    assert play.count()[0] == 3
    play.arrays[0] = np.zeros(3, np.int64)
    play.run()
    assert play.arrays[0].tolist() == [3, 5, 7]


def test_bodies_compile(ptx_of):
    for body, more in (
        (_squares, {"consts": (3.0, True)}), (_with_arena, {"arena": 16}), (_picky, {}),
        (_two_phases, {"scratch": 8, "phases": ((8, 1),)}), (_chosen, _CHOSEN),
    ):  # fmt: skip
        for text in ptx_of.launch(_launch(body, np.zeros(8, np.uint8), **more)):
            assert f"flowvm_{body.__name__}" in text


# --- assemblies -----------------------------------------------------------------------------------


def _assembled(op, arrays, attrs):
    metas = tuple(TensorMeta.of(a.shape, dtype_named(a.dtype.name)) for a in arrays)
    launch = assembly(op.kernel.infer(metas, attrs))
    out = np.full(tuple(launch.outputs[0].shape), 99, arrays[0].dtype)
    run(launch, [out, *arrays])
    return out


def test_tensors_are_put_together(rng):
    x, y = rng.standard_normal((4, 3)), rng.standard_normal((4, 2))
    np.testing.assert_array_equal(_assembled(_cat_of(2), [x, y], (1, False)), np.hstack([x, y]))
    np.testing.assert_array_equal(_assembled(_cat_of(2), [x, x], (0, True)), np.stack([x, x]))
    np.testing.assert_array_equal(_assembled(_roll, [x], ((1, 2),)), np.roll(x, (3, 1), (0, 1)))
    expected = np.pad(x, ((1, 0), (2, 1)), constant_values=0.5)
    np.testing.assert_array_equal(_assembled(_constant, [x], (((1, 0), (2, 1)), 0.5)), expected)
    expected = np.pad(x, ((2, 1), (0, 2)), mode="reflect")
    np.testing.assert_array_equal(_assembled(_border, [x], (((2, 1), (0, 2)), "reflect")), expected)


def test_planes_of_pieces_and_halves(rng):
    x = rng.standard_normal((6, 40, 50)).astype(np.float16)
    sides = ((0, 0), (1, 1), (0, 0))
    expected = np.pad(x, sides, constant_values=-1.5)
    np.testing.assert_array_equal(_assembled(_constant, [x], (sides, -1.5)), expected)
    meta = TensorMeta.of((3,), flow.bool)
    launch = assembly(Assembly(meta, (Piece(NUMBER, (3,), (1,), 0, 0, (0,)),), True))
    out = np.zeros(3, np.bool_)
    run(launch, [out])
    assert out.all()


def test_the_device_of_a_launch_is_kept():
    meta = TensorMeta.of((2, 3), flow.float32, Device("cuda"))
    launch = launch_of(_cat_of(2), (meta, meta), (0, False))
    assert launch.outputs[0].device == Device("cuda")


def test_a_kernel_made_while_another_runs_has_numbas_cuda():
    """The simulator lends modules the launch's own `cuda`, which written code must not keep."""
    results = []

    def kernel(out):
        results.append(
            steps.written("def late(out):\n    out[0] = cuda.grid(1)\n", "late", {}, "m:f")
        )
        out[cuda.grid(1)] = 1

    out = np.zeros(2)
    run_grid(kernel, [out], (1, 1, 1), (2, 1, 1))
    assert out.tolist() == [1, 1]
    assert all(late.__globals__["cuda"] is cuda for late in results)
    late = np.zeros(1)
    run_grid(results[0], [late], (1, 1, 1), (2, 1, 1))
    assert late[0] == 1
