"""Things around training that are neither layers nor optimizers: feeding data, saving memory.

Not here: what has a room of its own.
"""

from typing import TYPE_CHECKING

from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing
from flowvm.utils import checkpoint, data

if TYPE_CHECKING:
    from flowvm.utils import (
        _pytree,
        benchmark,
        cpp_extension,
        dlpack,
        global_view,
        tensor,
        tensorboard,
    )
else:
    _pytree = lazy("flowvm.utils._pytree")
    benchmark = lazy("flowvm.utils.benchmark")
    cpp_extension = lazy("flowvm.utils.cpp_extension")
    dlpack = lazy("flowvm.utils.dlpack")
    global_view = lazy("flowvm.utils.global_view")
    tensor = lazy("flowvm.utils.tensor")
    tensorboard = lazy("flowvm.utils.tensorboard")

__all__ = [
    "benchmark",
    "checkpoint",
    "cpp_extension",
    "data",
    "dlpack",
    "global_view",
    "tensor",
    "tensorboard",
]
__dir__ = listing(globals())
