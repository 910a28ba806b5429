"""Compiling kernels to PTX, with the functions that they call; and the simulator that runs them."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numba import cuda
from simulated import run, status

from flowvm.cuda.compiler import compilation
from flowvm.cuda.launch import Const, CudaLaunch, Details, KernelStep, Operand, Scratch
from flowvm.cuda.simulator.grid import run_grid
from flowvm.launch import View
from flowvm.meta.dtype import dtype_named
from flowvm.ops.scalar import functions as scalar


def doubled(out, x, n):
    """Reaches an Overloaded by its module and by a call of its own."""
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        out[i] = scalar.exp(np.float32(x[i])) * np.float32(2)


def divided(out, x, y, details):
    i = cuda.grid(1)
    if i < out.shape[0]:
        fine, value = compilation.attempt(_divide, (x[i], y[i]))
        out[i] = value
        if not fine:
            details[6] = 2


def _divide(x, y):
    return scalar.floor_divide(x, y)


def halves(out, x):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = scalar.exp(np.float32(x[i]))


def any_bit(out, x):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = 1 if x[i] else 0


def in_half(out, x):
    out[0] = x[0] + x[1]


def warp_sums(out, x, n):
    part = cuda.shared.array(32, np.float32)
    i = cuda.grid(1)
    total = x[i] if i < n else np.float32(0)
    lanes = 16
    while lanes:
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, lanes)
        lanes //= 2
    if cuda.laneid == 0:
        part[cuda.threadIdx.x // 32] = total
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        whole = np.float32(0)
        for k in range(cuda.blockDim.x // 32):
            whole += part[k]
        out[cuda.blockIdx.x] = whole


def waits_in_vain(out):
    if cuda.threadIdx.x < 5:
        cuda.syncthreads()
    else:
        cuda.syncwarp()


def some_leave(out):
    if cuda.threadIdx.x < 5:
        return
    cuda.syncthreads()
    out[cuda.threadIdx.x] = 1


FLOATS = ("float32", 1, "C")


def test_a_kernel_compiles_with_all_it_reaches(ptx_of):
    for text in ptx_of(doubled, (FLOATS, FLOATS, "int64")):
        assert ".entry flowvm_doubled(" in text
        assert "fma.rn.f32" in text  # contraction
        assert ".f64" not in text  # nothing was widened
        assert ".extern" not in text


def test_raising_is_seen_and_float16_and_bool_are_read_right(ptx_of):
    integers = ("int64", 1, "C")
    assert "div" in ptx_of(divided, (integers,) * 4)[0]
    halved = ptx_of(halves, (("float16", 1, "C"),) * 2)[0]
    assert "cvt.f32.f16" in halved
    assert "cvt.rn.f16.f32" in halved
    assert "setp.ne.s16" in ptx_of(any_bit, (integers, ("bool", 1, "C")))[0]  # of the whole byte


def test_arithmetic_in_float16_is_refused(ptx_of):
    with pytest.raises(Exception, match="cannot be compiled"):
        ptx_of(in_half, (("float16", 1, "C"),) * 2)


def test_the_cache_answers_without_compiling(tmp_path):
    program = (
        "import flowvm.compiler.jit, sys; from flowvm.cuda.compiler.compilation import ptx;"
        "sys.path.insert(0, {here!r}); from test_compiling_kernel import kernel;"
        "print(hash(ptx(kernel, (('float32', 1, 'C'),), (7, 0))),"
        "'flowvm.cuda.compiler.frontend' in sys.modules)"
    )
    (tmp_path / "test_compiling_kernel.py").write_text(
        "from numba import cuda\ndef kernel(x):\n    x[cuda.grid(1)] = 1\n"
    )
    environment = {
        **os.environ, "NUMBA_ENABLE_CUDASIM": "0", "FLOWVM_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONHASHSEED": "0",
    }  # fmt: skip
    command = [sys.executable, "-c", program.format(here=str(tmp_path))]
    processes = [
        subprocess.run(command, env=environment, capture_output=True, text=True) for _ in range(2)
    ]
    if "cannot be compiled here" in processes[0].stderr:
        pytest.skip("no libNVVM")
    first, second = (f.stdout.split() for f in processes)
    assert first[0] == second[0], processes
    assert (first[1], second[1]) == ("True", "False")


@pytest.mark.parametrize("order", ["", "reversed"])
def test_shuffles_and_shared_memory_in_the_simulator(order, rng):
    x = rng.standard_normal(200).astype(np.float32)
    out = np.zeros(4, np.float32)
    run_grid(warp_sums, (out, x, 200), (4, 1, 1), (64, 1, 1), order=order)
    expected = [x[i : i + 64].sum(dtype=np.float64) for i in range(0, 200, 64)]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_threads_that_leave_are_not_waited_for():
    out = np.zeros(32)
    run_grid(some_leave, (out,), (2, 1, 1), (32, 1, 1))
    assert out.tolist() == [0] * 5 + [1] * 27


def test_threads_that_wait_in_vain_are_an_error():
    with pytest.raises(RuntimeError, match="in vain"):
        run_grid(waits_in_vain, (np.zeros(1),), (1, 1, 1), (32, 1, 1))


def test_an_error_in_a_kernel_ends_the_launch():
    with pytest.raises(IndexError):
        run_grid(warp_sums, (np.zeros(1, np.float32), np.zeros(8, np.float32), 99),
                 (2, 1, 1), (32, 1, 1))  # fmt: skip
    assert cuda.__name__ == "numba.cuda"  # and `cuda` is what it was


def test_a_launch_runs_on_arrays():
    view = View(dtype_named("int64"), (5,))
    step = KernelStep(
        divided, (Operand(0, view), Operand(1, view), Operand(2, view), Details()),
        (1, 1, 1), (32, 1, 1),
    )  # fmt: skip
    out, x = np.zeros(5, np.int64), np.array([7, -7, 9, 0, 5])
    assert status(run(CudaLaunch((), (step,)), [out, x, np.array([2, 2, 3, 1, 1])])) == 0
    assert out.tolist() == [3, -4, 3, 0, 5]
    assert status(run(CudaLaunch((), (step,)), [out, x, np.array([2, 2, 0, 1, 1])])) == 2


def test_scratch_that_is_overrun_is_found():
    step = KernelStep(
        _overruns, (Scratch(0, "uint8", (4,)), Const(1)), (1, 1, 1), (1, 1, 1)
    )  # fmt: skip
    run(CudaLaunch((), (step,), scratch=4), [])
    with pytest.raises(AssertionError, match="ends behind"):
        run(CudaLaunch((), (step,), scratch=3), [])


def _overruns(scratch, value):
    scratch[3] = value


def test_a_signature_says_what_the_kernel_takes():
    view = View(dtype_named("float16"), (2, 3), (1, 2))
    params = (Operand(0, view), Scratch(0, "float32", (4,)), Const(1), Const(0.5), Details())
    step = KernelStep(doubled, params, (1, 1, 1), (1, 1, 1))
    assert compilation.signature_of(step) == (
        ("float16", 2, "A"), ("float32", 1, "C"), "int64", "float64", ("int64", 1, "C"),
    )  # fmt: skip
