"""`flow.backends.mkl`: flowvm's products are its own."""

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def is_available() -> bool:
    """Return False: flowvm does not use MKL."""
    return False


__all__ = own_names(globals())
