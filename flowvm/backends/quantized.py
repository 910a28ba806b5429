"""`flow.backends.quantized`: flowvm has no quantized kernels."""

from typing import Final

from flowvm.loading.listing import listing

__all__ = ["engine", "supported_engines"]
__dir__ = listing(globals())

engine: Final = "none"
supported_engines: Final[list[str]] = ["none"]
