"""Things around training that are neither layers nor optimizers: feeding data, saving memory."""

from flowvm.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
