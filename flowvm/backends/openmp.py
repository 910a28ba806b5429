"""`flow.backends.openmp`: kernels run on the VM's own threads (`flow.set_num_threads`)."""

__all__ = ["is_available"]


def is_available() -> bool:
    """Whether OpenMP is used: never."""
    return False
