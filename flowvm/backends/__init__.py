"""`flow.backends`: PyTorch's switches of computing libraries, as far as flowvm has them.

    flow.backends.cuda.matmul.allow_tf32     float32 matrix products may use TF32 (False)
    flow.backends.cudnn.allow_tf32           convolutions may, too (False; PyTorch has True)

What is asked answers what is true of flowvm: it has kernels of its own, and of PyTorch's libraries
uses cuBLAS alone.  Switches that could change nothing here (cudnn.benchmark) are taken and kept, so
that programs that set them run.
Not here: what switches do.
"""

from __future__ import annotations

from flowvm.backends import (
    cpu,
    cuda,
    cudnn,
    mkl,
    mkldnn,
    mps,
    nnpack,
    openmp,
    opt_einsum,
    quantized,
)
from flowvm.cuda.options import get_float32_matmul_precision, set_float32_matmul_precision
from flowvm.loading.listing import listing

__all__ = [
    "cpu",
    "cuda",
    "cudnn",
    "get_float32_matmul_precision",
    "mkl",
    "mkldnn",
    "mps",
    "nnpack",
    "openmp",
    "opt_einsum",
    "quantized",
    "set_float32_matmul_precision",
]
__dir__ = listing(globals())
