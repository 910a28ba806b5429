"""BLAS by address: matrix products inside kernel bodies, from the library that SciPy carries."""

from __future__ import annotations

import ctypes
import functools
import glob
import os
from typing import Any

import numpy as np

from flowvm.native import Intrinsic

__all__ = ["blas", "gemm"]


@functools.cache
def blas(name: str) -> int:
    """The address of a BLAS routine, such as "sgemm" or "dgemm", of the library that SciPy carries.

    That library then runs on one thread: the VM splits products itself, and two pools of threads
    would fight.
    """
    from scipy.linalg import cython_blas

    _one_blas_thread()
    capsule = cython_blas.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)))


@functools.cache
def _one_blas_thread() -> None:
    import scipy

    folder = os.path.join(os.path.dirname(os.path.dirname(scipy.__file__)), "scipy.libs")
    for path in glob.glob(os.path.join(folder, "*openblas*")):
        library = ctypes.CDLL(path)
        for prefix in ("scipy_openblas", "openblas"):
            for suffix in ("", "64_"):
                if hasattr(library, f"{prefix}_set_num_threads{suffix}"):
                    getattr(library, f"{prefix}_set_num_threads{suffix}")(1)


def _gemm_python(
    address: int, ta: int, tb: int, m: int, n: int, k: int, alpha: float,
    a: Any, a_at: int, lda: int, b: Any, b_at: int, ldb: int, beta: float,
    c: Any, c_at: int, ldc: int,
) -> None:  # fmt: skip
    def matrix(x: Any, at: int, rows: int, columns: int, ld: int) -> Any:
        shape, strides = (rows, columns), (ld * x.itemsize, x.itemsize)
        return np.lib.stride_tricks.as_strided(x.reshape(-1)[at:], shape, strides)

    left = matrix(a, a_at, k, m, lda).T if ta else matrix(a, a_at, m, k, lda)
    right = matrix(b, b_at, n, k, ldb).T if tb else matrix(b, b_at, k, n, ldb)
    out = matrix(c, c_at, m, n, ldc)
    out[...] = alpha * (left @ right) + (beta * out if beta else 0)


def _gemm_define() -> Any:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    i8, i32, i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)

    def typing(
        typingctx: Any, address: Any, ta: Any, tb: Any, m: Any, n: Any, k: Any, alpha: Any,
        a: Any, a_at: Any, lda: Any, b: Any, b_at: Any, ldb: Any, beta: Any,
        c: Any, c_at: Any, ldc: Any,
    ) -> Any:  # fmt: skip
        if not a.dtype == b.dtype == c.dtype or c.dtype not in (types.float32, types.float64):
            return None
        integer, real = types.int64, c.dtype
        signature = types.void(
            integer, integer, integer, integer, integer, integer, real,
            a, integer, integer, b, integer, integer, real, c, integer, integer,
        )  # fmt: skip

        def codegen(context: Any, builder: Any, sig: Any, v: Any) -> Any:
            def by_reference(value: Any) -> Any:
                spot = cgutils.alloca_once(builder, value.type)
                builder.store(value, spot)
                return spot

            def size(value: Any) -> Any:
                return by_reference(builder.trunc(value, i32))

            def flag(value: Any) -> Any:
                yes = builder.icmp_signed("!=", value, i64(0))
                return by_reference(builder.select(yes, i8(ord("T")), i8(ord("N"))))

            def data(index: int) -> Any:
                array = context.make_array(sig.args[index])(context, builder, v[index]).data
                return builder.gep(array, [v[index + 1]])

            # BLAS is column-major: C' = B' A' there is C = A B here.
            arguments = [
                flag(v[2]), flag(v[1]), size(v[4]), size(v[3]), size(v[5]), by_reference(v[6]),
                data(10), size(v[12]), data(7), size(v[9]), by_reference(v[13]),
                data(14), size(v[16]),
            ]  # fmt: skip
            kind = ir.FunctionType(ir.VoidType(), [x.type for x in arguments]).as_pointer()
            builder.call(builder.inttoptr(v[0], kind), arguments)
            return context.get_dummy_value()

        return signature, codegen

    return typing


gemm = Intrinsic(_gemm_python, _gemm_define)
gemm.__doc__ = """C = alpha op(A) op(B) + beta C on row-major matrices, inside a body.

gemm(address, ta, tb, m, n, k, alpha, a, a_at, lda, b, b_at, ldb, beta, c, c_at, ldc): `address` is
`blas("sgemm")` or "dgemm" (a const of the launch), `ta` and `tb` are 1 to transpose, each matrix is
an array, the element it starts at and the distance between its rows.
"""
