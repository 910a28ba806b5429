"""cuBLAS's strided batched matrix product by NumPy, for simulated devices.

Matrices are column-major, as in cuBLAS.  What the compute type says about precision is done:
reduced floats are summed in float32, and with TF32 the operands are rounded to its 10 bits first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from flowvm.cuda.simulator.memory import Fault, Memory
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType, bfloat16, float16, float32, float64

INVALID_VALUE: Final = 7  # of cuBLAS's results
NOT_SUPPORTED: Final = 15
# cudaDataType
DTYPES: Final = {0: float32, 1: float64, 2: float16, 14: bfloat16}
COMPUTE_16F, COMPUTE_32F, COMPUTE_64F, FAST_16F, FAST_TF32 = 64, 68, 70, 74, 77
# compute type -> dtype of sums, of alpha and of beta
SUMS: Final = {
    COMPUTE_16F: "float16", 65: "float16", COMPUTE_32F: "float32", 69: "float32",
    COMPUTE_64F: "float64", 71: "float64", FAST_16F: "float32", FAST_TF32: "float32",
}  # fmt: skip
_SCALARS: Final[dict[str, Any]] = {"float32": ctypes.c_float, "float64": ctypes.c_double}


@dataclass(frozen=True)
class Matrix:
    """`count` column-major matrices, `stride` elements apart."""

    address: int
    dtype: DType
    rows: int
    columns: int
    leading: int
    stride: int
    count: int

    def check(self, memory: Memory, name: str, device: int) -> None:
        """Raise Fault if the matrices go outside of their memory."""
        itemsize = self.dtype.itemsize
        if self.rows * self.columns * self.count:
            last = (self.count - 1) * self.stride + (self.columns - 1) * self.leading + self.rows
            memory.check(self.address, last * itemsize, f"{name} of a matrix product", device)

    def view(self) -> Array:
        """The memory, as it is stored."""
        itemsize, stored = self.dtype.itemsize, self.dtype.storage
        if not self.rows * self.columns * self.count:
            return np.empty((self.count, self.rows, self.columns), stored)
        last = (self.count - 1) * self.stride + (self.columns - 1) * self.leading + self.rows
        raw: Any = (ctypes.c_char * (last * itemsize)).from_address(self.address)
        steps = (self.stride * itemsize, itemsize, self.leading * itemsize)
        return np.ndarray((self.count, self.rows, self.columns), stored, raw, 0, steps)


@dataclass(frozen=True)
class Gemm:
    """One call: C = alpha op(A) op(B) + beta C."""

    a: Matrix
    b: Matrix
    c: Matrix
    transpose: tuple[bool, bool]
    alpha: float
    beta: float
    compute: int

    def check(self, memory: Memory, device: int) -> None:
        for name, matrix in (("A", self.a), ("B", self.b), ("C", self.c)):
            matrix.check(memory, name, device)

    def run(self, memory: Memory, device: int) -> None:
        self.check(memory, device)
        dtype = SUMS[self.compute]
        round_ = _tf32 if self.compute == FAST_TF32 else _same
        a, b = (round_(m.dtype.loaded(m.view()).astype(dtype)) for m in (self.a, self.b))
        if self.transpose[0]:
            a = a.transpose(0, 2, 1)
        if self.transpose[1]:
            b = b.transpose(0, 2, 1)
        with np.errstate(all="ignore"):
            product = np.dtype(dtype).type(self.alpha) * (a @ b)
            out = self.c.view()
            if self.beta:  # or C is not read at all: NaN in it must not count
                before = self.c.dtype.loaded(out).astype(dtype)
                product = product + np.dtype(dtype).type(self.beta) * before
            out[...] = self.c.dtype.stored(product)


def _same(x: Array) -> Array:
    return x


def _tf32(x: Array) -> Array:
    """float32 rounded to nearest with 10 bits of fraction."""
    bits = x.view(np.int32)
    rounded = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
    return np.where(np.isfinite(x), rounded, bits).astype(np.int32).view(np.float32)


def read_gemm(
    op_a: int, op_b: int, m: int, n: int, k: int, alpha: int,
    a: int, a_type: int, lda: int, stride_a: int,
    b: int, b_type: int, ldb: int, stride_b: int, beta: int,
    c: int, c_type: int, ldc: int, stride_c: int, count: int, compute: int,
) -> Gemm:  # fmt: skip
    """Return the call that these arguments describe.  Raise Fault, with cuBLAS's result, if they
    are wrong.
    """
    rows_a, columns_a = (k, m) if op_a else (m, k)
    rows_b, columns_b = (n, k) if op_b else (k, n)
    if compute not in SUMS or not {a_type, b_type, c_type} <= DTYPES.keys():
        raise Fault(NOT_SUPPORTED, f"gemm of types {a_type}, {b_type}, {c_type} by {compute}")
    if min(m, n, k, count) < 0 or not {op_a, op_b} <= {0, 1, 2}:
        raise Fault(INVALID_VALUE, f"gemm of {m} x {n} x {k}, {count} times")
    for name, leading, rows in (("A", lda, rows_a), ("B", ldb, rows_b), ("C", ldc, m)):
        if leading < max(1, rows):
            raise Fault(INVALID_VALUE, f"gemm: ld{name.lower()} = {leading} with {rows} rows")
    read = _reader(SUMS[compute])
    return Gemm(
        Matrix(a, DTYPES[a_type], rows_a, columns_a, lda, stride_a, count),
        Matrix(b, DTYPES[b_type], rows_b, columns_b, ldb, stride_b, count),
        Matrix(c, DTYPES[c_type], m, n, ldc, stride_c, count),
        (op_a != 0, op_b != 0), read(alpha), read(beta), compute,
    )  # fmt: skip


def _reader(dtype: str) -> Callable[[int], float]:
    def read(address: int) -> float:
        if dtype == "float16":
            return float(np.frombuffer(ctypes.string_at(address, 2), np.float16)[0])
        return float(_SCALARS[dtype].from_address(address).value)

    return read
