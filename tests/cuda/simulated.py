"""A CudaLaunch run on NumPy arrays, without VM or driver: its kernels in
`flowvm.cuda.simulator.grid`.

    made = lower_it(...)                     # a CudaLaunch
    details = run(made, [out, x, y])         # operands, outputs first; details[6] is the status

An operand's array begins where the operand does; what a step takes for its shape and strides is in
the step.  Scratch memory is poisoned, and what lies behind it is looked at.  A mut2 op is
`Play(made, arrays)`: `rows = play.count()`, then `play.arrays[k] = ...` and `play.run()`.
"""

from __future__ import annotations

import ctypes

import numpy as np

from flowvm.cuda.launch import (
    STATUS_AT,
    Const,
    Details,
    KernelStep,
    Operand,
    Scalar,
    Scratch,
    StreamWord,
)
from flowvm.cuda.simulator.blas import read_gemm
from flowvm.cuda.simulator.grid import run_grid

GUARD = 64  # bytes behind the scratch memory that nobody may write
POISON = 0xA5

# C functions that steps may call, by name, on addresses and numbers: they return 0 or an error
LIBRARY = {}


def run(launch, arrays, scalars=(), order=""):
    """The launch's details after all of its steps; `order` as in `run_grid`."""
    return Play(launch, arrays, scalars, order).run()


def status(details):
    """The status in details."""
    return int(details[STATUS_AT])


class Play:
    """One instruction: a launch, its operands, its scratch memory and its details."""

    def __init__(self, launch, arrays, scalars=(), order=""):
        self.launch, self.arrays, self.scalars, self.order = launch, list(arrays), scalars, order
        self.memory = np.full(launch.scratch + GUARD + 256, POISON, np.uint8)
        self.base = -(-self.memory.ctypes.data // 256) * 256  # as a device's memory is aligned
        self.details = np.zeros(7, np.int64)

    def count(self):
        """Take the steps that count: the rows of each mut2 output are in details then."""
        self._take(counts=True)
        return self.details

    def run(self):
        self._take(counts=False)
        return self.details

    def _take(self, counts):
        for step in self.launch.steps:
            if step.counts == counts:
                if isinstance(step, KernelStep):
                    inputs = [self._value(p) for p in step.params]
                    run_grid(step.kernel, inputs, step.grid, step.block, step.shared, self.order)
                else:
                    result = LIBRARY[step.name](*(self._word(p) for p in step.params))
                    assert not result, f"{step.name} returned {result}"
        begin = self.base - self.memory.ctypes.data + self.launch.scratch
        behind = self.memory[begin : begin + GUARD]
        assert (behind == POISON).all(), "a step wrote behind its scratch memory"

    def _value(self, param):
        match param:
            case Operand(k, view, offset):
                itemsize = view.dtype.itemsize
                strides = tuple(s * itemsize for s in view.strides)
                return array_at(
                    self.arrays[k].ctypes.data + offset, view.dtype.name, view.shape, strides
                )
            case Scratch(offset, dtype, shape):
                end = offset + np.dtype(dtype).itemsize * int(np.prod(shape))
                assert end <= self.launch.scratch, f"{param} ends behind {self.launch.scratch}"
                return array_at(self.base + offset, dtype, shape, None)
            case Details():
                return self.details
            case Const(value):
                return value
            case Scalar(i, kind):
                return float(self.scalars[i]) if kind == "f" else int(self.scalars[i])
        raise TypeError(f"{param!r} in a kernel step")

    def _word(self, param):
        match param:
            case Operand(k, _, offset):
                return self.arrays[k].ctypes.data + offset
            case Scratch(offset, _, _):
                return self.base + offset
            case StreamWord() | ("&f64" | "&f32", _):
                return param if isinstance(param, StreamWord) else param[1]
        return self._value(param)


def array_at(address, dtype, shape, strides):
    """An array over memory that others keep."""

    class Held:
        __array_interface__ = {  # noqa: RUF012
            "shape": tuple(shape),
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "strides": strides,
            "version": 3,
        }

    return np.asarray(Held())


def _memset(address, value, count, stream):
    ctypes.memset(address, value, count)
    return 0


def _memcpy(to, source, count, stream):
    ctypes.memmove(to, source, count)
    return 0


class _AnyMemory:
    """Memory that nobody has the bounds of."""

    def check(self, address, size, what, device):
        pass


def _gemm(handle, op_a, op_b, m, n, k, alpha, *rest):
    """cublasGemmStridedBatchedEx, with the numbers alpha and beta instead of their addresses."""
    *matrices, beta, c, c_type, ldc, stride_c, count, compute, _ = rest
    kind = ctypes.c_double if compute == 70 else ctypes.c_float
    numbers = kind(alpha), kind(beta)
    at = [ctypes.addressof(number) for number in numbers]
    call = read_gemm(
        op_a, op_b, m, n, k, at[0], *matrices, at[1], c, c_type, ldc, stride_c, count, compute
    )
    call.run(_AnyMemory(), 0)
    return 0


LIBRARY.update(
    cuMemsetD8Async=_memset, cuMemcpyDtoDAsync_v2=_memcpy, cublasGemmStridedBatchedEx=_gemm
)
