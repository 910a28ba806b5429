"""Choice of the attention kernel, causal masks that need no memory, and attention with scores and
masks by functions (`flex_attention`).

Not here: attention itself (`flowvm.ops.sequences`), and layers (`flowvm.nn.modules`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from flowvm.errors import ArgumentTypeError
from flowvm.guards.regions import Region
from flowvm.loading.listing import listing
from flowvm.nn.attention import bias
from flowvm.ops.sequences.attention import fusing

__all__ = ["SDPBackend", "bias", "sdpa_kernel"]
__dir__ = listing(globals())


class SDPBackend(enum.IntEnum):
    """PyTorch's ways to compute attention.  Here there are two: MATH is the composition with the
    matrix of weights, all others mean the fused op.
    """

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


def sdpa_kernel(backends: SDPBackend | Iterable[SDPBackend], set_priority: bool = False) -> Region:
    """A region of this thread in which attention is computed by one of these.

    With MATH alone, and with set_priority if MATH is the first, it is the composition.  Else it is
    the fused op where that takes a call, and the composition where not, as outside of every region.

    >>> from flowvm.nn.attention import SDPBackend, sdpa_kernel
    >>> q = flow.ones(1, 1, 2, 4)
    >>> with sdpa_kernel(SDPBackend.MATH):
    ...     flow.nn.functional.scaled_dot_product_attention(q, q, q).shape
    flow.Size([1, 1, 2, 4])
    """
    choices = [backends] if isinstance(backends, SDPBackend) else list(backends)
    if not choices or not all(isinstance(b, SDPBackend) for b in choices):
        raise ArgumentTypeError(f"sdpa_kernel takes SDPBackends, one at least, got {backends!r}")
    alone = all(b is SDPBackend.MATH for b in choices)
    return fusing.to(not (alone or (set_priority and choices[0] is SDPBackend.MATH)))
