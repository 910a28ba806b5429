"""Things around training that are neither layers nor optimizers: feeding data, saving memory.

Not here: what has a room of its own.
"""

from flowvm.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
