"""`flow.backends.mps`: flowvm does not compute on Apple's GPUs."""

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def is_available() -> bool:
    """Return False: flowvm does not use Metal."""
    return False


def is_built() -> bool:
    """Return False: flowvm is not built for Metal."""
    return False


def is_macos_or_newer(major: int, minor: int) -> bool:
    """Return False: flowvm has no devices of macOS."""
    return False


__all__ = own_names(globals())
