"""`flow.utils.dlpack`: DLPack's capsules, which hand over memory once.

`flow.from_dlpack` takes what speaks the protocol, which is more than a capsule knows.
"""

from __future__ import annotations

from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.interop.protocols import from_dlpack
from flowvm.loading.listing import listing

__all__ = ["from_dlpack", "to_dlpack"]
__dir__ = listing(globals())


# public: flow (late, unlisted)
def to_dlpack(tensor: Tensor) -> Any:
    """A capsule with the memory of `tensor`, for one `from_dlpack`.

    >>> x = flow.zeros(2)
    >>> y = flow.utils.dlpack.from_dlpack(flow.utils.dlpack.to_dlpack(x))
    >>> y.fill_(1.0).data_ptr() == x.data_ptr()
    True
    """
    x: Tensor = tensor
    return x.__dlpack__()
