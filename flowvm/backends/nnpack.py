"""`flow.backends.nnpack`: flowvm uses no NNPACK."""

from flowvm.loading.listing import listing

__all__ = ["is_available"]
__dir__ = listing(globals())


def is_available() -> bool:
    """Return False: flowvm does not use NNPACK."""
    return False
