"""`torch.utils.hooks`: the handle that registering a hook returns."""

from flowvm.loading.listing import listing
from flowvm.nn.hooks import RemovableHandle as RemovableHandle

__all__ = ["RemovableHandle"]
__dir__ = listing(globals())
