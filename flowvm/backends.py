"""`flow.backends`: PyTorch's switches of what computes where, as far as flowvm has them.

    flow.backends.cuda.matmul.allow_tf32     float32 matrix products may use TF32 (False)
    flow.backends.cudnn.allow_tf32           convolutions may, too (False; PyTorch has True)

flowvm uses no cuDNN: its convolutions are its own kernels and cuBLAS.  The name is there so that
programs that set it run.
"""

from __future__ import annotations

from typing import Final

from flowvm.cuda import options
from flowvm.cuda.options import get_float32_matmul_precision, set_float32_matmul_precision

__all__ = ["cuda", "cudnn", "get_float32_matmul_precision", "set_float32_matmul_precision"]


class _Cuda:
    """`flow.backends.cuda`."""

    matmul: Final = options.matmul

    @staticmethod
    def is_built() -> bool:
        """Whether this flowvm can use CUDA, where there is a device: always."""
        return True


cuda: Final = _Cuda()
cudnn: Final = options.convolution
