"""`flow.nn.image`: what is done to images of record files before they are one tensor."""

from __future__ import annotations

from flowvm.loading.listing import listing
from flowvm.loading.missing_names import other_names
from flowvm.nn.modules.records import ImageResize as Resize

__all__ = ["Resize"]
__dir__ = listing(globals())
__getattr__ = other_names("nn.image", lambda: __all__)
