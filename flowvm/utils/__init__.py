"""Things around training that are neither layers nor optimizers: feeding data, for now."""

from flowvm.utils import data

__all__ = ["data"]
