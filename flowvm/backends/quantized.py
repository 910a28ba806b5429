"""`flow.backends.quantized`: flowvm has no quantized kernels."""

from typing import Final

__all__ = ["engine", "supported_engines"]

engine: Final = "none"
supported_engines: Final[list[str]] = ["none"]
