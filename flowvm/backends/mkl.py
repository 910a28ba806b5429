"""`flow.backends.mkl`: flowvm's products are its own."""

from flowvm.loading.listing import listing

__all__ = ["is_available"]
__dir__ = listing(globals())


def is_available() -> bool:
    """Whether MKL is used: never."""
    return False
