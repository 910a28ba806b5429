"""`flow.backends.mps`: flowvm does not compute on Apple's GPUs."""

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def is_available() -> bool:
    """Whether Metal can be used: never."""
    return False


def is_built() -> bool:
    """Whether this flowvm could use Metal: never."""
    return False


def is_macos_or_newer(major: int, minor: int) -> bool:
    """Whether a macOS of this version has devices for flowvm: never."""
    return False


__all__ = own_names(globals())
