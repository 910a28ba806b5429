"""The number of operations of an instruction, from its name and the metas of its operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowvm.meta.meta import TensorMeta

_PRODUCTS = ("matmul", "linear", "addmm", "baddbmm", "bmm")


def flops_of(name: str, metas: Sequence[TensorMeta]) -> int:
    """Return the operations of a matrix product, convolution or attention, 2 a multiplication; 0
    for anything else.  The masked half of a causal attention counts, too.

    `metas` are the operands' metas, outputs first.
    """
    if len(metas) < 3:
        return 0
    if name == "attention":
        out, q, k = metas[0], metas[2], metas[3]
        return 2 * k.shape[-2] * (q.numel + out.numel)
    if name == "attention_backward":  # scores once more, then four products
        q, k, out = metas[3], metas[4], metas[6]
        return 2 * k.shape[-2] * (3 * q.numel + 2 * out.numel)
    out, a, b = metas[:3]
    if name.lstrip("_").startswith(_PRODUCTS):
        batch = math.prod(b.shape[:-2])
        # m n, m k and k n elements, or these times the size of a batch
        return 2 * math.isqrt(out.numel * a.numel * b.numel // max(1, batch))
    if name == "conv_weight":
        return 2 * a.numel * out.numel // max(1, out.shape[0])
    if name in ("conv", "conv_input"):
        return 2 * (out if name == "conv" else a).numel * b.numel // max(1, b.shape[0])
    return 0
