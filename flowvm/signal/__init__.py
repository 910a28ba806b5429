"""`flow.signal`: signal processing, of which PyTorch has the windows.

Not here: transforms, and the older names of windows (`flow.hann_window`), which are ops.
"""

from flowvm.loading.listing import listing
from flowvm.signal import windows

__all__ = ["windows"]
__dir__ = listing(globals())
