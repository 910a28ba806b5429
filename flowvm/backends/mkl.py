"""`flow.backends.mkl`: flowvm's products are its own."""

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def is_available() -> bool:
    """Whether MKL is used: never."""
    return False


__all__ = own_names(globals())
