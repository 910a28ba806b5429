"""`flow.backends.nnpack`: flowvm uses no NNPACK."""

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def is_available() -> bool:
    """Return False: flowvm does not use NNPACK."""
    return False


__all__ = own_names(globals())
