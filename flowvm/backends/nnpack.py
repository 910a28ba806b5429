"""`flow.backends.nnpack`: flowvm uses no NNPACK."""

__all__ = ["is_available"]


def is_available() -> bool:
    """Whether NNPACK is used: never."""
    return False
