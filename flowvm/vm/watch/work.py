"""How much an operation computes, for rates: from its name and the metas of its operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowvm.meta.meta import TensorMeta

_PRODUCTS = ("matmul", "linear", "addmm", "baddbmm", "bmm")


def flops_of(name: str, metas: Sequence[TensorMeta]) -> int:
    """Operations of a matrix product or convolution, 2 a multiplication; 0 for anything else.

    `metas` are those of the operands, outputs first.
    """
    if len(metas) < 3:
        return 0
    out, a, b = metas[:3]
    if name.lstrip("_").startswith(_PRODUCTS):
        batch = math.prod(b.shape[:-2])
        # m n, m k and k n elements, or so many times each in a batch
        return 2 * math.isqrt(out.numel * a.numel * b.numel // max(1, batch))
    if name == "conv_weight":
        return 2 * a.numel * out.numel // max(1, out.shape[0])
    if name in ("conv", "conv_input"):
        return 2 * (out if name == "conv" else a).numel * b.numel // max(1, b.shape[0])
    return 0
